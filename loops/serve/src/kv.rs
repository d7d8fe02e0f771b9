//! How much memory keys and values get, and what fits into it.

use hone_nn::DeviceModel;
use hone_nn::{BLOCK_TOKENS, KvPool, Model, blocks_out_of_sight};

use crate::config::Config;

/// Memory for keys and values where the configuration leaves it open, at the least.
const OPEN_BYTES_MIN: u64 = 512 << 20;

/// Bytes that keys and values of one request take that is as long as the model's own context.
pub fn context_bytes(model: &Model, device: Option<&dyn DeviceModel>) -> u64 {
    let blocks = model.config.max_positions.div_ceil(BLOCK_TOKENS) as u64;
    blocks.saturating_mul(block_bytes(model, device))
}

/// Bytes of a block of keys and values over all layers.
fn block_bytes(model: &Model, device: Option<&dyn DeviceModel>) -> u64 {
    let each = match device {
        Some(device) => device.bytes_per_block(),
        None => KvPool::bytes_per_block(&model.config, model.kv),
    };
    each.max(1) as u64
}

impl Config {
    /// With a size for the cache of keys and values where that was left open: what a request of the whole
    /// context takes (see [`context_bytes`]), up to a quarter of the memory that is free, and 512 MiB at
    /// the least.
    pub fn sized(self, context_bytes: u64, free: Option<u64>) -> Self {
        let open = context_bytes.min(free.unwrap_or(0) / 4).max(OPEN_BYTES_MIN);
        Self {
            kv_cache_bytes_max: match self.kv_cache_bytes_max {
                0 => open,
                given => given,
            },
            ..self
        }
    }
}

/// What fits.
pub(crate) struct KvRoom {
    /// Blocks of [`BLOCK_TOKENS`] tokens.
    pub(crate) blocks: usize,
    /// Blocks that one request holds at most because of sliding windows.
    pub(crate) blocks_each: usize,
    /// Most tokens of one request.
    pub(crate) max_positions: usize,
}

impl KvRoom {
    /// Takes the configured memory, or what a device has, and says where that cuts the model's context.
    pub(crate) fn of(
        model: &Model,
        device: Option<&dyn DeviceModel>,
        config: &Config,
    ) -> Result<Self, String> {
        let whole = context_bytes(model, device);
        let wanted = config.clone().sized(whole, None).kv_cache_bytes_max;
        let bytes = held(wanted, device)?;
        let each = block_bytes(model, device);
        let blocks = usize::try_from(bytes / each).unwrap_or(usize::MAX);
        let blocks = blocks.min(u32::MAX as usize - 1);
        if blocks < 2 {
            return Err(format!(
                "serve.kv_cache_bytes_max is {wanted}, but two blocks of {BLOCK_TOKENS} tokens of this model \
                 take {} bytes",
                2 * each
            ));
        }
        let blocks_each = blocks_each(&model.config, config);
        // With sliding windows a request never needs more than its share at a time.
        let fitting = if blocks_each < blocks {
            usize::MAX
        } else {
            blocks * BLOCK_TOKENS
        };
        let own = model.config.max_positions;
        let max_positions = own.min(fitting);
        if let Some(why) = cut(own, max_positions, whole, wanted) {
            tracing::warn!("{why}");
        }
        Ok(Self {
            blocks,
            blocks_each,
            max_positions,
        })
    }
}

/// Of the wanted memory, on a device at most what is free there less a tenth, which steps and
/// adapters use.
fn held(wanted: u64, device: Option<&dyn DeviceModel>) -> Result<u64, String> {
    let Some(device) = device else {
        return Ok(wanted);
    };
    let free = device.memory_free().map_err(|error| error.to_string())?;
    let most = free / 10 * 9;
    if wanted > most {
        tracing::warn!(
            wanted,
            taken = most,
            "serve.kv_cache_bytes_max is more than the device has free; keys and values get less"
        );
    }
    Ok(wanted.min(most))
}

/// Blocks that one request holds at most.
fn blocks_each(model: &hone_checkpoint::ModelConfig, config: &Config) -> usize {
    // Positions after which the first block is out of sight: the largest window, to whole blocks.
    let horizon = model.max_positions + BLOCK_TOKENS;
    let unseen = blocks_out_of_sight(model, horizon);
    if unseen == 0 {
        return usize::MAX;
    }
    let window = horizon.div_ceil(BLOCK_TOKENS) - unseen + 1;
    let chunk = config.prefill_chunk_tokens_max.min(config.step_tokens_max);
    window + chunk.div_ceil(BLOCK_TOKENS) + 1
}

/// What to say where less than the model's own context is served, and what raises it.
fn cut(own: usize, served: usize, whole: u64, wanted: u64) -> Option<String> {
    let remedy = match wanted < whole {
        true => format!("set serve.kv_cache_bytes_max to that to serve it (it is {wanted} now)"),
        false => "the device has no memory for that".to_owned(),
    };
    (served < own).then(|| {
        format!(
            "requests may have {served} tokens and the model itself takes {own}, whose keys and values \
             need {whole} bytes; {remedy}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_memory_cuts_is_told_with_what_raises_it() {
        let rows = [
            (
                320,
                1_000,
                Some("kv_cache_bytes_max to that to serve it (it is 1000 now)"),
            ),
            (320, 128_000, Some("the device has no memory for that")),
            (40_960, 128_000, None),
        ];
        for (served, wanted, remedy) in rows {
            let told = cut(40_960, served, 128_000, wanted);
            assert_eq!(told.is_some(), remedy.is_some(), "{told:?}");
            for part in remedy.into_iter().chain(remedy.and(Some("takes 40960"))) {
                assert!(told.as_ref().is_some_and(|t| t.contains(part)), "{told:?}");
            }
        }
    }

    #[test]
    fn memory_that_is_left_open_holds_the_context_within_a_quarter_of_what_is_free() {
        const GIB: u64 = 1 << 30;
        let sized = |given, context, free| {
            let config = Config {
                kv_cache_bytes_max: given,
                ..Config::for_tests()
            };
            config.sized(context, free).kv_cache_bytes_max
        };
        assert_eq!(sized(0, 4 * GIB, Some(64 * GIB)), 4 * GIB);
        assert_eq!(sized(0, 4 * GIB, Some(8 * GIB)), 2 * GIB);
        assert_eq!(sized(0, 4 * GIB, Some(GIB)), OPEN_BYTES_MIN);
        assert_eq!(sized(0, 1, Some(64 * GIB)), OPEN_BYTES_MIN);
        assert_eq!(sized(0, 4 * GIB, None), OPEN_BYTES_MIN);
        assert_eq!(sized(7, 4 * GIB, Some(64 * GIB)), 7);
    }
}
