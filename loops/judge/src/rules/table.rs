//! The phrase tables: text files compiled once, and the search for their phrases.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use super::text::{Text, Token, read};

const FILES: &[(&str, &str)] = &[
    ("emoji", include_str!("../../rules/emoji.txt")),
    ("en", include_str!("../../rules/en.txt")),
    ("de", include_str!("../../rules/de.txt")),
    ("fr", include_str!("../../rules/fr.txt")),
    ("es", include_str!("../../rules/es.txt")),
    ("it", include_str!("../../rules/it.txt")),
    ("pt", include_str!("../../rules/pt.txt")),
    ("zh", include_str!("../../rules/zh.txt")),
];

/// Replies shorter than this do not show their language, so every table speaks.
const LANGUAGE_SHOWS_FROM: usize = 6;
/// How many words before and after its phrase tell what a question is about.
const QUESTION_REACH: usize = 40;

/// What a match of a phrase means; see `rules/README.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Section {
    Good,
    Praise,
    Thanks,
    Bad,
    Blame,
    Change,
    Again,
    No,
    Nothing,
    /// The same, in a question about the world.
    Asked,
    Own,
    /// A complaint about manners, and the wish that it comes to.
    Manner(&'static str),
}

/// Sets of single words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Set {
    Negator,
    Contrast,
    If,
    Anchor,
    That,
    Request,
    Common,
    Filler,
    Own,
}

#[derive(Debug, PartialEq, Eq)]
enum Element {
    Words { any: Vec<Pattern>, optional: bool },
    One,
    Gap,
    SentenceStart,
    ReplyStart,
    SentenceEnd,
}

#[derive(Debug, PartialEq, Eq)]
enum Pattern {
    Whole(String),
    Begins(String),
    Ends(String),
}

#[derive(Debug)]
struct Phrase {
    section: Section,
    language: usize,
    elements: Vec<Element>,
}

/// A phrase found in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// What it means.
    pub section: Section,
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
    /// Number of words that were named, not skipped.
    weight: usize,
}

/// All tables, ready to search.
#[derive(Debug)]
pub(crate) struct Tables {
    phrases: Vec<Phrase>,
    by_first: HashMap<String, Vec<usize>>,
    loose: Vec<usize>,
    sets: Vec<HashMap<Set, HashSet<String>>>,
}

/// Which tables speak about a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaking([bool; FILES.len()]);

/// The tables of this binary.
pub(crate) fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| match Tables::compile(FILES) {
        Ok(tables) => tables,
        // The files are part of the binary, and a test compiles them.
        Err(error) => unreachable!("{error}"),
    })
}

impl Tables {
    pub(super) fn compile(files: &[(&str, &str)]) -> Result<Self, String> {
        let mut tables = Self {
            phrases: Vec::new(),
            by_first: HashMap::new(),
            loose: Vec::new(),
            sets: files.iter().map(|_| HashMap::new()).collect(),
        };
        for (language, (name, file)) in files.iter().enumerate() {
            let mut place = None;
            for (number, line) in file.lines().enumerate() {
                let line = line.trim();
                let wrong = |what: &str| format!("{name}.txt:{}: {what}: {line}", number + 1);
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                if let Some(title) = line.strip_prefix('[') {
                    place =
                        Some(section(title.trim_end_matches(']')).ok_or(wrong("no such section"))?);
                    continue;
                }
                match place.ok_or(wrong("a phrase before the first section"))? {
                    Place::Phrases(section) => tables.add(section, language, line),
                    Place::Words(set) => {
                        let words = tables.sets[language].entry(set).or_default();
                        words.extend(read(line).tokens.into_iter().map(|t| t.word));
                    }
                }
            }
        }
        Ok(tables)
    }

    fn add(&mut self, section: Section, language: usize, line: &str) {
        let elements = elements(line);
        let index = self.phrases.len();
        match first_words(&elements) {
            Some(words) => {
                for word in words {
                    self.by_first.entry(word).or_default().push(index);
                }
            }
            None => self.loose.push(index),
        }
        self.phrases.push(Phrase {
            section,
            language,
            elements,
        });
    }

    /// The tables whose language the reply shows; all of them where it is too short to show one.
    pub(crate) fn speaking(&self, text: &Text) -> Speaking {
        let mut speaking = self.everything();
        if text.tokens.len() < LANGUAGE_SHOWS_FROM {
            return speaking;
        }
        let counts: Vec<usize> = self
            .sets
            .iter()
            .map(|sets| {
                let common = sets.get(&Set::Common);
                let known = |t: &&Token| common.is_some_and(|c| c.contains(&t.word));
                text.tokens.iter().filter(known).count()
            })
            .collect();
        let most = counts.iter().copied().max().unwrap_or(0);
        if most == 0 {
            return speaking;
        }
        for (index, (name, _)) in FILES.iter().enumerate() {
            speaking.0[index] = *name == "emoji" || counts[index] * 10 >= most * 7;
        }
        speaking
    }

    /// Every table speaks.
    pub(super) fn everything(&self) -> Speaking {
        Speaking([true; FILES.len()])
    }

    /// Whether `word` is in `set` of a table that speaks.
    pub(crate) fn has(&self, speaking: Speaking, set: Set, word: &str) -> bool {
        self.sets
            .iter()
            .zip(speaking.0)
            .any(|(sets, speaks)| speaks && sets.get(&set).is_some_and(|s| s.contains(word)))
    }

    /// The phrases in a reply, in order, without overlaps: the one that names most words wins.
    pub(crate) fn find(&self, text: &Text, speaking: Speaking) -> Vec<Hit> {
        let tokens = &text.tokens;
        let mut hits = Vec::new();
        for start in 0..tokens.len() {
            let named = self.by_first.get(&tokens[start].word);
            for &index in named.into_iter().flatten().chain(&self.loose) {
                let phrase = &self.phrases[index];
                if !speaking.0[phrase.language] {
                    continue;
                }
                let asked = phrase.section == Section::Asked;
                if let Some((end, weight)) = match_at(&phrase.elements, tokens, start, start)
                    && (!asked || self.asks_about_the_world(text, speaking, start))
                {
                    hits.push(Hit {
                        section: phrase.section,
                        start,
                        end,
                        weight,
                    });
                }
            }
        }
        hits.sort_by_key(|hit| (std::cmp::Reverse(hit.weight), hit.start, hit.end));
        let mut kept: Vec<Hit> = Vec::new();
        for hit in hits {
            if hit.end > hit.start
                && kept
                    .iter()
                    .all(|k| hit.end <= k.start || k.end <= hit.start)
            {
                kept.push(hit);
            }
        }
        kept.sort_by_key(|hit| hit.start);
        kept
    }

    /// Whether the words from `start` on are asked without a word that names the completion before
    /// them ("your code is wrong if ...") and without a request after them ("..., can you mend it?").
    fn asks_about_the_world(&self, text: &Text, speaking: Speaking, start: usize) -> bool {
        let sentence = text.tokens[start].sentence;
        let has = |set, token: &Token| self.has(speaking, set, &token.word);
        let mut before = (text.tokens[..start].iter().rev().take(QUESTION_REACH))
            .take_while(|token| token.sentence == sentence);
        let is_told = before.clone().next().is_some_and(|t| has(Set::That, t));
        let is_named = !is_told && before.any(|t| has(Set::Anchor, t));
        let goes_on = || self.goes_on_with_request(&text.tokens[start..], speaking);
        text.sentences[sentence].asks && !is_named && !goes_on()
    }

    /// Whether a later clause of the first sentence begins with a request.
    fn goes_on_with_request(&self, tokens: &[Token], speaking: Speaking) -> bool {
        let sentence = (tokens.iter().take(QUESTION_REACH))
            .take_while(|token| token.sentence == tokens[0].sentence);
        let later: Vec<&Token> = sentence.filter(|t| t.clause != tokens[0].clause).collect();
        later
            .chunk_by(|a, b| a.clause == b.clause)
            .flat_map(|clause| clause.iter().take(2))
            .any(|token| self.has(speaking, Set::Request, &token.word))
    }
}

#[derive(Clone, Copy)]
enum Place {
    Phrases(Section),
    Words(Set),
}

fn section(title: &str) -> Option<Place> {
    Some(match title {
        "good" => Place::Phrases(Section::Good),
        "praise" => Place::Phrases(Section::Praise),
        "thanks" => Place::Phrases(Section::Thanks),
        "bad" => Place::Phrases(Section::Bad),
        "blame" => Place::Phrases(Section::Blame),
        "change" => Place::Phrases(Section::Change),
        "again" => Place::Phrases(Section::Again),
        "no" => Place::Phrases(Section::No),
        "none" => Place::Phrases(Section::Nothing),
        "asked" => Place::Phrases(Section::Asked),
        "self" => Place::Phrases(Section::Own),
        "negator" => Place::Words(Set::Negator),
        "contrast" => Place::Words(Set::Contrast),
        "if" => Place::Words(Set::If),
        "anchor" => Place::Words(Set::Anchor),
        "that" => Place::Words(Set::That),
        "request" => Place::Words(Set::Request),
        "common" => Place::Words(Set::Common),
        "filler" => Place::Words(Set::Filler),
        "own" => Place::Words(Set::Own),
        "short" => Place::Phrases(Section::Manner("keep it short")),
        "long" => Place::Phrases(Section::Manner("more detail please")),
        "list" => Place::Phrases(Section::Manner("use bullet points")),
        "prose" => Place::Phrases(Section::Manner("no bullets please")),
        "greeting" => Place::Phrases(Section::Manner("greet me first")),
        "no greeting" => Place::Phrases(Section::Manner("no greeting please")),
        "formal" => Place::Phrases(Section::Manner("use a formal tone")),
        "casual" => Place::Phrases(Section::Manner("be more relaxed")),
        _ => return None,
    })
}

fn elements(line: &str) -> Vec<Element> {
    let mut elements = Vec::new();
    for part in line.split_whitespace() {
        match part {
            "~" => elements.push(Element::Gap),
            "_" => elements.push(Element::One),
            "^" => elements.push(Element::SentenceStart),
            "^^" => elements.push(Element::ReplyStart),
            "$" => elements.push(Element::SentenceEnd),
            words => {
                let optional = words.ends_with('?');
                let any: Vec<&str> = words.trim_end_matches('?').split('/').collect();
                if any.len() == 1 && !any[0].contains('*') {
                    // One word as written may be several tokens, such as Chinese signs.
                    elements.extend(read(any[0]).tokens.into_iter().map(|t| Element::Words {
                        any: vec![Pattern::Whole(t.word)],
                        optional,
                    }));
                } else {
                    let any = any.into_iter().map(pattern).collect();
                    elements.push(Element::Words { any, optional });
                }
            }
        }
    }
    elements
}

fn pattern(word: &str) -> Pattern {
    let folded: String = read(word.trim_matches('*'))
        .tokens
        .into_iter()
        .map(|t| t.word)
        .collect();
    if word.ends_with('*') {
        Pattern::Begins(folded)
    } else if word.starts_with('*') {
        Pattern::Ends(folded)
    } else {
        Pattern::Whole(folded)
    }
}

/// The words a phrase can begin with; none where they cannot be listed.
fn first_words(elements: &[Element]) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for element in elements {
        match element {
            Element::SentenceStart | Element::ReplyStart => {}
            Element::Words { any, optional } => {
                for pattern in any {
                    match pattern {
                        Pattern::Whole(word) => words.push(word.clone()),
                        Pattern::Begins(_) | Pattern::Ends(_) => return None,
                    }
                }
                if !optional {
                    return Some(words);
                }
            }
            Element::One | Element::Gap | Element::SentenceEnd => return None,
        }
    }
    None
}

/// Matches a phrase from token `at`; gives one past the last token and the words named.
fn match_at(
    elements: &[Element],
    tokens: &[Token],
    first: usize,
    at: usize,
) -> Option<(usize, usize)> {
    let Some((element, rest)) = elements.split_first() else {
        return Some((at, 0));
    };
    let sentence = tokens[first].sentence;
    let here = tokens.get(at).filter(|t| t.sentence == sentence);
    match element {
        Element::SentenceStart => {
            let starts = at == 0 || tokens[at - 1].sentence != tokens[first].sentence;
            starts.then(|| match_at(rest, tokens, first, at))?
        }
        Element::ReplyStart => (at == 0).then(|| match_at(rest, tokens, first, at))?,
        Element::SentenceEnd => here.is_none().then(|| match_at(rest, tokens, first, at))?,
        Element::One => here.and_then(|_| match_at(rest, tokens, first, at + 1)),
        Element::Gap => (0..=3).find_map(|skip| {
            let inside =
                (at..at + skip).all(|i| tokens.get(i).is_some_and(|t| t.sentence == sentence));
            inside.then(|| match_at(rest, tokens, first, at + skip))?
        }),
        Element::Words { any, optional } => {
            let matches = here.is_some_and(|token| {
                any.iter().any(|pattern| match pattern {
                    Pattern::Whole(word) => token.word == *word,
                    Pattern::Begins(word) => token.word.starts_with(word.as_str()),
                    Pattern::Ends(word) => token.word.ends_with(word.as_str()),
                })
            });
            let taken = matches
                .then(|| match_at(rest, tokens, first, at + 1))
                .flatten();
            match taken {
                Some((end, weight)) => Some((end, weight + 1)),
                None if *optional => match_at(rest, tokens, first, at),
                None => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tables: &Tables, reply: &str) -> Vec<(Section, String)> {
        let text = read(reply);
        let hits = tables.find(&text, Speaking([true; FILES.len()]));
        hits.into_iter()
            .map(|h| {
                let words: Vec<&str> = text.tokens[h.start..h.end]
                    .iter()
                    .map(|t| t.word.as_str())
                    .collect();
                (h.section, words.join(" "))
            })
            .collect()
    }

    #[test]
    fn the_tables_of_the_binary_compile_and_no_phrase_is_empty() {
        let tables = Tables::compile(FILES).expect("the files are well formed");
        assert!(tables.phrases.iter().all(|p| !p.elements.is_empty()));
        assert!(tables.phrases.len() > 1000);
        let error = Tables::compile(&[("x", "[good]\nfine\n[god]\n")]).unwrap_err();
        assert_eq!(error, "x.txt:3: no such section: [god]");
    }

    #[test]
    fn what_is_asked_hides_its_words_in_questions_only() {
        let file = "[bad]\nis wrong\nnot is wrong\n[asked]\nis wrong to\n";
        let tables = Tables::compile(&[("x", file)]).expect("well formed");
        let sections = |reply: &str| -> Vec<Section> {
            let found = found(&tables, reply);
            found.into_iter().map(|(section, _)| section).collect()
        };
        assert_eq!(sections("is wrong to lie?"), [Section::Asked]);
        assert_eq!(sections("is wrong to lie. why?"), [Section::Bad]);
        assert_eq!(sections("is wrong?"), [Section::Bad]);
        assert_eq!(sections("not is wrong to lie?"), [Section::Bad]);
    }

    #[test]
    fn what_names_the_completion_or_goes_on_with_a_request_is_not_asked_about_the_world() {
        let file = "[bad]\nis wrong\n[asked]\nis wrong to/if\n[anchor]\nyour\n[that]\nthat\n\
                    [request]\ncan\n";
        let tables = Tables::compile(&[("x", file)]).expect("well formed");
        let section = |reply: &str| found(&tables, reply)[0].0;
        assert_eq!(section("your code is wrong if empty?"), Section::Bad);
        assert_eq!(section("the code is wrong if empty?"), Section::Asked);
        assert_eq!(section("your code. is wrong to lie?"), Section::Asked);
        assert_eq!(
            section("your view says that is wrong to lie?"),
            Section::Asked
        );
        assert_eq!(section("is wrong if empty, can you mend it?"), Section::Bad);
        assert_eq!(section("is wrong if empty, you can mend it?"), Section::Bad);
        assert_eq!(
            section("is wrong to lie, or what can one do?"),
            Section::Asked
        );
        assert_eq!(section("is wrong to lie, no?"), Section::Asked);
    }

    #[test]
    fn phrases_match_as_the_readme_says_and_the_longest_wins() {
        let file =
            "[good]\nnot bad\n^ a/b c? $\nso ~ good\npre* _ x\n[blame]\nbad\n[none]\n^^ no thanks";
        let tables = Tables::compile(&[("x", file)]).expect("well formed");
        let own = |reply: &str| found(&tables, reply);
        assert_eq!(own("this is not bad"), [(Section::Good, "not bad".into())]);
        assert_eq!(own("not so, bad"), [(Section::Blame, "bad".into())]);
        assert_eq!(
            own("b c. a. c a"),
            [(Section::Good, "b c".into()), (Section::Good, "a".into())]
        );
        assert_eq!(
            own("so very very good"),
            [(Section::Good, "so very very good".into())]
        );
        assert!(own("so very very very very good").is_empty());
        assert_eq!(
            own("prefix and x"),
            [(Section::Good, "prefix and x".into())]
        );
        assert_eq!(own("No, thanks"), [(Section::Nothing, "no thanks".into())]);
        assert!(own("ok no thanks").is_empty());
        assert!(own("not. bad").iter().all(|(s, _)| *s == Section::Blame));
    }
}
