//! `hone versions`, `hone import`, `hone skill`, `hone tasks` and `hone rollout`: looks at and decides about what a running server has.

mod branch;
mod call;
mod import;
mod mine;
mod rollouts;
mod skills;
mod tasks;
mod text;

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use call::{Call, Server, Show, meant, send, show};
use text::{hold, list, one, pairs, refusals, scopes};

pub(crate) use branch::{BranchArgs, branch};
pub(crate) use call::client;
pub(crate) use import::{ImportCommand, import};
pub(crate) use rollouts::{RolloutCommand, rollout};
pub(crate) use skills::{SkillCommand, skill};
pub(crate) use tasks::{TasksCommand, tasks};

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

/// Runs one command.
///
/// # Errors
/// A sentence: the server cannot be reached, or refused.
pub(crate) fn run(command: VersionsCommand) -> Result<ExitCode, String> {
    let (target, call) = call_of(command);
    show(&target.server, send(&target.server, &call), call.show)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_for_a_query() {
        assert_eq!(escaped("5:owner/a b&c=é"), "5%3Aowner%2Fa%20b%26c%3D%C3%A9");
    }
}
