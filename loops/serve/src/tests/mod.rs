//! The engine from its own door, on tiny random models and without files.

mod given;
mod experts;
mod grammars;
mod identity;
mod idle;
mod life;
mod parity;
mod prewarm;
pub(crate) mod support;
mod swaps;
mod text;
