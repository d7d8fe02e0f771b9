//! What was computed already: answers of a policy and log-probs of the base model. Both are
//! determined by their inputs, so that a remembered one has the same bits.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use hone_domain::Token;
use hone_nn::{Adapter, TrainRow};

use super::answers::Answer;

/// Most entries of each kind. The fullest job has about a quarter of that.
const ENTRIES_MAX: usize = 2_048;

/// What an answer depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AnswerKey {
    /// Of the adapter; none for the base model.
    pub(super) digest: Option<[u8; 32]>,
    pub(super) prompt: Vec<Token>,
    pub(super) tokens_max: usize,
    pub(super) temperature_bits: u32,
    pub(super) seed: u64,
}

impl AnswerKey {
    /// Its key in the memo, of each prompt with its seed.
    pub(super) fn digest_of(adapter: Option<&Adapter>) -> Option<[u8; 32]> {
        adapter.map(Adapter::digest)
    }
}

/// Remembers as much as the newest jobs need.
#[derive(Debug, Default)]
pub(super) struct Memo {
    answers: Mutex<HashMap<AnswerKey, Answer>>,
    logprobs: Mutex<HashMap<Vec<u32>, Vec<f32>>>,
}

impl Memo {
    /// Forgets everything, so that a test sees all of the work again.
    #[cfg(test)]
    pub(super) fn clear(&self) {
        self.answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        self.logprobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    pub(super) fn answer(&self, key: &AnswerKey) -> Option<Answer> {
        let answers = self.answers.lock();
        let answers = answers.unwrap_or_else(PoisonError::into_inner);
        answers.get(key).cloned()
    }

    pub(super) fn keep_answer(&self, key: AnswerKey, answer: Answer) {
        keep(&self.answers, key, answer);
    }

    /// Log-probs of a row's loss tokens under the base model at temperature 1.
    pub(super) fn logprobs(&self, row: &TrainRow) -> Option<Vec<f32>> {
        let known = self.logprobs.lock();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        known.get(&row_key(row)?).cloned()
    }

    pub(super) fn keep_logprobs(&self, row: &TrainRow, logprobs: Vec<f32>) {
        if let Some(key) = row_key(row) {
            keep(&self.logprobs, key, logprobs);
        }
    }
}

fn keep<K: Eq + Hash, V>(of: &Mutex<HashMap<K, V>>, key: K, value: V) {
    let mut map = of.lock().unwrap_or_else(PoisonError::into_inner);
    if map.len() >= ENTRIES_MAX {
        map.clear();
    }
    map.insert(key, value);
}

/// The row's tokens and where its loss tokens begin; none where they are not all the rest of it,
/// drawn from the plain distribution.
fn row_key(row: &TrainRow) -> Option<Vec<u32>> {
    let first = row.loss.first()?.position;
    let plain = row.loss.iter().enumerate().all(|(index, loss)| {
        loss.position == first + index
            && loss.temperature.to_bits() == 1.0_f32.to_bits()
            && loss.kept.is_none()
            && loss.experts.is_none()
    });
    let whole = first + row.loss.len() == row.tokens.len();
    (plain && whole).then(|| {
        let mut key = row.tokens.clone();
        key.push(first as u32);
        key
    })
}

#[cfg(test)]
mod tests {
    use super::super::context::imitated;
    use super::*;

    #[test]
    fn rows_are_told_apart_by_where_they_begin() {
        let memo = Memo::default();
        let (a, b) = (imitated(&[1, 2], &[3, 4]), imitated(&[1, 2, 3], &[4]));
        memo.keep_logprobs(&a, vec![-1.0, -2.0]);
        assert_eq!(memo.logprobs(&a), Some(vec![-1.0, -2.0]));
        assert_eq!(memo.logprobs(&b), None);
        let mut warm = a.clone();
        warm.loss[0].temperature = 0.7;
        assert_eq!(memo.logprobs(&warm), None);
        memo.keep_logprobs(&warm, vec![0.0, 0.0]);
        assert_eq!(memo.logprobs(&a), Some(vec![-1.0, -2.0]));
    }

    #[test]
    fn it_forgets_before_it_grows_without_end() {
        let memo = Memo::default();
        for token in 0..=ENTRIES_MAX as u32 {
            memo.keep_logprobs(&imitated(&[token], &[1]), vec![0.0]);
        }
        assert_eq!(memo.logprobs(&imitated(&[0], &[1])), None);
        assert!(
            memo.logprobs(&imitated(&[ENTRIES_MAX as u32], &[1]))
                .is_some()
        );
    }
}
