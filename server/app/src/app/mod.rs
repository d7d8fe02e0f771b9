//! The wiring: which loop holds which end of which link.

mod follow;
mod loops;
mod people;
mod reload;
mod resources;
mod standby;
mod stop;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hone_collect::Input;
use hone_ledger::{Changes, Ledger};
use hone_runtime::{LatestReader, Notification, Outbox, Overflow, ShutdownTrigger, queue};
use hone_serve::{Backend, Engine};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::config::Config;
use crate::device::{self, OpenCuda};
use crate::files;
use crate::hub::HubAccess;
use crate::model::{self, Served};
use hone_accounts::audit::Audit;
use hone_api::acts::Acts;
use hone_api::body_budget::BodyBudget;
use hone_api::episodes::Sockets;
use hone_api::guard::Guard;
use hone_api::page::Page;
use hone_api::replays::Replays;
use hone_api::swap::Swap;
use hone_api::{Http, Life, ModelNames, Workers, router};
use hone_api_types::under_way::TrainingJob;
use hone_inference::computed::Computed;
use hone_inference::eraser::Eraser;
use hone_inference::{FairSemaphore, InferenceCounters, InferenceService, Live, MemoryParts};
use hone_monitor::telemetry::Telemetry;
use hone_monitor::traffic::Traffic;
use hone_monitor::watch::Watch;
use hone_net::listen::{ListenLimits, listen};
use hone_net::tls::Tls;
use hone_train::Importer;
pub use people::FirstLink;
use resources::Resources;

/// A running server.
pub struct App {
    /// Where the server listens.
    pub addr: SocketAddr,
    /// Where data lives.
    pub data_dir: PathBuf,
    /// Name of the served model.
    pub model: String,
    /// Where people sign in and nobody has an account yet: the link that makes the first admin.
    pub first_link: Option<FirstLink>,
    /// The certificate, where TLS is spoken.
    tls: Option<Arc<Tls>>,
    /// Traces and numbers, where they are sent.
    telemetry: Option<Arc<Telemetry>>,
    stops: [ShutdownTrigger; 2],
    http: Arc<Http>,
    ledger: Arc<dyn Ledger>,
    changes: Arc<dyn Changes>,
    engine: Option<Arc<Engine>>,
    loops: JoinSet<()>,
    listening: JoinHandle<()>,
    stop_listening: ShutdownTrigger,
    abort: ShutdownTrigger,
    drain: Duration,
}

/// A listener, and where it listens.
async fn bound(address: SocketAddr) -> Result<(TcpListener, SocketAddr), String> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AddrNotAvailable => {
                "this machine has no such address; 127.0.0.1 is the machine alone, 0.0.0.0 all it has"
            }
            ErrorKind::PermissionDenied => "take a port from 1024 on",
            _ => "is another server running there? --bind 127.0.0.1:0 takes a free port",
        };
        format!("{address} cannot be bound ({error}); {advice}")
    })?;
    let addr = listener.local_addr().map_err(|error| error.to_string())?;
    Ok((listener, addr))
}

impl App {
    /// Opens the store, loads the model, binds the port, starts the loops, reads which sessions are
    /// open, accepts connections, in this order; the error says what to do.
    pub fn start(config: Config) -> impl Future<Output = Result<Self, String>> {
        Self::start_on(config, device::cuda)
    }

    /// As [`Self::start`], where `cuda` opens the CUDA device.
    pub async fn start_on(config: Config, cuda: OpenCuda) -> Result<Self, String> {
        let config = Arc::new(config);
        let wanted = config.model.clone();
        let access = HubAccess::from_env(&config.store.folder()?, &config.outbound);
        let served = tokio::task::spawn_blocking(move || model::load_on(&wanted, &access, cuda))
            .await
            .map_err(|error| format!("the model could not be loaded: {error}"))??;
        let tls = config.http.tls().map(Tls::load).transpose()?;
        let (listener, addr) = bound(config.http.address()?).await?;
        let resources = Box::pin(opened(&config, &listener, tls.as_ref())).await?;
        people::check_public(&resources, addr)?;
        let scrub = loops::scrub(&resources);
        scrub.at_start().await;
        let mut tasks = JoinSet::new();
        let (to_judge, from_collect) = queue(1, Overflow::DropOldest);
        let (to_train, from_judge) = queue(1, Overflow::DropOldest);
        let collect = loops::collect(&resources, to_judge, &mut tasks);
        let (backend, engine) = loops::serve(&resources, &served)?;
        let computed = served.builtin.as_ref().zip(engine.as_deref());
        let computed = computed.map(|(builtin, engine)| model::computed_by(builtin, engine));
        let base = loops::base(&resources, &served, engine.clone());
        loops::judge(&resources, from_collect, to_train, base, &mut tasks).await?;
        let serving = (&served, engine.clone());
        loops::train(&resources, serving, from_judge, &mut tasks)?;
        let abort = ShutdownTrigger::new();
        let eraser = loops::eraser(&resources, backend.clone(), &mut tasks);
        loops::in_place(&resources, &mut tasks);
        loops::scrubbing(&resources, scrub, backend.clone(), &mut tasks);
        loops::retaining(&resources, &mut tasks);
        let memory = loops::memory_loop(&resources, &mut tasks);
        let inference = backend.map(|backend| {
            let collect = collect.clone();
            let inference = inference_of(&resources, backend, &served, collect, memory, &abort);
            Arc::new(inference)
        });
        let importer = loops::importer(&resources, &served);
        let mut http = http_of(
            &resources, inference, collect, eraser, importer, computed, addr,
        )?;
        let sockets = Arc::<Sockets>::default();
        http.rollouts = loops::workers(&resources, &http, sockets.clone(), &mut tasks);
        let http = Arc::new(http);
        let router = sockets.serve(router(http.clone()));
        follow::follow(&resources, &mut tasks);
        let first_link = people::first_link(&resources, addr).await?;
        loops::measures(&resources, &http, &mut tasks);
        loops::remember(&resources).await;
        let stop_listening = ShutdownTrigger::new();
        let limits = (limits_of(&config), stop_listening.signal());
        let acceptor = loops::tls(&resources, tls.as_ref(), &mut tasks)?;
        let listening = tokio::spawn(listen((listener, acceptor), router, limits));
        Ok(Self {
            addr,
            data_dir: config.store.folder()?,
            model: config.model.served_name(),
            first_link,
            tls,
            telemetry: resources.telemetry,
            stops: resources.stops,
            http,
            ledger: resources.ledger,
            changes: resources.changes,
            engine,
            loops: tasks,
            listening,
            stop_listening,
            abort,
            drain: Duration::from_millis(config.http.drain_deadline_ms),
        })
    }

    /// How the model is computed, where the built-in engine runs here.
    pub fn computed(&self) -> Option<&Computed> {
        self.http.computed.as_ref()
    }

    /// Holds the effects of a loop, or lets them go: see [`hone_runtime::Switch::hold`]. False where
    /// no such loop runs. Only whoever holds the app itself can do that; no request can.
    pub fn hold(&self, name: &str, held: bool) -> bool {
        let switch = self.http.registry.switch(name);
        switch.is_some_and(|switch| {
            switch.hold(held);
            true
        })
    }
}

/// Opens the ledger, once it may, and what stands beside it.
async fn opened(
    config: &Arc<Config>,
    listener: &TcpListener,
    tls: Option<&Arc<Tls>>,
) -> Result<Resources, String> {
    let ledger = standby::open_ledger(config, listener, tls, limits_of(config)).await?;
    resources::open(config, ledger).await
}

/// Bounds of connections, as far as this process may have files open.
fn limits_of(config: &Config) -> ListenLimits {
    let (files, wanted) = (files::raise(), config.http.connections_max);
    let fit = files::connections(files, wanted);
    if fit < wanted {
        tracing::warn!(
            files,
            connections = fit,
            wanted,
            "the limit of open files (ulimit -n) allows fewer connections than http.connections_max"
        );
    }
    config.http.listen_limits(fit)
}

fn guard_of(config: &Config, addr: SocketAddr) -> Result<Guard, String> {
    Ok(Guard {
        loopback: addr.ip().is_loopback(),
        sign_in: config.people.asks_everybody(),
        trust_loopback: config.people.trust_loopback,
        proxies_trusted: config.http.proxies_trusted.clone(),
        keys: config.http.known_keys()?,
        hosts_allowed: config.http.hosts_allowed.clone(),
        origins_allowed: config.http.origins_allowed.clone(),
    })
}

fn inference_of(
    resources: &Resources,
    backend: Arc<dyn Backend>,
    served: &Served,
    collect: Option<Outbox<Input>>,
    memory: Option<Outbox<Notification>>,
    abort: &ShutdownTrigger,
) -> InferenceService {
    let config = &resources.config;
    InferenceService {
        backend,
        language: served.language.clone(),
        takes: OnceLock::new(),
        index: resources.index.clone(),
        collect,
        rules: resources.rules.clone(),
        memory: MemoryParts {
            shared: resources.remembered.clone(),
            config: config.memory.clone(),
            notify: memory,
        },
        policies: resources.policies.reader(),
        late: resources.late.clone(),
        troubles: resources.troubles.clone(),
        clock: resources.clock.clone(),
        ids: resources.ids.clone(),
        limits: config.http.inference_limits(),
        rate_limiter: resources.rate_limiter.clone(),
        counters: InferenceCounters::default(),
        live: Live::default(),
        telemetry: resources.telemetry.clone(),
        embedding: FairSemaphore::new(1),
        branching: FairSemaphore::new(config.http.branches_max),
        apart: FairSemaphore::new(config.model.thread_count()),
        abort: abort.signal(),
    }
}

fn http_of(
    resources: &Resources,
    inference: Option<Arc<InferenceService>>,
    collect: Option<Outbox<Input>>,
    eraser: Arc<Eraser>,
    importer: Importer,
    computed: Option<Computed>,
    addr: SocketAddr,
) -> Result<Http, String> {
    let config = &resources.config;
    Ok(Http {
        inference,
        collect,
        ledger: resources.ledger.clone(),
        personal: resources.personal.clone(),
        memories: resources.memories.clone(),
        skills: resources.skills.clone(),
        jobs: resources.jobs.clone(),
        rollouts: Workers::Nowhere("it is starting".to_owned()),
        rollout_concurrency: resources.config.rollout.concurrency,
        jails: resources.jails.clone(),
        remembered: resources.remembered.clone(),
        eraser,
        spool: resources.spool.clone(),
        importer: Arc::new(importer),
        paired: Arc::default(),
        binding: config.binding.clone(),
        rules: resources.rules.clone(),
        storage: loops::storage(resources)?,
        versions: resources.versions.clone(),
        policies: resources.policies.clone(),
        under_way: job_of(resources.under_way.reader()),
        registry: resources.registry.clone(),
        clock: resources.clock.clone(),
        ids: resources.ids.clone(),
        models: ModelNames {
            name: config.model.served_name(),
            aliases: config.model.aliases.clone(),
            created: resources.clock.now_ms() / 1_000,
        },
        people: resources.people.clone(),
        audit: Audit::new(resources.audit.clone(), resources.clock.clone()),
        rate_limiter: resources.rate_limiter.clone(),
        computed,
        guard: Swap::new(guard_of(config, addr)?),
        life: Life::default(),
        traffic: Traffic::default(),
        watch: Arc::new(Watch::new(
            config.console.clone(),
            config.train.batch_turns_min,
            resources.troubles.clone(),
        )),
        settings: Swap::new(config.settings().map_err(|error| error.to_string())?),
        page: Arc::new(Page::from_config(&config.console.page_dir)),
        acts: Arc::new(Acts::new(config.http.connections_max)),
        body_budget: BodyBudget::new(&config.http),
        replays: Arc::new(Replays::new(
            config.http.replay_limits(),
            resources.answers.clone(),
        )),
        watchers: Arc::new(Semaphore::new(config.http.watchers_max)),
        config: config.http.clone(),
        started: Instant::now(),
    })
}

/// The training job that is under way, as the API tells it.
fn job_of(
    under_way: LatestReader<Option<hone_train::UnderWay>>,
) -> Arc<dyn Fn() -> Option<TrainingJob> + Send + Sync> {
    Arc::new(move || {
        let job = under_way.get()?;
        let stand = job.progress.stand();
        Some(TrainingJob {
            scope: job.scope,
            answers: job.turns,
            phase: stand.phase.map(hone_train::Phase::name),
            share: stand.share,
            seconds: stand.seconds,
            seconds_left: stand.seconds_left,
        })
    })
}

#[cfg(test)]
mod people_tests;
#[cfg(test)]
mod telemetry_tests;
#[cfg(test)]
pub(crate) mod tests;
