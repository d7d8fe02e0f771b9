//! Acts: requests that decide something. What is decided stands in the ledger first, and is told to
//! the engine, the gateway and the others next. A client that leaves in between ends no act: each has a
//! task of its own, which goes on to its end.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use tokio::sync::Semaphore;

use super::rights::Rule;
use hone_replies::error::ApiError;

/// Acts under way; a further one waits while there are as many as there may be.
#[derive(Debug)]
pub struct Acts {
    places: Arc<Semaphore>,
    most: u32,
}

impl Acts {
    /// None under way, and at most so many at once.
    pub fn new(most: usize) -> Self {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Self {
            places: Arc::new(Semaphore::new(most as usize)),
            most,
        }
    }

    /// How many are under way.
    pub fn count(&self) -> usize {
        self.most as usize - self.places.available_permits()
    }

    /// Waits until none is under way; meanwhile none begins.
    pub async fn none(&self) {
        // The semaphore is never closed, so this ends when every place is free.
        let _all_free = self.places.acquire_many(self.most).await.is_ok();
    }

    /// Runs an act to its end, whether or not somebody waits for it.
    pub(super) async fn run(
        &self,
        act: impl Future<Output = Response> + Send + 'static,
    ) -> Response {
        // Whoever leaves before there is a place has decided nothing.
        let place = self.places.clone().acquire_owned().await;
        let acting = tokio::spawn(async move {
            let _place = place;
            let ended = AssertUnwindSafe(act).catch_unwind().await;
            if ended.is_err() {
                // Where the client has left, nobody else says so.
                tracing::error!("a request that decides something panicked");
            }
            ended
        });
        match acting.await {
            Ok(Ok(response)) => response,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => {
                ApiError::Internal("the server was stopped meanwhile".to_owned()).into_response()
            }
        }
    }
}

/// Gives every act a task of its own; all others end when their client leaves.
pub async fn layer(State(acts): State<Arc<Acts>>, request: Request, next: Next) -> Response {
    let rule = request.extensions().get::<Rule>();
    if !rule.is_some_and(|rule| rule.is_act(request.method())) {
        return next.run(request).await;
    }
    acts.run(next.run(request)).await
}
