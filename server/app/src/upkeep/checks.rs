//! What the doctor looks at, one function each.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use hone_domain::{Loop, Millis};
use hone_judge::ModelKind;
use hone_ledger::AuditQuery;
use hone_ledger_sql::StoredLedger;
use hone_monitor::in_place::FREE_BYTES_MIN;
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};
use serde::Serialize;

use super::adapters::Adapters;
use super::common::{check_adapter, now_ms};
use crate::config::{Config, Engine};
use hone_net::listen::check_private;
use hone_net::outbound::{Call, Outbound};
use hone_rollouts::{ExecutorKind, Jails};

/// Less than this is worth a warning.
const FREE_BYTES_FEW: u64 = 2 << 30;
/// A write to disk that takes longer slows every answer down.
const SYNC_SLOW: Duration = Duration::from_millis(100);
/// No clock is before this: 2026-01-01.
const EPOCH_MS: Millis = 1_767_225_600_000;
/// Difference to what was recorded last that is forgiven.
const SKEW_MS: Millis = 60_000;
/// Most time for one call to another server.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Most findings shown of one check.
const SHOWN_MAX: usize = 5;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Ok,
    Warning,
    Broken,
    Skipped,
}

/// How a check went, what it found, and what to do.
pub(super) type Outcome = (State, String, Option<String>);

pub(super) fn fine(found: impl Into<String>) -> Outcome {
    (State::Ok, found.into(), None)
}

pub(super) fn skipped(found: impl Into<String>) -> Outcome {
    (State::Skipped, found.into(), None)
}

pub(super) fn warning(found: impl Into<String>, remedy: impl Into<String>) -> Outcome {
    (State::Warning, found.into(), Some(remedy.into()))
}

pub(super) fn broken(found: impl Into<String>, remedy: impl Into<String>) -> Outcome {
    (State::Broken, found.into(), Some(remedy.into()))
}

pub(super) fn data_folder(folder: &Path) -> Outcome {
    let shown = folder.display();
    if !folder.exists() {
        return skipped(format!(
            "{shown} does not exist yet; the first start makes it"
        ));
    }
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    let began = Instant::now();
    let written = File::create_new(&probe).and_then(|mut file| {
        file.write_all(&[0; 4096])?;
        file.sync_all()
    });
    let took = began.elapsed();
    // What could not be written cannot be removed either.
    let _removed_or_never_there = fs::remove_file(&probe).is_ok();
    if let Err(error) = written {
        return unwritable(folder, &error);
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(folder).map_or(0, |meta| meta.permissions().mode());
        if mode & 0o007 != 0 {
            return warning(
                format!(
                    "{shown} is open to everybody at this machine, and it holds what people said"
                ),
                format!("chmod 700 {shown}"),
            );
        }
    }
    let found = format!(
        "{shown} is writable; a write is on disk after {} ms",
        took.as_millis()
    );
    if took > SYNC_SLOW {
        return warning(
            found,
            "every answer waits for such a write; use a faster disk",
        );
    }
    fine(found)
}

/// What to do about a folder that takes no file.
fn unwritable(folder: &Path, error: &std::io::Error) -> Outcome {
    let found = format!("{} cannot be written ({error})", folder.display());
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => broken(found, more_space(folder)),
        _ => broken(
            found,
            "make it writable for this user, or choose another data folder",
        ),
    }
}

/// How a full disk gets room.
fn more_space(folder: &Path) -> String {
    format!(
        "delete files on that disk, or stop Hone and move {} to a larger one (store.data_dir); once the \
         disk is full, answers go on, but none is recorded or learned from",
        folder.display()
    )
}

/// The folder itself, or the nearest one above it that exists.
fn existing(folder: &Path) -> &Path {
    folder
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(folder)
}

/// Free bytes of the disk under a folder.
///
/// # Errors
/// As the system has it.
pub(super) fn free_bytes(folder: &Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statvfs(existing(folder))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

pub(super) fn disk(folder: &Path) -> Outcome {
    match free_bytes(folder) {
        Ok(free) => space(folder, free),
        Err(error) => warning(
            format!("free space is not known ({error})"),
            "check the disk",
        ),
    }
}

/// What waits for the database.
pub(super) fn spool(folder: &Path) -> Outcome {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return fine("nothing waits"),
        Err(error) => return broken(format!("it cannot be read ({error})"), "see its rights"),
        Ok(entries) => entries,
    };
    let sizes = entries.flatten().filter_map(|entry| entry.metadata().ok());
    match sizes.map(|meta| meta.len()).sum::<u64>() {
        0 => fine("nothing waits"),
        bytes => warning(
            format!(
                "{} KiB of turns wait for the database",
                bytes.div_ceil(1024)
            ),
            "a running server ships them when the database answers, a stopped one at its next start",
        ),
    }
}

/// Whether so many free bytes are enough.
fn space(folder: &Path, free: u64) -> Outcome {
    let found = format!("{} MiB free", free >> 20);
    match free {
        _ if free < FREE_BYTES_MIN => broken(found, more_space(folder)),
        _ if free < FREE_BYTES_FEW => warning(found, more_space(folder)),
        _ => fine(found),
    }
}

#[cfg(target_os = "linux")]
pub(super) fn file_system(folder: &Path) -> Outcome {
    /// Magic numbers of file systems whose locks cannot be relied on.
    const REMOTE: [(i64, &str); 6] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB"),
        (0x0102_1997, "9P"),
        (0x00c3_6400, "Ceph"),
    ];
    let Ok(stat) = rustix::fs::statfs(existing(folder)) else {
        return skipped("its kind is not known");
    };
    let kind = REMOTE
        .iter()
        .find(|(magic, _)| *magic == stat.f_type & 0xffff_ffff);
    match kind {
        Some((_, name)) => warning(
            format!("the data folder is on a network file system ({name})"),
            "SQLite needs locks that hold; move the data folder to a local disk",
        ),
        None => fine("local"),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn file_system(_folder: &Path) -> Outcome {
    skipped("only known on Linux")
}

/// The first findings, in one line.
fn some(findings: &[String]) -> String {
    let mut text = findings
        .iter()
        .take(SHOWN_MAX)
        .cloned()
        .collect::<Vec<_>>()
        .join("; ");
    if findings.len() > SHOWN_MAX {
        text.push_str(&format!("; and {} more", findings.len() - SHOWN_MAX));
    }
    text
}

pub(super) async fn integrity(ledger: &dyn StoredLedger, quick: bool) -> Outcome {
    if quick {
        return skipped("opened; not every page was read (--quick)");
    }
    match ledger.check_stored().await {
        Err(error) => broken(
            error.to_string(),
            "restore it from a backup (`hone restore`)",
        ),
        Ok(findings) if findings.is_empty() => fine("every page and reference is sound"),
        Ok(findings) => broken(
            format!("the database is damaged: {}", some(&findings)),
            "restore it from a backup (`hone restore`), or move it away and recover what can be read with sqlite3's .recover",
        ),
    }
}

pub(super) async fn laws(ledger: &dyn StoredLedger, quick: bool) -> Outcome {
    if quick {
        return skipped("not checked (--quick)");
    }
    match ledger.check_laws().await {
        Err(error) => broken(
            error.to_string(),
            "restore it from a backup (`hone restore`)",
        ),
        Ok(found) if found.is_empty() => fine("all hold"),
        Ok(found) => broken(
            some(&found),
            "something else than hone wrote to the ledger, or this is a defect of hone: keep a copy, report it, and restore a backup",
        ),
    }
}

pub(super) async fn audit(ledger: &dyn StoredLedger) -> Outcome {
    match ledger.verify_audit().await {
        Err(error) => broken(
            error.to_string(),
            "restore it from a backup (`hone restore`)",
        ),
        Ok(check) => match check.first_broken {
            None => fine(format!("intact, {} entries", check.entries)),
            Some(number) => broken(
                format!("broken at entry {number} of {}", check.entries),
                "it or what is before it was changed; compare with a backup",
            ),
        },
    }
}

/// Whether what is or may be served is what was published.
pub(super) async fn adapters(ledger: &dyn StoredLedger, config: &Config, folder: &Path) -> Outcome {
    let restore = "restore a backup (`hone restore`)";
    let stored = match Adapters::open(config, folder) {
        Ok(stored) => stored,
        Err(error) => return broken(error, "see docs/operations.md"),
    };
    let kept = match ledger.kept_blobs().await {
        Ok(kept) => kept,
        Err(error) => return broken(error.to_string(), restore),
    };
    let damaged = match ledger.damaged(SHOWN_MAX).await {
        Ok(damaged) => damaged,
        Err(error) => return broken(error.to_string(), restore),
    };
    let faults: Vec<String> = kept
        .iter()
        .filter_map(|(key, digest)| {
            let place = stored.folder_of(key);
            let why = place
                .and_then(|place| check_adapter(&place, *digest))
                .err()?;
            Some(format!("{} ({why})", key.as_str()))
        })
        .collect();
    if !faults.is_empty() {
        return broken(
            format!("missing or damaged: {}", some(&faults)),
            "restore a backup, or start the server: it serves the nearest sound version before it",
        );
    }
    let whole = format!("{} whole", kept.len());
    if damaged.is_empty() {
        return fine(whole);
    }
    let aside: Vec<String> = damaged
        .iter()
        .map(|policy| format!("version {} of {}", policy.version, policy.scope))
        .collect();
    warning(
        format!("{whole}; damaged and kept aside: {}", some(&aside)),
        "restore a backup to have them back, or retire them (`hone versions retire`)",
    )
}

pub(super) async fn clock(ledger: &dyn StoredLedger) -> Outcome {
    let now = now_ms();
    if now < EPOCH_MS {
        return broken(
            "it is set to a time before 2026",
            "set it (timedatectl set-ntp true): keys expire and sessions end by it",
        );
    }
    let turn = ledger
        .turns(None, 1)
        .await
        .ok()
        .and_then(|rows| rows.first().map(|r| r.finished_ms));
    let query = AuditQuery {
        limit: 1,
        ..AuditQuery::default()
    };
    let act = ledger
        .audit(&query)
        .await
        .ok()
        .and_then(|rows| rows.first().map(|r| r.entry.at_ms));
    match turn.max(act) {
        Some(last) if last > now + SKEW_MS => broken(
            format!("{} s behind what was recorded last", (last - now) / 1_000),
            "set it (timedatectl set-ntp true)",
        ),
        _ => fine("not behind what was recorded last"),
    }
}

pub(super) async fn access(config: &Config, ledger: &dyn StoredLedger) -> Outcome {
    let address = config.http.address();
    let public = address.is_ok_and(|address| !address.ip().is_loopback());
    let place = match public {
        true => &config.http.bind,
        false => &config.people.public_url,
    };
    if !public && !config.people.is_published() {
        return fine("only this machine can reach it");
    }
    let users = ledger.users().await.is_ok_and(|users| !users.is_empty());
    let keys = ledger.keys(None).await.is_ok_and(|keys| !keys.is_empty());
    let oidc = config.people.oidc.is_some();
    if !users && !keys && !oidc && config.http.keys.is_empty() {
        return warning(
            format!("{place} can be reached from outside, and nobody has an account or key"),
            "the next start makes a link for the first admin (first-admin-link in the data folder); or `hone user add NAME --role admin`",
        );
    }
    if config.http.tls().is_none() && !config.people.is_tls() {
        return warning(
            format!("{place} can be reached from outside without TLS"),
            "set http.tls_cert and http.tls_key, or put a server that speaks TLS in front and set people.public_url",
        );
    }
    fine("people need an account or a key")
}

pub(super) fn model(config: &Config) -> Outcome {
    let path = &config.model.path;
    match config.model.engine {
        Engine::Null => skipped("the null engine needs none"),
        Engine::Builtin if path.is_empty() => fine("the built-in one"),
        Engine::Builtin if !Path::new(path).exists() => skipped(format!(
            "{path} is no folder here; as a hub id it is fetched at the start"
        )),
        Engine::Builtin => match hone_text::folder::ModelFolder::open(Path::new(path)) {
            Ok(_) => fine(format!("{path} has what is needed")),
            Err(error) => broken(
                error.to_string(),
                "complete the folder, or set another model.path",
            ),
        },
    }
}

pub(super) fn port(config: &Config, folder: &Path) -> Outcome {
    let address = match config.http.address() {
        Ok(address) => address,
        Err(error) => return broken(error, "set http.bind"),
    };
    let Err(error) = TcpListener::bind(address) else {
        return fine(format!("{address} is free"));
    };
    let owned =
        File::open(folder.join("owner.lock")).is_ok_and(|file| file.try_lock_shared().is_err());
    if owned {
        return fine(format!(
            "{address} is in use, and so is the data folder: hone runs"
        ));
    }
    broken(
        format!("{address} cannot be bound ({error})"),
        "stop what listens there, or choose another address (http.bind)",
    )
}

pub(super) fn secrets(config: &Config) -> Outcome {
    let Some(tls) = config.http.tls() else {
        return skipped("there is no file of secrets in the configuration");
    };
    match check_private(&tls.key) {
        Ok(()) => fine("only this user and its group can read them"),
        Err(error) => {
            let remedy = format!("chmod 600 {}", tls.key.display());
            broken(error, remedy)
        }
    }
}

pub(super) async fn jails(config: &Config) -> Outcome {
    if !config.runs(Loop::Rollout) {
        return skipped("agents try no tasks here: the loop rollout does not run");
    }
    match config.tools.executor {
        ExecutorKind::Off => skipped("tools.executor is \"off\": agents can try no tasks"),
        ExecutorKind::Bubblewrap => match Jails::new(config.tools.clone()).executor().await {
            Ok(_) => fine("agents can work in jails"),
            Err(why) => warning(
                format!("agents can try no tasks: {why}"),
                "do what it says, or set tools.executor to \"off\"",
            ),
        },
    }
}

pub(super) async fn judge(config: &Config) -> Outcome {
    let Some(model) = &config.judge.model else {
        return skipped("no model judges; feedback and rules do");
    };
    let remedy = "start it, or correct [judge.model]; without it turns are judged by feedback and rules alone";
    if let Some(name) = model.api_key_env.as_ref().filter(|name| !name.is_empty())
        && std::env::var_os(name).is_none()
    {
        return broken(
            format!("the environment variable {name} is not set"),
            remedy,
        );
    }
    match model.kind {
        ModelKind::Endpoint => {}
        ModelKind::Base => return fine("the served base model votes"),
        ModelKind::Local => {
            let path = std::path::Path::new(&model.local.path);
            return match (path.exists(), cfg!(feature = "candle")) {
                (true, true) => fine("there is something at its path"),
                (true, false) => broken(
                    "this build has no local judge",
                    "build it with --features candle",
                ),
                (false, _) => broken(
                    format!("there is nothing at {}", model.local.path),
                    "correct judge.model.local.path",
                ),
            };
        }
    }
    let mut said = Vec::new();
    for (key, url) in model.servers() {
        match reached(config, key, url).await {
            Ok(status) => said.push(format!("status {status}")),
            Err(error) => return broken(format!("{key} cannot be reached: {error}"), remedy),
        }
    }
    fine(format!("it answers ({})", said.join(", ")))
}

/// The status of a server of the judge's model.
async fn reached(config: &Config, key: &str, url: &str) -> Result<u16, String> {
    let outbound = Outbound::new(&config.outbound)?;
    let url: Url = outbound.url(key, &format!("{}/models", url.trim_end_matches('/')))?;
    let call = Call {
        method: Method::GET,
        url,
        headers: HeaderMap::new(),
        body: Vec::new(),
        deadline: CALL_TIMEOUT,
    };
    let reply = outbound.send(call).await;
    reply
        .map(|reply| reply.status)
        .map_err(|error| error.to_string())
}

pub(super) async fn identity(config: &Config) -> Outcome {
    let Some(oidc) = &config.people.oidc else {
        return skipped("no identity provider is configured");
    };
    let fetched = async {
        let outbound = Outbound::new(&config.outbound)?;
        let url = outbound.url("people.oidc.jwks_url", &oidc.jwks_url)?;
        let value = outbound.get_json(url, CALL_TIMEOUT).await?;
        Ok::<_, String>(value["keys"].as_array().map_or(0, Vec::len))
    };
    match fetched.await {
        Ok(0) => broken("it publishes no keys", "correct people.oidc.jwks_url"),
        Ok(keys) => fine(format!("it publishes {keys} keys")),
        Err(error) => broken(
            format!("its keys are not to be had: {error}"),
            "correct people.oidc.jwks_url, or ask whoever runs it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_needs_room_and_no_other_rights() {
        let folder = Path::new("/data/hone");
        let no_space = unwritable(folder, &ErrorKind::StorageFull.into());
        let rows = [
            (no_space, State::Broken),
            (space(folder, 0), State::Broken),
            (space(folder, FREE_BYTES_MIN), State::Warning),
        ];
        for ((state, found, remedy), expected) in rows {
            let remedy = remedy.unwrap_or_default();
            assert_eq!(state, expected, "{found}");
            assert!(
                remedy.contains("delete files") && remedy.contains("/data/hone"),
                "{remedy}"
            );
            assert!(!remedy.contains("writable"), "{remedy}");
        }
        let (_, _, remedy) = unwritable(folder, &ErrorKind::PermissionDenied.into());
        assert!(remedy.is_some_and(|remedy| remedy.contains("writable")));
        assert_eq!(space(folder, FREE_BYTES_FEW).0, State::Ok);
    }
}
