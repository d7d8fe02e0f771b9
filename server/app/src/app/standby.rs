//! A process that stands by: another one judges, trains or keeps memories with the same ledger, as only one may, and this one
//! takes over when that one ends. It has loaded its model by then and only waits for the ledger. Probes find it alive and not
//! ready.

use std::sync::Arc;
use std::time::Duration;

use hone_api::standby::router;
use hone_ledger::LedgerError;
use hone_ledger_sql::StoredLedger;
use hone_net::listen::{ListenLimits, listen};
use hone_net::tls::Tls;
use hone_runtime::ShutdownTrigger;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::config::Config;

/// How often a process that stands by tries to take over.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long answers to probes may take to end when it takes over.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Opens the ledger; where another process has a role of this one, once that one has ended.
///
/// # Errors
/// A sentence with the remedy. A process that stands by waits for a database that is away.
pub(super) async fn open_ledger(
    config: &Config,
    listener: &TcpListener,
    tls: Option<&Arc<Tls>>,
    limits: ListenLimits,
) -> Result<Arc<dyn StoredLedger>, String> {
    let folder = config.store.folder()?;
    let place = config.store.place(&folder, &config.loops);
    let mut standing: Option<Standing> = None;
    loop {
        let error = match place.open().await {
            Ok(ledger) => {
                if let Some(standing) = standing {
                    standing.end().await;
                    tracing::info!("the other process ended, and this one takes over");
                }
                return Ok(ledger);
            }
            Err(error) => error,
        };
        let is_taken = matches!(error, LedgerError::RoleTaken(_));
        match &mut standing {
            Some(standing) => standing.waits_for(&error),
            None if is_taken && config.store.stand_by => {
                standing = Some(Standing::begin(listener, tls, limits, &error)?);
            }
            None => return Err(error.to_string()),
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Answers probes meanwhile.
struct Standing {
    answering: JoinHandle<()>,
    stop: ShutdownTrigger,
    why: watch::Sender<String>,
}

impl Standing {
    fn begin(
        listener: &TcpListener,
        tls: Option<&Arc<Tls>>,
        limits: ListenLimits,
        why: &LedgerError,
    ) -> Result<Self, String> {
        let (why, told) = watch::channel(why.to_string());
        let shared = |error| format!("the port cannot be shared: {error}");
        let address = listener.local_addr().map_err(shared)?;
        eprintln!(
            "hone: standing by on {address}: {}. This process takes over when that one ends",
            *why.borrow()
        );
        tracing::info!(why = *why.borrow(), "standing by");
        let listener = same(listener).map_err(shared)?;
        let acceptor = tls.map(Tls::acceptor).transpose()?;
        let stop = ShutdownTrigger::new();
        let answering = listen((listener, acceptor), router(told), (limits, stop.signal()));
        Ok(Self {
            answering: tokio::spawn(answering),
            stop,
            why,
        })
    }

    fn waits_for(&mut self, why: &LedgerError) {
        let why = why.to_string();
        if why != *self.why.borrow() {
            tracing::info!(why, "standing by");
            self.why.send_replace(why);
        }
    }

    async fn end(mut self) {
        self.stop.pull();
        if timeout(LAST_ANSWERS, &mut self.answering).await.is_err() {
            self.answering.abort();
        }
    }
}

/// The same port, listened at by another part of this process.
fn same(listener: &TcpListener) -> std::io::Result<TcpListener> {
    use std::os::fd::AsFd as _;
    let listener = std::net::TcpListener::from(listener.as_fd().try_clone_to_owned()?);
    TcpListener::from_std(listener)
}
