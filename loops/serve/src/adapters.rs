//! Which adapters are in memory, and which version a new request gets. Plain bookkeeping: it says
//! what is to be loaded, and somebody else loads it.

mod cache;
mod exact;
mod loaded;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use hone_domain::{Digest, Policies, Policy, PolicyVersion, Scope};

use self::cache::AdapterCache;
use self::exact::{Exact, ExactState, Failed};
pub(crate) use self::loaded::{LoadResult, Loaded, Pinned, Wanted};

/// Most exact versions in memory; the longest unused without a request goes first.
const EXACT_MAX: usize = 1_024;
/// Most scopes whose withdrawn versions are remembered; beyond, all are forgotten: requests that came
/// with the withdrawal are over by then.
const WITHDRAWN_MAX: usize = 4_096;

#[derive(Debug)]
struct Known {
    /// What new requests get; none before the first load.
    serving: Option<Pinned>,
    loading: bool,
    /// A newer version was announced while loading.
    again: bool,
    /// Where the newest version is not the one that serves, because its load failed.
    behind: Option<Failed>,
    /// What served was withdrawn, and nothing was loaded since.
    bereft: bool,
    /// The number of its last use, which no other scope has.
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
    /// The same scopes by their last use.
    order: BTreeMap<u64, Scope>,
    exact: HashMap<Policy, Exact>,
    /// What of both is in memory.
    cache: AdapterCache,
    /// Versions that serve nobody new any more, also where one is being loaded.
    withdrawn: HashMap<Scope, BTreeSet<PolicyVersion>>,
    limits: TableLimits,
    /// Every use has a number.
    uses: u64,
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
            order: BTreeMap::new(),
            exact: HashMap::new(),
            cache: AdapterCache::default(),
            withdrawn: HashMap::new(),
            limits,
            uses: 0,
        }
    }

    /// The newest loaded version of `scope`, and whether a load is to be started now.
    pub(crate) fn pick(
        &mut self,
        scope: &Scope,
        now_ms: i64,
        policies: impl FnOnce() -> Policies,
    ) -> (Pick, bool) {
        if let Some(known) = self.touch(scope) {
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
        // Also where nothing is published yet: so the first version is loaded while the base serves.
        let published = policies().newest(scope).is_some();
        self.uses += 1;
        let known = Known {
            serving: (!published).then(Pinned::base),
            loading: published,
            again: false,
            behind: None,
            bereft: self.withdrawn.contains_key(scope),
            used: self.uses,
        };
        let pick = known.serving.clone().map_or(Pick::Wait, Pick::Ready);
        self.known.insert(scope.clone(), known);
        self.order.insert(self.uses, scope.clone());
        self.forget_scopes();
        (pick, published)
    }

    /// `scope` is asked for now, and gets what it is served.
    fn touch(&mut self, scope: &Scope) -> Option<&mut Known> {
        let known = self.known.get_mut(scope)?;
        self.uses += 1;
        let before = std::mem::replace(&mut known.used, self.uses);
        let scope = self.order.remove(&before)?;
        self.order.insert(self.uses, scope);
        self.cache.pin(before, self.uses);
        Some(known)
    }

    /// One adapter, and whether its load is to be started now.
    pub(crate) fn pick_exact(&mut self, policy: &Policy, now_ms: i64) -> (Pick, bool) {
        if self.is_withdrawn(&policy.scope, policy.version) {
            return (Pick::Failed(withdrawn(policy.version)), false);
        }
        if let Some(serving) = self.serving(&policy.scope).filter(|s| s.is(policy)) {
            let serving = serving.clone();
            self.touch(&policy.scope);
            return (Pick::Ready(serving), false);
        }
        self.uses += 1;
        let mut load = false;
        let exact = self.exact.entry(policy.clone()).or_insert_with(|| {
            load = true;
            Exact::loading()
        });
        let before = std::mem::replace(&mut exact.used, self.uses);
        let pick = match &exact.state {
            ExactState::Loaded(loaded) => {
                self.cache.pin(before, self.uses);
                Pick::Ready(Pinned(Some(loaded.clone())))
            }
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
                let which = Wanted::Exact(policy.clone());
                self.cache.put(exact.used, which, loaded);
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

    /// The adapter that was asked for, once it is loaded, for a request.
    pub(crate) fn exact(&mut self, policy: &Policy) -> Option<Pinned> {
        let exact = self.exact.get(policy)?;
        let loaded = exact.loaded().cloned()?;
        self.cache.pin(exact.used, exact.used);
        Some(Pinned(Some(loaded)))
    }

    /// Takes an adapter out of service because it is not what was published; new requests wait
    /// until it is loaded again. False where it is not served any more.
    pub(crate) fn discard(&mut self, wanted: &Wanted, digest: Digest) -> bool {
        let gone: Vec<Arc<Loaded>> = match wanted {
            Wanted::Exact(policy) => self.take_exact(policy).into_iter().collect(),
            // A trial may have moved it aside since it was loaded.
            Wanted::Newest(scope) => self.take_those(scope, |_, of| of == digest),
        };
        gone.iter().for_each(|loaded| self.cache.retire(loaded));
        !gone.is_empty()
    }

    /// Versions of `scope` serve nobody new from now on, whatever takes their place: new requests wait
    /// for that, and get the base model where it cannot be loaded. Digests of those in memory.
    pub(crate) fn withdraw(&mut self, scope: &Scope, versions: &[PolicyVersion]) -> Vec<Digest> {
        if self.withdrawn.len() >= WITHDRAWN_MAX && !self.withdrawn.contains_key(scope) {
            self.withdrawn.clear();
        }
        let all = self.withdrawn.entry(scope.clone()).or_default();
        all.extend(versions);
        let all = all.clone();
        let gone = self.take_those(scope, |version, _| all.contains(&version));
        if let Some(known) = self.known.get_mut(scope) {
            known.bereft |= known.serving.is_none();
            // What failed says nothing of what is published now.
            if let Some(failed) = &mut known.behind {
                failed.retry_at_ms = i64::MIN;
            }
        }
        // Nobody waits for those that are being loaded.
        self.exact
            .retain(|policy, _| policy.scope != *scope || !all.contains(&policy.version));
        gone.iter().for_each(|loaded| self.cache.retire(loaded));
        gone.iter().map(|loaded| loaded.digest).collect()
    }

    /// Whether a version was withdrawn.
    pub(crate) fn is_withdrawn(&self, scope: &Scope, version: PolicyVersion) -> bool {
        let versions = self.withdrawn.get(scope);
        versions.is_some_and(|versions| versions.contains(&version))
    }

    /// Takes those adapters of a scope out of the table. Requests that wait for what it is served
    /// wait on.
    fn take_those(
        &mut self,
        scope: &Scope,
        is_it: impl Fn(PolicyVersion, Digest) -> bool,
    ) -> Vec<Arc<Loaded>> {
        let known = self.known.get_mut(scope);
        let serving = known.and_then(|known| {
            let is_it = |p: &mut Pinned| p.0.as_ref().is_some_and(|l| is_it(l.version, l.digest));
            let taken = known.serving.take_if(is_it)?;
            self.cache.take(known.used);
            taken.0
        });
        let is_it = |policy: &Policy, exact: &mut Exact| {
            let is_it = policy.scope == *scope && is_it(policy.version, policy.digest);
            is_it && exact.loaded().is_some()
        };
        let exact: Vec<Exact> = self.exact.extract_if(is_it).map(|(_, e)| e).collect();
        exact.iter().for_each(|exact| self.cache.take(exact.used));
        let exact = exact.into_iter().filter_map(Exact::into_loaded);
        serving.into_iter().chain(exact).collect()
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

    /// The version that serves `scope` now.
    pub(crate) fn serving(&self, scope: &Scope) -> Option<&Pinned> {
        self.known.get(scope)?.serving.as_ref()
    }

    /// The same, for a request that picked before and has not begun.
    pub(crate) fn hand_out(&mut self, scope: &Scope) -> Option<Pinned> {
        let known = self.known.get(scope)?;
        self.cache.pin(known.used, known.used);
        known.serving.clone()
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
        proven: Option<&Policy>,
        now_ms: i64,
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
                if known.bereft && known.serving.is_none() && !changed.load {
                    known.serving = Some(Pinned::base());
                }
            }
            Ok(loaded) => {
                (known.behind, known.bereft) = (None, false);
                let new = Pinned(loaded.clone());
                let newer = known
                    .serving
                    .as_ref()
                    .is_none_or(|old| old.version() < new.version());
                if newer {
                    let old = known.serving.replace(new);
                    changed.swapped = old.is_some();
                    self.cache.take(known.used);
                    if let Some(loaded) = loaded {
                        let which = Wanted::Newest(scope.clone());
                        self.cache.put(known.used, which, loaded);
                    }
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
            self.uses += 1;
            let exact = self.exact.entry(policy.clone());
            let exact = exact.or_insert_with(Exact::loading);
            let before = std::mem::replace(&mut exact.used, self.uses);
            if exact.loaded().is_none() {
                let which = Wanted::Exact(policy.clone());
                self.cache.put(exact.used, which, &old);
                exact.state = ExactState::Loaded(old);
                // It goes before the newest does.
                self.touch(&policy.scope);
                return;
            }
            self.cache.pin(before, self.uses);
        }
        self.cache.retire(&old);
    }

    /// The trial that `policy` was kept for is over.
    pub(crate) fn let_go(&mut self, policy: &Policy) {
        let is_loaded = self.exact.get(policy).is_some_and(|e| e.loaded().is_some());
        let gone = is_loaded.then(|| self.take_exact(policy)).flatten();
        if let Some(gone) = gone {
            self.cache.retire(&gone);
        }
        self.drop_retired();
    }

    /// Adapters that are loaded and about to serve: they count as well.
    pub(crate) fn expect(&mut self, coming: (usize, u64)) {
        self.cache.coming = coming;
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
        let is_exact = |which: &Wanted| matches!(which, Wanted::Exact(_));
        while self.exact.len() > EXACT_MAX
            && let Some(which) = self.cache.oldest_unused(is_exact)
        {
            self.take(&which);
        }
        while self.cache.resident().1 + loading > self.limits.bytes_max && self.drop_oldest() {}
    }

    /// Drops the longest unused adapter without a request, one that a newer one is on its way for last;
    /// false where there is none.
    fn drop_oldest(&mut self) -> bool {
        let known = &self.known;
        let goes = |which: &Wanted| match which {
            Wanted::Newest(scope) => known.get(scope).is_some_and(|known| !known.loading),
            Wanted::Exact(_) => true,
        };
        let oldest = self.cache.oldest_unused(goes);
        let oldest = oldest.or_else(|| self.cache.oldest_unused(|_| true));
        oldest.is_some_and(|oldest| self.take(&oldest).is_some())
    }

    /// Takes an adapter out of the table.
    fn take(&mut self, which: &Wanted) -> Option<Arc<Loaded>> {
        match which {
            Wanted::Newest(scope) => self.take_serving(scope),
            Wanted::Exact(policy) => self.take_exact(policy),
        }
    }

    /// Takes the adapter that serves `scope` out of the table. The scope is forgotten, but where a load
    /// of it is awaited.
    fn take_serving(&mut self, scope: &Scope) -> Option<Arc<Loaded>> {
        let known = self.known.get_mut(scope)?;
        let serving = known.serving.take();
        self.cache.take(known.used);
        if !known.loading {
            self.order.remove(&known.used);
            self.known.remove(scope);
        }
        serving?.0
    }

    fn take_exact(&mut self, policy: &Policy) -> Option<Arc<Loaded>> {
        let exact = self.exact.remove(policy)?;
        self.cache.take(exact.used);
        exact.into_loaded()
    }

    /// The longest unused of the adapters that requests use serves nobody new from now on, so that it
    /// goes when they end; unless so many bytes fit anyway once those end whose adapters went so before.
    pub(crate) fn give_way(&mut self, wanted: u64) {
        let coming = self.cache.coming.1;
        let (used, oldest) = self.cache.used();
        if used + coming + wanted <= self.limits.bytes_max {
            return;
        }
        if let Some(loaded) = oldest.and_then(|which| self.take(&which)) {
            self.cache.retire(&loaded);
        }
    }

    /// Bytes in memory that cannot be dropped now, and those of the largest adapter.
    pub(crate) fn pinned_bytes(&mut self) -> (u64, u64) {
        self.cache.pinned_bytes()
    }

    /// Keeps to the number of scopes: the longest unused that nobody waits for goes.
    fn forget_scopes(&mut self) {
        while self.known.len() > self.limits.scopes_max {
            let waits = |scope: &Scope| self.known.get(scope).is_some_and(|known| known.loading);
            let mut older = self.order.range(..self.uses);
            let oldest = older.find_map(|(_, scope)| (!waits(scope)).then(|| scope.clone()));
            let Some(oldest) = oldest else {
                return;
            };
            if let Some(loaded) = self.take_serving(&oldest) {
                self.cache.retire(&loaded);
            }
        }
        self.drop_retired();
    }

    /// Forgets older versions that no request uses any more.
    pub(crate) fn drop_retired(&mut self) {
        self.cache.drop_retired();
    }

    /// Whether older versions may still be in use.
    pub(crate) fn has_retired(&self) -> bool {
        self.cache.has_retired()
    }

    /// Adapters in memory and their bytes.
    pub(crate) fn resident(&self) -> (usize, u64) {
        self.cache.resident()
    }
}

/// Why nobody gets a version.
pub(crate) fn withdrawn(version: PolicyVersion) -> String {
    format!("version {version} was withdrawn")
}

#[cfg(test)]
#[path = "tests/adapters.rs"]
mod tests;
