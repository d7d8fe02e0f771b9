//! Agents and teams: whose they are, who decides, and that nobody else sees them.

use hone_domain::{SessionIndex, SessionIndexConfig};
use serde_json::{Value, json};

use super::people::{Client, NO_LIMITS, PASSWORD, add_user, check};
use crate::rights::Right;
use crate::testing::{Recorder, Reply, Script, Stage, rights};
use hone_accounts::{LimitSet, LimitsConfig};

const CANARY: &str = "zebra-canary-78";

/// Makes an agent and a key of it; the keeper acts.
async fn add_agent(stage: &Stage, keeper: &str, agent: Value) -> Client {
    let name: &'static str = agent["name"].as_str().unwrap().to_owned().leak();
    let mut keeper = Client::with_key(keeper);
    let made = keeper.send(stage, "POST", "/v1/agents", agent).await;
    check(&made, 201, "");
    keeper.agent = Some(name);
    let key = json!({"name": "server"});
    let made = keeper.send(stage, "POST", "/v1/keys", key).await;
    check(&made, 201, "");
    Client::with_key(made.json()["key"].as_str().unwrap())
}

fn acting(key: &str, agent: &'static str) -> Client {
    let mut client = Client::with_key(key);
    client.agent = Some(agent);
    client
}

async fn chat(stage: &Stage, client: &Client, text: &str) -> Reply {
    chat_in(stage, client, (text, None)).await
}

/// In the session of a key.
async fn chat_in(stage: &Stage, client: &Client, (text, key): (&str, Option<&str>)) -> Reply {
    let messages = json!([{"role": "user", "content": text}]);
    let body = json!({"model": "gpt", "messages": messages, "session_id": key});
    let path = "/v1/chat/completions";
    client.send(stage, "POST", path, body).await
}

#[tokio::test]
async fn sessions_of_an_agent_count_as_its_keepers() {
    let stage = Stage::new(Recorder::Collects).await;
    let agent = add_agent(&stage, "developer", json!({"name": "builder"})).await;
    let inference = stage.http.inference.as_ref().unwrap();
    let config = SessionIndexConfig {
        sessions_max: 2,
        turns_per_session_max: 4,
        transcript_bytes_max: 1_000,
        retry_ms: 0,
    };
    *inference.index.lock().unwrap() = SessionIndex::new(config);
    let session = async |client: &Client| {
        let reply = chat_in(&stage, client, ("hello", Some("k"))).await;
        reply.header("x-hone-session-id").unwrap().to_owned()
    };
    let (quiet, keeper) = (Client::with_key("user-a"), Client::with_key("developer"));
    let first = session(&quiet).await;
    for client in [&keeper, &agent] {
        stage.clock.advance(1);
        session(client).await;
    }
    assert_eq!(session(&quiet).await, first, "the keeper has most");
}

#[tokio::test]
async fn an_agent_has_keys_and_a_consent_of_its_own() {
    let stage = Stage::new(Recorder::Collects).await;
    let nobody = Client::with_key("user-a");
    let wanted = json!({"name": "builder"});
    let refused = nobody.send(&stage, "POST", "/v1/agents", wanted.clone());
    check(&refused.await, 403, "not_allowed");
    let builder = add_agent(&stage, "developer", wanted.clone()).await;
    let me = builder.get(&stage, "/v1/me").await.json();
    assert_eq!(
        (&me["name"], &me["role"], &me["consent"]),
        (&json!("builder"), &json!("user"), &json!("serve"))
    );
    let developer = Client::with_key("developer");
    let again = developer.send(&stage, "POST", "/v1/agents", wanted).await;
    check(&again, 409, "name_taken");
    for (body, status, code) in [
        (json!({"name": "user-a"}), 409, "name_taken"),
        (
            json!({"name": "x", "owner": "user-a"}),
            403,
            "not_your_agent",
        ),
        (json!({"name": "x", "team": "none"}), 403, "not_your_agent"),
        (json!({"name": "Not A Name"}), 400, "invalid_value"),
    ] {
        let reply = developer.send(&stage, "POST", "/v1/agents", body).await;
        check(&reply, status, code);
    }
    let for_agent = acting("developer", "builder");
    let above = json!({"name": "k", "role": "developer"});
    let reply = for_agent.send(&stage, "POST", "/v1/keys", above).await;
    check(&reply, 400, "invalid_value");

    // Its keeper decides what may be learned from it; it does not, and its keeper's own stays.
    let full = json!({"learning": "full"});
    let reply = builder.send(&stage, "PUT", "/v1/consent", full.clone());
    check(&reply.await, 403, "keeper_decides");
    let reply = for_agent.send(&stage, "PUT", "/v1/consent", full).await;
    check(&reply, 200, "");
    let consent =
        async |client: &Client| client.get(&stage, "/v1/me").await.json()["consent"].clone();
    assert_eq!(consent(&builder).await, "full");
    assert_eq!(consent(&developer).await, "serve");
    let reply = chat(&stage, &for_agent, "hello").await;
    check(&reply, 403, "agent_not_here");
    check(&chat(&stage, &builder, "hello").await, 200, "");
    let asked = stage.fake.asks.lock().unwrap().pop().unwrap();
    let (owner, counts_as) = (asked.context.owner.as_str(), asked.context.counts_as());
    assert_eq!(
        (owner, counts_as),
        ("builder", "developer"),
        "one fair part"
    );

    let list = developer.get(&stage, "/v1/agents").await.json();
    let row = &list["data"][0];
    assert_eq!(
        (
            &row["name"],
            &row["keeper"]["owner"],
            &row["manages"],
            &row["consent"]
        ),
        (
            &json!("builder"),
            &json!("developer"),
            &json!(true),
            &json!("full")
        )
    );
    check_acts(&stage).await;
}

/// The log names the person, and whom they acted for.
async fn check_acts(stage: &Stage) {
    let log = Client::with_key("admin")
        .get(stage, "/admin/v1/audit?limit=99")
        .await
        .json();
    let acts: Vec<String> = log["data"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|e| format!("{} {} {}", e["actor"], e["act"], e["detail"]["agent"]).replace('"', ""))
        .collect();
    let wanted = [
        "developer agent.add null",
        "developer key.make builder",
        "developer consent.decide builder",
    ];
    assert_eq!(acts, wanted);
}

#[tokio::test]
async fn an_agent_ends_with_its_keeper() {
    let stage = Stage::new(Recorder::Collects).await;
    add_user(&stage, "ann", "developer").await;
    let mut ann = Client::default();
    ann.sign_in(&stage, "ann", PASSWORD).await;
    let made = ann
        .send(&stage, "POST", "/v1/agents", json!({"name": "builder"}))
        .await;
    check(&made, 201, "");
    ann.agent = Some("builder");
    let made = ann
        .send(&stage, "POST", "/v1/keys", json!({"name": "k"}))
        .await;
    let builder = Client::with_key(made.json()["key"].as_str().unwrap());
    check(&builder.get(&stage, "/v1/models").await, 200, "");

    let path = "/v1/agents/builder";
    let off = |off: bool| json!({"disabled": off});
    let stranger = Client::with_key("user-b");
    let reply = stranger.send(&stage, "PATCH", path, off(true)).await;
    check(&reply, 404, "not_found");
    ann.agent = None;
    let reply = ann.send(&stage, "PATCH", path, off(true)).await;
    check(&reply, 200, "");
    check(
        &builder.get(&stage, "/v1/models").await,
        401,
        "invalid_api_key",
    );
    ann.send(&stage, "PATCH", path, off(false)).await;
    check(&builder.get(&stage, "/v1/models").await, 200, "");

    // Nobody signs in as it, whatever an admin tries.
    let admin = Client::with_key("admin");
    for body in [json!({"password_reset": true}), json!({"role": "admin"})] {
        let reply = admin
            .send(&stage, "PATCH", "/admin/v1/users/builder", body)
            .await;
        check(&reply, 409, "is_agent");
    }
    let reply = admin
        .send(&stage, "PATCH", "/admin/v1/users/ann", off(true))
        .await;
    check(&reply, 200, "");
    check(
        &builder.get(&stage, "/v1/models").await,
        401,
        "invalid_api_key",
    );
}

/// Every route with the header and without: the keeper sees what the agent said, nobody else does.
#[tokio::test]
async fn nobody_but_its_keeper_sees_a_byte_of_an_agent() {
    let stage = Stage::new(Recorder::Collects).await;
    let builder = add_agent(&stage, "developer", json!({"name": "builder"})).await;
    stage.script([Script::Say(vec![CANARY], hone_domain::StopReason::EndToken)]);
    let reply = chat(&stage, &builder, CANARY).await;
    check(&reply, 200, "");
    let turn = stage.told.lock().unwrap().turns[0].clone();
    assert_eq!(turn.owner, "builder");
    stage
        .http
        .ledger
        .record_turns(std::slice::from_ref(&turn))
        .await
        .unwrap();
    let turn_id = reply.header("x-hone-turn-id").unwrap().to_owned();
    let session_id = reply.header("x-hone-session-id").unwrap().to_owned();
    let path = format!("/v1/turns/{turn_id}");
    let keeper = acting("developer", "builder");
    for client in [&builder, &keeper] {
        assert!(client.get(&stage, &path).await.text.contains(CANARY));
        let sessions = client.get(&stage, "/v1/sessions").await;
        assert!(sessions.text.contains(&session_id), "{}", sessions.text);
    }
    // Not without saying for whom.
    let own = Client::with_key("developer");
    check(&own.get(&stage, &path).await, 404, "not_found");

    let others = ["user-a", "user-b", "auditor", "admin"];
    for (method, route, right) in &rights() {
        if *method != "GET" || route.starts_with("/admin") || *right == Right::Open {
            continue;
        }
        for id in [&turn_id, &session_id, "builder"] {
            let route = route.replace("{*id}", id).replace("{id}", id);
            let route = route.replace("{version}", "1");
            for key in others {
                for client in [Client::with_key(key), acting(key, "builder")] {
                    let reply = client.get(&stage, &route).await;
                    let text = format!("{}{:?}", reply.text, reply.headers);
                    assert!(!text.contains(CANARY), "{key} {route}: {text}");
                    if client.agent.is_some() && !(key == "admin" && route == "/v1/keys") {
                        assert_eq!(reply.status, 403, "{key} {route}: {text}");
                    }
                }
            }
        }
    }
    let erase = json!({"all": true});
    for (key, agent) in [
        ("user-b", "builder"),
        ("developer", "user-a"),
        ("developer", "none"),
    ] {
        let other = acting(key, agent);
        let reply = other
            .send(&stage, "POST", "/v1/forget", erase.clone())
            .await;
        check(&reply, 403, "not_your_agent");
    }
    let reply = builder
        .send(&stage, "POST", "/v1/forget", erase.clone())
        .await;
    check(&reply, 403, "keeper_decides");
    let reply = keeper.send(&stage, "POST", "/v1/forget", erase).await;
    check(&reply, 200, "");
    assert_eq!(reply.json()["turns"], 1);
    check(&keeper.get(&stage, &path).await, 404, "not_found");
}

/// What an agent's own key may do, written down.
#[tokio::test]
async fn an_agents_key_asks_reads_and_gives_feedback() {
    const MAY: &[&str] = &[
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /inference/v1/generate",
        "POST /generate",
        "POST /v1/responses",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "POST /v1/embeddings",
        "POST /tokenize",
        "POST /detokenize",
        "POST /v1/feedback",
        "POST /v1/trajectories",
        "POST /v1/branches",
        "POST /mcp",
    ];
    let stage = Stage::new(Recorder::Collects).await;
    let builder = add_agent(&stage, "developer", json!({"name": "builder"})).await;
    for (method, path, right) in &rights() {
        if *right == Right::Open {
            continue;
        }
        let may = *right == Right::User
            && (*method == "GET" || MAY.contains(&&*format!("{method} {path}")));
        let path = path.replace("{*id}", "x").replace("{id}", "x");
        let path = path
            .replace("{name}", "x")
            .replace("{member}", "x")
            .replace("{task}", "x");
        let path = path.replace("{version}", "1");
        let reply = builder.send(&stage, method, &path, Value::Null).await;
        let code = match reply.status {
            400.. => reply.json()["error"]["code"].clone(),
            _ => Value::Null,
        };
        let refused = code == "not_allowed" || code == "keeper_decides";
        assert_eq!(refused, !may, "{method} {path}: {} {code}", reply.status);
    }
}

async fn add_team(stage: &Stage, body: Value) {
    let admin = Client::with_key("admin");
    let reply = admin.send(stage, "POST", "/admin/v1/teams", body).await;
    check(&reply, 201, "");
}

#[tokio::test]
async fn a_teams_limits_are_shared_by_members_and_agents() {
    let limits = LimitsConfig {
        key: NO_LIMITS,
        owner: NO_LIMITS,
        team: LimitSet {
            requests_per_minute: 9,
            ..NO_LIMITS
        },
        counted_max: 20,
    };
    let stage = Stage::with_limits(Recorder::Collects, limits).await;
    let members = json!([{"name": "developer", "lead": true}, {"name": "user-a"}]);
    let desk = json!({"name": "desk", "members": members, "limits": {"requests_per_minute": 4}});
    add_team(&stage, desk).await;
    let helper = add_agent(
        &stage,
        "developer",
        json!({"name": "helper", "team": "desk"}),
    )
    .await;
    let own = add_agent(&stage, "developer", json!({"name": "own"})).await;
    let (developer, user_a) = (Client::with_key("developer"), Client::with_key("user-a"));
    for (client, left) in [
        (&developer, "3"),
        (&user_a, "2"),
        (&helper, "1"),
        (&own, "0"),
    ] {
        let reply = chat(&stage, client, "hello").await;
        check(&reply, 200, "");
        assert_eq!(reply.header("x-ratelimit-remaining-requests"), Some(left));
    }
    for client in [&user_a, &helper] {
        let reply = chat(&stage, client, "hello").await;
        check(&reply, 429, "rate_limit_exceeded");
        assert!(reply.text.contains("team desk"), "{}", reply.text);
    }
    let outside = chat(&stage, &Client::with_key("user-b"), "hello").await;
    assert_eq!(outside.header("x-ratelimit-limit-requests"), None);

    let left = user_a.send(
        &stage,
        "DELETE",
        "/v1/teams/desk/members/user-a",
        Value::Null,
    );
    check(&left.await, 204, "");
    check(&chat(&stage, &user_a, "hello").await, 200, "");
    let shut = json!({"disabled": true});
    let admin = Client::with_key("admin");
    let reply = admin
        .send(&stage, "PATCH", "/admin/v1/teams/desk", shut)
        .await;
    check(&reply, 200, "");
    check(
        &chat(&stage, &helper, "hello").await,
        401,
        "invalid_api_key",
    );
    check(&chat(&stage, &own, "hello").await, 200, "");
}

#[tokio::test]
async fn a_team_is_managed_by_its_lead() {
    let stage = Stage::new(Recorder::Collects).await;
    let members = json!([{"name": "developer", "lead": true}, {"name": "user-a"}]);
    add_team(&stage, json!({"name": "desk", "members": members})).await;
    add_team(&stage, json!({"name": "lab"})).await;
    let admin = Client::with_key("admin");
    for (body, status, code) in [
        (json!({"name": "desk"}), 409, "name_taken"),
        (
            json!({"name": "new", "members": [{"name": "user-a"}]}),
            409,
            "in_another_team",
        ),
        (
            json!({"name": "new", "members": [{"name": "nobody"}]}),
            404,
            "not_found",
        ),
    ] {
        let reply = admin.send(&stage, "POST", "/admin/v1/teams", body).await;
        check(&reply, status, code);
    }
    let helper = json!({"name": "helper", "team": "desk"});
    add_agent(&stage, "developer", helper).await;
    let put = async |key: &str, team: &str, member: &str| {
        let path = format!("/v1/teams/{team}/members/{member}");
        let client = Client::with_key(key);
        client.send(&stage, "PUT", &path, json!({})).await
    };
    for (key, team, member, status, code) in [
        // To who is not in it, a team does not exist.
        ("user-b", "desk", "user-b", 404, "not_found"),
        ("user-a", "desk", "user-b", 403, "not_lead"),
        ("developer", "lab", "user-b", 404, "not_found"),
        ("developer", "desk", "nobody", 404, "not_found"),
        ("developer", "desk", "helper", 400, "invalid_value"),
        ("developer", "desk", "oidc:7", 200, ""),
        ("developer", "desk", "user-b", 200, ""),
        ("admin", "lab", "user-b", 409, "in_another_team"),
        ("admin", "none", "user-b", 404, "not_found"),
    ] {
        check(&put(key, team, member).await, status, code);
    }
    // Everybody in it sees who is, and nobody else does.
    for (key, teams) in [("user-a", 1), ("user-b", 1), ("admin", 0), ("auditor", 0)] {
        let client = Client::with_key(key);
        let list = client.get(&stage, "/v1/teams").await.json();
        assert_eq!(list["data"].as_array().unwrap().len(), teams, "{key}");
        let agents = client.get(&stage, "/v1/agents").await.json();
        let agents = agents["data"].as_array().unwrap().clone();
        assert_eq!(agents.len(), teams, "{key}");
        assert!(
            agents.iter().all(|agent| agent["manages"] == false),
            "{key}"
        );
        let keys = acting(key, "helper").get(&stage, "/v1/keys").await;
        assert_eq!(keys.status == 200, key == "admin", "{key}");
    }
    check_leaving(&stage).await;
}

/// A lead takes others out, and decides nothing once they are out themselves.
async fn check_leaving(stage: &Stage) {
    let drop = async |key: &str, member: &str| {
        let path = format!("/v1/teams/desk/members/{member}");
        let client = Client::with_key(key);
        client.send(stage, "DELETE", &path, Value::Null).await
    };
    check(&drop("user-a", "user-b").await, 403, "not_lead");
    check(&drop("developer", "user-b").await, 204, "");
    check(&drop("developer", "user-b").await, 404, "not_found");
    // Who leaves decides about its agents no more.
    check(&drop("developer", "developer").await, 204, "");
    let keys = acting("developer", "helper").get(stage, "/v1/keys").await;
    check(&keys, 403, "not_your_agent");
    let list = Client::with_key("auditor")
        .get(stage, "/admin/v1/teams")
        .await
        .json();
    let desk = &list["data"][0];
    assert_eq!(desk["agents"], json!(["helper"]));
    assert_eq!(desk["members"].as_array().unwrap().len(), 2);
}
