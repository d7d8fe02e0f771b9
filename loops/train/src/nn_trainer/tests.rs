//! The real learner in the room: it learns, what it is given is what was sampled, it goes on
//! exactly, and what would collapse is refused.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_checkpoint::{
    AdapterConfig, ExpertsConfig, Family, LoadError, ModelConfig, NamedTensor, StoredDtype,
    TensorSource,
};
use hone_domain::{
    Blobs, Completion, Fate, Message, Policy, PolicyVersion, Reason, Role, SamplingMask, Scope,
    StopReason, Token, Turn, VersionSpan,
};
use hone_kernels::{Executor, TensorData};
use hone_ledger::Ledger;
use hone_nn::sample::{SampleScratch, SamplingParams, TokenCounts, sample};
use hone_nn::{
    Adapter, BLOCK_TOKENS, KvPool, LogitsWanted, Model, Scratch, SeqInput, Weights, forward,
};

use super::*;
use crate::candidate::{Candidate, candidate};
use crate::config::Config;
use crate::credit::Method;
use crate::fixture::Fixture;
use crate::pack::{CreditedTurn, pack};
use crate::progress::Progress;
use crate::save::save;
use crate::testing::transition_of;
use crate::trainer::Lesson;

const VOCAB: usize = 24;
const END: Token = 0;
const TOKENS_MAX: usize = 24;

pub(super) fn parts(fixture: &Fixture) -> NnParts {
    parts_with(fixture, None)
}

pub(super) fn some_experts() -> ExpertsConfig {
    ExpertsConfig {
        count: 6,
        chosen: 2,
        ffn: 24,
        normalised: true,
        layers: vec![true; 2],
    }
}

/// With these experts, where there are any.
pub(super) fn parts_with(fixture: &Fixture, experts: Option<ExpertsConfig>) -> NnParts {
    let config = ModelConfig {
        family: match experts {
            Some(_) => Family::Qwen3Moe,
            None => Family::Qwen3,
        },
        vocab: VOCAB,
        hidden: 32,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        ffn: 48,
        max_positions: 256,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: None,
        tied: true,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: true,
        windows: vec![None; 2],
        experts,
        dtype: StoredDtype::F32,
    };
    NnParts {
        model: Arc::new(decided(config)),
        exec: Arc::new(Executor::new(1)),
        device: None,
        blobs: fixture.blobs.clone(),
        base_name: "test/tiny".into(),
        end_tokens: vec![END],
        wording: Arc::new(Digits),
        everyday: Arc::default(),
        reference: Arc::default(),
    }
}

/// A language of numbers: each word is a token; token 3 opens the assistant's turn.
pub(super) struct Digits;

impl crate::trainer::Wording for Digits {
    fn render(&self, messages: &[hone_domain::Message]) -> Result<String, String> {
        let message = |m: &hone_domain::Message| format!("{} ", m.content);
        Ok(messages.iter().map(message).collect::<String>() + "3")
    }

    fn encode(&self, text: &str) -> Vec<Token> {
        let words = text.split_whitespace();
        words.map(|word| word.parse().unwrap()).collect()
    }

    fn decode(&self, tokens: &[Token]) -> String {
        let words: Vec<String> = tokens.iter().map(Token::to_string).collect();
        words.join(" ")
    }
}

/// Named tensors as a model folder has them.
struct Tensors(Vec<NamedTensor>);

impl TensorSource for Tensors {
    fn tensor(&self, name: &str, _shape: &[usize]) -> Result<TensorData, LoadError> {
        let found = self.0.iter().find(|t| t.name == name).unwrap();
        Ok(TensorData::F32(found.data.clone()))
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|t| t.name.clone()).collect()
    }
}

/// A random model with strong embeddings: one that prefers some tokens to others, and that can be
/// taught to prefer others. (A freshly drawn one is close to uniform whatever its layers do.)
fn decided(config: ModelConfig) -> Model {
    let mut tensors = Weights::random(&config, 11).to_tensors(&config);
    let embed = tensors
        .iter_mut()
        .find(|t| t.name.contains("embed_tokens"))
        .unwrap();
    let square: f32 = embed.data.iter().map(|v| v * v).sum();
    let scale = 0.3 / (square / embed.data.len() as f32).sqrt();
    embed.data.iter_mut().for_each(|v| *v *= scale);
    let weights = Weights::from_source(&config, &Tensors(tensors)).unwrap();
    Model::new(config, weights)
}

pub(super) fn anna() -> Scope {
    Scope::of("o", Some("anna"))
}

/// Samples a turn as serve does: under the newest version, with its log-probs and kept sets.
pub(super) fn sampled(fixture: &Fixture, parts: &NnParts, seed: u64) -> Turn {
    let policy = fixture.policies.get().newest(&anna()).cloned();
    let adapter = policy.as_ref().map(|p| {
        let file = |name: &str| fixture.blobs.get(&p.blob, name).ok();
        peft::load(&file, &parts.model.config).unwrap()
    });
    let prompt = [1 + (seed % 5) as u32, 6 + (seed % 3) as u32, 3];
    let params = SamplingParams {
        seed,
        // Every other turn is sampled with a cut tail, so that kept sets are trained on too.
        top_p: if seed.is_multiple_of(2) { 1.0 } else { 0.95 },
        ..SamplingParams::default()
    };
    let mut turn = fixture.turn(&anna(), &prompt, &[]);
    let words = format!("{} {}", prompt[0], prompt[1]);
    turn.messages = vec![Message::text(Role::User, words)];
    turn.completion = complete(parts, adapter.as_ref(), &prompt, &params);
    turn.sampling.top_p = params.top_p;
    turn.sampling.seed = seed;
    turn.spans = vec![VersionSpan {
        version: policy.as_ref().map_or(PolicyVersion::BASE, |p| p.version),
        start: 0,
        end: turn.completion.len() as u32,
    }];
    turn.digest = policy.map(|p| p.digest);
    turn.base = Digest(parts.model.digest);
    turn.fingerprint = hone_nn::fingerprint(&parts.model);
    turn
}

fn complete(
    parts: &NnParts,
    adapter: Option<&Adapter>,
    prompt: &[Token],
    params: &SamplingParams,
) -> Completion {
    let count = (prompt.len() + TOKENS_MAX).div_ceil(BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..count as u32).collect();
    let mut kv = KvPool::new(&parts.model, count);
    let (mut scratch, mut sampling) = (Scratch::default(), SampleScratch::default());
    let (mut tokens, mut behavior, mut raw, mut kept) = (vec![], vec![], vec![], vec![]);
    let mut experts = Vec::new();
    let mut start = 0;
    while tokens.len() < TOKENS_MAX && tokens.last() != Some(&END) {
        let new = tokens.last().map_or(prompt, std::slice::from_ref);
        let logits = LogitsWanted::Last;
        let input = SeqInput {
            tokens: new,
            start,
            blocks: &blocks,
            adapter,
            logits,
        };
        start += new.len();
        let row = forward(&parts.model, &mut kv, &[input], &parts.exec, &mut scratch);
        let position = tokens.len() as u64;
        let counts = TokenCounts::default();
        let drawn = sample(row.row(0), params, &counts, position, &mut sampling);
        tokens.push(drawn.token);
        behavior.push(drawn.behavior_logprob);
        raw.push(drawn.raw_logprob);
        kept.push(drawn.kept.map(SamplingMask::from));
        experts.extend_from_slice(row.experts(0));
    }
    let stop = if tokens.last() == Some(&END) {
        StopReason::EndToken
    } else {
        StopReason::Length
    };
    let completion = Completion::new(tokens, behavior, raw, kept, stop).unwrap();
    completion.with_experts(experts).unwrap()
}

pub(super) fn config() -> Config {
    let mut config = Config::for_tests();
    config.batch_turns = 16;
    config.queue_turns_max = 16;
    config.gate.probe_tokens_max = TOKENS_MAX;
    config
}

/// What a round of sixteen turns scored on average.
pub(super) type Reward = fn(&Turn) -> f32;

struct Arm {
    fixture: Fixture,
    parts: NnParts,
    running: crate::fixture::Running,
    seed: u64,
}

impl Arm {
    async fn start(config: Config) -> Self {
        Self::with(config, None).await
    }

    async fn with(config: Config, experts: Option<ExpertsConfig>) -> Self {
        let fixture = Fixture::new().await;
        let parts = parts_with(&fixture, experts);
        let trainer = Arc::new(NnTrainer::new(parts.clone(), &config).unwrap());
        let mut ctx = fixture.ctx(trainer);
        ctx.config = config;
        let running = Fixture::start(ctx);
        Self {
            fixture,
            parts,
            running,
            seed: 0,
        }
    }

    /// Samples sixteen turns, judges them, waits until they are trained or settled.
    async fn round(&mut self, reward: Reward) -> f32 {
        let mut turns = Vec::new();
        for _ in 0..16 {
            self.seed += 1;
            let turn = sampled(&self.fixture, &self.parts, self.seed);
            let score = reward(&turn);
            turns.push((turn, score));
        }
        let mean = turns.iter().map(|(_, score)| score).sum::<f32>() / 16.0;
        self.fixture.judge(&turns).await;
        self.running
            .notifications
            .send(hone_runtime::Notification)
            .ok();
        self.fixture.until_settled(0).await;
        self.fixture
            .until(0, || async { self.fixture.number("job_under_way") == 0.0 })
            .await;
        mean
    }

    async fn end(self) -> Fixture {
        self.running.stop().await;
        let model = self.parts.model.config.clone();
        let on_disk = |policy: &Policy| {
            let file = |name: &str| self.fixture.blobs.get(&policy.blob, name).ok();
            adapter_digest(&peft::load(&file, &model).unwrap())
        };
        self.fixture.check(on_disk).await;
        self.fixture
    }
}

/// Whether the first token is even; about half of a random model's are.
fn begins_even(turn: &Turn) -> f32 {
    if turn.completion.tokens()[0].is_multiple_of(2) {
        1.0
    } else {
        -1.0
    }
}

fn is_short(turn: &Turn) -> f32 {
    if turn.completion.len() <= 2 {
        1.0
    } else {
        -1.0
    }
}

/// Learns by `config` until scores have risen, with every log-prob reproduced to the bit.
pub(super) async fn rises(config: Config) -> Fixture {
    let mut arm = Arm::start(config).await;
    let mut means = Vec::new();
    for _ in 0..24 {
        means.push(arm.round(begins_even).await);
    }
    let fixture = arm.end().await;
    let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
    let (before, after) = (mean(&means[..4]), mean(&means[20..]));
    assert!(after > before + 0.4, "{means:?}");
    assert!(
        fixture.number("versions_total") >= 20.0,
        "{:?}",
        fixture.registry.snapshot()
    );
    assert!(fixture.number("parity_tokens_total") > 24.0 * 16.0);
    assert_eq!(fixture.number("parity_mismatches"), 0.0);
    assert_eq!(fixture.number("parity_difference_max"), 0.0);
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scores_rise_and_every_logprob_is_reproduced_to_the_bit() {
    let mut config = config();
    config.learner.lr = 1e-2;
    let fixture = rises(config).await;
    assert!(fixture.number("train_slices_total") > 24.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_with_experts_learns_by_those_that_are_recorded() {
    let mut config = config();
    config.learner.lr = 1e-2;
    let mut arm = Arm::with(config, Some(some_experts())).await;
    for _ in 0..6 {
        arm.round(begins_even).await;
    }
    let fixture = arm.end().await;
    assert!(fixture.number("versions_total") >= 4.0);
    assert!(fixture.number("parity_tokens_total") > 6.0 * 16.0);
    assert_eq!(fixture.number("parity_mismatches"), 0.0);
    let rows = fixture.ledger.turns(Some(&anna()), 100).await.unwrap();
    assert!(!rows.is_empty());
    let turn = fixture.ledger.turn(rows[0].id).await.unwrap().unwrap().turn;
    assert_eq!(
        turn.completion.experts().len(),
        turn.completion.len() * 2 * 2
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_would_collapse_is_never_served() {
    let mut config = config();
    config.learner.kl_coef = 0.0;
    config.learner.lr = 0.5;
    config.learner.steps_per_batch = 4;
    config.learner.clip_norm = 100.0;
    let mut arm = Arm::start(config).await;
    for _ in 0..4 {
        arm.round(is_short).await;
    }
    let fixture = arm.end().await;
    assert_eq!(fixture.number("gate_refusals_total"), 4.0);
    assert_eq!(fixture.number("last_lr_scale"), 0.5);
    assert!(fixture.policies.get().is_empty());
    let rows = fixture.ledger.turns(Some(&anna()), 100).await.unwrap();
    assert_eq!(rows.len(), 64);
    let reason = Reason::GateRejected;
    assert!(rows.iter().all(|row| row.fate == Fate::Settled { reason }));
    assert!(rows.iter().all(|row| row.version == PolicyVersion::BASE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_drifts_towards_collapse_is_stopped_on_its_way() {
    let mut config = config();
    config.learner.kl_coef = 0.0;
    config.learner.lr = 2e-2;
    let gate = config.gate.clone();
    let mut arm = Arm::start(config).await;
    let mut refused_at = None;
    for round in 0..40 {
        arm.round(is_short).await;
        if arm.fixture.number("gate_refusals_total") > 0.0 {
            refused_at = Some(round);
            break;
        }
    }
    let parts = arm.parts.clone();
    let fixture = arm.end().await;
    assert!(refused_at.is_some_and(|round| round > 0), "{refused_at:?}");
    // What is served is inside every bound.
    let record = &fixture.ledger.versions(Some(&anna()), 1).await.unwrap()[0];
    let kl = record.gate["measured"]["kl_to_reference"].as_f64().unwrap();
    assert!(kl <= f64::from(gate.kl_to_reference_max));
    let file = |name: &str| fixture.blobs.get(&record.policy.blob, name).ok();
    let served = peft::load(&file, &parts.model.config).unwrap();
    let probes: Vec<Vec<Token>> = (1..9).map(|i| vec![i, 6, 3]).collect();
    let how = answers::Answering {
        parts: &parts,
        memo: None,
        tokens_max: gate.probe_tokens_max,
        temperature: gate.probe_temperature,
    };
    let completions = answers::answers(how, &probes, Some(&served), &mut || false).unwrap();
    assert!(completions.iter().filter(|c| c.tokens.is_empty()).count() < 6);
}

/// The first turn has a correction, the second a hint.
pub(super) fn job(turns: &[Turn], parent: Option<Policy>) -> TrainJob {
    let credited = |(i, turn): (usize, _)| CreditedTurn {
        transition: transition_of(turn),
        turn,
        advantage: if i % 2 == 0 { 1.0 } else { -1.0 },
    };
    let credited: Vec<_> = turns.iter().enumerate().map(credited).collect();
    let lesson = |(i, turn): (usize, &Turn)| Lesson {
        transition: transition_of(turn),
        turn: turn.clone(),
        hint: (i == 1).then(|| "9 11".to_owned()),
        wish: None,
        correction: (i == 0).then(|| "14 15 16".to_owned()),
    };
    TrainJob {
        retold: Vec::new(),
        replayed: Vec::new(),
        lessons: turns.iter().take(2).enumerate().map(lesson).collect(),
        scope: anna(),
        batch: hone_domain::BatchId(uuid::Uuid::nil()),
        parent,
        rows: pack(&credited).unwrap(),
        lr_scale: 1.0,
        probes: vec![vec![1, 2], vec![3; 40]],
        golden: 1,
        held_out: Vec::new(),
        progress: Progress::default(),
    }
}

impl NnTrainer {
    /// A step as the loop takes it: trained, evaluated, with its files.
    pub(super) fn step(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Candidate, TrainError> {
        candidate(self, self, job, pause)
    }
}

/// Saves a candidate and makes it the newest version, without a ledger.
pub(super) fn adopt(fixture: &Fixture, candidate: &Candidate, version: u64) -> Policy {
    let policy = Policy {
        scope: anna(),
        version: PolicyVersion(version),
        digest: candidate.digest,
        blob: save(&*fixture.blobs, &anna(), candidate).unwrap(),
    };
    fixture.policies.update(|heads| heads.with(policy.clone()));
    policy
}

#[tokio::test]
async fn a_step_goes_on_exactly_from_memory_from_disk_and_after_a_refusal() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let fresh = || NnTrainer::new(parts.clone(), &config()).unwrap();
    let (warm, mut parent) = (fresh(), None);
    for version in 1..4 {
        let turns: Vec<Turn> = (0..6)
            .map(|i| sampled(&fixture, &parts, version * 100 + i))
            .collect();
        let job = job(&turns, parent);
        // A candidate that is thrown away, before: of other turns.
        let other: Vec<Turn> = turns[..2].to_vec();
        let thrown = fresh();
        thrown
            .step(&self::job(&other, job.parent.clone()), &mut || false)
            .unwrap();

        let one = warm.step(&job, &mut || false).unwrap();
        let two = fresh().step(&job, &mut || false).unwrap();
        let three = thrown.step(&job, &mut || false).unwrap();
        for again in [&two, &three] {
            assert_eq!(one.digest, again.digest, "version {version}");
            assert!(one.files == again.files);
            assert_eq!(one.measured, again.measured);
        }
        assert!(one.measured.changed && one.measured.kl_to_reference > 0.0);
        assert_eq!(one.parity.mismatches, 0);
        assert!(one.parity.tokens > 0);
        parent = Some(adopt(&fixture, &one, version));
    }
}

#[tokio::test]
async fn a_step_can_be_stopped_at_every_slice() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turns: Vec<Turn> = (0..4).map(|i| sampled(&fixture, &parts, i)).collect();
    let job = job(&turns, None);
    let trainer = NnTrainer::new(parts, &config()).unwrap();
    let mut slices = 0;
    let whole = trainer
        .step(&job, &mut || {
            slices += 1;
            false
        })
        .unwrap();
    assert!(slices > 20, "{slices}");
    for stop_at in 0..slices {
        let mut slice = 0;
        let stopped = trainer.step(&job, &mut || {
            slice += 1;
            slice > stop_at
        });
        assert_eq!(stopped.unwrap_err(), TrainError::Stopped);
    }
    assert_eq!(
        trainer.step(&job, &mut || false).unwrap().digest,
        whole.digest
    );
}

#[tokio::test]
async fn an_adapter_that_is_not_the_published_one_is_not_trained_from() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turns: Vec<Turn> = (0..4).map(|i| sampled(&fixture, &parts, i)).collect();
    let trainer = || NnTrainer::new(parts.clone(), &config()).unwrap();
    let candidate = trainer().step(&job(&turns, None), &mut || false).unwrap();
    let mut policy = adopt(&fixture, &candidate, 1);
    // Another digest than the files have, and so no checkpoint either.
    policy.digest = Digest([1; 32]);
    let refused = trainer()
        .step(&job(&turns, Some(policy)), &mut || false)
        .unwrap_err();
    assert!(
        matches!(&refused, TrainError::Failed(why) if why.contains("on disk")),
        "{refused}"
    );
}

#[tokio::test]
async fn settings_reach_the_learner() {
    let fixture = Fixture::new().await;
    let mut config = config();
    config.method = Method::BinaryReward;
    config.learner.lora_targets = vec!["q_proj".into()];
    let trainer = NnTrainer::new(parts(&fixture), &config).unwrap();
    let made = trainer.learner_config(0.5);
    assert_eq!(made.lr, config.learner.lr * 0.5);
    assert_eq!(made.kl_coef, config.learner.kl_coef);
    let Some(AdapterConfig::Lora(lora)) = made.trainable.adapter() else {
        panic!()
    };
    assert_eq!(
        (lora.rank, lora.targets),
        (4, vec![hone_checkpoint::Target::Q])
    );
    config.learner.lora_targets = vec!["lm_head".into()];
    assert!(NnTrainer::new(parts(&fixture), &config).is_err());
}

#[tokio::test]
async fn held_out_turns_and_the_probe_say_what_the_candidate_does() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turns: Vec<Turn> = (0..8).map(|i| sampled(&fixture, &parts, i)).collect();
    let mut job = job(&turns, None);
    // A lesson would pull the turn elsewhere.
    job.lessons.clear();
    // What is trained up (and the same, scored as bad), as if it had been held out.
    let judged = |turn: &Turn, score| crate::judged::Judged {
        tokens: [turn.prompt_tokens.as_slice(), turn.completion.tokens()].concat(),
        start: turn.prompt_tokens.len(),
        score,
    };
    job.held_out = vec![
        judged(&turns[0], 1.0),
        judged(&turns[0], -1.0),
        judged(&turns[0], 0.0),
    ];
    let trainer = NnTrainer::new(parts.clone(), &config()).unwrap();
    let candidate = trainer.step(&job, &mut || false).unwrap();
    let measured = &candidate.measured;
    let [up, down, none] = measured.differences[..] else {
        panic!("{:?}", measured.differences)
    };
    assert!(up > 0.0, "its first turn was rewarded: {up}");
    assert_eq!((up, none), (-down, 0.0));
    assert!(measured.golden_loss.is_finite() && measured.golden_loss > -0.5);
    // The published files prove themselves, and only this adapter on this model.
    let policy = adopt(&fixture, &candidate, 1);
    let file = |name: &str| fixture.blobs.get(&policy.blob, name).ok();
    let adapter = peft::load(&file, &parts.model.config).unwrap();
    let probe = file(hone_nn::PROBE_FILE).unwrap();
    let proven = hone_nn::prove(&parts.model, Some(&adapter), &probe, &parts.exec);
    assert_eq!(proven, Ok(()));
    assert!(hone_nn::prove(&parts.model, None, &probe, &parts.exec).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_rollback_to_the_base_learning_begins_afresh() {
    let fixture = Fixture::new().await;
    let parts = parts(&fixture);
    let turns: Vec<Turn> = (0..6).map(|i| sampled(&fixture, &parts, i)).collect();
    let trainer = NnTrainer::new(parts, &config()).unwrap();
    let fresh = trainer.step(&job(&turns, None), &mut || false).unwrap();
    let base = Policy::base(anna(), PolicyVersion(4));
    let again = trainer
        .step(&job(&turns, Some(base)), &mut || false)
        .unwrap();
    assert_eq!((again.digest, again.parity), (fresh.digest, fresh.parity));
}
