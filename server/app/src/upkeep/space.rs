//! `hone ledger size`: what every table and the adapters take of the disk.

use clap::Args;
use hone_domain::BlobsSize;
use hone_ledger::LedgerSize;
use serde_json::json;

use super::adapters::Adapters;
use super::common::{open, run};
use crate::cli::place::Place;
use crate::table::{
    Side::{Left, Right},
    table,
};

/// `hone ledger size`.
#[derive(Debug, Args)]
#[command(
    after_help = "It may run beside the server. A ledger in a file is read as a whole.\n\n\
    Examples:\n  hone ledger size\n  hone ledger size --json | jq .ledger.bytes"
)]
pub(crate) struct SizeArgs {
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Bytes as people read them.
pub(super) fn shown(bytes: u64) -> String {
    let tenths = |unit: u32| (bytes * 10) >> unit;
    let unit = match bytes {
        0..0x400 => return format!("{bytes} B"),
        0x400..0x10_0000 => (10, "KiB"),
        0x10_0000..0x4000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    let tenths = tenths(unit.0);
    format!("{}.{} {}", tenths / 10, tenths % 10, unit.1)
}

/// Prints what everything takes.
///
/// # Errors
/// A sentence with a remedy.
pub(super) fn size(args: &SizeArgs) -> Result<(), String> {
    let config = args.place.config()?;
    let size = run(async {
        let ledger = open(&config).await?;
        let size = ledger.size().await.map_err(|error| error.to_string());
        ledger.close().await;
        size
    })?;
    let blobs = Adapters::open(&config, &config.store.folder()?)?.sizes()?;
    match args.json {
        true => println!("{}", json!({"ledger": size, "blobs": blobs})),
        false => print!("{}{}", tables_of(&size), rest_of(&size, &blobs)),
    }
    Ok(())
}

fn tables_of(size: &LedgerSize) -> String {
    let rows = if size.is_counted {
        "rows"
    } else {
        "rows, about"
    };
    let names = [
        ("table", Left),
        (rows, Right),
        ("size", Right),
        ("indexes", Right),
    ];
    let lines = size.tables.iter().map(|table| {
        vec![
            table.name.clone(),
            table.rows.to_string(),
            shown(table.bytes),
            shown(table.index_bytes),
        ]
    });
    table(&names, &lines.collect::<Vec<_>>())
}

fn rest_of(size: &LedgerSize, blobs: &[BlobsSize]) -> String {
    let mut text = format!("\nledger    {}", shown(size.bytes));
    if let Some(free) = size.free_bytes {
        text.push_str(&format!(", of which {} free inside", shown(free)));
    }
    if let Some(log) = size.log_bytes {
        text.push_str(&format!("; its log {}", shown(log)));
    }
    text.push('\n');
    for kind in blobs {
        let (bytes, files) = (shown(kind.bytes), kind.files);
        text.push_str(&format!("{:<9} {bytes} in {files} files\n", kind.kind));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_unit_that_fits() {
        for (bytes, wanted) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (1_536, "1.5 KiB"),
            (0x10_0000, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(shown(bytes), wanted);
        }
    }
}
