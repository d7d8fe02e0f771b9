//! The server from outside, in one binary.
#![allow(clippy::unwrap_used)]

/// The program's own, so that its children are the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod apart;
mod arrows;
mod away;
mod binding;
mod branches;
mod calls;
mod chaos;
mod checks;
mod commands;
mod corpora;
mod cors;
mod damage;
mod deploy;
mod edges;
mod export;
mod forget;
mod front;
mod full;
mod gate;
mod hints;
mod import;
mod loops;
mod memory;
mod mined;
mod no_space;
mod phrases;
mod postgres;
mod program;
mod remote;
mod retention;
mod ring;
mod roles;
mod rollouts;
mod scaling;
mod schemas;
mod sim;
mod skills;
mod snapshots;
mod tidy;
mod trajectories;
mod trials;
mod versions;
