//! The model as an agent in a jail sees it: the API's answers at a socket, for one episode and nothing else.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::http::Method;
use hone_accounts::{AuthMethod, Caller};
use hone_inference::EpisodeAccess;
use hone_net::socket;
use hone_rollouts::{ModelSocket, ModelSockets};
use tokio::net::UnixListener;

use crate::rights::Rule;
use hone_replies::error::ApiError;

/// What an agent may call.
const CALLED: [(Method, &str); 7] = [
    (Method::POST, "/v1/chat/completions"),
    (Method::POST, "/v1/messages"),
    (Method::POST, "/v1/messages/count_tokens"),
    (Method::POST, "/v1/responses"),
    (Method::GET, "/v1/models"),
    (Method::GET, "/v1/models/{*id}"),
    (Method::GET, "/livez"),
];

/// The caller that an agent is: nobody's key counts here, and nothing but asking is open to it.
pub fn admit(
    episode: &EpisodeAccess,
    rule: Result<Rule, ApiError>,
    method: &Method,
    route: Option<&str>,
) -> Result<(Caller, Rule), ApiError> {
    let is_open = |(open, path): &(Method, &str)| open == method && Some(*path) == route;
    if !CALLED.iter().any(is_open) {
        return Err(ApiError::Forbidden {
            code: "episode_only_asks",
            message: "the agent of an episode may ask the model, count tokens and list models, and nothing else"
                .to_owned(),
        });
    }
    let caller = Caller {
        owner: episode.terms.owner.clone(),
        via: AuthMethod::Key,
        ..Caller::stranger()
    };
    Ok((caller, rule?))
}

/// Opens sockets for agents in jails.
#[derive(Default)]
pub struct Sockets {
    router: OnceLock<Router>,
}

impl Sockets {
    /// What answers there, which is given back; until then nothing can be opened.
    pub fn serve(&self, router: Router) -> Router {
        self.router.get_or_init(|| router).clone()
    }
}

impl ModelSockets for Sockets {
    fn open(&self, episode: Arc<EpisodeAccess>) -> Result<ModelSocket, String> {
        let router = self.router.get().cloned();
        let router = router.ok_or_else(|| "this process does not answer yet".to_owned())?;
        let failed =
            |error: std::io::Error| format!("a socket for the agent cannot be made: {error}");
        // Readable by this user alone.
        let folder = tempfile::Builder::new().prefix("hone-").tempdir();
        let folder = folder.map_err(failed)?;
        let path = folder.path().join("model");
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let serving = tokio::spawn(socket::serve(listener, router, episode));
        Ok(ModelSocket::new(
            path,
            Closing {
                serving,
                _folder: folder,
            },
        ))
    }
}

/// Closes a socket with its connections.
struct Closing {
    serving: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
