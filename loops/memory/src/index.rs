//! Which memories have to do with a text: Okapi BM25 (Robertson and Zaragoza 2009) over the words that carry meaning.
//!
//! A word counts whole and by its first letters, so that "dogs" finds "dog" in every language that inflects at the end.
//! Where words are written without spaces, pairs of characters count.

use std::collections::HashSet;
use std::sync::LazyLock;

use bm25::{SearchEngine, SearchEngineBuilder, Tokenizer};
use hone_domain::{opening_words, words_of};
use stop_words::LANGUAGE;

/// Length of the beginning that is taken as a stem.
const STEM_CHARS: usize = 5;
/// Fewest letters before a final s that may be a plural's.
const PLURAL_CHARS: usize = 3;

/// Fewest words of a language's list that show a text to be in it.
const LANGUAGE_WORDS: usize = 2;

/// The words of each language that carry no meaning of their own; English first.
static STOPS: LazyLock<Vec<HashSet<String>>> = LazyLock::new(|| {
    use LANGUAGE::{
        Arabic, Danish, Dutch, English, Finnish, French, German, Greek, Hungarian, Indonesian,
        Italian, Norwegian, Portuguese, Romanian, Russian, Spanish, Swedish, Turkish,
    };
    let languages = [
        English, Arabic, Danish, Dutch, Finnish, French, German, Greek, Hungarian, Indonesian,
        Italian, Norwegian, Portuguese, Romanian, Russian, Spanish, Swedish, Turkish,
    ];
    let words = |language| {
        let listed = stop_words::get(language).iter();
        listed.flat_map(|entry| words_of(entry)).collect()
    };
    languages.into_iter().map(words).collect()
});

/// Words that ask to remember.
pub(crate) static OPENINGS: LazyLock<HashSet<String>> = LazyLock::new(|| opening_words().collect());

/// The stop words of the language that most words belong to, the first of equals. Lists are not joined: "dog" is a stop
/// word in Danish and carries the meaning in English. A text with fewer than two stop words counts as English.
pub(crate) fn stop_words_of(words: &[String]) -> &'static HashSet<String> {
    let known =
        |stops: &&HashSet<String>| words.iter().filter(|word| stops.contains(*word)).count();
    let lists = || STOPS.iter().rev();
    match lists().max_by_key(known) {
        Some(best) if known(&best) >= LANGUAGE_WORDS => best,
        _ => &STOPS[0],
    }
}

struct Terms;

impl Tokenizer for Terms {
    fn tokenize(&self, text: &str) -> Vec<String> {
        let words = words_of(text);
        let stops = stop_words_of(&words);
        let mut terms = Vec::new();
        for word in words {
            if !stops.contains(&word) && !OPENINGS.contains(&word) {
                push_terms(word, &mut terms);
            }
        }
        // Scripts without spaces give pairs of characters, of which some are openings.
        terms.retain(|term| !OPENINGS.contains(term));
        terms
    }
}

/// The terms of a word without the word itself.
pub(crate) fn stems(word: &str) -> Vec<String> {
    let mut terms = Vec::new();
    push_terms(word.to_owned(), &mut terms);
    if terms.len() > 1 {
        terms.retain(|term| term != word);
    }
    terms
}

/// The stems of a text's words that carry meaning.
pub(crate) fn meaning_of(text: &str) -> HashSet<String> {
    let words = words_of(text);
    let stops = stop_words_of(&words);
    let words = words.iter();
    let words = words.filter(|word| !stops.contains(*word) && !OPENINGS.contains(*word));
    words.flat_map(|word| stems(word)).collect()
}

fn push_terms(word: String, terms: &mut Vec<String>) {
    let chars: Vec<char> = word.chars().collect();
    if chars.iter().copied().any(is_written_without_spaces) {
        match chars.len() {
            1 => terms.push(word),
            _ => terms.extend(chars.windows(2).map(|pair| pair.iter().collect())),
        }
        return;
    }
    let bare = match chars.as_slice() {
        [begin @ .., 's'] if begin.len() >= PLURAL_CHARS => begin,
        all => all,
    };
    // The mark keeps the stem of "planet" apart from the word "plane".
    let stem = bare.iter().take(STEM_CHARS).collect::<String>() + "*";
    terms.push(word);
    terms.push(stem);
}

/// Whether a character belongs to the Chinese, Japanese, Thai, Lao, Khmer or Burmese script.
fn is_written_without_spaces(c: char) -> bool {
    matches!(c,
        '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{20000}'..='\u{3ffff}'
        | '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}')
}

/// An index of texts.
pub struct Index(SearchEngine<u32, u32, Terms>);

impl Index {
    /// Of these texts; a match is their place among them.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let document = |(at, text)| bm25::Document::new(at, text);
        let texts: Vec<bm25::Document<u32>> = (0u32..).zip(texts).map(document).collect();
        let builder = SearchEngineBuilder::with_tokenizer_and_documents(Terms, texts);
        Self(builder.build())
    }

    /// At most `most` of the texts that share a word with `query`, the best first.
    pub fn matches(&self, query: &str, most: usize) -> Vec<usize> {
        let found = self.0.search(query, most);
        found
            .into_iter()
            .map(|hit| hit.document.id as usize)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Index {
        Index::of([
            "Remember that I am vegetarian.",
            "Remember that my dog is called Rex.",
            "Recuerda que vivo en Málaga.",
            "记住我对花生过敏。",
            "Запомни, что моя собака — такса.",
        ])
    }

    #[test]
    fn what_shares_a_word_is_found_and_the_rarer_word_comes_first() {
        let index = index();
        for (query, found) in [
            ("What is my DOG called?", &[1][..]),
            ("Do dogs eat vegetables?", &[0, 1]),
            ("Is that what I am, remember?", &[]),
            ("dog", &[1]),
            ("málaga", &[2]),
            ("我能吃花生吗？", &[3]),
            ("Чем кормить собаку?", &[4]),
            ("weather", &[]),
            ("", &[]),
        ] {
            let mut got = index.matches(query, 5);
            got.sort_unstable();
            assert_eq!(got, found, "{query}");
        }
        let index = Index::of(["my dog and my cat", "my cat", "the red cat"]);
        assert_eq!(index.matches("dog or cat", 5).first(), Some(&0));
        assert_eq!(index.matches("dog or cat", 1), [0]);
        assert!(Index::of([]).matches("dog", 5).is_empty());
    }

    #[test]
    fn ten_thousand_texts_are_searched_in_milliseconds() {
        let text = |n: usize| {
            format!(
                "Remember that my item {n} lies in drawer {} of room {}.",
                n % 97,
                n % 13
            )
        };
        let texts: Vec<String> = (0..10_000).map(text).collect();
        let index = Index::of(texts.iter().map(String::as_str));
        let began = std::time::Instant::now();
        let found = index.matches("Where does item 4711 lie?", 16);
        let took = began.elapsed();
        assert_eq!(found.first(), Some(&4711));
        assert!(took.as_millis() < 500, "{took:?}");
    }
}
