//! The context of a request, as its handler sees it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use hone_accounts::Caller;
use hone_domain::RequestId;
use hone_inference::EpisodeAccess;
use hone_monitor::telemetry::Parent;

use hone_replies::error::ApiError;

/// Context of a request: who calls, from where, under which id.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Its id, made here.
    pub id: RequestId,
    /// The id that its client sees.
    pub public_id: String,
    /// Who calls.
    pub caller: Caller,
    /// From where.
    pub peer: IpAddr,
    /// Whom that is for, where it is a trusted proxy.
    pub client: IpAddr,
    /// The span of the client that it belongs to.
    pub parent: Option<Parent>,
    /// The episode whose agent calls.
    pub episode: Option<Arc<EpisodeAccess>>,
}

impl<S: Send + Sync> FromRequestParts<S> for RequestContext {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| ApiError::Internal("the request passed no envelope".to_owned()))
    }
}
