//! One person's sessions in a row, and the pause between two of them.

use std::time::{Duration, Instant};

use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::arms::{Arm, Reaction};
use super::checks::Preference;
use super::phrases::{Deck, PhraseBank, THANKS};
use super::{ANSWER_TOKENS, TEMPERATURE};
use crate::learn::talker::{Answer, Ask, Talker};
use crate::wire::Wire;

/// How long judging and training are at rest before the next session.
const STILL: Duration = Duration::from_secs(2);
/// How long a person who is remembered waits for that, and how often it is looked at.
const REMEMBERED_MAX: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(250);
/// First answers that must be as wished in a row.
const IN_A_ROW: usize = 3;
/// Sessions after this one are late; with fewer, the last quarter is.
const LATE_FROM: usize = 14;

/// Who talks, and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) arm: Arm,
    pub(super) preference: Preference,
    pub(super) seed: u64,
    pub(super) sessions: usize,
}

impl Plan {
    /// As progress lines name it.
    pub(super) fn name(&self) -> String {
        format!(
            "{} {} {}",
            self.arm.name(),
            self.preference.name(),
            self.seed
        )
    }

    /// The person's user name. It says nothing about the wish.
    pub(super) fn user(&self) -> String {
        format!("person-{}", self.seed)
    }
}

/// What was seen in the sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    /// Whether the first answer of each session was as wished.
    pub(super) as_wished: Vec<bool>,
    /// The policy version of each first answer.
    pub(super) versions: Vec<u64>,
    pub(super) complaints: usize,
    /// Per complaint that a newer version followed: seconds until a first answer was asked for that
    /// came from it.
    pub(super) newer_s: Vec<f64>,
    /// Pauses that were as long as a pause may be.
    pub(super) pauses_run_out: usize,
    pub(super) failed: u64,
    /// Complaints that no newer version followed yet: when, and the version complained of.
    unanswered: Vec<(Instant, u64)>,
}

impl Sessions {
    /// Number (from 1) of the session that completed three first answers in a row as wished.
    pub(super) fn three_in_a_row(&self) -> Option<usize> {
        let full = |three: &[bool]| three.iter().all(|is_met| *is_met);
        let first = self.as_wished.windows(IN_A_ROW).position(full)?;
        Some(first + IN_A_ROW)
    }

    /// The late first answers.
    pub(super) fn late(&self) -> &[bool] {
        let all = self.as_wished.len();
        let from = if all > LATE_FROM {
            LATE_FROM
        } else {
            all - all.div_ceil(4)
        };
        &self.as_wished[from..]
    }

    /// Notes a first answer that was asked for at `asked`.
    fn note(&mut self, asked: Instant, version: u64, is_met: bool) {
        self.as_wished.push(is_met);
        self.versions.push(version);
        let newer_s = &mut self.newer_s;
        self.unanswered.retain(|(complained, before)| {
            let is_newer = version > *before;
            if is_newer {
                newer_s.push(asked.saturating_duration_since(*complained).as_secs_f64());
            }
            !is_newer
        });
    }
}

/// A person at a server.
pub(super) struct Person<'a> {
    plan: Plan,
    bank: &'a PhraseBank,
    talker: Talker,
    questions: Deck,
    complaints: Deck,
    rng: Rng,
    seen: Sessions,
    /// How many memories there are.
    known: usize,
}

impl<'a> Person<'a> {
    pub(super) async fn new(url: &str, plan: Plan, bank: &'a PhraseBank) -> Result<Self, String> {
        let mut rng = Rng::at(plan.seed, plan.preference as u64);
        let complaints = bank.of(plan.preference).complaints.clone();
        let mut talker = Talker::new(url, plan.user()).await?;
        talker.memory = Some(plan.arm.memory());
        Ok(Self {
            plan,
            bank,
            talker,
            questions: Deck::shuffled(bank.asked(plan.preference), &mut rng),
            complaints: Deck::shuffled(complaints, &mut rng),
            rng,
            seen: Sessions::default(),
            known: 0,
        })
    }

    /// Holds all sessions. Between two of them judging and training come to rest, for at most
    /// `pause_max`.
    pub(super) async fn talk(
        mut self,
        wire: &Wire,
        pause_max: Duration,
    ) -> Result<Sessions, String> {
        for number in 1..=self.plan.sessions {
            let began = Instant::now();
            self.session(number).await;
            let talked_s = began.elapsed().as_secs_f64();
            if self.plan.arm == Arm::Memory && !self.is_last_as_wished() {
                self.remembered(wire).await?;
            }
            if self.plan.arm.trains() && !wire.rest(pause_max, STILL).await? {
                self.seen.pauses_run_out += 1;
            }
            println!(
                "  {}: session {number}, version {}, {}, {talked_s:.0} s of talk, {:.0} s of rest",
                self.plan.name(),
                self.seen.versions.last().copied().unwrap_or_default(),
                if self.is_last_as_wished() {
                    "as wished"
                } else {
                    "not as wished"
                },
                began.elapsed().as_secs_f64() - talked_s,
            );
        }
        self.seen.failed = self.talker.failed;
        Ok(self.seen)
    }

    fn is_last_as_wished(&self) -> bool {
        self.seen.as_wished.last().copied().unwrap_or_default()
    }

    /// Waits until one more of the person's words is remembered. Not every complaint is.
    async fn remembered(&mut self, wire: &Wire) -> Result<(), String> {
        let began = Instant::now();
        let list = format!("/v1/memories?user={}&limit=100", self.plan.user());
        while began.elapsed() < REMEMBERED_MAX {
            let known = wire.get(&list).await?["data"]
                .as_array()
                .map_or(0, Vec::len);
            if known > self.known {
                self.known = known;
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn session(&mut self, number: usize) {
        let key = format!("session-{number}");
        let mut question = self.questions.draw();
        if self.plan.arm == Arm::Told {
            question = self.bank.told(&question, self.plan.preference);
        }
        let mut messages = vec![json!({ "role": "user", "content": question })];
        let asked = Instant::now();
        let first = self.ask(&messages, &key).await;
        let is_met = self.plan.preference.is_met(&first.text);
        self.seen.note(asked, first.version, is_met);
        let wished = self.seen.as_wished.iter().filter(|is_met| **is_met).count();
        let reaction = self.plan.arm.reaction(is_met, wished);
        // Nobody replies to an answer that failed.
        if reaction == Reaction::Leaves || first.turn.is_empty() {
            return;
        }
        let says = self.words(reaction);
        if reaction != Reaction::Thanks {
            self.seen.complaints += 1;
            self.seen.unanswered.push((Instant::now(), first.version));
        }
        messages.push(json!({ "role": "assistant", "content": first.text }));
        messages.push(json!({ "role": "user", "content": says }));
        // The person reads one more answer and leaves.
        self.ask(&messages, &key).await;
    }

    fn words(&mut self, reaction: Reaction) -> String {
        match reaction {
            Reaction::Leaves => String::new(),
            Reaction::Thanks => (*self.rng.pick(&THANKS)).to_owned(),
            Reaction::Complains => self.complaints.draw(),
            Reaction::ComplainsOfOther => {
                let own = self.plan.preference;
                let others = Preference::ALL.into_iter().filter(|other| *other != own);
                let other = *self.rng.pick(&others.collect::<Vec<_>>());
                self.rng.pick(&self.bank.of(other).complaints).clone()
            }
        }
    }

    async fn ask(&mut self, messages: &[Value], key: &str) -> Answer {
        let ask = Ask {
            messages,
            session: Some(key),
            seed: self.rng.below(1 << 30) as u64,
            temperature: TEMPERATURE,
            max_tokens: ANSWER_TOKENS,
        };
        self.talker.ask(ask).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(as_wished: &[u8]) -> Sessions {
        Sessions {
            as_wished: as_wished.iter().map(|is_met| *is_met == 1).collect(),
            ..Sessions::default()
        }
    }

    #[test]
    fn three_in_a_row_count_with_the_third() {
        for (as_wished, at) in [
            (&[1, 1, 1][..], Some(3)),
            (&[1, 1, 0, 1, 1, 1], Some(6)),
            (&[1, 1, 0, 1, 1], None),
            (&[], None),
        ] {
            assert_eq!(seen(as_wished).three_in_a_row(), at, "{as_wished:?}");
        }
    }

    #[test]
    fn late_is_after_fourteen_sessions_or_the_last_quarter() {
        assert_eq!(seen(&[0; 20]).late().len(), 6);
        assert_eq!(seen(&[0; 14]).late().len(), 4);
        assert_eq!(seen(&[0, 0, 0, 0, 0, 1]).late(), [false, true]);
        assert!(seen(&[]).late().is_empty());
    }

    #[test]
    fn complaints_wait_for_a_newer_version() {
        let mut seen = Sessions::default();
        let now = Instant::now();
        seen.unanswered = vec![(now, 0), (now, 1)];
        seen.note(now + Duration::from_secs(2), 1, true);
        assert_eq!(
            (seen.newer_s.clone(), seen.unanswered.len()),
            (vec![2.0], 1)
        );
        seen.note(now + Duration::from_secs(5), 1, true);
        seen.note(now + Duration::from_secs(9), 2, true);
        assert_eq!(seen.newer_s, [2.0, 9.0]);
    }
}
