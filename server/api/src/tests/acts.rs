//! Clients that leave while something is being decided: what stands in the ledger is told all the
//! same.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request};
use axum::response::Response;
use futures::{FutureExt, poll};
use hone_domain::{Consents, ForgetId, Learning, PolicyVersion, Scope};
use hone_ledger::{AuditEntry, ForgetWhat, ForgetWish, TryOut, Window};
use hone_runtime::ShutdownTrigger;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::trials::{SCOPE, published};
use crate::Http;
use crate::acts::Acts;
use crate::testing::{Recorder, Stage, read, request, route_table};
use hone_inference::eraser::Eraser;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn with_body(method: &str, path: &str, body: &Value) -> Request<Body> {
    let json = [("content-type", "application/json")];
    let body = Body::from(body.to_string());
    request(method, path, &json).body(body).unwrap()
}

/// Sends a request, leaves after so many looks at its answer, and waits for what goes on.
async fn leave(stage: &Stage, request: Request<Body>, looks: usize) {
    let left = async {
        let mut sending = Box::pin(stage.send(request));
        loop {
            assert!(poll!(&mut sending).is_pending(), "it is no act");
            if stage.http.acts.count() > 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
        for _ in 0..looks {
            if poll!(&mut sending).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(sending);
        stage.http.acts.none().await;
    };
    timeout(PATIENCE, left).await.unwrap();
}

fn scope() -> Scope {
    Scope::from_stored(SCOPE)
}

fn newest(http: &Http) -> u64 {
    http.policies.get().version(&scope()).0
}

fn trial(http: &Http) -> Option<u64> {
    let heads = http.policies.get();
    heads.trial(&scope()).map(|trial| trial.policy.version.0)
}

#[tokio::test]
async fn what_is_decided_about_versions_is_told_though_the_client_left() {
    // What it asks for, and then what serve was told: the newest version, and what is on trial.
    let rows = [
        ("1/rollback", (4, None)),
        ("2/pin", (5, None)),
        ("1/canary", (6, Some(6))),
        ("6/promote", (6, None)),
        ("3/canary", (7, Some(7))),
        ("7/retire", (8, None)),
    ];
    for looks in [0, 1, 5, 20] {
        let stage = published(3).await;
        for (path, told) in rows {
            let path = format!("/admin/v1/versions/{path}");
            let act = with_body("POST", &path, &json!({ "scope": SCOPE }));
            leave(&stage, act, looks).await;
            let http = &stage.http;
            assert_eq!((newest(http), trial(http)), told, "{path} {looks}");
            let unpin = "/admin/v1/versions/2/pin";
            leave(
                &stage,
                with_body("DELETE", unpin, &json!({ "scope": SCOPE })),
                looks,
            )
            .await;
        }
    }
}

#[tokio::test]
async fn what_people_decide_about_their_data_is_told_though_they_left() {
    for looks in [0, 1, 5, 20] {
        let stage = Stage::new(Recorder::Collects).await;
        let own = Scope::of("local", None);
        let off = with_body("PUT", "/v1/consent", &json!({"learning": "off"}));
        leave(&stage, off, looks).await;
        let stored = Consents::from_stored(stage.http.personal.consents().await.unwrap());
        assert_eq!(stored.of(&own).map(|c| c.learning), Some(Learning::Off));
        assert_eq!(
            stage.http.rules.own_consent("local").learning,
            Learning::Off
        );
    }
    let chat = json!({"model": "gpt", "messages": [{"role": "user", "content": "q"}]});
    let once = [
        ("content-type", "application/json"),
        ("idempotency-key", "once"),
    ];
    let all = Window {
        limit: 9,
        before: None,
    };
    for looks in [0, 1, 5, 20] {
        let stage = Stage::new(Recorder::Collects).await;
        let asked = request("POST", "/v1/chat/completions", &once);
        let asked = asked.body(Body::from(chat.to_string())).unwrap();
        assert_eq!(read(stage.send(asked).await).await.status, 200);
        assert_eq!(stage.http.replays.size().0, 1);
        let wish = with_body("POST", "/v1/forget", &json!({"all": true}));
        leave(&stage, wish, looks).await;
        assert_eq!(stage.http.personal.forgets(all).await.unwrap().len(), 1);
        assert_eq!(stage.http.replays.size().0, 0, "kept for retries");
    }
}

fn wish(n: u128) -> ForgetWish {
    let id = ForgetId(uuid::Uuid::from_u128(n));
    ForgetWish {
        id,
        scope: scope(),
        owner: "owner".to_owned(),
        what: ForgetWhat::All,
        now_ms: 1_800_000_000_000,
        entry: AuditEntry {
            at_ms: 1,
            actor: "owner".to_owned(),
            act: "forget".to_owned(),
            object: format!("fgt_{id}"),
            detail: json!({}),
        },
    }
}

#[tokio::test]
async fn the_next_wish_tells_what_an_older_one_did_not() {
    let stage = published(2).await;
    let http = &stage.http;
    let begun = http.personal.begin_forget(&wish(1)).await.unwrap();
    let base = &begun.restored[0];
    assert_eq!(newest(http), 2, "nobody has told it");
    http.eraser.begin(&wish(2)).await.unwrap();
    let heads = http.policies.get();
    assert_eq!(heads.newest(&scope()), Some(base));
}

#[tokio::test]
async fn what_is_tainted_is_withdrawn_before_the_wish_is_answered() {
    let stage = published(2).await;
    let report = stage.http.eraser.begin(&wish(1)).await.unwrap();
    assert!(!report.versions_tainted.is_empty());
    let withdrawn = stage.fake.withdrawn.lock().unwrap().clone();
    assert_eq!(withdrawn, [(scope(), report.versions_tainted)]);
}

#[tokio::test]
async fn nobody_waits_for_a_wish_that_a_stop_leaves_for_later() {
    let stage = published(2).await;
    let ours = &stage.http.eraser;
    let eraser = Arc::new(Eraser::new(
        (ours.personal.clone(), ours.versions.clone()),
        (ours.blobs.clone(), None),
        (ours.policies.clone(), ours.index.clone()),
        ours.spool.clone(),
        ours.memories.clone(),
        1,
    ));
    // Nobody else hears of this one.
    let begun = ours.personal.begin_forget(&wish(1)).await.unwrap();
    assert!(!begun.report.is_done);
    let waiting = eraser.wait(wish(1).id, Duration::from_secs(300));
    let stopping = ShutdownTrigger::new();
    stopping.pull();
    let both = async { tokio::join!(waiting, eraser.clone().run(stopping.signal())) };
    let (report, ()) = tokio::time::timeout(Duration::from_secs(60), both)
        .await
        .expect("the stop ends the wait");
    assert!(report.unwrap().is_some_and(|report| !report.is_done));
}

#[tokio::test]
async fn the_next_wish_tells_of_trials_that_began_or_ended_untold() {
    let stage = published(2).await;
    let http = &stage.http;
    let order = |version| TryOut {
        scope: scope(),
        version: PolicyVersion(version),
        share: 0.5,
        note: None,
        now_ms: 1,
    };
    // A wish for nothing changes nothing else.
    let told = async |n| {
        let nothing = ForgetWish {
            what: ForgetWhat::Turns(Vec::new()),
            ..wish(n)
        };
        http.eraser.begin(&nothing).await.unwrap();
        (newest(http), trial(http))
    };
    http.versions.try_out(&order(1)).await.unwrap();
    assert_eq!((newest(http), trial(http)), (2, None), "nobody has told it");
    assert_eq!(told(1).await, (3, Some(3)));
    assert_eq!(told(2).await, (3, Some(3)), "it goes on");
    http.versions
        .end_trial(&scope(), PolicyVersion(3))
        .await
        .unwrap();
    assert_eq!(trial(http), Some(3), "nobody has told it");
    assert_eq!(told(3).await, (3, None));
}

#[test]
fn every_route_that_decides_is_an_act() {
    let others = [
        "/v1/chat/completions",
        "/v1/completions",
        "/inference/v1/generate",
        "/generate",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/feedback",
        "/v1/trajectories",
        "/v1/branches",
        "/admin/v1/branches",
        "/mcp",
        "/tokenize",
        "/detokenize",
        "/v1/versions/compare",
        "/admin/v1/versions/compare",
        "/v1/auth/sign-in",
        "/v1/auth/sign-out",
        "/v1/auth/invite",
    ];
    let table = route_table();
    for (method, path, rule) in table.rows() {
        let decides = method != Method::GET && !others.contains(&path);
        assert_eq!(rule.is_act(method), decides, "{method} {path}");
    }
    let unknown = table.rule(&Method::POST, None).unwrap();
    assert!(!unknown.is_act(&Method::POST));
}

#[tokio::test]
async fn an_act_that_panics_is_answered_and_counts_no_longer() {
    let (acts, act): (Acts, fn() -> Response) = (Acts::new(1), || panic!("boom"));
    for _ in 0..3 {
        let run = AssertUnwindSafe(acts.run(async move { act() }));
        let ended = run.catch_unwind().await;
        assert_eq!(ended.unwrap_err().downcast_ref::<&str>(), Some(&"boom"));
        assert_eq!(acts.count(), 0);
    }
}
