//! A memory in a prompt.

use serde::{Deserialize, Serialize};

use crate::MemoryId;

/// A memory in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct ShownMemory {
    /// Its id.
    pub id: MemoryId,
    /// The message of the request before whose words it stands, counted from 0.
    pub at: usize,
}

/// Turns of older ledgers name ids alone: all stood before the first words of the person.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Id(MemoryId),
    Placed { id: MemoryId, at: usize },
}

impl From<Stored> for ShownMemory {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Id(id) => Self { id, at: 0 },
            Stored::Placed { id, at } => Self { id, at },
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn both_stored_forms_are_read() {
        let id = MemoryId(Uuid::from_u128(7));
        let one = ShownMemory { id, at: 3 };
        let text = serde_json::to_string(&[one]).expect("a list");
        let read: Vec<ShownMemory> = serde_json::from_str(&text).expect("the same list");
        assert_eq!(read, [one]);
        let old = serde_json::to_string(&[id]).expect("a list");
        let read: Vec<ShownMemory> = serde_json::from_str(&old).expect("an older list");
        assert_eq!(read, [ShownMemory { id, at: 0 }]);
    }
}
