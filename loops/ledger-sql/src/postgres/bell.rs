//! Tells when another process changed something: triggers notify a channel that has the schema's name.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::Mutex;

/// How long a database that does not answer is left alone. Whoever waits looks by itself meanwhile.
const AGAIN: Duration = Duration::from_secs(1);

/// A connection that listens, once somebody waits.
#[derive(Default)]
pub(super) struct Bell(Mutex<Option<PgListener>>);

impl Bell {
    /// Waits for a notification, or for a while where there can be none.
    pub(super) async fn rung(&self, options: &PgConnectOptions, schema: &str) {
        let mut bell = self.0.lock().await;
        if let Err(error) = wait(&mut bell, options, schema).await {
            tracing::debug!(%error, "the database does not tell of changes");
            *bell = None;
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn wait(
    bell: &mut Option<PgListener>,
    options: &PgConnectOptions,
    schema: &str,
) -> Result<(), sqlx::Error> {
    let listener = match bell {
        Some(listener) => listener,
        None => {
            let one = PgPoolOptions::new().max_connections(1);
            let one = one.connect_lazy_with(options.clone());
            let mut listener = PgListener::connect_with(&one).await?;
            listener.listen(schema).await?;
            // What happened before it listened has to be looked for.
            *bell = Some(listener);
            return Ok(());
        }
    };
    // None: the connection was lost, and is made again by the next call.
    listener.try_recv().await.map(drop)
}
