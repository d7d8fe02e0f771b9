//! What memories are about, where they come from, and what a request does with them.

use serde::{Deserialize, Serialize};

/// What a memory is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// Something about the person.
    Fact,
    /// How the person wants to be answered.
    Preference,
}

/// How a memory came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryOrigin {
    /// The person said so: in a message, or by adding it to the list.
    Said,
    /// A verdict found it in what the person said of an answer.
    Judged,
    /// It was brought from elsewhere.
    Imported,
}

/// What a request does with memories.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum MemoryMode {
    /// Nothing.
    #[default]
    Off,
    /// Its answer is shown memories.
    Read,
    /// The same, and what is said in it can become a memory.
    Full,
}

macro_rules! names {
    ($($type:ident { $($value:ident $name:literal,)* })*) => {$(
        impl $type {
            /// The stored name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }

            /// Restores it from its stored name.
            pub fn from_stored(text: &str) -> Option<Self> {
                [$(Self::$value,)*].into_iter().find(|value| value.as_str() == text)
            }
        }
    )*};
}
names! {
    MemoryKind {
        Fact "fact",
        Preference "preference",
    }
    MemoryOrigin {
        Said "said",
        Judged "judged",
        Imported "imported",
    }
    MemoryMode {
        Off "off",
        Read "read",
        Full "full",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for mode in [MemoryMode::Off, MemoryMode::Read, MemoryMode::Full] {
            assert_eq!(MemoryMode::from_stored(mode.as_str()), Some(mode));
        }
        assert_eq!(MemoryKind::from_stored("wish"), None);
    }
}
