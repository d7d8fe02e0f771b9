//! The ways in which a wish is put to the model, and which of them it follows best.
//!
//! Models differ in what they obey: one follows a wish behind the question, another one before it, a third
//! only with guidance. Half of a batch's questions are told every way; those ways whose answers do most of
//! what was asked tell the other half.

use super::choose::Candidate;
use super::wishes::{behind, framed};

/// Ways of the second half.
const BEST_WAYS: usize = 4;
/// Nats per token beyond which more gain says nothing more: answers that nobody would give gain most.
const GAIN_MAX: f32 = 0.5;

/// A wish, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Telling {
    pub(super) words: String,
    pub(super) is_first: bool,
    /// Which of the forms of its wish it is.
    form: usize,
}

impl Telling {
    /// The wish behind the question.
    pub(super) fn behind(words: String) -> Self {
        Self {
            words,
            is_first: false,
            form: 0,
        }
    }

    /// The text of a question with the wish.
    pub(super) fn with(&self, question: &str) -> String {
        match self.is_first {
            true => behind(&self.words, question),
            false => behind(question, &self.words),
        }
    }
}

/// The forms of a wish; `rewrite` is the instruction that the model made of it.
pub(super) fn forms(wish: &str, rewrite: Option<&str>) -> Vec<Telling> {
    let mut forms = vec![
        Telling::behind(framed(wish)),
        Telling::behind(wish.to_owned()),
        Telling {
            words: wish.to_owned(),
            is_first: true,
            form: 0,
        },
    ];
    forms.extend(rewrite.map(|rewrite| Telling::behind(framed(rewrite))));
    for (form, telling) in forms.iter_mut().enumerate() {
        telling.form = form;
    }
    forms
}

/// One way: a telling by its number, and whether its answers are guided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) telling: usize,
    pub(super) is_guided: bool,
}

/// How often each way was asked.
pub(super) type Asks = Vec<(Way, usize)>;

/// Every way of `tellings`, each with guidance and without, in an order in which neighbours differ in both.
pub(super) fn all_ways(tellings: &[Telling]) -> Vec<Way> {
    let each = |round: usize| {
        (0..tellings.len()).map(move |telling| Way {
            telling,
            is_guided: !(telling + round).is_multiple_of(2),
        })
    };
    each(0).chain(each(1)).collect()
}

/// The ways of `tellings` whose like did best in `tried`, which was told by `first`, each so often as in
/// `counts`.
pub(super) fn best_ways(
    first: &[Telling],
    counts: &[(Way, usize)],
    tried: &[Candidate],
    relevance_min: f32,
    tellings: &[Telling],
) -> Vec<Way> {
    let worth = |way: &Way| {
        let like = |at: usize| first[at].form == tellings[way.telling].form;
        let done = |candidate: &&Candidate| {
            like(candidate.telling)
                && candidate.is_guided == way.is_guided
                && candidate.relevance >= relevance_min
        };
        let sum: f32 = tried
            .iter()
            .filter(done)
            .map(|candidate| candidate.gain.clamp(0.0, GAIN_MAX))
            .sum();
        let asked = counts
            .iter()
            .filter(|(of, _)| like(of.telling) && of.is_guided == way.is_guided);
        sum / asked.map(|(_, count)| *count).sum::<usize>().max(1) as f32
    };
    let mut ways: Vec<(f32, Way)> = all_ways(tellings)
        .into_iter()
        .map(|way| (worth(&way), way))
        .collect();
    ways.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    // Of several wishes each has its best ways.
    let per_form = tellings.len().div_ceil(first.len().max(1)).max(1);
    ways.truncate(BEST_WAYS * per_form);
    ways.into_iter().map(|(_, way)| way).collect()
}

#[cfg(test)]
mod tests {
    use hone_nn::TrainRow;

    use super::*;

    fn candidate(telling: usize, is_guided: bool, gain: f32) -> Candidate {
        let row = TrainRow {
            tokens: Vec::new(),
            loss: Vec::new(),
        };
        Candidate {
            question: 0,
            telling,
            is_guided,
            told: row.clone(),
            plain: row,
            said: Vec::new(),
            gain,
            relevance: 1.0,
            fluency: -1.0,
            token_gains: Vec::new(),
        }
    }

    #[test]
    fn every_form_is_tried_with_and_without_guidance() {
        let tellings = forms("shorter", Some("Be brief."));
        let ways = all_ways(&tellings);
        assert_eq!(ways.len(), 8);
        for telling in 0..4 {
            let of = ways.iter().filter(|way| way.telling == telling);
            assert_eq!(of.filter(|way| way.is_guided).count(), 1);
        }
        assert_eq!(forms("shorter", None).len(), 3);
    }

    #[test]
    fn a_wish_stands_before_or_behind_the_question() {
        let tellings = forms("shorter", None);
        assert_eq!(tellings[1].with("Why?"), "Why?\n\nshorter");
        assert_eq!(tellings[2].with("Why?"), "shorter\n\nWhy?");
    }

    #[test]
    fn what_did_best_is_told_again() {
        let tellings = forms("shorter", None);
        let ways = all_ways(&tellings);
        let counts: Vec<(Way, usize)> = ways.iter().map(|way| (*way, 2)).collect();
        let tried = [
            candidate(2, true, 0.4),
            candidate(2, true, 0.3),
            candidate(0, false, 9.0),
            candidate(1, true, -1.0),
        ];
        let best = best_ways(&tellings, &counts, &tried, 0.25, &tellings);
        assert_eq!(best.len(), BEST_WAYS);
        let expected =
            [(2, true), (0, false)].map(|(telling, is_guided)| Way { telling, is_guided });
        assert_eq!(best[..2], expected);
    }
}
