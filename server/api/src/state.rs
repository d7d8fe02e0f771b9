//! What handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hone_collect::{Input, Spool};
use hone_domain::{AdapterImporter, Policies};
use hone_ledger::{Jobs, Ledger, Memories, Personal, Skills, Versions};
use hone_runtime::{Clock, Ids, Latest, Notification, Outbox, StatusRegistry};
use tokio::sync::Semaphore;

use crate::HttpConfig;
use crate::acts::Acts;
use crate::body::BodyLimits;
use crate::body_budget::BodyBudget;
use crate::guard::Guard;
use crate::page::Page;
use crate::replays::{Replaying, Replays};
use crate::settings::Setting;
use crate::storage_gauge::StorageGauge;
use crate::swap::Swap;
use hone_accounts::audit::Audit;
use hone_accounts::changes::{Actor, Changes};
use hone_accounts::rate_limit::RateLimiter;
use hone_accounts::{Caller, Directory};
use hone_api_types::under_way::TrainingJob;
use hone_inference::BindingConfig;
use hone_inference::computed::Computed;
use hone_inference::eraser::Eraser;
use hone_inference::learning::Rules;
use hone_inference::paired::Paired;
use hone_inference::{InferenceService, SharedMemories};
use hone_monitor::numbers::GatewayStatus;
use hone_monitor::traffic::Traffic;
use hone_monitor::watch::{Serving, Sources, Watch};
use hone_rollouts::Jails;

/// Who works on jobs.
pub enum Workers {
    /// This process; what wakes it.
    Here(Outbox<Notification>),
    /// Other processes over the same ledger, whether or not one runs now.
    Elsewhere,
    /// Nobody, and why.
    Nowhere(String),
}

/// What handlers share.
pub struct Http {
    /// Answers chats, where serve runs in this process.
    pub inference: Option<Arc<InferenceService>>,
    /// Collect's queue, where collect runs in this process.
    pub collect: Option<Outbox<Input>>,
    /// What became of turns.
    pub ledger: Arc<dyn Ledger>,
    /// What people decide about their own data; the same ledger.
    pub personal: Arc<dyn Personal>,
    /// What people said once; the same ledger.
    pub memories: Arc<dyn Memories>,
    /// Their skills; the same ledger.
    pub skills: Arc<dyn Skills>,
    /// Tasks, rollouts and jobs; the same ledger.
    pub jobs: Arc<dyn Jobs>,
    /// Who works on them.
    pub rollouts: Workers,
    /// Jobs that a process does at once.
    pub rollout_concurrency: usize,
    /// The jails that they are tried in.
    pub jails: Arc<Jails>,
    /// The same as answers are shown it.
    pub remembered: Arc<SharedMemories>,
    /// Carries out wishes to be forgotten.
    pub eraser: Arc<Eraser>,
    /// Turns that are not in the ledger yet.
    pub spool: Arc<Spool>,
    /// Checks and stores adapters that were made elsewhere.
    pub importer: Arc<dyn AdapterImporter>,
    /// Newest versions against the base model on the same prompts.
    pub paired: Arc<Paired>,
    /// Where requests name their session.
    pub binding: BindingConfig,
    /// What may be learned from whom.
    pub rules: Arc<Rules>,
    /// What all of it takes of the disk.
    pub storage: StorageGauge,
    /// Decisions about versions; the same ledger.
    pub versions: Arc<dyn Versions>,
    /// Published versions, which a rollback changes.
    pub policies: Latest<Policies>,
    /// The training job under way.
    pub under_way: Arc<dyn Fn() -> Option<TrainingJob> + Send + Sync>,
    /// The loops' conditions.
    pub registry: StatusRegistry,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Identifiers.
    pub ids: Arc<dyn Ids>,
    /// Bounds of requests and replies.
    pub config: HttpConfig,
    /// Names of the served model.
    pub models: ModelNames,
    /// How the model is computed, where the built-in engine runs in this process.
    pub computed: Option<Computed>,
    /// Who may call.
    pub guard: Swap<Guard>,
    /// Accounts, keys and sign-ins.
    pub people: Arc<Directory>,
    /// The record of who did what.
    pub audit: Audit,
    /// What callers used of their limits.
    pub rate_limiter: Arc<RateLimiter>,
    /// Whether the process is stopping.
    pub life: Life,
    /// What was counted here.
    pub traffic: Traffic,
    /// Requests that decide something, which go on when their client leaves.
    pub acts: Arc<Acts>,
    /// Budget for large bodies.
    pub body_budget: BodyBudget,
    /// Answers that retries get.
    pub replays: Arc<Replays>,
    /// Places for watchers of `/admin/v1/events`.
    pub watchers: Arc<Semaphore>,
    /// When the process began.
    pub started: Instant,
    /// What was measured lately.
    pub watch: Arc<Watch>,
    /// Every setting, for admins.
    pub settings: Swap<Vec<Setting>>,
    /// The page's files.
    pub page: Arc<Page>,
}

/// The names under which the one model is served.
#[derive(Clone, Debug)]
pub struct ModelNames {
    /// Its name.
    pub name: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// Seconds since the Unix epoch when it was loaded.
    pub created: i64,
}

/// Whether new work is welcome, and whether the process is stopping.
#[derive(Clone, Debug, Default)]
pub struct Life(Arc<LifeFlags>);

#[derive(Debug, Default)]
struct LifeFlags {
    draining: AtomicBool,
    stopping: AtomicBool,
}

impl Life {
    /// From now on, new completions are unwelcome.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// New completions are welcome again, unless the process is stopping.
    pub fn resume(&self) {
        self.0.draining.store(false, Ordering::Release);
    }

    /// The process is stopping, and nothing takes that back.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Release);
    }

    /// Whether new completions are unwelcome.
    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire) || self.is_stopping()
    }

    /// Why new completions are unwelcome, and what to do; none where they are welcome.
    pub fn unwelcome(&self) -> Option<&'static str> {
        if self.is_stopping() {
            return Some("the server is stopping; try again in a moment");
        }
        self.is_draining().then_some(
            "the server is draining and takes no new work; try again later, or have an admin take the \
             drain back (POST /admin/v1/drain with {\"draining\": false})",
        )
    }

    /// Whether the process is stopping.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Acquire)
    }
}

impl Http {
    /// What the watch reads.
    pub fn sources(&self) -> Sources {
        let life = self.life.clone();
        Sources {
            ledger: self.ledger.clone(),
            versions: self.versions.clone(),
            policies: self.policies.reader(),
            registry: self.registry.clone(),
            clock: self.clock.clone(),
            serving: self
                .inference
                .clone()
                .map(|inference| inference as Arc<dyn Serving>),
            is_draining: Arc::new(move || life.is_draining()),
        }
    }

    /// What the gateway holds now.
    pub fn gateway(&self) -> GatewayStatus {
        let inference = self.inference.as_ref();
        GatewayStatus {
            scopes_with_policy: self.policies.get().len(),
            sessions: inference.map_or(0, |inference| inference.sessions()),
            completions_live: inference.map_or(0, |inference| inference.live.count()),
        }
    }

    /// What answers retries.
    pub fn replaying(&self) -> Arc<Replaying> {
        Arc::new(Replaying {
            replays: self.replays.clone(),
            clock: self.clock.clone(),
            limits: self.body_limits(),
        })
    }

    /// Whether a key of the configuration has this owner.
    pub fn is_configured_owner(&self, name: &str) -> bool {
        self.guard.get().keys.iter().any(|key| key.owner == name)
    }

    /// Changes of accounts by a caller.
    pub fn changes<'a>(&'a self, caller: &'a Caller) -> Changes<'a> {
        let keys = &self.guard.get().keys;
        Changes {
            people: &self.people,
            actor: Actor::Caller(caller),
            configured: keys.iter().map(|key| key.owner.clone()).collect(),
        }
    }

    /// Bounds of request bodies.
    pub fn body_limits(&self) -> BodyLimits {
        BodyLimits {
            bytes_max: self.config.body_bytes_max,
            key: "http.body_bytes_max",
            timeout_ms: self.config.body_timeout_ms,
        }
    }

    /// Bounds of a body that brings an adapter.
    pub fn import_limits(&self) -> BodyLimits {
        BodyLimits {
            bytes_max: self.config.import_bytes_max,
            key: "http.import_bytes_max",
            ..self.body_limits()
        }
    }
}
