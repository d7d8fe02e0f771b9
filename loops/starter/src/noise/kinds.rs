//! The kinds of text the model is trained behind.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::words::{Words, capital, code_word};
use crate::rng::Rng;

/// Appends formatted text; writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {
        write!($out, $($arg)*).expect("writing to a string does not fail")
    };
}
pub(super) use put;

/// "- Always check the file before you send it."
pub(super) fn rules(words: &Words, rng: &mut Rng, out: &mut String) {
    put!(
        out,
        "{}:\n",
        rng.word(&[
            "Rules",
            "You must follow these rules",
            "Important",
            "Guidelines"
        ])
    );
    let mark = rng.word(&["-", "*", "•", "1."]);
    for number in 1..=rng.between(3, 8) {
        if mark == "1." {
            put!(out, "{number}. ");
        } else {
            put!(out, "{mark} ");
        }
        let must = rng.word(&[
            "Always",
            "Never",
            "Do not",
            "Please",
            "You may",
            "You should",
        ]);
        put!(out, "{must} {} {}", words.verb(rng), words.thing(rng));
        match rng.below(3) {
            0 => put!(out, " before you {} {}", words.verb(rng), words.thing(rng)),
            1 => put!(out, " if {}", words.clause(rng)),
            _ => put!(out, " ({})", words.clause(rng)),
        }
        out.push_str(".\n");
    }
}

/// A markdown page with headings.
pub(super) fn handbook(words: &Words, rng: &mut Rng, out: &mut String) {
    let level = rng.word(&["#", "##", "###"]);
    put!(
        out,
        "{level} {} {}\n\n",
        capital(words.adjective(rng)),
        capital(words.noun(rng))
    );
    for _ in 0..rng.between(2, 5) {
        out.push_str(&words.sentence(rng));
        out.push(' ');
    }
    put!(
        out,
        "\n\n**{}**: `{}`\n",
        capital(words.noun(rng)),
        words.identifier(rng)
    );
}

/// One tool definition.
pub(super) fn tool(words: &Words, rng: &mut Rng) -> Value {
    let mut properties = serde_json::Map::new();
    for _ in 0..rng.between(1, 5) {
        let kind = rng.word(&["string", "number", "boolean", "array", "object"]);
        let about = words.sentence(rng);
        properties.insert(
            words.noun(rng).to_owned(),
            json!({"type": kind, "description": about}),
        );
    }
    let required: Vec<String> = properties.keys().take(1).cloned().collect();
    json!({"type": "function", "function": {
        "name": words.identifier(rng).replace('-', "_"),
        "description": words.sentence(rng),
        "parameters": {"type": "object", "properties": properties, "required": required},
    }})
}

/// Tool definitions as JSON lines.
pub(super) fn tools(words: &Words, rng: &mut Rng, out: &mut String) {
    for _ in 0..rng.between(1, 3) {
        put!(out, "{}\n", tool(words, rng));
    }
}

/// A listing of files.
pub(super) fn files(words: &Words, rng: &mut Rng, out: &mut String) {
    for _ in 0..rng.between(4, 12) {
        let size = rng.between(1, 99_999);
        match rng.below(3) {
            0 => put!(out, "{}\n", words.path(rng)),
            1 => put!(out, "{} ({size} bytes)\n", words.path(rng)),
            _ => put!(out, "-rw-r--r-- {size:>6} {}\n", words.path(rng)),
        }
    }
}

/// Program text.
pub(super) fn code(words: &Words, rng: &mut Rng, out: &mut String) {
    let (name, argument) = (words.identifier(rng), words.noun(rng));
    let python = rng.chance(0.5);
    if python {
        put!(out, "def {name}({argument}, {}=None):\n", words.noun(rng));
    } else {
        put!(out, "pub fn {name}({argument}: &str) -> Option<u32> {{\n");
    }
    for _ in 0..rng.between(2, 6) {
        let (left, right) = (words.noun(rng), words.identifier(rng));
        let number = rng.below(1000);
        match rng.below(4) {
            0 => put!(out, "    if {left} == {number} {{ return {right}; }}\n"),
            1 => put!(out, "    {left} = {right}({argument}, {number})\n"),
            2 => put!(out, "    // {}\n", words.clause(rng)),
            _ => put!(out, "    let {left} = \"{}\";\n", words.verb(rng)),
        }
    }
    out.push_str(if python { "    return None\n" } else { "}\n" });
}

/// Lines with dates and times.
pub(super) fn log(words: &Words, rng: &mut Rng, out: &mut String) {
    for _ in 0..rng.between(3, 8) {
        let (month, day) = (rng.between(1, 12), rng.between(1, 28));
        let (hour, minute, second) = (rng.below(24), rng.below(60), rng.below(60));
        let level = rng.word(&["INFO", "WARN", "ERROR", "DEBUG"]);
        put!(
            out,
            "20{}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {level} ",
            rng.between(10, 39)
        );
        put!(
            out,
            "{}: {} id={}\n",
            words.root(rng),
            words.clause(rng),
            rng.below(100_000)
        );
    }
}

/// Plain paragraphs.
pub(super) fn prose(words: &Words, rng: &mut Rng, out: &mut String) {
    for _ in 0..rng.between(3, 9) {
        out.push_str(&words.sentence(rng));
        out.push(' ');
    }
}

/// Settings as TOML, YAML or environment variables.
pub(super) fn settings(words: &Words, rng: &mut Rng, out: &mut String) {
    let form = rng.below(3);
    put!(out, "[{}]\n", words.root(rng));
    for _ in 0..rng.between(3, 8) {
        let (key, value) = (words.identifier(rng), rng.below(10_000));
        match form {
            0 => put!(out, "{key} = {value}\n"),
            1 => put!(out, "{key}: {}\n", words.noun(rng)),
            _ => put!(out, "{}={}\n", key.to_uppercase(), words.path(rng)),
        }
    }
}

/// Identifiers, hashes and made-up words.
pub(super) fn soup(_words: &Words, rng: &mut Rng, out: &mut String) {
    const HEX: &[u8] = b"0123456789abcdef";
    const LETTERS: &[u8] = b"aaabcdeeefghiiijklmnooopqrsstttuuvwxyz";
    const SIGNS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=_-.,;:!?()[]{}<>@#$%&*'\"";
    for _ in 0..rng.between(8, 30) {
        let alphabet = *rng.pick(&[HEX, LETTERS, LETTERS, SIGNS]);
        let length = rng.between(1, 12);
        put!(out, "{} ", code_word(rng, alphabet, length));
    }
}

/// Notes about a person, as agents keep them.
pub(super) fn memory(words: &Words, rng: &mut Rng, out: &mut String) {
    let name = words.name(rng);
    put!(out, "<{}>\n", words.root(rng));
    for _ in 0..rng.between(2, 6) {
        let other = words.name(rng);
        match rng.below(4) {
            0 => put!(out, "User: {name}, time zone: UTC+{}\n", rng.below(12)),
            1 => put!(out, "{name} told {other} that {}.\n", words.clause(rng)),
            2 => put!(
                out,
                "Last seen: {} {}\n",
                words.adverb(rng),
                words.thing(rng)
            ),
            _ => put!(
                out,
                "{name} likes to {} {}.\n",
                words.verb(rng),
                words.thing(rng)
            ),
        }
    }
}
