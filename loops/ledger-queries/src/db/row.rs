//! Rows, and what a column is read as.

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgRow, PgValueRef};
use sqlx::sqlite::SqliteRow;
use sqlx::{ColumnIndex, Decode, Row as _, Sqlite, Type, TypeInfo as _, ValueRef as _};

use super::dialect::unescaped;

/// A row of either database.
pub enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow, Texts),
}

/// Texts of a row that are stored otherwise than they read, each with the place of its column; nearly always none.
pub struct Texts(Vec<(usize, String)>);

impl Row {
    pub(super) fn of_postgres(row: PgRow) -> Self {
        let mut texts = Vec::new();
        for place in 0..row.len() {
            if let Ok(raw) = row.try_get_raw(place)
                && let Ok(Cell::Text(text)) = Cell::of(&raw)
                && let Some(text) = unescaped(text)
            {
                texts.push((place, text));
            }
        }
        Self::Postgres(row, Texts(texts))
    }

    /// The value of a column.
    ///
    /// # Errors
    /// There is no such column, or it holds something else.
    pub fn try_get<'r, T: Column<'r>, I: Index>(&'r self, index: I) -> Result<T, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(index),
            Self::Postgres(row, texts) => {
                let place = index.index(row)?;
                let text = texts.0.iter().find(|(other, _)| *other == place);
                let raw = row.try_get_raw(place)?;
                let cell = match text {
                    Some((_, text)) => Ok(Cell::Text(text)),
                    None => Cell::of(&raw),
                };
                let read = cell.and_then(|cell| T::read(cell));
                read.map_err(|source| sqlx::Error::ColumnDecode {
                    index: place.to_string(),
                    source,
                })
            }
        }
    }
}

/// What names a column: its place or its name.
pub trait Index: ColumnIndex<SqliteRow> + ColumnIndex<PgRow> {}

impl<T: ColumnIndex<SqliteRow> + ColumnIndex<PgRow>> Index for T {}

/// What a column of PostgreSQL holds.
pub enum Cell<'r> {
    Null,
    Integer(i64),
    Real(f64),
    Text(&'r str),
    Blob(&'r [u8]),
}

impl<'r> Cell<'r> {
    fn of(raw: &PgValueRef<'r>) -> Result<Self, BoxDynError> {
        if raw.is_null() {
            return Ok(Self::Null);
        }
        let bytes = raw.as_bytes()?;
        let kind = raw.type_info();
        Ok(match kind.name() {
            "INT8" => Self::Integer(i64::from_be_bytes(bytes.try_into()?)),
            "INT4" => Self::Integer(i32::from_be_bytes(bytes.try_into()?).into()),
            "BOOL" => Self::Integer((bytes != [0]).into()),
            "FLOAT8" => Self::Real(f64::from_be_bytes(bytes.try_into()?)),
            "TEXT" | "UNKNOWN" => Self::Text(std::str::from_utf8(bytes)?),
            "BYTEA" => Self::Blob(bytes),
            other => return Err(format!("a column of the type {other}").into()),
        })
    }

    fn mismatch<T>(&self, wanted: &str) -> Result<T, BoxDynError> {
        let found = match self {
            Self::Null => "null",
            Self::Integer(_) => "an integer",
            Self::Real(_) => "a number",
            Self::Text(_) => "a text",
            Self::Blob(_) => "bytes",
        };
        Err(format!("{found} in place of {wanted}").into())
    }
}

/// A type that a column can be read as.
pub trait Column<'r>: Decode<'r, Sqlite> + Type<Sqlite> {
    fn read(cell: Cell<'r>) -> Result<Self, BoxDynError>;
}

impl<'r, T: Column<'r>> Column<'r> for Option<T> {
    fn read(cell: Cell<'r>) -> Result<Self, BoxDynError> {
        match cell {
            Cell::Null => Ok(None),
            some => T::read(some).map(Some),
        }
    }
}

macro_rules! columns {
    ($($type:ty, $wanted:literal: $($pattern:pat => $value:expr),*;)*) => {$(
        impl<'r> Column<'r> for $type {
            fn read(cell: Cell<'r>) -> Result<Self, BoxDynError> {
                match cell {
                    $($pattern => Ok($value),)*
                    other => other.mismatch($wanted),
                }
            }
        }
    )*};
}
columns! {
    i64, "an integer": Cell::Integer(n) => n;
    i32, "an integer": Cell::Integer(n) => n.try_into()?;
    u32, "an integer": Cell::Integer(n) => n.try_into()?;
    bool, "a truth value": Cell::Integer(n) => n != 0;
    f64, "a number": Cell::Real(x) => x;
    &'r str, "a text": Cell::Text(text) => text;
    String, "a text": Cell::Text(text) => text.to_owned();
    &'r [u8], "bytes": Cell::Blob(bytes) => bytes;
    Vec<u8>, "bytes": Cell::Blob(bytes) => bytes.to_vec();
}

/// A tuple of columns in their order.
pub trait FromRow: Sized {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error>;
}

macro_rules! tuples {
    ($(($($type:ident $place:tt),*))*) => {$(
        impl<$($type: for<'r> Column<'r>),*> FromRow for ($($type,)*) {
            fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
                Ok(($(row.try_get::<$type, _>($place)?,)*))
            }
        }
    )*};
}
tuples! {
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
}
