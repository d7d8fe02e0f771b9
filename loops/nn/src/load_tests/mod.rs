//! Model folders and GGUF files, whole and broken, as far as a model that computes.

mod folder;
mod gguf;
#[path = "../../../text/tests/support/mod.rs"]
mod text_support;
