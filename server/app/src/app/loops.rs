//! One function per loop: which end of which link it holds.

use std::sync::Arc;
use std::time::Duration;

use hone_collect::Input;
use hone_domain::Loop;
use hone_kernels::Executor;
use hone_runtime::{
    Backoff, Inbox, LoopPhase, Notification, Outbox, Overflow, Shutdown, StatusRegistry, queue,
    supervise,
};
use hone_serve::{Backend, Engine};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::resources::Resources;
use crate::config::{Config, ModelConfig};
use crate::memory;
use crate::model::{self, Builtin, Served};
use crate::retention::Retainer;
use crate::scrub::Scrub;
use hone_api::storage_gauge::StorageGauge;
use hone_api::{Http, Workers};
use hone_inference::eraser::Eraser;
use hone_inference::paired::PairedParts;
use hone_judges::callback::HttpCaller;
use hone_judges::{BaseParts, ReaderParts, States};
use hone_monitor::in_place::InPlace;
use hone_monitor::watch;
use hone_net::tls::Tls;
use hone_train::{Base, Importer};

/// Pauses before a failed loop begins again.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    most: Duration::from_secs(30),
    good: Duration::from_secs(60),
};

/// How long a start waits for the sessions of before.
const REMEMBER_MAX: Duration = Duration::from_secs(10);

/// Work beside the ring until the shutdown, begun again like a loop when it fails, and in the status registry
/// like one. It has no inbox and cannot be switched off.
pub(super) fn beside<F, Fut>(
    (name, registry): (&'static str, StatusRegistry),
    shutdown: Shutdown,
    tasks: &mut JoinSet<()>,
    mut make: F,
) where
    F: FnMut(Shutdown) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let (entry, stop) = (registry.clone(), shutdown.clone());
    tasks.spawn(supervise(name, registry, BACKOFF, shutdown, move || {
        entry.update(name, |status| status.state = LoopPhase::Running);
        let work = make(stop.clone());
        async {
            work.await;
            Ok(())
        }
    }));
}

/// Serve: asks and the newest policies in, deltas out.
pub(super) type Serving = (Option<Arc<dyn Backend>>, Option<Arc<Engine>>);

pub(super) fn serve(resources: &Resources, served: &Served) -> Result<Serving, String> {
    if !resources.config.runs(Loop::Serve) {
        return Ok((None, None));
    }
    let Some(builtin) = served.builtin.clone() else {
        let null = model::null_backend(resources.clock.clone());
        return Ok((Some(Arc::new(null)), None));
    };
    let device = builtin.device.as_deref();
    let whole = hone_serve::context_bytes(&builtin.model, device);
    let free = match device {
        Some(device) => device.memory_free().ok(),
        None => memory::free(),
    };
    let engine = Engine::start(hone_serve::ServeCtx {
        model: builtin.model,
        tokenizer: builtin.tokenizer,
        executor: builtin.executor,
        device: builtin.device,
        end_tokens: builtin.end_tokens,
        blobs: resources.blobs.clone(),
        policies: resources.policies.reader(),
        clock: resources.clock.clone(),
        config: resources.config.serve.clone().sized(whole, free),
        registry: resources.registry.clone(),
    });
    let engine = Arc::new(engine.map_err(|error| error.to_string())?);
    memory::check_rest()?;
    Ok((Some(engine.clone()), Some(engine)))
}

/// The base model as it may vote; none where no model is served.
pub(super) fn base(
    resources: &Resources,
    served: &Served,
    engine: Option<Arc<Engine>>,
) -> Option<BaseParts> {
    Some(BaseParts {
        backend: engine?,
        language: served.language.clone(),
        ids: resources.ids.clone(),
        clock: resources.clock.clone(),
    })
}

/// TLS, where it is spoken: files in, certificates out.
pub(super) fn tls(
    resources: &Resources,
    tls: Option<&Arc<Tls>>,
    tasks: &mut JoinSet<()>,
) -> Result<Option<TlsAcceptor>, String> {
    if let Some(tls) = tls {
        let (name, watched) = (("certificate", resources.registry.clone()), tls.clone());
        beside(name, resources.stops[0].signal(), tasks, move |stop| {
            watched.clone().watch(stop)
        });
    }
    tls.map(Tls::acceptor).transpose()
}

/// Runs a loop until the shutdown; where it fails it begins again.
fn begin<Fut, E>(
    which: Loop,
    resources: &Resources,
    stop: Shutdown,
    loops: &mut JoinSet<()>,
    make: impl Fn(Shutdown) -> Fut + Send + 'static,
) where
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: ToString,
{
    let (name, registry) = (which.name(), resources.registry.clone());
    let until = stop.clone();
    loops.spawn(supervise(name, registry, BACKOFF, until, move || {
        let run = make(stop.clone());
        async { run.await.map_err(|error| error.to_string()) }
    }));
}

/// Collect: turns, next states and feedback in, notifications to the judge out.
pub(super) fn collect(
    resources: &Resources,
    to_judge: Outbox<Notification>,
    loops: &mut JoinSet<()>,
) -> Option<Outbox<Input>> {
    if !resources.config.runs(Loop::Collect) {
        return None;
    }
    let (outbox, inbox) = queue(resources.config.http.record_queue_max, Overflow::DropNewest);
    let ctx = hone_collect::Ctx {
        ledger: resources.ledger.clone(),
        ids: resources.ids.clone(),
        index: resources.index.clone(),
        spool: resources.spool.clone(),
        carry: resources.carry.clone(),
        clock: resources.clock.clone(),
        config: resources.config.collect.clone(),
        registry: resources.registry.clone(),
    };
    let (which, stop) = (Loop::Collect, resources.stops[1].signal());
    begin(which, resources, stop, loops, move |stop| {
        hone_collect::run(ctx.clone(), inbox.clone(), to_judge.clone(), stop)
    });
    Some(outbox)
}

/// Memory: notifications from the gateway in, what answers are shown out.
pub(super) fn memory_loop(
    resources: &Resources,
    loops: &mut JoinSet<()>,
) -> Option<Outbox<Notification>> {
    if !resources.config.runs(Loop::Memory) {
        return None;
    }
    let (outbox, inbox) = queue(1, Overflow::DropOldest);
    let ctx = hone_memory::Ctx {
        ledger: resources.memories.clone(),
        shared: resources.remembered.clone(),
        ids: resources.ids.clone(),
        clock: resources.clock.clone(),
        config: resources.config.memory.clone(),
        registry: resources.registry.clone(),
    };
    let (which, stop) = (Loop::Memory, resources.stops[1].signal());
    begin(which, resources, stop, loops, move |stop| {
        hone_memory::run(ctx.clone(), inbox.clone(), stop)
    });
    Some(outbox)
}

/// Who tries tasks: this process, or others over the same ledger, whether or not one runs now.
pub(super) fn workers(
    resources: &Resources,
    http: &Http,
    sockets: Arc<dyn hone_rollouts::ModelSockets>,
    loops: &mut JoinSet<()>,
) -> Workers {
    if !resources.config.runs(Loop::Rollout) && resources.changes.is_shared() {
        return Workers::Elsewhere;
    }
    match rollout(resources, http, sockets, loops) {
        Ok(notify) => Workers::Here(notify),
        Err(why) => Workers::Nowhere(why),
    }
}

/// Rollout: notifications from the API in, episodes by the gateway out. Without jails, or without what answers and records
/// here, there is none; the error says why.
fn rollout(
    resources: &Resources,
    http: &Http,
    sockets: Arc<dyn hone_rollouts::ModelSockets>,
    loops: &mut JoinSet<()>,
) -> Result<Outbox<Notification>, String> {
    if !resources.config.runs(Loop::Rollout) {
        return Err(
            "the rollout loop does not run in this process; start it with --loops rollout,..."
                .to_owned(),
        );
    }
    let (Some(inference), Some(collect)) = (&http.inference, &http.collect) else {
        return Err("the loops serve and collect do not run in this process".to_owned());
    };
    let (outbox, inbox) = queue(1, Overflow::DropOldest);
    let ctx = hone_rollout::Ctx {
        ledger: resources.jobs.clone(),
        player: Arc::new(hone_rollouts::Players {
            inference: inference.clone(),
            versions: resources.versions.clone(),
            collect: collect.clone(),
            jails: resources.jails.clone(),
            model: http.models.name.clone(),
            sockets,
        }),
        ids: resources.ids.clone(),
        clock: resources.clock.clone(),
        config: resources.config.rollout.clone(),
        registry: resources.registry.clone(),
    };
    let (which, stop) = (Loop::Rollout, resources.stops[0].signal());
    begin(which, resources, stop, loops, move |stop| {
        hone_rollout::run(ctx.clone(), inbox.clone(), stop)
    });
    Ok(outbox)
}

/// Waits until sessions of before the start are known, so that who returns goes on where they were.
/// A ledger that cannot be read keeps nobody from being answered.
pub(super) async fn remember(resources: &Resources) {
    if !resources.config.runs(Loop::Collect) {
        return;
    }
    if timeout(REMEMBER_MAX, resources.carry.restored())
        .await
        .is_err()
    {
        tracing::warn!("the sessions of before are not read yet; whoever returns begins a new one");
    }
}

/// The eraser: wishes to be forgotten in, nothing out.
pub(super) fn eraser(
    resources: &Resources,
    backend: Option<Arc<dyn Backend>>,
    loops: &mut JoinSet<()>,
) -> Arc<Eraser> {
    let eraser = Arc::new(Eraser::new(
        (resources.personal.clone(), resources.versions.clone()),
        (resources.blobs.clone(), backend),
        (resources.policies.clone(), resources.index.clone()),
        resources.spool.clone(),
        resources.remembered.clone(),
        resources.config.learning.forget_piece_turns,
    ));
    let (name, run) = (("eraser", resources.registry.clone()), eraser.clone());
    beside(name, resources.stops[0].signal(), loops, move |stop| {
        run.clone().run(stop)
    });
    eraser
}

/// What reads again what is served.
pub(super) fn scrub(resources: &Resources) -> Arc<Scrub> {
    let every = resources.config.store.scrub_interval_ms;
    Arc::new(Scrub {
        ledger: resources.ledger.clone(),
        versions: resources.versions.clone(),
        blobs: resources.blobs.clone(),
        policies: resources.policies.clone(),
        troubles: resources.troubles.clone(),
        clock: resources.clock.clone(),
        every: (every > 0).then(|| Duration::from_millis(every)),
    })
}

/// The same, beside serving.
pub(super) fn scrubbing(
    resources: &Resources,
    scrub: Arc<Scrub>,
    backend: Option<Arc<dyn Backend>>,
    loops: &mut JoinSet<()>,
) {
    let name = ("scrub", resources.registry.clone());
    beside(name, resources.stops[0].signal(), loops, move |stop| {
        scrub.clone().run(backend.clone(), stop)
    });
}

/// What removes what is older than it is kept.
pub(super) fn retaining(resources: &Resources, loops: &mut JoinSet<()>) {
    let retainer = Arc::new(Retainer {
        storage: resources.storage.clone(),
        config: resources.config.store.clone(),
        held_out_kept: resources.config.train.gate.held_out_max,
        clock: resources.clock.clone(),
    });
    let name = ("retention", resources.registry.clone());
    beside(name, resources.stops[0].signal(), loops, move |stop| {
        retainer.clone().run(stop)
    });
}

/// What notices that the ledger's files are gone, or that their disk is full.
pub(super) fn in_place(resources: &Resources, loops: &mut JoinSet<()>) {
    let watched = Arc::new(InPlace {
        ledger: resources.ledger.clone(),
        folder: resources.config.store.folder().ok(),
        troubles: resources.troubles.clone(),
        clock: resources.clock.clone(),
    });
    let name = ("in_place", resources.registry.clone());
    beside(name, resources.stops[0].signal(), loops, move |stop| {
        watched.clone().run(stop)
    });
}

/// Adapters from elsewhere: held against the model, where one is loaded.
pub(super) fn importer(resources: &Resources, served: &Served) -> Importer {
    let base = served.builtin.as_ref().map(|builtin| Base {
        model: builtin.model.clone(),
        // Not the engine's own: its steps do not wait for what an adapter is held against.
        executor: Arc::new(Executor::new(1)),
        name: resources.config.model.served_name(),
    });
    let most = resources.config.store.blob_file_bytes_max;
    Importer::new(base, resources.blobs.clone(), most)
}

/// What measures the ledger and the blobs.
pub(super) fn storage(resources: &Resources) -> Result<StorageGauge, String> {
    let blobs = resources.blobs.clone();
    let measure = move || {
        let sizes = blobs.sizes();
        sizes.map_err(|error| std::io::Error::other(error.to_string()))
    };
    Ok(StorageGauge::new(
        resources.storage.clone(),
        Arc::new(measure),
    ))
}

/// What is measured beside everything else: the watch's samples, and paired replays (new versions in,
/// what they are worth out).
pub(super) fn measures(resources: &Resources, http: &Arc<Http>, loops: &mut JoinSet<()>) {
    let (name, watched) = (("watch", resources.registry.clone()), http.watch.clone());
    let sources = http.sources();
    beside(name, resources.stops[0].signal(), loops, move |stop| {
        watch::run(watched.clone(), sources.clone(), stop)
    });
    let asks = resources.config.learning.paired_prompts > 0;
    let Some(inference) = http.inference.as_ref().filter(|_| asks) else {
        return;
    };
    let parts = Arc::new(PairedParts {
        backend: inference.backend.clone(),
        ledger: resources.ledger.clone(),
        policies: resources.policies.clone(),
        ids: resources.ids.clone(),
        clock: resources.clock.clone(),
        config: resources.config.learning.clone(),
    });
    let (name, paired) = (("paired", resources.registry.clone()), http.paired.clone());
    beside(name, resources.stops[0].signal(), loops, move |stop| {
        paired.clone().run(parts.clone(), stop)
    });
}

/// What reads replies, and where its probe is kept.
fn read_parts(resources: &Resources, base: &BaseParts) -> Result<ReaderParts, String> {
    let config = resources.config.judge.reading;
    Ok(ReaderParts {
        states: States {
            backend: base.backend.clone(),
            language: base.language.clone(),
            tokens_max: config.tokens_max,
        },
        config,
        is_starter: resources.config.model.path.is_empty(),
        folder: resources.config.store.folder()?,
        registry: resources.registry.clone(),
        busy: {
            let under_way = resources.under_way.reader();
            Arc::new(move || under_way.get().is_some())
        },
        shutdown: resources.stops[0].signal(),
    })
}

/// Judge: notifications from collect in, notifications to train out. `base` is what may vote here.
pub(super) async fn judge(
    resources: &Resources,
    inbox: Inbox<Notification>,
    to_train: Outbox<Notification>,
    base: Option<BaseParts>,
    loops: &mut JoinSet<()>,
) -> Result<(), String> {
    if !resources.config.runs(Loop::Judge) {
        return Ok(());
    }
    let reads = base.as_ref().map(|base| read_parts(resources, base));
    let reader = hone_judges::reader(reads.transpose()?, &resources.registry);
    let (mut completer, mut weigher) = (None, None);
    if let Some(model) = &resources.config.judge.model {
        let template = &resources.config.train.learner.hint_template;
        weigher = hone_judges::weigher(model, template, base.clone());
        completer = Some(hone_judges::voter(model, &resources.outbound, base).await?);
    }
    let ctx = hone_judge::Ctx {
        ledger: resources.traced(),
        completer,
        weigher,
        reader,
        caller: HttpCaller::shared(&resources.outbound, &resources.config.judge)?,
        ids: resources.ids.clone(),
        clock: resources.clock.clone(),
        config: resources.config.judge.clone(),
        registry: resources.registry.clone(),
    };
    let (which, stop) = (Loop::Judge, resources.stops[0].signal());
    begin(which, resources, stop, loops, move |stop| {
        hone_judge::run(ctx.clone(), inbox.clone(), to_train.clone(), stop)
    });
    Ok(())
}

/// Train: notifications from the judge in, the newest policies out. Without a model there is nothing to
/// train.
pub(super) fn train(
    resources: &Resources,
    (served, engine): (&Served, Option<Arc<Engine>>),
    inbox: Inbox<Notification>,
    loops: &mut JoinSet<()>,
) -> Result<(), String> {
    let Some(builtin) = served
        .builtin
        .clone()
        .filter(|_| resources.config.runs(Loop::Train))
    else {
        return Ok(());
    };
    let serving = load_of(engine);
    let priority = hone_train::Priority::new(serving.clone());
    let parts = trainer_parts(resources, served, builtin, &priority);
    let golden = model::probes(&*served.language, &resources.config.model.probe_prompts);
    let trainer = Arc::new(hone_train::NnTrainer::new(parts, &resources.config.train)?);
    fits(trainer.learner_bytes(), &resources.config)?;
    let ctx = hone_train::Ctx {
        ledger: resources.traced(),
        versions: resources.versions.clone(),
        blobs: resources.blobs.clone(),
        evaluator: trainer.clone(),
        trainer,
        policies: resources.policies.clone(),
        under_way: resources.under_way.clone(),
        serving,
        priority,
        golden: Arc::new(golden),
        ids: resources.ids.clone(),
        clock: resources.clock.clone(),
        config: resources.config.train.clone(),
        registry: resources.registry.clone(),
    };
    let (which, stop) = (Loop::Train, resources.stops[0].signal());
    begin(which, resources, stop, loops, move |stop| {
        hone_train::run(ctx.clone(), inbox.clone(), stop)
    });
    Ok(())
}

/// What the engine serves at present.
fn load_of(engine: Option<Arc<Engine>>) -> hone_train::Serving {
    Arc::new(move || {
        let load = engine.as_ref().map(|engine| engine.load());
        load.map_or_else(hone_train::Served::default, |load| hone_train::Served {
            now: load.requests > 0,
            long_step: load.long_step,
            total_us: load.served_us,
        })
    })
}

/// The model to train with what its learners read and write.
fn trainer_parts(
    resources: &Resources,
    served: &Served,
    builtin: Builtin,
    priority: &hone_train::Priority,
) -> hone_train::NnParts {
    let config = &resources.config.model;
    let everyday = match config.rehearsal_prompts.as_slice() {
        [] => hone_train::generic_prompts(),
        own => own.to_vec(),
    };
    // The built-in model knows no facts of the world.
    let reference = match config.is_built_in() {
        true => hone_train::Reference::default(),
        false => hone_train::Reference::built_in(),
    };
    hone_train::NnParts {
        model: builtin.model,
        exec: Arc::new(training_threads(config, priority)),
        device: builtin.device,
        blobs: resources.blobs.clone(),
        base_name: config.served_name(),
        end_tokens: builtin.end_tokens,
        wording: Arc::new(hone_judges::Words(served.language.clone())),
        everyday: Arc::new(everyday),
        reference: Arc::new(reference),
    }
}

/// Threads of training's own, so that no step of the engine finds its helpers at work for training
/// or scheduled like it. Results do not depend on how many there are.
fn training_threads(model: &ModelConfig, priority: &hone_train::Priority) -> Executor {
    let (enters, gives_way) = (priority.clone(), priority.clone());
    let threads = model.thread_count();
    Executor::second(
        threads,
        move || enters.enter(),
        move || gives_way.give_way(),
    )
}

/// Says what a learner takes, and refuses one whose checkpoint could never be written.
fn fits((checkpoint, memory): (u64, u64), config: &Config) -> Result<(), String> {
    let most = config.store.blob_file_bytes_max;
    if checkpoint > most {
        return Err(format!(
            "a checkpoint of what train.learner trains takes {checkpoint} bytes and \
             store.blob_file_bytes_max is {most}; raise it, name fewer projections in \
             train.learner.lora_targets, or train with train.learner.form = \"lora\""
        ));
    }
    let (memory_mib, checkpoint_mib) = (memory >> 20, checkpoint >> 20);
    tracing::info!(memory_mib, checkpoint_mib, "what training one scope takes");
    Ok(())
}
