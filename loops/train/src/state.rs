//! Which scope trains when, and what follows a step. Pure.
//!
//! One job at a time: claim → credit → pack → train → gate → save → publish. Each part is an effect
//! or a pure function; a job ends by a publish, a refusal or by giving its claims back.

use std::sync::Arc;

use hone_domain::{Millis, PolicyVersion, Reason, Scope};
use hone_ledger::{Publish, Ready, Refusal, SampleMaterial};
use hone_runtime::{Event, LoopState, Notification};

use crate::candidate::Candidate;
use crate::config::Config;
use crate::counters::Counters;
use crate::credit::{CreditRule, Method, Scored, Uses, credit};
use crate::event::{Claimed, ClaimedBatch, Effect, PublishOutcome, Report};
use crate::gate::{self, Outcome};
use crate::job::{Doing, Job};
use crate::objective::DistillForm;
use crate::pack::{CreditedTurn, pack};
use crate::progress::Progress;
use crate::retold::retold;
use crate::scopes::Scopes;
use crate::trainer::{Lesson, TrainError, TrainJob, Words};
use crate::watch::{self, WatchLook};

/// The loop's state.
pub struct Train {
    config: Config,
    scopes: Scopes,
    job: Option<Job>,
    looking: bool,
    look_again: bool,
    syncing: bool,
    synced: bool,
    watching: bool,
    pruning: bool,
    prune_at_ms: Millis,
    draining: bool,
    counters: Counters,
}

impl Train {
    /// Begins with nothing under way; everything durable is in the ledger.
    pub fn new(config: Config) -> Self {
        let scopes = Scopes::new(config.scopes_tracked_max);
        Self {
            config,
            scopes,
            job: None,
            looking: false,
            look_again: false,
            syncing: false,
            synced: false,
            watching: false,
            pruning: false,
            prune_at_ms: Millis::MIN,
            draining: false,
            counters: Counters::default(),
        }
    }

    /// The loop's numbers.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn sync(&mut self) -> Vec<Effect> {
        if self.syncing || self.synced || self.draining {
            return Vec::new();
        }
        self.syncing = true;
        vec![Effect::Sync]
    }

    fn look(&mut self) -> Vec<Effect> {
        if self.draining || self.job.is_some() || self.looking {
            self.look_again = true;
            return Vec::new();
        }
        self.looking = true;
        self.look_again = false;
        vec![Effect::Look]
    }

    fn looked(&mut self, now: Millis, ready: Result<Vec<Ready>, String>) -> Vec<Effect> {
        self.looking = false;
        let ready = match ready {
            Ok(ready) => ready,
            Err(_) => {
                self.counters.ledger_failures += 1;
                Vec::new()
            }
        };
        self.counters.ready_scopes = ready.len() as u64;
        self.counters.ready_turns = ready.iter().map(|r| r.count as u64).sum();
        if !self.draining
            && let Some(scope) = self.pick(now, &ready)
        {
            self.scopes.begin(&scope);
            self.job = Some(Job::claiming(scope.clone(), now));
            return vec![Effect::Claim(scope)];
        }
        if self.look_again {
            self.look()
        } else {
            Vec::new()
        }
    }

    /// Of the scopes whose cadence is due, the one that has waited longest for its last job, so
    /// that a busy scope cannot starve the others.
    fn pick(&self, now: Millis, ready: &[Ready]) -> Option<Scope> {
        let due = |r: &&Ready| {
            let waited = now - r.oldest_judged_ms >= self.config.batch_wait_ms;
            let told = r
                .oldest_explicit_ms
                .is_some_and(|at| now - at >= self.config.explicit_wait_ms);
            (r.count >= self.config.batch_turns
                || told
                || (waited && r.count >= self.config.batch_turns_min))
                && self.scopes.may_begin(&r.scope, now)
        };
        let first = ready
            .iter()
            .filter(due)
            .min_by_key(|r| (self.scopes.last_job(&r.scope), r.oldest_judged_ms, &r.scope));
        first.map(|r| r.scope.clone())
    }

    fn claimed(&mut self, now: Millis, claimed: Result<Claimed, String>) -> Vec<Effect> {
        let Some(mut job) = self.job.take() else {
            return Vec::new();
        };
        let batch = match claimed {
            Ok(Claimed::Batch(batch)) => batch,
            Ok(Claimed::Settled) => return self.look(),
            // Such as a shared scope that has too few users yet: the others come first.
            Ok(Claimed::Nothing) => {
                let scope = self.scopes.entry(&job.scope);
                scope.found_nothing(now, &self.config);
                return self.look();
            }
            Err(_) => {
                self.counters.ledger_failures += 1;
                self.scopes.entry(&job.scope).fail(now, &self.config);
                return self.look();
            }
        };
        self.scopes.entry(&job.scope).found();
        self.counters.left_out += batch.left_out as u64;
        job.claims = batch.materials.iter().map(|m| m.claim).collect();
        job.batch = Some(batch.batch);
        job.parent = batch
            .parent
            .as_ref()
            .map_or(PolicyVersion::BASE, |p| p.version);
        if job.claims.is_empty() {
            return self.look();
        }
        if self.draining {
            job.doing = Doing::Release(now);
            return self.go_on(now, job);
        }
        match self.prepare(&mut job, *batch) {
            Ok(train) => {
                job.doing = Doing::Train;
                self.job = Some(job);
                vec![Effect::Train(Arc::new(train))]
            }
            Err(reason) => {
                job.note("pack", reason);
                job.doing = Doing::Refuse(Reason::StepFailed);
                self.go_on(now, job)
            }
        }
    }

    /// Credit and packing.
    fn prepare(&mut self, job: &mut Job, batch: ClaimedBatch) -> Result<TrainJob, String> {
        let scope = self.scopes.entry(&job.scope);
        scope.remember(batch.memory);
        let rule = CreditRule {
            weight: self.config.score_weight,
            episode_weight: self.config.episode_weight,
            baseline: self.config.baseline,
            window_turns: self.config.baseline_window_turns,
            prior_turns: self.config.baseline_prior_turns,
        };
        // What came from outside has no log-probs: it is no part of the gradient and of its baseline.
        let sampled = || batch.materials.iter().filter(|m| is_sampled(m));
        let scored: Vec<Scored> = sampled()
            .map(|m| Scored {
                score: m.score.clamp(-1.0, 1.0),
                group: m.turn.group,
                peers: m.peers.clone(),
            })
            .collect();
        let credited = credit(rule, scope.memory.history, &scored);
        let method = self.config.method;
        let uses = |m: &SampleMaterial| uses(method, m);
        // What a rehearsed hint says in whole answers, a score against every token can only blur.
        let form = self.config.learner.hint_form;
        let rehearses = matches!(form, DistillForm::Rehearsed | DistillForm::Context);
        let by_score = |m: &SampleMaterial| uses(m).score && !(rehearses && uses(m).hint);
        let turns: Vec<CreditedTurn> = sampled()
            .zip(&credited.advantages)
            .map(|(m, advantage)| CreditedTurn {
                transition: m.claim.transition,
                turn: &m.turn,
                advantage: if by_score(m) { *advantage } else { 0.0 },
            })
            .collect();
        let materials = batch.materials.iter();
        let lessons: Vec<Lesson> = materials.filter_map(|m| lesson(method, m)).collect();
        let replayed = batch.replayed.into_iter().filter_map(|r| {
            let words = Words {
                hint: r.hint,
                wish: r.wish,
                correction: r.correction,
            };
            Lesson::of(method, r.transition, &r.turn, words)
        });
        let replayed: Vec<Lesson> = replayed.collect();
        let retold = retold(&batch.materials, &batch.first_tries);
        let scores: Vec<f32> = scored.iter().map(|s| s.score).collect();
        let rows = pack(&turns).map_err(|e| e.to_string())?;
        job.describe(&batch.materials, &scores, &rows);
        job.hinted = batch.materials.iter().filter(|m| uses(m).hint).count() as u64;
        job.lr_scale = scope.memory.lr_scale;
        job.history = credited.history;
        Ok(TrainJob {
            scope: job.scope.clone(),
            batch: batch.batch,
            parent: batch.parent.filter(|parent| !parent.is_base()),
            rows,
            lessons,
            replayed,
            retold,
            lr_scale: job.lr_scale,
            probes: batch.probes,
            golden: batch.golden,
            held_out: batch.held_out,
            progress: Progress::default(),
        })
    }

    fn trained(
        &mut self,
        now: Millis,
        candidate: Result<Arc<Candidate>, TrainError>,
    ) -> Vec<Effect> {
        let Some(mut job) = self.job.take() else {
            return Vec::new();
        };
        match candidate {
            Ok(candidate) => self.judge_candidate(now, &mut job, candidate),
            Err(TrainError::Stopped) => {
                self.counters.stopped += 1;
                job.doing = Doing::Release(now);
            }
            Err(error @ TrainError::NotFinite(_)) => {
                self.counters.step_failures += 1;
                job.note("error", error.to_string());
                job.doing = Doing::Refuse(Reason::StepFailed);
                self.scopes.entry(&job.scope).refused(&self.config);
            }
            Err(error @ TrainError::Device(_)) => {
                self.counters.step_failures += 1;
                job.note("error", error.to_string());
                job.doing = Doing::Release(now + self.config.backoff_max_ms);
            }
            Err(error @ TrainError::Failed(_)) => {
                self.counters.step_failures += 1;
                job.note("error", error.to_string());
                let (failures, retry_at) = self.scopes.entry(&job.scope).fail(now, &self.config);
                job.doing = if failures >= self.config.attempts_max {
                    self.scopes.entry(&job.scope).recovered();
                    Doing::Refuse(Reason::StepFailed)
                } else {
                    Doing::Release(retry_at)
                };
            }
        }
        self.go_on(now, job)
    }

    /// The gate.
    fn judge_candidate(&mut self, now: Millis, job: &mut Job, candidate: Arc<Candidate>) {
        self.counters.steps += 1;
        self.counters.parity.join(candidate.parity);
        self.counters.measured(&candidate);
        job.measured(&candidate);
        let outcome = gate::decide(&self.config.gate, &candidate.measured);
        let scope = self.scopes.entry(&job.scope);
        scope.recovered();
        let reasons = match outcome {
            Outcome::Passes { provisional } => {
                job.gate["passed"] = true.into();
                job.gate["provisional"] = provisional.into();
                scope.told();
                job.doing = Doing::Save(candidate);
                return;
            }
            Outcome::Waits(_) if scope.waits(self.config.gate.waits_max) => {
                self.counters.gate_waits += 1;
                job.doing = Doing::Release(now + self.config.gate.wait_ms);
                return;
            }
            Outcome::Waits(why) => vec![format!("it could not be shown to be no worse: {why}")],
            Outcome::Fails(reasons) => reasons,
        };
        scope.told();
        job.gate["passed"] = false.into();
        job.gate["reasons"] = reasons.into();
        // The scores were real, whatever became of the candidate.
        scope.memory.history = job.history;
        // Words that the model cannot follow say nothing of how far a step may go.
        let is_followed = candidate.measured.at_a_loss.is_none() && !candidate.measured.unlearnable;
        if candidate.measured.changed && is_followed {
            scope.refused(&self.config);
        }
        job.digest = Some(candidate.digest);
        job.doing = Doing::Refuse(Reason::GateRejected);
    }

    fn saved(&mut self, now: Millis, saved: Result<hone_domain::BlobKey, String>) -> Vec<Effect> {
        let Some(mut job) = self.job.take() else {
            return Vec::new();
        };
        match saved {
            Ok(blob) => {
                let Doing::Save(candidate) = &job.doing else {
                    return self.go_on(now, job);
                };
                job.digest = Some(candidate.digest);
                job.attempts = 0;
                job.doing = Doing::Publish(blob);
                self.go_on(now, job)
            }
            Err(_) => {
                self.counters.save_failures += 1;
                self.try_again(now, job)
            }
        }
    }

    fn published(&mut self, now: Millis, outcome: PublishOutcome) -> Vec<Effect> {
        let Some(mut job) = self.job.take() else {
            return Vec::new();
        };
        match outcome {
            PublishOutcome::Published(_) => {
                let scope = self.scopes.entry(&job.scope);
                scope.memory = scope.after_publish(job.history, &self.config);
                scope.published(&self.config);
                self.counters.published(&job, now);
                self.look()
            }
            PublishOutcome::Lost(why) => {
                self.counters.lost += 1;
                job.note("lost", why);
                job.doing = Doing::Release(now);
                self.go_on(now, job)
            }
            PublishOutcome::Failed(_) => {
                self.counters.ledger_failures += 1;
                self.try_again(now, job)
            }
        }
    }

    fn refused(&mut self, now: Millis, outcome: &Result<(), String>) -> Vec<Effect> {
        let Some(job) = self.job.take() else {
            return Vec::new();
        };
        if outcome.is_err() {
            self.counters.ledger_failures += 1;
            return self.try_again(now, job);
        }
        self.counters.refused(&job, now);
        self.look()
    }

    /// Saving, publishing and refusing are tried again after a pause. Past the last attempt, or
    /// while draining, the claims are given back, so that a later job trains them; a refusal that
    /// cannot be recorded waits for its leases to run out.
    fn try_again(&mut self, now: Millis, mut job: Job) -> Vec<Effect> {
        job.attempts += 1;
        if self.draining || job.attempts >= self.config.attempts_max {
            let (_, retry_at) = self.scopes.entry(&job.scope).fail(now, &self.config);
            self.counters.given_up += 1;
            if matches!(job.doing, Doing::Refuse(_)) {
                return self.look();
            }
            job.doing = Doing::Release(retry_at);
            return self.go_on(now, job);
        }
        let pause = crate::scopes::backoff_ms(job.attempts, &self.config);
        job.retry_at_ms = Some(now + pause);
        self.job = Some(job);
        Vec::new()
    }

    /// Emits the effect of what the job does now.
    fn go_on(&mut self, now: Millis, mut job: Job) -> Vec<Effect> {
        job.retry_at_ms = None;
        let effect = self.effect(now, &job);
        self.job = Some(job);
        vec![effect]
    }

    fn effect(&mut self, now: Millis, job: &Job) -> Effect {
        match &job.doing {
            Doing::Claim | Doing::Train => Effect::Release(job.claims.clone(), now),
            Doing::Release(retry_at) => Effect::Release(job.claims.clone(), *retry_at),
            Doing::Save(candidate) => Effect::Save(job.scope.clone(), candidate.clone()),
            Doing::Publish(blob) => {
                let scope = self.scopes.entry(&job.scope);
                let memory = scope.after_publish(job.history, &self.config);
                Effect::Publish(Box::new(Publish {
                    scope: job.scope.clone(),
                    parent: job.parent,
                    digest: job.digest.expect("set when the candidate was saved"),
                    blob: blob.clone(),
                    batch: job.batch.expect("set when the batch was claimed"),
                    claims: job.claims.clone(),
                    report: job.report_with(memory, now),
                    gate: job.gate.clone(),
                    trial_share: Some(self.config.canary.share).filter(|share| *share > 0.0),
                    now_ms: now,
                }))
            }
            Doing::Refuse(reason) => {
                let mut report = job.report_with(self.scopes.entry(&job.scope).memory, now);
                report["gate"] = job.gate.clone();
                Effect::Refuse(Box::new(Refusal {
                    scope: job.scope.clone(),
                    parent: job.parent,
                    digest: job.digest,
                    batch: job.batch.expect("set when the batch was claimed"),
                    claims: job.claims.clone(),
                    reason: *reason,
                    report,
                    now_ms: now,
                }))
            }
        }
    }

    fn reported(&mut self, now: Millis, report: Report) -> Vec<Effect> {
        match report {
            Report::Synced(heads) => {
                self.syncing = false;
                self.synced = heads.is_ok();
                self.counters.ledger_failures += u64::from(heads.is_err());
                Vec::new()
            }
            Report::Looked(ready) => self.looked(now, ready),
            Report::Claimed(batch) => self.claimed(now, batch),
            Report::Trained(candidate, share) => {
                self.counters.share(share);
                self.trained(now, candidate)
            }
            Report::Saved(blob) => self.saved(now, blob),
            Report::Published(outcome) => self.published(now, outcome),
            Report::Refused(outcome) => self.refused(now, &outcome),
            Report::Released => {
                self.job = None;
                self.look()
            }
            Report::Renewed(renewed) => {
                self.renewed(&renewed);
                Vec::new()
            }
            Report::Watched(seen) => self.watched(seen),
            Report::Decided(done) => self.decided(&done),
            Report::Pruned(removed) => self.pruned(&removed),
        }
    }

    /// Keeps the leases of a job that takes long: three times within each.
    fn renew(&mut self, now: Millis) -> Option<Effect> {
        let job = self.job.as_mut()?;
        let busy = !matches!(job.doing, Doing::Claim | Doing::Release(_));
        if !busy || now < job.leased_ms + self.config.lease_ms / 3 {
            return None;
        }
        job.leased_ms = now;
        let until_ms = now + self.config.lease_ms;
        Some(Effect::Renew(job.claims.clone(), until_ms))
    }

    fn renewed(&mut self, renewed: &Result<u64, String>) {
        let held = self.job.as_ref().map_or(0, |job| job.claims.len() as u64);
        match renewed {
            // The publish or the refusal will find out which, and change nothing.
            Ok(kept) => self.counters.leases_lost += held.saturating_sub(*kept),
            Err(_) => self.counters.ledger_failures += 1,
        }
    }

    fn ticked(&mut self, now: Millis) -> Vec<Effect> {
        let due = |job: &Job| job.retry_at_ms.is_some_and(|at| at <= now);
        if let Some(job) = self.job.take_if(|job| due(job)) {
            return self.go_on(now, job);
        }
        let mut effects = self.sync();
        effects.extend(self.renew(now));
        effects.extend(self.watch());
        effects.extend(self.prune(now));
        if self.job.is_none() && !self.looking {
            effects.extend(self.look());
        }
        effects
    }

    fn drain(&mut self, now: Millis) -> Vec<Effect> {
        self.draining = true;
        // What waits for another attempt is given up; what is under way comes to its end.
        match self.job.take_if(|job| job.retry_at_ms.is_some()) {
            Some(job) => self.try_again(now, job),
            None => Vec::new(),
        }
    }
}

/// Whether something here sampled it.
fn is_sampled(material: &SampleMaterial) -> bool {
    material.turn.completion.has_logprobs()
}

/// What a method uses of a turn.
fn uses(method: Method, material: &SampleMaterial) -> Uses {
    match is_sampled(material) {
        true => method.uses(material.hint.is_some(), material.correction.is_some()),
        false => method.uses_given(material.score),
    }
}

/// What a turn's words teach.
fn lesson(method: Method, material: &SampleMaterial) -> Option<Lesson> {
    if !is_sampled(material) {
        let text = &material.turn.completion_text;
        return uses(method, material).any().then(|| Lesson {
            transition: material.claim.transition,
            turn: material.turn.clone(),
            hint: None,
            wish: None,
            correction: Some(text.clone()),
        });
    }
    let words = Words {
        hint: material.hint.clone(),
        wish: material.wish.clone(),
        correction: material.correction.clone(),
    };
    Lesson::of(method, material.claim.transition, &material.turn, words)
}

impl LoopState for Train {
    type Input = Notification;
    type Effect = Effect;
    type Report = Report;

    fn step(&mut self, now_ms: Millis, event: Event<Notification, Report>) -> Vec<Effect> {
        match event {
            Event::Started => {
                let mut effects = self.sync();
                effects.extend(self.look());
                effects
            }
            Event::Arrived(Notification) => self.look(),
            Event::Ticked => self.ticked(now_ms),
            Event::Reported(report) => self.reported(now_ms, report),
            Event::Draining => self.drain(now_ms),
        }
    }

    fn is_idle(&self) -> bool {
        self.job.is_none() && !self.looking && !self.syncing && !self.watching && !self.pruning
    }

    fn observe(&self) -> Vec<(&'static str, f64)> {
        let mut numbers = self.counters.numbers();
        numbers.push(("scopes_tracked", self.scopes.len() as f64));
        numbers.push(("job_under_way", f64::from(u8::from(self.job.is_some()))));
        numbers
    }
}

#[path = "state_care.rs"]
mod care;
#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
