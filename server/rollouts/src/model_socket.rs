//! Where an agent in a jail reaches the model.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hone_inference::EpisodeAccess;

/// Opens sockets at which the model answers one episode.
pub trait ModelSockets: Send + Sync {
    /// A socket at which the model answers this episode and nobody else, until what is returned is dropped.
    ///
    /// # Errors
    /// Why there can be none, for a person.
    fn open(&self, episode: Arc<EpisodeAccess>) -> Result<ModelSocket, String>;
}

/// An open socket; dropping it closes it with its connections.
pub struct ModelSocket {
    path: PathBuf,
    _keep: Box<dyn Any + Send>,
}

impl ModelSocket {
    /// A socket that is open as long as `keep` is kept.
    pub fn new(path: PathBuf, keep: impl Any + Send) -> Self {
        Self {
            path,
            _keep: Box::new(keep),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
