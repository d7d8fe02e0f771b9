//! The server: command line, configuration, wiring, HTTP door, life of the process.
//!
//! It knows every room and hands each what it needs; no room knows it. [`house::House`] is the
//! whole of it in one value, so that tests run it in their own process on port 0.

mod callback;
pub mod cli;
pub mod client;
pub mod computed;
pub mod config;
#[cfg(test)]
#[path = "../../tests/support/defaults.rs"]
mod defaults;
pub mod device;
pub mod door;
pub mod eraser;
mod files;
mod health;
pub mod house;
pub mod http;
pub mod hub;
pub mod importer;
pub mod judging;
pub mod learning;
pub mod logs;
mod manage;
mod memory;
pub mod model;
pub mod paired;
mod plain;
mod process;
mod progress;
pub mod scrub;
mod starter;
mod table;
mod upkeep;
