//! The trainer: tokens per second and memory, and a session's turns in one row against one row per
//! turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_checkpoint::{AdapterConfig, DenseConfig, ModelConfig};
use hone_kernels::{Executor, WeightFormat};
use hone_nn::{
    Control, Learner, LearnerConfig, LossKind, Model, Objective, StepError, StepReport, TokenLoss,
    TrainRow, Weights,
};
use serde_json::{Value, json};

use super::Bench;
use super::bed::lora;
use super::child::Process;
use super::memory::{forget_peak, memory};
use super::report::{Report, milli, ms};
use hone::model::computed;

/// Turns of the session, tokens a turn adds to the prompt, and tokens of a completion.
const TURNS: usize = 20;
const ASKED: usize = 24;
const ANSWERED: usize = 32;
/// How long the allocator keeps what is free, and some more.
const GIVEN_BACK: Duration = Duration::from_millis(1_500);
/// Hidden size, layers, heads, kv heads, head size, feed-forward, vocabulary: about 1, 3 and 30
/// million parameters.
type Shape = [usize; 7];
const M1: Shape = [128, 4, 4, 2, 32, 384, 2048];
const M3: Shape = [192, 6, 6, 2, 32, 512, 2048];
const M30: Shape = [512, 8, 8, 4, 64, 1536, 8192];

/// A model to train an adapter on.
struct Case {
    name: &'static str,
    shape: Shape,
    format: WeightFormat,
    /// Of the measurement's time.
    share: f64,
    trains: Trains,
}

/// What is trained of every projection.
#[derive(Clone, Copy)]
enum Trains {
    LowRank,
    EveryWeight,
}

impl Trains {
    fn adapter(self) -> AdapterConfig {
        let lora = lora();
        let (targets, dtype) = (lora.targets.clone(), lora.dtype);
        match self {
            Self::LowRank => lora.into(),
            Self::EveryWeight => DenseConfig { targets, dtype }.into(),
        }
    }
}

const CASES: [Case; 6] = [
    Case::of("1 M", M1, WeightFormat::F32, 0.1),
    Case::of("3 M", M3, WeightFormat::F32, 0.1),
    Case::of("3 M, every weight", M3, WeightFormat::F32, 0.1).training(Trains::EveryWeight),
    Case::of("3 M, bf16", M3, WeightFormat::Bf16, 0.1),
    Case::of("30 M", M30, WeightFormat::F32, 0.45),
    Case::of("30 M, bf16", M30, WeightFormat::Bf16, 0.15),
];

impl Case {
    const fn of(name: &'static str, shape: Shape, format: WeightFormat, share: f64) -> Self {
        Self {
            name,
            shape,
            format,
            share,
            trains: Trains::LowRank,
        }
    }

    const fn training(mut self, trains: Trains) -> Self {
        self.trains = trains;
        self
    }
}

/// `hone-bench trainer`. What does not fit its time is left out.
pub(super) fn trainer(bench: &Bench) -> Result<Report, String> {
    let time = bench.time(40.0);
    let title = format!(
        "trainer: a session of {TURNS} turns, LoRA rank 8 on every projection or every weight of it"
    );
    let head = [
        "shape",
        "tokens/s",
        "memory MiB",
        "layers kept",
        "whole ms",
        "by turn ms",
        "factor",
        "log-probs that differ",
        "norm off by",
    ];
    let mut report = Report::new(title, &head);
    let Some(name) = &bench.shape else {
        for case in &CASES {
            let measured = in_a_process(bench, case.name, time)?;
            tell(case.name, measured, &mut report);
        }
        return Ok(report);
    };
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.ok_or_else(|| {
        let names = CASES.map(|case| format!("\"{}\"", case.name));
        format!("there is no shape {name:?}; there are {}", names.join(", "))
    })?;
    tell(case.name, measured(bench, case, time)?, &mut report);
    Ok(report)
}

/// A case in this process.
fn measured(bench: &Bench, case: &Case, time: Duration) -> Result<Value, String> {
    let exec = Arc::new(Executor::new(bench.config.model.thread_count()));
    let before = memory()?.now_kib;
    let time = time.mul_f64(case.share);
    let config = config(case.shape);
    let weights = Weights::random(&config, 1).into_format(case.format);
    let model = Arc::new(Model::new(config, weights));
    let model = computed(model, &bench.config.model, false)?;
    // What was needed to make it is none of training's: the allocator gives it back after a while.
    std::thread::sleep(GIVEN_BACK);
    let deadline = Instant::now() + time;
    let parts = (&model, &exec, case.trains);
    Ok(Measured::of(parts, (time, deadline), before)?.json())
}

/// A case in a process of its own, whose memory nothing before it has taken.
fn in_a_process(bench: &Bench, name: &str, time: Duration) -> Result<Value, String> {
    let seconds = time.as_secs_f64().to_string();
    let mut arguments = vec!["trainer", "--json", "--shape", name];
    arguments.extend(["--seconds", &seconds]);
    if let Some((_, file)) = &bench.file {
        arguments.extend(["--config", file]);
    }
    let (process, lines) = Process::start(&arguments)?;
    // The lines end with the process.
    let last = lines.into_iter().last().unwrap_or_default();
    let mut object: Value = serde_json::from_str(&last)
        .map_err(|_| format!("{name} could not be measured: {}", process.errors()))?;
    Ok(object[name].take())
}

/// Takes up what a case said.
fn tell(name: &str, measured: Value, report: &mut Report) {
    let number = |key: &str| measured[key].as_f64();
    let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let shown = |key: &str, digits: usize| cell(number(key).map(|n| format!("{n:.digits$}")));
    let mib = number("memory_bytes").map(|bytes| format!("{:.0}", bytes / f64::from(1 << 20)));
    report.row([
        name.to_owned(),
        shown("tokens_per_second", 0),
        cell(mib),
        format!("{} of {}", measured["layers_kept"], measured["layers"]),
        shown("whole_ms", 1),
        shown("by_turn_ms", 0),
        shown("factor", 1),
        shown("logprobs_that_differ", 0),
        cell(number("norm_off").map(|off| format!("{off:.1e}"))),
    ]);
    report.failed += measured["logprobs_that_differ"]
        .as_u64()
        .unwrap_or_default();
    report.set(name, measured);
}

fn config([hidden, layers, heads, kv_heads, head_dim, ffn, vocab]: [usize; 7]) -> ModelConfig {
    ModelConfig {
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        windows: vec![None; layers],
        ..crate::shapes::starter_shape()
    }
}

/// What a learner is made of.
type Parts<'a> = (&'a Arc<Model>, &'a Arc<Executor>, Trains);

/// One case.
struct Measured {
    tokens_per_second: f64,
    whole: Duration,
    /// Most memory while training, above that of the process before the model was made.
    memory_kib: u64,
    /// Layers that were not computed again backwards, of how many.
    layers: (usize, usize),
    by_turn: Option<ByTurn>,
}

/// The same session with a row per turn.
struct ByTurn {
    time: Duration,
    /// Log-probs whose bits differ between the two ways.
    differing: usize,
    norm_off: f64,
}

impl Measured {
    /// The median of steps on the whole session, after a first one, for a third of `time`; then, if
    /// it ends before the deadline, one step on its turns.
    fn of(
        parts: Parts<'_>,
        (time, deadline): (Duration, Instant),
        before_kib: u64,
    ) -> Result<Self, String> {
        let (whole, by_turn) = rows(parts.0.config.vocab);
        let mut learner = learner(parts)?;
        forget_peak()?;
        let began = Instant::now();
        let (first, _) = step(&mut learner, &whole, None)?.ok_or("stopped without a deadline")?;
        let mut times = Vec::new();
        while times.is_empty() || began.elapsed() < time / 3 {
            times.extend(step(&mut learner, &whole, None)?.map(|(_, time)| time));
        }
        let memory_kib = memory()?.peak_kib.saturating_sub(before_kib);
        times.sort_unstable();
        let median = times[times.len() / 2];
        Ok(Self {
            tokens_per_second: first.tokens as f64 / median.as_secs_f64(),
            whole: median,
            memory_kib,
            layers: (first.layers_kept, parts.0.config.layers),
            by_turn: ByTurn::of(parts, &by_turn, &first, deadline)?,
        })
    }

    fn json(&self) -> Value {
        let by_turn = self.by_turn.as_ref();
        let factor = by_turn.map(|b| b.time.as_secs_f64() / self.whole.as_secs_f64());
        json!({
            "tokens_per_second": milli(self.tokens_per_second),
            "memory_bytes": self.memory_kib * 1024,
            "layers_kept": self.layers.0,
            "layers": self.layers.1,
            "whole_ms": milli(ms(self.whole)),
            "by_turn_ms": by_turn.map(|b| milli(ms(b.time))),
            "factor": factor.map(milli),
            "logprobs_that_differ": by_turn.map(|b| b.differing),
            "norm_off": by_turn.map(|b| b.norm_off),
        })
    }
}

impl ByTurn {
    /// None where the deadline comes first.
    fn of(
        parts: Parts<'_>,
        rows: &[TrainRow],
        whole: &StepReport,
        deadline: Instant,
    ) -> Result<Option<Self>, String> {
        let mut learner = learner(parts)?;
        let Some((report, time)) = step(&mut learner, rows, Some(deadline))? else {
            return Ok(None);
        };
        let a = whole.proximal_logprobs.concat();
        let b = report.proximal_logprobs.concat();
        let differ = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits();
        Ok(Some(Self {
            time,
            differing: a.iter().zip(&b).filter(differ).count() + a.len().abs_diff(b.len()),
            norm_off: (whole.grad_norm / report.grad_norm - 1.0).abs(),
        }))
    }
}

fn learner((model, exec, trains): Parts<'_>) -> Result<Learner, String> {
    let objective = Objective::DecoupledPpo {
        clip_low: 0.2,
        clip_high: 0.28,
        correction_cap: 5.0,
    };
    let config = LearnerConfig::new(trains.adapter().into(), objective, 1e-3);
    let learner = Learner::new(model.clone(), config).map_err(|e| e.to_string())?;
    Ok(learner.on(exec.clone()))
}

/// One step and its time; none where it was stopped at the deadline.
fn step(
    learner: &mut Learner,
    rows: &[TrainRow],
    deadline: Option<Instant>,
) -> Result<Option<(StepReport, Duration)>, String> {
    let began = Instant::now();
    let mut pause = || match deadline.is_some_and(|deadline| Instant::now() > deadline) {
        true => Control::Stop,
        false => Control::Continue,
    };
    match learner.step(rows, &mut pause) {
        Ok(report) => Ok(Some((report, began.elapsed()))),
        Err(StepError::Stopped) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The session as one row with every completion, and as one row per turn.
fn rows(vocab: usize) -> (Vec<TrainRow>, Vec<TrainRow>) {
    let token = |i: usize| ((i * 31 + i / 7) % vocab) as u32;
    let tokens: Vec<u32> = (0..TURNS * (ASKED + ANSWERED)).map(token).collect();
    let loss = |turn: usize| -> Vec<TokenLoss> {
        let start = turn * (ASKED + ANSWERED) + ASKED;
        let one = |position| TokenLoss {
            advantage: if turn.is_multiple_of(2) { 1.0 } else { -1.0 },
            behavior_logprob: -7.0,
            sequence: turn as u32,
            kind: LossKind::Policy,
            ..TokenLoss::imitated(position)
        };
        (start..start + ANSWERED).map(one).collect()
    };
    let whole = TrainRow {
        tokens: tokens.clone(),
        loss: (0..TURNS).flat_map(loss).collect(),
    };
    let turn = |turn: usize| TrainRow {
        tokens: tokens[..(turn + 1) * (ASKED + ANSWERED)].to_vec(),
        loss: loss(turn),
    };
    (vec![whole], (0..TURNS).map(turn).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_learn_from_the_same_tokens() {
        let (whole, by_turn) = rows(2048);
        let seen = |rows: &[TrainRow]| -> Vec<(usize, u32)> {
            let of = |row: &TrainRow| {
                let token = |l: &TokenLoss| (l.position, row.tokens[l.position]);
                row.loss.iter().map(token).collect::<Vec<_>>()
            };
            rows.iter().flat_map(of).collect()
        };
        assert_eq!(seen(&whole), seen(&by_turn));
        assert_eq!(by_turn.len(), TURNS);
    }

    #[test]
    fn what_does_not_fit_its_time_is_left_out_and_the_rest_agrees() {
        let model = Arc::new(Model::random(config(M1), 1));
        let exec = Arc::new(Executor::new(1));
        let measure = |most: Duration, trains: Trains| {
            let times = (Duration::ZERO, Instant::now() + most);
            let measured = Measured::of((&model, &exec, trains), times, 0);
            measured.expect("it can be measured").by_turn
        };
        assert!(measure(Duration::ZERO, Trains::LowRank).is_none());
        for trains in [Trains::LowRank, Trains::EveryWeight] {
            let by_turn = measure(Duration::from_secs(600), trains);
            assert_eq!(by_turn.map(|b| b.differing), Some(0));
        }
    }
}
