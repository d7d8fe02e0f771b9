#![allow(clippy::unwrap_used)]

mod admin;
mod bad_input;
mod chat;
mod guarding;
mod people;
mod reading;
mod rights;
mod sessions;
