//! A gateway with a scripted backend and a scripted recorder, called without a socket.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, Response};
use hone_blobs::FsBlobs;
use hone_collect::{Input, Spool};
use hone_domain::{
    Ask, Collect, Completion, Consents, Delta, Digest, End, Grammar, Policies, PolicyVersion,
    Predicted, Reason, Receipt, ReturnRule, Sampling, Scope, ServeError, SessionCredit,
    SessionIndex, StopReason, Token, TokenDelta, Turn, UserRole, VersionSpan,
};
use hone_kernels::Executor;
use hone_ledger::{FeedbackOutcome, LateTurns, Ledger as _, People};
use hone_ledger_sql::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_runtime::{
    Inbox, Latest, ManualClock, Outbox, Overflow, SeededIds, Shutdown, ShutdownTrigger,
    StatusRegistry, queue,
};
use hone_serve::{Answer, Backend, Cancel, Capabilities, EngineStats, HeldGrammar};
use http_body_util::BodyExt;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, mpsc};
use tower::ServiceExt;

use super::Key;
use super::acts::Acts;
use super::body_budget::BodyBudget;
use super::guard::Guard;
use super::page::Page;
use super::replays::Replays;
use super::rights::{Right, RouteTable};
use super::storage_gauge::StorageGauge;
use super::swap::Swap;
use super::{Http, Life, ModelNames, Workers, router, served};
use crate::HttpConfig;
use crate::adapters::tiny_model;
use crate::defaults::defaults;
use crate::settings::{Origin, Setting};
use hone_accounts::Directory;
use hone_accounts::LimitsConfig;
use hone_accounts::audit::Audit;
use hone_accounts::rate_limit::RateLimiter;
use hone_api_types::under_way::TrainingJob;
use hone_inference::eraser::Eraser;
use hone_inference::learning::{Corrections, Lessons, Rules};
use hone_inference::{BindingConfig, LearningConfig};
use hone_inference::{
    ByteLanguage, FairSemaphore, InferenceCounters, InferenceService, Language, Limits, Live,
};
use hone_inference::{MemoryParts, SharedMemories};
use hone_monitor::traffic::Traffic;
use hone_monitor::troubles::Troubles;
use hone_monitor::watch::Watch;
use hone_net::listen::Peer;
use hone_net::outbound::Outbound;
use hone_train::{Base, Importer};

/// The rule of every route.
pub(crate) fn route_table() -> RouteTable {
    served(Arc::new(Page::Built)).split().1
}

/// Every route: method, path as the router matches it, right.
pub(crate) fn rights() -> Vec<(String, String, Right)> {
    let table = route_table();
    let rows = table.rows();
    rows.map(|(method, path, rule)| (method.to_string(), path.to_owned(), rule.right))
        .collect()
}

/// What the backend does with one ask.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// Says this, one token per piece, and ends.
    Say(Vec<&'static str>, StopReason),
    /// Says this, then fails.
    Break(Vec<&'static str>, ServeError),
    /// Refuses the ask.
    Refuse(ServeError),
    /// Begins and then waits until it is cancelled.
    Hang,
    /// Waits in line for so long, then says this or fails; ends where it is cancelled before.
    Wait(Duration, Result<&'static str, ServeError>),
    /// Panics at the ask.
    Panic,
}

/// A backend that follows scripts; without one left it says "ok".
pub(crate) struct Fake {
    pub(crate) scripts: Mutex<VecDeque<Script>>,
    pub(crate) asks: Mutex<Vec<Ask>>,
    pub(crate) cancelled: Arc<Semaphore>,
    /// Whether embeddings wait, cancelled or not.
    pub(crate) is_slow: AtomicBool,
    /// How many there were.
    pub(crate) embeddings: AtomicUsize,
    /// What holds every grammar.
    pub(crate) grammar: HeldGrammar,
    /// Asks that found their grammar held.
    pub(crate) held: AtomicUsize,
    /// Most tokens of prompt and completion together.
    pub(crate) max_positions: AtomicUsize,
    /// What was withdrawn.
    pub(crate) withdrawn: Mutex<Vec<(Scope, Vec<PolicyVersion>)>>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            scripts: Mutex::default(),
            asks: Mutex::default(),
            cancelled: Arc::new(Semaphore::new(0)),
            is_slow: AtomicBool::new(false),
            embeddings: AtomicUsize::new(0),
            grammar: HeldGrammar::default(),
            held: AtomicUsize::new(0),
            max_positions: AtomicUsize::new(4_096),
            withdrawn: Mutex::default(),
        }
    }
}

pub(crate) const END: Token = 256;

fn turn_of(ask: &Ask, text: &str, completion: &Completion) -> Turn {
    Turn {
        id: ask.turn,
        request: ask.request,
        choice_index: ask.choice_index,
        group: ask.group,
        session: ask.context.session,
        session_key: ask.context.session_key.clone(),
        parent: ask.context.parent,
        owner: ask.context.owner.clone(),
        scope: ask.scope.clone(),
        origin: ask.origin,
        kind: ask.kind,
        messages: ask.context.messages.to_vec(),
        prompt_tokens: ask.prompt_tokens.clone(),
        completion: completion.clone(),
        completion_text: text.to_owned(),
        sampling: ask.sampling.clone(),
        spans: vec![VersionSpan {
            version: PolicyVersion(3),
            start: 0,
            end: completion.len() as u32,
        }],
        digest: Some(Digest([3; 32])),
        base: Digest([0xab; 32]),
        fingerprint: "fake".to_owned(),
        admission: ask.context.admission.clone(),
        untrainable: ask.context.untrainable,
        started_ms: ask.context.admitted_ms,
        finished_ms: ask.context.admitted_ms + 1,
    }
}

fn end_of(ask: &Ask, pieces: &[&str], stop: StopReason) -> Delta {
    let text = pieces.concat();
    let mut tokens: Vec<Token> = text.bytes().map(Token::from).collect();
    if stop == StopReason::EndToken {
        tokens.push(END);
    }
    let n = tokens.len();
    let completion =
        Completion::new(tokens, vec![-0.25; n], vec![-0.5; n], vec![None; n], stop).unwrap();
    let turn = (ask.collect == Collect::Yes).then(|| Box::new(turn_of(ask, &text, &completion)));
    Delta::End(Box::new(End {
        stop,
        text: String::new(),
        completion,
        version: PolicyVersion(3),
        predicted: (!ask.predicted.is_empty()).then(|| Predicted {
            accepted: 1,
            rejected: ask.predicted.len() as u32 - 1,
        }),
        turn,
    }))
}

fn begun() -> Delta {
    Delta::Started {
        version: PolicyVersion(3),
        cached_tokens: 2,
    }
}

/// Scores what is given.
fn scored(ask: &Ask) -> Answer {
    let (sender, deltas) = mpsc::channel(ask.given.len() + 2);
    sender.try_send(begun()).unwrap();
    for (token, at) in ask.given.iter().zip(1u8..) {
        let logprob = -f32::from(at);
        let delta = TokenDelta {
            text: String::new(),
            token: *token,
            logprob,
            behavior_logprob: logprob,
            top: vec![(7, -0.125); usize::from(ask.sampling.top_logprobs.min(1))],
        };
        sender.try_send(Delta::Token(delta)).unwrap();
    }
    sender
        .try_send(end_of(ask, &[], StopReason::Length))
        .unwrap();
    let cancel = Cancel::default();
    Answer { deltas, cancel }
}

fn token(piece: &str, sampling: &Sampling) -> Delta {
    let id = piece.bytes().next().map_or(0, Token::from);
    let top = if sampling.top_behavior { -0.25 } else { -0.5 };
    Delta::Token(TokenDelta {
        text: piece.to_owned(),
        token: id,
        logprob: -0.5,
        behavior_logprob: -0.25,
        top: vec![(id, top); usize::from(sampling.top_logprobs.min(1))],
    })
}

impl Backend for Fake {
    fn ask(&self, ask: Ask) -> Result<Answer, ServeError> {
        if !ask.given.is_empty() {
            self.asks.lock().unwrap().push(ask.clone());
            return Ok(scored(&ask));
        }
        let script = self.scripts.lock().unwrap().pop_front();
        let script = script.unwrap_or(Script::Say(vec!["ok"], StopReason::EndToken));
        self.asks.lock().unwrap().push(ask.clone());
        let held = ask.form.is_some() && self.grammar.is_shared();
        self.held.fetch_add(usize::from(held), Ordering::Relaxed);
        if let Script::Refuse(error) = script {
            return Err(error);
        }
        let (sender, deltas) = mpsc::channel(64);
        let cancel = Cancel::default();
        if !matches!(script, Script::Wait(..)) {
            sender.try_send(begun()).unwrap();
        }
        let top = ask.sampling.clone();
        let say = |pieces: &[&str]| {
            pieces
                .iter()
                .for_each(|piece| sender.try_send(token(piece, &top)).unwrap());
        };
        match script {
            Script::Say(pieces, stop) => {
                say(&pieces);
                sender.try_send(end_of(&ask, &pieces, stop)).unwrap();
            }
            Script::Break(pieces, error) => {
                say(&pieces);
                sender.try_send(Delta::Failed(error)).unwrap();
            }
            Script::Refuse(_) => {}
            Script::Panic => panic!("as the script says"),
            Script::Wait(long, says) => {
                let cancel = cancel.clone();
                tokio::spawn(async move {
                    let over = tokio::time::Instant::now() + long;
                    while tokio::time::Instant::now() < over && !cancel.is_cancelled() {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    let deltas = match says {
                        _ if cancel.is_cancelled() => {
                            vec![end_of(&ask, &[], StopReason::Cancelled)]
                        }
                        Ok(text) => {
                            let end = end_of(&ask, &[text], StopReason::EndToken);
                            vec![begun(), token(text, &top), end]
                        }
                        Err(error) => vec![Delta::Failed(error)],
                    };
                    for delta in deltas {
                        sender.try_send(delta).unwrap();
                    }
                });
            }
            Script::Hang => {
                let (cancel, cancelled) = (cancel.clone(), self.cancelled.clone());
                say(&["he"]);
                tokio::spawn(async move {
                    while !cancel.is_cancelled() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    let end = end_of(&ask, &["he"], StopReason::Cancelled);
                    sender.try_send(end).unwrap();
                    cancelled.add_permits(1);
                });
            }
        }
        Ok(Answer { deltas, cancel })
    }

    fn check_grammar(&self, grammar: &Grammar) -> Result<HeldGrammar, ServeError> {
        match grammar.0.contains("unsound") {
            true => Err(ServeError::Grammar("it is unsound".to_owned())),
            false => Ok(self.grammar.clone()),
        }
    }

    fn withdraw(&self, scope: &Scope, versions: &[PolicyVersion]) {
        let withdrawn = (scope.clone(), versions.to_vec());
        self.withdrawn.lock().unwrap().push(withdrawn);
    }

    fn embed(&self, tokens: &[Token], cancel: &Cancel) -> Result<Vec<f32>, ServeError> {
        self.embeddings.fetch_add(1, Ordering::Relaxed);
        let mut is_told = false;
        while self.is_slow.load(Ordering::Relaxed) {
            if cancel.is_cancelled() && !std::mem::replace(&mut is_told, true) {
                self.cancelled.add_permits(1);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if cancel.is_cancelled() {
            return Err(ServeError::Late);
        }
        Ok(vec![0.6, 0.8, tokens.len() as f32])
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "fake",
            exact_parity: false,
            token_ids: true,
            logprobs: true,
            can_train: true,
            forms: true,
            drafts: true,
            max_positions: self.max_positions.load(Ordering::Relaxed),
            model_positions: self.max_positions.load(Ordering::Relaxed),
            vocab: 257,
            fingerprint: "fake".to_owned(),
            base: Digest([0xab; 32]),
            end_tokens: vec![END],
            experts_chosen: 0,
        }
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

/// How the recorder answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorder {
    /// Collects everything.
    Collects,
    /// Takes turns and never gives a receipt.
    Silent,
    /// Says that the ledger failed.
    Fails,
    /// Is not there.
    Absent,
}

/// What the recorder was told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) turns: Vec<Turn>,
    pub(crate) next: Vec<hone_collect::Observed>,
    pub(crate) feedback: Vec<hone_domain::Feedback>,
    pub(crate) done: usize,
}

/// A gateway to test.
pub(crate) struct Stage {
    pub(crate) fake: Arc<Fake>,
    pub(crate) told: Arc<Mutex<Told>>,
    pub(crate) http: Arc<Http>,
    pub(crate) app: Router,
    pub(crate) abort: ShutdownTrigger,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) under_way: Latest<Option<TrainingJob>>,
    _folder: tempfile::TempDir,
}

/// Time that stands still, ids that repeat, and what ends everything.
fn times_of() -> (Arc<ManualClock>, Arc<SeededIds>, ShutdownTrigger) {
    let clock = Arc::new(ManualClock::at(1_700_000_000_000));
    (clock, Arc::new(SeededIds::new(1)), ShutdownTrigger::new())
}

fn record(input: Input, recorder: Recorder, (told, held): (&Mutex<Told>, &mut Vec<Input>)) {
    match input {
        Input::Turn { turn, receipt } => {
            if recorder == Recorder::Silent {
                return held.push(Input::Turn { turn, receipt });
            }
            told.lock().unwrap().turns.push(*turn);
            let answer = match recorder {
                Recorder::Fails => Receipt::NotCollected(Reason::LedgerFailed),
                _ => Receipt::Collected,
            };
            let _ = receipt.send(answer);
        }
        Input::Next(observed) => told.lock().unwrap().next.push(observed),
        Input::Feedback { feedback, reply } => {
            let outcome = match feedback.comment.as_deref() {
                Some("not mine") => Ok(FeedbackOutcome::NotYours),
                Some("too late") => Ok(FeedbackOutcome::AlreadyLearned),
                Some("broken") => Err("disk full".to_owned()),
                _ => Ok(FeedbackOutcome::Stored),
            };
            told.lock().unwrap().feedback.push(*feedback);
            let _ = reply.send(outcome);
        }
        // The ledger is asked before.
        Input::Reward(_) => {}
        Input::SessionDone(_) => told.lock().unwrap().done += 1,
    }
}

pub(crate) fn binding_config() -> BindingConfig {
    defaults("binding")
}

fn index_of(config: &HttpConfig) -> SessionIndex {
    let binding = binding_config();
    let index = SessionIndex::new(config.index(binding.retry_ms));
    index.with_habits(binding.habits().unwrap())
}

pub(crate) fn learning_config() -> LearningConfig {
    defaults("learning")
}

fn rules_of() -> Arc<Rules> {
    let lessons = Lessons {
        corrections: Corrections::Imitated,
        replays: true,
        credit: SessionCredit {
            rule: ReturnRule::Terminal,
            discount: 1.0,
        },
    };
    let mut config = learning_config();
    config.shared_owners = vec!["helpdesk".to_owned()];
    let rules = Rules::new(config, lessons, Consents::default());
    Arc::new(rules)
}

pub(crate) fn http_config() -> HttpConfig {
    let mut config: HttpConfig = defaults("http");
    config.body_bytes_max = 65_536;
    config.receipt_timeout_ms = 50;
    config.messages_max = 64;
    config.replays_max = 8;
    config
}

/// Keys whose owner has the key's own text as a name.
fn known_keys() -> Vec<Key> {
    let rows = [
        ("user-a", UserRole::User),
        ("user-b", UserRole::User),
        ("helpdesk", UserRole::User),
        ("developer", UserRole::Developer),
        ("auditor", UserRole::Auditor),
        ("admin", UserRole::Admin),
    ];
    let key = |(name, role): (&str, UserRole)| Key {
        owner: name.to_owned(),
        sha256: Digest(Sha256::digest(name).into()),
        role,
    };
    rows.map(key).into()
}

fn known_guard() -> Guard {
    Guard {
        loopback: true,
        sign_in: false,
        trust_loopback: true,
        proxies_trusted: Vec::new(),
        keys: known_keys(),
        hosts_allowed: vec!["box.lan".to_owned()],
        origins_allowed: vec!["https://app.example".to_owned()],
    }
}

async fn directory_of(store: Arc<dyn People>, clock: Arc<ManualClock>) -> Arc<Directory> {
    let outbound = Arc::new(Outbound::new(&defaults("outbound")).unwrap());
    let opened = Directory::open((store, clock), defaults("people"), Some(outbound));
    Arc::new(opened.await.unwrap())
}

type Times = (Arc<ManualClock>, Arc<SeededIds>, Shutdown);

fn late_in(folder: &Path) -> Arc<LateTurns> {
    Arc::new(LateTurns::open(folder).unwrap())
}

/// What inference has in common with the other routes.
struct Links<'a> {
    remembered: Arc<SharedMemories>,
    collect: Option<Outbox<Input>>,
    rules: Arc<Rules>,
    policies: &'a Latest<Policies>,
    late: Arc<LateTurns>,
}

fn links_of<'a>(
    remembered: &Arc<SharedMemories>,
    collect: &Option<Outbox<Input>>,
    rules: &Arc<Rules>,
    policies: &'a Latest<Policies>,
    late: Arc<LateTurns>,
) -> Links<'a> {
    Links {
        remembered: remembered.clone(),
        collect: collect.clone(),
        rules: rules.clone(),
        policies,
        late,
    }
}

fn inference_of(
    fake: Arc<Fake>,
    links: Links<'_>,
    (config, rate_limiter, (clock, ids, abort)): (&HttpConfig, Arc<RateLimiter>, Times),
    language: Arc<dyn Language>,
) -> Arc<InferenceService> {
    Arc::new(InferenceService {
        backend: fake,
        language,
        takes: std::sync::OnceLock::new(),
        index: Arc::new(Mutex::new(index_of(config))),
        collect: links.collect,
        rules: links.rules,
        memory: MemoryParts {
            shared: links.remembered,
            config: defaults("memory"),
            notify: None,
        },
        policies: links.policies.reader(),
        late: links.late,
        troubles: Troubles::default(),
        clock,
        ids,
        rate_limiter,
        limits: Limits {
            completion_timeout: Duration::from_secs(60),
            inline_chars_max: 1_000,
            ..config.inference_limits()
        },
        counters: InferenceCounters::default(),
        live: Live::default(),
        telemetry: None,
        embedding: FairSemaphore::new(1),
        branching: FairSemaphore::new(config.branches_max),
        apart: FairSemaphore::new(2),
        abort,
    })
}

/// What measures the ledger and the blobs of a folder.
fn storage_of(ledger: &Arc<SqliteLedger>, folder: &Path) -> StorageGauge {
    let blobs = folder.join("blobs");
    StorageGauge::new(ledger.clone(), Arc::new(move || hone_blobs::sizes(&blobs)))
}

/// Carries out wishes to be forgotten until the end.
fn eraser_of(
    ledger: &Arc<SqliteLedger>,
    folder: &Path,
    policies: &Latest<Policies>,
    inference: &InferenceService,
    abort: &ShutdownTrigger,
) -> Arc<Eraser> {
    let blobs = FsBlobs::open(&folder.join("blobs"), 1 << 20).unwrap();
    let eraser = Arc::new(Eraser::new(
        (ledger.clone(), ledger.clone()),
        (Arc::new(blobs), Some(inference.backend.clone())),
        (policies.clone(), inference.index.clone()),
        Spool::off(),
        inference.memory.shared.clone(),
        2,
    ));
    tokio::spawn(eraser.clone().run(abort.signal()));
    eraser
}

/// Holds adapters against a tiny model.
fn importer_in(folder: &Path) -> Importer {
    let base = Base {
        model: tiny_model(),
        executor: Arc::new(Executor::new(1)),
        name: "org/model".to_owned(),
    };
    let blobs = FsBlobs::open(&folder.join("blobs"), 1 << 20).unwrap();
    Importer::new(Some(base), Arc::new(blobs), 1 << 20)
}

/// Judged turns of one scope that make a batch.
const BATCH_TURNS_MIN: usize = 8;

fn watch() -> Arc<Watch> {
    let config = defaults("console");
    Arc::new(Watch::new(config, BATCH_TURNS_MIN, Troubles::default()))
}

fn bind_setting() -> Setting {
    Setting {
        key: "http.bind".to_owned(),
        value: "127.0.0.1:8080".into(),
        origin: Origin::Default,
        source: None,
        doc: String::new(),
    }
}

fn model_names() -> ModelNames {
    ModelNames {
        name: "org/model".to_owned(),
        aliases: vec!["gpt".to_owned()],
        created: 1_700_000_000,
    }
}

/// The way to a collector, if there is one, and what it is told.
fn collect_of(
    recorder: Recorder,
    ledger: &Arc<SqliteLedger>,
) -> (Option<Outbox<Input>>, Arc<Mutex<Told>>) {
    let told = Arc::new(Mutex::new(Told::default()));
    let (outbox, inbox) = queue(64, Overflow::DropNewest);
    tokio::spawn(listen(inbox, recorder, told.clone(), ledger.clone()));
    ((recorder != Recorder::Absent).then_some(outbox), told)
}

async fn listen(
    inbox: Inbox<Input>,
    recorder: Recorder,
    told: Arc<Mutex<Told>>,
    ledger: Arc<SqliteLedger>,
) {
    let mut held = Vec::new();
    while let Some(input) = inbox.recv().await {
        if let Input::Reward(given) = input {
            let rewarded = ledger.record_reward(&given.reward, given.credit).await;
            let _ = given
                .reply
                .send(rewarded.map_err(|error| error.to_string()));
            continue;
        }
        record(input, recorder, (&told, &mut held));
    }
}

async fn ledger_in(folder: &Path) -> Arc<SqliteLedger> {
    let sqlite = SqliteConfig::in_folder(folder);
    Arc::new(SqliteStore::open(&sqlite).await.unwrap())
}

fn registry() -> StatusRegistry {
    let registry = StatusRegistry::new();
    registry.enter("judge");
    registry
}

fn jails() -> Arc<hone_rollouts::Jails> {
    Arc::new(hone_rollouts::Jails::new(defaults("tools")))
}

async fn remembered_of(ledger: &Arc<SqliteLedger>) -> Arc<SharedMemories> {
    Arc::new(
        SharedMemories::load(ledger.clone(), ledger.clone())
            .await
            .unwrap(),
    )
}

fn job_of(
    under_way: &Latest<Option<TrainingJob>>,
) -> Arc<dyn Fn() -> Option<TrainingJob> + Send + Sync> {
    let under_way = under_way.reader();
    Arc::new(move || under_way.get())
}

impl Stage {
    pub(crate) async fn new(recorder: Recorder) -> Self {
        Self::speaking(recorder, Arc::new(ByteLanguage)).await
    }

    /// A gateway whose model has this template.
    pub(crate) async fn speaking(recorder: Recorder, language: Arc<dyn Language>) -> Self {
        let how = (Page::Built, defaults("limits"));
        Self::with(recorder, how, language).await
    }

    /// A gateway whose page comes from there.
    pub(crate) async fn with_page(recorder: Recorder, page: Page) -> Self {
        Self::with(recorder, (page, defaults("limits")), Arc::new(ByteLanguage)).await
    }

    /// A gateway whose callers have limits.
    pub(crate) async fn with_limits(recorder: Recorder, limits: LimitsConfig) -> Self {
        Self::with(recorder, (Page::Built, limits), Arc::new(ByteLanguage)).await
    }

    async fn with(
        recorder: Recorder,
        (page, limits): (Page, LimitsConfig),
        language: Arc<dyn Language>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger_in(folder.path()).await;
        let fake = Arc::new(Fake::default());
        let (collect, told) = collect_of(recorder, &ledger);
        let config = http_config();
        let (clock, ids, abort) = times_of();
        let (rules, policies) = (rules_of(), Latest::new(Policies::default()));
        let (remembered, late) = (remembered_of(&ledger).await, late_in(folder.path()));
        let links = links_of(&remembered, &collect, &rules, &policies, late);
        let rate_limiter = Arc::new(RateLimiter::new(limits, clock.clone()));
        let times = (clock.clone(), ids.clone(), abort.signal());
        let how = (&config, rate_limiter.clone(), times);
        let inference = inference_of(fake.clone(), links, how, language);
        let eraser = eraser_of(&ledger, folder.path(), &policies, &inference, &abort);
        let under_way = Latest::new(None);
        let http = Arc::new(Http {
            paired: Arc::default(),
            people: directory_of(ledger.clone(), clock.clone()).await,
            audit: Audit::new(ledger.clone(), clock.clone()),
            rate_limiter,
            inference: Some(inference),
            collect,
            personal: ledger.clone(),
            memories: ledger.clone(),
            skills: ledger.clone(),
            jobs: ledger.clone(),
            rollouts: Workers::Here(queue(1, Overflow::DropOldest).0),
            rollout_concurrency: 2,
            jails: jails(),
            remembered,
            spool: eraser.spool.clone(),
            eraser,
            importer: Arc::new(importer_in(folder.path())),
            binding: binding_config(),
            rules,
            storage: storage_of(&ledger, folder.path()),
            versions: ledger.clone(),
            ledger: ledger.clone(),
            policies,
            under_way: job_of(&under_way),
            acts: Arc::new(Acts::new(config.connections_max)),
            body_budget: BodyBudget::new(&config),
            replays: Arc::new(Replays::new(config.replay_limits(), ledger)),
            registry: registry(),
            clock: clock.clone(),
            ids,
            config,
            models: model_names(),
            guard: Swap::new(known_guard()),
            life: Life::default(),
            traffic: Traffic::default(),
            watch: watch(),
            settings: Swap::new(vec![bind_setting()]),
            page: Arc::new(page),
            watchers: Arc::new(Semaphore::new(1)),
            computed: None,
            started: Instant::now(),
        });
        Self {
            app: router(http.clone()),
            fake,
            told,
            http,
            abort,
            clock,
            under_way,
            _folder: folder,
        }
    }

    pub(crate) fn script(&self, scripts: impl IntoIterator<Item = Script>) -> &Self {
        self.fake.scripts.lock().unwrap().extend(scripts);
        self
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.send_from([127, 0, 0, 1].into(), request).await
    }

    pub(crate) async fn send_from(
        &self,
        peer: IpAddr,
        mut request: Request<Body>,
    ) -> Response<Body> {
        let peer = SocketAddr::new(peer, 5_000);
        request.extensions_mut().insert(Peer(peer));
        self.app.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Reply {
        let request = request("POST", path, &[("content-type", "application/json")]);
        read(
            self.send(request.body(Body::from(body.to_owned())).unwrap())
                .await,
        )
        .await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        let request = request("GET", path, &[]);
        read(self.send(request.body(Body::empty()).unwrap()).await).await
    }
}

pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> axum::http::request::Builder {
    let mut builder = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        builder = builder.header("host", "127.0.0.1:8080");
    }
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder
}

/// A reply with its body read.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

pub(crate) async fn read(response: Response<Body>) -> Reply {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Reply {
        status: parts.status.as_u16(),
        headers: parts.headers,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }

    /// The data of every event.
    pub(crate) fn events(&self) -> Vec<Value> {
        let lines = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        lines
            .map(|data| serde_json::from_str(data).unwrap_or_else(|_| Value::from(data)))
            .collect()
    }
}
