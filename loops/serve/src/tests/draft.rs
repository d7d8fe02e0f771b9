#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

fn found(text: &[Token], within: &[Token], most: usize) -> (usize, Vec<Token>) {
    let mut draft = vec![99];
    let found = look_up(text, within, 0, most, &mut draft);
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
fn by_hand(text: &[Token], within: &[Token], near: usize) -> Option<Match> {
    let near = near.min(within.len());
    let found = |next: usize| {
        let pairs = within[..next].iter().rev().zip(text.iter().rev());
        let length = pairs.take(MATCH_MOST).take_while(|(a, b)| a == b).count();
        Match {
            within: true,
            next,
            length,
        }
    };
    let is_one = |found: &Match| found.length > 0;
    let before = (1..=near).rev().map(found).filter(is_one).take(PLACES);
    let behind = (near + 1..=within.len())
        .map(found)
        .filter(is_one)
        .take(PLACES);
    let found = before
        .chain(behind)
        .filter(|found| found.length >= MATCH_LEAST);
    let rank = |found: &Match| (found.length, std::cmp::Reverse(found.next.abs_diff(near)));
    // The first of the best.
    found.reduce(|best, found| {
        if rank(&found) > rank(&best) {
            found
        } else {
            best
        }
    })
}

fn free(rows: usize, most: usize) -> Bounds {
    Bounds {
        rows,
        most,
        longest: f64::INFINITY,
        slower: f64::INFINITY,
    }
}

fn chosen(candidates: &[Candidate], bounds: Bounds, us: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut chosen = Chosen::default();
    choose(candidates, bounds, us, &mut chosen);
    chosen.lengths
}

/// What a step is expected to say of each, and all its rows.
fn made(candidates: &[Candidate], lengths: &[usize], rows: usize) -> (Vec<f64>, usize) {
    let both = candidates.iter().zip(lengths);
    let each = both.map(|(c, length)| (0..=*length as i32).map(|i| c.rate.powi(i)).sum());
    (each.collect(), rows + lengths.iter().sum::<usize>())
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (0.01..0.99f64, 1..6usize);
    let one = one.prop_map(|(rate, tokens)| Candidate { rate, tokens });
    proptest::collection::vec(one, 1..5)
}

/// By rows; more of them never take less.
fn times() -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(1.0..100.0f64, 40).prop_map(|mut times| {
        times.sort_by(f64::total_cmp);
        times
    })
}

proptest! {
    #[test]
    fn the_longest_match_is_that_of_a_slow_search(
        text in proptest::collection::vec(0..3u32, 0..120),
        within in proptest::collection::vec(0..3u32, 0..2_000),
        near in 0..2_100usize,
    ) {
        prop_assert_eq!(longest(&text, &within, near), by_hand(&text, &within, near));
    }

    /// Whatever steps take, drafts are beginnings and make the most of the time.
    #[test]
    fn no_other_choice_makes_more_of_the_time(
        candidates in candidates(),
        others in 0..4usize,
        most in 1..12usize,
        times in times(),
    ) {
        let rows = candidates.len() + others;
        let us = |rows: usize| times[rows - 1];
        let value = |lengths: &[usize]| {
            let (said, all) = made(&candidates, lengths, rows);
            (said.iter().sum::<f64>() + others as f64) / us(all)
        };
        let lengths = chosen(&candidates, free(rows, most), us);
        prop_assert!(lengths.iter().sum::<usize>() <= most);
        let none = value(&vec![0; candidates.len()]);
        let best = value(&lengths).max(PAYS * none);
        prop_assert!(lengths.iter().all(|length| *length == 0) || value(&lengths) > PAYS * none);
        // Every other choice, counted up.
        let mut other = vec![0; candidates.len()];
        while let Some(at) = (0..other.len()).find(|at| other[*at] < candidates[*at].tokens) {
            other[..at].fill(0);
            other[at] += 1;
            let may = other.iter().sum::<usize>() <= most;
            prop_assert!(!may || value(&other) <= best * (1.0 + 1e-9), "{other:?}, not {lengths:?}");
        }
    }

    /// Nobody waits much longer for a token than without drafts, and no step lasts too long.
    #[test]
    fn nobody_pays_for_the_drafts_of_others(
        candidates in candidates(),
        others in 0..4usize,
        longest in 1.0..100.0f64,
        times in times(),
    ) {
        let rows = candidates.len() + others;
        let us = |rows: usize| times[rows - 1];
        let longest = longest.max(us(rows));
        let bounds = Bounds { longest, slower: SLOWER, ..free(rows, 12) };
        let lengths = chosen(&candidates, bounds, us);
        let (mut said, all) = made(&candidates, &lengths, rows);
        said.extend((others > 0).then_some(1.0));
        prop_assert!(us(all) <= longest);
        prop_assert!(said.iter().all(|said| us(all) <= SLOWER * us(rows) * said * (1.0 + 1e-9)));
    }
}

#[test]
fn what_is_looked_through_has_a_bound() {
    let mut within: Vec<Token> = (10..10 + 3 * LOOKED_AT as Token).collect();
    let text = [5, within[LOOKED_AT], within[LOOKED_AT + 1]];
    let at = |near| {
        let mut draft = Vec::new();
        let found = look_up(&text, &within, near, 2, &mut draft)?;
        assert_eq!(draft, within[found.next..found.next + 2]);
        Some(found.next)
    };
    assert_eq!(at(0), None);
    assert_eq!(at(LOOKED_AT), Some(LOOKED_AT + 2));
    assert_eq!(at(LOOKED_AT * 3 / 2), Some(LOOKED_AT + 2));
    assert_eq!((at(3 * LOOKED_AT), at(usize::MAX)), (None, None));
    // Whoever is far behind its end looks at its end.
    let end = [&within[..], &text[1..], &[6]].concat();
    let mut draft = Vec::new();
    let found_there = look_up(&text, &end, usize::MAX, 2, &mut draft);
    assert_eq!((found_there.unwrap().length, draft), (2, vec![6]));
    // Of the text itself the end.
    within.extend(&text);
    assert_eq!(found(&within, &[], 2).0, 0);
    let late = [&within[2 * LOOKED_AT..3 * LOOKED_AT], &[5, 77, 78, 5, 77]].concat();
    assert_eq!(found(&late, &[], 1), (2, vec![78]));
}

#[test]
fn what_was_right_is_tried_again_and_what_was_not_is_not() {
    let mut hits = Hits::default();
    let before = hits.rate(2);
    assert!(hits.rate(4) > before && hits.rate(16) > hits.rate(4));
    (0..50).for_each(|_| hits.note(3, 0, true));
    assert!(hits.rate(2) < 0.15, "{}", hits.rate(2));
    let others = (hits.rate(0), hits.rate(1), hits.rate(4));
    let prior = (PRIOR_RATES[0], PRIOR_RATES[0], PRIOR_RATES[2]);
    assert_eq!(others, prior, "they are as they were");
    (0..50).for_each(|_| hits.note(2, 8, false));
    assert!(hits.rate(3) > 0.9, "{}", hits.rate(3));
}

/// As kernels do that compute eight rows at a time.
fn by_eights(rows: usize) -> u64 {
    20_000 + 500 * rows as u64 + 14_000 * (rows.div_ceil(8) as u64 - 1)
}

#[test]
fn what_rows_take_is_found() {
    let mut cost = RowCost::default();
    assert!(!cost.may_pay(1, 8) && cost.us(3) == 0.0);
    // Nothing but steps of one row: others are worth a try.
    (0..20).for_each(|_| cost.note(1, by_eights(1)));
    let one = by_eights(1) as f64;
    assert!((cost.us(1) / one - 1.0).abs() < 1e-9 && cost.us(9) < 1.3 * one);
    assert!(cost.may_pay(1, 8));
    (0..200).for_each(|at| cost.note(1 + at % 24, by_eights(1 + at % 24)));
    for rows in 1..=24 {
        let right = cost.us(rows) / by_eights(rows) as f64;
        assert!((right - 1.0).abs() < 0.01, "{rows} rows: {right}");
    }
    // To the end of what is computed together, and no further.
    let sure = [Candidate {
        rate: 0.9,
        tokens: 16,
    }];
    let us = |rows| cost.us(rows);
    assert_eq!(chosen(&sure, free(1, 16), us), [7]);
    let unsure = [Candidate {
        rate: 0.02,
        tokens: 16,
    }];
    assert_eq!(chosen(&unsure, free(1, 16), us), [0]);
    // More than are told apart.
    cost.note(ROWS_MAX, 1);
    assert_eq!(cost.us(ROWS_MAX), 0.0);
    assert!(!cost.may_pay(ROWS_MAX - 4, 8));
}

#[test]
fn what_all_steps_have_in_common_says_nothing_of_rows() {
    let mut cost = RowCost::default();
    let shape = |rows: usize| by_eights(rows) as f64 / by_eights(1) as f64;
    (0..200).for_each(|at| cost.note(1 + at % 16, by_eights(1 + at % 16)));
    // Four times as slow, with one row only; then twice as quick, with four.
    (0..30).for_each(|_| cost.note(1, 4 * by_eights(1)));
    assert!((cost.us(1) / (4 * by_eights(1)) as f64 - 1.0).abs() < 0.05);
    assert!(
        (cost.us(9) / cost.us(1) / shape(9) - 1.0).abs() < 0.25,
        "{}",
        cost.us(9)
    );
    (0..30).for_each(|_| cost.note(4, by_eights(4) / 2));
    assert!((cost.us(4) / (by_eights(4) / 2) as f64 - 1.0).abs() < 0.05);
    assert!((cost.us(9) / cost.us(4) / shape(9) * shape(4) - 1.0).abs() < 0.4);
    // What held up one step of the first three is not believed.
    let mut cost = RowCost::default();
    (0..10).for_each(|_| cost.note(1, by_eights(1)));
    for us in [9 * by_eights(5), by_eights(5), by_eights(5)] {
        cost.note(5, us);
        cost.note(1, by_eights(1));
    }
    assert!(cost.us(5) < 1.3 * by_eights(5) as f64, "{}", cost.us(5));
    // Nor for long where no other came.
    cost.note(6, 50 * by_eights(6));
    assert!(!cost.may_pay(1, 5));
    (0..=FIRST_BELIEVED).for_each(|_| cost.note(1, by_eights(1)));
    assert!(cost.may_pay(1, 5));
    // What is long ago is tried again.
    (0..10).for_each(|_| cost.note(8, 10 * by_eights(8)));
    assert!(!cost.may_pay(1, 7));
    (0..=FORGOTTEN_STEPS).for_each(|_| cost.note(1, by_eights(1)));
    assert!(cost.may_pay(1, 7));
}

/// However long it goes on, and however seldom some number of rows is seen.
#[test]
fn noise_moves_nothing_for_good() {
    let mut state = 1u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        0.8 + 0.4 * (state >> 40) as f64 / (1u64 << 24) as f64
    };
    let mut cost = RowCost::default();
    for step in 0..200_000 {
        let rows = if step % 500 == 0 { 9 } else { 1 };
        cost.note(rows, (by_eights(rows) as f64 * noise()) as u64);
    }
    let (found, wanted) = (
        cost.us(9) / cost.us(1),
        by_eights(9) as f64 / by_eights(1) as f64,
    );
    assert!((found / wanted - 1.0).abs() < 0.15, "{found}, not {wanted}");
    assert!((0.5..2.0).contains(&cost.level), "{}", cost.level);
}

#[test]
fn steps_that_take_no_time_do_no_harm() {
    let mut cost = RowCost::default();
    (0..10).for_each(|_| cost.note(1, 0));
    (0..100).for_each(|_| cost.note(1, 500));
    assert!(cost.us(1).is_finite() && cost.may_pay(1, 8));
}
