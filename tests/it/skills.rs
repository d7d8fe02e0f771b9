//! Skills in answers: names first, the body of one that clearly fits, the same in a conversation that goes on, gone when
//! they are paused or forgotten, and made of what a person says three times.

use std::path::Path;

use hone_tests::{Changes, TestApp, ask, broken_laws, temporary};
use serde_json::{Value, json};

async fn start(data: &Path) -> TestApp {
    let changes: Vec<(&str, toml::Value)> = vec![
        ("memory.mode", "full".into()),
        ("memory.tick_ms", 50.into()),
        // Training is not looked at here.
        ("train.batch_wait_ms", 3_600_000.into()),
    ];
    TestApp::start(data, &changes as Changes<'_>).await.unwrap()
}

async fn say(app: &TestApp, session: &str, messages: &[Value]) -> Value {
    let mut body = ask("", 1);
    body["messages"] = json!(messages);
    body["session_id"] = json!(session);
    body["max_tokens"] = json!(12);
    body["return_token_ids"] = json!(true);
    app.chat(body).await.unwrap()
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// What a reply says that its prompt was shown: of each skill its version and form.
fn shown(reply: &Value) -> Vec<(String, u64, String)> {
    let all = reply["hone"]["skills"].as_array();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let one = |one: &Value| {
        (
            text(&one["id"]),
            one["version"].as_u64().unwrap(),
            text(&one["form"]),
        )
    };
    all.into_iter().flatten().map(one).collect()
}

fn prompt_tokens(reply: &Value) -> u64 {
    reply["usage"]["prompt_tokens"].as_u64().unwrap()
}

async fn add(app: &TestApp, name: &str, description: &str, body: &str) -> Value {
    let text = format!("---\nname: {name}\ndescription: {description}\n---\n{body}\n");
    app.post("/v1/skills", json!({"files": {"SKILL.md": text}}))
        .await
        .unwrap()
}

async fn patch(app: &TestApp, name: &str, body: Value) {
    let url = format!("{}/v1/skills/{name}", app.url);
    let sent = hone_tests::client().unwrap().patch(url).json(&body).send();
    let reply = sent.await.unwrap();
    assert!(
        reply.status().is_success(),
        "{}",
        reply.text().await.unwrap()
    );
}

const ASKED: &str = "Please write the weekly report of my team.";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_skill_is_shown_where_it_fits_and_stays_as_it_was_in_its_conversation() {
    let (_guard, data) = temporary().unwrap();
    let app = start(&data).await;
    let plain = say(&app, "before", &[user(ASKED)]).await;
    assert!(shown(&plain).is_empty());
    let report = add(
        &app,
        "weekly-report",
        "Writes the weekly report of a team.",
        "Begin with the number 417.",
    )
    .await;
    let notes = add(
        &app,
        "release-notes",
        "Writes notes on a release.",
        "Read the changelog.",
    )
    .await;
    let id = |skill: &Value| skill["id"].as_str().unwrap().to_owned();
    let (report, notes) = (id(&report), id(&notes));

    let other = say(&app, "other", &[user("What is the capital of France?")]).await;
    assert!(shown(&other).is_empty(), "{other}");
    let question = user(ASKED);
    let first = say(&app, "first", std::slice::from_ref(&question)).await;
    let both = [
        (report.clone(), 1, "body".to_owned()),
        (notes.clone(), 1, "description".to_owned()),
    ];
    assert_eq!(shown(&first), both);
    assert!(
        prompt_tokens(&first) > prompt_tokens(&plain) + 20,
        "{first}"
    );
    let path = format!("/v1/turns/{}", first["hone"]["turn_id"].as_str().unwrap());
    let turn = app.get(&path).await.unwrap();
    assert_eq!(turn["skills"], first["hone"]["skills"]);
    let read = |list: &Value| list["data"][1]["uses"] == 1 && list["data"][0]["listed"] == 1;
    let list = app.until("/v1/skills", read).await.unwrap();
    assert_eq!(list["data"][0]["uses"], 0, "{list}");

    nobody_else_is_shown_them(&app, &plain).await;

    // The conversation goes on with the same beginning, also after a restart.
    let talk = vec![
        question,
        first["choices"][0]["message"].clone(),
        user("And now?"),
    ];
    let second = say(&app, "first", &talk).await;
    assert_eq!(shown(&second), both);
    let ids = |reply: &Value| reply["prompt_token_ids"].as_array().unwrap().clone();
    assert!(ids(&second).starts_with(&ids(&first)), "{second}");
    app.stop().await.unwrap();
    let app = start(&data).await;
    let mut longer = talk;
    longer.extend([second["choices"][0]["message"].clone(), user("Thank you.")]);
    let third = say(&app, "first", &longer).await;
    assert_eq!(third["hone"]["session_id"], second["hone"]["session_id"]);
    assert_eq!(shown(&third), both);

    // What changes is shown as it is now, with the next request.
    patch(&app, "weekly-report", json!({"text": "---\nname: weekly-report\ndescription: Writes the weekly report.\n---\nNew.\n"})).await;
    longer.extend([third["choices"][0]["message"].clone(), user("Go on.")]);
    let fourth = say(&app, "first", &longer).await;
    assert_eq!(shown(&fourth)[0], (report.clone(), 2, "body".to_owned()));
    what_is_taken_back_is_shown_no_more(&app, &report).await;
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}

/// Neither somebody else, nor a request that says no.
async fn nobody_else_is_shown_them(app: &TestApp, plain: &Value) {
    for (field, value) in [("user", json!("bob")), ("hone", json!({"memory": "off"}))] {
        let mut body = ask(ASKED, 1);
        body[field] = value;
        let other = app.chat(body).await.unwrap();
        assert!(shown(&other).is_empty(), "{field}: {other}");
        assert_eq!(prompt_tokens(&other), prompt_tokens(plain), "{field}");
    }
}

/// An older version, a pause, a removal, and everything of a person.
async fn what_is_taken_back_is_shown_no_more(app: &TestApp, report: &str) {
    app.post("/v1/skills/weekly-report/restore", json!({"version": 1}))
        .await
        .unwrap();
    assert_eq!(shown(&say(app, "anew", &[user(ASKED)]).await)[0].1, 1);
    patch(app, "weekly-report", json!({"paused": true})).await;
    assert!(
        shown(&say(app, "paused", &[user(ASKED)]).await)
            .iter()
            .all(|one| one.0 != report)
    );
    app.delete("/v1/skills/release-notes").await.unwrap();
    assert!(shown(&say(app, "gone", &[user(ASKED)]).await).is_empty());

    // With everything else of a person, skills go as well.
    app.post("/v1/forget", json!({"all": true})).await.unwrap();
    assert_eq!(app.get("/v1/skills").await.unwrap()["data"], json!([]));
}

/// Says how answers should be, in reply to one of a session of its own.
async fn correct(app: &TestApp, session: &str, words: &str) -> String {
    let question = user("What is the capital of France?");
    let first = say(app, session, std::slice::from_ref(&question)).await;
    let answer = first["choices"][0]["message"].clone();
    say(app, session, &[question, answer, user(words)]).await;
    let turn = first["hone"]["turn_id"].as_str().unwrap().to_owned();
    let judged = |turn: &Value| turn["verdict"]["wish"] == "keep it short";
    let path = format!("/v1/turns/{turn}");
    app.until(&path, judged).await.unwrap();
    turn
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_of_answers_in_three_sessions_becomes_a_skill() {
    let (_guard, data) = temporary().unwrap();
    let app = start(&data).await;
    let mut turns = Vec::new();
    for (session, words) in [
        ("one", "Way too verbose, nobody reads that."),
        ("two", "Das ist mir zu lang."),
        ("three", "Too long, please keep it short."),
    ] {
        assert_eq!(
            app.get("/v1/skills").await.unwrap()["data"],
            json!([]),
            "{session}"
        );
        turns.push(correct(&app, session, words).await);
    }
    let made = |list: &Value| list["data"].as_array().is_some_and(|rows| rows.len() == 1);
    let list = app.until("/v1/skills", made).await.unwrap();
    let skill = &list["data"][0];
    assert_eq!(
        json!([skill["name"], skill["state"], skill["origin"]]),
        json!(["keep-it-short", "active", "corrections"])
    );
    assert_eq!(skill["turn_ids"], json!(turns));
    let text = app.get("/v1/skills/keep-it-short").await.unwrap()["text"].clone();
    let text = text.as_str().unwrap();
    for part in ["too verbose", "zu lang", "three corrections"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // It is shown with any question, and the memories that it quotes are not shown twice.
    let fresh = say(&app, "fresh", &[user("What is the capital of Spain?")]).await;
    assert_eq!(shown(&fresh).len(), 1, "{fresh}");
    assert_eq!(shown(&fresh)[0].2, "body");
    assert_eq!(fresh["hone"]["memories"], Value::Null, "{fresh}");
    // It goes with a turn that it was made from.
    let forgotten = json!({"turn_ids": [turns[1]]});
    app.post("/v1/forget", forgotten).await.unwrap();
    assert_eq!(app.get("/v1/skills").await.unwrap()["data"], json!([]));
    assert!(shown(&say(&app, "after", &[user("Hello!")]).await).is_empty());
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}
