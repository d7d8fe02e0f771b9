//! Which manner a complaint asks for. "That was far too wordy for me" says what was wrong; what is
//! learned from is what should have been: "keep it short".

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use super::table::{Hit, Section, Tables};
use super::text::Text;

const FILE: (&str, &str) = ("manners", include_str!("../../rules/manners.txt"));

fn table() -> &'static Tables {
    static TABLE: OnceLock<Tables> = OnceLock::new();
    TABLE.get_or_init(|| match Tables::compile(&[FILE]) {
        Ok(table) => table,
        // The file is part of the binary, and a test compiles it.
        Err(error) => unreachable!("{error}"),
    })
}

/// The wishes that these sentences of a complaint come to, each once, as they are said.
pub(super) fn wishes(text: &Text, sentences: RangeInclusive<usize>) -> Vec<&'static str> {
    let table = table();
    let mut found = Vec::new();
    for hit in table.find(text, table.everything()) {
        let Hit { section, start, .. } = hit;
        let sentence = text.tokens[start].sentence;
        if let Section::Manner(wish) = section
            && sentences.contains(&sentence)
            && !found.contains(&wish)
        {
            found.push(wish);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::text::read;
    use super::*;

    #[test]
    fn complaints_come_to_wishes() {
        let rows: &[(&str, &[&str])] = &[
            ("Way too verbose, nobody reads that.", &["keep it short"]),
            ("Das ist mir zu lang.", &["keep it short"]),
            ("I'd rather have bullets here.", &["use bullet points"]),
            ("I'd rather not see any bullets.", &["no bullets please"]),
            ("A greeting would be nice.", &["greet me first"]),
            ("Please skip the greeting.", &["no greeting please"]),
            (
                "Too long, and a list would be better.",
                &["keep it short", "use bullet points"],
            ),
            // A "no" to the answer is none to what is asked for.
            ("No, please greet me first.", &["greet me first"]),
            ("No, I wanted that as a list.", &["use bullet points"]),
            ("No greetings, please.", &["no greeting please"]),
            ("No more bullets.", &["no bullets please"]),
            ("This is far too stiff.", &["be more relaxed"]),
            // Nor is it a wish to name what is not wanted.
            ("I don't need a hello every time.", &["no greeting please"]),
            ("I hate this formal style.", &["be more relaxed"]),
            ("Don't use a casual tone with me.", &["use a formal tone"]),
            ("Why such short answers?", &["more detail please"]),
            ("Be polite, please.", &["use a formal tone"]),
            ("Use metric units.", &[]),
            ("", &[]),
        ];
        for (said, expected) in rows {
            let text = read(said);
            let all = 0..=text.sentences.len();
            assert_eq!(wishes(&text, all), *expected, "{said}");
        }
    }

    #[test]
    fn other_sentences_do_not_count() {
        let text = read("That is wrong. Which countries have short names?");
        assert!(wishes(&text, 0..=0).is_empty());
    }
}
