//! Where a scope's learner comes from: memory, its checkpoint, its adapter, or the base model.

use hone_checkpoint::ModelConfig;
use hone_domain::{Blobs, Digest, Policy, Scope};
use hone_nn::{Adapter, Learner, LearnerConfig, StateError, peft};

use super::{NnParts, adapter_digest};
use crate::save::read_checkpoint;
use hone_domain::checkpoint_key;

/// The adapter a learner stands at; none is a fresh one on the base model.
type At = Option<Digest>;

/// A candidate that was not evaluated yet.
pub(super) struct Fresh {
    pub(super) digest: Digest,
    pub(super) learner: Learner,
    /// What the learner stood at before.
    pub(super) parent: Adapter,
}

/// A few learners, the newest last.
pub(super) struct Learners {
    kept: Vec<(Scope, At, Learner)>,
    limit: usize,
}

impl Learners {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            kept: Vec::new(),
            limit,
        }
    }

    /// The scope's learner, if it stands exactly there. One that stands elsewhere is of no use any
    /// more: its candidate was refused, lost or rolled back.
    pub(super) fn take(&mut self, scope: &Scope, at: At) -> Option<Learner> {
        let place = self.kept.iter().position(|(s, _, _)| s == scope)?;
        let (_, stands, learner) = self.kept.remove(place);
        (stands == at).then_some(learner)
    }

    /// Keeps a learner that rests, for they run one at a time.
    pub(super) fn put(&mut self, scope: Scope, at: At, learner: Learner) {
        self.kept.retain(|(s, _, _)| *s != scope);
        self.kept.push((scope, at, learner));
        if self.kept.len() > self.limit {
            self.kept.remove(0);
        }
    }
}

/// A learner at `parent`: from its checkpoint, exactly as it was; where that is gone or damaged,
/// from its adapter with fresh moments; without a parent a fresh one. Form, rank and projections
/// stay those that the scope began with, whatever `config` says by now.
pub(super) fn load(
    parts: &NnParts,
    mut config: LearnerConfig,
    scope: &Scope,
    parent: Option<&Policy>,
) -> Result<Learner, String> {
    let sentence = |e: hone_nn::LearnerError| e.to_string();
    let Some(parent) = parent.filter(|p| !p.is_base()) else {
        let fresh = Learner::new(parts.model.clone(), config).map_err(sentence)?;
        return Ok(placed(fresh, parts));
    };
    let key = checkpoint_key(scope, parent.digest);
    let state = read_checkpoint(&*parts.blobs, &key).map_err(|error| error.to_string())?;
    let resume = |config: &LearnerConfig| {
        let state = state.as_ref()?;
        Some(Learner::resume(parts.model.clone(), config.clone(), state))
    };
    let mut resumed = resume(&config);
    let mut adapter = None;
    let is_other = matches!(
        &resumed,
        Some(Err(StateError::Other {
            what: "trained",
            ..
        }))
    );
    if is_other {
        // Begun under other settings; it goes on as it began.
        let begun = read(&*parts.blobs, parent, &parts.model.config)?;
        config.trainable = begun.config.clone().into();
        tracing::info!(
            version = parent.version.0,
            "goes on in the form, rank and projections it began with"
        );
        resumed = resume(&config);
        adapter = Some(begun);
    }
    match resumed {
        Some(Ok(learner)) if adapter_digest(&adapter_of(&learner)) == parent.digest => {
            return Ok(placed(learner, parts));
        }
        Some(Ok(_)) => tracing::warn!(version = parent.version.0, "checkpoint of another adapter"),
        Some(Err(error)) => {
            tracing::warn!(version = parent.version.0, %error, "checkpoint not usable");
        }
        None => {}
    }
    let adapter = match adapter {
        Some(adapter) => adapter,
        None => read(&*parts.blobs, parent, &parts.model.config)?,
    };
    let learner = Learner::from_adapter(parts.model.clone(), config, &adapter).map_err(sentence)?;
    Ok(placed(learner, parts))
}

/// The learner where this process computes: its threads, and the device where there is one.
fn placed(learner: Learner, parts: &NnParts) -> Learner {
    let mut learner = learner.on(parts.exec.clone());
    if let Some(device) = &parts.device
        && let Err(error) = learner.use_device(device)
    {
        tracing::warn!(%error, "training stays on the processor");
    }
    learner
}

/// The adapter as it would be served.
///
/// # Panics
/// Never: every learner here is made to train an adapter.
pub(super) fn adapter_of(learner: &Learner) -> Adapter {
    learner.adapter().expect("it trains an adapter")
}

/// Reads a published adapter and checks that it is the one that was published.
fn read(blobs: &dyn Blobs, policy: &Policy, model: &ModelConfig) -> Result<Adapter, String> {
    let file = |name: &str| blobs.get(&policy.blob, name).ok();
    let adapter =
        peft::load(&file, model).map_err(|e| format!("version {}: {e}", policy.version))?;
    let digest = adapter_digest(&adapter);
    if digest != policy.digest {
        return Err(format!(
            "version {} has digest {digest} on disk and {} in the ledger",
            policy.version, policy.digest
        ));
    }
    Ok(adapter)
}
