//! What every list has in common: how many rows, where a page begins, and words of a filter.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;

use hone_api_types::{List, plain};
use hone_domain::PolicyVersion;
use hone_ledger::Window;
use hone_replies::error::ApiError;

/// Most rows of a page.
pub const LIMIT_MAX: usize = 200;
/// Rows of a page where nothing is said.
const LIMIT: usize = 50;

/// The query, or what is wrong with it.
pub fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    query.map(|Query(query)| query).map_err(|error| {
        let (param, message) = plain::told_of_query(&error.body_text());
        ApiError::invalid(param, message)
    })
}

/// Checks `limit`.
pub fn limit(limit: Option<usize>) -> Result<usize, ApiError> {
    limit_up_to(LIMIT_MAX, limit.unwrap_or(LIMIT))
}

/// Checks a `limit` of a list whose pages may be larger.
pub fn limit_up_to(most: usize, limit: usize) -> Result<usize, ApiError> {
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(ApiError::invalid(
        "limit",
        format!("limit must be between 1 and {most}, not {limit}"),
    ))
}

/// Reads `before`, a row's number.
pub fn before(before: Option<&str>) -> Result<Option<u64>, ApiError> {
    before
        .map(|text| number(text).ok_or_else(wrong_cursor))
        .transpose()
}

/// The page that `limit` and `before`, a row's number, ask for.
pub fn window(
    limit_wanted: Option<usize>,
    before_wanted: Option<&str>,
) -> Result<Window, ApiError> {
    let before = before(before_wanted)?;
    Ok(Window {
        limit: limit(limit_wanted)?,
        before: before.map(|number| i64::try_from(number).unwrap_or(i64::MAX)),
    })
}

/// A page of rows, each with its number; a full one may have another behind it.
pub fn page<R, T>(
    rows: impl IntoIterator<Item = R>,
    limit: usize,
    parts: impl Fn(R) -> (i64, T),
) -> List<T> {
    let (numbers, data): (Vec<i64>, Vec<T>) = rows.into_iter().map(parts).unzip();
    let last = numbers.last().filter(|_| numbers.len() == limit);
    List::page(data, last.map(ToString::to_string))
}

/// Reads `before`, a time and a row's number.
pub fn before_ms(before: Option<&str>) -> Result<Option<(i64, u64)>, ApiError> {
    let read = |text: &str| {
        let (ms, row) = text.split_once('.')?;
        Some((i64::try_from(number(ms)?).ok()?, number(row)?))
    };
    before
        .map(|text| read(text).ok_or_else(wrong_cursor))
        .transpose()
}

/// Rows are numbered as the database can: up to 2^63 - 1.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n| i64::try_from(*n).is_ok())
}

/// A version's number. What is larger than the ledger can count was never published.
pub fn version(param: &'static str, number: u64) -> Result<PolicyVersion, ApiError> {
    if i64::try_from(number).is_ok() {
        return Ok(PolicyVersion(number));
    }
    let message = format!("{param} is {number}, which no version has");
    Err(ApiError::invalid(param, message))
}

fn wrong_cursor() -> ApiError {
    ApiError::invalid("before", "before must be the `next` of an earlier page")
}

/// A word of a closed set.
pub fn word<T>(
    param: &'static str,
    text: Option<&str>,
    (parse, known): (impl Fn(&str) -> Option<T>, &str),
) -> Result<Option<T>, ApiError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let shown: String = text.chars().take(60).collect();
    let wrong = || ApiError::invalid(param, format!("{param} must be {known}, not {shown:?}"));
    parse(text).map(Some).ok_or_else(wrong)
}

/// A field that says something.
pub fn said(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str)
        .filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use axum::extract::Query;
    use serde::Deserialize;

    use super::*;

    #[test]
    fn what_is_wrong_in_a_query_is_named() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Asked {
            #[serde(rename = "limit")]
            _limit: Option<u8>,
            #[serde(rename = "scope")]
            _scope: String,
        }
        for (text, param, expected) in [
            (
                "scope=a&limit=x",
                "limit",
                "limit must be a whole number, written in digits alone",
            ),
            ("scope=a&limit=900", "limit", "limit is too large a number"),
            (
                "scope=a&limit=",
                "limit",
                "limit is empty, and must be a whole number",
            ),
            ("limit=1", "scope", "scope is missing"),
            (
                "scope=a&a:%20b=1",
                "a: b",
                "there is no parameter \"a: b\" here; known: limit or scope",
            ),
        ] {
            let uri = format!("/?{text}").parse().expect("a path");
            let read = Query::<Asked>::try_from_uri(&uri);
            let error = query(read).expect_err("it is wrong").body().error;
            assert_eq!(
                (error.param.as_deref(), &*error.message),
                (Some(param), expected)
            );
        }
    }
}
