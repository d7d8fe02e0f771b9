//! Consent, forgetting, and whether learning helps.

use hone_api_types::under_way::TrainingJob;
use hone_domain::{Consent, Learning, Message, PolicyChoice, Reason, Role, Scope, SessionId, Turn};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::testing::{Recorder, Reply, Stage, read, request};

const CHAT: &str = "/v1/chat/completions";

pub(super) async fn put(stage: &Stage, body: &Value) -> Reply {
    let json = [("content-type", "application/json")];
    let request = request("PUT", "/v1/consent", &json).body(body.to_string().into());
    read(stage.send(request.unwrap()).await).await
}

async fn chat(stage: &Stage, body: Value) -> Value {
    let mut all = json!({"model": "gpt", "messages": [{"role": "user", "content": "q"}]});
    for (key, value) in body.as_object().unwrap() {
        all[key] = value.clone();
    }
    stage.post(CHAT, &all.to_string()).await.json()
}

#[tokio::test]
async fn a_user_has_at_most_512_bytes() {
    let stage = Stage::new(Recorder::Collects).await;
    let of = |bytes: usize| json!({"learning": "full", "user": "u".repeat(bytes)});
    assert_eq!(put(&stage, &of(513)).await.status, 400);
    assert_eq!(put(&stage, &of(512)).await.status, 200);
}

#[tokio::test]
async fn consent_decides_who_answers_and_what_is_kept() {
    let stage = Stage::new(Recorder::Collects).await;
    let first = stage.get("/v1/consent").await.json();
    assert_eq!(
        (&first["learning"], &first["decided"]),
        (&json!("full"), &json!(false))
    );
    // By default a better answer is imitated, and again with later batches.
    assert_eq!(first["corrections"], "imitated");
    assert_eq!(first["corrections_replayed"], true);
    // Consent, what the request says → collected, reason, version asked for, why it cannot train.
    let base = PolicyChoice::Base;
    let newest = PolicyChoice::Newest;
    let off = Some(Reason::LearningOff);
    let rows = [
        (
            json!({"learning": "full"}),
            json!({}),
            (true, None),
            (newest.clone(), None),
        ),
        (
            json!({"learning": "serve"}),
            json!({}),
            (true, None),
            (newest.clone(), off),
        ),
        (
            json!({"learning": "off"}),
            json!({}),
            (false, Some("learning_off")),
            (base, None),
        ),
        (
            json!({"learning": "full"}),
            json!({"store": false}),
            (false, Some("store_false")),
            (newest.clone(), None),
        ),
        (
            json!({"learning": "full", "despite_store_false": true}),
            json!({"store": false}),
            (true, None),
            (newest, None),
        ),
    ];
    for (consent, wish, (collected, reason), (policy, untrainable)) in rows {
        let reply = put(&stage, &consent).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.json()["decided"], true);
        let said = chat(&stage, wish).await;
        let got = (&said["hone"]["collected"], said["hone"]["reason"].as_str());
        assert_eq!(got, (&json!(collected), reason), "{consent}");
        let asks = stage.fake.asks.lock().unwrap();
        let ask = asks.last().unwrap();
        assert_eq!(
            (&ask.policy, ask.context.untrainable),
            (&policy, untrainable),
            "{consent}"
        );
    }
    let kept = stage.get("/v1/consent").await.json();
    assert_eq!(
        (&kept["learning"], &kept["despite_store_false"]),
        (&json!("full"), &json!(true))
    );
    let other = stage.get("/v1/consent?user=ann").await.json();
    assert_eq!(
        other["decided"], false,
        "one user's decision is not another's"
    );
}

#[tokio::test]
async fn what_a_decision_does_not_say_stays_as_it_was() {
    let stage = Stage::new(Recorder::Collects).await;
    put(
        &stage,
        &json!({"learning": "full", "despite_store_false": true}),
    )
    .await;
    put(&stage, &json!({"learning": "full", "holdback": false})).await;
    put(&stage, &json!({"learning": "serve"})).await;
    let later = stage.get("/v1/consent").await.json();
    assert_eq!(
        (
            &later["learning"],
            &later["despite_store_false"],
            &later["holdback"]
        ),
        (&json!("serve"), &json!(true), &json!(false))
    );
}

#[tokio::test]
async fn a_decision_waits_for_the_one_before() {
    let stage = Stage::new(Recorder::Collects).await;
    let http = &stage.http;
    let before = http.rules.deciding().await;
    let theirs = async {
        let reply = put(&stage, &json!({"learning": "off"})).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    };
    let ours = async {
        let other = Scope::of("somebody", None);
        let full = Consent::to(Learning::Full);
        // Those who write stand in line, so theirs would come in between.
        for now_ms in 0..20 {
            let set = http.personal.set_consent(&other, full, now_ms).await;
            set.unwrap();
        }
        assert_eq!(http.personal.consents().await.unwrap(), [(other, full)]);
        drop(before);
    };
    tokio::join!(theirs, ours);
    assert_eq!(http.personal.consents().await.unwrap().len(), 2);
}

#[tokio::test]
async fn keys_owners_are_not_learned_from_until_they_say_so() {
    let stage = Stage::new(Recorder::Collects).await;
    let ask = async |body: &str| {
        let headers = [
            ("content-type", "application/json"),
            ("authorization", "Bearer user-a"),
        ];
        let request = request("POST", CHAT, &headers).body(body.to_owned().into());
        read(stage.send(request.unwrap()).await).await.json()
    };
    let body = json!({"model": "gpt", "messages": [{"role": "user", "content": "q"}]});
    let reply = ask(&body.to_string()).await;
    assert_eq!(reply["hone"]["collected"], true, "{reply}");
    let told = stage.told.lock().unwrap();
    assert_eq!(told.turns[0].owner, "user-a");
    let asks = stage.fake.asks.lock().unwrap();
    assert_eq!(asks[0].context.untrainable, Some(Reason::LearningOff));
}

/// Turns of one session in the ledger: each repeats the one before.
async fn conversation(stage: &Stage, session: u128, n: u128) -> Vec<Turn> {
    chat(stage, json!({})).await;
    let like = stage.told.lock().unwrap().turns[0].clone();
    let mut turns: Vec<Turn> = Vec::new();
    for i in 0..n {
        let mut turn = like.clone();
        turn.id.0 = Uuid::from_u128(session * 100 + i);
        turn.request.0 = turn.id.0;
        turn.session = SessionId(Uuid::from_u128(session));
        turn.parent = turns.last().map(|before| before.id);
        turn.messages = match turns.last() {
            None => Vec::new(),
            Some(before) => [before.messages.clone(), vec![before.completion_message()]].concat(),
        };
        let said = format!("message {i} of session {session}");
        turn.messages.push(Message::text(Role::User, said));
        turns.push(turn);
    }
    stage.http.ledger.record_turns(&turns).await.unwrap();
    turns
}

#[tokio::test]
async fn forgetting_says_first_what_it_will_do() {
    let stage = Stage::new(Recorder::Collects).await;
    let turns = conversation(&stage, 7, 3).await;
    conversation(&stage, 8, 2).await;
    let session = format!("sess_{}", turns[0].session);
    let dry = json!({"session_id": session, "dry_run": true});
    let plan = stage.post("/v1/forget", &dry.to_string()).await.json();
    let shown = (
        &plan["turns"],
        &plan["dry_run"],
        &plan["state"],
        &plan["id"],
    );
    assert_eq!(
        shown,
        (&json!(3), &json!(true), &json!("done"), &Value::Null)
    );
    assert!(
        plan["cannot_undo"]
            .as_array()
            .is_some_and(|lines| lines.len() >= 3)
    );
    let stays = plan["cannot_undo"].to_string();
    assert!(stays.contains("audit log"), "{stays}");
    let path = format!("/v1/turns/{}", turns[0].id);
    assert_eq!(stage.get(&path).await.status, 200, "a plan changes nothing");

    let real = json!({"session_id": session});
    let reply = stage.post("/v1/forget", &real.to_string()).await.json();
    assert_eq!(
        (&reply["turns"], &reply["state"]),
        (&json!(3), &json!("done")),
        "{reply}"
    );
    let id = reply["id"].as_str().unwrap();
    assert_eq!(stage.get(&path).await.status, 404);
    let again = stage.get(&format!("/v1/forget/{id}")).await.json();
    assert_eq!(again, reply);
    let gone = stage.post("/v1/forget", &real.to_string()).await;
    assert_eq!(
        (gone.status, &gone.json()["error"]["code"]),
        (404, &json!("not_found"))
    );
    let all = stage.post("/v1/forget", r#"{"all": true}"#).await.json();
    assert_eq!(all["turns"], 2, "{all}");
    let log = stage.get("/admin/v1/audit?act=forget").await.json();
    let entries = log["data"].as_array().unwrap().iter();
    let objects: Vec<&Value> = entries.map(|entry| &entry["object"]).collect();
    assert_eq!(
        objects,
        [&all["id"], &reply["id"]],
        "neither the plan nor the refused wish"
    );
}

#[tokio::test]
async fn unclear_wishes_forget_nothing() {
    let stage = Stage::new(Recorder::Collects).await;
    let turns = conversation(&stage, 7, 1).await;
    let session = format!("sess_{}", turns[0].session);
    let rows = [
        (json!({}), ""),
        (json!({"all": false}), ""),
        (json!({"all": true, "session_id": session}), ""),
        (json!({"all": true, "dryrun": true}), "dryrun"),
        (json!({"session_id": "mine"}), "session_id"),
        (json!({"turn_ids": []}), "turn_ids"),
        (json!({"turn_ids": ["x"]}), "turn_ids[0]"),
        (json!({"all": "yes"}), "all"),
    ];
    for (body, param) in rows {
        let reply = stage.post("/v1/forget", &body.to_string()).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text);
        let said = reply.json()["error"]["param"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert_eq!(said, param, "{body}");
    }
    assert_eq!(stage.http.ledger.counts().await.unwrap().turns, 1);
    for body in [
        json!({"learning": "sometimes"}),
        json!({"learning": "off", "usr": "ann"}),
    ] {
        assert_eq!(put(&stage, &body).await.status, 400, "{body}");
    }
    let theirs = json!({"session_id": session, "user": "somebody"});
    assert_eq!(
        stage.post("/v1/forget", &theirs.to_string()).await.status,
        404
    );
}

#[tokio::test]
async fn improvement_and_what_was_learned_have_a_sentence() {
    let stage = Stage::new(Recorder::Collects).await;
    let nothing = stage.get("/v1/improvement").await.json();
    assert_eq!(
        nothing["sentence"],
        "No answer of a learned version was judged yet."
    );
    assert_eq!(
        (&nothing["difference"], &nothing["n_base"]),
        (&Value::Null, &json!(0))
    );
    // No number of sessions brings a comparison where none is held back.
    assert_eq!(
        (&nothing["holdback_share"], &nothing["sessions_needed"]),
        (&json!(0.0), &Value::Null)
    );
    conversation(&stage, 7, 2).await;
    let learned = stage.get("/v1/learned").await.json();
    assert_eq!(
        learned["sentence"],
        "Nothing was learned yet: 2 turns kept, 0 of them judged."
    );
    assert_eq!(learned["waiting"]["awaiting_next_state"], 2);
    let scope = stage.told.lock().unwrap().turns[0].scope.clone();
    let path = format!("/admin/v1/improvement?scope={scope}");
    let admin = stage.get(&path).await.json();
    assert_eq!(admin, nothing);
}

#[tokio::test]
async fn a_key_overrides_store_false_where_its_owner_lets_all_be_learned() {
    let stage = Stage::new(Recorder::Collects).await;
    let send = async |(method, path): (&str, &str), key: &str, body: Value| {
        let bearer = format!("Bearer {key}");
        let headers = [
            ("content-type", "application/json"),
            ("authorization", bearer.as_str()),
        ];
        let request = request(method, path, &headers).body(body.to_string().into());
        read(stage.send(request.unwrap()).await).await
    };
    let made = send(("POST", "/v1/keys"), "developer", json!({"name": "agent"})).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let made = made.json();
    let (key, id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
    let path = format!("/v1/keys/{id}");
    let turn =
        json!({"model": "gpt", "store": false, "messages": [{"role": "user", "content": "q"}]});
    // Consent of the owner, whether the key overrides, whether it is collected and if not, why.
    let rows = [
        ("full", false, (false, Some("store_false"))),
        ("full", true, (true, None)),
        ("serve", true, (false, Some("store_false"))),
        ("off", true, (false, Some("learning_off"))),
        ("full", false, (false, Some("store_false"))),
    ];
    for (consent, despite, (collected, reason)) in rows {
        let decided = send(
            ("PUT", "/v1/consent"),
            "developer",
            json!({ "learning": consent }),
        );
        assert_eq!(decided.await.status, 200);
        let patch = json!({ "despite_store_false": despite });
        let changed = send(("PATCH", &path), "developer", patch).await;
        assert_eq!(changed.json()["despite_store_false"], despite);
        let said = send(("POST", CHAT), key, turn.clone()).await.json();
        let got = (&said["hone"]["collected"], said["hone"]["reason"].as_str());
        assert_eq!(got, (&json!(collected), reason), "{consent} {despite}");
    }
    let patch = json!({"despite_store_false": true});
    let other = send(("PATCH", &path), "admin", patch).await;
    assert_eq!(other.status, 404, "somebody else's key");
}

/// What names one of several who share a policy is not done to all of them.
#[tokio::test]
async fn one_of_many_is_not_everybody() {
    let stage = Stage::new(Recorder::Collects).await;
    let send = async |method: &str, path: &str, body: Value| {
        let headers = [
            ("content-type", "application/json"),
            ("authorization", "Bearer helpdesk"),
        ];
        let request = request(method, path, &headers).body(body.to_string().into());
        read(stage.send(request.unwrap()).await).await
    };
    for (method, path, mut body) in [
        ("POST", "/v1/forget", json!({"all": true})),
        ("POST", "/v1/forget", json!({"all": true, "dry_run": true})),
        ("PUT", "/v1/consent", json!({"learning": "full"})),
    ] {
        let all = send(method, path, body.clone()).await;
        assert_eq!(all.status, 200, "{path}: {}", all.text);
        body["user"] = json!("bob");
        let one = send(method, path, body).await;
        assert_eq!(
            (one.status, &one.json()["error"]["code"]),
            (403, &json!("shared_policy")),
            "{path}"
        );
    }
    for path in ["/v1/sessions", "/v1/turns"] {
        assert_eq!(send("GET", path, Value::Null).await.status, 200, "{path}");
        let one = send("GET", &format!("{path}?user=bob"), Value::Null).await;
        assert_eq!(
            (one.status, &one.json()["error"]["code"]),
            (403, &json!("shared_policy")),
            "{path}"
        );
    }
    // Their turns are told apart by themselves.
    let turn = format!("turn_{}", uuid::Uuid::from_u128(7));
    let wish = json!({"turn_ids": [turn], "user": "bob"});
    assert_eq!(send("POST", "/v1/forget", wish).await.status, 404);
}

#[tokio::test]
async fn only_the_person_for_whom_something_is_learned_is_told_how_far_it_is() {
    let stage = Stage::new(Recorder::Collects).await;
    let idle = stage.get("/v1/learning?user=anna").await.json();
    assert_eq!(idle, json!({"object": "learning", "under_way": null}));
    chat(&stage, json!({"user": "anna"})).await;
    let scope = stage.told.lock().unwrap().turns[0].scope.clone();
    stage.under_way.set(Some(TrainingJob {
        scope,
        answers: 3,
        phase: None,
        share: 0.0,
        seconds: 0.0,
        seconds_left: None,
    }));
    let busy = stage.get("/v1/learning?user=anna").await.json();
    assert_eq!(busy["under_way"]["answers"], 3);
    assert_eq!(
        busy["under_way"]["sentence"],
        "Learning from 3 answers: 0 %."
    );
    assert_eq!(busy["under_way"]["phase"], Value::Null);
    let other = stage.get("/v1/learning?user=ben").await.json();
    assert_eq!(other["under_way"], Value::Null);
}
