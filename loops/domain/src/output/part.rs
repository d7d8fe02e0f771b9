//! What a completion consists of: reasoning, content, calls.

/// A part of what was said, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Reasoning.
    Reasoning(String),
    /// Text for the user.
    Content(String),
    /// A call of this name begins; its arguments follow, in one piece or more.
    CallBegun(String),
    /// More of the arguments of the call that began last.
    Arguments(String),
}

/// A call without an id; `arguments` is the JSON text of an object as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// Function name.
    pub name: String,
    /// JSON text of the arguments.
    pub arguments: String,
}
