//! Branches, over the router.

use hone_domain::{
    Collect, Digest, GroupId, Origin, PolicyChoice, PolicyVersion, Scope, StopReason, Turn,
};
use hone_ledger::suite::World;
use serde_json::{Value, json};

use super::learning::put;
use super::people::{Client, check};
use super::trials::published;
use crate::testing::{END, Recorder, Reply, Script, Stage};

const PATH: &str = "/v1/branches";
const ANY: &str = "/admin/v1/branches";

/// A turn of the served model that `version` answered, on record.
async fn answered(stage: &Stage, version: u64, change: impl FnOnce(&mut Turn)) -> Turn {
    let world = World::new(stage.http.ledger.clone());
    let mut turn = world.turn_of(PolicyVersion(version));
    // World's ids would repeat.
    turn.id.0 = stage.http.ids.next();
    turn.request.0 = stage.http.ids.next();
    turn.session.0 = stage.http.ids.next();
    turn.base = Digest([0xab; 32]);
    let n = 4;
    turn.completion = hone_domain::Completion::new(
        vec![97, 98, 99, END],
        vec![-0.5; n],
        vec![-1.0, -2.0, -3.0, -4.0],
        vec![None; n],
        StopReason::EndToken,
    )
    .unwrap();
    turn.spans[0].end = 4;
    change(&mut turn);
    let turns = std::slice::from_ref(&turn);
    stage.http.ledger.record_turns(turns).await.unwrap();
    turn
}

fn owned(turn: &mut Turn, owner: &str) {
    owner.clone_into(&mut turn.owner);
    turn.scope = Scope::of(owner, None);
}

async fn ask(stage: &Stage, path: &str, body: Value) -> Reply {
    stage.post(path, &body.to_string()).await
}

#[tokio::test]
async fn an_answer_goes_on_from_its_very_tokens_by_the_version_that_gave_it() {
    let stage = published(4).await;
    let turn = answered(&stage, 3, |_| {}).await;
    stage.script([
        Script::Say(vec!["x", "y"], StopReason::Length),
        Script::Say(vec!["z"], StopReason::EndToken),
    ]);
    let body = json!({"turn_id": turn.id.prefixed(), "position": 2, "n": 2, "seed": 5, "temperature": 0.5});
    let reply = ask(&stage, ANY, body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let told = reply.json();
    let place = json!({"turn_id": turn.id.prefixed(), "position": 2});
    assert_eq!(told["branch_of"], place);
    assert_eq!(
        (&told["version"], &told["policy_version"]),
        (&json!("as-served"), &json!(3))
    );
    // The backend says -1 and -2, as was recorded.
    let prefix = json!({"text": "ab", "tokens": 2, "logprobs": [-1.0, -2.0], "recorded": [-1.0, -2.0],
        "logprobs_equal": true});
    assert_eq!(told["prefix"], prefix);
    let original = &told["original"];
    assert_eq!(
        (&original["text"], &original["tokens"], &original["stop"]),
        (&json!("c"), &json!(2), &json!("end_token"))
    );
    let said = |at: usize| {
        let one = &told["data"][at];
        (
            one["text"].clone(),
            one["tokens"].clone(),
            one["stop"].clone(),
        )
    };
    assert_eq!(said(0), (json!("xy"), json!(2), json!("length")));
    assert_eq!(said(1), (json!("z"), json!(2), json!("end_token")));

    let asks = stage.fake.asks.lock().unwrap().clone();
    let (scoring, going_on): (Vec<_>, Vec<_>) = asks.iter().partition(|ask| !ask.given.is_empty());
    assert_eq!(scoring.len(), 1);
    assert_eq!(
        (&scoring[0].prompt_tokens[..], &scoring[0].given[..]),
        (&[1, 2, 3][..], &[97, 98][..])
    );
    assert_ne!(scoring[0].collect, Collect::Yes);
    let groups: Vec<Option<GroupId>> = going_on.iter().map(|ask| ask.group).collect();
    assert!(groups[0].is_some() && groups[0] == groups[1]);
    for (ask, seed) in going_on.iter().zip([5, 6]) {
        assert_eq!(ask.prompt_tokens, [1, 2, 3, 97, 98]);
        assert_eq!(ask.origin, Origin::Rollout, "users go first");
        assert_eq!((ask.sampling.seed, ask.sampling.temperature), (seed, 0.5));
        let PolicyChoice::Exact(policy) = &ask.policy else {
            panic!("{:?}", ask.policy)
        };
        assert_eq!(policy.version, PolicyVersion(3), "though 4 is served");
        assert_eq!(ask.scope, turn.scope);
        assert_eq!(ask.context.owner, turn.owner, "whoever asks");
    }
    // Somebody else's words were read.
    let log = stage.get("/admin/v1/audit").await.json();
    assert_eq!(log["data"][0]["act"], "turn.branch");
    assert_eq!(log["data"][0]["object"], turn.id.prefixed());

    let told = stage.told.lock().unwrap();
    let recorded: Vec<&Turn> = told.turns.iter().collect();
    assert_eq!(recorded.len(), 2);
    for branch in recorded {
        let of = branch.admission.branch.unwrap();
        assert_eq!((of.turn, of.position, of.prefix_tokens), (turn.id, 2, 2));
        assert_eq!(branch.asked_and_prefix(), (&[1, 2, 3][..], &[97, 98][..]));
        assert_eq!(branch.messages, turn.messages);
        assert_ne!(branch.session, turn.session);
        assert_eq!(branch.parent, None);
    }
}

#[tokio::test]
async fn log_probs_that_differ_are_not_called_equal() {
    let stage = published(3).await;
    let other = answered(&stage, 3, |turn| {
        turn.completion = hone_domain::Completion::new(
            vec![97, 98],
            vec![-0.5; 2],
            vec![-1.0, -2.000_000_2],
            vec![None; 2],
            StopReason::Length,
        )
        .unwrap();
    });
    let other = other.await;
    for (position, equal) in [(0, Value::Null), (1, true.into()), (2, false.into())] {
        let body = json!({"turn_id": other.id.prefixed(), "position": position});
        let told = ask(&stage, ANY, body).await.json();
        assert_eq!(told["prefix"]["logprobs_equal"], equal, "{told}");
        assert_eq!(told["prefix"]["tokens"], position);
    }
}

#[tokio::test]
async fn a_branch_of_a_branch_knows_all_of_the_answer() {
    let stage = published(3).await;
    let first = answered(&stage, 3, |turn| {
        turn.prompt_tokens = vec![1, 2, 3, 97];
        turn.admission.branch = Some(hone_domain::BranchOf {
            turn: turn.id,
            position: 1,
            prefix_tokens: 1,
        });
    });
    let first = first.await;
    let body = json!({"session_id": first.session.prefixed(), "position": 2});
    assert_eq!(ask(&stage, ANY, body).await.status, 200);
    let told = stage.told.lock().unwrap();
    let of = told.turns[0].admission.branch.unwrap();
    assert_eq!((of.turn, of.position, of.prefix_tokens), (first.id, 2, 3));
    let asks = stage.fake.asks.lock().unwrap();
    let scoring = asks.iter().find(|ask| !ask.given.is_empty()).unwrap();
    assert_eq!(scoring.prompt_tokens, [1, 2, 3, 97]);
}

#[tokio::test]
async fn what_cannot_be_branched_is_told_apart() {
    let stage = published(4).await;
    let own = |turn: &mut Turn| owned(turn, "user-a");
    let turn = answered(&stage, 0, own).await;
    let id = turn.id.prefixed();
    let user = Client::with_key("user-a");
    for (fields, words) in [
        ("", "one of turn_id"),
        (r#""turn_id": "x""#, "id of a turn"),
        (r#""turn_id": ID, "session_id": "x""#, "one of"),
        (r#""turn_id": ID, "n": 17"#, "between 1 and 16"),
        (r#""turn_id": ID, "n": 0"#, "between 1 and 16"),
        (r#""turn_id": ID, "position": -1"#, "between 0"),
        (r#""turn_id": ID, "position": 4"#, "has 3 tokens"),
        (r#""turn_id": ID, "version": 3"#, "version"),
        (r#""turn_id": ID, "version": "newest""#, "as-served"),
        (r#""turn_id": ID, "temperature": 3"#, "between 0 and 2"),
        (r#""turn_id": ID, "at": 3"#, "at"),
    ] {
        let body = format!("{{{}}}", fields.replace("ID", &format!("{id:?}")));
        let body: Value = serde_json::from_str(&body).unwrap();
        let reply = user.send(&stage, "POST", PATH, body.clone()).await;
        let error = &reply.json()["error"];
        let told = (reply.status, &error["code"]);
        assert_eq!(told, (400, &json!("invalid_value")), "{body} {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(words), "{body}: {message}");
    }
    let episode = json!({"episode_id": "job_00000000-0000-7000-8000-000000000001"});
    check(
        &user.send(&stage, "POST", PATH, episode).await,
        404,
        "not_found",
    );
    // Nobody learns whether somebody else has a turn of that id; only admins ask for anybody's.
    let body = json!({"turn_id": id});
    let other = Client::with_key("user-b");
    assert_eq!(
        other.send(&stage, "POST", PATH, body.clone()).await.status,
        404
    );
    assert_eq!(other.send(&stage, "POST", ANY, body).await.status, 403);
    assert!(stage.fake.asks.lock().unwrap().is_empty());
}

async fn refused(stage: &Stage, turn: &Turn, code: &str) -> String {
    let reply = ask(
        stage,
        ANY,
        json!({"turn_id": turn.id.prefixed(), "position": 1}),
    )
    .await;
    let error = reply.json()["error"].clone();
    assert_eq!(
        (reply.status, &error["code"]),
        (409, &json!(code)),
        "{error}"
    );
    error["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_version_that_is_gone_says_so_and_offers_the_latest() {
    let stage = published(4).await;
    let retired = answered(&stage, 2, |_| {}).await;
    let unknown = answered(&stage, 9, |_| {}).await;
    let outside = answered(&stage, 3, |turn| turn.origin = Origin::Outside).await;
    let body = json!({"scope": "5:owner"}).to_string();
    let retiring = stage.post("/admin/v1/versions/2/retire", &body).await;
    assert_eq!(retiring.status, 200, "{}", retiring.text);
    for (turn, words) in [
        (&retired, "is retired"),
        (&unknown, "not known"),
        (&outside, "outside"),
    ] {
        let message = refused(&stage, turn, "served_version_gone").await;
        assert!(
            message.contains(words) && message.contains("latest"),
            "{message}"
        );
    }
    // What is served now goes on.
    let body = json!({"turn_id": retired.id.prefixed(), "version": "latest"});
    let told = ask(&stage, ANY, body).await.json();
    assert_eq!(
        (&told["version"], &told["policy_version"]),
        (&json!("latest"), &json!(4))
    );
    // Its files may turn out to be gone.
    stage.script([Script::Refuse(hone_domain::ServeError::Adapter(
        "a file".to_owned(),
    ))]);
    let kept = answered(&stage, 3, |_| {}).await;
    let body = json!({"turn_id": kept.id.prefixed()});
    let error = ask(&stage, ANY, body).await.json()["error"].clone();
    assert_eq!(error["code"], "served_version_gone", "{error}");
}

#[tokio::test]
async fn words_that_are_gone_or_must_not_be_kept_are_not_gone_on_from() {
    let stage = Stage::new(Recorder::Collects).await;
    let own = |turn: &mut Turn| owned(turn, "local");
    let foreign = answered(&stage, 0, |turn| {
        own(turn);
        turn.base = Digest([7; 32]);
    });
    refused(&stage, &foreign.await, "another_model").await;
    let turn = answered(&stage, 0, own).await;
    assert_eq!(put(&stage, &json!({"learning": "off"})).await.status, 200);
    // What waited was withdrawn with that; what comes now may not be kept.
    refused(&stage, &turn, "erased").await;
    let side = answered(&stage, 0, |turn| {
        own(turn);
        turn.kind = hone_domain::TurnKind::Side;
    });
    let message = refused(&stage, &side.await, "not_allowed_to_keep").await;
    assert!(message.contains("may not be kept"), "{message}");
    assert!(stage.fake.asks.lock().unwrap().is_empty());
}
