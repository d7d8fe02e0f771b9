//! The wiring: which room holds which end of which link. One function per room.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hone_collect::{Input, SharedIndex};
use hone_domain::{Blobs, Policies, SessionIndex};
use hone_runtime::{
    Backoff, Board, Clock, Ids, Inbox, Latest, Outbox, Overflow, ShutdownTrigger, SystemClock,
    SystemIds, Wake, queue, supervise,
};
use hone_serve::{Backend, Engine};
use hone_store::{FsBlobs, Ledger, SqliteConfig, SqliteLedger};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::config::{Config, Loop};
use crate::door::{Door, DoorCounters, Limits, Live};
use crate::http::guard::Guard;
use crate::http::listen::{ListenLimits, listen};
use crate::http::traffic::Traffic;
use crate::http::{Http, Life, ModelNames, router};
use crate::model::{self, Served};
use crate::outbound::HttpCompleter;

/// Pauses before a failed room begins again.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    most: Duration::from_secs(30),
    good: Duration::from_secs(60),
};

/// What every room shares.
#[derive(Clone)]
struct Commons {
    config: Arc<Config>,
    ledger: Arc<dyn Ledger>,
    blobs: Arc<dyn Blobs>,
    policies: Latest<Policies>,
    index: SharedIndex,
    board: Board,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    /// Stops judge and train, then collect.
    stops: [ShutdownTrigger; 2],
}

/// A running house.
pub struct House {
    /// Where the door listens.
    pub addr: SocketAddr,
    /// Where data lives.
    pub data_dir: PathBuf,
    /// Name of the served model.
    pub model: String,
    pub(crate) commons_stop: [ShutdownTrigger; 2],
    pub(crate) http: Arc<Http>,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) engine: Option<Arc<Engine>>,
    pub(crate) rooms: JoinSet<()>,
    pub(crate) listening: JoinHandle<()>,
    pub(crate) stop_listening: ShutdownTrigger,
    pub(crate) abort: ShutdownTrigger,
    pub(crate) drain: Duration,
}

impl House {
    /// Opens the store, loads the model, binds the port, starts the rooms, opens the door, in this
    /// order; the error says what to do.
    pub async fn start(config: Config) -> Result<Self, String> {
        let config = Arc::new(config);
        let wanted = config.model.clone();
        let served = tokio::task::spawn_blocking(move || model::load(&wanted))
            .await
            .map_err(|error| format!("the model could not be loaded: {error}"))??;
        let address = config.http.address()?;
        let listener = TcpListener::bind(address).await.map_err(|error| {
            format!("{address} cannot be bound ({error}); is another server running there? --bind 127.0.0.1:0 takes a free port")
        })?;
        let addr = listener.local_addr().map_err(|error| error.to_string())?;
        let commons = open_commons(&config).await?;
        let mut rooms = JoinSet::new();
        let (to_judge, from_collect) = queue(1, Overflow::DropOldest);
        let (to_train, from_judge) = queue(1, Overflow::DropOldest);
        let collect = collect_room(&commons, to_judge, &mut rooms);
        judge_room(&commons, (from_collect, to_train), &mut rooms)?;
        let (backend, engine) = serve_room(&commons, &served)?;
        train_room(&commons, (&served, engine.clone()), from_judge, &mut rooms)?;
        let abort = ShutdownTrigger::new();
        let door = backend.map(|backend| {
            Arc::new(Door {
                backend,
                language: served.language.clone(),
                index: commons.index.clone(),
                collect: collect.clone(),
                clock: commons.clock.clone(),
                ids: commons.ids.clone(),
                limits: door_limits(&config),
                counters: DoorCounters::default(),
                live: Live::default(),
                abort: abort.signal(),
            })
        });
        let http = Arc::new(http_of(&commons, (door, collect), addr)?);
        let stop_listening = ShutdownTrigger::new();
        let limits = (listen_limits(&config), stop_listening.signal());
        let listening = tokio::spawn(listen(listener, router(http.clone()), limits));
        Ok(Self {
            addr,
            data_dir: config.store.folder()?,
            model: config.model.served_name(),
            commons_stop: commons.stops,
            http,
            ledger: commons.ledger,
            engine,
            rooms,
            listening,
            stop_listening,
            abort,
            drain: Duration::from_millis(config.http.drain_deadline_ms),
        })
    }
}

async fn open_commons(config: &Arc<Config>) -> Result<Commons, String> {
    let folder = config.store.folder()?;
    let sqlite = SqliteConfig {
        readers: config.store.readers,
        busy_timeout_ms: config.store.busy_timeout_ms,
        bytes_max: Some(config.store.database_bytes_max).filter(|n| *n > 0),
        ..SqliteConfig::in_folder(&folder)
    };
    let ledger = SqliteLedger::open(&sqlite)
        .await
        .map_err(|e| e.to_string())?;
    let blobs = FsBlobs::open(&folder.join("blobs"), config.store.blob_file_bytes_max);
    let heads = ledger.heads().await.map_err(|e| e.to_string())?;
    Ok(Commons {
        index: Arc::new(Mutex::new(SessionIndex::new(config.http.index()))),
        config: config.clone(),
        ledger: Arc::new(ledger),
        blobs: Arc::new(blobs.map_err(|e| e.to_string())?),
        policies: Latest::new(Policies::from_heads(heads)),
        board: Board::new(),
        clock: Arc::new(SystemClock::default()),
        ids: Arc::new(SystemIds),
        stops: [ShutdownTrigger::new(), ShutdownTrigger::new()],
    })
}

/// Serve: asks and the newest policies in, deltas out.
type Serving = (Option<Arc<dyn Backend>>, Option<Arc<Engine>>);

fn serve_room(commons: &Commons, served: &Served) -> Result<Serving, String> {
    if !commons.config.runs(Loop::Serve) {
        return Ok((None, None));
    }
    let Some(builtin) = served.builtin.clone() else {
        let null = model::null_backend(commons.clock.clone());
        return Ok((Some(Arc::new(null)), None));
    };
    let engine = Engine::start(hone_serve::ServeCtx {
        model: builtin.model,
        tokenizer: builtin.tokenizer,
        executor: builtin.executor,
        end_tokens: builtin.end_tokens,
        blobs: commons.blobs.clone(),
        policies: commons.policies.reader(),
        clock: commons.clock.clone(),
        config: commons.config.serve.clone(),
        board: commons.board.clone(),
    });
    let engine = Arc::new(engine.map_err(|error| error.to_string())?);
    Ok((Some(engine.clone()), Some(engine)))
}

/// Collect: turns, next states and feedback in, wakes to the judge out.
fn collect_room(
    commons: &Commons,
    to_judge: Outbox<Wake>,
    rooms: &mut JoinSet<()>,
) -> Option<Outbox<Input>> {
    if !commons.config.runs(Loop::Collect) {
        return None;
    }
    let (outbox, inbox) = queue(commons.config.http.record_queue_max, Overflow::DropNewest);
    let ctx = hone_collect::Ctx {
        ledger: commons.ledger.clone(),
        ids: commons.ids.clone(),
        index: commons.index.clone(),
        carry: hone_collect::Carry::default(),
        clock: commons.clock.clone(),
        config: commons.config.collect.clone(),
        board: commons.board.clone(),
    };
    let shutdown = commons.stops[1].signal();
    let (name, board) = (Loop::Collect.name(), commons.board.clone());
    rooms.spawn(supervise(
        (name, board),
        BACKOFF,
        shutdown.clone(),
        move || {
            let run = hone_collect::run(
                ctx.clone(),
                inbox.clone(),
                to_judge.clone(),
                shutdown.clone(),
            );
            async { run.await.map_err(|error| error.to_string()) }
        },
    ));
    Some(outbox)
}

/// Judge: wakes from collect in, wakes to train out.
fn judge_room(
    commons: &Commons,
    (inbox, to_train): (Inbox<Wake>, Outbox<Wake>),
    rooms: &mut JoinSet<()>,
) -> Result<(), String> {
    if !commons.config.runs(Loop::Judge) {
        return Ok(());
    }
    let model = commons.config.judge.model.as_ref();
    let ctx = hone_judge::Ctx {
        ledger: commons.ledger.clone(),
        completer: model.map(HttpCompleter::shared).transpose()?,
        ids: commons.ids.clone(),
        clock: commons.clock.clone(),
        config: commons.config.judge.clone(),
        board: commons.board.clone(),
    };
    let shutdown = commons.stops[0].signal();
    let (name, board) = (Loop::Judge.name(), commons.board.clone());
    rooms.spawn(supervise(
        (name, board),
        BACKOFF,
        shutdown.clone(),
        move || {
            let run = hone_judge::run(
                ctx.clone(),
                inbox.clone(),
                to_train.clone(),
                shutdown.clone(),
            );
            async { run.await.map_err(|error| error.to_string()) }
        },
    ));
    Ok(())
}

/// Train: wakes from the judge in, the newest policies out. Without a model there is nothing to
/// train.
fn train_room(
    commons: &Commons,
    (served, engine): (&Served, Option<Arc<Engine>>),
    inbox: Inbox<Wake>,
    rooms: &mut JoinSet<()>,
) -> Result<(), String> {
    let Some(builtin) = served
        .builtin
        .clone()
        .filter(|_| commons.config.runs(Loop::Train))
    else {
        return Ok(());
    };
    let parts = hone_train::NnParts {
        model: builtin.model,
        exec: builtin.executor,
        blobs: commons.blobs.clone(),
        base_name: commons.config.model.served_name(),
        end_tokens: builtin.end_tokens,
    };
    let golden = model::probes(&*served.language, &commons.config.model.probe_prompts);
    let ctx = hone_train::Ctx {
        ledger: commons.ledger.clone(),
        blobs: commons.blobs.clone(),
        trainer: Arc::new(hone_train::NnTrainer::new(parts, &commons.config.train)?),
        policies: commons.policies.clone(),
        busy: Arc::new(move || {
            let stats = engine.as_ref().map(|engine| engine.stats());
            stats.is_some_and(|stats| stats.running + stats.waiting > 0)
        }),
        golden: Arc::new(golden),
        ids: commons.ids.clone(),
        clock: commons.clock.clone(),
        config: commons.config.train.clone(),
        board: commons.board.clone(),
    };
    let shutdown = commons.stops[0].signal();
    let (name, board) = (Loop::Train.name(), commons.board.clone());
    rooms.spawn(supervise(
        (name, board),
        BACKOFF,
        shutdown.clone(),
        move || {
            let run = hone_train::run(ctx.clone(), inbox.clone(), shutdown.clone());
            async { run.await.map_err(|error| error.to_string()) }
        },
    ));
    Ok(())
}

fn door_limits(config: &Config) -> Limits {
    Limits {
        receipt_timeout: Duration::from_millis(config.http.receipt_timeout_ms),
        completion_timeout: Duration::from_millis(config.http.completion_timeout_ms),
        inline_chars_max: config.http.inline_chars_max,
    }
}

fn listen_limits(config: &Config) -> ListenLimits {
    ListenLimits {
        connections_max: config.http.connections_max,
        header_timeout: Duration::from_millis(config.http.header_timeout_ms),
        write_timeout: Duration::from_millis(config.http.write_timeout_ms),
    }
}

fn http_of(
    commons: &Commons,
    (door, collect): (Option<Arc<Door>>, Option<Outbox<Input>>),
    addr: SocketAddr,
) -> Result<Http, String> {
    let config = &commons.config;
    Ok(Http {
        door,
        collect,
        ledger: commons.ledger.clone(),
        policies: commons.policies.reader(),
        board: commons.board.clone(),
        clock: commons.clock.clone(),
        ids: commons.ids.clone(),
        models: ModelNames {
            name: config.model.served_name(),
            aliases: config.model.aliases.clone(),
            created: commons.clock.now_ms() / 1_000,
        },
        guard: Guard {
            loopback: addr.ip().is_loopback(),
            keys: config.http.known_keys()?,
            hosts_allowed: config.http.hosts_allowed.clone(),
            origins_allowed: config.http.origins_allowed.clone(),
        },
        life: Life::default(),
        traffic: Traffic::default(),
        watchers: Arc::new(Semaphore::new(config.http.watchers_max)),
        config: config.http.clone(),
        started: Instant::now(),
    })
}

#[cfg(test)]
#[path = "house_tests.rs"]
mod tests;
