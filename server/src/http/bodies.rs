//! Room for large bodies: all that are under way together have a bound.

use std::time::Duration;

use axum::http::{HeaderMap, header};

use super::error::ApiError;
use super::wire::body::announced;
use crate::config::HttpConfig;
use crate::door::{Place, Places};

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

    /// Room for the body that these headers announce, until it is dropped; none where that is small.
    pub async fn enter(&self, owner: &str, headers: &HeaderMap) -> Result<Option<Place>, ApiError> {
        let bytes = self.counted(headers);
        if bytes < COUNTED_FROM {
            return Ok(None);
        }
        let place = self.places.enter(owner, bytes.div_ceil(UNIT));
        match tokio::time::timeout(self.patience, place).await {
            Ok(place) => Ok(place.ok()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::http_config;

    fn of(name: header::HeaderName, value: &str) -> HeaderMap {
        let value = value.parse().expect("a header");
        HeaderMap::from_iter([(name, value)])
    }

    #[tokio::test]
    async fn large_bodies_wait_for_each_other_and_an_owner_has_half() {
        let config = HttpConfig {
            body_bytes_max: 64 << 10,
            bodies_bytes_max: 256 << 10,
            body_timeout_ms: 30,
            ..http_config()
        };
        let bodies = Bodies::new(&config);
        let large = of(header::CONTENT_LENGTH, "65536");
        let unknown = of(header::TRANSFER_ENCODING, "chunked");
        let small = [
            of(header::CONTENT_LENGTH, "16383"),
            of(header::CONTENT_LENGTH, "65537"),
            of(header::ACCEPT, "x"),
        ];
        let enter = async |owner, headers| match bodies.enter(owner, headers).await {
            Ok(place) => Ok(place),
            Err(error) => Err(error.class().0.as_u16()),
        };
        let first = enter("ann", &large).await.expect("there is room");
        let second = enter("ann", &unknown).await.expect("there is room");
        assert!(first.is_some() && second.is_some());
        assert_eq!(enter("ann", &large).await.err(), Some(429));
        for headers in &small {
            let small = enter("ann", headers).await;
            assert!(small.expect("it needs none").is_none(), "{headers:?}");
        }
        let others = (enter("ben", &large).await, enter("cid", &large).await);
        assert!(others.0.is_ok() && others.1.is_ok());
        assert_eq!(enter("dan", &large).await.err(), Some(429));
        drop(first);
        assert!(enter("dan", &large).await.is_ok());
    }
}
