//! Reads adapters from the blob store, off the engine thread.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use hone_domain::{Blobs, Digest, Policies, Policy, Scope};
use hone_nn::{Model, peft};
use hone_runtime::LatestReader;
use tokio::sync::mpsc::Receiver;

use crate::adapters::{LoadResult, Loaded};
use crate::engine::Command;

/// What loading needs.
#[derive(Clone)]
pub(crate) struct LoaderCtx {
    pub(crate) model: Arc<Model>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) policies: LatestReader<Policies>,
    pub(crate) parallel: usize,
    pub(crate) commands: Sender<Command>,
}

/// Starts the loader's thread. It tells the engine which scopes have a newer version, loads the
/// newest version of every scope it is sent, and ends when the sender of `jobs` is gone.
pub(crate) fn spawn(ctx: LoaderCtx, jobs: Receiver<Scope>) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(ctx.parallel)
        .thread_name("hone-serve-load")
        .build()?;
    std::thread::Builder::new()
        .name("hone-serve-loads".to_owned())
        .spawn(move || {
            runtime.block_on(run(ctx, jobs));
            // A read that hangs must not hold up the stop.
            runtime.shutdown_background();
        })
}

async fn run(mut ctx: LoaderCtx, mut jobs: Receiver<Scope>) {
    let mut seen = ctx.policies.get();
    let mut published = true;
    loop {
        tokio::select! {
            newest = ctx.policies.changed(), if published => match newest {
                Some(newest) => {
                    announce(&seen, &newest, &ctx.commands);
                    seen = newest;
                }
                None => published = false,
            },
            job = jobs.recv() => {
                let Some(scope) = job else { return };
                let ctx = ctx.clone();
                // Results travel by command; the task itself reports nothing.
                drop(tokio::task::spawn_blocking(move || {
                    let result = load_guarded(&ctx, &scope);
                    // A stopped engine needs no result.
                    let _ = ctx.commands.send(Command::Loaded { scope, result });
                }));
            }
        }
    }
}

/// Names every scope whose newest version differs between two tables.
fn announce(seen: &Policies, newest: &Policies, commands: &Sender<Command>) {
    for policy in newest.iter() {
        if seen.version(&policy.scope) != policy.version {
            // A stopped engine needs no news.
            let _ = commands.send(Command::Newer(policy.scope.clone()));
        }
    }
}

fn load_guarded(ctx: &LoaderCtx, scope: &Scope) -> LoadResult {
    let Some(policy) = ctx.policies.get().newest(scope).cloned() else {
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
        }));
    }
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
        return Err(format!(
            "its files have digest {digest}, but the version was published with {}; restore the \
             files or publish an older version again",
            policy.digest
        ));
    }
    let bytes = adapter.bytes() as u64;
    Ok(Arc::new(Loaded {
        adapter: Some(adapter),
        version: policy.version,
        digest,
        bytes,
    }))
}
