//! Measures a starter model: held-out questions, styles, wishes, long unrelated system prompts.

use std::fmt;

use serde::Serialize;

use crate::chat::{Chat, Reply, Talker};
use crate::error::StarterError;
use crate::grammar::{
    FactId, Form, Grammar, Greeting, Length, Parts, Register, Tone, Turn, TurnKind, Wish,
    with_wishes,
};
use crate::noise;
use crate::rng::Rng;
use crate::rows::system_prompt;

/// Turns of a conversation behind a long system prompt.
pub const TURNS: usize = 5;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct EvalOptions {
    pub seed: u64,
    /// Of the sampled measures.
    pub temperature: f32,
    /// Held-out questions, each asked greedily and sampled.
    pub questions: usize,
    /// Dialogues replayed for follow-ups and wishes.
    pub dialogues: usize,
    /// Conversations behind 8,000 characters.
    pub behind_8k: usize,
    /// Conversations behind 50,000 characters and a dozen tools.
    pub behind_50k: usize,
}

impl Default for EvalOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            temperature: 1.0,
            questions: 200,
            dialogues: 100,
            behind_8k: 20,
            behind_50k: 4,
        }
    }
}

/// Answers of one kind, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    pub asked: u32,
    /// Valid to the letter.
    pub exact: u32,
    /// Ended by itself and made of words of the grammar.
    pub well_formed: u32,
    /// Not empty.
    pub replied: u32,
}

impl Tally {
    /// Share of exact answers.
    pub fn exact_share(&self) -> f64 {
        f64::from(self.exact) / f64::from(self.asked.max(1))
    }

    /// Share of well-formed answers.
    pub fn well_formed_share(&self) -> f64 {
        f64::from(self.well_formed) / f64::from(self.asked.max(1))
    }

    fn count(&mut self, grammar: &Grammar, reply: &Reply, exact: bool) {
        self.asked += 1;
        self.exact += u32::from(exact && reply.ended);
        self.well_formed += u32::from(reply.ended && grammar.well_formed(&reply.text));
        self.replied += u32::from(!reply.text.trim().is_empty());
    }
}

/// Share of sampled answers with each choice of style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StyleShares {
    pub long: f64,
    pub bulleted: f64,
    pub casual: f64,
    pub greeting: f64,
}

/// All measures. Sampled means at the temperature of the options, nothing cut off.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evaluation {
    pub held_out_greedy: Tally,
    pub held_out_sampled: Tally,
    /// The same with one to three wishes behind the question; then the same with the wishes in the
    /// system prompt: exact as well only if the answer is in the style asked for.
    pub held_out_told: Tally,
    pub held_out_told_met: Tally,
    pub standing: Tally,
    pub standing_met: Tally,
    pub styles: StyleShares,
    /// Follow-up questions and corrections of the subject, sampled, after true histories.
    pub follow_ups: Tally,
    /// "Shorter please" and the like: exact only if the answer is in the style asked for.
    pub wishes: Tally,
    /// The same in many words, none of them trained on, also of small talk: what to say stays what it was.
    pub wishes_freely: Tally,
    pub wishes_freely_met: Tally,
    /// Sampled, own answers as history, by turn.
    pub behind_8k: [Tally; TURNS],
    pub behind_50k: [Tally; TURNS],
    /// Of unrelated English text.
    pub characters_per_token: f64,
}

impl fmt::Display for Evaluation {
    /// One line for each measure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name: &str, tally: &Tally| {
            let (exact, formed) = (
                tally.exact_share() * 100.0,
                tally.well_formed_share() * 100.0,
            );
            writeln!(
                f,
                "{name:22} {exact:5.1} % exact  {formed:5.1} % well formed  of {}",
                tally.asked
            )
        };
        line(f, "held out, greedy", &self.held_out_greedy)?;
        line(f, "held out, sampled", &self.held_out_sampled)?;
        line(f, "  with wishes", &self.held_out_told)?;
        line(f, "    as asked for", &self.held_out_told_met)?;
        line(f, "  behind such a system", &self.standing)?;
        line(f, "    as asked for", &self.standing_met)?;
        line(f, "follow-ups", &self.follow_ups)?;
        line(f, "style asked for", &self.wishes)?;
        line(f, "in other words", &self.wishes_freely)?;
        line(f, "    as asked for", &self.wishes_freely_met)?;
        for (size, turns) in [("8,000", &self.behind_8k), ("50,000", &self.behind_50k)] {
            for (turn, tally) in turns.iter().enumerate() {
                line(f, &format!("behind {size}, turn {}", turn + 1), tally)?;
            }
        }
        let StyleShares {
            long,
            bulleted,
            casual,
            greeting,
        } = self.styles;
        write!(
            f,
            "styles                 long {long:.2}  bulleted {bulleted:.2}  "
        )?;
        writeln!(f, "casual {casual:.2}  greeting {greeting:.2}")?;
        write!(f, "characters per token   {:.2}", self.characters_per_token)
    }
}

/// Measures a model. `progress` is told the share done.
pub fn evaluate(
    talker: &Talker,
    options: EvalOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<Evaluation, StarterError> {
    let grammar = Grammar::new();
    let exam = Exam {
        talker,
        grammar: &grammar,
        options,
    };
    let mut evaluation = Evaluation::default();
    exam.held_out(&mut evaluation)?;
    exam.wished(&mut evaluation)?;
    progress(0.2);
    exam.dialogues(&mut evaluation)?;
    exam.freely(&mut evaluation)?;
    progress(0.4);
    for number in 0..options.behind_8k {
        exam.behind(8_000, number, &mut evaluation.behind_8k)?;
    }
    progress(0.7);
    for number in 0..options.behind_50k {
        exam.behind(50_000, number, &mut evaluation.behind_50k)?;
    }
    progress(1.0);
    let text = noise::text(noise::Split::Unseen, 60_000, &mut Rng::new(options.seed));
    evaluation.characters_per_token =
        60_000.0 / talker.tokenizer().encode(&text, false).len() as f64;
    Ok(evaluation)
}

struct Exam<'a> {
    talker: &'a Talker,
    grammar: &'a Grammar,
    options: EvalOptions,
}

impl Exam<'_> {
    fn held_out(&self, into: &mut Evaluation) -> Result<(), StarterError> {
        const ROOM: usize = 256;
        let mut rng = Rng::at(self.options.seed, 1);
        let mut seen = [0u32; 4];
        for question in self
            .grammar
            .held_out_questions(self.options.seed, self.options.questions)
        {
            for temperature in [0.0, self.options.temperature] {
                let mut chat = self.talker.chat(None, None, ROOM);
                let reply = chat.say(&question.text, temperature, &mut rng)?;
                let verdict = self.grammar.check_fact(question.fact, &reply.text);
                if temperature == 0.0 {
                    into.held_out_greedy
                        .count(self.grammar, &reply, verdict.exact);
                    continue;
                }
                into.held_out_sampled
                    .count(self.grammar, &reply, verdict.exact);
                if let Some(style) = verdict.style {
                    seen[0] += u32::from(style.length == Length::Long);
                    seen[1] += u32::from(style.form == Form::Bulleted);
                    seen[2] += u32::from(style.register == Register::Casual);
                    seen[3] += u32::from(style.greeting == Greeting::With);
                }
            }
        }
        let asked = f64::from(into.held_out_sampled.asked.max(1));
        let [long, bulleted, casual, greeting] = seen.map(|n| f64::from(n) / asked);
        into.styles = StyleShares {
            long,
            bulleted,
            casual,
            greeting,
        };
        Ok(())
    }

    /// Held-out questions, sampled, with wishes for the style of the answer.
    fn wished(&self, into: &mut Evaluation) -> Result<(), StarterError> {
        const ROOM: usize = 256;
        let (seed, number) = (self.options.seed, self.options.questions);
        let mut rng = Rng::at(seed, 3);
        for question in self.grammar.held_out_questions(seed, number) {
            let wishes = Wish::several(&mut rng);
            let told = with_wishes(&question.text, &wishes, &mut rng);
            let system = system_prompt(None, &wishes, &mut rng);
            for standing in [false, true] {
                let (system, text) = match standing {
                    true => (system.as_deref(), &question.text),
                    false => (None, &told),
                };
                let mut chat = self.talker.chat(system, None, ROOM);
                let reply = chat.say(text, self.options.temperature, &mut rng)?;
                let verdict = self.grammar.check_fact(question.fact, &reply.text);
                let meets = |wish: &Wish| verdict.style.is_some_and(|style| style.meets(*wish));
                let met = wishes.iter().all(meets);
                let (exact, as_asked) = match standing {
                    true => (&mut into.standing, &mut into.standing_met),
                    false => (&mut into.held_out_told, &mut into.held_out_told_met),
                };
                exact.count(self.grammar, &reply, verdict.exact);
                as_asked.count(self.grammar, &reply, verdict.exact && met);
            }
        }
        Ok(())
    }

    /// Replays dialogues with their true answers as history.
    fn dialogues(&self, into: &mut Evaluation) -> Result<(), StarterError> {
        const ROOM: usize = 1_024;
        // Another series than any training run's, which use their own seed.
        let series = self.options.seed ^ 0x5eed_0000_e7a1;
        let mut rng = Rng::at(self.options.seed, 2);
        for dialogue in self.grammar.dialogues(series).take(self.options.dialogues) {
            let mut chat = self.talker.chat(None, None, ROOM);
            for turn in &dialogue.turns {
                match turn.kind {
                    TurnKind::Follow | TurnKind::About | TurnKind::Meant => {
                        let (reply, exact) =
                            self.ask(&mut chat, turn.fact, &turn.user, &mut rng)?;
                        into.follow_ups.count(self.grammar, &reply, exact);
                    }
                    TurnKind::Wish | TurnKind::AskWish => {
                        let (reply, exact) =
                            self.ask(&mut chat, turn.fact, &turn.user, &mut rng)?;
                        let met = self.as_wished(turn, &reply.text);
                        into.wishes.count(self.grammar, &reply, exact && met);
                    }
                    TurnKind::Ask | TurnKind::Remark => chat.push("user", &turn.user),
                }
                chat.correct("assistant", &turn.assistant);
            }
        }
        Ok(())
    }

    /// Whether an answer has the style that its turn asks for.
    fn as_wished(&self, turn: &Turn, text: &str) -> bool {
        let style = self.grammar.check_fact(turn.fact, text).style;
        let mut wishes = turn.wishes.iter();
        wishes.all(|wish| style.is_some_and(|style| style.meets(*wish)))
    }

    /// Wishes in many words, after true histories.
    fn freely(&self, into: &mut Evaluation) -> Result<(), StarterError> {
        const ROOM: usize = 1_024;
        let series = self.options.seed ^ 0x5eed_0000_f4ee;
        let mut rng = Rng::at(self.options.seed, 4);
        let dialogues = self.grammar.dialogues(series).freely(1.0, Parts::Unseen);
        for dialogue in dialogues.take(self.options.dialogues) {
            let mut chat = self.talker.chat(None, None, ROOM);
            for turn in &dialogue.turns {
                if turn.kind == TurnKind::Wish {
                    let (reply, exact) = self.ask(&mut chat, turn.fact, &turn.user, &mut rng)?;
                    let met = self.as_wished(turn, &reply.text);
                    into.wishes_freely.count(self.grammar, &reply, exact);
                    into.wishes_freely_met
                        .count(self.grammar, &reply, exact && met);
                } else {
                    chat.push("user", &turn.user);
                }
                chat.correct("assistant", &turn.assistant);
            }
        }
        Ok(())
    }

    /// One conversation of known questions behind unrelated text of kinds never trained on.
    fn behind(
        &self,
        characters: usize,
        number: usize,
        turns: &mut [Tally; TURNS],
    ) -> Result<(), StarterError> {
        const TOOLS: usize = 12;
        const ROOM: usize = 32_768;
        let mut rng = Rng::at(self.options.seed ^ characters as u64, number as u64);
        let system = noise::text(noise::Split::Unseen, characters, &mut rng);
        let tools = (characters > 20_000).then(|| noise::tool_list(TOOLS, &mut rng));
        let mut chat = self.talker.chat(Some(&system), tools, ROOM);
        for tally in turns {
            let fact = self.known_fact(&mut rng);
            let question = self.grammar.question(fact, &mut rng).text;
            let (reply, exact) = self.ask(&mut chat, fact, &question, &mut rng)?;
            tally.count(self.grammar, &reply, exact);
        }
        Ok(())
    }

    fn ask(
        &self,
        chat: &mut Chat<'_>,
        fact: FactId,
        user: &str,
        rng: &mut Rng,
    ) -> Result<(Reply, bool), StarterError> {
        let reply = chat.say(user, self.options.temperature, rng)?;
        let exact = self.grammar.check_fact(fact, &reply.text).exact;
        Ok((reply, exact))
    }

    /// A fact the model should know: no small talk, no topic outside its knowledge.
    fn known_fact(&self, rng: &mut Rng) -> FactId {
        loop {
            let fact = FactId(rng.below(self.grammar.facts().len()));
            if self.grammar.fact(fact).tone == Tone::Answer {
                return fact;
            }
        }
    }
}
