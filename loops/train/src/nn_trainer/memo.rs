//! What was computed already: answers of a policy and log-probs of the base model. Both are
//! determined by their inputs, so that a remembered one has the same bits.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hone_domain::Token;
use hone_nn::{Adapter, TrainRow};

use super::answer::Answer;

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

/// What is remembered for the job under way, and what lasts: nothing that holds a person's words does, so that
/// what somebody has forgotten is not remembered here.
#[derive(Debug, Default)]
pub(super) struct Memo {
    answers: Entries<AnswerKey, Answer>,
    logprobs: Entries<Vec<u32>, Vec<f32>>,
}

impl Memo {
    pub(super) fn answer(&self, key: &AnswerKey) -> Option<Answer> {
        self.answers.get(key)
    }

    pub(super) fn keep_answer(&self, key: AnswerKey, answer: Answer) {
        self.answers.keep(key, answer);
    }

    /// Log-probs of a row's loss tokens under the base model at temperature 1.
    pub(super) fn logprobs(&self, row: &TrainRow) -> Option<Vec<f32>> {
        self.logprobs.get(&row_key(row)?)
    }

    pub(super) fn keep_logprobs(&self, row: &TrainRow, logprobs: Vec<f32>) {
        if let Some(key) = row_key(row) {
            self.logprobs.keep(key, logprobs);
        }
    }

    /// What is remembered now lasts.
    pub(super) fn settle(&self) {
        self.answers
            .lock()
            .values_mut()
            .for_each(|e| e.lasts = true);
        self.logprobs
            .lock()
            .values_mut()
            .for_each(|e| e.lasts = true);
    }

    /// A job is over: only what lasts is left.
    pub(super) fn forget(&self) {
        self.answers.lock().retain(|_, entry| entry.lasts);
        self.logprobs.lock().retain(|_, entry| entry.lasts);
    }
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    lasts: bool,
}

#[derive(Debug)]
struct Entries<K, V>(Mutex<HashMap<K, Entry<V>>>);

impl<K, V> Default for Entries<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Entries<K, V> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Entry<V>>> {
        // Only whole entries are ever written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &K) -> Option<V> {
        self.lock().get(key).map(|entry| entry.value.clone())
    }

    fn keep(&self, key: K, value: V) {
        let mut map = self.lock();
        if map.len() >= ENTRIES_MAX {
            map.retain(|_, entry| entry.lasts);
        }
        map.insert(
            key,
            Entry {
                value,
                lasts: false,
            },
        );
    }
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
    fn what_a_job_brought_is_gone_with_it() {
        let memo = Memo::default();
        let (generic, own) = (imitated(&[1], &[2]), imitated(&[3], &[4]));
        memo.keep_logprobs(&generic, vec![-1.0]);
        memo.settle();
        memo.keep_logprobs(&own, vec![-2.0]);
        memo.forget();
        assert_eq!(memo.logprobs(&generic), Some(vec![-1.0]));
        assert_eq!(memo.logprobs(&own), None);
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
