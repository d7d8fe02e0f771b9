//! Second tries: what was said after a complaint, as an answer to what was asked first.

use std::collections::BTreeMap;

use hone_domain::{Token, TransitionId, TurnId};
use hone_ledger::SampleMaterial;
use serde::{Deserialize, Serialize};

use crate::credit::second_tries;

/// The first try at what a turn tries again.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstTry {
    /// The transition of the second try, which is in the batch.
    pub second: TransitionId,
    /// The first try's turn.
    pub turn: TurnId,
    /// What was asked, before any complaint.
    pub prompt_tokens: Vec<Token>,
    /// What the first try was worth; below 0.
    pub score: f32,
}

/// A second try behind the prompt of the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retold {
    /// Prompt and completion.
    pub tokens: Vec<Token>,
    /// Index of the first completion token; at least 1.
    pub start: usize,
    /// Weight of its log-likelihood.
    pub advantage: f32,
}

/// The batch's second tries, against the mean of the first tries that are known: those that were
/// tried again, and the batch's own openings of conversations. What teaches nothing is left out.
pub(crate) fn retold(materials: &[SampleMaterial], first_tries: &[FirstTry]) -> Vec<Retold> {
    let openings = materials.iter().filter(|m| m.turn.parent.is_none());
    let openings = openings.map(|m| (m.turn.id, m.score));
    let tried_again = first_tries.iter().map(|f| (f.turn, f.score));
    let first: BTreeMap<TurnId, f32> = openings.chain(tried_again).collect();
    let clamped = |score: &f32| score.clamp(-1.0, 1.0);
    let first: Vec<f32> = first.values().map(clamped).collect();
    let pair = |f| -> Option<(&FirstTry, &SampleMaterial)> {
        let f: &FirstTry = f;
        let second = materials.iter().find(|m| m.claim.transition == f.second)?;
        Some((f, second))
    };
    let pairs: Vec<_> = first_tries.iter().filter_map(pair).collect();
    let second: Vec<f32> = pairs.iter().map(|(_, m)| clamped(&m.score)).collect();
    let advantages = second_tries(&second, &first);
    let retell = |((first, second), advantage): (&(&FirstTry, &SampleMaterial), f32)| Retold {
        tokens: [&first.prompt_tokens, second.turn.completion.tokens()].concat(),
        start: first.prompt_tokens.len(),
        advantage,
    };
    let all = pairs.iter().zip(advantages).map(retell);
    all.filter(|r| r.advantage != 0.0 && r.start > 0).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::testing::{material, transition_of, turn};

    #[test]
    fn a_second_try_stands_behind_the_first_prompt_against_the_mean_of_first_tries() {
        let opening = turn(1, &[1, 2], &[3]);
        let first = turn(2, &[4, 5], &[6]);
        let mut second = turn(3, &[4, 5, 6, 9], &[7, 8]);
        second.parent = Some(first.id);
        let first_try = FirstTry {
            second: transition_of(&second),
            turn: first.id,
            prompt_tokens: first.prompt_tokens.clone(),
            score: -1.0,
        };
        let batch = [material(opening, 0.5), material(second.clone(), 1.0)];
        let told = retold(&batch, std::slice::from_ref(&first_try));
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].tokens, [4, 5, 7, 8]);
        assert_eq!(told[0].start, 2);
        assert_eq!(told[0].advantage, 1.25);
        // The first try itself may be in the batch as well and counts once.
        let all = [material(first, -1.0), material(second, 1.0)];
        assert_eq!(
            retold(&all, std::slice::from_ref(&first_try))[0].advantage,
            2.0
        );
        // A second try that is as bad as the first teaches nothing, nor does one that is not there.
        let again = [FirstTry {
            score: 1.0,
            ..first_try.clone()
        }];
        assert_eq!(retold(&all[1..], &again), []);
        assert_eq!(retold(&[], &[first_try]), []);
    }
}
