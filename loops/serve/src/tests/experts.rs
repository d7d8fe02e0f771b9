//! Models with experts and models of a GGUF file: what a request gets depends on itself alone, and
//! can be computed again, with the experts that were recorded.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use hone_checkpoint::{ExpertsConfig, Family, ModelConfig};
use hone_domain::{Ask, Turn};
use hone_kernels::Executor;
use hone_nn::load_model;
use hone_nn::{
    BLOCK_TOKENS, Control, KvFormat, KvPool, Learner, LearnerConfig, LogitsWanted, LossKind, Model,
    Objective, Scratch, SeqInput, TokenLoss, TrainRow, Trainable, forward, score,
};
use hone_text::folder::ModelFolder;
use hone_text::tokenizer::Tokenizer;

use super::parity::{adapters, asks, device_world, eager, nearly, same};
use super::support::{Said, World, ask, model_config, prompt, scope, tokenizer};
use crate::{Backend, Config};

/// A layer with experts before and after a dense one.
fn with_experts(normalised: bool) -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3Moe,
        layers: 3,
        windows: vec![None; 3],
        experts: Some(ExpertsConfig {
            count: 9,
            chosen: 3,
            ffn: 24,
            normalised,
            layers: vec![true, false, true],
        }),
        ..model_config()
    }
}

/// Two models with experts, and one of a file with quantised weights.
fn models() -> Vec<(Model, Arc<Tokenizer>)> {
    let random = |normalised| {
        (
            Model::random(with_experts(normalised), 42),
            Arc::new(tokenizer()),
        )
    };
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
    let folder = ModelFolder::open(&goldens.join("gguf/qwen3.gguf")).unwrap();
    let model = load_model(folder.checkpoint(), &mut |_, _, _| {}).unwrap();
    vec![random(true), random(false), (model, folder.tokenizer())]
}

/// With the adapters of the scopes published.
fn world(config: Config, (model, words): &(Model, Arc<Tokenizer>)) -> World {
    let world = World::of(config, model.clone(), Arc::clone(words));
    for (name, adapter) in adapters(&model.config) {
        world.publish(name, 1, &adapter);
    }
    world
}

/// Short enough for every model.
fn short() -> Vec<Ask> {
    asks(8)
        .into_iter()
        .filter(|ask| ask.prompt_tokens.len() < 200)
        .collect()
}

fn chosen(said: &[Said]) -> Vec<Vec<u16>> {
    let turn = |said: &Said| said.turn.as_ref().unwrap().completion.experts().to_vec();
    said.iter().map(turn).collect()
}

#[test]
fn batches_chunks_hits_and_pauses_change_neither_words_nor_experts() {
    for kind in models() {
        let blocks = 16 * KvPool::bytes_per_block(&kind.0.config, KvFormat::F32) as u64;
        let quiet = world(Config::for_tests(), &kind);
        let wanted: Vec<Said> = short().into_iter().map(|ask| quiet.complete(ask)).collect();
        let with_experts = kind.0.config.experts.is_some();
        assert!(
            chosen(&wanted)
                .iter()
                .all(|ids| ids.is_empty() != with_experts)
        );
        let tight = Config {
            prefill_chunk_tokens_max: 5,
            kv_cache_bytes_max: blocks,
            ..Config::for_tests()
        };
        for (config, what) in [(Config::for_tests(), "in a batch"), (tight, "in pieces")] {
            let world = world(config, &kind);
            for what in [what.to_owned(), format!("{what}, again")] {
                let got = world.complete_all(short());
                same(&wanted, &got, &what);
                assert_eq!(chosen(&wanted), chosen(&got), "{what}");
            }
            assert!(world.engine.stats().batch_rows.quantile(1.0) > 1);
        }
    }
}

#[test]
fn a_device_says_and_records_the_same() {
    for normalised in [true, false] {
        let model = with_experts(normalised);
        let words = Arc::new(tokenizer());
        let kind = (Model::random(model.clone(), 42), words);
        let quiet = world(Config::for_tests(), &kind);
        let wanted: Vec<Said> = short().into_iter().map(|ask| quiet.complete(ask)).collect();
        let tight = Config {
            prefill_chunk_tokens_max: 19,
            kv_cache_bytes_max: 16 * KvPool::bytes_per_block(&model, KvFormat::F32) as u64,
            ..Config::for_tests()
        };
        let there = device_world(tight, model);
        let got = there.complete_all(short());
        same(&wanted, &got, "on a device");
        assert_eq!(chosen(&wanted), chosen(&got));
    }
}

#[test]
fn drafts_change_neither_words_nor_experts() {
    for kind in models() {
        let quiet = world(Config::for_tests(), &kind);
        let wanted: Vec<Said> = short().into_iter().map(|ask| quiet.complete(ask)).collect();
        let there = world(Config::for_tests(), &kind);
        eager(&there);
        let asks = short().into_iter().zip(&wanted).map(|(ask, said)| Ask {
            predicted: nearly(said, 4).into(),
            ..ask
        });
        let got = there.complete_all(asks.collect());
        same(&wanted, &got, "drafted");
        assert_eq!(chosen(&wanted), chosen(&got));
        let stats = there.engine.stats();
        let right = stats.draft_tokens_accepted_total;
        assert!(right > 0 && right < stats.draft_tokens_total);
    }
}

/// The experts of every token of a turn, computed again in one piece.
fn computed(world: &World, turn: &Turn, adapter: Option<&hone_nn::Adapter>) -> Vec<Vec<u16>> {
    let tokens = [&turn.prompt_tokens, turn.completion.tokens()].concat();
    let count = tokens.len().div_ceil(BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..count as u32).collect();
    let mut kv = KvPool::new(&world.model, count);
    let mut scratch = Scratch::default();
    let seq = SeqInput {
        tokens: &tokens,
        start: 0,
        blocks: &blocks,
        adapter,
        logits: LogitsWanted::All,
    };
    let logits = forward(
        &world.model,
        &mut kv,
        &[seq],
        &Executor::new(1),
        &mut scratch,
    );
    let rows = (0..tokens.len()).map(|row| logits.experts(row).to_vec());
    rows.collect()
}

/// The turn as a row to learn from, with its recorded experts.
fn row_of(turn: &Turn) -> TrainRow {
    let completion = &turn.completion;
    let each = completion.experts().len() / completion.len();
    let loss = |i: usize| TokenLoss {
        kept: completion.kept()[i].clone(),
        temperature: turn.sampling.temperature,
        experts: (each > 0).then(|| completion.experts()[i * each..(i + 1) * each].to_vec()),
        kind: LossKind::Policy,
        ..TokenLoss::imitated(turn.prompt_tokens.len() + i)
    };
    TrainRow {
        tokens: [&turn.prompt_tokens, completion.tokens()].concat(),
        loss: (0..completion.len()).map(loss).collect(),
    }
}

#[test]
fn what_is_recorded_is_what_is_computed_again_and_what_training_sees() {
    let exec = Executor::new(1);
    for kind in models() {
        let world = world(Config::for_tests(), &kind);
        let adapters = adapters(&kind.0.config);
        let mut learned = 0;
        for said in world.complete_all(short()) {
            let turn = said.turn.unwrap();
            let adapter = adapters.iter().find(|(name, _)| scope(name) == turn.scope);
            let adapter = adapter.map(|(_, adapter)| adapter);
            let row = row_of(&turn);
            let scores = score(&world.model, adapter, &row.tokens, &exec);
            let raw = turn.completion.raw_logprobs();
            for (loss, raw) in row.loss.iter().zip(raw) {
                let again = scores.logprob(loss.position, 1.0, None);
                assert_eq!(again.to_bits(), raw.to_bits());
            }
            let experts = computed(&world, &turn, adapter);
            let start = turn.prompt_tokens.len();
            let wanted = experts[start - 1..experts.len() - 1].concat();
            assert_eq!(turn.completion.experts(), wanted);
            let (Some(adapter), true) = (adapter, turn.sampling.is_replayable()) else {
                continue;
            };
            let trainable = Trainable::from(adapter.config.clone());
            let cfg = LearnerConfig::new(trainable, Objective::CrossEntropy, 1e-4);
            let model = Arc::clone(&world.model);
            let mut learner = Learner::from_adapter(model, cfg, adapter).unwrap();
            let seen = learner.logprobs(&[row], &mut || Control::Continue).unwrap();
            let served = turn.completion.behavior_logprobs();
            for (seen, served) in seen[0].iter().zip(served) {
                assert_eq!(seen.to_bits(), served.to_bits());
            }
            learned += 1;
        }
        assert!(learned >= 2, "{learned} turns were compared with training");
    }
}

/// Completions of one prompt at the same time hold its whole blocks once, and a block of their own
/// for the rest of the prompt and what they say.
#[test]
fn choices_of_one_prompt_share_its_blocks() {
    let (choices, whole) = (4, 9);
    let long = prompt(whole * BLOCK_TOKENS + 12, 1);
    let asks = || -> Vec<Ask> {
        let one = |seed| {
            let mut ask = ask(&long, 16, seed);
            ask.stop.ignore_end = true;
            ask
        };
        (0..choices as u64).map(one).collect()
    };
    let quiet = World::new();
    let wanted: Vec<Said> = asks().into_iter().map(|ask| quiet.complete(ask)).collect();
    // And one to spare, without which nobody new begins.
    let blocks = whole + choices + 1;
    let config = Config {
        kv_cache_bytes_max: (blocks * KvPool::bytes_per_block(&model_config(), KvFormat::F32))
            as u64,
        ..Config::for_tests()
    };
    // The first must not be done before the last has come, which a busy machine may delay.
    let together = (0..20).any(|_| {
        let world = World::with(config.clone(), model_config());
        let got = world.complete_all(asks());
        same(&wanted, &got, "in blocks for one prompt and four ends");
        let stats = world.engine.stats();
        assert_eq!(stats.preemptions_total, 0, "there was room for all at once");
        stats.batch_rows.quantile(1.0) >= choices as u64
    });
    assert!(together);
}
