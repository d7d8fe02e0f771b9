//! The loop's only IO: the ledger, and who plays episodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_domain::{FeedbackId, Job, JobKind, JobReason, JobState, SessionReward, TaskState};
use hone_ledger::{JobClaim, JobEnd, JobLease, JobOutcome, LedgerError, Room};
use hone_runtime::{Effects, Shutdown};
use serde_json::{Value, json};

use crate::credit::{Credit, credit};
use crate::event::Ran;
use crate::{Checked, Ctx, Effect, Episode, Played, Report, State};

/// Most rollouts looked at for groups to begin.
const ROLLOUTS: usize = 64;

/// Performs the loop's effects.
#[derive(Clone)]
pub struct RolloutEffects {
    ctx: Arc<Ctx>,
}

impl RolloutEffects {
    /// Effects over a context.
    pub fn new(ctx: Ctx) -> Self {
        Self { ctx: Arc::new(ctx) }
    }

    /// Jobs that can be done here. Where none can be, they are given back.
    async fn claim(&self, limit: usize) -> Result<Vec<Job>, String> {
        let claim = JobClaim {
            limit,
            lease_ms: millis(self.ctx.config.lease_ms),
            now_ms: self.ctx.clock.now_ms(),
        };
        let claimed = self.ctx.ledger.claim_jobs(&claim).await;
        let jobs = claimed.map_err(|error| error.to_string())?;
        if jobs.is_empty() {
            return Ok(jobs);
        }
        let Err(why) = self.ctx.player.ready().await else {
            return Ok(jobs);
        };
        for job in jobs {
            let lease = JobLease {
                job: job.id,
                fence: job.fence,
            };
            self.end(lease, &JobEnd::Released).await?;
        }
        Err(why)
    }

    async fn run(&self, job: Job, stop: Shutdown) -> Ran {
        let ran = match job.kind {
            JobKind::Episode => self.play(job, stop).await,
            JobKind::Check => self.check(&job, stop).await,
            JobKind::Credit => self.credit(&job).await,
        };
        ran.unwrap_or_else(|error| Ran::Broken(JobReason::Ledger, error.to_string()))
    }

    async fn play(&self, job: Job, stop: Shutdown) -> Result<Ran, LedgerError> {
        let ledger = &self.ctx.ledger;
        let rollout = match job.rollout {
            Some(id) => ledger.rollout_of(id).await?,
            None => None,
        };
        let (Some(rollout), Some((task, files))) = (rollout, ledger.task(job.task).await?) else {
            return Ok(gone());
        };
        let evaluates = rollout.spec.evaluates;
        let episode = Episode {
            rollout: rollout.id,
            how: rollout.spec,
            task: task.spec,
            files,
            owner: job.owner.clone(),
            scope: job.scope.clone(),
            job,
        };
        let played = self.ctx.player.play(&episode, stop).await;
        if let (
            Played::Ended {
                session: Some(session),
                ..
            },
            true,
        ) = (&played, evaluates)
        {
            self.ctx.player.done(*session);
        }
        if let Played::Unknown {
            session: Some(session),
            ..
        } = &played
        {
            self.ctx.player.done(*session);
        }
        Ok(ran(played))
    }

    async fn check(&self, job: &Job, stop: Shutdown) -> Result<Ran, LedgerError> {
        let ledger = &self.ctx.ledger;
        let Some((task, files)) = ledger.task(job.task).await? else {
            return Ok(gone());
        };
        let (state, note) = match self.ctx.player.check(&task.spec, &files, stop).await {
            Checked::Ready => (TaskState::Ready, None),
            Checked::Refused(why) => (TaskState::Refused, Some(why)),
            Checked::Broken(reason, what) => return Ok(Ran::Broken(reason, what)),
            Checked::Stopped => return Ok(Ran::Stopped),
        };
        ledger.note_task(job.task, state, note.as_deref()).await?;
        Ok(Ran::Ended(done(
            JobReason::Submitted,
            json!({"state": state.as_str()}),
        )))
    }

    /// Rewards are told apart by the group, so that a second try changes nothing.
    async fn credit(&self, job: &Job) -> Result<Ran, LedgerError> {
        let members = self.ctx.ledger.group(job.group).await?;
        let (sessions, peers) = match credit(&members) {
            Credit::Rewards { sessions, peers } => (sessions, peers),
            Credit::Nothing(reason) => {
                let sessions = members.iter().filter_map(|job| job.session);
                sessions.for_each(|session| self.ctx.player.done(session));
                return Ok(Ran::Ended(done(reason, Value::Null)));
            }
        };
        let rewarded = sessions.len();
        for (session, score) in sessions {
            let reward = SessionReward {
                id: FeedbackId(self.ctx.ids.next()),
                session,
                owner: job.owner.clone(),
                client_id: Some(job.group.prefixed()),
                score,
                parts: BTreeMap::new(),
                peers: peers.clone(),
                received_ms: self.ctx.clock.now_ms(),
            };
            if let Err(error) = self.ctx.player.reward(reward).await {
                return Ok(Ran::Broken(JobReason::Ledger, error));
            }
        }
        let result = json!({"rewarded": rewarded, "rewards": peers});
        Ok(Ran::Ended(done(JobReason::Submitted, result)))
    }

    async fn end(&self, lease: JobLease, end: &JobEnd) -> Result<bool, String> {
        let now_ms = self.ctx.clock.now_ms();
        match self.ctx.ledger.end_job(lease, end, now_ms).await {
            Ok(()) => Ok(true),
            Err(LedgerError::Fenced(_)) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn millis(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Its rollout or task was removed meanwhile.
fn gone() -> Ran {
    Ran::Ended(JobEnd::Settled {
        state: JobState::Cancelled,
        reason: JobReason::Cancelled,
        outcome: JobOutcome::default(),
    })
}

fn done(reason: JobReason, result: Value) -> JobEnd {
    JobEnd::Settled {
        state: JobState::Done,
        reason,
        outcome: JobOutcome {
            result,
            ..JobOutcome::default()
        },
    }
}

fn ran(played: Played) -> Ran {
    match played {
        Played::Ended {
            reason,
            reward,
            version,
            session,
            result,
        } => Ran::Ended(JobEnd::Settled {
            state: JobState::Done,
            reason,
            outcome: JobOutcome {
                reward: Some(reward),
                version,
                session,
                result,
            },
        }),
        Played::Unknown {
            reason,
            session,
            result,
        } => Ran::Ended(JobEnd::Settled {
            state: JobState::Failed,
            reason,
            outcome: JobOutcome {
                session,
                result,
                ..JobOutcome::default()
            },
        }),
        Played::Broken { reason, what } => Ran::Broken(reason, what),
        Played::Stopped => Ran::Stopped,
    }
}

impl Effects<State> for RolloutEffects {
    async fn perform(&self, effect: Effect) -> Report {
        let ledger = &self.ctx.ledger;
        match effect {
            Effect::Look => {
                let room = Room {
                    jobs: self.ctx.config.concurrency as u64,
                    untrained: self.ctx.config.untrained_max,
                };
                let open = ledger.open_rollouts(ROLLOUTS, room).await;
                Report::Looked(open.map_err(|error| error.to_string()))
            }
            Effect::Begin(new) => {
                let begun = ledger.add_groups(&new, self.ctx.clock.now_ms()).await;
                Report::Begun(begun.map_err(|error| error.to_string()))
            }
            Effect::Claim(limit) => Report::Claimed(self.claim(limit).await),
            Effect::Run { job, stop } => {
                let id = job.id;
                let ran = self.run(*job, stop).await;
                Report::Ran {
                    job: id,
                    ran,
                    at_ms: self.ctx.clock.now_ms(),
                }
            }
            Effect::End { lease, end } => {
                let result = self.end(lease, &end).await;
                Report::Noted {
                    lease,
                    left: result.is_err().then_some(end),
                    result,
                }
            }
            Effect::Renew(leases) => {
                let lease_ms = millis(self.ctx.config.lease_ms);
                let now_ms = self.ctx.clock.now_ms();
                let lost = ledger.renew_jobs(&leases, now_ms, lease_ms).await;
                Report::Renewed(lost.map_err(|error| error.to_string()))
            }
        }
    }
}
