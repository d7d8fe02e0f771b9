//! Versions through the gateway: lineage, rollback, pin, compare, for oneself and for any scope.

use axum::body::Body;
use hone_domain::{Origin, PolicyChoice, PolicyVersion, Reason, Scope};
use hone_ledger::suite::World;
use hone_ledger::{Prunable, Refusal, Window};
use serde_json::{Value, json};

use crate::testing::{Recorder, Reply, Stage, read, request};

/// The scope of the suite's world, by its text.
const SCOPE: &str = "5:owner";

struct Scene {
    stage: Stage,
    world: World,
}

impl Scene {
    /// A gateway over a ledger with `versions` published versions.
    async fn new(versions: u64) -> Self {
        let stage = Stage::new(Recorder::Collects).await;
        let world = World::new(stage.http.ledger.clone());
        for parent in 0..versions {
            let policy = world.publish_next(parent).await;
            stage.http.policies.update(|heads| heads.with(policy));
        }
        Self { stage, world }
    }

    async fn act(&self, path: &str, body: Value) -> Reply {
        let mut body = body;
        body["scope"] = SCOPE.into();
        let path = format!("/admin/v1/versions/{path}");
        self.stage.post(&path, &body.to_string()).await
    }

    async fn list(&self) -> Value {
        let path = format!("/admin/v1/versions?scope={SCOPE}");
        self.stage.get(&path).await.json()
    }

    async fn delete(&self, path: &str) -> Reply {
        let request = request("DELETE", path, &[]).body(Body::empty()).unwrap();
        read(self.stage.send(request).await).await
    }
}

fn refused(reply: &Reply) -> (u16, String) {
    let code = reply.json()["error"]["code"].as_str().unwrap().to_owned();
    (reply.status, code)
}

#[tokio::test]
async fn a_rollback_is_a_new_version_and_serve_hears_of_it() {
    let scene = Scene::new(3).await;
    let reply = scene.act("1/rollback", json!({"note": "better"})).await;
    let json = reply.json();
    assert_eq!(
        (reply.status, &json["version"], &json["parent"]),
        (200, &json!(4), &json!(1))
    );
    assert_eq!(
        (&json["status"], &json["note"]),
        (&json!("rollback"), &json!("better"))
    );
    let served = scene.stage.http.policies.get();
    let served = served.newest(&Scope::from_stored(SCOPE)).unwrap().clone();
    assert_eq!(
        (served.version, served.digest),
        (PolicyVersion(4), hone_domain::Digest([1; 32]))
    );
    let log = scene.stage.get("/admin/v1/audit").await.json();
    assert_eq!(log["data"][0]["act"], "version.rollback");
    assert_eq!(log["data"][0]["object"], SCOPE);
    // The base is a version like any other.
    let json = scene.act("0/rollback", json!({})).await.json();
    assert_eq!(
        (&json["version"], &json["digest"]),
        (&json!(5), &Value::Null)
    );
    let list = scene.list().await;
    assert_eq!(
        (&list["current"], list["data"].as_array().unwrap().len()),
        (&json!(5), 5)
    );
    // What is served already, under whatever number, cannot be restored; nor what never was.
    let rows = [
        ("5/rollback", 409, "already_served"),
        ("0/rollback", 409, "already_served"),
        ("9/rollback", 404, "not_found"),
        ("x/rollback", 400, "invalid_value"),
    ];
    for (path, status, code) in rows {
        let reply = scene.act(path, json!({})).await;
        assert_eq!(refused(&reply), (status, code.to_owned()), "{path}");
    }
    let long = scene
        .act("1/rollback", json!({"note": "x".repeat(501)}))
        .await;
    assert_eq!(refused(&long), (400, "invalid_value".to_owned()));
}

#[tokio::test]
async fn what_lost_its_files_is_refused() {
    let scene = Scene::new(6).await;
    let (versions, scope) = (&scene.stage.http.versions, Scope::from_stored(SCOPE));
    let gone: Prunable = versions.prunable(1, 1).await.unwrap().remove(0);
    versions.prune(&gone, 1, 1).await.unwrap();
    for path in ["1/rollback", "1/pin"] {
        let reply = scene.act(path, json!({})).await;
        assert_eq!(refused(&reply), (409, "pruned".to_owned()), "{path}");
    }
    let view = versions.version(&scope, PolicyVersion(1), 0).await.unwrap();
    assert!(view.unwrap().record.is_pruned);
    assert_eq!(scene.list().await["data"][5]["pruned"], true);
}

#[tokio::test]
async fn lineage_is_told_both_ways() {
    let scene = Scene::new(2).await;
    let path = format!("/admin/v1/versions/2?scope={SCOPE}");
    let json = scene.stage.get(&path).await.json();
    assert_eq!(
        (&json["lineage"], &json["children"]),
        (&json!([1, 0]), &json!([]))
    );
    assert_eq!(json["samples"], 1);
    let turn = json["turns"][0]["turn_id"].as_str().unwrap();
    let id = turn.strip_prefix("turn_").unwrap().parse().unwrap();
    let fate = scene
        .stage
        .http
        .ledger
        .turn(hone_domain::TurnId(id))
        .await
        .unwrap()
        .unwrap()
        .fate;
    let version = PolicyVersion(2);
    assert_eq!(fate, hone_domain::Fate::Trained { version });
    // Nobody sees another's versions as their own.
    assert_eq!(scene.stage.get("/v1/versions/2").await.status, 404);
    assert_eq!(
        scene.stage.get("/v1/versions").await.json()["data"],
        json!([])
    );
}

#[tokio::test]
async fn a_pin_holds_until_it_is_released() {
    let scene = Scene::new(3).await;
    let json = scene.act("2/pin", json!({})).await.json();
    assert_eq!(
        (&json["current"], &json["pinned"]),
        (&json!(4), &json!(true))
    );
    let list = scene.list().await;
    assert_eq!(
        (&list["data"][0]["pinned"], &list["data"][0]["parent"]),
        (&json!(true), &json!(2))
    );
    assert_eq!(list["data"][1]["pinned"], false);
    let scopes = scene.stage.get("/admin/v1/scopes").await.json();
    assert_eq!(scopes["data"][0]["scope"], SCOPE);
    assert_eq!(
        (&scopes["data"][0]["pinned"], &scopes["data"][0]["owner"]),
        (&json!(true), &json!("owner"))
    );
    let path = format!("/admin/v1/versions/4/pin?scope={SCOPE}");
    let json = scene.delete(&path).await.json();
    assert_eq!(
        (&json["pinned"], &json["changed"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(scene.delete(&path).await.json()["changed"], false);
    // Without a body, for oneself; the base may be kept before anything was learned.
    let own = scene.stage.post("/v1/versions/0/pin", "").await;
    assert_eq!((own.status, &own.json()["pinned"]), (200, &json!(true)));
    assert_eq!(
        scene.delete("/v1/versions/0/pin").await.json()["changed"],
        true
    );
}

#[tokio::test]
async fn two_versions_answer_side_by_side_and_leave_no_trace() {
    let scene = Scene::new(2).await;
    let prompts =
        json!([[{"role": "user", "content": "one"}], [{"role": "user", "content": "two"}]]);
    let json = scene
        .act(
            "compare",
            json!({"a": 0, "b": 2, "prompts": prompts, "seed": 9}),
        )
        .await;
    let json = json.json();
    assert_eq!(json["data"].as_array().unwrap().len(), 2);
    assert_eq!(
        (
            &json["data"][1]["a"]["text"],
            &json["data"][1]["b"]["tokens"]
        ),
        (&json!("ok"), &json!(3))
    );
    assert_eq!(json["data"][1]["messages"], prompts[1]);
    let asks = scene.stage.fake.asks.lock().unwrap().clone();
    assert_eq!(asks.len(), 4);
    for (at, ask) in asks.iter().enumerate() {
        assert_eq!((ask.origin, ask.sampling.seed), (Origin::Gate, 9));
        assert!(matches!(ask.collect, hone_domain::Collect::No(_)));
        match (&ask.policy, at % 2) {
            (PolicyChoice::Base, 0) => {}
            (PolicyChoice::Exact(policy), 1) => assert_eq!(policy.version, PolicyVersion(2)),
            other => panic!("{other:?}"),
        }
    }
    assert!(scene.stage.told.lock().unwrap().turns.is_empty());
    // The newest prompts of the scope, as they were asked; all of the world's are alike.
    let json = scene
        .act("compare", json!({"a": 1, "b": 2, "recent": 4}))
        .await
        .json();
    assert_eq!(json["data"].as_array().unwrap().len(), 1, "{json}");
    let rows = [
        (json!({"a": 1, "b": 9}), 404),
        (json!({"a": 1, "b": 2, "recent": 9}), 400),
        (json!({"a": 1, "b": 2, "prompts": []}), 400),
        (json!({"a": 1, "b": 2, "max_tokens": 0}), 400),
    ];
    for (body, status) in rows {
        assert_eq!(
            scene.act("compare", body.clone()).await.status,
            status,
            "{body}"
        );
    }
}

#[tokio::test]
async fn refusals_tell_their_reasons() {
    let scene = Scene::new(0).await;
    scene.world.ready_turns(1, 0).await;
    let refusal = Refusal {
        scope: scene.world.scope(),
        parent: PolicyVersion(0),
        digest: None,
        batch: scene.world.batch(),
        claims: Vec::new(),
        reason: Reason::GateRejected,
        report: json!({"gate": {"reasons": ["it loops"]}}),
        now_ms: 5,
    };
    scene.stage.http.ledger.refuse(&refusal).await.unwrap();
    let path = format!("/admin/v1/refusals?scope={SCOPE}&limit=1");
    let json = scene.stage.get(&path).await.json();
    assert_eq!(json["data"][0]["reasons"], json!(["it loops"]));
    let next = json["next"].as_i64().unwrap();
    let page = Window {
        limit: 1,
        before: Some(next),
    };
    assert!(
        scene
            .stage
            .http
            .versions
            .refusals(None, page)
            .await
            .unwrap()
            .is_empty()
    );
    let rows = [
        "/admin/v1/refusals?scope=nonsense",
        "/admin/v1/versions",
        "/admin/v1/scopes?limit=0",
    ];
    for path in rows {
        assert_eq!(scene.stage.get(path).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn versions_come_in_pages_and_as_series() {
    let scene = Scene::new(7).await;
    let mut told = Vec::new();
    let mut before = String::new();
    for _ in 0..3 {
        let path = format!("/admin/v1/versions?scope={SCOPE}&limit=3{before}");
        let page = scene.stage.get(&path).await.json();
        let rows = page["data"].as_array().unwrap();
        told.extend(rows.iter().map(|row| row["version"].as_u64().unwrap()));
        before = format!("&before={}", page["next"]);
    }
    assert_eq!(told, [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(before, "&before=null");

    let series = async |more: &str| {
        let path = format!("/admin/v1/versions/series?scope={SCOPE}&{more}");
        let reply = scene.stage.get(&path).await;
        (reply.status, reply.json())
    };
    let (_, whole) = series("names=samples,nothing.here").await;
    let samples = &whole["data"]["samples"];
    assert_eq!(
        (&whole["step"], &whole["versions"]),
        (&json!(1), &json!([1, 2, 3, 4, 5, 6, 7]))
    );
    assert!(
        samples.as_array().unwrap().iter().all(Value::is_number),
        "{whole}"
    );
    assert_eq!(
        whole["data"]["nothing.here"],
        json!([null, null, null, null, null, null, null])
    );
    let (_, coarse) = series("names=samples&points=3&from=2").await;
    assert_eq!(
        (&coarse["step"], &coarse["versions"]),
        (&json!(2), &json!([3, 5, 7]))
    );
    let mean = |a: usize| (samples[a].as_f64().unwrap() + samples[a + 1].as_f64().unwrap()) / 2.0;
    assert_eq!(
        coarse["data"]["samples"],
        json!([mean(1), mean(3), mean(5)])
    );
    let (_, none) = series("names=samples&from=8").await;
    assert_eq!(none["versions"], json!([]));
    for wrong in ["names=", "names=a&points=1", "names=a&from=x"] {
        assert_eq!(series(wrong).await.0, 400, "{wrong}");
    }
}
