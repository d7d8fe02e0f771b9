//! Tells when another process changed something: triggers notify a channel that has the schema's name.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::Mutex;

/// How long a database that does not answer is left alone. Whoever waits looks by itself meanwhile.
const AGAIN: Duration = Duration::from_secs(1);

/// A connection that listens, once somebody waits.
#[derive(Default)]
pub(super) struct Listener(Mutex<Option<PgListener>>);

impl Listener {
    /// Waits for a notification, or for a while where there can be none.
    pub(super) async fn notified(&self, options: &PgConnectOptions, schema: &str) {
        let mut kept = self.0.lock().await;
        if let Err(error) = wait(&mut kept, options, schema).await {
            tracing::debug!(%error, "the database does not tell of changes");
            *kept = None;
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn wait(
    kept: &mut Option<PgListener>,
    options: &PgConnectOptions,
    schema: &str,
) -> Result<(), sqlx::Error> {
    let listener = match kept {
        Some(listener) => listener,
        None => {
            let one = PgPoolOptions::new().max_connections(1);
            let one = one.connect_lazy_with(options.clone());
            let mut listener = PgListener::connect_with(&one).await?;
            listener.listen(schema).await?;
            // What happened before it listened has to be looked for.
            *kept = Some(listener);
            return Ok(());
        }
    };
    // None: the connection was lost, and is made again by the next call.
    listener.try_recv().await.map(drop)
}
