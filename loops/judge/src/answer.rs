//! Reading a model's vote: the last grade in it, and a hint if it has one.

use hone_domain::Outcome;
use serde_json::Value;

use crate::ModelConfig;

/// What a vote says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Its grade.
    pub outcome: Outcome,
    /// Its advice, as written.
    pub hint: Option<String>,
}

/// Reads the last `\boxed{…}` or the last JSON object with a `score`, whichever comes later.
/// Anything but 1, -1 and 0 cannot be read.
pub(crate) fn parse(words: &str) -> Option<Answer> {
    let boxed = last_boxed(words);
    let json = last_json(words);
    match (boxed, json) {
        (Some((at, _)), Some((json_at, value))) if json_at > at => from_json(&value),
        (Some((_, grade)), _) => Some(Answer {
            outcome: outcome(grade)?,
            hint: marked_hint(words),
        }),
        (None, Some((_, value))) => from_json(&value),
        (None, None) => None,
    }
}

/// A hint that may be kept: not too short, not too long, and not the next state itself.
pub(crate) fn accept_hint(hint: &str, next_state: &str, config: &ModelConfig) -> Option<String> {
    let hint = hint.trim();
    let length = hint.chars().count();
    let fits = (config.hint_chars_min..=config.hint_chars_max).contains(&length);
    let flat = |text: &str| {
        text.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .to_lowercase()
    };
    let (own, said) = (flat(hint), flat(next_state));
    let leaks = !said.is_empty() && (said.contains(&own) || own.contains(&said));
    (fits && !leaks).then(|| hint.to_owned())
}

fn outcome(grade: &str) -> Option<Outcome> {
    match grade.trim().trim_start_matches('+') {
        "1" | "1.0" => Some(Outcome::Good),
        "-1" | "-1.0" | "−1" => Some(Outcome::Bad),
        "0" | "0.0" | "-0" => Some(Outcome::Neutral),
        _ => None,
    }
}

fn last_boxed(words: &str) -> Option<(usize, &str)> {
    let at = words.rfind("\\boxed{")?;
    let inside = &words[at + "\\boxed{".len()..];
    Some((at, &inside[..inside.find('}')?]))
}

fn last_json(words: &str) -> Option<(usize, Value)> {
    // Each `{` may begin the object; the last that parses to one with a score is meant.
    words.rmatch_indices('{').take(64).find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&words[at..]).into_iter::<Value>();
        let value = values.next()?.ok()?;
        value.get("score").is_some().then_some((at, value))
    })
}

fn from_json(value: &Value) -> Option<Answer> {
    let grade = match value.get("score")? {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return None,
    };
    let hint = value.get("hint").and_then(Value::as_str);
    Some(Answer {
        outcome: outcome(&grade)?,
        hint: hint.map(str::to_owned),
    })
}

fn marked_hint(words: &str) -> Option<String> {
    let at = words.rfind("HINT_START")? + "HINT_START".len();
    let rest = &words[at..];
    let hint = &rest[..rest.find("HINT_END")?];
    let bare = hint.trim_matches(|c: char| c.is_whitespace() || "[]<>*`".contains(c));
    (!bare.is_empty()).then(|| bare.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_grade_counts_and_nothing_else_is_one() {
        for (words, expected) in [
            (r"fine \boxed{1}", Some(Outcome::Good)),
            (r"\boxed{1} no: \boxed{-1}", Some(Outcome::Bad)),
            (r"\boxed{ 0 }", Some(Outcome::Neutral)),
            (r"\boxed{+1}", Some(Outcome::Good)),
            (r"\boxed{2}", None),
            (r"\boxed{1} and \boxed{maybe}", None),
            (r"\boxed{1", None),
            (r#"{"score": -1, "hint": "use metric"}"#, Some(Outcome::Bad)),
            (r#"so {"a": {"score": 1}} end"#, Some(Outcome::Good)),
            (r#"\boxed{1} {"score": 0}"#, Some(Outcome::Neutral)),
            (r#"{"score": 0} \boxed{1}"#, Some(Outcome::Good)),
            (r#"{"score": 0.5}"#, None),
            ("good", None),
            ("", None),
        ] {
            assert_eq!(parse(words).map(|a| a.outcome), expected, "{words}");
        }
    }

    #[test]
    fn hints_are_read_and_checked() {
        let hint = |words: &str| parse(words).and_then(|a| a.hint);
        assert_eq!(
            hint(r"[HINT_START] Use metric units. [HINT_END] \boxed{-1}").as_deref(),
            Some("Use metric units.")
        );
        assert_eq!(hint(r"HINT_START \boxed{-1}"), None);
        let config = ModelConfig::for_tests();
        let accept = |hint: &str| accept_hint(hint, "No, use  metric units.", &config).is_some();
        assert!(accept("Answer in kilometres and kilograms."));
        assert!(!accept("short"));
        assert!(!accept("use metric units."), "part of the next state");
        assert!(
            !accept("They said: no, use metric units. So do."),
            "all of the next state"
        );
        assert!(!accept(&"x".repeat(500)));
    }

    proptest::proptest! {
        #[test]
        fn no_words_break_the_parser(words in r#"[\\boxed{}":1, HINT_STARTEND0-]{0,200}"#) {
            parse(&words);
        }
    }
}
