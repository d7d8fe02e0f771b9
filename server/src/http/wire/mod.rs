//! What goes over the wire: request bodies with their checks, and reply bodies.

pub mod anthropic;
pub mod body;
pub mod capture;
pub mod completions;
pub mod content;
pub mod feedback;
pub mod foreign;
pub mod formats;
pub mod generate;
pub mod groups;
pub mod learning;
pub mod messages;
pub mod openai;
mod parameters;
pub mod people;
pub mod replies;
pub mod responses;
pub mod sampling;
mod schema;
mod schema_size;
pub mod session;
pub mod tools;
pub mod under_way;
pub mod wishes;
