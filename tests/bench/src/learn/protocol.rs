//! Users, their sessions, and the pause between two sessions.

use std::time::Duration;

use hone_starter::grammar::{FactId, Grammar};
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::arms::Arm;
use super::curve::Curve;
use super::talker::{ANSWER_TOKENS, Ask, Talker};
use super::wanted::{self, Pair, USERS};
use crate::Bench;
use crate::demo::client::Client;
use crate::demo::taste::Taste;
use crate::wire::Wire;

/// Most answers a user asks for in a session.
const EXCHANGES: usize = 3;
/// Held-out questions, before and after.
const GOLDEN: usize = 200;
/// Longest pause between two sessions, and how long everything is at rest before the next.
const PAUSE_MAX: Duration = Duration::from_secs(20);
const STILL: Duration = Duration::from_millis(20);

struct User {
    tastes: Pair,
    talker: Talker,
    grammar: Grammar,
    seed: u64,
    curve: Curve,
}

/// All sessions of one arm and seed of users with these preferences; one curve per user.
pub(super) async fn run(
    bench: &Bench,
    (arm, pairs): (Arm, [Pair; USERS]),
    (seed, sessions): (u64, usize),
) -> Result<Vec<Curve>, String> {
    let config = arm.configured(&bench.config, bench.file.as_ref())?;
    let sessions = async |url: &str| hold(url, (arm, pairs), (seed, sessions)).await;
    bench.app(config, sessions).await
}

async fn hold(
    url: &str,
    (arm, pairs): (Arm, [Pair; USERS]),
    (seed, sessions): (u64, usize),
) -> Result<Vec<Curve>, String> {
    let wire = Wire::new(url)?;
    let client = Client::new(url).map_err(|error| format!("{error:#}"))?;
    let pause = client.pause_training(!arm.trains()).await;
    pause.map_err(|error| format!("training could not be paused or resumed: {error:#}"))?;
    let mut users = Vec::new();
    for (number, tastes) in tastes(arm, pairs).into_iter().enumerate() {
        users.push(User::new(url, (arm, number), tastes, seed).await?);
    }
    for user in &mut users {
        user.curve.golden_before = user.golden(false).await;
    }
    for session in 0..sessions {
        futures::future::join_all(users.iter_mut().map(|user| user.session(arm, session))).await;
        if arm.trains() {
            wire.rest(PAUSE_MAX, STILL).await?;
        }
    }
    let status = wire.status().await?;
    let number = |value: &Value| value.as_f64().unwrap_or_default() as u64;
    let share = users.len() as u64;
    let mut curves = Vec::new();
    for mut user in users {
        // Those who say it with every question say it with these, too: what the wish costs by itself.
        user.curve.golden_after = user.golden(arm == Arm::Told).await;
        user.curve.failed = user.talker.failed;
        user.curve.versions = number(&status["ledger"]["versions"]) / share;
        user.curve.refused = number(&status["ledger"]["refused"]) / share;
        curves.push(user.curve);
    }
    Ok(curves)
}

/// What each user wants. In the joint arm their wishes go together: each taste of the first pair by
/// itself, and both.
fn tastes(arm: Arm, pairs: [Pair; USERS]) -> [Pair; USERS] {
    let [one, other] = pairs[0];
    match arm {
        Arm::Joint => [[one; 2], [other; 2], pairs[0]],
        _ => pairs,
    }
}

impl User {
    async fn new(
        url: &str,
        (arm, number): (Arm, usize),
        tastes: Pair,
        seed: u64,
    ) -> Result<Self, String> {
        let own = wanted::name(tastes);
        let name = match arm {
            Arm::Joint => "joint".to_owned(),
            _ => own.clone(),
        };
        Ok(Self {
            tastes,
            talker: Talker::new(url, name).await?,
            grammar: Grammar::new(),
            seed: seed * 1_000_003 + number as u64,
            curve: Curve {
                user: own,
                seed,
                ..Curve::default()
            },
        })
    }

    fn likes(&self, answer: &str) -> bool {
        self.tastes.iter().all(|taste| taste.likes(answer))
    }

    /// Share of held-out questions answered correctly, whatever the style; with what the user likes
    /// `told` behind each, or not.
    async fn golden(&mut self, told: bool) -> f64 {
        let questions = self.grammar.held_out_questions(self.seed, GOLDEN);
        let mut right = 0;
        for (i, question) in questions.iter().enumerate() {
            let seed = self.seed.wrapping_add(i as u64);
            let asked = match told {
                true => wanted::told(&question.text, self.tastes),
                false => question.text.clone(),
            };
            let answer = self.talker.answer(&asked, seed).await;
            right += usize::from(self.grammar.check_fact(question.fact, &answer).exact);
        }
        right as f64 / questions.len().max(1) as f64
    }

    async fn session(&mut self, arm: Arm, number: usize) {
        let mut rng = Rng::at(self.seed, number as u64);
        let key = format!("{}-{}-{number}", self.curve.user, self.seed);
        let fact = FactId(rng.below(self.grammar.facts().len()));
        let mut question = self.grammar.question(fact, &mut rng).text;
        if arm == Arm::Told {
            question = wanted::told(&question, self.tastes);
        }
        let mut messages = vec![json!({ "role": "user", "content": question })];
        for exchange in 0..=EXCHANGES {
            let ask = Ask {
                messages: &messages,
                session: Some(&key),
                seed: rng.below(1 << 30) as u64,
                temperature: 1.0,
                max_tokens: ANSWER_TOKENS,
            };
            let answer = self.talker.ask(ask).await;
            let liked = self.likes(&answer.text);
            if exchange == 0 {
                self.curve.liked.push(liked);
                if arm == Arm::Corrected && !liked {
                    self.correct(fact, &answer.turn, &mut rng).await;
                }
            }
            // After its last words the user reads one more answer and goes.
            let last = messages.len() > 1 && (liked || exchange == EXCHANGES);
            if last {
                break;
            }
            let says = self.reaction(arm, &answer.text, &mut rng);
            messages.push(json!({ "role": "assistant", "content": answer.text }));
            messages.push(json!({ "role": "user", "content": says }));
        }
    }

    /// What the user says about an answer.
    fn reaction(&self, arm: Arm, answer: &str, rng: &mut Rng) -> &'static str {
        let missing = self.tastes.into_iter().find(|taste| !taste.likes(answer));
        let words = match (arm, missing) {
            (Arm::Shuffled, _) => {
                let other = Taste::ALL[rng.below(Taste::ALL.len())];
                if rng.chance(0.5) {
                    other.praises()
                } else {
                    other.complaints()
                }
            }
            (Arm::Inverted, None) => Taste::corrections(),
            (Arm::Inverted, Some(_)) | (_, None) => self.tastes[0].praises(),
            (_, Some(taste)) => taste.complaints(),
        };
        words[rng.below(words.len())]
    }

    /// Sends the answer the user wanted, of the same fact.
    async fn correct(&mut self, fact: FactId, turn: &str, rng: &mut Rng) {
        let wanted = hone_starter::grammar::Style::all().find_map(|style| {
            let answer = self.grammar.answer(fact, style, rng);
            self.likes(&answer).then_some(answer)
        });
        if let Some(wanted) = wanted {
            self.talker.correct(turn, &wanted).await;
        }
    }
}
