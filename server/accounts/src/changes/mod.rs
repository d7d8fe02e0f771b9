//! Changes of accounts, keys, agents and teams: who may make which, and what the audit log says of them. HTTP and
//! the command line share these rules; each words a [`Refusal`] for its readers.

mod groups;
mod keys;

use hone_domain::{LOCAL_OWNER, RateLimits, UserRole};
use hone_ledger::{AuditEntry, Changed, Keeper, LedgerError, PeopleChange, User, UserChange};
use serde_json::{Value, json};

use crate::{Caller, Directory, Error, audit, is_name, oidc, password_fault};

pub use keys::NewKey;

/// Who changes something.
#[derive(Clone, Copy)]
pub enum Actor<'a> {
    /// A caller of the server, within their role and what they lead.
    Caller(&'a Caller),
    /// A command on the data folder, which may change everything; its name in the audit log.
    Command(&'a str),
}

/// Changes by one actor.
pub struct Changes<'a> {
    /// What is changed.
    pub people: &'a Directory,
    /// Who changes it.
    pub actor: Actor<'a>,
    /// Owners of the keys of the configuration: they call without an account, and nobody else has their names.
    pub configured: Vec<String>,
}

/// Why a change is refused.
#[derive(Debug)]
pub enum Refusal {
    /// Nothing can have this name.
    Name(String),
    /// Somebody has this name.
    Taken(String),
    /// No account has this name.
    NoAccount(String),
    /// No agent that the actor decides about has this name.
    NoAgent(String),
    /// No team has this name.
    NoTeam(String),
    /// No key that is in use and that the actor decides about has this id.
    NoKey(String),
    /// A key that ended gets no successor.
    Expired,
    /// An agent has neither a password nor another role.
    IsAgent(String),
    /// An agent is in no team and keeps no agents.
    NoPerson(String),
    /// They are in another team.
    InAnotherTeam(String),
    /// They are not in this team.
    NotMember {
        /// Who.
        member: String,
        /// The team.
        team: String,
    },
    /// A key may do at most what its owner may.
    RoleAbove {
        /// Whose key.
        owner: String,
        /// Whether that is an agent.
        is_agent: bool,
        /// What the owner may do.
        most: UserRole,
        /// What the key was to do.
        role: UserRole,
    },
    /// A refusal that is worded alike for everybody.
    Other(Error),
    /// The store failed.
    Ledger(LedgerError),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<LedgerError> for Refusal {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

/// Whether something can have a name.
pub fn check_name(name: &str) -> Result<(), Refusal> {
    match is_name(name) {
        true => Ok(()),
        false => Err(Refusal::Name(name.to_owned())),
    }
}

fn conflict(code: &'static str, message: String) -> Refusal {
    Error::Conflict { code, message }.into()
}

fn forbidden(code: &'static str, message: &str) -> Refusal {
    let message = message.to_owned();
    Error::Forbidden { code, message }.into()
}

fn invalid(param: &'static str, message: impl Into<String>) -> Refusal {
    let message = message.into();
    Error::Invalid { param, message }.into()
}

impl Changes<'_> {
    fn caller(&self) -> Option<&Caller> {
        match self.actor {
            Actor::Caller(caller) => Some(caller),
            Actor::Command(_) => None,
        }
    }

    /// Whether this is the caller's name; a command has none.
    fn is_own(&self, name: &str) -> bool {
        self.caller().is_some_and(|caller| caller.owner == name)
    }

    fn leads(&self, team: &str) -> bool {
        let leads = |caller: &Caller| self.people.groups().leads(&caller.owner, team);
        self.is_admin() || self.caller().is_some_and(leads)
    }

    fn is_admin(&self) -> bool {
        self.caller()
            .is_none_or(|caller| caller.role == UserRole::Admin)
    }

    /// Makes a change together with its entry in the audit log.
    async fn make(
        &self,
        change: PeopleChange,
        act: &str,
        object: &str,
        detail: Value,
    ) -> Result<Changed, LedgerError> {
        let at_ms = self.people.now_ms();
        let entry = match self.actor {
            Actor::Caller(caller) => audit::entry(caller, at_ms, (act, object), detail),
            Actor::Command(name) => AuditEntry {
                at_ms,
                actor: name.to_owned(),
                act: act.to_owned(),
                object: object.to_owned(),
                detail,
            },
        };
        self.people.change(&change, &entry).await
    }

    fn check_free(&self, name: &str) -> Result<(), Refusal> {
        check_name(name)?;
        match self.configured.iter().any(|owner| owner == name) {
            true => Err(Refusal::Taken(name.to_owned())),
            false => Ok(()),
        }
    }

    /// Whether somebody of that name can call: with an account of their own, by a key of the configuration, by a
    /// token, or at this machine.
    async fn check_person(&self, name: &str) -> Result<(), Refusal> {
        let has_key = self.configured.iter().any(|owner| owner == name);
        if has_key || name == LOCAL_OWNER || oidc::is_owner(name) {
            return Ok(());
        }
        match self.people.store.user(name).await? {
            Some(user) if user.keeper.is_none() => Ok(()),
            Some(_) => Err(Refusal::NoPerson(name.to_owned())),
            None => Err(Refusal::NoAccount(name.to_owned())),
        }
    }

    /// Makes an account; without a password nobody signs in to it.
    pub async fn add_user(
        &self,
        name: String,
        role: UserRole,
        password: Option<String>,
        limits: RateLimits,
    ) -> Result<User, Refusal> {
        self.check_free(&name)?;
        let password = self.hashed(password).await?;
        self.add_account(name, role, password, limits, None).await
    }

    async fn add_account(
        &self,
        name: String,
        role: UserRole,
        password: Option<String>,
        limits: RateLimits,
        keeper: Option<Keeper>,
    ) -> Result<User, Refusal> {
        let (act, detail) = match &keeper {
            None => ("user.add", json!({"role": role.as_str()})),
            Some(Keeper::Owner(owner)) => ("agent.add", json!({"owner": owner})),
            Some(Keeper::Team(team)) => ("agent.add", json!({"team": team})),
        };
        let user = User {
            name,
            role,
            password,
            disabled: false,
            limits,
            keeper,
            created_ms: self.people.now_ms(),
            signed_in_ms: None,
        };
        let change = PeopleChange::AddUser(user.clone());
        let added = self.make(change, act, &user.name, detail).await?;
        match (added, user.keeper.clone()) {
            (Changed::Done, _) => Ok(user),
            (Changed::Missing, Some(Keeper::Team(team))) => Err(Refusal::NoTeam(team)),
            _ => Err(Refusal::Taken(user.name)),
        }
    }

    async fn hashed(&self, password: Option<String>) -> Result<Option<String>, Refusal> {
        let Some(password) = password else {
            return Ok(None);
        };
        match password_fault(&password) {
            Some(fault) => Err(invalid("password", fault)),
            None => Ok(Some(self.people.hash_password(password).await?)),
        }
    }

    /// Changes an account; a password is given in plain text. Nobody closes or demotes themselves, and an agent has
    /// neither a password nor another role.
    pub async fn change_user(&self, name: &str, change: UserChange) -> Result<User, Refusal> {
        if self.is_own(name) && (change.role.is_some() || change.disabled == Some(true)) {
            return Err(conflict(
                "own_account",
                "you cannot close your own account or change its role; another admin can"
                    .to_owned(),
            ));
        }
        let wants_account = change.role.is_some() || change.password.is_some();
        if wants_account && self.people.groups().is_agent(name) {
            return Err(Refusal::IsAgent(name.to_owned()));
        }
        let detail = json!({
            "role": change.role.map(UserRole::as_str), "disabled": change.disabled,
            "password_reset": change.password.is_some(), "limits": change.limits,
        });
        let change = UserChange {
            password: self.hashed(change.password).await?,
            ..change
        };
        let user = self.change_account(name, change, "user.change", detail);
        user.await?
            .ok_or_else(|| Refusal::NoAccount(name.to_owned()))
    }

    async fn change_account(
        &self,
        name: &str,
        change: UserChange,
        act: &str,
        detail: Value,
    ) -> Result<Option<User>, LedgerError> {
        let change = PeopleChange::ChangeUser(name.to_owned(), change);
        self.make(change, act, name, detail).await?;
        self.people.store.user(name).await
    }
}
