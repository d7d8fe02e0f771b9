//! `GET /admin/v1/storage`: what the ledger and the adapters take of the disk.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use hone_domain::BlobsSize;
use hone_ledger::{LedgerSize, TableSize};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::Reply;
use crate::Http;
use crate::storage_gauge::Unmeasured;
use hone_replies::error::{ApiError, ErrorBody};

/// What the folders of one kind take.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BlobsReply {
    /// `adapters` (published ones), `learner` (what training goes on from), `damaged` (set aside).
    pub kind: String,
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// What one table takes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TableReply {
    /// Its name.
    pub name: String,
    /// How many rows it has.
    pub rows: u64,
    /// Bytes of its rows, with what is free inside its pages.
    pub bytes: u64,
    /// Bytes of its indexes, likewise.
    pub index_bytes: u64,
}

impl TableReply {
    fn of(table: TableSize) -> Self {
        Self {
            name: table.name,
            rows: table.rows,
            bytes: table.bytes,
            index_bytes: table.index_bytes,
        }
    }
}

/// What the ledger and the adapters take of the disk.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StorageReply {
    /// Always `storage`.
    pub object: &'static str,
    /// Bytes of the ledger: its file, or its tables in PostgreSQL.
    pub ledger_bytes: u64,
    /// Bytes of it that are free for what comes next; null where the database does not say.
    pub free_bytes: Option<u64>,
    /// Bytes of the write-ahead log of the file, which come on top; null in PostgreSQL.
    pub log_bytes: Option<u64>,
    /// Whether rows were counted; else the database estimates them.
    pub is_counted: bool,
    /// Every table, the largest first.
    pub tables: Vec<TableReply>,
    /// The folders of adapters and checkpoints, by kind.
    pub blobs: Vec<BlobsReply>,
    /// How long measuring took, in milliseconds.
    pub took_ms: u64,
}

impl StorageReply {
    fn of(ledger: LedgerSize, blobs: Vec<BlobsSize>, began: Instant) -> Self {
        let blob = |size: BlobsSize| BlobsReply {
            kind: size.kind,
            files: size.files,
            bytes: size.bytes,
        };
        let took = began.elapsed().as_millis();
        Self {
            object: "storage",
            ledger_bytes: ledger.bytes,
            free_bytes: ledger.free_bytes,
            log_bytes: ledger.log_bytes,
            is_counted: ledger.is_counted,
            tables: ledger.tables.into_iter().map(TableReply::of).collect(),
            blobs: blobs.into_iter().map(blob).collect(),
            took_ms: u64::try_from(took).unwrap_or(u64::MAX),
        }
    }
}

/// What the ledger and the adapters take of the disk, table by table. A ledger in a file is read as a whole for it, so it
/// takes time and is done once at a time.
#[utoipa::path(
    get,
    path = "/admin/v1/storage",
    responses(
        (status = 200, body = StorageReply),
        (status = 429, description = "It is being measured already", body = ErrorBody),
        (status = 503, description = "It could not be read", body = ErrorBody),
    )
)]
pub async fn storage(State(http): State<Arc<Http>>) -> Reply<StorageReply> {
    let began = Instant::now();
    match http.storage.measure().await {
        Ok((ledger, blobs)) => Ok(Json(StorageReply::of(ledger, blobs, began))),
        Err(Unmeasured::Busy) => Err(ApiError::Overloaded {
            message: "the storage is being measured already".to_owned(),
            retry_after_ms: 5_000,
        }),
        Err(Unmeasured::Ledger(error)) => Err(error.into()),
        Err(Unmeasured::Blobs(error)) => {
            tracing::error!(%error, "the adapters could not be measured");
            Err(ApiError::Unavailable {
                code: "storage_unreadable",
                message: "the folder of the adapters cannot be read; see the server's log"
                    .to_owned(),
            })
        }
    }
}
