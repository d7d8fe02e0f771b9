//! Rows, and what a column is read as.

use sqlx::sqlite::SqliteRow;
use sqlx::{ColumnIndex, Decode, Row as _, Sqlite, Type};

/// A row of either database.
pub enum Row {
    Sqlite(SqliteRow),
}

/// A type that a column can be read as.
pub(crate) trait Column<'r>: Decode<'r, Sqlite> + Type<Sqlite> {}

impl<'r, T: Decode<'r, Sqlite> + Type<Sqlite>> Column<'r> for T {}

/// What names a column: its place or its name.
pub(crate) trait Index: ColumnIndex<SqliteRow> {}

impl<T: ColumnIndex<SqliteRow>> Index for T {}

impl Row {
    /// The value of a column.
    ///
    /// # Errors
    /// There is no such column, or it holds something else.
    pub(crate) fn try_get<'r, T: Column<'r>, I: Index>(
        &'r self,
        index: I,
    ) -> Result<T, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(index),
        }
    }
}

/// A tuple of columns in their order.
pub(crate) trait FromRow: Sized {
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
