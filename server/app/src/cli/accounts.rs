//! `hone user`, `hone key`: people from the command line, also beside a running server.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use hone_domain::{LOCAL_OWNER, Millis, RateLimits, UserRole};
use hone_ledger::{
    ApiKey, AuditEntry, Changed, Keeper, Ledger, People, PeopleChange, User, UserChange,
};
use hone_ledger_sql::SqliteLedger;
use hone_runtime::{Clock, SystemClock};
use serde_json::{Value, json};

use hone_accounts::secrets;
use hone_accounts::{PeopleConfig, expiry, is_name, password_fault};

use super::place::{ACTOR, Place, ledger_file, tell_of_new_ledger};
use crate::table::{Side::Left, table};

const DAY_MS: Millis = 86_400_000;

/// Accounts of people and programs.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  hone user add ann --role admin\n  \
    printf %s \"$PASSWORD\" | hone user add ann\n  hone user add nightly-job --no-password\n  \
    hone user disable ann\n  hone user passwd ann")]
pub(crate) enum UserCommand {
    /// Make an account; asks for a password, or reads one line where it cannot ask.
    Add {
        /// Its name: a-z, 0-9, `.`, `_`, `-`, `@`.
        name: String,
        /// user, developer, auditor or admin.
        #[arg(long, default_value = "user", value_parser = role)]
        role: UserRole,
        /// Nobody signs in; for programs, which use keys.
        #[arg(long)]
        no_password: bool,
        #[command(flatten)]
        place: Place,
    },
    /// List the accounts.
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Refuse the account's keys and sign-ins from now on.
    Disable {
        /// The account.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Take the account's keys and sign-ins again.
    Enable {
        /// The account.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Set a new password; ends every sign-in of the account.
    Passwd {
        /// The account.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Give the account another role.
    Role {
        /// The account.
        name: String,
        /// user, developer, auditor or admin.
        #[arg(value_parser = role)]
        role: UserRole,
        #[command(flatten)]
        place: Place,
    },
}

/// API keys.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  KEY=$(hone key add ann --name laptop --role developer)\n  \
    hone key add ann --name ci --days 90 --requests-per-minute 60\n  hone key list ann\n  \
    hone key rotate ID\n  hone key revoke ID\n  \
    hone key despite-store-false ID yes"
)]
pub(crate) enum KeyCommand {
    /// Make a key; it is printed once and never again.
    Add {
        /// The account, or `local`.
        owner: String,
        /// What to call it.
        #[arg(long, default_value = "command line")]
        name: String,
        /// user, developer, auditor or admin; the account's own role is the limit.
        #[arg(long, default_value = "user", value_parser = role)]
        role: UserRole,
        /// Days until it expires, 1 or more; never if absent.
        #[arg(long, value_parser = expiry::days)]
        days: Option<u32>,
        /// Collect its calls although they say `store: false`, where the caller's consent is full.
        #[arg(long)]
        despite_store_false: bool,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        place: Place,
    },
    /// List the keys, newest first.
    List {
        /// Only this account's.
        owner: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Make a new key in place of an old one, which goes on for people.key_overlap_ms.
    Rotate {
        /// The public part, as `hone key list` shows it.
        id: String,
        #[command(flatten)]
        place: Place,
    },
    /// Say whether a key's calls are collected although they say `store: false`.
    DespiteStoreFalse {
        /// The public part, as `hone key list` shows it.
        id: String,
        /// yes or no; collected only where the caller's consent is full.
        #[arg(value_parser = yes_or_no, action = clap::ArgAction::Set)]
        answer: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Refuse a key from now on.
    Revoke {
        /// The public part, as `hone key list` shows it.
        id: String,
        #[command(flatten)]
        place: Place,
    },
}

/// Exceptions from the configured limits; 0 is no limit.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LimitArgs {
    /// Most completion requests in a minute.
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<u64>,
    /// Most tokens in a minute.
    #[arg(long, value_name = "N")]
    tokens_per_minute: Option<u64>,
    /// Most tokens in a day.
    #[arg(long, value_name = "N")]
    tokens_per_day: Option<u64>,
    /// Most completions at once.
    #[arg(long, value_name = "N")]
    streams_max: Option<u64>,
}

impl LimitArgs {
    /// The same as they are stored.
    pub(super) fn rates(self) -> RateLimits {
        RateLimits {
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            tokens_per_day: self.tokens_per_day,
            streams_max: self.streams_max,
        }
    }
}

fn yes_or_no(word: &str) -> Result<bool, String> {
    match word {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("say yes or no".to_owned()),
    }
}

fn role(name: &str) -> Result<UserRole, String> {
    UserRole::from_name(name)
        .ok_or_else(|| "a role is one of user, developer, auditor, admin".to_owned())
}

/// The database, opened for one command.
pub(super) struct Desk {
    pub(super) ledger: SqliteLedger,
    config: PeopleConfig,
    pub(super) now_ms: Millis,
}

/// As [`at_desk`], for what only looks: a mistyped folder is not a new one.
pub(super) fn at_old_desk<T>(
    place: &Place,
    work: impl AsyncFnOnce(&Desk) -> Result<T, String>,
) -> Result<T, String> {
    let config = place.config()?;
    ledger_file(&config)?;
    at_desk(place, work)
}

/// Runs one command on the database.
pub(super) fn at_desk<T>(
    place: &Place,
    work: impl AsyncFnOnce(&Desk) -> Result<T, String>,
) -> Result<T, String> {
    let config = place.config()?;
    let folder = config.store.folder()?;
    tell_of_new_ledger(&config);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the async thread could not be started: {error}"))?;
    runtime.block_on(async {
        let ledger = SqliteLedger::open_beside(&config.store.sqlite(&folder)).await;
        let desk = Desk {
            ledger: ledger.map_err(|e| e.to_string())?,
            config: config.people,
            now_ms: SystemClock::default().now_ms(),
        };
        let done = work(&desk).await;
        desk.ledger.close().await;
        done
    })
}

impl Desk {
    pub(super) async fn change(
        &self,
        change: PeopleChange,
        act: &str,
        object: &str,
        detail: Value,
    ) -> Result<Changed, String> {
        let entry = AuditEntry {
            at_ms: self.now_ms,
            actor: ACTOR.to_owned(),
            act: act.to_owned(),
            object: object.to_owned(),
            detail,
        };
        let changed = self.ledger.change(&change, &entry).await;
        changed.map_err(|e| e.to_string())
    }

    /// One account.
    pub(super) async fn user(&self, name: &str) -> Result<Option<User>, String> {
        self.ledger.user(name).await.map_err(|e| e.to_string())
    }

    async fn change_user(&self, name: String, change: UserChange) -> Result<(), String> {
        let known = self.user(&name).await?;
        let is_agent = known.is_some_and(|user| user.keeper.is_some());
        if is_agent && (change.role.is_some() || change.password.is_some()) {
            return Err(format!(
                "{name} is an agent: it has the role user, and nobody signs in as it"
            ));
        }
        let detail = json!({
            "role": change.role.map(UserRole::as_str), "disabled": change.disabled,
            "password": change.password.is_some(),
        });
        let wanted = PeopleChange::ChangeUser(name.clone(), change);
        match self.change(wanted, "user.change", &name, detail).await? {
            Changed::Done => Ok(()),
            _ => Err(no_account(&name)),
        }
    }

    async fn add_key(&self, wanted: ApiKey, key: &str) -> Result<(), String> {
        if wanted.owner != LOCAL_OWNER {
            let owner = self.user(&wanted.owner).await?;
            let owner = owner.ok_or_else(|| no_account(&wanted.owner))?;
            if !owner.role.covers(wanted.role) {
                let remedy = match owner.keeper {
                    Some(_) => "agents always have it",
                    None => "change it with `hone user role`",
                };
                return Err(format!(
                    "{} has the role {}, and a key of it cannot be {}; {remedy}",
                    owner.name,
                    owner.role.as_str(),
                    wanted.role.as_str()
                ));
            }
        }
        let id = wanted.id.clone();
        let detail = json!({"owner": wanted.owner, "role": wanted.role.as_str()});
        let change = PeopleChange::AddKey(wanted);
        self.change(change, "key.make", &id, detail).await?;
        println!("{key}");
        Ok(())
    }

    async fn rotate(&self, id: &str) -> Result<(), String> {
        let old = self.ledger.key(id).await.map_err(|e| e.to_string())?;
        let old = old.ok_or_else(|| no_key(id))?;
        expiry::check_rotated(old.expires_ms, self.now_ms, "`hone key add`")?;
        let made = secrets::new_key().map_err(|e| e.to_string())?;
        let successor = ApiKey {
            id: made.id.clone(),
            sha256: Some(secrets::digest(&made.key)),
            created_ms: self.now_ms,
            used_ms: None,
            ..old
        };
        let ends_ms = self.now_ms + self.config.key_overlap_ms;
        let change = PeopleChange::RotateKey(id.to_owned(), successor, ends_ms);
        let detail = json!({"successor": made.id, "ends_ms": ends_ms});
        match self.change(change, "key.rotate", id, detail).await? {
            Changed::Done => {
                println!("{}", made.key);
                Ok(())
            }
            _ => Err(no_key(id)),
        }
    }
}

pub(super) fn no_account(name: &str) -> String {
    format!("there is no account {name}; `hone user list` shows them, `hone user add` makes one")
}

/// What a name may be.
pub(super) fn not_a_name(name: &str) -> String {
    format!(
        "{name:?} cannot be a name: 1 to 64 of a-z, 0-9, ., _, -, @, beginning with a letter or digit, and not \"local\""
    )
}

fn no_key(id: &str) -> String {
    format!("no key {id} is in use; `hone key list` shows them")
}

/// A password as its hash: asked for twice, or one line of what is piped in.
fn ask_password() -> Result<String, String> {
    let failed = |error: std::io::Error| format!("the password could not be read: {error}");
    let password = if std::io::stdin().is_terminal() {
        let first = rpassword::prompt_password("Password: ").map_err(failed)?;
        if rpassword::prompt_password("Again: ").map_err(failed)? != first {
            return Err("the two passwords differ; nothing was changed".to_owned());
        }
        first
    } else {
        let mut line = String::new();
        std::io::stdin()
            .lock()
            .read_line(&mut line)
            .map_err(failed)?;
        line.trim_end_matches(['\r', '\n']).to_owned()
    };
    if let Some(fault) = password_fault(&password) {
        return Err(fault);
    }
    secrets::hash_password(&password).map_err(|e| e.to_string())
}

/// `hone user`.
pub(crate) fn user(command: UserCommand) -> Result<ExitCode, String> {
    let (name, change, place) = match command {
        UserCommand::Add {
            name,
            role,
            no_password,
            place,
        } => return add_user(&name, role, no_password, &place),
        UserCommand::List { place } => return list_users(&place),
        UserCommand::Disable { name, place } => (name, closed(true), place),
        UserCommand::Enable { name, place } => (name, closed(false), place),
        UserCommand::Passwd { name, place } => {
            let change = UserChange {
                password: Some(ask_password()?),
                ..UserChange::default()
            };
            (name, change, place)
        }
        UserCommand::Role { name, role, place } => {
            let change = UserChange {
                role: Some(role),
                ..UserChange::default()
            };
            (name, change, place)
        }
    };
    at_desk(&place, async |desk| desk.change_user(name, change).await)?;
    Ok(ExitCode::SUCCESS)
}

fn closed(disabled: bool) -> UserChange {
    UserChange {
        disabled: Some(disabled),
        ..UserChange::default()
    }
}

fn add_user(
    name: &str,
    role: UserRole,
    no_password: bool,
    place: &Place,
) -> Result<ExitCode, String> {
    if !is_name(name) {
        return Err(not_a_name(name));
    }
    let password = if no_password {
        None
    } else {
        Some(ask_password()?)
    };
    at_desk(place, async |desk| {
        let user = User {
            name: name.to_owned(),
            role,
            password,
            disabled: false,
            limits: RateLimits::default(),
            keeper: None,
            created_ms: desk.now_ms,
            signed_in_ms: None,
        };
        let detail = json!({"role": role.as_str()});
        let added = desk.change(PeopleChange::AddUser(user), "user.add", name, detail);
        match added.await? {
            Changed::Done => Ok(ExitCode::SUCCESS),
            _ => Err(format!("the name {name} is taken")),
        }
    })
}

/// Prints a text; a reader that closes its end early is no failure.
pub(super) fn print(text: &str) {
    let _heard = std::io::stdout().lock().write_all(text.as_bytes()).is_ok();
}

fn list_users(place: &Place) -> Result<ExitCode, String> {
    let users = at_old_desk(place, async |desk| {
        desk.ledger.users().await.map_err(|e| e.to_string())
    })?;
    let row = |user: User| {
        let state = match (user.disabled, &user.keeper, &user.password) {
            (true, ..) => "disabled".to_owned(),
            (false, Some(Keeper::Owner(owner)), _) => format!("agent of {owner}"),
            (false, Some(Keeper::Team(team)), _) => format!("agent of the team {team}"),
            (false, None, None) => "keys only".to_owned(),
            (false, None, Some(_)) => String::new(),
        };
        vec![user.name, user.role.as_str().to_owned(), state]
    };
    let rows: Vec<Vec<String>> = users.into_iter().map(row).collect();
    let names = [("account", Left), ("role", Left), ("", Left)];
    print(&table(&names, &rows));
    Ok(ExitCode::SUCCESS)
}

/// `hone key`.
pub(crate) fn key(command: KeyCommand) -> Result<ExitCode, String> {
    match command {
        KeyCommand::Add {
            owner,
            name,
            role,
            days,
            despite_store_false,
            limits,
            place,
        } => at_desk(&place, async |desk| {
            let made = secrets::new_key().map_err(|e| e.to_string())?;
            let wanted = ApiKey {
                id: made.id,
                owner,
                label: name,
                role,
                sha256: Some(secrets::digest(&made.key)),
                limits: limits.rates(),
                despite_store_false,
                raw_logprobs: None,
                created_ms: desk.now_ms,
                expires_ms: days.map(|days| desk.now_ms + i64::from(days) * DAY_MS),
                revoked_ms: None,
                used_ms: None,
            };
            desk.add_key(wanted, &made.key).await
        })?,
        KeyCommand::List { owner, place } => list_keys(owner.as_deref(), &place)?,
        KeyCommand::Rotate { id, place } => {
            at_desk(&place, async |desk| desk.rotate(&id).await)?;
        }
        KeyCommand::DespiteStoreFalse { id, answer, place } => at_desk(&place, async |desk| {
            let change = PeopleChange::despite_store_false(&id, answer);
            let detail = json!({"despite_store_false": answer});
            match desk.change(change, "key.change", &id, detail).await? {
                Changed::Done => Ok(()),
                _ => Err(no_key(&id)),
            }
        })?,
        KeyCommand::Revoke { id, place } => at_desk(&place, async |desk| {
            let change = PeopleChange::RevokeKey(id.clone(), desk.now_ms);
            match desk.change(change, "key.revoke", &id, json!({})).await? {
                Changed::Done => Ok(()),
                _ => Err(no_key(&id)),
            }
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list_keys(owner: Option<&str>, place: &Place) -> Result<(), String> {
    let (keys, now_ms) = at_old_desk(place, async |desk| {
        let keys = desk.ledger.keys(owner).await.map_err(|e| e.to_string())?;
        Ok((keys, desk.now_ms))
    })?;
    let row = |key: ApiKey| {
        let is_over = key
            .expires_ms
            .is_some_and(|expires_ms| expires_ms <= now_ms);
        let state = match (key.revoked_ms, is_over) {
            (Some(_), _) => "revoked",
            (None, true) => "expired",
            (None, false) if key.used_ms.is_none() => "unused",
            (None, false) => "",
        };
        let role = key.role.as_str().to_owned();
        let despite = if key.despite_store_false {
            " (despite store: false)"
        } else {
            ""
        };
        let label = format!("{}{despite}", key.label);
        vec![key.id, key.owner, role, state.to_owned(), label]
    };
    let rows: Vec<Vec<String>> = keys.into_iter().map(row).collect();
    let names = ["id", "owner", "role", "", "name"].map(|name| (name, Left));
    print(&table(&names, &rows));
    Ok(())
}

#[cfg(test)]
#[path = "accounts_tests.rs"]
mod tests;
