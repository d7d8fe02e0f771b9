//! How the ledger talks to a database: statements with numbered parameters ($1, $2 …), values that go in and
//! rows that come out. What is asked does not know which database answers; only this folder does.

mod builder;
pub(crate) mod connection;
mod dialect;
pub(crate) mod fault;
pub(crate) mod many;
pub(crate) mod query;
pub(crate) mod row;
mod value;

pub(crate) use builder::Builder;
pub(crate) use connection::Connection;
pub(crate) use fault::{Fault, corrupt};
pub(crate) use many::{Script, Values};
pub(crate) use query::{Query, query, query_as, query_scalar};
pub(crate) use row::Row;
pub(crate) use value::Value;
