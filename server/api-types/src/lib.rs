//! What goes over the wire: request bodies with their checks, and reply bodies.
//!
//! Never: how HTTP carries them, what is done about them.

pub mod anthropic;
pub mod branches;
pub mod capture;
pub mod completions;
pub mod content;
pub mod episodes;
mod error;
pub mod feedback;
pub mod foreign;
pub mod formats;
pub mod generate;
pub mod groups;
mod json;
pub mod learning;
pub mod limits;
mod list;
pub mod memories;
pub mod memory_markdown;
pub mod messages;
pub mod openai;
mod parameters;
pub mod people;
pub mod plain;
pub mod replies;
pub mod responses;
pub mod rollouts;
pub mod sampling;
mod schema;
mod schema_size;
pub mod session;
pub mod skill_tar;
pub mod skills;
pub mod tasks;
pub mod tools;
pub mod trajectories;
pub mod under_way;
pub mod wishes;

pub use error::RequestError;
pub use json::JsonObject;
pub use list::{Cursor, List, NumberedList};
