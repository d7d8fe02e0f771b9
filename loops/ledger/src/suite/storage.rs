//! Cases of what the ledger takes of the disk.

use std::sync::Arc;

use super::world::World;
use crate::{Ledger, Memories, Personal, Storage};

/// The views of one ledger.
pub(super) struct Case {
    pub(super) world: World,
    storage: Arc<dyn Storage>,
}

impl Case {
    pub(super) fn new<L: Ledger + Personal + Memories + Storage + 'static>(ledger: Arc<L>) -> Self {
        Self {
            world: World::new(ledger.clone()),
            storage: ledger,
        }
    }
}

pub(super) async fn every_table_is_measured(case: &Case) {
    for _ in 0..3 {
        case.world.answered(&case.world.turn()).await;
    }
    let size = case.storage.size().await.expect("measured");
    let bytes: u64 = size
        .tables
        .iter()
        .map(|table| table.bytes + table.index_bytes)
        .sum();
    assert!(bytes > 0 && bytes <= size.bytes, "{size:?}");
    for (name, rows) in [
        ("turns", 3),
        ("transitions", 3),
        ("leases", 0),
        ("scope_counts", 2),
    ] {
        let table = size.tables.iter().find(|table| table.name == name);
        let table = table.expect("every table is there");
        assert!(!size.is_counted || table.rows == rows, "{table:?}");
    }
    let takes = |at: usize| size.tables[at].bytes + size.tables[at].index_bytes;
    assert!((1..size.tables.len()).all(|at| takes(at - 1) >= takes(at)));
}
