//! Files of a hub: it answers with a redirect to where the bytes lie. Such a redirect is followed to
//! a host that passes the same check of addresses, and a token never goes further than to the hub
//! itself.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, LOCATION};
use reqwest::{Method, Url};
use tokio::time::timeout;

use super::{Outbound, OutboundError, unreachable};

/// Most redirects of one file.
const HOPS_MAX: usize = 5;

/// A file that is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Where; from [`Outbound::url`].
    pub url: Url,
    /// Headers; `authorization` is for the host of `url` alone.
    pub headers: HeaderMap,
    /// Longest time to an answer's head, and between two pieces of it.
    pub stall: Duration,
}

/// An answer whose body comes in pieces.
pub struct Opened {
    /// The status of the last answer.
    pub status: u16,
    /// Headers of the last answer.
    pub headers: HeaderMap,
    /// Headers of the first answer, which is the hub's own.
    pub first: HeaderMap,
    stall: Duration,
    pieces: BoxStream<'static, reqwest::Result<Bytes>>,
}

impl Opened {
    /// A header of the hub's own answer, or else of the last one.
    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        let found = self.first.get(name).or_else(|| self.headers.get(name));
        found.and_then(|value| value.to_str().ok())
    }

    /// The next piece; none at the end.
    ///
    /// # Errors
    /// The connection broke, or nothing came for too long.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, OutboundError> {
        let next = timeout(self.stall, self.pieces.next()).await;
        let next = next.map_err(|_| stalled(self.stall))?;
        next.transpose().map_err(unreachable)
    }
}

fn stalled(stall: Duration) -> OutboundError {
    OutboundError::Unreachable(format!("nothing came for {} s", stall.as_secs_f64()))
}

impl Outbound {
    /// Opens a file, following redirects.
    ///
    /// # Errors
    /// See [`OutboundError`]: an address that may not be called, too many redirects, or one from
    /// TLS to plain text.
    pub async fn open(&self, wanted: Wanted) -> Result<Opened, OutboundError> {
        let host = wanted.url.host_str().unwrap_or_default();
        let checked = self.guard.check_host(host);
        checked.map_err(OutboundError::Refused)?;
        let mut url = wanted.url.clone();
        let mut first: Option<HeaderMap> = None;
        for _ in 0..=HOPS_MAX {
            let mut headers = wanted.headers.clone();
            if url.origin() != wanted.url.origin() {
                headers.remove(AUTHORIZATION);
            }
            let request = self.client.request(Method::GET, url.clone());
            let sent = timeout(wanted.stall, request.headers(headers).send()).await;
            let response = sent.map_err(|_| stalled(wanted.stall))?;
            let response = response.map_err(unreachable)?;
            let status = response.status();
            let head = response.headers().clone();
            let next = head.get(LOCATION).and_then(|value| value.to_str().ok());
            let Some(next) = next.filter(|_| status.is_redirection()) else {
                return Ok(Opened {
                    status: status.as_u16(),
                    first: first.unwrap_or_else(|| head.clone()),
                    headers: head,
                    stall: wanted.stall,
                    pieces: response.bytes_stream().boxed(),
                });
            };
            url = self.redirected(&url, next)?;
            first.get_or_insert(head);
        }
        let why = format!("it redirects more than {HOPS_MAX} times");
        Err(OutboundError::Refused(why))
    }

    /// Where a redirect leads, if that may be called.
    fn redirected(&self, from: &Url, to: &str) -> Result<Url, OutboundError> {
        let refused = |why: String| OutboundError::Refused(format!("it redirects: {why}"));
        let url = from.join(to).map_err(|_| refused("not to a URL".into()))?;
        match (from.scheme(), url.scheme()) {
            (_, "https") | ("http", "http") => {}
            _ => return Err(refused("from https to something without TLS".into())),
        }
        if url.origin() != from.origin() {
            let host = url.host_str().unwrap_or_default();
            self.guard.check_redirect(host).map_err(refused)?;
        }
        Ok(url)
    }
}
