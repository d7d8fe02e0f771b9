//! `hone-bench memory --model PATH`: whether what a person said once holds in the next conversation, with nothing
//! trained, and what memory costs.
//!
//! A person complains once about an answer, in words of the phrase bank, and leaves. What the person asks in new
//! conversations is checked as in `learn`: against the model that is told in every question, and against the model that
//! is not. Then the same among 200 facts that have nothing to do with it. The 200 facts use words that no question contains.

use std::time::{Duration, Instant};

use futures::future::join_all;
use hone_starter::rng::Rng;
use serde::Deserialize;
use serde_json::{Value, json};

use super::asker::Asker;
use super::base::{Base, Tried};
use super::knowledge::share;
use super::phrases::Deck;
use super::reading::Reading;
use super::run::pause_training;
use super::{ANSWER_TOKENS, Materials, Size, TEMPERATURE};
use crate::Bench;
use crate::learn::talker::{Ask, Talker};
use crate::report::{Report, milli};
use crate::wire::Wire;

const FACTS: &str = include_str!("../../learn/updates.json");
/// People per preference, unless the command line says otherwise (`--seeds`).
const PEOPLE: u64 = 3;
/// Facts that have nothing to do with a wish.
const OTHER_FACTS: usize = 200;
/// Longest wait until a complaint is a memory, and how often it is looked at.
const REMEMBERED_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(250);
/// Memories of the people whose waiting is compared; both fill what a prompt shows.
const FEW: usize = 60;
const MANY: usize = 10_000;
/// Questions that each of the two asks.
const TIMED: usize = 40;
/// People whose memories must not be mixed up, their requests, and how many are on their way at the same time.
const APART: usize = 50;
const APART_REQUESTS: usize = 1_000;
const TOGETHER: usize = 4;

const HEAD: [&str; 8] = [
    "preference",
    "untold",
    "told",
    "remembered",
    "as wished",
    "of told",
    "among 200 facts",
    "of told, among",
];

/// What became of one preference.
struct Wish {
    name: &'static str,
    untold: f64,
    told: f64,
    remembered: Vec<bool>,
    alone: Vec<bool>,
    among: Vec<bool>,
}

/// Facts that people state one after the other, written by people who had not seen the rules.
#[derive(Deserialize)]
struct Stated {
    updated: Vec<Updated>,
    together: Vec<Compatible>,
}

/// Each makes the one before untrue.
#[derive(Deserialize)]
struct Updated {
    first: String,
    second: String,
    third: String,
    question: String,
}

/// Both hold.
#[derive(Deserialize)]
struct Compatible {
    one: String,
    other: String,
}

/// What becomes of facts when newer ones are stated.
#[derive(Default)]
struct Updates {
    updates: usize,
    /// Facts that a newer one made untrue, and that are shown with the question all the same.
    stale: usize,
    pairs: usize,
    /// Facts that are no longer shown although they hold.
    lost: usize,
}

/// What memory costs a request.
struct Cost {
    few_ms: f64,
    many_ms: f64,
    tokens: f64,
}

/// How memories of different people stay apart.
struct Apart {
    requests: usize,
    /// Requests that were not shown the one memory of their person, or another one.
    wrong: usize,
    /// Searches for another person's word that found something.
    found: usize,
    /// People who were shown a memory after they forgot it.
    after_forgetting: usize,
}

/// What is measured besides wishes.
struct Kept {
    cost: Cost,
    apart: Apart,
    updates: Updates,
}

/// `hone-bench memory`.
pub(crate) fn remember(bench: &Bench, size: &Size) -> Result<Report, String> {
    let materials = Materials::load(size)?;
    let model = bench.config.model.served_name();
    println!("memory: {model}, as it ships");
    let reading = Reading::new(bench)?;
    let of_base = async |url: &str| Base::measure_wishes(url, &materials).await;
    let base = bench.runtime.block_on(reading.app(bench, of_base))?;
    let people = if size.seeds == super::SEEDS {
        PEOPLE
    } else {
        size.seeds
    };
    let mut wishes = Vec::new();
    for tried in &base.tried {
        if size.preferences.is_empty() && !tried.qualifies() {
            continue;
        }
        let work = async |url: &str| wish(url, tried, &materials, people).await;
        let wish = bench.runtime.block_on(reading.app(bench, work))?;
        println!("  {}", wish.sentence());
        wishes.push(wish);
    }
    let rest = async |url: &str| {
        pause_training(url, true).await?;
        let cost = cost(url, materials.bank.questions()).await?;
        Ok(Kept {
            cost,
            apart: apart(url).await?,
            updates: updates(url).await?,
        })
    };
    let kept = bench.runtime.block_on(reading.app(bench, rest))?;
    Ok(report(&model, people, &wishes, &kept))
}

/// People who complain once, each of whom then asks all held-out questions, twice.
async fn wish(
    url: &str,
    tried: &Tried,
    materials: &Materials,
    people: u64,
) -> Result<Wish, String> {
    let wire = Wire::new(url)?;
    pause_training(url, true).await?;
    let questions = materials.held_out(tried.preference);
    let mut wish = Wish {
        name: tried.preference.name(),
        untold: tried.untold,
        told: tried.told,
        remembered: Vec::new(),
        alone: Vec::new(),
        among: Vec::new(),
    };
    for person in 1..=people {
        let user = format!("person-{person}");
        complain(url, &user, tried, materials, person).await?;
        wish.remembered.push(is_remembered(&wire, &user).await?);
        let asker = Asker {
            url,
            user: &user,
            temperature: TEMPERATURE,
            max_tokens: ANSWER_TOKENS,
            memory: Some("read"),
        };
        let is_met = |answer: &String| tried.preference.is_met(answer);
        wish.alone
            .extend(asker.ask_all(&questions).await?.iter().map(is_met));
        import(&wire, &user, 0..OTHER_FACTS).await?;
        wish.among
            .extend(asker.ask_all(&questions).await?.iter().map(is_met));
    }
    Ok(wish)
}

/// A conversation of one question, its answer, and a complaint about that.
async fn complain(
    url: &str,
    user: &str,
    tried: &Tried,
    materials: &Materials,
    seed: u64,
) -> Result<(), String> {
    let mut rng = Rng::at(seed, tried.preference as u64);
    let asked = materials.bank.asked(tried.preference);
    let complaints = materials.bank.of(tried.preference).complaints.clone();
    let question = Deck::shuffled(asked, &mut rng).draw();
    let complaint = Deck::shuffled(complaints, &mut rng).draw();
    let mut talker = Talker::new(url, user.to_owned()).await?;
    talker.memory = Some("full");
    let mut messages = vec![json!({ "role": "user", "content": question })];
    for says in [Some(complaint), None] {
        let ask = Ask {
            messages: &messages,
            session: Some("first"),
            seed: rng.below(1 << 30) as u64,
            temperature: TEMPERATURE,
            max_tokens: ANSWER_TOKENS,
        };
        let answer = talker.ask(ask).await;
        messages.push(json!({ "role": "assistant", "content": answer.text }));
        messages.extend(says.map(|says| json!({ "role": "user", "content": says })));
    }
    match talker.failed {
        0 => Ok(()),
        failed => Err(format!("{failed} requests of a complaint failed")),
    }
}

async fn is_remembered(wire: &Wire, user: &str) -> Result<bool, String> {
    let (began, list) = (Instant::now(), format!("/v1/memories?user={user}"));
    while began.elapsed() < REMEMBERED_MAX {
        let known = wire.get(&list).await?;
        if known["data"].as_array().is_some_and(|all| !all.is_empty()) {
            return Ok(true);
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(false)
}

/// A fact about nothing that anybody asks.
fn fact(number: usize) -> String {
    const THINGS: [&str; 10] = [
        "violin",
        "toolbox",
        "tent",
        "passport",
        "bicycle",
        "camera",
        "ladder",
        "kayak",
        "telescope",
        "sewing machine",
    ];
    const PLACES: [&str; 7] = [
        "attic", "loft", "garage", "office", "shed", "hallway", "car",
    ];
    let (thing, place) = (THINGS[number % 10], PLACES[number / 10 % 7]);
    format!("I keep {thing} number {number} in the {place}.")
}

async fn import(wire: &Wire, user: &str, facts: std::ops::Range<usize>) -> Result<(), String> {
    let wanted = facts.len() as u64;
    let file: String = facts
        .map(|number| format!("- {}\n", fact(number)))
        .collect();
    let body = json!({ "markdown": file, "user": user });
    let reply = wire.post("/v1/memories/import", &body).await?;
    match reply["added"].as_u64() {
        Some(added) if added == wanted => Ok(()),
        _ => Err(format!("not all of {wanted} facts were imported: {reply}")),
    }
}

/// Asks for answers of one token.
struct Shortly {
    wire: Wire,
    model: Value,
}

impl Shortly {
    async fn new(url: &str) -> Result<Self, String> {
        let wire = Wire::new(url)?;
        let model = wire.models().await?["data"][0]["id"].clone();
        Ok(Self { wire, model })
    }

    /// The reply and its milliseconds.
    async fn ask(&self, user: &str, question: &str, mode: &str) -> Result<(Value, f64), String> {
        let body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": question }],
            "user": user,
            "max_tokens": 1,
            "temperature": 0,
            "store": false,
            "hone": { "memory": mode },
        });
        let began = Instant::now();
        let reply = self.wire.post("/v1/chat/completions", &body).await?;
        Ok((reply, began.elapsed().as_secs_f64() * 1e3))
    }

    /// The memories that its answer is shown.
    async fn shown(&self, user: &str, question: &str) -> Result<Vec<Value>, String> {
        let (reply, _) = self.ask(user, question, "read").await?;
        let shown = reply["hone"]["memories"].as_array().cloned();
        Ok(shown.unwrap_or_default())
    }
}

fn prompt_tokens(reply: &Value) -> f64 {
    reply["usage"]["prompt_tokens"].as_f64().unwrap_or_default()
}

/// Latency of an answer of one token beside few and beside many memories, in turn.
async fn cost(url: &str, questions: &[String]) -> Result<Cost, String> {
    let shortly = Shortly::new(url).await?;
    let wire = &shortly.wire;
    import(wire, "few", 0..FEW).await?;
    import(wire, "many", 0..MANY).await?;
    let (mut few, mut many, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..TIMED {
        // Every fact shares a word with it; those about the thing share two.
        let asked = &questions[number % questions.len()];
        let question = format!(
            "{asked} And where is {} number {number}?",
            if number % 2 == 0 { "tent" } else { "camera" }
        );
        let (plain, _) = shortly.ask("few", &question, "off").await?;
        let (_, few_ms) = shortly.ask("few", &question, "read").await?;
        let (reply, many_ms) = shortly.ask("many", &question, "read").await?;
        few.push(few_ms);
        many.push(many_ms);
        tokens.push(prompt_tokens(&reply) - prompt_tokens(&plain));
    }
    Ok(Cost {
        few_ms: median(few),
        many_ms: median(many),
        tokens: tokens.into_iter().fold(0.0, f64::max),
    })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// Facts that are updated twice, and facts that hold together.
async fn updates(url: &str) -> Result<Updates, String> {
    let shortly = Shortly::new(url).await?;
    let wire = &shortly.wire;
    let stated: Stated = serde_json::from_str(FACTS)
        .map_err(|error| format!("the facts cannot be read: {error}"))?;
    let state = async |user: &str, text: &str| {
        let body = json!({ "text": text, "user": user });
        Ok::<Value, String>(wire.post("/v1/memories", &body).await?["id"].clone())
    };
    let mut seen = Updates::default();
    for (number, one) in stated.updated.iter().enumerate() {
        let user = format!("updated-{number}");
        let old = [
            state(&user, &one.first).await?,
            state(&user, &one.second).await?,
        ];
        state(&user, &one.third).await?;
        let shown = shortly.shown(&user, &one.question).await?;
        seen.updates += old.len();
        seen.stale += old.iter().filter(|id| shown.contains(id)).count();
    }
    for (number, pair) in stated.together.iter().enumerate() {
        let user = format!("together-{number}");
        let both = [
            state(&user, &pair.one).await?,
            state(&user, &pair.other).await?,
        ];
        let shown = shortly.shown(&user, "What do you know about me?").await?;
        seen.pairs += 1;
        seen.lost += both.iter().filter(|id| !shown.contains(id)).count();
    }
    Ok(seen)
}

/// People with one memory each, asking in turn at the same time.
async fn apart(url: &str) -> Result<Apart, String> {
    let shortly = Shortly::new(url).await?;
    let wire = &shortly.wire;
    let mut ids = Vec::new();
    for person in 0..APART {
        let body =
            json!({ "text": format!("My word is word{person}."), "user": format!("one-{person}") });
        let kept = wire.post("/v1/memories", &body).await?;
        ids.push(kept["id"].clone());
    }
    let part = async |part: usize| {
        let mut wrong = 0;
        for number in (part..APART_REQUESTS).step_by(TOGETHER) {
            let person = number % APART;
            let user = format!("one-{person}");
            let question = format!("What is word{}?", (number * 7) % APART);
            let shown = shortly.shown(&user, &question).await?;
            wrong += usize::from(shown != [ids[person].clone()]);
        }
        Ok::<usize, String>(wrong)
    };
    let wrong: Result<Vec<usize>, String> = join_all((0..TOGETHER).map(part))
        .await
        .into_iter()
        .collect();
    let (mut found, mut after_forgetting) = (0, 0);
    for (person, id) in ids.iter().enumerate() {
        let other = (person + 1) % APART;
        let list = wire
            .get(&format!("/v1/memories?user=one-{person}&q=word{other}"))
            .await?;
        let others = list["data"]
            .as_array()
            .is_none_or(|all| all.iter().any(|one| one["id"] != *id));
        found += usize::from(others);
        let user = format!("one-{person}");
        let id = id.as_str().unwrap_or_default();
        wire.delete(&format!("/v1/memories/{id}?user={user}"))
            .await?;
        let shown = shortly.shown(&user, "What is my word?").await?;
        after_forgetting += usize::from(!shown.is_empty());
    }
    Ok(Apart {
        requests: APART_REQUESTS,
        wrong: wrong?.into_iter().sum(),
        found,
        after_forgetting,
    })
}

impl Wish {
    fn of_told(&self, met: &[bool]) -> f64 {
        share(met) / self.told.max(f64::MIN_POSITIVE)
    }

    fn sentence(&self) -> String {
        format!(
            "{}: remembered {:.2}, as wished {:.2} alone and {:.2} among {OTHER_FACTS} facts (told {:.2}, untold {:.2})",
            self.name,
            share(&self.remembered),
            share(&self.alone),
            share(&self.among),
            self.told,
            self.untold
        )
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "untold": self.untold,
            "told": self.told,
            "remembered": share(&self.remembered),
            "as_wished": share(&self.alone),
            "of_told": milli(self.of_told(&self.alone)),
            "as_wished_among_facts": share(&self.among),
            "of_told_among_facts": milli(self.of_told(&self.among)),
            "answers": self.alone.len(),
        })
    }
}

fn report(model: &str, people: u64, wishes: &[Wish], kept: &Kept) -> Report {
    let Kept {
        cost,
        apart,
        updates,
    } = kept;
    let title = format!(
        "memory: {model}, {people} people per preference, temperature {TEMPERATURE}, at most {ANSWER_TOKENS} tokens"
    );
    let mut report = Report::new(title, &HEAD);
    for wish in wishes {
        let cell = |share: f64| format!("{share:.2}");
        report.row([
            wish.name.to_owned(),
            cell(wish.untold),
            cell(wish.told),
            cell(share(&wish.remembered)),
            cell(share(&wish.alone)),
            cell(wish.of_told(&wish.alone)),
            cell(share(&wish.among)),
            cell(wish.of_told(&wish.among)),
        ]);
    }
    let slower = cost.many_ms - cost.few_ms;
    report.note(format!(
        "an answer of one token beside {MANY} memories: {:.0} ms, beside {FEW}: {:.0} ms ({slower:+.1} ms); at most {:.0} \
         tokens added",
        cost.many_ms, cost.few_ms, cost.tokens
    ));
    report.note(format!(
        "{} requests of {APART} people: {} were shown something else than their one memory; {} searches found another \
         person's; {} people were shown what they had forgotten",
        apart.requests, apart.wrong, apart.found, apart.after_forgetting
    ));
    report.note(format!(
        "{} facts that newer ones made untrue: {} are still shown; {} pairs of facts that hold together: {} are no longer \
         shown",
        updates.updates, updates.stale, updates.pairs, updates.lost
    ));
    report.set("facts_untrue", updates.updates);
    report.set("facts_untrue_shown", updates.stale);
    report.set("fact_pairs", updates.pairs);
    report.set("facts_lost", updates.lost);
    report.set("model", model);
    report.set("people", people);
    report.set("wishes", wishes.iter().map(Wish::json).collect::<Vec<_>>());
    report.set("ms_beside_few", milli(cost.few_ms));
    report.set("ms_beside_many", milli(cost.many_ms));
    report.set("tokens_added_max", cost.tokens);
    report.set("requests", apart.requests);
    report.set("requests_shown_other", apart.wrong);
    report.set("searches_found_other", apart.found);
    report.set("shown_after_forgetting", apart.after_forgetting);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_all_different_and_about_nothing_that_is_asked() {
        let facts: std::collections::BTreeSet<String> = (0..MANY).map(fact).collect();
        assert_eq!(facts.len(), MANY);
        let questions = super::super::PhraseBank::load().expect("the bank");
        let asks = |word: &str| {
            questions
                .questions()
                .iter()
                .any(|q| q.to_lowercase().contains(word))
        };
        for word in ["violin", "toolbox", "tent ", "attic", "loft", "kayak"] {
            assert!(!asks(word), "{word}");
        }
    }

    #[test]
    fn shares_are_of_what_the_told_model_does() {
        let wish = Wish {
            name: "short",
            untold: 0.0,
            told: 0.8,
            remembered: vec![true],
            alone: vec![true, true, true, false],
            among: vec![true, false, true, false],
        };
        assert_eq!(milli(wish.of_told(&wish.alone)), 0.938);
        assert_eq!(wish.json()["of_told_among_facts"], 0.625);
        assert!(median(vec![3.0, 1.0, 2.0]) == 2.0 && median(Vec::new()) == 0.0);
    }
}
