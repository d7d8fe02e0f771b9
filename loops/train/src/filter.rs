//! The last check before training: which claimed turns may enter a policy-gradient batch.

use hone_domain::{Reason, invariants};
use hone_ledger::{Claim, SampleMaterial};

use crate::credit::Method;

/// What a batch accepts.
#[derive(Clone, Copy, Debug)]
pub struct Accepts {
    /// Law L1.
    pub staleness_max_versions: u64,
    /// Longest prompt and completion together.
    pub row_tokens_max: usize,
    /// What turns are learned by.
    pub method: Method,
}

/// Materials that may train, and claims to settle with the reason why they may not.
#[derive(Debug, Default)]
pub struct Filtered {
    /// May train.
    pub good: Vec<SampleMaterial>,
    /// May not.
    pub left_out: Vec<(Claim, Reason)>,
}

/// Splits a claim. The ledger has refused most of this already; what reaches training is checked
/// here once more, on the values that are trained.
pub fn filter(materials: Vec<SampleMaterial>, accepts: Accepts) -> Filtered {
    let mut filtered = Filtered::default();
    for material in materials {
        match objection(&material, accepts) {
            None => filtered.good.push(material),
            Some(reason) => filtered.left_out.push((material.claim, reason)),
        }
    }
    filtered
}

fn objection(material: &SampleMaterial, accepts: Accepts) -> Option<Reason> {
    let turn = &material.turn;
    if let Some(reason) = turn.untrainable {
        return Some(reason);
    }
    if turn.completion.is_empty() {
        return Some(Reason::EmptyCompletion);
    }
    if turn.sampling.is_greedy() {
        return Some(Reason::Greedy);
    }
    if !turn.sampling.is_replayable() || turn.prompt_tokens.is_empty() {
        return Some(Reason::NotReplayable);
    }
    if !material.score.is_finite() {
        return Some(Reason::Abstained);
    }
    let method = accepts.method;
    let (uses, useless) = match turn.completion.has_logprobs() {
        true => (
            method.uses(material.hint.is_some(), material.correction.is_some()),
            Reason::NoLesson,
        ),
        false => (method.uses_given(material.score), Reason::NoLogprobs),
    };
    if !uses.any() {
        return Some(useless);
    }
    if turn.prompt_tokens.len() + turn.completion.len() > accepts.row_tokens_max {
        return Some(Reason::TooLong);
    }
    let fresh = invariants::fresh_enough(material.staleness, accepts.staleness_max_versions);
    fresh.is_err().then_some(Reason::Stale)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hone_domain::{Completion, Sampling, StopReason};

    use super::*;
    use crate::testing::{material, turn};

    #[test]
    fn every_objection_has_its_reason() {
        let accepts = Accepts {
            staleness_max_versions: 2,
            row_tokens_max: 8,
            method: Method::BinaryReward,
        };
        let base = || material(turn(1, &[1, 2, 3], &[4, 5]), 1.0);
        type Change = fn(&mut SampleMaterial);
        let rows: &[(Change, Option<Reason>)] = &[
            (|_| {}, None),
            (
                |m| m.turn.untrainable = Some(Reason::Withdrawn),
                Some(Reason::Withdrawn),
            ),
            (|m| m.turn.sampling.temperature = 0.0, Some(Reason::Greedy)),
            // The sampler takes the most likely token there too.
            (|m| m.turn.sampling.temperature = 9e-6, Some(Reason::Greedy)),
            (|m| m.turn.sampling.temperature = 5e-5, None),
            (
                |m| {
                    m.turn.sampling = Sampling {
                        presence_penalty: 1.0,
                        ..Sampling::default()
                    };
                },
                Some(Reason::NotReplayable),
            ),
            (|m| m.score = f32::NAN, Some(Reason::Abstained)),
            (|m| m.turn.prompt_tokens = vec![1; 7], Some(Reason::TooLong)),
            (|m| m.staleness = 2, None),
            (|m| m.staleness = 3, Some(Reason::Stale)),
        ];
        for (change, expected) in rows {
            let mut material = base();
            change(&mut material);
            let filtered = filter(vec![material], accepts);
            let got = filtered.left_out.first().map(|(_, reason)| *reason);
            assert_eq!(got, *expected);
            assert_eq!(filtered.good.len(), usize::from(expected.is_none()));
        }
        let given = |score, method| {
            let mut given = material(turn(1, &[1, 2, 3], &[4, 5]), score);
            given.turn.completion = Completion::given(vec![4, 5], StopReason::EndToken);
            let filtered = filter(vec![given], Accepts { method, ..accepts });
            filtered.left_out.first().map(|(_, reason)| *reason)
        };
        assert_eq!(given(1.0, Method::Combined), None);
        for (score, method) in [(-1.0, Method::Combined), (1.0, Method::BinaryReward)] {
            assert_eq!(given(score, method), Some(Reason::NoLogprobs));
        }
        let method = Method::Distillation;
        let filtered = filter(vec![base()], Accepts { method, ..accepts });
        assert_eq!(filtered.left_out[0].1, Reason::NoLesson);
        let mut hinted = base();
        hinted.hint = Some("shorter".into());
        let filtered = filter(vec![hinted], Accepts { method, ..accepts });
        assert_eq!(filtered.good.len(), 1);
    }
}
