//! Seeded dialogues: questions, follow-ups, corrections, thanks and complaints.

use super::Grammar;
use super::fact::FactId;
use super::phrasing::{self, Parts};
use super::question::{surface, with_wishes};
use super::style::{Style, Tone, Wish};
use crate::rng::Rng;

/// Share of full questions that say how to answer, small talk and what the model cannot know among
/// them.
const ASKED_WITH_WISHES: f64 = 0.3;

/// What a user turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnKind {
    /// A full question.
    Ask,
    /// A full question that also says how to answer.
    AskWish,
    /// Another question about the same subject ("and its currency?").
    Follow,
    /// The same question about another subject ("what about Spain?", "another one").
    About,
    /// The user had meant another subject ("no, I meant Spain").
    Meant,
    /// The same answer in another style ("shorter please").
    Wish,
    /// Thanks, praise or a complaint about the answer before.
    Remark,
}

/// One exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub kind: TurnKind,
    pub user: String,
    pub assistant: String,
    /// What the user turn asks for.
    pub fact: FactId,
    /// The style of `assistant`.
    pub style: Style,
    /// The choices of style the user asked for in this turn.
    pub wishes: Vec<Wish>,
}

/// A whole conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialogue {
    pub turns: Vec<Turn>,
}

/// An endless seeded series of dialogues.
#[derive(Debug)]
pub struct Dialogues<'g> {
    writer: Writer<'g>,
    seed: u64,
    next: u64,
}

impl Grammar {
    /// Seeded dialogues of two to six turns; the same seed gives the same series. Held-out pairs
    /// of (fact, phrasing) never occur in them.
    pub fn dialogues(&self, seed: u64) -> Dialogues<'_> {
        Dialogues::new(self, seed)
    }
}

impl<'g> Dialogues<'g> {
    fn new(grammar: &'g Grammar, seed: u64) -> Self {
        Self {
            writer: Writer::new(grammar),
            seed,
            next: 0,
        }
    }

    /// The same, but so large a share of the wishes is said in many words, with these parts, also of small
    /// talk and of what is as it is wished already.
    #[must_use]
    pub fn freely(mut self, share: f64, parts: Parts) -> Self {
        self.writer.free = Some((share, parts));
        self
    }

    /// One dialogue of exactly so many turns, every answer as `standing` asks unless its turn asks
    /// otherwise.
    pub fn of_turns(&self, turns: usize, standing: &[Wish], rng: &mut Rng) -> Dialogue {
        self.writer.dialogue(turns, standing, rng)
    }
}

impl Iterator for Dialogues<'_> {
    type Item = Dialogue;

    fn next(&mut self) -> Option<Dialogue> {
        let mut rng = Rng::at(self.seed, self.next);
        self.next += 1;
        let turns = rng.between(2, 6);
        Some(self.writer.dialogue(turns, &[], &mut rng))
    }
}

/// What was talked about last.
#[derive(Clone, Copy)]
struct Topic {
    fact: FactId,
    style: Style,
    /// A complaint stands between: a wish may still refer to it, a follow-up not.
    complained: bool,
}

#[derive(Debug)]
struct Writer<'g> {
    grammar: &'g Grammar,
    weights: Vec<f64>,
    remarks: Vec<FactId>,
    complaint: FactId,
    /// Share of wishes that are said in many words, and of which parts.
    free: Option<(f64, Parts)>,
}

impl<'g> Writer<'g> {
    fn new(grammar: &'g Grammar) -> Self {
        let named = |name: &str| {
            let found = grammar
                .facts
                .iter()
                .position(|fact| fact.key.starts_with(name));
            FactId(found.expect("the small talk file has this section"))
        };
        Self {
            grammar,
            weights: grammar.facts.iter().map(|fact| fact.weight).collect(),
            remarks: vec![named("smalltalk/thanks"), named("smalltalk/praise")],
            complaint: named("smalltalk/complaint"),
            free: None,
        }
    }

    fn dialogue(&self, turns: usize, standing: &[Wish], rng: &mut Rng) -> Dialogue {
        let mut topic = None;
        let mut written = Vec::with_capacity(turns);
        for _ in 0..turns {
            let turn = self.turn(topic, standing, rng);
            topic = self.topic_after(topic, &turn);
            written.push(turn);
        }
        Dialogue { turns: written }
    }

    fn turn(&self, topic: Option<Topic>, standing: &[Wish], rng: &mut Rng) -> Turn {
        let sampled = Style::sample(rng).with_all(standing);
        let Some(topic) = topic else {
            return self.ask(sampled, rng);
        };
        let fact = self.grammar.fact(topic.fact);
        let wishes = match (self.free, fact.tone) {
            (Some(_), _) => 0.6,
            (None, Tone::Answer) => 0.28,
            (None, _) => 0.0,
        };
        let kinds = [
            (TurnKind::Ask, 0.32),
            (TurnKind::Wish, wishes),
            (
                TurnKind::Follow,
                if fact.same_subject.is_empty() {
                    0.0
                } else {
                    0.12
                },
            ),
            (
                TurnKind::About,
                if fact.same_intent.is_empty() {
                    0.0
                } else {
                    0.1
                },
            ),
            (
                TurnKind::Meant,
                if fact.tone == Tone::Answer { 0.06 } else { 0.0 },
            ),
            (TurnKind::Remark, 0.12),
        ];
        if topic.complained {
            return if rng.chance(0.6) {
                self.wish(topic, rng)
            } else {
                self.ask(sampled, rng)
            };
        }
        match kinds[rng.weighted(&kinds.map(|(_, weight)| weight))].0 {
            TurnKind::Wish => self.wish(topic, rng),
            TurnKind::Follow => self.follow(topic, sampled, rng),
            kind @ (TurnKind::About | TurnKind::Meant) => self.about(topic, kind, sampled, rng),
            TurnKind::Remark => self.remark(topic, sampled, rng),
            TurnKind::Ask | TurnKind::AskWish => self.ask(sampled, rng),
        }
    }

    /// Small talk leaves nothing to come back to, except that after a complaint the user may say
    /// what to change.
    fn topic_after(&self, before: Option<Topic>, turn: &Turn) -> Option<Topic> {
        let fact = self.grammar.fact(turn.fact);
        let open = fact.same_intent.contains(&turn.fact);
        if turn.kind == TurnKind::Remark {
            let again = before.filter(|topic| {
                turn.fact == self.complaint && self.grammar.fact(topic.fact).tone == Tone::Answer
            });
            return again.map(|topic| Topic {
                complained: true,
                ..topic
            });
        }
        let small_talk = fact.key.starts_with("smalltalk");
        (!small_talk || open || self.free.is_some()).then_some(Topic {
            fact: turn.fact,
            style: turn.style,
            complained: false,
        })
    }

    fn ask(&self, style: Style, rng: &mut Rng) -> Turn {
        let fact = FactId(rng.weighted(&self.weights));
        let question = self.grammar.question(fact, rng);
        if rng.chance(ASKED_WITH_WISHES) {
            let wishes = Wish::several(rng);
            let user = match self.free.filter(|(share, _)| rng.chance(*share)) {
                Some((_, parts)) => {
                    let words = wishes.iter().map(|wish| phrasing::words(*wish, parts, rng));
                    let words: Vec<String> = words.collect();
                    format!("{} {}", question.text, words.join(" "))
                }
                None => with_wishes(&question.text, &wishes, rng),
            };
            let style = style.with_all(&wishes);
            let turn = self.answered(TurnKind::AskWish, user, fact, style, rng);
            return Turn { wishes, ..turn };
        }
        self.answered(TurnKind::Ask, question.text, fact, style, rng)
    }

    fn wish(&self, topic: Topic, rng: &mut Rng) -> Turn {
        let free = self.free.filter(|(share, _)| rng.chance(*share));
        let wish = match free.is_some() && rng.chance(0.3) {
            true => *rng.pick(&Wish::ALL),
            false => Wish::against(topic.style, rng),
        };
        let user = match free {
            Some((_, parts)) => phrasing::words(wish, parts, rng),
            None => surface(rng.word(wish.wordings()), rng),
        };
        let style = topic.style.with(wish);
        let turn = self.answered(TurnKind::Wish, user, topic.fact, style, rng);
        Turn {
            wishes: vec![wish],
            ..turn
        }
    }

    fn follow(&self, topic: Topic, style: Style, rng: &mut Rng) -> Turn {
        let fact = *rng.pick(&self.grammar.fact(topic.fact).same_subject);
        let user = surface(rng.word(&self.grammar.fact(fact).follows), rng);
        self.answered(TurnKind::Follow, user, fact, style, rng)
    }

    fn about(&self, topic: Topic, kind: TurnKind, style: Style, rng: &mut Rng) -> Turn {
        let fact = *rng.pick(&self.grammar.fact(topic.fact).same_intent);
        let to = self.grammar.fact(fact);
        let wordings = if kind == TurnKind::Meant {
            &to.meants
        } else {
            &to.abouts
        };
        let user = surface(rng.word(wordings), rng);
        self.answered(kind, user, fact, style, rng)
    }

    fn remark(&self, topic: Topic, style: Style, rng: &mut Rng) -> Turn {
        let complains = rng.chance(0.4) && self.grammar.fact(topic.fact).tone == Tone::Answer;
        let fact = if complains {
            self.complaint
        } else {
            *rng.pick(&self.remarks)
        };
        let user = self.grammar.question(fact, rng).text;
        self.answered(TurnKind::Remark, user, fact, style, rng)
    }

    fn answered(
        &self,
        kind: TurnKind,
        user: String,
        fact: FactId,
        style: Style,
        rng: &mut Rng,
    ) -> Turn {
        let assistant = self.grammar.answer(fact, style, rng);
        Turn {
            kind,
            user,
            assistant,
            fact,
            style,
            wishes: Vec::new(),
        }
    }
}
