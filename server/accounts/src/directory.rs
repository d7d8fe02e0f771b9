//! What is known of accounts and keys, in front of their store.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hone_domain::{Digest, Millis, UserRole};
use hone_ledger::{AuditEntry, Changed, LedgerError, People, PeopleChange, SignIn, User};
use hone_net::counted;
use hone_net::outbound::Outbound;
use hone_runtime::Clock;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::{outdated_key, secret_error, too_many, wrong_password};
use crate::groups::Groups;
use crate::known::{Known, Memory};
use crate::lock::locked;
use crate::login_throttle::{LoginThrottle, Place};
use crate::oidc::Tokens;
use crate::{AuthMethod, Caller, EffectiveLimits, Error, PeopleConfig, audit, oidc, secrets};

/// Longest that somebody waits for others' secrets to be hashed.
const HASHING_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the store.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same, about somebody whom it knew before.
pub(crate) const KNOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// How long it is not asked about such people again after it did not answer.
pub(crate) const SILENT_MS: Millis = 1_000;
/// Failed tries of one address per failed try that one name may have.
const TRIES_PER_ADDRESS: u32 = 5;
/// Failed tries of one name from everywhere per failed try that it may have from one address.
const TRIES_PER_NAME: u32 = 20;
/// Wrong keys of one address per failed try that one name may have.
const KEYS_PER_ADDRESS: u32 = 20;

/// People, in front of their store.
pub struct Directory {
    pub(crate) store: Arc<dyn People>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: PeopleConfig,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) hashing: Arc<Semaphore>,
    /// By name and place: who tries elsewhere locks nobody out here.
    pub(crate) names: Mutex<LoginThrottle<(String, Place)>>,
    /// By name alone, for those who never signed in under it from where they are.
    pub(crate) everywhere: Mutex<LoginThrottle<String>>,
    /// Who signed in from where since the start.
    pub(crate) welcome: Mutex<HashSet<(String, IpAddr)>>,
    pub(crate) addresses: Mutex<LoginThrottle<IpAddr>>,
    pub(crate) key_addresses: Mutex<LoginThrottle<IpAddr>>,
    pub(crate) revision: AtomicU64,
    /// When the store answered last.
    pub(crate) answered_ms: AtomicI64,
    /// Whom it was asked about in vain lately is not asked about again before.
    pub(crate) silent_until_ms: AtomicI64,
    pub(crate) has_users: AtomicBool,
    pub(crate) has_keys: AtomicBool,
    pub(crate) groups: Mutex<Arc<Groups>>,
    pub(crate) tokens: Option<Tokens>,
}

/// A fresh sign-in.
#[derive(Debug)]
pub struct Signed {
    /// The cookie's value.
    pub token: String,
    /// The value of the cookie by which this device is known from now on.
    pub device: String,
    /// Whose.
    pub caller: Caller,
}

impl Directory {
    /// A directory over a store. Without `outbound` no token of an identity provider is taken.
    pub async fn open(
        (store, clock): (Arc<dyn People>, Arc<dyn Clock>),
        config: PeopleConfig,
        outbound: Option<Arc<Outbound>>,
    ) -> Result<Self, LedgerError> {
        let (tries, window_ms) = (config.attempts_max, config.attempts_window_ms);
        let rows = config.remembered_max;
        let provider = config.oidc.clone().zip(outbound);
        let tokens = provider.map(|(oidc, outbound)| Tokens::new(oidc, outbound));
        let tokens = tokens.transpose();
        let directory = Self {
            memory: Mutex::new(Memory::new(rows)),
            hashing: Arc::new(Semaphore::new(config.hashing_parallel)),
            names: Mutex::new(LoginThrottle::new(tries, window_ms, rows)),
            everywhere: Mutex::new(LoginThrottle::new(tries * TRIES_PER_NAME, window_ms, rows)),
            welcome: Mutex::default(),
            addresses: Mutex::new(LoginThrottle::new(
                tries * TRIES_PER_ADDRESS,
                window_ms,
                rows,
            )),
            key_addresses: Mutex::new(LoginThrottle::new(
                tries * KEYS_PER_ADDRESS,
                window_ms,
                rows,
            )),
            revision: AtomicU64::new(store.revision().await?),
            answered_ms: AtomicI64::new(clock.now_ms()),
            silent_until_ms: AtomicI64::new(0),
            has_users: AtomicBool::new(false),
            has_keys: AtomicBool::new(false),
            groups: Mutex::default(),
            tokens: tokens.map_err(LedgerError::Unusable)?,
            store,
            clock,
            config,
        };
        directory.count().await?;
        Ok(directory)
    }

    /// What lasts.
    pub fn store(&self) -> &dyn People {
        &*self.store
    }

    /// The configuration.
    pub fn config(&self) -> &PeopleConfig {
        &self.config
    }

    /// Now.
    pub fn now_ms(&self) -> Millis {
        self.clock.now_ms()
    }

    /// Whether there are accounts.
    pub fn has_users(&self) -> bool {
        self.has_users.load(Ordering::Relaxed)
    }

    /// Whether tokens of an identity provider are taken.
    pub fn takes_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Whether there are or were keys in the store.
    pub fn has_keys(&self) -> bool {
        self.has_keys.load(Ordering::Relaxed)
    }

    pub(crate) async fn count(&self) -> Result<(), LedgerError> {
        let users = self.store.users().await?;
        let has_users = !users.is_empty();
        let has_keys = !self.store.keys(None).await?.is_empty();
        self.has_users.store(has_users, Ordering::Relaxed);
        self.has_keys.store(has_keys, Ordering::Relaxed);
        self.regroup(&users).await
    }

    /// Does a change, forgets what it outdates.
    pub async fn change(
        &self,
        change: &PeopleChange,
        entry: &AuditEntry,
    ) -> Result<Changed, LedgerError> {
        let changed = self.store.change(change, entry).await?;
        match takes_nothing(change) {
            true => locked(&self.memory).outdate(self.now_ms()),
            false => locked(&self.memory).forget(),
        }
        self.count().await?;
        Ok(changed)
    }

    /// Forgets what another process changed, and notes uses; to be called now and then.
    pub async fn look(&self) -> Result<(), LedgerError> {
        let looked = timeout(STORE_TIMEOUT, self.store.revision()).await;
        let revision = looked.unwrap_or_else(|_| Err(silent()))?;
        let before_ms = self.answered_ms.swap(self.now_ms(), Ordering::Relaxed);
        if self.revision.swap(revision, Ordering::Relaxed) != revision {
            locked(&self.memory).outdate(before_ms);
            self.count().await?;
        }
        Ok(())
    }

    /// Tells the store when keys and sign-ins were used.
    pub async fn note_uses(&self) -> Result<(), LedgerError> {
        let uses = locked(&self.memory).uses();
        let idle_ms = self.now_ms() - self.config.session_idle_ms;
        self.store.note_uses(&uses, idle_ms).await
    }

    /// Whose key this is; none if it is nobody's.
    pub async fn key(&self, peer: IpAddr, key: &str) -> Result<Option<Caller>, Error> {
        if let Some(tokens) = &self.tokens
            && oidc::looks_like_token(key)
        {
            return Ok(tokens.caller(key, self.now_ms()).await);
        }
        let (secret, now_ms) = (secrets::digest(key), self.now_ms());
        self.remembered(secret, now_ms, || self.find_key(peer, key, now_ms))
            .await
    }

    pub(crate) async fn find_key(
        &self,
        peer: IpAddr,
        key: &str,
        now_ms: Millis,
    ) -> Result<Option<Known>, Error> {
        let Some(id) = secrets::id_of(key) else {
            return Ok(None);
        };
        let stored = self.store.key(id).await?;
        let ends_ms = |expires: Option<Millis>| expires.unwrap_or(Millis::MAX);
        let stored = stored.filter(|k| k.revoked_ms.is_none() && ends_ms(k.expires_ms) > now_ms);
        let Some(stored) = stored else {
            return Ok(None);
        };
        let address = counted(peer);
        let wait_ms = locked(&self.key_addresses).wait_ms(&address, now_ms);
        if let Some(wait_ms) = wait_ms {
            return Err(too_many(wait_ms));
        }
        let kept = stored.sha256.ok_or_else(|| outdated_key(id))?;
        if !secrets::same(&kept.0, &secrets::digest(key).0) {
            locked(&self.key_addresses).failed(&address, now_ms);
            return Ok(None);
        }
        let owner = self.store.user(&stored.owner).await?;
        let is_closed = owner.as_ref().is_some_and(|owner| owner.disabled);
        if is_closed || !self.groups().is_open(&stored.owner) {
            return Ok(None);
        }
        let most = owner.as_ref().map_or(UserRole::Admin, |owner| owner.role);
        Ok(Some(Known {
            key: Some(stored.id.clone()),
            ends_ms: ends_ms(stored.expires_ms),
            idle_ms: Millis::MAX / 2,
            used_ms: now_ms,
            noted: false,
            verified_ms: now_ms,
            is_stale: false,
            caller: Caller {
                owner: stored.owner,
                role: stored.role.meet(most),
                via: AuthMethod::Key,
                allowance: EffectiveLimits {
                    key: Some((stored.id, stored.limits)),
                    owner: owner.map(|owner| owner.limits).unwrap_or_default(),
                    ..EffectiveLimits::default()
                },
                despite_store_false: stored.despite_store_false,
                raw_logprobs: stored.raw_logprobs,
                memory: stored.memory,
                acted_by: None,
            },
        }))
    }

    /// Who signed in with this cookie; none if nobody did, or too long ago.
    pub async fn session(&self, token: &str) -> Result<Option<Caller>, Error> {
        let (secret, now_ms) = (secrets::digest(token), self.now_ms());
        let find = || async { Ok(self.find_session(secret, now_ms).await?) };
        self.remembered(secret, now_ms, find).await
    }

    pub(crate) async fn find_session(
        &self,
        secret: Digest,
        now_ms: Millis,
    ) -> Result<Option<Known>, LedgerError> {
        let Some(stored) = self.store.sign_in(secret).await? else {
            return Ok(None);
        };
        let ends_ms = stored.created_ms + self.config.session_absolute_ms;
        if ends_ms <= now_ms || stored.used_ms + self.config.session_idle_ms <= now_ms {
            return Ok(None);
        }
        let user = self.store.user(&stored.user).await?;
        Ok(user.filter(|user| !user.disabled).map(|user| Known {
            key: None,
            ends_ms,
            idle_ms: self.config.session_idle_ms,
            used_ms: now_ms,
            noted: false,
            verified_ms: now_ms,
            is_stale: false,
            caller: caller_of(user),
        }))
    }

    /// The account with that name and password, if there is one.
    pub(crate) async fn user_with(
        &self,
        name: &str,
        password: String,
    ) -> Result<Option<User>, Error> {
        let user = self.store.user(name).await?;
        let user = user.filter(|user| !user.disabled);
        let stored = user.as_ref().and_then(|user| user.password.clone());
        // Nobody learns from the time it takes whether there is such a name.
        let hash = match &stored {
            Some(hash) => hash.clone(),
            None => self.nobodys_hash().await?,
        };
        let is_right = self.verify_password(hash, password).await? && stored.is_some();
        Ok(user.filter(|_| is_right))
    }

    /// Begins a session of somebody who has just shown who they are.
    pub async fn begin_session(&self, user: User) -> Result<Signed, Error> {
        let token = secrets::new_token().map_err(|e| secret_error(&e))?;
        let device = secrets::new_device(&user).map_err(|e| secret_error(&e))?;
        let now_ms = self.now_ms();
        let change = PeopleChange::SignIn(SignIn {
            token: secrets::digest(&token),
            user: user.name.clone(),
            created_ms: now_ms,
            used_ms: now_ms,
        });
        let caller = caller_of(user);
        let entry = audit::entry(&caller, now_ms, ("sign_in", &caller.owner), json!({}));
        // It outdates nothing of what is remembered of others.
        match self.store.change(&change, &entry).await {
            Err(error) => Err(error.into()),
            Ok(Changed::Done) => Ok(Signed {
                token,
                device,
                caller,
            }),
            Ok(_) => Err(wrong_password()),
        }
    }

    /// Whether this is the caller's password; counts tries as signing in does.
    pub async fn check_password(&self, name: &str, password: String) -> Result<bool, Error> {
        let now_ms = self.now_ms();
        // Whoever asks has signed in: their tries are counted apart from those of strangers.
        let own = (name.to_owned(), Place::SignedIn);
        if let Some(wait_ms) = locked(&self.names).wait_ms(&own, now_ms) {
            return Err(too_many(wait_ms));
        }
        let user = self.store.user(name).await?;
        let Some(hash) = user.and_then(|user| user.password) else {
            return Ok(false);
        };
        locked(&self.names).failed(&own, now_ms);
        let is_right = self.verify_password(hash, password).await;
        if !matches!(is_right, Ok(false)) {
            locked(&self.names).take_back(&own);
        }
        is_right
    }

    /// Hashes a password off the async threads, few at a time.
    pub async fn hash_password(&self, password: String) -> Result<String, Error> {
        let hash = slowly(&self.hashing, move || secrets::hash_password(&password)).await?;
        hash.map_err(|e| secret_error(&e))
    }

    pub(crate) async fn verify_password(
        &self,
        hash: String,
        password: String,
    ) -> Result<bool, Error> {
        slowly(&self.hashing, move || {
            secrets::verify_password(&hash, &password)
        })
        .await
    }

    pub(crate) async fn nobodys_hash(&self) -> Result<String, Error> {
        static HASH: OnceLock<String> = OnceLock::new();
        if let Some(hash) = HASH.get() {
            return Ok(hash.clone());
        }
        let hash = self.hash_password("nobody".to_owned()).await?;
        Ok(HASH.get_or_init(|| hash).clone())
    }
}

pub(crate) fn silent() -> LedgerError {
    LedgerError::Failed(format!(
        "the ledger did not answer within {} s",
        STORE_TIMEOUT.as_secs()
    ))
}

/// Whether a change takes no right from anybody.
fn takes_nothing(change: &PeopleChange) -> bool {
    matches!(
        change,
        PeopleChange::AddUser(_)
            | PeopleChange::AddKey(_)
            | PeopleChange::SignIn(_)
            | PeopleChange::Invite(_)
            | PeopleChange::TakeInvite(..)
    )
}

/// Hashes or verifies a password off the async threads, where there is a place.
pub(crate) async fn slowly<T: Send + 'static>(
    places: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let busy = || Error::Unavailable {
        code: "busy",
        message: "too many passwords are being checked; try again in a moment".to_owned(),
    };
    let place = timeout(HASHING_TIMEOUT, places.clone().acquire_owned()).await;
    let place = place.map_err(|_| busy())?.map_err(|_| busy())?;
    let done = tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    });
    done.await
        .map_err(|_| Error::Internal("a password could not be checked".to_owned()))
}

impl Directory {
    /// Who belongs to whom at present.
    pub fn groups(&self) -> Arc<Groups> {
        locked(&self.groups).clone()
    }

    /// Takes the picture anew.
    pub(crate) async fn regroup(&self, users: &[User]) -> Result<(), LedgerError> {
        let teams = self.store.teams().await?;
        *locked(&self.groups) = Arc::new(Groups::of(users, &teams));
        Ok(())
    }

    /// The caller with the limits of whom they belong to.
    pub fn seated(&self, mut caller: Caller) -> Caller {
        let (keeper, team) = self.groups().above(&caller.owner);
        caller.allowance.keeper = keeper;
        caller.allowance.team = team;
        caller
    }
}

pub(crate) fn caller_of(user: User) -> Caller {
    Caller {
        owner: user.name,
        role: user.role,
        via: AuthMethod::Session,
        allowance: EffectiveLimits {
            key: None,
            owner: user.limits,
            ..EffectiveLimits::default()
        },
        despite_store_false: false,
        raw_logprobs: None,
        memory: None,
        acted_by: None,
    }
}

#[cfg(test)]
#[path = "away_tests.rs"]
mod away_tests;
#[cfg(test)]
#[path = "tries_tests.rs"]
mod tries_tests;
