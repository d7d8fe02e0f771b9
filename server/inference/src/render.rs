//! Messages as chat templates read them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use hone_domain::{Message, Role, ToolCall};
use serde_json::{Map, Value, json};

use super::Language;

/// Whether the template refuses a message with more than one call, as those of Llama 3 do.
pub(super) fn takes_one_call(language: &dyn Language) -> bool {
    let call = |id: &str| ToolCall {
        id: id.to_owned(),
        name: "look".to_owned(),
        arguments: "{}".to_owned(),
    };
    let takes = |ids: &[&str]| {
        let mut messages = vec![
            Message::text(Role::User, "Look."),
            Message::text(Role::Assistant, ""),
        ];
        messages[1].tool_calls = ids.iter().map(|id| call(id)).collect();
        messages.extend(ids.iter().map(|id| Message {
            tool_call_id: Some((*id).to_owned()),
            name: Some("look".to_owned()),
            ..Message::text(Role::Tool, "Seen.")
        }));
        let messages: Vec<Value> = messages.iter().map(template_message).collect();
        let function = json!({"name": "look", "description": "Looks.",
            "parameters": {"type": "object", "properties": {}}});
        let tools = [json!({"type": "function", "function": function})];
        let rendered = language.render(&messages, Some(&tools), &Map::new());
        rendered.is_ok()
    };
    !takes(&["look00001", "look00002"]) && takes(&["look00001"])
}

/// Messages by their place, with the texts that were sampled.
fn by_place(recorded: &[(usize, Arc<str>)]) -> HashMap<usize, &Arc<str>> {
    recorded
        .iter()
        .map(|(place, text)| (*place, text))
        .collect()
}

/// The messages with each call in a message of its own, before its result, and the places that those of
/// `recorded` have among them. These stay whole.
pub(super) fn split_calls(
    messages: &[Message],
    recorded: &[(usize, Arc<str>)],
) -> (Vec<Message>, Vec<(usize, Arc<str>)>) {
    let mut split = Vec::with_capacity(messages.len());
    let mut places = Vec::with_capacity(recorded.len());
    let recorded = by_place(recorded);
    let mut rest = messages.iter().enumerate().peekable();
    while let Some((at, message)) = rest.next() {
        if let Some(text) = recorded.get(&at) {
            places.push((split.len(), Arc::clone(text)));
        } else if message.tool_calls.len() > 1 {
            let mut results = Vec::new();
            while let Some((_, result)) = rest.next_if(|(_, next)| next.role == Role::Tool) {
                results.push(result);
            }
            push_split(message, &results, &mut split);
            continue;
        }
        split.push(message.clone());
    }
    (split, places)
}

/// A message's calls one by one, each before its result: the one with its id, or else the next that has
/// the id of no call. One message can have very many.
fn push_split(message: &Message, results: &[&Message], out: &mut Vec<Message>) {
    let ids = message.tool_calls.iter().map(|call| call.id.as_str());
    let ids: HashSet<&str> = ids.filter(|id| !id.is_empty()).collect();
    let mut own: HashMap<&str, VecDeque<usize>> = HashMap::new();
    let mut others = VecDeque::new();
    for (at, result) in results.iter().enumerate() {
        match result.tool_call_id.as_deref() {
            Some(id) if ids.contains(id) => own.entry(id).or_default().push_back(at),
            _ => others.push_back(at),
        }
    }
    let mut left: Vec<Option<&Message>> = results.iter().copied().map(Some).collect();
    for (at, call) in message.tool_calls.iter().enumerate() {
        let content = if at == 0 { &*message.content } else { "" };
        out.push(Message {
            name: message.name.clone(),
            tool_calls: vec![call.clone()],
            ..Message::text(message.role, content)
        });
        let own = own.get_mut(call.id.as_str()).and_then(VecDeque::pop_front);
        let result = own.or_else(|| others.pop_front());
        out.extend(result.and_then(|at| left[at].take()).cloned());
    }
    out.extend(left.into_iter().flatten().cloned());
}

/// Messages for the template. Leading system and developer messages become one, because many
/// templates read only the first. `recorded` names assistant messages by their place, with the
/// texts that were sampled: they stand in the prompt as they were.
pub(super) fn template_messages(
    messages: &[Message],
    recorded: &[(usize, Arc<str>)],
) -> Vec<Value> {
    let is_system = |m: &&Message| matches!(m.role, Role::System | Role::Developer);
    let leading = messages.iter().take_while(is_system).count();
    let merged = (leading > 1).then(|| {
        let texts: Vec<&str> = messages[..leading]
            .iter()
            .map(|m| m.content.as_str())
            .collect();
        template_message(&Message::text(Role::System, texts.join("\n\n")))
    });
    let from = if merged.is_some() { leading } else { 0 };
    let recorded = by_place(recorded);
    let rest =
        messages
            .iter()
            .enumerate()
            .skip(from)
            .map(|(at, message)| match recorded.get(&at) {
                Some(text) => template_message(&Message::text(message.role, &***text)),
                None => template_message(message),
            });
    merged.into_iter().chain(rest).collect()
}

/// A message as chat templates read it. Developer instructions become system ones, which every
/// template knows; call arguments are parsed where they are JSON,
/// and are an empty object where there are none.
pub fn template_message(message: &Message) -> Value {
    let role = match message.role {
        Role::Developer => Role::System,
        role => role,
    };
    let mut value = json!({ "role": role.as_str(), "content": message.content });
    let Some(fields) = value.as_object_mut() else {
        return value;
    };
    if let Some(name) = &message.name {
        fields.insert("name".to_owned(), json!(name));
    }
    if let Some(id) = &message.tool_call_id {
        fields.insert("tool_call_id".to_owned(), json!(id));
    }
    if !message.tool_calls.is_empty() {
        let calls: Vec<Value> = message.tool_calls.iter().map(template_call).collect();
        fields.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    value
}

fn template_call(call: &ToolCall) -> Value {
    let arguments = match call.arguments.trim() {
        // Nothing means no arguments.
        "" => json!({}),
        text => serde_json::from_str::<Value>(text)
            .ok()
            .filter(Value::is_object)
            .unwrap_or_else(|| Value::String(call.arguments.clone())),
    };
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": arguments },
    })
}

#[cfg(test)]
mod tests {
    use hone_domain::{CallStyle, Sampling, Token};
    use hone_text::template::ChatTemplate;
    use hone_text::tokenizer::Tokenizer;

    use super::super::{LanguageError, Manner, ModelLanguage};
    use super::*;

    /// Refuses messages with more calls than it takes.
    struct Takes(usize);

    impl Language for Takes {
        fn render(
            &self,
            messages: &[Value],
            _: Option<&[Value]>,
            _: &Map<String, Value>,
        ) -> Result<String, LanguageError> {
            let mut calls = messages.iter().filter_map(|m| m["tool_calls"].as_array());
            match calls.any(|calls| calls.len() > self.0) {
                true => Err(LanguageError("one call at a time".to_owned())),
                false => Ok(String::new()),
            }
        }

        fn encode(&self, _: &str, _: bool) -> Vec<Token> {
            Vec::new()
        }

        fn decode(&self, _: &[Token]) -> String {
            String::new()
        }

        fn token_bytes(&self, _: Token) -> Vec<u8> {
            Vec::new()
        }

        fn defaults(&self) -> Sampling {
            Sampling::default()
        }

        fn manner(&self) -> Manner {
            Manner {
                calls: Some(CallStyle::Json),
                reasons: false,
            }
        }

        fn reads(&self, _: &str) -> bool {
            false
        }
    }

    #[test]
    fn a_template_tells_how_many_calls_it_takes() {
        // One that takes no call at all says nothing of two.
        let found = [0, 1, 2].map(|calls| takes_one_call(&Takes(calls)));
        assert_eq!(found, [false, true, false]);
    }

    /// As Llama 3 has it, cut to what matters.
    const ONE_CALL: &str = "{%- set first_user_message = messages[0]['content'] | trim %}\
        {%- for message in messages %}{%- if message.role == 'tool' %}{{- message.content | tojson }}\
        {%- elif 'tool_calls' in message %}{%- if not message.tool_calls | length == 1 %}\
        {{- raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}\
        {%- set call = message.tool_calls[0].function %}\
        {{- '{\"name\": \"' + call.name + '\", \"parameters\": ' }}{{- call.arguments | tojson }}{{- '}' }}\
        {%- else %}{{- message.content }}{%- endif %}{%- endfor %}";

    #[test]
    fn templates_are_asked_and_get_what_they_take() {
        let mut files = hone_starter::model_files().iter();
        let (name, file) = files
            .find(|(name, _)| *name == "tokenizer.json")
            .expect("there");
        let tokenizer = Arc::new(Tokenizer::from_json(file, name).expect("sound"));
        let many = ONE_CALL.replace("not message.tool_calls | length == 1", "false");
        for (source, one_call) in [(ONE_CALL, true), (many.as_str(), false)] {
            let template = ChatTemplate::new(source, Map::new()).expect("sound");
            let language = ModelLanguage {
                tokenizer: tokenizer.clone(),
                template: Arc::new(template),
                defaults: Sampling::default(),
            };
            assert_eq!(language.manner().calls, Some(CallStyle::Json));
            assert_eq!(takes_one_call(&language), one_call);
            let messages = [
                Message::text(Role::User, "Look."),
                calls(&["a", "b"]),
                result(Some("b"), "2"),
                result(Some("a"), "1"),
            ];
            let (split, _) = split_calls(&messages, &[]);
            let values = template_messages(&split, &[]);
            let call = "{\"name\": \"look\", \"parameters\": {}}";
            let text = language.render(&values, None, &Map::new()).expect("taken");
            assert_eq!(text, format!("Look.{call}\"1\"{call}\"2\""));
        }
    }

    fn calls(ids: &[&str]) -> Message {
        let mut message = Message::text(Role::Assistant, "Looking.");
        message.tool_calls = ids
            .iter()
            .map(|id| ToolCall {
                id: (*id).to_owned(),
                name: "look".to_owned(),
                arguments: "{}".to_owned(),
            })
            .collect();
        message
    }

    fn result(id: Option<&str>, text: &str) -> Message {
        Message {
            tool_call_id: id.map(str::to_owned),
            ..Message::text(Role::Tool, text)
        }
    }

    /// What is said, and which calls are made, in order.
    fn told(messages: &[Message]) -> Vec<String> {
        let told = messages.iter().map(|message| {
            let ids: Vec<&str> = message.tool_calls.iter().map(|call| &*call.id).collect();
            format!("{}{}", message.content, ids.concat())
        });
        told.collect()
    }

    #[test]
    fn each_call_stands_before_its_own_result() {
        let rows: [(Vec<Message>, &[&str]); 7] = [
            (
                vec![
                    calls(&["a", "b"]),
                    result(Some("b"), "2"),
                    result(Some("a"), "1"),
                ],
                &["Looking.a", "1", "b", "2"],
            ),
            (
                vec![
                    calls(&["a", "b"]),
                    result(None, "1"),
                    result(None, "2"),
                    result(None, "3"),
                ],
                &["Looking.a", "1", "b", "2", "3"],
            ),
            (
                vec![
                    calls(&["a", "b", "c"]),
                    result(Some("x"), "1"),
                    result(Some("c"), "3"),
                ],
                &["Looking.a", "1", "b", "c", "3"],
            ),
            (
                vec![calls(&["", ""]), result(Some(""), "1")],
                &["Looking.", "1", ""],
            ),
            // What is left behind keeps its order.
            (
                vec![
                    calls(&["a", "b"]),
                    result(Some("a"), "1"),
                    result(Some("x"), "2"),
                    result(Some("a"), "3"),
                    result(Some("y"), "4"),
                ],
                &["Looking.a", "1", "b", "2", "3", "4"],
            ),
            // One id for two calls.
            (
                vec![
                    calls(&["a", "a", "a"]),
                    result(Some("x"), "3"),
                    result(Some("a"), "1"),
                    result(Some("a"), "2"),
                ],
                &["Looking.a", "1", "a", "2", "a", "3"],
            ),
            (
                vec![
                    calls(&["a"]),
                    result(Some("a"), "1"),
                    calls(&["b", "c"]),
                    calls(&["d"]),
                ],
                &["Looking.a", "1", "Looking.b", "c", "Looking.d"],
            ),
        ];
        for (messages, expected) in rows {
            let (split, _) = split_calls(&messages, &[]);
            assert_eq!(told(&split), expected);
        }
        let messages = [calls(&["a", "b"]), calls(&["c", "d"]), result(None, "1")];
        let sampled: Arc<str> = Arc::from("as said");
        let (split, recorded) = split_calls(&messages, &[(1, sampled.clone())]);
        assert_eq!(told(&split), ["Looking.a", "b", "Looking.cd", "1"]);
        assert_eq!(recorded, [(2, sampled)]);
    }

    /// Whoever looks through all of them for each waits for minutes.
    #[test]
    fn many_calls_are_split_at_once() {
        const CALLS: usize = 20_000;
        let ids: Vec<String> = (0..CALLS).map(|at| format!("c{at}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let answered = ids[CALLS / 2..].iter().rev();
        let mut messages = vec![calls(&ids)];
        messages.extend(answered.map(|id| result(Some(id), &format!("of {id}"))));
        // Of a session that is as long, each of its messages as it was sampled.
        let sampled: Arc<str> = Arc::from("as said");
        let before = messages.len();
        let said = Message::text(Role::Assistant, "Said.");
        messages.extend(vec![said; CALLS]);
        let recorded: Vec<_> = (before..messages.len())
            .map(|at| (at, sampled.clone()))
            .collect();
        let (split, places) = split_calls(&messages, &recorded);
        let answered = ids[CALLS / 2..].iter();
        let answered = answered.flat_map(|id| [(*id).to_owned(), format!("of {id}")]);
        let unanswered = ids[1..CALLS / 2].iter().map(|id| (*id).to_owned());
        let mut expected = vec!["Looking.c0".to_owned()];
        expected.extend(unanswered.chain(answered));
        assert_eq!(told(&split[..expected.len()]), expected);
        assert_eq!(places.len(), CALLS);
        let values = template_messages(&split, &places);
        assert_eq!(values.len(), expected.len() + CALLS);
        assert!(
            values[expected.len()..]
                .iter()
                .all(|value| value["content"] == "as said")
        );
    }
}
