//! A small world around an engine: model, tokenizer, blobs in memory, asks.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hone_checkpoint::{AdapterDtype, Family, LoraConfig, ModelConfig, StoredDtype, Target};
use hone_domain::{
    Ask, AskContext, BlobError, BlobKey, Blobs, BlobsSize, Collect, Delta, Digest, End, OnTrial,
    Origin, Policies, Policy, PolicyChoice, PolicyVersion, Predicted, RequestId, Sampling, Scope,
    ServeError, SessionId, StopReason, StopRules, Token, Turn, TurnId, TurnKind,
};
use hone_kernels::Executor;
use hone_nn::{Adapter, DeviceModel, Model, peft};
use hone_runtime::{Latest, StatusRegistry, SystemClock};
use hone_text::tokenizer::Tokenizer;
use serde_json::json;
use uuid::Uuid;

use hone_cuda::Device;
use hone_cuda_emulator::Emulator;

use crate::{Answer, Backend, Config, Engine, ServeCtx};

pub(crate) const END: Token = 259;

pub(crate) fn model_config() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab: 264,
        hidden: 32,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 48,
        max_positions: 16_384,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: None,
        tied: true,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: true,
        windows: vec![None, None],
        experts: None,
        dtype: StoredDtype::F32,
    }
}

/// The character that stands for a byte in byte-level BPE (GPT-2's table).
fn mapped(byte: u8) -> char {
    let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let before = (0..byte).filter(|b| !plain(*b)).count() as u32;
    if plain(byte) {
        char::from(byte)
    } else {
        char::from_u32(256 + before).unwrap()
    }
}

/// One token per byte, and three control tokens 257 to 259.
pub(crate) fn tokenizer() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    (0..=255u8).for_each(|byte| drop(vocab.insert(mapped(byte).to_string(), json!(byte))));
    vocab.insert("he".to_owned(), json!(256));
    let added = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let value = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(257, "<a>"), added(258, "<b>"), added(END, "<end>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                          "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                    "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                  "merges": ["h e"]},
    });
    Tokenizer::from_json(&serde_json::to_vec(&value).unwrap(), "tokenizer.json").unwrap()
}

type Files = HashMap<String, Vec<u8>>;

/// Blobs in memory.
#[derive(Default)]
pub(crate) struct MemoryBlobs(Mutex<HashMap<BlobKey, Files>>);

impl MemoryBlobs {
    /// Nothing is read until this is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, HashMap<BlobKey, Files>> {
        self.0.lock().unwrap()
    }
}

impl Blobs for MemoryBlobs {
    fn put(&self, key: &BlobKey, files: &[(String, Vec<u8>)]) -> Result<(), BlobError> {
        self.0
            .lock()
            .unwrap()
            .insert(key.clone(), files.iter().cloned().collect());
        Ok(())
    }

    fn get(&self, key: &BlobKey, file: &str) -> Result<Vec<u8>, BlobError> {
        let blobs = self.0.lock().unwrap();
        let found = blobs.get(key).and_then(|files| files.get(file)).cloned();
        found.ok_or_else(|| BlobError::Missing {
            key: key.as_str().into(),
            file: file.into(),
        })
    }

    fn list(&self, kind: &str) -> Result<Vec<(BlobKey, u64)>, BlobError> {
        let blobs = self.0.lock().unwrap();
        let keys = blobs.keys().filter(|key| key.as_str().starts_with(kind));
        Ok(keys.map(|key| (key.clone(), 0)).collect())
    }

    fn remove(&self, key: &BlobKey) -> Result<(), BlobError> {
        self.0.lock().unwrap().remove(key);
        Ok(())
    }

    fn set_aside(&self, key: &BlobKey) -> Result<(), BlobError> {
        let mut blobs = self.0.lock().unwrap();
        if let Some(files) = blobs.remove(key) {
            blobs.insert(key.aside(), files);
        }
        Ok(())
    }

    fn has(&self, key: &BlobKey) -> Result<bool, BlobError> {
        Ok(self.0.lock().unwrap().contains_key(key))
    }

    fn files(&self, key: &BlobKey) -> Result<Vec<String>, BlobError> {
        let blobs = self.0.lock().unwrap();
        let files = blobs.get(key).into_iter().flat_map(HashMap::keys);
        Ok(files.cloned().collect())
    }

    fn sizes(&self) -> Result<Vec<BlobsSize>, BlobError> {
        Ok(Vec::new())
    }
}

/// A random adapter that changes every projection that adapters of such a model act on.
pub(crate) fn adapter(config: &ModelConfig, seed: u64) -> Adapter {
    let lora = LoraConfig {
        rank: 4,
        alpha: 8.0,
        targets: match config.experts {
            Some(_) => Target::ATTENTION.to_vec(),
            None => Target::ALL.to_vec(),
        },
        rslora: false,
        dtype: if seed.is_multiple_of(2) {
            AdapterDtype::F32
        } else {
            AdapterDtype::Bf16
        },
    };
    Adapter::random(config, lora, seed)
}

pub(crate) fn scope(name: &str) -> Scope {
    Scope::of("owner", Some(name))
}

fn policy(name: &str, version: u64, (digest, blob): (Digest, BlobKey)) -> Policy {
    Policy {
        scope: scope(name),
        version: PolicyVersion(version),
        digest,
        blob,
    }
}

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) model: Arc<Model>,
    pub(crate) blobs: Arc<MemoryBlobs>,
    pub(crate) policies: Latest<Policies>,
    pub(crate) registry: StatusRegistry,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Config::for_tests(), model_config())
    }

    pub(crate) fn with(config: Config, model: ModelConfig) -> Self {
        Self::of(config, Model::random(model, 42), Arc::new(tokenizer()))
    }

    /// On an emulated device.
    pub(crate) fn on_device(config: Config, model: ModelConfig) -> Self {
        Self::on(&Arc::new(Emulator::new().unwrap()), config, model).unwrap()
    }

    /// On this one.
    pub(crate) fn on(
        device: &Arc<Emulator>,
        config: Config,
        model: ModelConfig,
    ) -> Result<Self, ServeError> {
        let words = Arc::new(tokenizer());
        Self::build(config, (Model::random(model, 42), words), (2, Some(device)))
    }

    /// Of a model of its own kind.
    pub(crate) fn of(config: Config, model: Model, words: Arc<Tokenizer>) -> Self {
        Self::build(config, (model, words), (2, None)).unwrap()
    }

    /// Computed by so many threads.
    pub(crate) fn on_threads(config: Config, model: Model, threads: usize) -> Self {
        Self::build(config, (model, Arc::new(tokenizer())), (threads, None)).unwrap()
    }

    fn build(
        config: Config,
        (model, words): (Model, Arc<Tokenizer>),
        (threads, device): (usize, Option<&Arc<Emulator>>),
    ) -> Result<Self, ServeError> {
        let model = Arc::new(model);
        let executor = Arc::new(Executor::new(threads));
        let device = device.cloned().map(|driver| -> Arc<dyn DeviceModel> {
            Device::load(driver, Arc::clone(&model), &executor, &mut |_, _| {}).unwrap()
        });
        let (blobs, registry) = (Arc::new(MemoryBlobs::default()), StatusRegistry::new());
        let policies = Latest::new(Policies::default());
        let ctx = ServeCtx {
            model: Arc::clone(&model),
            tokenizer: words,
            executor,
            device,
            end_tokens: vec![END],
            blobs: Arc::clone(&blobs) as Arc<dyn Blobs>,
            policies: policies.reader(),
            clock: Arc::new(SystemClock::default()),
            config,
            registry: registry.clone(),
        };
        let engine = Engine::start(ctx)?;
        Ok(Self {
            engine,
            model,
            blobs,
            policies,
            registry,
        })
    }

    fn store(&self, adapter: &Adapter) -> (Digest, BlobKey) {
        let digest = Digest(adapter.digest());
        let blob = BlobKey::new(format!("adapters/{}", digest.to_hex())).unwrap();
        self.blobs
            .put(&blob, &peft::to_files(adapter, "tiny", &json!({})))
            .unwrap();
        (digest, blob)
    }

    /// Stores `adapter` and publishes it as `version` of `scope`.
    pub(crate) fn publish(&self, name: &str, version: u64, adapter: &Adapter) {
        self.announce(name, version, self.store(adapter));
    }

    pub(crate) fn announce(&self, name: &str, version: u64, place: (Digest, BlobKey)) {
        let policy = policy(name, version, place);
        self.policies.update(|policies| policies.with(policy));
    }

    /// Stores `adapter` and puts it on trial as `version` of `scope`, for next to no session, against
    /// what is the newest.
    pub(crate) fn try_out(&self, name: &str, version: u64, adapter: &Adapter) -> OnTrial {
        let policy = policy(name, version, self.store(adapter));
        let newest = self.policies.get().newest(&scope(name)).cloned();
        let trial = OnTrial {
            policy,
            proven: newest.unwrap(),
            share: 1e-9,
        };
        let begun = trial.clone();
        self.policies.update(|policies| policies.on_trial(begun));
        trial
    }

    pub(crate) fn ask(&self, ask: Ask) -> Answer {
        self.engine.ask(ask).unwrap()
    }

    pub(crate) fn complete(&self, ask: Ask) -> Said {
        read(self.ask(ask)).unwrap()
    }

    /// All at once, in order.
    pub(crate) fn complete_all(&self, asks: Vec<Ask>) -> Vec<Said> {
        let answers: Vec<Answer> = asks.into_iter().map(|ask| self.ask(ask)).collect();
        answers
            .into_iter()
            .map(|answer| read(answer).unwrap())
            .collect()
    }
}

/// A completion as its reader saw it.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) cached: u32,
    pub(crate) tokens: Vec<Token>,
    pub(crate) behavior: Vec<u32>,
    pub(crate) version: PolicyVersion,
    pub(crate) stop: StopReason,
    pub(crate) predicted: Option<Predicted>,
    pub(crate) turn: Option<Box<Turn>>,
}

impl Said {
    /// Tokens and the bits of their behavior log-probs.
    pub(crate) fn bits(&self) -> (&[Token], &[u32]) {
        (&self.tokens, &self.behavior)
    }
}

/// Reads an answer to its end.
pub(crate) fn read(mut answer: Answer) -> Result<Said, ServeError> {
    let (mut text, mut shown, mut started) = (String::new(), Vec::new(), None);
    while let Some(delta) = answer.deltas.blocking_recv() {
        match delta {
            Delta::Started {
                version,
                cached_tokens,
            } => {
                assert_eq!(started, None, "it starts once");
                started = Some((version, cached_tokens));
            }
            Delta::Token(token) => {
                assert!(started.is_some(), "tokens come after the start");
                text.push_str(&token.text);
                shown.push(token.token);
            }
            Delta::Failed(error) => return Err(error),
            Delta::End(end) => {
                let End {
                    stop,
                    text: last,
                    completion,
                    version,
                    predicted,
                    turn,
                } = *end;
                text.push_str(&last);
                assert!(
                    completion.tokens().starts_with(&shown),
                    "what was shown was recorded"
                );
                let behavior = completion
                    .behavior_logprobs()
                    .iter()
                    .map(|p| p.to_bits())
                    .collect();
                return Ok(Said {
                    text,
                    cached: started.map_or(0, |(_, cached)| cached),
                    tokens: completion.tokens().to_vec(),
                    behavior,
                    version,
                    stop,
                    predicted,
                    turn,
                });
            }
        }
    }
    panic!("the channel closed without an end");
}

static ASKS: AtomicU64 = AtomicU64::new(1);

fn id() -> Uuid {
    Uuid::from_u128(u128::from(ASKS.fetch_add(1, Ordering::Relaxed)))
}

/// An ask that samples at temperature 1 and is collected.
pub(crate) fn ask(prompt: &[Token], max_tokens: u32, seed: u64) -> Ask {
    Ask {
        form: None,
        given: Vec::new(),
        predicted: Arc::default(),
        turn: TurnId(id()),
        request: RequestId(id()),
        choice_index: 0,
        group: None,
        scope: scope("a"),
        policy: PolicyChoice::Newest,
        origin: Origin::User,
        kind: TurnKind::Main,
        prompt_tokens: prompt.to_vec(),
        sampling: Sampling {
            seed,
            ..Sampling::default()
        },
        stop: StopRules {
            max_tokens,
            strings: Vec::new(),
            ignore_end: false,
            ..StopRules::default()
        },
        collect: Collect::Yes,
        context: AskContext {
            session: SessionId(id()),
            session_key: None,
            parent: None,
            owner: "owner".to_owned(),
            keeper: None,
            messages: Default::default(),
            admission: Default::default(),
            untrainable: None,
            admitted_ms: 1,
        },
    }
}

/// A prompt of `len` tokens, the same for the same seed.
pub(crate) fn prompt(len: usize, seed: u64) -> Vec<Token> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ((x >> 20) % 256) as Token
    };
    (0..len).map(next).collect()
}

/// Waits for something that another thread is about to do.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !done() {
        assert!(
            began.elapsed().as_secs() < 60,
            "waited too long for: {what}"
        );
        std::thread::yield_now();
    }
}
