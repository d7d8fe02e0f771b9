//! The server: command line, configuration, wiring, HTTP server, life of the process.
//!
//! It knows every loop and hands each what it needs; no loop knows it. [`app::App`] is the
//! whole of it in one value, so that tests run it in their own process on port 0.

#[cfg(test)]
#[allow(dead_code, reason = "the API tests use more of it")]
#[path = "../../../tests/support/adapters.rs"]
mod adapters;
pub mod app;
pub mod cli;
pub mod client;
pub mod config;
#[cfg(test)]
#[path = "../../../tests/support/defaults.rs"]
mod defaults;
pub mod device;
mod files;
mod health;
pub mod hub;
pub mod logs;
mod manage;
mod memory;
pub mod model;
mod process;
mod progress;
mod retention;
pub mod scrub;
#[cfg(test)]
#[path = "../../../loops/nn/tests/support/shapes.rs"]
mod shapes;
mod starter;
mod table;
mod upkeep;
