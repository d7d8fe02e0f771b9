//! The one form of a list.

use serde::Serialize;
use utoipa::ToSchema;

/// Where the next page of a list begins; of no meaning to clients.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Cursor(String);

impl From<String> for Cursor {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// A page of a list.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct List<T> {
    /// Always `list`.
    pub object: &'static str,
    /// The rows. A page may hold fewer than asked for although there are more: `next` decides.
    pub data: Vec<T>,
    /// Send it as `before` to get the next page; null where there is nothing more.
    pub next: Option<Cursor>,
}

impl<T> List<T> {
    /// A page with its cursor.
    pub fn page(data: Vec<T>, next: Option<impl Into<Cursor>>) -> Self {
        Self {
            object: "list",
            data,
            next: next.map(Into::into),
        }
    }

    /// A list that is one page.
    pub fn whole(rows: impl IntoIterator<Item = T>) -> Self {
        Self::page(rows.into_iter().collect(), None::<Cursor>)
    }
}

/// A page of a list whose rows are ordered by a number.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct NumberedList<T> {
    /// Always `list`.
    pub object: &'static str,
    /// The rows. A page may hold fewer than asked for although there are more: `next` decides.
    pub data: Vec<T>,
    /// Send it as `before` to get the next page; null where there is nothing more.
    pub next: Option<i64>,
}

impl<T> NumberedList<T> {
    /// A page and the number with which the next one begins.
    pub fn page(data: Vec<T>, next: Option<i64>) -> Self {
        Self {
            object: "list",
            data,
            next,
        }
    }
}
