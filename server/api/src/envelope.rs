//! Around every request: its id, who calls, from which page, panics, counters, one log line.

use std::net::{IpAddr, Ipv4Addr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use hone_domain::{RequestId, UserRole};
use hone_inference::EpisodeAccess;
use hone_net::listen::Peer;
use http_body_util::BodyExt;

use super::Http;
use super::cors::Cors;
use super::episodes;
use super::guard::{self, Credential};
use super::request_context::RequestContext;
use super::rights::{ForAgents, HasRights as _, Right, RouteTable, Rule};
use hone_accounts::Caller;
use hone_accounts::rate_limit::{RateLimitStatus, reset_text};
use hone_accounts::secrets::{csrf, same};
use hone_monitor::telemetry;
use hone_replies::error::ApiError;
use hone_replies::messages_errors;

/// Names the agent that a keeper acts for.
const AGENT: &str = "x-hone-agent";
/// Longest request id taken over from a client.
const ID_BYTES_MAX: usize = 128;

/// What the middleware decides by.
#[derive(Clone)]
pub struct Entry {
    /// What handlers share.
    pub http: Arc<Http>,
    /// The rule of every route.
    pub table: Arc<RouteTable>,
}

/// The middleware.
pub async fn wrap(State(entry): State<Entry>, request: Request, next: Next) -> Response {
    let http = &entry.http;
    let began = Instant::now();
    let id = RequestId(http.ids.next());
    let public_id = public_id_of(request.headers(), id);
    let method = method_name(request.method());
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map(MatchedPath::as_str);
    let path = route.unwrap_or("unmatched").to_owned();
    // What was asked for instead of a route is the client's own text, and is not logged.
    let meant = match route {
        None => entry.table.meant(request.uri().path()),
        Some(_) => None,
    };
    let is_anthropic = messages_errors::is_meant(request.uri().path(), request.headers());
    let _in_flight = http.traffic.enter();
    let peer = request
        .extensions()
        .get::<Peer>()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0.ip());
    let cors = Cors::of(&http.guard.get(), request.headers());
    let mut response = match cors.preflight(request.method(), request.headers()) {
        Some(told) => told,
        None => admitted(&entry, id, &public_id, peer, route, request, next).await,
    };
    if is_anthropic {
        response = messages_errors::told(response, &public_id);
    }
    cors.tell(&mut response);
    if let Ok(value) = HeaderValue::from_str(&public_id) {
        response.headers_mut().insert("x-request-id", value);
    }
    let (status, took) = (response.status().as_u16(), began.elapsed());
    http.traffic.answered((method, &path, status), took);
    tracing::info!(
        request = %public_id,
        method,
        path,
        meant,
        status,
        ms = took.as_millis() as u64,
        "answered"
    );
    response
}

/// Answers those who may ask.
async fn admitted(
    entry: &Entry,
    id: RequestId,
    public_id: &str,
    peer: IpAddr,
    route: Option<&str>,
    mut request: Request,
    next: Next,
) -> Response {
    let http = &entry.http;
    let rule = entry.table.rule(request.method(), route);
    let seen = Seen {
        method: request.method(),
        peer,
        client: guard::client_of(&http.config, peer, request.headers()),
        headers: request.headers(),
    };
    let client = seen.client;
    let episode = request.extensions().get::<Arc<EpisodeAccess>>().cloned();
    let admission = match &episode {
        Some(episode) => episodes::admit(episode, rule, request.method(), route),
        None => admit(http, rule, seen).await,
    };
    match admission {
        Err(error) => refused(&error, route.map(|route| entry.table.methods(route))),
        Ok((caller, rule)) => {
            let context = RequestContext {
                id,
                public_id: public_id.to_owned(),
                caller,
                peer,
                client,
                parent: telemetry::parent(request.headers()),
                episode,
            };
            request.extensions_mut().insert(rule);
            within_limits(http, context, rule, request, next).await
        }
    }
}

/// Answers, within the caller's limits where the route has any.
async fn within_limits(
    http: &Http,
    context: RequestContext,
    rule: Rule,
    mut request: Request,
    next: Next,
) -> Response {
    // Episodes are bounded by who plays them.
    if !rule.is_metered() || context.episode.is_some() {
        return answer(http, context, request, next).await;
    }
    let caller = context.caller.clone();
    let (mut response, permit) = match http.rate_limiter.admit(&caller, context.id) {
        Err(error) => (ApiError::from(error).into_response(), None),
        Ok(permit) => {
            let permit = permit.map(Arc::new);
            // What goes on when its client leaves keeps it.
            if let Some(permit) = &permit {
                request.extensions_mut().insert(permit.clone());
            }
            (answer(http, context, request, next).await, permit)
        }
    };
    tell_limits(&mut response, http.rate_limiter.status(&caller));
    let Some(permit) = permit else {
        return response;
    };
    // A stream counts as one until its last byte is out or its client has left.
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _counted = &permit;
            frame
        }))
    })
}

/// What is left of the caller's limits, in headers.
fn tell_limits(response: &mut Response, status: RateLimitStatus) {
    let rows = [("requests", status.requests), ("tokens", status.tokens)];
    for (what, info) in rows {
        let Some(info) = info else { continue };
        let values = [
            ("limit", info.limit.to_string()),
            ("remaining", info.remaining.to_string()),
            ("reset", reset_text(info.reset_ms)),
        ];
        for (name, value) in values {
            let name = HeaderName::try_from(format!("x-ratelimit-{name}-{what}"));
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
                response.headers_mut().insert(name, value);
            }
        }
    }
}

/// Runs the handler once there is room for the body; a panic of it is an answer as well.
async fn answer(http: &Http, context: RequestContext, request: Request, next: Next) -> Response {
    let entered = http.body_budget.enter(context.caller.counts_as(), request);
    let (mut request, _room) = match entered.await {
        Ok(entered) => entered,
        Err(error) => return error.into_response(),
    };
    let id = context.id;
    request.extensions_mut().insert(context);
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(request = %id, "a handler panicked");
            ApiError::Internal("the request could not be handled".to_owned()).into_response()
        }
    }
}

fn refused(error: &ApiError, methods: Option<String>) -> Response {
    let mut response = error.clone().into_response();
    if let (ApiError::Method(_), Some(methods)) = (error, methods)
        && let Ok(methods) = HeaderValue::from_str(&methods)
    {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    if error.class().2 == "signed_out" {
        // The next request goes without it.
        response
            .headers_mut()
            .insert(header::SET_COOKIE, guard::ended_cookie());
    }
    response
}

/// What decides about a request before it is read.
struct Seen<'a> {
    method: &'a Method,
    peer: IpAddr,
    client: IpAddr,
    headers: &'a HeaderMap,
}

/// Who calls, if the rule of the route lets them.
async fn admit(
    http: &Http,
    rule: Result<Rule, ApiError>,
    seen: Seen<'_>,
) -> Result<(Caller, Rule), ApiError> {
    if let Ok(rule) = rule
        && rule.right == Right::Open
    {
        return Ok((Caller::stranger(), rule));
    }
    // Who is calling comes before what they want: strangers learn nothing about routes.
    let caller = http.people.seated(identify(http, &seen).await?);
    let rule = rule?;
    caller.check(rule.right)?;
    let caller = match seen.headers.get(AGENT) {
        Some(agent) => act_for(http, caller, agent, rule)?,
        None => within_agency(http, caller, seen.method, rule)?,
    };
    Ok((caller, rule))
}

/// A keeper who acts for their agent: what is the agent's is theirs to see and decide.
fn act_for(
    http: &Http,
    caller: Caller,
    agent: &HeaderValue,
    rule: Rule,
) -> Result<Caller, ApiError> {
    let Some(what) = rule.for_agents else {
        return Err(ApiError::Forbidden {
            code: "agent_not_here",
            message: format!(
                "the header {AGENT} has no meaning on this path; call it with a key of the agent, \
                 or leave the header out"
            ),
        });
    };
    let agent = agent.to_str().unwrap_or_default();
    let groups = http.people.groups();
    let is_admin = what == ForAgents::Keys && caller.role == UserRole::Admin;
    let manages = is_admin && groups.is_agent(agent);
    if !manages && !groups.keeps(&caller.owner, agent) {
        let shown: String = agent.chars().take(64).collect();
        return Err(ApiError::Forbidden {
            code: "not_your_agent",
            message: format!("no agent {shown} is yours; GET /v1/agents lists those that are"),
        });
    }
    // With the limits of whoever is above the agent.
    Ok(http.people.seated(Caller {
        owner: agent.to_owned(),
        acted_by: Some(caller.owner),
        ..caller
    }))
}

/// An agent asks the model, reads what is its own and says how good it was; what is decided about
/// it, its keeper decides.
fn within_agency(
    http: &Http,
    caller: Caller,
    method: &Method,
    rule: Rule,
) -> Result<Caller, ApiError> {
    if rule.is_open_to_agents(method) || !http.people.groups().is_agent(&caller.owner) {
        return Ok(caller);
    }
    Err(keeper_decides(&caller.owner))
}

/// The refusal of what an agent's keeper decides.
pub(crate) fn keeper_decides(agent: &str) -> ApiError {
    ApiError::Forbidden {
        code: "keeper_decides",
        message: format!(
            "an agent cannot do this; its keeper does, with the header {AGENT}: {agent}"
        ),
    }
}

async fn identify(http: &Http, seen: &Seen<'_>) -> Result<Caller, ApiError> {
    let credential = guard::credential(seen.headers);
    let guard = http.guard.get();
    let found = match credential {
        Credential::Nothing => None,
        Credential::Key(key) => match guard.find(key) {
            Some(caller) => Some(caller),
            None => http.people.key(seen.client, key).await?,
        },
        Credential::Cookie(token) => http.people.session(token).await?,
    };
    if let (Credential::Cookie(token), Some(_)) = (credential, &found) {
        check_csrf(seen, token)?;
    }
    let people = &http.people;
    let strict =
        !guard.keys.is_empty() || people.has_users() || people.has_keys() || people.takes_tokens();
    guard.admit(
        (seen.peer, seen.method, seen.headers),
        (credential, found),
        strict,
    )
}

/// A cookie is sent by the browser whoever asks it to; the value beside it is not.
fn check_csrf(seen: &Seen<'_>, token: &str) -> Result<(), ApiError> {
    if [Method::GET, Method::HEAD].contains(seen.method) {
        return Ok(());
    }
    let sent = seen.headers.get("x-hone-csrf").map(HeaderValue::as_bytes);
    if sent.is_some_and(|sent| same(sent, csrf(token).as_bytes())) {
        return Ok(());
    }
    Err(ApiError::Forbidden {
        code: "csrf",
        message: "with a cookie this needs the header x-hone-csrf; GET /v1/me tells its value"
            .to_owned(),
    })
}

/// Clients cannot mint counter labels.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

fn public_id_of(headers: &HeaderMap, id: RequestId) -> String {
    headers
        .get("x-request-id")
        .and_then(|v| v.to_str().ok())
        .filter(|v| !v.is_empty() && v.len() <= ID_BYTES_MAX)
        .map_or_else(|| format!("req_{id}"), str::to_owned)
}

/// Nothing is served there.
pub fn unknown_path(table: &RouteTable, uri: &Uri) -> ApiError {
    let path: String = uri.path().chars().take(200).collect();
    ApiError::UnknownPath(match table.meant(uri.path()) {
        Some(near) => format!("{path} (did you mean {near}?)"),
        None => path,
    })
}

/// Something is served there, for other methods.
pub async fn wrong_method(method: Method) -> ApiError {
    ApiError::Method(method.as_str().chars().take(40).collect())
}
