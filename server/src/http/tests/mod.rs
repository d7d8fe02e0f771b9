#![allow(clippy::unwrap_used)]

mod acts;
mod admin;
mod agents;
mod audited;
mod bad_input;
mod chat;
mod console;
mod cors;
mod dialects;
mod fields;
mod groups;
mod guarding;
mod imports;
mod learning;
mod limits;
mod openapi;
mod page;
mod people;
mod reading;
mod replays;
mod rights;
mod sessions;
mod tools;
mod trials;
mod versions;
mod waiting;
