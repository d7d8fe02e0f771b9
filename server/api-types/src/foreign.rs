//! Tools that are no plain functions: those in namespaces, those that take a text, and those that a
//! server would run by itself. The model is shown functions; its calls go back under the names and in the
//! form that their client knows.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::content::Reader;
use crate::RequestError;

/// The only argument of a tool that takes a text.
const INPUT: &str = "input";
/// Between a namespace and the name of a function in it.
const BETWEEN: &str = "__";
/// Most bytes of a grammar that a description repeats.
const GRAMMAR_BYTES_MAX: usize = 16 * 1_024;

/// How a client knows a function that the model is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alias {
    /// Its name within its namespace.
    pub name: String,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Whether it takes a text.
    pub is_custom: bool,
}

/// Functions whose client knows them under another name or in another form, by the name that the model
/// is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aliases(HashMap<String, Alias>);

impl Aliases {
    /// How the client knows a function; none where it is a plain one.
    pub fn get(&self, shown: &str) -> Option<&Alias> {
        self.0.get(shown)
    }
}

/// The tools of a request as functions.
#[derive(Debug, Default)]
pub struct Functions {
    /// As chat templates know them.
    pub tools: Vec<Value>,
    /// Those that have another name or form at their client.
    pub aliases: Aliases,
    names: HashSet<String>,
}

impl Functions {
    /// Adds a function of an object that has `name`, `description`, `parameters` and `strict`.
    pub fn plain(&mut self, path: &str, tool: &Value) -> Result<(), RequestError> {
        let name = name_of(path, tool)?;
        self.push(tool, name.to_owned(), None);
        Ok(())
    }

    /// Adds a tool that takes a text.
    pub fn custom(&mut self, path: &str, tool: &Value) -> Result<(), RequestError> {
        let name = name_of(path, tool)?;
        let alias = Alias {
            name: name.to_owned(),
            namespace: None,
            is_custom: true,
        };
        self.push(&text_function(tool), name.to_owned(), Some(alias));
        Ok(())
    }

    /// Adds the functions of a namespace.
    pub fn namespace(
        &mut self,
        path: &str,
        space: &Value,
        reader: &mut Reader,
    ) -> Result<(), RequestError> {
        let namespace = name_of(path, space)?;
        let tools = space.get("tools").and_then(Value::as_array);
        for (at, tool) in tools.into_iter().flatten().enumerate() {
            let path = format!("{path}.tools[{at}]");
            let kind = tool.get("type").and_then(Value::as_str);
            let is_custom = match kind.unwrap_or("function") {
                "function" => false,
                "custom" => true,
                _ => {
                    reader.leave_out(&format!("{path}.type"));
                    continue;
                }
            };
            let name = name_of(&path, tool)?;
            let alias = Alias {
                name: name.to_owned(),
                namespace: Some(namespace.to_owned()),
                is_custom,
            };
            let shown = joined(Some(namespace), name);
            match is_custom {
                true => self.push(&text_function(tool), shown, Some(alias)),
                false => self.push(tool, shown, Some(alias)),
            }
        }
        Ok(())
    }

    fn push(&mut self, tool: &Value, shown: String, alias: Option<Alias>) {
        let is_new = self.names.insert(shown.clone());
        // A name that is there already stays the first one's; a call of it could mean either.
        if !is_new && alias.is_some() {
            return;
        }
        let mut function = json!({"name": shown});
        for field in ["description", "parameters", "strict"] {
            if let Some(value) = tool.get(field).filter(|value| !value.is_null()) {
                function[field] = value.clone();
            }
        }
        self.tools
            .push(json!({"type": "function", "function": function}));
        if let Some(alias) = alias {
            self.aliases.0.insert(shown, alias);
        }
    }
}

fn name_of<'a>(path: &str, tool: &'a Value) -> Result<&'a str, RequestError> {
    let name = tool.get("name").and_then(Value::as_str);
    name.filter(|name| !name.is_empty())
        .ok_or_else(|| RequestError::invalid(format!("{path}.name"), "every function needs a name"))
}

/// The name under which the model is shown a function of a namespace.
pub fn joined(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("") => name.to_owned(),
        Some(space) if space.ends_with(BETWEEN) => format!("{space}{name}"),
        Some(space) => format!("{space}{BETWEEN}{name}"),
    }
}

/// A tool that takes a text, as a function of one argument.
fn text_function(tool: &Value) -> Value {
    let mut about = match tool.get("description").and_then(Value::as_str) {
        Some(text) => format!("{text}\n\n"),
        None => String::new(),
    };
    about.push_str("The argument `input` is the whole text of the call.");
    let grammar = ["/format/definition", "/format/grammar/definition"];
    let grammar = grammar
        .iter()
        .find_map(|place| tool.pointer(place)?.as_str());
    if let Some(grammar) = grammar.filter(|grammar| grammar.len() <= GRAMMAR_BYTES_MAX) {
        about.push_str(&format!(" It follows this grammar:\n{grammar}"));
    }
    json!({
        "description": about,
        "parameters": {
            "type": "object",
            "properties": {INPUT: {"type": "string"}},
            "required": [INPUT],
            "additionalProperties": false,
        },
    })
}

/// The arguments of a call of a tool that takes this text.
pub fn of_input(text: &str) -> String {
    json!({INPUT: text}).to_string()
}

/// The text that a call of a tool that takes one gives it. Arguments of another form are the text.
pub fn input_of(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let input = parsed.as_ref().and_then(|value| value.get(INPUT)?.as_str());
    input.unwrap_or(arguments).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_every_form_are_shown_as_functions() {
        let mut functions = Functions::default();
        let mut reader = Reader::default();
        let space = json!({"type": "namespace", "name": "mcp__files", "tools": [
            {"type": "function", "name": "read", "parameters": {"type": "object"}},
            {"type": "custom", "name": "patch"}, {"type": "web_search"}]});
        assert!(
            functions
                .plain("tools[0]", &json!({"name": "look"}))
                .is_ok()
        );
        assert!(functions.namespace("tools[1]", &space, &mut reader).is_ok());
        let grammar = json!({"type": "grammar", "syntax": "lark", "definition": "start: WORD"});
        let custom = json!({"name": "apply_patch", "description": "Edits.", "format": grammar});
        assert!(functions.custom("tools[2]", &custom).is_ok());
        let names: Vec<&str> = functions
            .tools
            .iter()
            .filter_map(|t| t["function"]["name"].as_str())
            .collect();
        assert_eq!(
            names,
            [
                "look",
                "mcp__files__read",
                "mcp__files__patch",
                "apply_patch"
            ]
        );
        let about = functions.tools[3]["function"]["description"].as_str();
        assert!(
            about.is_some_and(|text| text.starts_with("Edits.") && text.ends_with("start: WORD"))
        );
        let alias = functions.aliases.get("mcp__files__read");
        assert_eq!(
            alias.and_then(|alias| alias.namespace.as_deref()),
            Some("mcp__files")
        );
        assert_eq!(functions.aliases.get("look"), None);
        assert_eq!(reader.ignored(), ["tools.tools.type"]);
        assert!(functions.plain("t", &json!({})).is_err());
    }

    #[test]
    fn texts_of_calls_are_an_argument() {
        assert_eq!(input_of(&of_input("a \"b\"\n")), "a \"b\"\n");
        assert_eq!(input_of("*** Begin Patch"), "*** Begin Patch");
        assert_eq!(joined(Some("a__"), "b"), "a__b");
        assert_eq!(joined(None, "b"), "b");
    }
}
