//! The engine as others hold it: takes asks, tells numbers, stops.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hone_domain::{
    Ask, Blobs, CallFinder, Collect, Digest, Form, Grammar, Policies, PolicyChoice, PolicyVersion,
    Scope, ServeError, Token,
};
use hone_kernels::Executor;
use hone_nn::{DeviceError, DeviceModel};
use hone_nn::{Model, Runner, embed, fingerprint, states};
use hone_runtime::{Clock, LatestReader, LoopPhase, StatusRegistry};
use hone_text::tokenizer::Tokenizer;

use crate::backend::{Answer, Backend, Cancel, Capabilities};
use crate::config::Config;
use crate::kv::KvRoom;
use crate::line::InLine;
use crate::loader::{self, LoaderCtx};
use crate::masks::{Calls, HeldGrammar, Masked, Masks};
use crate::reaper::Reaper;
use crate::sequence::{SCORED_MAX, Sequence, Setup};
use crate::shared::{Command, Life, NAME, Shared};
use crate::stats::{EngineLoad, EngineStats};
use crate::thread::{Core, CoreCtx};

/// Stack of the engine thread.
const STACK_BYTES: usize = 16 << 20;

/// Everything the engine is handed.
pub struct ServeCtx {
    /// The base model.
    pub model: Arc<Model>,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The compute threads.
    pub executor: Arc<Executor>,
    /// The device that computes the steps; none is the processor.
    pub device: Option<Arc<dyn DeviceModel>>,
    /// Tokens that end a completion.
    pub end_tokens: Vec<Token>,
    /// Where adapters are.
    pub blobs: Arc<dyn Blobs>,
    /// The newest version of every scope.
    pub policies: LatestReader<Policies>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Limits.
    pub config: Config,
    /// Where its condition is shown.
    pub registry: StatusRegistry,
}

/// The built-in engine.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    model: Arc<Model>,
    config: Config,
    pub(crate) commands: Sender<Command>,
    threads: Mutex<Option<Threads>>,
}

pub(crate) struct Threads {
    pub(crate) engine: JoinHandle<()>,
    loader: JoinHandle<()>,
}

impl Engine {
    /// Refuses what is no text of the model's.
    fn check_tokens(&self, tokens: &[Token]) -> Result<(), ServeError> {
        let vocab = self.shared.capabilities.vocab;
        if tokens.is_empty() || tokens.iter().any(|token| *token as usize >= vocab) {
            let why = format!("an embedding needs tokens below {vocab}");
            return Err(ServeError::Internal(why));
        }
        Ok(())
    }

    /// Checks the configuration, takes the memory, and starts the engine's and the loader's
    /// threads. A configuration that cannot work is an error that names the key.
    pub fn start(ctx: ServeCtx) -> Result<Self, ServeError> {
        let internal = ServeError::Internal;
        ctx.config.validate().map_err(internal)?;
        let KvRoom {
            blocks: kv_blocks,
            blocks_each,
            max_positions,
        } = KvRoom::of(&ctx.model, ctx.device.as_deref(), &ctx.config).map_err(internal)?;
        let runner = runner(&ctx, kv_blocks).map_err(internal)?;
        let (draws, proofs) = draws_and_proofs(&ctx);
        let thread = |e: std::io::Error| {
            internal(format!(
                "a thread could not be started ({e}); raise the limits of the process (ulimit -v, ulimit -u, its \
                 container)"
            ))
        };
        let capabilities = capabilities(&ctx, max_positions);
        let setup = Setup::new(ctx.tokenizer, ctx.end_tokens, max_positions);
        let masks = Masks::start().map_err(thread)?;
        let shared = Arc::new(Shared::new(setup, capabilities, kv_blocks, masks));
        let (commands, inbox) = channel();
        let (jobs, job_inbox) = tokio::sync::mpsc::channel(ctx.config.loads_parallel_max);
        let loader = LoaderCtx {
            model: Arc::clone(&ctx.model),
            executor: proofs,
            device: ctx.device.clone(),
            shared: Arc::clone(&shared),
            prove_every: Some(Duration::from_millis(ctx.config.prove_interval_ms))
                .filter(|every| !every.is_zero()),
            blobs: ctx.blobs,
            policies: ctx.policies.clone(),
            parallel: ctx.config.loads_parallel_max,
            commands: commands.clone(),
            reaper: Reaper::start().map_err(thread)?,
        };
        let loader = loader::spawn(loader, job_inbox).map_err(thread)?;
        let (config, model) = (ctx.config.clone(), Arc::clone(&ctx.model));
        let core = CoreCtx {
            shared: Arc::clone(&shared),
            model: ctx.model,
            runner,
            executor: draws,
            policies: ctx.policies,
            clock: ctx.clock,
            config: ctx.config,
            registry: ctx.registry,
            blocks_each,
            inbox,
            jobs,
        };
        let engine = std::thread::Builder::new()
            .name("hone-serve".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || run_guarded(core))
            .map_err(thread)?;
        let threads = Mutex::new(Some(Threads { engine, loader }));
        Ok(Self {
            shared,
            model,
            config,
            commands,
            threads,
        })
    }

    /// Refuses new asks, finishes the others within `drain`, fails what is left with
    /// [`ServeError::Stopping`], and waits for the threads. Again is the same.
    pub fn stop(&self, drain: Duration) {
        let Some(threads) = self.threads().take() else {
            return;
        };
        self.shared.set_life(Life::Stopping);
        // An engine that failed is gone already.
        let _ = self.commands.send(Command::Stop(Instant::now() + drain));
        // Both threads catch the panics of their work, and there is nobody to pass one on to.
        let _ = threads.engine.join();
        let _ = threads.loader.join();
    }

    /// Whether it answers asks.
    pub fn is_live(&self) -> bool {
        self.shared.live() == Life::Running
    }

    /// How much it has to do.
    pub fn load(&self) -> EngineLoad {
        self.shared.counters.load()
    }

    pub(crate) fn threads(&self) -> MutexGuard<'_, Option<Threads>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, ask: &Ask) -> Result<(), ServeError> {
        match self.shared.live() {
            Life::Running => {}
            Life::Stopping => return Err(ServeError::Stopping),
            Life::Failed => {
                return Err(ServeError::Internal(
                    "the engine gave up; see the server's log".to_owned(),
                ));
            }
        }
        if let PolicyChoice::Exact(policy) = &ask.policy
            && policy.scope != ask.scope
        {
            return Err(ServeError::Internal(
                "a version of another scope was asked for".to_owned(),
            ));
        }
        let (prompt_tokens, max_positions) =
            (ask.prompt_tokens.len(), self.shared.setup.max_positions);
        if prompt_tokens + ask.given.len().max(1) > max_positions {
            return Err(ServeError::TooLong {
                prompt_tokens,
                max_positions,
                model_positions: self.shared.capabilities.model_positions,
            });
        }
        if !ask.given.is_empty() && (ask.collect == Collect::Yes || ask.form.is_some()) {
            let why = "a given completion is neither collected nor held to a form";
            return Err(ServeError::Internal(why.to_owned()));
        }
        let vocab = self.shared.capabilities.vocab;
        let guessed = &*ask.predicted;
        let mut tokens = ask.prompt_tokens.iter().chain(&ask.given).chain(guessed);
        match tokens.find(|token| **token as usize >= vocab) {
            Some(token) => Err(ServeError::Internal(format!(
                "token {token} is not in the vocabulary of {vocab}"
            ))),
            None if prompt_tokens == 0 => {
                Err(ServeError::Internal("the prompt has no tokens".to_owned()))
            }
            None => Ok(()),
        }
    }

    /// Takes a place in the waiting line, where the line and this owner's part of it have one.
    fn line_up(&self, owner: &str) -> Result<InLine, ServeError> {
        let (counters, limit) = (&self.shared.counters, self.config.waiting_max);
        let own_limit = self.config.waiting_per_owner_max.min(limit);
        let waiting = counters.waiting.fetch_add(1, Ordering::Relaxed);
        let place = (waiting < limit).then(|| self.shared.line.enter(owner, own_limit));
        let limit = match place {
            Some(Some(place)) => return Ok(place),
            Some(None) => own_limit,
            None => limit,
        };
        counters.waiting.fetch_sub(1, Ordering::Relaxed);
        counters.overloaded.fetch_add(1, Ordering::Relaxed);
        // The line moves by one whenever one of the running requests ends.
        let each_us = counters.request_us.load(Ordering::Relaxed) / self.config.running_max as u64;
        let retry_after_ms = (each_us * waiting as u64 / 1_000).clamp(100, 60_000);
        Err(ServeError::Overloaded {
            limit,
            retry_after_ms,
        })
    }
}

impl Backend for Engine {
    fn ask(&self, ask: Ask) -> Result<Answer, ServeError> {
        self.check(&ask)?;
        let constraint = match &ask.form {
            Some(form) => Some((form, self.shared.constraint(form.grammar())?)),
            None => None,
        };
        let place = self.line_up(ask.context.counts_as())?;
        // Its first mask is asked for, which a refused one has no use for.
        let masks = &self.shared.masks;
        let masked = constraint.map(|(form, constraint)| match form {
            Form::Whole(_) => Masked::new(constraint, masks.clone()),
            Form::Calls {
                style,
                reasoning,
                single,
                ..
            } => {
                let tokenizer = Arc::clone(&self.shared.setup.tokenizer);
                let finder = CallFinder::new(*style, *reasoning);
                let calls = Calls::new(constraint, finder, *single, tokenizer);
                Masked::calls(calls, masks.clone())
            }
        });
        let (mut sequence, deltas, cancel) = Sequence::new(ask, masked, &self.shared.setup);
        sequence.in_line = Some(place);
        if self.commands.send(Command::Ask(sequence)).is_err() {
            self.shared.counters.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(ServeError::Stopping);
        }
        self.shared
            .counters
            .requests
            .fetch_add(1, Ordering::Relaxed);
        Ok(Answer { deltas, cancel })
    }

    fn check_grammar(&self, grammar: &Grammar) -> Result<HeldGrammar, ServeError> {
        let (setup, vocab) = (&self.shared.setup, self.shared.capabilities.vocab);
        self.shared.grammars.hold(grammar, setup, vocab)
    }

    fn embed(&self, tokens: &[Token], cancel: &Cancel) -> Result<Vec<f32>, ServeError> {
        self.check_tokens(tokens)?;
        // A thread of its own, so that no step of the engine waits for it.
        let is_wanted = || !cancel.is_cancelled();
        embed(&self.model, tokens, &Executor::new(1), is_wanted).ok_or(ServeError::Late)
    }

    fn states(
        &self,
        tokens: &[Token],
        from: usize,
        cancel: &Cancel,
    ) -> Result<Vec<f32>, ServeError> {
        self.check_tokens(tokens)?;
        let layers = self.model.config.layers;
        let layers = [layers.div_ceil(2), (layers * 2).div_ceil(3)];
        let is_wanted = || !cancel.is_cancelled();
        let states = states(
            &self.model,
            tokens,
            from,
            &layers,
            &Executor::new(1),
            is_wanted,
        );
        states.map(|layers| layers.concat()).ok_or(ServeError::Late)
    }

    fn withdraw(&self, scope: &Scope, versions: &[PolicyVersion]) {
        let (scope, versions) = (scope.clone(), versions.to_vec());
        // A stopped engine serves nothing.
        let _ = self.commands.send(Command::Withdraw { scope, versions });
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities.clone()
    }

    fn stats(&self) -> EngineStats {
        self.shared
            .counters
            .snapshot(self.config.waiting_max, self.shared.kv_blocks)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// The engine thread. Steps catch their own panics; one from elsewhere ends the engine, visibly.
fn run_guarded(ctx: CoreCtx) {
    let (shared, registry) = (Arc::clone(&ctx.shared), ctx.registry.clone());
    if catch_unwind(AssertUnwindSafe(|| Core::new(ctx).run())).is_err() {
        shared.set_life(Life::Failed);
        tracing::error!("the engine thread panicked outside a step and is gone");
        registry.update(NAME, |s| {
            s.state = LoopPhase::Stopped;
            s.last_error = Some("the engine thread panicked outside a step".to_owned());
        });
    }
}

/// What the engine draws on, and what adapters are proven on while they are loaded: the threads that
/// compute and others, half as many. Neither waits for the other. With a device those that compute are
/// free for the proofs.
fn draws_and_proofs(ctx: &ServeCtx) -> (Arc<Executor>, Arc<Executor>) {
    let all = Arc::clone(&ctx.executor);
    let half = Arc::new(Executor::new(all.threads() / 2));
    match ctx.device {
        Some(_) => (half, all),
        None => (all, half),
    }
}

fn runner(ctx: &ServeCtx, blocks: usize) -> Result<Runner, String> {
    let Some(device) = &ctx.device else {
        let (model, executor) = (Arc::clone(&ctx.model), Arc::clone(&ctx.executor));
        let bytes = blocks * hone_nn::KvPool::bytes_per_block(&ctx.model.config, ctx.model.kv);
        return Runner::try_on_processor(model, executor, blocks).map_err(|error| {
            format!(
                "there is no memory for keys and values of {} MiB ({error}); lower \
                 serve.kv_cache_bytes_max, raise the limit of the process (ulimit -v, its container), or \
                 serve a smaller model",
                bytes >> 20
            )
        });
    };
    if !Arc::ptr_eq(device.model(), &ctx.model) {
        return Err("the device holds another model than the one to serve".to_owned());
    }
    let rows = ctx.config.step_tokens_max;
    let picked = rows.min(ctx.config.running_max + SCORED_MAX);
    let runner = Runner::on_device(device, blocks).map_err(|error| error.to_string())?;
    runner.reserved(rows, picked).map_err(|error| match error {
        DeviceError::Memory { .. } => format!(
            "keys and values take {} bytes and leave too little for steps of serve.step_tokens_max = {rows} \
             tokens ({error}); lower serve.kv_cache_bytes_max or serve.step_tokens_max",
            blocks * device.bytes_per_block()
        ),
        error => error.to_string(),
    })
}

fn capabilities(ctx: &ServeCtx, max_positions: usize) -> Capabilities {
    Capabilities {
        name: "hone",
        exact_parity: true,
        token_ids: true,
        logprobs: true,
        can_train: true,
        forms: true,
        drafts: ctx.config.draft_tokens_max > 0,
        max_positions,
        model_positions: ctx.model.config.max_positions,
        vocab: ctx.model.config.vocab,
        fingerprint: fingerprint(&ctx.model),
        base: Digest(ctx.model.digest),
        end_tokens: ctx.end_tokens.clone(),
        experts_chosen: ctx.model.config.experts.as_ref().map_or(0, |e| e.chosen),
    }
}
