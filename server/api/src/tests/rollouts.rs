//! Task sets, rollouts and queues, over the router.

use hone_domain::{TaskSetId, TaskState};
use serde_json::{Value, json};

use crate::testing::{Recorder, Reply, Stage, read, request};

fn task(name: &str, held_out: bool) -> Value {
    json!({
        "name": name, "instruction": "Write 4 to a.txt.", "environment": {"b.txt": "7"},
        "tests": {"test.sh": "[ $(cat a.txt) = 4 ]"}, "held_out": held_out,
    })
}

async fn delete(stage: &Stage, path: &str) -> Reply {
    let request = request("DELETE", path, &[]).body(String::new().into());
    read(stage.send(request.unwrap()).await).await
}

async fn added(stage: &Stage, name: &str) -> Value {
    let set = json!({"name": name, "tasks": [task("a", false), task("b", true)]});
    let reply = stage.post("/v1/task-sets", &set.to_string()).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    reply.json()
}

#[tokio::test]
async fn a_set_is_added_seen_and_removed() {
    let stage = Stage::new(Recorder::Collects).await;
    let set = added(&stage, "mine").await;
    assert_eq!(json!([set["tasks"], set["held_out"]]), json!([2, 1]));
    assert_eq!(set["states"], json!({"new": 2}));
    let path = format!("/v1/task-sets/{}", set["id"].as_str().unwrap());
    let one = stage.get(&path).await.json();
    assert_eq!(one["data"][0]["name"], "a");
    assert_eq!(one["data"][0]["mean_reward"], Value::Null);
    let again = json!({"name": "mine", "tasks": [task("a", false)]}).to_string();
    let again = stage.post("/v1/task-sets", &again).await;
    assert_eq!(again.status, 409);
    assert!(again.text.contains("choose another name"), "{}", again.text);
    // Its checks wait.
    let queues = stage.get("/v1/queues").await.json();
    assert_eq!(queues["data"][0]["kind"], "check");
    assert_eq!(queues["data"][0]["state"], "queued");
    assert_eq!(queues["data"][0]["count"], 2);
    let scaling = stage.get("/v1/scaling").await.json();
    let expected = json!({
        "role": "rollout", "queued": 2, "running": 0, "to_begin": 0, "open": 2, "per_process": 2, "wanted": 1,
    });
    assert_eq!(scaling["data"], json!([expected]));
    let metrics = stage.get("/metrics").await.text;
    let counted = "hone_scaling_open{loop=\"rollout\"} 2\n";
    assert!(metrics.contains(counted), "{metrics}");
    assert_eq!(delete(&stage, &path).await.status, 204);
    assert_eq!(stage.get(&path).await.status, 404);
    assert_eq!(stage.get("/v1/task-sets").await.json()["data"], json!([]));
}

#[tokio::test]
async fn a_set_is_added_to_in_parts() {
    let stage = Stage::new(Recorder::Collects).await;
    let set = json!({"name": "parts"}).to_string();
    let set = stage.post("/v1/task-sets", &set).await;
    assert_eq!(set.status, 201, "{}", set.text);
    let path = format!("/v1/task-sets/{}", set.json()["id"].as_str().unwrap());
    let parts = format!("{path}/tasks");
    let shared = "a long text that tasks share";
    let digest = hone_domain::Digest::of(shared.as_bytes());
    let of_part = |name: &str| {
        let mut task = task(name, false);
        task["environment"]["shared.txt"] = json!({"sha256": digest});
        json!({"tasks": [task]}).to_string()
    };
    let early = stage.post(&parts, &of_part("a")).await;
    assert_eq!(early.status, 400, "{}", early.text);
    assert!(
        early.text.contains("tasks[0].environment"),
        "{}",
        early.text
    );
    let files = json!({"files": [shared]}).to_string();
    assert_eq!(stage.post(&parts, &files).await.status, 201);
    for (name, status) in [("a", 201), ("b", 201), ("a", 409)] {
        let reply = stage.post(&parts, &of_part(name)).await;
        assert_eq!(reply.status, status, "{name}: {}", reply.text);
    }
    let one = stage.get(&path).await.json();
    assert_eq!(one["states"], json!({"new": 2}));
    let nobody = format!(
        "/v1/task-sets/{}/tasks",
        TaskSetId(uuid::Uuid::nil()).prefixed()
    );
    assert_eq!(stage.post(&nobody, &files).await.status, 404);
}

#[tokio::test]
async fn a_rollout_is_ordered_seen_and_cancelled() {
    let stage = Stage::new(Recorder::Collects).await;
    let set = added(&stage, "mine").await;
    let id = &set["id"];
    let order = json!({"task_set": id, "attempts": 3}).to_string();
    let reply = stage.post("/v1/rollouts", &order).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let rollout = reply.json();
    // Only one of the two tasks is learned from, and each is chosen once.
    assert_eq!(
        json!([rollout["groups"], rollout["attempts"]]),
        json!([1, 3])
    );
    assert_eq!(
        json!([rollout["status"], rollout["agent"]]),
        json!(["running", "bash"])
    );
    let path = format!("/v1/rollouts/{}", rollout["id"].as_str().unwrap());
    assert_eq!(stage.get(&path).await.json()["id"], rollout["id"]);
    let list = stage.get("/v1/rollouts").await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    let episodes = stage.get(&format!("{path}/episodes")).await.json();
    assert_eq!(episodes["data"], json!([]));
    let cancelled = stage.post(&format!("{path}/cancel"), "").await;
    assert_eq!(
        cancelled.json()["status"],
        "cancelled",
        "{}",
        cancelled.text
    );
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_name() {
    let stage = Stage::new(Recorder::Collects).await;
    let id = added(&stage, "mine").await["id"].clone();
    for (body, status, says) in [
        (
            json!({"task_set": "set_x"}),
            404,
            "no task set set_x of yours",
        ),
        (
            json!({"task_set": id, "attempts": 1}),
            400,
            "attempts must be at least 2",
        ),
        (json!({"task_set": id, "agent": "dog"}), 400, "agent"),
        (json!({"task_set": id, "version": 3}), 400, "version is for"),
        (
            json!({"task_set": id, "temperature": 0}),
            400,
            "temperature",
        ),
        (json!({"task_set": id, "shape": 1}), 400, "shape"),
        (
            json!({"task_set": id, "evaluate": true, "version": 7}),
            404,
            "7",
        ),
        (json!({}), 400, "task_set"),
    ] {
        let reply = stage.post("/v1/rollouts", &body.to_string()).await;
        assert_eq!(reply.status, status, "{body}: {}", reply.text);
        assert!(reply.text.contains(says), "{body}: {}", reply.text);
    }
    // Where every task is refused there is nothing to try.
    let (_, tasks) = stage
        .http
        .jobs
        .task_set("local", TaskSetId::parse(id.as_str().unwrap()).unwrap())
        .await
        .unwrap()
        .unwrap();
    for task in tasks {
        let noted = stage
            .http
            .jobs
            .note_task(task.id, TaskState::Refused, Some("no"));
        noted.await.unwrap();
    }
    let order = json!({"task_set": id}).to_string();
    let reply = stage.post("/v1/rollouts", &order).await;
    assert_eq!(reply.status, 409, "{}", reply.text);
    for path in [
        "/v1/rollouts/rol_1",
        "/v1/episodes/job_1",
        "/v1/rollouts/x/episodes",
    ] {
        assert_eq!(stage.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn nobody_sees_what_is_another_ones() {
    let stage = Stage::new(Recorder::Collects).await;
    let id = added(&stage, "mine").await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let other = [("authorization", "Bearer helpdesk")];
    let send = async |method: &str, path: &str, body: String| {
        let request = request(method, path, &other).body(body.into());
        read(stage.send(request.unwrap()).await).await
    };
    let path = format!("/v1/task-sets/{id}");
    let order = json!({"task_set": id}).to_string();
    for (method, path, body) in [
        ("GET", path.as_str(), String::new()),
        ("DELETE", &path, String::new()),
        ("POST", "/v1/rollouts", order),
        ("GET", "/v1/scaling", String::new()),
    ] {
        let reply = send(method, path, body).await;
        assert!(
            [403, 404].contains(&reply.status),
            "{method} {path}: {}",
            reply.text
        );
    }
    assert_eq!(stage.get(&path).await.status, 200);
}
