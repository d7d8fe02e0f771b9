//! The house from outside, in one binary.
#![allow(clippy::unwrap_used)]

mod binding;
mod calls;
mod chaos;
mod checks;
mod corpora;
mod cors;
mod damage;
mod deploy;
mod export;
mod forget;
mod front;
mod full;
mod hints;
mod import;
mod loops;
mod phrases;
mod ring;
mod sim;
mod snapshots;
mod tidy;
mod trials;
mod versions;
