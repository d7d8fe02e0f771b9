//! What is known to be wrong until it is mended: damaged files, a data folder that is gone. Whoever looks
//! after something tells it here; the console, the alerts and the probes say it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hone_domain::Millis;
use tokio::sync::Notify;

use crate::alert::{Alert, Severity, Since};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its name: one of a name at a time.
    pub id: &'static str,
    /// How much somebody should hurry.
    pub severity: Severity,
    /// What is the matter, in one sentence.
    pub text: String,
    /// What to do about it.
    pub what_to_do: String,
    /// Whether nothing is learned while it lasts.
    pub stops_learning: bool,
}

/// Everything that is wrong now.
#[derive(Clone, Debug, Default)]
pub struct Troubles(Arc<Book>);

#[derive(Debug, Default)]
struct Book {
    known: Mutex<BTreeMap<&'static str, (Millis, Trouble)>>,
    /// Wakes whoever waits for a trouble.
    changed: Notify,
}

impl Troubles {
    fn known(&self) -> MutexGuard<'_, BTreeMap<&'static str, (Millis, Trouble)>> {
        // Every change leaves it whole, whatever panicked later.
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of a trouble; one that lasts keeps the time since when it does. True where it is new.
    pub fn tell(&self, trouble: Trouble, now_ms: Millis) -> bool {
        let is_new = {
            let mut known = self.known();
            let since_ms = known.get(trouble.id).map_or(now_ms, |(since, _)| *since);
            known.insert(trouble.id, (since_ms, trouble)).is_none()
        };
        self.0.changed.notify_waiters();
        is_new
    }

    /// Whether a trouble of that name lasts.
    pub fn lasts(&self, id: &str) -> bool {
        self.known().contains_key(id)
    }

    /// Waits until a trouble of that name lasts.
    pub async fn begun(&self, id: &str) {
        loop {
            // Made before the look, so that what is told in between wakes it.
            let changed = self.0.changed.notified();
            if self.lasts(id) {
                return;
            }
            changed.await;
        }
    }

    /// A trouble is over. True where it was known.
    pub fn over(&self, id: &str) -> bool {
        self.known().remove(id).is_some()
    }

    /// What lets nothing be learned; the one that was told first of its names.
    pub fn stops_learning(&self) -> Option<Trouble> {
        let known = self.known();
        let mut all = known.values().map(|(_, trouble)| trouble);
        all.find(|trouble| trouble.stops_learning).cloned()
    }

    /// The names of all.
    pub fn ids(&self) -> Vec<&'static str> {
        self.known().keys().copied().collect()
    }

    /// All of them, as alerts.
    pub fn alerts(&self) -> Vec<Since> {
        let alert = |(since_ms, trouble): &(Millis, Trouble)| Since {
            since_ms: *since_ms,
            alert: Alert {
                id: trouble.id.to_owned(),
                severity: trouble.severity,
                text: trouble.text.clone(),
                what_to_do: trouble.what_to_do.clone(),
            },
        };
        self.known().values().map(alert).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_lasts_since_it_was_told_first() {
        let troubles = Troubles::default();
        let trouble = |text: &str, stops_learning| Trouble {
            id: "a",
            severity: Severity::Error,
            text: text.to_owned(),
            what_to_do: "mend it".to_owned(),
            stops_learning,
        };
        assert!(troubles.tell(trouble("one file", false), 7));
        assert!(troubles.stops_learning().is_none());
        assert!(!troubles.tell(trouble("two files", true), 9));
        let told = troubles.alerts();
        assert_eq!((told[0].since_ms, &*told[0].alert.text), (7, "two files"));
        assert!(troubles.stops_learning().is_some());
        assert!(troubles.over("a") && !troubles.over("a"));
        assert!(troubles.ids().is_empty());
    }

    #[tokio::test]
    async fn who_waits_for_a_trouble_is_woken_by_that_one() {
        let troubles = Troubles::default();
        let waiting = tokio::spawn({
            let troubles = troubles.clone();
            async move { troubles.begun("a").await }
        });
        let trouble = |id| Trouble {
            id,
            severity: Severity::Error,
            text: String::new(),
            what_to_do: String::new(),
            stops_learning: false,
        };
        tokio::task::yield_now().await;
        troubles.tell(trouble("b"), 1);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && !troubles.lasts("a"));
        troubles.tell(trouble("a"), 2);
        waiting.await.expect("it ends");
        troubles.begun("a").await;
    }
}
