//! Drafts: what a completion probably says next, computed beside its last token and kept as far as the
//! draws say the same.
//!
//! This is speculative decoding whose drafts are looked up in the text itself (prompt lookup), or in a
//! text that the asker predicts. Every draw is made from the same logits, by the same number, as without a
//! draft, so no answer depends on drafts, to the last bit: they decide when a token is computed, and a
//! wrong one is computed for nothing. How many pay is decided from what steps take.

use hone_domain::Token;

/// Tokens of the text's end that must stand elsewhere too.
const MATCH_LEAST: usize = 2;
/// Tokens of it that are compared.
const MATCH_MOST: usize = 16;
/// Places where the last token stands elsewhere that are compared on either side, the nearest, so that a text
/// of one token takes no longer than others.
const PLACES: usize = 256;
/// Tokens that are looked through: the last ones of the text, and those around where a prediction was
/// followed.
const LOOKED_AT: usize = 1 << 14;
/// Tokens that are looked at together.
const LANES: usize = 16;

/// A longer match is trusted more: where one of these lengths begins. What is predicted but follows no match
/// is trusted least, and counts for itself.
const LONGER: [usize; 3] = [2, 4, 8];
/// How often the next token of a match is right before anything is known, by its length.
const PRIOR_RATES: [f64; 4] = [0.3, 0.4, 0.6, 0.8];
/// What is expected weighs as much as so many tokens.
const PRIOR_WEIGHT: f64 = 2.0;
/// What is kept of all that was noted before, with every draft.
const KEEP_HITS: f64 = 0.95;

/// Most rows of a step that are told apart.
pub(crate) const ROWS_MAX: usize = 256;
/// Where nothing was seen yet, a row takes what it would if a step took as long as so many rows beside
/// its own.
const ROWS_BESIDE: f64 = 31.0;
/// Steps of so many rows whose quickest counts; what holds steps up makes them slower only.
const FIRST_STEPS: u32 = 3;
/// Where fewer were seen, they are believed for so many steps: the first may be the one that was held up.
const FIRST_BELIEVED: u64 = 64;
/// What a later step moves of what is known of its rows, and of how long steps take altogether: powers of
/// its ratio, so that noise moves neither for good.
const ROWS_MOVE: f64 = 0.02;
const LEVEL_MOVE: f64 = 0.2;
/// A step counts at most so many times what it should take.
const SLOWEST: f64 = 2.0;
/// What was not seen for so many steps is not known any more, and may be tried again.
const FORGOTTEN_STEPS: u64 = 2_000;

/// What makes less more of the time than this is left alone.
const PAYS: f64 = 1.03;
/// Nobody's tokens come so many times later for the drafts of others.
pub(crate) const SLOWER: f64 = 1.25;

/// What follows the end of `text` where that end, or some of it, stands in `within`, around `near`, or
/// earlier in `text` itself: at most `most` tokens, appended to `draft`. The longest match counts, of equal
/// ones one in `within`, and there the one nearest to `near`; else the latest.
pub(crate) fn look_up(
    text: &[Token],
    within: &[Token],
    near: usize,
    most: usize,
    draft: &mut Vec<Token>,
) -> Option<Match> {
    let own = &text[text.len().saturating_sub(LOOKED_AT)..];
    let own = &own[..own.len().saturating_sub(1)];
    let here = longest(text, own, own.len());
    let near = near.min(within.len());
    let from = near.saturating_sub(LOOKED_AT / 2);
    let around = &within[from..within.len().min(from + LOOKED_AT)];
    let around = &around[..around.len().saturating_sub(1)];
    let there = longest(text, around, near - from);
    if let Some(there) = there.filter(|there| here.is_none_or(|here| here.length <= there.length)) {
        let next = from + there.next;
        draft.extend(within[next..].iter().take(most));
        return Some(Match { next, ..there });
    }
    let here = here?;
    let from = draft.len();
    for at in here.next..here.next + most {
        // What is repeated may reach the end of the text: then it goes on with itself.
        let token = match at.checked_sub(own.len()) {
            None => own[at],
            Some(0) => *text.last()?,
            Some(past) => draft[from + past - 1],
        };
        draft.push(token);
    }
    Some(Match {
        within: false,
        ..here
    })
}

/// Where the end of a text stands elsewhere, as far back as they are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// Whether not in the text itself.
    pub(crate) within: bool,
    /// Where it goes on.
    pub(crate) next: usize,
    /// Tokens of it.
    pub(crate) length: usize,
}

/// The longest match of the end of `text` that ends in `within`, of equal ones the one that goes on nearest
/// to `near`, and rather before it.
fn longest(text: &[Token], within: &[Token], near: usize) -> Option<Match> {
    let last = *text.last()?;
    let near = near.min(within.len());
    let (before, behind) = within.split_at(near);
    // Without a branch per token.
    let has = |part: &[Token]| (part.iter()).fold(false, |any, token| any | (*token == last));
    let parts = before.rchunks(LANES).scan(near, |end, part| {
        *end -= part.len();
        Some((*end, part))
    });
    let before = parts
        .filter(|(_, part)| has(part))
        .flat_map(|(from, part)| {
            let all = part.iter().enumerate().rev();
            all.filter(|(_, token)| **token == last)
                .map(move |(at, _)| from + at + 1)
        });
    let parts = behind.chunks(LANES).zip((near..).step_by(LANES));
    let behind = parts
        .filter(|(part, _)| has(part))
        .flat_map(|(part, from)| {
            let all = part.iter().enumerate();
            all.filter(|(_, token)| **token == last)
                .map(move |(at, _)| from + at + 1)
        });
    let first = first_longest(text, within, before);
    let second = first_longest(text, within, behind);
    match (first, second) {
        (Some(first), Some(second)) => {
            let nearer = second.next - near < near - first.next;
            let longer = second.length > first.length;
            let is_second = longer || (nearer && second.length == first.length);
            Some(if is_second { second } else { first })
        }
        (first, second) => first.or(second),
    }
}

/// The first of the longest matches that end before one of these places.
fn first_longest(
    text: &[Token],
    within: &[Token],
    places: impl Iterator<Item = usize>,
) -> Option<Match> {
    let mut best: Option<Match> = None;
    for next in places.take(PLACES) {
        let pairs = within[..next].iter().rev().zip(text.iter().rev());
        let length = pairs.take(MATCH_MOST).take_while(|(a, b)| a == b).count();
        if length >= MATCH_LEAST && best.is_none_or(|best| length > best.length) {
            best = Some(Match {
                within: true,
                next,
                length,
            });
        }
        if length == MATCH_MOST {
            break;
        }
    }
    best
}

/// How often drafts of one completion were right of late, by the length of the match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hits {
    right: [f64; 4],
    tried: [f64; 4],
}

impl Hits {
    fn class(length: usize) -> usize {
        LONGER.iter().filter(|longer| length >= **longer).count()
    }

    /// How often the next token of such a match is right.
    pub(crate) fn rate(&self, length: usize) -> f64 {
        let class = Self::class(length);
        let right = self.right[class] + PRIOR_RATES[class] * PRIOR_WEIGHT;
        right / (self.tried[class] + PRIOR_WEIGHT)
    }

    /// Of a draft after such a match so many tokens were right, and then one was not if it `failed`.
    pub(crate) fn note(&mut self, length: usize, right: usize, failed: bool) {
        let class = Self::class(length);
        let tried = right + usize::from(failed);
        self.right[class] = self.right[class] * KEEP_HITS + right as f64;
        self.tried[class] = self.tried[class] * KEEP_HITS + tried as f64;
    }
}

/// What decoding steps take by their rows. That is no line: kernels compute rows by fours and eights. What
/// all steps have in common (contexts grow, the machine is shared) is told apart from it.
#[derive(Debug)]
pub(crate) struct RowCost {
    steps: u64,
    /// What steps take of late, against what is noted of their rows.
    level: f64,
    noted: Box<[Noted; ROWS_MAX]>,
    /// What is expected of each number of rows.
    expected: Box<[f64; ROWS_MAX]>,
}

/// What was seen of steps of one number of rows.
#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    us: f64,
    steps: u32,
    /// The last of them.
    at: u64,
}

impl Default for RowCost {
    fn default() -> Self {
        Self {
            steps: 0,
            level: 1.0,
            noted: Box::new([Noted::default(); ROWS_MAX]),
            expected: Box::new([0.0; ROWS_MAX]),
        }
    }
}

impl RowCost {
    /// A decoding step computed so many rows, one at least, in so many microseconds.
    pub(crate) fn note(&mut self, rows: usize, us: u64) {
        if rows >= ROWS_MAX {
            return;
        }
        self.steps += 1;
        let mut us = us.max(1) as f64;
        let noted = &mut self.noted[rows];
        if noted.steps > 0 {
            let wanted = noted.us * self.level;
            us = us.min(SLOWEST * wanted);
            self.level *= (us / wanted).powf(LEVEL_MOVE);
        }
        let us = us / self.level;
        noted.us = match noted.steps {
            0 => us,
            1..FIRST_STEPS => noted.us.min(us),
            _ => noted.us * (us / noted.us).powf(ROWS_MOVE),
        };
        noted.steps = noted.steps.saturating_add(1);
        noted.at = self.steps;
        self.expect();
    }

    /// Between two numbers of rows that were seen everything is on a line; beyond them rows are expected to take
    /// little.
    fn expect(&mut self) {
        let mut before: Option<(usize, f64)> = None;
        for rows in 1..ROWS_MAX {
            let noted = &mut self.noted[rows];
            let age = self.steps - noted.at;
            if age > FORGOTTEN_STEPS {
                *noted = Noted::default();
            }
            let is_known = match noted.steps {
                0 => false,
                1..FIRST_STEPS => age <= FIRST_BELIEVED,
                _ => true,
            };
            if !is_known {
                continue;
            }
            let us = noted.us;
            let from = before.map_or(1, |(rows, _)| rows + 1);
            for between in from..rows {
                self.expected[between] = match before {
                    Some((first, least)) => {
                        let part = (between - first) as f64 / (rows - first) as f64;
                        least + part * (us - least)
                    }
                    None => us * beside(between) / beside(rows),
                };
            }
            self.expected[rows] = us;
            before = Some((rows, us));
        }
        if let Some((last, us)) = before {
            for rows in last + 1..ROWS_MAX {
                self.expected[rows] = us * beside(rows) / beside(last);
            }
        }
    }

    /// Microseconds of a step of so many rows; 0 before the first, and of more than are told apart.
    pub(crate) fn us(&self, rows: usize) -> f64 {
        self.expected.get(rows).map_or(0.0, |us| us * self.level)
    }

    /// Whether so many more rows could pay in a step of so many, if all their tokens were right.
    pub(crate) fn may_pay(&self, rows: usize, more: usize) -> bool {
        let (now, then) = (self.us(rows), self.us(rows + more));
        now > 0.0 && then > 0.0 && (rows + more) as f64 * now > PAYS * rows as f64 * then
    }
}

/// What a step of so many rows takes, where nothing else is known.
fn beside(rows: usize) -> f64 {
    rows as f64 + ROWS_BESIDE
}

/// A draft that could be computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// How often its next token is right.
    pub(crate) rate: f64,
    /// Its tokens.
    pub(crate) tokens: usize,
}

/// What steps with drafts may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Rows beside those of drafts, and most of those.
    pub(crate) rows: usize,
    pub(crate) most: usize,
    /// Microseconds.
    pub(crate) longest: f64,
    /// See [`SLOWER`].
    pub(crate) slower: f64,
}

/// Buffers that a caller keeps.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    gains: Vec<(f64, usize)>,
    /// Tokens that each is expected to say in the step.
    said: Vec<f64>,
    /// Tokens of each draft that pay.
    pub(crate) lengths: Vec<usize>,
}

/// How much of each draft pays: what makes the most tokens of the step's time within the bounds. `us` tells
/// that time by the step's rows.
pub(crate) fn choose(
    candidates: &[Candidate],
    bounds: Bounds,
    us: impl Fn(usize) -> f64,
    Chosen {
        gains,
        said,
        lengths,
    }: &mut Chosen,
) {
    let Bounds {
        rows,
        most,
        longest,
        slower,
    } = bounds;
    lengths.clear();
    lengths.resize(candidates.len(), 0);
    said.clear();
    said.resize(candidates.len(), 1.0);
    gains.clear();
    for (index, candidate) in candidates.iter().enumerate() {
        let mut gain = 1.0;
        for _ in 0..candidate.tokens.min(most) {
            gain *= candidate.rate;
            gains.push((gain, index));
        }
    }
    // Those of one draft descend, so any number of the best are beginnings of drafts.
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    let alone = us(rows);
    let (mut all, mut best, mut taken) = (rows as f64, PAYS * rows as f64 / alone, 0);
    for (at, (gain, index)) in gains.iter().take(most).enumerate() {
        said[*index] += gain;
        all += gain;
        let takes = us(rows + at + 1);
        // Of those who have no draft every step is one token.
        let least = match candidates.len() < rows {
            true => 1.0,
            false => said.iter().copied().fold(f64::INFINITY, f64::min),
        };
        let may = takes > 0.0 && takes <= longest && takes <= slower * alone * least;
        if may && all / takes > best {
            (best, taken) = (all / takes, at + 1);
        }
    }
    for (_, index) in &gains[..taken] {
        lengths[*index] += 1;
    }
}

/// What the engine knows of drafts, and of those of the step.
#[derive(Debug, Default)]
pub(crate) struct Drafting {
    pub(crate) cost: RowCost,
    /// Tokens of drafts in this step.
    pub(crate) drafted: usize,
    /// Until this step there are none.
    pub(crate) rest: u64,
    /// Places among the running of those who have one.
    pub(crate) who: Vec<usize>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) chosen: Chosen,
}

#[cfg(test)]
#[path = "tests/draft.rs"]
mod tests;
