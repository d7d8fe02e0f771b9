//! `hone health`: whether a server is ready, and why not.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::client::{Address, Trust, unreachable};
use crate::manage::client;

/// Longest wait for an answer about readiness.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

/// Which server is asked whether it is ready.
#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    address: Address,
    #[command(flatten)]
    trust: Trust,
}

/// Asks a server whether it is ready.
///
/// # Errors
/// A sentence: it cannot be reached, or it is not ready.
pub(crate) fn health(args: &HealthArgs) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let url = format!("{}/readyz", args.address.url()?);
    let client = client(&args.trust, HEALTH_TIMEOUT)?;
    // A request's time begins to run when it is made, which only works on the runtime.
    let reply = runtime.block_on(async { client.get(&url).send().await });
    let reply = reply.map_err(|error| unreachable(&url, error))?;
    let status = reply.status();
    if !status.is_success() {
        let body = runtime.block_on(reply.json::<Value>()).unwrap_or_default();
        let why = body["error"]["message"]
            .as_str()
            .map(|why| format!(": {why}"));
        let why = why.unwrap_or_default();
        return Err(format!("{url} answered with status {status}{why}"));
    }
    println!("ready");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_of_a_server_that_is_not_there_is_a_sentence() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            health: HealthArgs,
        }
        let args = |url: &str| {
            let line: Line = clap::Parser::parse_from(["hone", "--url", url]);
            health(&line.health).unwrap_err()
        };
        // Nothing listens on a port that was just given back.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", free.local_addr().unwrap());
        drop(free);
        assert!(args(&url).contains(&url), "{}", args(&url));
        assert!(args("127.0.0.1:1").contains("http://"));
        // One that is not ready says why.
        let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", busy.local_addr().unwrap());
        let answering = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut asked, _) = busy.accept().unwrap();
            assert!(asked.read(&mut [0; 1_024]).unwrap() > 0);
            let body = r#"{"error": {"message": "the server is stopping"}}"#;
            let length = body.len();
            write!(
                asked,
                "HTTP/1.1 503 Busy\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .unwrap();
        });
        let said = args(&url);
        answering.join().unwrap();
        assert!(said.ends_with(": the server is stopping"), "{said}");
    }
}
