//! What belongs together, what answers what, and feedback.

use hone_collect::{Carry, Config, Ctx, Input, Spool};
use hone_domain::{NextKind, ServeError, StopReason};
use hone_runtime::{Overflow, ShutdownTrigger, StatusRegistry, queue};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::learning::put;
use crate::testing::{Recorder, Reply, Script, Stage, read, request};

const CHAT: &str = "/v1/chat/completions";

async fn chat(stage: &Stage, messages: Value, headers: &[(&str, &str)]) -> Reply {
    let mut all = vec![("content-type", "application/json")];
    all.extend(headers);
    let body = json!({"model": "gpt", "messages": messages}).to_string();
    let request = request("POST", CHAT, &all).body(body.into()).unwrap();
    read(stage.send(request).await).await
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

#[tokio::test]
async fn the_next_request_answers_the_turn_before_and_reuses_its_tokens() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Say(vec!["A"], StopReason::Length)]);
    let first = chat(&stage, json!([user("q")]), &[]).await;
    let second = chat(
        &stage,
        json!([user("q"), assistant("A"), user("thanks")]),
        &[],
    )
    .await;
    assert_eq!(
        first.header("x-hone-session-id"),
        second.header("x-hone-session-id")
    );
    let told = stage.told.lock().unwrap();
    assert_eq!(told.next.len(), 1);
    let next = &told.next[0];
    assert_eq!(
        format!("turn_{}", next.parent),
        first.header("x-hone-turn-id").unwrap()
    );
    assert_eq!(
        next.next_turn.map(|t| format!("turn_{t}")).as_deref(),
        second.header("x-hone-turn-id")
    );
    assert_eq!(next.next_state.items[0].text, "thanks");
    assert_eq!(next.next_state.items[0].kind, NextKind::UserReply);
    assert_eq!(told.turns[1].parent, Some(next.parent));
    let inference = stage.http.inference.as_ref().unwrap();
    let binds: Vec<_> = inference.counters.binds().filter(|(_, n)| *n > 0).collect();
    assert_eq!(binds, [("chain", 1), ("new", 1)]);
    // The byte template writes "assistant\nA\n", so the second prompt continues the first's text.
    assert_eq!(inference.counters.prompts_reused.get(), 1);
    let asks = stage.fake.asks.lock().unwrap();
    let (one, two) = (&asks[0].prompt_tokens, &asks[1].prompt_tokens);
    assert!(two.starts_with(one) && two.len() > one.len() + 1);
}

#[tokio::test]
async fn a_next_state_is_handed_on_even_if_its_own_request_is_refused() {
    let stage = Stage::new(Recorder::Collects).await;
    let refusal = hone_domain::ServeError::Overloaded {
        limit: 1,
        retry_after_ms: 1,
    };
    chat(&stage, json!([user("q")]), &[]).await;
    stage.script([Script::Refuse(refusal)]);
    let again = json!([user("q"), assistant("ok"), user("no")]);
    assert_eq!(chat(&stage, again.clone(), &[]).await.status, 429);
    assert_eq!(chat(&stage, again, &[]).await.status, 200);
    tokio::task::yield_now().await;
    let told = stage.told.lock().unwrap();
    assert_eq!(told.next.len(), 1);
    assert_eq!(told.next[0].next_turn, None);
}

/// What the ledger has as answered to the first turn, once collect has written all that it was told.
async fn answered(stage: &Stage) -> Option<String> {
    let told = std::mem::take(&mut *stage.told.lock().unwrap());
    let (outbox, inbox) = queue(64, Overflow::DropNewest);
    let (notifications, _notified) = queue(4, Overflow::DropNewest);
    let (first, mut receipts) = (told.turns[0].id, Vec::new());
    for turn in told.turns {
        let (receipt, waiting) = oneshot::channel();
        receipts.push(waiting);
        let turn = Box::new(turn);
        outbox.send(Input::Turn { turn, receipt }).unwrap();
    }
    for next in told.next {
        outbox.send(Input::Next(next)).unwrap();
    }
    let ctx = Ctx {
        ledger: stage.http.ledger.clone(),
        ids: stage.http.ids.clone(),
        index: stage.http.inference.as_ref().unwrap().index.clone(),
        spool: Spool::off(),
        carry: Carry::default(),
        clock: stage.clock.clone(),
        config: Config::for_tests(),
        registry: StatusRegistry::new(),
    };
    let stop = ShutdownTrigger::new();
    stop.pull();
    let ran = hone_collect::run(ctx, inbox, notifications, stop.signal()).await;
    ran.unwrap();
    let view = stage.http.ledger.turn(first).await.unwrap().unwrap();
    let next = view.transition?.next_state.items;
    Some(next.into_iter().map(|item| item.text).collect())
}

#[tokio::test]
async fn what_is_not_to_be_kept_is_no_next_state_either() {
    let not_stored = json!({"store": false});
    let all_the_same = json!({"learning": "full", "despite_store_false": true});
    // What the person decides before the second request, what it says, whether it is refused →
    // whether its words are the next state of the first.
    let rows = [
        (json!({"learning": "full"}), json!({}), false, true),
        (
            json!({"learning": "full"}),
            not_stored.clone(),
            false,
            false,
        ),
        (json!({"learning": "full"}), not_stored.clone(), true, false),
        (json!({"learning": "off"}), json!({}), false, false),
        (all_the_same, not_stored, false, true),
    ];
    for (consent, fields, is_refused, is_kept) in rows {
        let stage = Stage::new(Recorder::Collects).await;
        chat(&stage, json!([user("q")]), &[]).await;
        assert_eq!(put(&stage, &consent).await.status, 200);
        if is_refused {
            stage.script([Script::Refuse(ServeError::Stopping)]);
        }
        let mut body = fields.clone();
        body["model"] = json!("gpt");
        body["messages"] = json!([user("q"), assistant("ok"), user("no")]);
        let reply = stage.post(CHAT, &body.to_string()).await;
        assert_eq!(reply.status == 200, !is_refused, "{}", reply.text);
        tokio::task::yield_now().await;
        let next = stage.told.lock().unwrap().next.len();
        assert_eq!(next, usize::from(is_kept), "{consent} {fields}");
        let expected = is_kept.then(|| "no".to_owned());
        assert_eq!(answered(&stage).await, expected, "{consent} {fields}");
    }
}

#[tokio::test]
async fn what_is_not_to_be_kept_leaves_its_place_to_what_is() {
    let stage = Stage::new(Recorder::Collects).await;
    chat(&stage, json!([user("q")]), &[]).await;
    for (store, says) in [(false, "never mind"), (true, "no")] {
        let messages = json!([user("q"), assistant("ok"), user(says)]);
        let body = json!({"model": "gpt", "store": store, "messages": messages});
        assert_eq!(stage.post(CHAT, &body.to_string()).await.status, 200);
        tokio::task::yield_now().await;
    }
    assert_eq!(answered(&stage).await.as_deref(), Some("no"));
}

#[tokio::test]
async fn session_keys_come_from_many_places() {
    let stage = Stage::new(Recorder::Collects).await;
    let rows: &[&[(&str, &str)]] = &[
        &[("x-session-id", "k")],
        &[("session_id", "k")],
        &[("session-id", "k")],
        &[("x-session-affinity", "k")],
        &[("x-openwebui-chat-id", "k")],
    ];
    let mut sessions = Vec::new();
    for headers in rows {
        let reply = chat(&stage, json!([user("other words")]), headers).await;
        sessions.push(reply.header("x-hone-session-id").unwrap().to_owned());
    }
    for field in ["session_id", "prompt_cache_key"] {
        let mut body = json!({"model": "gpt", "messages": [user("more")]});
        body[field] = json!("k");
        let reply = stage.post(CHAT, &body.to_string()).await;
        sessions.push(reply.header("x-hone-session-id").unwrap().to_owned());
    }
    assert!(sessions.iter().all(|s| *s == sessions[0]), "{sessions:?}");
    let other = chat(&stage, json!([user("x")]), &[("x-session-id", "other")]).await;
    assert_ne!(other.header("x-hone-session-id"), Some(&*sessions[0]));
}

#[tokio::test]
async fn a_counted_request_id_is_a_session_and_a_plain_one_is_not() {
    let stage = Stage::new(Recorder::Collects).await;
    let counted = "0190aaaa-0000-7000-8000-000000000001:0";
    let again = "0190aaaa-0000-7000-8000-000000000001:1";
    let plain = "0190aaaa-0000-7000-8000-000000000001";
    let mut sessions = Vec::new();
    for id in [counted, counted, again, plain, plain] {
        let words = format!("words {}", sessions.len());
        let reply = chat(
            &stage,
            json!([user(&words)]),
            &[("x-client-request-id", id)],
        )
        .await;
        sessions.push(reply.header("x-hone-session-id").unwrap().to_owned());
    }
    assert_eq!(sessions[0], sessions[1]);
    sessions.sort();
    sessions.dedup();
    assert_eq!(sessions.len(), 4, "{sessions:?}");
    let mut body =
        json!({"model": "gpt", "messages": [user("x")], "metadata": {"session_id": "m"}});
    let first = stage.post(CHAT, &body.to_string()).await;
    body["messages"] = json!([user("y")]);
    let second = stage.post(CHAT, &body.to_string()).await;
    let session = |reply: &Reply| reply.header("x-hone-session-id").unwrap().to_owned();
    assert_eq!(session(&first), session(&second));
}

#[tokio::test]
async fn housekeeping_is_a_side_turn_by_its_words_unless_the_client_says_main() {
    let stage = Stage::new(Recorder::Collects).await;
    let title = json!([user("Generate a title for this conversation: hi")]);
    chat(&stage, title.clone(), &[]).await;
    chat(&stage, title, &[("x-turn-type", "main")]).await;
    let told = stage.told.lock().unwrap();
    let kinds: Vec<_> = told.turns.iter().map(|turn| turn.kind).collect();
    assert_eq!(
        kinds,
        [hone_domain::TurnKind::Side, hone_domain::TurnKind::Main]
    );
}

#[tokio::test]
async fn a_cut_stream_asked_again_is_one_turn() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Hang]);
    let body = json!({"model": "gpt", "stream": true, "messages": [user("tell me")]}).to_string();
    let json = [("content-type", "application/json")];
    let sent = stage
        .send(
            request("POST", CHAT, &json)
                .body(body.clone().into())
                .unwrap(),
        )
        .await;
    let cut = sent.headers()["x-hone-turn-id"]
        .to_str()
        .unwrap()
        .to_owned();
    // The client is gone.
    drop(sent);
    let permit = stage.fake.cancelled.acquire().await.unwrap();
    permit.forget();
    let inference = stage.http.inference.clone().unwrap();
    inference.live.none().await;
    let again = stage.post(CHAT, &body).await;
    assert_eq!(again.header("x-hone-turn-id"), Some(&*cut));
    let fresh = stage.post(CHAT, &body).await;
    assert_ne!(
        fresh.header("x-hone-turn-id"),
        Some(&*cut),
        "that one was delivered"
    );
}

#[tokio::test]
async fn side_turns_and_session_ends_are_told() {
    let stage = Stage::new(Recorder::Collects).await;
    chat(&stage, json!([user("title?")]), &[("x-turn-type", "Side")]).await;
    chat(&stage, json!([user("bye")]), &[("x-session-done", "yes")]).await;
    let bad = chat(&stage, json!([user("x")]), &[("x-turn-type", "odd")]).await;
    assert_eq!(
        (bad.status, &bad.json()["error"]["param"]),
        (400, &json!("x-turn-type"))
    );
    let told = stage.told.lock().unwrap();
    assert_eq!(told.turns[0].kind, hone_domain::TurnKind::Side);
    assert_eq!((told.turns.len(), told.done), (2, 1));
}

#[tokio::test]
async fn users_of_one_owner_have_scopes_of_their_own() {
    let stage = Stage::new(Recorder::Collects).await;
    let mut sessions = Vec::new();
    for user_name in ["ann", "bob"] {
        let messages = json!([user("q"), assistant("ok"), user("thanks")]);
        let body = json!({"model": "gpt", "user": user_name, "messages": messages});
        let reply = stage.post(CHAT, &body.to_string()).await;
        sessions.push(reply.header("x-hone-session-id").unwrap().to_owned());
    }
    assert_ne!(sessions[0], sessions[1]);
    assert_eq!(stage.told.lock().unwrap().next.len(), 0);
}

#[tokio::test]
async fn feedback_reaches_the_recorder() {
    let stage = Stage::new(Recorder::Collects).await;
    let turn = chat(&stage, json!([user("q")]), &[]).await;
    let id = turn.json()["id"].as_str().unwrap().to_owned();
    let body = json!({"turn_id": id, "thumb": "down", "comment": "no", "id": "mine"});
    let reply = stage.post("/v1/feedback", &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.json()["outcome"], "stored");
    assert_eq!(
        reply.json()["turn_id"].as_str(),
        turn.header("x-hone-turn-id")
    );
    let told = stage.told.lock().unwrap();
    let feedback = &told.feedback[0];
    assert_eq!(
        (feedback.score, feedback.owner.as_str()),
        (Some(-1.0), "local")
    );
    assert_eq!(feedback.client_id.as_deref(), Some("mine"));
}

#[tokio::test]
async fn feedback_that_teaches_nothing_says_why() {
    let stage = Stage::new(Recorder::Collects).await;
    let id = "turn_00000000-0000-7000-8000-000000000001";
    for (comment, outcome, why) in [
        ("fine", "stored", None),
        (
            "too late",
            "already_learned",
            Some("learned from this answer already"),
        ),
    ] {
        let body = json!({"turn_id": id, "thumb": "down", "comment": comment, "correction": "so"});
        let reply = stage.post("/v1/feedback", &body.to_string()).await.json();
        assert_eq!(reply["outcome"], outcome);
        match (reply["explanation"].as_str(), why) {
            (None, None) => {}
            (Some(told), Some(why)) => assert!(told.contains(why), "{told}"),
            told => panic!("{told:?}"),
        }
    }
}

#[tokio::test]
async fn what_cannot_train_is_told_to_who_expects_it() {
    let stage = Stage::new(Recorder::Collects).await;
    let mut told = Vec::new();
    for (temperature, untrainable) in [
        (1.0, None),
        (0.0, None),
        (1.0, Some(hone_domain::Reason::LearningOff)),
    ] {
        chat(&stage, json!([user("q")]), &[]).await;
        let mut turn = stage.told.lock().unwrap().turns.remove(0);
        (turn.sampling.temperature, turn.untrainable) = (temperature, untrainable);
        let id = turn.id.prefixed();
        stage.http.ledger.record_turns(&[turn]).await.unwrap();
        let body = json!({"turn_id": id, "score": 1}).to_string();
        let feedback = stage.post("/v1/feedback", &body).await.json();
        let fate = stage.get(&format!("/v1/turns/{id}")).await.json();
        let said = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        told.push([
            said(&feedback["explanation"]),
            said(&fate["fate"]["explanation"]),
        ]);
    }
    assert_eq!(told[0][0], "");
    assert!(!told[0][1].contains("greedy"), "{told:?}");
    assert!(told[1][1].contains("only by a correction"), "{told:?}");
    assert!(told[2][0].contains("/v1/consent"), "{told:?}");
}

#[tokio::test]
async fn without_a_recorder_feedback_is_refused() {
    let stage = Stage::new(Recorder::Absent).await;
    let body = json!({"turn_id": "turn_00000000-0000-7000-8000-000000000001", "score": 1});
    let reply = stage.post("/v1/feedback", &body.to_string()).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (503, &json!("no_collector"))
    );
}

#[tokio::test]
async fn a_turn_tells_what_became_of_it_to_its_owner_only() {
    let stage = Stage::new(Recorder::Collects).await;
    let reply = chat(&stage, json!([user("q")]), &[]).await;
    let mut turn = stage.told.lock().unwrap().turns.remove(0);
    stage
        .http
        .ledger
        .record_turns(std::slice::from_ref(&turn))
        .await
        .unwrap();
    let id = reply.header("x-hone-turn-id").unwrap();
    let json = stage.get(&format!("/v1/turns/{id}")).await.json();
    assert_eq!((&json["id"], &json["object"]), (&json!(id), &json!("turn")));
    assert_eq!(json["fate"]["stage"], "awaiting_next_state");
    assert!(
        json["fate"]["explanation"]
            .as_str()
            .is_some_and(|e| e.len() > 10)
    );
    assert_eq!(
        (&json["completion"], &json["policy_version"]),
        (&json!("ok"), &json!(3))
    );
    turn.id = hone_domain::TurnId(uuid::Uuid::from_u128(9));
    turn.owner = "somebody".to_owned();
    stage
        .http
        .ledger
        .record_turns(&[turn.clone()])
        .await
        .unwrap();
    assert_eq!(
        stage.get(&format!("/v1/turns/{}", turn.id)).await.status,
        404
    );
}

#[tokio::test]
async fn a_request_says_how_its_answer_is_checked() {
    let stage = Stage::new(Recorder::Collects).await;
    let ask = |verify: Value| {
        let body = json!({"model": "gpt", "messages": [user("2 + 2?")], "verify": verify});
        let stage = &stage;
        async move { stage.post(CHAT, &body.to_string()).await }
    };
    let number = json!({"kind": "numeric", "expected": 4.0});
    let reply = ask(json!([number, {"kind": "exit_code"}])).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(ask(number).await.status, 200, "one needs no list");
    {
        let asks = stage.fake.asks.lock().unwrap();
        let names = |at: usize| -> Vec<String> {
            let checks = &asks[at].context.admission.checks;
            checks.iter().map(|check| check.name.clone()).collect()
        };
        assert_eq!(
            (names(0), names(1).len()),
            (vec!["numeric".to_owned(), "exit_code".to_owned()], 1)
        );
    }
    let address = json!({"kind": "callback", "url": "http://127.0.0.1:9", "secret_env": "PATH", "deadline_ms": 5});
    for (verify, why) in [
        (json!({"kind": "magic"}), "verify[0].kind must be "),
        (
            json!([{"kind": "exit_code"}, {"kind": "regex", "pattern": "("}]),
            "verify[1]",
        ),
        (address, "configuration"),
        (json!(vec![json!({"kind": "exit_code"}); 9]), "at most 8"),
        (
            json!({"kind": "regex", "pattern": r"\w".repeat(5_000)}),
            "at most 8192 bytes",
        ),
    ] {
        let reply = ask(verify).await;
        assert_eq!(reply.status, 400);
        let message = reply.json()["error"]["message"].to_string();
        assert!(message.contains(why), "{message}");
    }
}
