//! The loop's only IO: ledger, blobs, the training thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_domain::{Blobs, OnTrial, Policies, Scope};
use hone_ledger::{Ledger, LedgerError, Publish, Ready, Refusal};
use hone_runtime::{Effects, Latest, Shutdown, StatusRegistry, Switch};

use crate::candidate::{Candidate, candidate};
use crate::claim::Claimer;
use crate::ctx::{Ctx, NAME};
use crate::evaluator::Evaluator;
use crate::event::{Effect, PublishOutcome, Report};
use crate::priority::Priority;
use crate::progress::UnderWay;
use crate::prune::Pruner;
use crate::publish::publish;
use crate::save::save;
use crate::serving::Serving;
use crate::share::{Pacer, Reading, ShareLimits, ShareTotals};
use crate::state::Train;
use crate::trainer::{TrainError, TrainJob, Trainer};
use crate::watcher::Watcher;
use crate::worker::{Abandoned, WorkTime, Worker};
use hone_domain::adapter_key;

/// Longest single sleep between slices, so that a stop or an idle server is seen soon.
const NAP_MAX: Duration = Duration::from_millis(5);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Performs the loop's effects.
#[derive(Clone)]
pub struct TrainEffects {
    pub(crate) claimer: Claimer,
    pub(crate) watcher: Watcher,
    pub(crate) pruner: Pruner,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) trainer: Arc<dyn Trainer>,
    pub(crate) evaluator: Arc<dyn Evaluator>,
    pub(crate) policies: Latest<Policies>,
    pub(crate) under_way: Latest<Option<UnderWay>>,
    pub(crate) worker: Worker,
    pub(crate) limits: ShareLimits,
    pub(crate) serving: Serving,
    pub(crate) priority: Priority,
    pub(crate) switch: Switch,
    pub(crate) shutdown: Shutdown,
    pub(crate) registry: StatusRegistry,
}

/// Takes down what is shown when the job ends, however it does.
struct Shown<'a>(&'a Latest<Option<UnderWay>>);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl Effects<Train> for TrainEffects {
    async fn perform(&self, effect: Effect) -> Report {
        match effect {
            Effect::Sync => Report::Synced(self.sync().await),
            Effect::Look => Report::Looked(self.look().await),
            Effect::Claim(scope) => {
                Report::Claimed(self.said("claim", self.claimer.claim(scope).await))
            }
            Effect::Train(job) => {
                let (candidate, share) = self.train(job).await;
                Report::Trained(candidate, share)
            }
            Effect::Save(scope, candidate) => Report::Saved(self.save(scope, candidate).await),
            Effect::Publish(order) => Report::Published(self.publish(&order).await),
            Effect::Refuse(refusal) => Report::Refused(self.refuse(&refusal).await),
            Effect::Release(claims, retry_at) => {
                self.pruner.ship(None).await;
                let released = self.claimer.release(&claims, retry_at).await;
                // What is not given back runs out by itself.
                let _told = self.said("give claims back", released);
                Report::Released
            }
            Effect::Renew(claims, until_ms) => {
                let renewed = self.ledger.renew(&claims, until_ms).await;
                Report::Renewed(self.said("renew leases", renewed))
            }
            Effect::Watch => {
                Report::Watched(self.said("watch what is served", self.watcher.look().await))
            }
            Effect::Decide(decision) => {
                let done = self.watcher.carry_out(&decision).await;
                Report::Decided(self.said("take versions back", done))
            }
            Effect::Prune => {
                let done = self.pruner.prune().await;
                Report::Pruned(done.inspect_err(|error| self.complain("prune", error)))
            }
        }
    }
}

impl TrainEffects {
    /// Effects with a training thread of their own; it ends with the last clone.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(ctx: Ctx, shutdown: Shutdown) -> std::io::Result<Self> {
        let config = Arc::new(ctx.config);
        if cfg!(target_os = "linux") && !ctx.priority.can_be_leftover() {
            tracing::info!(
                "training takes turns with serving; with the right to come back (LimitNICE=+10) it \
                 would take only what time is left"
            );
        }
        let pruner = Pruner {
            versions: ctx.versions.clone(),
            blobs: ctx.blobs.clone(),
            clock: ctx.clock.clone(),
            config: config.clone(),
            shipping: Arc::default(),
        };
        let watcher = Watcher {
            ledger: ctx.ledger.clone(),
            versions: ctx.versions.clone(),
            policies: ctx.policies.clone(),
            clock: ctx.clock.clone(),
            config: config.clone(),
        };
        let claimer = Claimer {
            ledger: ctx.ledger.clone(),
            versions: ctx.versions,
            ids: ctx.ids,
            clock: ctx.clock,
            config: config.clone(),
            fingerprint: ctx.trainer.fingerprint(),
            base: ctx.trainer.base(),
            golden: ctx.golden,
        };
        Ok(Self {
            claimer,
            watcher,
            pruner,
            ledger: ctx.ledger,
            blobs: ctx.blobs,
            trainer: ctx.trainer,
            evaluator: ctx.evaluator,
            under_way: ctx.under_way,
            policies: ctx.policies,
            worker: Worker::start("hone-train", &ctx.priority)?,
            limits: ShareLimits {
                most: config.train_share_max,
                busy: config.train_share_busy,
                least: config.train_share_min,
                window_us: config.train_share_window_ms as f64 * 1e3,
            },
            serving: ctx.serving,
            priority: ctx.priority,
            switch: ctx.registry.enter(NAME),
            shutdown,
            registry: ctx.registry,
        })
    }

    /// Makes the ledger's heads visible. A publish whose news was lost in a crash becomes visible
    /// here.
    async fn sync(&self) -> Result<usize, String> {
        let heads = self.said("read the heads", self.ledger.heads().await)?;
        let trials = self.said("read the trials", self.watcher.versions.trials().await)?;
        let count = heads.len();
        self.policies.update(|policies| {
            // What is known already was told with or without its trial when it happened.
            let known =
                |trial: &OnTrial| policies.version(&trial.policy.scope) >= trial.policy.version;
            let fresh = trials.into_iter().filter(|trial| !known(trial));
            let heads = heads.into_iter();
            let tried = fresh.fold(policies.clone(), |p, trial| p.on_trial(trial));
            heads.fold(tried, |p, head| p.with(head))
        });
        Ok(count)
    }

    async fn look(&self) -> Result<Vec<Ready>, String> {
        if self.switch.is_paused() {
            return Ok(Vec::new());
        }
        let now = self.claimer.clock.now_ms();
        self.said("look for ready turns", self.ledger.ready(now).await)
    }

    async fn train(&self, job: Arc<TrainJob>) -> (Result<Arc<Candidate>, TrainError>, ShareTotals) {
        let effects = self.clone();
        let batch = job.batch;
        let _shown = Shown(&self.under_way);
        self.under_way.set(Some(UnderWay {
            scope: job.scope.clone(),
            turns: job.transitions().len(),
            progress: job.progress.clone(),
        }));
        let work = move |abandoned: Abandoned| effects.take_step(&job, &abandoned);
        let (outcome, share) = match self.worker.run(work).await {
            Ok((outcome, share)) => (outcome.map(Arc::new), share),
            Err(panic) => (Err(TrainError::Failed(panic)), ShareTotals::default()),
        };
        match &outcome {
            // Somebody paused or ended the loop; the batch goes back.
            Err(TrainError::Stopped) => tracing::info!(%batch, "stopped in the middle of a step"),
            Err(error) => self.complain("train", &format!("batch {batch}: {error}")),
            Ok(candidate) if candidate.parity.mismatches > 0 => {
                let p = candidate.parity;
                let seen = format!(
                    "batch {batch}: {} of {} log-probs differ, by up to {}",
                    p.mismatches, p.tokens, p.difference_max
                );
                self.complain("reproduce what was served", &seen);
            }
            Ok(_) => {}
        }
        (outcome, share)
    }

    /// Lets the evaluator compute ahead what every job needs. Jobs wait for its end.
    pub(crate) async fn prepare(&self) {
        let effects = self.clone();
        let work = move |abandoned: Abandoned| {
            let mut prepare = |pause: &mut dyn FnMut() -> bool| effects.evaluator.prepare(pause);
            effects.paced(&abandoned, &mut prepare).0
        };
        let why = match self.worker.run(work).await {
            Ok(Ok(())) | Ok(Err(TrainError::Stopped)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic,
        };
        tracing::warn!(why, "training could not be prepared; the first job does it");
    }

    /// Runs on the training thread.
    fn take_step(
        &self,
        job: &TrainJob,
        abandoned: &Abandoned,
    ) -> (Result<Candidate, TrainError>, ShareTotals) {
        let (trainer, evaluator) = (&*self.trainer, &*self.evaluator);
        self.paced(abandoned, &mut |pause| {
            candidate(trainer, evaluator, job, pause)
        })
    }

    /// Runs `work` on the training thread, which gives way to serving between its slices.
    fn paced<T>(
        &self,
        abandoned: &Abandoned,
        work: &mut dyn FnMut(&mut dyn FnMut() -> bool) -> T,
    ) -> (T, ShareTotals) {
        let (began, spent) = (Instant::now(), WorkTime::start());
        let read = || {
            let serving = (self.serving)();
            let reading = Reading {
                wall_us: micros(began.elapsed()),
                work_us: micros(spent.spent()),
                served_us: serving.total_us,
            };
            (reading, serving.now)
        };
        let stop = || abandoned.is_set() || self.shutdown.is_pulled() || self.switch.is_paused();
        let mut pacer = Pacer::new(self.limits, read().0);
        let mut pause = || {
            let (mut now, mut serving) = read();
            pacer.worked(now);
            while !stop() {
                let sleep = Duration::from_micros(pacer.sleep_us(serving));
                if sleep.is_zero() {
                    self.priority.set(pacer.urgency());
                    return false;
                }
                std::thread::sleep(sleep.min(NAP_MAX));
                (now, serving) = read();
                pacer.slept(now);
            }
            true
        };
        let outcome = work(&mut pause);
        pacer.worked(read().0);
        (outcome, pacer.totals())
    }

    async fn save(
        &self,
        scope: Scope,
        candidate: Arc<Candidate>,
    ) -> Result<hone_domain::BlobKey, String> {
        let key = adapter_key(&scope, candidate.digest);
        self.pruner.ship(Some(key)).await;
        let blobs = self.blobs.clone();
        let saving = tokio::task::spawn_blocking(move || save(&*blobs, &scope, &candidate));
        let saved = saving.await.unwrap_or_else(|e| Err(e.to_string()));
        saved.inspect_err(|error| self.complain("save", error))
    }

    async fn publish(&self, order: &Publish) -> PublishOutcome {
        let outcome = publish(&*self.ledger, &self.policies, order).await;
        match &outcome {
            PublishOutcome::Published(policy) => tracing::info!(
                version = policy.version.0,
                samples = order.claims.len(),
                batch = %order.batch,
                "published"
            ),
            PublishOutcome::Lost(why) | PublishOutcome::Failed(why) => {
                self.complain("publish", why);
            }
        }
        if let PublishOutcome::Lost(_) = &outcome {
            self.pruner.ship(None).await;
            if let Err(error) = self.pruner.remove_erased(order).await {
                // It goes when it is old.
                self.complain("remove what learned from erased turns", &error);
            }
        }
        outcome
    }

    /// Records a refusal. Leases that were lost belong to somebody else now, which is as good.
    async fn refuse(&self, refusal: &Refusal) -> Result<(), String> {
        let reasons = refusal.report.pointer("/gate/reasons");
        tracing::warn!(
            batch = %refusal.batch,
            samples = refusal.claims.len(),
            reason = refusal.reason.as_str(),
            reasons = reasons.map(ToString::to_string),
            "refused"
        );
        match self.ledger.refuse(refusal).await {
            Err(LedgerError::Fenced(_)) => Ok(()),
            outcome => self.said("record a refusal", outcome),
        }
    }

    fn said<T>(&self, doing: &str, result: Result<T, LedgerError>) -> Result<T, String> {
        result.map_err(|error| {
            let error = error.to_string();
            self.complain(doing, &error);
            error
        })
    }

    fn complain(&self, doing: &str, error: &str) {
        tracing::warn!(loop_name = NAME, doing, error, "failed");
        self.registry.update(NAME, |status| {
            status.last_error = Some(format!("could not {doing}: {error}"));
        });
    }
}
