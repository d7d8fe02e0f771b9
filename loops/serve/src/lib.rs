//! Serve: asks in, completions out.
//!
//! **In** – [`Ask`](hone_domain::Ask)s through [`Backend::ask`], the newest policies through a
//! latest-value link, adapter files through [`Blobs`](hone_domain::Blobs).
//! **Out** – a channel of [`Delta`](hone_domain::Delta)s per ask, which ends with the whole turn.
//! **Rights** – the key-value memory, one engine thread, the loader's threads, the lent executor.
//! **Promises** – an ask is answered or refused at once, never parked because weights change; a
//! completion is made by one version from its first token to its last; what a request gets does
//! not depend on what else is in the batch; a reader that never reads delays nobody; memory stays
//! within its limits and what exceeds them is refused with a time to come back.
//! **Never** – opens the ledger, waits for a disk or a client on the engine thread, serves one
//! scope's cached blocks or adapters to another, reads what messages say.

mod adapters;
mod backend;
mod config;
mod cost;
mod draft;
mod engine;
mod fair;
mod kv;
mod line;
mod loader;
mod loads;
mod masks;
mod null;
mod plan;
mod prefix;
mod prewarm;
mod reaper;
mod sequence;
mod shared;
mod stats;
mod stop;
mod thread;

#[cfg(test)]
mod tests;

pub use backend::{Answer, Backend, Cancel, Capabilities};
pub use config::Config;
pub use engine::{Engine, ServeCtx};
pub use kv::context_bytes;
pub use masks::HeldGrammar;
pub use null::{NullBackend, NullCompletion};
pub use stats::{EngineLoad, EngineStats, HistogramSnapshot};
