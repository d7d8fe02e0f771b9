//! Which of the sampled answers are learned from, and which are kept for the gate.

use std::collections::HashMap;

use hone_domain::Token;
use hone_nn::TrainRow;

/// Nats by which the words make a token likelier from which on the token does what they ask.
const WISH_TOKEN_NATS: f32 = 0.5;
/// Share of the answers that are left out because they are the shortest.
const SHORTEST_SHARE: f32 = 0.2;
/// Share of the answers that are left out because others say more about their question.
const UNRELATED_SHARE: f32 = 0.2;
/// A way of telling is given up where its answers say so much less about their questions than those of
/// the best one.
const TELLING_RELEVANCE: f32 = 0.7;
/// Of so many questions one is the gate's.
const UNSEEN_EVERY: usize = 6;

/// An answer with what is known of it.
pub(super) struct Candidate {
    pub(super) question: usize,
    /// Which telling it was given to.
    pub(super) telling: usize,
    /// The prompt with the words that it was given to, the prompt without, and the answer with its
    /// end.
    pub(super) told: TrainRow,
    pub(super) plain: TrainRow,
    pub(super) said: Vec<Token>,
    pub(super) gain: f32,
    pub(super) relevance: f32,
    /// Mean log-prob per token with the words that it was given to.
    pub(super) fluency: f32,
    /// Per token, how much likelier the words made it.
    pub(super) token_gains: Vec<f32>,
}

impl Candidate {
    /// Of several answers the one that does what is asked and is likely at all: gain alone prefers what
    /// nobody would say.
    fn worth(&self) -> f32 {
        self.gain + self.fluency
    }
}

/// Which tokens do what the words ask: the words made them clearly likelier.
pub(super) fn wish_tokens(gains: &[f32]) -> Vec<usize> {
    let tokens = gains.iter().enumerate();
    let tokens = tokens.filter(|(_, gain)| **gain > WISH_TOKEN_NATS);
    tokens.map(|(index, _)| index).collect()
}

/// The value below which so large a share of them is.
fn quantile(mut values: Vec<f32>, share: f32) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    let at = (values.len() as f32 * share) as usize;
    values.get(at).copied().unwrap_or(0.0)
}

/// Leaves out the answers to tellings that the model misunderstands: they say clearly less about their
/// questions than those to the best telling.
pub(super) fn well_told(all: Vec<Candidate>) -> Vec<Candidate> {
    let mut means: HashMap<usize, (f32, f32)> = HashMap::new();
    for candidate in &all {
        let mean = means.entry(candidate.telling).or_default();
        *mean = (mean.0 + candidate.relevance, mean.1 + 1.0);
    }
    let mean = |(sum, count): &(f32, f32)| sum / count;
    let best = means.values().map(mean).fold(0.0, f32::max);
    let is_good = |telling: &usize| mean(&means[telling]) >= TELLING_RELEVANCE * best;
    all.into_iter()
        .filter(|candidate| is_good(&candidate.telling))
        .collect()
}

/// Answers that the gate looks at, each with the loss tokens that do what the words ask.
pub(super) type Unseen = Vec<(TrainRow, Vec<usize>)>;

/// Answers to every sixth question are kept for the gate.
pub(super) fn part_unseen(all: Vec<Candidate>, relevance_min: f32) -> (Unseen, Vec<Candidate>) {
    let (unseen, all): (Vec<Candidate>, Vec<Candidate>) = all
        .into_iter()
        .partition(|candidate| candidate.question % UNSEEN_EVERY == UNSEEN_EVERY - 1);
    let unseen = unseen
        .into_iter()
        .filter(|candidate| candidate.gain > 0.0 && candidate.relevance >= relevance_min);
    let unseen = unseen.map(|candidate| (wish_tokens(&candidate.token_gains), candidate.plain));
    let unseen = unseen.filter(|(tokens, _)| !tokens.is_empty());
    (unseen.map(|(tokens, row)| (row, tokens)).collect(), all)
}

/// The best answer to each question. The shortest fifth is left out, because gain per token
/// prefers short answers whatever the wish, and so are those that say least about their question.
pub(super) fn best(all: Vec<Candidate>, relevance_min: f32) -> Vec<Candidate> {
    let lengths = all.iter().map(|candidate| candidate.said.len() as f32);
    let shortest = quantile(lengths.collect(), SHORTEST_SHARE);
    let relevances = all.iter().map(|candidate| candidate.relevance);
    let least = quantile(relevances.collect(), UNRELATED_SHARE);
    let least = least.max(relevance_min);
    let mut best: HashMap<usize, Candidate> = HashMap::new();
    for candidate in all {
        let is_answer = candidate.gain > 0.0
            && candidate.relevance >= least
            && candidate.said.len() as f32 >= shortest;
        let before = best.get(&candidate.question);
        if is_answer && before.is_none_or(|before| candidate.worth() > before.worth()) {
            best.insert(candidate.question, candidate);
        }
    }
    let mut best: Vec<Candidate> = best.into_values().collect();
    best.sort_unstable_by_key(|candidate| candidate.question);
    best
}
