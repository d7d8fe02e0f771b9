//! Text in, tokens out, and back: tokenizer, incremental detokenizer, chat templates, grammars.
//!
//! [`folder::ModelFolder`] opens a checkpoint together with all of these; [`folder::Speech`] opens them
//! without its weights.
//!
//! Never: weights, products, sampling, devices, requests.

pub mod detokenizer;
pub mod folder;
pub mod grammar;
pub mod template;
pub mod tokenizer;

#[cfg(test)]
extern crate self as hone_text;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
