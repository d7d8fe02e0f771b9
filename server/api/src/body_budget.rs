//! Budget for large request bodies: all that are under way together have a bound.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;

use crate::body::announced;
use crate::config::HttpConfig;
use hone_inference::{FairPermit, FairSemaphore};
use hone_replies::error::ApiError;

/// Smaller bodies are not counted.
const COUNTED_FROM: usize = 16 << 10;
/// What is counted in.
const UNIT: usize = 1 << 10;
/// Callers that can fill the room only together.
const SHARES: usize = 2;

/// Budget of bytes for the bodies of all requests.
#[derive(Debug)]
pub struct BodyBudget {
    semaphore: FairSemaphore,
    body_bytes_max: usize,
    patience: Duration,
}

impl BodyBudget {
    /// Budget as configured.
    pub fn new(config: &HttpConfig) -> Self {
        let units = config.bodies_bytes_max / UNIT;
        Self {
            semaphore: FairSemaphore::shared(units, units / SHARES),
            body_bytes_max: config.body_bytes_max,
            patience: Duration::from_millis(config.body_timeout_ms),
        }
    }

    /// Reserves bytes for the body that a request announces; nothing where that is small.
    /// Once the body is read, the reservation shrinks to its length.
    pub async fn enter(
        &self,
        owner: &str,
        request: Request,
    ) -> Result<(Request, Option<Reservation>), ApiError> {
        let bytes = self.counted(request.headers());
        if bytes < COUNTED_FROM {
            return Ok((request, None));
        }
        let place = self.semaphore.enter(owner, bytes.div_ceil(UNIT));
        match tokio::time::timeout(self.patience, place).await {
            Ok(place) => {
                let reservation = Reservation(Arc::new(Mutex::new(place.ok())));
                let mut reading = Reading {
                    reservation: reservation.clone(),
                    bytes: 0,
                };
                let request = request.map(|body| {
                    Body::new(body.map_frame(move |frame| {
                        reading.add(frame.data_ref().map_or(0, Bytes::len));
                        frame
                    }))
                });
                Ok((request, Some(reservation)))
            }
            Err(_) => Err(ApiError::Overloaded {
                message: "there is no room for a large body beside those under way (http.bodies_bytes_max); \
                          try again"
                    .to_owned(),
                retry_after_ms: 1_000,
            }),
        }
    }

    /// Bytes to count. One that is too large is refused before it is read.
    fn counted(&self, headers: &HeaderMap) -> usize {
        match announced(headers) {
            Some(bytes) if bytes <= self.body_bytes_max => bytes,
            Some(_) => 0,
            None if headers.contains_key(header::TRANSFER_ENCODING) => self.body_bytes_max,
            None => 0,
        }
    }
}

/// Reservation of one body; its clones are the same reservation.
#[derive(Clone, Debug)]
pub struct Reservation(Arc<Mutex<Option<FairPermit>>>);

impl Reservation {
    fn shrink(&self, bytes: usize) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *place {
            Some(place) if bytes >= COUNTED_FROM => place.shrink(bytes.div_ceil(UNIT)),
            small => *small = None,
        }
    }
}

/// A body while it is read.
struct Reading {
    reservation: Reservation,
    bytes: usize,
}

impl Reading {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.reservation.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::http_config;

    type Header = (header::HeaderName, &'static str);
    const LARGE: Header = (header::CONTENT_LENGTH, "65536");
    const CHUNKED: Header = (header::TRANSFER_ENCODING, "chunked");

    /// Room for four bodies of the largest size.
    fn budget() -> BodyBudget {
        BodyBudget::new(&HttpConfig {
            body_bytes_max: 64 << 10,
            bodies_bytes_max: 256 << 10,
            body_timeout_ms: 30,
            ..http_config()
        })
    }

    /// Its status where there is no room.
    async fn enter(
        budget: &BodyBudget,
        owner: &str,
        (header, bytes): (&Header, usize),
    ) -> Result<(Request, Option<Reservation>), u16> {
        let request = Request::builder().header(&header.0, header.1);
        let request = request.body(Body::from(vec![b' '; bytes]));
        let entered = budget.enter(owner, request.expect("a request")).await;
        entered.map_err(|error| error.class().0.as_u16())
    }

    #[tokio::test]
    async fn large_bodies_wait_for_each_other_and_an_owner_has_half() {
        let budget = budget();
        let small = [
            (header::CONTENT_LENGTH, "16383"),
            (header::CONTENT_LENGTH, "65537"),
            (header::ACCEPT, "x"),
        ];
        let enter = async |owner, header| enter(&budget, owner, (header, 0)).await;
        let first = enter("ann", &LARGE).await.expect("there is room");
        let second = enter("ann", &CHUNKED).await.expect("there is room");
        assert!(first.1.is_some() && second.1.is_some());
        assert_eq!(enter("ann", &LARGE).await.err(), Some(429));
        for header in &small {
            let small = enter("ann", header).await;
            assert!(small.expect("it needs none").1.is_none(), "{header:?}");
        }
        let others = (enter("ben", &LARGE).await, enter("cid", &LARGE).await);
        assert!(others.0.is_ok() && others.1.is_ok());
        assert_eq!(enter("dan", &LARGE).await.err(), Some(429));
        drop(first);
        assert!(enter("dan", &LARGE).await.is_ok());
    }

    /// Whatever a body might have been, what counts is what it was.
    #[tokio::test]
    async fn a_body_that_is_read_leaves_the_room_that_it_did_not_need() {
        let all = 256;
        for (bytes, used) in [
            (300, 0),
            (16_383, 0),
            (16_384, 16),
            (20_000, 20),
            (65_536, 64),
        ] {
            let budget = budget();
            let entered = enter(&budget, "ann", (&CHUNKED, bytes)).await;
            let (request, reservation) = entered.expect("there is room");
            assert_eq!(budget.semaphore.free(), all - 64);
            let read = request.into_body().collect().await.expect("a body");
            assert_eq!(read.to_bytes().len(), bytes);
            assert_eq!(budget.semaphore.free(), all - used, "{bytes}");
            drop(reservation);
            assert_eq!(budget.semaphore.free(), all);
        }
    }
}
