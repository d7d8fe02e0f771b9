//! Which of the sampled answers are learned from, and which are kept for the gate.

use std::collections::HashMap;

use hone_domain::Token;
use hone_nn::TrainRow;

use super::mean;
use crate::wish_answers::UnseenAnswer;

/// Nats by which the words make a token likelier from which on the token does what they ask.
const WISH_TOKEN_NATS: f32 = 0.5;
/// Nats per token by which an answer may be less likely than the model's own answers to the words are.
const STRANGE_NATS: f32 = 0.6;
/// Share of the answers that are left out because they are the shortest.
const SHORTEST_SHARE: f32 = 0.1;
/// Share of the answers that are left out because others have more to do with their question.
const UNRELATED_SHARE: f32 = 0.1;
/// Answers to one question that are learned from, at most: with few answers they would be learned by heart.
const ANSWERS_MAX: usize = 3;
/// Of so many questions one is the gate's, and one says when the steps go too far.
const UNSEEN_EVERY: usize = 6;
const UNSEEN_PLACE: usize = 5;
const CHECKED_PLACE: usize = 2;

/// An answer with what is known of it.
pub(super) struct Candidate {
    pub(super) question: usize,
    /// Which telling it was given to.
    pub(super) telling: usize,
    /// Whether it went further than the telling itself.
    pub(super) is_guided: bool,
    /// The prompt with the words that it was given to, the prompt without, and the answer with its
    /// end.
    pub(super) told: TrainRow,
    pub(super) plain: TrainRow,
    pub(super) said: Vec<Token>,
    pub(super) gain: f32,
    pub(super) relevance: f32,
    /// Mean log-prob per token with the words that it was given to, or with the person's own where that is
    /// less.
    pub(super) fluency: f32,
    /// Per token, how much likelier the words made it.
    pub(super) token_gains: Vec<f32>,
}

impl Candidate {
    /// Whether it does what the words ask, and answers its question.
    fn does(&self, relevance_min: f32) -> bool {
        self.gain > 0.0 && self.relevance >= relevance_min
    }

    /// How surely the words are why this was said (the sum of what its tokens gain over the root of their number, as
    /// in a t statistic, so that neither short nor long answers are preferred), and how likely it is at all: gain
    /// alone prefers what nobody would say.
    fn worth(&self) -> f32 {
        self.gain * (self.said.len() as f32).sqrt() + self.fluency
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

/// Leaves out what the model that reads the words would hardly say itself: answers that are less likely to
/// it than its own ones are, by more than [`STRANGE_NATS`].
pub(super) fn fluent(mut all: Vec<Candidate>) -> Vec<Candidate> {
    let own = all.iter().filter(|candidate| !candidate.is_guided);
    let own: Vec<f32> = own.map(|candidate| candidate.fluency).collect();
    if !own.is_empty() {
        let least = mean(&own) - STRANGE_NATS;
        all.retain(|candidate| candidate.fluency >= least);
    }
    all
}

/// Answers by what they are for.
pub(super) struct Parted {
    /// Kept for the gate.
    pub(super) unseen: Vec<UnseenAnswer>,
    /// Looked at after each step.
    pub(super) checked: Vec<Candidate>,
    /// To be learned from.
    pub(super) others: Vec<Candidate>,
}

/// Answers to every sixth question are kept for the gate, and those to another sixth are looked at after each step.
pub(super) fn parted(all: Vec<Candidate>, relevance_min: f32) -> Parted {
    let place = |candidate: &Candidate| candidate.question % UNSEEN_EVERY;
    let does = |candidate: &Candidate| {
        candidate.does(relevance_min) && !wish_tokens(&candidate.token_gains).is_empty()
    };
    let mut found = Parted {
        unseen: Vec::new(),
        checked: Vec::new(),
        others: Vec::new(),
    };
    for candidate in all {
        match place(&candidate) {
            UNSEEN_PLACE if does(&candidate) => found.unseen.push(UnseenAnswer {
                start: candidate.plain.tokens.len() - candidate.said.len(),
                wish_tokens: wish_tokens(&candidate.token_gains),
                tokens: candidate.plain.tokens,
                // Set where the steps begin.
                logprob_before: 0.0,
            }),
            CHECKED_PLACE if does(&candidate) => found.checked.push(candidate),
            UNSEEN_PLACE | CHECKED_PLACE => {}
            _ => found.others.push(candidate),
        }
    }
    found
}

/// The best answers to each question. The shortest tenth is left out, because gain per token prefers short answers
/// whatever the wish, and so are those that say least about their question.
pub(super) fn best(all: Vec<Candidate>, relevance_min: f32) -> Vec<Candidate> {
    let lengths = all.iter().map(|candidate| candidate.said.len() as f32);
    let shortest = quantile(lengths.collect(), SHORTEST_SHARE);
    // Per token a short answer has more to do with its question than a long one.
    let related = |candidate: &Candidate| candidate.relevance * candidate.said.len() as f32;
    let least = quantile(all.iter().map(related).collect(), UNRELATED_SHARE);
    let is_answer = |candidate: &Candidate| {
        candidate.does(relevance_min)
            && related(candidate) >= least
            && candidate.said.len() as f32 >= shortest
    };
    let mut best: Vec<Candidate> = all.into_iter().filter(is_answer).collect();
    best.sort_by(|a, b| b.worth().total_cmp(&a.worth()));
    // Neighbours answer different questions, so that each step sees many of them.
    let mut rounds: HashMap<usize, usize> = HashMap::new();
    let mut placed: Vec<(usize, Candidate)> = Vec::new();
    for candidate in best {
        let round = rounds.entry(candidate.question).or_default();
        placed.push((*round, candidate));
        *round += 1;
    }
    placed.retain(|(round, _)| *round < ANSWERS_MAX);
    placed.sort_by_key(|(round, candidate)| (*round, candidate.question));
    placed.into_iter().map(|(_, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(question: usize, tokens: usize, gain: f32) -> Candidate {
        let row = TrainRow {
            tokens: vec![0; tokens + 1],
            loss: Vec::new(),
        };
        Candidate {
            question,
            telling: 0,
            is_guided: false,
            told: row.clone(),
            plain: row,
            said: vec![0; tokens],
            gain,
            relevance: 1.0,
            fluency: -1.0,
            token_gains: vec![1.0; tokens],
        }
    }

    #[test]
    fn the_surest_gain_is_worth_most_whatever_the_length() {
        // The same gain per token is surer of a longer answer, and a large gain makes up for few tokens.
        assert!(candidate(0, 100, 0.1).worth() > candidate(0, 25, 0.1).worth());
        assert!(candidate(0, 9, 0.6).worth() > candidate(0, 100, 0.1).worth());
    }

    #[test]
    fn each_question_teaches_some_answers_and_neighbours_answer_others() {
        let of_question =
            |question| (0..5).map(move |n| candidate(question, 50 + n, 0.1 + 0.01 * n as f32));
        let mut all: Vec<Candidate> = of_question(0).chain(of_question(1)).collect();
        all.push(candidate(3, 50, -0.1));
        let best = best(all, 0.25);
        let questions: Vec<usize> = best.iter().map(|one| one.question).collect();
        assert_eq!(questions, [0, 1, 0, 1, 0, 1]);
        assert_eq!(best[0].said.len(), 54);
    }

    #[test]
    fn answers_to_two_of_six_questions_are_not_learned_from() {
        let all = (0..12).map(|question| candidate(question, 20, 0.1));
        let parted = parted(all.collect(), 0.25);
        let questions = |of: &[Candidate]| of.iter().map(|one| one.question).collect::<Vec<_>>();
        assert_eq!(questions(&parted.checked), [2, 8]);
        assert_eq!(questions(&parted.others), [0, 1, 3, 4, 6, 7, 9, 10]);
        assert_eq!(parted.unseen.len(), 2);
    }
}
