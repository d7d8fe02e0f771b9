//! `hone-bench demo --model PATH`: one person asks a real model to be briefer, and questions that nobody
//! complained about are answered before and after. A twin with the same questions and the same words has
//! `store: false`, so nothing is learned from it.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::Client;
use super::numbers::Interval;
use super::plot;

/// What the person says with a thumb down.
const WORDS: &str = "Please be much briefer with me.";
/// What the person complains about, in turn.
const ASKED: [&str; 4] = [
    "Why do leaves turn red in autumn?",
    "What is a mortgage?",
    "What is jazz?",
    "How do I tie a tie?",
];
/// Answered before and after; nobody says anything about these answers.
const HELD_OUT: [&str; 12] = [
    "What is photosynthesis?",
    "Why is the sky blue?",
    "How does a car engine work?",
    "What is a good breakfast?",
    "How do I learn to swim?",
    "What is a volcano?",
    "How do plants grow?",
    "What does a teacher do?",
    "Why do we dream?",
    "What is a budget?",
    "How do birds fly?",
    "What is the internet?",
];
/// Versions after which the person is content.
const VERSIONS: usize = 2;
/// How often what is learned is looked at, and the longest wait for it.
const LOOK: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(1_800);
/// Answers that are shown.
const SHOWN: usize = 3;

/// The last line. Words are means over the held-out questions.
#[derive(Clone, Debug, Serialize)]
struct Summary {
    words_before: f64,
    words_after: f64,
    twin_words_before: f64,
    twin_words_after: f64,
    /// Words that the twin's answers have more, beyond before: mean and 95 % interval over questions.
    lift: Interval,
    versions: u64,
    /// Seconds from each complaint to the first token of weights that learned it.
    learned_after_s: Vec<f64>,
    /// Answers that somebody else got meanwhile, who chats without a pause.
    chatted: u64,
    seconds: f64,
}

/// Talks to the server at `url` and prints what came of it. With `is_busy` somebody else chats without a pause
/// while the model learns.
pub(super) async fn run(url: &str, is_json: bool, is_busy: bool) -> Result<()> {
    let began = Instant::now();
    let client = Client::new(url)?;
    let say = |text: String| {
        if !is_json {
            println!("{text}");
        }
    };
    say(format!(
        "A person asks {} held-out questions, then says “{WORDS}” about other answers.",
        HELD_OUT.len()
    ));
    let before = [
        held_out(&client, "person").await?,
        held_out(&client, "twin").await?,
    ];
    say(told("before", &before));
    let (learned_after_s, chatted) = complaints(&client, is_busy, &say).await?;
    let after = [
        held_out(&client, "person").await?,
        held_out(&client, "twin").await?,
    ];
    say(told("after", &after));
    let pairs = before[0].iter().zip(&after[0]);
    for (question, (old, new)) in HELD_OUT.iter().zip(pairs).take(SHOWN) {
        let (old, new) = (line(old), line(new));
        say(format!("\n{question}\n  before: {old}\n  after:  {new}"));
    }
    let [person, twin] = [0, 1].map(|who| [words(&before[who]), words(&after[who])]);
    let summary = Summary {
        words_before: mean(&person[0]),
        words_after: mean(&person[1]),
        twin_words_before: mean(&twin[0]),
        twin_words_after: mean(&twin[1]),
        lift: lift(&person, &twin),
        versions: learned_after_s.len() as u64,
        learned_after_s,
        chatted,
        seconds: began.elapsed().as_secs_f64(),
    };
    say(format!(
        "\n{} versions; answers are {:.0} words shorter than the twin's by now, 95 % between {:.0} and {:.0}.\n",
        summary.versions, summary.lift.mean, summary.lift.low, summary.lift.high
    ));
    println!("{}", serde_json::to_string(&summary)?);
    Ok(())
}

/// Complains until two versions came of it: after how many seconds each did, and how many answers somebody else
/// got meanwhile.
async fn complaints(
    client: &Client,
    is_busy: bool,
    say: &impl Fn(String),
) -> Result<(Vec<f64>, u64)> {
    let mut learned_after_s = Vec::new();
    let mut chatted = 0;
    for asked in ASKED {
        if learned_after_s.len() >= VERSIONS {
            break;
        }
        ask(client, "twin", asked, false).await?;
        let turn = ask(client, "person", asked, true).await?;
        let learned = tokio::select! {
            learned = complain(client, &turn, say) => learned?,
            failed = chat(client, &mut chatted), if is_busy => match failed? {},
        };
        match learned {
            Ok(seconds) => {
                say(format!(
                    "answered by weights that learned it after {seconds:.0} s"
                ));
                learned_after_s.push(seconds);
            }
            Err(why) => say(format!("nothing was learned from it: {why}")),
        }
    }
    Ok((learned_after_s, chatted))
}

/// The turn's id and the answer of one question.
async fn ask(client: &Client, user: &str, question: &str, store: bool) -> Result<Value> {
    let body = json!({
        "model": client.model().await?,
        "user": user,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0.7,
        "seed": 1,
        "max_tokens": 300,
        "store": store,
    });
    client.post("/v1/chat/completions", &body).await
}

/// The answers to the held-out questions.
async fn held_out(client: &Client, user: &str) -> Result<Vec<String>> {
    let mut said = Vec::new();
    for question in HELD_OUT {
        let reply = ask(client, user, question, false).await?;
        let text = reply["choices"][0]["message"]["content"].as_str();
        said.push(text.unwrap_or_default().to_owned());
    }
    Ok(said)
}

/// Asks one question after another until it is dropped, and counts the answers.
async fn chat(client: &Client, answers: &mut u64) -> Result<Infallible> {
    loop {
        for question in HELD_OUT {
            ask(client, "neighbour", question, false).await?;
            *answers += 1;
        }
    }
}

/// Says it, and waits until it is learned and served: after how many seconds, or why it came to
/// nothing. `say` tells how far it is.
async fn complain(
    client: &Client,
    reply: &Value,
    say: &impl Fn(String),
) -> Result<Result<f64, String>> {
    let turn = &reply["hone"]["turn_id"];
    let before = client.get("/v1/versions?user=person").await?["current"].as_u64();
    let feedback = json!({"turn_id": turn, "score": -1, "comment": WORDS});
    client.post("/v1/feedback", &feedback).await?;
    let began = Instant::now();
    let mut shown = String::new();
    while began.elapsed() < PATIENCE {
        tokio::time::sleep(LOOK).await;
        let learning = client.get("/v1/learning?user=person").await?;
        if let Some(sentence) = learning["under_way"]["sentence"].as_str()
            && sentence != shown
        {
            sentence.clone_into(&mut shown);
            say(format!("  {sentence}"));
        }
        if client.get("/v1/versions?user=person").await?["current"].as_u64() > before {
            while ask(client, "person", "Hi", false).await?["hone"]["policy_version"].as_u64()
                <= before
            {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            return Ok(Ok(began.elapsed().as_secs_f64()));
        }
        let id = turn.as_str().unwrap_or_default();
        let fate = client.get(&format!("/v1/turns/{id}")).await?;
        if fate["fate"]["state"] == "settled" {
            return Ok(Err(why_not(client, &fate["fate"]["explanation"]).await?));
        }
    }
    bail!("nothing came of it within {} s", PATIENCE.as_secs())
}

/// Why a turn came to nothing, with the gate's reasons where a candidate was refused.
async fn why_not(client: &Client, explanation: &Value) -> Result<String> {
    let refused = client.get("/admin/v1/refusals?user=person&limit=1").await?;
    let reasons = refused["data"][0]["reasons"]
        .as_array()
        .into_iter()
        .flatten();
    let reasons: Vec<&str> = reasons.filter_map(Value::as_str).collect();
    let explanation = explanation.as_str().unwrap_or_default();
    Ok(format!("{explanation} ({})", reasons.join("; ")))
}

fn words(answers: &[String]) -> Vec<f64> {
    let count = |text: &String| text.split_whitespace().count() as f64;
    answers.iter().map(count).collect()
}

/// By how many words the person's answers became shorter than the twin's did, question by question; each has
/// them before and after.
fn lift(person: &[Vec<f64>; 2], twin: &[Vec<f64>; 2]) -> Interval {
    let change = |who: &[Vec<f64>; 2], at: usize| who[0][at] - who[1][at];
    let lift = (0..HELD_OUT.len()).map(|at| change(person, at) - change(twin, at));
    Interval::of(&lift.collect::<Vec<_>>())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// One bar per answer; a full one stands for as many words as an answer can have here.
fn spark(words: &[f64]) -> String {
    const FULL: f64 = 240.0;
    plot::spark(&words.iter().map(|count| count / FULL).collect::<Vec<_>>())
}

fn told(when: &str, answers: &[Vec<String>; 2]) -> String {
    let [person, twin] = [0, 1].map(|who| words(&answers[who]));
    format!(
        "{when}: {:.0} words on average {}; the twin's {:.0} {}",
        mean(&person),
        spark(&person),
        mean(&twin),
        spark(&twin)
    )
}

/// The beginning of an answer, on one line.
fn line(text: &str) -> String {
    const MOST: usize = 160;
    let flat: Vec<&str> = text.split_whitespace().collect();
    let flat = flat.join(" ");
    match flat.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &flat[..at]),
        None => flat,
    }
}
