//! An engine by itself, with a place for adapters, and the asks that load it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hone_blobs::FsBlobs;
use hone_checkpoint::{AdapterDtype, LoraConfig, Target};
use hone_domain::{
    Ask, AskContext, Blobs, Collect, Delta, Form, Grammar, Origin, Policies, PolicyChoice, Reason,
    RequestId, Sampling, Scope, SessionId, StopRules, Token, TurnId, TurnKind,
};
use hone_kernels::{Executor, WeightFormat};
use hone_nn::DeviceModel;
use hone_nn::{Model, Weights};
use hone_runtime::{Latest, StatusRegistry, SystemClock};
use hone_serve::{Answer, Backend, Engine, ServeCtx};
use hone_starter::rng::Rng;
use uuid::Uuid;

use super::Bench;
use super::folder::Folder;
use hone::device;
use hone::model::{Builtin, computed};

/// A model to measure.
pub(super) struct Subject {
    /// Its key in the object.
    pub(super) name: &'static str,
    /// The model.
    pub(super) builtin: Builtin,
}

/// The starter model, and a random one of about 30 million parameters in every weight format, with
/// the starter's tokenizer: what it says means nothing, and costs what any such model costs.
pub(super) fn subjects(bench: &Bench) -> Result<Vec<Subject>, String> {
    let starter = bench.builtin()?;
    let shape = crate::shapes::medium_shape();
    let weights = Weights::random(&shape, 1);
    let random = |name, format| -> Result<Subject, String> {
        let weights = weights.clone().into_format(format);
        let model = Arc::new(Model::new(shape.clone(), weights));
        let model = computed(model, &bench.config.model, starter.device.is_some())?;
        let device = starter.device.as_ref();
        let load = |device: &Arc<dyn DeviceModel>| {
            device::load_other(&**device, &model, &starter.executor)
        };
        let builtin = Builtin {
            device: device.map(load).transpose()?,
            model,
            ..starter.clone()
        };
        Ok(Subject { name, builtin })
    };
    let mut subjects = vec![
        random("random_30m", WeightFormat::Stored)?,
        random("random_30m_bf16", WeightFormat::Bf16)?,
        random("random_30m_q8", WeightFormat::Q8)?,
        random("random_30m_q4", WeightFormat::Q4)?,
    ];
    let starter = Subject {
        name: "starter",
        builtin: starter.clone(),
    };
    subjects.insert(0, starter);
    Ok(subjects)
}

/// An adapter as training makes them.
pub(super) fn lora() -> LoraConfig {
    LoraConfig {
        rank: 8,
        alpha: 16.0,
        targets: Target::ALL.to_vec(),
        rslora: false,
        dtype: AdapterDtype::F32,
    }
}

/// An engine.
pub(super) struct Bed {
    /// The engine.
    pub(super) engine: Engine,
    /// Publishes to it.
    pub(super) policies: Latest<Policies>,
    /// Where it reads adapters.
    pub(super) blobs: Arc<dyn Blobs>,
    /// The model it serves.
    pub(super) model: Arc<Model>,
    /// The threads that compute it.
    pub(super) executor: Arc<Executor>,
    /// Tokens that prompts are made of.
    vocab: usize,
    asks: AtomicU64,
    // Goes last, when nothing reads in it any more.
    _folder: Folder,
}

impl Bed {
    /// Starts an engine as configured for a server.
    pub(super) fn new(bench: &Bench, builtin: &Builtin) -> Result<Self, String> {
        Self::of(bench, builtin, bench.config.serve.clone())
    }

    /// As [`Self::new`], without drafts: every token takes its own step.
    pub(super) fn undrafted(bench: &Bench, builtin: &Builtin) -> Result<Self, String> {
        let config = hone_serve::Config {
            draft_tokens_max: 0,
            ..bench.config.serve.clone()
        };
        Self::of(bench, builtin, config)
    }

    fn of(bench: &Bench, builtin: &Builtin, config: hone_serve::Config) -> Result<Self, String> {
        let folder = bench.folder()?;
        let limit = bench.config.store.blob_file_bytes_max;
        let blobs = FsBlobs::open(&folder.path().join("blobs"), limit);
        let blobs: Arc<dyn Blobs> = Arc::new(blobs.map_err(|error| error.to_string())?);
        let policies = Latest::new(Policies::default());
        let engine = Engine::start(ServeCtx {
            model: builtin.model.clone(),
            tokenizer: builtin.tokenizer.clone(),
            executor: builtin.executor.clone(),
            device: builtin.device.clone(),
            end_tokens: builtin.end_tokens.clone(),
            blobs: blobs.clone(),
            policies: policies.reader(),
            clock: Arc::new(SystemClock::default()),
            config,
            registry: StatusRegistry::new(),
        });
        Ok(Self {
            engine: engine.map_err(|error| error.to_string())?,
            policies,
            blobs,
            model: builtin.model.clone(),
            executor: builtin.executor.clone(),
            vocab: builtin
                .tokenizer
                .vocab_size()
                .min(builtin.model.config.vocab),
            asks: AtomicU64::new(0),
            _folder: folder,
        })
    }

    /// Whose policy answers.
    pub(super) fn scope() -> Scope {
        Scope::of("bench", None)
    }

    /// Asks for exactly `max_tokens` tokens after a prompt of `prompt_tokens` random ones that no
    /// other ask has.
    pub(super) fn ask(&self, prompt_tokens: usize, max_tokens: u32) -> Result<Answer, String> {
        self.ask_in(prompt_tokens, max_tokens, None)
    }

    /// As [`Self::ask`], held to a grammar where there is one; then it may end before.
    pub(super) fn ask_in(
        &self,
        prompt_tokens: usize,
        max_tokens: u32,
        grammar: Option<Grammar>,
    ) -> Result<Answer, String> {
        self.ask_of(Self::scope(), (prompt_tokens, max_tokens), grammar)
    }

    /// As [`Self::ask_in`], answered by the policy of `scope`.
    pub(super) fn ask_of(
        &self,
        scope: Scope,
        (prompt_tokens, max_tokens): (usize, u32),
        grammar: Option<Grammar>,
    ) -> Result<Answer, String> {
        let prompt = self.words(prompt_tokens);
        self.ask_about(scope, (prompt, max_tokens), grammar)
    }

    /// Tokens below this are known.
    pub(super) fn vocab(&self) -> usize {
        self.vocab
    }

    /// Random tokens that no other prompt has.
    pub(super) fn words(&self, count: usize) -> Vec<Token> {
        let number = self.asks.fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng::at(1, number);
        (0..count).map(|_| rng.below(self.vocab) as Token).collect()
    }

    /// As [`Self::ask_of`], about these tokens.
    pub(super) fn ask_about(
        &self,
        scope: Scope,
        (prompt_tokens, max_tokens): (Vec<Token>, u32),
        grammar: Option<Grammar>,
    ) -> Result<Answer, String> {
        let ask = self.made(scope, (prompt_tokens, max_tokens), grammar);
        self.engine.ask(ask).map_err(|error| error.to_string())
    }

    /// What [`Self::ask_about`] asks, with a seed of its own.
    pub(super) fn made(
        &self,
        scope: Scope,
        (prompt_tokens, max_tokens): (Vec<Token>, u32),
        grammar: Option<Grammar>,
    ) -> Ask {
        let number = self.asks.fetch_add(1, Ordering::Relaxed);
        Ask {
            turn: TurnId(Uuid::now_v7()),
            request: RequestId(Uuid::now_v7()),
            choice_index: 0,
            group: None,
            scope,
            policy: PolicyChoice::Newest,
            origin: Origin::User,
            kind: TurnKind::Main,
            prompt_tokens,
            sampling: Sampling {
                seed: number,
                ..Sampling::default()
            },
            stop: StopRules {
                max_tokens,
                strings: Vec::new(),
                ignore_end: grammar.is_none(),
                ..StopRules::default()
            },
            form: grammar.map(Form::Whole),
            given: Vec::new(),
            predicted: Arc::default(),
            collect: Collect::No(Reason::NoCollector),
            context: AskContext {
                session: SessionId(Uuid::now_v7()),
                session_key: None,
                parent: None,
                owner: "bench".to_owned(),
                keeper: None,
                messages: Default::default(),
                admission: Default::default(),
                untrainable: None,
                admitted_ms: 0,
            },
        }
    }
}

/// Waits for the end of an answer; false if it failed. To be called outside async threads.
pub(super) fn ended_well(answer: &mut Answer) -> bool {
    let mut well = false;
    while let Some(delta) = answer.deltas.blocking_recv() {
        well = matches!(delta, Delta::End(_));
    }
    well
}
