//! Walks every route that changes something and looks for its act in the log.

use std::collections::BTreeMap;

use axum::body::Body;
use hone_domain::{Digest, Scope, TaskSetId, TaskState, UserRole};
use hone_ledger::suite::World;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::Key;
use crate::adapters::adapter_body;
use crate::testing::{Recorder, Reply, Stage, read, request, rights};

/// Every route that is not only read, and the act that it leaves in the log. Asking the model and
/// saying what its answer was worth are turns and feedback in the ledger, not acts.
const ACTS: &[(&str, &str, Option<&str>)] = &[
    ("POST", "/v1/chat/completions", None),
    ("POST", "/v1/completions", None),
    ("POST", "/inference/v1/generate", None),
    ("POST", "/generate", None),
    ("POST", "/v1/responses", None),
    ("POST", "/v1/messages", None),
    ("POST", "/v1/messages/count_tokens", None),
    ("POST", "/v1/embeddings", None),
    ("POST", "/tokenize", None),
    ("POST", "/detokenize", None),
    ("POST", "/v1/feedback", None),
    ("POST", "/v1/trajectories", None),
    // A message; what its tools change leaves the acts of the routes that do the same.
    ("POST", "/mcp", None),
    (
        "POST",
        "/v1/versions/{version}/rollback",
        Some("version.rollback"),
    ),
    ("POST", "/v1/versions/{version}/pin", Some("version.pin")),
    (
        "DELETE",
        "/v1/versions/{version}/pin",
        Some("version.unpin"),
    ),
    ("POST", "/v1/versions/resume", Some("learning.resume")),
    // One's own answer, tried again.
    ("POST", "/v1/branches", None),
    ("POST", "/admin/v1/branches", Some("turn.branch")),
    // One's own prompts, answered again and not kept.
    ("POST", "/v1/versions/compare", None),
    (
        "POST",
        "/admin/v1/versions/{version}/rollback",
        Some("version.rollback"),
    ),
    (
        "POST",
        "/admin/v1/versions/{version}/pin",
        Some("version.pin"),
    ),
    (
        "DELETE",
        "/admin/v1/versions/{version}/pin",
        Some("version.unpin"),
    ),
    ("POST", "/admin/v1/versions/resume", Some("learning.resume")),
    (
        "POST",
        "/admin/v1/versions/compare",
        Some("version.compare"),
    ),
    ("POST", "/admin/v1/versions/import", Some("version.import")),
    (
        "POST",
        "/v1/versions/{version}/canary",
        Some("version.canary"),
    ),
    (
        "POST",
        "/v1/versions/{version}/promote",
        Some("version.promote"),
    ),
    (
        "POST",
        "/v1/versions/{version}/retire",
        Some("version.retire"),
    ),
    (
        "DELETE",
        "/v1/versions/{version}/retire",
        Some("version.unretire"),
    ),
    (
        "POST",
        "/admin/v1/versions/{version}/canary",
        Some("version.canary"),
    ),
    (
        "POST",
        "/admin/v1/versions/{version}/promote",
        Some("version.promote"),
    ),
    (
        "POST",
        "/admin/v1/versions/{version}/retire",
        Some("version.retire"),
    ),
    (
        "DELETE",
        "/admin/v1/versions/{version}/retire",
        Some("version.unretire"),
    ),
    ("POST", "/v1/auth/sign-in", Some("sign_in")),
    ("POST", "/v1/auth/sign-out", Some("sign_out")),
    ("POST", "/v1/auth/invite", Some("invite.take")),
    ("POST", "/v1/auth/password", Some("user.password")),
    ("POST", "/v1/keys", Some("key.make")),
    ("POST", "/v1/keys/{id}/rotate", Some("key.rotate")),
    ("PATCH", "/v1/keys/{id}", Some("key.change")),
    ("DELETE", "/v1/keys/{id}", Some("key.revoke")),
    ("DELETE", "/admin/v1/keys/{id}", Some("key.revoke")),
    ("POST", "/admin/v1/users", Some("user.add")),
    ("PATCH", "/admin/v1/users/{name}", Some("user.change")),
    ("POST", "/admin/v1/invites", Some("invite.make")),
    ("POST", "/v1/agents", Some("agent.add")),
    ("PATCH", "/v1/agents/{name}", Some("agent.change")),
    ("POST", "/admin/v1/teams", Some("team.add")),
    ("PATCH", "/admin/v1/teams/{name}", Some("team.change")),
    (
        "PUT",
        "/v1/teams/{name}/members/{member}",
        Some("team.member"),
    ),
    (
        "DELETE",
        "/v1/teams/{name}/members/{member}",
        Some("team.leave"),
    ),
    ("PUT", "/v1/consent", Some("consent.decide")),
    ("POST", "/v1/memories", Some("memory.add")),
    ("POST", "/v1/memories/import", Some("memory.import")),
    ("PATCH", "/v1/memories/{id}", Some("memory.change")),
    ("DELETE", "/v1/memories/{id}", Some("memory.forget")),
    ("DELETE", "/v1/memories", Some("memory.forget")),
    ("POST", "/v1/skills", Some("skill.add")),
    ("PATCH", "/v1/skills/{id}", Some("skill.change")),
    ("POST", "/v1/skills/{id}/restore", Some("skill.restore")),
    ("DELETE", "/v1/skills/{id}", Some("skill.forget")),
    ("DELETE", "/v1/skills", Some("skill.forget")),
    ("POST", "/v1/task-sets", Some("task_set.add")),
    ("POST", "/v1/task-sets/{id}/tasks", Some("task_set.extend")),
    (
        "POST",
        "/v1/task-sets/{id}/tasks/{task}/release",
        Some("task.release"),
    ),
    ("DELETE", "/v1/task-sets/{id}", Some("task_set.remove")),
    ("POST", "/v1/rollouts", Some("rollout.add")),
    ("POST", "/v1/rollouts/{id}/cancel", Some("rollout.cancel")),
    ("POST", "/v1/forget", Some("forget")),
    ("DELETE", "/v1/responses/{id}", Some("forget")),
    // Nothing here is made in the background, so there is nothing to cancel.
    ("POST", "/v1/responses/{id}/cancel", None),
    ("POST", "/admin/v1/drain", Some("drain.begin")),
    ("POST", "/admin/v1/loops/{name}/pause", Some("loop.pause")),
    ("POST", "/admin/v1/loops/{name}/resume", Some("loop.resume")),
];

/// The scope of the suite's world, by its text, and its owner's key.
const SCOPE: &str = "5:owner";
const OWNER_KEY: &str = "Bearer owner-key";
const ADMIN_KEY: &str = "Bearer admin";

struct Walk {
    stage: Stage,
    walked: BTreeMap<(String, String), String>,
}

impl Walk {
    async fn acts(&self) -> Vec<String> {
        let log = self.stage.get("/admin/v1/audit?limit=200").await.json();
        let rows = log["data"].as_array().unwrap().iter();
        rows.map(|row| row["act"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Sends a request that succeeds and notes the act it left; exactly one.
    async fn step(
        &mut self,
        (method, route, path): (&str, &str, &str),
        headers: &[(&str, &str)],
        body: Value,
    ) -> Reply {
        let before = self.acts().await.len();
        let mut all = vec![("content-type", "application/json")];
        all.extend(headers);
        let request = request(method, path, &all).body(Body::from(body.to_string()));
        let reply = read(self.stage.send(request.unwrap()).await).await;
        assert!(
            (200..300).contains(&reply.status),
            "{method} {path}: {}",
            reply.text
        );
        let acts = self.acts().await;
        // Newest first; taking an invitation also signs in.
        let left = &acts[..acts.len() - before];
        let most = if path == "/v1/auth/invite" { 2 } else { 1 };
        assert!(
            (1..=most).contains(&left.len()),
            "{method} {path} left {left:?}"
        );
        let key = (method.to_owned(), route.to_owned());
        self.walked.insert(key, left[left.len() - 1].clone());
        reply
    }

    async fn versions(&mut self) {
        for (root, key, scope) in [
            ("/v1/versions", OWNER_KEY, Value::Null),
            ("/admin/v1/versions", ADMIN_KEY, json!(SCOPE)),
        ] {
            let by = [("authorization", key)];
            let body = json!({ "scope": scope });
            let rows = [
                ("POST", "{version}/rollback", "1/rollback"),
                ("POST", "{version}/pin", "1/pin"),
                ("DELETE", "{version}/pin", "0/pin"),
                ("POST", "resume", "resume"),
                ("POST", "{version}/canary", "3/canary"),
                ("POST", "{version}/promote", "2/promote"),
                ("POST", "{version}/retire", "3/retire"),
                ("DELETE", "{version}/retire", "3/retire"),
            ];
            for (method, route, path) in rows {
                let (route, path) = (format!("{root}/{route}"), format!("{root}/{path}"));
                self.step((method, &route, &path), &by, body.clone()).await;
            }
        }
        let route = "/admin/v1/versions/import";
        let by = [("authorization", ADMIN_KEY)];
        let body = adapter_body("9:elsewhere", 1);
        self.step(("POST", route, route), &by, body).await;
        let route = "/admin/v1/versions/compare";
        let prompt = json!([{"role": "user", "content": "hi"}]);
        let body = json!({"a": 1, "b": 0, "prompts": [prompt], "scope": SCOPE});
        self.step(
            ("POST", route, route),
            &[("authorization", ADMIN_KEY)],
            body,
        )
        .await;
    }

    async fn people(&mut self) {
        let by = [("authorization", ADMIN_KEY)];
        let (users, invites) = ("/admin/v1/users", "/admin/v1/invites");
        let ann = json!({"name": "ann", "role": "developer", "password": "correct horse"});
        self.step(("POST", users, users), &by, ann).await;
        let route = "/admin/v1/users/{name}";
        let limits = json!({"limits": {"streams_max": 2}});
        self.step(("PATCH", route, "/admin/v1/users/ann"), &by, limits)
            .await;
        let made = self
            .step(("POST", invites, invites), &by, json!({"role": "user"}))
            .await
            .json();
        let token = made["token"].as_str().unwrap().to_owned();
        let route = "/v1/auth/invite";
        let guest = json!({"token": token, "name": "bob", "password": "correct horse"});
        self.step(("POST", route, route), &[], guest).await;
        let route = "/v1/auth/sign-in";
        let ann = json!({"name": "ann", "password": "correct horse"});
        let signed = self.step(("POST", route, route), &[], ann).await;
        let cookie = signed.header("set-cookie").unwrap().to_owned();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let csrf = signed.json()["csrf"].as_str().unwrap().to_owned();
        let by = [("cookie", cookie.as_str()), ("x-hone-csrf", csrf.as_str())];
        let route = "/v1/auth/password";
        let change = json!({"old": "correct horse", "new": "battery staple"});
        self.keys(&by).await;
        self.step(("POST", route, route), &by, change).await;
        // A new password ends every sign-in.
        let route = "/v1/auth/sign-in";
        let ann = json!({"name": "ann", "password": "battery staple"});
        let signed = self.step(("POST", route, route), &[], ann).await;
        let cookie = signed.header("set-cookie").unwrap().to_owned();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let csrf = signed.json()["csrf"].as_str().unwrap().to_owned();
        let by = [("cookie", cookie.as_str()), ("x-hone-csrf", csrf.as_str())];
        let route = "/v1/auth/sign-out";
        self.step(("POST", route, route), &by, Value::Null).await;
    }

    async fn keys(&mut self, by: &[(&str, &str)]) {
        let made = self
            .step(("POST", "/v1/keys", "/v1/keys"), by, json!({"name": "k"}))
            .await;
        let id = made.json()["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/keys/{id}/rotate");
        let rotated = self
            .step(("POST", "/v1/keys/{id}/rotate", &path), by, json!({}))
            .await;
        let next = rotated.json()["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/keys/{next}");
        let despite = json!({"despite_store_false": true});
        let changed = self
            .step(("PATCH", "/v1/keys/{id}", &path), by, despite)
            .await;
        assert_eq!(changed.json()["despite_store_false"], true);
        self.step(("DELETE", "/v1/keys/{id}", &path), by, Value::Null)
            .await;
        let made = self
            .step(("POST", "/v1/keys", "/v1/keys"), by, json!({"name": "l"}))
            .await;
        let path = format!("/admin/v1/keys/{}", made.json()["id"].as_str().unwrap());
        let admin = [("authorization", ADMIN_KEY)];
        self.step(
            ("DELETE", "/admin/v1/keys/{id}", &path),
            &admin,
            Value::Null,
        )
        .await;
    }

    async fn groups(&mut self) {
        let by = [("authorization", ADMIN_KEY)];
        let (agents, teams) = ("/v1/agents", "/admin/v1/teams");
        let change = json!({"limits": {"streams_max": 2}});
        let desk = json!({"name": "desk"});
        self.step(("POST", teams, teams), &by, desk).await;
        let route = "/admin/v1/teams/{name}";
        let path = "/admin/v1/teams/desk";
        self.step(("PATCH", route, path), &by, change.clone()).await;
        let route = "/v1/teams/{name}/members/{member}";
        let path = "/v1/teams/desk/members/owner";
        self.step(("PUT", route, path), &by, json!({"lead": true}))
            .await;
        self.step(("DELETE", route, path), &by, Value::Null).await;
        let helper = json!({"name": "helper", "team": "desk"});
        self.step(("POST", agents, agents), &by, helper).await;
        let path = "/v1/agents/helper";
        self.step(("PATCH", "/v1/agents/{name}", path), &by, change)
            .await;
    }

    async fn memories(&mut self, by: &[(&str, &str)]) {
        let (all, one) = ("/v1/memories", "/v1/memories/{id}");
        let words = json!({"text": "I am vegetarian."});
        let made = self.step(("POST", all, all), by, words).await.json();
        assert_eq!(made["text"], "I am vegetarian.");
        let import = "/v1/memories/import";
        let file = json!({"markdown": "- I am tall."});
        let imported = self.step(("POST", import, import), by, file).await;
        assert_eq!(imported.json()["added"], 1);
        let path = format!("{all}/{}", made["id"].as_str().unwrap());
        let paused = json!({"paused": true});
        let changed = self.step(("PATCH", one, &path), by, paused).await;
        assert_eq!(changed.json()["paused"], true);
        self.step(("DELETE", one, &path), by, Value::Null).await;
        self.step(("DELETE", all, all), by, Value::Null).await;
    }

    async fn skills(&mut self, by: &[(&str, &str)]) {
        let (all, one) = ("/v1/skills", "/v1/skills/{id}");
        let text = "---\nname: report\ndescription: Writes reports.\n---\nSum up.";
        let body = json!({"files": {"SKILL.md": text}});
        let made = self.step(("POST", all, all), by, body).await.json();
        assert_eq!(made["state"], "active");
        let path = format!("{all}/{}", made["id"].as_str().unwrap());
        let paused = json!({"paused": true});
        let changed = self.step(("PATCH", one, &path), by, paused).await;
        assert_eq!(changed.json()["state"], "paused");
        let restore = format!("{path}/restore");
        let version = json!({"version": 1});
        self.step(("POST", "/v1/skills/{id}/restore", &restore), by, version)
            .await;
        self.step(("DELETE", one, &path), by, Value::Null).await;
        self.step(("DELETE", all, all), by, Value::Null).await;
    }

    async fn tasks(&mut self, by: &[(&str, &str)]) {
        let (sets, orders) = ("/v1/task-sets", "/v1/rollouts");
        let task = json!({"name": "a", "instruction": "Do it.", "tests": {"test.sh": "exit 1"}, "held_out": false});
        let set = json!({"name": "tasks", "tasks": [task]});
        let set = self.step(("POST", sets, sets), by, set).await.json();
        let (route, more) = ("/v1/task-sets/{id}/tasks", json!({"files": ["x"]}));
        let path = format!("{sets}/{}/tasks", set["id"].as_str().unwrap());
        self.step(("POST", route, &path), by, more).await;
        let detail = format!("{sets}/{}", set["id"].as_str().unwrap());
        let task = self.stage.http.jobs.task_set(
            "admin",
            TaskSetId::parse(set["id"].as_str().unwrap()).unwrap(),
        );
        let task = task.await.unwrap().unwrap().1[0].id;
        let quarantined = (task, TaskState::Quarantined, Some("it failed"));
        let noting = self
            .stage
            .http
            .jobs
            .note_task(quarantined.0, quarantined.1, quarantined.2);
        noting.await.unwrap();
        let route = "/v1/task-sets/{id}/tasks/{task}/release";
        let path = format!("{detail}/tasks/{}/release", task.prefixed());
        let released = self.step(("POST", route, &path), by, Value::Null).await;
        assert_eq!(released.json()["states"], json!({"new": 1}));
        let order = json!({"task_set": set["id"]});
        let order = self.step(("POST", orders, orders), by, order).await.json();
        let path = format!("{orders}/{}/cancel", order["id"].as_str().unwrap());
        let route = "/v1/rollouts/{id}/cancel";
        let cancelled = self.step(("POST", route, &path), by, Value::Null).await;
        assert_eq!(cancelled.json()["status"], "cancelled");
        let path = format!("{sets}/{}", set["id"].as_str().unwrap());
        self.step(("DELETE", "/v1/task-sets/{id}", &path), by, Value::Null)
            .await;
    }

    async fn rest(&mut self) {
        let by = [("authorization", OWNER_KEY)];
        let learning = json!({"learning": "full"});
        self.step(("PUT", "/v1/consent", "/v1/consent"), &by, learning)
            .await;
        self.memories(&by).await;
        self.skills(&by).await;
        self.tasks(&[("authorization", ADMIN_KEY)]).await;
        let ledger = self.stage.http.ledger.clone();
        let mut turn = World::new(ledger.clone()).turn();
        "owner".clone_into(&mut turn.owner);
        turn.scope = Scope::of("owner", None);
        turn.base = Digest([0xab; 32]);
        turn.id.0 = self.stage.http.ids.next();
        ledger
            .record_turns(std::slice::from_ref(&turn))
            .await
            .unwrap();
        let route = "/admin/v1/branches";
        let body = json!({"turn_id": turn.id.prefixed(), "version": "latest"});
        let admin = [("authorization", ADMIN_KEY)];
        self.step(("POST", route, route), &admin, body).await;
        let path = format!("/v1/responses/resp_{}", turn.id);
        self.step(("DELETE", "/v1/responses/{id}", &path), &by, Value::Null)
            .await;
        self.step(
            ("POST", "/v1/forget", "/v1/forget"),
            &by,
            json!({"all": true}),
        )
        .await;
        let by = [("authorization", ADMIN_KEY)];
        for act in ["pause", "resume"] {
            let route = format!("/admin/v1/loops/{{name}}/{act}");
            let path = format!("/admin/v1/loops/judge/{act}");
            self.step(("POST", &route, &path), &by, Value::Null).await;
        }
        let route = "/admin/v1/drain";
        self.step(("POST", route, route), &by, json!({"draining": true}))
            .await;
    }
}

#[test]
fn every_route_that_changes_something_is_in_the_table() {
    let written: Vec<(&str, &str)> = ACTS.iter().map(|(m, p, _)| (*m, *p)).collect();
    let rights = rights();
    for (method, path, _) in rights.iter().filter(|(method, _, _)| method != "GET") {
        assert!(
            written.contains(&(method.as_str(), path.as_str())),
            "{method} {path} has no row"
        );
    }
    for row in &written {
        assert!(
            rights
                .iter()
                .any(|(m, p, _)| (m.as_str(), p.as_str()) == *row),
            "{row:?} is no route"
        );
    }
}

#[tokio::test]
async fn every_act_leaves_its_name_in_the_log() {
    let stage = Stage::new(Recorder::Collects).await;
    let mut guard = (*stage.http.guard.get()).clone();
    guard.keys.push(Key {
        owner: "owner".to_owned(),
        sha256: Digest(Sha256::digest("owner-key").into()),
        role: UserRole::User,
    });
    stage.http.guard.set(guard);
    let world = World::new(stage.http.ledger.clone());
    for parent in 0..3 {
        let policy = world.publish_next(parent).await;
        stage.http.policies.update(|heads| heads.with(policy));
    }
    let mut walk = Walk {
        stage,
        walked: BTreeMap::new(),
    };
    walk.versions().await;
    walk.people().await;
    walk.groups().await;
    walk.rest().await;
    for (method, path, act) in ACTS {
        let left = walk.walked.get(&((*method).to_owned(), (*path).to_owned()));
        assert_eq!(left.map(String::as_str), *act, "{method} {path}");
    }
    assert!(
        walk.stage
            .http
            .people
            .store()
            .verify_audit()
            .await
            .unwrap()
            .first_broken
            .is_none()
    );
}
