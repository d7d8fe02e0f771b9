//! Rules over the words of a next state: the signal that needs no model.
//!
//! What the rules know of a language is in text tables (`rules/*.txt`); what they know of
//! language is here: clauses, negation, quotes, code, questions, long replies. A user who moves
//! on to something new has not praised anything, so that is an abstention.

mod command;
mod manners;
mod reply;
mod ruling;
mod table;
mod text;
mod tool;

use hone_domain::{NextKind, NextState, Outcome, ParsedOutput, Role, Turn};

pub(crate) use reply::own_words;
pub use ruling::{MOVED_ON, Ruling};
pub(crate) use text::floor_char;

/// The exit code that a result states, last line first; none where it states none.
pub(crate) fn exit_code(result: &str) -> Option<i64> {
    tool::stated_exit_code(result)
}

/// Judges a next state by its words. What the person said comes before what tools said, and of
/// several equal ones a bad sign comes before a good one. Pure, and linear in the text.
pub fn judge(next_state: &NextState, turn: &Turn) -> Ruling {
    let context = reply::Context {
        asked: last_asked(turn),
        completion: &turn.completion_text,
    };
    let of_kind = |wanted: fn(NextKind) -> bool| {
        next_state
            .items
            .iter()
            .filter(move |item| wanted(item.kind))
            .map(|item| item.text.as_str())
    };
    let replies = of_kind(|kind| kind == NextKind::UserReply);
    let denials = of_kind(|kind| kind == NextKind::ToolResult).filter_map(tool::denied_with);
    let replies = replies.chain(denials);
    let said = worst(replies.map(|text| reply::judge(text, &context)));
    if let Some(ruling) = said.clone().filter(|r| r.outcome != Outcome::Abstain) {
        return ruling;
    }
    worst(results(next_state, turn).into_iter())
        .filter(|ruling| ruling.outcome != Outcome::Abstain || said.is_none())
        .or(said)
        .unwrap_or(Ruling::new(Outcome::Abstain, "nothing_said"))
}

/// Rulings of what tools and environments gave, each read with its call: the one at its place.
fn results(next_state: &NextState, turn: &Turn) -> Vec<Ruling> {
    let is_result = |kind| matches!(kind, NextKind::ToolResult | NextKind::Environment);
    let items = next_state.items.iter().filter(|item| is_result(item.kind));
    let said = ParsedOutput::meaning(&turn.completion_text);
    let rulings = items.enumerate().map(|(at, item)| {
        let call = match &said.calls[..] {
            [only] => Some(only),
            calls => calls.get(at),
        };
        let call = call.map(|call| (call.name.as_str(), call.arguments.as_str()));
        tool::judge_of(&item.text, &command::Answered::of(call, item.failed))
    });
    rulings.collect()
}

/// What the user asked last.
pub(crate) fn last_asked(turn: &Turn) -> &str {
    let asked = turn.messages.iter().rev();
    let asked = asked.filter(|message| message.role == Role::User);
    asked
        .map(|message| message.content.as_str())
        .next()
        .unwrap_or("")
}

/// A reply with what it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange<'a> {
    /// What the user had asked.
    pub asked: &'a str,
    /// The completion.
    pub completion: &'a str,
    /// What the person replied.
    pub reply: &'a str,
}

/// Judges one reply of a person.
pub fn judge_reply(exchange: Exchange<'_>) -> Ruling {
    let context = reply::Context {
        asked: exchange.asked,
        completion: exchange.completion,
    };
    reply::judge(exchange.reply, &context)
}

/// Judges free words about a completion, such as the comment of a feedback.
pub fn judge_comment(comment: &str, turn: &Turn) -> Ruling {
    let context = reply::Context {
        asked: "",
        completion: &turn.completion_text,
    };
    reply::judge(comment, &context)
}

fn worst(rulings: impl Iterator<Item = Ruling>) -> Option<Ruling> {
    rulings.min_by_key(|ruling| match ruling.outcome {
        Outcome::Bad => 0,
        Outcome::Good => 1,
        Outcome::Neutral => 2,
        Outcome::Abstain => 3,
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
