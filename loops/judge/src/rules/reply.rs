//! What a person's reply says about the completion it answers.

use std::collections::BTreeSet;

use hone_domain::Outcome;

use super::ruling::{MOVED_ON, Ruling};
use super::table::{Hit, Section, Set, Speaking, Tables, tables};
use super::text::{Text, Token, read};
use super::{manners, tool};

/// In a longer reply only its first sentence is about the completion for sure.
const LONG_REPLY_WORDS: usize = 40;
/// A wish for another form stands in a sentence of at most so many words, or points back.
const WISH_WORDS: usize = 10;
/// How far before a word of praise or blame the thing it is said of may stand.
const ANCHOR_REACH: usize = 4;
/// How far before a word its negation may stand.
const NEGATION_REACH: usize = 3;
/// Most characters of a hint.
const HINT_CHARS: usize = 300;
/// How far back from its end a completion is searched for a question to the user.
const ASKING_CHARS: usize = 200;

/// What the reply answers.
pub(crate) struct Context<'a> {
    /// What the user had asked.
    pub asked: &'a str,
    /// The completion.
    pub completion: &'a str,
}

/// A sign in the reply.
#[derive(Clone, Copy, Debug)]
struct Sign {
    good: bool,
    rule: &'static str,
    start: usize,
    end: usize,
    sentence: usize,
}

/// Judges one reply.
pub(crate) fn judge(raw: &str, context: &Context<'_>) -> Ruling {
    let text = read(raw);
    if fails_as_told(raw, context) {
        return Ruling::new(Outcome::Bad, "reports_failure");
    }
    if text.tokens.is_empty() {
        return Ruling::new(Outcome::Abstain, "no_words");
    }
    if asks_again(&text, context) {
        return Ruling::new(Outcome::Bad, "asked_again");
    }
    let tables = tables();
    let speaking = tables.speaking(&text);
    let hits = tables.find(&text, speaking);
    if hits.iter().any(|hit| hit.section == Section::Own) {
        return Ruling::new(Outcome::Abstain, "own_mistake");
    }
    let reading = Reading {
        tables,
        speaking,
        text: &text,
        hits: &hits,
        asked_back: asks_back(context.completion),
    };
    let mut signs: Vec<Sign> = hits.iter().filter_map(|hit| reading.sign(hit)).collect();
    reading.drop_thanks_for_later(&mut signs);
    reading.keep_after_contrast(&mut signs);
    let bad: Vec<Sign> = signs.iter().filter(|s| !s.good).copied().collect();
    if let Some(first) = bad.first() {
        let (hint, wish) = reading.hint(raw, &bad);
        return Ruling {
            hint,
            wish,
            ..Ruling::new(Outcome::Bad, first.rule)
        };
    }
    match signs.first() {
        Some(sign) => Ruling::new(Outcome::Good, sign.rule),
        None => Ruling::new(Outcome::Abstain, MOVED_ON),
    }
}

struct Reading<'a> {
    tables: &'a Tables,
    speaking: Speaking,
    text: &'a Text,
    hits: &'a [Hit],
    asked_back: bool,
}

impl Reading<'_> {
    /// What a phrase says about the completion, if it is said of it.
    fn sign(&self, hit: &Hit) -> Option<Sign> {
        let sentence = self.text.tokens[hit.start].sentence;
        let long = self.text.tokens.len() > LONG_REPLY_WORDS;
        if (long && sentence > 0) || self.is_supposed(hit) {
            return None;
        }
        let asks = self.text.sentences[sentence].asks;
        let negated = self.is_negated(hit);
        let (good, rule) = match hit.section {
            Section::Good => (!negated, if negated { "denied_praise" } else { "approval" }),
            Section::Praise if asks || long || !self.is_said_of_completion(hit) => return None,
            Section::Praise => (!negated, if negated { "denied_praise" } else { "praise" }),
            Section::Thanks if negated || self.is_a_name(hit) => return None,
            Section::Thanks => (true, "thanks"),
            Section::Bad if self.is_said_of_else(hit) => return None,
            Section::Bad => (false, "correction"),
            Section::Blame if asks || long || negated => return None,
            Section::Blame if !self.is_said_of_completion(hit) || self.is_owned(hit) => {
                return None;
            }
            Section::Blame => (false, "complaint"),
            Section::Change if long || !self.is_wish(hit) => return None,
            Section::Change => (false, "wants_other_form"),
            Section::Again if long || !self.is_only_about_form(hit) => return None,
            Section::Again => (false, "wants_other_form"),
            Section::No if self.asked_back || asks || !self.is_denial(hit) => return None,
            Section::No => (false, "denial"),
            Section::Nothing | Section::Asked | Section::Own | Section::Manner(_) => return None,
        };
        Some(Sign {
            good,
            rule,
            start: hit.start,
            end: hit.end,
            sentence,
        })
    }

    /// "No" at the beginning of the reply, or as a sentence of its own soon after.
    fn is_denial(&self, hit: &Hit) -> bool {
        let sentence = self.text.tokens[hit.start].sentence;
        hit.start == 0 || (sentence <= 1 && self.text.sentences[sentence].words == 1)
    }

    /// "if it works", "let me know whether it is wrong": nothing was said to be so.
    fn is_supposed(&self, hit: &Hit) -> bool {
        let sentence = self.text.tokens[hit.start].sentence;
        let before = self.text.tokens[..hit.start].iter().rev();
        !matches!(hit.section, Section::Thanks | Section::No)
            && before
                .take_while(|token| token.sentence == sentence)
                .any(|token| self.has(Set::If, &token.word))
    }

    fn is_negated(&self, hit: &Hit) -> bool {
        let clause = self.text.tokens[hit.start].clause;
        (hit.start.saturating_sub(NEGATION_REACH)..hit.start).any(|i| {
            let token = &self.text.tokens[i];
            token.clause == clause
                && (self.has(Set::Negator, &token.word) || token.word.ends_with("n't"))
                && !self.hits.iter().any(|h| h.start <= i && i < h.end)
        })
    }

    /// Praise and blame are said of everything in the world. They are about the completion in a
    /// short clause ("great", "so boring"), near a word for it ("your answer was"), or before one
    /// at the beginning of a sentence ("lovely poem").
    fn is_said_of_completion(&self, hit: &Hit) -> bool {
        let tokens = &self.text.tokens;
        let clause = tokens[hit.start].clause;
        let in_clause = |i: &usize| tokens[*i].clause == clause;
        let words = (0..tokens.len()).filter(in_clause).count();
        let first = (0..=hit.start).find(in_clause).unwrap_or(hit.start);
        let sentence = &self.text.sentences[tokens[hit.start].sentence];
        let next = tokens.get(hit.end).filter(|t| t.clause == clause);
        if next.is_some_and(|t| !self.is_frequent(&t.word)) {
            // "a perfect day": said of what follows.
            return false;
        }
        if words <= 3 && sentence.words <= 8 {
            return true;
        }
        let anchored_before = (hit.start.saturating_sub(ANCHOR_REACH)..hit.start)
            .filter(in_clause)
            .any(|i| self.has(Set::Anchor, &tokens[i].word));
        let anchored_after = hit.start <= first + 1
            && (hit.end..tokens.len().min(hit.end + 2))
                .filter(in_clause)
                .any(|i| self.has(Set::Anchor, &tokens[i].word));
        anchored_before || anchored_after
    }

    /// A wish for another form is about this completion unless it decorates a new question.
    fn is_wish(&self, hit: &Hit) -> bool {
        let sentence = self.text.tokens[hit.start].sentence;
        let asks_else =
            (self.text.sentences.iter().enumerate()).any(|(i, other)| i != sentence && other.asks);
        let short = self.text.sentences[sentence].words <= WISH_WORDS;
        !asks_else && (short || self.is_said_of_completion(hit)) && self.is_bare_before(hit)
    }

    /// Nothing but frequent words and other phrases stand before it in its clause, so that it has
    /// no subject of its own: "the film was too long" says nothing of the completion.
    fn is_bare_before(&self, hit: &Hit) -> bool {
        let clause = self.text.tokens[hit.start].clause;
        let before = (0..hit.start).filter(|&i| self.text.tokens[i].clause == clause);
        before
            .filter(|&i| {
                !self
                    .hits
                    .iter()
                    .any(|h| is_said(h) && h.start <= i && i < h.end)
            })
            .all(|i| self.is_frequent(&self.text.tokens[i].word))
    }

    fn is_frequent(&self, word: &str) -> bool {
        let sets = [Set::Common, Set::Filler, Set::Anchor, Set::Contrast];
        sets.iter().any(|set| self.has(*set, word))
    }

    /// "my car does not work": said of the user's own things.
    fn is_owned(&self, hit: &Hit) -> bool {
        let sentence = self.text.tokens[hit.start].sentence;
        (hit.start.saturating_sub(ANCHOR_REACH)..hit.start)
            .map(|i| &self.text.tokens[i])
            .any(|token| token.sentence == sentence && self.has(Set::Own, &token.word))
    }

    /// Correcting words about something else: the user's own, or the subject of a longer question
    /// that does not mention the completion.
    fn is_said_of_else(&self, hit: &Hit) -> bool {
        let index = self.text.tokens[hit.start].sentence;
        let sentence = &self.text.sentences[index];
        let mentions =
            |token: &Token| token.sentence == index && self.has(Set::Anchor, &token.word);
        self.is_owned(hit)
            || (sentence.asks && sentence.words > 6 && !self.text.tokens.iter().any(mentions))
    }

    /// "Thank you letter for a teacher" thanks nobody.
    fn is_a_name(&self, hit: &Hit) -> bool {
        let clause = self.text.tokens[hit.start].clause;
        let words = self
            .text
            .tokens
            .iter()
            .filter(|t| t.clause == clause)
            .count();
        let next = self.text.tokens.get(hit.end).filter(|t| t.clause == clause);
        words > 4 && next.is_some_and(|t| !self.is_frequent(&t.word))
    }

    /// "as a table, please" is about the completion; "list the planets in a table" is new.
    fn is_only_about_form(&self, hit: &Hit) -> bool {
        self.text.tokens.iter().enumerate().all(|(i, token)| {
            self.hits.iter().any(|h| h.start <= i && i < h.end)
                || (hit.start <= i && i < hit.end)
                || self.is_frequent(&token.word)
        })
    }

    /// "Please do this. Thanks!" thanks for what is still to be done.
    fn drop_thanks_for_later(&self, signs: &mut Vec<Sign>) {
        let earlier = |sign: &Sign| {
            sign.rule == "thanks"
                && sign.sentence > 0
                && self.text.sentences[..sign.sentence]
                    .iter()
                    .map(|s| s.words)
                    .sum::<usize>()
                    > 3
        };
        let praised = signs.iter().any(|s| s.good && s.rule != "thanks");
        if !praised {
            signs.retain(|sign| !earlier(sign));
        }
        // In one sentence: "can you send it, thanks".
        signs.retain(|sign| {
            sign.rule != "thanks" || !self.text.sentences[sign.sentence].asks || sign.start <= 2
        });
    }

    /// After "but" comes what is meant.
    fn keep_after_contrast(&self, signs: &mut Vec<Sign>) {
        let consumed = |i: usize| self.hits.iter().any(|h| h.start < i && i < h.end);
        let last = (0..self.text.tokens.len())
            .rev()
            .find(|&i| self.has(Set::Contrast, &self.text.tokens[i].word) && !consumed(i));
        if let Some(last) = last
            && signs.iter().any(|sign| sign.start >= last)
        {
            signs.retain(|sign| sign.start >= last);
        }
    }

    /// The sentences that say what is wrong, with what follows, if they say more than that it is; and
    /// the manner that they ask for, in the words of the table of manners.
    fn hint(&self, raw: &str, signs: &[Sign]) -> (Option<String>, Option<String>) {
        let sentences = &self.text.sentences;
        let (Some(first), Some(last)) = (signs.first(), signs.last()) else {
            return (None, None);
        };
        let following = sentences
            .get(last.sentence + 1)
            .is_some_and(|s| !s.asks && s.words <= LONG_REPLY_WORDS / 2);
        let until = last.sentence + usize::from(following);
        let wishes = manners::wishes(self.text, first.sentence..=until);
        let wish = (!wishes.is_empty()).then(|| wishes.join(", "));
        let named: usize = signs.iter().map(|s| s.end - s.start).sum();
        let words: usize = sentences[first.sentence..=until]
            .iter()
            .map(|s| s.words)
            .sum();
        let says_more = words >= named + self.words_led_in(first) + 2
            || signs.iter().any(|s| s.rule == "wants_other_form");
        if wish.is_none() && !says_more {
            return (None, None);
        }
        let span = &raw[sentences[first.sentence].start..sentences[until].end];
        (Some(own_words(span)), wish)
    }

    /// "You are useless", "your answer is useless": frequent words that only lead up to a sign say
    /// no more than the sign does.
    fn words_led_in(&self, sign: &Sign) -> usize {
        let before = self.text.tokens[..sign.start].iter().rev();
        let before = before.take_while(|token| token.sentence == sign.sentence);
        let frequent = before.clone().all(|token| self.is_frequent(&token.word));
        if frequent { before.count() } else { 0 }
    }

    fn has(&self, set: Set, word: &str) -> bool {
        self.tables.has(self.speaking, set, word)
    }
}

/// A person's words as a hint: trimmed, and not longer than a hint may be.
pub(crate) fn own_words(said: &str) -> String {
    let short: String = said.trim().chars().take(HINT_CHARS).collect();
    short.trim_end().to_owned()
}

/// Whether a phrase says anything about the completion.
fn is_said(hit: &Hit) -> bool {
    !matches!(
        hit.section,
        Section::Nothing | Section::Asked | Section::Own
    )
}

/// The completion ended with a question, so that "no" is an answer and not a denial.
fn asks_back(completion: &str) -> bool {
    let trimmed = completion.trim_end();
    let tail = trimmed.char_indices().rev().take(ASKING_CHARS).last();
    let tail = &trimmed[tail.map_or(0, |(at, _)| at)..];
    tail.contains(['?', '？'])
}

/// The completion was code or commands, and the reply shows how it failed.
fn fails_as_told(raw: &str, context: &Context<'_>) -> bool {
    context.completion.contains('`')
        && tool::shows_failure(raw)
        && !read(raw).sentences.iter().any(|s| s.asks && s.words > 8)
}

/// The same words again: the completion did not answer them. Frequent words do not count, but a
/// changed word does, because "and in Spanish?" is a new question in the same form.
fn asks_again(text: &Text, context: &Context<'_>) -> bool {
    let tables = tables();
    let content = |text: &Text| -> BTreeSet<String> {
        let speaking = tables.speaking(text);
        text.tokens
            .iter()
            .filter(|t| !tables.has(speaking, Set::Common, &t.word))
            .map(|t| t.word.clone())
            .collect()
    };
    let asked = read(context.asked);
    if asked.tokens.is_empty() || text.tokens.len() > LONG_REPLY_WORDS {
        return false;
    }
    let (now, before) = (content(text), content(&asked));
    now.len() >= 2 && now == before
}
