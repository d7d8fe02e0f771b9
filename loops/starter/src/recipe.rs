//! Trains the starter model from nothing: tokenizer, rows, steps, files, measures.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use hone_checkpoint::StoredDtype;
use hone_kernels::{Executor, WeightFormat};
use hone_nn::{
    Control, Learner, LearnerConfig, LoadAs, Model, Objective, TokenLoss, TrainRow, Trainable,
    load_model_as,
};
use hone_text::folder::ModelFolder;
use serde::Serialize;

use crate::chat::Talker;
use crate::error::StarterError;
use crate::eval::{EvalOptions, Evaluation, evaluate};
use crate::folder::{self, FolderFile, Shape};
use crate::grammar::Grammar;
use crate::rows::{NoiseMix, Rows};
use crate::tokens::{ChatEncoder, Row, VOCABULARY, train_tokenizer};

/// A training run. The same options give the same files, on any number of threads.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    pub seed: u64,
    pub out_dir: PathBuf,
    pub steps: u64,
    pub threads: usize,
    pub shape: Shape,
    pub schedule: Schedule,
    pub eval: EvalOptions,
    /// The second part: it begins with what the first one left.
    pub words: Words,
    /// Whether the first part is left out: the folder has its files.
    pub continues: bool,
}

/// The second part of a run, in which people say in many words how they want to be answered. It reads the
/// first part's files, so that it may be repeated alone.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    pub steps: u64,
    pub lr: f32,
    /// Share of the wishes that are said so.
    pub share: f64,
}

impl Default for Words {
    fn default() -> Self {
        Self {
            steps: 6_000,
            lr: 1e-3,
            share: 0.6,
        }
    }
}

impl TrainOptions {
    /// The run that made the committed model, into another folder.
    pub fn committed(out_dir: PathBuf, threads: usize) -> Self {
        Self {
            seed: 1,
            out_dir,
            steps: 30_000,
            threads,
            shape: Shape::default(),
            schedule: Schedule::default(),
            eval: EvalOptions::default(),
            words: Words::default(),
            continues: false,
        }
    }
}

/// How fast it learns and what it sees when. Shares are of all steps.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub lr: f32,
    pub warmup_steps: u64,
    /// The learning rate at the end, relative to `lr`.
    pub lr_end: f32,
    pub weight_decay: f32,
    /// Rows are added to a batch until it has this many tokens.
    pub batch_tokens: usize,
    /// Noise begins after this share of the steps.
    pub noise_from: f64,
    pub noise: NoiseMix,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            lr: 3e-3,
            warmup_steps: 60,
            lr_end: 0.03,
            weight_decay: 0.01,
            batch_tokens: 512,
            noise_from: 0.35,
            noise: NoiseMix {
                share: 0.15,
                characters: (200, 1_800),
            },
        }
    }
}

impl Schedule {
    /// Warm-up, then a cosine to `lr_end`.
    pub fn lr_at(&self, step: u64, steps: u64) -> f32 {
        if step < self.warmup_steps {
            return self.lr * (step + 1) as f32 / self.warmup_steps as f32;
        }
        let left = (steps - self.warmup_steps.min(steps)).max(1);
        let share = (step - self.warmup_steps) as f32 / left as f32;
        let cosine = 0.5 * (1.0 + (std::f32::consts::PI * share.min(1.0)).cos());
        self.lr * (self.lr_end + (1.0 - self.lr_end) * cosine)
    }

    /// The noise at this step.
    pub fn noise_at(&self, step: u64, steps: u64) -> NoiseMix {
        let started = step as f64 >= self.noise_from * steps as f64;
        NoiseMix {
            share: if started { self.noise.share } else { 0.0 },
            ..self.noise
        }
    }
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    /// The tokenizer is ready; training begins.
    Tokenizer { seconds: f64 },
    /// After some steps; the loss is the mean since the last report.
    Step {
        step: u64,
        steps: u64,
        loss: f64,
        tokens_per_second: f64,
        seconds: f64,
    },
    /// Share of the measures taken.
    Evaluating { share: f64 },
}

/// What a run made.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub steps: u64,
    pub tokens: u64,
    pub seconds: f64,
    pub loss: f64,
    pub bytes: usize,
    pub evaluation: Evaluation,
}

/// Trains, writes the folder, reads it back and measures it.
pub fn train(
    options: &TrainOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, StarterError> {
    let start = Instant::now();
    let grammar = Grammar::new();
    let tokenizer = train_tokenizer(&grammar, options.seed)?;
    let encoder = ChatEncoder::new(&tokenizer)?;
    progress(Progress::Tokenizer {
        seconds: start.elapsed().as_secs_f64(),
    });
    let mut tokens = 0;
    if !options.continues {
        let config = options.shape.config(VOCABULARY, StoredDtype::F32);
        let model = Arc::new(Model::random(config, options.seed));
        let part = Part {
            steps: options.steps,
            schedule: options.schedule,
        };
        let rows = Rows::new(&grammar, &encoder, options.seed);
        let mut run = Run::new(options.threads, part, model, rows)?;
        run.all_steps(start, progress)?;
        tokens = run.tokens;
        let files = files(&run.learner.model(), &tokenizer, &encoder)?;
        folder::write(&options.out_dir, &files)?;
    }
    let part = Part {
        steps: options.words.steps,
        schedule: Schedule {
            lr: options.words.lr,
            noise_from: 0.0,
            ..options.schedule
        },
    };
    let rows = Rows::new(&grammar, &encoder, options.seed + 1).freely(options.words.share);
    let mut run = Run::new(options.threads, part, read(&options.out_dir)?, rows)?;
    run.tokens = tokens;
    run.all_steps(start, progress)?;
    let files = files(&run.learner.model(), &tokenizer, &encoder)?;
    folder::write(&options.out_dir, &files)?;
    let talker = Talker::open(&ModelFolder::open(&options.out_dir)?, options.threads)?;
    let mut told = |share| progress(Progress::Evaluating { share });
    let evaluation = evaluate(&talker, options.eval, &mut told)?;
    Ok(Report {
        steps: options.steps,
        tokens: run.tokens,
        seconds: start.elapsed().as_secs_f64(),
        loss: run.loss,
        bytes: files.iter().map(|(_, bytes)| bytes.len()).sum(),
        evaluation,
    })
}

fn files(
    model: &Model,
    tokenizer: &str,
    encoder: &ChatEncoder,
) -> Result<Vec<FolderFile>, StarterError> {
    let mut config = model.config.clone();
    config.dtype = StoredDtype::Bf16;
    let ends = encoder.end_ids();
    let mut files = folder::description(&config, tokenizer, ends);
    files.push(folder::weights_file(
        &model.weights.to_tensors(&model.config),
    )?);
    Ok(files)
}

/// The weights in a folder, in the precision that they are trained in.
fn read(folder: &Path) -> Result<Arc<Model>, StarterError> {
    let folder = ModelFolder::open(folder)?;
    let wanted = LoadAs {
        format: WeightFormat::F32,
        ..LoadAs::default()
    };
    let model = load_model_as(folder.checkpoint(), wanted, &mut |_, _, _| {})?;
    Ok(Arc::new(model))
}

/// One of the two parts of a run.
#[derive(Clone, Copy, Debug)]
struct Part {
    steps: u64,
    schedule: Schedule,
}

/// The steps of one part.
struct Run<'a> {
    part: Part,
    rows: Rows<'a>,
    learner: Learner,
    next_row: u64,
    tokens: u64,
    loss: f64,
}

impl<'a> Run<'a> {
    fn new(
        threads: usize,
        part: Part,
        model: Arc<Model>,
        rows: Rows<'a>,
    ) -> Result<Self, StarterError> {
        let schedule = part.schedule;
        let trainer = LearnerConfig {
            beta2: 0.98,
            weight_decay: schedule.weight_decay,
            minibatch_tokens: schedule.batch_tokens * 2,
            ..LearnerConfig::new(Trainable::Full, Objective::CrossEntropy, schedule.lr)
        };
        let exec = Arc::new(Executor::new(threads));
        let learner = Learner::new(model, trainer)?.on(exec);
        Ok(Self {
            part,
            rows,
            learner,
            next_row: 0,
            tokens: 0,
            loss: 0.0,
        })
    }

    fn all_steps(
        &mut self,
        start: Instant,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), StarterError> {
        const REPORT_STEPS: u64 = 50;
        let steps = self.part.steps;
        let mut losses = Vec::new();
        for step in 0..steps {
            losses.push(self.step(step)?);
            if (step + 1) % REPORT_STEPS == 0 || step + 1 == steps {
                self.loss = losses.iter().sum::<f64>() / losses.len() as f64;
                losses.clear();
                let seconds = start.elapsed().as_secs_f64();
                let tokens_per_second = self.tokens as f64 / seconds;
                let loss = self.loss;
                progress(Progress::Step {
                    step: step + 1,
                    steps,
                    loss,
                    tokens_per_second,
                    seconds,
                });
            }
        }
        Ok(())
    }

    /// One batch, one update; returns the mean loss of a learned token.
    fn step(&mut self, step: u64) -> Result<f64, StarterError> {
        let Part { steps, schedule } = self.part;
        let mix = schedule.noise_at(step, steps);
        let mut batch = Vec::new();
        let mut tokens = 0;
        while tokens < schedule.batch_tokens {
            let row = self.rows.row(self.next_row, mix);
            self.next_row += 1;
            tokens += row.tokens.len();
            batch.push(train_row(row));
        }
        self.tokens += tokens as u64;
        self.learner.set_lr(schedule.lr_at(step, steps));
        let report = self.learner.step(&batch, &mut || Control::Continue)?;
        Ok(report.loss)
    }
}

fn train_row(row: Row) -> TrainRow {
    let loss = TokenLoss::imitated;
    TrainRow {
        loss: row.learned.into_iter().map(loss).collect(),
        tokens: row.tokens,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_learning_rate_warms_up_and_falls_to_its_end() {
        let schedule = Schedule::default();
        let steps = 1_000;
        assert!(schedule.lr_at(0, steps) < schedule.lr / 10.0);
        assert!((schedule.lr_at(schedule.warmup_steps, steps) - schedule.lr).abs() < 1e-9);
        let end = schedule.lr_at(steps - 1, steps);
        assert!((end / schedule.lr - schedule.lr_end).abs() < 0.01, "{end}");
        let all: Vec<f32> = (60..steps)
            .map(|step| schedule.lr_at(step, steps))
            .collect();
        assert!(all.windows(2).all(|pair| pair[1] <= pair[0]));
    }

    #[test]
    fn a_run_is_decided_by_its_seed_whatever_the_threads_and_the_loss_falls() {
        let run = |seed: u64, threads: usize| {
            let folder = tempfile::tempdir().unwrap();
            let mut options = TrainOptions::committed(folder.path().to_owned(), threads);
            options.seed = seed;
            options.steps = 60;
            options.words.steps = 5;
            options.shape = Shape {
                hidden: 32,
                layers: 1,
                heads: 2,
                kv_heads: 1,
                head_dim: 16,
                ffn: 64,
                window: 64,
            };
            options.schedule.batch_tokens = 256;
            options.schedule.warmup_steps = 10;
            options.eval = EvalOptions {
                questions: 2,
                dialogues: 1,
                behind_8k: 0,
                behind_50k: 0,
                ..EvalOptions::default()
            };
            let mut losses = Vec::new();
            let mut tell = |told: Progress| {
                if let Progress::Step { loss, .. } = told {
                    losses.push(loss);
                }
            };
            let report = train(&options, &mut tell).unwrap();
            assert_eq!(report.evaluation.held_out_greedy.asked, 2);
            let weights = std::fs::read(folder.path().join("model.safetensors")).unwrap();
            (weights, losses)
        };
        let (one, losses) = run(1, 1);
        assert!(losses.last() < losses.first(), "{losses:?}");
        assert_eq!(one, run(1, 2).0);
        assert_ne!(one, run(2, 2).0);
    }
}
