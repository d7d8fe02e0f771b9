//! Seeded random calls, as from loops that crash, repeat themselves and come too late.

use std::collections::HashSet;
use std::sync::Arc;

use hone_domain::{Fate, Millis, PolicyVersion, Reason, Scope, TransitionId, Turn, TurnKind};

use super::world::{LEASE, NOW, World, digest_of};
use crate::{Claim, Ledger, LedgerError, Publish, Refusal, SampleClaim, SampleMaterial};

/// Makes `calls` random calls and checks the laws, and that no call trained a transition that an
/// earlier one had trained. Returns how many turns were trained, so that the caller can see that
/// the run was worth something.
pub async fn random(ledger: Arc<dyn Ledger>, seed: u64, calls: usize) -> u64 {
    let mut run = Run {
        world: World::new(ledger),
        rng: Rng(seed),
        now_ms: NOW,
        turns: Vec::new(),
        judging: Vec::new(),
        training: Vec::new(),
        trained: HashSet::new(),
    };
    for call in 0..calls {
        run.now_ms += run.rng.below(LEASE as u64 / 8) as Millis;
        run.call().await;
        if call % 64 == 0 {
            run.world
                .assert_lawful(&format!("call {call} of seed {seed}"))
                .await;
        }
    }
    run.finish(seed).await
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// One of the items, mostly of the newest, so that claims are used late but not always.
    fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let recent = match self.below(4) {
            0 => items,
            _ => &items[items.len().saturating_sub(4)..],
        };
        recent.get(self.below(recent.len() as u64) as usize)
    }
}

struct Run {
    world: World,
    rng: Rng,
    now_ms: Millis,
    turns: Vec<Turn>,
    /// Claims of judges, kept also after they were used, so that some are used too late.
    judging: Vec<Claim>,
    /// Batches of trainers, likewise.
    training: Vec<(Scope, u64, Vec<SampleMaterial>)>,
    trained: HashSet<TransitionId>,
}

/// A refused call is part of the game, a failed one is not.
fn tolerate<T>(done: Result<T, LedgerError>) -> Option<T> {
    match done {
        Ok(value) => Some(value),
        Err(LedgerError::Fenced(_) | LedgerError::Conflict(_)) => None,
        Err(error) => panic!("the ledger failed: {error}"),
    }
}

impl Run {
    fn scope(&mut self) -> Scope {
        Scope::of("owner", [None, Some("a")][self.rng.below(2) as usize])
    }

    async fn head(&self, scope: &Scope) -> u64 {
        let heads = self.world.ledger.heads().await.expect("heads are read");
        let head = heads.iter().find(|p| p.scope == *scope);
        head.map_or(0, |p| p.version.0)
    }

    async fn call(&mut self) {
        match self.rng.below(20) {
            0..4 => self.record().await,
            4..7 => self.answer().await,
            7 => self.settle().await,
            8 => self.feedback().await,
            9..11 => self.claim_for_judge().await,
            11..15 => self.judge().await,
            15 => self.give_back().await,
            16 => self.claim_for_training().await,
            17..19 => self.publish().await,
            _ => self.refuse_or_roll_back().await,
        }
    }

    async fn record(&mut self) {
        let mut batch = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let scope = self.scope();
            let head = self.head(&scope).await;
            let version = head.saturating_sub(self.rng.below(3));
            let mut turn = self.world.turn_of(PolicyVersion(version));
            turn.scope = scope;
            match self.rng.below(12) {
                0 => turn.kind = TurnKind::Side,
                1 => turn.untrainable = Some(Reason::Greedy),
                2 => turn.fingerprint = "gpu".into(),
                _ => {}
            }
            batch.push(turn);
        }
        if let Some(again) = self.rng.pick(&self.turns) {
            batch.push(again.clone());
        }
        self.world
            .ledger
            .record_turns(&batch)
            .await
            .expect("turns are recorded");
        self.turns.extend(batch);
    }

    async fn answer(&mut self) {
        let mut transitions = Vec::new();
        for _ in 0..=self.rng.below(4) {
            if let Some(turn) = self.rng.pick(&self.turns) {
                transitions.push(self.world.transition(turn));
            }
        }
        let new = self.world.ledger.record_transitions(&transitions).await;
        new.expect("transitions are recorded");
    }

    async fn settle(&mut self) {
        if let Some(turn) = self.rng.pick(&self.turns) {
            let settle = [(turn.id, Reason::NoNextState)];
            self.world
                .ledger
                .settle_turns(&settle)
                .await
                .expect("turns are settled");
        }
    }

    async fn feedback(&mut self) {
        let stranger = self.world.turn();
        let known = self.rng.pick(&self.turns).cloned();
        let mut feedback = self.world.feedback(&known.unwrap_or(stranger), 1.0);
        feedback.client_id = [None, Some("c".to_owned())][self.rng.below(2) as usize].clone();
        feedback.received_ms = self.now_ms;
        tolerate(self.world.ledger.record_feedback(&feedback).await);
    }

    async fn claim_for_judge(&mut self) {
        let limit = self.rng.below(6) as usize;
        let claimed = self.world.claim(limit, self.now_ms).await;
        self.judging.extend(claimed.iter().map(|c| c.claim));
    }

    async fn judge(&mut self) {
        let Some(claim) = self.rng.pick(&self.judging).copied() else {
            return;
        };
        let score = [Some(1.0), Some(-1.0), Some(0.0), None][self.rng.below(4) as usize];
        let verdict = self.world.verdict(claim, score);
        for _ in 0..=self.rng.below(2) {
            tolerate(self.world.ledger.record_verdict(claim, &verdict).await);
        }
    }

    async fn give_back(&mut self) {
        let late = self.rng.below(LEASE as u64) as Millis;
        if let Some(claim) = self.rng.pick(&self.judging).copied() {
            if late % 3 == 0 {
                tolerate(self.world.ledger.give_up(claim).await);
            }
            tolerate(self.world.ledger.release(claim, self.now_ms + late).await);
        }
        if late % 2 == 0
            && let Some((_, _, samples)) = self.rng.pick(&self.training)
        {
            for sample in samples {
                tolerate(self.world.ledger.release(sample.claim, self.now_ms).await);
            }
        }
    }

    async fn claim_for_training(&mut self) {
        let scope = self.scope();
        let head = self.head(&scope).await;
        let claim = SampleClaim {
            scope: scope.clone(),
            limit: 1 + self.rng.below(6) as usize,
            queue_cap: 4 + self.rng.below(20) as usize,
            staleness_max_versions: self.rng.below(6),
            now_ms: self.now_ms,
            ..self.world.sample_claim()
        };
        let samples = self.world.claim_samples(&claim).await;
        // An empty batch that publishes moves the head under the others; some, not most.
        if !samples.is_empty() || self.rng.below(8) == 0 {
            self.training.push((scope, head, samples));
        }
    }

    async fn publish(&mut self) {
        let Some((scope, parent, samples)) = self.rng.pick(&self.training).cloned() else {
            return;
        };
        let publishing = Publish {
            scope,
            ..self.world.publishing(parent, &samples)
        };
        for attempt in 0..=self.rng.below(2) {
            let published = tolerate(self.world.ledger.publish(&publishing).await);
            if published.is_some() && attempt == 0 {
                for sample in &samples {
                    let first = self.trained.insert(sample.claim.transition);
                    assert!(first, "{} trained twice", sample.claim.transition);
                }
            }
        }
    }

    async fn refuse_or_roll_back(&mut self) {
        let scope = self.scope();
        let head = self.head(&scope).await;
        if self.rng.below(2) == 0 {
            let to = PolicyVersion(self.rng.below(head + 2));
            tolerate(self.world.ledger.rollback(&scope, to, self.now_ms).await);
        } else if let Some((scope, parent, samples)) = self.rng.pick(&self.training).cloned() {
            let refusal = Refusal {
                scope,
                parent: PolicyVersion(parent),
                digest: Some(digest_of(parent)),
                batch: self.world.batch(),
                claims: samples.iter().map(|s| s.claim).collect(),
                reason: Reason::GateRejected,
                report: serde_json::Value::Null,
                now_ms: self.now_ms,
            };
            self.world
                .ledger
                .refuse(&refusal)
                .await
                .expect("a refusal is recorded");
        }
    }

    async fn finish(self, seed: u64) -> u64 {
        self.world
            .assert_lawful(&format!("the end of seed {seed}"))
            .await;
        let counts = self.world.ledger.counts().await.expect("counted");
        let pending: u64 = counts.pending.iter().map(|(_, n)| n).sum();
        let settled: u64 = counts.settled.iter().map(|(_, n)| n).sum();
        let known: HashSet<_> = self.turns.iter().map(|t| t.id).collect();
        assert_eq!(counts.turns, known.len() as u64);
        assert_eq!(counts.turns, pending + settled + counts.trained);
        assert_eq!(counts.trained, self.trained.len() as u64);
        for turn in &self.turns {
            let view = self
                .world
                .ledger
                .turn(turn.id)
                .await
                .expect("read")
                .expect("known");
            let is_trained = matches!(view.fate, Fate::Trained { .. });
            let transition = view.transition.map(|t| t.id);
            assert_eq!(
                is_trained,
                transition.is_some_and(|t| self.trained.contains(&t))
            );
        }
        counts.trained
    }
}
