//! From two looks at the process to one sample. Pure.

use std::collections::BTreeMap;

use hone_domain::{Reason, Scope, Stage};
use hone_ledger::{LedgerCounts, OldestPending, PolicyRecord, SampleAge, Standing};
use hone_runtime::LoopStatus;
use hone_serve::EngineStats;
use serde_json::Value;

use super::history::Values;
use crate::numbers::{
    ABSTAINED, DISTRIBUTIONS, ENGINE, ENGINE_DERIVED, GATEWAY, GatewayStatus, JUDGED, Kept, LOOPS,
    Number, OwnNumber, REPLIES, REPLIES_ABSTAINED, SCORE_SUM, Statistic, TURNS_RECORDED,
    TURNS_TRAINED,
};

/// Staleness beyond this is counted together.
const STALENESS_SHOWN_MAX: u64 = 8;

/// One look at the process.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// When.
    pub at_ms: i64,
    /// The engine's counters, where serve runs here.
    pub engine: Option<EngineStats>,
    /// The loops.
    pub loops: BTreeMap<&'static str, LoopStatus>,
    /// Where turns are; none where the ledger did not answer.
    pub counts: Option<LedgerCounts>,
    /// How long turns wait.
    pub oldest: OldestPending,
    /// What was published since the look before.
    pub published: Vec<Published>,
    /// What the gateway holds.
    pub gateway: GatewayStatus,
    /// Answers without a record since the start, by reason.
    pub uncollected: Vec<(Reason, u64)>,
    /// What stands between scopes and their next version.
    pub held: Vec<(Scope, Standing)>,
}

/// A version that became visible.
#[derive(Clone, Debug)]
pub struct Published {
    /// The version.
    pub record: PolicyRecord,
    /// What it learned from.
    pub ages: Vec<SampleAge>,
}

/// The sample of `now`, with rates since `before`.
pub fn values(before: Option<&Look>, now: &Look) -> Values {
    let mut out = Out(Values::new());
    let seconds = before.map(|before| (now.at_ms - before.at_ms) as f64 / 1e3);
    let seconds = seconds.filter(|s| *s > 0.0);
    if let Some(engine) = &now.engine {
        let earlier = before.and_then(|before| before.engine.as_ref());
        let since = earlier.zip(seconds);
        for number in ENGINE.iter().chain(ENGINE_DERIVED) {
            out.keep(number, since, engine);
        }
        if let Some(earlier) = earlier.filter(|_| seconds.is_some()) {
            prefix_hits(&mut out, earlier, engine);
            distributions(&mut out, earlier, engine);
        }
    }
    for number in GATEWAY {
        out.keep(number, None, &now.gateway);
    }
    loops(&mut out, now);
    ledger(&mut out, now);
    if let (Some(before), Some(seconds)) = (before, seconds) {
        learning_rates(&mut out, before, now, seconds);
    }
    published(&mut out, &now.published);
    out.0
}

struct Out(Values);

impl Out {
    fn put(&mut self, name: impl Into<String>, value: f64) {
        if value.is_finite() {
            self.0.insert(name.into(), value);
        }
    }

    /// What the history keeps of a number, with what it was some seconds ago.
    fn keep<S>(&mut self, number: &Number<S>, since: Option<(&S, f64)>, now: &S) {
        let value = |source: &S| (number.read)(source) / number.unit.per_history();
        match number.kept {
            Kept::No => {}
            Kept::As(name) => self.put(name, value(now)),
            Kept::PerSecond(name) => {
                let grown = since.map(|(before, seconds)| (value(now) - value(before), seconds));
                // Another process counts from 0 again.
                if let Some((grown, seconds)) = grown.filter(|(grown, _)| *grown >= 0.0) {
                    self.put(name, grown / seconds);
                }
            }
        }
    }

    /// A share, where there is a whole.
    fn share(&mut self, name: &str, part: f64, whole: f64) {
        if whole > 0.0 {
            self.put(name, part / whole);
        }
    }
}

fn prefix_hits(out: &mut Out, before: &EngineStats, now: &EngineStats) {
    // Another process counts from 0 again.
    let grown = |before: u64, now: u64| {
        let grown = now.checked_sub(before);
        grown.map_or(f64::NAN, |grown| grown as f64)
    };
    let prompt = grown(before.prompt_tokens_total, now.prompt_tokens_total);
    let cached = grown(
        before.cached_prompt_tokens_total,
        now.cached_prompt_tokens_total,
    );
    out.share("prefix_hit_share", cached, prompt);
}

fn distributions(out: &mut Out, before: &EngineStats, now: &EngineStats) {
    for distribution in DISTRIBUTIONS {
        let (before, now) = ((distribution.read)(before), (distribution.read)(now));
        // Another engine's histogram has fewer values than this one had.
        let lately = (now.count() >= before.count()).then(|| now.since(before));
        let Some(lately) = lately.filter(|lately| lately.count() > 0) else {
            continue;
        };
        for (name, statistic) in distribution.kept {
            let value = match statistic {
                Statistic::Quantile(share) => lately.quantile(*share) as f64,
                Statistic::Mean => lately.mean(),
            };
            out.put(*name, value / distribution.unit.per_history());
        }
    }
}

fn loops(out: &mut Out, now: &Look) {
    for (name, status) in &now.loops {
        for of_every in LOOPS.iter().filter(|number| number.is_of(name)) {
            if let Kept::As(end) = of_every.number.kept {
                out.put(format!("{name}_{end}"), (of_every.number.read)(status));
            }
        }
    }
    // Serve's own numbers are the engine's.
    for (name, status) in now.loops.iter().filter(|(name, _)| **name != "serve") {
        for (number, value) in &status.numbers {
            out.put(format!("{name}_{number}"), *value);
        }
    }
}

fn ledger(out: &mut Out, now: &Look) {
    let Some(counts) = &now.counts else { return };
    out.put("turns_total", counts.turns as f64);
    out.put("trained_total", counts.trained as f64);
    out.put("versions_total", counts.versions as f64);
    out.put("refused_total", counts.refused as f64);
    for stage in [
        Stage::AwaitingNextState,
        Stage::AwaitingVerdict,
        Stage::AwaitingTraining,
    ] {
        let waiting = counts.pending.iter().find(|(s, _)| *s == stage);
        out.put(stage.as_str(), waiting.map_or(0, |(_, n)| *n) as f64);
    }
    let waits = [
        ("collect_lag_s", now.oldest.next_state_ms),
        ("judge_lag_s", now.oldest.verdict_ms),
        ("train_lag_s", now.oldest.training_ms),
    ];
    for (name, oldest_ms) in waits {
        let lag_ms = oldest_ms.map_or(0, |oldest| (now.at_ms - oldest).max(0));
        out.put(name, lag_ms as f64 / 1e3);
    }
}

fn learning_rates(out: &mut Out, before: &Look, now: &Look, seconds: f64) {
    // A loop that began again counts from 0.
    let grown = |number: OwnNumber| {
        let grown = number.read(&now.loops)? - number.read(&before.loops)?;
        (grown >= 0.0).then_some(grown)
    };
    let rates = [
        ("turns_per_s", TURNS_RECORDED),
        ("judged_per_s", JUDGED),
        ("trained_per_s", TURNS_TRAINED),
    ];
    for (name, number) in rates {
        out.put(name, grown(number).unwrap_or(f64::NAN) / seconds);
    }
    let judged = grown(JUDGED).unwrap_or(0.0);
    let abstained = grown(ABSTAINED).unwrap_or(0.0);
    out.share("abstain_share", abstained, judged);
    let replies = grown(REPLIES).unwrap_or(0.0);
    let unread = grown(REPLIES_ABSTAINED).unwrap_or(0.0);
    out.share("replies_abstain_share", unread, replies);
    let scores = SCORE_SUM
        .read(&now.loops)
        .zip(SCORE_SUM.read(&before.loops));
    if let Some((now, before)) = scores {
        out.share("mean_score", now - before, judged - abstained);
    }
}

/// Means over the versions that became visible since the last sample; staleness is counted.
fn published(out: &mut Out, published: &[Published]) {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let mut add = |name: &str, value: f64| {
        if value.is_finite() {
            let (sum, count) = sums.entry(name.to_owned()).or_default();
            (*sum, *count) = (*sum + value, *count + 1.0);
        }
    };
    for version in published {
        let record = &version.record;
        let parts = [
            (&record.report["step"], "step_"),
            (&record.report["batch"], "batch_"),
            (&record.gate["measured"], "gate_"),
        ];
        for (part, prefix) in parts {
            numbers(part, prefix, &mut add);
        }
        for age in &version.ages {
            let since = |ms: i64| (record.published_ms - ms) as f64 / 1e3;
            add("sample_age_s", since(age.finished_ms));
            add("verdict_to_weights_s", since(age.judged_ms));
            age.feedback_ms
                .into_iter()
                .for_each(|ms| add("feedback_to_weights_s", since(ms)));
        }
    }
    for (name, (sum, count)) in sums {
        out.put(name, sum / count);
    }
    if !published.is_empty() {
        out.put("published", published.len() as f64);
        staleness(out, published);
    }
}

/// How many samples were how many versions old, all versions since the last sample together.
fn staleness(out: &mut Out, published: &[Published]) {
    let mut bars = [0_u64; STALENESS_SHOWN_MAX as usize + 1];
    for version in published {
        let parent = version.record.parent.0;
        for age in &version.ages {
            let behind = parent
                .saturating_sub(age.version.0)
                .min(STALENESS_SHOWN_MAX);
            bars[behind as usize] += 1;
        }
    }
    for (behind, count) in bars.into_iter().enumerate() {
        out.put(format!("staleness_{behind}"), count as f64);
    }
}

/// Every plain number of an object, one level deep.
fn numbers(part: &Value, prefix: &str, add: &mut impl FnMut(&str, f64)) {
    let fields = part.as_object().into_iter().flatten();
    for (name, value) in fields {
        if let Some(value) = value.as_f64() {
            add(&format!("{prefix}{name}"), value);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hone_domain::{BlobKey, Digest, Policy, PolicyVersion, Scope};
    use hone_ledger::PolicyStatus;
    use hone_runtime::StatusRegistry;
    use serde_json::json;

    use super::*;

    fn look(at_ms: i64, judge: &[(&'static str, f64)]) -> Look {
        let registry = StatusRegistry::new();
        registry.enter("judge");
        registry.update("judge", |s| s.numbers = judge.iter().copied().collect());
        Look {
            at_ms,
            loops: registry.snapshot(),
            counts: Some(LedgerCounts {
                turns: 7,
                pending: vec![(Stage::AwaitingVerdict, 2)],
                ..LedgerCounts::default()
            }),
            oldest: OldestPending {
                verdict_ms: Some(at_ms - 3_000),
                ..OldestPending::default()
            },
            ..Look::default()
        }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let engine = |tokens, prompt, cached| EngineStats {
            completion_tokens_total: tokens,
            prompt_tokens_total: prompt,
            cached_prompt_tokens_total: cached,
            kv_blocks_used: 1,
            kv_blocks_total: 4,
            ..EngineStats::default()
        };
        let judge = |judged, abstained, sum| {
            [
                ("judged_total", judged),
                ("abstained_total", abstained),
                ("score_sum", sum),
            ]
        };
        let mut before = look(1_000, &judge(10.0, 1.0, 3.0));
        before.engine = Some(engine(100, 50, 0));
        let mut now = look(3_000, &judge(16.0, 3.0, 1.0));
        now.engine = Some(engine(300, 150, 25));
        let values = values(Some(&before), &now);
        let rows = [
            ("tokens_per_s", 100.0),
            ("prompt_tokens_per_s", 50.0),
            ("prefix_hit_share", 0.25),
            ("kv_used_share", 0.25),
            ("judged_per_s", 3.0),
            ("abstain_share", 2.0 / 6.0),
            ("mean_score", -0.5),
            ("judge_lag_s", 3.0),
            ("train_lag_s", 0.0),
            ("awaiting_verdict", 2.0),
            ("awaiting_training", 0.0),
            ("turns_total", 7.0),
        ];
        for (name, expected) in rows {
            assert_eq!(values.get(name), Some(&expected), "{name}");
        }
        for name in ["ttft_p50_ms", "turns_per_s", "step_loss"] {
            assert_eq!(values.get(name), None, "{name}");
        }
    }

    #[test]
    fn a_process_that_began_again_has_no_negative_rates() {
        let before = look(1_000, &[("judged_total", 10.0)]);
        let now = look(2_000, &[("judged_total", 1.0)]);
        assert_eq!(values(Some(&before), &now).get("judged_per_s"), None);
        assert_eq!(values(None, &now).get("judged_per_s"), None);
    }

    #[test]
    fn what_was_published_is_averaged_and_its_staleness_counted() {
        let version = |n: u64, loss: f64| Published {
            record: PolicyRecord {
                policy: Policy {
                    scope: Scope::of("a", None),
                    version: PolicyVersion(n),
                    digest: Digest([0; 32]),
                    blob: BlobKey::new("x").unwrap(),
                },
                parent: PolicyVersion(n - 1),
                status: PolicyStatus::Published,
                is_tainted: false,
                note: None,
                is_tripped: false,
                is_pruned: false,
                is_damaged: false,
                is_retired: false,
                samples: 1,
                report: json!({"step": {"loss": loss, "why": "text"}, "batch": {"turns": 2}}),
                gate: json!({"measured": {"kl_to_parent": 0.5, "base": {"n": 1}}}),
                published_ms: 10_000,
            },
            ages: vec![SampleAge {
                version: PolicyVersion(0),
                finished_ms: 4_000,
                judged_ms: 8_000,
                feedback_ms: (n == 1).then_some(7_000),
            }],
        };
        let mut now = look(11_000, &[]);
        now.published = vec![version(1, 1.0), version(30, 2.0)];
        let values = values(None, &now);
        let rows = [
            ("published", 2.0),
            ("step_loss", 1.5),
            ("batch_turns", 2.0),
            ("gate_kl_to_parent", 0.5),
            ("sample_age_s", 6.0),
            ("verdict_to_weights_s", 2.0),
            ("feedback_to_weights_s", 3.0),
            ("staleness_0", 1.0),
            ("staleness_1", 0.0),
            ("staleness_8", 1.0),
        ];
        for (name, expected) in rows {
            assert_eq!(values.get(name), Some(&expected), "{name}");
        }
    }
}
