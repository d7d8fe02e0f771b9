//! Accepts connections, with TLS where it is configured: their number in all and per address, their
//! handshake, headers, idle time and writes are bounded, and a stop lets replies under way finish.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hone_runtime::Shutdown;
use http_body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::{Service, ServiceExt as _};

pub use crate::limits::ListenLimits;

use crate::connections::{Connections, Open};
use crate::timed::{TimedStream, UnderWay};

/// Who sent a request: in its extensions.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

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

/// Longest pause between two looks for a place.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often a connection of a full address asks for a place again while an idle one is being closed.
const TRIES: usize = 20;
/// Shortest time between two lines of the log about the same.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// Accepts until `stop`, then lets connections finish what they are answering. It returns when
/// the last one is closed; the caller sets the deadline.
pub async fn listen<A, B>(
    (listener, tls): (TcpListener, Option<TlsAcceptor>),
    app: A,
    (limits, stop): (ListenLimits, Shutdown),
) where
    A: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    A::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let open = Connections::default();
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let (mut failures, refusals) = (Seldom::default(), Arc::<Mutex<Seldom>>::default());
    loop {
        let accepted = tokio::select! {
            () = stop.wait() => break,
            accepted = accept(&listener) => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely; it passes when connections close.
                if let Some(times) = failures.says() {
                    tracing::warn!(%error, times, "connections could not be accepted");
                }
                open.shed(None);
                sleep(LOOK_AGAIN).await;
                continue;
            }
        };
        let place = tokio::select! {
            () = stop.wait() => break,
            place = place(&places, &open, (peer.ip(), limits.per_address_max)) => place,
        };
        let (app, stop, tls, open) = (app.clone(), stop.clone(), tls.clone(), open.clone());
        let refusals = refusals.clone();
        tokio::spawn(async move {
            let Some(opened) = enter(&open, peer.ip(), limits.per_address_max).await else {
                tell_refused(&refusals, peer.ip());
                return;
            };
            let stream = TimedStream::new(stream, limits, opened.under_way.clone());
            let of = (peer, opened.under_way.clone());
            let work = async {
                match tls {
                    None => serve_one((stream, of), app, stop).await,
                    Some(tls) => match timeout(limits.header_timeout, tls.accept(stream)).await {
                        Ok(Ok(stream)) => serve_one((stream, of), app, stop).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    },
                }
            };
            tokio::select! {
                () = work => {}
                () = opened.shed() => tracing::debug!("an idle connection gave its place to another"),
            }
            drop((place, opened));
        });
    }
    drop(listener);
    let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    // The semaphore is never closed, so this ends when every place is free.
    let _all_free = places.acquire_many(all).await.is_ok();
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    // Tokens are small; waiting to fill a packet would hold them up.
    stream.set_nodelay(true)?;
    Ok((stream, peer))
}

/// A place for a connection that is there: a free one, or that of an idle one, which is closed. An address
/// that has as many connections as it may gives one of its own and takes nobody else's.
async fn place(
    places: &Arc<Semaphore>,
    open: &Connections,
    (address, most): (IpAddr, usize),
) -> Option<OwnedSemaphorePermit> {
    loop {
        if let Ok(place) = places.clone().try_acquire_owned() {
            return Some(place);
        }
        open.shed(Some(address).filter(|_| open.is_full(address, most)));
        let waiting = timeout(LOOK_AGAIN, places.clone().acquire_owned());
        if let Ok(place) = waiting.await {
            // The semaphore is never closed.
            return place.ok();
        }
    }
}

/// A place among the connections of an address: a free one, or that of an idle one of the address.
async fn enter(open: &Connections, address: IpAddr, most: usize) -> Option<Open> {
    for _ in 0..TRIES {
        if let Some(opened) = open.enter(address, most) {
            return Some(opened);
        }
        if !open.shed(Some(address)) {
            return None;
        }
        sleep(LOOK_AGAIN / 10).await;
    }
    None
}

/// Logs that connections of a full address were closed.
fn tell_refused(refusals: &Mutex<Seldom>, address: IpAddr) {
    // Every change leaves it whole, whatever panicked later.
    let mut refusals = refusals.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(times) = refusals.says() {
        tracing::warn!(
            %address,
            times,
            "connections were closed: the address has http.connections_per_address_max, all at work"
        );
    }
}

/// Something that is said at most once in a while, with how often it happened.
#[derive(Default)]
struct Seldom {
    said: Option<Instant>,
    times: u64,
}

impl Seldom {
    /// Counts once more; how often it happened since it was said, where it is to be said now.
    fn says(&mut self) -> Option<u64> {
        self.times += 1;
        if self.said.is_some_and(|said| said.elapsed() < SAID_EVERY) {
            return None;
        }
        self.said = Some(Instant::now());
        Some(std::mem::take(&mut self.times))
    }
}

async fn serve_one<A, B>(
    (stream, (peer, under_way)): (impl AsyncRead + AsyncWrite + Unpin, (SocketAddr, UnderWay)),
    app: A,
    stop: Shutdown,
) where
    A: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data = Bytes> + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let service = tower::service_fn(move |mut request: Request<Incoming>| {
        // From here to the reply's last byte the connection is neither idle nor reading headers.
        let busy = under_way.begin();
        request.extensions_mut().insert(Peer(peer));
        let answer = app.clone().oneshot(request);
        async move {
            let response = answer.await?;
            Ok::<_, Infallible>(response.map(|body| {
                body.map_frame(move |frame| {
                    let _counted = &busy;
                    frame
                })
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
