//! Every setting with its value, where the value comes from, and what it is for.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use toml::{Table, Value};

use hone_api::settings::{Origin, Setting};

use super::hidden::{HIDDEN, without_password};
use super::layers::OPTIONAL;
use super::origins::leaves;
use super::{Config, ConfigError, DEFAULTS};

/// Last words of keys whose values are not shown.
const SECRETS: [&str; 6] = [
    "sha256",
    "key",
    "api_key",
    "secret",
    "client_secret",
    "password",
];

impl Config {
    /// Every setting, in the order of the defaults.
    pub fn settings(&self) -> Result<Vec<Setting>, ConfigError> {
        let wrong = |error: toml::ser::Error| ConfigError(error.to_string());
        let table = Table::try_from(self).map_err(wrong)?;
        let about = about();
        let mut settings = Vec::new();
        leaves("", &table, &mut |key, value| {
            let from = self.origins.0.get(key);
            settings.push(Setting {
                key: key.to_owned(),
                value: shown(key, value),
                origin: from.map_or(Origin::Default, |(origin, _)| *origin),
                source: from
                    .map(|(_, name)| name.clone())
                    .filter(|name| !name.is_empty()),
                doc: about.get(key).cloned().unwrap_or_default(),
            });
        });
        Ok(settings)
    }
}

/// The value without secrets.
fn shown(key: &str, value: &Value) -> Json {
    let last = key.rsplit('.').next().unwrap_or_default();
    match value {
        Value::String(text) if text.is_empty() => Json::String(String::new()),
        Value::String(_) if SECRETS.contains(&last) => Json::String(HIDDEN.to_owned()),
        Value::String(text) => Json::String(without_password(text)),
        Value::Array(items) => items.iter().map(|item| shown(key, item)).collect(),
        Value::Table(table) => {
            let fields = table.iter();
            let fields = fields.map(|(name, value)| (name.clone(), shown(name, value)));
            Json::Object(fields.collect())
        }
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => plain(*number).into(),
        Value::Boolean(yes) => (*yes).into(),
        Value::Datetime(time) => Json::String(time.to_string()),
    }
}

/// A number that came from single precision, in as few digits as it was written with.
fn plain(number: f64) -> f64 {
    let single = number as f32;
    let short = single.to_string().parse::<f64>();
    match short {
        Ok(short) if f64::from(single) == number => short,
        _ => number,
    }
}

/// What the comments of the default files say of each key.
fn about() -> BTreeMap<String, String> {
    let texts = OPTIONAL.iter().map(|(_, text)| *text).chain([DEFAULTS]);
    let mut about = BTreeMap::new();
    for text in texts {
        about_of(text, &mut about);
    }
    about
}

/// The comment lines before a key, or before the first of several keys, are about it.
fn about_of(text: &str, about: &mut BTreeMap<String, String>) {
    let (mut section, mut comment, mut is_fresh) = (String::new(), String::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix('#') {
            if !is_fresh {
                comment.clear();
            }
            is_fresh = true;
            if !comment.is_empty() {
                comment.push(' ');
            }
            comment.push_str(words.trim());
        } else if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = format!("{name}.");
            (comment, is_fresh) = (String::new(), false);
        } else if line.is_empty() {
            (comment, is_fresh) = (String::new(), false);
        } else if let Some((key, _)) = line.split_once(" = ")
            && !line.starts_with('"')
        {
            about.insert(format!("{section}{key}"), comment.clone());
            is_fresh = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    fn find<'a>(settings: &'a [Setting], key: &str) -> &'a Setting {
        let found = settings.iter().find(|setting| setting.key == key);
        found.unwrap_or_else(|| panic!("no setting {key}"))
    }

    #[test]
    fn every_setting_has_an_origin_and_a_sentence() {
        let file = "[http]\nmessages_max = 7\nchoices_max = 3\n[judge.model]\nname = \"m\"\nurl = \"http://u:magpie@box/v1\"\n[[http.keys]]\nowner = \"ann\"\nsha256 = \"ca9a5fca9a5fca9a5fca9a5fca9a5fca9a5fca9a5fca9a5fca9a5fca9a5fca9a\"\nadmin = true";
        let config = Config::load(&Sources {
            file: Some((file.to_owned(), "my.toml".to_owned())),
            env: vec![("HONE__HTTP__MESSAGES_MAX".to_owned(), "8".to_owned())],
            flags: vec![("http.bind".to_owned(), Value::from("127.0.0.1:1"))],
        });
        let settings = config.and_then(|c| c.settings()).expect("valid");
        let rows = [
            (
                "http.messages_max",
                Origin::Environment,
                "HONE__HTTP__MESSAGES_MAX",
                Json::from(8),
            ),
            ("http.choices_max", Origin::File, "my.toml", Json::from(3)),
            ("http.bind", Origin::Flag, "", Json::from("127.0.0.1:1")),
            ("http.worker_threads", Origin::Default, "", Json::from(2)),
            ("judge.model.name", Origin::File, "my.toml", Json::from("m")),
            ("judge.model.votes", Origin::Default, "", Json::from(3)),
            (
                "train.learner.clip_high",
                Origin::Default,
                "",
                Json::from(0.28),
            ),
            (
                "judge.model.url",
                Origin::File,
                "my.toml",
                Json::from("http://u:(set)@box/v1"),
            ),
        ];
        for (key, origin, source, value) in rows {
            let setting = find(&settings, key);
            let got = (
                setting.origin,
                setting.source.as_deref().unwrap_or_default(),
            );
            assert_eq!(got, (origin, source), "{key}");
            assert_eq!(setting.value, value, "{key}");
        }
        for setting in &settings {
            assert!(
                !setting.doc.is_empty(),
                "{} says nothing of itself",
                setting.key
            );
        }
        let text = serde_json::to_string(&settings).expect("JSON");
        assert!(
            !text.contains("magpie") && !text.contains("ca9a5f"),
            "{text}"
        );
        assert_eq!(find(&settings, "http.keys").value[0]["sha256"], HIDDEN);
        assert_eq!(find(&settings, "http.keys").value[0]["owner"], "ann");
    }

    #[test]
    fn the_comment_before_a_key_is_about_it() {
        let about = about();
        let rows = [
            ("loops", "The loops that run in this process."),
            (
                "http.body_bytes_max",
                "Most bytes of a request body (413 beyond).",
            ),
            ("train.learner.beta1", "AdamW."),
            (
                "judge.model.votes",
                "Votes per transition; a strict majority decides, a tie or a failure abstains.",
            ),
        ];
        for (key, expected) in rows {
            assert_eq!(about.get(key).map(String::as_str), Some(expected), "{key}");
        }
    }
}
