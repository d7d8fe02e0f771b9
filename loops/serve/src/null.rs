//! A backend without a model: answers at once, always the same. For load tests of everything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hone_domain::{
    Ask, Collect, Completion, Delta, Digest, End, PolicyVersion, Reason, ServeError, StopReason,
    Token, TokenDelta,
};
use hone_runtime::Clock;
use tokio::sync::mpsc;

use crate::backend::{Answer, Backend, Cancel, Capabilities};
use crate::sequence::{TurnFacts, turn_of};
use crate::stats::EngineStats;

/// What the null backend says.
#[derive(Clone, Debug)]
pub struct NullCompletion {
    /// Every token with its text.
    pub pieces: Vec<(Token, String)>,
    /// The token that ends it.
    pub end_token: Token,
    /// Most tokens of prompt and completion together.
    pub max_positions: usize,
    /// Vocabulary size.
    pub vocab: usize,
}

/// Answers every ask with one fixed completion, of which `max_tokens` may cut the end. Log-probs
/// are 0: a distribution with one choice. Its turns never train.
pub struct NullBackend {
    said: NullCompletion,
    clock: Arc<dyn Clock>,
    requests: AtomicU64,
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
}

const FINGERPRINT: &str = "null";
const BASE: Digest = Digest([0; 32]);

impl NullBackend {
    /// A backend that says `said`.
    pub fn new(said: NullCompletion, clock: Arc<dyn Clock>) -> Self {
        Self {
            said,
            clock,
            requests: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            completion_tokens: AtomicU64::new(0),
        }
    }

    fn end(&self, mut ask: Ask, count: usize, stop: StopReason) -> Box<End> {
        let pieces = &self.said.pieces[..count];
        let mut tokens: Vec<Token> = pieces.iter().map(|(token, _)| *token).collect();
        if stop == StopReason::EndToken {
            tokens.push(self.said.end_token);
        }
        let n = tokens.len();
        self.completion_tokens.fetch_add(n as u64, Relaxed);
        let completion = Completion::new(tokens, vec![0.0; n], vec![0.0; n], vec![None; n], stop)
            .expect("all arrays have one entry per token and log-prob 0");
        let version = PolicyVersion::BASE;
        let turn = (ask.collect == Collect::Yes).then(|| {
            let facts = TurnFacts {
                base: BASE,
                fingerprint: FINGERPRINT,
                version,
                digest: None,
                untrainable: Some(Reason::BackendCannotTrain),
                finished_ms: self.clock.now_ms(),
            };
            let text = pieces.iter().map(|(_, text)| text.as_str()).collect();
            let prompt = std::mem::take(&mut ask.prompt_tokens);
            Box::new(turn_of(ask, prompt, (completion.clone(), text), &facts))
        });
        Box::new(End {
            stop,
            text: String::new(),
            completion,
            version,
            predicted: None,
            turn,
        })
    }
}

impl Backend for NullBackend {
    fn ask(&self, ask: Ask) -> Result<Answer, ServeError> {
        let (prompt, max_positions) = (ask.prompt_tokens.len(), self.said.max_positions);
        if prompt >= max_positions {
            return Err(ServeError::TooLong {
                prompt_tokens: prompt,
                max_positions,
                model_positions: max_positions,
            });
        }
        if !ask.given.is_empty() {
            let why = "this backend has no weights to score a completion with";
            return Err(ServeError::Unsupported(why.to_owned()));
        }
        self.requests.fetch_add(1, Relaxed);
        self.prompt_tokens.fetch_add(prompt as u64, Relaxed);
        let room = (ask.stop.max_tokens.max(1) as usize).min(max_positions - prompt);
        let count = self.said.pieces.len().min(room);
        let stop = if count < room {
            StopReason::EndToken
        } else {
            StopReason::Length
        };
        let top = usize::from(ask.sampling.top_logprobs > 0);
        let (sender, deltas) = mpsc::channel(count + 2);
        // The channel holds all of it and its reader is in hand, so sending cannot fail.
        let send = |delta| {
            sender
                .try_send(delta)
                .expect("there is room for the whole completion");
        };
        send(Delta::Started {
            version: PolicyVersion::BASE,
            cached_tokens: 0,
        });
        for (token, text) in &self.said.pieces[..count] {
            let top = vec![(*token, 0.0); top];
            send(Delta::Token(TokenDelta {
                text: text.clone(),
                token: *token,
                logprob: 0.0,
                behavior_logprob: 0.0,
                top,
            }));
        }
        send(Delta::End(self.end(ask, count, stop)));
        Ok(Answer {
            deltas,
            cancel: Cancel::default(),
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "null",
            exact_parity: false,
            token_ids: true,
            logprobs: true,
            can_train: false,
            forms: false,
            drafts: false,
            max_positions: self.said.max_positions,
            model_positions: self.said.max_positions,
            vocab: self.said.vocab,
            fingerprint: FINGERPRINT.to_owned(),
            base: BASE,
            end_tokens: vec![self.said.end_token],
            experts_chosen: 0,
        }
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            requests_total: self.requests.load(Relaxed),
            prompt_tokens_total: self.prompt_tokens.load(Relaxed),
            completion_tokens_total: self.completion_tokens.load(Relaxed),
            ..EngineStats::default()
        }
    }
}
