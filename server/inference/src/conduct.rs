//! One task per choice, independent of the HTTP connection: it follows the engine to the end,
//! records the turn, waits for its receipt, and only then lets the end go out.

use std::sync::Arc;
use std::time::Duration;

use hone_domain::{
    Ask, Collect, Completion, Delta, End, Millis, OutputFormat, OutputParser, Part, PendingTurn,
    PolicyVersion, Predicted, Reason, Receipt, ServeError, SessionId, ShownMemory, ShownSkill,
    StopReason, Token, TokenDelta, Transcript, Turn, TurnId,
};
use hone_serve::Answer;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::InferenceService;
use super::arguments::Offered;
use super::episode::EpisodeAccess;
use hone_accounts::rate_limit::UsageRecorder;
use hone_collect::Input;
use hone_monitor::in_place::LOST;
use hone_monitor::telemetry::{Completed, Parent};

/// How long the engine may take to end what was cancelled.
const CANCEL_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the note of a turn that is not collected.
const NOTE_TIMEOUT: Duration = Duration::from_millis(250);

/// A choice on its way to the client.
#[derive(Debug)]
pub struct Choice {
    /// Which of the reply's choices.
    pub index: u32,
    /// Its turn.
    pub turn: TurnId,
    /// Its pieces, in order; dropping this cancels the completion.
    pub pieces: mpsc::Receiver<Piece>,
}

/// What happens to a choice.
#[derive(Debug)]
pub enum Piece {
    /// It was admitted under this version.
    Started {
        /// The version.
        version: PolicyVersion,
        /// Prompt tokens that were not computed again.
        cached_tokens: u32,
    },
    /// A token, whether it belongs to the reasoning, and what of the answer became certain with it.
    Token(TokenDelta, bool, Vec<Part>),
    /// What had been held back until the end.
    Rest(Vec<Part>),
    /// The end, with its receipt.
    Ended(Ended),
    /// It failed; nothing follows.
    Failed(ServeError),
}

/// The end of a choice.
#[derive(Debug)]
pub struct Ended {
    /// Why sampling ended.
    pub stop: StopReason,
    /// The version that sampled it.
    pub version: PolicyVersion,
    /// All sampled tokens, and what the sampler knew about them.
    pub completion: Completion,
    /// How many of them belong to the reasoning, its tags among them.
    pub reasoning_tokens: usize,
    /// What became of what was predicted, where something was.
    pub predicted: Option<Predicted>,
    /// What became of its record.
    pub receipt: Receipt,
    /// Its turn.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionId,
    /// The memories that its prompt shows.
    pub memories: Vec<ShownMemory>,
    /// The skills that its prompt shows.
    pub skills: Vec<ShownSkill>,
    /// Whether its person is asked if it is to be learned from although its client says `store: false`.
    pub asks_consent: bool,
}

/// A choice that was asked for.
pub(super) struct Job {
    pub(super) ask: Ask,
    pub(super) answer: Answer,
    pub(super) prompt_text: Option<Arc<str>>,
    pub(super) output_format: OutputFormat,
    /// The tools that its calls are of.
    pub(super) offered: Option<Arc<Offered>>,
    pub(super) collect: Collect,
    pub(super) done: bool,
    /// Who pays for its tokens, where somebody counts them.
    pub(super) usage: Option<UsageRecorder>,
    /// The client's span.
    pub(super) parent: Option<Parent>,
    /// The episode whose agent asked.
    pub(super) episode: Option<Arc<EpisodeAccess>>,
}

/// Starts the task of a choice.
pub(super) fn conduct(inference: Arc<InferenceService>, job: Job) -> Choice {
    // As long as the engine's own channel, so that a slow client never holds up the record.
    let (out, pieces) = mpsc::channel(job.ask.stop.max_tokens as usize + 16);
    let choice = Choice {
        index: job.ask.choice_index,
        turn: job.ask.turn,
        pieces,
    };
    let live = inference.live.enter();
    tokio::spawn(async move {
        let _live = live;
        follow(&inference, job, out).await;
    });
    choice
}

/// What ends a completion before it ends by itself.
#[derive(Default)]
struct Cut {
    /// What its client is told instead of an end.
    error: Option<ServeError>,
    /// Its client left.
    is_left: bool,
    /// It has taken too long, and ends with what was said.
    is_late: bool,
}

impl Cut {
    /// It has taken too long, and its client is to be told so now: nothing was said, or the engine
    /// does not end it.
    fn late(&mut self, is_begun: bool) -> Option<ServeError> {
        if is_begun && !self.is_late {
            self.is_late = true;
            return None;
        }
        self.error = Some(ServeError::Late);
        self.error.clone()
    }

    /// Why sampling ended.
    fn stop(&mut self, stop: StopReason) -> StopReason {
        if stop != StopReason::Cancelled || self.is_left {
            return stop;
        }
        if self.is_late && self.error.is_none() {
            return StopReason::Length;
        }
        // Where nobody here cancelled it, the engine did: it is stopping.
        self.error.get_or_insert(ServeError::Stopping);
        stop
    }
}

/// Reads deltas to the end, whether or not somebody still listens.
async fn follow(inference: &InferenceService, mut job: Job, out: mpsc::Sender<Piece>) {
    let late = sleep_until(Instant::now() + inference.limits.completion_timeout);
    let abort = inference.abort.wait();
    tokio::pin!(late, abort);
    let mut parser = CompletionParser::new(job.output_format, job.offered.take());
    let mut cut = Cut::default();
    let mut first_token_ms = None;
    loop {
        let delta = tokio::select! {
            delta = job.answer.deltas.recv() => delta,
            () = out.closed(), if !cut.is_left => {
                cut.is_left = true;
                job.answer.cancel.cancel();
                continue;
            }
            () = &mut abort, if cut.error.is_none() => {
                cut.error = Some(ServeError::Stopping);
                job.answer.cancel.cancel();
                continue;
            }
            () = &mut late, if cut.error.is_none() => {
                job.answer.cancel.cancel();
                late.as_mut().reset(Instant::now() + CANCEL_PATIENCE);
                if let Some(error) = cut.late(first_token_ms.is_some()) {
                    // The end is still recorded.
                    send(&out, Piece::Failed(error));
                }
                continue;
            }
        };
        match delta {
            Some(Delta::Started {
                version,
                cached_tokens,
            }) => send(
                &out,
                Piece::Started {
                    version,
                    cached_tokens,
                },
            ),
            Some(Delta::Token(token)) => {
                first_token_ms.get_or_insert_with(|| inference.clock.now_ms());
                let (is_thought, parts) = parser.token(&token.text);
                send(&out, Piece::Token(token, is_thought, parts));
            }
            Some(Delta::End(mut end)) => {
                end.stop = cut.stop(end.stop);
                let how = (&out, cut.error, first_token_ms);
                return finish(inference, (job, parser), *end, how).await;
            }
            Some(Delta::Failed(error)) => {
                return fail(inference, &job, first_token_ms, &out, error);
            }
            None => {
                let error = ServeError::Internal("the engine ended without an answer".to_owned());
                let error = cut.error.unwrap_or(error);
                return fail(inference, &job, first_token_ms, &out, error);
            }
        }
    }
}

/// The completion failed.
fn fail(
    inference: &InferenceService,
    job: &Job,
    first_token_ms: Option<Millis>,
    out: &mpsc::Sender<Piece>,
    error: ServeError,
) {
    inference.counters.failed.add(1);
    if let Some(episode) = &job.episode {
        episode.failed(&error);
    }
    tell(inference, job, first_token_ms, Err(&error), 0);
    send(out, Piece::Failed(error));
}

/// Parser of one completion, with its text as sampled so far.
struct CompletionParser {
    text: String,
    output: OutputParser,
    /// Tokens of reasoning.
    thoughts: usize,
    /// Calls that began.
    calls_begun: usize,
}

impl CompletionParser {
    fn new(output_format: OutputFormat, offered: Option<Arc<Offered>>) -> Self {
        let output = match offered {
            Some(offered) => OutputParser::among(output_format, offered),
            None => OutputParser::new(output_format),
        };
        Self {
            text: String::new(),
            output,
            thoughts: 0,
            calls_begun: 0,
        }
    }

    /// Takes a token: whether it belongs to the reasoning, and the parts that became certain with it.
    fn token(&mut self, text: &str) -> (bool, Vec<Part>) {
        let was_thinking = self.output.is_thinking();
        let parts = self.push(text);
        let is_thought = was_thinking || self.output.is_thinking();
        self.thoughts += usize::from(is_thought);
        (is_thought, parts)
    }

    fn push(&mut self, text: &str) -> Vec<Part> {
        self.text.push_str(text);
        let parts = self.output.push(text);
        self.count(&parts);
        parts
    }

    fn count(&mut self, parts: &[Part]) {
        let begun = parts
            .iter()
            .filter(|part| matches!(part, Part::CallBegun(_)));
        self.calls_begun += begun.count();
    }

    fn finish(&mut self, text: &str) -> Vec<Part> {
        let mut parts = self.push(text);
        let rest = self.output.finish();
        self.count(&rest);
        parts.extend(rest);
        parts
    }

    /// How the end is told: an answer whose last call is not whole was cut short, where no stop string of
    /// its client cut it.
    fn told(&self, stop: StopReason) -> StopReason {
        let is_cut = self.calls_begun > self.output.whole_calls();
        match self.stop(stop) {
            StopReason::EndToken | StopReason::ToolCall if is_cut => StopReason::Length,
            stop => stop,
        }
    }

    /// An answer that calls and ends by itself ends with its calls. A call that is not whole is none.
    fn stop(&self, stop: StopReason) -> StopReason {
        let called = self.output.whole_calls() > 0;
        match stop {
            StopReason::EndToken | StopReason::StopString if called => StopReason::ToolCall,
            stop => stop,
        }
    }
}

/// Sends a piece; the channel has room for every one, and a client that left misses nothing.
fn send(out: &mpsc::Sender<Piece>, piece: Piece) {
    let _left_or_sent = out.try_send(piece).is_ok();
}

async fn finish(
    inference: &InferenceService,
    (job, mut parser): (Job, CompletionParser),
    mut end: End,
    (out, cancelled, first_token_ms): (&mpsc::Sender<Piece>, Option<ServeError>, Option<Millis>),
) {
    let rest = parser.finish(&end.text);
    if !rest.is_empty() {
        send(out, Piece::Rest(rest));
    }
    let told_stop = parser.told(end.stop);
    let stop = parser.stop(end.stop);
    if let Some(turn) = &mut end.turn {
        turn.completion.set_stop(stop);
    }
    inference.counters.stopped(stop);
    let tokens = end.completion.tokens().to_vec();
    if let Some(usage) = &job.usage {
        usage.record(tokens.len());
    }
    let version = end.version;
    if let Some(episode) = &job.episode {
        episode.answered(version);
    }
    let (reasoning_tokens, predicted) = (parser.thoughts, end.predicted);
    let receipt = offer(inference, job.collect, end.turn);
    remember(inference, &job, parser.text, &tokens, stop);
    if job.done {
        inference.session_done(job.ask.context.session);
    }
    let receipt = match receipt {
        Ok(mut waiting) => {
            let receipt = signed(inference, &mut waiting).await;
            match receipt {
                Receipt::Collected => inference.notify_memory(&job.ask.context.admission.memory),
                // Memory reads it once it is in the ledger.
                Receipt::Spooled => {}
                Receipt::NotCollected(_) => note(inference, job.ask.turn).await,
            }
            receipt
        }
        Err(reason) => Receipt::NotCollected(reason),
    };
    inference.counters.receipt(receipt);
    let how = match &cancelled {
        Some(error) => Err(error),
        None => Ok((stop, version, !matches!(receipt, Receipt::NotCollected(_)))),
    };
    tell(inference, &job, first_token_ms, how, tokens.len());
    let piece = match cancelled {
        Some(error) => Piece::Failed(error),
        None => Piece::Ended(Ended {
            stop: told_stop,
            version,
            completion: end.completion,
            reasoning_tokens,
            predicted,
            receipt,
            turn: job.ask.turn,
            session: job.ask.context.session,
            memories: job.ask.context.admission.memory.shown.clone(),
            skills: job.ask.context.admission.memory.skills.clone(),
            asks_consent: asks_consent(inference, &job.ask, receipt),
        }),
    };
    send(out, piece);
}

/// Whether a person has still to decide about clients that say `store: false` with every request.
fn asks_consent(inference: &InferenceService, ask: &Ask, receipt: Receipt) -> bool {
    let is_told = receipt == Receipt::NotCollected(Reason::StoreFalse);
    is_told && !inference.rules.consent(&ask.context.owner, &ask.scope).1
}

/// Tells the collector of traces, where there is one.
fn tell(
    inference: &InferenceService,
    job: &Job,
    first_token_ms: Option<Millis>,
    outcome: Result<(StopReason, PolicyVersion, bool), &ServeError>,
    tokens: usize,
) {
    if let Some(telemetry) = &inference.telemetry {
        telemetry.completed(&Completed {
            ask: &job.ask,
            parent: job.parent,
            first_token_ms,
            ended_ms: inference.clock.now_ms(),
            tokens,
            outcome,
        });
    }
}

/// Notes that a turn's client is told that it is not collected, before it is told: the turn may be
/// on disk, and collect, which would settle it, may not live to do so. A disk that does not even
/// take this is not waited for.
async fn note(inference: &InferenceService, turn: TurnId) {
    let late = inference.late.clone();
    let noted = tokio::task::spawn_blocking(move || late.note(turn));
    let error = match timeout(NOTE_TIMEOUT, noted).await {
        Ok(Ok(Ok(()))) => return,
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it took too long".to_owned(),
    };
    inference.counters.late_unnoted.add(1);
    tracing::error!(%turn, error, "a turn that is not collected could not be noted");
}

/// Waits for a turn's receipt, not beyond the limit, and not for a ledger that is gone.
async fn signed(inference: &InferenceService, waiting: &mut oneshot::Receiver<Receipt>) -> Receipt {
    let given_up = tokio::select! {
        biased;
        receipt = &mut *waiting => {
            return receipt.unwrap_or(Receipt::NotCollected(Reason::LedgerFailed));
        }
        () = inference.troubles.begun(LOST) => Reason::LedgerFailed,
        () = tokio::time::sleep(inference.limits.receipt_timeout) => Reason::LateReceipt,
    };
    // Collect is told that the client is told so, unless the receipt came just now.
    waiting.close();
    let receipt = waiting.try_recv();
    receipt.unwrap_or(Receipt::NotCollected(given_up))
}

/// Offers a turn to collect; the receipt comes later.
fn offer(
    inference: &InferenceService,
    collect: Collect,
    turn: Option<Box<Turn>>,
) -> Result<oneshot::Receiver<Receipt>, Reason> {
    if let Collect::No(reason) = collect {
        return Err(reason);
    }
    let Some(turn) = turn else {
        return Err(Reason::EmptyCompletion);
    };
    let Some(queue) = &inference.collect else {
        return Err(Reason::NoCollector);
    };
    if inference.troubles.lasts(LOST) {
        return Err(Reason::LedgerFailed);
    }
    let (receipt, waiting) = oneshot::channel();
    match queue.send(Input::Turn { turn, receipt }) {
        Ok(()) => Ok(waiting),
        Err(_) => Err(Reason::QueueFull),
    }
}

/// Remembers a turn, so that the next request can continue it, or repeat it where its answer never
/// arrived. Nothing continues a side turn.
fn remember(
    inference: &InferenceService,
    job: &Job,
    text: String,
    tokens: &[Token],
    stop: StopReason,
) {
    let ask = &job.ask;
    let transcript = job.prompt_text.as_ref().map(|prompt| {
        let all: Vec<Token> = ask.prompt_tokens.iter().chain(tokens).copied().collect();
        Transcript {
            text: Arc::from(format!("{prompt}{}", inference.language.decode(tokens))),
            tokens: all.into(),
        }
    });
    let text = match ask.context.admission.branch {
        // Its client goes on from the whole answer.
        Some(branch) => {
            let (_, prefix) = branch.split(&ask.prompt_tokens);
            inference.language.decode(prefix) + &text
        }
        None => text,
    };
    let pending = PendingTurn {
        turn: ask.turn,
        session: ask.context.session,
        session_key: ask.context.session_key.clone(),
        owner: ask.context.counts_as().to_owned(),
        scope: ask.scope.clone(),
        messages: ask.context.messages.to_vec(),
        completion: hone_domain::Message::text(hone_domain::Role::Assistant, text),
        parent: ask.context.parent,
        memories: ask.context.admission.memory.shown.clone(),
        skills: ask.context.admission.memory.skills.clone(),
        kind: ask.kind,
        delivered: stop != StopReason::Cancelled,
        continued: false,
        ended_ms: inference.clock.now_ms(),
    };
    let trail = inference.trail(&pending.scope, &pending.messages);
    inference.index().record_by(&pending, &trail, transcript);
}
