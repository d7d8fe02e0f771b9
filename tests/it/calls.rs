//! Tool calls of a model that always wants to call and knows no JSON.

use std::path::Path;

use hone_checkpoint::{NamedTensor, StoredDtype};
use hone_kernels::Executor;
use hone_ledger::Ledger as _;
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use hone_nn::KvFormat;
use hone_starter::folder::{Shape, description, weights_file, write};
use hone_tests::{TestApp, client, temporary};
use hone_text::folder;
use serde_json::{Value, json};

/// A model folder whose every state says `<tool_call>`, and of other tokens any as likely as another.
fn caller(at: &Path) {
    let (name, words) = hone_starter::model_files()
        .iter()
        .find(|(name, _)| *name == "tokenizer.json")
        .unwrap();
    let mut words: Value = serde_json::from_slice(words).unwrap();
    let vocab = words["model"]["vocab"].as_object().unwrap().len();
    let tag = json!({"id": vocab, "content": "<tool_call>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": false});
    words["added_tokens"].as_array_mut().unwrap().push(tag);
    let words = words.to_string();
    let tokenizer = hone_text::tokenizer::Tokenizer::from_json(words.as_bytes(), name).unwrap();
    let end = |text| tokenizer.id_of(text).unwrap();
    let shape = Shape {
        hidden: 32,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        ffn: 32,
        window: 512,
    };
    let mut config = shape.config(vocab + 1, StoredDtype::Bf16);
    config.tied = false;
    let tensor = |name: &str, shape: [usize; 2], value: fn(usize, usize) -> f32| NamedTensor {
        name: format!("{name}.weight"),
        shape: shape.into_iter().filter(|n| *n > 0).collect(),
        data: (0..shape[0] * shape[1].max(1))
            .map(|i| value(i % shape[1].max(1), i / shape[1].max(1)))
            .collect(),
    };
    let layer = |name: &str, shape: [usize; 2], value: fn(usize, usize) -> f32| {
        tensor(&format!("model.layers.0.{name}"), shape, value)
    };
    let first = |column: usize, _: usize| if column == 0 { 1.0 } else { 0.0 };
    let (one, none) = (|_: usize, _: usize| 1.0, |_: usize, _: usize| 0.0);
    let mut head = tensor("lm_head", [vocab + 1, 32], none);
    head.data[vocab * 32] = 8.0;
    let tensors = [
        tensor("model.embed_tokens", [vocab + 1, 32], first),
        tensor("model.norm", [32, 0], one),
        head,
        layer("input_layernorm", [32, 0], one),
        layer("post_attention_layernorm", [32, 0], one),
        layer("self_attn.q_proj", [32, 32], none),
        layer("self_attn.k_proj", [16, 32], none),
        layer("self_attn.v_proj", [16, 32], none),
        layer("self_attn.o_proj", [32, 32], none),
        layer("self_attn.q_norm", [16, 0], one),
        layer("self_attn.k_norm", [16, 0], one),
        layer("mlp.gate_proj", [32, 32], none),
        layer("mlp.up_proj", [32, 32], none),
        layer("mlp.down_proj", [32, 32], none),
    ];
    let mut files = description(&config, &words, [end("<|im_end|>"), end("<|endoftext|>")]);
    files.push(weights_file(&tensors).unwrap());
    write(at, &files).unwrap();
}

fn asked(strict: bool, seed: u64) -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Köln"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14}},
        "required": ["city", "days"], "additionalProperties": false});
    json!({"model": "caller", "seed": seed, "max_tokens": 200,
        "messages": [{"role": "user", "content": "How is the weather?"}],
        "tools": [{"type": "function",
            "function": {"name": "weather", "strict": strict, "parameters": schema}}]})
}

fn is_sound(call: &Value) -> bool {
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
        return false;
    };
    let days = arguments["days"].as_u64().unwrap();
    call["function"]["name"] == "weather"
        && ["Rome", "Köln"].contains(&arguments["city"].as_str().unwrap())
        && (1..=14).contains(&days)
        && arguments.as_object().unwrap().len() == 2
}

/// The arguments of a streamed answer's calls, as they came.
async fn streamed(app: &TestApp, mut body: Value) -> Vec<Vec<String>> {
    body["stream"] = json!(true);
    let call = client().unwrap();
    let call = call.post(format!("{}/v1/chat/completions", app.url));
    let text = call.json(&body).send().await.unwrap().text().await.unwrap();
    let mut calls: Vec<Vec<String>> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let delta = &event["choices"][0]["delta"]["tool_calls"][0];
        let Some(index) = delta["index"].as_u64() else {
            continue;
        };
        if delta["id"].is_string() {
            assert_eq!(index, calls.len() as u64);
            calls.push(Vec::new());
        }
        let more = delta["function"]["arguments"].as_str().unwrap();
        calls[index as usize].push(more.to_owned());
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_strict_functions_are_sound_whatever_the_model_wants() {
    let (guard, data) = temporary().unwrap();
    let at = guard.path().join("caller");
    caller(&at);
    let path = at.display().to_string();
    let changes = [("model.path", path.into()), ("model.kv", "f16".into())];
    let app = TestApp::start(&data, &changes).await.unwrap();
    let mut cities = std::collections::BTreeSet::new();
    for seed in 0..6 {
        let mut body = asked(true, seed);
        body["parallel_tool_calls"] = json!(false);
        let reply = app.chat(body.clone()).await.unwrap();
        let choice = &reply["choices"][0];
        let call = &choice["message"]["tool_calls"][0];
        assert!(is_sound(call), "{reply}");
        assert_eq!(choice["finish_reason"], "tool_calls", "{reply}");
        assert_eq!(choice["message"]["content"], Value::Null);
        cities.insert(call["function"]["arguments"].to_string());
        // In a stream they come as they are said, and say the same.
        let calls = streamed(&app, body).await;
        assert_eq!(calls.len(), 1);
        assert!(calls[0].len() > 3, "{calls:?}");
        assert_eq!(call["function"]["arguments"], calls[0].concat());
    }
    assert!(cities.len() > 2, "they are sampled: {cities:?}");

    // Several of them, the last one cut short by the limit.
    let reply = app.chat(asked(true, 1)).await.unwrap();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert!(calls.len() > 1, "{reply}");
    assert!(calls[..calls.len() - 1].iter().all(is_sound), "{reply}");

    // Where no function is strict the model says what it wants.
    let reply = app.chat(asked(false, 1)).await.unwrap();
    let message = &reply["choices"][0]["message"];
    let said = message["content"].as_str().unwrap();
    assert!(said.starts_with("<tool_call><tool_call>"), "{reply}");
    app.stop().await.unwrap();
    recomputes(&data, &at).await;
}

/// A template that teaches calls with arguments as texts between tags.
const PARAMETERS: &str = "{%- for tool in tools or [] -%}
<function=NAME><parameter=KEY>VALUE</parameter></function> in <tool_call> tags: {{ tool | tojson }}
{% endfor -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n
{%- endfor -%}
<|im_start|>assistant\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_that_are_texts_stream_while_they_are_said() {
    let (guard, data) = temporary().unwrap();
    let at = guard.path().join("caller");
    caller(&at);
    std::fs::write(at.join("chat_template.jinja"), PARAMETERS).unwrap();
    let path = at.display().to_string();
    let app = TestApp::start(&data, &[("model.path", path.into())])
        .await
        .unwrap();
    let mut body = asked(true, 3);
    body["parallel_tool_calls"] = json!(false);
    body["tools"][0]["function"]["parameters"]["properties"]["days"] = json!({"type": "integer"});
    let reply = app.chat(body.clone()).await.unwrap();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{reply}");
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str();
    let told: Value = serde_json::from_str(arguments.unwrap()).unwrap();
    assert!(told["city"].is_string() && told["days"].is_i64(), "{reply}");
    let calls = streamed(&app, body.clone()).await;
    assert_eq!(calls[0].concat(), arguments.unwrap());
    assert!(calls[0].len() > 2, "{calls:?}");

    // A text that does not end comes token by token.
    let text = json!({"text": {"type": "string"}});
    body["tools"][0]["function"]["parameters"]["properties"] = text;
    body["tools"][0]["function"]["parameters"]["required"] = json!(["text"]);
    let reply = app.chat(body.clone()).await.unwrap();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "length", "{reply}");
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str();
    let calls = streamed(&app, body).await;
    assert_eq!(calls[0].concat(), arguments.unwrap());
    assert!(calls[0].len() > 50, "{calls:?}");
    let whole = format!("{}\"}}", calls[0].concat());
    let whole: Value = serde_json::from_str(&whole).unwrap();
    assert!(whole["text"].is_string());
    app.stop().await.unwrap();
}

/// What was drawn outside calls is recorded as drawn from all tokens, what was drawn within from those
/// that were allowed; both are recomputed to the bit, and all of it trains.
async fn recomputes(data: &Path, at: &Path) {
    let files = folder::ModelFolder::open(at).unwrap();
    let model = hone_nn::load_model(files.checkpoint(), &mut |_, _, _| {}).unwrap();
    let compute_type = model.weights.quickest();
    let model = model.with_compute_type(compute_type).with_kv(KvFormat::F16);
    let ledger = SqliteStore::open_beside(&SqliteConfig::in_folder(data))
        .await
        .unwrap();
    let rows = ledger.turns(None, 1_000).await.unwrap();
    let exec = Executor::new(1);
    let (mut free, mut held) = (0, 0);
    for row in rows {
        let turn = ledger.turn(row.id).await.unwrap().unwrap().turn;
        assert_eq!(turn.untrainable, None);
        let (mut tokens, start) = (turn.prompt_tokens.clone(), turn.prompt_tokens.len());
        tokens.extend(turn.completion.tokens());
        let scores = hone_nn::score(&model, None, &tokens, &exec);
        for (i, kept) in turn.completion.kept().iter().enumerate() {
            let again = scores.logprob(start + i, turn.sampling.temperature, kept.as_deref());
            let recorded = turn.completion.behavior_logprobs()[i];
            assert_eq!(
                again.to_bits(),
                recorded.to_bits(),
                "token {i} of {}",
                turn.id
            );
            // At the first token the end is banned.
            let is_held = i > 0 && kept.is_some();
            (free, held) = (free + usize::from(!is_held), held + usize::from(is_held));
        }
    }
    ledger.close().await;
    assert!(free > 80 && held > 80, "{free} free, {held} held");
}
