//! Stop strings: ends the text at the first that appears, and never shows a part of one.

/// Looks for stop strings in text that arrives in pieces. What it gives out, and where it stops,
/// does not depend on how the text was cut: it stops at the string whose last character comes
/// first, of several at the one that begins first.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
}

/// What a piece of text led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Matched {
    /// Text that cannot be part of a stop string.
    pub(crate) text: String,
    /// Whether a stop string ended here.
    pub(crate) stopped: bool,
}

impl StopMatcher {
    /// Empty strings stop nothing.
    pub(crate) fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        Self {
            stops,
            held: String::new(),
        }
    }

    pub(crate) fn push(&mut self, piece: String) -> Matched {
        if self.stops.is_empty() {
            return Matched {
                text: piece,
                stopped: false,
            };
        }
        self.held.push_str(&piece);
        if let Some(start) = self.first_match() {
            self.held.truncate(start);
            return Matched {
                text: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let keep = self
            .stops
            .iter()
            .map(|s| overlap(&self.held, s))
            .max()
            .unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        Matched {
            text: std::mem::replace(&mut self.held, tail),
            stopped: false,
        }
    }

    /// What is still held, when nothing more will come.
    pub(crate) fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Start of the match that ends first; the longest of those that end together.
    fn first_match(&self) -> Option<usize> {
        let found = self.stops.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        found.min().map(|(_, start)| start)
    }
}

/// Length of the longest end of `text` that begins `stop` without completing it.
fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    (1..=most)
        .rev()
        .find(|n| {
            stop.as_bytes()
                .starts_with(&text.as_bytes()[text.len() - n..])
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool, String) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut out = String::new();
        for piece in pieces {
            let matched = matcher.push((*piece).to_owned());
            out.push_str(&matched.text);
            if matched.stopped {
                return (out, true, matcher.flush());
            }
        }
        (out, false, matcher.flush())
    }

    #[test]
    fn cases() {
        let check = |stops: &[&str], pieces: &[&str], out: &str, stopped: bool, held: &str| {
            let got = run(stops, pieces);
            assert_eq!(
                got,
                (out.to_owned(), stopped, held.to_owned()),
                "{stops:?} {pieces:?}"
            );
        };
        check(&[], &["a", "b"], "ab", false, "");
        check(&[""], &["a"], "a", false, "");
        check(&["END"], &["so E", "N", "D more"], "so ", true, "");
        check(&["END"], &["so E", "N", "T"], "so ENT", false, "");
        check(&["END"], &["so EN"], "so ", false, "EN");
        check(&["abc", "b"], &["abc"], "a", true, "");
        check(&["abc", "bc"], &["xabc"], "x", true, "");
        check(&["aab"], &["aaab"], "a", true, "");
        check(&["😀!"], &["hi 😀", "?", "😀!"], "hi 😀?", true, "");
        check(&["é"], &["caf", "é"], "caf", true, "");
        check(&["\n\n"], &["a\n", "b\n", "\n"], "a\nb", true, "");
    }

    proptest! {
        #[test]
        fn cutting_the_text_differently_changes_nothing(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            cuts in prop::collection::vec(0usize..24, 0..8),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let whole = run(&stops, &[&text]);
            let chars: Vec<&str> = text.split_inclusive(|_| true).collect();
            prop_assert_eq!(&run(&stops, &chars), &whole);
            let mut bounds: Vec<usize> = cuts.iter().map(|c| (*c).min(chars.len())).collect();
            bounds.extend([0, chars.len()]);
            bounds.sort_unstable();
            let pieces: Vec<String> = bounds.windows(2).map(|w| chars[w[0]..w[1]].concat()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let got = run(&stops, &pieces);
            prop_assert_eq!(&got, &whole);
            let shown = format!("{}{}", got.0, got.2);
            prop_assert!(text.starts_with(&shown));
            prop_assert!(stops.iter().all(|s| s.is_empty() || !shown.contains(s)));
            prop_assert_eq!(got.1, stops.iter().any(|s| !s.is_empty() && text.contains(s)));
        }
    }
}
