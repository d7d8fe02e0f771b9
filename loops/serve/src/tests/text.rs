//! Text: stop strings across tokens, inside characters, and what is held back.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{Ask, CallStyle, Delta, Form, Grammar, OutputFormat, StopReason};

use super::support::{World, ask, prompt, tokenizer};
use crate::Backend;

/// An ask whose tokens are nearly always two of the given ones.
fn biased(tokens: &[u32], seed: u64) -> Ask {
    let mut wanted = ask(&prompt(9, seed), 60, seed);
    wanted.sampling.logit_bias = tokens.iter().map(|token| (*token, 60.0)).collect();
    wanted.sampling.temperature = 8.0;
    wanted
}

#[test]
fn stop_strings_end_the_text_wherever_tokens_are_cut() {
    let world = World::new();
    let tokenizer = tokenizer();
    let letters = [u32::from(b'a'), u32::from(b'b'), 0xc3, 0xa9];
    let (mut stopped, mut inside) = (0, 0);
    for seed in 0..40 {
        let plain = world.complete(biased(&letters, seed));
        let whole = tokenizer.decode(&plain.tokens);
        for stop in ["aab", "é", "bé", "éé", "a\u{fffd}"] {
            let mut wanted = biased(&letters, seed);
            wanted.stop.strings = vec![stop.to_owned(), "never this".to_owned()];
            let said = world.complete(wanted);
            assert!(
                plain.tokens.starts_with(&said.tokens),
                "the tokens are the same"
            );
            match whole.find(stop) {
                Some(at) => {
                    assert_eq!(
                        (said.text.as_str(), said.stop),
                        (&whole[..at], StopReason::StopString)
                    );
                    stopped += 1;
                    inside += usize::from(stop.contains('é'));
                }
                None => assert_eq!((&said.text, said.stop), (&whole, plain.stop)),
            }
            let turn = said.turn.unwrap();
            assert_eq!(turn.completion_text, said.text);
            assert_eq!(turn.completion.tokens(), said.tokens);
        }
    }
    assert!(
        stopped > 40 && inside > 20,
        "{stopped} stopped, {inside} inside a character"
    );
}

#[test]
fn no_part_of_a_stop_string_and_no_half_character_is_ever_shown() {
    let world = World::new();
    let letters = [u32::from(b'a'), u32::from(b'b'), 0xc3, 0xa9];
    for seed in 0..20 {
        let mut wanted = biased(&letters, seed);
        wanted.stop.strings = vec!["ab".to_owned()];
        let mut answer = world.engine.ask(wanted).unwrap();
        let (mut shown, mut moments) = (String::new(), Vec::new());
        while let Some(delta) = answer.deltas.blocking_recv() {
            match delta {
                Delta::Token(token) => shown.push_str(&token.text),
                Delta::End(end) => {
                    if end.stop == StopReason::StopString {
                        assert_eq!(end.text, "");
                    }
                    shown.push_str(&end.text);
                }
                _ => {}
            }
            moments.push(shown.clone());
        }
        let whole = tokenizer().decode(&world.complete(biased(&letters, seed)).tokens);
        let wanted = whole.split("ab").next().unwrap();
        assert_eq!(shown, wanted);
        assert!(
            moments
                .iter()
                .all(|moment| wanted.starts_with(moment.as_str()))
        );
    }
}

#[test]
fn pieces_log_probs_and_end_tokens() {
    let world = World::new();
    let mut wanted = ask(&prompt(9, 1), 40, 1);
    wanted.sampling.top_logprobs = 3;
    wanted.sampling.logit_bias = vec![(super::support::END, 3.0)];
    let mut answer = world.engine.ask(wanted).unwrap();
    let mut tokens = Vec::new();
    let end = loop {
        match answer.deltas.blocking_recv().unwrap() {
            Delta::Token(token) => {
                assert_eq!(token.top.len(), 3);
                assert!(token.top[0].1 >= token.logprob);
                tokens.push(token.token);
            }
            Delta::End(end) => break end,
            Delta::Started { .. } => {}
            Delta::Failed(error) => panic!("{error}"),
        }
    };
    assert_eq!(end.stop, StopReason::EndToken);
    tokens.push(super::support::END);
    assert_eq!(
        end.completion.tokens(),
        tokens,
        "the end token is recorded but not shown"
    );
}

/// A call and letters behind it.
fn calls(seed: u64) -> (Ask, &'static str) {
    const CALL: &str = "<tool_call>{\"name\": \"ab\", \"arguments\": {}}</tool_call>";
    let quoted = CALL.replace('"', "\\\"");
    let grammar = format!("start: \"{quoted}\" /[ab]{{30}}/");
    let mut wanted = ask(&prompt(9, seed), 120, seed);
    wanted.form = Some(Form::Whole(Grammar(Arc::from(grammar))));
    wanted.stop.output_format = OutputFormat {
        calls: Some(CallStyle::Tags),
        ..OutputFormat::default()
    };
    (wanted, CALL)
}

#[test]
fn a_call_is_not_cut_and_the_only_one_is_the_end() {
    let world = World::new();
    let tokenizer = tokenizer();
    let mut behind = 0;
    for seed in 0..8 {
        let (plain, call) = calls(seed);
        let whole = world.complete(plain);
        let tail = whole.text.strip_prefix(call).expect("a call first");
        let (mut wanted, _) = calls(seed);
        wanted.stop.strings = ["ab", "name", "{", "<tool_call>"].map(str::to_owned).into();
        let cut = world.complete(wanted);
        let expected = tail.find("ab").map_or(tail, |at| &tail[..at]);
        assert_eq!(cut.text, format!("{call}{expected}"));
        behind += usize::from(cut.stop == StopReason::StopString);
        let (mut wanted, _) = calls(seed);
        wanted.stop.output_format.single = true;
        let single = world.complete(wanted);
        assert_eq!(
            (single.text.as_str(), single.stop),
            (call, StopReason::ToolCall)
        );
        // Nothing is sampled behind it.
        assert_eq!(tokenizer.decode(&single.tokens), call);
        for said in [cut, single] {
            assert!(
                whole.tokens.starts_with(&said.tokens),
                "the tokens are the same"
            );
            let turn = said.turn.unwrap();
            assert_eq!(turn.completion_text, said.text);
            assert_eq!(turn.completion.tokens(), said.tokens);
            assert_eq!(turn.completion.stop(), said.stop);
        }
    }
    assert!(behind > 4, "{behind} were stopped behind the call");
}
