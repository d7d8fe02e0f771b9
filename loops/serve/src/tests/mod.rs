//! The engine from its own entry, on tiny random models and without files.

mod drafting;
mod experts;
mod given;
mod grammars;
mod identity;
mod idle;
mod life;
mod memory;
mod parity;
mod prewarm;
pub(crate) mod support;
mod swaps;
mod text;
mod withdrawn;
