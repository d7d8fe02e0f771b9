//! Accepts connections: their number, their idle time and their writes are bounded, and a stop
//! lets replies under way finish.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hone_runtime::Shutdown;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep};
use tower::ServiceExt as _;

/// Bounds of connections.
#[derive(Clone, Copy, Debug)]
pub struct ListenLimits {
    /// Most connections at once; further ones wait in the kernel's line.
    pub connections_max: usize,
    /// How long a connection may take to send a request's headers, idle time included.
    pub header_timeout: Duration,
    /// How long a client may take nothing while there is something to send.
    pub write_timeout: Duration,
}

/// Accepts until `stop`, then lets connections finish what they are answering. It returns when
/// the last one is closed; the caller sets the deadline.
pub async fn listen(listener: TcpListener, app: Router, (limits, stop): (ListenLimits, Shutdown)) {
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
        let (app, stop) = (app.clone(), stop.clone());
        tokio::spawn(async move {
            serve_one((stream, peer), app, (limits, stop)).await;
            drop(place);
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
    (stream, peer): (TcpStream, SocketAddr),
    app: Router,
    (limits, stop): (ListenLimits, Shutdown),
) {
    let service = app.map_request(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        request.map(axum::body::Body::new)
    });
    let io = TokioIo::new(TimedStream::new(stream, limits.write_timeout));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
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

/// A stream whose writes fail when the client takes nothing for too long.
struct TimedStream {
    stream: TcpStream,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    fn new(stream: TcpStream, patience: Duration) -> Self {
        Self {
            stream,
            patience,
            waiting: None,
        }
    }

    fn timed<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let patience = self.patience;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        match waiting.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.timed(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.timed(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        self.timed(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::routing::get;
    use futures::StreamExt;
    use hone_runtime::ShutdownTrigger;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn limits() -> ListenLimits {
        ListenLimits {
            connections_max: 2,
            header_timeout: Duration::from_millis(100),
            write_timeout: Duration::from_millis(100),
        }
    }

    async fn start(app: Router) -> (SocketAddr, ShutdownTrigger, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stop = ShutdownTrigger::new();
        let task = tokio::spawn(listen(listener, app, (limits(), stop.signal())));
        (addr, stop, task)
    }

    async fn read_all(mut stream: TcpStream) -> String {
        let mut text = String::new();
        // A reset by the server ends the reading as well.
        let _closed = stream.read_to_string(&mut text).await.is_ok();
        text
    }

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    #[tokio::test]
    async fn slow_headers_and_idle_connections_are_closed() {
        let (addr, stop, task) = start(Router::new().route("/", get(|| async { "hi" }))).await;
        let mut slow = TcpStream::connect(addr).await.unwrap();
        slow.write_all(b"GET / HT").await.unwrap();
        let mut idle = TcpStream::connect(addr).await.unwrap();
        idle.write_all(GET).await.unwrap();
        let (slow, idle) = tokio::join!(read_all(slow), read_all(idle));
        assert!(!slow.contains("200 OK"), "{slow}");
        assert!(
            idle.starts_with("HTTP/1.1 200 OK") && idle.ends_with("hi"),
            "{idle}"
        );
        stop.pull();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_stop_lets_a_reply_finish_and_takes_nothing_new() {
        let ticks = || async {
            let ticks = futures::stream::iter(0..5).then(|n| async move {
                sleep(Duration::from_millis(20)).await;
                Ok::<_, std::convert::Infallible>(format!("tick {n}\n"))
            });
            axum::body::Body::from_stream(ticks)
        };
        let (addr, stop, task) = start(Router::new().route("/", get(ticks))).await;
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(GET).await.unwrap();
        let mut first = [0; 15];
        stream.read_exact(&mut first).await.unwrap();
        stop.pull();
        let rest = read_all(stream).await;
        assert!(rest.contains("tick 4"), "{rest}");
        task.await.unwrap();
        assert!(TcpStream::connect(addr).await.is_err());
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_dropped() {
        let flood = || async {
            let chunk =
                || futures::future::ready(Some((Ok::<_, io::Error>("x".repeat(65_536)), ())));
            axum::body::Body::from_stream(futures::stream::unfold((), move |()| chunk()))
        };
        let (addr, stop, task) = start(Router::new().route("/", get(flood))).await;
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(GET).await.unwrap();
        stop.pull();
        // Ends only because the write timeout closes the connection.
        tokio::time::timeout(Duration::from_secs(20), task)
            .await
            .unwrap()
            .unwrap();
    }
}
