//! One request inside the engine: its tokens, its place in the cache, its text.

mod cache;
mod draft;
mod drafts;
mod given;
mod kept;
mod setup;
mod text;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use hone_domain::{Ask, Delta, Origin, PolicyChoice, Reasoning, SamplingMask, Token};
use hone_nn::sample::{SamplingParams, TokenCounts};
use hone_text::detokenizer::IncrementalDetokenizer;
use tokio::sync::mpsc;

use crate::adapters::Pinned;
use crate::backend::Cancel;
use crate::line::InLine;
use crate::masks::Masked;
use crate::plan::Place;
use crate::prefix::ChainKey;
use crate::stop::Ending;

use self::drafts::Drafts;
use self::kept::KeptIds;
pub(crate) use cache::Coming;
pub(crate) use draft::Taken;
pub(crate) use given::SCORED_MAX;
pub(crate) use setup::Setup;
pub(crate) use text::{MASK_WAIT, TurnFacts, turn_of};

/// Room in the channel beyond the tokens: start, end, and some to spare.
const CHANNEL_SPARE: usize = 8;

/// Priority class of an ask; 0 is the best.
pub(crate) fn class_of(origin: Origin) -> u8 {
    match origin {
        Origin::User => 0,
        Origin::Judge => 1,
        Origin::Rollout => 2,
        Origin::Gate | Origin::Outside => 3,
    }
}

/// A request from its arrival to its end.
pub(crate) struct Sequence {
    ask: Ask,
    pub(crate) place: Place,
    pub(crate) class: u8,
    /// Whose it is, as a hash; two owners of one hash would share their turns in the line.
    pub(crate) owner: u64,
    /// Prompt and completion; of a completion that is given, all but its last token.
    tokens: Vec<Token>,
    prompt: usize,
    /// The completion that is to be scored; empty where one is to be sampled.
    given: Vec<Token>,
    max_tokens: usize,

    params: SamplingParams,
    counts: TokenCounts,
    penalizes: bool,
    behavior: Vec<f32>,
    raw: Vec<f32>,
    kept: Vec<Option<SamplingMask>>,
    /// Those of them that differ.
    sets: Vec<SamplingMask>,
    /// Ids in `sets`.
    kept_ids: KeptIds,
    /// Experts used where each token was predicted, and where the next one is.
    experts: Vec<u16>,
    next_experts: Vec<u16>,
    /// Where a grammar rules.
    masked: Option<Masked>,
    /// Logits of the next token whose mask was not there in time.
    late: Option<Vec<f32>>,
    drafts: Drafts,

    detok: IncrementalDetokenizer,
    ending: Ending,
    /// Text given out so far.
    text: String,

    pub(crate) pinned: Pinned,
    root: ChainKey,
    /// Keys of the first full blocks, as far as they were needed.
    keys: Vec<ChainKey>,
    /// Cached blocks found while waiting.
    found: Vec<u32>,
    table: Vec<u32>,
    /// Blocks at the start of the table that were given back because no layer sees them any more.
    unseen: usize,
    /// Full blocks that were offered to the prefix cache.
    published: usize,
    pub(crate) computed: usize,
    pub(crate) last_turn: u64,
    /// While it waits for blocks: how many passed it.
    pub(crate) passed: u32,
    /// Whether it was admitted once; then its version no longer changes.
    pub(crate) started: bool,

    out: mpsc::Sender<Delta>,
    cancel: Cancel,
    pub(crate) arrived: Instant,
    pub(crate) begun: Option<Instant>,
    /// Its place among its owner's in the waiting line, until it begins.
    pub(crate) in_line: Option<InLine>,
    pub(crate) last_token: Option<Instant>,
}

fn hash_of(owner: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    owner.hash(&mut hasher);
    hasher.finish()
}

impl Sequence {
    /// Everything a request needs but its place and version; made on the asker's thread.
    pub(crate) fn new(
        mut ask: Ask,
        masked: Option<Masked>,
        setup: &Setup,
    ) -> (Box<Self>, mpsc::Receiver<Delta>, Cancel) {
        let mut tokens = std::mem::take(&mut ask.prompt_tokens);
        let prompt = tokens.len();
        let given = std::mem::take(&mut ask.given);
        let thinks = ask.stop.output_format.reasoning == Reasoning::Open;
        let drafts = Drafts::new(std::mem::take(&mut ask.predicted), thinks);
        let max_tokens = match given.split_last() {
            Some((_, before)) => {
                tokens.extend_from_slice(before);
                given.len()
            }
            None => (ask.stop.max_tokens.max(1) as usize).min(setup.max_positions - prompt),
        };
        let params = params_of(&ask, &setup.end_tokens);
        let penalizes = params.penalizes();
        let counts = match penalizes {
            true => TokenCounts::new(&tokens),
            false => TokenCounts::default(),
        };
        let (out, deltas) = mpsc::channel(max_tokens + CHANNEL_SPARE);
        let cancel = Cancel::default();
        let sequence = Self {
            place: (0, 0),
            class: class_of(ask.origin),
            owner: hash_of(ask.context.counts_as()),
            prompt,
            given,
            max_tokens,
            params,
            counts,
            penalizes,
            behavior: Vec::new(),
            raw: Vec::new(),
            kept: Vec::new(),
            sets: Vec::new(),
            kept_ids: KeptIds::new(&setup.kept_ids),
            experts: Vec::new(),
            next_experts: Vec::new(),
            masked,
            late: None,
            drafts,
            detok: IncrementalDetokenizer::without_special(Arc::clone(&setup.tokenizer)),
            ending: Ending::new(&ask.stop),
            text: String::new(),
            pinned: Pinned::base(),
            root: 0,
            keys: Vec::new(),
            found: Vec::new(),
            table: Vec::new(),
            unseen: 0,
            published: 0,
            computed: 0,
            last_turn: 0,
            passed: 0,
            started: false,
            out,
            cancel: cancel.clone(),
            arrived: Instant::now(),
            begun: None,
            in_line: None,
            last_token: None,
            tokens,
            ask,
        };
        (Box::new(sequence), deltas, cancel)
    }

    pub(crate) fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Whether it takes the newest version, so that what it uses is worth having under the next.
    /// What is only scored is not asked for again.
    pub(crate) fn follows(&self) -> bool {
        self.ask.policy == PolicyChoice::Newest && self.given.is_empty()
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt
    }

    pub(crate) fn completion_tokens(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    pub(crate) fn table(&self) -> &[u32] {
        &self.table
    }

    /// The next `count` tokens to compute.
    pub(crate) fn next_tokens(&self, count: usize) -> &[Token] {
        &self.tokens[self.computed..self.computed + count]
    }

    /// Whether computing `count` more tokens reaches the end, so that the next can be sampled.
    pub(crate) fn samples_after(&self, count: usize) -> bool {
        self.given.is_empty() && self.computed + count == self.tokens.len()
    }

    /// The client left or asked for the end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled() || self.out.is_closed()
    }

    /// The channel holds a whole completion, so it can only be closed, which the next look at
    /// [`Self::is_cancelled`] notices.
    pub(crate) fn send(&self, delta: Delta) {
        let sent = self.out.try_send(delta);
        debug_assert!(
            !matches!(sent, Err(mpsc::error::TrySendError::Full(_))),
            "room for all"
        );
    }

    /// Binds it to a version, before it has begun.
    pub(crate) fn pin(&mut self, pinned: Pinned, root: ChainKey) {
        debug_assert!(!self.started, "a version is pinned to the end");
        self.pinned = pinned;
        if self.root != root {
            self.root = root;
            self.keys.clear();
        }
    }
}

fn params_of(ask: &Ask, end_tokens: &[Token]) -> SamplingParams {
    let wanted = &ask.sampling;
    let banned = wanted.min_tokens > 0 && !ask.stop.ignore_end;
    SamplingParams {
        temperature: wanted.temperature,
        top_p: wanted.top_p,
        top_k: wanted.top_k,
        min_p: wanted.min_p,
        seed: wanted.seed,
        frequency_penalty: wanted.frequency_penalty,
        presence_penalty: wanted.presence_penalty,
        repetition_penalty: wanted.repetition_penalty,
        logit_bias: wanted.logit_bias.clone(),
        top_logprobs: wanted.top_logprobs,
        top_behavior: wanted.top_behavior,
        banned: if banned {
            end_tokens.to_vec()
        } else {
            Vec::new()
        },
        allowed: None,
    }
}
