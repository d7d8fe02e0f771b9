//! The kinds of text used in evaluation only.

use std::fmt::Write as _;

use super::kinds::put;
use super::words::{Words, capital};
use crate::rng::Rng;

/// Clauses of an agreement.
pub(super) fn contract(words: &Words, rng: &mut Rng, out: &mut String) {
    let article = rng.between(1, 40);
    put!(
        out,
        "Article {article}. {}\n",
        words.noun(rng).to_uppercase()
    );
    for number in 1..=rng.between(2, 5) {
        put!(
            out,
            "§ {article}.{number} The {} shall {} ",
            capital(words.noun(rng)),
            words.verb(rng)
        );
        put!(
            out,
            "{} no later than {} days after {}, ",
            words.thing(rng),
            rng.between(2, 60),
            words.thing(rng)
        );
        put!(
            out,
            "unless both parties {} in writing to {} it.\n",
            words.adverb(rng),
            words.verb(rng)
        );
    }
}

/// Rows of a table with amounts.
pub(super) fn ledger(words: &Words, rng: &mut Rng, out: &mut String) {
    put!(
        out,
        "| {} | {} | amount |\n|---|---|---:|\n",
        words.noun(rng),
        words.noun(rng)
    );
    for _ in 0..rng.between(4, 10) {
        let (name, noun) = (words.name(rng), words.noun(rng));
        put!(out, "| {name} | {} {noun} | ", words.adjective(rng));
        put!(out, "{}.{:02} |\n", rng.below(9_999), rng.below(100));
    }
}

/// A letter.
pub(super) fn mail(words: &Words, rng: &mut Rng, out: &mut String) {
    let (from, to) = (words.name(rng), words.name(rng));
    put!(
        out,
        "From: {from} <{}@mail.example>\nSubject: ",
        from.to_lowercase()
    );
    put!(
        out,
        "Re: {} {}\n\nDear {to},\n",
        words.adjective(rng),
        words.noun(rng)
    );
    for _ in 0..rng.between(2, 5) {
        put!(out, "I wonder whether {}; ", words.clause(rng));
        put!(out, "as we said on the phone, {}. ", words.clause(rng));
    }
    put!(out, "\nKind regards\n{from}\n");
}

/// A terminal session.
pub(super) fn shell(words: &Words, rng: &mut Rng, out: &mut String) {
    for _ in 0..rng.between(2, 6) {
        let (path, verb) = (words.path(rng), words.verb(rng));
        put!(
            out,
            "$ {} {verb} --{} {path} | head -{}\n",
            words.root(rng),
            words.noun(rng),
            rng.below(50)
        );
        put!(out, "{path}:{}: {}\n", rng.below(900), words.clause(rng));
    }
}

/// Nested tags with attributes.
pub(super) fn markup(words: &Words, rng: &mut Rng, out: &mut String) {
    let outer = words.noun(rng);
    put!(
        out,
        "<{outer} id=\"{}\" class=\"{}\">\n",
        rng.below(9_999),
        words.adjective(rng)
    );
    for _ in 0..rng.between(2, 7) {
        let inner = words.root(rng);
        put!(
            out,
            "  <{inner} {}=\"{}\">{}</{inner}>\n",
            words.noun(rng),
            words.identifier(rng),
            words.clause(rng)
        );
    }
    put!(out, "</{outer}>\n");
}
