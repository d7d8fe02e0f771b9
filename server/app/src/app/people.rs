//! People: keeps what is remembered of them fresh, and lets the first one in.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hone_runtime::Shutdown;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::loops::beside;
use super::resources::Resources;
use hone_accounts::{Directory, links};

/// The file in the data folder with the link for the first admin. Others may read what a service prints.
const FIRST_LINK: &str = "first-admin-link";

/// The link that makes the first admin.
#[derive(Clone, Debug)]
pub struct FirstLink {
    /// The link; a secret.
    pub link: String,
    /// The file that has it, which only this user reads.
    pub file: PathBuf,
}

/// How often uses of keys and sign-ins are noted.
const NOTE_EVERY: Duration = Duration::from_secs(60);
/// Longest time that this takes.
const NOTE_MAX: Duration = Duration::from_secs(5);

/// Looks for changes of other processes, and notes uses, until the server stops.
pub(super) fn watch(resources: &Resources, tasks: &mut JoinSet<()>) {
    let every = Duration::from_millis(resources.config.people.look_ms);
    let (name, people) = (
        ("people", resources.registry.clone()),
        resources.people.clone(),
    );
    beside(name, resources.stops[1].signal(), tasks, move |stop| {
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
        match timeout(NOTE_MAX, people.note_uses()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "uses of keys could not be noted"),
            Err(_) => tracing::warn!("uses of keys were not noted in time"),
        }
    }
}

/// Refuses an address that others can reach while nobody could come in but by a link in the log.
pub(super) fn check_public(resources: &Resources, addr: SocketAddr) -> Result<(), String> {
    let config = &resources.config;
    let is_public = !addr.ip().is_loopback();
    if !is_public || config.people.first_admin_link || is_inhabited(resources) {
        return Ok(());
    }
    Err(format!(
        "{addr} can be reached from other machines, and nobody has an account or a key yet. Make an admin first (hone user add NAME --role admin), or set people.first_admin_link = true to be shown a link that makes one, or listen on 127.0.0.1"
    ))
}

/// Whether somebody has an account, a key or a token.
fn is_inhabited(resources: &Resources) -> bool {
    let people = &resources.people;
    people.has_users()
        || people.has_keys()
        || people.takes_tokens()
        || !resources.config.http.keys.is_empty()
}

/// A link for the first admin, where people have to sign in and nobody could.
pub(super) async fn first_link(
    resources: &Resources,
    addr: SocketAddr,
) -> Result<Option<FirstLink>, String> {
    let (config, people) = (&resources.config, &resources.people);
    let needed = config.people.asks_everybody() || !addr.ip().is_loopback();
    let file = config.store.folder()?.join(FIRST_LINK);
    if !needed || is_inhabited(resources) {
        // One of an earlier start leads nowhere any more.
        return match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(unwritten(&file, &error)),
            _ => Ok(None),
        };
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
    let link = links::url(&base, &link.token);
    write_private(&file, &link).map_err(|error| unwritten(&file, &error))?;
    Ok(Some(FirstLink { link, file }))
}

fn unwritten(file: &Path, error: &std::io::Error) -> String {
    format!(
        "the link for the first admin could not be written to {} ({error}); make the data folder writable",
        file.display()
    )
}

/// Writes a file that only this user reads, also where one of that name was open to others.
fn write_private(file: &Path, text: &str) -> std::io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    writeln!(options.open(file)?, "{text}")
}
