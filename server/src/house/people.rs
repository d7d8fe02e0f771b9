//! People: keeps what is remembered of them fresh, and lets the first one in.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hone_runtime::Shutdown;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::commons::Commons;
use super::rooms::beside;
use crate::people::{Directory, links};

/// How often uses of keys and sign-ins are noted.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// Looks for changes of other processes, and notes uses, until the house stops.
pub(super) fn watch(commons: &Commons, tasks: &mut JoinSet<()>) {
    let every = Duration::from_millis(commons.config.people.look_ms);
    let (name, people) = (("people", commons.board.clone()), commons.people.clone());
    beside(name, commons.stops[1].signal(), tasks, move |stop| {
        look(people.clone(), every, stop)
    });
}

async fn look(people: Arc<Directory>, every: Duration, stop: Shutdown) {
    let mut noted = Instant::now();
    let mut stopping = false;
    while !stopping {
        tokio::select! {
            () = sleep(every) => {}
            () = stop.wait() => stopping = true,
        }
        if let Err(error) = people.look().await {
            tracing::warn!(%error, "changes among people could not be looked for");
        }
        if !stopping && noted.elapsed() < NOTE_EVERY {
            continue;
        }
        noted = Instant::now();
        if let Err(error) = people.note_uses().await {
            tracing::warn!(%error, "uses of keys could not be noted");
        }
    }
}

/// Refuses an address that others can reach while nobody could come in but by a link in the log.
pub(super) fn check_public(commons: &Commons, addr: SocketAddr) -> Result<(), String> {
    let config = &commons.config;
    let is_public = !addr.ip().is_loopback();
    if !is_public || config.people.first_admin_link || is_inhabited(commons) {
        return Ok(());
    }
    Err(format!(
        "{addr} can be reached from other machines, and nobody has an account or a key yet. Make an admin first (hone user add NAME --role admin), or set people.first_admin_link = true to be shown a link that makes one, or listen on 127.0.0.1"
    ))
}

/// Whether somebody has an account, a key or a token.
fn is_inhabited(commons: &Commons) -> bool {
    let people = &commons.people;
    people.has_users()
        || people.has_keys()
        || people.takes_tokens()
        || !commons.config.http.keys.is_empty()
}

/// A link for the first admin, where people have to sign in and nobody could.
pub(super) async fn first_link(
    commons: &Commons,
    addr: SocketAddr,
) -> Result<Option<String>, String> {
    let (config, people) = (&commons.config, &commons.people);
    let needed = config.people.asks_everybody() || !addr.ip().is_loopback();
    if !needed || is_inhabited(commons) {
        return Ok(None);
    }
    let link = people.invite_first().await;
    let link = link.map_err(|error| error.to_string())?;
    let base = match config.people.public_url.as_str() {
        "" => {
            // A link to every address leads nowhere; this machine is meant then.
            let mut addr = addr;
            if addr.ip().is_unspecified() {
                addr.set_ip(match addr {
                    SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                    SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
                });
            }
            format!("{}://{addr}", config.http.scheme())
        }
        public => public.to_owned(),
    };
    Ok(Some(links::url(&base, &link.token)))
}
