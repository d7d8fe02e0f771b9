//! What is measured of a running process: its counters as samples, alerts and an answer to "is it learning",
//! traces and numbers over OTLP, and what is wrong until it is mended.
//!
//! Never: HTTP, accounts, a change of what it looks at.

pub mod alert;
pub mod funnel;
pub mod in_place;
pub mod numbers;
pub mod telemetry;
pub mod traffic;
pub mod troubles;
pub mod watch;

#[cfg(test)]
#[path = "../../../tests/support/defaults.rs"]
mod defaults;

pub use telemetry::TelemetryConfig;
pub use watch::ConsoleConfig;
