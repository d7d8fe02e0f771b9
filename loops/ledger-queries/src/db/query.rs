//! One statement with its values.

use std::marker::PhantomData;

use sqlx::{SqlSafeStr, SqlStr};

use super::connection::{Connection, Done};
use super::row::{Column, FromRow, Row};
use super::value::{Bind, Value};

/// A statement that returns rows, or none.
pub struct Query {
    text: SqlStr,
    values: Vec<Value>,
}

/// A statement of the program's own text. Parameters are `$1`, `$2` …, and one may occur several times.
pub fn query(text: impl SqlSafeStr) -> Query {
    Query {
        text: text.into_sql_str(),
        values: Vec::new(),
    }
}

/// The same, where rows are tuples.
pub fn query_as<T: FromRow>(text: impl SqlSafeStr) -> Typed<T> {
    Typed(query(text), PhantomData)
}

/// The same, where the first column is everything.
pub fn query_scalar<T: for<'r> Column<'r>>(text: impl SqlSafeStr) -> Scalar<T> {
    Scalar(query(text), PhantomData)
}

impl Query {
    pub fn with(text: impl SqlSafeStr, values: Vec<Value>) -> Self {
        Self {
            text: text.into_sql_str(),
            values,
        }
    }

    /// The value of the next parameter.
    pub fn bind(mut self, value: impl Bind) -> Self {
        self.values.push(Bind::value(Some(value)));
        self
    }

    pub async fn execute(self, on: &mut Connection<'_>) -> Result<Done, sqlx::Error> {
        on.execute(self.text, self.values).await
    }

    pub async fn fetch_all(self, on: &mut Connection<'_>) -> Result<Vec<Row>, sqlx::Error> {
        on.fetch_all(self.text, self.values).await
    }

    pub async fn fetch_optional(self, on: &mut Connection<'_>) -> Result<Option<Row>, sqlx::Error> {
        on.fetch_optional(self.text, self.values).await
    }

    pub async fn fetch_one(self, on: &mut Connection<'_>) -> Result<Row, sqlx::Error> {
        let row = self.fetch_optional(on).await?;
        row.ok_or(sqlx::Error::RowNotFound)
    }
}

/// A statement whose rows are tuples.
pub struct Typed<T>(Query, PhantomData<fn() -> T>);

/// A statement whose rows are their first column.
pub struct Scalar<T>(Query, PhantomData<fn() -> T>);

macro_rules! read {
    ($statement:ident, $bound:path, $read:expr) => {
        impl<T: $bound> $statement<T> {
            /// The value of the next parameter.
            pub fn bind(self, value: impl Bind) -> Self {
                Self(self.0.bind(value), PhantomData)
            }

            pub async fn fetch_all(self, on: &mut Connection<'_>) -> Result<Vec<T>, sqlx::Error> {
                let rows = self.0.fetch_all(on).await?;
                rows.iter().map($read).collect()
            }

            pub async fn fetch_optional(
                self,
                on: &mut Connection<'_>,
            ) -> Result<Option<T>, sqlx::Error> {
                let row = self.0.fetch_optional(on).await?;
                row.as_ref().map($read).transpose()
            }

            pub async fn fetch_one(self, on: &mut Connection<'_>) -> Result<T, sqlx::Error> {
                let row = self.0.fetch_one(on).await?;
                $read(&row)
            }
        }
    };
}
read!(Typed, FromRow, T::from_row);
read!(Scalar, Owned, |row: &Row| row.try_get::<T, _>(0));

/// A column that borrows nothing from its row.
pub trait Owned: for<'r> Column<'r> {}

impl<T: for<'r> Column<'r>> Owned for T {}
