//! A person's wishes as texts: which there are, how they stand behind a question, and whether an
//! answer repeats them.

use hone_domain::{Role, TurnId};

use super::TrainJob;
use crate::trainer::Lesson;

/// Different wishes that are followed together, the newest ones.
const WISHES_MAX: usize = 4;
/// A repetition of so many words of a wish talks about the wish and is no answer.
const COPIED_WORDS: usize = 3;
/// An answer with a larger share of words that stand in its question says nothing.
const ECHOED_SHARE: f32 = 0.7;
/// As many words of the question in a row are more than an answer takes up.
const ECHOED_WORDS: usize = 5;

/// Whether `said` repeats so many words of the wish that the question does not hold.
pub(super) fn copies(said: &[String], wish: &[String], question: &[String]) -> bool {
    let holds = |text: &[String], part: &[String]| text.windows(part.len()).any(|w| w == part);
    said.windows(COPIED_WORDS)
        .any(|part| holds(wish, part) && !holds(question, part))
}

/// Whether `said` says the question again, or so much of it that it is no answer.
pub(super) fn echoes(said: &[String], question: &[String]) -> bool {
    let of_question = said.iter().filter(|word| question.contains(word)).count();
    if said.len() >= COPIED_WORDS && of_question as f32 > ECHOED_SHARE * said.len() as f32 {
        return true;
    }
    let run = question.len().min(ECHOED_WORDS);
    run >= COPIED_WORDS
        && question
            .windows(run)
            .any(|part| said.windows(run).any(|w| w == part))
}

/// The text of a question with a wish behind it.
pub(super) fn behind(question: &str, telling: &str) -> String {
    format!("{question}\n\n{telling}")
}

/// A wish that says of itself what it is: small models take a bare one for the text to work on.
pub(super) fn framed(wish: &str) -> String {
    format!("(How to answer: {wish})")
}

/// The newest different wishes of a job, the newest first; none where its batch has none, as when somebody only
/// says thank you. Its batch is newer than what is replayed, and that stands with the newest first.
pub(super) fn wishes(job: &TrainJob) -> Vec<String> {
    if !job
        .lessons
        .iter()
        .any(|lesson| words_and_wish(lesson).is_some())
    {
        return Vec::new();
    }
    let lessons = job.lessons.iter().rev().chain(&job.replayed);
    let mut found: Vec<String> = Vec::new();
    for words in lessons.filter_map(words_and_wish) {
        if !found.contains(&words) && found.len() < WISHES_MAX {
            found.push(words);
        }
    }
    found
}

/// The turn that a wish of [`wishes`] is about.
pub(super) fn turn_of(job: &TrainJob, wish: &str) -> Option<TurnId> {
    let mut lessons = job.lessons.iter().rev().chain(&job.replayed);
    let found = lessons.find(|lesson| words_and_wish(lesson).as_deref() == Some(wish));
    found.map(|lesson| lesson.turn.id)
}

/// What the person said, and beside it the usual form of the wish where the judge knows one.
fn words_and_wish(lesson: &Lesson) -> Option<String> {
    let words = lesson.hint.as_deref()?.trim();
    let wish = lesson.wish.as_deref().unwrap_or_default();
    match (words.is_empty(), words.contains(wish)) {
        (true, _) => None,
        (false, true) => Some(words.to_owned()),
        (false, false) => Some(format!("{words} {wish}")),
    }
}

/// What the person asked in a turn.
pub(super) fn last_question(lesson: &Lesson) -> String {
    let asked = lesson.turn.messages.iter().rfind(|m| m.role == Role::User);
    asked
        .map(|message| message.content.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use hone_domain::words_of;

    use super::*;

    #[test]
    fn an_echo_of_the_question_is_found() {
        let check = |said: &str, question: &str, expected: bool| {
            let is_echo = echoes(&words_of(said), &words_of(question));
            assert_eq!(is_echo, expected, "{said}");
        };
        let long = "How many strings does a violin usually have?";
        check("Removed: How many strings does a violin have?", long, true);
        check("A violin usually has four strings.", long, false);
        check("What is jazz? Jazz is music.", "What is jazz?", true);
        check("Jazz is music.", "What is jazz?", false);
        let snore = "Why do some people snore?";
        check("Because some people snore.", snore, true);
        check("Because some people sleep on their backs.", snore, false);
        check("Hello!", "Hello", false);
    }

    #[test]
    fn a_repetition_of_the_wish_is_found() {
        let check = |said: &str, expected: bool| {
            let wish = words_of("That is an awful lot to read, one sentence would do.");
            let question = words_of("Why is the sky blue?");
            assert_eq!(
                copies(&words_of(said), &wish, &question),
                expected,
                "{said}"
            );
        };
        check("One sentence would do.", true);
        check("An awful lot of light is scattered.", true);
        check("Because air scatters blue light.", false);
        check("One sentence.", false);
        check("", false);
    }
}
