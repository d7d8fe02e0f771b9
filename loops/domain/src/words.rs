//! The words of a text.

/// Words in lower case, without marks.
pub fn words_of(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_alphanumeric());
    words.filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_part_words_and_belong_to_none() {
        let words = words_of("  It's GREAT — ¿qué tal?\n42!");
        assert_eq!(words, ["it", "s", "great", "qué", "tal", "42"]);
        assert!(words_of(" …").is_empty());
    }
}
