//! What a step takes: a part of it whatever it computes, and a part for every token. On a processor the second
//! is nearly all; on a device a step of one token takes nearly as long as one of fifty.

/// What is kept of all that was noted before, each time something is.
const KEEP: f64 = 0.95;
/// Steps must differ by so many tokens (their standard deviation) to tell what one more takes.
const SPREAD: f64 = 8.0;
/// A token takes this part of what it would if a step took nothing beside its tokens, at least: steps differ in
/// other things too, and whoever believes that tokens take nothing computes too many.
const LEAST_PART: f64 = 0.125;

/// A line through the steps of late, by least squares; the older, the less they count.
#[derive(Debug, Default)]
pub(crate) struct StepCost {
    weight: f64,
    tokens: f64,
    us: f64,
    tokens_squared: f64,
    tokens_us: f64,
    /// Its slope when steps last differed enough.
    each_us: Option<f64>,
}

impl StepCost {
    /// A step computed so many tokens, one at least, in so many microseconds.
    pub(crate) fn note(&mut self, tokens: usize, us: u64) {
        let (tokens, us) = (tokens as f64, us as f64);
        let add = |sum: &mut f64, x: f64| *sum = *sum * KEEP + x;
        add(&mut self.weight, 1.0);
        add(&mut self.tokens, tokens);
        add(&mut self.us, us);
        add(&mut self.tokens_squared, tokens * tokens);
        add(&mut self.tokens_us, tokens * us);
        let (mean, mean_us) = (self.tokens / self.weight, self.us / self.weight);
        let variance = self.tokens_squared / self.weight - mean * mean;
        if variance >= SPREAD * SPREAD {
            let slope = (self.tokens_us / self.weight - mean * mean_us) / variance;
            self.each_us = Some(slope);
        }
    }

    /// Microseconds of one more token; of all of a step where steps do not tell more. 0 before the first.
    pub(crate) fn token_us(&self) -> f64 {
        if self.tokens == 0.0 {
            return 0.0;
        }
        let most = self.us / self.tokens;
        let each = self.each_us.unwrap_or(most);
        each.clamp(most * LEAST_PART, most)
    }

    /// How many tokens would take as long as a step of so many does.
    pub(crate) fn in_tokens(&self, tokens: usize) -> usize {
        let each = self.token_us();
        if each == 0.0 {
            return tokens;
        }
        let beside = (self.us - each * self.tokens) / self.weight;
        tokens + (beside / each).max(0.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steps_take_beside_their_tokens_is_found() {
        let mut cost = StepCost::default();
        assert_eq!((cost.token_us(), cost.in_tokens(8)), (0.0, 8));
        for step in 0..100 {
            let tokens = if step % 10 == 0 { 72 } else { 8 };
            cost.note(tokens, 2_000 + 40 * tokens as u64);
        }
        assert!((cost.token_us() - 40.0).abs() < 1e-6, "{cost:?}");
        assert!((57..=58).contains(&cost.in_tokens(8)), "{cost:?}");
        // It stays known when all steps are alike.
        for _ in 0..1_000 {
            cost.note(8, 2_320);
        }
        assert!((cost.token_us() - 40.0).abs() < 1e-6, "{cost:?}");
        assert!((57..=58).contains(&cost.in_tokens(8)), "{cost:?}");
    }

    #[test]
    fn where_steps_are_alike_a_token_takes_its_part_of_one() {
        let mut cost = StepCost::default();
        for tokens in [8, 7, 8, 6, 8] {
            cost.note(tokens, 100 * tokens as u64);
        }
        assert!((cost.token_us() - 100.0).abs() < 1e-6, "{cost:?}");
        assert_eq!(cost.in_tokens(8), 8);
    }

    #[test]
    fn a_token_takes_something_whatever_was_seen() {
        let mut cost = StepCost::default();
        // A small step that was held up makes it seem that tokens save time.
        cost.note(1, 9_000);
        cost.note(100, 10_000);
        let each = cost.token_us();
        assert!((20.0..=200.0).contains(&each), "{cost:?}");
        assert!(cost.in_tokens(8) < 1_000, "{cost:?}");
        // A large one that was held up does not take more than all of its time.
        cost.note(1_000, 10_000_000);
        assert!(cost.token_us() <= 10_000.0, "{cost:?}");
    }
}
