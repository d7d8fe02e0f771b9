#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

fn found(text: &[Token], within: &[Token], most: usize) -> (usize, Vec<Token>) {
    let mut draft = vec![99];
    let found = look_up((text, within), most, &mut draft);
    (found.map_or(0, |found| found.length), draft.split_off(1))
}

#[test]
fn a_draft_is_what_followed_where_the_end_stood_before() {
    let none = (0, Vec::new());
    assert_eq!(found(&[], &[], 4), none);
    assert_eq!(found(&[5, 1, 2], &[], 4), none);
    // One token is no match.
    assert_eq!(found(&[5, 1, 2, 5], &[], 4), none);
    let text = [7, 5, 1, 2, 3, 9, 5, 1];
    assert_eq!(found(&text, &[], 2), (2, vec![2, 3]));
    assert_eq!(found(&text, &[], 4), (2, vec![2, 3, 9, 5]));
    // The longest counts, then the latest.
    let text = [4, 5, 1, 8, 0, 5, 1, 6, 5, 1, 7, 4, 5, 1];
    assert_eq!(found(&text, &[], 1), (3, vec![8]));
    let text = [5, 1, 8, 0, 5, 1, 6, 5, 1, 7, 4, 5, 1];
    assert_eq!(found(&text, &[], 1), (2, vec![7]));
}

#[test]
fn what_repeats_itself_goes_on_doing_so() {
    assert_eq!(
        found(&[1, 2, 3, 1, 2, 3, 1, 2], &[], 7),
        (5, vec![3, 1, 2, 3, 1, 2, 3])
    );
    assert_eq!(found(&[4; 40], &[], 3), (16, vec![4; 3]));
}

#[test]
fn what_is_predicted_is_looked_through_first_and_does_not_repeat() {
    let text = [7, 5, 1, 2, 3, 9, 5, 1];
    assert_eq!(found(&text, &[0, 5, 1, 6], 4), (2, vec![6]));
    assert_eq!(found(&text, &[5, 1], 4), (2, vec![2, 3, 9, 5]));
    let text = [7, 9, 5, 1, 2, 3, 9, 5, 1];
    assert_eq!(found(&text, &[0, 5, 1, 6], 2), (3, vec![2, 3]));
}

/// One place after the other.
fn by_hand(text: &[Token], within: &[Token]) -> Option<Match> {
    let length = |place: usize| {
        let pairs = within[..place].iter().rev().zip(text.iter().rev());
        pairs.take(MATCH_MOST).take_while(|(a, b)| a == b).count()
    };
    let places = (1..=within.len()).rev();
    let places = places.map(|next| Match {
        within: true,
        next,
        length: length(next),
    });
    let mut found: Vec<_> = places
        .filter(|found| found.length >= MATCH_LEAST)
        .take(PLACES)
        .collect();
    found.reverse();
    found.into_iter().max_by_key(|found| found.length)
}

proptest! {
    #[test]
    fn the_longest_match_is_that_of_a_slow_search(
        text in proptest::collection::vec(0..4u32, 0..120),
        within in proptest::collection::vec(0..4u32, 0..120),
    ) {
        prop_assert_eq!(longest(&text, &within), by_hand(&text, &within));
    }

    /// Whatever steps take, drafts are beginnings, within their bounds, and make the most of the time.
    #[test]
    fn no_other_choice_makes_more_of_the_time(
        rates in proptest::collection::vec((0.01..0.99f64, 1..6usize), 1..5),
        others in 0..4usize,
        most in 1..12usize,
        times in proptest::collection::vec(1.0..100.0f64, 40),
    ) {
        let candidates: Vec<Candidate> = rates
            .iter()
            .map(|(rate, tokens)| Candidate { rate: *rate, tokens: *tokens })
            .collect();
        let rows = candidates.len() + others;
        // More rows never take less.
        let mut ascending = times;
        ascending.sort_by(f64::total_cmp);
        let us = |rows: usize| ascending[rows - 1];
        let (mut gains, mut chosen) = (Vec::new(), Vec::new());
        lengths(&candidates, (rows, most), us, (&mut gains, &mut chosen));
        let made = |lengths: &[usize]| {
            let each = candidates.iter().zip(lengths).map(|(c, length)| {
                (1..=*length).map(|i| c.rate.powi(i as i32)).sum::<f64>()
            });
            let all = rows + lengths.iter().sum::<usize>();
            (rows as f64 + each.sum::<f64>(), us(all))
        };
        let (said, takes) = made(&chosen);
        prop_assert!(chosen.iter().sum::<usize>() <= most);
        prop_assert!(others == 0 || takes <= SLOWER * us(rows));
        prop_assert!(chosen.iter().all(|length| *length == 0) || said / takes > PAYS * rows as f64 / us(rows));
        // Every other choice, counted up.
        let mut other = vec![0; candidates.len()];
        loop {
            let at = (0..other.len()).find(|at| other[*at] < candidates[*at].tokens);
            let Some(at) = at else { break };
            other[..at].fill(0);
            other[at] += 1;
            let (more, time) = made(&other);
            let may = other.iter().sum::<usize>() <= most && (others == 0 || time <= SLOWER * us(rows));
            let best = (said / takes).max(PAYS * rows as f64 / us(rows));
            prop_assert!(!may || more / time <= best * (1.0 + 1e-9), "{other:?} instead of {chosen:?}");
        }
    }
}

#[test]
fn what_was_right_is_tried_again_and_what_was_not_is_not() {
    let mut hits = Hits::default();
    let before = hits.rate(2);
    assert!(hits.rate(4) > before && hits.rate(16) > hits.rate(4));
    (0..50).for_each(|_| hits.note(3, 0, true));
    assert!(hits.rate(2) < 0.15, "{}", hits.rate(2));
    assert_eq!(hits.rate(4), PRIOR_RATES[1], "others are as they were");
    (0..50).for_each(|_| hits.note(2, 8, false));
    assert!(hits.rate(3) > 0.9, "{}", hits.rate(3));
}

#[test]
fn what_rows_take_is_found() {
    let mut cost = RowCost::default();
    assert!(!cost.may_pay(1) && cost.us(3) == 0.0);
    // Nothing but steps of one row: others are worth a try.
    (0..20).for_each(|_| cost.note(1, 1_000));
    assert!((cost.us(1) - 1_000.0).abs() < 1.0 && cost.us(9) < 1_300.0);
    assert!(cost.may_pay(1));
    // Rows are all that takes time.
    (0..200).for_each(|at| cost.note(1 + at % 5, 1_000 * (1 + at as u64 % 5)));
    assert!((cost.us(5) / 5_000.0 - 1.0).abs() < 0.2, "{cost:?}");
    assert!(!cost.may_pay(16));
    let mut candidates = vec![Candidate {
        rate: 0.7,
        tokens: 8,
    }];
    let chosen = |cost: &RowCost, candidates: &[Candidate]| {
        let (mut gains, mut chosen) = (Vec::new(), Vec::new());
        let us = |rows| cost.us(rows);
        lengths(candidates, (1, 8), us, (&mut gains, &mut chosen));
        chosen[0]
    };
    assert_eq!(chosen(&cost, &candidates), 0);
    // Rows take next to nothing.
    (0..400).for_each(|at| cost.note(1 + at % 5, 1_000 + at as u64 % 5));
    assert!(chosen(&cost, &candidates) > 4, "{cost:?}");
    candidates[0].rate = 0.01;
    assert_eq!(chosen(&cost, &candidates), 0);
    // A step that was held up is no reason to believe that rows are slow.
    cost.note(5, 1_000_000);
    candidates[0].rate = 0.7;
    assert!(chosen(&cost, &candidates) > 2, "{cost:?}");
}
