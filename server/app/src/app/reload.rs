//! What can change while the server runs: keys and hosts of the configuration, limits, the level of
//! the log, the certificate.

use hone_ledger::AuditEntry;
use serde_json::json;

use super::{App, guard_of};
use crate::config::Config;
use crate::logs;
use hone_api::guard::Guard;
use hone_api::settings::Setting;

/// Keys, or beginnings of keys, that take effect at once.
const AT_ONCE: [&str; 5] = [
    "http.keys",
    "http.hosts_allowed",
    "http.origins_allowed",
    "limits.",
    "log.level",
];

/// Who acts in the audit log: whoever may send the process a signal.
const ACTOR: &str = "signal";

impl App {
    /// Takes over what of a configuration can change now. Returns the keys that wait for a restart.
    ///
    /// # Errors
    /// A sentence: a value is wrong, or the act could not be recorded. Nothing is changed then, but
    /// for the certificate's files, which are read first.
    pub async fn reload(&self, new: &Config) -> Result<Vec<String>, String> {
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        let running = self.http.guard.get();
        let guard = Guard {
            sign_in: running.sign_in,
            proxies_trusted: running.proxies_trusted.clone(),
            ..guard_of(new, self.addr)?
        };
        let settings = new.settings().map_err(|error| error.to_string())?;
        let known = self.http.settings.get();
        let changed = changed(&known, &settings);
        let now = |key: &&String| AT_ONCE.iter().any(|at_once| key.starts_with(at_once));
        let (at_once, late): (Vec<&String>, Vec<&String>) = changed.iter().partition(now);
        let entry = AuditEntry {
            at_ms: self.http.clock.now_ms(),
            actor: ACTOR.to_owned(),
            act: "config.reload".to_owned(),
            object: String::new(),
            detail: json!({"changed": at_once}),
        };
        let recorded = self.http.people.store().record(&entry).await;
        recorded.map_err(|error| error.to_string())?;
        logs::set_level(&new.log.level)?;
        self.http.guard.set(guard);
        self.http.rate_limiter.set_limits(new.limits);
        let in_force = |new: Setting| match late.contains(&&new.key) {
            true => known.iter().find(|old| old.key == new.key).cloned(),
            false => Some(new),
        };
        let shown = settings.into_iter().filter_map(in_force).collect();
        let late = late.into_iter().cloned().collect();
        self.http.settings.set(shown);
        Ok(late)
    }
}

/// Keys whose values differ. Values of secrets are not shown and so not compared here; they are
/// among what takes effect at once.
fn changed(old: &[Setting], new: &[Setting]) -> Vec<String> {
    let differs = |setting: &&Setting| {
        let other = old.iter().find(|other| other.key == setting.key);
        other.is_none_or(|other| other.value != setting.value)
    };
    let gone = |setting: &&Setting| new.iter().all(|other| other.key != setting.key);
    let keys = new.iter().filter(differs).chain(old.iter().filter(gone));
    keys.map(|setting| setting.key.clone()).collect()
}
