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
/// Places where the end stands elsewhere that are compared.
const PLACES: usize = 16;
/// Tokens of the text that are looked through, the last ones.
const LOOK_BACK: usize = 1 << 14;
/// Tokens that are looked at together.
const LANES: usize = 16;

/// A longer match is trusted more: where one of these lengths begins.
const LONGER: [usize; 2] = [4, 8];
/// How often the next token of a match is right before anything is known, by its length.
const PRIOR_RATES: [f64; 3] = [0.4, 0.6, 0.8];
/// What is expected weighs as much as so many tokens.
const PRIOR_WEIGHT: f64 = 2.0;
/// What is kept of all that was noted before, with every draft.
const KEEP_HITS: f64 = 0.95;

/// What is kept of all that was noted before, with every step.
const KEEP_STEPS: f64 = 0.98;
/// Before steps tell more, one takes as long as another with half as many rows again: where a row's part
/// is that of one in so many more.
const ROWS_BESIDE: f64 = 31.0;
/// What is expected weighs as much as one step whose rows differ from the others' by two.
const PRIOR_SPREAD: f64 = 4.0;
/// A step counts at most so many times what it should take: whatever held it up says nothing of rows.
const SLOWEST: f64 = 2.0;
/// What makes less more of the time than this is left alone.
const PAYS: f64 = 1.03;
/// Steps with drafts take so many times as long at most, where somebody has none.
const SLOWER: f64 = 1.25;

/// What follows the end of `text` where that end, or some of it, stands in `within`, or else earlier
/// in `text` itself: at most `most` tokens, appended to `draft`.
pub(crate) fn look_up(
    (text, within): (&[Token], &[Token]),
    most: usize,
    draft: &mut Vec<Token>,
) -> Option<Match> {
    let own = &text[text.len().saturating_sub(LOOK_BACK)..];
    let here = longest(text, &own[..own.len().saturating_sub(1)]);
    let there = longest(text, &within[..within.len().saturating_sub(1)]);
    if let Some(there) = there.filter(|there| here.is_none_or(|here| here.length <= there.length)) {
        draft.extend(within[there.next..].iter().take(most));
        return Some(there);
    }
    let here = here?;
    let from = draft.len();
    for at in here.next..here.next + most {
        // What is repeated may reach the end of the text: then it goes on with itself.
        let token = own.get(at).copied();
        draft.push(token.unwrap_or_else(|| draft[from + at - own.len()]));
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

/// The longest match of the end of `text` that ends in `within`, of equal ones the latest.
fn longest(text: &[Token], within: &[Token]) -> Option<Match> {
    let last = *text.last()?;
    let mut best: Option<Match> = None;
    let (mut end, mut places) = (within.len(), 0);
    for part in within.rchunks(LANES) {
        end -= part.len();
        // Without a branch per token.
        let any = part.iter().fold(false, |any, token| any | (*token == last));
        if !any {
            continue;
        }
        for at in (0..part.len()).rev().filter(|at| part[*at] == last) {
            let next = end + at + 1;
            let pairs = within[..next].iter().rev().zip(text.iter().rev());
            let length = pairs.take(MATCH_MOST).take_while(|(a, b)| a == b).count();
            if length < MATCH_LEAST {
                continue;
            }
            if best.is_none_or(|best| best.length < length) {
                best = Some(Match {
                    within: true,
                    next,
                    length,
                });
            }
            places += 1;
            if length == MATCH_MOST || places == PLACES {
                return best;
            }
        }
    }
    best
}

/// How often drafts of one completion were right of late, by the length of the match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hits {
    right: [f64; 3],
    tried: [f64; 3],
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

/// What decoding steps take by their rows: a line through those of late, by least squares, towards
/// what is expected of rows while steps hardly differ in them.
#[derive(Debug, Default)]
pub(crate) struct RowCost {
    weight: f64,
    rows: f64,
    us: f64,
    rows_squared: f64,
    rows_us: f64,
}

impl RowCost {
    /// A decoding step computed so many rows in so many microseconds.
    pub(crate) fn note(&mut self, rows: usize, us: u64) {
        let most = match self.weight > 0.0 {
            true => SLOWEST * self.us(rows),
            false => f64::INFINITY,
        };
        let (rows, us) = (rows as f64, (us as f64).min(most));
        let add = |sum: &mut f64, x: f64| *sum = *sum * KEEP_STEPS + x;
        add(&mut self.weight, 1.0);
        add(&mut self.rows, rows);
        add(&mut self.us, us);
        add(&mut self.rows_squared, rows * rows);
        add(&mut self.rows_us, rows * us);
    }

    /// Microseconds of a step of so many rows; 0 before the first.
    pub(crate) fn us(&self, rows: usize) -> f64 {
        if self.weight == 0.0 {
            return 0.0;
        }
        let (mean, mean_us) = (self.rows / self.weight, self.us / self.weight);
        let spread = (self.rows_squared - mean * self.rows).max(0.0);
        let together = self.rows_us - mean * self.us;
        let expected = mean_us / (mean + ROWS_BESIDE);
        let slope = (together + expected * PRIOR_SPREAD) / (spread + PRIOR_SPREAD);
        // A row takes something, and at most its part.
        let slope = slope.clamp(expected / 2.0, mean_us / mean);
        (mean_us + slope * (rows as f64 - mean)).max(mean_us / 64.0)
    }

    /// Whether one more row could pay in a step of so many, if its token were right for sure.
    pub(crate) fn may_pay(&self, rows: usize) -> bool {
        let (now, more) = (self.us(rows), self.us(rows + 1));
        now > 0.0 && (rows + 1) as f64 * now > PAYS * rows as f64 * more
    }
}

/// A draft that could be computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// How often its next token is right.
    pub(crate) rate: f64,
    /// Its tokens.
    pub(crate) tokens: usize,
}

/// How much of each draft pays in a step of `rows` rows beside them: what makes the most tokens of the
/// step's time, at most `most` of all. `us` tells that time by its rows. Buffers are the caller's.
pub(crate) fn lengths(
    candidates: &[Candidate],
    (rows, most): (usize, usize),
    us: impl Fn(usize) -> f64,
    (gains, lengths): (&mut Vec<(f64, usize)>, &mut Vec<usize>),
) {
    lengths.clear();
    lengths.resize(candidates.len(), 0);
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
    let longest = match candidates.len() < rows {
        true => SLOWER * alone,
        false => f64::INFINITY,
    };
    let (mut said, mut best, mut taken) = (rows as f64, PAYS * rows as f64 / alone, 0);
    for (at, (gain, _)) in gains.iter().take(most).enumerate() {
        let takes = us(rows + at + 1);
        if takes > longest {
            break;
        }
        said += gain;
        if said / takes > best {
            (best, taken) = (said / takes, at + 1);
        }
    }
    for (_, index) in &gains[..taken] {
        lengths[*index] += 1;
    }
}

#[cfg(test)]
#[path = "tests/draft.rs"]
mod tests;
