//! Word lists and the small sentences made of them.

use std::sync::OnceLock;

use crate::rng::Rng;

/// The word lists of `words.txt`.
#[derive(Debug, Default)]
pub(super) struct Words {
    nouns: Vec<&'static str>,
    verbs: Vec<&'static str>,
    adjectives: Vec<&'static str>,
    adverbs: Vec<&'static str>,
    linkers: Vec<&'static str>,
    names: Vec<&'static str>,
    roots: Vec<&'static str>,
}

impl Words {
    /// The one parsed copy.
    pub(super) fn shared() -> &'static Self {
        static WORDS: OnceLock<Words> = OnceLock::new();
        WORDS.get_or_init(|| Self::parse(include_str!("words.txt")))
    }

    fn parse(text: &'static str) -> Self {
        let mut words = Self::default();
        let mut section = "";
        for line in text.lines() {
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
            {
                section = name;
                continue;
            }
            let list = match section {
                "nouns" => &mut words.nouns,
                "verbs" => &mut words.verbs,
                "adjectives" => &mut words.adjectives,
                "adverbs" => &mut words.adverbs,
                "linkers" => &mut words.linkers,
                "names" => &mut words.names,
                _ => &mut words.roots,
            };
            list.extend(line.split_whitespace());
        }
        words
    }

    pub(super) fn noun(&self, rng: &mut Rng) -> &str {
        rng.word(&self.nouns)
    }

    pub(super) fn verb(&self, rng: &mut Rng) -> &str {
        rng.word(&self.verbs)
    }

    pub(super) fn adjective(&self, rng: &mut Rng) -> &str {
        rng.word(&self.adjectives)
    }

    pub(super) fn adverb(&self, rng: &mut Rng) -> &str {
        rng.word(&self.adverbs)
    }

    pub(super) fn name(&self, rng: &mut Rng) -> &str {
        rng.word(&self.names)
    }

    pub(super) fn root(&self, rng: &mut Rng) -> &str {
        rng.word(&self.roots)
    }

    /// "the old folder", "a file".
    pub(super) fn thing(&self, rng: &mut Rng) -> String {
        let article = rng.word(&["the", "a", "this", "each", "your", "its", "any", "our"]);
        if rng.chance(0.4) {
            format!("{article} {} {}", self.adjective(rng), self.noun(rng))
        } else {
            format!("{article} {}", self.noun(rng))
        }
    }

    /// A name as programs use them: `user_report`, `loadModel`.
    pub(super) fn identifier(&self, rng: &mut Rng) -> String {
        let (one, two) = (self.verb(rng), self.noun(rng));
        match rng.below(4) {
            0 => format!("{one}_{two}"),
            1 => format!("{one}{}", capital(two)),
            2 => format!("{}{}", capital(two), capital(self.noun(rng))),
            _ => format!("{}-{two}", self.root(rng)),
        }
    }

    /// A clause without its full stop: some are sound, some only sound so.
    pub(super) fn clause(&self, rng: &mut Rng) -> String {
        let (verb, thing) = (self.verb(rng), self.thing(rng));
        match rng.below(7) {
            0 => format!(
                "{thing} can {verb} {} {}",
                self.thing(rng),
                self.adverb(rng)
            ),
            1 => format!(
                "we {verb} {thing} {} {}",
                rng.word(&self.linkers),
                self.thing(rng)
            ),
            2 => format!(
                "{thing} is {} and {}",
                self.adjective(rng),
                self.adjective(rng)
            ),
            3 => format!(
                "you {} {verb} {thing} {} it is {}",
                self.adverb(rng),
                rng.word(&self.linkers),
                self.adjective(rng)
            ),
            4 => format!("there are {} ways to {verb} {thing}", rng.between(2, 90)),
            5 => format!(
                "{} wants to {verb} {thing} with {}",
                self.name(rng),
                self.thing(rng)
            ),
            _ => self.loose(rng),
        }
    }

    /// Words in any order.
    fn loose(&self, rng: &mut Rng) -> String {
        let mut text = String::from(self.noun(rng));
        for _ in 0..rng.between(4, 12) {
            let word = match rng.below(5) {
                0 => self.verb(rng),
                1 => self.adjective(rng),
                2 => self.adverb(rng),
                3 => rng.word(&self.linkers),
                _ => self.noun(rng),
            };
            text.push(' ');
            text.push_str(word);
        }
        text
    }

    /// A sentence with capital and stop.
    pub(super) fn sentence(&self, rng: &mut Rng) -> String {
        let mut text = capital(&self.clause(rng));
        if rng.chance(0.3) {
            let link = rng.word(&[", and ", ", but ", "; ", ", so that ", " because "]);
            text.push_str(link);
            text.push_str(&self.clause(rng));
        }
        text.push_str(rng.word(&[".", ".", ".", ".", "!", ":", "?"]));
        text
    }

    /// A path of folders and a file name.
    pub(super) fn path(&self, rng: &mut Rng) -> String {
        let mut path = String::from(rng.word(&["", "/", "./", "src/", "~/"]));
        for _ in 0..rng.below(4) {
            path.push_str(if rng.chance(0.5) {
                self.root(rng)
            } else {
                self.noun(rng)
            });
            path.push('/');
        }
        path.push_str(&self.identifier(rng));
        path.push_str(rng.word(&[
            ".md", ".rs", ".py", ".ts", ".json", ".txt", ".toml", ".yaml", "",
        ]));
        path
    }
}

/// The word with a capital first letter.
pub(super) fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

/// Letters and digits without meaning.
pub(super) fn code_word(rng: &mut Rng, alphabet: &[u8], length: usize) -> String {
    (0..length)
        .map(|_| char::from(*rng.pick(alphabet)))
        .collect()
}
