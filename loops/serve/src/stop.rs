//! What ends a text: the first stop string that appears, of which no part is ever shown, or its only
//! call.

use std::sync::Arc;

use hone_domain::{Named, OutputParser, ServeError, Span, StopReason, StopRules};

/// How a completion goes on: why it ended, if it did.
pub(crate) type Went = Result<Option<StopReason>, ServeError>;

/// Looks for what ends the text of a completion. Stop strings are looked for outside of calls only.
#[derive(Debug)]
pub(crate) struct Ending {
    matcher: StopMatcher,
    /// Where calls matter.
    calls: Option<Box<OutputParser>>,
}

impl Ending {
    pub(crate) fn new(rules: &StopRules) -> Self {
        let output_format = rules.output_format;
        let matters = output_format.single || !rules.strings.is_empty();
        let tells = output_format.calls.is_some() && matters;
        let functions = Arc::new(Named(Arc::clone(&rules.functions)));
        Self {
            matcher: StopMatcher::new(&rules.strings),
            calls: tells.then(|| Box::new(OutputParser::among(output_format, functions))),
        }
    }

    /// Takes more text; gives what is certain, and why the completion ends with it, where it does.
    pub(crate) fn push(&mut self, piece: String) -> (String, Option<StopReason>) {
        let Some(calls) = &mut self.calls else {
            let matched = self.matcher.push(piece);
            return (
                matched.text,
                matched.stopped.then_some(StopReason::StopString),
            );
        };
        let spans = calls.push_spans(&piece);
        let mut certain = String::new();
        for span in spans {
            let matched = match span {
                Span::Text(text) => self.matcher.push(text),
                Span::Call(text) => self.matcher.pass(&text),
                Span::Gap(space) => self.matcher.push_gap(&space),
            };
            certain.push_str(&matched.text);
            if matched.stopped {
                return (certain, Some(StopReason::StopString));
            }
        }
        let called = calls.is_called();
        (certain, called.then_some(StopReason::ToolCall))
    }

    /// Takes the last text; gives what is certain now that nothing more comes.
    pub(crate) fn finish(&mut self, piece: String) -> String {
        let (mut text, ended) = self.push(piece);
        if ended.is_some() {
            return text;
        }
        let rest = self.calls.as_mut().and_then(|calls| calls.finish_spans());
        let matched = match rest {
            Some(Span::Text(rest)) => self.matcher.push(rest),
            Some(Span::Call(rest)) => self.matcher.pass(&rest),
            Some(Span::Gap(rest)) => self.matcher.push_gap(&rest),
            None => self.matcher.push(String::new()),
        };
        text.push_str(&matched.text);
        if !matched.stopped {
            text.push_str(&self.matcher.flush());
        }
        text
    }
}

/// Looks for stop strings in text that arrives in pieces. What it gives out, and where it stops,
/// does not depend on how the text was cut: it stops at the string whose last character comes
/// first, of several at the one that begins first.
#[derive(Debug)]
struct StopMatcher {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    /// So many bytes of it are space behind a call, in which no stop string ends.
    gap: usize,
}

/// What a piece of text led to.
#[derive(Debug, PartialEq, Eq)]
struct Matched {
    /// Text that cannot be part of a stop string.
    text: String,
    /// Whether a stop string ended here.
    stopped: bool,
}

impl StopMatcher {
    /// Empty strings stop nothing.
    fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        Self {
            stops,
            held: String::new(),
            gap: 0,
        }
    }

    fn push(&mut self, piece: String) -> Matched {
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
                text: self.flush(),
                stopped: true,
            };
        }
        Matched {
            text: self.certain(),
            stopped: false,
        }
    }

    /// Takes space behind a call: a stop string may begin there, and is not found in it alone.
    fn push_gap(&mut self, space: &str) -> Matched {
        self.held.push_str(space);
        self.gap = self.held.len();
        Matched {
            text: self.certain(),
            stopped: false,
        }
    }

    /// Takes text that ends nothing, and that no stop string reaches into.
    fn pass(&mut self, piece: &str) -> Matched {
        let mut text = self.flush();
        text.push_str(piece);
        Matched {
            text,
            stopped: false,
        }
    }

    /// Gives out what is held and begins no stop string.
    fn certain(&mut self) -> String {
        let begun = self.stops.iter().map(|s| overlap(&self.held, s));
        let certain = self.held.len() - begun.max().unwrap_or(0);
        self.gap = self.gap.saturating_sub(certain);
        let tail = self.held.split_off(certain);
        std::mem::replace(&mut self.held, tail)
    }

    /// What is still held, when nothing more will come.
    fn flush(&mut self) -> String {
        self.gap = 0;
        std::mem::take(&mut self.held)
    }

    /// Start of the match that ends first; the longest of those that end together.
    fn first_match(&self) -> Option<usize> {
        let found = self.stops.iter().filter_map(|stop| {
            // One that ends in the gap does not count.
            let from = (self.gap + 1).saturating_sub(stop.len());
            let from = self.held.ceil_char_boundary(from);
            let start = from + self.held.get(from..)?.find(stop.as_str())?;
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
    use hone_domain::{CallStyle, OutputFormat, Reasoning};
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

    /// The text that is told, and why it ended.
    fn ended(text: &str, size: usize, rules: &StopRules) -> (String, Option<StopReason>) {
        let mut ending = Ending::new(rules);
        let mut told = String::new();
        let chars: Vec<String> = text.chars().map(String::from).collect();
        for piece in chars.chunks(size) {
            let (more, why) = ending.push(piece.concat());
            told.push_str(&more);
            if why.is_some() {
                return (told, why);
            }
        }
        told.push_str(&ending.finish(String::new()));
        (told, None)
    }

    fn rules(stops: &[&str], calls: CallStyle, single: bool) -> StopRules {
        StopRules {
            strings: stops.iter().map(|stop| (*stop).to_owned()).collect(),
            output_format: OutputFormat {
                calls: Some(calls),
                reasoning: Reasoning::Maybe,
                single,
                held: false,
            },
            ..StopRules::default()
        }
    }

    const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"Rome</tool_call>\"}}\n</tool_call>";
    const OBJECT: &str = "{\"name\": \"f\", \"parameters\": {\"a\": \"Rome; é\"}}";

    /// Holds what a text tells, and why it ended, against what is expected, however it is cut.
    fn tells(
        text: &str,
        (stops, style, single): (&[&str], CallStyle, bool),
        (told, why): (&str, Option<StopReason>),
    ) {
        for held in [false, true] {
            let mut rules = rules(stops, style, single);
            rules.output_format.held = held;
            for size in 1..=text.len() {
                let got = ended(text, size, &rules);
                let expected = (told.to_owned(), why);
                assert_eq!(got, expected, "{text:?} {stops:?} {size} {held}");
            }
        }
    }

    #[test]
    fn calls_are_not_cut_and_the_only_one_ends_the_text() {
        use CallStyle::{Json, Tags};
        use StopReason::{StopString, ToolCall};
        let all: &[&str] = &["Rome", "\n", "{", "<tool_call>", "</tool_call>", "name"];
        let two = format!("{CALL}\n{CALL}");
        tells(CALL, (all, Tags, false), (CALL, None));
        tells(&two, (all, Tags, false), (&two, None));
        tells(&two, (all, Tags, true), (CALL, Some(ToolCall)));
        tells(&two, (&[], Tags, true), (CALL, Some(ToolCall)));
        let text = format!("a Rome {CALL}");
        tells(&text, (all, Tags, false), ("a ", Some(StopString)));
        let (text, told) = (format!("{CALL}\na Rome b"), format!("{CALL}\na "));
        tells(&text, (&["Rome"], Tags, false), (&told, Some(StopString)));
        // What begins behind a call may begin with space.
        for space in ["", "\n", " \n\n "] {
            let text = format!("{CALL}{space}\nSeen: b");
            let told = format!("{CALL}{space}");
            let stopped = (told.as_str(), Some(StopString));
            tells(&text, (&["\nSeen:", "\n"], Tags, false), stopped);
        }
        let text = format!("{OBJECT}\nSeen: b");
        tells(
            &text,
            (&["\nSeen:"], Json, false),
            (OBJECT, Some(StopString)),
        );
        // Not behind one that only looked like one.
        let told = format!("{CALL}<tool_call>");
        let broken = format!("{told}\nx");
        tells(&broken, (&["\n"], Tags, false), (&told, Some(StopString)));
        // Neither side of a call makes a stop string of both.
        let text = format!("a{CALL}b");
        tells(&text, (&["ab", "a<", ">b"], Tags, false), (&text, None));
        // What the model only thinks of calling it does not call.
        let told = format!("<think>{CALL} or {CALL}</think>{CALL}");
        let text = format!("{told}x");
        tells(&text, (&[], Tags, true), (&told, Some(ToolCall)));
        let thought = &told[..told.find("Rome").expect("there")];
        tells(&told, (&["Rome"], Tags, false), (thought, Some(StopString)));
        let objects = format!("{OBJECT}; {OBJECT}");
        tells(
            &objects,
            (&["Rome", ";", "{"], Json, false),
            (&objects, None),
        );
        tells(&objects, (&[], Json, true), (OBJECT, Some(ToolCall)));
    }

    #[test]
    fn calls_of_functions_that_there_are_are_calls_sound_or_not() {
        let unsound = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\", \"b\": True}}</tool_call>";
        let texts = "<tool_call>\n<function=f>\n<parameter=a>\none\ntwo\n</parameter>\n</function>\n</tool_call>";
        for (text, style) in [(unsound, CallStyle::Tags), (texts, CallStyle::Parameters)] {
            let rules = |stops: &[&str], single| StopRules {
                functions: Arc::new(["f".to_owned()]),
                ..rules(stops, style, single)
            };
            let two = format!("{text}{text}");
            for size in 1..=text.len() {
                let told = ended(&two, size, &rules(&["\n", "two", "True"], false));
                assert_eq!(told, (two.clone(), None), "{size}");
                let told = ended(&two, size, &rules(&[], true));
                assert_eq!(
                    told,
                    (text.to_owned(), Some(StopReason::ToolCall)),
                    "{size}"
                );
            }
            // It comes while it is said.
            let mut ending = Ending::new(&rules(&["END"], false));
            let most = text.find(['y', 'w']).expect("there");
            let (told, _) = ending.push(text[..most].to_owned());
            assert!(told.len() + 16 > most, "{told}");
        }
    }

    #[test]
    fn what_only_looks_like_a_call_is_text() {
        use CallStyle::{Json, Tags};
        let stopped = Some(StopReason::StopString);
        tells("a <tool b", (&["<tool b"], Tags, false), ("a ", stopped));
        // That it is text is known at the end, which has its own reason.
        tells("a <tool_call", (&["call"], Tags, false), ("a <tool_", None));
        let text = "<tool_call> END";
        tells(text, (&["END"], Tags, false), ("<tool_call> ", stopped));
        let broken = "<tool_call>{\"name\": f(1) END";
        let told = &broken[..broken.len() - 3];
        tells(broken, (&["END"], Tags, true), (told, stopped));
        let cut = "<tool_call>{\"name\": \"f";
        tells(cut, (&["name"], Tags, false), (cut, None));
        tells("a Rome", (&["Rome"], Json, true), ("a ", stopped));
        let data = "{\"a\": 1} Rome";
        tells(data, (&["Rome"], Json, true), ("{\"a\": 1} ", stopped));
    }

    /// What can only be text is looked at when it comes.
    #[test]
    fn no_stop_string_is_late() {
        use CallStyle::{Json, Tags};
        let rows = [
            ("<think>a\n\n", "\n\n", "<think>a"),
            ("<think>\n\n", "\n\n", "<think>"),
            ("<think>a</", "</", "<think>a"),
            ("a\n", "\n", "a"),
            (" \n", "\n", " "),
            ("<think>a</think>\n", "\n", "<think>a</think>"),
            ("<think>a</think>b\n\n", "\n\n", "<think>a</think>b"),
        ];
        for style in [Tags, Json] {
            for (text, stop, told) in rows {
                tells(
                    text,
                    (&[stop], style, false),
                    (told, Some(StopReason::StopString)),
                );
                let rules = rules(&[stop], style, false);
                let mut ending = Ending::new(&rules);
                let pieces = text.split_inclusive(|_| true);
                let whys: Vec<_> = pieces
                    .map(|piece| ending.push(piece.to_owned()).1)
                    .collect();
                assert!(whys.last().is_some_and(Option::is_some), "{text:?}");
            }
        }
    }

    /// A text that opens a call and is no JSON is not waited for to its end.
    #[test]
    fn a_broken_call_is_known_early() {
        let rules = rules(&["END"], CallStyle::Tags, false);
        for begin in ["x", "{x", "{\"a\": b", "{\"a\nb"] {
            let mut ending = Ending::new(&rules);
            let (text, why) = ending.push(format!("<tool_call>{begin} END"));
            assert_eq!(
                (text, why),
                (format!("<tool_call>{begin} "), Some(StopReason::StopString))
            );
        }
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
