//! Room for large bodies: all that are under way together have a bound.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;

use super::error::ApiError;
use crate::body::announced;
use crate::config::HttpConfig;
use hone_inference::{Place, Places};

/// Smaller bodies are not counted.
const COUNTED_FROM: usize = 16 << 10;
/// What is counted in.
const UNIT: usize = 1 << 10;
/// Callers that can fill the room only together.
const SHARES: usize = 2;

/// Room for the bodies of all requests.
#[derive(Debug)]
pub struct Bodies {
    places: Places,
    body_bytes_max: usize,
    patience: Duration,
}

impl Bodies {
    /// Room as it is configured.
    pub fn new(config: &HttpConfig) -> Self {
        let units = config.bodies_bytes_max / UNIT;
        Self {
            places: Places::shared(units, units / SHARES),
            body_bytes_max: config.body_bytes_max,
            patience: Duration::from_millis(config.body_timeout_ms),
        }
    }

    /// Room for the body that a request announces, until it is dropped; none where that is small.
    /// Once the body is read, the room is as large as it was.
    pub async fn enter(
        &self,
        owner: &str,
        request: Request,
    ) -> Result<(Request, Option<Room>), ApiError> {
        let bytes = self.counted(request.headers());
        if bytes < COUNTED_FROM {
            return Ok((request, None));
        }
        let place = self.places.enter(owner, bytes.div_ceil(UNIT));
        match tokio::time::timeout(self.patience, place).await {
            Ok(place) => {
                let room = Room(Arc::new(Mutex::new(place.ok())));
                let mut reading = Reading {
                    room: room.clone(),
                    bytes: 0,
                };
                let request = request.map(|body| {
                    Body::new(body.map_frame(move |frame| {
                        reading.add(frame.data_ref().map_or(0, Bytes::len));
                        frame
                    }))
                });
                Ok((request, Some(room)))
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

/// Room of one body; its clones are the same room.
#[derive(Clone, Debug)]
pub struct Room(Arc<Mutex<Option<Place>>>);

impl Room {
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
    room: Room,
    bytes: usize,
}

impl Reading {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.room.shrink(self.bytes);
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
    fn bodies() -> Bodies {
        Bodies::new(&HttpConfig {
            body_bytes_max: 64 << 10,
            bodies_bytes_max: 256 << 10,
            body_timeout_ms: 30,
            ..http_config()
        })
    }

    /// Its status where there is no room.
    async fn enter(
        bodies: &Bodies,
        owner: &str,
        (header, bytes): (&Header, usize),
    ) -> Result<(Request, Option<Room>), u16> {
        let request = Request::builder().header(&header.0, header.1);
        let request = request.body(Body::from(vec![b' '; bytes]));
        let entered = bodies.enter(owner, request.expect("a request")).await;
        entered.map_err(|error| error.class().0.as_u16())
    }

    #[tokio::test]
    async fn large_bodies_wait_for_each_other_and_an_owner_has_half() {
        let bodies = bodies();
        let small = [
            (header::CONTENT_LENGTH, "16383"),
            (header::CONTENT_LENGTH, "65537"),
            (header::ACCEPT, "x"),
        ];
        let enter = async |owner, header| enter(&bodies, owner, (header, 0)).await;
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
            let bodies = bodies();
            let entered = enter(&bodies, "ann", (&CHUNKED, bytes)).await;
            let (request, room) = entered.expect("there is room");
            assert_eq!(bodies.places.free(), all - 64);
            let read = request.into_body().collect().await.expect("a body");
            assert_eq!(read.to_bytes().len(), bytes);
            assert_eq!(bodies.places.free(), all - used, "{bytes}");
            drop(room);
            assert_eq!(bodies.places.free(), all);
        }
    }
}
