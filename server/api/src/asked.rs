//! What a handler knows of its request.

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use hone_accounts::Caller;
use hone_domain::RequestId;
use hone_monitor::telemetry::Parent;

use super::error::ApiError;

/// What a handler knows of its request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Minted here.
    pub id: RequestId,
    /// As its client sees it.
    pub shown: String,
    /// Who calls.
    pub caller: Caller,
    /// From where.
    pub peer: IpAddr,
    /// Whom that is for, where it is a trusted proxy.
    pub client: IpAddr,
    /// The span of the client that it belongs to.
    pub parent: Option<Parent>,
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| ApiError::Internal("the request passed no envelope".to_owned()))
    }
}
