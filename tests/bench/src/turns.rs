//! A conversation: how long the first token of a turn takes when what came before is remembered.

use std::time::Instant;

use hone_domain::{Delta, Scope, Token};
use serde_json::json;

use super::Bench;
use super::bed::{Bed, subjects};
use super::report::{Report, milli, ms, ratio};
use crate::demo::numbers::Percentiles;
use hone::model::Builtin;

/// Tokens of the system prompt, of a question and of an answer, and turns.
const SYSTEM_TOKENS: usize = 2048;
const ASKED_TOKENS: usize = 24;
const ANSWERED_TOKENS: u32 = 32;
const TURNS: usize = 20;
/// Every so many turns are also asked with nothing remembered, which takes long.
const FRESH_EVERY: usize = 4;
/// The model, where the configuration names none: random, of about 30 million parameters.
const MODEL: &str = "random_30m_bf16";

/// `hone-bench turns`: a conversation as it is, and turns of it asked by users whom nobody knows, for
/// whom nothing is remembered.
pub(super) fn turns(bench: &Bench) -> Result<Report, String> {
    let (name, builtin) = model(bench)?;
    let bed = Bed::new(bench, &builtin)?;
    // The first prompt of a fresh engine touches its memory for the first time.
    first_token(&bed, user("first"), &bed.words(SYSTEM_TOKENS))?;
    let mut conversation = bed.words(SYSTEM_TOKENS);
    let (mut remembered, mut fresh) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        conversation.extend(bed.words(ASKED_TOKENS));
        if turn % FRESH_EVERY == 1 {
            let nobody = user(&format!("turn-{turn}"));
            fresh.push(first_token(&bed, nobody, &conversation)?.0);
        }
        let (first_ms, answer) = first_token(&bed, user("one"), &conversation)?;
        remembered.push(first_ms);
        conversation.extend(answer);
    }
    remembered.remove(0);
    let median = |times| Percentiles::of(times).p50;
    let (with, without) = (median(remembered), median(fresh));
    let title = format!(
        "turns: first token, median of turns 2 to {TURNS} after a system prompt of {SYSTEM_TOKENS} \
         tokens, {name}"
    );
    let mut report = Report::new(title, &["prefix cache", "first token ms"]);
    report.row(["with".to_owned(), format!("{with:.1}")]);
    report.row(["without".to_owned(), format!("{without:.1}")]);
    let factor = ratio(without, with);
    report.note(format!("{:.1} times sooner", factor.unwrap_or_default()));
    report.set("first_token_ms", milli(with));
    report.set("first_token_without_ms", milli(without));
    report.set("factor", json!(factor));
    Ok(report)
}

/// What is measured, and what it is called.
pub(super) fn model(bench: &Bench) -> Result<(String, Builtin), String> {
    if !bench.config.model.path.is_empty() {
        return Ok((bench.config.model.served_name(), bench.builtin()?));
    }
    let subject = subjects(bench)?.into_iter().find(|s| s.name == MODEL);
    let subject = subject.ok_or_else(|| format!("there is no model {MODEL}"))?;
    Ok((subject.name.to_owned(), subject.builtin))
}

fn user(name: &str) -> Scope {
    Scope::of("bench", Some(name))
}

/// Milliseconds to the first token of the answer, and all its tokens.
fn first_token(bed: &Bed, scope: Scope, prompt: &[Token]) -> Result<(f64, Vec<Token>), String> {
    let start = Instant::now();
    let mut answer = bed.ask_about(scope, (prompt.to_vec(), ANSWERED_TOKENS), None)?;
    let (mut first_ms, mut tokens) = (None, Vec::new());
    while let Some(delta) = answer.deltas.blocking_recv() {
        match delta {
            Delta::Token(token) => {
                first_ms.get_or_insert(ms(start.elapsed()));
                tokens.push(token.token);
            }
            Delta::Failed(error) => return Err(format!("a turn failed: {error:?}")),
            Delta::Started { .. } | Delta::End(_) => {}
        }
    }
    let first_ms = first_ms.ok_or("a turn ended without a token")?;
    Ok((first_ms, tokens))
}
