//! How the ledger talks to a database: statements with numbered parameters ($1, $2 …), values that go in and
//! rows that come out. What is asked does not know which database answers; only this folder does.

mod builder;
pub mod connection;
mod dialect;
pub mod fault;
pub mod many;
pub mod query;
pub mod row;
mod value;

pub use builder::Builder;
pub use connection::Connection;
pub use fault::{Fault, corrupt};
pub use many::{Script, Values};
pub use query::{Query, query, query_as, query_scalar};
pub use row::Row;
pub use value::Value;
