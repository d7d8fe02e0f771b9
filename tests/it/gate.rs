//! The gate's comparison on held-out turns, seen from outside: a version that does worse on turns it never
//! learned from is refused, and one that does better is published.

use hone_domain::TurnId;
use hone_tests::{Changes, TestApp, ask, temporary};
use serde_json::{Value, json};

use crate::loops::switch;

/// Half of all turns are held out here, so that few are enough.
const SHARE: f64 = 0.5;
/// Answers of one person; about half of them are learned from.
const ANSWERS: usize = 64;
/// What is asked every time.
const QUESTION: &str = "What is the capital of France?";

fn changes() -> Vec<(&'static str, toml::Value)> {
    vec![
        ("train.method", "binary_reward".into()),
        ("train.score_weight", 1.0.into()),
        ("train.batch_turns", (ANSWERS as i64).into()),
        ("train.batch_turns_min", 16.into()),
        ("train.explicit_wait_ms", 600_000.into()),
        ("train.tick_ms", 100.into()),
        ("train.learner.steps_per_batch", 4.into()),
        ("train.learner.lr", 0.01.into()),
        ("train.gate.held_out_share", SHARE.into()),
        ("train.gate.held_out_min", 4.into()),
        ("train.gate.held_out_margin", 0.01.into()),
        // What is looked at is the comparison alone.
        ("train.gate.kl_to_parent_max", 5.0.into()),
        ("train.gate.kl_to_reference_max", 5.0.into()),
        ("train.gate.probe_recent", 1.into()),
        ("train.gate.probe_golden", 1.into()),
    ]
}

/// Seeds of an answer that is a list and of one that is not, which begin with different words.
async fn seeds(app: &TestApp) -> [u64; 2] {
    let (mut list, mut sentence) = (None, None);
    for seed in 0..64 {
        let reply = app.chat(ask(QUESTION, seed)).await.unwrap();
        let said = reply["choices"][0]["message"]["content"].as_str().unwrap();
        let first = said.split_whitespace().next().map(str::to_owned);
        match said.contains("\n- ") {
            true => list.get_or_insert((first, seed)),
            false => sentence.get_or_insert((first, seed)),
        };
        match (&list, &sentence) {
            (Some(list), Some(sentence)) if list.0 != sentence.0 => return [list.1, sentence.1],
            (Some(_), Some(_)) => sentence = None,
            _ => {}
        }
    }
    panic!("of 64 answers none is a list, or all are");
}

/// A person who likes lists and dislikes sentences, and from all of whose turns one batch learns. What they say of
/// held-out answers is the same, or with `turned` the opposite.
async fn talk(app: &TestApp, user: &str, seeds: [u64; 2], turned: bool) {
    switch(app, "train", "pause").await;
    for number in 0..ANSWERS {
        // Both answers are learned from and held out.
        let liked = number % 2 == 0;
        let mut body = ask(QUESTION, seeds[number % 2]);
        body["user"] = json!(user);
        let reply = app.chat(body).await.unwrap();
        let turn = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
        let held_out = hone_train::is_held_out(TurnId::parse(&turn).unwrap(), SHARE as f32);
        let score = if liked != (held_out && turned) {
            1.0
        } else {
            -1.0
        };
        let feedback = json!({"turn_id": turn, "score": score});
        app.post("/v1/feedback", feedback).await.unwrap();
    }
    let path = format!("/v1/learned?user={user}");
    let all = |learned: &Value| learned["judged"] == json!(ANSWERS);
    app.until(&path, all).await.unwrap();
    switch(app, "train", "resume").await;
}

/// What came of the person's turns: their versions and their refused candidates, once there is one of either.
async fn outcome(app: &TestApp, user: &str) -> (Vec<Value>, Vec<Value>) {
    let list = async |path: &str| {
        let list = app.get(&format!("{path}?user={user}")).await.unwrap();
        list["data"].as_array().unwrap().clone()
    };
    for _ in 0..2_400 {
        let found = (list("/v1/versions").await, list("/admin/v1/refusals").await);
        if !(found.0.is_empty() && found.1.is_empty()) {
            return found;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("nothing came of what {user} said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_worse_on_turns_it_never_learned_from_is_refused() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &changes() as Changes<'_>)
        .await
        .unwrap();

    let seeds = seeds(&app).await;
    talk(&app, "anna", seeds, false).await;
    let (published, refused) = outcome(&app, "anna").await;
    assert!(refused.is_empty(), "{}", refused[0]["reasons"]);
    let held_out = &published[0]["gate"]["held_out"];
    assert!(held_out["mean"].as_f64() > Some(0.0), "{held_out}");
    assert_eq!(published[0]["provisional"], false);

    talk(&app, "bert", seeds, true).await;
    let (published, refused) = outcome(&app, "bert").await;
    assert!(published.is_empty(), "{published:?}");
    let reasons = refused[0]["reasons"].to_string();
    assert!(
        reasons.contains("worse than what is served: on"),
        "{reasons}"
    );
    app.stop().await.unwrap();
}
