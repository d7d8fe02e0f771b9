//! Values of parameters.

/// A value with the type of its column; a missing one keeps the type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Integer(Option<i64>),
    Real(Option<f64>),
    Text(Option<String>),
    Blob(Option<Vec<u8>>),
}

/// What can be bound to a parameter. Truth values are the integers 0 and 1, in every database.
pub trait Bind: Sized {
    /// The value; none is stored as null.
    fn value(bound: Option<Self>) -> Value;
}

impl<T: Bind> Bind for Option<T> {
    fn value(bound: Option<Self>) -> Value {
        T::value(bound.flatten())
    }
}

macro_rules! bind {
    ($($type:ty, $value:ident => $made:expr;)*) => {$(
        impl Bind for $type {
            fn value(bound: Option<Self>) -> Value {
                Value::$value(bound.map($made))
            }
        }
    )*};
}
bind! {
    i64, Integer => |n| n;
    &i64, Integer => |n| *n;
    i32, Integer => i64::from;
    u32, Integer => i64::from;
    bool, Integer => i64::from;
    f64, Real => |x| x;
    &str, Text => str::to_owned;
    String, Text => |text| text;
    &String, Text => String::clone;
    &[u8], Blob => <[u8]>::to_vec;
    Vec<u8>, Blob => |bytes| bytes;
    &Vec<u8>, Blob => Vec::clone;
}

impl Bind for &Option<String> {
    fn value(bound: Option<Self>) -> Value {
        Value::Text(bound.cloned().flatten())
    }
}
