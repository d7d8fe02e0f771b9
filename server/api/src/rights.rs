//! What a request needs: one row per route. A route without a row is refused, so that a new one
//! is closed until somebody says who may use it.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::http::Method;
use hone_domain::UserRole;

use super::error::ApiError;
use hone_accounts::Caller;

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

/// Every route of the server: method, path as the router matches it, right. One row each.
pub const RIGHTS: &[(&str, &str, Right)] = &[
    // Probes and the document.
    ("GET", "/livez", Open),
    ("GET", "/readyz", Open),
    ("GET", "/readyz/learning", Open),
    ("GET", "/startupz", Open),
    ("GET", "/metrics", AdminRead),
    ("GET", "/openapi.json", User),
    // Files of the page.
    ("GET", "/", Open),
    ("GET", "/assets/{*path}", Open),
    // Completions.
    ("POST", "/v1/chat/completions", User),
    ("POST", "/v1/completions", User),
    ("POST", "/inference/v1/generate", User),
    ("POST", "/generate", User),
    ("POST", "/v1/responses", User),
    ("GET", "/v1/responses/{id}", User),
    ("DELETE", "/v1/responses/{id}", User),
    ("POST", "/v1/responses/{id}/cancel", User),
    ("POST", "/v1/messages", User),
    ("POST", "/v1/messages/count_tokens", User),
    ("POST", "/v1/embeddings", User),
    ("POST", "/tokenize", User),
    ("POST", "/detokenize", User),
    ("GET", "/v1/models", User),
    ("GET", "/v1/models/{*id}", User),
    // What became of it.
    ("POST", "/v1/feedback", User),
    ("GET", "/v1/sessions", User),
    ("GET", "/v1/sessions/{id}", User),
    ("GET", "/v1/turns", User),
    ("GET", "/v1/turns/{id}", User),
    // Versions.
    ("GET", "/v1/versions", User),
    ("GET", "/v1/versions/{version}", User),
    ("POST", "/v1/versions/{version}/rollback", User),
    ("POST", "/v1/versions/{version}/pin", User),
    ("DELETE", "/v1/versions/{version}/pin", User),
    ("POST", "/v1/versions/{version}/canary", User),
    ("POST", "/v1/versions/{version}/promote", User),
    ("POST", "/v1/versions/{version}/retire", User),
    ("DELETE", "/v1/versions/{version}/retire", User),
    ("POST", "/v1/versions/resume", User),
    ("POST", "/v1/versions/compare", User),
    ("GET", "/admin/v1/scopes", AdminRead),
    ("GET", "/admin/v1/refusals", AdminRead),
    ("GET", "/admin/v1/versions", AdminRead),
    ("GET", "/admin/v1/versions/series", AdminRead),
    ("GET", "/admin/v1/versions/{version}", AdminRead),
    ("POST", "/admin/v1/versions/import", AdminWrite),
    ("POST", "/admin/v1/versions/{version}/rollback", AdminWrite),
    ("POST", "/admin/v1/versions/{version}/pin", AdminWrite),
    ("DELETE", "/admin/v1/versions/{version}/pin", AdminWrite),
    ("POST", "/admin/v1/versions/{version}/canary", AdminWrite),
    ("POST", "/admin/v1/versions/{version}/promote", AdminWrite),
    ("POST", "/admin/v1/versions/{version}/retire", AdminWrite),
    ("DELETE", "/admin/v1/versions/{version}/retire", AdminWrite),
    ("POST", "/admin/v1/versions/resume", AdminWrite),
    ("POST", "/admin/v1/versions/compare", AdminWrite),
    // People.
    ("GET", "/v1/me", User),
    ("POST", "/v1/auth/sign-in", Open),
    ("POST", "/v1/auth/sign-out", Open),
    ("POST", "/v1/auth/invite", Open),
    ("POST", "/v1/auth/password", User),
    ("GET", "/v1/keys", User),
    ("POST", "/v1/keys", Developer),
    ("POST", "/v1/keys/{id}/rotate", Developer),
    ("PATCH", "/v1/keys/{id}", User),
    ("DELETE", "/v1/keys/{id}", User),
    ("GET", "/admin/v1/keys", AdminRead),
    ("DELETE", "/admin/v1/keys/{id}", AdminWrite),
    ("GET", "/admin/v1/users", AdminRead),
    ("POST", "/admin/v1/users", AdminWrite),
    ("PATCH", "/admin/v1/users/{name}", AdminWrite),
    ("POST", "/admin/v1/invites", AdminWrite),
    // Agents and teams; the handlers look whose they are.
    ("GET", "/v1/agents", User),
    ("POST", "/v1/agents", Developer),
    ("PATCH", "/v1/agents/{name}", User),
    ("GET", "/admin/v1/agents", AdminRead),
    ("GET", "/v1/teams", User),
    ("PUT", "/v1/teams/{name}/members/{member}", User),
    ("DELETE", "/v1/teams/{name}/members/{member}", User),
    ("GET", "/admin/v1/teams", AdminRead),
    ("POST", "/admin/v1/teams", AdminWrite),
    ("PATCH", "/admin/v1/teams/{name}", AdminWrite),
    ("GET", "/admin/v1/audit", AdminRead),
    ("GET", "/admin/v1/audit/verify", AdminRead),
    // One's own data and what it brings.
    ("GET", "/v1/consent", User),
    ("PUT", "/v1/consent", User),
    ("POST", "/v1/forget", User),
    ("GET", "/v1/forget/{id}", User),
    ("GET", "/v1/improvement", User),
    ("GET", "/v1/learned", User),
    ("GET", "/v1/learning", User),
    ("GET", "/admin/v1/improvement", AdminRead),
    ("GET", "/admin/v1/consents", AdminRead),
    ("GET", "/admin/v1/forgets", AdminRead),
    // The console.
    ("GET", "/admin/v1/turns", AdminRead),
    ("GET", "/admin/v1/turns/{id}", AdminRead),
    ("GET", "/admin/v1/status", AdminRead),
    ("GET", "/admin/v1/events", AdminRead),
    ("GET", "/admin/v1/series", AdminRead),
    ("GET", "/admin/v1/why", AdminRead),
    ("GET", "/admin/v1/config", AdminRead),
    ("POST", "/admin/v1/drain", AdminWrite),
    ("POST", "/admin/v1/loops/{name}/pause", AdminWrite),
    ("POST", "/admin/v1/loops/{name}/resume", AdminWrite),
];

/// Routes that ask the model.
const ASKS: &[&str] = &[
    "/generate",
    "/inference/v1/generate",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/responses",
];

/// Routes that ask two versions of it.
const COMPARES: &[&str] = &["/v1/versions/compare", "/admin/v1/versions/compare"];

/// Whether requests to a route count against the limits of whoever calls.
pub fn is_metered(path: Option<&str>) -> bool {
    path.is_some_and(|path| ASKS.contains(&path) || COMPARES.contains(&path))
}

/// Routes that only answer, for their client alone; and feedback, which the recorder carries out by
/// itself once it has it.
const ANSWERS: &[&str] = &[
    "/v1/feedback",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
];

/// Whether a request decides something, and so goes on to its end when its client leaves. Those of
/// strangers do not, so that strangers hold nothing but their connections.
pub fn is_act(method: &Method, path: Option<&str>) -> bool {
    let Some(path) = path else { return false };
    let is_read = [Method::GET, Method::HEAD].contains(method);
    let is_known = needed(method, Some(path)).is_ok_and(|right| right != Open);
    !is_read && is_known && !is_metered(Some(path)) && !ANSWERS.contains(&path)
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

/// What a keeper does for an agent on a route; none where the header is refused.
pub fn for_agents(path: Option<&str>) -> Option<ForAgents> {
    const OWN: &[&str] = &[
        "/v1/feedback",
        "/v1/consent",
        "/v1/forget",
        "/v1/improvement",
        "/v1/learned",
        "/v1/learning",
        "/v1/sessions",
        "/v1/turns",
        "/v1/versions",
    ];
    let path = path?;
    let is_in = |root: &str| {
        path.strip_prefix(root)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if is_in("/v1/keys") {
        return Some(ForAgents::Keys);
    }
    OWN.iter().any(|root| is_in(root)).then_some(ForAgents::Own)
}

/// Whether an agent's own key may do it: ask the model, read, give feedback.
pub fn is_open_to_agents(method: &Method, path: Option<&str>) -> bool {
    const ACTS: &[&str] = &[
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
        "/v1/feedback",
    ];
    let Some(path) = path else { return true };
    [Method::GET, Method::HEAD].contains(method) || ASKS.contains(&path) || ACTS.contains(&path)
}

static TABLE: LazyLock<HashMap<&str, Vec<(&str, Right)>>> = LazyLock::new(|| {
    let mut table: HashMap<&str, Vec<(&str, Right)>> = HashMap::new();
    for (method, path, right) in RIGHTS {
        table.entry(path).or_default().push((method, *right));
    }
    table
});

/// What a request to a matched route needs; none where nothing matched. HEAD needs what GET does.
pub fn needed(method: &Method, path: Option<&str>) -> Result<Right, ApiError> {
    // An unknown path is answered with 404, but not to strangers.
    let Some(path) = path else {
        return Ok(User);
    };
    let Some(rows) = TABLE.get(path) else {
        tracing::error!(path, "a route has no row in the table of rights");
        return Err(ApiError::Forbidden {
            code: "no_right",
            message: "this path is closed: it has no row in the server's table of rights"
                .to_owned(),
        });
    };
    let method = if *method == Method::HEAD {
        "GET"
    } else {
        method.as_str()
    };
    let row = rows.iter().find(|(m, _)| *m == method);
    row.map(|(_, right)| *right)
        .ok_or_else(|| ApiError::Method(method.chars().take(40).collect()))
}

/// The route that an unknown path stands for where `/v1` was forgotten, is too much, or is there twice.
pub fn meant(path: &str) -> Option<&'static str> {
    let mut rest = path.trim_end_matches('/');
    while let Some(inner) = rest.strip_prefix("/v1").filter(|r| r.starts_with('/')) {
        rest = inner;
    }
    let known = |path: &str| TABLE.get_key_value(path).map(|(route, _)| *route);
    known(&format!("/v1{rest}")).or_else(|| known(rest))
}

/// The methods of a route, for the header Allow.
pub fn methods(path: &str) -> String {
    let rows = TABLE.get(path).map(Vec::as_slice).unwrap_or_default();
    let names: Vec<&str> = rows.iter().map(|(method, _)| *method).collect();
    names.join(",")
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
