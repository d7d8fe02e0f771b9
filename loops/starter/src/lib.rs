//! The built-in starter model: what it is taught (grammar, noise), how it is cut into tokens, how
//! it is trained and measured, and the trained files themselves.
//!
//! Knows nothing of serving, storing or judging. Everything is decided by a seed.

pub mod chat;
pub mod error;
pub mod eval;
pub mod folder;
pub mod grammar;
pub mod noise;
pub mod recipe;
pub mod rng;
pub mod rows;
pub mod tokens;

pub use folder::model_files;
