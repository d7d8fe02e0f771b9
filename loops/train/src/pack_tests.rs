#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::testing::{transition_of, turn, with_session};

fn credited(turns: &[Turn]) -> Vec<CreditedTurn<'_>> {
    let credit = |(i, turn): (usize, _)| CreditedTurn {
        transition: transition_of(turn),
        turn,
        advantage: i as f32 - 1.5,
    };
    turns.iter().enumerate().map(credit).collect()
}

#[test]
fn a_conversation_shares_one_row_and_a_rewritten_one_forks() {
    let first = turn(1, &[1, 2], &[3, 4]);
    let second = turn(2, &[1, 2, 3, 4, 9], &[5]);
    // The second turn was not judged: the third still goes on from what the first ended with.
    let fourth = turn(4, &[1, 2, 3, 4, 9, 5, 8, 7], &[6, 6]);
    let rewritten = turn(5, &[1, 2, 3, 9, 9], &[5]);
    let rows = pack(&credited(&[
        fourth.clone(),
        first.clone(),
        rewritten.clone(),
    ]))
    .unwrap();
    let lengths: Vec<_> = rows
        .iter()
        .map(|r| (r.sample.tokens().len(), r.sample.parts().len()))
        .collect();
    assert_eq!(lengths, [(10, 2), (6, 1)]);
    let rows = pack(&credited(&[first.clone(), second, fourth])).unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].sample.parts().len(), 3);
    // Another session never joins, even where its tokens would fit.
    let other = with_session(turn(6, &[1, 2, 3, 4, 9], &[5]), 77);
    assert_eq!(pack(&credited(&[first, other])).unwrap().len(), 2);
}

#[test]
fn what_cannot_be_a_row_is_an_error() {
    let mut greedy = turn(1, &[1], &[2]);
    greedy.sampling.temperature = 0.0;
    assert!(pack(&credited(&[greedy])).is_err());
    assert!(pack(&credited(&[turn(1, &[], &[2])])).is_err());
}

/// Conversations as clients make them: each turn's prompt continues the last one's tokens, or, at
/// times, a version of them that was cut short.
fn conversations() -> impl Strategy<Value = Vec<Turn>> {
    let step = (
        prop::collection::vec(0u32..3, 1..5),
        prop::collection::vec(0u32..3, 1..5),
        0usize..4,
        any::<bool>(),
    );
    let conversation = prop::collection::vec(step, 1..6);
    prop::collection::vec(conversation, 1..4).prop_map(|conversations| {
        let mut turns = Vec::new();
        for (session, steps) in conversations.into_iter().enumerate() {
            let mut history: Vec<u32> = Vec::new();
            for (message, completion, rewrite, judged) in steps {
                if rewrite == 0 {
                    history.truncate(history.len() / 2);
                }
                history.extend(&message);
                let made = turn(turns.len() as u8 * 2, &history, &completion);
                history.extend(&completion);
                if judged {
                    turns.push(with_session(made, session as u8));
                }
            }
        }
        turns
    })
}

proptest! {
    #[test]
    fn every_completion_token_is_once_in_a_row_behind_its_own_prompt(
        turns in conversations(), swap in any::<prop::sample::Index>(),
    ) {
        let batch = credited(&turns);
        let rows = pack(&batch).unwrap();
        let mut seen: HashMap<TransitionId, usize> = HashMap::new();
        for row in &rows {
            prop_assert_eq!(row.sampled_by.len(), row.sample.parts().len());
            for part in row.sample.parts() {
                *seen.entry(part.transition).or_default() += 1;
                let of = batch.iter().find(|c| c.transition == part.transition).unwrap();
                let completion = &of.turn.completion;
                let end = part.start + completion.len();
                prop_assert_eq!(&row.sample.tokens()[..part.start], &of.turn.prompt_tokens[..]);
                prop_assert_eq!(&row.sample.tokens()[part.start..end], completion.tokens());
                prop_assert_eq!(&part.behavior_logprobs[..], completion.behavior_logprobs());
                prop_assert!(part.advantages.iter().all(|a| *a == of.advantage));
                prop_assert_eq!(part.version, of.turn.version());
            }
        }
        prop_assert_eq!(seen.len(), turns.len());
        prop_assert!(seen.values().all(|n| *n == 1));
        let loss: usize = rows.iter().map(|r| r.sample.loss_tokens()).sum();
        prop_assert_eq!(loss, turns.iter().map(|t| t.completion.len()).sum::<usize>());

        // The order of a claim does not matter.
        let mut shuffled = batch.clone();
        if !shuffled.is_empty() {
            let at = swap.index(shuffled.len());
            shuffled.rotate_left(at);
        }
        prop_assert_eq!(pack(&shuffled).unwrap(), rows);
    }
}
