//! What trainers ask for beside an answer, in every dialect. The test's backend says "a" and "b" as two tokens
//! with the log-probs -0.25 (sampled from) and -0.5 (the model's own), and ends with token 256.
use hone_domain::{PolicyChoice, StopReason};
use serde_json::{Value, json};

use crate::testing::{END, Recorder, Reply, Script, Stage, read, request};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const VLLM: &str = "/inference/v1/generate";
const SGLANG: &str = "/generate";

/// The least body of each dialect, with these fields.
fn body(path: &str, fields: &Value) -> String {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let mut body = match path {
        CHAT => json!({"model": "gpt", "messages": messages}),
        TEXT => json!({"model": "gpt", "prompt": [104, 105]}),
        RESPONSES => json!({"model": "gpt", "input": "hi"}),
        MESSAGES => json!({"model": "gpt", "messages": messages, "max_tokens": 9}),
        VLLM => json!({"token_ids": [104, 105]}),
        _ => json!({"input_ids": [104, 105]}),
    };
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    body.to_string()
}

async fn post(path: &str, fields: Value) -> (Reply, Stage) {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Say(vec!["a", "b"], StopReason::EndToken)]);
    let reply = stage.post(path, &body(path, &fields)).await;
    (reply, stage)
}

async fn told(path: &str, fields: Value) -> Value {
    let (reply, _stage) = post(path, fields).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    assert_eq!(reply.header("x-hone-ignored-fields"), None, "{path}");
    reply.json()
}

#[tokio::test]
async fn log_probs_are_those_sampled_from_and_raw_on_demand() {
    for (word, wanted) in [
        (Value::Null, -0.25),
        (json!("processed_logprobs"), -0.25),
        (json!("raw_logprobs"), -0.5),
    ] {
        let chat = json!({"logprobs": true, "top_logprobs": 1, "logprobs_mode": word});
        let reply = told(CHAT, chat).await;
        let entry = &reply["choices"][0]["logprobs"]["content"][1];
        assert_eq!(entry["logprob"], json!(wanted), "{word}");
        assert_eq!(entry["top_logprobs"][0]["logprob"], json!(wanted), "{word}");
        let text = json!({"logprobs": 0, "logprobs_mode": word});
        let reply = told(TEXT, text).await;
        let entry = &reply["choices"][0]["logprobs"]["token_logprobs"][1];
        assert_eq!(entry, &json!(wanted), "{word}");
        let include = ["message.output_text.logprobs"];
        let response = json!({"include": include, "logprobs_mode": word});
        let reply = told(RESPONSES, response).await;
        let entry = &reply["output"][0]["content"][0]["logprobs"][1];
        assert_eq!(entry["logprob"], json!(wanted), "{word}");
    }
    for path in [CHAT, TEXT, RESPONSES, MESSAGES, VLLM, SGLANG] {
        let (reply, _stage) = post(path, json!({"logprobs_mode": "odd"})).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.text);
        assert!(reply.text.contains("raw_logprobs"), "{}", reply.text);
    }
}

/// A request's word goes before its key's, and that before the configuration's.
#[tokio::test]
async fn a_key_says_which_log_probs_its_replies_have() {
    let stage = Stage::new(Recorder::Collects).await;
    let send = async |(method, path): (&str, &str), key: &str, body: Value| {
        let bearer = format!("Bearer {key}");
        let headers = [
            ("content-type", "application/json"),
            ("authorization", bearer.as_str()),
        ];
        let request = request(method, path, &headers).body(body.to_string().into());
        read(stage.send(request.unwrap()).await).await
    };
    let wanted = json!({"name": "trainer", "logprobs_mode": "raw_logprobs"});
    let made = send(("POST", "/v1/keys"), "developer", wanted).await.json();
    assert_eq!(made["logprobs_mode"], "raw_logprobs", "{made}");
    let (key, id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
    let path = format!("/v1/keys/{id}");
    let first = async |fields: Value| {
        stage.script([Script::Say(vec!["a", "b"], StopReason::EndToken)]);
        let body = serde_json::from_str(&body(CHAT, &fields)).unwrap();
        let reply = send(("POST", CHAT), key, body).await;
        reply.json()["choices"][0]["logprobs"]["content"][0]["logprob"].clone()
    };
    let asked = || json!({"logprobs": true});
    let processed = json!({"logprobs": true, "logprobs_mode": "processed_logprobs"});
    let (raw, sampled) = (first(asked()).await, first(processed).await);
    assert_eq!((&raw, &sampled), (&json!(-0.5), &json!(-0.25)));
    for (mode, shown, told) in [
        ("processed_logprobs", json!("processed_logprobs"), &sampled),
        ("raw", json!("raw_logprobs"), &raw),
        ("default", Value::Null, &sampled),
    ] {
        let patch = json!({ "logprobs_mode": mode });
        let changed = send(("PATCH", &path), "developer", patch).await.json();
        assert_eq!(changed["logprobs_mode"], shown, "{changed}");
        assert_eq!(first(asked()).await, *told, "{mode}");
    }
    for wrong in [json!({}), json!({"logprobs_mode": "some"})] {
        let refused = send(("PATCH", &path), "developer", wrong).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
    }
}

#[tokio::test]
async fn log_probs_name_tokens_by_id_on_demand() {
    let ids = json!(true);
    let chat = json!({"logprobs": true, "top_logprobs": 1, "return_tokens_as_token_ids": ids});
    let entry = &told(CHAT, chat).await["choices"][0]["logprobs"]["content"][0];
    assert_eq!(entry["token"], "token_id:97");
    assert_eq!(entry["top_logprobs"][0]["token"], "token_id:97");
    let text = json!({"logprobs": 1, "return_tokens_as_token_ids": ids});
    let all = &told(TEXT, text).await["choices"][0]["logprobs"];
    assert_eq!(all["tokens"], json!(["token_id:97", "token_id:98"]));
    assert_eq!(all["top_logprobs"][0], json!({"token_id:97": -0.25}));
}

/// The ids are all there, and with them a log-prob for each: also for the end token, which says nothing.
#[tokio::test]
async fn token_ids_stand_in_every_dialect_whole_and_streamed() {
    let sampled = json!([97, 98, END]);
    let ids = || json!({"return_token_ids": true});
    let with = |mut fields: Value, more: Value| {
        let fields = fields.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        Value::Object(fields.clone())
    };
    let chat = told(CHAT, with(ids(), json!({"logprobs": true}))).await;
    let choice = &chat["choices"][0];
    assert_eq!(choice["token_ids"], sampled);
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 3);
    let prompt = chat["prompt_token_ids"].clone();
    assert_eq!(prompt.as_array().map(Vec::len), Some(18));
    let text = told(TEXT, ids()).await;
    assert_eq!(text["choices"][0]["token_ids"], sampled);
    assert_eq!(text["choices"][0]["prompt_token_ids"], json!([104, 105]));
    for path in [RESPONSES, MESSAGES] {
        let reply = told(path, ids()).await;
        assert_eq!(reply["token_ids"], sampled, "{path}");
        assert_eq!(
            reply["token_logprobs"],
            json!([-0.25, -0.25, -0.25]),
            "{path}"
        );
        assert_eq!(reply["prompt_token_ids"].as_array().map(Vec::len), Some(18));
    }
    for path in [CHAT, TEXT] {
        let fields = with(ids(), json!({"stream": true, "logprobs": 1}));
        let fields = match path {
            CHAT => with(fields, json!({"logprobs": true})),
            _ => fields,
        };
        let (reply, _stage) = post(path, fields).await;
        let events = reply.events();
        let choices = || events.iter().filter_map(|event| event["choices"].get(0));
        let ids: Vec<&Value> = choices()
            .filter_map(|choice| choice["token_ids"].as_array())
            .flatten()
            .collect();
        assert_eq!(json!(ids), sampled, "{path}: {}", reply.text);
        let each: Vec<usize> = choices()
            .filter_map(|choice| choice["token_ids"].as_array().map(Vec::len))
            .collect();
        assert_eq!(each, [1, 1, 1], "{path}: with their text");
        let told: usize = choices()
            .filter_map(|choice| {
                let logprobs = &choice["logprobs"];
                let list = logprobs.get("content").or_else(|| logprobs.get("tokens"));
                list.and_then(Value::as_array).map(Vec::len)
            })
            .sum();
        assert_eq!(told, 3, "{path}: {}", reply.text);
        let first = match path {
            CHAT => &events[0]["prompt_token_ids"],
            _ => &events[0]["choices"][0]["prompt_token_ids"],
        };
        let wanted = if path == CHAT { 18 } else { 2 };
        assert_eq!(first.as_array().map(Vec::len), Some(wanted), "{path}");
    }
}

#[tokio::test]
async fn a_response_and_a_message_have_their_ids_where_they_end() {
    for (path, place) in [(RESPONSES, "/response"), (MESSAGES, "")] {
        let (reply, _stage) = post(path, json!({"return_token_ids": true, "stream": true})).await;
        let ends = reply.events();
        let at = |event: &Value| event.pointer(&format!("{place}/token_ids")).cloned();
        let found: Vec<Value> = ends.iter().filter_map(at).collect();
        assert_eq!(found, [json!([97, 98, END])], "{path}: {}", reply.text);
    }
}

/// A stream that thinks, calls and says nothing with some tokens still has every id once.
#[tokio::test]
async fn ids_of_tokens_that_say_nothing_are_streamed() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Say(vec!["a", "", "", "b"], StopReason::Length)]);
    let fields = json!({"stream": true, "return_token_ids": true});
    let reply = stage.post(CHAT, &body(CHAT, &fields)).await;
    let ids = reply.events().into_iter().filter_map(|event| {
        let choice = event["choices"].get(0)?.clone();
        choice["token_ids"].as_array().map(Vec::len)
    });
    assert_eq!(ids.collect::<Vec<_>>(), [1, 1, 1, 1, 0]);
}

#[tokio::test]
async fn log_probs_of_the_prompt() {
    let row = |logprob: f32, rank: Value, text: &str| json!({"logprob": logprob, "rank": rank, "decoded_token": text});
    let text = told(TEXT, json!({"prompt_logprobs": 0})).await;
    let wanted = json!([null, {"105": row(-1.0, Value::Null, "i")}]);
    assert_eq!(text["choices"][0]["prompt_logprobs"], wanted);
    let (reply, stage) = post(
        TEXT,
        json!({"prompt_logprobs": 1, "prompt": [[104, 105], [65]]}),
    )
    .await;
    let choices = &reply.json()["choices"];
    let wanted = json!([null, {
        "105": row(-1.0, Value::Null, "i"), "7": row(-0.125, json!(1), "\u{7}"),
    }]);
    assert_eq!(choices[0]["prompt_logprobs"], wanted);
    assert_eq!(
        choices[1]["prompt_logprobs"],
        json!([null]),
        "nothing predicts the first"
    );
    // The version that answered scores.
    {
        let asks = stage.fake.asks.lock().unwrap();
        assert_eq!((asks.len(), &asks[2].given), (3, &vec![105]));
    }
    let chat = told(CHAT, json!({"prompt_logprobs": 0})).await;
    assert_eq!(chat["prompt_logprobs"].as_array().map(Vec::len), Some(18));
    for (path, fields) in [
        (CHAT, json!({"prompt_logprobs": 21})),
        (TEXT, json!({"prompt_logprobs": -1, "stream": true})),
        (RESPONSES, json!({"prompt_logprobs": 21})),
        (MESSAGES, json!({"prompt_logprobs": "all"})),
    ] {
        let (reply, stage) = post(path, fields).await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.text);
        assert!(reply.text.contains("prompt_logprobs"), "{}", reply.text);
        assert_eq!(stage.fake.asks.lock().unwrap().len(), 0, "{path}");
    }
}

/// Whole and streamed, each dialect has one for each token of its prompt, once.
#[tokio::test]
async fn log_probs_of_the_prompt_stand_in_every_dialect() {
    for (path, whole, streamed, count) in [
        (CHAT, "/prompt_logprobs", "/prompt_logprobs", 18),
        (
            TEXT,
            "/choices/0/prompt_logprobs",
            "/choices/0/prompt_logprobs",
            2,
        ),
        (
            RESPONSES,
            "/prompt_logprobs",
            "/response/prompt_logprobs",
            18,
        ),
        (MESSAGES, "/prompt_logprobs", "/prompt_logprobs", 18),
    ] {
        let reply = told(path, json!({"prompt_logprobs": 1})).await;
        let all = reply.pointer(whole).and_then(Value::as_array);
        assert_eq!(all.map(Vec::len), Some(count), "{path}: {reply}");
        let fields = json!({"prompt_logprobs": 1, "stream": true});
        let (reply, _stage) = post(path, fields).await;
        let events = reply.events();
        let found: Vec<&Value> = events
            .iter()
            .filter_map(|event| event.pointer(streamed))
            .collect();
        assert_eq!(found.len(), 1, "{path}: {}", reply.text);
        assert_eq!(found[0].as_array(), all, "{path}");
    }
}

#[tokio::test]
async fn versions_masks_and_experts_on_demand() {
    let fields = || json!({"return_weight_versions": true, "return_sampling_mask": true});
    let versions = json!([{"version": "3", "start": 0, "end": 3}]);
    for path in [CHAT, TEXT, RESPONSES, MESSAGES] {
        let reply = told(path, fields()).await;
        let place = reply["choices"].get(0).unwrap_or(&reply);
        assert_eq!(place["weight_versions"], versions, "{path}");
        assert_eq!(place["sampling_mask"], json!([null, null, null]), "{path}");
        assert_eq!(place.get("token_ids"), None, "{path}");
    }
    // The model has no experts: the reply says so, and so does the header.
    let (reply, _stage) = post(CHAT, json!({"return_routed_experts": true})).await;
    assert_eq!(
        reply.header("x-hone-ignored-fields"),
        Some("return_routed_experts")
    );
    let json = reply.json();
    assert_eq!(json["choices"][0].get("routed_experts"), Some(&Value::Null));
}

#[tokio::test]
async fn sglangs_spellings_of_a_chat() {
    let fields = json!({"return_prompt_token_ids": true, "return_meta_info": true});
    let reply = told(CHAT, fields).await;
    let choice = &reply["choices"][0];
    assert_eq!(
        choice["prompt_token_ids"].as_array().map(Vec::len),
        Some(18)
    );
    assert_eq!(choice["response_token_ids"], json!([97, 98, END]));
    let meta = &choice["meta_info"];
    assert_eq!(meta["weight_version"], "3");
    assert_eq!(meta["finish_reason"], json!({"type": "stop"}));
    assert_eq!(
        (&meta["prompt_tokens"], &meta["completion_tokens"]),
        (&json!(18), &json!(3))
    );
}

#[tokio::test]
async fn vllms_tokens_in_and_out() {
    let params = json!({"max_tokens": 5, "temperature": 0.7, "logprobs": 1, "stop_token_ids": [END],
        "prompt_logprobs": 0});
    let fields = json!({"sampling_params": params, "request_id": "r1", "output_mode": "text"});
    let (reply, stage) = post(VLLM, fields).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let json = reply.json();
    assert_eq!(
        (&json["request_id"], &json["hone"]["collected"]),
        (&json!("r1"), &json!(true))
    );
    let choice = &json["choices"][0];
    assert_eq!(choice["token_ids"], json!([97, 98, END]));
    assert_eq!(choice["text"], "ab");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["weight_versions"][0]["version"], "3");
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 3);
    assert_eq!(
        content[0],
        json!({"token": "token_id:97", "token_id": 97, "logprob": -0.25, "rank": 1, "top_logprobs": [
            {"token": "token_id:97", "token_id": 97, "logprob": -0.25, "rank": 1},
        ]})
    );
    assert_eq!(json["prompt_logprobs"][1]["105"]["logprob"], -1.0);
    {
        let asks = stage.fake.asks.lock().unwrap();
        assert_eq!(asks[0].prompt_tokens, [104, 105]);
        assert_eq!(
            (asks[0].stop.max_tokens, asks[0].sampling.temperature),
            (5, 0.7)
        );
        assert_eq!(asks[0].policy, PolicyChoice::Newest);
    }
    let (reply, _stage) = post(VLLM, json!({"stream": true})).await;
    let events = reply.events();
    let ids: Vec<Value> = events
        .iter()
        .map(|e| e["choices"][0]["token_ids"].clone())
        .collect();
    assert_eq!(ids[..3], [json!([97]), json!([98]), json!([END])]);
    assert_eq!(events[2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[2]["choices"][0]["logprobs"], Value::Null);
    assert_eq!(events[3], "[DONE]");
}

#[tokio::test]
async fn sglangs_tokens_in_and_out() {
    let params = json!({"max_new_tokens": 5, "temperature": 0.7});
    let fields = json!({"sampling_params": params, "return_logprob": true, "logprob_start_len": 0,
        "rid": "r1"});
    let json = told(SGLANG, fields).await;
    assert_eq!(
        (&json["text"], &json["output_ids"]),
        (&json!("ab"), &json!([97, 98, END]))
    );
    let meta = &json["meta_info"];
    assert_eq!(meta["id"], "r1");
    let sampled = json!([[-0.25, 97, null], [-0.25, 98, null], [-0.25, END, null]]);
    assert_eq!(meta["output_token_logprobs"], sampled);
    assert_eq!(
        meta["input_token_logprobs"],
        json!([[null, 104, null], [-1.0, 105, null]])
    );
    assert_eq!(
        (&meta["prompt_tokens"], &meta["cached_tokens"]),
        (&json!(2), &json!(2))
    );
    let (reply, stage) = post(SGLANG, json!({"sampling_params": {"n": 2}})).await;
    assert_eq!(
        reply.json().as_array().map(Vec::len),
        Some(2),
        "{}",
        reply.text
    );
    assert_eq!(stage.fake.asks.lock().unwrap()[0].stop.max_tokens, 128);
}

#[tokio::test]
async fn what_tokens_in_cannot_be_is_refused_by_name() {
    for (path, fields, param) in [
        (VLLM, json!({"token_ids": []}), "token_ids"),
        (VLLM, json!({"token_ids": [104, 900]}), "token_ids[1]"),
        (VLLM, json!({"token_ids": ["x"]}), "token_ids[0]"),
        (VLLM, json!({"output_mode": "derender"}), "output_mode"),
        (
            VLLM,
            json!({"sampling_params": {"n": 2}}),
            "sampling_params.n",
        ),
        (
            VLLM,
            json!({"sampling_params": {"temperature": 9}}),
            "temperature",
        ),
        (
            VLLM,
            json!({"sampling_params": {"stop_token_ids": [5]}}),
            "stop_token_ids",
        ),
        (SGLANG, json!({"text": "both"}), "input_ids"),
        (SGLANG, json!({"stream": true}), "stream"),
        (
            SGLANG,
            json!({"sampling_params": {"ebnf": "x"}}),
            "sampling_params.ebnf",
        ),
        (
            SGLANG,
            json!({"sampling_params": {"json_schema": "{"}}),
            "sampling_params.json_schema",
        ),
    ] {
        let (reply, _stage) = post(path, fields.clone()).await;
        assert_eq!(reply.status, 400, "{path} {fields}: {}", reply.text);
        assert_eq!(reply.json()["error"]["param"], param, "{path} {fields}");
    }
}
