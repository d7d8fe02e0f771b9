//! A CUDA device: that it says and trains what the processor does, and how fast. Without one the same kernels
//! run emulated, which shows the first and nothing of the second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_checkpoint::{
    AdapterDtype, ExpertsConfig, Family, LoadError, LoraConfig, ModelConfig, Target, TensorSource,
};
use hone_cuda::Driver;
use hone_cuda_emulator::Emulator;
use hone_kernels::{Executor, TensorData, WeightFormat};
use hone_nn::sample::{PlainDraw, SamplingParams};
use hone_nn::{
    Adapter, BLOCK_TOKENS, Control, Learner, LearnerConfig, LogitsWanted, LossKind, Model,
    Objective, Runner, SeqInput, StepReport, TokenLoss, TrainRow, Weights,
};
use hone_nn::{DeviceError, DeviceModel};
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::Bench;
use super::bed;
use super::report::{Report, milli};
use super::shapes::medium_shape;
use hone::device;

/// Context that decoding is measured at, and tokens of a measured prompt.
const CONTEXT: usize = 512;
/// Completions at once.
const CONCURRENT: [usize; 4] = [1, 8, 32, 64];
/// The same under an adapter.
const ADAPTED: [usize; 2] = [1, 32];
/// Rows that are trained together.
const TRAINED_ROWS: usize = 4;
/// Memory, beside the weights, that a model to measure needs on the device.
const SPARE_BYTES: u64 = 24 << 30;

/// `hone-bench device`.
pub(super) fn device(bench: &Bench) -> Result<Report, String> {
    let exec = Arc::new(Executor::new(bench.config.model.thread_count()));
    let (driver, real) = driver()?;
    let head = [
        "model",
        "weights",
        "what",
        "tokens/s",
        "weights GB/s",
        "compared",
        "different",
    ];
    let mut report = Report::new(format!("device: {}", driver.name()), &head);
    let (mut parities, mut steps) = (Vec::new(), Vec::new());
    for (name, shape) in shapes(real) {
        for format in [
            WeightFormat::F32,
            WeightFormat::Bf16,
            WeightFormat::Q8,
            WeightFormat::Q4,
        ] {
            let weights = Weights::random(&shape, 1).into_format(format);
            let model = Arc::new(Model::new(shape.clone(), weights));
            let (logits, different) = parity(&driver, &model, &exec)?;
            report.failed += u64::from(different > 0);
            let cells = ["-", "-"].map(str::to_owned);
            let [speed, bytes] = cells;
            report.row([
                name.to_owned(),
                format.as_str().to_owned(),
                "says what the processor says".to_owned(),
                speed,
                bytes,
                logits.to_string(),
                different.to_string(),
            ]);
            let weights = format.as_str();
            parities.push(json!({
                "model": name, "weights": weights, "logits": logits, "different": different,
            }));
            let (numbers, different) = same_step(&driver, &model, &exec)?;
            report.failed += u64::from(different > 0);
            report.row([
                name.to_owned(),
                weights.to_owned(),
                of_steps(&shape).to_owned(),
                "-".to_owned(),
                "-".to_owned(),
                numbers.to_string(),
                different.to_string(),
            ]);
            steps.push(json!({
                "model": name, "weights": weights, "bytes": numbers, "different": different,
            }));
        }
    }
    report.set("real", real);
    report.set("parity", parities);
    report.set("steps", steps);
    if real {
        let speeds = speeds(bench, (&driver, &exec), &mut report)?;
        report.set("speed", speeds);
    } else {
        let note = "there is no CUDA device here: the kernels ran emulated on the processor";
        report.note(note.to_owned());
    }
    Ok(report)
}

/// What steps on either side show. Updates of models with experts are the processor's on both.
fn of_steps(shape: &ModelConfig) -> &'static str {
    match shape.experts {
        None => "trains what the processor trains",
        Some(_) => "measures what the processor measures",
    }
}

/// The first CUDA device and true, or the emulated one where there is none.
fn driver() -> Result<(Arc<dyn Driver>, bool), String> {
    match device::cuda() {
        Ok(driver) => Ok((driver, true)),
        Err(DeviceError::NotBuilt | DeviceError::None(_)) => {
            let emulator = Emulator::new().map_err(|error| error.to_string())?;
            Ok((Arc::new(emulator), false))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn qwen3(hidden: usize, layers: usize, ffn: usize) -> ModelConfig {
    ModelConfig {
        vocab: 1_000,
        hidden,
        layers,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        ffn,
        windows: vec![None; layers],
        ..medium_shape()
    }
}

/// The shape with so many experts in every layer, of which a token uses so many, each so wide.
fn sparse(shape: ModelConfig, (count, chosen, ffn): (usize, usize, usize)) -> ModelConfig {
    let experts = ExpertsConfig {
        count,
        chosen,
        ffn,
        normalised: true,
        layers: vec![true; shape.layers],
    };
    ModelConfig {
        family: Family::Qwen3Moe,
        experts: Some(experts),
        ..shape
    }
}

/// An adapter as training makes them for such a model.
fn lora(shape: &ModelConfig) -> LoraConfig {
    let all = bed::lora();
    match shape.experts {
        None => all,
        Some(_) => LoraConfig {
            targets: Target::ATTENTION.to_vec(),
            ..all
        },
    }
}

/// Shapes whose numbers are compared. The emulator is slow, so its are small.
fn shapes(real: bool) -> Vec<(&'static str, ModelConfig)> {
    let small = qwen3(72, 2, 100);
    let odd = ModelConfig {
        family: Family::Llama,
        vocab: 777,
        heads: 7,
        kv_heads: 1,
        head_dim: 24,
        tied: false,
        o_bias: true,
        mlp_bias: true,
        qk_norm: false,
        windows: vec![Some(40), None],
        ..small.clone()
    };
    let experts = sparse(small.clone(), (12, 3, 40));
    let mut shapes = vec![("small", small), ("odd sizes", odd), ("experts", experts)];
    if real {
        let many = sparse(qwen3(512, 2, 1_024), (128, 8, 256));
        shapes.push(("128 experts", many));
        let large = ModelConfig {
            vocab: 50_000,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            ..qwen3(1_024, 4, 3_072)
        };
        shapes.push(("four layers of 0.6B", large));
    }
    shapes
}

/// Prompts and decoding beside each other, with and without adapters: logits compared, and those
/// that differ in any bit.
fn parity(
    driver: &Arc<dyn Driver>,
    model: &Arc<Model>,
    exec: &Arc<Executor>,
) -> Result<(usize, usize), String> {
    let text = |error: DeviceError| error.to_string();
    let device = device::load(driver.clone(), model, exec)?;
    let lora = LoraConfig {
        dtype: AdapterDtype::Bf16,
        ..lora(&model.config)
    };
    let adapter = Adapter::random(&model.config, lora, 1);
    // Prompt tokens, and whether the adapter answers.
    let texts = [(70, false), (5, true), (33, true), (1, false), (40, false)];
    let mut rng = Rng::at(1, 0);
    let vocab = model.config.vocab;
    let texts = texts.map(|(count, adapted)| {
        let tokens: Vec<u32> = (0..count + 8).map(|_| rng.below(vocab) as u32).collect();
        (tokens, count, adapted)
    });
    let blocks_each = 4;
    let blocks: Vec<u32> = (0..(texts.len() * blocks_each) as u32).rev().collect();
    let mut here = Runner::on_processor(model.clone(), exec.clone(), blocks.len());
    let mut there = Runner::on_device(&device, blocks.len()).map_err(text)?;
    let (mut compared, mut different) = (0, 0);
    // The prompts, then a token each, eight times.
    for step in 0..9 {
        let batch: Vec<SeqInput> = texts
            .iter()
            .zip(blocks.chunks(blocks_each))
            .map(|((tokens, count, adapted), blocks)| {
                let (start, end) = match step {
                    0 => (0, *count),
                    step => (count + step - 1, count + step),
                };
                SeqInput {
                    tokens: &tokens[start..end],
                    start,
                    blocks,
                    adapter: adapted.then_some(&adapter),
                    logits: LogitsWanted::All,
                }
            })
            .collect();
        let wanted = here.forward(&batch).map_err(text)?;
        let found = there.forward(&batch).map_err(text)?;
        for row in 0..wanted.rows() {
            let pairs = wanted.row(row).iter().zip(found.row(row));
            different += pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            different += usize::from(wanted.experts(row) != found.experts(row));
            compared += vocab;
        }
    }
    Ok((compared, different))
}

/// Rows of `tokens` tokens, all but the first of which are learned from.
fn rows(tokens: &[usize], vocab: usize) -> Vec<TrainRow> {
    let mut rng = Rng::at(2, 0);
    let row = |&count: &usize| TrainRow {
        tokens: (0..count).map(|_| rng.below(vocab) as u32).collect(),
        loss: (1..count)
            .map(|position| TokenLoss {
                advantage: if position % 3 == 0 { 1.0 } else { -0.5 },
                behavior_logprob: -6.0,
                kind: LossKind::Policy,
                ..TokenLoss::imitated(position)
            })
            .collect(),
    };
    tokens.iter().map(row).collect()
}

fn learner(model: &Arc<Model>, exec: &Arc<Executor>) -> Result<Learner, String> {
    let objective = Objective::DecoupledPpo {
        clip_low: 0.2,
        clip_high: 0.28,
        correction_cap: 5.0,
    };
    let config = LearnerConfig {
        kl_coef: 0.02,
        entropy_coef: 0.001,
        ..LearnerConfig::new(
            hone_nn::Trainable::Lora(lora(&model.config)),
            objective,
            1e-3,
        )
    };
    let learner = Learner::new(model.clone(), config).map_err(|error| error.to_string())?;
    Ok(learner.on(exec.clone()))
}

fn step(learner: &mut Learner, rows: &[TrainRow]) -> Result<StepReport, String> {
    let report = learner.step(rows, &mut || Control::Continue);
    report.map_err(|error| error.to_string())
}

/// Two steps on either side: bytes of what a learner is after them, and those that differ. A
/// device that has no room for them has not been compared, which is an error.
fn same_step(
    driver: &Arc<dyn Driver>,
    model: &Arc<Model>,
    exec: &Arc<Executor>,
) -> Result<(usize, usize), String> {
    let device = device::load(driver.clone(), model, exec)?;
    let (mut here, mut there) = (learner(model, exec)?, learner(model, exec)?);
    there.use_device(&device).map_err(|e| e.to_string())?;
    let rows = rows(&[70, 5, 33], model.config.vocab);
    for _ in 0..2 {
        step(&mut here, &rows)?;
        step(&mut there, &rows)?;
    }
    if there.fell_back() {
        return Err("the device has no room for a step of training".to_owned());
    }
    let (a, b) = (here.state(), there.state());
    let different = a.iter().zip(&b).filter(|(a, b)| a != b).count();
    Ok((a.len(), different + a.len().abs_diff(b.len())))
}

/// Random bf16 weights, made quickly: what they say means nothing, and costs what any cost.
struct Noise;

impl TensorSource for Noise {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, LoadError> {
        let count = shape.iter().product();
        if let [_] = shape {
            return Ok(TensorData::F32(vec![1.0; count]));
        }
        let mut state = name
            .bytes()
            .fold(1u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)))
            | 1;
        let next = || {
            // Marsaglia's xorshift; a sign and seven bits of a number below 1/32.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            0x3c80 | (state & 0x807f) as u16
        };
        let values: Vec<u16> = std::iter::repeat_with(next).take(count).collect();
        Ok(TensorData::Bf16(values))
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Shapes of common models; the second only where it fits.
fn measured() -> [(&'static str, ModelConfig); 2] {
    let common = ModelConfig {
        vocab: 151_936,
        head_dim: 128,
        kv_heads: 8,
        ..qwen3(1_024, 28, 3_072)
    };
    let small = ModelConfig {
        heads: 16,
        ..common.clone()
    };
    let large = ModelConfig {
        heads: 32,
        hidden: 4_096,
        ffn: 12_288,
        layers: 36,
        windows: vec![None; 36],
        tied: false,
        ..common
    };
    [("0.6B", small), ("8B", large)]
}

fn speeds(
    bench: &Bench,
    (driver, exec): (&Arc<dyn Driver>, &Arc<Executor>),
    report: &mut Report,
) -> Result<Vec<Value>, String> {
    let text = |error: DeviceError| error.to_string();
    let mut numbers = Vec::new();
    for (name, shape) in measured() {
        let parameters = shape.hidden * (3 * shape.ffn + 6 * shape.hidden) * shape.layers;
        let (free, _) = driver.memory().map_err(text)?;
        if 2 * parameters as u64 + SPARE_BYTES > free {
            report.note(format!(
                "{name} does not fit the device and was not measured"
            ));
            continue;
        }
        let weights = Weights::from_source(&shape, &Noise).map_err(|error| error.to_string())?;
        // A step reads all of them but the embeddings, of which it reads a row.
        let embeddings = if shape.tied {
            0
        } else {
            2 * shape.vocab * shape.hidden
        };
        let bytes = weights.bytes() - embeddings;
        let model = Arc::new(Model::new(shape, weights));
        let device = device::load(driver.clone(), &model, exec)?;
        let time = bench.time(3.0);
        let adapter = Adapter::random(&model.config, lora(&model.config), 1);
        let plain = CONCURRENT.map(|concurrent| (concurrent, None));
        let adapted = ADAPTED.map(|concurrent| (concurrent, Some(&adapter)));
        for (concurrent, adapter) in plain.into_iter().chain(adapted) {
            let speed = decode(&device, (concurrent, adapter), time).map_err(text)?;
            let read = speed / concurrent as f64 * bytes as f64 / 1e9;
            let under = if adapter.is_some() {
                " under an adapter"
            } else {
                ""
            };
            let what = format!("decode {concurrent} at once{under}");
            report.row(speed_row(name, &what, speed, format!("{read:.0}")));
            numbers.push(json!({
                "model": name, "decode": concurrent, "adapter": adapter.is_some(),
                "tokens_per_s": milli(speed), "weights_gb_per_s": milli(read),
            }));
        }
        let speed = prefill(&device, time).map_err(text)?;
        let what = format!("prefill of {CONTEXT}");
        report.row(speed_row(name, &what, speed, "-".to_owned()));
        numbers.push(json!({ "model": name, "prefill": CONTEXT, "tokens_per_s": milli(speed) }));
        let (speed, slice_ms) = train((&model, &device), exec, time)?;
        let what = format!("train rows of {CONTEXT}");
        report.row(speed_row(name, &what, speed, "-".to_owned()));
        numbers.push(json!({
            "model": name, "train": CONTEXT, "tokens_per_s": milli(speed),
            "longest_slice_ms": milli(slice_ms),
        }));
    }
    Ok(numbers)
}

fn speed_row(name: &str, what: &str, speed: f64, read: String) -> [String; 7] {
    let [name, format, what, none] = [name, "bf16", what, "-"].map(str::to_owned);
    [
        name,
        format,
        what,
        format!("{speed:.0}"),
        read,
        none.clone(),
        none,
    ]
}

/// Tokens per second of completions at a context of [`CONTEXT`] tokens.
fn decode(
    device: &Arc<dyn DeviceModel>,
    (concurrent, adapter): (usize, Option<&Adapter>),
    time: Duration,
) -> Result<f64, DeviceError> {
    // As it serves: the device draws the token.
    let draw = PlainDraw::of(&SamplingParams::default(), 0);
    let logits = draw.map_or(LogitsWanted::Last, |draw| LogitsWanted::Draws(draw, 1));
    let each = (CONTEXT + 1).div_ceil(BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..(concurrent * each) as u32).collect();
    let mut runner = Runner::on_device(device, blocks.len())?;
    let batch: Vec<SeqInput> = blocks
        .chunks(each)
        .map(|blocks| SeqInput {
            tokens: &[1],
            start: CONTEXT,
            blocks,
            adapter,
            logits,
        })
        .collect();
    measure(&mut runner, &batch, concurrent, time)
}

/// Tokens per second of a prompt of [`CONTEXT`] tokens.
fn prefill(device: &Arc<dyn DeviceModel>, time: Duration) -> Result<f64, DeviceError> {
    let blocks: Vec<u32> = (0..CONTEXT.div_ceil(BLOCK_TOKENS) as u32).collect();
    let mut runner = Runner::on_device(device, blocks.len())?;
    let tokens: Vec<u32> = (0..CONTEXT as u32).collect();
    let seq = SeqInput {
        tokens: &tokens,
        start: 0,
        blocks: &blocks,
        adapter: None,
        logits: LogitsWanted::Last,
    };
    measure(&mut runner, &[seq], CONTEXT, time)
}

/// Tokens per second of training on rows of [`CONTEXT`] tokens, forward and backward, and the longest
/// slice in milliseconds.
fn train(
    (model, device): (&Arc<Model>, &Arc<dyn DeviceModel>),
    exec: &Arc<Executor>,
    time: Duration,
) -> Result<(f64, f64), String> {
    let mut learner = learner(model, exec)?;
    learner.use_device(device).map_err(|e| e.to_string())?;
    let rows = rows(&[CONTEXT; TRAINED_ROWS], model.config.vocab);
    step(&mut learner, &rows)?;
    let (began, mut tokens, mut slice_us) = (Instant::now(), 0, 0);
    while tokens == 0 || began.elapsed() < time {
        let report = step(&mut learner, &rows)?;
        tokens += report.tokens;
        slice_us = slice_us.max(report.longest_slice_us);
    }
    if learner.fell_back() {
        return Err("the device has no room for a step of training".to_owned());
    }
    let speed = tokens as f64 / began.elapsed().as_secs_f64();
    Ok((speed, slice_us as f64 / 1e3))
}

/// Repeats a batch of `tokens` tokens, the first time unmeasured.
fn measure(
    runner: &mut Runner,
    batch: &[SeqInput],
    tokens: usize,
    time: Duration,
) -> Result<f64, DeviceError> {
    runner.forward(batch)?;
    let (began, mut steps) = (Instant::now(), 0);
    while steps == 0 || began.elapsed() < time {
        runner.forward(batch)?;
        steps += 1;
    }
    Ok((steps * tokens) as f64 / began.elapsed().as_secs_f64())
}
