//! What agents are told, and how what they say is read.

use hone_domain::{Message, ParsedOutput, Role};
use serde_json::{Value, json};

/// Longest output of a command that an agent is shown, in bytes.
pub(crate) const OBSERVATION_BYTES: usize = 8_000;

/// What an agent with a shell is told where its model can call tools.
const WITH_CALLS: &str = "You work in a Linux shell to complete a task. Call bash with one command at a time and read its \
    output. Files that you change stay changed. Call submit when the task is done.";

/// The same where the model has no form of calls.
const WITH_BLOCKS: &str = "You work in a Linux shell to complete a task. Answer with one command in a block that begins with \
    ```bash and ends with ```. You are shown its output then. Files that you change stay changed. Answer with the word \
    SUBMIT alone when the task is done.";

/// What an agent without a shell is told where a file is wanted.
const ONE_ANSWER: &str = "Answer with the whole content of the file that is asked for, in one block that begins and ends with ```.";

/// The tools of an agent with a shell.
pub(crate) fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {
            "name": "bash",
            "description": "Runs a command in the shell and returns its output.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
                "additionalProperties": false
            }
        }}),
        json!({"type": "function", "function": {
            "name": "submit",
            "description": "Ends the work: the task is done.",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": false}
        }}),
    ]
}

/// How an agent with a shell begins.
pub(crate) fn opening(instruction: &str, can_call: bool) -> Vec<Message> {
    let told = if can_call { WITH_CALLS } else { WITH_BLOCKS };
    vec![
        Message::text(Role::System, told),
        Message::text(Role::User, instruction),
    ]
}

/// What a model is asked whose one answer is the content of a file, or is looked at as it is where none is named.
pub(crate) fn question(instruction: &str, file: Option<&str>) -> Vec<Message> {
    let told = file.map(|_| Message::text(Role::System, ONE_ANSWER));
    let asked = Message::text(Role::User, instruction);
    told.into_iter().chain([asked]).collect()
}

/// What an agent does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Run this command.
    Run(String),
    /// It says that it is done.
    Submit,
    /// Nothing that is understood; what to tell it.
    Unclear(String),
}

/// What a step of an agent asks for.
pub(crate) fn act(said: &ParsedOutput, can_call: bool) -> Act {
    if !can_call {
        return match block(&said.content) {
            Some(command) => Act::Run(command),
            None if said.content.trim().trim_matches('.') == "SUBMIT" => Act::Submit,
            None => Act::Unclear(
                "Nothing was run: there is no block that begins with ```bash. Answer SUBMIT alone when you are done."
                    .to_owned(),
            ),
        };
    }
    let Some(call) = said.calls.first() else {
        return Act::Unclear(
            "Nothing was run: call bash, or submit when the task is done.".to_owned(),
        );
    };
    match call.name.as_str() {
        "submit" => Act::Submit,
        "bash" => {
            let arguments: Option<Value> = serde_json::from_str(&call.arguments).ok();
            let command = arguments.as_ref().and_then(|a| a.get("command")?.as_str());
            match command {
                Some(command) => Act::Run(command.to_owned()),
                None => Act::Unclear("Nothing was run: bash needs a command.".to_owned()),
            }
        }
        other => Act::Unclear(format!(
            "There is no tool {other:?}; there are bash and submit."
        )),
    }
}

/// The content of the first block of code.
fn block(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("```")?;
    let (_, body) = rest.split_once('\n')?;
    let body = body.split("```").next().unwrap_or(body).trim_end();
    (!body.is_empty()).then(|| body.to_owned())
}

/// The content of the last block of code, or all of the text where there is none.
pub(crate) fn answer(text: &str) -> String {
    let parts: Vec<&str> = text.split("```").collect();
    // What stands between two marks; a last one that is not closed counts as well.
    let last = (1..parts.len()).step_by(2).next_back().map(|at| parts[at]);
    let Some(last) = last else {
        return format!("{}\n", text.trim());
    };
    let body = match last.split_once('\n') {
        // The word behind the mark names a language.
        Some((word, body)) if !word.trim().contains(' ') => body,
        _ => last,
    };
    format!("{}\n", body.trim_end())
}

#[cfg(test)]
mod tests {
    use hone_domain::Part;

    use super::*;

    fn called(name: &str, arguments: &str) -> ParsedOutput {
        let mut said = ParsedOutput::default();
        let (begin, end) = arguments.split_at(arguments.len() / 2);
        said.add(vec![
            Part::Reasoning("hm".to_owned()),
            Part::CallBegun(name.to_owned()),
            Part::Arguments(begin.to_owned()),
        ]);
        said.add(vec![Part::Arguments(end.to_owned())]);
        said
    }

    fn text(text: &str) -> ParsedOutput {
        ParsedOutput {
            content: text.to_owned(),
            ..ParsedOutput::default()
        }
    }

    #[test]
    fn calls_are_acts() {
        let run = act(&called("bash", r#"{"command": "ls"}"#), true);
        assert_eq!(run, Act::Run("ls".to_owned()));
        assert_eq!(act(&called("submit", "{}"), true), Act::Submit);
        for unclear in [called("bash", "{}"), called("rm", "{}"), text("I am done")] {
            assert!(
                matches!(act(&unclear, true), Act::Unclear(_)),
                "{unclear:?}"
            );
        }
    }

    #[test]
    fn blocks_are_acts() {
        for (says, expected) in [
            (
                "First:\n```bash\nls -l\n```\nand so on",
                Act::Run("ls -l".to_owned()),
            ),
            ("```\nls\ncat a", Act::Run("ls\ncat a".to_owned())),
            ("SUBMIT", Act::Submit),
            (" SUBMIT.\n", Act::Submit),
        ] {
            assert_eq!(act(&text(says), false), expected, "{says}");
        }
        for unclear in ["I will SUBMIT it", "", "```bash\n```", "``` ls ```"] {
            assert!(
                matches!(act(&text(unclear), false), Act::Unclear(_)),
                "{unclear}"
            );
        }
    }

    #[test]
    fn the_last_block_is_the_answer() {
        for (says, expected) in [
            ("plain", "plain\n"),
            ("```python\nx = 1\n```", "x = 1\n"),
            ("a ```x``` b\n```\ny\n\n```\nc", "y\n"),
            ("```python\nx = 1", "x = 1\n"),
        ] {
            assert_eq!(answer(says), expected, "{says}");
        }
    }
}
