//! A learner's state as bytes of a safetensors file: masters, moments and update count, bit for bit.

use serde_json::json;

use super::adam::Moments;
use hone_checkpoint::AdapterConfig;
use hone_checkpoint::digest::Digest32;
use hone_checkpoint::named_arrays::{self, NamedArrays};

const FORMAT: &str = "hone-learner-1";

/// Why a saved state cannot be resumed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StateError {
    #[error("the learner state is not readable ({0}); it is damaged or was cut short")]
    Damaged(String),
    #[error("the learner state is of another {what}: it holds {found}, this learner has {wanted}")]
    Other {
        what: &'static str,
        found: String,
        wanted: String,
    },
    #[error(transparent)]
    Settings(#[from] super::LearnerError),
}

/// What a state must have been saved from to be resumed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Identity {
    /// `full`, or the adapter's configuration.
    pub(crate) trained: String,
    /// Digest of the frozen model; empty for full training.
    pub(crate) base: String,
}

impl Identity {
    pub(crate) fn full() -> Self {
        Self {
            trained: "full".to_owned(),
            base: String::new(),
        }
    }

    pub(crate) fn adapter(config: &AdapterConfig, base: &Digest32) -> Self {
        let trained = match config {
            AdapterConfig::Lora(lora) => format!("{lora:?}"),
            AdapterConfig::Dense(dense) => format!("{dense:?}"),
        };
        let base = base.iter().map(|b| format!("{b:02x}")).collect();
        Self { trained, base }
    }
}

/// A state apart from the learner it belongs to: master arrays in their fixed order.
pub(crate) struct Saved {
    pub(crate) masters: Vec<Vec<f32>>,
    pub(crate) moments: Moments,
}

/// Serializes; `masters` in fixed order.
pub(crate) fn save(identity: &Identity, masters: &[&[f32]], moments: &Moments) -> Vec<u8> {
    let mut arrays: Vec<(String, &[f32])> = Vec::new();
    for (index, master) in masters.iter().enumerate() {
        arrays.push((format!("master.{index:05}"), master));
        arrays.push((format!("m.{index:05}"), &moments.first[index]));
        arrays.push((format!("v.{index:05}"), &moments.second[index]));
    }
    let about = json!({
        "format": FORMAT,
        "trained": identity.trained,
        "base": identity.base,
        "updates": moments.updates,
    });
    named_arrays::to_bytes(&about, &arrays)
}

/// Reads back what [`save`] wrote; `lengths` are those of the learner's arrays.
pub(crate) fn load(
    bytes: &[u8],
    identity: &Identity,
    lengths: &[usize],
) -> Result<Saved, StateError> {
    let about = named_arrays::about(bytes).map_err(StateError::Damaged)?;
    let wanted = [
        ("format", FORMAT),
        ("trained", identity.trained.as_str()),
        ("base", identity.base.as_str()),
    ];
    for (what, wanted) in wanted {
        let found = about[what].as_str().unwrap_or("nothing");
        if found != wanted {
            let (found, wanted) = (found.to_owned(), wanted.to_owned());
            return Err(StateError::Other {
                what,
                found,
                wanted,
            });
        }
    }
    let updates = about["updates"].as_u64();
    let updates = updates.ok_or_else(|| StateError::Damaged("no update count".to_owned()))?;
    let arrays = NamedArrays::open(bytes).map_err(StateError::Damaged)?;
    let all = |kind: &str| {
        let lengths = lengths.iter().enumerate();
        let each = lengths.map(|(i, &n)| arrays.array(&format!("{kind}.{i:05}"), n));
        each.collect::<Result<Vec<_>, _>>()
            .map_err(StateError::Damaged)
    };
    let moments = Moments {
        first: all("m")?,
        second: all("v")?,
        updates,
    };
    Ok(Saved {
        masters: all("master")?,
        moments,
    })
}
