//! Which adapters are in memory, and which version a new request gets. Plain bookkeeping: it says
//! what is to be loaded, and somebody else loads it.

mod exact;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use hone_domain::{Digest, Policies, Policy, PolicyVersion, Scope};
use hone_nn::Adapter;

use self::exact::{Exact, ExactState, Failed};
use crate::reaper::Reaper;

/// Most exact versions in memory; the longest unused without a request goes first.
const EXACT_MAX: usize = 1_024;

/// What is to be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    /// The newest version of a scope.
    Newest(Scope),
    /// One adapter, whatever is the newest.
    Exact(Policy),
}

impl Wanted {
    pub(crate) fn scope(&self) -> &Scope {
        match self {
            Self::Newest(scope) => scope,
            Self::Exact(policy) => &policy.scope,
        }
    }
}

/// An adapter in memory. Requests hold it by `Arc`, to their end.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// None where the version is the base model.
    pub(crate) adapter: Option<Adapter>,
    pub(crate) version: PolicyVersion,
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
    /// What it said when it was published, where it carries that.
    pub(crate) probe: Option<Vec<u8>>,
    /// Who drops it, if not the last who uses it.
    pub(crate) reaper: Option<Reaper>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let (Some(adapter), Some(reaper)) = (self.adapter.take(), &self.reaper) {
            reaper.take(adapter);
        }
    }
}

impl Loaded {
    fn is(&self, policy: &Policy) -> bool {
        self.version == policy.version && self.digest == policy.digest
    }
}

/// The version a request is bound to; no adapter is the base model.
#[derive(Clone, Debug)]
pub(crate) struct Pinned(pub(crate) Option<Arc<Loaded>>);

impl Pinned {
    pub(crate) fn base() -> Self {
        Self(None)
    }

    pub(crate) fn version(&self) -> PolicyVersion {
        self.0
            .as_ref()
            .map_or(PolicyVersion::BASE, |loaded| loaded.version)
    }

    pub(crate) fn digest(&self) -> Option<Digest> {
        let adapted = self.0.as_ref().filter(|loaded| loaded.adapter.is_some());
        adapted.map(|loaded| loaded.digest)
    }

    pub(crate) fn adapter(&self) -> Option<&Adapter> {
        self.0.as_deref()?.adapter.as_ref()
    }

    fn is(&self, policy: &Policy) -> bool {
        self.0.as_ref().is_some_and(|loaded| loaded.is(policy))
    }

    /// Sorts requests into runs with the same adapter.
    pub(crate) fn group(&self) -> usize {
        let loaded = self.0.as_ref().filter(|loaded| loaded.adapter.is_some());
        loaded.map_or(0, |loaded| Arc::as_ptr(loaded) as usize)
    }
}

/// A finished load: the adapter, none for the base model, or why there is none.
pub(crate) type LoadResult = Result<Option<Arc<Loaded>>, String>;

#[derive(Debug)]
struct Known {
    /// What new requests get; none before the first load.
    serving: Option<Pinned>,
    loading: bool,
    /// A newer version was announced while loading.
    again: bool,
    /// Where the newest version is not the one that serves, because its load failed.
    behind: Option<Failed>,
    used: u64,
}

/// What a new request of a scope gets.
#[derive(Debug)]
pub(crate) enum Pick {
    /// This version.
    Ready(Pinned),
    /// It has to wait for a load that is under way or that the caller starts now.
    Wait,
    /// Its load failed a moment ago, with this error.
    Failed(String),
}

/// What a finished load changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// A newer version took the place of an older one.
    pub(crate) swapped: bool,
    /// A still newer one is to be loaded.
    pub(crate) load: bool,
}

/// Every scope that was asked for lately.
#[derive(Debug)]
pub(crate) struct AdapterTable {
    known: HashMap<Scope, Known>,
    exact: HashMap<Policy, Exact>,
    /// Older versions that may still be in use.
    retired: Vec<Weak<Loaded>>,
    limits: TableLimits,
    uses: u64,
    bytes: u64,
    /// Adapters that are loaded and about to serve, and their bytes.
    coming: (usize, u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TableLimits {
    pub(crate) bytes_max: u64,
    pub(crate) scopes_max: usize,
    pub(crate) retry_ms: i64,
}

impl AdapterTable {
    pub(crate) fn new(limits: TableLimits) -> Self {
        Self {
            known: HashMap::new(),
            exact: HashMap::new(),
            retired: Vec::new(),
            limits,
            uses: 0,
            bytes: 0,
            coming: (0, 0),
        }
    }

    /// The newest loaded version of `scope`, and whether a load is to be started now.
    pub(crate) fn pick(
        &mut self,
        scope: &Scope,
        now_ms: i64,
        policies: impl FnOnce() -> Policies,
    ) -> (Pick, bool) {
        self.uses += 1;
        if let Some(known) = self.known.get_mut(scope) {
            known.used = self.uses;
            let wanted = known.behind.is_some() || known.serving.is_none();
            let rests = known.behind.as_ref().filter(|failed| failed.rests(now_ms));
            let load = wanted && !known.loading && rests.is_none();
            let pick = match (&known.serving, rests) {
                (Some(serving), _) => Pick::Ready(serving.clone()),
                (None, Some(failed)) if !known.loading => Pick::Failed(failed.error.clone()),
                (None, _) => Pick::Wait,
            };
            known.loading |= load;
            return (pick, load);
        }
        let published = policies().newest(scope).is_some();
        let known = Known {
            serving: (!published).then(Pinned::base),
            loading: published,
            again: false,
            behind: None,
            used: self.uses,
        };
        let pick = known.serving.clone().map_or(Pick::Wait, Pick::Ready);
        self.known.insert(scope.clone(), known);
        self.forget_scopes();
        (pick, published)
    }

    /// One adapter, and whether its load is to be started now.
    pub(crate) fn pick_exact(&mut self, policy: &Policy, now_ms: i64) -> (Pick, bool) {
        self.uses += 1;
        let known = self.known.get_mut(&policy.scope);
        let is_it = |known: &&mut Known| known.serving.as_ref().is_some_and(|s| s.is(policy));
        if let Some(known) = known.filter(is_it) {
            known.used = self.uses;
            let serving = known.serving.clone();
            return (serving.map_or(Pick::Wait, Pick::Ready), false);
        }
        let mut load = false;
        let exact = self.exact.entry(policy.clone()).or_insert_with(|| {
            load = true;
            Exact::loading(0)
        });
        exact.used = self.uses;
        let pick = match &exact.state {
            ExactState::Loaded(loaded) => Pick::Ready(Pinned(Some(loaded.clone()))),
            ExactState::Failed(failed) if failed.rests(now_ms) => {
                Pick::Failed(failed.error.clone())
            }
            ExactState::Failed(_) => {
                load = true;
                exact.state = ExactState::Loading;
                Pick::Wait
            }
            ExactState::Loading => Pick::Wait,
        };
        (pick, load)
    }

    /// Takes a finished load of one adapter.
    pub(crate) fn finish_exact(&mut self, policy: &Policy, result: &LoadResult, now_ms: i64) {
        match (self.exact.get_mut(policy), result) {
            // It was kept beside a trial while it was being loaded.
            (Some(exact), _) if exact.loaded().is_some() => {}
            (Some(exact), Ok(Some(loaded))) => {
                exact.state = ExactState::Loaded(loaded.clone());
                self.bytes += loaded.bytes;
            }
            (Some(exact), Err(error)) => {
                exact.state = ExactState::Failed(Failed {
                    error: error.clone(),
                    retry_at_ms: now_ms + self.limits.retry_ms,
                });
            }
            (Some(_), Ok(None)) => drop(self.exact.remove(policy)),
            (None, _) => {}
        }
        self.drop_unused();
    }

    /// The adapter that was asked for, once it is loaded.
    pub(crate) fn exact(&self, policy: &Policy) -> Option<Pinned> {
        let loaded = self.exact.get(policy)?.loaded().cloned()?;
        Some(Pinned(Some(loaded)))
    }

    /// Takes an adapter out of service because it is not what was published; new requests wait
    /// until it is loaded again. False where it is not served any more.
    pub(crate) fn discard(&mut self, wanted: &Wanted, digest: Digest) -> bool {
        let gone: Vec<Arc<Loaded>> = match wanted {
            Wanted::Exact(policy) => {
                let exact = self.exact.remove(policy);
                exact.and_then(Exact::into_loaded).into_iter().collect()
            }
            Wanted::Newest(scope) => {
                let known = self.known.get_mut(scope);
                let unfit = |pinned: &mut Pinned| pinned.digest() == Some(digest);
                let taken = known.and_then(|known| known.serving.take_if(unfit));
                // A trial may have moved it aside since it was loaded.
                let unfit = |policy: &Policy, exact: &mut Exact| {
                    let is_loaded = exact.loaded().is_some();
                    is_loaded && policy.scope == *scope && policy.digest == digest
                };
                let kept = self.exact.extract_if(unfit);
                let kept = kept.filter_map(|(_, exact)| exact.into_loaded());
                taken
                    .and_then(|pinned| pinned.0)
                    .into_iter()
                    .chain(kept)
                    .collect()
            }
        };
        for loaded in &gone {
            self.retire(loaded);
        }
        !gone.is_empty()
    }

    /// It serves nobody new any more.
    fn retire(&mut self, loaded: &Arc<Loaded>) {
        self.bytes -= loaded.bytes;
        self.retired.push(Arc::downgrade(loaded));
    }

    /// A load that was in line and that nobody waits for any more.
    pub(crate) fn give_up(&mut self, wanted: &Wanted) {
        match wanted {
            Wanted::Newest(scope) => {
                if let Some(known) = self.known.get_mut(scope) {
                    (known.loading, known.again) = (false, false);
                }
            }
            Wanted::Exact(policy) => {
                let coming = |exact: &Exact| exact.loaded().is_none();
                if self.exact.get(policy).is_some_and(coming) {
                    self.exact.remove(policy);
                }
            }
        }
    }

    /// The version that serves `scope` now, for a request that picked before and has not begun.
    pub(crate) fn serving(&self, scope: &Scope) -> Option<&Pinned> {
        self.known.get(scope)?.serving.as_ref()
    }

    /// A newer version of `scope` exists; whether to load it now. Scopes nobody asked for wait
    /// until somebody does.
    pub(crate) fn announce(&mut self, scope: &Scope) -> bool {
        let Some(known) = self.known.get_mut(scope) else {
            return false;
        };
        known.again |= known.loading;
        // What failed says nothing of the newer one.
        if let Some(failed) = &mut known.behind {
            failed.retry_at_ms = i64::MIN;
        }
        let load = !known.loading;
        known.loading = true;
        load
    }

    /// Takes a finished load. What it displaces stays in memory where it is `proven`: what the
    /// sessions get that a trial leaves alone.
    pub(crate) fn finish(
        &mut self,
        scope: &Scope,
        result: &LoadResult,
        (proven, now_ms): (Option<&Policy>, i64),
    ) -> Changed {
        let Some(known) = self.known.get_mut(scope) else {
            return Changed::default();
        };
        known.loading = std::mem::take(&mut known.again);
        let mut changed = Changed {
            swapped: false,
            load: known.loading,
        };
        match result {
            Err(error) => {
                let rest_ms = match changed.load {
                    true => 0,
                    false => self.limits.retry_ms,
                };
                known.behind = Some(Failed {
                    error: error.clone(),
                    retry_at_ms: now_ms + rest_ms,
                });
            }
            Ok(loaded) => {
                known.behind = None;
                let new = Pinned(loaded.clone());
                let newer = known
                    .serving
                    .as_ref()
                    .is_none_or(|old| old.version() < new.version());
                if newer {
                    let old = known.serving.replace(new);
                    changed.swapped = old.is_some();
                    self.bytes += loaded.as_ref().map_or(0, |l| l.bytes);
                    if let Some(old) = old.and_then(|pinned| pinned.0) {
                        self.displace(old, proven);
                    }
                }
            }
        }
        self.drop_unused();
        changed
    }

    /// A newer version took the place of `old`.
    fn displace(&mut self, old: Arc<Loaded>, proven: Option<&Policy>) {
        if let Some(policy) = proven.filter(|policy| old.is(policy)) {
            let used = self.uses;
            let exact = self.exact.entry(policy.clone());
            let exact = exact.or_insert_with(|| Exact::loading(used));
            exact.used = used;
            if exact.loaded().is_none() {
                exact.state = ExactState::Loaded(old);
                return;
            }
        }
        self.retire(&old);
    }

    /// The trial that `policy` was kept for is over.
    pub(crate) fn let_go(&mut self, policy: &Policy) {
        let is_loaded = self.exact.get(policy).is_some_and(|e| e.loaded().is_some());
        let gone = is_loaded.then(|| self.exact.remove(policy)).flatten();
        if let Some(gone) = gone.and_then(Exact::into_loaded) {
            self.retire(&gone);
        }
        self.drop_retired();
    }

    /// Adapters that are loaded and about to serve: they count as well.
    pub(crate) fn expect(&mut self, coming: (usize, u64)) {
        self.coming = coming;
        self.drop_unused();
    }

    /// Keeps to the byte budget: the longest unused adapters without a request go.
    fn drop_unused(&mut self) {
        self.make_room(0);
    }

    /// As far as what is in use allows it, makes room for so many bytes that are being loaded.
    pub(crate) fn make_room(&mut self, loading: u64) {
        self.drop_retired();
        if self.exact.len() > EXACT_MAX {
            self.exact
                .retain(|_, exact| !matches!(exact.state, ExactState::Failed(_)));
        }
        while self.exact.len() > EXACT_MAX
            && let Some((_, policy)) = self.oldest_exact()
        {
            self.drop_exact(&policy);
        }
        let beside = self.retired_bytes() + self.coming.1 + loading;
        while self.bytes + beside > self.limits.bytes_max && self.drop_oldest() {}
    }

    /// Drops the longest unused adapter without a request, one that a newer one is on its way for last;
    /// false where there is none.
    fn drop_oldest(&mut self) -> bool {
        let (known, exact) = (self.oldest_known(), self.oldest_exact());
        let exact_first = match (&known, &exact) {
            (None, None) => return false,
            (Some((order, _)), Some((used, _))) => (false, *used) <= *order,
            (known, _) => known.is_none(),
        };
        match (known, exact) {
            (_, Some((_, policy))) if exact_first => self.drop_exact(&policy),
            (Some((_, scope)), _) => {
                self.bytes -= self.take_serving(&scope).map_or(0, |loaded| loaded.bytes);
            }
            _ => {}
        }
        true
    }

    /// The longest unused adapter without a request that is the newest of its scope, whether one is on
    /// its way, and when it was used.
    fn oldest_known(&self) -> Option<((bool, u64), Scope)> {
        let unused = self.known.iter().filter_map(|(scope, known)| {
            let loaded = known.serving.as_ref()?.0.as_ref()?;
            let is_unused = Arc::strong_count(loaded) == 1;
            is_unused.then_some(((known.loading, known.used), scope))
        });
        let oldest = unused.min_by_key(|(order, _)| *order);
        oldest.map(|(order, scope)| (order, scope.clone()))
    }

    /// Takes the adapter that serves `scope` out of the table. The scope is forgotten, but where a load
    /// of it is awaited.
    fn take_serving(&mut self, scope: &Scope) -> Option<Arc<Loaded>> {
        let known = self.known.get_mut(scope)?;
        let serving = known.serving.take();
        if !known.loading {
            self.known.remove(scope);
        }
        serving?.0
    }

    /// The longest unused of the adapters that requests use serves nobody new from now on, so that it
    /// goes when they end; unless so many bytes fit anyway once those end whose adapters went so before.
    pub(crate) fn give_way(&mut self, wanted: u64) {
        let used = self.in_use().map(|(.., bytes)| bytes).sum::<u64>();
        if used + self.coming.1 + wanted <= self.limits.bytes_max {
            return;
        }
        let oldest = self.in_use().min_by_key(|(used, ..)| *used);
        let gone = match oldest.map(|(_, which, _)| which) {
            Some(Wanted::Newest(scope)) => self.take_serving(&scope),
            Some(Wanted::Exact(policy)) => self.exact.remove(&policy).and_then(Exact::into_loaded),
            None => None,
        };
        if let Some(loaded) = gone {
            self.retire(&loaded);
        }
    }

    /// When they were used last, which they are, and bytes of adapters that requests use.
    fn in_use(&self) -> impl Iterator<Item = (u64, Wanted, u64)> {
        let is_used = |loaded: &&Arc<Loaded>| Arc::strong_count(loaded) > 1;
        let newest = self.known.iter().filter_map(move |(scope, known)| {
            let loaded = known.serving.as_ref()?.0.as_ref().filter(is_used)?;
            Some((known.used, Wanted::Newest(scope.clone()), loaded.bytes))
        });
        let exact = self.exact.iter().filter_map(move |(policy, exact)| {
            let loaded = exact.loaded().filter(is_used)?;
            Some((exact.used, Wanted::Exact(policy.clone()), loaded.bytes))
        });
        newest.chain(exact)
    }

    /// All that new requests can get.
    fn loaded(&self) -> impl Iterator<Item = &Arc<Loaded>> {
        let newest = self.known.values();
        let newest = newest.filter_map(|known| known.serving.as_ref()?.0.as_ref());
        let exact = self.exact.values();
        newest.chain(exact.filter_map(Exact::loaded))
    }

    /// Bytes in memory that cannot be dropped now, and those of the largest adapter.
    pub(crate) fn held(&self) -> (u64, u64) {
        let retired = self.retired.iter().filter_map(Weak::upgrade);
        let mut largest = retired.map(|loaded| loaded.bytes).max().unwrap_or(0);
        let mut held = self.retired_bytes() + self.coming.1;
        for loaded in self.loaded() {
            largest = largest.max(loaded.bytes);
            if Arc::strong_count(loaded) > 1 {
                held += loaded.bytes;
            }
        }
        (held, largest)
    }

    /// The longest unused exact version without a request, and when it was used.
    fn oldest_exact(&self) -> Option<(u64, Policy)> {
        let unused = self.exact.iter().filter_map(|(policy, exact)| {
            let loaded = exact.loaded()?;
            (Arc::strong_count(loaded) == 1).then_some((exact.used, policy))
        });
        let oldest = unused.min_by_key(|(used, _)| *used);
        oldest.map(|(used, policy)| (used, policy.clone()))
    }

    fn drop_exact(&mut self, policy: &Policy) {
        let gone = self.exact.remove(policy).and_then(Exact::into_loaded);
        self.bytes -= gone.map_or(0, |loaded| loaded.bytes);
    }

    /// Keeps to the number of scopes; drops an eighth at once, so that this is rare.
    fn forget_scopes(&mut self) {
        if self.known.len() <= self.limits.scopes_max {
            return;
        }
        let mut idle: Vec<(u64, Scope)> = self
            .known
            .iter()
            .filter(|(_, known)| !known.loading && known.used < self.uses)
            .map(|(scope, known)| (known.used, scope.clone()))
            .collect();
        idle.sort_unstable();
        for (_, scope) in idle.into_iter().take(self.limits.scopes_max / 8 + 1) {
            let loaded = self
                .known
                .remove(&scope)
                .and_then(|k| k.serving)
                .and_then(|p| p.0);
            self.bytes -= loaded.as_ref().map_or(0, |l| l.bytes);
            self.retired.extend(loaded.as_ref().map(Arc::downgrade));
        }
        self.drop_retired();
    }

    /// Forgets older versions that no request uses any more.
    pub(crate) fn drop_retired(&mut self) {
        self.retired.retain(|loaded| loaded.strong_count() > 0);
    }

    /// Whether older versions may still be in use.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    fn retired_bytes(&self) -> u64 {
        self.retired
            .iter()
            .filter_map(Weak::upgrade)
            .map(|loaded| loaded.bytes)
            .sum()
    }

    /// Adapters in memory and their bytes.
    pub(crate) fn resident(&self) -> (usize, u64) {
        (
            self.loaded().count() + self.retired.len() + self.coming.0,
            self.bytes + self.retired_bytes() + self.coming.1,
        )
    }
}

#[cfg(test)]
#[path = "tests/adapters.rs"]
mod tests;
