//! The gate's comparison on held-out turns, seen from outside: a version that does worse on turns it never
//! learned from is refused, and one that does better is published.

use hone_domain::TurnId;
use hone_tests::{Changes, TestApp, ask, temporary};
use serde_json::{Value, json};

/// Half of all turns are held out here, so that few are enough.
const SHARE: f64 = 0.5;
/// Answers of one person; about half of them are learned from.
const ANSWERS: u64 = 64;

fn changes() -> Vec<(&'static str, toml::Value)> {
    vec![
        ("train.method", "binary_reward".into()),
        ("train.score_weight", 1.0.into()),
        ("train.batch_turns", 16.into()),
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

/// A person who likes two of four answers and dislikes the others. What they say of
/// held-out answers is the same, or with `turned` the opposite.
async fn talk(app: &TestApp, user: &str, turned: bool) {
    for number in 0..ANSWERS {
        // Few different answers, each of which is learned from and held out.
        let seed = number % 4;
        let liked = seed < 2;
        let mut body = ask("Tell me a joke.", seed);
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

    talk(&app, "anna", false).await;
    let (published, refused) = outcome(&app, "anna").await;
    assert!(refused.is_empty(), "{}", refused[0]["reasons"]);
    let held_out = &published[0]["gate"]["held_out"];
    assert!(held_out["mean"].as_f64() > Some(0.0), "{held_out}");
    assert_eq!(published[0]["provisional"], false);

    talk(&app, "bert", true).await;
    let (published, refused) = outcome(&app, "bert").await;
    assert!(published.is_empty(), "{published:?}");
    let reasons = refused[0]["reasons"].to_string();
    assert!(
        reasons.contains("worse than what is served: on"),
        "{reasons}"
    );
    app.stop().await.unwrap();
}
