//! Python's view of characters and pieces of text.

/// The zeros of Unicode's decimal digits; nine more digits follow each.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
    0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650,
    0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50,
    0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];
/// Digits that are not decimal: raised, lowered, circled.
const OTHER_DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The value of a decimal digit of any script.
pub(super) fn decimal(c: char) -> Option<u32> {
    let below = ZEROS.partition_point(|zero| *zero <= c as u32);
    let digit = c as u32 - ZEROS.get(below.checked_sub(1)?)?;
    (digit < 10).then_some(digit)
}

pub(super) fn is_digit(c: char) -> bool {
    let listed = |(low, high): &(u32, u32)| (*low..=*high).contains(&(c as u32));
    decimal(c).is_some() || OTHER_DIGITS.iter().any(listed)
}

/// Letters; Roman numerals and the like are none.
pub(super) fn is_alpha(c: char) -> bool {
    c.is_alphabetic() && !c.is_numeric()
}

pub(super) fn is_word(c: char) -> bool {
    is_alpha(c) || c.is_numeric() || c == '_'
}

/// Single characters that hold a large and a small letter.
fn is_title(c: char) -> bool {
    matches!(c as u32, 0x1c5 | 0x1c8 | 0x1cb | 0x1f2 | 0x1f88..=0x1f8f | 0x1f98..=0x1f9f
        | 0x1fa8..=0x1faf | 0x1fbc | 0x1fcc | 0x1ffc)
}

fn is_cased(c: char) -> bool {
    c.is_uppercase() || c.is_lowercase() || is_title(c)
}

pub(super) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(|c| c.is_uppercase() || is_title(c))
}

pub(super) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || is_title(c))
}

/// Every word begins with a large letter and goes on in small ones.
pub(super) fn is_titled(text: &str) -> bool {
    let (mut after_letter, mut any) = (false, false);
    for c in text.chars() {
        let large = c.is_uppercase() || is_title(c);
        if (large && after_letter) || (c.is_lowercase() && !after_letter) {
            return false;
        }
        after_letter = is_cased(c);
        any |= after_letter;
    }
    any
}

/// A character as the first of a word.
fn titled(c: char, out: &mut String) {
    match c as u32 {
        0x1c4..=0x1c6 => out.push('\u{1c5}'),
        0x1c7..=0x1c9 => out.push('\u{1c8}'),
        0x1ca..=0x1cc => out.push('\u{1cb}'),
        0x1f1..=0x1f3 => out.push('\u{1f2}'),
        0x149 => out.extend(c.to_uppercase()),
        _ => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

/// The small form of a character; a sigma at a word's end has its own.
fn push_lower(chars: &[char], at: usize, out: &mut String) {
    let cased = |at: Option<usize>| {
        at.and_then(|at| chars.get(at))
            .is_some_and(|c| is_cased(*c))
    };
    match chars[at] {
        'Σ' if cased(at.checked_sub(1)) && !cased(at.checked_add(1)) => out.push('ς'),
        c => out.extend(c.to_lowercase()),
    }
}

/// `str.title`: letters begin anew after anything that is no letter.
pub(super) fn title(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut after_letter = false;
    for (at, c) in chars.iter().enumerate() {
        if after_letter {
            push_lower(&chars, at, &mut out);
        } else {
            titled(*c, &mut out);
        }
        after_letter = is_cased(*c);
    }
    out
}

/// `str.capitalize`.
pub(super) fn capitalize(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    for (at, c) in chars.iter().enumerate() {
        match at {
            0 => titled(*c, &mut out),
            _ => push_lower(&chars, at, &mut out),
        }
    }
    out
}

pub(super) fn swap_case(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    for (at, c) in chars.iter().enumerate() {
        match c {
            c if c.is_uppercase() => push_lower(&chars, at, &mut out),
            c if c.is_lowercase() => out.extend(c.to_uppercase()),
            c => out.push(*c),
        }
    }
    out
}

/// The filter `title`, which knows only some characters as ends of words.
pub(super) fn title_words(text: &str) -> String {
    let ends = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(ends) {
        let mut chars = word.chars();
        if let Some(first) = chars.next() {
            out.extend(first.to_uppercase());
            out.push_str(&chars.as_str().to_lowercase());
        }
    }
    out
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
    Both,
}

/// A set of characters: those of a short text are looked for in it, those of a long one in a table.
enum Set<'c> {
    Spaces,
    Few(&'c str),
    Many(Vec<u64>),
}

impl<'c> Set<'c> {
    /// Longest text that is searched for each character.
    const FEW_BYTES_MAX: usize = 16;

    fn new(chars: Option<&'c str>) -> Self {
        match chars {
            None => Self::Spaces,
            Some(chars) if chars.len() <= Self::FEW_BYTES_MAX => Self::Few(chars),
            Some(chars) => {
                let mut table = vec![0; char::MAX as usize / 64 + 1];
                for c in chars.chars() {
                    table[c as usize / 64] |= 1 << (c as usize % 64);
                }
                Self::Many(table)
            }
        }
    }

    fn has(&self, c: char) -> bool {
        match self {
            Self::Spaces => is_space(c),
            Self::Few(chars) => chars.contains(c),
            Self::Many(table) => (table[c as usize / 64] >> (c as usize % 64)) & 1 == 1,
        }
    }
}

/// `str.strip` and its like; without `chars`, white space goes.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, side: Side) -> &'a str {
    let set = Set::new(chars);
    let goes = |c: char| set.has(c);
    let text = if side == Side::Right {
        text
    } else {
        text.trim_start_matches(goes)
    };
    if side == Side::Left {
        text
    } else {
        text.trim_end_matches(goes)
    }
}

/// `str.split`; without a separator, at runs of white space.
pub(super) fn split<'a>(text: &'a str, separator: Option<&str>, most: usize) -> Vec<&'a str> {
    if let Some(separator) = separator {
        return text.splitn(most.saturating_add(1), separator).collect();
    }
    let mut out = Vec::new();
    let mut rest = strip(text, None, Side::Left);
    while !rest.is_empty() {
        let end = rest.find(is_space).filter(|_| out.len() < most);
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        out.push(piece);
        rest = strip(after, None, Side::Left);
    }
    out
}

/// `str.rsplit`.
pub(super) fn split_back<'a>(text: &'a str, separator: Option<&str>, most: usize) -> Vec<&'a str> {
    let mut out: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
        None => {
            let mut out = Vec::new();
            let mut rest = strip(text, None, Side::Right);
            while !rest.is_empty() {
                let last = rest.char_indices().rfind(|(_, c)| is_space(*c));
                let start = last
                    .map(|(at, c)| at + c.len_utf8())
                    .filter(|_| out.len() < most);
                let (before, piece) = rest.split_at(start.unwrap_or(0));
                out.push(piece);
                rest = strip(before, None, Side::Right);
            }
            out
        }
    };
    out.reverse();
    out
}

/// `str.splitlines`, which knows more ends of lines than most.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut out = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some((at, c)) = rest.char_indices().find(|(_, c)| ends(*c)) else {
            out.push(rest);
            break;
        };
        let after = at
            + if rest[at..].starts_with("\r\n") {
                2
            } else {
                c.len_utf8()
            };
        out.push(&rest[..if keep_ends { after } else { at }]);
        rest = &rest[after..];
    }
    out
}

/// The part of a text between two places counted in characters, and the number of characters before
/// it. `None` where the part begins behind the end.
pub(super) fn part(text: &str, from: Option<i128>, to: Option<i128>) -> Option<(usize, &str)> {
    if from.is_none() && to.is_none() {
        return Some((0, text));
    }
    let length = text.chars().count() as i128;
    let place = |at: i128| if at < 0 { (at + length).max(0) } else { at };
    let from = place(from.unwrap_or(0));
    let to = to.map_or(length, place).min(length);
    if from > to {
        return None;
    }
    let byte = |at: i128| {
        text.char_indices()
            .nth(at as usize)
            .map_or(text.len(), |(byte, _)| byte)
    };
    Some((from as usize, &text[byte(from)..byte(to)]))
}
