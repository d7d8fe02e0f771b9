//! Jails as callers use them, on this machine's real bubblewrap.
#![allow(clippy::unwrap_used)]

mod basics;
mod escape;
mod measure;
mod support;
mod tars;
mod walls;
