use hone_domain::{
    Completion, Digest, Fate, GroupId, Job, JobId, JobKind, JobReason, JobState, Message, Origin,
    PolicyVersion, Reason, RequestId, Role, Sampling, Scope, SessionId, StopReason, TaskId, Token,
    ToolCall, Turn, TurnId, TurnKind, VersionSpan,
};
use hone_ledger::{Extent, TurnView};
use serde_json::json;
use uuid::Uuid;

use super::*;

const CALL: &str =
    "<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>";

fn view(
    number: u128,
    messages: Vec<Message>,
    prompt: &[Token],
    text: &str,
    said: &[Token],
) -> TurnView {
    let n = said.len();
    let logprobs: Vec<f32> = (0..n).map(|at| -0.125 - at as f32).collect();
    let completion = Completion::new(
        said.to_vec(),
        logprobs.clone(),
        logprobs,
        vec![None; n],
        StopReason::EndToken,
    );
    let id = Uuid::from_u128(number);
    TurnView {
        turn: Turn {
            id: TurnId(id),
            request: RequestId(id),
            choice_index: 0,
            group: None,
            session: SessionId(Uuid::from_u128(1)),
            session_key: None,
            parent: None,
            owner: "ann".to_owned(),
            scope: Scope::of("ann", None),
            origin: Origin::Rollout,
            kind: TurnKind::Main,
            messages,
            prompt_tokens: prompt.to_vec(),
            completion: completion.unwrap(),
            completion_text: text.to_owned(),
            sampling: Sampling::default(),
            spans: vec![VersionSpan {
                version: PolicyVersion(3),
                start: 0,
                end: n as u32,
            }],
            digest: None,
            base: Digest([1; 32]),
            fingerprint: "cpu".to_owned(),
            admission: Default::default(),
            untrainable: None,
            started_ms: 1_796_000_000_000,
            finished_ms: 1_796_000_001_500,
        },
        extent: Extent::Whole,
        fate: Fate::Settled {
            reason: Reason::NoNextState,
        },
        transition: None,
        verdict: None,
        feedback: Vec::new(),
    }
}

/// An agent lists files and answers; the client had said something before that was recorded nowhere.
fn episode() -> RecordedEpisode {
    let said = vec![
        Message::text(Role::System, "Be brief."),
        Message::text(Role::User, "Hello?"),
        Message::text(Role::Assistant, "Hello."),
        Message::text(Role::User, "Which files are there?"),
    ];
    let first = view(2, said.clone(), &[1, 2, 3], CALL, &[4, 5]);
    let mut later = said;
    let call = ToolCall {
        id: "c1".to_owned(),
        name: "bash".to_owned(),
        arguments: "{\"command\": \"ls\"}".to_owned(),
    };
    later.push(Message {
        tool_calls: vec![call],
        ..Message::text(Role::Assistant, "")
    });
    later.push(Message {
        tool_call_id: Some("c1".to_owned()),
        failed: Some(false),
        ..Message::text(Role::Tool, "a.txt")
    });
    let mut second = view(
        3,
        later,
        &[1, 2, 3, 4, 5, 6],
        "<think>one</think>a.txt",
        &[7, 8],
    );
    second.turn.parent = Some(first.turn.id);
    RecordedEpisode {
        session: first.turn.session,
        turns: vec![first, second],
        others: 0,
        reward: None,
        job: None,
        model: Some(("hone-starter".to_owned(), Digest([1; 32]))),
    }
}

fn job() -> Job {
    let id = Uuid::from_u128(9);
    Job {
        id: JobId(id),
        kind: JobKind::Episode,
        owner: "ann".to_owned(),
        scope: Scope::of("ann", None),
        rollout: None,
        group: GroupId(id),
        member: 0,
        task: TaskId(id),
        attempt: 1,
        state: JobState::Done,
        reason: Some(JobReason::Submitted),
        priority: 0.0,
        not_before_ms: 0,
        created_ms: 0,
        started_ms: None,
        ended_ms: None,
        fence: 1,
        reward: Some(0.5),
        version: Some(3),
        session: Some(SessionId(Uuid::from_u128(1))),
        result: None,
    }
}

/// What Harbor's own model says of a trajectory, by its schema and by the rules that it checks beside that.
fn check_atif(trajectory: &Value) {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/formats/atif.schema.json"
    );
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("atif.json", schema).unwrap();
    let schema = compiler.compile("atif.json", &mut schemas).unwrap();
    if let Err(error) = schemas.validate(trajectory, schema) {
        panic!("{error:#}\n{trajectory:#}");
    }
    for (step, id) in trajectory["steps"].as_array().unwrap().iter().zip(1..) {
        assert_eq!(step["step_id"], id);
        let of_agents = ["model_name", "reasoning_content", "tool_calls", "metrics"];
        let is_agent = step["source"] == "agent";
        assert!(
            is_agent || of_agents.iter().all(|field| step.get(field).is_none()),
            "{step}"
        );
        let calls = step["tool_calls"].as_array().into_iter().flatten();
        let calls: Vec<&Value> = calls.map(|call| &call["tool_call_id"]).collect();
        let results = step["observation"]["results"].as_array();
        for result in results.into_iter().flatten() {
            let of = result.get("source_call_id");
            assert!(of.is_none_or(|of| calls.contains(&of)), "{step}");
        }
    }
}

#[test]
fn an_episode_is_an_atif_trajectory() {
    let mut episode = episode();
    episode.job = Some(job());
    let written = episode.written(EpisodeFormat::Atif);
    check_atif(&written);
    assert_eq!(written["extra"]["reward"], 0.5);
    let steps = written["steps"].as_array().unwrap();
    let sources: Vec<&str> = steps
        .iter()
        .map(|step| step["source"].as_str().unwrap())
        .collect();
    assert_eq!(
        sources,
        ["system", "user", "agent", "user", "agent", "agent"]
    );
    // What nobody here sampled is context.
    assert_eq!(steps[2]["is_copied_context"], true);
    assert!(steps[2].get("metrics").is_none());
    let called = &steps[4];
    assert_eq!(
        called["tool_calls"][0]["arguments"],
        json!({"command": "ls"})
    );
    let result = &called["observation"]["results"][0];
    assert_eq!(
        (&result["source_call_id"], &result["content"]),
        (&json!("c1"), &json!("a.txt"))
    );
    assert_eq!(called["metrics"]["prompt_token_ids"], json!([1, 2, 3]));
    assert_eq!(called["metrics"]["logprobs"], json!([-0.125, -1.125]));
    assert_eq!(called["timestamp"], "2026-11-30T00:53:21.500Z");
    assert_eq!(steps[5]["reasoning_content"], "one");
    assert_eq!(steps[5]["message"], "a.txt");
    assert_eq!(steps[5]["model_name"], "hone-starter@v3");
}

#[test]
fn what_is_not_known_is_left_out() {
    let mut episode = episode();
    for view in &mut episode.turns {
        view.extent = Extent::Words;
    }
    // Another base model sampled it than is served now.
    episode.model = Some(("other".to_owned(), Digest([2; 32])));
    let atif = episode.written(EpisodeFormat::Atif);
    check_atif(&atif);
    assert!(atif["steps"][4]["metrics"].get("logprobs").is_none());
    assert!(atif["agent"].get("model_name").is_none());
    assert_eq!(atif["extra"]["reward"], Value::Null);
    let openenv = episode.written(EpisodeFormat::OpenEnv);
    assert!(openenv[0].get("per_token_logps").is_none());
    assert_eq!(openenv[0]["loss_mask"], json!([0, 0, 0, 0, 0]));
    assert_eq!(openenv[0]["reward"], Value::Null, "unscored is not 0");
    let verifiers = episode.written(EpisodeFormat::Verifiers);
    let trace = &verifiers["traces"][0];
    assert_eq!(trace["agent"]["trainable"], false);
    assert_eq!(trace["rewards"], json!({}));
    assert_eq!(trace["nodes"][4]["mask"], json!([false, false]));
    let hone = episode.written(EpisodeFormat::Hone);
    assert_eq!(hone["turns"][0]["logprobs"], Value::Null);
    assert_eq!(hone["turns"][0]["completion_ids"], json!([4, 5]));
}

#[test]
fn arguments_and_results_that_fit_nowhere_are_kept() {
    let mut episode = episode();
    let last = episode.turns.last_mut().unwrap();
    last.turn.messages[4].tool_calls[0].arguments = "ls".to_owned();
    last.turn.messages[5].tool_call_id = Some("other".to_owned());
    let atif = episode.written(EpisodeFormat::Atif);
    check_atif(&atif);
    let step = &atif["steps"][4];
    assert_eq!(step["tool_calls"][0]["extra"]["arguments_text"], "ls");
    let result = &step["observation"]["results"][0];
    assert!(result.get("source_call_id").is_none());
    assert_eq!(result["extra"]["tool_call_id"], "other");
}

#[test]
fn an_openenv_entry_masks_its_prompt() {
    let mut episode = episode();
    episode.job = Some(job());
    let entries = episode.written(EpisodeFormat::OpenEnv);
    assert_eq!(entries.as_array().unwrap().len(), 2);
    let entry = &entries[1];
    assert_eq!(entry["loss_mask"], json!([0, 0, 0, 0, 0, 0, 1, 1]));
    assert_eq!(entry["per_token_logps"], json!([-0.125, -1.125]));
    assert_eq!(entry["reward"], 0.5);
    assert_eq!(entry["request"]["messages"].as_array().unwrap().len(), 6);
    assert_eq!(entry["response"]["choices"][0]["finish_reason"], "stop");
}

/// Tokens of the path that leads to a node.
fn path(nodes: &[Value], mut at: usize) -> Vec<u64> {
    let mut parts = Vec::new();
    loop {
        parts.push(nodes[at]["token_ids"].as_array().unwrap());
        match nodes[at]["parent"].as_u64() {
            Some(parent) => at = parent as usize,
            None => break,
        }
    }
    let tokens = parts.into_iter().rev().flatten();
    tokens.map(|token| token.as_u64().unwrap()).collect()
}

#[test]
fn a_verifiers_trace_gives_the_very_tokens() {
    let mut episode = episode();
    let record = episode.written(EpisodeFormat::Verifiers);
    let trace = &record["traces"][0];
    let nodes = trace["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 7);
    assert_eq!(path(nodes, 4), [1, 2, 3, 4, 5]);
    assert_eq!(path(nodes, 6), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(nodes[5]["message"]["role"], "tool");
    assert_eq!(trace["calls"][1]["node"], 6);
    // A prompt that does not go on from the tokens before begins a path of its own.
    episode.turns[1].turn.prompt_tokens = vec![1, 2, 9, 6];
    let record = episode.written(EpisodeFormat::Verifiers);
    let nodes = record["traces"][0]["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 5 + 7);
    assert_eq!(nodes[5]["parent"], Value::Null);
    assert_eq!(path(nodes, 11), [1, 2, 9, 6, 7, 8]);
}

#[test]
fn formats_have_names() {
    for (name, format) in EpisodeFormat::NAMES {
        assert_eq!(EpisodeFormat::from_name(name), Some(format));
    }
    assert_eq!(EpisodeFormat::from_name("ATIF"), None);
}
