//! A reply as words with their places: what is quoted or code is left out.

/// A word of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// In lower case, without accents.
    pub word: String,
    /// First byte in the reply.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Number of its sentence.
    pub sentence: usize,
    /// Number of its clause; clauses do not cross sentences.
    pub clause: usize,
}

/// A sentence of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// First byte in the reply.
    pub start: usize,
    /// One past the last byte, its mark included.
    pub end: usize,
    /// Number of words.
    pub words: usize,
    /// Whether it ends with a question mark, or with the word that stands for one in Chinese.
    pub asks: bool,
}

/// A reply, read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    /// Its words.
    pub tokens: Vec<Token>,
    /// Its sentences that have words.
    pub sentences: Vec<Sentence>,
}

/// Most bytes of a reply that are read; what a person says about an answer stands early.
const READ_MAX: usize = 8 * 1024;

/// Reads a reply. Code blocks, inline code, quoted text, quoted lines, a leading time stamp and
/// context that a client program put in are not words of the person and are left out.
pub(crate) fn read(raw: &str) -> Text {
    let raw = &raw[..floor_char(raw, READ_MAX)];
    let masked = mask(raw);
    let mut reader = Reader::default();
    let chars: Vec<(usize, char)> = masked.char_indices().collect();
    for (i, &(at, c)) in chars.iter().enumerate() {
        let next = chars.get(i + 1).map_or(' ', |&(_, c)| c);
        let previous = if i == 0 { ' ' } else { chars[i - 1].1 };
        reader.take(at, c, previous, next);
    }
    reader.end_sentence(masked.len(), false);
    reader.text
}

/// The largest character boundary at most `limit`.
pub(crate) fn floor_char(text: &str, limit: usize) -> usize {
    let mut at = limit.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[derive(Default)]
struct Reader {
    text: Text,
    word: String,
    word_start: usize,
    clause: usize,
    sentence_start: usize,
    words_before: usize,
}

impl Reader {
    fn take(&mut self, at: usize, c: char, previous: char, next: char) {
        let c = if matches!(c, '’' | '‘' | 'ʼ') {
            '\''
        } else {
            c
        };
        if is_alone(c) {
            self.end_word(at);
            self.word_start = at;
            self.word.push(c);
            self.end_word(at + c.len_utf8());
        } else if c.is_alphanumeric() {
            if self.word.is_empty() {
                self.word_start = at;
            }
            c.to_lowercase().for_each(|c| fold(c, &mut self.word));
        } else if ('\u{300}'..='\u{36f}').contains(&c) {
            // A combining accent belongs to the letter before it.
        } else if c == '\'' && previous.is_alphanumeric() && next.is_alphabetic() {
            if matches!(
                self.word.as_str(),
                "l" | "d" | "n" | "c" | "j" | "m" | "s" | "t" | "qu" | "un" | "dell" | "quell"
            ) {
                self.end_word(at);
            } else {
                self.word.push('\'');
            }
        } else {
            self.end_word(at);
            match c {
                '.' | '-' if next.is_alphanumeric() && !previous.is_whitespace() => {}
                '.' | '!' | '…' | '。' | '！' | '\n' => {
                    self.end_sentence(at + c.len_utf8(), false);
                }
                '?' | '？' => self.end_sentence(at + c.len_utf8(), true),
                ',' | ';' | ':' | '–' | '—' | '(' | ')' | '，' | '；' | '：' | '、' => {
                    self.clause += 1;
                }
                _ => {}
            }
        }
    }

    fn end_word(&mut self, end: usize) {
        if self.word.is_empty() {
            return;
        }
        self.text.tokens.push(Token {
            word: std::mem::take(&mut self.word),
            start: self.word_start,
            end,
            sentence: self.text.sentences.len(),
            clause: self.clause,
        });
    }

    fn end_sentence(&mut self, end: usize, asks: bool) {
        self.end_word(end);
        let words = self.text.tokens.len() - self.words_before;
        self.clause += 1;
        if words == 0 {
            // "?!" and "..." belong to the sentence before.
            if let Some(last) = self.text.sentences.last_mut()
                && asks
            {
                last.asks = true;
            }
            self.sentence_start = end;
            return;
        }
        let asks = asks || self.text.tokens.last().is_some_and(|t| t.word == "吗");
        self.text.sentences.push(Sentence {
            start: self.sentence_start,
            end,
            words,
            asks,
        });
        self.words_before = self.text.tokens.len();
        self.sentence_start = end;
    }
}

/// Characters that are a word of their own: Chinese and Japanese signs, emoji.
fn is_alone(c: char) -> bool {
    matches!(c as u32,
        0x3040..=0x30ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff
        | 0x2600..=0x27bf | 0x1f300..=0x1faff)
}

/// Appends a lower-case letter without its accent.
fn fold(c: char, to: &mut String) {
    let plain = match c {
        'à' | 'á' | 'â' | 'ã' | 'ä' | 'å' | 'ā' => 'a',
        'è' | 'é' | 'ê' | 'ë' | 'ē' => 'e',
        'ì' | 'í' | 'î' | 'ï' | 'ī' => 'i',
        'ò' | 'ó' | 'ô' | 'õ' | 'ö' | 'ø' | 'ō' => 'o',
        'ù' | 'ú' | 'û' | 'ü' | 'ū' => 'u',
        'ý' | 'ÿ' => 'y',
        'ñ' => 'n',
        'ç' => 'c',
        'ß' => return to.push_str("ss"),
        'œ' => return to.push_str("oe"),
        'æ' => return to.push_str("ae"),
        // Lower-casing some capitals leaves a combining mark behind.
        '\u{300}'..='\u{36f}' => return,
        other => other,
    };
    to.push(plain);
}

/// The same bytes with spaces where the words are not the person's own.
fn mask(raw: &str) -> String {
    let mut bytes = raw.as_bytes().to_vec();
    blank_between(raw, &mut bytes, "<<<BEGIN_", "<<<END_", true);
    blank_between(raw, &mut bytes, "```", "```", true);
    for (open, close) in [
        ("`", "`"),
        ("\"", "\""),
        ("“", "”"),
        ("„", "“"),
        ("«", "»"),
        ("「", "」"),
    ] {
        let text = utf8(&bytes);
        blank_between(&text, &mut bytes, open, close, false);
    }
    blank_single_quotes(&mut bytes);
    blank_lines(raw, &mut bytes);
    utf8(&bytes)
}

/// Whole characters were replaced by as many spaces as they have bytes, so this is lossless.
fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn blank(bytes: &mut [u8], from: usize, to: usize) {
    for byte in &mut bytes[from..to] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

/// Blanks from each `open` to its `close`. An `open` without a `close` reaches to the end where
/// `to_end` is set, and else means itself only. Quotes do not cross lines.
fn blank_between(text: &str, bytes: &mut [u8], open: &str, close: &str, to_end: bool) {
    let mut at = 0;
    while let Some(found) = text[at..].find(open) {
        let from = at + found;
        let inside = from + open.len();
        let rest = &text[inside..];
        let line = rest.find('\n').unwrap_or(rest.len());
        let reach = if to_end { rest.len() } else { line };
        match rest[..reach].find(close) {
            Some(length) => {
                at = inside + length + close.len();
                blank(bytes, from, at);
            }
            None if to_end => {
                blank(bytes, from, text.len());
                return;
            }
            None => at = inside,
        }
    }
}

/// Blanks what stands between single quotes on one line. Such a quote opens after no letter and
/// closes before none, so the apostrophes of "don't" and "it's" are neither.
fn blank_single_quotes(bytes: &mut [u8]) {
    let text = utf8(bytes);
    let mut open = None;
    let mut previous = ' ';
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map_or(' ', |&(_, next)| next);
        match (c, open) {
            ('\n', _) => open = None,
            ('\'' | '‘', None) if !previous.is_alphanumeric() && next.is_alphanumeric() => {
                open = Some(at);
            }
            ('\'' | '’', Some(from)) if !previous.is_whitespace() && !next.is_alphanumeric() => {
                blank(bytes, from, at + c.len_utf8());
                open = None;
            }
            _ => {}
        }
        previous = c;
    }
}

/// Blanks quoted lines, a leading `[time stamp]`, and a client's `Runtime:` line.
fn blank_lines(raw: &str, bytes: &mut [u8]) {
    let mut at = 0;
    for line in raw.split_inclusive('\n') {
        let content = line.trim_start();
        let start = at + line.len() - content.len();
        if content.starts_with('>')
            || content.starts_with("Runtime:")
            || content.starts_with("<<<END_")
        {
            blank(bytes, at, at + line.len());
        } else if content.starts_with('[')
            && let Some(close) = content.find(']')
            && content[..close].contains(|c: char| c.is_ascii_digit())
        {
            blank(bytes, start, start + close + 1);
        }
        at += line.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(raw: &str) -> Vec<String> {
        read(raw).tokens.into_iter().map(|t| t.word).collect()
    }

    #[test]
    fn words_are_lower_case_without_accents_and_signs_stand_alone() {
        assert_eq!(
            words("C’est déjà ÇA, don't!"),
            ["c", "est", "deja", "ca", "don't"]
        );
        assert_eq!(words("不错 👍ok"), ["不", "错", "👍", "ok"]);
        assert_eq!(
            words("Größe 3.5 well-known"),
            ["grosse", "3", "5", "well", "known"]
        );
    }

    #[test]
    fn code_quotes_and_stamps_are_no_words() {
        for (raw, kept) in [
            ("see ```rust\nbad\n``` ok", vec!["see", "ok"]),
            ("run `bad` now", vec!["run", "now"]),
            (
                "he said \"that is wrong\" twice",
                vec!["he", "said", "twice"],
            ),
            ("> wrong\nfine", vec!["fine"]),
            ("[Fri 2026-11-20 10:12] hello", vec!["hello"]),
            (
                "a lone \" quote\nand more",
                vec!["a", "lone", "quote", "and", "more"],
            ),
            ("unclosed ``` bad bad", vec!["unclosed"]),
            (
                "<<<BEGIN_CONTEXT>>>\nwrong\n<<<END_CONTEXT>>>\nfine",
                vec!["fine"],
            ),
            ("„falsch“ oder nicht", vec!["oder", "nicht"]),
            ("say 'that's wrong' twice", vec!["say", "twice"]),
            ("say ‘that’s wrong’, please", vec!["say", "please"]),
            (
                "a lone 'quote\nand ends'",
                vec!["a", "lone", "quote", "and", "ends"],
            ),
            (
                "it's not the boys' car",
                vec!["it's", "not", "the", "boys", "car"],
            ),
        ] {
            assert_eq!(words(raw), kept, "{raw}");
        }
    }

    #[test]
    fn sentences_know_their_place_and_whether_they_ask() {
        let text = read("Is it 3.5? No... It is 4!");
        let asks: Vec<(usize, bool)> = text.sentences.iter().map(|s| (s.words, s.asks)).collect();
        assert_eq!(asks, [(4, true), (1, false), (3, false)]);
        let raw = "Is it 3.5? No... It is 4!";
        assert_eq!(
            &raw[text.sentences[2].start..text.sentences[2].end].trim(),
            &"It is 4!"
        );
        let asks = |raw: &str| read(raw).sentences[0].asks;
        assert!(asks("是吗") && asks("是吗。") && !asks("是"));
    }
}
