//! Lift: whether what was learned helps, measured against sessions that the base model answered.
//!
//! Scores of one session depend on each other, so sessions and not turns are what is counted. The
//! difference of two ratio means has the linearised cluster variance (Cochran, Sampling
//! Techniques, 3rd ed., section 9A) with the factor G / (G − 1), and Welch and Satterthwaite's
//! degrees of freedom. Each arm's variance holds one session more than was seen, which lies one
//! point off the mean: a few sessions that happen to agree must not look like certainty.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Millis, PolicyVersion, SessionId};

/// The difference that a report aims to see, on the scale of scores from −1 to 1.
pub const TARGET_DIFFERENCE: f64 = 0.2;

/// Sessions of each arm below which no difference is stated.
pub const SESSIONS_MIN: usize = 5;

/// Share of equal three-letter pieces from which two complaints count as the same.
const SAME_COMPLAINT: f64 = 0.6;

/// Complaints that a new one is compared with.
const COMPLAINTS_MAX: usize = 500;

/// A turn with a score, as far as lift needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredTurn {
    /// Its session.
    pub session: SessionId,
    /// The version that sampled it.
    pub version: PolicyVersion,
    /// Whether the base model answered because the session is held back.
    pub holdback: bool,
    /// What its person said last of it, else its verdict's score; in [−1, 1].
    pub score: f32,
    /// When it ended.
    pub at_ms: Millis,
    /// What was wrong with it, in the person's words, where they said so.
    pub complaint: Option<String>,
}

impl ScoredTurn {
    /// Whether the person had to correct it.
    pub fn is_corrected(&self) -> bool {
        self.score < 0.0 || self.complaint.is_some()
    }
}

/// Numbers of one version.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionLift {
    /// The version; 0 is the base model of held-back sessions.
    pub version: PolicyVersion,
    /// Scored turns.
    pub turns: usize,
    /// Their sessions.
    pub sessions: usize,
    /// Mean score.
    pub mean: f64,
    /// Corrections per 100 scored turns; of the others nobody knows whether they needed one.
    pub corrections_per_100: f64,
}

/// Whether learning helps.
#[derive(Clone, Debug, PartialEq)]
pub struct Lift {
    /// Mean score of learned versions less that of the base model; none until both arms have
    /// [`SESSIONS_MIN`] sessions.
    pub difference: Option<f64>,
    /// Its 95 % interval.
    pub interval: Option<(f64, f64)>,
    /// Sessions that learned versions answered.
    pub sessions_policy: usize,
    /// Sessions that were held back.
    pub sessions_base: usize,
    /// Scored turns of learned versions, and of held-back sessions.
    pub turns: (usize, usize),
    /// The smallest true difference that would be seen in 4 of 5 such data sets.
    pub smallest_detectable: Option<f64>,
    /// Sessions that are still to come until [`TARGET_DIFFERENCE`] would be seen in 4 of 5 cases.
    pub sessions_needed: Option<u64>,
    /// Corrections per 100 scored turns of learned versions, and of held-back sessions.
    pub corrections_per_100: (Option<f64>, Option<f64>),
    /// Share of worded complaints that had been made before.
    pub repeat_mistake_rate: Option<f64>,
    /// Per version, ascending.
    pub per_version: Vec<VersionLift>,
}

/// One arm: per session (sum of scores, turns).
#[derive(Clone, Debug, Default)]
struct Arm(BTreeMap<SessionId, (f64, f64)>);

impl Arm {
    fn of<'a>(turns: impl Iterator<Item = &'a ScoredTurn>) -> Self {
        let mut sessions = BTreeMap::new();
        for turn in turns {
            let at: &mut (f64, f64) = sessions.entry(turn.session).or_default();
            at.0 += f64::from(turn.score);
            at.1 += 1.0;
        }
        Self(sessions)
    }

    fn sessions(&self) -> usize {
        self.0.len()
    }

    fn turns(&self) -> f64 {
        self.0.values().map(|(_, n)| n).sum()
    }

    fn mean(&self) -> f64 {
        self.0.values().map(|(sum, _)| sum).sum::<f64>() / self.turns()
    }

    /// Variance of the mean; at least two sessions.
    fn variance(&self) -> f64 {
        let (mean, turns, count) = (self.mean(), self.turns(), self.sessions() as f64);
        let residuals = self.0.values().map(|(sum, n)| (sum - n * mean).powi(2));
        let unseen = (turns / count).powi(2);
        count / (count - 1.0) * (residuals.sum::<f64>() + unseen) / turns.powi(2)
    }
}

/// Measures. Turns of version 0 outside of held-back sessions come from before anything was
/// learned and belong to neither arm.
pub fn measure(turns: &[ScoredTurn]) -> Lift {
    let policy = || turns.iter().filter(|t| !t.holdback && t.version.0 > 0);
    let base = || turns.iter().filter(|t| t.holdback);
    let (learned, held) = (Arm::of(policy()), Arm::of(base()));
    let enough = learned.sessions().min(held.sessions()) >= SESSIONS_MIN;
    let estimate = enough.then(|| Estimate::of(&learned, &held));
    Lift {
        difference: estimate.map(|e| e.difference),
        interval: estimate.map(|e| (e.difference - e.half_width, e.difference + e.half_width)),
        sessions_policy: learned.sessions(),
        sessions_base: held.sessions(),
        turns: (policy().count(), base().count()),
        smallest_detectable: estimate.map(|e| e.detectable),
        sessions_needed: sessions_needed(&learned, &held, estimate),
        corrections_per_100: (corrections_per_100(policy()), corrections_per_100(base())),
        repeat_mistake_rate: repeat_mistake_rate(policy()),
        per_version: per_version(turns),
    }
}

/// The same prompts answered by both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedLift {
    /// Mean score of the newest version less that of the base model.
    pub difference: f64,
    /// Its 95 % interval.
    pub interval: (f64, f64),
    /// Prompts.
    pub prompts: usize,
    /// The smallest true difference that would be seen in 4 of 5 such sets.
    pub smallest_detectable: f64,
}

/// The mean of paired differences with Student's interval; none below [`SESSIONS_MIN`] pairs. As
/// with sessions, the variance holds one pair more than was seen, which lies one point off.
pub fn paired(differences: &[f64]) -> Option<PairedLift> {
    if differences.len() < SESSIONS_MIN {
        return None;
    }
    let n = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / n;
    let squares = differences
        .iter()
        .map(|d| (d - mean) * (d - mean))
        .sum::<f64>();
    let error = ((squares + 1.0) / (n - 1.0) / n).sqrt();
    let half = t_quantile(0.975, n - 1.0) * error;
    Some(PairedLift {
        difference: mean,
        interval: (mean - half, mean + half),
        prompts: differences.len(),
        smallest_detectable: (t_quantile(0.975, n - 1.0) + t_quantile(0.8, n - 1.0)) * error,
    })
}

#[derive(Clone, Copy)]
struct Estimate {
    difference: f64,
    half_width: f64,
    detectable: f64,
}

impl Estimate {
    fn of(learned: &Arm, held: &Arm) -> Self {
        let variances = [learned, held].map(Arm::variance);
        let variance: f64 = variances.iter().sum();
        let freedom = [learned, held]
            .into_iter()
            .zip(variances)
            .map(|(arm, v)| v * v / (arm.sessions() as f64 - 1.0));
        let freedom = variance * variance / freedom.sum::<f64>();
        let error = variance.sqrt();
        Self {
            difference: learned.mean() - held.mean(),
            half_width: t_quantile(0.975, freedom) * error,
            detectable: (t_quantile(0.975, freedom) + t_quantile(0.8, freedom)) * error,
        }
    }
}

/// Variances fall with the number of sessions. Below [`SESSIONS_MIN`] the scores are taken to be as
/// wide apart as they can be.
fn sessions_needed(learned: &Arm, held: &Arm, estimate: Option<Estimate>) -> Option<u64> {
    let have = (learned.sessions() + held.sessions()) as f64;
    let share = (held.sessions() as f64 / have.max(1.0)).clamp(0.05, 0.5);
    let detectable = match estimate {
        Some(estimate) => estimate.detectable,
        None => {
            // As if SESSIONS_MIN held-back sessions, and the others in proportion, were seen.
            let error = (1.0 / SESSIONS_MIN as f64 * (1.0 + share / (1.0 - share))).sqrt();
            (1.96 + 0.84) * error
        }
    };
    let seen = if estimate.is_some() {
        have
    } else {
        SESSIONS_MIN as f64 / share
    };
    let needed = seen * (detectable / TARGET_DIFFERENCE).powi(2) - have;
    (needed > 0.0).then(|| needed.ceil() as u64)
}

fn corrections_per_100<'a>(turns: impl Iterator<Item = &'a ScoredTurn>) -> Option<f64> {
    let (mut count, mut corrected) = (0usize, 0usize);
    for turn in turns {
        count += 1;
        corrected += usize::from(turn.is_corrected());
    }
    (count > 0).then(|| 100.0 * corrected as f64 / count as f64)
}

/// Share of complaints that resemble an earlier one of another session: what was said twice in one
/// session may be about one answer.
fn repeat_mistake_rate<'a>(turns: impl Iterator<Item = &'a ScoredTurn>) -> Option<f64> {
    let mut turns: Vec<&ScoredTurn> = turns.filter(|t| t.complaint.is_some()).collect();
    turns.sort_by_key(|t| t.at_ms);
    let from = turns.len().saturating_sub(COMPLAINTS_MAX);
    let mut said: Vec<(SessionId, BTreeSet<[char; 3]>)> = Vec::new();
    let mut repeats = 0usize;
    for turn in &turns[from..] {
        let text = turn.complaint.as_deref().unwrap_or_default();
        let pieces = pieces(text);
        let again = |(session, earlier): &(SessionId, BTreeSet<_>)| {
            *session != turn.session && likeness(earlier, &pieces) >= SAME_COMPLAINT
        };
        repeats += usize::from(said.iter().any(again));
        said.push((turn.session, pieces));
    }
    (!said.is_empty()).then(|| repeats as f64 / said.len() as f64)
}

/// Runs of three letters, digits or single spaces, in lower case.
fn pieces(text: &str) -> BTreeSet<[char; 3]> {
    let mut letters = vec![' '];
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_alphanumeric() {
            letters.push(c);
        } else if letters.last() != Some(&' ') {
            letters.push(' ');
        }
    }
    if letters.last() != Some(&' ') {
        letters.push(' ');
    }
    letters.windows(3).map(|w| [w[0], w[1], w[2]]).collect()
}

/// Dice's coefficient.
fn likeness(a: &BTreeSet<[char; 3]>, b: &BTreeSet<[char; 3]>) -> f64 {
    let both = a.intersection(b).count() as f64;
    2.0 * both / (a.len() + b.len()).max(1) as f64
}

fn per_version(turns: &[ScoredTurn]) -> Vec<VersionLift> {
    let mut versions: BTreeMap<PolicyVersion, Vec<&ScoredTurn>> = BTreeMap::new();
    for turn in turns.iter().filter(|t| t.holdback || t.version.0 > 0) {
        versions.entry(turn.version).or_default().push(turn);
    }
    versions
        .into_iter()
        .map(|(version, turns)| {
            let arm = Arm::of(turns.iter().copied());
            VersionLift {
                version,
                turns: turns.len(),
                sessions: arm.sessions(),
                mean: arm.mean(),
                corrections_per_100: corrections_per_100(turns.iter().copied()).unwrap_or(0.0),
            }
        })
        .collect()
}

/// What a report says in one plain sentence. `is_held_back` says whether sessions are held back at
/// all.
pub fn sentence(lift: &Lift, is_held_back: bool) -> String {
    let needed = |n: u64| {
        let sessions = if n == 1 { "session is" } else { "sessions are" };
        format!("about {n} more {sessions} needed")
    };
    let (Some(difference), Some((low, high))) = (lift.difference, lift.interval) else {
        if !is_held_back && lift.sessions_base == 0 {
            return match lift.corrections_per_100.0 {
                Some(per_100) => format!(
                    "There is no comparison with the base model, because no session is held back \
                     for it; learned versions needed {per_100:.0} corrections per 100 judged turns."
                ),
                None => "No answer of a learned version was judged yet.".to_owned(),
            };
        }
        let more = lift.sessions_needed.map_or(String::new(), needed);
        return format!("Not enough data yet: {more}.");
    };
    let how = if difference < 0.0 { "worse" } else { "better" };
    let size = difference.abs();
    if low <= 0.0 && high >= 0.0 {
        return match lift.sessions_needed {
            Some(more) => format!(
                "Not enough data yet: learned versions score {size:.2} {how} than the base model, \
                 but chance alone explains that; {}.",
                needed(more)
            ),
            None => format!(
                "No difference: learned versions and the base model score alike, within {:.2}.",
                low.abs().max(high.abs())
            ),
        };
    }
    format!(
        "Learned versions score {size:.2} {how} than the base model on a scale from -1 to 1 (95 % \
         interval {low:.2} to {high:.2}, {} and {} sessions).",
        lift.sessions_policy, lift.sessions_base
    )
}

/// Quantile of Student's t for `p` above one half: exact for one and two degrees of freedom, else
/// the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5).
fn t_quantile(p: f64, freedom: f64) -> f64 {
    if freedom < 1.5 {
        return (std::f64::consts::PI * (p - 0.5)).tan();
    }
    if freedom < 2.5 {
        return (2.0 * p - 1.0) / (2.0 * p * (1.0 - p)).sqrt();
    }
    let z = normal_quantile(p);
    let g1 = (z.powi(3) + z) / 4.0;
    let g2 = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let g3 = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    let g4 =
        79.0 * z.powi(9) + 776.0 * z.powi(7) + 1482.0 * z.powi(5) - 1920.0 * z.powi(3) - 945.0 * z;
    z + g1 / freedom + g2 / freedom.powi(2) + g3 / freedom.powi(3) + g4 / 92160.0 / freedom.powi(4)
}

/// Quantile of the normal distribution for `p` above one half (Abramowitz and Stegun 26.2.23, off
/// by less than 4.5e-4).
fn normal_quantile(p: f64) -> f64 {
    let t = (-2.0 * (1.0 - p).ln()).sqrt();
    let above = 2.515_517 + 0.802_853 * t + 0.010_328 * t * t;
    let below = 1.0 + 1.432_788 * t + 0.189_269 * t * t + 0.001_308 * t.powi(3);
    t - above / below
}

#[cfg(test)]
#[path = "lift_tests.rs"]
mod tests;
