//! The socket that a jail sees instead of the model's own: the jail's user may have no right to that one, and it ends
//! with the jail.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncWriteExt as _, copy, sink};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::ToolsError;
use crate::process::User;

/// Most connections of one jail at a time. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 64;

/// Listens at `path` for the jail's user, and joins every connection to `model`.
pub(crate) fn start(
    path: &Path,
    model: PathBuf,
    user: Option<User>,
) -> Result<tokio::task::JoinHandle<()>, ToolsError> {
    let failed =
        |e: std::io::Error| ToolsError::NotAvailable(format!("the socket of the model: {e}"));
    let listener = UnixListener::bind(path).map_err(failed)?;
    if let Some(user) = user {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)).map_err(failed)?;
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(path, mode).map_err(failed)?;
    Ok(tokio::spawn(accept(listener, model)))
}

async fn accept(listener: UnixListener, model: PathBuf) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Connections end with this task.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok(place) = places.clone().acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let Ok((near, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let model = model.clone();
        connections.spawn(async move {
            let _place = place;
            // A model that is away closes the connection.
            if let Ok(far) = UnixStream::connect(&model).await {
                join(near, far).await;
            }
        });
    }
}

/// Passes on what both sides say until both have ended. A model that answers without reading a request to its end takes
/// no more of it, and its answer is passed on all the same.
async fn join(near: UnixStream, far: UnixStream) {
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) =
        (near.into_split(), far.into_split());
    let asks = async {
        if copy(&mut near_in, &mut far_out).await.is_err() {
            let _ = copy(&mut near_in, &mut sink()).await;
        }
        let _ = far_out.shutdown().await;
    };
    let answers = async {
        let _ = copy(&mut far_in, &mut near_out).await;
        let _ = near_out.shutdown().await;
    };
    tokio::join!(asks, answers);
}
