//! What a route needs of its caller, and what a request to it does. `routes` declares both beside each handler;
//! [`RouteTable`] answers for the middleware. A path without a rule is refused.

use std::collections::BTreeMap;

use axum::http::Method;
use hone_domain::UserRole;

use hone_accounts::Caller;
use hone_replies::error::ApiError;

/// What a route needs of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Nothing: probes, files of the page, signing in.
    Open,
    /// Anybody known, for what is their own.
    User,
    /// A developer or an admin.
    Developer,
    /// An admin or an auditor.
    AdminRead,
    /// An admin.
    AdminWrite,
}

use Right::{AdminRead, AdminWrite, Developer, Open, User};

/// What a request to a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads with GET and HEAD; decides something with any other method, and so goes on to its end when its
    /// client leaves. Requests of strangers end with their connection, so that strangers hold nothing else.
    Plain,
    /// Answers its client alone and changes nothing; feedback too, which the recorder carries out by itself.
    Answer,
    /// Asks the model; counts against the caller's limits.
    Ask,
    /// Asks two versions of the model; counts against the caller's limits.
    Compare,
}

/// What a keeper does for an agent on a route, with the header `x-hone-agent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForAgents {
    /// Keys; an admin may as well.
    Keys,
    /// What it said, what was learned from it, and what may be; the keeper alone. An admin reads
    /// under `/admin`, where that is recorded.
    Own,
}

/// All that the middleware knows of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it needs of its caller.
    pub right: Right,
    /// What a request does.
    pub work: Work,
    /// What a keeper does there for an agent; none where the header is refused.
    pub for_agents: Option<ForAgents>,
    /// Whether a retry with the same `Idempotency-Key` gets the answer of the first request.
    pub is_idempotent: bool,
}

impl From<Right> for Rule {
    fn from(right: Right) -> Self {
        Self {
            right,
            work: Work::Plain,
            for_agents: None,
            is_idempotent: false,
        }
    }
}

impl Right {
    /// The rule of a route that does this.
    pub fn with(self, work: Work) -> Rule {
        Rule {
            work,
            ..Rule::from(self)
        }
    }

    /// The rule of a route that a keeper may call for an agent.
    pub fn for_agents(self, what: ForAgents) -> Rule {
        Rule::from(self).for_agents(what)
    }
}

impl Rule {
    /// An unknown path is answered with 404, but not to strangers.
    const UNKNOWN: Self = Self {
        right: User,
        work: Work::Answer,
        for_agents: None,
        is_idempotent: false,
    };

    /// The same for a route that a keeper may call for an agent.
    pub fn for_agents(self, what: ForAgents) -> Self {
        Self {
            for_agents: Some(what),
            ..self
        }
    }

    /// The same for a route whose answers are kept for retries.
    pub fn idempotent(self) -> Self {
        Self {
            is_idempotent: true,
            ..self
        }
    }

    /// Whether requests count against the limits of whoever calls.
    pub fn is_metered(&self) -> bool {
        matches!(self.work, Work::Ask | Work::Compare)
    }

    /// Whether a request decides something, and so goes on to its end when its client leaves.
    pub fn is_act(&self, method: &Method) -> bool {
        self.work == Work::Plain && self.right != Open && !is_read(method)
    }

    /// Whether an agent's own key may do it: ask the model, read, give feedback.
    pub fn is_open_to_agents(&self, method: &Method) -> bool {
        is_read(method) || matches!(self.work, Work::Ask | Work::Answer)
    }
}

fn is_read(method: &Method) -> bool {
    [Method::GET, Method::HEAD].contains(method)
}

/// The rule of every route: by path as the router matches it, then by method.
#[derive(Clone, Debug, Default)]
pub struct RouteTable(BTreeMap<String, Vec<(Method, Rule)>>);

impl RouteTable {
    /// Adds a route.
    pub fn add(&mut self, method: Method, path: &str, rule: Rule) {
        let rows = self.0.entry(path.to_owned()).or_default();
        rows.push((method, rule));
    }

    /// Every route: method, path, rule.
    pub fn rows(&self) -> impl Iterator<Item = (&Method, &str, Rule)> {
        self.0.iter().flat_map(|(path, rows)| {
            rows.iter()
                .map(move |(method, rule)| (method, path.as_str(), *rule))
        })
    }

    /// The rule of a request to a matched route. HEAD needs what GET does.
    pub fn rule(&self, method: &Method, path: Option<&str>) -> Result<Rule, ApiError> {
        let Some(path) = path else {
            return Ok(Rule::UNKNOWN);
        };
        let Some(rows) = self.0.get(path) else {
            tracing::error!(path, "a route has no rule");
            return Err(ApiError::Forbidden {
                code: "no_right",
                message: "this path is closed: it has no row in the server's table of rights"
                    .to_owned(),
            });
        };
        let method = match *method {
            Method::HEAD => &Method::GET,
            _ => method,
        };
        let row = rows.iter().find(|(m, _)| m == method);
        row.map(|(_, rule)| *rule)
            .ok_or_else(|| ApiError::Method(method.as_str().chars().take(40).collect()))
    }

    /// The route that an unknown path stands for where `/v1` was forgotten, is too much, or is there twice.
    pub fn meant(&self, path: &str) -> Option<&str> {
        let mut rest = path.trim_end_matches('/');
        while let Some(inner) = rest.strip_prefix("/v1").filter(|r| r.starts_with('/')) {
            rest = inner;
        }
        let known = |path: &str| self.0.get_key_value(path).map(|(route, _)| route.as_str());
        known(&format!("/v1{rest}")).or_else(|| known(rest))
    }

    /// The methods of a route, for the header Allow.
    pub fn methods(&self, path: &str) -> String {
        let rows = self.0.get(path).map(Vec::as_slice).unwrap_or_default();
        let names: Vec<&str> = rows.iter().map(|(method, _)| method.as_str()).collect();
        names.join(",")
    }
}

/// What a caller's role lets them do on routes.
pub trait HasRights {
    /// Whether this caller has a right.
    fn may(&self, right: Right) -> bool;

    /// Refuses without the right; the message names the roles that have it.
    fn check(&self, right: Right) -> Result<(), ApiError>;
}

impl HasRights for Caller {
    fn may(&self, right: Right) -> bool {
        let least = match right {
            Open | User => UserRole::User,
            Developer => UserRole::Developer,
            AdminRead => UserRole::Auditor,
            AdminWrite => UserRole::Admin,
        };
        self.role.covers(least)
    }

    fn check(&self, right: Right) -> Result<(), ApiError> {
        if self.may(right) {
            return Ok(());
        }
        let needs = match right {
            Open | User => "any role",
            Developer => "the role developer or admin",
            AdminRead => "the role admin or auditor",
            AdminWrite => "the role admin",
        };
        Err(ApiError::Forbidden {
            code: "not_allowed",
            message: format!(
                "this path needs {needs}, and yours is {}; ask an admin of this server",
                self.role.as_str()
            ),
        })
    }
}
