//! Answers HTTP at a Unix socket, for programs of this machine that reach nothing else.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use hyper::Request;
use hyper::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tower::{Service, ServiceExt as _};

/// How long a client may take to send the headers of a request.
const HEADERS: Duration = Duration::from_secs(60);
/// Pause before connections are accepted again that could not be.
const AGAIN: Duration = Duration::from_millis(50);

/// Accepts connections until it is dropped, which closes them all. Every request has `mark` among its extensions.
pub async fn serve<A, B, M>(listener: UnixListener, app: A, mark: M)
where
    A: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    A::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
    M: Clone + Send + Sync + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let (app, mark) = (app.clone(), mark.clone());
        let service = tower::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(mark.clone());
            app.clone().oneshot(request)
        });
        connections.spawn(async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection at a socket ended early");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::Extension;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    #[derive(Clone)]
    struct Mark(&'static str);

    #[tokio::test]
    async fn requests_carry_the_mark_of_their_socket_and_end_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let app = axum::Router::new().route(
            "/",
            get(|Extension(mark): Extension<Mark>| async move { mark.0 }),
        );
        let listener = UnixListener::bind(&path).unwrap();
        let serving = tokio::spawn(serve(listener, app, Mark("episode 7")));
        let mut client = UnixStream::connect(&path).await.unwrap();
        let ask = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        client.write_all(ask).await.unwrap();
        let mut read = vec![0; 1024];
        let n = client.read(&mut read).await.unwrap();
        let text = String::from_utf8_lossy(&read[..n]).into_owned();
        assert!(
            text.starts_with("HTTP/1.1 200") && text.ends_with("episode 7"),
            "{text}"
        );
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
        // The connection was open and is closed.
        assert_eq!(client.read(&mut read).await.unwrap(), 0);
    }
}
