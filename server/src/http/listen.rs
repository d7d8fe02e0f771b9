//! Accepts connections, with TLS where it is configured: their number in all and per address, their
//! handshake, headers, idle time and writes are bounded, and a stop lets replies under way finish.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hone_runtime::Shutdown;
use http_body_util::BodyExt as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::timed::{TimedStream, UnderWay};
use crate::people::counted;

/// Bounds of connections.
#[derive(Clone, Copy, Debug)]
pub struct ListenLimits {
    /// Most connections at once; further ones wait in the kernel's line.
    pub connections_max: usize,
    /// Most connections of one address, loopback aside; further ones are closed. 0 is no limit.
    pub per_address_max: usize,
    /// How long a connection may take to send a request's headers, counted from their first byte; and
    /// until the first byte of its first request.
    pub header_timeout: Duration,
    /// How long a connection may wait between two requests.
    pub idle_timeout: Duration,
    /// How long a client may take nothing while there is something to send.
    pub write_timeout: Duration,
}

/// Connections by address.
#[derive(Clone, Default)]
struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A place among the connections of an address.
struct AddressPlace(Addresses, IpAddr);

impl Addresses {
    /// A place, or none if the address has as many as it may.
    fn enter(&self, address: IpAddr, most: usize) -> Option<AddressPlace> {
        let is_loopback = address.to_canonical().is_loopback();
        let address = counted(address);
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counted.entry(address).or_default();
        if most > 0 && *count >= most && !is_loopback {
            return None;
        }
        *count += 1;
        Some(AddressPlace(self.clone(), address))
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut counted = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counted.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counted.remove(&self.1);
            }
        }
    }
}

/// Refuses a file of secrets that everybody at this machine can read.
///
/// # Errors
/// A sentence with the remedy.
pub fn check_private(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let meta = std::fs::metadata(path)
        .map_err(|error| format!("{shown} cannot be read ({error}); it has to exist"))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if meta.permissions().mode() & 0o007 != 0 {
            return Err(format!(
                "{shown} holds a secret and is open to everybody at this machine; chmod 600 {shown}"
            ));
        }
    }
    #[cfg(not(unix))]
    drop(meta);
    Ok(())
}

/// Accepts until `stop`, then lets connections finish what they are answering. It returns when
/// the last one is closed; the caller sets the deadline.
pub async fn listen(
    (listener, tls): (TcpListener, Option<TlsAcceptor>),
    app: Router,
    (limits, stop): (ListenLimits, Shutdown),
) {
    let addresses = Addresses::default();
    let places = Arc::new(Semaphore::new(limits.connections_max));
    loop {
        let accepted = tokio::select! {
            () = stop.wait() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, peer, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely; it passes when connections close.
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(counted) = addresses.enter(peer.ip(), limits.per_address_max) else {
            tracing::debug!("a connection was closed at http.connections_per_address_max");
            continue;
        };
        let (app, stop, tls) = (app.clone(), stop.clone(), tls.clone());
        tokio::spawn(async move {
            let under_way = UnderWay::default();
            let stream = TimedStream::new(stream, limits, under_way.clone());
            let of = (peer, under_way);
            match tls {
                None => serve_one((stream, of), app, stop).await,
                Some(tls) => match timeout(limits.header_timeout, tls.accept(stream)).await {
                    Ok(Ok(stream)) => serve_one((stream, of), app, stop).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                },
            }
            drop((place, counted));
        });
    }
    drop(listener);
    let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    // The semaphore is never closed, so this ends when every place is free.
    let _all_free = places.acquire_many(all).await.is_ok();
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await;
    let place = place.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    // Tokens are small; waiting to fill a packet would hold them up.
    stream.set_nodelay(true)?;
    Ok((stream, peer, place))
}

async fn serve_one(
    (stream, (peer, under_way)): (impl AsyncRead + AsyncWrite + Unpin, (SocketAddr, UnderWay)),
    app: Router,
    stop: Shutdown,
) {
    let service = tower::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        // From here to the reply's last byte the connection is neither idle nor reading headers.
        let busy = under_way.begin();
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = app.clone().oneshot(request.map(Body::new));
        async move {
            let response = answer.await?;
            Ok::<_, std::convert::Infallible>(response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _counted = &busy;
                    frame
                }))
            }))
        }
    });
    let io = TokioIo::new(stream);
    // The stream's own timers tell headers from idle time; hyper's one would count both.
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .serve_connection(io, TowerToHyperService::new(service));
    tokio::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            () = stop.wait(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;
