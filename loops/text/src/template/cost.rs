//! What a template may cost, and how operations are charged before they run.

use std::cell::Cell;
use std::fmt;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Output, Value};

use super::repr::write_text;
use super::values::{Lazy, is_namespace};

/// Prefix of error details that tell of a limit.
pub(super) const OVER: &str = "\u{1}limit\u{1}";

/// What one rendering may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes of template source.
    pub(super) source_bytes: usize,
    /// Instructions, checks included.
    pub(super) fuel: u64,
    /// Nested calls of macros.
    pub(super) depth: usize,
    /// Bytes of any one string, the rendered prompt included.
    pub(super) text_bytes: usize,
    /// Bytes of text and values handled in all.
    pub(super) work_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            source_bytes: 256 << 10,
            fuel: 4_000_000,
            depth: 100,
            text_bytes: 8 << 20,
            work_bytes: 1 << 30,
        }
    }
}

/// Deepest nesting of lists and maps that a template can build.
const NESTING_MAX: usize = 100;
/// Work charged for each value, whatever it holds: visiting one costs about as much as copying this
/// many bytes of text.
pub(super) const VALUE_BYTES: usize = 128;
/// Memory that one piece of a text takes when it is cut up.
pub(super) const PIECE_BYTES: usize = 32;
/// How often a text may be printed on its way into the prompt, from macro to macro.
const PRINTED_TIMES: usize = 4;

/// What is left to a rendering.
#[derive(Clone, Copy)]
struct Left {
    /// Bytes of work.
    work: usize,
    /// More work was asked for than was left.
    spent: bool,
    /// Bytes of the longest text it may make.
    text: usize,
    /// Bytes it may print in all.
    printed: usize,
}

thread_local! {
    static LEFT: Cell<Left> = const {
        Cell::new(Left { work: 0, spent: false, text: 0, printed: 0 })
    };
}

/// Fills the budget; a rendering runs on one thread from start to end.
pub(super) fn start(limits: &Limits) {
    LEFT.set(Left {
        work: limits.work_bytes,
        spent: false,
        text: limits.text_bytes,
        printed: limits.text_bytes.saturating_mul(PRINTED_TIMES),
    });
}

/// Fails when a rendering of so many bytes went over its budget, also where nobody could say so.
pub(super) fn finish(bytes: usize) -> Result<(), Error> {
    if LEFT.get().spent {
        return Err(too_much());
    }
    text_so_far(bytes)
}

fn too_much() -> Error {
    over("it handles too much text")
}

pub(super) fn over(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{OVER}{what}"))
}

pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let mut left = LEFT.get();
    left.spent |= bytes > left.work;
    left.work = left.work.saturating_sub(bytes);
    LEFT.set(left);
    if left.spent { Err(too_much()) } else { Ok(()) }
}

/// Fails when a text grows beyond the longest allowed.
pub(super) fn text_so_far(bytes: usize) -> Result<(), Error> {
    if bytes > LEFT.get().text {
        Err(over("it makes too long a text"))
    } else {
        Ok(())
    }
}

/// Charges a text of `bytes` that is about to be made.
pub(super) fn text(bytes: usize) -> Result<(), Error> {
    text_so_far(bytes)?;
    charge(bytes)
}

/// Charges a value by its own length, without what is inside it.
pub(super) fn shallow(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(s) => text(s.len()),
        None => charge(value.len().unwrap_or(1).saturating_add(1) * VALUE_BYTES),
    }
}

/// Charges a value that is only asked for its kind or number of items.
pub(super) fn flat(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(_) => shallow(value),
        None => charge(VALUE_BYTES),
    }
}

/// Charges a value with everything in it, counted as often as it would be printed. Refuses deep
/// nesting, and namespaces and macros inside other values, through which a value could contain
/// itself.
pub(super) fn deep(value: &Value, nesting: usize) -> Result<(), Error> {
    if nesting > NESTING_MAX {
        return Err(over("it nests values too deep"));
    }
    charge(VALUE_BYTES)?;
    match value.kind() {
        ValueKind::String => text(value.as_str().map_or(0, str::len)),
        ValueKind::Bytes => charge(value.as_bytes().map_or(0, <[u8]>::len)),
        ValueKind::Seq | ValueKind::Iterable => {
            // Looking at a generator must not use it up.
            if let Some(lazy) = value.downcast_object_ref::<Lazy>() {
                return lazy.items.iter().try_for_each(|v| deep(v, nesting + 1));
            }
            for item in value.try_iter()? {
                deep(&item, nesting + 1)?;
            }
            Ok(())
        }
        ValueKind::Map => {
            if nesting > 0 && is_namespace(value) {
                return Err(over("it stores a namespace inside another value"));
            }
            for key in value.try_iter()? {
                deep(&key, nesting + 1)?;
                deep(&value.get_item(&key)?, nesting + 1)?;
            }
            Ok(())
        }
        ValueKind::Plain if nesting > 0 => Err(over("it stores a macro inside another value")),
        _ => Ok(()),
    }
}

/// `a + b`.
pub(super) fn sum(args: &[Value]) -> Result<(), Error> {
    let length = args
        .iter()
        .filter_map(Value::len)
        .fold(0usize, usize::saturating_add);
    if args.iter().any(|value| value.as_str().is_some()) {
        text(length)
    } else {
        charge(length.saturating_mul(VALUE_BYTES))
    }
}

/// `"ab" * n` and `[a, b] * n`.
pub(super) fn product(a: &Value, b: &Value) -> Result<(), Error> {
    let times = |n: &Value| n.as_usize().unwrap_or(0);
    for (many, n) in [(a, b), (b, a)] {
        match (many.as_str(), many.len()) {
            (Some(s), _) => text(s.len().saturating_mul(times(n)))?,
            (None, Some(length)) => {
                charge(length.saturating_mul(times(n)).saturating_mul(VALUE_BYTES))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// `replace(text, old, new)`: the result is at most one `new` for each `old` that fits.
pub(super) fn replace(args: &[Value]) -> Result<(), Error> {
    args.iter().try_for_each(shallow)?;
    let length = |at: usize| args.get(at).and_then(Value::as_str).map_or(0, str::len);
    let (text_len, old, new) = (length(0), length(1), length(2));
    let places = text_len.checked_div(old).unwrap_or(text_len + 1);
    text(text_len.saturating_add(places.saturating_mul(new)))
}

/// `join(items, between)` in either order: one `between` for each item, or for each character of a
/// text that is taken as items.
pub(super) fn join(args: &[Value]) -> Result<(), Error> {
    args.iter().try_for_each(|v| deep(v, 0))?;
    for (i, items) in args.iter().enumerate() {
        for (j, between) in args.iter().enumerate() {
            if let (true, Some(length), Some(s)) = (i != j, items.len(), between.as_str()) {
                text(length.saturating_mul(s.len()))?;
            }
        }
    }
    Ok(())
}

/// Writes to another place and stops as soon as it is too much.
struct Limited<'o, W: ?Sized> {
    out: &'o mut W,
    left: usize,
}

impl<W: fmt::Write + ?Sized> fmt::Write for Limited<'_, W> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.left = self.left.checked_sub(s.len()).ok_or(fmt::Error)?;
        self.out.write_str(s)
    }
}

/// Writes at most so many bytes, and tells how many.
fn write(out: &mut dyn fmt::Write, value: &Value, most: usize) -> Result<usize, Error> {
    let left = LEFT.get().work.min(most);
    let mut limited = Limited { out, left };
    let written = write_text(&mut limited, value);
    let used = left - limited.left;
    charge(used)?;
    written.map_err(|_| over("it makes too long a text"))?;
    Ok(used)
}

/// Prints a value.
pub(super) fn print(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    let left = LEFT.get();
    let used = write(out, value, left.text.min(left.printed))?;
    let mut left = LEFT.get();
    left.printed = left.printed.saturating_sub(used);
    LEFT.set(left);
    Ok(())
}

/// `str(value)`.
pub(super) fn written(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write(&mut out, value, LEFT.get().text)?;
    Ok(out)
}
