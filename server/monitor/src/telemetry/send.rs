//! Carries the exporters' calls through the server's one client for other servers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::Url;
use tokio::runtime::Handle;

use hone_net::outbound::{Call, Outbound};

/// The exporters run on threads of their own; calls run on the async ones.
pub(super) struct Sender {
    outbound: Arc<Outbound>,
    deadline: Duration,
    runtime: Handle,
}

impl Sender {
    pub(super) fn new(outbound: Arc<Outbound>, deadline: Duration) -> Self {
        Self {
            outbound,
            deadline,
            runtime: Handle::current(),
        }
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let call = Call {
            method: parts.method,
            url: Url::parse(&parts.uri.to_string())?,
            headers: parts.headers,
            body: body.to_vec(),
            deadline: self.deadline,
        };
        let outbound = self.outbound.clone();
        let sent = self.runtime.spawn(async move { outbound.send(call).await });
        let reply = sent.await??;
        let response = Response::builder().status(reply.status);
        Ok(response.body(Bytes::from(reply.bytes))?)
    }
}
