//! Bodies and replies about people.

use hone_domain::{Learning, MemoryMode, Millis, RateLimits, UserRole};
use hone_ledger::{ApiKey, AuditRecord, User};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::RequestError;
use crate::capture::{is_raw, mode_of};
use crate::groups::KeeperReply;
use crate::limits::LimitFields;
use hone_accounts::AuthMethod;
use hone_accounts::{is_name, password_fault, secrets};

/// Most characters of a key's name.
const LABEL_CHARS_MAX: usize = 100;

/// The body of a sign-in.
#[derive(Deserialize, ToSchema)]
pub struct SignInRequest {
    /// The account.
    pub name: String,
    /// Its password.
    pub password: String,
}

/// The body that takes an invitation.
#[derive(Deserialize, ToSchema)]
pub struct InviteTaken {
    /// What the link ends with.
    pub token: String,
    /// The name of the new account.
    pub name: String,
    /// Its password.
    pub password: String,
}

/// The body of a change of password.
#[derive(Deserialize, ToSchema)]
pub struct PasswordRequest {
    /// The present one.
    pub old: String,
    /// The next one.
    pub new: String,
}

/// Who is calling.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MeReply {
    /// Always `me`.
    pub object: &'static str,
    /// The owner of what is sent: name of the account, owner of the key, or `local`.
    pub name: String,
    /// What they may do: `user`, `developer`, `auditor`, `admin`.
    #[schema(value_type = String)]
    pub role: UserRole,
    /// How they are known.
    pub via: AuthMethod,
    /// With a cookie: the value of the header `x-hone-csrf` for everything but reading.
    pub csrf: Option<String>,
    /// Whether there are accounts to sign in to.
    pub users_exist: bool,
    /// The team they are in.
    pub team: Option<String>,
    /// What may be learned from them: `off`, `serve`, `full`.
    #[schema(value_type = String)]
    pub consent: Learning,
}

/// The body that makes a key.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct KeyRequest {
    /// What its owner calls it.
    pub name: String,
    /// At most one's own role; `user` if absent.
    pub role: Option<String>,
    /// From when on it is refused, in milliseconds since the Unix epoch; never if absent.
    pub expires_ms: Option<i64>,
    /// Its own limits; only an admin's may be above those of who makes it.
    pub limits: Option<LimitFields>,
    /// Whether its calls are collected although they say `store: false`, where the caller's consent is
    /// `full`; false if absent.
    pub despite_store_false: Option<bool>,
    /// Which log-probs replies have where a request does not say: `raw_logprobs`, `processed_logprobs`, or
    /// `default`, which is as configured.
    pub logprobs_mode: Option<String>,
    /// What its requests do with memories where they do not say: `off`, `read`, `full`, or `default`, which is as
    /// configured.
    pub memory: Option<String>,
}

/// The body that changes a key.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct KeyPatch {
    /// Whether its calls are collected although they say `store: false`, where the caller's consent is
    /// `full`; stays if absent.
    pub despite_store_false: Option<bool>,
    /// Which log-probs replies have where a request does not say: `raw_logprobs`, `processed_logprobs`, or
    /// `default`, which is as configured; stays if absent.
    pub logprobs_mode: Option<String>,
    /// What its requests do with memories where they do not say: `off`, `read`, `full`, or `default`, which is as
    /// configured; stays if absent.
    pub memory: Option<String>,
}

/// What requests do with memories, by a key's word; none of these where nothing is said.
///
/// # Errors
/// It is no such word.
pub fn parse_memory(word: Option<&str>) -> Result<Option<Option<MemoryMode>>, RequestError> {
    let Some(word) = word else {
        return Ok(None);
    };
    let mode = MemoryMode::from_stored(word);
    if mode.is_none() && word != "default" {
        let why = "memory is off, read, full or default";
        return Err(RequestError::invalid("memory", why));
    }
    Ok(Some(mode))
}

/// Whether log-probs are the model's own, by a key's word; none of these where nothing is said.
pub fn parse_logprobs(word: Option<&str>) -> Result<Option<Option<bool>>, RequestError> {
    let Some(word) = word else {
        return Ok(None);
    };
    let raw = is_raw(word);
    if raw.is_none() && word != "default" {
        return Err(RequestError::invalid(
            "logprobs_mode",
            "logprobs_mode is processed_logprobs, raw_logprobs or default",
        ));
    }
    Ok(Some(raw))
}

/// A key. The key itself stands in the reply that makes it, and never again.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct KeyReply {
    /// Always `key`.
    pub object: &'static str,
    /// Its public part.
    pub id: String,
    /// What the key begins with.
    pub prefix: String,
    /// The key, once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What its owner calls it.
    pub name: String,
    /// Whose.
    pub owner: String,
    /// What it may do.
    #[schema(value_type = String)]
    pub role: UserRole,
    /// Its own limits.
    #[schema(value_type = Object)]
    pub limits: RateLimits,
    /// Whether its calls are collected although they say `store: false`, where the owner's consent is
    /// `full`.
    pub despite_store_false: bool,
    /// Which log-probs replies have where a request does not say; null is as configured.
    pub logprobs_mode: Option<&'static str>,
    /// What requests do with memories where they do not say; null is as configured.
    pub memory: Option<&'static str>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: Millis,
    /// From when on it is refused.
    pub expires_ms: Option<Millis>,
    /// Since when it is revoked.
    pub revoked_ms: Option<Millis>,
    /// When it was last used, to about a minute.
    pub used_ms: Option<Millis>,
}

impl KeyReply {
    /// A stored key; `key` where it was just made.
    pub fn of(stored: ApiKey, key: Option<String>) -> Self {
        Self {
            object: "key",
            prefix: secrets::prefix(&stored.id),
            id: stored.id,
            key,
            name: stored.label,
            owner: stored.owner,
            role: stored.role,
            limits: stored.limits,
            despite_store_false: stored.despite_store_false,
            logprobs_mode: stored.raw_logprobs.map(mode_of),
            memory: stored.memory.map(MemoryMode::as_str),
            created_ms: stored.created_ms,
            expires_ms: stored.expires_ms,
            revoked_ms: stored.revoked_ms,
            used_ms: stored.used_ms,
        }
    }
}

/// The body that makes an account.
#[derive(Deserialize, ToSchema)]
pub struct UserRequest {
    /// Its name.
    pub name: String,
    /// `user` if absent.
    pub role: Option<String>,
    /// Without one nobody signs in; keys work.
    pub password: Option<String>,
    /// Its own limits.
    pub limits: Option<LimitFields>,
}

/// The body that changes an account; what is absent stays.
#[derive(Deserialize, ToSchema)]
pub struct UserPatch {
    /// The new role.
    pub role: Option<String>,
    /// Whether keys and sign-ins are refused.
    pub disabled: Option<bool>,
    /// True makes a new password, which the reply shows once.
    pub password_reset: Option<bool>,
    /// Its own limits, as a whole.
    pub limits: Option<LimitFields>,
}

/// An account.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UserReply {
    /// Always `user`.
    pub object: &'static str,
    /// Its name.
    pub name: String,
    /// What it may do.
    #[schema(value_type = String)]
    pub role: UserRole,
    /// Whether keys and sign-ins are refused.
    pub disabled: bool,
    /// Whether somebody can sign in.
    pub has_password: bool,
    /// Whose agent this is; null for an account of its own.
    pub keeper: Option<KeeperReply>,
    /// A new password, once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// Its own limits.
    #[schema(value_type = Object)]
    pub limits: RateLimits,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: Millis,
    /// When somebody last signed in.
    pub signed_in_ms: Option<Millis>,
}

impl UserReply {
    /// A stored account; `password` where it was just made.
    pub fn of(user: User, password: Option<String>) -> Self {
        Self {
            object: "user",
            name: user.name,
            role: user.role,
            disabled: user.disabled,
            has_password: user.password.is_some(),
            keeper: user.keeper.map(KeeperReply::from),
            password,
            limits: user.limits,
            created_ms: user.created_ms,
            signed_in_ms: user.signed_in_ms,
        }
    }
}

/// The body that makes an invitation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct InviteRequest {
    /// The role of the account; `user` if absent.
    pub role: Option<String>,
    /// Its name; the guest chooses if absent.
    pub name: Option<String>,
}

/// A fresh invitation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct InviteReply {
    /// Always `invite`.
    pub object: &'static str,
    /// The link, for one account.
    pub url: String,
    /// What the link ends with.
    pub token: String,
    /// From when on it is refused, in milliseconds since the Unix epoch.
    pub expires_ms: Millis,
}

/// An entry of the audit log.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AuditItem {
    /// Its place; the first is 1.
    pub number: u64,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: Millis,
    /// Who.
    pub actor: String,
    /// What they did.
    pub act: String,
    /// To what.
    pub object: String,
    /// More.
    #[schema(value_type = Object)]
    pub detail: serde_json::Value,
    /// SHA-256 over the hash before and this entry.
    pub hash: String,
}

impl From<AuditRecord> for AuditItem {
    fn from(record: AuditRecord) -> Self {
        Self {
            number: record.number,
            at_ms: record.entry.at_ms,
            actor: record.entry.actor,
            act: record.entry.act,
            object: record.entry.object,
            detail: record.entry.detail,
            hash: record.hash.to_hex(),
        }
    }
}

/// Whether the audit log is as it was written.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AuditVerdict {
    /// Always `audit_check`.
    pub object: &'static str,
    /// Whether every hash fits.
    pub intact: bool,
    /// Entries read.
    pub entries: u64,
    /// The first that does not fit.
    pub first_broken: Option<u64>,
    /// Hash of the last intact entry; note it elsewhere to be able to tell a log that was cut.
    pub head: String,
}

/// The role of that name; `user` if absent.
pub fn parse_role(name: Option<&str>) -> Result<UserRole, RequestError> {
    let Some(name) = name else {
        return Ok(UserRole::User);
    };
    UserRole::from_name(name).ok_or_else(|| {
        RequestError::invalid("role", "role is one of user, developer, auditor, admin")
    })
}

/// A name that an account may have.
pub fn parse_name(name: &str) -> Result<(), RequestError> {
    match is_name(name) {
        true => Ok(()),
        false => Err(not_a_name()),
    }
}

/// What a name is.
pub fn not_a_name() -> RequestError {
    RequestError::invalid(
        "name",
        "a name has 1 to 64 of a-z, 0-9, ., _, -, @, begins with a letter or digit, and is not \"local\"",
    )
}

/// A password that an account may have.
pub fn parse_password(param: &str, password: &str) -> Result<(), RequestError> {
    match password_fault(password) {
        None => Ok(()),
        Some(fault) => Err(RequestError::invalid(param, fault)),
    }
}

/// A name that a key may have.
pub fn parse_label(label: &str) -> Result<String, RequestError> {
    let label = label.trim();
    let chars = label.chars().count();
    if chars == 0 || chars > LABEL_CHARS_MAX || label.chars().any(char::is_control) {
        return Err(RequestError::invalid(
            "name",
            format!("a key's name has 1 to {LABEL_CHARS_MAX} characters on one line"),
        ));
    }
    Ok(label.to_owned())
}
