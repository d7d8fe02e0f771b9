//! Bodies of consent, forgetting and improvement.

use std::collections::BTreeMap;

use hone_domain::lift::{Lift, sentence};
use hone_domain::{Consent, Learning, SessionId};
use hone_ledger::{ForgetReport, ForgetWhat, Learned, LearnedVersion, PolicyStatus};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::feedback::parse_turn_id;
use crate::RequestError;
use hone_inference::learning::{Corrections, Rules};
use hone_inference::paired::Measured;

/// Most turns that one wish may name.
const TURNS_MAX: usize = 1_000;

/// Whose.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UserQuery {
    /// The `user` field of the requests in question.
    pub user: Option<String>,
}

/// Which scope.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ScopeQuery {
    /// The scope's text.
    pub scope: String,
}

/// What may be learned.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ConsentRequest {
    /// `off`, `serve` or `full`.
    #[schema(value_type = String)]
    pub learning: Learning,
    /// The `user` field of the requests in question.
    pub user: Option<String>,
    /// Whether requests that say `store: false` are learned from all the same; as it was if absent.
    pub despite_store_false: Option<bool>,
    /// Whether sessions may be answered by the base model to measure what learning brings; as it was
    /// if absent, which is the operator's choice before anything was decided.
    pub holdback: Option<bool>,
}

impl ConsentRequest {
    /// The decision; what it does not say stays as it was.
    pub fn consent(&self, before: Consent) -> Consent {
        Consent {
            learning: self.learning,
            despite_store_false: self
                .despite_store_false
                .unwrap_or(before.despite_store_false),
            holdback: self.holdback.or(before.holdback),
        }
    }
}

/// What may be learned, and what that means.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ConsentReply {
    /// Always `consent`.
    pub object: &'static str,
    /// `off`, `serve` or `full`.
    #[schema(value_type = String)]
    pub learning: Learning,
    /// Whether somebody decided so; else it is the operator's default.
    pub decided: bool,
    /// Whether requests that say `store: false` are learned from all the same.
    pub despite_store_false: bool,
    /// Whether sessions may be held back.
    pub holdback: bool,
    /// All of that as one sentence.
    pub explanation: &'static str,
    /// What is learned from the text of a better answer: `imitated`, `hint` (it tells the model what to
    /// do better) or `score` (it is kept, and counts as a score of -1).
    #[schema(value_type = String)]
    pub corrections: Corrections,
    /// Whether a better answer still teaches where a version has learned from the turn already.
    pub corrections_replayed: bool,
    /// Turns that were on their way and are not learned from any more.
    pub withdrawn_turns: u64,
}

impl ConsentReply {
    /// What `owner` allows, and whether they decided so.
    pub fn new(
        (consent, decided): (Consent, bool),
        (rules, owner): (&Rules, &str),
        withdrawn_turns: u64,
    ) -> Self {
        let share = rules.holdback_share(owner);
        Self {
            object: "consent",
            learning: consent.learning,
            decided,
            despite_store_false: consent.despite_store_false,
            holdback: consent.holdback.unwrap_or(true) && share > 0.0,
            explanation: match consent.learning {
                Learning::Off => "the base model answers, and nothing is collected",
                Learning::Serve => "what was learned before answers; nothing new is learned",
                Learning::Full => "your own policy answers and learns from what you say",
            },
            corrections: rules.lessons().corrections,
            corrections_replayed: rules.lessons().replays,
            withdrawn_turns,
        }
    }
}

/// What is to be forgotten: exactly one of `session_id`, `turn_ids` and `all`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ForgetRequest {
    /// A session, as `x-hone-session-id` names it.
    pub session_id: Option<String>,
    /// Turns; what later turns repeat of them goes as well.
    pub turn_ids: Option<Vec<String>>,
    /// Everything.
    pub all: Option<bool>,
    /// The `user` field of the requests in question.
    pub user: Option<String>,
    /// Only says what it would do.
    pub dry_run: Option<bool>,
}

impl ForgetRequest {
    /// What exactly is meant.
    pub fn what(&self) -> Result<ForgetWhat, RequestError> {
        match (&self.session_id, &self.turn_ids, self.all.unwrap_or(false)) {
            (Some(session), None, false) => SessionId::parse(session)
                .map(ForgetWhat::Session)
                .ok_or_else(|| {
                    let text = "session_id must be a session of this server, such as sess_...";
                    RequestError::invalid("session_id", text)
                }),
            (None, Some(turns), false) => Self::turns(turns),
            (None, None, true) => Ok(ForgetWhat::All),
            _ => Err(RequestError::invalid(
                "",
                "name exactly one of session_id, turn_ids and all: true",
            )),
        }
    }

    fn turns(named: &[String]) -> Result<ForgetWhat, RequestError> {
        if named.is_empty() || named.len() > TURNS_MAX {
            let text = format!("turn_ids must hold 1 to {TURNS_MAX} turns");
            return Err(RequestError::invalid("turn_ids", text));
        }
        let turns = named.iter().enumerate().map(|(at, text)| {
            parse_turn_id(text).ok_or_else(|| {
                let path = format!("turn_ids[{at}]");
                RequestError::invalid(&*path, format!("{path} is not the id of a turn"))
            })
        });
        Ok(ForgetWhat::Turns(turns.collect::<Result<_, _>>()?))
    }
}

/// What a wish means and how far it has come.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ForgetReply {
    /// Always `forget`.
    pub object: &'static str,
    /// The wish; null for a dry run.
    pub id: Option<String>,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Turns that go, with their texts, tokens and feedback.
    pub turns: u64,
    /// Transitions and verdicts that go.
    pub transitions: u64,
    /// Samples of versions among them.
    pub samples: u64,
    /// Samples of tainted versions that may train again.
    pub samples_freed: u64,
    /// Versions that learned from what goes; they are never served again.
    pub versions_tainted: Vec<u64>,
    /// The version that is served instead; 0 is the base model, null where nothing changes.
    pub rolls_back_to: Option<u64>,
    /// What cannot be undone.
    pub cannot_undo: Vec<String>,
    /// `done` or `running`.
    pub state: &'static str,
    /// Turns that are still to be removed.
    pub turns_left: u64,
}

impl ForgetReply {
    /// A plan, or a wish under way.
    pub fn new(report: &ForgetReport, dry_run: bool) -> Self {
        Self {
            object: "forget",
            id: (!dry_run).then(|| format!("fgt_{}", report.id)),
            dry_run,
            turns: report.turns,
            transitions: report.transitions,
            samples: report.samples,
            samples_freed: report.samples_freed,
            versions_tainted: report.versions_tainted.iter().map(|v| v.0).collect(),
            rolls_back_to: report.rolls_back_to.map(|v| v.0),
            cannot_undo: cannot_undo(report),
            state: if dry_run || report.is_done {
                "done"
            } else {
                "running"
            },
            turns_left: report.turns_left,
        }
    }
}

fn cannot_undo(report: &ForgetReport) -> Vec<String> {
    let mut lines = vec![
        "Answers that were sent, and copies in clients, backups, exports and file system snapshots, are out of this server's reach.".to_owned(),
        "The same words in another conversation, such as a summary or a quotation, stay until that conversation is forgotten too.".to_owned(),
        "The running server may hold attention keys and values of it in memory, without text, until their place is needed or it restarts.".to_owned(),
        "Names stay: the account's and the `user` that requests named are kept in the audit log and in the list of scopes, so that what comes late is known as forgotten. Choose names that say nothing.".to_owned(),
    ];
    if let (Some(first), Some(last)) = (
        report.versions_tainted.first(),
        report.versions_tainted.last(),
    ) {
        let versions = if first == last {
            format!("version {first}")
        } else {
            format!("versions {first} to {last}")
        };
        lines.push(format!(
            "Answers given by {versions} may repeat what was learned; they stay in their own conversations."
        ));
    }
    lines
}

/// Numbers of one version.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VersionImprovement {
    /// The version; 0 is the base model in held-back sessions.
    pub version: u64,
    /// Scored turns.
    pub turns: usize,
    /// Their sessions.
    pub sessions: usize,
    /// Mean score, -1 to 1.
    pub mean_score: f64,
    /// Corrections per 100 scored turns.
    pub corrections_per_100: f64,
}

/// The newest version against the base model on the same recent prompts, scored by their checks.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PairedImprovement {
    /// The version.
    pub version: u64,
    /// Its mean score less that of the base model.
    pub difference: f64,
    /// The 95 % interval of that.
    pub interval: [f64; 2],
    /// Prompts.
    pub prompts: usize,
    /// Smallest true difference that would be seen in 4 of 5 such sets.
    pub smallest_detectable: f64,
    /// When it was measured, in milliseconds since the Unix epoch.
    pub measured_ms: i64,
}

/// Whether learning helps, against sessions that the base model answered.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ImprovementReply {
    /// Always `improvement`.
    pub object: &'static str,
    /// Mean score of learned versions less that of the base model; null until there is enough.
    pub difference: Option<f64>,
    /// Its 95 % interval, with sessions and not turns as what is counted.
    pub interval: Option<[f64; 2]>,
    /// Sessions that learned versions answered.
    pub n_policy: usize,
    /// Sessions that the base model answered as a control.
    pub n_base: usize,
    /// Scored turns in them.
    pub turns_policy: usize,
    /// Scored turns in them.
    pub turns_base: usize,
    /// Smallest true difference that would be seen in 4 of 5 such data sets.
    pub smallest_detectable: Option<f64>,
    /// Sessions still needed to see a difference of 0.2; null where none is held back to compare with.
    pub sessions_needed: Option<u64>,
    /// Corrections per 100 scored turns of learned versions.
    pub corrections_per_100: Option<f64>,
    /// The same of the base model.
    pub corrections_per_100_base: Option<f64>,
    /// Share of worded complaints that had been made in an earlier session.
    pub repeat_mistake_rate: Option<f64>,
    /// Share of sessions held back where nobody opted out.
    pub holdback_share: f64,
    /// Per version, ascending.
    pub per_version: Vec<VersionImprovement>,
    /// The same prompts answered by the newest version and the base model; null until five of them
    /// came with checks.
    pub paired: Option<PairedImprovement>,
    /// All of that as one sentence.
    pub sentence: String,
}

impl ImprovementReply {
    /// A measured scope.
    pub fn new(lift: &Lift, paired: Option<&Measured>, holdback_share: f64) -> Self {
        let compares = holdback_share > 0.0 || lift.sessions_base > 0;
        Self {
            object: "improvement",
            difference: lift.difference,
            interval: lift.interval.map(|(low, high)| [low, high]),
            n_policy: lift.sessions_policy,
            n_base: lift.sessions_base,
            turns_policy: lift.turns.0,
            turns_base: lift.turns.1,
            smallest_detectable: lift.smallest_detectable,
            sessions_needed: lift.sessions_needed.filter(|_| compares),
            corrections_per_100: lift.corrections_per_100.0,
            corrections_per_100_base: lift.corrections_per_100.1,
            repeat_mistake_rate: lift.repeat_mistake_rate,
            holdback_share,
            per_version: lift
                .per_version
                .iter()
                .map(|version| VersionImprovement {
                    version: version.version.0,
                    turns: version.turns,
                    sessions: version.sessions,
                    mean_score: version.mean,
                    corrections_per_100: version.corrections_per_100,
                })
                .collect(),
            paired: paired.map(|measured| PairedImprovement {
                version: measured.version.0,
                difference: measured.lift.difference,
                interval: [measured.lift.interval.0, measured.lift.interval.1],
                prompts: measured.lift.prompts,
                smallest_detectable: measured.lift.smallest_detectable,
                measured_ms: measured.at_ms,
            }),
            sentence: sentence(lift, holdback_share > 0.0),
        }
    }
}

/// One version, for the person it learned from.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LearnedVersionReply {
    /// Its number.
    pub version: u64,
    /// When, in milliseconds since the Unix epoch.
    pub published_ms: i64,
    /// Turns it learned from.
    pub samples: u64,
    /// Mean score of the answers of the version before it.
    pub score_before: Option<f64>,
    /// Mean score of its own answers.
    pub score_after: Option<f64>,
    /// Whether it learned from something that was erased since.
    pub tainted: bool,
    /// All of that as one sentence.
    pub words: String,
}

/// What was learned from a person.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LearnedReply {
    /// Always `learned`.
    pub object: &'static str,
    /// The whole as one sentence.
    pub sentence: String,
    /// Turns kept.
    pub turns: u64,
    /// Turns with a score.
    pub judged: u64,
    /// Turns that a version learned from.
    pub trained: u64,
    /// Versions, newest first.
    pub versions: Vec<LearnedVersionReply>,
    /// Turns that were not learned from, by where they wait or why not.
    pub waiting: BTreeMap<String, u64>,
    /// What the person said that the newest version was trained to follow, newest first, and then what a
    /// newer wish contradicts and replaced.
    pub wishes: Vec<WishReply>,
}

/// Words that say how to answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WishReply {
    /// The answer that they were said about.
    pub turn_id: String,
    /// As they were said.
    pub words: String,
    /// Whether the version follows them; false where a newer wish replaced them.
    pub followed: bool,
}

impl LearnedReply {
    /// What the ledger knows, in words.
    pub fn new(learned: Learned, wishes: Vec<WishReply>) -> Self {
        Self {
            object: "learned",
            sentence: summary(&learned),
            turns: learned.turns,
            judged: learned.judged,
            trained: learned.trained,
            versions: learned
                .versions
                .into_iter()
                .map(|version| LearnedVersionReply {
                    version: version.version.0,
                    published_ms: version.published_ms,
                    samples: version.samples,
                    score_before: version.score_before,
                    score_after: version.score_after,
                    tainted: version.is_tainted,
                    words: words(&version),
                })
                .collect(),
            waiting: learned.waiting.into_iter().collect(),
            wishes,
        }
    }
}

fn turns(count: u64) -> String {
    match count {
        1 => "1 turn".to_owned(),
        n => format!("{n} turns"),
    }
}

fn summary(learned: &Learned) -> String {
    let Some(newest) = learned.newest_taught else {
        return match learned.turns {
            0 => "Nothing was said yet, so nothing was learned.".to_owned(),
            n => format!(
                "Nothing was learned yet: {} kept, {} of them judged.",
                turns(n),
                learned.judged
            ),
        };
    };
    let versions = match learned.versions_taught {
        1 => "1 version".to_owned(),
        n => format!("{n} versions"),
    };
    if learned.trained == 0 {
        return format!("What taught {versions} was erased since; none of it is used any more.");
    }
    format!(
        "{} of {} taught {versions} so far; the newest is version {newest}.",
        learned.trained,
        turns(learned.turns),
    )
}

fn words(version: &LearnedVersion) -> String {
    if version.is_tainted {
        return "It learned from something that was erased, and is never used again.".to_owned();
    }
    match version.status {
        PolicyStatus::Published => {}
        PolicyStatus::Rollback => return "It is an earlier version, brought back.".to_owned(),
        PolicyStatus::Imported => {
            return "It was made elsewhere, and learned nothing from you.".to_owned();
        }
    }
    // A check or a model may have judged them, and nobody need have said anything.
    let score = version.learned_score.unwrap_or_default();
    let which = match version.samples {
        1 => "which was",
        _ if score.abs() >= 1.0 => "all of which were",
        _ => "most of which were",
    };
    let of = match score {
        score if score > 0.33 => format!(", {which} judged good"),
        score if score < -0.33 => format!(", {which} judged bad"),
        _ => String::new(),
    };
    let since = match (version.score_before, version.score_after) {
        (Some(before), Some(after)) => {
            format!(" Verdicts averaged {before:.2} before it and {after:.2} with it.")
        }
        (_, None) => " No verdict on its own answers yet.".to_owned(),
        (None, Some(after)) => format!(" Verdicts average {after:.2} with it."),
    };
    format!("It learned from {}{of}.{since}", turns(version.samples))
}

#[cfg(test)]
mod tests {
    use hone_domain::PolicyVersion;

    use super::*;

    #[test]
    fn the_sentence_counts_what_was_learned() {
        let learned = |taught: u64, newest: u64| {
            let newest_taught = (newest > 0).then_some(PolicyVersion(newest));
            let (turns, judged, trained) = (6, 5, 4 * taught.min(1));
            summary(&Learned {
                turns,
                judged,
                trained,
                versions_taught: taught,
                newest_taught,
                ..Learned::default()
            })
        };
        for (taught, newest, expected) in [
            (
                0,
                0,
                "Nothing was learned yet: 6 turns kept, 5 of them judged.",
            ),
            (
                1,
                1,
                "4 of 6 turns taught 1 version so far; the newest is version 1.",
            ),
            (
                140,
                150,
                "4 of 6 turns taught 140 versions so far; the newest is version 150.",
            ),
        ] {
            assert_eq!(learned(taught, newest), expected);
        }
        let erased = Learned {
            versions_taught: 4,
            newest_taught: Some(PolicyVersion(4)),
            ..Learned::default()
        };
        let said = "What taught 4 versions was erased since; none of it is used any more.";
        assert_eq!(summary(&erased), said);
    }

    #[test]
    fn a_version_says_what_it_learned_from() {
        let said = |samples, score| {
            words(&LearnedVersion {
                version: PolicyVersion(1),
                status: PolicyStatus::Published,
                is_tainted: false,
                published_ms: 1,
                samples,
                learned_score: Some(score),
                score_before: None,
                score_after: None,
            })
        };
        for (samples, score, expected) in [
            (1, 1.0, "It learned from 1 turn, which was judged good."),
            (1, -1.0, "It learned from 1 turn, which was judged bad."),
            (
                2,
                0.5,
                "It learned from 2 turns, most of which were judged good.",
            ),
            (
                3,
                1.0,
                "It learned from 3 turns, all of which were judged good.",
            ),
            (
                3,
                -1.0,
                "It learned from 3 turns, all of which were judged bad.",
            ),
            (2, 0.0, "It learned from 2 turns."),
        ] {
            let expected = format!("{expected} No verdict on its own answers yet.");
            assert_eq!(said(samples, score), expected);
        }
    }
}
