//! What serde says of a wrong value, in words for people who know neither serde nor Rust. What is not
//! known here is passed on as it is, so that nothing is lost.

/// What is said of the value at `place` (none where it is the whole), as one sentence that names it.
pub fn told(place: &str, text: &str) -> String {
    let place = place.trim_matches('.');
    let subject = if place.is_empty() { "it" } else { place };
    if let Some(field) = missing(text) {
        return format!("{} is missing", within(place, field));
    }
    if let Some((field, known)) = named(text, "unknown field `") {
        return format!("there is no {}; known: {known}", within(place, field));
    }
    if let Some((got, known)) = named(text, "unknown variant `") {
        return format!("{subject} must be {known}, not {got:?}");
    }
    if let Some(field) = text.strip_prefix("duplicate field `") {
        return format!("{} is given twice", within(place, field.trim_matches('`')));
    }
    let mismatch = ["invalid type: ", "invalid value: "];
    let mismatch = mismatch.iter().find_map(|words| text.strip_prefix(words));
    if let Some((got, wanted)) = mismatch.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("{subject} must be {}, not {}", kind(wanted), value(got));
    }
    match parsed(text) {
        Some(words) => format!("{subject} {words}"),
        None if place.is_empty() || text.starts_with(place) => text.to_owned(),
        None => format!("{place}: {text}"),
    }
}

/// What is wrong in a query: the field, and the sentence.
pub fn told_of_query(text: &str) -> (String, String) {
    let text = text.trim_start_matches("Failed to deserialize query string: ");
    let unknown = "unknown field `";
    let unknown = text
        .find(unknown)
        .and_then(|at| named(&text[at..], unknown));
    if let Some((name, known)) = unknown {
        let name: String = name.chars().take(64).collect();
        let told = format!("there is no parameter {name:?} here; known: {known}");
        return (name, told);
    }
    let (place, text) = text.split_once(": ").unwrap_or(("", text));
    let param = missing(text).unwrap_or(place).to_owned();
    (param, told(place, text))
}

/// The field that a value lacks.
pub fn missing(text: &str) -> Option<&str> {
    let (field, _) = text.strip_prefix("missing field `")?.split_once('`')?;
    Some(field)
}

/// What a parser of JSON says of a text that is none.
pub fn syntax(text: &str) -> String {
    match text.strip_prefix("EOF while parsing ") {
        Some(rest) if rest.ends_with("line 1 column 0") => "it is empty".to_owned(),
        Some(rest) => format!("it ends in the middle of {rest}"),
        None => text.to_owned(),
    }
}

fn within(place: &str, field: &str) -> String {
    match place {
        "" => field.to_owned(),
        place => format!("{place}.{field}"),
    }
}

/// The name that is not known, and those that are, as "a, b or c".
fn named<'a>(text: &'a str, words: &str) -> Option<(&'a str, String)> {
    let rest = text.strip_prefix(words)?;
    let (name, known) = match rest.rsplit_once("`, expected ") {
        Some((name, known)) => (name, known.trim_start_matches("one of ")),
        None => (rest.split_once("`, there are no ")?.0, "nothing"),
    };
    let known = known.replace('`', "");
    Some(match known.rsplit_once(", ") {
        Some((most, last)) => (name, format!("{most} or {last}")),
        None => (name, known),
    })
}

fn kind(wanted: &str) -> &str {
    match wanted {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "string or map" | "variant identifier" => "a string",
        struct_of if struct_of.starts_with("struct ") => "an object",
        tagged if tagged.contains("tagged enum ") => "an object",
        other => other,
    }
}

fn value(got: &str) -> &str {
    let quoted = ["boolean `", "integer `", "floating point `"];
    let quoted = quoted.iter().find_map(|words| got.strip_prefix(words));
    if let Some(quoted) = quoted {
        return quoted.trim_end_matches('`');
    }
    match got {
        "sequence" => "a list",
        "map" => "an object",
        "unit value" => "null",
        other => other.strip_prefix("string ").unwrap_or(other),
    }
}

/// What Rust says of a text in a query that is no number.
fn parsed(text: &str) -> Option<&'static str> {
    Some(match text {
        "invalid digit found in string" => "must be a whole number, written in digits alone",
        "cannot parse integer from empty string" => "is empty, and must be a whole number",
        "number too large to fit in target type" => "is too large a number",
        "number too small to fit in target type" => "is too small a number",
        "invalid float literal" | "cannot parse float from empty string" => "must be a number",
        "provided string was not `true` or `false`" => "must be true or false",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Colour {
        Red,
        DarkBlue,
        Green,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(rename = "deep")]
        _deep: u8,
    }

    /// What serde really says, so that other words of a later version are found out here.
    fn said<T: DeserializeOwned + std::fmt::Debug>(value: Value) -> String {
        let error = serde_json::from_value::<T>(value).expect_err("it is wrong");
        told("x", &error.to_string())
    }

    #[test]
    fn what_serde_says_is_said_in_plain_words() {
        for (told, expected) in [
            (said::<f64>(json!("hot")), "x must be a number, not \"hot\""),
            (
                said::<u64>(json!(-1)),
                "x must be a whole number, 0 or more, not -1",
            ),
            (
                said::<u8>(json!(300)),
                "x must be a whole number from 0 to 255, not 300",
            ),
            (
                said::<u32>(json!(1.5)),
                "x must be a whole number from 0 to 4294967295, not 1.5",
            ),
            (
                said::<i64>(json!(true)),
                "x must be a whole number, not true",
            ),
            (
                said::<bool>(json!("yes")),
                "x must be true or false, not \"yes\"",
            ),
            (said::<String>(json!(null)), "x must be a string, not null"),
            (said::<String>(json!([1])), "x must be a string, not a list"),
            (
                said::<Vec<u8>>(json!({})),
                "x must be a list, not an object",
            ),
            (said::<Inner>(json!(5)), "x must be an object, not 5"),
            (said::<Inner>(json!({})), "x.deep is missing"),
            (
                said::<Inner>(json!({"dep": 1})),
                "there is no x.dep; known: deep",
            ),
            (
                said::<Colour>(json!("blue")),
                "x must be red, dark_blue or green, not \"blue\"",
            ),
            (said::<Colour>(json!(5)), "x must be a string, not 5"),
            (
                said::<u16>(json!("1, expected u8")),
                "x must be a whole number from 0 to 65535, not \"1, expected u8\"",
            ),
        ] {
            assert_eq!(told, expected);
        }
        let syntax = |text: &str| {
            let error = serde_json::from_str::<Value>(text).expect_err("it is no JSON");
            super::syntax(&error.to_string())
        };
        assert_eq!(syntax(""), "it is empty");
        let cut = "it ends in the middle of an object at line 1 column 2";
        assert_eq!(syntax("{ "), cut);
        assert_eq!(syntax("{1}"), "key must be a string at line 1 column 2");
        assert_eq!(told("stop", "stop must be short"), "stop must be short");
        assert_eq!(told("x", "something new"), "x: something new");
        assert_eq!(told(".", "something new"), "something new");
    }
}
