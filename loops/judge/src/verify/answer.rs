//! Final answers: a text or a number.

/// The final answer of a text: what stands in its last `\boxed{…}`, behind its last `####`, or all
/// of it.
pub(crate) fn last(text: &str) -> &str {
    if let Some(boxed) = boxed(text) {
        return boxed.trim();
    }
    let marked = text.rsplit_once("####").map(|(_, rest)| rest);
    marked.unwrap_or(text).trim()
}

fn boxed(text: &str) -> Option<&str> {
    let start = text.rfind("\\boxed{")? + "\\boxed{".len();
    let mut depth = 1;
    for (at, c) in text[start..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[start..start + at]);
        }
    }
    None
}

/// The last number of a final answer: signs, thousands separators, decimals, exponents and fractions
/// as people write them in English. `1,5` is not told apart from `15`.
pub(crate) fn last_number(text: &str) -> Option<f64> {
    let chars: Vec<char> = last(text).chars().collect();
    let end = chars.iter().rposition(char::is_ascii_digit)?;
    let is_part = |at: usize| -> bool {
        let c = chars[at];
        let digit = |at: Option<usize>| {
            at.and_then(|at| chars.get(at))
                .is_some_and(char::is_ascii_digit)
        };
        let (before, after) = (at.checked_sub(1), Some(at + 1));
        match c {
            '0'..='9' => true,
            '.' => digit(after),
            ',' | '_' => digit(before) && digit(after),
            'e' | 'E' => {
                let signed = matches!(chars.get(at + 1), Some('-' | '+'));
                digit(before) && (digit(after) || (signed && digit(Some(at + 2))))
            }
            '-' | '+' => digit(after) && matches!(before.map(|at| chars[at]), Some('e' | 'E')),
            '/' => digit(before) && digit(after),
            _ => false,
        }
    };
    let mut start = end;
    while start > 0 && is_part(start - 1) {
        start -= 1;
    }
    let minus = |at: usize| matches!(chars.get(at), Some('-' | '−'));
    let signed = start > 0
        && minus(start - 1)
        && !start
            .checked_sub(2)
            .is_some_and(|at| chars[at].is_alphanumeric());
    let digits: String = chars[start..=end]
        .iter()
        .filter(|c| !matches!(c, ',' | '_'))
        .collect();
    let value = match digits.split_once('/') {
        None => digits.parse::<f64>().ok()?,
        Some((over, under)) => over.parse::<f64>().ok()? / under.parse::<f64>().ok()?,
    };
    Some(if signed { -value } else { value }).filter(|v| v.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_read_as_people_write_it() {
        for (text, expected) in [
            ("The answer is 42.", Some(42.0)),
            ("first 3, then -7", Some(-7.0)),
            ("1,234,567.5 in all", Some(1_234_567.5)),
            ("\\boxed{12} out of 30", Some(12.0)),
            ("2 + 2\n#### 4", Some(4.0)),
            ("\\boxed{\\frac{1}{2}} or 1/2", Some(2.0)),
            ("it is 3/4", Some(0.75)),
            ("6.02e23", Some(6.02e23)),
            ("1e-3", Some(0.001)),
            ("12.5%", Some(12.5)),
            ("−5", Some(-5.0)),
            ("items 3-5", Some(5.0)),
            ("5 apples", Some(5.0)),
            ("none", None),
            ("", None),
            ("1/0", None),
        ] {
            assert_eq!(last_number(text), expected, "{text}");
        }
    }

    #[test]
    fn the_final_answer_is_boxed_marked_or_all() {
        for (text, expected) in [
            ("so \\boxed{a{b}c} it is", "a{b}c"),
            ("work #### 7 ", "7"),
            (" Paris \n", "Paris"),
            ("\\boxed{open", "\\boxed{open"),
        ] {
            assert_eq!(last(text), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "[-+.,/_%e0-9a \\\\{}#]{0,60}") {
            last_number(&text);
        }
    }
}
