//! Who votes for the judge: servers elsewhere, the served base model, or a model of its own. The
//! judge itself knows none of them; it asks a [`Completer`].

mod base;
pub mod callback;
mod completer;
mod local;
mod pool;
mod reader;
#[cfg(test)]
mod tests;
mod weigher;
mod wording;

#[cfg(test)]
#[path = "../../../tests/support/defaults.rs"]
mod defaults;

use std::sync::Arc;

use hone_judge::{Completer, HintRule, ModelConfig, ModelKind, Reader, Weigher};
use hone_runtime::StatusRegistry;

pub use base::{Base, BaseParts};
pub use completer::HttpCompleter;
pub use pool::Pool;
pub use reader::{BaseReader, Busy, ReaderParts, States};
pub use wording::Words;

use hone_net::outbound::Outbound;

/// The configured voter. `base` is what serves here, if anything does.
///
/// # Errors
/// A sentence that names the setting and the remedy.
pub async fn voter(
    config: &ModelConfig,
    outbound: &Arc<Outbound>,
    base: Option<BaseParts>,
) -> Result<Arc<dyn Completer>, String> {
    match config.kind {
        ModelKind::Endpoint => Ok(Pool::start(outbound, config)?),
        ModelKind::Base => {
            let parts = base.ok_or(
                "judge.model.kind is \"base\", but no base model is served in this process; it takes model.engine = \"builtin\" and the loop serve",
            )?;
            Ok(Arc::new(Base::new(parts)))
        }
        ModelKind::Local => {
            let local = config.local.clone();
            let started = tokio::task::spawn_blocking(move || local::start(&local)).await;
            started.map_err(|error| format!("the local judge could not be loaded: {error}"))?
        }
    }
}

/// Who reads replies: what serves here, if anything does and it is able to.
pub fn reader(parts: Option<ReaderParts>, registry: &StatusRegistry) -> Option<Arc<dyn Reader>> {
    let why = match &parts {
        None => "no base model is served in this process",
        Some(parts) if !parts.config.enabled => "judge.reading.enabled is false",
        Some(parts) if parts.is_starter => "the built-in starter model understands too little",
        Some(_) => "",
    };
    if !why.is_empty() {
        reader::off(registry, why);
        return None;
    }
    parts.map(|parts| BaseReader::start(parts) as Arc<dyn Reader>)
}

/// Who chooses among hints: what serves here, if anything does and it is wanted. `template` is how a
/// teacher reads a hint.
pub fn weigher(
    config: &ModelConfig,
    template: &str,
    base: Option<BaseParts>,
) -> Option<Arc<dyn Weigher>> {
    if config.hint_choice == HintRule::First {
        return None;
    }
    let Some(parts) = base else {
        tracing::info!(
            "judge.model.hint_choice is \"agreement\", but no policy is served in this process; of several hints the first is kept"
        );
        return None;
    };
    Some(Arc::new(weigher::Served::new(parts, template)))
}
