//! Sessions, lists of turns, and one turn as the console sees it.

use hone_domain::{Completion, Digest, Message, Role, Scope, StopReason, Turn};
use hone_ledger::suite::World;
use serde_json::{Value, json};

use crate::testing::{Recorder, Reply, Stage, read, request};

async fn get_as(stage: &Stage, key: &str, path: &str) -> Reply {
    let bearer = format!("Bearer {key}");
    let request = request("GET", path, &[("authorization", bearer.as_str())]);
    read(
        stage
            .send(request.body(axum::body::Body::empty()).unwrap())
            .await,
    )
    .await
}

/// A turn of `owner` that says `question`.
fn turn(world: &World, owner: &str, question: &str) -> Turn {
    let mut turn = world.turn();
    owner.clone_into(&mut turn.owner);
    turn.scope = Scope::of(owner, None);
    turn.messages = vec![Message::text(Role::User, question)];
    turn
}

/// A conversation of user-a with two turns, and one of user-b; in the order recorded.
async fn talked(stage: &Stage) -> [Turn; 3] {
    let world = World::new(stage.http.ledger.clone());
    let first = turn(&world, "user-a", "What is tea?");
    let mut second = turn(&world, "user-a", "What is tea?");
    second.session = first.session;
    second.parent = Some(first.id);
    second.messages.push(first.completion_message());
    second.messages.push(Message::text(Role::User, "Thanks."));
    let mut other = turn(&world, "user-b", "canary");
    other.finished_ms += 1;
    let turns = [first, second, other];
    stage.http.ledger.record_turns(&turns).await.unwrap();
    turns
}

#[tokio::test]
async fn a_conversation_is_listed_and_told() {
    let stage = Stage::new(Recorder::Collects).await;
    let [first, second, other] = talked(&stage).await;
    let list = get_as(&stage, "user-a", "/v1/sessions?search=TEA")
        .await
        .json();
    let id = format!("sess_{}", first.session);
    let expected = json!({
        "object": "list", "next": null,
        "data": [{
            "id": id, "key": null, "title": "What is tea?", "first_ms": second.started_ms,
            "last_ms": second.finished_ms, "turns": 2,
        }],
    });
    assert_eq!(list, expected);
    let path = format!("/v1/sessions/{id}");
    let told = get_as(&stage, "user-a", &path).await.json();
    assert_eq!(told["turns_total"], 2);
    assert_eq!(told["turns"][0]["messages"][0]["content"], "What is tea?");
    assert_eq!(
        told["turns"][1]["messages"],
        json!([{"role": "user", "content": "Thanks."}])
    );
    assert_eq!(told["turns"][1]["parent_id"], format!("turn_{}", first.id));
    assert_eq!(told["turns"][1]["fate"]["stage"], "awaiting_next_state");
    assert_eq!(get_as(&stage, "user-b", &path).await.status, 404);
    let theirs = format!("/v1/sessions/sess_{}", other.session);
    assert_eq!(get_as(&stage, "user-a", &theirs).await.status, 404);
    assert_eq!(get_as(&stage, "user-a", "/v1/sessions/x").await.status, 404);
}

fn ids(list: &Value) -> Vec<&str> {
    let rows = list["data"].as_array().unwrap();
    rows.iter().map(|row| row["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_conversation_tells_thoughts_words_and_calls_apart() {
    let stage = Stage::new(Recorder::Collects).await;
    let world = World::new(stage.http.ledger.clone());
    let mut turn = turn(&world, "user-a", "What is the weather?");
    turn.completion_text =
        "<think>hm</think>Looking.<tool_call>{\"name\": \"look\", \"arguments\": {}}</tool_call>"
            .to_owned();
    stage
        .http
        .ledger
        .record_turns(&[turn.clone()])
        .await
        .unwrap();
    let path = format!("/v1/sessions/sess_{}", turn.session);
    let told = get_as(&stage, "user-a", &path).await.json();
    let told = &told["turns"][0];
    assert_eq!(told["completion"], turn.completion_text);
    assert_eq!(
        (&told["reasoning"], &told["content"]),
        (&json!("hm"), &json!("Looking."))
    );
    let id = hone_inference::call_id(turn.id, 0);
    let call =
        json!([{"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}]);
    assert_eq!(told["tool_calls"], call);
}

#[tokio::test]
async fn lists_of_turns_are_paged_and_filtered() {
    let stage = Stage::new(Recorder::Collects).await;
    let turns = talked(&stage).await;
    let [first, second, other] = turns.each_ref().map(|turn| format!("turn_{}", turn.id));
    let session = format!("sess_{}", turns[0].session);
    let theirs = format!("sess_{}", turns[2].session);
    let rows = [
        ("user-a", "/v1/turns".to_owned(), vec![&second, &first]),
        (
            "user-a",
            format!("/v1/turns?session_id={session}"),
            vec![&second, &first],
        ),
        ("user-a", format!("/v1/turns?session_id={theirs}"), vec![]),
        ("user-a", "/v1/turns?user=somebody".to_owned(), vec![]),
        ("user-a", "/v1/turns?state=settled".to_owned(), vec![]),
        ("user-a", "/v1/turns?version=1".to_owned(), vec![]),
        (
            "user-b",
            "/v1/turns?state=pending&version=0".to_owned(),
            vec![&other],
        ),
        (
            "auditor",
            "/admin/v1/turns".to_owned(),
            vec![&other, &second, &first],
        ),
        (
            "admin",
            "/admin/v1/turns?owner=user-b".to_owned(),
            vec![&other],
        ),
        (
            "admin",
            "/admin/v1/turns?scope=6:user-b&kind=main".to_owned(),
            vec![&other],
        ),
        ("admin", "/admin/v1/turns?score_min=-1".to_owned(), vec![]),
        ("admin", "/admin/v1/turns?reason=stale".to_owned(), vec![]),
    ];
    for (key, path, expected) in rows {
        let list = get_as(&stage, key, &path).await.json();
        assert_eq!(ids(&list), expected, "{path}");
    }
    let page = get_as(&stage, "admin", "/admin/v1/turns?limit=2")
        .await
        .json();
    assert_eq!(ids(&page), [&other, &second]);
    let next = page["next"].as_str().unwrap();
    let path = format!("/admin/v1/turns?limit=2&before={next}");
    let page = get_as(&stage, "admin", &path).await.json();
    assert_eq!(
        (ids(&page), &page["next"]),
        (vec![first.as_str()], &Value::Null)
    );
}

#[tokio::test]
async fn wrong_words_of_a_list_are_named() {
    let stage = Stage::new(Recorder::Collects).await;
    let rows = [
        ("/v1/turns?limit=0", "limit"),
        ("/v1/turns?limit=201", "limit"),
        ("/v1/turns?before=x", "before"),
        ("/v1/turns?before=18446744073709551615", "before"),
        ("/v1/sessions?before=1", "before"),
        ("/v1/turns?state=lost", "state"),
        ("/v1/turns?reason=bored", "reason"),
        ("/v1/turns?session_id=x", "session_id"),
        ("/admin/v1/turns?kind=third", "kind"),
    ];
    for (path, param) in rows {
        let reply = stage.get(path).await;
        let json = reply.json();
        let got = (reply.status, &json["error"]["param"]);
        assert_eq!(got, (400, &json!(param)), "{path}: {json}");
    }
    let long = format!("/v1/sessions?search={}", "x".repeat(600));
    assert_eq!(stage.get(&long).await.json()["error"]["param"], "search");
}

#[tokio::test]
async fn the_console_sees_messages_and_tokens() {
    let stage = Stage::new(Recorder::Collects).await;
    let world = World::new(stage.http.ledger.clone());
    let mut said = turn(&world, "user-b", "Hello?");
    let tokens: Vec<u32> = "Hé".bytes().map(u32::from).collect();
    let n = tokens.len();
    let logprobs = vec![-0.5; n];
    said.completion = Completion::new(
        tokens,
        logprobs.clone(),
        logprobs,
        vec![None; n],
        StopReason::Length,
    )
    .unwrap();
    said.spans[0].end = n as u32;
    said.base = Digest([0xab; 32]);
    stage
        .http
        .ledger
        .record_turns(&[said.clone()])
        .await
        .unwrap();
    let path = format!("/admin/v1/turns/turn_{}", said.id);
    let seen = get_as(&stage, "auditor", &path).await.json();
    assert_eq!(
        (&seen["owner"], &seen["scope"]),
        (&json!("user-b"), &json!("6:user-b"))
    );
    assert_eq!(seen["messages"][0]["content"], "Hello?");
    let expected = json!([
        {"text": "H", "logprob": -0.5, "advantage": null},
        {"text": "", "logprob": -0.5, "advantage": null},
        {"text": "é", "logprob": -0.5, "advantage": null},
    ]);
    assert_eq!((&seen["tokens"], &seen["entered"]), (&expected, &json!([])));
    assert_eq!(seen["fate"]["state"], "pending");
    assert_eq!(get_as(&stage, "user-b", &path).await.status, 403);
    let unknown = "/admin/v1/turns/turn_01a1fc19-fce1-7077-87e4-3c139bd16a22";
    assert_eq!(get_as(&stage, "admin", unknown).await.status, 404);
}

#[tokio::test]
async fn reading_what_others_said_is_an_act_in_the_log() {
    let stage = Stage::new(Recorder::Collects).await;
    let turns = talked(&stage).await;
    let theirs = format!("turn_{}", turns[2].id);
    let path = format!("/admin/v1/turns/{theirs}");
    assert_eq!(get_as(&stage, "auditor", &path).await.status, 200);
    let list = "/admin/v1/turns?owner=user-b";
    assert_eq!(get_as(&stage, "admin", list).await.status, 200);
    // One's own, and what nobody said, is nobody else's.
    let own = format!("/v1/turns/{theirs}");
    assert_eq!(get_as(&stage, "user-b", &own).await.status, 200);
    let nothing = "/admin/v1/turns?owner=nobody";
    assert_eq!(get_as(&stage, "admin", nothing).await.status, 200);
    let log = get_as(&stage, "admin", "/admin/v1/audit").await.json();
    let rows: Vec<(&str, &str, &str)> = log["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let word = |name: &str| row[name].as_str().unwrap();
            (word("actor"), word("act"), word("object"))
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("admin", "turn.list", ""),
            ("auditor", "turn.read", &theirs)
        ]
    );
    assert_eq!(log["data"][0]["detail"]["named"], json!(["user-b"]));
    assert_eq!(log["data"][1]["detail"]["owner"], "user-b");
}
