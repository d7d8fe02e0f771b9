//! `hone user`, `hone key`: people from the command line, also beside a running server.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use hone_accounts::changes::{Actor, Changes, NewKey, Refusal, check_name};
use hone_accounts::{Directory, expiry, password_fault};
use hone_domain::{MemoryMode, Millis, RateLimits, UserRole};
use hone_ledger::{ApiKey, Keeper, KeyChange, LedgerError, People, User, UserChange};
use hone_runtime::{Clock, SystemClock};

use super::place::{ACTOR, Place, old_ledger, tell_of_new_ledger};
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
    hone key despite-store-false ID yes\n  hone key memory ID full"
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
        /// What its calls do with memories where they do not say: off, read or full; as configured if absent.
        #[arg(long, value_parser = memory_mode)]
        memory: Option<MemoryMode>,
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
    /// Say what a key's calls do with memories where they do not say so themselves.
    Memory {
        /// The public part, as `hone key list` shows it.
        id: String,
        /// off, read (shown to the model), full (also written), or default (as configured).
        #[arg(value_parser = key_memory, action = clap::ArgAction::Set)]
        mode: KeyMemory,
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

/// Reads accounts. A mistyped folder is not a new one.
pub(super) fn read<T>(
    place: &Place,
    work: impl AsyncFnOnce(&dyn People) -> Result<T, LedgerError>,
) -> Result<T, String> {
    old_ledger(&place.config()?)?;
    at(place, async |people| Ok(work(people.store()).await?))
}

/// Makes one change of accounts.
pub(super) fn change<T>(
    place: &Place,
    work: impl AsyncFnOnce(&Changes<'_>) -> Result<T, Refusal>,
) -> Result<T, String> {
    at(place, async |people| {
        let changes = Changes {
            people,
            actor: Actor::Command(ACTOR),
            configured: Vec::new(),
        };
        work(&changes).await
    })
}

/// Runs one command on the accounts in the data folder.
fn at<T>(
    place: &Place,
    work: impl AsyncFnOnce(&Directory) -> Result<T, Refusal>,
) -> Result<T, String> {
    let config = place.config()?;
    let folder = config.store.folder()?;
    tell_of_new_ledger(&config);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the async thread could not be started: {error}"))?;
    runtime.block_on(async {
        let ledger = config.store.place(&folder, &[]).open_beside().await;
        let ledger = ledger.map_err(|e| e.to_string())?;
        let clock = Arc::new(SystemClock::default());
        // Nobody signs in here, so no identity provider is asked.
        let done = match Directory::open((ledger.clone(), clock), config.people, None).await {
            Ok(directory) => work(&directory).await,
            Err(error) => Err(error.into()),
        };
        ledger.close().await;
        done.map_err(sentence)
    })
}

/// How the command line words what a change is refused for.
pub(super) fn sentence(refusal: Refusal) -> String {
    match refusal {
        Refusal::Name(name) => format!(
            "{name:?} cannot be a name: 1 to 64 of a-z, 0-9, ., _, -, @, beginning with a letter or digit, and not \"local\""
        ),
        Refusal::Taken(name) => format!("the name {name} is taken"),
        Refusal::NoAccount(name) => format!(
            "there is no account {name}; `hone user list` shows them, `hone user add` makes one"
        ),
        Refusal::NoAgent(name) => {
            format!("there is no agent {name}; `hone agent list` shows them")
        }
        Refusal::NoTeam(name) => format!(
            "there is no team {name}; `hone team list` shows them, `hone team add` makes one"
        ),
        Refusal::NoKey(id) => format!("no key {id} is in use; `hone key list` shows them"),
        Refusal::NotMember { team, .. } => {
            format!("they are not in the team {team}; `hone team list` shows who is")
        }
        Refusal::Expired => expiry::over("`hone key add`"),
        Refusal::NoPerson(name) => {
            format!("{name} is an agent; name the person or team that keeps it")
        }
        Refusal::IsAgent(name) => {
            format!("{name} is an agent: it has the role user, and nobody signs in as it")
        }
        Refusal::InAnotherTeam(member) => format!(
            "{member} is in another team, and everybody is in one at most; `hone team drop` takes them out"
        ),
        Refusal::RoleAbove {
            owner,
            is_agent,
            most,
            role,
        } => {
            let remedy = match is_agent {
                true => "agents always have it",
                false => "change it with `hone user role`",
            };
            format!(
                "{owner} has the role {}, and a key of it cannot be {}; {remedy}",
                most.as_str(),
                role.as_str()
            )
        }
        Refusal::Other(error) => error.to_string(),
        Refusal::Ledger(error) => error.to_string(),
    }
}

/// A password: asked for twice, or one line of what is piped in.
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
    match password_fault(&password) {
        Some(fault) => Err(fault),
        None => Ok(password),
    }
}

/// `hone user`.
pub(crate) fn user(command: UserCommand) -> Result<ExitCode, String> {
    let (name, wanted, place) = match command {
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
    change(&place, async |changes| {
        changes.change_user(&name, wanted).await
    })?;
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
    check_name(name).map_err(sentence)?;
    let password = if no_password {
        None
    } else {
        Some(ask_password()?)
    };
    change(place, async |changes| {
        let added = changes.add_user(name.to_owned(), role, password, RateLimits::default());
        added.await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a text; a reader that closes its end early is no failure.
pub(super) fn print(text: &str) {
    let _heard = std::io::stdout().lock().write_all(text.as_bytes()).is_ok();
}

fn list_users(place: &Place) -> Result<ExitCode, String> {
    let users = read(place, async |people| people.users().await)?;
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

/// A key's mode of memory; none is as configured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyMemory(Option<MemoryMode>);

fn memory_mode(word: &str) -> Result<MemoryMode, String> {
    MemoryMode::from_stored(word).ok_or_else(|| "say off, read or full".to_owned())
}

fn key_memory(word: &str) -> Result<KeyMemory, String> {
    if word == "default" {
        return Ok(KeyMemory(None));
    }
    let mode = memory_mode(word).map_err(|_| "say off, read, full or default".to_owned());
    mode.map(|mode| KeyMemory(Some(mode)))
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
            memory,
            limits,
            place,
        } => {
            let now_ms = SystemClock::default().now_ms();
            let new = NewKey {
                owner,
                label: name,
                role,
                limits: limits.rates(),
                despite_store_false,
                raw_logprobs: None,
                memory,
                expires_ms: days.map(|days| now_ms + i64::from(days) * DAY_MS),
            };
            let (_, key) = change(&place, async |changes| changes.add_key(new).await)?;
            println!("{key}");
        }
        KeyCommand::List { owner, place } => list_keys(owner.as_deref(), &place)?,
        KeyCommand::Rotate { id, place } => {
            let (_, key) = change(&place, async |changes| changes.rotate_key(&id).await)?;
            println!("{key}");
        }
        KeyCommand::DespiteStoreFalse { id, answer, place } => {
            let wanted = KeyChange {
                despite_store_false: Some(answer),
                ..KeyChange::default()
            };
            change(&place, async |changes| {
                changes.change_key(&id, wanted, None).await
            })?;
        }
        KeyCommand::Memory { id, mode, place } => {
            let wanted = KeyChange {
                memory: Some(mode.0),
                ..KeyChange::default()
            };
            change(&place, async |changes| {
                changes.change_key(&id, wanted, None).await
            })?;
        }
        KeyCommand::Revoke { id, place } => {
            change(&place, async |changes| changes.revoke_any_key(&id).await)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list_keys(owner: Option<&str>, place: &Place) -> Result<(), String> {
    let keys = read(place, async |people| people.keys(owner).await)?;
    let now_ms = SystemClock::default().now_ms();
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
        let memory = key.memory.map_or(String::new(), |mode| {
            format!(" (memory: {})", mode.as_str())
        });
        let label = format!("{}{despite}{memory}", key.label);
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
