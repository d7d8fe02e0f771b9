//! Commands against a server whose certificate a private authority signed.
#![allow(clippy::unwrap_used)]

use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use hone_net::listen::{ListenLimits, listen};
use hone_net::tls::{Tls, TlsFiles};
use hone_runtime::ShutdownTrigger;
use tokio::net::TcpListener;

#[tokio::test(flavor = "multi_thread")]
async fn commands_trust_the_authority_that_they_are_given() {
    use std::os::unix::fs::PermissionsExt;
    hone_net::outbound::install_tls();
    let folder = tempfile::tempdir().unwrap();
    let [cert, key, other] = [
        ("cert.pem", include_str!("../../net/src/fixtures/first.crt")),
        ("key.pem", include_str!("../../net/src/fixtures/first.key")),
        (
            "other.crt",
            include_str!("../../net/src/fixtures/second.crt"),
        ),
    ]
    .map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let own = cert.display().to_string();
    let tls = Tls::load(TlsFiles { cert, key })
        .unwrap()
        .acceptor()
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let versions = r#"{"current": 0, "data": []}"#;
    let app = Router::new()
        .route("/readyz", get(|| async { "ready" }))
        .route("/v1/versions", get(move || async move { versions }));
    let stop = ShutdownTrigger::new();
    let patient = ListenLimits {
        connections_max: 8,
        per_address_max: 0,
        header_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_millis(400),
        write_timeout: Duration::from_millis(100),
    };
    let with = (listener, Some(tls));
    let task = tokio::spawn(listen(with, app, (patient, stop.signal())));
    let other = other.display().to_string();
    for command in [["health"].as_slice(), &["versions", "list"]] {
        for (trusted, expected) in [
            (Some(&own), ExitCode::SUCCESS),
            (Some(&other), ExitCode::FAILURE),
            (None, ExitCode::FAILURE),
        ] {
            let mut line = vec!["hone".to_owned()];
            line.extend(command.iter().map(ToString::to_string));
            line.extend(["--url".to_owned(), url.clone()]);
            line.extend(trusted.map(|file| format!("--cacert={file}")));
            let shown = line.join(" ");
            let ended = tokio::task::spawn_blocking(|| crate::cli::run(line));
            let ended = format!("{:?}", ended.await.unwrap());
            assert_eq!(ended, format!("{expected:?}"), "{shown}");
        }
    }
    stop.pull();
    task.await.unwrap();
}
