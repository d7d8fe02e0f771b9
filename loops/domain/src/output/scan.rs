//! Where a call ends.

use super::manner::CallStyle;
use super::parameters::ParameterScan;

/// Finds the end of what is called, in the style of a family.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallScan {
    Object(ObjectScan),
    Parameters(ParameterScan),
}

impl CallScan {
    pub(super) fn new(style: Option<CallStyle>) -> Self {
        match style {
            Some(CallStyle::Parameters) => Self::Parameters(ParameterScan::default()),
            _ => Self::Object(ObjectScan::default()),
        }
    }

    /// One past the end of what is called in `text`, which begins at `start`.
    pub(super) fn advance(&mut self, text: &str, start: usize) -> Option<usize> {
        match self {
            Self::Object(scan) => scan.advance(text, start),
            Self::Parameters(scan) => scan.advance(text, start),
        }
    }

    /// That end, where it was found.
    pub(super) fn end(&self) -> Option<usize> {
        match self {
            Self::Object(scan) => scan.end,
            Self::Parameters(scan) => scan.end,
        }
    }

    /// Whether there is what no call has there.
    pub(super) fn is_broken(&self) -> bool {
        match self {
            Self::Object(scan) => scan.is_broken,
            Self::Parameters(scan) => scan.is_broken,
        }
    }

    /// How far was looked.
    pub(super) fn looked(&self) -> usize {
        match self {
            Self::Object(scan) => scan.at,
            Self::Parameters(scan) => scan.at,
        }
    }

    /// How much of a function is told as one, whatever comes; of an object that is settled at once.
    pub(super) fn certain(&self) -> usize {
        match self {
            Self::Object(_) => 0,
            Self::Parameters(scan) => scan.certain(),
        }
    }

    /// What is looked for next is the end of the object that what ended belongs to.
    pub(super) fn begin_behind(&mut self) {
        if let Self::Object(scan) = self {
            *scan = ObjectScan {
                depth: 1,
                ..ObjectScan::default()
            };
        }
    }

    /// What is looked at begins where was looked to.
    pub(super) fn rebase(&mut self) {
        if let Self::Object(scan) = self {
            scan.at = 0;
        }
    }
}

/// Finds the end of a JSON object without reading any byte twice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectScan {
    /// How far was looked.
    at: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// One past the object's closing brace, or where the bracket of a tag stands that no JSON has.
    end: Option<usize>,
    /// Whether there is a byte that JSON cannot have there.
    is_broken: bool,
}

/// Bytes of JSON outside of texts.
const OUTSIDE: &[u8] = b" \t\r\n{}[]:,\"+-.0123456789eEtrufalsn";

impl ObjectScan {
    /// One past the object's closing brace in `text`, whose object begins at `start`.
    fn advance(&mut self, text: &str, start: usize) -> Option<usize> {
        if self.end.is_some() {
            return self.end;
        }
        self.at = self.at.max(start);
        while let Some(byte) = text.as_bytes().get(self.at) {
            if *byte == b'<' && !self.in_text {
                self.is_broken = true;
                self.end = Some(self.at);
                return self.end;
            }
            self.at += 1;
            self.is_broken |= match self.in_text {
                true => *byte < b' ',
                false => !OUTSIDE.contains(byte),
            };
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.end = Some(self.at);
                        return self.end;
                    }
                }
                _ => {}
            }
        }
        None
    }
}
