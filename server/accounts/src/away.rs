//! Who is calling while the store does not answer: whoever it knew before, for a time.

use std::sync::atomic::Ordering;

use hone_domain::{Digest, Millis};
use tokio::time::timeout;

use crate::directory::{KNOWN_TIMEOUT, SILENT_MS, STORE_TIMEOUT, silent};
use crate::known::{Known, Recall};
use crate::lock::locked;
use crate::{Caller, Directory, Error};

impl Directory {
    /// Whose secret this is, by what is remembered or else by what `find` gets from the store. While that does not answer,
    /// whoever it knew before is still known, at most `people.away_ms_max` after it said so last.
    pub(crate) async fn remembered<F>(
        &self,
        secret: Digest,
        now_ms: Millis,
        find: impl FnOnce() -> F,
    ) -> Result<Option<Caller>, Error>
    where
        F: Future<Output = Result<Option<Known>, Error>>,
    {
        let recalled = locked(&self.memory).recall(&secret, now_ms);
        let (asked, before) = match recalled {
            Recall::Wrong => return Ok(None),
            // Nobody changed as long as the store said so.
            Recall::Known(caller) if self.trusts(self.answered_ms(), now_ms) => {
                return Ok(Some(*caller));
            }
            Recall::Known(_) => (locked(&self.memory).revision(), None),
            Recall::Ask(asked) => (asked, None),
            Recall::Stale(asked, stale) => {
                let before = self.trusts(stale.verified_ms, now_ms);
                (asked, before.then_some(stale.caller))
            }
        };
        if before.is_some() && self.silent_until_ms.load(Ordering::Relaxed) > now_ms {
            return Ok(before);
        }
        let limit = match before {
            Some(_) => KNOWN_TIMEOUT,
            None => STORE_TIMEOUT,
        };
        let found = timeout(limit, find()).await;
        match (found.unwrap_or_else(|_| Err(silent().into())), before) {
            (Ok(found), _) => {
                let caller = found.as_ref().map(|known| known.caller.clone());
                locked(&self.memory).learn(secret, asked, found, now_ms);
                Ok(caller)
            }
            (Err(Error::Unavailable { .. }), Some(caller)) => {
                let until_ms = now_ms.saturating_add(SILENT_MS);
                self.silent_until_ms.store(until_ms, Ordering::Relaxed);
                Ok(Some(caller))
            }
            (Err(error), _) => Err(error),
        }
    }

    fn answered_ms(&self) -> Millis {
        self.answered_ms.load(Ordering::Relaxed)
    }

    /// Whether what was right then still counts.
    fn trusts(&self, right_ms: Millis, now_ms: Millis) -> bool {
        now_ms.saturating_sub(right_ms) <= self.config().away_ms_max
    }
}
