//! Wishes about how an answer is made that only a model's own template can grant: how much to reason,
//! how much to say. And what is done with wishes that have no effect here.

use serde_json::{Map, Value};

use crate::RequestError;

/// Words for how much a model should reason.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Words for how much it should say.
const VERBOSITIES: [&str; 3] = ["low", "medium", "high"];
/// The word of `VERBOSITIES` that asks for nothing special.
const VERBOSITY_USUAL: &str = "medium";

/// A wish and the field of the request that it is from.
pub type Wish<'a> = (&'static str, Option<&'a str>);

/// What the template is told, and what has no effect.
pub struct Granted<'a> {
    /// Whether the served model's template reads a variable of that name.
    pub reads: &'a dyn Fn(&str) -> bool,
    /// The template's variables; what the request sets itself stays.
    pub variables: &'a mut Map<String, Value>,
    /// Fields without effect.
    pub ignored: &'a mut Vec<String>,
}

impl Granted<'_> {
    fn tell(&mut self, name: &str, value: impl Into<Value>) -> bool {
        let reads = (self.reads)(name);
        if reads && !self.variables.contains_key(name) {
            self.variables.insert(name.to_owned(), value.into());
        }
        reads
    }

    /// How much to reason: the template's `reasoning_effort`, and its `enable_thinking`. Where it reads
    /// neither, the field is one without effect.
    pub fn effort(&mut self, (param, word): Wish<'_>) -> Result<(), RequestError> {
        let Some(word) = one_of((param, word), &EFFORTS)? else {
            return Ok(());
        };
        let graded = self.tell("reasoning_effort", word);
        let switched = self.tell("enable_thinking", word != "none");
        if !graded && !switched {
            self.ignored.push(param.to_owned());
        }
        Ok(())
    }

    /// How much to say: the template's `verbosity`. Without one, anything but the usual is refused:
    /// the answer would be another than was asked for.
    pub fn verbosity(&mut self, (param, word): Wish<'_>) -> Result<(), RequestError> {
        let Some(word) = one_of((param, word), &VERBOSITIES)? else {
            return Ok(());
        };
        if self.tell("verbosity", word) || word == VERBOSITY_USUAL {
            return Ok(());
        }
        Err(RequestError::unsupported(
            param,
            format!(
                "`{param}` is not supported: the model's chat template knows no verbosity; say in the messages how long the answer should be"
            ),
        ))
    }
}

fn one_of<'a>((param, word): Wish<'a>, known: &[&str]) -> Result<Option<&'a str>, RequestError> {
    match word {
        Some(word) if !known.contains(&word) => {
            let shown: String = word.chars().take(40).collect();
            let message = format!("{param} must be one of {}, not {shown:?}", known.join(", "));
            Err(RequestError::invalid(param, message))
        }
        other => Ok(other),
    }
}

/// A field of an object as text; an error if it is something else.
pub fn word_in<'a>(
    (param, object): (&'static str, Option<&'a Map<String, Value>>),
    name: &str,
) -> Result<Option<&'a str>, RequestError> {
    match object.and_then(|object| object.get(name)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) => Ok(Some(word)),
        Some(_) => Err(RequestError::invalid(
            param,
            format!("{param} must be a string"),
        )),
    }
}

/// Names the fields of an object that say something and that `known` lacks.
pub fn without_effect(
    (param, object): (&str, Option<&Map<String, Value>>),
    known: &[&str],
) -> Vec<String> {
    let fields = object.into_iter().flatten();
    fields
        .filter(|(name, value)| !value.is_null() && !known.contains(&name.as_str()))
        .map(|(name, _)| format!("{param}.{name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Variables and fields without effect, or the refused field.
    fn granted(
        template: &str,
        wish: impl FnOnce(&mut Granted<'_>) -> Result<(), RequestError>,
    ) -> Result<(Value, Vec<String>), String> {
        let (mut variables, mut ignored) = (Map::new(), Vec::new());
        let reads = |name: &str| template.split(' ').any(|word| word == name);
        let mut granted = Granted {
            reads: &reads,
            variables: &mut variables,
            ignored: &mut ignored,
        };
        match wish(&mut granted) {
            Ok(()) => Ok((Value::Object(variables), ignored)),
            Err(error) => Err(error.param().unwrap_or_default().to_owned()),
        }
    }

    #[test]
    fn effort_reaches_what_the_template_reads() {
        let none: Vec<String> = Vec::new();
        let rows = [
            (
                "reasoning_effort",
                "low",
                json!({"reasoning_effort": "low"}),
                none.clone(),
            ),
            (
                "enable_thinking",
                "none",
                json!({"enable_thinking": false}),
                none.clone(),
            ),
            (
                "enable_thinking",
                "minimal",
                json!({"enable_thinking": true}),
                none.clone(),
            ),
            (
                "messages",
                "high",
                json!({}),
                vec!["reasoning.effort".to_owned()],
            ),
        ];
        for (template, word, variables, ignored) in rows {
            let got = granted(template, |g| g.effort(("reasoning.effort", Some(word))));
            assert_eq!(got, Ok((variables, ignored)), "{template} {word}");
        }
        let wrong = granted("reasoning_effort", |g| {
            g.effort(("reasoning_effort", Some("much")))
        });
        assert_eq!(wrong, Err("reasoning_effort".to_owned()));
    }

    #[test]
    fn verbosity_works_or_is_refused() {
        let told = granted("verbosity", |g| g.verbosity(("verbosity", Some("low"))));
        assert_eq!(told, Ok((json!({"verbosity": "low"}), Vec::new())));
        let usual = granted("", |g| g.verbosity(("verbosity", Some("medium"))));
        assert_eq!(usual, Ok((json!({}), Vec::new())));
        for word in ["low", "high", "chatty"] {
            let got = granted("", |g| g.verbosity(("text.verbosity", Some(word))));
            assert_eq!(got, Err("text.verbosity".to_owned()), "{word}");
        }
    }

    #[test]
    fn what_the_request_sets_itself_stays() {
        let mut variables = Map::new();
        variables.insert("enable_thinking".to_owned(), json!(true));
        let mut granted = Granted {
            reads: &|_| true,
            variables: &mut variables,
            ignored: &mut Vec::new(),
        };
        assert!(granted.effort(("reasoning_effort", Some("none"))).is_ok());
        assert_eq!(
            Value::Object(variables),
            json!({"enable_thinking": true, "reasoning_effort": "none"})
        );
    }
}
