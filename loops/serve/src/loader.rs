//! Reads adapters from the blob store, off the engine thread.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use hone_domain::{BlobError, Blobs, Digest, Policies, Policy, Scope};
use hone_kernels::Executor;
use hone_nn::DeviceModel;
use hone_nn::{Adapter, Model, PROBE_FILE, peft, prove};
use hone_runtime::LatestReader;
use tokio::sync::mpsc::{Receiver, channel};

use crate::adapters::{LoadResult, Loaded, Wanted};
use crate::reaper::Reaper;
use crate::shared::{Command, Shared};

/// Stands where nothing is proven regularly.
const NEVER: Duration = Duration::from_secs(86_400);

/// What loading needs.
#[derive(Clone)]
pub(crate) struct LoaderCtx {
    pub(crate) model: Arc<Model>,
    /// Proves what is loaded, and what is served. Not the engine's own: its steps do not wait for that.
    pub(crate) executor: Arc<Executor>,
    pub(crate) device: Option<Arc<dyn DeviceModel>>,
    pub(crate) shared: Arc<Shared>,
    /// How often what is served is proven; none never.
    pub(crate) prove_every: Option<Duration>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) policies: LatestReader<Policies>,
    pub(crate) parallel: usize,
    pub(crate) commands: Sender<Command>,
    /// Drops what was loaded.
    pub(crate) reaper: Reaper,
}

/// Starts the loader's threads. The one it returns tells the engine which scopes have a newer version,
/// passes on which adapters are to be loaded, and ends when the sender of `jobs` is gone.
pub(crate) fn spawn(ctx: LoaderCtx, jobs: Receiver<Wanted>) -> io::Result<JoinHandle<()>> {
    let (told, loaded) = channel(ctx.parallel);
    let reading = ctx.clone();
    let readers = start_workers(ctx.parallel, move |wanted| {
        let result = load_guarded(&reading, &wanted);
        if let (Ok(Some(loaded)), Some(_)) = (&result, reading.prove_every) {
            // Nobody proves anything once the loader is gone.
            let _ = told.blocking_send((wanted.clone(), Arc::downgrade(loaded)));
        }
        // A stopped engine needs no result.
        let _ = reading.commands.send(Command::Loaded { wanted, result });
    })?;
    // Before the engine is asked anything: what it did not know then is news.
    let news = News::new(ctx.policies.clone());
    let (built, is_built) = std::sync::mpsc::sync_channel(1);
    let thread = Builder::new()
        .name("hone-serve-loads".to_owned())
        .spawn(move || {
            // Made here: where the thread cannot be started, it could not be dropped beside other async work.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            match runtime {
                Ok(runtime) => {
                    // Whoever starts it waits for this.
                    let _ = built.send(Ok(()));
                    runtime.block_on(run(ctx, news, jobs, readers, loaded));
                }
                Err(error) => drop(built.send(Err(error))),
            }
        })?;
    let ended = |_| io::Error::other("the loader's thread ended");
    is_built.recv().map_err(ended)??;
    Ok(thread)
}

/// Starts so many threads that take what is sent; they end when nobody can send any more, and nobody
/// waits for them: a read that hangs must not hold up the stop. All begin here, so that a system that
/// has no thread left is found out now and not by who waits for a load.
fn start_workers<J: Send + 'static>(
    count: usize,
    work: impl Fn(J) + Clone + Send + 'static,
) -> io::Result<Sender<J>> {
    let (jobs, inbox) = std::sync::mpsc::channel();
    let inbox = Arc::new(Mutex::new(inbox));
    for _ in 0..count {
        let (inbox, work) = (Arc::clone(&inbox), work.clone());
        // The next one waits for the lock while this one waits for a job.
        let next = move || inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        Builder::new()
            .name("hone-serve-load".to_owned())
            .spawn(move || {
                while let Ok(job) = next() {
                    work(job);
                }
            })?;
    }
    Ok(jobs)
}

/// What changed in what is published.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    /// Scopes whose newest version is another than before.
    newer: Vec<Scope>,
    /// What trials were measured against that are over.
    over: Vec<Policy>,
}

/// Tells of scopes that get newer versions, and of trials that end.
struct News {
    seen: Policies,
    policies: LatestReader<Policies>,
}

impl News {
    /// Tells of what is published from now on, however late it is asked.
    fn new(policies: LatestReader<Policies>) -> Self {
        let seen = policies.get();
        Self { seen, policies }
    }

    /// What changed since the last call; none when nobody publishes any more.
    async fn next(&mut self) -> Option<Change> {
        let newest = self.policies.changed().await?;
        let before = std::mem::replace(&mut self.seen, newest);
        let newer = self
            .seen
            .iter()
            .filter(|policy| before.version(&policy.scope) != policy.version);
        let over = before.iter().filter_map(|policy| {
            let proven = &before.trial(&policy.scope)?.proven;
            let now = self.seen.trial(&policy.scope);
            let goes_on = now.is_some_and(|trial| trial.proven == *proven);
            (!goes_on).then(|| proven.clone())
        });
        Some(Change {
            newer: newer.map(|policy| policy.scope.clone()).collect(),
            over: over.collect(),
        })
    }
}

async fn run(
    ctx: LoaderCtx,
    mut news: News,
    mut jobs: Receiver<Wanted>,
    readers: Sender<Wanted>,
    mut loaded: Receiver<(Wanted, Weak<Loaded>)>,
) {
    let mut published = true;
    let mut served = Served::new();
    let mut prover = Prover::default();
    let mut proofs = tokio::time::interval(ctx.prove_every.unwrap_or(NEVER));
    proofs.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(new) = loaded.recv() => served.push(new),
            _ = proofs.tick(), if ctx.prove_every.is_some() => {
                served.retain(|(_, loaded)| loaded.strong_count() > 0);
                let (ctx, served) = (ctx.clone(), served.clone());
                prover.begin(move || prove_all(&ctx, &served));
            }
            change = news.next(), if published => match change {
                Some(Change { newer, over }) => {
                    let newer = newer.into_iter().map(Command::Newer);
                    let over = over.into_iter().map(Command::TrialOver);
                    // A stopped engine needs no news.
                    newer.chain(over).for_each(|news| drop(ctx.commands.send(news)));
                }
                None => published = false,
            },
            job = jobs.recv() => {
                let Some(wanted) = job else { return };
                // Results travel by command. The engine sees that this ended where nobody reads.
                if readers.send(wanted).is_err() {
                    return;
                }
            }
        }
    }
}

fn load_guarded(ctx: &LoaderCtx, wanted: &Wanted) -> LoadResult {
    let policy = match wanted {
        Wanted::Newest(scope) => ctx.policies.get().newest(scope).cloned(),
        Wanted::Exact(policy) => Some(policy.clone()),
    };
    let Some(policy) = policy else {
        return Ok(None);
    };
    let loaded = catch_unwind(AssertUnwindSafe(|| load(ctx, &policy)))
        .unwrap_or_else(|_| Err("reading the adapter's files panicked".to_owned()));
    loaded.map(Some).map_err(|error| {
        format!(
            "version {} (blob {}): {error}",
            policy.version,
            policy.blob.as_str()
        )
    })
}

/// Reads, checks and verifies the adapter of `policy`.
fn load(ctx: &LoaderCtx, policy: &Policy) -> Result<Arc<Loaded>, String> {
    if policy.is_base() {
        return Ok(Arc::new(Loaded {
            adapter: None,
            version: policy.version,
            digest: policy.digest,
            bytes: 0,
            probe: None,
            reaper: None,
        }));
    }
    let began = Instant::now();
    let failed = RefCell::new(None);
    let read = |file: &str| match ctx.blobs.get(&policy.blob, file) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            failed.borrow_mut().get_or_insert(error);
            None
        }
    };
    let adapter = peft::load(&read, &ctx.model.config).map_err(|error| {
        let cause = failed.borrow_mut().take();
        cause.map_or_else(|| error.to_string(), |cause| format!("{error} ({cause})"))
    })?;
    let digest = Digest(adapter.digest());
    if digest != policy.digest {
        ctx.shared.counters.identity_failures.fetch_add(1, Relaxed);
        return Err(format!(
            "its files have digest {digest}, but the version was published with {}; restore the \
             files or publish an older version again",
            policy.digest
        ));
    }
    let probe = match ctx.blobs.get(&policy.blob, PROBE_FILE) {
        Ok(probe) => Some(probe),
        // An adapter that was not trained here carries none; its digest was checked.
        Err(BlobError::Missing { .. }) => {
            ctx.shared.counters.adapters_unproven.fetch_add(1, Relaxed);
            None
        }
        Err(error) => return Err(error.to_string()),
    };
    let read_by = began.elapsed();
    prove_identity(ctx, &adapter, digest, probe.as_deref())?;
    let proven_by = began.elapsed();
    // Here and not at its first step, so that no step waits for the copy.
    if let Some(device) = &ctx.device {
        device.upload(&adapter).map_err(|error| error.to_string())?;
    }
    tracing::debug!(
        version = policy.version.0,
        read_ms = read_by.as_millis(),
        prove_ms = (proven_by - read_by).as_millis(),
        place_ms = (began.elapsed() - proven_by).as_millis(),
        "an adapter was loaded"
    );
    let bytes = adapter.bytes() as u64;
    Ok(Arc::new(Loaded {
        probe,
        adapter: Some(adapter),
        version: policy.version,
        digest,
        bytes,
        reaper: Some(ctx.reaper.clone()),
    }))
}

/// That the adapter in memory has its digest and says what it said when it was published.
fn prove_identity(
    ctx: &LoaderCtx,
    adapter: &Adapter,
    digest: Digest,
    probe: Option<&[u8]>,
) -> Result<(), String> {
    let is_whole = Digest(adapter.digest()) == digest;
    let proven = match (is_whole, probe) {
        (false, _) => Err("its weights changed in memory".to_owned()),
        (true, None) => Ok(()),
        (true, Some(probe)) => prove(&ctx.model, Some(adapter), probe, &ctx.executor)
            .map_err(|error| error.to_string()),
    };
    if proven.is_err() {
        let failures = &ctx.shared.counters.identity_failures;
        failures.fetch_add(1, Relaxed);
    }
    proven
}

/// What was loaded and may still be served.
type Served = Vec<(Wanted, Weak<Loaded>)>;

/// Proves on one thread of its own, so that no load waits for it, however often it is time to.
#[derive(Default)]
struct Prover(Option<JoinHandle<()>>);

impl Prover {
    /// Begins a pass over what is served, unless the last one is still under way.
    fn begin(&mut self, pass: impl FnOnce() + Send + 'static) {
        let Self(last) = self;
        if last.as_ref().is_some_and(|pass| !pass.is_finished()) {
            return;
        }
        let named = Builder::new().name("hone-serve-prove".to_owned());
        match named.spawn(pass) {
            Ok(begun) => *last = Some(begun),
            Err(error) => tracing::warn!(%error, "what is served is not proven this time"),
        }
    }
}

/// Proves everything that is still served; what fails is taken out of service and loaded again.
fn prove_all(ctx: &LoaderCtx, served: &Served) {
    // Alone, and behind everybody who waits for an answer: nobody waits for this.
    let ctx = &LoaderCtx {
        executor: Arc::new(Executor::new(1)),
        ..ctx.clone()
    };
    come_last();
    for (wanted, loaded) in served {
        let Some(loaded) = loaded.upgrade() else {
            continue;
        };
        if let Some(adapter) = &loaded.adapter {
            let probe = loaded.probe.as_deref();
            if let Err(error) = prove_identity(ctx, adapter, loaded.digest, probe) {
                let error = format!("version {}: {error}", loaded.version);
                let wanted = wanted.clone();
                // A stopped engine serves nothing.
                let _ = ctx.commands.send(Command::Unfit {
                    wanted,
                    digest: loaded.digest,
                    error,
                });
            }
            ctx.shared.counters.identity_checks.fetch_add(1, Relaxed);
        }
        put_down(&ctx.commands, loaded);
    }
}

/// Gives the calling thread the least weight beside others. Without effect but on Linux.
fn come_last() {
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    // SAFETY: a plain system call without pointers. On Linux 0 is the calling thread.
    let failed = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
    #[cfg(target_os = "linux")]
    if failed != 0 {
        tracing::debug!("proofs keep normal priority");
    }
}

/// Ends the use of `loaded`, and tells the engine if it was the last one: an engine with nothing
/// else to do would count the adapter as resident until its next request.
fn put_down(commands: &Sender<Command>, loaded: Arc<Loaded>) {
    if Arc::into_inner(loaded).is_some() {
        // A stopped engine counts nothing.
        let _ = commands.send(Command::Unused);
    }
}

#[cfg(test)]
mod tests {
    use hone_domain::{BlobKey, OnTrial, PolicyVersion};
    use hone_runtime::Latest;

    use super::*;

    fn policy(version: u64) -> Policy {
        Policy {
            scope: Scope::of("a", None),
            version: PolicyVersion(version),
            digest: Digest([version as u8; 32]),
            blob: BlobKey::new("x").expect("a name"),
        }
    }

    fn newer() -> Change {
        Change {
            newer: vec![Scope::of("a", None)],
            over: Vec::new(),
        }
    }

    #[test]
    fn the_last_use_of_an_older_version_is_told() {
        let (commands, inbox) = std::sync::mpsc::channel();
        let loaded = Arc::new(Loaded {
            adapter: None,
            version: PolicyVersion(1),
            digest: Digest([1; 32]),
            bytes: 0,
            probe: None,
            reaper: None,
        });
        put_down(&commands, loaded.clone());
        assert!(inbox.try_recv().is_err(), "the engine still has it");
        put_down(&commands, loaded);
        assert!(matches!(inbox.try_recv(), Ok(Command::Unused)));
    }

    #[test]
    fn workers_are_there_from_the_start_and_end_with_the_sender() {
        const WORKERS: usize = 3;
        let (told, done) = std::sync::mpsc::channel();
        // Nobody gets on until all of them have a job.
        let all = Arc::new(std::sync::Barrier::new(WORKERS));
        let work = move |job| {
            all.wait();
            let _ = told.send((job, std::thread::current().id()));
        };
        let jobs = start_workers(WORKERS, work).expect("threads");
        let sent: Vec<usize> = (0..4 * WORKERS).collect();
        for job in &sent {
            jobs.send(*job).expect("somebody works");
        }
        drop(jobs);
        // Its end: the last worker that could tell anything is gone.
        let (mut ended, who): (Vec<_>, std::collections::HashSet<_>) = done.iter().unzip();
        ended.sort_unstable();
        assert_eq!((ended, who.len()), (sent, WORKERS));
    }

    #[test]
    fn one_pass_is_under_way_at_a_time() {
        let mut prover = Prover::default();
        let (go, held) = std::sync::mpsc::channel::<()>();
        let (told, passes) = std::sync::mpsc::channel();
        let first = told.clone();
        prover.begin(move || {
            // Until the end of the sender.
            let _ = held.recv();
            let _ = first.send(1);
        });
        let tell = |pass| {
            let told = told.clone();
            move || told.send(pass).expect("somebody listens")
        };
        (2..10).for_each(|pass| prover.begin(tell(pass)));
        assert!(passes.try_recv().is_err(), "the first is under way");
        drop(go);
        let last = prover.0.take().expect("one that began");
        last.join().expect("it ends");
        prover.begin(tell(10));
        drop(told);
        let last = prover.0.take().expect("one that began");
        last.join().expect("it ends");
        assert_eq!(passes.iter().collect::<Vec<_>>(), [1, 10]);
    }

    #[tokio::test]
    async fn a_version_published_before_anybody_listens_is_news_once() {
        let policies = Latest::new(Policies::default());
        let mut news = News::new(policies.reader());
        for version in [1, 2] {
            policies.update(|table| table.with(policy(version)));
            assert_eq!(news.next().await, Some(newer()));
        }
        drop(policies);
        assert_eq!(news.next().await, None);
    }

    #[tokio::test]
    async fn the_end_of_a_trial_is_news_however_it_ends() {
        let policies = Latest::new(Policies::default().with(policy(1)));
        let mut news = News::new(policies.reader());
        let tried = |version| OnTrial {
            policy: policy(version),
            proven: policy(1),
            share: 0.5,
        };
        policies.update(|table| table.on_trial(tried(2)));
        assert_eq!(news.next().await, Some(newer()));
        // Another version tried against the same one leaves that in use.
        policies.update(|table| table.on_trial(tried(3)));
        assert_eq!(news.next().await, Some(newer()));
        let over = || vec![policy(1)];
        policies.update(|table| table.proven(&Scope::of("a", None), PolicyVersion(3)));
        let promoted = Change {
            newer: Vec::new(),
            over: over(),
        };
        assert_eq!(news.next().await, Some(promoted));
        policies.update(|table| table.on_trial(tried(4)));
        assert_eq!(news.next().await, Some(newer()));
        policies.update(|table| table.with(policy(5)));
        let displaced = Change {
            over: over(),
            ..newer()
        };
        assert_eq!(news.next().await, Some(displaced));
    }
}
