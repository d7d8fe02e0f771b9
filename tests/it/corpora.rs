//! Bytes from outside: every kept input of `tests/corpora`, and inputs made up from them, is parsed or
//! refused, and no promise of its parser is broken. HONE_MADE_UP_SECONDS makes up more of them, so many
//! seconds for each parser.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use hone_tests::parsers::PARSERS;

/// Inputs made up for each parser where no time is given.
const MADE_UP: usize = 400;
/// Longest made-up input.
const BYTES_MAX: usize = 16 * 1024;
/// Bytes that parsers look out for.
const TELLING: &[&[u8]] = &[
    b"\"",
    b"\\",
    b"\0",
    b"\r\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"null",
    b"-1",
    b"1e999",
    b"\\ud800",
    b"<tool_call>",
    b"</tool_call>",
    b"<think>",
    b"</think>",
    b"\xff",
    b"\xff\xff\xff\xff",
    b".",
    b"\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xf0\x9f\xa6\x80",
    b"9223372036854775808",
];

fn kept(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpora")
        .join(name);
    let files = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 3, "{} is nearly empty", folder.display());
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

/// SplitMix64 (Steele, Lea and Flood 2014): the same inputs on every machine.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit.max(1) as u64) as usize
    }

    /// One kept input with a few of its bytes changed, cut, doubled, or mixed with another's.
    fn make_up(&mut self, kept: &[Vec<u8>]) -> Vec<u8> {
        let mut data = kept[self.below(kept.len())].clone();
        for _ in 0..=self.below(6) {
            let at = self.below(data.len() + 1);
            let end = (at + self.below(32)).min(data.len());
            match self.below(6) {
                0 if at < data.len() => data[at] ^= 1 << self.below(8),
                1 => drop(data.splice(at..at, TELLING[self.below(TELLING.len())].iter().copied())),
                2 => drop(data.splice(at..end, TELLING[self.below(TELLING.len())].iter().copied())),
                3 => drop(data.drain(at..end)),
                4 => {
                    let piece = data[at..end].to_vec();
                    data.splice(at..at, piece);
                }
                _ => {
                    let other = &kept[self.below(kept.len())];
                    let from = self.below(other.len() + 1);
                    let to = (from + self.below(64)).min(other.len());
                    data.splice(at..end, other[from..to].iter().copied());
                }
            }
        }
        data.truncate(BYTES_MAX);
        data
    }
}

/// Shown as Rust writes bytes, so that it can be kept.
fn check(name: &str, parse: fn(&[u8]), data: &[u8]) {
    let parsed = catch_unwind(AssertUnwindSafe(|| parse(data)));
    let shown = &data[..data.len().min(4096)];
    assert!(
        parsed.is_ok(),
        "{name} breaks a promise on b\"{}\"",
        shown.escape_ascii()
    );
}

#[test]
fn every_kept_input_is_parsed_or_refused() {
    for (name, parse) in PARSERS {
        for data in kept(name) {
            check(name, parse, &data);
        }
    }
}

#[test]
fn made_up_inputs_are_parsed_or_refused() {
    let seconds = std::env::var("HONE_MADE_UP_SECONDS").ok();
    let time = seconds.map(|text| Duration::from_secs(text.parse().unwrap()));
    for (name, parse) in PARSERS {
        let (kept, mut chance) = (kept(name), Chance(1));
        let (began, mut made) = (Instant::now(), 0);
        while time.map_or(made < MADE_UP, |time| began.elapsed() < time) {
            check(name, parse, &chance.make_up(&kept));
            made += 1;
        }
        println!(
            "{name}: {made} inputs in {:.1} s",
            began.elapsed().as_secs_f64()
        );
    }
}
