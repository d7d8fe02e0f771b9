//! From a user's correction to weights that learned it: seconds until an answer comes from them.

use std::time::{Duration, Instant};

use hone_starter::grammar::{FactId, Grammar, Style};
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::talker::{ANSWER_TOKENS, Ask, Talker};
use crate::Bench;
use crate::demo::numbers::Percentiles;
use crate::report::milli;

/// Users, one after the other; each corrects once.
const USERS: usize = 12;
/// Longest wait for a version, and how often it is asked for.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// What was measured.
pub(super) struct Live {
    batch: usize,
    seconds: Vec<f64>,
    /// Corrected questions, and those then answered with the correction word for word (greedily).
    corrected: usize,
    learned: usize,
    pub(super) failed: u64,
}

impl Live {
    pub(super) fn sentence(&self) -> String {
        format!(
            "correction to served weights, {} at once, default pace: median {:.2} s over {} users; {} of {} then given word for word",
            self.batch,
            self.median(),
            self.seconds.len(),
            self.learned,
            self.corrected,
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "batch": self.batch,
            "seconds_median": milli(self.median()),
            "seconds": self.seconds.iter().map(|s| milli(*s)).collect::<Vec<_>>(),
            "corrected": self.corrected,
            "learned": self.learned,
        })
    }

    fn median(&self) -> f64 {
        Percentiles::of(self.seconds.clone()).p50
    }
}

/// Every user asks `batch` questions, corrects all answers at once and asks again until the answer
/// comes from a version that was trained.
pub(super) async fn measure(bench: &Bench, batch: usize) -> Result<Live, String> {
    let mut config = bench.config.clone();
    config.train.drain_deadline_ms = 2_000;
    let mut live = Live {
        batch,
        seconds: Vec::new(),
        corrected: 0,
        learned: 0,
        failed: 0,
    };
    let all = async |url: &str| {
        for user in 0..USERS {
            one(url, user, &mut live).await?;
        }
        Ok(())
    };
    bench.app(config, all).await?;
    Ok(live)
}

async fn one(url: &str, user: usize, live: &mut Live) -> Result<(), String> {
    let (grammar, mut rng) = (Grammar::new(), Rng::at(77, user as u64));
    let mut talker = Talker::new(url, format!("corrects-{}-{user}", live.batch)).await?;
    let mut corrections = Vec::new();
    for number in 0..live.batch {
        let fact = FactId(rng.below(grammar.facts().len()));
        let question = grammar.question(fact, &mut rng).text;
        let messages = [json!({ "role": "user", "content": question })];
        let key = format!("{user}-{number}");
        let ask = Ask {
            messages: &messages,
            session: Some(&key),
            seed: rng.below(1 << 30) as u64,
            temperature: 1.0,
            max_tokens: ANSWER_TOKENS,
        };
        let answer = talker.ask(ask).await;
        let wanted = grammar.answer(fact, Style::sample(&mut rng), &mut rng);
        corrections.push((messages, answer.turn, wanted));
    }
    let began = Instant::now();
    for (_, turn, wanted) in &corrections {
        talker.correct(turn, wanted).await;
    }
    let mut last = 0;
    while last == 0 && began.elapsed() < PATIENCE {
        tokio::time::sleep(LOOK).await;
        last = again(&mut talker, &corrections[0].0).await.version;
    }
    live.seconds.push(began.elapsed().as_secs_f64());
    for (messages, _, wanted) in &corrections {
        live.corrected += 1;
        live.learned += usize::from(again(&mut talker, messages).await.text == *wanted);
    }
    live.failed += talker.failed + u64::from(last == 0);
    Ok(())
}

/// The question again, greedily and not stored.
async fn again(talker: &mut Talker, messages: &[Value]) -> super::talker::Answer {
    let ask = Ask {
        messages,
        session: None,
        seed: 1,
        temperature: 0.0,
        max_tokens: ANSWER_TOKENS,
    };
    talker.ask(ask).await
}
