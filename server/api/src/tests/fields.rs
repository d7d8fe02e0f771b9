//! Every documented field of the APIs that clients know works, is refused by name, or is named in a
//! header; none is passed over in silence. The lists are those of the official libraries' types, which
//! `tests/clients/fields.py` compares with what is installed.

use serde_json::{Value, json};

use crate::testing::{Recorder, Stage};

/// Field, value, what becomes of it.
const CHAT: &str = r#"
audio | {"voice": "alloy", "format": "wav"} | refused
frequency_penalty | 0.5 | works
function_call | "auto" | refused
functions | [{"name": "f"}] | refused
logit_bias | {"5": 1} | works
logprobs | true | works
max_completion_tokens | 9 | works
max_tokens | 9 | works
messages | [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}] | ignored messages.content.cache_control
messages | [{"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}] | ignored messages.cache_control
metadata | {"a": "b"} | works
modalities | ["text"] | works
modalities | ["text", "audio"] | refused
moderation | {"model": "m"} | refused
n | 2 | works
parallel_tool_calls | false | works
prediction | {"type": "content", "content": "x"} | works
prediction | {"type": "content", "content": [{"type": "text", "text": "x"}]} | works
presence_penalty | 0.5 | works
prompt_cache_key | "k" | works
prompt_cache_options | {"ttl": "30m"} | ignored
prompt_cache_retention | "24h" | ignored
reasoning_effort | "low" | ignored
response_format | {"type": "json_object"} | works
safety_identifier | "hash" | ignored
seed | 7 | works
service_tier | "flex" | ignored
stop | ["END"] | works
store | false | works
stream | true | works
stream_options | {"include_usage": true} | works
stream_options | {"include_obfuscation": true} | ignored stream_options.include_obfuscation
temperature | 0.5 | works
tool_choice | "none" | works
tools | [{"type": "function", "function": {"name": "f"}}] | works
tools | [{"type": "custom", "custom": {"name": "f"}}] | works
top_logprobs | 2 | works
top_p | 0.5 | works
user | "ann" | works
verbosity | "medium" | works
verbosity | "low" | refused
web_search_options | {"search_context_size": "low"} | refused
"#;

const RESPONSES: &str = r#"
access_programs | {"x": true} | refused
background | true | refused
context_management | [{"type": "compaction"}] | ignored
conversation | "conv_1" | refused
image | {"detail": "low"} | refused
include | ["message.output_text.logprobs"] | works
include | ["reasoning.encrypted_content"] | ignored
instructions | "Be brief." | works
max_output_tokens | 16 | works
max_tool_calls | 3 | works
metadata | {"a": "b"} | works
moderation | {"model": "m"} | refused
parallel_tool_calls | false | works
previous_response_id | "resp_00000000-0000-7000-8000-000000000001" | looked for
prompt | {"id": "p"} | refused
prompt_cache_key | "k" | works
prompt_cache_options | {"ttl": "30m"} | ignored
prompt_cache_retention | "24h" | ignored
reasoning | {"effort": "low"} | ignored reasoning.effort
reasoning | {"summary": "auto"} | ignored reasoning.summary
safety_identifier | "hash" | ignored
service_tier | "priority" | ignored
store | false | works
stream | true | works
stream_options | {"include_obfuscation": false} | works
temperature | 0.5 | works
text | {"format": {"type": "text"}, "verbosity": "medium"} | works
text | {"verbosity": "high"} | refused text.verbosity
tool_choice | "auto" | works
tools | [{"type": "function", "name": "f"}] | works
tools | [{"type": "web_search"}] | ignored tools.type
top_logprobs | 2 | works
top_p | 0.5 | works
truncation | "auto" | refused
truncation | "disabled" | works
user | "ann" | works
"#;

const MESSAGES: &str = r#"
billing_policy | {"bill_to": "self"} | ignored
cache_control | {"type": "ephemeral"} | ignored
compaction | {"instructions": "x"} | refused
container | "c" | refused
context_management | {"edits": [{"type": "x"}]} | ignored
diagnostics | {"previous_message_id": "m"} | ignored
fallback_credit_token | "t" | ignored
fallbacks | "default" | refused
inference_geo | "eu" | refused
max_tokens | 9 | works
mcp_servers | [{"url": "https://x"}] | refused
messages | [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}] | ignored messages.content.cache_control
metadata | {"user_id": "u"} | works
output_config | {"effort": "low"} | ignored output_config.effort
output_config | {"format": {"type": "json_schema", "schema": {"type": "object"}}} | works
output_config | {"task_budget": {"total": 5}} | refused output_config.task_budget
service_tier | "auto" | ignored
speed | "fast" | ignored
stop_sequences | ["END"] | works
stream | true | works
system | "Be brief." | works
system | [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}] | ignored system.cache_control
temperature | 0.5 | works
thinking | {"type": "disabled"} | works
thinking | {"type": "enabled", "budget_tokens": 1024} | ignored thinking.budget_tokens
thread | {"type": "create"} | refused
tool_choice | {"type": "auto"} | works
tools | [{"name": "f", "input_schema": {"type": "object"}}] | works
tools | [{"name": "f", "cache_control": {"type": "ephemeral"}, "input_schema": {"type": "object"}}] | ignored tools.cache_control
tools | [{"name": "f", "input_schema": {"type": "object", "properties": {"cache_control": {"type": "string"}}}}] | works
tools | [{"type": "web_search_20250305", "name": "web_search"}] | ignored tools.type
top_k | 5 | works
top_p | 0.5 | works
user_profile_id | "u" | ignored
workspace_id | "w" | ignored
"#;

const COMPLETIONS: &str = r#"
best_of | 4 | refused
echo | true | refused
frequency_penalty | 0.5 | works
logit_bias | {"5": 1} | works
logprobs | 2 | works
max_tokens | 9 | works
n | 2 | works
presence_penalty | 0.5 | works
seed | 7 | works
stop | "END" | works
stream | true | works
stream_options | {"include_usage": true} | works
suffix | "x" | refused
temperature | 0.5 | works
top_p | 0.5 | works
user | "ann" | works
"#;

async fn check(path: &str, body: Value, table: &'static str) {
    let stage = Stage::new(Recorder::Collects).await;
    for line in table.lines().filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let [field, value, outcome] = cells[..] else {
            panic!("{line:?} has no three cells")
        };
        let (outcome, named) = outcome.split_once(' ').unwrap_or((outcome, field));
        let mut sent = body.clone();
        sent[field] = serde_json::from_str(value).unwrap();
        let reply = stage.post(path, &sent.to_string()).await;
        let ignored = reply.header("x-hone-ignored-fields").unwrap_or_default();
        let ignored: Vec<&str> = ignored.split(',').filter(|name| !name.is_empty()).collect();
        match outcome {
            "works" => {
                assert_eq!(reply.status, 200, "{path} {line}: {}", reply.text);
                assert_eq!(ignored, [""; 0], "{path} {line}");
            }
            "ignored" => {
                assert_eq!(reply.status, 200, "{path} {line}: {}", reply.text);
                assert_eq!(ignored, [named], "{path} {line}");
            }
            "looked" => assert_eq!(reply.status, 404, "{path} {line}: {}", reply.text),
            _ => {
                assert_eq!(reply.status, 400, "{path} {line}: {}", reply.text);
                let error = &reply.json()["error"];
                assert_eq!(error["code"], "unsupported_parameter", "{path} {line}");
                assert_eq!(error["param"], named, "{path} {line}");
            }
        }
    }
}

#[tokio::test]
async fn no_documented_field_is_passed_over_in_silence() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"model": "gpt", "messages": messages, "logprobs": true});
    check("/v1/chat/completions", chat, CHAT).await;
    check(
        "/v1/responses",
        json!({"model": "gpt", "input": "hi"}),
        RESPONSES,
    )
    .await;
    let message = json!({"model": "gpt", "messages": messages, "max_tokens": 9});
    check("/v1/messages", message, MESSAGES).await;
    check(
        "/v1/completions",
        json!({"model": "gpt", "prompt": "hi"}),
        COMPLETIONS,
    )
    .await;
}
