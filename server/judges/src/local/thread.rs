//! The thread that votes: a bounded line of jobs in, one completion at a time out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Instant;

use async_trait::async_trait;
use candle_core::{Device, Tensor};
use candle_transformers::generation::LogitsProcessor;
use hone_domain::Message;
use hone_judge::{CompleteOptions, Completed, Completer, CompleterError, LocalConfig};
use hone_text::folder::Speech;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::models::{self, Loaded};
use hone_inference::template_message;

/// Prompt tokens computed at once; between two such pieces a vote can be withdrawn. The masks that
/// candle keeps for pieces of one size stay small.
const PIECE: usize = 32;

/// A judge on a thread of its own, which ends with it.
pub(super) struct Local {
    speech: Speech,
    jobs: SyncSender<Job>,
    waiting_max: usize,
}

struct Job {
    prompt: Vec<u32>,
    options: CompleteOptions,
    /// When nobody waits for it any more.
    ends: Instant,
    reply: oneshot::Sender<Result<Vec<u32>, CompleterError>>,
}

impl Local {
    /// Loads the model on its thread, which takes a while.
    ///
    /// # Errors
    /// A sentence: what is wrong with the folder or file.
    pub(super) fn start(config: &LocalConfig) -> Result<Self, String> {
        let path = Path::new(&config.path);
        let speech = Speech::open(path).map_err(|error| error.to_string())?;
        if !speech.template.is_some() {
            return Err(format!("{} has no chat template", config.path));
        }
        let (jobs, line) = sync_channel(config.waiting_max);
        let (told, loaded) = sync_channel(1);
        let ends = speech.eos_ids.clone();
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads)
            .thread_name(|number| format!("hone-judge-{number}"))
            .start_handler(|_| lower_priority())
            .build()
            .map_err(|error| format!("the judge's threads cannot be made: {error}"))?;
        let (path, tokens_max) = (path.to_owned(), config.tokens_max);
        let run = move || {
            // What candle spreads over threads stays on these.
            threads.install(move || match models::load(&path, tokens_max) {
                Ok(model) => {
                    if told.send(Ok(())).is_ok() {
                        say(&model);
                        Thread { model, ends }.run(&line);
                    }
                }
                Err(error) => {
                    let _nobody_waits = told.send(Err(error)).is_ok();
                }
            });
        };
        let thread = std::thread::Builder::new().name("hone-judge-model".to_owned());
        let thread = thread.spawn(run).map(drop);
        thread.map_err(|error| format!("the judge's thread cannot be made: {error}"))?;
        let loaded = loaded
            .recv()
            .unwrap_or_else(|_| Err("it has no such tensors".to_owned()));
        loaded.map_err(|error| format!("{} cannot judge: {error}", config.path))?;
        Ok(Self {
            speech,
            jobs,
            waiting_max: config.waiting_max,
        })
    }

    fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>, CompleterError> {
        let tokenizer = &self.speech.tokenizer;
        // Only the template writes control tokens, whatever is quoted.
        let guarded = |message: &Message| {
            let mut value = template_message(message);
            if let Some(content) = value["content"].as_str() {
                value["content"] = Value::from(tokenizer.guard(content).into_owned());
            }
            value
        };
        let messages: Vec<Value> = messages.iter().map(guarded).collect();
        let template = &self.speech.template;
        let text = template.render(&messages, None, true, &Map::new());
        let text = text.map_err(|error| CompleterError::Failed(error.to_string()))?;
        Ok(tokenizer.encode(&text, false))
    }
}

#[async_trait]
impl Completer for Local {
    async fn complete(
        &self,
        messages: &[Message],
        options: CompleteOptions,
    ) -> Result<Completed, CompleterError> {
        let (reply, answer) = oneshot::channel();
        let prompt = self.prompt(messages)?;
        let prompt_tokens = prompt.len() as u64;
        let job = Job {
            prompt,
            ends: Instant::now() + options.deadline,
            options,
            reply,
        };
        let ended = || CompleterError::Failed("its thread ended".to_owned());
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => CompleterError::Busy(format!(
                "{} votes wait for it already (judge.model.local.waiting_max)",
                self.waiting_max
            )),
            TrySendError::Disconnected(_) => ended(),
        })?;
        let written = answer.await.map_err(|_| ended())??;
        Ok(Completed {
            words: self.speech.tokenizer.decode(&written),
            tokens: Some((prompt_tokens, written.len() as u64)),
        })
    }
}

/// States the memory it takes.
fn say(model: &Loaded) {
    let megabytes = |bytes: u64| bytes.div_ceil(1 << 20);
    tracing::info!(
        family = model.family,
        tokens_max = model.tokens_max,
        weights_mb = megabytes(model.weight_bytes),
        cache_mb_max = megabytes(model.cache_bytes),
        "a local judge is loaded"
    );
}

/// What runs on the thread.
pub(super) struct Thread {
    pub(super) model: Loaded,
    /// Tokens that end a vote.
    pub(super) ends: Vec<u32>,
}

impl Thread {
    fn run(mut self, line: &Receiver<Job>) {
        while let Ok(job) = line.recv() {
            let over = || job.reply.is_closed() || Instant::now() >= job.ends;
            let written = self.answer(&job.prompt, &job.options, &over);
            let _nobody_waits = job.reply.send(written).is_ok();
        }
    }

    /// What [`Self::write`] gives. A panic of the library is this vote's alone: the next one begins with
    /// a decoder that has forgotten the text.
    pub(super) fn answer(
        &mut self,
        prompt: &[u32],
        options: &CompleteOptions,
        over: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, CompleterError> {
        let written = catch_unwind(AssertUnwindSafe(|| self.write(prompt, options, over)));
        written.unwrap_or_else(|_| {
            tracing::error!("the local judge panicked while it wrote a vote");
            Err(CompleterError::Failed(
                "it panicked while it wrote".to_owned(),
            ))
        })
    }

    /// The completion of `prompt`, without the token that ends it. It is looked whether it is `over`
    /// before every token and every piece of the prompt.
    pub(super) fn write(
        &mut self,
        prompt: &[u32],
        options: &CompleteOptions,
        over: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, CompleterError> {
        let most = self.model.tokens_max;
        if prompt.len() >= most {
            return Err(CompleterError::Failed(format!(
                "the prompt has {} tokens, and prompt and vote together may have {most}",
                prompt.len()
            )));
        }
        let failed = |error: candle_core::Error| CompleterError::Failed(error.to_string());
        let temperature = Some(f64::from(options.temperature)).filter(|t| *t > 0.0);
        let mut draw = LogitsProcessor::new(options.seed, temperature, None);
        let mut written = Vec::new();
        let mut logits = self.read(prompt, over)?;
        let room = (most - prompt.len()).min(options.max_tokens as usize);
        while written.len() < room {
            let token = draw.sample(&logits).map_err(failed)?;
            if self.ends.contains(&token) {
                break;
            }
            written.push(token);
            if over() {
                return Err(withdrawn());
            }
            let at = prompt.len() + written.len() - 1;
            logits = self.forward(&[token], at).map_err(failed)?;
        }
        Ok(written)
    }

    /// Logits after the prompt, which is computed in pieces of one size and then token by token.
    pub(super) fn read(
        &mut self,
        prompt: &[u32],
        over: &dyn Fn() -> bool,
    ) -> Result<Tensor, CompleterError> {
        self.model.decoder.reset();
        let whole = prompt.len() / PIECE * PIECE;
        let pieces = prompt[..whole]
            .chunks(PIECE)
            .chain(prompt[whole..].chunks(1));
        let (mut at, mut logits) = (0, None);
        for piece in pieces {
            if over() {
                return Err(withdrawn());
            }
            let after = self.forward(piece, at);
            logits = Some(after.map_err(|error| CompleterError::Failed(error.to_string()))?);
            at += piece.len();
        }
        logits.ok_or_else(|| CompleterError::Failed("the prompt is empty".to_owned()))
    }

    /// Logits after `tokens`, which stand at `at`.
    pub(super) fn forward(&mut self, tokens: &[u32], at: usize) -> candle_core::Result<Tensor> {
        let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let logits = self.model.decoder.forward(&tokens, at)?;
        logits.flatten_all()?.to_dtype(candle_core::DType::F32)
    }
}

fn withdrawn() -> CompleterError {
    CompleterError::Failed("nobody waited for it any more".to_owned())
}

/// Lets every other thread of the machine go first.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn lower_priority() {
    const NICENESS: libc::c_int = 10;
    // SAFETY: a plain system call without pointers; on Linux `0` means the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) } != 0 {
        tracing::warn!("a thread of the local judge keeps normal priority");
    }
}

#[cfg(not(target_os = "linux"))]
fn lower_priority() {}
