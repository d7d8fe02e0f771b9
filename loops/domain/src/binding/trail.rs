//! What a request leaves to be recognised by: hashes over its messages, seeded with the scope.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

use super::habits::Habits;
use crate::{Message, Role, Scope};

pub(super) type Hash = [u8; 32];

/// A message of a request, as far as recognising needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Its place in the request.
    pub(super) at: usize,
    /// Its own hash.
    pub(super) own: Hash,
    /// Hash over it and everything before it.
    pub(super) chain: Hash,
    /// The same with every digit of the instructions.
    pub(super) strict: Hash,
    pub(super) role: Role,
}

/// A request's messages without those in passing.
#[derive(Clone, Debug)]
pub struct Trail {
    seed: Hash,
    pub(super) steps: Vec<Step>,
}

pub(super) fn extend(chain: Hash, message: Hash) -> Hash {
    let mut hash = Sha256::new();
    hash.update(chain);
    hash.update(message);
    hash.finalize().into()
}

/// Instructions of the operator often hold the time of day; they are compared without digits, and
/// where that is not enough as they are.
fn own_hashes(message: &Message, habits: &Habits) -> (Hash, Hash) {
    if !is_instruction(message.role) {
        // What a client puts around a person's words changes from one request to the next.
        let said = match habits.own_words(&message.content) {
            Cow::Owned(_) => habits.as_said(message).chain_hash(),
            Cow::Borrowed(_) => message.chain_hash(),
        };
        return (said, said);
    }
    let strict = message.chain_hash();
    let mut timeless = message.clone();
    timeless.content.retain(|c| !c.is_ascii_digit());
    (timeless.chain_hash(), strict)
}

fn is_instruction(role: Role) -> bool {
    matches!(role, Role::System | Role::Developer)
}

impl Trail {
    /// Hashes every message, which takes longer the more was said.
    pub fn of(scope: &Scope, messages: &[Message], habits: &Habits) -> Self {
        let seed: Hash = Sha256::digest(scope.as_str().as_bytes()).into();
        let (mut chain, mut strict) = (seed, seed);
        let mut after_passing = false;
        let real = messages.iter().enumerate().filter(|(_, message)| {
            let is_passing = habits.is_passing(message);
            let is_echo =
                std::mem::replace(&mut after_passing, is_passing) && habits.is_echo(message);
            !is_passing && !is_echo
        });
        let steps = real
            .map(|(at, message)| {
                let (own, whole) = own_hashes(message, habits);
                chain = extend(chain, own);
                strict = extend(strict, whole);
                Step {
                    at,
                    own,
                    chain,
                    strict,
                    role: message.role,
                }
            })
            .collect();
        Self { seed, steps }
    }

    /// The whole request.
    pub(super) fn asked(&self) -> Hash {
        self.steps.last().map_or(self.seed, |step| step.chain)
    }

    /// Whether it holds a word of a person, or what a tool gave.
    pub(super) fn is_said(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step.role, Role::User | Role::Tool))
    }

    /// What its messages from the place `from` on are together.
    pub(super) fn rest(&self, from: usize) -> Hash {
        let rest = self.steps.iter().filter(|step| step.at >= from);
        rest.fold([0; 32], |hash, step| extend(hash, step.own))
    }

    /// What is answered to a turn: the messages from `from` on, up to the next answer of a model
    /// that this session's housekeeping did not give. Passing messages are no answer, and neither
    /// is a question that housekeeping asked.
    pub(super) fn answers(
        &self,
        messages: &[Message],
        habits: &Habits,
        from: usize,
        side: &[Hash],
    ) -> Vec<Message> {
        let mut said = Vec::new();
        for step in self.steps.iter().filter(|step| step.at >= from) {
            if step.role != Role::Assistant {
                said.push(habits.as_said(&messages[step.at]));
            } else if side.contains(&step.own) {
                said.clear();
            } else {
                break;
            }
        }
        said
    }

    /// Its last messages that an answer may follow: the last one, and the one before where the
    /// last may be in passing without a known mark.
    pub(super) fn ends(&self) -> Vec<usize> {
        let Some(last) = self.steps.len().checked_sub(1) else {
            return Vec::new();
        };
        let may_pass = last > 0
            && self.steps[last].role == Role::User
            && matches!(self.steps[last - 1].role, Role::User | Role::Tool);
        if may_pass {
            vec![last, last - 1]
        } else {
            vec![last]
        }
    }

    /// Chains over the request and `completion`.
    pub(super) fn chains(&self, completion: Hash) -> Vec<Hash> {
        if self.steps.is_empty() {
            return vec![extend(self.seed, completion)];
        }
        let ends = self.ends().into_iter();
        ends.map(|end| extend(self.steps[end].chain, completion))
            .collect()
    }

    /// The same chains with every digit of the instructions.
    pub(super) fn strict_chains(&self, completion: Hash) -> Vec<Hash> {
        let ends = self.ends().into_iter();
        ends.map(|end| extend(self.steps[end].strict, completion))
            .collect()
    }

    /// Windows of `completion` and the two messages before it, instructions left out. They survive
    /// trimmed histories and rewritten instructions.
    pub(super) fn windows(&self, completion: Hash) -> Vec<Hash> {
        let ends = self.ends().into_iter();
        ends.filter_map(|end| self.window_before(end + 1, completion))
            .collect()
    }

    /// The window of the message at step `step`.
    pub(super) fn window_at(&self, step: usize) -> Option<Hash> {
        self.window_before(step, self.steps.get(step)?.own)
    }

    fn window_before(&self, end: usize, completion: Hash) -> Option<Hash> {
        let talk = self.steps[..end].iter().rev();
        let mut talk = talk.filter(|step| !is_instruction(step.role));
        let (last, before) = (talk.next()?, talk.next()?);
        let window = extend(extend(self.seed, before.own), last.own);
        // Apart from every chain.
        Some(extend(extend(window, completion), [1; 32]))
    }
}
