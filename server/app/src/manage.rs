//! `hone versions` and `hone import`: looks at and decides about published versions of a running
//! server.

mod import;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Address, Trust, unreachable};
use crate::table::{
    Side::{Left, Right},
    table,
};

pub(crate) use import::{ImportCommand, import};

/// Longest wait for an answer; a comparison generates.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What to do with versions.
#[derive(Debug, Subcommand)]
pub(crate) enum VersionsCommand {
    /// Published versions, newest first.
    List(Target),
    /// One version with its lineage and what it learned from.
    Show {
        /// Its number.
        version: u64,
        #[command(flatten)]
        target: Target,
    },
    /// Publish an older version again; 0 is the base model.
    Rollback {
        /// What is to be served again.
        version: u64,
        /// Why, for others to read.
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Keep a version served: nothing newer is published until it is released.
    Pin {
        /// What is to stay.
        version: u64,
        #[command(flatten)]
        target: Target,
    },
    /// Release a pin.
    Unpin(Target),
    #[command(flatten)]
    Trial(TrialCommand),
    /// Learn again after an automatic rollback.
    Resume(Target),
    /// Answer the same prompts with two versions.
    Compare {
        /// One version; 0 is the base model.
        a: u64,
        /// The other.
        b: u64,
        /// A question to ask both, any number of times; without one the newest prompts are taken.
        #[arg(long)]
        prompt: Vec<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Every scope with what it is served.
    Scopes(Target),
    /// Candidates that the gate refused.
    Refusals(Target),
}

/// Which versions are tried, promoted and retired.
#[derive(Debug, Subcommand)]
pub(crate) enum TrialCommand {
    /// Let a version answer a share of the sessions, and the others what was served before.
    Canary {
        /// What is tried; an older one is published again.
        version: u64,
        /// Share of the sessions.
        #[arg(long, default_value_t = 0.1)]
        share: f64,
        #[command(flatten)]
        target: Target,
    },
    /// Let a version answer every session.
    Promote {
        /// What is to answer.
        version: u64,
        #[command(flatten)]
        target: Target,
    },
    /// Take a version out of service.
    Retire {
        /// What is to go.
        version: u64,
        #[command(flatten)]
        target: Target,
    },
    /// Take a retired version back into service.
    Unretire {
        /// What is to come back.
        version: u64,
        #[command(flatten)]
        target: Target,
    },
}

/// Which server.
#[derive(Clone, Debug, Args)]
pub(crate) struct Server {
    #[command(flatten)]
    address: Address,
    /// API key; on this machine's loopback none is needed.
    #[arg(long, value_name = "KEY", env = "HONE_API_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print the server's answer as it is.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trust: Trust,
}

/// Which server, and whose versions.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    #[command(flatten)]
    server: Server,
    /// The `user` field of the requests in question.
    #[arg(long, conflicts_with = "scope")]
    user: Option<String>,
    /// Any scope as `hone versions scopes` shows it, or an owner's own by the owner's name; needs an
    /// admin.
    #[arg(long, value_parser = meant)]
    scope: Option<String>,
}

/// What is asked of the server.
struct Call {
    method: Method,
    path: String,
    body: Option<Value>,
    show: fn(&Value) -> String,
}

impl Call {
    fn get(path: String, show: fn(&Value) -> String) -> Self {
        Self {
            method: Method::GET,
            path,
            body: None,
            show,
        }
    }
}

/// Runs one command.
///
/// # Errors
/// A sentence: the server cannot be reached, or refused.
pub(crate) fn run(command: VersionsCommand) -> Result<ExitCode, String> {
    let (target, call) = call_of(command);
    show(&target.server, send(&target.server, &call), call.show)
}

/// Waits for an answer and prints it.
fn show(
    server: &Server,
    answer: impl Future<Output = Result<Value, String>>,
    text: Show,
) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let answer = runtime.block_on(answer)?;
    let text = match server.json {
        true => format!("{answer:#}\n"),
        false => text(&answer),
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

type Show = fn(&Value) -> String;

fn post(target: Target, path: &str, extra: Value, show: Show) -> (Target, Call) {
    let call = Call {
        method: Method::POST,
        path: target.base(path),
        body: Some(target.body(extra)),
        show,
    };
    (target, call)
}

fn delete(target: Target, path: &str) -> (Target, Call) {
    let call = Call {
        method: Method::DELETE,
        path: target.path(path),
        body: None,
        show: hold,
    };
    (target, call)
}

fn trial_call(command: TrialCommand) -> (Target, Call) {
    match command {
        TrialCommand::Canary {
            version,
            share,
            target,
        } => {
            let path = format!("versions/{version}/canary");
            post(target, &path, json!({ "share": share }), hold)
        }
        TrialCommand::Promote { version, target } => {
            let path = format!("versions/{version}/promote");
            post(target, &path, json!({}), hold)
        }
        TrialCommand::Retire { version, target } => {
            let path = format!("versions/{version}/retire");
            post(target, &path, json!({}), hold)
        }
        TrialCommand::Unretire { version, target } => {
            delete(target, &format!("versions/{version}/retire"))
        }
    }
}

fn call_of(command: VersionsCommand) -> (Target, Call) {
    let get = |target: Target, path: &str, show| {
        let call = Call::get(target.path(path), show);
        (target, call)
    };
    match command {
        VersionsCommand::List(target) => get(target, "versions", list),
        VersionsCommand::Show { version, target } => {
            get(target, &format!("versions/{version}"), one)
        }
        VersionsCommand::Rollback {
            version,
            note,
            target,
        } => {
            let path = format!("versions/{version}/rollback");
            post(target, &path, json!({ "note": note }), one)
        }
        VersionsCommand::Pin { version, target } => {
            post(target, &format!("versions/{version}/pin"), json!({}), hold)
        }
        VersionsCommand::Unpin(target) => delete(target, "versions/0/pin"),
        VersionsCommand::Trial(command) => trial_call(command),
        VersionsCommand::Resume(target) => post(target, "versions/resume", json!({}), hold),
        VersionsCommand::Compare {
            a,
            b,
            prompt,
            target,
        } => {
            let ask = |text: &String| json!([{ "role": "user", "content": text }]);
            let prompts: Vec<Value> = prompt.iter().map(ask).collect();
            let prompts = (!prompts.is_empty()).then_some(prompts);
            let body = json!({ "a": a, "b": b, "prompts": prompts });
            post(target, "versions/compare", body, pairs)
        }
        VersionsCommand::Scopes(target) => {
            let path = "/admin/v1/scopes?limit=1000".to_owned();
            (target, Call::get(path, scopes))
        }
        VersionsCommand::Refusals(target) => {
            let of = target.scope.as_ref();
            let query = of.map_or(String::new(), |scope| format!("?scope={}", escaped(scope)));
            let path = format!("/admin/v1/refusals{query}");
            (target, Call::get(path, refusals))
        }
    }
}

pub(crate) fn client(trust: &Trust, timeout: Duration) -> Result<reqwest::Client, String> {
    let client = trust.client()?.timeout(timeout).build();
    client.map_err(|error| format!("the HTTP client could not be made: {error}"))
}

fn meant(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(hone_domain::Scope::meant(text).to_string())
}

impl Target {
    fn base(&self, path: &str) -> String {
        let root = if self.scope.is_some() {
            "/admin/v1"
        } else {
            "/v1"
        };
        format!("{root}/{path}")
    }

    /// With whose versions in the query.
    fn path(&self, path: &str) -> String {
        let base = self.base(path);
        match (&self.scope, &self.user) {
            (Some(scope), _) => format!("{base}?scope={}", escaped(scope)),
            (None, Some(user)) => format!("{base}?user={}", escaped(user)),
            (None, None) => base,
        }
    }

    /// With whose versions in the body.
    fn body(&self, mut body: Value) -> Value {
        body["scope"] = json!(self.scope);
        body["user"] = json!(self.user);
        body
    }
}

/// Percent-encoded, but for letters, digits and `-._~`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _infallible = write!(out, "%{byte:02X}");
        }
    }
    out
}

async fn send(server: &Server, call: &Call) -> Result<Value, String> {
    let client = client(&server.trust, TIMEOUT)?;
    let url = format!("{}{}", server.address.url()?, call.path);
    let mut request = client.request(call.method.clone(), &url);
    if let Some(key) = &server.key {
        request = request.bearer_auth(key);
    }
    if let Some(body) = &call.body {
        request = request.json(body);
    }
    let reply = request.send().await;
    let reply = reply.map_err(|error| unreachable(&url, error))?;
    let status = reply.status();
    let answer: Value = reply
        .json()
        .await
        .map_err(|error| format!("{url} did not answer with JSON ({error})"))?;
    if status.is_success() {
        return Ok(answer);
    }
    let message = answer["error"]["message"].as_str().unwrap_or("no message");
    let code = answer["error"]["code"].as_str().unwrap_or("no code");
    Err(format!("{message} ({status}, {code})"))
}

fn rows(answer: &Value) -> impl Iterator<Item = &Value> {
    answer["data"].as_array().into_iter().flatten()
}

fn marks(version: &Value) -> String {
    let marks = [
        "on_trial",
        "pinned",
        "provisional",
        "tripped",
        "tainted",
        "retired",
        "pruned",
    ];
    let set = marks.into_iter().filter(|mark| version[*mark] == true);
    let mut text = set.collect::<Vec<_>>().join(" ");
    if let Some(note) = version["note"].as_str() {
        text = format!("{text} {note}");
    }
    text.trim().to_owned()
}

fn score(value: &Value) -> String {
    value
        .as_f64()
        .map_or("-".to_owned(), |mean| format!("{mean:.2}"))
}

fn list(answer: &Value) -> String {
    let mut text = format!("served: version {}\n", served(answer));
    if let Some(why) = answer["standing"]["tripped"]["note"].as_str() {
        text.push_str(&format!("learning is stopped: {why}\n"));
    }
    text.push_str(&trial(answer));
    let row = |v: &Value| {
        vec![
            v["version"].to_string(),
            v["parent"].to_string(),
            v["status"].as_str().unwrap_or_default().to_owned(),
            v["samples"].to_string(),
            score(&v["mean_score"]),
            v["scored_turns"].to_string(),
            marks(v),
        ]
    };
    let names = [
        ("version", Right),
        ("parent", Right),
        ("status", Left),
        ("samples", Right),
        ("score", Right),
        ("turns", Right),
        ("", Left),
    ];
    text.push_str(&table(&names, &rows(answer).map(row).collect::<Vec<_>>()));
    text
}

fn one(v: &Value) -> String {
    let mut text = format!(
        "version {} ({}), from {}: {} samples, score {}\n",
        v["version"],
        v["status"].as_str().unwrap_or_default(),
        v["parent"],
        v["samples"],
        score(&v["mean_score"]),
    );
    let marks = marks(v);
    if !marks.is_empty() {
        text.push_str(&format!("{marks}\n"));
    }
    if !v["lineage"].is_null() {
        text.push_str(&format!(
            "continues {}; continued by {}\n",
            v["lineage"], v["children"]
        ));
    }
    for turn in v["turns"].as_array().into_iter().flatten() {
        let id = turn["turn_id"].as_str().unwrap_or_default();
        text.push_str(&format!("  {id}  {}\n", score(&turn["score"])));
    }
    text
}

fn hold(v: &Value) -> String {
    let pinned = if v["pinned"] == true { ", pinned" } else { "" };
    let stopped = v["tripped"].as_str();
    let stopped = stopped.map_or(String::new(), |why| format!(", learning stopped: {why}"));
    format!(
        "served: version {}{pinned}{stopped}\n{}",
        served(v),
        trial(v)
    )
}

/// The version that every session gets that no trial draws.
fn served(answer: &Value) -> &Value {
    let proven = answer["trial"].get("proven");
    proven.unwrap_or(&answer["current"])
}

/// What both sides of a trial have done; nothing where nothing is on trial.
fn trial(answer: &Value) -> String {
    let trial = &answer["trial"];
    let Some(share) = trial["share"].as_f64() else {
        return String::new();
    };
    let mut text = format!(
        "version {} is on trial on {:.0} % of the sessions:\n",
        trial["version"],
        share * 100.0
    );
    for arm in trial["arms"].as_array().into_iter().flatten() {
        text.push_str(&format!(
            "  version {}: {} answers, {} judged, {} complaints, score {}\n",
            arm["version"],
            arm["turns"],
            arm["scored_turns"],
            arm["complaints"],
            score(&arm["mean_score"]),
        ));
    }
    text
}

fn pairs(answer: &Value) -> String {
    let mut text = String::new();
    for pair in rows(answer) {
        let asked = pair["messages"].as_array().and_then(|m| m.last());
        let asked = asked
            .and_then(|m| m["content"].as_str())
            .unwrap_or_default();
        text.push_str(&format!("> {asked}\n"));
        for side in ["a", "b"] {
            let said = &pair[side];
            let words = said["text"].as_str().unwrap_or_default();
            text.push_str(&format!("  v{}: {words}\n", said["version"]));
        }
    }
    text
}

fn scopes(answer: &Value) -> String {
    let row = |s: &Value| {
        let pinned = (s["pinned"] == true).then(|| "pinned".to_owned());
        let stopped = s["tripped"].as_str().map(|why| format!("stopped: {why}"));
        let tried = s["canary"].as_u64().map(|v| format!("{v} is on trial"));
        let marks: Vec<String> = pinned.into_iter().chain(stopped).chain(tried).collect();
        vec![
            s["current"].to_string(),
            s["versions"].to_string(),
            s["turns"].to_string(),
            score(&s["mean_score"]),
            s["scope"].as_str().unwrap_or_default().to_owned(),
            marks.join(", "),
        ]
    };
    let names = [
        ("served", Right),
        ("versions", Right),
        ("turns", Right),
        ("score", Right),
        ("scope", Left),
        ("", Left),
    ];
    table(&names, &rows(answer).map(row).collect::<Vec<_>>())
}

fn refusals(answer: &Value) -> String {
    let mut text = String::new();
    for r in rows(answer) {
        text.push_str(&format!(
            "{} from version {} ({} samples, {})\n",
            r["scope"].as_str().unwrap_or_default(),
            r["parent"],
            r["samples"],
            r["reason"].as_str().unwrap_or_default(),
        ));
        for reason in r["reasons"].as_array().into_iter().flatten() {
            text.push_str(&format!("  {}\n", reason.as_str().unwrap_or_default()));
        }
    }
    if text.is_empty() {
        text.push_str("no candidate was refused\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_for_a_query() {
        assert_eq!(escaped("5:owner/a b&c=é"), "5%3Aowner%2Fa%20b%26c%3D%C3%A9");
    }

    #[test]
    fn a_list_shows_what_people_look_for() {
        let answer = json!({
            "current": 3,
            "standing": {"pinned": true, "tripped": null},
            "data": [{"version": 3, "parent": 1, "status": "rollback", "samples": 0,
                      "mean_score": -0.25, "scored_turns": 4, "pinned": true, "note": "worse"}],
        });
        let text = list(&answer);
        assert!(text.starts_with("served: version 3\n"), "{text}");
        let wanted = "\
version  parent  status    samples  score  turns
      3       1  rollback        0  -0.25      4  pinned worse
";
        assert!(text.ends_with(wanted), "{text}");
    }

    #[test]
    fn what_is_on_trial_is_not_what_is_served() {
        let arm = |version: u64| json!({"version": version, "turns": 5, "scored_turns": 1, "complaints": 0});
        let trial = json!({"version": 3, "proven": 2, "share": 0.2, "arms": [arm(3), arm(2)]});
        let answer = json!({"current": 3, "standing": {}, "trial": trial, "data": []});
        let wanted = "\
served: version 2
version 3 is on trial on 20 % of the sessions:
  version 3: 5 answers, 1 judged, 0 complaints, score -
  version 2: 5 answers, 1 judged, 0 complaints, score -
";
        assert_eq!(hold(&answer), wanted);
        assert!(list(&answer).starts_with(wanted));
    }

    #[test]
    fn scopes_stand_in_columns_whatever_their_names() {
        let answer = json!({"data": [
            {"current": 12, "versions": 140, "turns": 7, "mean_score": 0.5, "scope": "5:local",
             "pinned": true, "tripped": "worse"},
            {"current": 4, "versions": 4, "turns": 123456, "mean_score": null, "canary": 4,
             "scope": "9:helpdesk-/zo\u{eb}"},
        ]});
        let wanted = "\
served  versions   turns  score  scope
    12       140       7   0.50  5:local          pinned, stopped: worse
     4         4  123456      -  9:helpdesk-/zo\u{eb}  4 is on trial
";
        assert_eq!(scopes(&answer), wanted);
    }
}
