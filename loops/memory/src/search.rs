//! Which memories have to do with a text: Okapi BM25 over their words (Robertson and Zaragoza 2009).

use bm25::{SearchEngine, SearchEngineBuilder, Tokenizer};
use hone_domain::{Memory, words_of};

struct Words;

impl Tokenizer for Words {
    fn tokenize(&self, text: &str) -> Vec<String> {
        words_of(text)
    }
}

/// At most `most` of the memories that share a word with `query`, the best first, each with its score.
pub fn best_matches(memories: Vec<Memory>, query: &str, most: usize) -> Vec<(f32, Memory)> {
    let texts: Vec<&str> = memories.iter().map(|memory| memory.text.as_str()).collect();
    if texts.is_empty() {
        return Vec::new();
    }
    let builder = SearchEngineBuilder::<u32, u32, Words>::with_tokenizer_and_corpus(Words, texts);
    let engine: SearchEngine<u32, u32, Words> = builder.build();
    let found = engine.search(query, most);
    let mut memories: Vec<Option<Memory>> = memories.into_iter().map(Some).collect();
    let taken = found.into_iter().filter_map(|hit| {
        let memory = memories.get_mut(hit.document.id as usize)?.take()?;
        Some((hit.score, memory))
    });
    taken.collect()
}

#[cfg(test)]
mod tests {
    use hone_domain::{MemoryId, MemoryKind, MemoryOrigin, Scope};
    use uuid::Uuid;

    use super::*;

    fn memory(number: u128, text: &str) -> Memory {
        Memory {
            id: MemoryId(Uuid::from_u128(number)),
            scope: Scope::of("ann", None),
            kind: MemoryKind::Fact,
            text: text.to_owned(),
            topic: None,
            turn: None,
            created_ms: 0,
            valid_until_ms: None,
            superseded_by: None,
            paused: false,
            uses: 0,
            origin: MemoryOrigin::Said,
        }
    }

    #[test]
    fn the_memory_with_the_rarer_words_comes_first() {
        let all = vec![
            memory(0, "Remember that I am vegetarian."),
            memory(1, "Remember that my dog is called Rex."),
            memory(2, "Recuerda que vivo en Málaga."),
        ];
        let found = |query: &str, most| -> Vec<u128> {
            let hits = best_matches(all.clone(), query, most);
            assert!(hits.windows(2).all(|pair| pair[0].0 >= pair[1].0));
            hits.iter().map(|(_, m)| m.id.0.as_u128()).collect()
        };
        assert_eq!(found("What is my DOG called?", 5), [1]);
        assert_eq!(found("remember the dog", 5), [1, 0]);
        assert_eq!(found("remember the dog", 1), [1]);
        assert_eq!(found("málaga", 5), [2]);
        assert!(found("weather", 5).is_empty());
        assert!(best_matches(Vec::new(), "dog", 5).is_empty());
    }
}
