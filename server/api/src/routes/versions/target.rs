//! Whose policy a request is about: the caller's own under `/v1`, any scope's under `/admin/v1`.

use axum::extract::{FromRequestParts, Query, Request};
use axum::http::Uri;
use axum::http::request::Parts;
use hone_api_types::learning::{ScopeQuery, UserQuery};
use hone_api_types::session::named_user;
use hone_domain::Scope;
use serde::de::DeserializeOwned;

use super::common::{ActBody, ListQuery, read_act};
use crate::Http;
use crate::lists;
use crate::request_context::RequestContext;
use crate::rights::{Right, Rule};
use hone_replies::error::ApiError;

/// Whose policy a request may name; the right of its route decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The caller's own, by the `user` field of their requests.
    Own,
    /// Any, by its scope's text.
    Any,
}

impl<S: Sync> FromRequestParts<S> for Target {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let right = parts.extensions.get::<Rule>().map(|rule| rule.right);
        Ok(match right {
            Some(Right::AdminRead | Right::AdminWrite) => Self::Any,
            _ => Self::Own,
        })
    }
}

fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    lists::query(Query::try_from_uri(uri))
}

impl Target {
    /// The scope that a user or a text names.
    pub fn scope(
        self,
        http: &Http,
        context: &RequestContext,
        user: Option<&str>,
        text: Option<&str>,
    ) -> Result<Scope, ApiError> {
        match self {
            Self::Own => own_scope(http, context, user),
            Self::Any => any_scope(text),
        }
    }

    /// The scope whose versions are listed: the caller's may be one that they share with others.
    pub fn listed(
        self,
        http: &Http,
        context: &RequestContext,
        query: &ListQuery,
    ) -> Result<Scope, ApiError> {
        let user = query.user.as_deref().filter(|u| !u.trim().is_empty());
        match self {
            Self::Own => Ok(http.rules.scope(&context.caller.owner, user).0),
            Self::Any => any_scope(query.scope.as_deref()),
        }
    }

    /// The scope that the query alone names.
    pub fn read(self, http: &Http, context: &RequestContext, uri: &Uri) -> Result<Scope, ApiError> {
        match self {
            Self::Own => own_scope(http, context, query::<UserQuery>(uri)?.user.as_deref()),
            Self::Any => any_scope(Some(&query::<ScopeQuery>(uri)?.scope)),
        }
    }

    /// The body of an act, and the scope that it or the query names.
    pub async fn act(
        self,
        http: &Http,
        context: &RequestContext,
        request: Request,
    ) -> Result<(Scope, ActBody), ApiError> {
        let named = match self {
            Self::Own => query::<UserQuery>(request.uri())?.user,
            Self::Any => query::<ListQuery>(request.uri())?.scope,
        };
        let body = read_act(request, http).await?;
        let user = body.user.as_deref().or(named.as_deref());
        let text = body.scope.as_deref().or(named.as_deref());
        let scope = self.scope(http, context, user, text)?;
        Ok((scope, body))
    }
}

/// The caller's own scope, for what only they may see and decide.
fn own_scope(http: &Http, context: &RequestContext, user: Option<&str>) -> Result<Scope, ApiError> {
    match http.rules.scope(&context.caller.owner, named_user(user)?) {
        (scope, None) => Ok(scope),
        (_, Some(_)) => Err(ApiError::Forbidden {
            code: "shared_policy",
            message: "several people share this policy, so an admin decides about it; ask one, or \
                      use /admin/v1/versions"
                .to_owned(),
        }),
    }
}

/// Any scope by its text.
pub(super) fn any_scope(text: Option<&str>) -> Result<Scope, ApiError> {
    let scope = text.map(Scope::from_stored).filter(|s| s.parts().is_some());
    scope.ok_or_else(|| {
        ApiError::invalid(
            "scope",
            "scope must be a scope's text as GET /admin/v1/scopes lists it",
        )
    })
}
