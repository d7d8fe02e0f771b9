//! Drafts decide when a token is computed, and nothing else.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use hone_domain::{
    Ask, CallFinder, CallStyle, Completion, Grammar, Predicted, Reasoning, Sampling, StopReason,
    Token,
};
use hone_nn::sample::Sampled;
use hone_nn::{BLOCK_TOKENS, LogitsWanted};

use super::parity::{asks, device_world, eager, nearly, same, sliding};
use super::support::{END, Said, World, ask, model_config, prompt, scope, tokenizer, until};
use crate::masks::{Calls, GrammarBook, Masked, Masks};
use crate::sequence::{Sequence, Setup, Taken};
use crate::{Backend, Config};

const WITHOUT: Config = Config {
    draft_tokens_max: 0,
    ..Config::for_tests()
};

/// These, with what they say as their prediction, one in so many tokens of it wrong.
fn predicting(asks: Vec<Ask>, said: &[Said], wrong: usize) -> Vec<Ask> {
    let both = asks.into_iter().zip(said);
    both.map(|(ask, said)| Ask {
        predicted: nearly(said, wrong).into(),
        ..ask
    })
    .collect()
}

fn completions(said: &[Said]) -> Vec<&Completion> {
    let turns = said.iter().map(|said| said.turn.as_ref().unwrap());
    turns.map(|turn| &turn.completion).collect()
}

/// Tokens drafted and right so far.
fn drafted(world: &World) -> (u64, u64) {
    let stats = world.engine.stats();
    (stats.draft_tokens_total, stats.draft_tokens_accepted_total)
}

#[test]
fn drafts_change_neither_words_nor_records() {
    for model in [model_config(), sliding()] {
        let quiet = World::with(WITHOUT, model.clone());
        let wanted: Vec<Said> = asks(8).into_iter().map(|ask| quiet.complete(ask)).collect();
        assert_eq!(drafted(&quiet), (0, 0));
        assert!(wanted.iter().all(|said| said.predicted.is_none()));
        for wrong in [1, 2, 5, 1_000] {
            let there = World::with(Config::for_tests(), model.clone());
            eager(&there);
            let mut told: Vec<Predicted> = Vec::new();
            for what in ["drafted", "drafted, after hits"] {
                let asks = predicting(asks(8), &wanted, wrong);
                let got = there.complete_all(asks);
                same(&wanted, &got, what);
                assert_eq!(completions(&wanted), completions(&got), "{what}");
                told.extend(got.iter().filter_map(|said| said.predicted));
            }
            let (all, right) = drafted(&there);
            assert!(all > 0 && right <= all);
            assert_eq!(told.len(), 16, "all were predicted");
            // What was looked up in the text itself was not predicted.
            let accepted: u32 = told.iter().map(|told| told.accepted).sum();
            let rejected: u32 = told.iter().map(|told| told.rejected).sum();
            assert!(u64::from(accepted) <= right && u64::from(rejected) <= all - right);
            assert_eq!(accepted > 0, wrong > 1);
            assert!(wrong > 5 || rejected > 0);
            match wrong {
                1 => assert!(right < all / 2, "{right} of {all}"),
                1_000 => assert!(right > all * 9 / 10, "{right} of {all}"),
                _ => assert!(right > 0 && right < all, "{right} of {all}"),
            }
            until("blocks given back", || {
                there.engine.stats().kv_blocks_used == 0
            });
        }
    }
}

#[test]
fn drafts_on_a_device_change_nothing() {
    for model in [model_config(), sliding()] {
        let quiet = device_world(WITHOUT, model.clone());
        let wanted: Vec<Said> = asks(6).into_iter().map(|ask| quiet.complete(ask)).collect();
        let there = device_world(Config::for_tests(), model);
        eager(&there);
        let got = there.complete_all(predicting(asks(6), &wanted, 5));
        same(&wanted, &got, "on a device");
        assert_eq!(completions(&wanted), completions(&got));
        let (all, right) = drafted(&there);
        assert!(right > 0 && right < all, "{right} of {all}");
    }
}

/// Fewer steps than tokens, where they are known before.
#[test]
fn a_right_draft_takes_one_step() {
    let mut wanted = ask(&prompt(40, 1), 96, 7);
    wanted.stop.ignore_end = true;
    let quiet = World::with(WITHOUT, model_config());
    let said = quiet.complete(wanted.clone());
    let there = World::new();
    eager(&there);
    wanted.predicted = said.tokens.as_slice().into();
    assert_eq!(there.complete(wanted).bits(), said.bits());
    let steps = |world: &World| world.engine.stats().steps_total;
    assert!(
        steps(&there) <= 20,
        "{} of {}",
        steps(&there),
        steps(&quiet)
    );
    assert_eq!(there.engine.stats().completion_tokens_total, 96);
}

#[test]
fn a_text_that_repeats_itself_drafts_itself() {
    // Nothing was predicted; the model is random, and so are the drafts.
    let part = prompt(20, 3);
    let text: Vec<Token> = part.iter().cycle().take(200).copied().collect();
    let greedy = Ask {
        sampling: Sampling {
            temperature: 0.0,
            ..Sampling::default()
        },
        ..ask(&text, 150, 1)
    };
    let quiet = World::with(WITHOUT, model_config()).complete(greedy.clone());
    let there = World::new();
    eager(&there);
    assert_eq!(there.complete(greedy).bits(), quiet.bits());
    assert!(drafted(&there).0 > 0);
}

#[test]
fn what_a_wrong_draft_computed_is_never_found_again() {
    let there = World::new();
    eager(&there);
    let first = ask(&prompt(50, 1), 60, 3);
    let said = World::new().complete(first.clone());
    let wrong = Ask {
        predicted: nearly(&said, 4).into(),
        ..first
    };
    assert_eq!(there.complete(wrong).bits(), said.bits());
    let (all, right) = drafted(&there);
    assert!(all > right + 10, "{right} of {all}");
    let mut next = prompt(50, 1);
    next.extend(&said.tokens);
    next.extend(prompt(10, 2));
    let second = there.complete(ask(&next, 4, 3));
    assert_eq!(
        second.cached as usize,
        (50 + said.tokens.len() - 1) / 32 * 32
    );
    assert_eq!(
        second.bits(),
        World::new().complete(ask(&next, 4, 3)).bits()
    );
}

#[test]
fn what_ends_a_completion_ends_it_inside_a_draft() {
    let quiet = World::with(WITHOUT, model_config());
    let there = World::new();
    eager(&there);
    let (mut stops, words) = (0, tokenizer());
    for seed in 0..12 {
        let whole = quiet.complete(ask(&prompt(33, seed), 60, seed));
        let after = words.decode(&whole.tokens[..whole.tokens.len().min(9)]);
        let stop: String = after
            .chars()
            .rev()
            .take(2)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect();
        for (most, stop) in [(60, None), (5, None), (1, None), (60, Some(stop))] {
            let mut wanted = ask(&prompt(33, seed), most, seed);
            wanted.stop.strings = stop.into_iter().collect();
            let quiet = quiet.complete(wanted.clone());
            wanted.predicted = whole.tokens.as_slice().into();
            let said = there.complete(wanted);
            assert_eq!((said.bits(), said.stop), (quiet.bits(), quiet.stop));
            assert_eq!(said.text, quiet.text);
            stops += usize::from(said.stop == StopReason::StopString);
        }
    }
    assert!(stops > 3, "{stops}");
}

#[test]
fn many_with_drafts_stay_within_the_rows_of_a_step() {
    let asks = |said: Option<&[Said]>| {
        let of = |n: u64| Ask {
            scope: scope(["a", "b"][n as usize % 2]),
            ..ask(&prompt(20 + n as usize, n), 30, n)
        };
        let all: Vec<Ask> = (0..16).map(of).collect();
        match said {
            Some(said) => predicting(all, said, 1_000),
            None => all,
        }
    };
    let wanted = World::with(WITHOUT, model_config()).complete_all(asks(None));
    let config = Config {
        step_tokens_max: 40,
        draft_tokens_max: 31,
        ..Config::for_tests()
    };
    let there = World::with(config, model_config());
    eager(&there);
    same(&wanted, &there.complete_all(asks(Some(&wanted))), "drafted");
    assert!(drafted(&there).1 > 0);
}

fn drawn(token: Token) -> Sampled {
    Sampled {
        token,
        raw_logprob: -1.0,
        behavior_logprob: -1.0,
        kept: None,
        top: Vec::new(),
        nonfinite: false,
    }
}

/// A call that begins inside a draft is held to its form from there on.
#[test]
fn a_draft_ends_where_a_form_begins_to_rule() {
    let setup = Setup::new(Arc::new(tokenizer()), vec![END], 200);
    let grammar = Grammar(Arc::from("start: \"{\" (\"a\" | \"b\") \"}</tool_call>\""));
    let constraint = GrammarBook::default().constraint(&grammar, &setup, model_config().vocab);
    let calls = Calls::new(
        constraint.unwrap(),
        CallFinder::new(CallStyle::Tags, Reasoning::Maybe),
        false,
        setup.tokenizer.clone(),
    );
    let masked = Masked::calls(calls, Masks::start().unwrap());
    let mut wanted = ask(&prompt(5, 1), 150, 1);
    wanted.sampling.min_tokens = 0;
    let will: Vec<Token> = "so <tool_call>{?}".bytes().map(Token::from).collect();
    wanted.predicted = will.as_slice().into();
    let (mut sequence, ..) = Sequence::new(wanted, Some(masked), &setup);
    let draws: Vec<Sampled> = will.iter().map(|token| drawn(*token)).collect();
    // As after its prompt.
    sequence.computed = 4;
    let candidate = sequence.look_ahead(30).unwrap();
    assert_eq!(candidate.tokens, will.len());
    assert!(matches!(sequence.wanted(), LogitsWanted::Draws(_, rows) if rows == 1 + will.len()));
    let rows = draws.iter().map(|drawn| (Some(drawn), &[][..]));
    let Taken { drew, right, went } = sequence.take_draws(rows, &setup);
    assert_eq!(drew, "so <tool_call>".len());
    // Its last token was right as well.
    assert_eq!((right, went), (drew, Ok(None)));
    assert_eq!(sequence.completion_tokens(), drew);
    until("the mask", || sequence.await_mask(Duration::from_millis(1)));
    sequence.computed += drew;
    assert!(sequence.look_ahead(30).is_none());
    assert_eq!(sequence.wanted(), LogitsWanted::Last);
}

/// What a device could not draw is drawn elsewhere, and drafts rest.
#[test]
fn drafts_rest_where_draws_are_refused() {
    let setup = Setup::new(Arc::new(tokenizer()), vec![END], 200);
    let mut wanted = ask(&prompt(5, 1), 150, 1);
    wanted.sampling.min_tokens = 0;
    wanted.predicted = prompt(150, 2).into();
    let (mut sequence, ..) = Sequence::new(wanted, None, &setup);
    sequence.computed = 4;
    assert!(sequence.look_ahead(4).is_some());
    let refused = std::iter::repeat_n((None, &[][..]), 5);
    let taken = sequence.take_draws(refused, &setup);
    assert_eq!((taken.drew, taken.right, taken.went), (0, 0, Ok(None)));
    let mut steps = 0;
    for token in prompt(150, 2) {
        if sequence.look_ahead(4).is_some() {
            break;
        }
        let drawn = drawn(token);
        let taken = sequence.take_draws(std::iter::once((Some(&drawn), &[][..])), &setup);
        assert_eq!((taken.drew, taken.right), (1, 0));
        sequence.computed += 1;
        steps += 1;
    }
    assert!((64..68).contains(&steps), "{steps}");
}

/// One that was wrong is tried again once it would have been right, though it was not computed.
#[test]
fn a_draft_that_does_not_pay_is_told_right_or_wrong_all_the_same() {
    let setup = Setup::new(Arc::new(tokenizer()), vec![END], 16_000);
    let mut wanted = ask(&prompt(5, 1), 15_000, 1);
    wanted.sampling.min_tokens = 0;
    let text = prompt(400, 2);
    wanted.predicted = text.as_slice().into();
    let (mut sequence, ..) = Sequence::new(wanted, None, &setup);
    sequence.computed = 4;
    let rates: Vec<Option<f64>> = text
        .iter()
        .enumerate()
        .map(|(at, token)| {
            let token = if at < 100 { (token + 1) % 256 } else { *token };
            let found = sequence.look_ahead(4);
            if found.is_some() {
                sequence.cut_draft(0);
            }
            let drawn = drawn(token);
            sequence.take_draws(std::iter::once((Some(&drawn), &[][..])), &setup);
            sequence.computed += 1;
            found.map(|candidate| candidate.rate)
        })
        .collect();
    let last = |part: &[Option<f64>]| part.iter().flatten().last().copied().unwrap();
    assert!(last(&rates[..90]) < 0.2, "{rates:?}");
    assert!(last(&rates) > 0.9, "{rates:?}");
    // What does not pay for long is looked up seldom.
    let looked = rates[60..100].iter().flatten().count();
    assert!((4..=6).contains(&looked), "{looked}");
}

#[test]
fn a_draft_needs_no_block_that_its_token_does_not_need() {
    let setup = Setup::new(Arc::new(tokenizer()), vec![END], 200);
    for computed in 4..70 {
        let mut wanted = ask(&prompt(computed + 1, 1), 50, 1);
        wanted.sampling.min_tokens = 0;
        wanted.predicted = prompt(40, 2).into();
        let (mut sequence, ..) = Sequence::new(wanted, None, &setup);
        sequence.computed = computed;
        let tokens = sequence.look_ahead(31).map_or(0, |draft| draft.tokens);
        assert_eq!(tokens, BLOCK_TOKENS - 1 - computed % BLOCK_TOKENS);
        assert_eq!(sequence.computes(1).len(), 1 + tokens);
        if tokens > 0 {
            sequence.cut_draft(tokens / 2);
        }
        assert_eq!(sequence.computes(1).len(), 1 + tokens / 2);
        // Not where its prompt is still computed.
        sequence.computed = computed - 2;
        assert!(sequence.look_ahead(31).is_none());
    }
}
