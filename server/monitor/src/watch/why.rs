//! Is it learning, and if not, why not: one sentence, and what needs somebody's attention. Pure.

use std::collections::BTreeMap;

use hone_domain::{Reason, Stage};
use hone_runtime::{LoopPhase, LoopStatus};
use serde::Serialize;
use utoipa::ToSchema;

use super::sample::Look;
pub use crate::alert::{Alert, Severity};
use crate::numbers::{
    ABSTAINED, JOB_UNDER_WAY, JUDGE_BREAKER_OPEN, JUDGED, LEDGER_AWAY, OwnNumber,
    PARITY_MISMATCHES, SPOOL_BYTES, SPOOL_BYTES_MAX, SPOOL_LOST, SPOOL_RECORDS, TURNS_DROPPED,
    TURNS_HANDED, TURNS_HELD, TURNS_RECORDED, TURNS_SPOOLED, kv_used_share,
};
use crate::troubles::Trouble;

/// A version this young counts as learning now.
const RECENT_MS: i64 = 15 * 60 * 1_000;
/// Refused candidates in a row that need attention.
const REFUSED_IN_ROW: u64 = 3;
/// Verdicts before the share of abstentions says something, and the share that needs attention.
const JUDGED_MIN: f64 = 20.0;
const ABSTAINED_SHARE: f64 = 0.9;
/// How full a line or a memory may be.
const FULL_SHARE: f64 = 0.8;
const KV_FULL_SHARE: f64 = 0.95;

/// What helps where clients say `store: false`.
const DESPITE: &str = "Some clients always say it; allow it all the same with despite_store_false in PUT /v1/consent or on the key.";
/// Answers to such clients before they need attention, where they are most of all.
const UNWANTED_MIN: u64 = 5;

/// Whether it learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Learning {
    /// A version was published lately.
    Yes,
    /// Nothing stands in the way; what is missing comes by itself.
    Soon,
    /// Something stands in the way.
    No,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Why {
    /// In a word.
    pub learning: Learning,
    /// In a sentence.
    pub sentence: String,
}

/// What the answer depends on.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The newest look.
    pub now: Look,
    /// Whether new completions are refused.
    pub draining: bool,
    /// Whether turns of what is served here may train; none where serve does not run here.
    pub can_train: Option<bool>,
    /// When the newest version was published.
    pub last_publish_ms: Option<i64>,
    /// Candidates refused since then.
    pub refused_since: u64,
    /// Judged turns of one scope that make a batch.
    pub batch_turns_min: usize,
    /// How often each of [`EVENTS`] happened since the look before, by its name.
    pub events: BTreeMap<&'static str, u64>,
}

/// Something that happens, told with how often it did; it does not last.
#[derive(Debug)]
pub struct Event {
    /// The alert's name.
    pub id: &'static str,
    /// How often it has happened; none where it is not counted in this process.
    pub count: fn(&Look) -> Option<u64>,
    one: &'static str,
    many: &'static str,
    text: &'static str,
    what_to_do: &'static str,
}

/// Every such thing.
pub const EVENTS: [Event; 3] = [
    Event {
        id: "overloaded",
        count: |look| Some(look.engine.as_ref()?.overloaded_total),
        one: "request was",
        many: "requests were",
        text: "refused because the waiting line is full.",
        what_to_do: "Lower the load, raise serve.waiting_max, or give the process more cores.",
    },
    Event {
        id: "turns_dropped",
        count: |look| Some(TURNS_DROPPED.read(&look.loops).unwrap_or_default() as u64),
        one: "turn was",
        many: "turns were",
        text: "not recorded: the ledger could not be written, or not quickly enough.",
        what_to_do: "Look at the free space and the speed of the disk under the ledger; the server's log names the error.",
    },
    Event {
        id: "adapter_loads_failed",
        count: |look| Some(look.engine.as_ref()?.swap_failures_total),
        one: "adapter",
        many: "adapters",
        text: "could not be loaded; who was served an older version still is, and nobody else of that scope is answered until the nearest sound version takes its place.",
        what_to_do: "Look at the server's log for the version and the reason. A damaged version is set aside by itself.",
    },
];

/// Whether an alert tells of something that happened, not of something that lasts.
pub fn is_event(id: &str) -> bool {
    EVENTS.iter().any(|event| event.id == id)
}

impl Facts {
    fn status(&self, name: &str) -> Option<&LoopStatus> {
        self.now.loops.get(name)
    }

    fn number(&self, number: OwnNumber) -> f64 {
        number.read(&self.now.loops).unwrap_or_default()
    }

    fn waiting(&self, stage: Stage) -> u64 {
        let pending = self.now.counts.iter().flat_map(|counts| &counts.pending);
        pending.filter(|(s, _)| *s == stage).map(|(_, n)| *n).sum()
    }

    fn uncollected(&self, reason: Reason) -> u64 {
        let of = self.now.uncollected.iter().find(|(r, _)| *r == reason);
        of.map_or(0, |(_, n)| *n)
    }

    fn recent(&self) -> Option<i64> {
        let ago = self.now.at_ms - self.last_publish_ms?;
        (ago <= RECENT_MS).then_some(ago.max(0))
    }
}

fn no(sentence: impl Into<String>) -> Option<Why> {
    answer(Learning::No, sentence)
}

fn soon(sentence: impl Into<String>) -> Option<Why> {
    answer(Learning::Soon, sentence)
}

fn answer(learning: Learning, sentence: impl Into<String>) -> Option<Why> {
    Some(Why {
        learning,
        sentence: sentence.into(),
    })
}

/// `1 turn`, `2 turns`, with the verb that fits.
fn turns(n: u64, one: &str, many: &str) -> String {
    if n == 1 {
        format!("1 turn {one}")
    } else {
        format!("{n} turns {many}")
    }
}

fn ago(ms: i64) -> String {
    match ms / 1_000 {
        seconds @ ..120 => format!("{seconds} s ago"),
        seconds => format!("{} min ago", seconds / 60),
    }
}

/// The answer: the first of these that has something to say, what stands in the way first.
pub fn why(facts: &Facts) -> Why {
    broken(facts)
        .or_else(|| held(facts))
        .or_else(|| learning(facts))
        .or_else(|| on_the_way(facts))
        .or_else(|| settled(facts))
        .or_else(|| uncollected(facts))
        .unwrap_or_else(|| Why {
            learning: Learning::Soon,
            sentence: "Not yet: nobody has talked to it so far. Send it a first message."
                .to_owned(),
        })
}

/// The answer where something is wrong that lets nothing be learned.
pub fn stopped(trouble: &Trouble) -> Why {
    Why {
        learning: Learning::No,
        sentence: format!("No: {} {}", trouble.text, trouble.what_to_do),
    }
}

fn broken(facts: &Facts) -> Option<Why> {
    if facts.draining {
        return no(
            "No: it is draining and takes no new work. Take the drain back, or start it again.",
        );
    }
    if facts.now.counts.is_none() {
        return no("Unknown: the ledger does not answer. Look at the server's log and the disk.");
    }
    if facts.can_train == Some(false) {
        return no(
            "No: what answers here does not report the exact tokens that training needs. Serve a model with the built-in engine.",
        );
    }
    for (name, does) in [
        ("collect", "records turns"),
        ("judge", "gives verdicts"),
        ("train", "makes new versions"),
    ] {
        let Some(status) = facts.status(name) else {
            return no(format!(
                "No: the {name} loop, which {does}, does not run in this process. Add it to `loops`, or look at the process that runs it."
            ));
        };
        match status.state {
            LoopPhase::Paused => {
                return no(format!(
                    "No: the {name} loop, which {does}, is paused. Resume it."
                ));
            }
            LoopPhase::Restarting | LoopPhase::Stopped => {
                return no(format!(
                    "No: the {name} loop, which {does}, has failed and begins again. Its last error is in the status and the log."
                ));
            }
            LoopPhase::Starting | LoopPhase::Running | LoopPhase::Draining => {}
        }
    }
    (facts.refused_since >= REFUSED_IN_ROW).then_some(())?;
    no(format!(
        "No: the gate refused the last {} candidates. The list of refusals says what they did worse.",
        facts.refused_since
    ))
}

/// What holds every scope that has a policy; where only some are held, the others learn.
fn held(facts: &Facts) -> Option<Why> {
    let [(_, first), rest @ ..] = &facts.now.held[..] else {
        return None;
    };
    if facts.now.held.len() < facts.now.gateway.scopes_with_policy {
        return None;
    }
    if !rest.is_empty() {
        return no(format!(
            "No: all {} scopes with a policy are pinned, on trial, or stopped after a rollback. Versions says which.",
            facts.now.held.len(),
        ));
    }
    if let Some(tripped) = &first.tripped {
        return no(format!(
            "No: learning was stopped after a rollback ({}). Versions lets it learn again.",
            tripped.note
        ));
    }
    match &first.trial {
        Some(trial) => soon(format!(
            "Soon: version {} is on trial on {:.0} % of the sessions. Promote or retire it, or wait until enough of its answers are judged.",
            trial.version,
            trial.share * 100.0
        )),
        None => no("No: the served version is pinned. Unpin it, and what waits is learned."),
    }
}

fn learning(facts: &Facts) -> Option<Why> {
    let ago_ms = facts.recent()?;
    let trained = facts.now.counts.as_ref().map_or(0, |counts| counts.trained);
    let sentence = format!(
        "Yes: the newest version was published {}; {} into versions so far.",
        ago(ago_ms),
        turns(trained, "went", "went"),
    );
    answer(Learning::Yes, sentence)
}

fn on_the_way(facts: &Facts) -> Option<Why> {
    if facts.number(JOB_UNDER_WAY) > 0.0 {
        return soon("Soon: a batch is being trained right now.");
    }
    let ready = facts.waiting(Stage::AwaitingTraining);
    if ready > 0 {
        return soon(format!(
            "Soon: {} for a batch, which needs {} of one scope, or a thumb or correction on one.",
            turns(ready, "is judged and waits", "are judged and wait"),
            facts.batch_turns_min.max(1),
        ));
    }
    let unjudged = facts.waiting(Stage::AwaitingVerdict);
    if unjudged > 0 {
        return soon(format!(
            "Soon: {} for the judge.",
            turns(unjudged, "waits", "wait")
        ));
    }
    let open = facts.waiting(Stage::AwaitingNextState);
    if open > 0 {
        return soon(format!(
            "Not yet: {} for what is answered to them. A reply, a thumb or a correction moves them on.",
            turns(open, "waits", "wait")
        ));
    }
    None
}

fn settled(facts: &Facts) -> Option<Why> {
    let counts = facts
        .now
        .counts
        .as_ref()
        .filter(|counts| counts.turns > 0)?;
    let most = counts.settled.iter().max_by_key(|(_, n)| *n);
    let because = most.map_or(String::new(), |(reason, n)| {
        format!(" Most often ({n}): {}.", reason.explain())
    });
    if counts.trained > 0 {
        return soon(format!(
            "Not now: everything there was to learn from is learned ({}), and nothing new came in the last 15 minutes.{because}",
            turns(counts.trained, "in all", "in all"),
        ));
    }
    no(format!(
        "No: {}, and none could train.{because}",
        turns(counts.turns, "ended", "ended"),
    ))
}

/// Answers were given, and no turn is in the ledger.
fn uncollected(facts: &Facts) -> Option<Why> {
    let (reason, n) = facts.now.uncollected.iter().max_by_key(|(_, n)| *n)?;
    let all = facts.now.uncollected.iter().map(|(_, n)| n).sum();
    let remedy = if *reason == Reason::StoreFalse {
        format!(" {DESPITE}")
    } else {
        String::new()
    };
    no(format!(
        "No: {}, and none was collected. Most often ({n}): {}.{remedy}",
        turns(all, "was answered", "were answered"),
        reason.explain(),
    ))
}

fn alert(id: impl Into<String>, severity: Severity, (text, what): (String, &str)) -> Alert {
    Alert {
        id: id.into(),
        severity,
        text,
        what_to_do: what.to_owned(),
    }
}

/// Everything that needs attention now.
pub fn alerts(facts: &Facts) -> Vec<Alert> {
    let mut found = Vec::new();
    loop_alerts(facts, &mut found);
    let tripped = facts.now.held.iter().filter(|(_, s)| s.tripped.is_some());
    match tripped.count() {
        0 => {}
        n => {
            let scopes = if n == 1 {
                "1 scope"
            } else {
                &format!("{n} scopes")
            };
            let text = format!("Learning of {scopes} was stopped after a rollback by itself.");
            let what = "Look in Versions at what was left and why, then let it learn again.";
            found.push(alert("learning_stopped", Severity::Warning, (text, what)));
        }
    }
    engine_alerts(facts, &mut found);
    found.extend(spool_alerts(facts).into_iter().flatten());
    found.extend(learning_alerts(facts).into_iter().flatten());
    found
}

/// What waits for the ledger, and what of it is lost.
fn spool_alerts(facts: &Facts) -> [Option<Alert>; 3] {
    let (records, bytes) = (facts.number(SPOOL_RECORDS), facts.number(SPOOL_BYTES));
    let (most, lost) = (facts.number(SPOOL_BYTES_MAX), facts.number(SPOOL_LOST));
    let is_away = facts.number(LEDGER_AWAY) > 0.0;
    let is_full = most > 0.0 && bytes >= FULL_SHARE * most;
    let mib = |bytes: f64| format!("{:.1} MiB", bytes / 1_048_576.0);
    let waiting = format!("{records} records ({} of {})", mib(bytes), mib(most));
    let when = |is: bool, (id, severity), text: String, what: &str| {
        is.then(|| alert(id, severity, (text, what)))
    };
    [
        when(
            records > 0.0 && is_away,
            ("ledger_away", Severity::Error),
            format!("The ledger does not answer. Answers go on; {waiting} wait in the spool."),
            "Start the database again, or mend the way to it; what waits is shipped by itself.",
        ),
        when(
            is_full,
            ("spool_nearly_full", Severity::Error),
            format!("The spool holds {waiting}. Once it is full, answers are not collected."),
            "Start the database again, or raise store.spool_bytes_max.",
        ),
        when(
            lost > 0.0,
            ("spool_lost", Severity::Error),
            format!("{lost} records of the spool could not be brought into the ledger."),
            "Look at the server's log for what was wrong with them, and at the disk of the data folder.",
        ),
    ]
}

fn loop_alerts(facts: &Facts, found: &mut Vec<Alert>) {
    for (name, status) in &facts.now.loops {
        if status.state == LoopPhase::Restarting {
            let text = format!(
                "The {name} loop failed and begins again ({} times so far).",
                status.restarts
            );
            let what = "Look at its last error in the status and at the server's log.";
            found.push(alert(
                format!("{name}_restarting"),
                Severity::Error,
                (text, what),
            ));
        }
        if status.state == LoopPhase::Paused {
            let text = format!("The {name} loop is paused; its work waits.");
            found.push(alert(
                format!("{name}_paused"),
                Severity::Warning,
                (text, "Resume it when you are done."),
            ));
        }
        let (depth, limit) = (status.queue_depth, status.queue_limit);
        // A line of one place holds a notification, and is full by design.
        if limit > 1 && depth as f64 >= FULL_SHARE * limit as f64 {
            let text = format!("The line before the {name} loop holds {depth} of at most {limit}.");
            let what = "Give the process more time or cores, or send fewer requests.";
            found.push(alert(
                format!("{name}_line_full"),
                Severity::Warning,
                (text, what),
            ));
        }
    }
}

fn engine_alerts(facts: &Facts, found: &mut Vec<Alert>) {
    if let Some(engine) = &facts.now.engine {
        let used = kv_used_share(engine);
        if used >= KV_FULL_SHARE {
            let text = format!(
                "{:.0} % of the memory for keys and values is in use.",
                used * 100.0
            );
            let what = "Raise serve.kv_cache_bytes_max, or lower serve.running_max.";
            found.push(alert("kv_full", Severity::Warning, (text, what)));
        }
    }
    for event in &EVENTS {
        let n = facts.events.get(event.id).copied().unwrap_or_default();
        if n > 0 {
            let of = if n == 1 { event.one } else { event.many };
            let text = format!("{n} {of} {}", event.text);
            found.push(alert(event.id, Severity::Error, (text, event.what_to_do)));
        }
    }
}

fn learning_alerts(facts: &Facts) -> [Option<Alert>; 7] {
    let judged = facts.number(JUDGED);
    let abstained = facts.number(ABSTAINED) / judged.max(1.0);
    let abstains = judged >= JUDGED_MIN && abstained >= ABSTAINED_SHARE;
    let refuses = facts.refused_since >= REFUSED_IN_ROW;
    let is_silent = facts.number(JUDGE_BREAKER_OPEN) > 0.0;
    let unwanted = facts.uncollected(Reason::StoreFalse);
    let turns = facts.now.counts.as_ref().map_or(0, |counts| counts.turns);
    let (error, warning) = (Severity::Error, Severity::Warning);
    let when = |is: bool, (id, severity): (&str, Severity), text: String, what: &str| {
        is.then(|| alert(id, severity, (text, what)))
    };
    let unequal = facts.number(PARITY_MISMATCHES);
    let kept = [TURNS_RECORDED, TURNS_SPOOLED, TURNS_DROPPED, TURNS_HELD];
    let kept: f64 = kept.into_iter().map(|number| facts.number(number)).sum();
    let unaccounted = (facts.number(TURNS_HANDED) - kept).abs();
    [
        when(
            facts.now.counts.is_none(),
            ("ledger_silent", error),
            "The ledger does not answer.".to_owned(),
            "Look at the server's log and at the disk's free space.",
        ),
        when(
            refuses,
            ("gate_refuses", warning),
            format!(
                "The gate refused {} candidates since the newest version.",
                facts.refused_since
            ),
            "See what they did worse in the list of refusals; a lower train.learner.lr may help.",
        ),
        when(
            abstains,
            ("judge_abstains", warning),
            format!(
                "The judge could tell nothing of {:.0} % of the turns.",
                abstained * 100.0
            ),
            "Give thumbs or corrections, or configure a model judge ([judge.model]).",
        ),
        when(
            is_silent,
            ("judge_model_silent", warning),
            "The judge's model does not answer and is left alone for a while.".to_owned(),
            "Look at the server behind judge.model.url.",
        ),
        when(
            unwanted >= UNWANTED_MIN && unwanted > turns,
            ("store_false", warning),
            format!("{unwanted} answers were not collected because the client says store: false."),
            DESPITE,
        ),
        when(
            unaccounted > 0.0,
            ("turns_unaccounted", error),
            format!("{unaccounted} turns are neither recorded, nor dropped, nor held."),
            "Keep a copy of the data folder and of the log, and report it.",
        ),
        when(
            unequal > 0.0,
            ("parity_lost", error),
            format!("{unequal} tokens got another log-prob in training than in serving."),
            "Pause train; look for mixed hardware or a changed model folder.",
        ),
    ]
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
