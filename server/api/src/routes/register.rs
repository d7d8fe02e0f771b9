//! Registers a handler together with its rule and with the part of the OpenAPI document that both imply.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn};
use utoipa::openapi::{
    Content, OpenApi, PathItem, Ref, RefOr, Required, Response, ResponseBuilder,
};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use crate::Http;
use crate::openapi;
use crate::rights::{ForAgents, Right, RouteTable, Rule, Work};
use hone_replies::messages_errors;

/// Where admins find what callers find of their own under `/v1`.
const ADMIN: &str = "/admin";

/// What a failure means, whatever the route.
const UNKNOWN_CALLER: (&str, &str) = ("401", "It is not known who calls");
const NOT_ALLOWED: (&str, &str) = ("403", "The caller may not do this");
const INVALID: (&str, &str) = ("400", "What is wrong, and where");
const UNREADABLE: [(&str, &str); 4] = [
    INVALID,
    ("408", "The body took too long to arrive"),
    ("413", "The body is too large"),
    ("415", "The body is not JSON"),
];
const UNAVAILABLE: (&str, &str) = (
    "503",
    "A part that the answer needs is not there, at present or at all",
);
const LIMITED: (&str, &str) = (
    "429",
    "A limit is reached, or the waiting line is full; see retry-after",
);

/// Routes with their rules and their document.
pub struct Routes {
    router: OpenApiRouter<Arc<Http>>,
    table: RouteTable,
}

impl Default for Routes {
    fn default() -> Self {
        Self {
            router: OpenApiRouter::with_openapi(openapi::base()),
            table: RouteTable::default(),
        }
    }
}

impl Routes {
    /// Adds a route of the document.
    pub fn add(mut self, rule: impl Into<Rule>, route: UtoipaMethodRouter<Arc<Http>>) -> Self {
        let rule = rule.into();
        let (schemas, mut paths, handler) = route;
        for (path, item) in &mut paths.paths {
            let body = match messages_errors::has_route(path) {
                true => "MessagesErrorBody",
                false => "ErrorBody",
            };
            for (method, operation) in operations(item) {
                self.table.add(method, path, rule);
                describe_failures(operation, rule, body);
            }
        }
        self.router = self.router.routes((schemas, paths, handler));
        self
    }

    /// Adds a route about the caller's own policy, and the same about any scope's policy for admins.
    pub fn add_own_and_any(self, work: Work, route: UtoipaMethodRouter<Arc<Http>>) -> Self {
        let (schemas, paths, handler) = route.clone();
        let mut any = paths.clone();
        any.paths.clear();
        let mut right = Right::AdminRead;
        for (path, mut item) in paths.paths {
            for (method, operation) in operations(&mut item) {
                if method != Method::GET {
                    right = Right::AdminWrite;
                }
                describe_for_any(operation);
            }
            any.paths.insert(format!("{ADMIN}{path}"), item);
        }
        let own = Right::User.with(work).for_agents(ForAgents::Own);
        self.add(own, route)
            .add(right.with(work), (schemas, any, handler))
    }

    /// Adds routes that are not part of the document; all are read.
    pub fn beside(mut self, rules: &[(&str, Right)], router: Router<Arc<Http>>) -> Self {
        for (path, right) in rules {
            self.table.add(Method::GET, path, (*right).into());
        }
        self.router = self.router.merge(OpenApiRouter::from(router));
        self
    }

    /// The router and the rules of its routes.
    pub fn split(self) -> (Router<Arc<Http>>, RouteTable) {
        (self.router.into(), self.table)
    }

    /// The document so far.
    pub fn document(&self) -> &OpenApi {
        self.router.get_openapi()
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    let all = [
        (Method::GET, &mut item.get),
        (Method::POST, &mut item.post),
        (Method::PUT, &mut item.put),
        (Method::PATCH, &mut item.patch),
        (Method::DELETE, &mut item.delete),
    ];
    let present = |(method, operation): (Method, _)| {
        let operation: &mut Option<Operation> = operation;
        Some((method, operation.as_mut()?))
    };
    all.into_iter().filter_map(present)
}

/// Adds the failures that follow from what the operation takes; those that it tells itself stay.
fn describe_failures(operation: &mut Operation, rule: Rule, body: &str) {
    let mut failures = Vec::new();
    if rule.right != Right::Open {
        failures.extend([UNKNOWN_CALLER, NOT_ALLOWED, UNAVAILABLE]);
    }
    let parameters = operation.parameters.iter().flatten();
    let in_query =
        |p: &RefOr<Parameter>| matches!(p, RefOr::T(p) if p.parameter_in == ParameterIn::Query);
    if parameters.into_iter().any(in_query) {
        failures.push(INVALID);
    }
    if operation.request_body.is_some() {
        failures.extend(UNREADABLE);
    }
    if rule.is_metered() {
        failures.push(LIMITED);
    }
    for (status, description) in failures {
        let known = &mut operation.responses.responses;
        known
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::T(failure(description, body)));
    }
}

fn failure(description: &str, body: &str) -> Response {
    let body = Content::new(Some(Ref::from_schema_name(body)));
    ResponseBuilder::new()
        .description(description)
        .content("application/json", body)
        .build()
}

/// Turns the description of what callers do with their own policy into that of the same for any scope.
fn describe_for_any(operation: &mut Operation) {
    let reword = |text: &mut Option<String>| {
        if let Some(text) = text {
            *text = text.replace("the caller's policy", "a scope's policy");
        }
    };
    reword(&mut operation.summary);
    reword(&mut operation.description);
    if let Some(id) = &mut operation.operation_id {
        id.push_str("_of");
    }
    // The body may name the scope too.
    let required = match operation.request_body {
        Some(_) => Required::False,
        None => Required::True,
    };
    let parameters = operation.parameters.iter_mut().flatten();
    let mut parameters: Vec<&mut Parameter> = parameters
        .filter_map(|parameter| match parameter {
            RefOr::T(parameter) => Some(parameter),
            RefOr::Ref(_) => None,
        })
        .collect();
    if parameters.iter().any(|p| p.name == "scope") {
        return;
    }
    if let Some(user) = parameters.iter_mut().find(|p| p.name == "user") {
        "scope".clone_into(&mut user.name);
        user.description = Some("The scope's text".to_owned());
        user.required = required;
    }
}
