//! Where a call's object ends.

/// Finds the end of a JSON object without reading any byte twice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectScan {
    /// How far was looked.
    pub(super) at: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// One past the object's closing brace.
    pub(super) end: Option<usize>,
    /// Whether there is a byte that JSON cannot have there.
    pub(super) is_broken: bool,
}

/// Bytes of JSON outside of texts.
const OUTSIDE: &[u8] = b" \t\r\n{}[]:,\"+-.0123456789eEtrufalsn";

impl ObjectScan {
    /// One past the object's closing brace in `text`, whose object begins at `start`.
    pub(super) fn advance(&mut self, text: &str, start: usize) -> Option<usize> {
        if self.end.is_some() {
            return self.end;
        }
        self.at = self.at.max(start);
        while let Some(byte) = text.as_bytes().get(self.at) {
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
