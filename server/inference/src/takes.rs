//! What a model's chat template takes, and conversations in that form.
//!
//! Templates refuse what clients send: instructions behind the first message of a person, two messages
//! of one role in a row, calls whose arguments are no JSON. Each template is asked once, with small
//! conversations, what it takes. What it does not take is said in another way, the same one in every
//! request, so that the beginning of a prompt stays as it was.

use std::sync::Arc;

use hone_domain::{CALL_CLOSE, CALL_OPEN, Message, Role, ToolCall};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::Language;
use super::render::{split_calls, takes_one_call, template_messages};

/// Longest id of a call that every template takes.
const ID_CHARS: usize = 9;
/// What stands where a template wants an answer that there is none of.
const NO_ANSWER: &str = "(no answer)";
/// What stands where a template wants a person to begin.
const NO_QUESTION: &str = "(earlier messages are left out)";
/// What the conversations that a template is asked with look for in its prompt.
const MARK: &str = "mark7291";

/// What a chat template takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takes {
    /// Instructions before everything else.
    pub system: bool,
    /// Instructions anywhere.
    pub late_system: bool,
    /// Several messages of one role in a row.
    pub in_a_row: bool,
    /// Calls and their results.
    pub calls: bool,
    /// Several calls in one message.
    pub many_calls: bool,
    /// Words of a person right behind the result of a call.
    pub words_behind_results: bool,
    /// Arguments that are no JSON object.
    pub any_arguments: bool,
    /// Ids of calls with more than nine characters.
    pub long_ids: bool,
}

impl Takes {
    /// Messages as a template takes them.
    pub(super) fn for_template(
        self,
        messages: &[Message],
        recorded: &[(usize, Arc<str>)],
    ) -> Vec<Value> {
        let (messages, recorded) = self.rewritten(messages, recorded);
        let many = |message: &Message| message.tool_calls.len() > 1;
        if self.many_calls || !messages.iter().any(many) {
            return template_messages(&messages, &recorded);
        }
        let (messages, recorded) = split_calls(&messages, &recorded);
        template_messages(&messages, &recorded)
    }

    /// Everything.
    pub const ALL: Self = Self {
        system: true,
        late_system: true,
        in_a_row: true,
        calls: true,
        many_calls: true,
        words_behind_results: true,
        any_arguments: true,
        long_ids: true,
    };

    /// Nothing but what persons and models say in turns.
    pub const LEAST: Self = Self {
        system: false,
        late_system: false,
        in_a_row: false,
        calls: false,
        many_calls: false,
        words_behind_results: false,
        any_arguments: false,
        long_ids: false,
    };

    /// Of a model's template.
    pub(super) fn of(language: &dyn Language) -> Self {
        let plain = [said(Role::User, MARK)];
        if !renders(language, &plain) {
            // It takes nothing at all, and says why by itself.
            return Self::ALL;
        }
        let [system, user, answer] =
            [Role::System, Role::User, Role::Assistant].map(|role| said(role, "Hm."));
        let marked = |role| said(role, MARK);
        let short = ["look00001"];
        let loop_of = |ids: &[&str], arguments: &str| {
            let mut messages = vec![user.clone(), calling(ids, arguments)];
            messages.extend(ids.iter().map(|id| result(id)));
            messages
        };
        let with_calls = loop_of(&short, "{}");
        let calls = renders(language, &with_calls);
        let followed = [with_calls, vec![marked(Role::User)]].concat();
        let any = format!("{{\"{MARK}");
        Self {
            system: renders(language, &[marked(Role::System), user.clone()]),
            late_system: renders(
                language,
                &[
                    system,
                    user.clone(),
                    answer.clone(),
                    marked(Role::System),
                    user.clone(),
                ],
            ) && renders(language, &[user.clone(), marked(Role::System)]),
            in_a_row: renders(language, &[user.clone(), marked(Role::User)])
                && renders(
                    language,
                    &[user.clone(), answer, marked(Role::Assistant), user.clone()],
                ),
            calls,
            many_calls: !takes_one_call(language),
            words_behind_results: calls && renders(language, &followed),
            any_arguments: calls && renders(language, &loop_of(&short, &any)),
            long_ids: calls && renders(language, &loop_of(&["call0123456789abcdef"], "{}")),
        }
    }

    /// A conversation as the template takes it. `recorded` names assistant messages by their place, with
    /// the texts that were sampled; their places among the result come with it.
    pub(super) fn rewritten(
        self,
        messages: &[Message],
        recorded: &[(usize, Arc<str>)],
    ) -> (Vec<Message>, Vec<(usize, Arc<str>)>) {
        let mut recorded = recorded.iter().peekable();
        let mut out = Rewritten {
            takes: self,
            all: Vec::with_capacity(messages.len()),
        };
        // Instructions of the first request stand before its words: clients add them behind, and the next
        // conversation then begins with the same prompt.
        let is_instruction = |m: &Message| matches!(m.role, Role::System | Role::Developer);
        let is_answer = |m: &Message| matches!(m.role, Role::Assistant | Role::Tool);
        let first = messages.iter().position(is_answer);
        let (first, later) = messages.split_at(first.unwrap_or(messages.len()));
        let (leading, asked): (Vec<&Message>, Vec<&Message>) =
            first.iter().partition(|message| is_instruction(message));
        leading
            .iter()
            .for_each(|message| out.push(message, None, true));
        asked
            .iter()
            .for_each(|message| out.push(message, None, false));
        for (at, message) in later.iter().enumerate() {
            let at = first.len() + at;
            let text = recorded.next_if(|(place, _)| *place == at);
            let text = text.map(|(_, text)| text.clone());
            out.push(message, text, false);
        }
        let places = out.all.iter().enumerate();
        let places = places.filter_map(|(at, (_, text))| Some((at, text.clone()?)));
        let places = places.collect();
        (
            out.all.into_iter().map(|(message, _)| message).collect(),
            places,
        )
    }
}

/// Messages so far, each with its text as it was sampled.
struct Rewritten {
    takes: Takes,
    all: Vec<(Message, Option<Arc<str>>)>,
}

impl Rewritten {
    fn push(&mut self, message: &Message, text: Option<Arc<str>>, is_leading: bool) {
        let takes = self.takes;
        let mut message = message.clone();
        let stays = match message.role {
            Role::System | Role::Developer if is_leading => takes.system,
            Role::System | Role::Developer => takes.late_system,
            Role::Tool => takes.calls,
            Role::User | Role::Assistant => true,
        };
        match message.role {
            Role::Tool if !stays => {
                let content = format!("<tool_response>\n{}\n</tool_response>", message.content);
                message = Message::text(Role::User, content);
            }
            _ if !stays => message.role = Role::User,
            _ => {}
        }
        if message.role == Role::Assistant && text.is_none() {
            self.say_calls(&mut message);
        }
        if !takes.long_ids {
            let calls = message.tool_calls.iter_mut().map(|call| &mut call.id);
            calls.chain(message.tool_call_id.as_mut()).for_each(shorten);
        }
        self.add(message, text);
    }

    /// Says calls as text that the template does not take.
    fn say_calls(&self, message: &mut Message) {
        let takes = self.takes;
        let is_taken =
            |call: &ToolCall| takes.calls && (takes.any_arguments || is_object(&call.arguments));
        if message.tool_calls.iter().all(is_taken) {
            return;
        }
        let (taken, other): (Vec<ToolCall>, Vec<ToolCall>) =
            std::mem::take(&mut message.tool_calls)
                .into_iter()
                .partition(is_taken);
        message.tool_calls = taken;
        for call in other {
            let name = json!(call.name);
            let arguments = match call.arguments.trim() {
                "" => "{}",
                text => text,
            };
            let close = if is_object(arguments) { "}\n" } else { "\n" };
            let said = format!(
                "{CALL_OPEN}\n{{\"name\": {name}, \"arguments\": {arguments}{close}{CALL_CLOSE}"
            );
            join(&mut message.content, "\n", &said);
        }
    }

    fn add(&mut self, message: Message, text: Option<Arc<str>>) {
        let takes = self.takes;
        let before = self.all.last().map(|(before, _)| before.role);
        let is_instruction = |role: Role| matches!(role, Role::System | Role::Developer);
        if !takes.words_behind_results
            && takes.calls
            && message.role == Role::User
            && before == Some(Role::Tool)
        {
            self.all
                .push((Message::text(Role::Assistant, NO_ANSWER), None));
        }
        if takes.in_a_row {
            return self.all.push((message, text));
        }
        match (before, message.role) {
            (Some(before), role)
                if before == role && matches!(role, Role::User | Role::Assistant) =>
            {
                self.merge(message, text.as_deref());
            }
            (before, Role::Assistant) if before.is_none_or(is_instruction) => {
                self.all
                    .push((Message::text(Role::User, NO_QUESTION), None));
                self.all.push((message, text));
            }
            _ => self.all.push((message, text)),
        }
    }

    /// Puts a message behind the last one, in one message.
    fn merge(&mut self, message: Message, text: Option<&str>) {
        let Some((last, last_text)) = self.all.last_mut() else {
            return;
        };
        if last_text.is_some() || text.is_some() {
            let mut whole = last_text.as_deref().unwrap_or(&last.content).to_owned();
            join(&mut whole, "\n\n", text.unwrap_or(&message.content));
            *last_text = Some(Arc::from(whole));
        }
        join(&mut last.content, "\n\n", &message.content);
        last.tool_calls.extend(message.tool_calls);
    }
}

/// Functions with everything that a template may write of them: a description and parameters with
/// properties.
pub(super) fn whole_functions(tools: &[Value]) -> Vec<Value> {
    let whole = |tool: &Value| {
        let mut tool = tool.clone();
        if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
            let given = |value: &Value| !value.is_null();
            if !function.get("description").is_some_and(given) {
                function.insert("description".to_owned(), json!(""));
            }
            let parameters = function.entry("parameters").or_insert(Value::Null);
            if !parameters.is_object() {
                *parameters = json!({"type": "object"});
            }
            if !parameters["properties"].is_object() {
                parameters["properties"] = json!({});
            }
        }
        tool
    };
    tools.iter().map(whole).collect()
}

fn join(text: &mut String, between: &str, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push_str(between);
    }
    text.push_str(more);
}

fn is_object(arguments: &str) -> bool {
    let arguments = arguments.trim();
    arguments.is_empty() || serde_json::from_str::<Map<String, Value>>(arguments).is_ok()
}

/// An id of nine letters and digits that stands for a longer one, the same each time.
fn shorten(id: &mut String) {
    if id.len() == ID_CHARS && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return;
    }
    const SIGNS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let hash = Sha256::digest(id.as_bytes());
    let signs = hash.iter().take(ID_CHARS);
    *id = signs
        .map(|byte| char::from(SIGNS[usize::from(*byte) % SIGNS.len()]))
        .collect();
}

fn said(role: Role, text: &str) -> Message {
    Message::text(role, text)
}

fn calling(ids: &[&str], arguments: &str) -> Message {
    let call = |id: &&str| ToolCall {
        id: (*id).to_owned(),
        name: format!("look_{MARK}"),
        arguments: arguments.to_owned(),
    };
    Message {
        tool_calls: ids.iter().map(call).collect(),
        ..said(Role::Assistant, "")
    }
}

fn result(id: &str) -> Message {
    Message {
        tool_call_id: Some(id.to_owned()),
        name: Some("look".to_owned()),
        ..said(Role::Tool, MARK)
    }
}

/// Whether the template takes a conversation, and says all of it.
fn renders(language: &dyn Language, messages: &[Message]) -> bool {
    let marks = messages.iter().map(|m| {
        let called = m.tool_calls.iter();
        let called = called.map(|call| 1 + usize::from(call.arguments.contains(MARK)));
        usize::from(m.content.contains(MARK)) + called.sum::<usize>()
    });
    let marks = marks.sum::<usize>();
    let values = template_messages(messages, &[]);
    let function = json!({"name": "other", "description": "Looks.",
        "parameters": {"type": "object", "properties": {}}});
    let tools = [json!({"type": "function", "function": function})];
    let has_calls = messages.iter().any(|m| !m.tool_calls.is_empty());
    let rendered = language.render(&values, has_calls.then_some(&tools[..]), &Map::new());
    rendered.is_ok_and(|text| text.matches(MARK).count() >= marks)
}

#[cfg(test)]
mod tests {
    use hone_domain::Sampling;
    use hone_text::template::ChatTemplate;
    use hone_text::tokenizer::Tokenizer;

    use super::super::ModelLanguage;
    use super::*;

    fn language(source: &str) -> ModelLanguage {
        let mut files = hone_starter::model_files().iter();
        let (name, file) = files
            .find(|(name, _)| *name == "tokenizer.json")
            .expect("there");
        ModelLanguage {
            tokenizer: Arc::new(Tokenizer::from_json(file, name).expect("sound")),
            template: Arc::new(ChatTemplate::new(source, Map::new()).expect("sound")),
            defaults: Sampling::default(),
        }
    }

    /// Takes turns of persons and models only, as Gemma's does.
    const TURNS: &str = "{%- for m in messages %}\
        {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}\
        {{- m.role }}: {{ m.content }}\n{% endfor %}";
    /// Instructions come first, and arguments are gone through, as Qwen3-Coder's does.
    const FIRST: &str = "{%- for m in messages %}\
        {%- if m.role == 'system' and not loop.first %}{{ raise_exception('must be first') }}{% endif %}\
        {{- m.role }}: {{ m.content }}\n\
        {%- for c in m.tool_calls or [] %} {{ c.function.name }}\
        {%- for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}\n{% endfor %}{% endfor %}";
    /// Ids have nine characters, as Mistral's have.
    const IDS: &str = "{%- for m in messages %}{{- m.role }}: {{ m.content }}\n\
        {%- for c in m.tool_calls or [] %}{%- if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}\
        {{- c.id }} {{ c.function.name }} {{ c.function.arguments }}\n{% endfor %}{% endfor %}";

    #[test]
    fn templates_are_asked_what_they_take() {
        let turns = Takes::of(&language(TURNS));
        assert_eq!(
            turns,
            Takes {
                many_calls: turns.many_calls,
                ..Takes::LEAST
            }
        );
        let first = Takes::of(&language(FIRST));
        assert_eq!(
            first,
            Takes {
                late_system: false,
                any_arguments: false,
                ..Takes::ALL
            }
        );
        let ids = Takes::of(&language(IDS));
        assert_eq!(
            ids,
            Takes {
                long_ids: false,
                many_calls: ids.many_calls,
                ..Takes::ALL
            }
        );
        assert_eq!(Takes::of(&super::super::ByteLanguage), Takes::ALL);
    }

    /// Every conversation that clients are known to send, under every template.
    #[test]
    fn conversations_are_told_in_the_form_that_is_taken() {
        let user = said(Role::User, "Go on.");
        let broken = calling(&["call0123456789abcdef"], "{\"a\": ");
        let conversations = [
            vec![
                said(Role::System, "S"),
                user.clone(),
                said(Role::System, "late"),
            ],
            vec![user.clone(), user.clone()],
            vec![said(Role::Assistant, "First."), user.clone()],
            vec![
                user.clone(),
                broken,
                result("call0123456789abcdef"),
                user.clone(),
            ],
            vec![user.clone(), calling(&["a", "b"], "{}"), user.clone()],
            vec![
                user.clone(),
                calling(&["a"], "[1]"),
                calling(&["b"], "null"),
                result("b"),
                user,
            ],
        ];
        for source in [TURNS, FIRST, IDS] {
            let language = language(source);
            let takes = Takes::of(&language);
            for conversation in &conversations {
                let (messages, _) = takes.rewritten(conversation, &[]);
                let values = template_messages(&messages, &[]);
                let rendered = language.render(&values, None, &Map::new());
                assert!(rendered.is_ok(), "{rendered:?} of {messages:?}");
                // What was there before stays as it was when more is said.
                let longer = [conversation.clone(), vec![said(Role::Assistant, "x")]].concat();
                let (longer, _) = takes.rewritten(&longer, &[]);
                assert_eq!(longer[..messages.len()], messages[..]);
            }
        }
        let (messages, places) = Takes::LEAST.rewritten(
            &[
                said(Role::User, "a"),
                said(Role::Assistant, "b"),
                said(Role::Assistant, "c"),
            ],
            &[(1, Arc::from("<b>"))],
        );
        assert_eq!(messages.len(), 2);
        assert_eq!(places, [(1, Arc::from("<b>\n\nc"))]);
    }

    #[test]
    fn functions_are_told_whole_where_a_template_writes_what_is_missing() {
        let bare = json!({"type": "function", "function": {"name": "f", "parameters": null}});
        let whole = json!({"type": "function", "function": {"name": "f", "description": "",
            "parameters": {"type": "object", "properties": {}}}});
        for given in [bare, whole.clone()] {
            assert_eq!(
                whole_functions(std::slice::from_ref(&given)),
                std::slice::from_ref(&whole)
            );
        }
    }
}
