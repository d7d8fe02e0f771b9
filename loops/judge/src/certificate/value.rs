//! Whole-number expressions, as far as Python, Rust, JavaScript and their like write them alike.

use std::collections::BTreeMap;

/// What names mean, and what called functions returned.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Names.
    pub names: BTreeMap<String, i64>,
    /// The last value of each function that returned to this line.
    pub returned: BTreeMap<String, i64>,
}

/// The value of an expression; none where any of it is not known. Truth is 1 and 0.
pub(super) fn value(text: &str, known: &Known) -> Option<i64> {
    let tokens = tokens(text)?;
    let mut reader = Reader {
        tokens: &tokens,
        at: 0,
        known,
        depth: 0,
    };
    let value = reader.binary(0)?;
    (reader.at == tokens.len()).then_some(value)
}

/// The arguments of a call, split at commas outside of brackets.
pub(super) fn arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0i32, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// What stands in the brackets behind the first `name(` of a line.
pub(super) fn call_of<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let start = line.match_indices(name).find_map(|(at, _)| {
        let before = line[..at].chars().next_back();
        let whole = !before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let open = at + name.len();
        (whole && line[open..].starts_with('(')).then_some(open + 1)
    })?;
    let mut depth = 1;
    for (at, c) in line[start..].char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&line[start..start + at]);
        }
    }
    None
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(i64),
    Name(String),
    Sign(&'static str),
}

const SIGNS: [&str; 21] = [
    "==", "!=", "<=", ">=", "//", "&&", "||", "+", "-", "*", "/", "%", "<", ">", "(", ")", "!",
    ",", "and", "or", "not",
];

fn tokens(text: &str) -> Option<Vec<Token>> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() && tokens.len() < 256 {
        let word = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        if word > 0 {
            let (name, after) = rest.split_at(word);
            tokens.push(match SIGNS.iter().find(|sign| **sign == name) {
                Some(sign) => Token::Sign(sign),
                None if name.starts_with(|c: char| c.is_ascii_digit()) => {
                    Token::Number(name.replace('_', "").parse().ok()?)
                }
                None => Token::Name(name.to_owned()),
            });
            rest = after.trim_start();
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign))?;
            tokens.push(Token::Sign(sign));
            rest = rest[sign.len()..].trim_start();
        }
    }
    rest.is_empty().then_some(tokens)
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    known: &'a Known,
    depth: usize,
}

/// Operators from the loosest to the tightest.
const LEVELS: [&[&str]; 5] = [
    &["or", "||"],
    &["and", "&&"],
    &["==", "!=", "<=", ">=", "<", ">"],
    &["+", "-"],
    &["*", "/", "//", "%"],
];

impl Reader<'_> {
    fn sign(&mut self, among: &[&str]) -> Option<&'static str> {
        match self.tokens.get(self.at) {
            Some(Token::Sign(sign)) if among.contains(sign) => {
                self.at += 1;
                Some(sign)
            }
            _ => None,
        }
    }

    fn binary(&mut self, level: usize) -> Option<i64> {
        let Some(signs) = LEVELS.get(level) else {
            return self.unary();
        };
        // Python's `not` is looser than a comparison.
        if level == 2 && self.sign(&["not"]).is_some() {
            return self.binary(2).map(|value| i64::from(value == 0));
        }
        let mut left = self.binary(level + 1)?;
        let mut compared = false;
        while let Some(sign) = self.sign(signs) {
            // Languages read a chain of comparisons differently.
            if level == 2 && std::mem::replace(&mut compared, true) {
                return None;
            }
            let right = self.binary(level + 1)?;
            left = combined(sign, left, right)?;
        }
        Some(left)
    }

    fn unary(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > 64 {
            return None;
        }
        let value = match self.sign(&["-", "!", "("]) {
            Some("-") => self.unary()?.checked_neg(),
            Some("(") => {
                let value = self.binary(0)?;
                self.sign(&[")"]).map(|_| value)
            }
            Some(_) => self.unary().map(|value| i64::from(value == 0)),
            None => self.atom(),
        };
        self.depth -= 1;
        value
    }

    fn atom(&mut self) -> Option<i64> {
        let token = self.tokens.get(self.at)?.clone();
        self.at += 1;
        match token {
            Token::Number(number) => Some(number),
            Token::Name(name) if self.sign(&["("]).is_some() => {
                let mut depth = 1;
                while depth > 0 {
                    match self.tokens.get(self.at)? {
                        Token::Sign("(") => depth += 1,
                        Token::Sign(")") => depth -= 1,
                        _ => {}
                    }
                    self.at += 1;
                }
                self.known.returned.get(&name).copied()
            }
            Token::Name(name) => match name.as_str() {
                "True" | "true" => Some(1),
                "False" | "false" => Some(0),
                _ => self.known.names.get(&name).copied(),
            },
            Token::Sign(_) => None,
        }
    }
}

fn combined(sign: &str, left: i64, right: i64) -> Option<i64> {
    let truth = |holds: bool| Some(i64::from(holds));
    match sign {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        // Languages round negative quotients differently.
        "/" | "//" | "%" if left < 0 || right <= 0 => None,
        "/" => (left % right == 0).then(|| left / right),
        "//" => Some(left / right),
        "%" => Some(left % right),
        "==" => truth(left == right),
        "!=" => truth(left != right),
        "<=" => truth(left <= right),
        ">=" => truth(left >= right),
        "<" => truth(left < right),
        ">" => truth(left > right),
        "and" | "&&" => Some(if left == 0 { left } else { right }),
        "or" | "||" => Some(if left == 0 { right } else { left }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_computed_or_left() {
        let mut known = Known::default();
        known.names.insert("x".to_owned(), 4);
        known.returned.insert("f".to_owned(), 10);
        for (text, expected) in [
            ("1 + 2 * 3", Some(7)),
            ("(1 + 2) * -x", Some(-12)),
            ("f(x, (1)) - 1", Some(9)),
            ("x == 4 and not x > 5", Some(1)),
            ("7 // 2 + 7 % 4", Some(6)),
            ("7 / 2", None),
            ("5 < 3 < 9", None),
            ("3 or 5", Some(3)),
            ("0 and 5", Some(0)),
            ("-7 % 3", None),
            ("y + 1", None),
            ("x +", None),
            ("x ? 1", None),
            ("g(1)", None),
            ("9223372036854775807 + 1", None),
            ("", None),
        ] {
            let got = value(text, &known);
            assert_eq!(got, expected, "{text}");
        }
        assert_eq!(arguments("a, f(b, c), 1"), ["a", "f(b, c)", "1"]);
        assert_eq!(call_of("r = af(1) + f(2, g(3))", "f"), Some("2, g(3)"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "[-+*/%()<>=!&|,a-z0-9 ]{0,80}") {
            value(&text, &Known::default());
        }
    }
}
