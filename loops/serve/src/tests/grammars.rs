//! Completions that are held to a grammar.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_domain::{
    Ask, CallFinder, CallStyle, Delta, Digest, Form, Grammar, PolicyVersion, Reason, Reasoning,
    Sampling, ServeError, StopReason,
};
use hone_kernels::{Executor, token_logprob};
use hone_nn::{LogitsWanted, score};

use super::support::{END, Said, World, ask, model_config, prompt, read, scope, tokenizer, until};
use crate::masks::{Calls, GrammarBook, Masked, Masks};
use crate::sequence::{Sequence, Setup, TurnFacts};
use crate::stop::Went;
use crate::thread::draw::draw_all;
use crate::{Backend, Config};

fn held(lark: &str, seed: u64) -> Ask {
    Ask {
        form: Some(Form::Whole(Grammar(Arc::from(lark)))),
        ..ask(&prompt(5, seed), 60, seed)
    }
}

fn drawn_from(sequence: &mut Box<Sequence>, row: &[f32], setup: &Setup) -> Went {
    let exec = Executor::new(1);
    let went = draw_all(std::slice::from_mut(sequence), &[(0, row)], setup, &exec);
    went.into_iter().next().expect("one was drawn").1
}

const CHOICE: &str = "start: \"abab\" | \"bb\" | \"c\"";

#[test]
fn only_what_the_grammar_allows_is_said_and_then_it_ends() {
    let world = World::new();
    let asks: Vec<Ask> = (0..24).map(|seed| held(CHOICE, seed)).collect();
    let mut seen = std::collections::BTreeSet::new();
    for said in world.complete_all(asks) {
        assert!(
            ["abab", "bb", "c"].contains(&said.text.as_str()),
            "{:?}",
            said.text
        );
        assert_eq!(said.stop, StopReason::EndToken);
        seen.insert(said.text);
    }
    assert!(seen.len() > 1, "it is still sampled: {seen:?}");
}

#[test]
fn the_recorded_kept_sets_replay_the_behavior() {
    let world = World::new();
    let said = world.complete(Ask {
        sampling: Sampling {
            temperature: 0.7,
            top_k: 3,
            ..ask(&[1], 1, 4).sampling
        },
        ..held("start: /[a-d]{8}/", 4)
    });
    let turn = said.turn.expect("collected");
    assert_eq!(
        (turn.untrainable, turn.sampling.is_replayable()),
        (None, true)
    );
    let (completion, tokens) = (&turn.completion, turn.completion.tokens());
    let text: Vec<u32> = turn.prompt_tokens.iter().chain(tokens).copied().collect();
    let exec = Executor::new(1);
    let scores = score(&world.model, None, &text, &exec);
    for (at, kept) in completion.kept().iter().enumerate() {
        let kept = kept
            .as_deref()
            .expect("every position of a held completion has a kept set");
        assert!(kept.contains(&tokens[at]) && kept.len() <= 3, "{kept:?}");
        let position = turn.prompt_tokens.len() + at;
        let again = scores.logprob(position, 0.7, Some(kept));
        assert_eq!(
            completion.behavior_logprobs()[at].to_bits(),
            again.to_bits()
        );
        let raw = scores.logprob(position, 1.0, None);
        assert_eq!(completion.raw_logprobs()[at].to_bits(), raw.to_bits());
    }
}

/// What a grammar allows within a text is the same at most of its positions, and is there once.
#[test]
fn positions_where_the_same_is_allowed_share_it() {
    let world = World::new();
    let said = world.complete(held("start: /[a-d]{8}/", 4));
    let turn = said.turn.expect("collected");
    let kept: Vec<_> = turn.completion.kept().iter().flatten().collect();
    assert_eq!((kept.len(), kept[0].len()), (9, 4));
    assert!(kept[1..8].iter().all(|set| Arc::ptr_eq(set, kept[0])));
    assert_eq!(**kept[8], [END]);
}

#[test]
fn a_seed_gives_the_same_text_in_any_batch() {
    let world = World::new();
    let alone: Vec<String> = (0..6)
        .map(|seed| world.complete(held("start: /[a-f]{4,12}/", seed)).text)
        .collect();
    let mut asks: Vec<Ask> = (0..6)
        .map(|seed| held("start: /[a-f]{4,12}/", seed))
        .collect();
    asks.extend((0..6).map(|seed| ask(&prompt(9, seed), 30, seed)));
    let together: Vec<String> = world
        .complete_all(asks)
        .into_iter()
        .map(|s| s.text)
        .collect();
    assert_eq!(alone[..], together[..6]);
}

#[test]
fn an_unsound_grammar_is_refused_before_anything_happens() {
    let world = World::new();
    for lark in ["start: nowhere", "start: /[/", ""] {
        let grammar = Grammar(Arc::from(lark));
        let checked = world.engine.check_grammar(&grammar);
        assert!(
            matches!(checked, Err(hone_domain::ServeError::Grammar(_))),
            "{lark}"
        );
        assert!(world.engine.ask(held(lark, 0)).is_err(), "{lark}");
    }
    assert_eq!(world.engine.stats().requests_total, 0);
}

#[test]
fn greedy_turns_are_held_as_well() {
    let world = World::new();
    let mut greedy = held(CHOICE, 1);
    greedy.sampling.temperature = 0.0;
    let said = world.complete(greedy);
    assert!(
        ["abab", "bb", "c"].contains(&said.text.as_str()),
        "{:?}",
        said.text
    );
    assert_eq!(said.turn.expect("collected").untrainable, None::<Reason>);
}

#[test]
fn a_refused_request_asks_for_no_mask() {
    let config = Config {
        running_max: 1,
        waiting_max: 1,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let mut endless = ask(&prompt(9, 1), 16_000, 1);
    endless.stop.ignore_end = true;
    let running = world.ask(endless);
    until("it to run", || world.engine.stats().running == 1);
    let waits = world.ask(held(CHOICE, 1));
    let refused = world.engine.ask(held(CHOICE, 2)).err();
    assert!(
        matches!(refused, Some(ServeError::Overloaded { .. })),
        "{refused:?}"
    );
    assert_eq!(world.engine.shared.masks.asked(), 1);
    drop(running);
    read(waits).expect("it ends");
}

/// Where nothing can be computed before a mask is there, memory is not what is short.
#[test]
fn requests_that_wait_for_their_masks_stay_where_they_are() {
    let world = World::new();
    let asks = || (0..4).map(|seed| held("start: /[a-d]{6}/", seed)).collect();
    let texts = |said: Vec<Said>| said.into_iter().map(|s| s.text).collect::<Vec<_>>();
    let wanted = texts(world.complete_all(asks()));
    world.engine.shared.masks.slow(Duration::from_millis(5));
    assert_eq!(texts(world.complete_all(asks())), wanted);
    assert_eq!(world.engine.stats().preemptions_total, 0);
}

fn facts() -> TurnFacts<'static> {
    TurnFacts {
        base: Digest([0; 32]),
        fingerprint: "",
        version: PolicyVersion::BASE,
        digest: None,
        untrainable: None,
        finished_ms: 0,
    }
}

#[test]
fn where_only_banned_end_tokens_are_left_each_of_them_is_a_draw() {
    let setup = Setup::new(Arc::new(tokenizer()), vec![258, END], 100);
    let mut wanted = held("start: \"a\"", 1);
    wanted.sampling.min_tokens = 5;
    let book = GrammarBook::default();
    let grammar = wanted.form.as_ref().expect("it is held").grammar().clone();
    let masks = Masks::start().expect("a thread");
    let constraint = book.constraint(&grammar, &setup, model_config().vocab);
    let masked = Masked::new(constraint.expect("a sound grammar"), masks);
    let (mut sequence, mut deltas, _cancel) = Sequence::new(wanted, Some(masked), &setup);
    let row: Vec<f32> = (0..model_config().vocab)
        .map(|id| (id % 7) as f32)
        .collect();
    let mut draw = || {
        until("the mask", || sequence.await_mask(Duration::from_millis(1)));
        drawn_from(&mut sequence, &row, &setup)
    };
    assert_eq!(draw(), Ok(None));
    assert_eq!(draw(), Ok(Some(StopReason::EndToken)));
    sequence.end(StopReason::EndToken, &facts());
    let end = std::iter::from_fn(|| deltas.try_recv().ok()).last();
    let Some(Delta::End(end)) = end else {
        panic!("{end:?}")
    };
    let (tokens, kept) = (end.completion.tokens(), end.completion.kept());
    let behavior = end.completion.behavior_logprobs();
    assert_eq!((tokens[0], &kept[0]), (97, &Some([97].into())));
    assert_eq!(kept[1], Some([258, END].into()));
    let again = token_logprob(&row, tokens[1], 1.0, kept[1].as_deref());
    assert!(again < 0.0);
    assert_eq!(behavior[1].to_bits(), again.to_bits());
}

fn setup() -> Setup {
    Setup::new(Arc::new(tokenizer()), vec![END], 200)
}

/// What the model wants to say, byte by byte, is masked in calls and nowhere else.
#[test]
fn only_calls_are_held_where_the_rest_is_free() {
    let setup = setup();
    let grammar = Grammar(Arc::from("start: \"{\" (\"a\" | \"b\") \"}</tool_call>\""));
    let constraint = GrammarBook::default()
        .constraint(&grammar, &setup, model_config().vocab)
        .expect("a sound grammar");
    let masks = Masks::start().expect("a thread");
    let calls = Calls::new(
        constraint,
        CallFinder::new(CallStyle::Tags, Reasoning::Maybe),
        false,
        setup.tokenizer.clone(),
    );
    let masked = Masked::calls(calls, masks);
    let mut wanted = ask(&prompt(5, 1), 150, 1);
    wanted.sampling.min_tokens = 0;
    let (mut sequence, mut deltas, _cancel) = Sequence::new(wanted, Some(masked), &setup);
    let wants =
        "<think><tool_call>x</think>x<tool_call>{?}</tool_call>y <tool_call>{b!</tool_call>}z";
    let said =
        "<think><tool_call>x</think>x<tool_call>{.}</tool_call>y <tool_call>{b}</tool_call>}z";
    let mut drawn = Vec::new();
    for byte in wants.bytes() {
        let mut row = vec![0.0; model_config().vocab];
        row[usize::from(byte)] = 60.0;
        until("the mask", || sequence.await_mask(Duration::from_millis(1)));
        drawn.push(matches!(sequence.wanted(), LogitsWanted::Draws(..)));
        let drew = drawn_from(&mut sequence, &row, &setup);
        assert_eq!(drew, Ok(None));
    }
    sequence.end(StopReason::Length, &facts());
    let end = std::iter::from_fn(|| deltas.try_recv().ok()).last();
    let Some(Delta::End(end)) = end else {
        panic!("{end:?}")
    };
    let tokens = end.completion.tokens();
    let text: String = tokens.iter().map(|token| *token as u8 as char).collect();
    assert!("ab".contains(&text[40..41]), "{text}");
    assert_eq!(text.replacen(&text[39..41], "{.", 1), said);
    // Exactly the bytes of the two calls have something that was left out; a device may draw the others.
    let kept = end.completion.kept().iter();
    let held: String = kept
        .map(|kept| if kept.is_some() { '^' } else { ' ' })
        .collect();
    assert!(
        held.chars()
            .zip(drawn)
            .all(|(held, drawn)| drawn == (held == ' '))
    );
    let call = "^".repeat("{a}</tool_call>".len());
    let free = [said.find("{.").expect("there"), "y <tool_call>".len(), 2].map(|n| " ".repeat(n));
    assert_eq!(
        held,
        format!("{}{call}{}{call}{}", free[0], free[1], free[2])
    );
}

/// A form of calls changes nothing where no call begins.
#[test]
fn a_form_of_calls_is_no_form_of_anything_else() {
    let world = World::new();
    let free = |seed| ask(&prompt(5, seed), 40, seed);
    let form = Form::Calls {
        grammar: Grammar(Arc::from("start: \"x\"")),
        style: CallStyle::Tags,
        reasoning: Reasoning::Never,
        single: true,
    };
    let held = |seed| Ask {
        form: Some(form.clone()),
        ..free(seed)
    };
    for seed in 0..4 {
        let (said, wanted) = (world.complete(held(seed)), world.complete(free(seed)));
        assert_eq!((said.bits(), &said.text), (wanted.bits(), &wanted.text));
    }
    assert_eq!(world.engine.shared.masks.asked(), 0);
}

/// Masks that take far longer than a step delay their own completion and nobody else's.
#[test]
fn slow_masks_stall_nobody_else() {
    let world = World::new();
    let free = |seed| Ask {
        scope: scope("other"),
        ..ask(&prompt(5, seed), 120, seed)
    };
    let began = Instant::now();
    world.complete_all((0..4).map(free).collect());
    let alone = began.elapsed();
    world.engine.shared.masks.slow(Duration::from_millis(20));
    // A machine that is busy elsewhere may stall one of them.
    let unhindered = (0..5).any(|_| {
        let began = Instant::now();
        let slow = world.engine.ask(held("start: /[a-d]{20}/", 3));
        let since = Instant::now();
        world.complete_all((0..4).map(free).collect());
        let beside = since.elapsed();
        let said = super::support::read(slow.expect("taken")).expect("it ends");
        let needed = began.elapsed();
        assert_eq!(said.text.len(), 20, "{:?}", said.text);
        assert!(
            needed >= Duration::from_millis(20 * 20),
            "the masks were slow: {needed:?}"
        );
        println!("120 steps took {beside:?} beside slow masks and {alone:?} alone");
        beside < alone * 3 + Duration::from_millis(100)
    });
    assert!(unhindered, "slow masks stalled others each time");
}

/// An object that can begin with any of so many names.
fn wide(properties: usize) -> String {
    let names: Vec<String> = (0..properties).map(|n| format!("\"p{n}\": {{}}")).collect();
    let names = names.join(", ");
    format!("%json {{\"type\": \"object\", \"properties\": {{{names}}}}}")
}

#[test]
fn a_completion_whose_grammar_goes_no_further_ends_as_if_it_were_cut() {
    let world = World::new();
    let lark = format!("start: (\"ab\" | \"bc\") {}", wide(9_000));
    let said = world.complete(held(&lark, 3));
    assert_eq!(said.stop, StopReason::Length);
    assert!(
        ["ab{", "bc{"].contains(&said.text.as_str()),
        "{:?}",
        said.text
    );
    // Whoever comes next is answered.
    let next = world.complete(held(CHOICE, 4));
    assert_eq!(next.stop, StopReason::EndToken);
}
