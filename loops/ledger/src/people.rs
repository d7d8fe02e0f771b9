//! Who may use the server, and the record of who did what.

use async_trait::async_trait;
use hone_domain::{Digest, MemoryMode, Millis, RateLimits, UserRole};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::LedgerError;

/// Whose agent an account is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// An owner's.
    Owner(String),
    /// A team's.
    Team(String),
}

/// A person, or a program with an account of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Unique; also the owner of what they send.
    pub name: String,
    /// What they may do.
    pub role: UserRole,
    /// Argon2id string; none for somebody who never signs in.
    pub password: Option<String>,
    /// Whether keys and sign-ins are refused.
    pub disabled: bool,
    /// Exceptions from the configured limits.
    pub limits: RateLimits,
    /// Whose agent this is; none for an account of its own. An agent has no password.
    pub keeper: Option<Keeper>,
    /// When the account was made.
    pub created_ms: Millis,
    /// When they last signed in.
    pub signed_in_ms: Option<Millis>,
}

/// What changes of a user; none stays. A new password or a disabled account ends every sign-in.
#[derive(Clone, Debug, Default)]
pub struct UserChange {
    /// The role.
    pub role: Option<UserRole>,
    /// Argon2id string of the new password.
    pub password: Option<String>,
    /// Whether the account is closed.
    pub disabled: Option<bool>,
    /// The limits, as a whole.
    pub limits: Option<RateLimits>,
}

/// What changes of a key; none stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyChange {
    /// Whether its calls are collected although they say `store: false`.
    pub despite_store_false: Option<bool>,
    /// Whether log-probs in replies are the model's own where a request does not say, or as configured.
    pub raw_logprobs: Option<Option<bool>>,
    /// What requests do with memories where they do not say, or as configured.
    pub memory: Option<Option<MemoryMode>>,
}

/// Somebody in a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Owner of what they send: name of an account, or of somebody without one.
    pub name: String,
    /// Whether they manage the team.
    pub is_lead: bool,
    /// Since when they are in it.
    pub joined_ms: Millis,
}

/// Accounts that share limits and keep agents together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    /// Unique among teams.
    pub name: String,
    /// Whether its agents are refused; its members go on as if in no team.
    pub disabled: bool,
    /// What all of them may use together; exceptions from the configured limits of teams.
    pub limits: RateLimits,
    /// When it was made.
    pub created_ms: Millis,
    /// Who is in it, by name.
    pub members: Vec<Member>,
}

/// What changes of a team; none stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct TeamChange {
    /// Whether it is closed.
    pub disabled: Option<bool>,
    /// The limits, as a whole.
    pub limits: Option<RateLimits>,
}

/// An API key without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// The public part.
    pub id: String,
    /// Whose.
    pub owner: String,
    /// What its owner calls it.
    pub label: String,
    /// What it may do, unless its owner may less.
    pub role: UserRole,
    /// SHA-256 of the whole key; none for a key that was stored in an older form, which is refused.
    pub sha256: Option<Digest>,
    /// Exceptions from its owner's limits.
    pub limits: RateLimits,
    /// Whether its calls are collected although they say `store: false`.
    pub despite_store_false: bool,
    /// Whether log-probs in replies are the model's own where a request does not say; none is as configured.
    pub raw_logprobs: Option<bool>,
    /// What requests do with memories where they do not say; none is as configured.
    pub memory: Option<MemoryMode>,
    /// When it was made.
    pub created_ms: Millis,
    /// From when on it is refused.
    pub expires_ms: Option<Millis>,
    /// Since when it is revoked.
    pub revoked_ms: Option<Millis>,
    /// When it was last used, to about a minute.
    pub used_ms: Option<Millis>,
}

/// A sign-in of a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignIn {
    /// SHA-256 of the cookie.
    pub token: Digest,
    /// Whose.
    pub user: String,
    /// When it began.
    pub created_ms: Millis,
    /// When it was last used, to about a minute.
    pub used_ms: Millis,
}

/// When keys and sign-ins were last used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Keys by their public part.
    pub keys: Vec<(String, Millis)>,
    /// Sign-ins by their token's hash.
    pub sign_ins: Vec<(Digest, Millis)>,
}

/// A link that makes one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invite {
    /// SHA-256 of the token.
    pub token: Digest,
    /// The role of the account.
    pub role: UserRole,
    /// Its name; none lets the guest choose.
    pub name: Option<String>,
    /// Who invites: an account, or an owner without one. Empty for the link of the first start,
    /// which nobody made: it is refused once there is an account.
    pub by: String,
    /// When it was made.
    pub created_ms: Millis,
    /// From when on it is refused.
    pub expires_ms: Millis,
}

/// A change among people. Each is one transaction together with its audit entry.
#[derive(Clone, Debug)]
pub enum PeopleChange {
    /// A new account; `Taken` if the name is, `Missing` if the team that is to keep it does not
    /// exist.
    AddUser(User),
    /// A changed account; `Missing` if there is none, or if an agent would get a password.
    ChangeUser(String, UserChange),
    /// A new key; `Taken` if the id is.
    AddKey(ApiKey),
    /// Other settings of a key; `Missing` if there is no such key or it is revoked.
    ChangeKey(String, KeyChange),
    /// A key that is refused from now on; `Missing` if there is none or it is revoked already.
    RevokeKey(String, Millis),
    /// A new key in place of an old one, which ends at the given time; `Missing` if the old one
    /// does not exist or is revoked.
    RotateKey(String, ApiKey, Millis),
    /// A new sign-in; also notes when the user signed in. `Missing` if there is no such user or
    /// the account is disabled.
    SignIn(SignIn),
    /// The end of a sign-in; `Missing` if there is none.
    SignOut(Digest),
    /// A new invitation.
    Invite(Invite),
    /// An invitation taken by a new account; `Missing` if it does not exist, ran out, was taken,
    /// is for another name or role, or is not backed (see [`People::invite`]), `Taken` if the name
    /// is.
    TakeInvite(Digest, User),
    /// A new team with its members; `Taken` if the name is, or if a member is in another team.
    AddTeam(Team),
    /// A changed team; `Missing` if there is none.
    ChangeTeam(String, TeamChange),
    /// A member of a team, new or with another part in it; `Missing` if there is no such team,
    /// `Taken` if they are in another one.
    PutMember(String, Member),
    /// A member who is in the team no more; `Missing` if they are not in it.
    DropMember(String, String),
}

/// What became of a change. Only `Done` leaves a trace, in the tables and in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is done.
    Done,
    /// What it is about does not exist.
    Missing,
    /// The name or id is taken.
    Taken,
}

impl Changed {
    /// What a change of so many rows is: `Missing` where there was none.
    pub fn of_rows(count: u64) -> Self {
        match count {
            0 => Self::Missing,
            _ => Self::Done,
        }
    }
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// When.
    pub at_ms: Millis,
    /// Who.
    pub actor: String,
    /// What they did, such as `key.revoke`.
    pub act: String,
    /// To what.
    pub object: String,
    /// More, without user text and secrets.
    pub detail: Value,
}

/// A recorded entry.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRecord {
    /// Its place; the first is 1.
    pub number: u64,
    /// What it says.
    pub entry: AuditEntry,
    /// Hash of this entry and the hash before it.
    pub hash: Digest,
}

/// Which entries to list.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// Only entries before this number.
    pub before: Option<u64>,
    /// Only entries of this act.
    pub act: Option<String>,
    /// Most entries.
    pub limit: usize,
}

/// Whether the audit log is as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditCheck {
    /// Entries read.
    pub entries: u64,
    /// The first that does not fit what is before it.
    pub first_broken: Option<u64>,
    /// Hash of the last intact entry. Who notes it elsewhere can also tell a log that was cut.
    pub head: Digest,
}

/// The hash before the first entry.
pub const AUDIT_ORIGIN: Digest = Digest([0; 32]);

/// The hash of an entry whose detail has the given text: SHA-256 over the hash before, the number,
/// the time and the length-prefixed texts.
pub fn chained(before: Digest, number: u64, entry: &AuditEntry, detail: &str) -> Digest {
    let mut hash = Sha256::new();
    hash.update(before.0);
    hash.update(number.to_le_bytes());
    hash.update(entry.at_ms.to_le_bytes());
    for text in [&entry.actor, &entry.act, &entry.object, detail] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    Digest(hash.finalize().into())
}

/// The durable record of people. Implementations pass `crate::suite::people`.
#[async_trait]
pub trait People: Send + Sync {
    /// Does a change and records it, or does neither.
    async fn change(
        &self,
        change: &PeopleChange,
        entry: &AuditEntry,
    ) -> Result<Changed, LedgerError>;

    /// One account.
    async fn user(&self, name: &str) -> Result<Option<User>, LedgerError>;

    /// Every account, by name.
    async fn users(&self) -> Result<Vec<User>, LedgerError>;

    /// Every team with its members, by name.
    async fn teams(&self) -> Result<Vec<Team>, LedgerError>;

    /// One key.
    async fn key(&self, id: &str) -> Result<Option<ApiKey>, LedgerError>;

    /// Keys of an owner, or of all, newest first.
    async fn keys(&self, owner: Option<&str>) -> Result<Vec<ApiKey>, LedgerError>;

    /// One sign-in.
    async fn sign_in(&self, token: Digest) -> Result<Option<SignIn>, LedgerError>;

    /// One invitation, unless it was taken. None while the account that made it is closed, or has
    /// a role that does not cover the invitation's.
    async fn invite(&self, token: Digest) -> Result<Option<Invite>, LedgerError>;

    /// Notes when keys and sign-ins were last used, and forgets sign-ins not used since `idle_ms`.
    async fn note_uses(&self, uses: &Uses, idle_ms: Millis) -> Result<(), LedgerError>;

    /// Grows with every change to users, keys and teams and with every ended sign-in, whichever process
    /// makes it.
    async fn revision(&self) -> Result<u64, LedgerError>;

    /// Records an entry of the audit log.
    async fn record(&self, entry: &AuditEntry) -> Result<AuditRecord, LedgerError>;

    /// Entries, newest first.
    async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditRecord>, LedgerError>;

    /// Reads the whole audit log and checks every hash.
    async fn verify_audit(&self) -> Result<AuditCheck, LedgerError>;
}
