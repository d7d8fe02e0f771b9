//! What the engine's handle, its thread and the loader share: commands, counters, what the engine can do.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use hone_domain::{Digest, Grammar, Policy, PolicyVersion, Scope, ServeError};
use hone_text::grammar::Constraint;

use crate::adapters::{LoadResult, Wanted};
use crate::backend::Capabilities;
use crate::line::Line;
use crate::masks::{GrammarBook, Masks};
use crate::sequence::{Sequence, Setup};
use crate::stats::Counters;

/// The loop's name in the status registry.
pub(crate) const NAME: &str = "serve";
/// What reaches the engine thread.
pub(crate) enum Command {
    /// A request.
    Ask(Box<Sequence>),
    /// A scope has a newer version.
    Newer(Scope),
    /// A trial ended that this version was measured against.
    TrialOver(Policy),
    /// Versions of a scope serve nobody new from now on.
    Withdraw {
        scope: Scope,
        versions: Vec<PolicyVersion>,
    },
    /// A load came to its end.
    Loaded { wanted: Wanted, result: LoadResult },
    /// A loaded adapter is not what was published.
    Unfit {
        wanted: Wanted,
        digest: Digest,
        error: String,
    },
    /// An older version went out of use while it was proven.
    Unused,
    /// Finish what is under way, until this time.
    Stop(Instant),
}

/// What asks may still expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Life {
    Running,
    Stopping,
    Failed,
}

/// Shared between the handle and the thread.
pub(crate) struct Shared {
    pub(crate) counters: Counters,
    pub(crate) setup: Setup,
    pub(crate) capabilities: Capabilities,
    pub(crate) kv_blocks: usize,
    pub(crate) grammars: GrammarBook,
    pub(crate) line: Line,
    pub(crate) masks: Masks,
    life: AtomicU8,
    /// Makes the next step panic.
    #[cfg(test)]
    pub(crate) fault: std::sync::atomic::AtomicBool,
    /// Makes every draft pay.
    #[cfg(test)]
    pub(crate) eager: std::sync::atomic::AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        setup: Setup,
        capabilities: Capabilities,
        kv_blocks: usize,
        masks: Masks,
    ) -> Self {
        Self {
            counters: Counters::new(),
            setup,
            capabilities,
            kv_blocks,
            grammars: GrammarBook::default(),
            line: Line::default(),
            masks,
            life: AtomicU8::new(Life::Running as u8),
            #[cfg(test)]
            fault: false.into(),
            #[cfg(test)]
            eager: false.into(),
        }
    }

    pub(crate) fn live(&self) -> Life {
        match self.life.load(Ordering::Acquire) {
            0 => Life::Running,
            1 => Life::Stopping,
            _ => Life::Failed,
        }
    }

    pub(crate) fn constraint(&self, grammar: &Grammar) -> Result<Constraint, ServeError> {
        let vocab = self.capabilities.vocab;
        self.grammars.constraint(grammar, &self.setup, vocab)
    }

    /// Moves on; there is no way back.
    pub(crate) fn set_life(&self, life: Life) {
        self.life.fetch_max(life as u8, Ordering::AcqRel);
    }
}
