//! How long what is recorded is kept, and what goes when it is older.

use hone_domain::Millis;
use serde::Serialize;

/// How much of a turn is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// Its row, its score and what became of it, without a word.
    Row,
    /// All but what only training reads: log-probs, sampling masks, experts. Log-probs read as 0.
    Words,
    /// Everything.
    Whole,
}

impl Extent {
    /// Its stored number.
    pub fn number(self) -> i64 {
        self as i64
    }

    /// The inverse of [`Self::number`].
    pub fn from_number(number: i64) -> Option<Self> {
        [Self::Row, Self::Words, Self::Whole]
            .into_iter()
            .find(|extent| extent.number() == number)
    }
}

/// What goes of turns: those that ended before a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedBefore {
    /// Of everybody who is not named; none keeps them for good.
    pub all_ms: Option<Millis>,
    /// Of these owners.
    pub owners: Vec<(String, Option<Millis>)>,
}

impl EndedBefore {
    /// The latest time of all; none where nothing goes.
    pub fn latest_ms(&self) -> Option<Millis> {
        let owners = self.owners.iter().filter_map(|(_, before_ms)| *before_ms);
        owners.chain(self.all_ms).max()
    }
}

/// What goes now. A turn that waits for something stays, whatever its age, and so do the newest held-out turns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The words of turns, and their rows where a whole conversation goes of which nothing is needed.
    pub turns: EndedBefore,
    /// What only training reads of turns that ended before.
    pub logprobs_before_ms: Option<Millis>,
    /// Votes of verdicts given before, but for those that say how often a check agreed.
    pub votes_before_ms: Option<Millis>,
    /// Reports of candidates refused before; that they were refused stays.
    pub reports_before_ms: Option<Millis>,
    /// Held-out turns of each scope and base model that stay for comparisons.
    pub held_out_kept: usize,
}

impl Retention {
    /// Turns that lose what only training reads.
    pub fn logprobs(&self) -> EndedBefore {
        EndedBefore {
            all_ms: self.logprobs_before_ms,
            owners: Vec::new(),
        }
    }

    /// Whether anything may go.
    pub fn is_off(&self) -> bool {
        self.turns.latest_ms().is_none()
            && self.logprobs_before_ms.is_none()
            && self.votes_before_ms.is_none()
            && self.reports_before_ms.is_none()
    }
}

/// So much of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Rows.
    pub rows: u64,
    /// Bytes of the values in them.
    pub bytes: u64,
}

impl Tally {
    /// Adds more of the kind.
    pub fn add(&mut self, more: Self) {
        self.rows += more.rows;
        self.bytes += more.bytes;
    }
}

/// What goes, or went, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Turns that lose what only training reads.
    pub logprobs: Tally,
    /// Turns that lose their words.
    pub words: Tally,
    /// Turns of which nothing stays.
    pub turns: Tally,
    /// Messages that no other turn has.
    pub messages: Tally,
    /// Blocks of prompt tokens that no other turn has.
    pub token_blocks: Tally,
    /// Votes.
    pub votes: Tally,
    /// Reports of refused candidates.
    pub reports: Tally,
}

impl Pruned {
    /// Every kind with its name.
    pub fn kinds(&self) -> [(&'static str, Tally); 7] {
        [
            ("log-probs of turns", self.logprobs),
            ("words of turns", self.words),
            ("whole turns", self.turns),
            ("messages", self.messages),
            ("blocks of prompt tokens", self.token_blocks),
            ("votes", self.votes),
            ("reports of refused candidates", self.reports),
        ]
    }

    /// Bytes of every kind together.
    pub fn bytes(&self) -> u64 {
        self.kinds().iter().map(|(_, tally)| tally.bytes).sum()
    }

    /// Adds what went besides.
    pub fn add(&mut self, more: &Self) {
        let own = [
            &mut self.logprobs,
            &mut self.words,
            &mut self.turns,
            &mut self.messages,
            &mut self.token_blocks,
            &mut self.votes,
            &mut self.reports,
        ];
        for (own, (_, more)) in own.into_iter().zip(more.kinds()) {
            own.add(more);
        }
    }
}

/// What a pass looks at, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PruneStage {
    /// Turns that are whole.
    #[default]
    WholeTurns,
    /// Turns that have only their words.
    WordyTurns,
    /// What these shared with others.
    Shared,
    /// What only training reads.
    Logprobs,
    /// Votes.
    Votes,
    /// Reports.
    Reports,
}

impl PruneStage {
    /// The one after it.
    pub fn next(self) -> Option<Self> {
        match self {
            Self::WholeTurns => Some(Self::WordyTurns),
            Self::WordyTurns => Some(Self::Shared),
            Self::Shared => Some(Self::Logprobs),
            Self::Logprobs => Some(Self::Votes),
            Self::Votes => Some(Self::Reports),
            Self::Reports => None,
        }
    }
}

/// Where a pass goes on. It is not stored: a pass that begins anew finds what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrunePlace {
    /// What it looks at.
    pub stage: PruneStage,
    /// The time and the number of the last one that was looked at.
    pub after: (Millis, i64),
}

impl PrunePlace {
    /// The beginning of a stage.
    pub fn of(stage: PruneStage) -> Self {
        Self {
            stage,
            after: (Millis::MIN, i64::MIN),
        }
    }
}

impl Default for PrunePlace {
    fn default() -> Self {
        Self::of(PruneStage::default())
    }
}

/// What a piece of a pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrunePiece {
    /// What went.
    pub pruned: Pruned,
    /// Where the next piece begins; none where the pass is over.
    pub next: Option<PrunePlace>,
}
