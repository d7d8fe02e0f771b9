//! Signing in, keys, accounts, and that nobody sees what is another's.

use std::net::IpAddr;

use axum::body::Body;
use serde_json::{Value, json};

use crate::rights::Right;
use crate::testing::{Recorder, Reply, Script, Stage, read, request, rights};
use hone_accounts::{LimitSet, LimitsConfig};

pub(super) const PASSWORD: &str = "correct horse";
const STRANGER: [u8; 4] = [10, 0, 0, 9];

pub(super) const NO_LIMITS: LimitSet = LimitSet {
    requests_per_minute: 0,
    tokens_per_minute: 0,
    tokens_per_day: 0,
    streams_max: 0,
};

/// A browser or program at another machine.
#[derive(Default)]
pub(super) struct Client {
    pub(super) agent: Option<&'static str>,
    key: Option<String>,
    cookie: Option<String>,
    csrf: Option<String>,
}

impl Client {
    pub(super) fn with_key(key: &str) -> Self {
        Self {
            key: Some(format!("Bearer {key}")),
            ..Self::default()
        }
    }

    pub(super) async fn send(&self, stage: &Stage, method: &str, path: &str, body: Value) -> Reply {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(self.key.as_deref().map(|key| ("authorization", key)));
        headers.extend(self.cookie.as_deref().map(|cookie| ("cookie", cookie)));
        headers.extend(self.csrf.as_deref().map(|csrf| ("x-hone-csrf", csrf)));
        headers.extend(self.agent.map(|agent| ("x-hone-agent", agent)));
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = request(method, path, &headers).body(Body::from(text));
        let peer: IpAddr = STRANGER.into();
        read(stage.send_from(peer, request.unwrap()).await).await
    }

    pub(super) async fn get(&self, stage: &Stage, path: &str) -> Reply {
        self.send(stage, "GET", path, Value::Null).await
    }

    /// Takes the cookie and the CSRF value of a sign-in.
    fn take(&mut self, reply: &Reply) {
        let cookie = reply.header("set-cookie").unwrap();
        for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        self.cookie = cookie.split(';').next().map(str::to_owned);
        self.csrf = reply.json()["csrf"].as_str().map(str::to_owned);
        assert!(self.csrf.is_some());
    }

    pub(super) async fn sign_in(&mut self, stage: &Stage, name: &str, password: &str) -> Reply {
        let body = json!({"name": name, "password": password});
        let reply = self.send(stage, "POST", "/v1/auth/sign-in", body).await;
        if reply.status == 200 {
            self.take(&reply);
        }
        reply
    }
}

pub(super) fn check(reply: &Reply, status: u16, code: &str) {
    assert_eq!(reply.status, status, "{}", reply.text);
    if !code.is_empty() {
        assert_eq!(reply.json()["error"]["code"], code);
    }
}

pub(super) async fn add_user(stage: &Stage, name: &str, role: &str) {
    let body = json!({"name": name, "role": role, "password": PASSWORD});
    let admin = Client::with_key("admin");
    let reply = admin.send(stage, "POST", "/admin/v1/users", body).await;
    check(&reply, 201, "");
}

#[tokio::test]
async fn a_sign_in_lives_by_its_cookie_and_its_csrf_value() {
    let stage = Stage::new(Recorder::Collects).await;
    add_user(&stage, "ann", "developer").await;
    let mut ann = Client::default();
    check(&ann.get(&stage, "/v1/me").await, 401, "invalid_api_key");
    check(
        &ann.sign_in(&stage, "ann", "wrong password").await,
        401,
        "wrong_password",
    );
    check(
        &ann.sign_in(&stage, "nobody", PASSWORD).await,
        401,
        "wrong_password",
    );
    check(&ann.sign_in(&stage, "ann", PASSWORD).await, 200, "");
    let me = ann.get(&stage, "/v1/me").await.json();
    assert_eq!(
        (&me["name"], &me["role"], &me["via"], &me["users_exist"]),
        (
            &json!("ann"),
            &json!("developer"),
            &json!("session"),
            &json!(true)
        )
    );
    assert_eq!(me["csrf"].as_str(), ann.csrf.as_deref());

    let csrf = ann.csrf.take();
    let make = json!({"name": "k"});
    let reply = ann.send(&stage, "POST", "/v1/keys", make.clone()).await;
    check(&reply, 403, "csrf");
    ann.csrf = Some("0".repeat(64));
    let reply = ann.send(&stage, "POST", "/v1/keys", make.clone()).await;
    check(&reply, 403, "csrf");
    ann.csrf = csrf;
    check(&ann.send(&stage, "POST", "/v1/keys", make).await, 201, "");

    let reply = ann
        .send(&stage, "POST", "/v1/auth/sign-out", Value::Null)
        .await;
    check(&reply, 204, "");
    let reply = ann.get(&stage, "/v1/me").await;
    check(&reply, 401, "signed_out");
    assert!(reply.header("set-cookie").unwrap().contains("Max-Age=0"));
}

#[tokio::test]
async fn a_sign_in_ends_by_idling_by_age_and_by_a_new_password() {
    let stage = Stage::new(Recorder::Collects).await;
    add_user(&stage, "ann", "user").await;
    let config = stage.http.people.config().clone();
    let mut ann = Client::default();
    ann.sign_in(&stage, "ann", PASSWORD).await;
    stage.clock.advance(config.session_idle_ms - 1);
    check(&ann.get(&stage, "/v1/me").await, 200, "");
    stage.clock.advance(config.session_idle_ms);
    check(&ann.get(&stage, "/v1/me").await, 401, "signed_out");

    ann.sign_in(&stage, "ann", PASSWORD).await;
    for _ in 0..(config.session_absolute_ms / config.session_idle_ms) + 1 {
        stage.clock.advance(config.session_idle_ms - 1);
        ann.get(&stage, "/v1/me").await;
        stage.http.people.note_uses().await.unwrap();
    }
    check(&ann.get(&stage, "/v1/me").await, 401, "signed_out");

    ann.sign_in(&stage, "ann", PASSWORD).await;
    let mut other = Client::default();
    other.sign_in(&stage, "ann", PASSWORD).await;
    let change = |old: &str, new: &str| json!({"old": old, "new": new});
    let path = "/v1/auth/password";
    let reply = ann
        .send(&stage, "POST", path, change("not it", "another long one"))
        .await;
    check(&reply, 400, "invalid_value");
    let reply = ann
        .send(&stage, "POST", path, change(PASSWORD, "short"))
        .await;
    check(&reply, 400, "invalid_value");
    let reply = ann
        .send(&stage, "POST", path, change(PASSWORD, "another long one"))
        .await;
    check(&reply, 204, "");
    check(&other.get(&stage, "/v1/me").await, 401, "signed_out");
    check(
        &ann.sign_in(&stage, "ann", PASSWORD).await,
        401,
        "wrong_password",
    );
    check(
        &ann.sign_in(&stage, "ann", "another long one").await,
        200,
        "",
    );
    let key = Client::with_key("user-a");
    let reply = key
        .send(&stage, "POST", path, change("x", "another long one"))
        .await;
    check(&reply, 403, "needs_sign_in");
}

/// However long and many they are, what cannot be names of accounts is one name tried often.
#[tokio::test]
async fn texts_that_are_no_names_are_counted_as_one() {
    let stage = Stage::new(Recorder::Collects).await;
    add_user(&stage, "ann", "user").await;
    let tries = stage.http.people.config().attempts_max;
    let mut eve = Client::default();
    for n in 0..tries {
        let name = format!("No Name {n}").repeat(1_000);
        check(&eve.sign_in(&stage, &name, PASSWORD).await, 401, "");
    }
    let reply = eve.sign_in(&stage, "No Name", PASSWORD).await;
    check(&reply, 429, "too_many_attempts");
    check(&eve.sign_in(&stage, "ann", PASSWORD).await, 200, "");
}

#[tokio::test]
async fn guessing_is_limited_by_name_and_recorded() {
    let stage = Stage::new(Recorder::Collects).await;
    add_user(&stage, "ann", "user").await;
    let tries = stage.http.people.config().attempts_max;
    let mut eve = Client::default();
    for _ in 0..tries {
        check(&eve.sign_in(&stage, "ann", "wrong password").await, 401, "");
    }
    let reply = eve.sign_in(&stage, "ann", PASSWORD).await;
    check(&reply, 429, "too_many_attempts");
    assert!(reply.header("retry-after").is_some());
    let admin = Client::with_key("admin");
    let log = admin
        .get(&stage, "/admin/v1/audit?act=sign_in.blocked")
        .await;
    assert_eq!(log.json()["data"][0]["object"], "ann");
    stage
        .clock
        .advance(stage.http.people.config().attempts_window_ms);
    check(&eve.sign_in(&stage, "ann", PASSWORD).await, 200, "");
}

#[tokio::test]
async fn a_key_lives_until_it_is_revoked_expires_or_its_owner_is_closed() {
    let stage = Stage::new(Recorder::Collects).await;
    add_user(&stage, "ann", "developer").await;
    let mut ann = Client::default();
    ann.sign_in(&stage, "ann", PASSWORD).await;
    let above = json!({"name": "k", "role": "admin"});
    let reply = ann.send(&stage, "POST", "/v1/keys", above).await;
    check(&reply, 403, "role_above_yours");
    let now = stage.http.people.now_ms();
    let make = async |body: Value| {
        let reply = ann.send(&stage, "POST", "/v1/keys", body).await;
        check(&reply, 201, "");
        let json = reply.json();
        let id = json["id"].as_str().unwrap().to_owned();
        (id, Client::with_key(json["key"].as_str().unwrap()))
    };
    let (first_id, first) = make(json!({"name": "first", "role": "developer"})).await;
    let late = json!({"name": "late", "expires_ms": now});
    let reply = ann.send(&stage, "POST", "/v1/keys", late).await;
    check(&reply, 400, "invalid_value");
    assert!(reply.text.contains("leave it out"), "{}", reply.text);
    let (brief_id, brief) = make(json!({"name": "brief", "expires_ms": now + 1_000})).await;
    let (_, plain) = make(json!({"name": "plain"})).await;
    for client in [&first, &brief, &plain] {
        let me = client.get(&stage, "/v1/me").await.json();
        assert_eq!((&me["name"], &me["via"]), (&json!("ann"), &json!("key")));
    }
    let reply = plain
        .send(&stage, "POST", "/v1/keys", json!({"name": "x"}))
        .await;
    check(&reply, 403, "not_allowed");
    stage.clock.advance(1_000);
    check(&brief.get(&stage, "/v1/me").await, 401, "invalid_api_key");
    let path = format!("/v1/keys/{brief_id}/rotate");
    let rotated = ann.send(&stage, "POST", &path, Value::Null).await;
    check(&rotated, 404, "not_found");
    assert!(rotated.text.contains("make another"), "{}", rotated.text);

    let path = format!("/v1/keys/{first_id}/rotate");
    let rotated = ann.send(&stage, "POST", &path, Value::Null).await;
    check(&rotated, 201, "");
    let second = Client::with_key(rotated.json()["key"].as_str().unwrap());
    for client in [&first, &second] {
        check(&client.get(&stage, "/v1/me").await, 200, "");
    }
    stage
        .clock
        .advance(stage.http.people.config().key_overlap_ms);
    check(&first.get(&stage, "/v1/me").await, 401, "invalid_api_key");
    check(&second.get(&stage, "/v1/me").await, 200, "");

    let list = ann.get(&stage, "/v1/keys").await;
    assert_eq!(list.json()["data"].as_array().unwrap().len(), 4);
    let second_id = rotated.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/keys/{second_id}");
    let stranger = Client::with_key("developer");
    check(
        &stranger.send(&stage, "DELETE", &path, Value::Null).await,
        404,
        "not_found",
    );
    check(
        &ann.send(&stage, "DELETE", &path, Value::Null).await,
        204,
        "",
    );
    check(&second.get(&stage, "/v1/me").await, 401, "invalid_api_key");
    check(
        &ann.send(&stage, "DELETE", &path, Value::Null).await,
        404,
        "not_found",
    );
}

#[tokio::test]
async fn a_closed_account_closes_its_keys_and_sign_ins() {
    let stage = Stage::new(Recorder::Collects).await;
    add_user(&stage, "ann", "developer").await;
    let mut ann = Client::default();
    ann.sign_in(&stage, "ann", PASSWORD).await;
    let body = json!({"name": "k", "role": "developer"});
    let made = ann.send(&stage, "POST", "/v1/keys", body).await;
    let plain = Client::with_key(made.json()["key"].as_str().unwrap());
    let role = async || plain.get(&stage, "/v1/me").await.json()["role"].clone();
    assert_eq!(role().await, "developer");
    let admin = Client::with_key("admin");
    let demote = json!({"role": "user"});
    let reply = admin
        .send(&stage, "PATCH", "/admin/v1/users/ann", demote)
        .await;
    check(&reply, 200, "");
    assert_eq!(
        role().await,
        "user",
        "a key may do at most what its owner may"
    );
    let close = json!({"disabled": true});
    let reply = admin
        .send(&stage, "PATCH", "/admin/v1/users/ann", close)
        .await;
    check(&reply, 200, "");
    check(&plain.get(&stage, "/v1/me").await, 401, "invalid_api_key");
    check(&ann.get(&stage, "/v1/me").await, 401, "signed_out");
}

#[tokio::test]
async fn another_process_revokes_and_the_app_notices() {
    let stage = Stage::new(Recorder::Collects).await;
    let admin = Client::with_key("admin");
    let made = admin
        .send(&stage, "POST", "/v1/keys", json!({"name": "k"}))
        .await;
    let key = Client::with_key(made.json()["key"].as_str().unwrap());
    check(&key.get(&stage, "/v1/me").await, 200, "");
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let store = stage.http.people.store();
    let entry = hone_ledger::AuditEntry {
        at_ms: 1,
        actor: "somebody".into(),
        act: "key.revoke".into(),
        object: id.clone(),
        detail: json!({}),
    };
    let revoke = hone_ledger::PeopleChange::RevokeKey(id, 1);
    store.change(&revoke, &entry).await.unwrap();
    stage.http.people.look().await.unwrap();
    check(&key.get(&stage, "/v1/me").await, 401, "invalid_api_key");
}

#[tokio::test]
async fn an_invitation_makes_one_account_and_signs_in() {
    let stage = Stage::new(Recorder::Collects).await;
    let admin = Client::with_key("admin");
    let body = json!({"role": "auditor"});
    let invite = admin.send(&stage, "POST", "/admin/v1/invites", body).await;
    check(&invite, 201, "");
    let token = invite.json()["token"].as_str().unwrap().to_owned();
    let taken = json!({"name": "user-a", "role": "user"});
    let taken = admin.send(&stage, "POST", "/admin/v1/users", taken).await;
    check(&taken, 409, "name_taken");
    let url = invite.json()["url"].as_str().unwrap().to_owned();
    assert_eq!(url, format!("http://127.0.0.1:8080/#/invite/{token}"));
    let take =
        |token: &str, name: &str| json!({"token": token, "name": name, "password": PASSWORD});
    let path = "/v1/auth/invite";
    let mut guest = Client::default();
    for (body, status, code) in [
        (take("nonsense", "gil"), 404, "not_found"),
        (take(&token, "Gil Smith"), 400, "invalid_value"),
        (take(&token, "local"), 400, "invalid_value"),
        // A key of the configuration has this owner.
        (take(&token, "user-a"), 409, "name_taken"),
    ] {
        check(&guest.send(&stage, "POST", path, body).await, status, code);
    }
    let reply = guest.send(&stage, "POST", path, take(&token, "gil")).await;
    check(&reply, 200, "");
    guest.take(&reply);
    check(&guest.get(&stage, "/admin/v1/status").await, 200, "");
    let reply = guest
        .send(&stage, "POST", "/admin/v1/loops/judge/pause", Value::Null)
        .await;
    check(&reply, 403, "not_allowed");
    let again = Client::default()
        .send(&stage, "POST", path, take(&token, "eve"))
        .await;
    check(&again, 404, "not_found");
}

#[tokio::test]
async fn every_act_is_in_the_log_and_the_log_holds_no_secret() {
    let stage = Stage::new(Recorder::Collects).await;
    add_user(&stage, "ann", "developer").await;
    let mut ann = Client::default();
    ann.sign_in(&stage, "ann", PASSWORD).await;
    let made = ann
        .send(&stage, "POST", "/v1/keys", json!({"name": "k"}))
        .await;
    let key = made.json()["key"].as_str().unwrap().to_owned();
    let admin = Client::with_key("admin");
    let own = json!({"role": "user"});
    let reply = ann.send(&stage, "PATCH", "/admin/v1/users/ann", own).await;
    check(&reply, 403, "not_allowed");
    let reset = json!({"password_reset": true, "limits": {"streams_max": 2}});
    let reply = admin
        .send(&stage, "PATCH", "/admin/v1/users/ann", reset)
        .await;
    let password = reply.json()["password"].as_str().unwrap().to_owned();
    check(&ann.sign_in(&stage, "ann", &password).await, 200, "");
    admin
        .send(&stage, "POST", "/admin/v1/loops/judge/pause", Value::Null)
        .await;
    let log = admin.get(&stage, "/admin/v1/audit?limit=200").await;
    let acts: Vec<String> = log.json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|e| format!("{} {} {}", e["actor"], e["act"], e["object"]).replace('"', ""))
        .collect();
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let wanted = [
        "admin user.add ann".to_owned(),
        "ann sign_in ann".to_owned(),
        format!("ann key.make {id}"),
        "admin user.change ann".to_owned(),
        "ann sign_in ann".to_owned(),
        "admin loop.pause judge".to_owned(),
    ];
    assert_eq!(acts, wanted);
    for secret in [PASSWORD, &key[key.len() - 20..], &password, "argon2"] {
        assert!(!log.text.contains(secret), "{secret} is in the log");
    }
    let verdict = admin.get(&stage, "/admin/v1/audit/verify").await.json();
    assert_eq!(
        (&verdict["intact"], &verdict["entries"]),
        (&json!(true), &json!(wanted.len()))
    );
    let page = admin.get(&stage, "/admin/v1/audit?limit=4").await.json();
    let next = page["next"].as_str().unwrap().to_owned();
    let rest = admin
        .get(&stage, &format!("/admin/v1/audit?limit=4&before={next}"))
        .await;
    assert_eq!(rest.json()["data"].as_array().unwrap().len(), 2);
    assert_eq!(rest.json()["next"], Value::Null);
}

#[tokio::test]
async fn limits_are_told_in_headers_and_end_in_429() {
    let limits = LimitsConfig {
        key: NO_LIMITS,
        owner: LimitSet {
            requests_per_minute: 3,
            tokens_per_minute: 40,
            ..NO_LIMITS
        },
        team: NO_LIMITS,
        counted_max: 10,
    };
    let stage = Stage::with_limits(Recorder::Collects, limits).await;
    let chat = json!({"model": "gpt", "messages": [{"role": "user", "content": "hello"}]});
    let user = Client::with_key("user-a");
    let header = |reply: &Reply, name: &str| reply.header(name).map(str::to_owned);
    for left in ["2", "1"] {
        let reply = user
            .send(&stage, "POST", "/v1/chat/completions", chat.clone())
            .await;
        check(&reply, 200, "");
        assert_eq!(
            header(&reply, "x-ratelimit-limit-requests").as_deref(),
            Some("3")
        );
        assert_eq!(
            header(&reply, "x-ratelimit-remaining-requests").as_deref(),
            Some(left)
        );
        assert!(
            header(&reply, "x-ratelimit-reset-requests")
                .unwrap()
                .ends_with('s')
        );
        assert_eq!(
            header(&reply, "x-ratelimit-limit-tokens").as_deref(),
            Some("40")
        );
        // Prompt and completion are charged, whatever they are.
        let usage = reply.json()["usage"]["total_tokens"].as_u64().unwrap();
        assert!(usage > 20, "two of them are more than 40");
    }
    let reply = user
        .send(&stage, "POST", "/v1/chat/completions", chat.clone())
        .await;
    check(&reply, 429, "rate_limit_exceeded");
    assert_eq!(
        header(&reply, "x-ratelimit-remaining-tokens").as_deref(),
        Some("0")
    );
    assert!(header(&reply, "retry-after").is_some());
    assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
    assert_eq!(
        stage.fake.asks.lock().unwrap().len(),
        2,
        "the third was not asked"
    );
    let other = Client::with_key("user-b");
    let reply = other
        .send(&stage, "POST", "/v1/chat/completions", chat.clone())
        .await;
    check(&reply, 200, "");
    check(&user.get(&stage, "/v1/models").await, 200, "");
    stage.clock.advance(600_000);
    let reply = user
        .send(&stage, "POST", "/v1/chat/completions", chat)
        .await;
    check(&reply, 200, "");
}

#[tokio::test]
async fn limits_of_keys_hold_for_keys_of_the_configuration() {
    let limits = LimitsConfig {
        key: LimitSet {
            requests_per_minute: 1,
            ..NO_LIMITS
        },
        owner: NO_LIMITS,
        team: NO_LIMITS,
        counted_max: 10,
    };
    let stage = Stage::with_limits(Recorder::Collects, limits).await;
    let chat = json!({"model": "gpt", "messages": [{"role": "user", "content": "hello"}]});
    // Each key has a limit of its own.
    for name in ["user-a", "user-b"] {
        let user = Client::with_key(name);
        let ask = || user.send(&stage, "POST", "/v1/chat/completions", chat.clone());
        let reply = ask().await;
        check(&reply, 200, "");
        assert_eq!(reply.header("x-ratelimit-limit-requests"), Some("1"));
        assert_eq!(reply.header("x-ratelimit-remaining-requests"), Some("0"));
        check(&ask().await, 429, "rate_limit_exceeded");
    }
}

#[tokio::test]
async fn a_stream_counts_until_its_client_has_it_or_leaves() {
    let limits = LimitsConfig {
        key: NO_LIMITS,
        owner: LimitSet {
            streams_max: 1,
            ..NO_LIMITS
        },
        team: NO_LIMITS,
        counted_max: 10,
    };
    let stage = Stage::with_limits(Recorder::Collects, limits).await;
    stage.script([Script::Hang]);
    let chat = |stream: bool| {
        let message = json!({"role": "user", "content": "hello"});
        let body = json!({"model": "gpt", "stream": stream, "messages": [message]});
        let headers = [
            ("content-type", "application/json"),
            ("authorization", "Bearer user-a"),
        ];
        let request = request("POST", "/v1/chat/completions", &headers);
        stage.send(request.body(Body::from(body.to_string())).unwrap())
    };
    let first = chat(true).await;
    assert_eq!(first.status().as_u16(), 200);
    assert_eq!(chat(false).await.status().as_u16(), 429);
    drop(first);
    assert_eq!(chat(false).await.status().as_u16(), 200);
    assert_eq!(
        chat(false).await.status().as_u16(),
        200,
        "a whole reply ends as well"
    );
}

/// User A reads everything there is to read and finds nothing of user B.
#[tokio::test]
async fn nobody_sees_a_byte_of_somebody_else() {
    const CANARY: &str = "zebra-canary-77";
    let stage = Stage::new(Recorder::Collects).await;
    let b = Client::with_key("user-b");
    stage.script([Script::Say(vec![CANARY], hone_domain::StopReason::EndToken)]);
    let message = json!({"role": "user", "content": CANARY});
    let chat =
        json!({"model": "gpt", "session_id": CANARY, "user": "b-user", "messages": [message]});
    let reply = b.send(&stage, "POST", "/v1/chat/completions", chat).await;
    check(&reply, 200, "");
    let turn = stage.told.lock().unwrap().turns[0].clone();
    stage
        .http
        .ledger
        .record_turns(std::slice::from_ref(&turn))
        .await
        .unwrap();
    let turn_id = reply.header("x-hone-turn-id").unwrap().to_owned();
    let session_id = reply.header("x-hone-session-id").unwrap().to_owned();
    let own = b.get(&stage, &format!("/v1/turns/{turn_id}")).await;
    assert!(own.text.contains(CANARY), "its owner sees it");
    let admin = Client::with_key("admin");
    let key = admin
        .send(&stage, "POST", "/v1/keys", json!({"name": CANARY}))
        .await;
    check(&key, 201, "");

    let a = Client::with_key("user-a");
    for (method, path, right) in &rights() {
        if *method != "GET" || path.starts_with("/admin") || *right == Right::Open {
            continue;
        }
        for id in [&turn_id, &session_id, "1"] {
            let path = path.replace("{*id}", id).replace("{id}", id);
            let path = path.replace("{n}", "1").replace("{name}", "x");
            for query in ["", "?user=b-user", &format!("?session_id={session_id}")] {
                let reply = a.get(&stage, &format!("{path}{query}")).await;
                let text = format!("{}{:?}", reply.text, reply.headers);
                assert!(!text.contains(CANARY), "{path}{query} shows it: {text}");
            }
        }
    }
    let feedback = json!({"turn_id": turn_id, "score": -1, "comment": "not mine"});
    let foreign = a
        .send(&stage, "POST", "/v1/feedback", feedback)
        .await
        .json();
    let nobodys = "turn_01a1fc1b-b88e-71ef-aa3b-1a50645404e0";
    let feedback = json!({"turn_id": nobodys, "score": -1, "comment": "not mine"});
    let unknown = a
        .send(&stage, "POST", "/v1/feedback", feedback)
        .await
        .json();
    // What is somebody else's is answered as what is nobody's.
    for told in ["outcome", "explanation"] {
        assert_eq!(foreign[told], unknown[told], "{foreign} {unknown}");
    }
    assert_eq!(foreign["outcome"], "turn_unknown");
}
