//! Completions, whole and streamed.

use hone_domain::{PolicyChoice, ServeError, StopReason, TurnKind};
use serde_json::{Value, json};

use crate::testing::{Recorder, Script, Stage};

const CHAT: &str = "/v1/chat/completions";

fn hi() -> Value {
    json!({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]})
}

fn hi_with(fields: &Value) -> String {
    let mut body = hi();
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string()
}

fn say(pieces: &[&'static str]) -> Script {
    Script::Say(pieces.to_vec(), StopReason::EndToken)
}

#[tokio::test]
async fn a_whole_completion_names_everything() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([say(&["Hel", "", "lo"])]);
    let reply = stage.post(CHAT, &hi().to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let turn = reply.header("x-hone-turn-id").unwrap().to_owned();
    let session = reply.header("x-hone-session-id").unwrap().to_owned();
    assert_eq!(reply.header("x-hone-policy-version"), Some("3"));
    assert_eq!(reply.header("x-hone-ignored-fields"), None);
    let bare = turn.strip_prefix("turn_").unwrap();
    assert_eq!(
        reply.json(),
        json!({
            "id": format!("chatcmpl-{bare}"),
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "gpt",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": null},
                "logprobs": null,
                "finish_reason": "stop",
            }],
            "usage": {
                "prompt_tokens": 18,
                "completion_tokens": 6,
                "total_tokens": 24,
                "prompt_tokens_details": {"cached_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            "system_fingerprint": "abababababab@v3",
            "hone": {
                "turn_id": turn,
                "session_id": session,
                "policy_version": 3,
                "collected": true,
                "reason": null,
                "explanation": null,
            },
        })
    );
    assert_eq!(stage.told.lock().unwrap().turns[0].completion_text, "Hello");
}

#[tokio::test]
async fn a_stream_ends_with_finish_usage_and_done() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Say(vec!["Hel", "", "lo"], StopReason::Length)]);
    let body = hi_with(&json!({"stream": true, "stream_options": {"include_usage": true}}));
    let reply = stage.post(CHAT, &body).await;
    assert_eq!(reply.status, 200);
    let content_type = reply.header("content-type").unwrap();
    assert!(content_type.starts_with("text/event-stream"));
    assert_eq!(reply.header("x-hone-policy-version"), Some("3"));
    let mut events = reply.events();
    assert_eq!(events.pop(), Some(json!("[DONE]")));
    let usage = events.pop().unwrap();
    assert_eq!(
        (&usage["choices"], &usage["usage"]["total_tokens"]),
        (&json!([]), &json!(23))
    );
    let deltas: Vec<Value> = events
        .iter()
        .map(|event| {
            assert_eq!(event["object"], "chat.completion.chunk");
            assert_eq!(event["id"], events[0]["id"]);
            assert_eq!(event["system_fingerprint"], "abababababab@v3");
            assert_eq!(event["usage"], Value::Null);
            event["choices"][0]["delta"].clone()
        })
        .collect();
    assert_eq!(
        Value::from(deltas),
        json!([{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {}])
    );
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(last["hone"]["collected"], true);
    assert!(
        events[..3]
            .iter()
            .all(|e| e["choices"][0]["finish_reason"].is_null())
    );
    assert!(events[0].get("hone").is_none());
}

#[tokio::test]
async fn usage_is_left_out_of_streams_that_do_not_ask_for_it() {
    let stage = Stage::new(Recorder::Collects).await;
    let reply = stage.post(CHAT, &hi_with(&json!({"stream": true}))).await;
    assert!(!reply.text.contains("\"usage\""));
    assert!(reply.text.ends_with("data: [DONE]\n\n"));
}

/// The prediction goes to the engine as tokens, and the usage says what became of it.
#[tokio::test]
async fn what_became_of_a_prediction_is_counted() {
    let parts = json!([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]);
    for (content, count) in [(json!("Hello"), 5), (parts, 5)] {
        for stream in [false, true] {
            let stage = Stage::new(Recorder::Collects).await;
            stage.script([say(&["one"]), say(&["two"])]);
            let reply = hi_with(&json!({
                "prediction": {"type": "content", "content": content},
                "n": 2,
                "stream": stream,
                "stream_options": {"include_usage": true},
            }));
            let reply = stage.post(CHAT, &reply).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
            assert_eq!(reply.header("x-hone-ignored-fields"), None);
            for ask in &*stage.fake.asks.lock().unwrap() {
                assert_eq!(ask.predicted.len(), count);
            }
            let usage = match stream {
                true => reply.events().into_iter().rev().nth(1).unwrap(),
                false => reply.json(),
            };
            assert_eq!(
                usage["usage"]["completion_tokens_details"],
                json!({
                    "reasoning_tokens": 0,
                    "accepted_prediction_tokens": 2,
                    "rejected_prediction_tokens": 2 * (count - 1),
                })
            );
        }
    }
}

#[tokio::test]
async fn a_prediction_without_effect_is_named() {
    let form = json!({"type": "json_object"});
    for (field, value, ignored) in [
        ("temperature", json!(0.5), None),
        ("response_format", json!({"type": "text"}), None),
        ("logprobs", json!(true), None),
        ("response_format", form, Some("prediction")),
        ("presence_penalty", json!(0.1), Some("prediction")),
        ("frequency_penalty", json!(0.1), Some("prediction")),
        ("repetition_penalty", json!(1.1), Some("prediction")),
        ("logit_bias", json!({"5": 1}), Some("prediction")),
    ] {
        let stage = Stage::new(Recorder::Collects).await;
        let prediction = json!({"type": "content", "content": "x"});
        let body = hi_with(&json!({"prediction": prediction, field: value}));
        let reply = stage.post(CHAT, &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.header("x-hone-ignored-fields"), ignored, "{field}");
        let asks = stage.fake.asks.lock().unwrap();
        assert_eq!(asks[0].predicted.is_empty(), ignored.is_some(), "{field}");
    }
}

#[tokio::test]
async fn several_choices_have_turns_of_their_own() {
    for stream in [false, true] {
        let stage = Stage::new(Recorder::Collects).await;
        stage.script([say(&["one"]), say(&["two"])]);
        let body = hi_with(&json!({"n": 2, "seed": 5, "stream": stream}));
        let reply = stage.post(CHAT, &body).await;
        assert_eq!(reply.status, 200);
        let asks = stage.fake.asks.lock().unwrap();
        assert_eq!(asks.len(), 2);
        assert!(asks[0].group.is_some() && asks[0].group == asks[1].group);
        assert_eq!((asks[0].sampling.seed, asks[1].sampling.seed), (5, 6));
        assert_ne!(asks[0].turn, asks[1].turn);
        if !stream {
            let json = reply.json();
            assert_eq!(json["choices"][1]["index"], 1);
            assert_eq!(json["choices"][1]["message"]["content"], "two");
            assert_eq!(json["hone"]["others"][0]["collected"], true);
            assert_eq!(json["usage"]["completion_tokens"], 8);
            continue;
        }
        let events = reply.events();
        let text = |index: u64| -> String {
            let choices = events.iter().filter_map(|e| e["choices"].get(0));
            choices
                .filter(|c| c["index"] == index)
                .filter_map(|c| c["delta"]["content"].as_str())
                .collect()
        };
        assert_eq!((text(0), text(1)), ("one".to_owned(), "two".to_owned()));
    }
}

#[tokio::test]
async fn logprobs_cover_the_text_and_leave_end_tokens_out() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([say(&["a", "é"])]);
    let body = hi_with(&json!({"logprobs": true, "top_logprobs": 2}));
    let json = stage.post(CHAT, &body).await.json();
    let content = &json["choices"][0]["logprobs"]["content"];
    assert_eq!(content.as_array().unwrap().len(), 2);
    assert_eq!(
        content[0],
        json!({
            "token": "a", "logprob": -0.25, "bytes": [97],
            "top_logprobs": [{"token": "a", "logprob": -0.25, "bytes": [97]}],
        })
    );
}

#[tokio::test]
async fn failures_before_the_first_token_have_a_status() {
    let rows = [
        (
            Script::Refuse(ServeError::Overloaded {
                limit: 4,
                retry_after_ms: 2_500,
            }),
            (429, "overloaded", Some("3")),
        ),
        (
            Script::Refuse(ServeError::Stopping),
            (503, "stopping", Some("1")),
        ),
        (
            Script::Refuse(ServeError::TooLong {
                prompt_tokens: 9,
                max_positions: 4,
                model_positions: 4,
            }),
            (400, "context_length_exceeded", None),
        ),
        (
            Script::Break(vec![], ServeError::Memory),
            (503, "no_memory", Some("1")),
        ),
        (
            Script::Break(vec![], ServeError::Internal("boom".to_owned())),
            (500, "internal_error", None),
        ),
    ];
    for (script, (status, code, retry)) in rows {
        let stage = Stage::new(Recorder::Collects).await;
        let reply = stage
            .script([script.clone()])
            .post(CHAT, &hi().to_string())
            .await;
        assert_eq!(reply.status, status, "{script:?}");
        assert_eq!(reply.json()["error"]["code"], code);
        assert_eq!(reply.header("retry-after"), retry);
    }
}

#[tokio::test]
async fn failures_inside_a_stream_are_an_error_event_and_done() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Break(
        vec!["Hel"],
        ServeError::Internal("boom".to_owned()),
    )]);
    let reply = stage.post(CHAT, &hi_with(&json!({"stream": true}))).await;
    assert_eq!(reply.status, 200);
    let events = reply.events();
    let [.., error, done] = &events[..] else {
        panic!("too few events: {events:?}")
    };
    assert_eq!(error["error"]["code"], "internal_error");
    assert_eq!(error["error"]["type"], "server_error");
    assert_eq!(done, "[DONE]");
}

#[tokio::test]
async fn the_end_says_why_a_turn_was_not_collected() {
    let rows = [
        (Recorder::Silent, json!({}), "late_receipt"),
        (Recorder::Fails, json!({}), "ledger_failed"),
        (Recorder::Absent, json!({}), "no_collector"),
        (Recorder::Collects, json!({"store": false}), "store_false"),
    ];
    for (recorder, fields, reason) in rows {
        let stage = Stage::new(recorder).await;
        let reply = stage.post(CHAT, &hi_with(&fields)).await;
        let hone = reply.json()["hone"].clone();
        assert_eq!(reply.status, 200);
        assert_eq!(
            (&hone["collected"], &hone["reason"]),
            (&json!(false), &json!(reason))
        );
        assert!(hone["explanation"].as_str().is_some_and(|e| e.len() > 10));
        let inference = stage.http.inference.as_ref().unwrap();
        let counted = inference
            .counters
            .not_collected()
            .find(|(counted, _)| counted.as_str() == reason);
        assert_eq!(counted.map(|(_, n)| n), Some(1));
        // What was handed over and not acknowledged may be on disk, so it is noted.
        let noted = inference.late.all().unwrap().len();
        let is_handed = matches!(recorder, Recorder::Silent | Recorder::Fails);
        assert_eq!(
            (noted, inference.counters.late_unnoted.get()),
            (usize::from(is_handed), 0)
        );
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_and_the_turn_is_still_recorded() {
    use axum::body::Body;
    use http_body_util::BodyExt;
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Hang]);
    let request = crate::testing::request("POST", CHAT, &[("content-type", "application/json")]);
    let body = Body::from(hi_with(&json!({"stream": true})));
    let mut response = stage.send(request.body(body).unwrap()).await;
    response.body_mut().frame().await.unwrap().unwrap();
    drop(response);
    let _ = stage.fake.cancelled.acquire().await.unwrap();
    let inference = stage.http.inference.as_ref().unwrap();
    inference.live.none().await;
    assert_eq!(stage.told.lock().unwrap().turns.len(), 1);
    assert_eq!(
        inference.counters.stops().find(|(r, _)| *r == "cancelled"),
        Some(("cancelled", 1))
    );
}

#[tokio::test]
async fn an_aborted_stream_ends_with_an_error_event() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Hang]);
    stage.abort.pull();
    let reply = stage.post(CHAT, &hi_with(&json!({"stream": true}))).await;
    let events = reply.events();
    assert_eq!(events[events.len() - 2]["error"]["code"], "stopping");
    assert_eq!(events.last(), Some(&json!("[DONE]")));
}

#[tokio::test]
async fn odd_but_legal_requests_are_taken() {
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let rows = [
        json!({"temperature": null, "stop": null, "tools": [], "stream": null, "n": null, "user": null}),
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}),
        json!({"messages": [
            {"role": "developer", "content": "x"},
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "call1", "type": "function", "function": {"name": "f", "arguments": "not json"}},
                {"function": {"name": "g", "arguments": {"a": 1}}},
            ]},
            {"role": "tool", "tool_call_id": "unknown", "content": "7"},
            {"role": "tool", "content": [{"type": "text", "text": "8"}]},
        ]}),
        json!({"messages": [{"role": "user", "content": "nul \u{0} inside"}]}),
        json!({"tools": tool, "tool_choice": "auto", "parallel_tool_calls": true}),
        json!({"stop": "x", "max_completion_tokens": 5, "max_tokens": 9, "seed": -1, "top_k": -1}),
        json!({"response_format": {"type": "text"}, "modalities": ["text"], "logit_bias": {"5": -100}}),
        json!({"model": "org/model"}),
        json!({"messages": [{"role": "user", "content": "y".repeat(2_000)}]}),
    ];
    for fields in rows {
        let stage = Stage::new(Recorder::Collects).await;
        let reply = stage.post(CHAT, &hi_with(&fields)).await;
        assert_eq!(reply.status, 200, "{fields}: {}", reply.text);
        assert_eq!(reply.json()["choices"][0]["message"]["content"], "ok");
    }
}

#[tokio::test]
async fn requests_reach_the_engine_as_they_were_meant() {
    let stage = Stage::new(Recorder::Collects).await;
    let body = hi_with(&json!({
        "model": "gpt@base", "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": 9,
        "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5,
        "logit_bias": {"65": 3}, "logprobs": true, "top_logprobs": 4, "min_tokens": 3,
        "max_completion_tokens": 11, "max_tokens": 99, "stop": ["a", "b"], "ignore_eos": true,
        "user": "ann", "turn_type": "side", "session_id": "s",
    }));
    assert_eq!(stage.post(CHAT, &body).await.status, 200);
    let asks = stage.fake.asks.lock().unwrap();
    let ask = &asks[0];
    let s = &ask.sampling;
    assert_eq!(
        (s.temperature, s.top_p, s.top_k, s.min_p, s.seed),
        (0.5, 0.25, 7, 0.125, 9)
    );
    assert_eq!(
        (
            s.presence_penalty,
            s.frequency_penalty,
            s.repetition_penalty
        ),
        (1.0, -1.0, 1.5)
    );
    assert_eq!(
        (s.logit_bias.as_slice(), s.top_logprobs, s.min_tokens),
        (&[(65, 3.0)][..], 4, 3)
    );
    assert_eq!((ask.stop.max_tokens, ask.stop.ignore_end), (11, true));
    assert_eq!(ask.stop.strings, ["a", "b"]);
    assert_eq!(
        (ask.policy.clone(), ask.kind),
        (PolicyChoice::Base, TurnKind::Side)
    );
    assert_eq!(ask.scope, hone_domain::Scope::of("local", Some("ann")));
    assert_eq!(ask.context.session_key.as_deref(), Some("s"));
}

#[tokio::test]
async fn token_limits_are_cut_to_what_the_context_leaves() {
    for (wanted, limit) in [
        (json!(null), 4_078),
        (json!(10), 10),
        (json!(1_000_000), 4_078),
    ] {
        let stage = Stage::new(Recorder::Collects).await;
        let reply = stage
            .post(CHAT, &hi_with(&json!({"max_tokens": wanted})))
            .await;
        assert_eq!(reply.status, 200);
        assert_eq!(stage.fake.asks.lock().unwrap()[0].stop.max_tokens, limit);
    }
}

/// No reply holds more than it can: its completions are cut, or refused where their limit was asked
/// for.
#[tokio::test]
async fn log_probs_of_a_reply_have_a_bound() {
    use std::sync::atomic::Ordering;
    let all = json!({"n": 16, "logprobs": true, "top_logprobs": 20});
    let with = |limit: u32| {
        let mut fields = all.clone();
        fields["max_tokens"] = json!(limit);
        fields
    };
    let response = |fields: Value| {
        let mut body = json!({"model": "gpt", "input": "hi", "top_logprobs": 20});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        ("/v1/responses", body.to_string())
    };
    let text = json!({"model": "gpt", "prompt": ["a", "b"], "n": 8, "logprobs": 20,
        "max_tokens": 7_000});
    let chat = |fields: Value| (CHAT, hi_with(&fields));
    let rows = [
        (chat(all.clone()), Ok(6_241)),
        (chat(with(6_241)), Ok(6_241)),
        (chat(with(6_242)), Err("top_logprobs")),
        (chat(json!({"n": 16, "logprobs": true})), Ok(131_054)),
        (chat(json!({"n": 16, "max_tokens": 1_000_000})), Ok(131_054)),
        (
            chat(json!({"logprobs": true, "top_logprobs": 15, "max_tokens": 1_000_000})),
            Ok(131_054),
        ),
        (response(json!({})), Ok(99_864)),
        (
            response(json!({"max_output_tokens": 100_000})),
            Err("top_logprobs"),
        ),
        (("/v1/completions", text.to_string()), Err("logprobs")),
    ];
    for ((path, body), wanted) in rows {
        let stage = Stage::new(Recorder::Collects).await;
        stage.fake.max_positions.store(131_072, Ordering::Relaxed);
        let reply = stage.post(path, &body).await;
        let asks = stage.fake.asks.lock().unwrap();
        match wanted {
            Ok(limit) => assert_eq!(asks[0].stop.max_tokens, limit, "{body}: {}", reply.text),
            Err(param) => {
                let error = &reply.json()["error"];
                assert_eq!(
                    (reply.status, &error["param"]),
                    (400, &json!(param)),
                    "{body}"
                );
                assert!(asks.is_empty());
            }
        }
    }
}

#[tokio::test]
async fn unknown_fields_are_named_in_a_header() {
    let stage = Stage::new(Recorder::Collects).await;
    let body = hi_with(&json!({
        "metadata": {"a": "b"}, "service_tier": "auto", "x": null, "reasoning_effort": "low", "bad name\n": 1, "ü": 2,
    }));
    let reply = stage.post(CHAT, &body).await;
    assert_eq!(reply.status, 200);
    let ignored = reply.header("x-hone-ignored-fields");
    assert_eq!(ignored, Some("service_tier,reasoning_effort,+2"));
}

#[tokio::test]
async fn metadata_is_kept_with_the_turn_as_far_as_it_fits() {
    let stage = Stage::new(Recorder::Collects).await;
    let body = hi_with(&json!({"metadata": {"project": "x\u{0}y", "run": "7"}}));
    let reply = stage.post(CHAT, &body).await;
    assert_eq!(
        (reply.status, reply.header("x-hone-ignored-fields")),
        (200, None)
    );
    let long = hi_with(&json!({"metadata": {"a": "b", "c": "d".repeat(513), "e": 5}}));
    let reply = stage.post(CHAT, &long).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-hone-ignored-fields"), Some("metadata"));
    let turns = stage.told.lock().unwrap().turns.clone();
    let pairs = |at: usize| {
        let kept = turns[at].admission.metadata.iter();
        kept.map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>()
    };
    assert_eq!(pairs(0), ["project=x\0y", "run=7"]);
    assert_eq!(pairs(1), ["a=b"]);
    // And through the ledger.
    stage.http.ledger.record_turns(&turns).await.unwrap();
    let path = format!("/v1/turns/{}", turns[0].id);
    let shown = stage.get(&path).await.json();
    assert_eq!(shown["metadata"], json!({"project": "x\u{0}y", "run": "7"}));
    assert_eq!(shown["trace_id"], turns[0].request.0.simple().to_string());
}

/// Of every prompt once: its other choices find what the first one computed.
#[tokio::test]
async fn what_was_cached_of_all_prompts_is_told_as_what_they_have_is() {
    let stage = Stage::new(Recorder::Collects).await;
    for (prompts, n, cached) in [(1, 3, 2), (2, 1, 4), (3, 2, 6)] {
        let mut body = json!({"model": "gpt", "prompt": vec!["xyz"; prompts], "n": n});
        let whole = stage.post("/v1/completions", &body.to_string()).await;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let events = stage.post("/v1/completions", &body.to_string()).await;
        let events = events.events();
        for usage in [&whole.json()["usage"], &events[events.len() - 2]["usage"]] {
            assert_eq!(usage["prompt_tokens"], prompts * 3);
            let details = &usage["prompt_tokens_details"];
            assert_eq!(details["cached_tokens"], cached, "{prompts} {n}");
        }
    }
}

#[tokio::test]
async fn text_completions_take_texts_and_tokens() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([say(&["a"]), say(&["b"]), say(&["c"]), say(&["d"])]);
    let body = json!({"model": "gpt", "prompt": ["x", [104, 105]], "n": 2, "logprobs": 1});
    let json = stage
        .post("/v1/completions", &body.to_string())
        .await
        .json();
    assert_eq!(json["object"], "text_completion");
    let choices = json["choices"].as_array().unwrap();
    let seen: Vec<_> = choices
        .iter()
        .map(|c| (c["index"].as_u64(), c["text"].as_str()))
        .collect();
    let wanted = ["a", "b", "c", "d"].into_iter().zip(0..);
    assert_eq!(
        seen,
        wanted.map(|(t, i)| (Some(i), Some(t))).collect::<Vec<_>>()
    );
    assert_eq!(choices[0]["logprobs"]["tokens"], json!(["a"]));
    assert_eq!(choices[0]["logprobs"]["text_offset"], json!([0]));
    // Part of a character is named by its bytes; places are in characters.
    stage.script([say(&["\u{e9}", "a"])]);
    let body = json!({"model": "gpt", "prompt": "x", "logprobs": 1}).to_string();
    let whole = stage.post("/v1/completions", &body).await.json();
    assert_eq!(
        whole["choices"][0]["logprobs"],
        json!({
            "tokens": ["bytes:\\xc3", "a"], "token_logprobs": [-0.25, -0.25],
            "top_logprobs": [{"bytes:\\xc3": -0.25}, {"a": -0.25}], "text_offset": [0, 1],
        })
    );
    let asks = stage.fake.asks.lock().unwrap().clone();
    assert_eq!(asks[2].prompt_tokens, [104, 105]);
    assert_eq!(asks[0].stop.max_tokens, 16);
    let body = json!({"model": "gpt", "prompt": "x", "stream": true});
    let events = stage
        .post("/v1/completions", &body.to_string())
        .await
        .events();
    assert_eq!(events[0]["choices"][0]["text"], "ok");
    assert_eq!(events[1]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[2], "[DONE]");
}
