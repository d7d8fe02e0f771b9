//! The limits of the engine; every one has an overflow rule that is named and counted.

use hone_nn::BLOCK_TOKENS;
use serde::{Deserialize, Serialize};

/// Settings of the serve loop. Defaults live in `configs/default.toml` alone.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Most memory for keys and values of running requests and reusable prefixes, in bytes; 0 leaves it
    /// to [`Self::sized`].
    /// When it runs out, reusable prefixes go first, then the newest request of the lowest
    /// priority is paused and computed again later.
    pub kv_cache_bytes_max: u64,
    /// Most requests in one step.
    pub running_max: usize,
    /// Most requests in the waiting line; further ones are refused as overloaded.
    pub waiting_max: usize,
    /// Most of them of one owner and their agents; further ones of theirs are refused as overloaded.
    pub waiting_per_owner_max: usize,
    /// Most tokens one step computes, decoding and prefill together.
    pub step_tokens_max: usize,
    /// Milliseconds a step should last while requests are decoding; prefill is cut to fit.
    pub step_target_ms: u64,
    /// Most prompt tokens of one request in one step.
    pub prefill_chunk_tokens_max: usize,
    /// Most tokens that a completion drafts in one step: what follows where its last words stood before,
    /// computed beside the next token and kept where the draws say the same. Answers are the same
    /// with and without; 0 drafts nothing.
    pub draft_tokens_max: usize,
    /// Head start in the waiting line of one priority class over the next, in milliseconds. A
    /// request that has waited longer than that overtakes newer requests of the better class.
    pub priority_step_ms: u64,
    /// Most memory for adapters that no request uses at the moment, and those in use, in bytes.
    /// The longest unused go first; adapters in use are never dropped. Requests whose adapter is not
    /// in memory wait for room; where none comes, one in use serves nobody new, so that it goes.
    pub adapter_bytes_max: u64,
    /// Most scopes remembered as having been asked for; the longest unused are forgotten.
    pub scopes_known_max: usize,
    /// Most adapters read from the blob store at the same time.
    pub loads_parallel_max: usize,
    /// Milliseconds after a failed load before the next ask tries again.
    pub load_retry_ms: u64,
    /// Most tokens of a scope's hottest prefixes that are computed under a newer version before it
    /// serves, so that the first token comes as fast after a swap as before it. Only what a step
    /// has left is used for it. What does not fit is cold after the swap, and counted; 0 swaps at
    /// once.
    pub prewarm_tokens_max: usize,
    /// Milliseconds after which a newer version serves, whatever is still cold.
    pub prewarm_ms_max: u64,
    /// How often every adapter in memory is proven to be what was published, in milliseconds; 0
    /// proves it when it is loaded only.
    pub prove_interval_ms: u64,
    /// Steps that panic in a row after which the engine gives up and says so in the status registry.
    pub panics_in_row_max: u32,
}

impl Config {
    /// Checks the numbers; the error names the key.
    pub fn validate(&self) -> Result<(), String> {
        let at_least = |key: &str, value: u64, least: u64| {
            if value < least {
                Err(format!(
                    "serve.{key} is {value} but must be at least {least}"
                ))
            } else {
                Ok(())
            }
        };
        at_least("running_max", self.running_max as u64, 1)?;
        at_least("waiting_max", self.waiting_max as u64, 1)?;
        at_least(
            "waiting_per_owner_max",
            self.waiting_per_owner_max as u64,
            1,
        )?;
        // One token for every running request and one at least for prefill, so neither starves.
        at_least(
            "step_tokens_max",
            self.step_tokens_max as u64,
            self.running_max as u64 + 1,
        )?;
        at_least("step_target_ms", self.step_target_ms, 1)?;
        at_least(
            "prefill_chunk_tokens_max",
            self.prefill_chunk_tokens_max as u64,
            1,
        )?;
        at_least("adapter_bytes_max", self.adapter_bytes_max, 1)?;
        at_least("scopes_known_max", self.scopes_known_max as u64, 1)?;
        at_least("loads_parallel_max", self.loads_parallel_max as u64, 1)?;
        at_least("panics_in_row_max", u64::from(self.panics_in_row_max), 1)?;
        let (drafts, most) = (self.draft_tokens_max, BLOCK_TOKENS - 1);
        if drafts > most {
            // A draft lies in the block of the token before it.
            return Err(format!(
                "serve.draft_tokens_max is {drafts} but must be at most {most}"
            ));
        }
        Ok(())
    }

    /// A small engine, for tests here and in other crates.
    #[cfg(any(test, feature = "test-switches"))]
    pub const fn for_tests() -> Self {
        Self {
            kv_cache_bytes_max: 8 << 20,
            running_max: 16,
            waiting_max: 256,
            waiting_per_owner_max: 256,
            step_tokens_max: 128,
            step_target_ms: 1_000,
            prefill_chunk_tokens_max: 64,
            draft_tokens_max: 8,
            priority_step_ms: 2_000,
            adapter_bytes_max: 64 << 20,
            scopes_known_max: 1_000,
            loads_parallel_max: 2,
            load_retry_ms: 0,
            prewarm_tokens_max: 1_024,
            prewarm_ms_max: 20_000,
            prove_interval_ms: 20,
            panics_in_row_max: 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_limits_are_named() {
        assert_eq!(Config::for_tests().validate(), Ok(()));
        let starving = Config {
            step_tokens_max: 16,
            ..Config::for_tests()
        };
        let error = starving.validate().expect_err("no room for prefill");
        assert!(error.contains("serve.step_tokens_max"), "{error}");
        let none = Config {
            waiting_max: 0,
            ..Config::for_tests()
        };
        assert!(
            none.validate()
                .expect_err("no line")
                .contains("serve.waiting_max")
        );
        let long = |draft_tokens_max| Config {
            draft_tokens_max,
            ..Config::for_tests()
        };
        assert_eq!((long(0).validate(), long(31).validate()), (Ok(()), Ok(())));
        let error = long(32).validate().expect_err("longer than a block");
        assert!(error.contains("serve.draft_tokens_max"), "{error}");
    }
}
