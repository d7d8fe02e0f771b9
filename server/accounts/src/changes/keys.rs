//! Changes of keys.

use hone_domain::{LOCAL_OWNER, MemoryMode, Millis, RateLimits, UserRole};
use hone_ledger::{ApiKey, Changed, KeyChange, PeopleChange};
use serde_json::{Value, json};

use super::{Actor, Changes, Refusal, conflict, invalid};
use crate::error::secret_error;
use crate::{Error, expiry, secrets};

/// A key to make.
pub struct NewKey {
    /// Whose.
    pub owner: String,
    /// What its owner calls it.
    pub label: String,
    /// What it may do.
    pub role: UserRole,
    /// Its exceptions from the configured limits.
    pub limits: RateLimits,
    /// Whether its calls are collected although they say `store: false`.
    pub despite_store_false: bool,
    /// Whether log-probs in replies are the model's own where a request does not say; none is as configured.
    pub raw_logprobs: Option<bool>,
    /// What its requests do with memories where they do not say; none is as configured.
    pub memory: Option<MemoryMode>,
    /// From when on it is refused.
    pub expires_ms: Option<Millis>,
}

impl Changes<'_> {
    /// Makes a key; gives it and its text, which stands nowhere else.
    pub async fn add_key(&self, new: NewKey) -> Result<(ApiKey, String), Refusal> {
        self.check_key_role(&new.owner, new.role).await?;
        let now_ms = self.people.now_ms();
        if let Some(caller) = self.caller() {
            if caller.acted_by.is_some() && new.role != UserRole::User {
                return Err(invalid("role", "an agent's keys have the role user"));
            }
            expiry::check(new.expires_ms, now_ms)
                .map_err(|message| invalid("expires_ms", message))?;
            self.check_key_count(&new.owner, 1).await?;
        }
        let made = secrets::new_key().map_err(|error| secret_error(&error))?;
        let key = ApiKey {
            id: made.id,
            owner: new.owner,
            label: new.label,
            role: new.role,
            sha256: Some(secrets::digest(&made.key)),
            limits: new.limits,
            despite_store_false: new.despite_store_false,
            raw_logprobs: new.raw_logprobs,
            memory: new.memory,
            created_ms: now_ms,
            expires_ms: new.expires_ms,
            revoked_ms: None,
            used_ms: None,
        };
        let detail =
            json!({"owner": key.owner, "role": key.role.as_str(), "expires_ms": key.expires_ms});
        let change = PeopleChange::AddKey(key.clone());
        self.make_to_key(change, "key.make", &key.id, detail)
            .await?;
        Ok((key, made.key))
    }

    async fn check_key_role(&self, owner: &str, role: UserRole) -> Result<(), Refusal> {
        let (most, is_agent) = match self.actor {
            Actor::Caller(caller) => (caller.role, caller.acted_by.is_some()),
            Actor::Command(_) if owner == LOCAL_OWNER => return Ok(()),
            Actor::Command(_) => match self.people.store.user(owner).await? {
                Some(user) => (user.role, user.keeper.is_some()),
                None => return Err(Refusal::NoAccount(owner.to_owned())),
            },
        };
        if most.covers(role) {
            return Ok(());
        }
        Err(Refusal::RoleAbove {
            owner: owner.to_owned(),
            is_agent,
            most,
            role,
        })
    }

    /// Whether an owner has room for another key: `times` the configured number.
    async fn check_key_count(&self, owner: &str, times: usize) -> Result<(), Refusal> {
        let keys = self.people.store.keys(Some(owner)).await?;
        let now_ms = self.people.now_ms();
        let is_live =
            |k: &&ApiKey| k.revoked_ms.is_none() && k.expires_ms.is_none_or(|ends| ends > now_ms);
        let live = keys.iter().filter(is_live).count();
        let most = self.people.config.keys_per_owner_max;
        if live < most.saturating_mul(times) {
            return Ok(());
        }
        Err(conflict(
            "too_many_keys",
            format!(
                "you have {live} keys in use (people.keys_per_owner_max is {most}); revoke one first"
            ),
        ))
    }

    async fn make_to_key(
        &self,
        change: PeopleChange,
        act: &str,
        id: &str,
        detail: Value,
    ) -> Result<(), Refusal> {
        match self.make(change, act, id, detail).await? {
            Changed::Done => Ok(()),
            Changed::Missing => Err(Refusal::NoKey(id.to_owned())),
            Changed::Taken => {
                let message = "two keys of one id; try again".to_owned();
                Err(Error::Internal(message).into())
            }
        }
    }

    /// A key that is in use; a caller's own.
    async fn key(&self, id: &str) -> Result<ApiKey, Refusal> {
        let owner = self.caller().map(|caller| &caller.owner);
        let key = self.people.store.key(id).await?;
        key.filter(|key| key.revoked_ms.is_none() && owner.is_none_or(|own| key.owner == *own))
            .ok_or_else(|| Refusal::NoKey(id.to_owned()))
    }

    /// Makes a key in place of an old one, which goes on for `people.key_overlap_ms`.
    pub async fn rotate_key(&self, id: &str) -> Result<(ApiKey, String), Refusal> {
        let old = self.key(id).await?;
        let now_ms = self.people.now_ms();
        if let Some(caller) = self.caller() {
            self.check_key_role(&caller.owner, old.role).await?;
        }
        expiry::check(old.expires_ms, now_ms).map_err(|_| Refusal::Expired)?;
        if self.caller().is_some() {
            // Old keys go on for a while beside their successors.
            self.check_key_count(&old.owner, 2).await?;
        }
        let made = secrets::new_key().map_err(|error| secret_error(&error))?;
        let key = ApiKey {
            id: made.id,
            sha256: Some(secrets::digest(&made.key)),
            created_ms: now_ms,
            used_ms: None,
            ..old
        };
        let ends_ms = now_ms + self.people.config.key_overlap_ms;
        let detail = json!({"successor": key.id, "ends_ms": ends_ms});
        let change = PeopleChange::RotateKey(id.to_owned(), key.clone(), ends_ms);
        self.make_to_key(change, "key.rotate", id, detail).await?;
        Ok((key, made.key))
    }

    /// Changes settings of a key; `mode` is the word for log-probs that the change came from.
    pub async fn change_key(
        &self,
        id: &str,
        change: KeyChange,
        mode: Option<&str>,
    ) -> Result<ApiKey, Refusal> {
        let mut key = self.key(id).await?;
        let mut detail = json!({});
        if let Some(despite) = change.despite_store_false {
            key.despite_store_false = despite;
            detail["despite_store_false"] = json!(despite);
        }
        if let Some(raw) = change.raw_logprobs {
            key.raw_logprobs = raw;
            detail["logprobs_mode"] = json!(mode);
        }
        if let Some(memory) = change.memory {
            key.memory = memory;
            detail["memory"] = json!(memory);
        }
        let change = PeopleChange::ChangeKey(id.to_owned(), change);
        self.make_to_key(change, "key.change", id, detail).await?;
        Ok(key)
    }

    /// Refuses a key of the actor's own from now on.
    pub async fn revoke_key(&self, id: &str) -> Result<(), Refusal> {
        self.key(id).await?;
        self.revoke_any_key(id).await
    }

    /// Refuses anybody's key from now on.
    pub async fn revoke_any_key(&self, id: &str) -> Result<(), Refusal> {
        let change = PeopleChange::RevokeKey(id.to_owned(), self.people.now_ms());
        self.make_to_key(change, "key.revoke", id, json!({})).await
    }
}
