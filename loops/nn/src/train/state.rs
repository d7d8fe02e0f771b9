//! A learner's state as safetensors bytes: masters, moments and update count, bit for bit.

use std::collections::HashMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};

use super::adam::Moments;
use hone_checkpoint::AdapterConfig;
use hone_checkpoint::digest::Digest32;

const FORMAT: &str = "hone-learner-1";
/// The metadata entry that describes the state.
const KEY: &str = "hone";

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

fn le_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Serializes; `masters` in fixed order.
pub(crate) fn save(identity: &Identity, masters: &[&[f32]], moments: &Moments) -> Vec<u8> {
    let mut data: Vec<(String, Vec<u8>)> = Vec::new();
    for (index, master) in masters.iter().enumerate() {
        data.push((format!("master.{index:05}"), le_bytes(master)));
        data.push((format!("m.{index:05}"), le_bytes(&moments.first[index])));
        data.push((format!("v.{index:05}"), le_bytes(&moments.second[index])));
    }
    let about = json!({
        "format": FORMAT,
        "trained": identity.trained,
        "base": identity.base,
        "updates": moments.updates,
    });
    // One entry: several would be written in an order that changes from run to run.
    let metadata = HashMap::from([(KEY.to_owned(), about.to_string())]);
    let views = data.iter().map(|(name, bytes)| {
        let view = TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes)
            .expect("four bytes per value");
        (name.as_str(), view)
    });
    serialize(views, Some(metadata)).expect("names are distinct and views are valid")
}

/// Reads back what [`save`] wrote; `lengths` are those of the learner's arrays.
pub(crate) fn load(
    bytes: &[u8],
    identity: &Identity,
    lengths: &[usize],
) -> Result<Saved, StateError> {
    let damaged = |why: String| StateError::Damaged(why);
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| damaged(e.to_string()))?;
    let about = header.metadata().as_ref().and_then(|m| m.get(KEY));
    let about = about.ok_or_else(|| damaged(format!("no {KEY} entry")))?;
    let about: Value = serde_json::from_str(about).map_err(|e| damaged(e.to_string()))?;
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
    let updates = updates.ok_or_else(|| damaged("no update count".to_owned()))?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| damaged(e.to_string()))?;
    let array = |kind: &str, index: usize, length: usize| {
        let name = format!("{kind}.{index:05}");
        let view = tensors.tensor(&name).map_err(|e| damaged(e.to_string()))?;
        if view.dtype() != Dtype::F32 || view.data().len() != length * 4 {
            return Err(damaged(format!("{name} does not hold {length} values")));
        }
        let values = view.data().chunks_exact(4);
        let value = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("chunks of four"));
        Ok(values.map(value).collect::<Vec<f32>>())
    };
    let all = |kind: &str| {
        let lengths = lengths.iter().enumerate();
        lengths
            .map(|(i, &n)| array(kind, i, n))
            .collect::<Result<Vec<_>, _>>()
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
