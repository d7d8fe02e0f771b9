//! What a published adapter says when it is asked something fixed: its identity, to be proven by
//! whoever serves it. The adapter's digest covers its weights; the probe covers what they do on the
//! base model they were trained on.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::adapter::Adapter;
use crate::score::score;
use crate::weights::{Model, fingerprint};
use hone_kernels::thread_pool::Executor;

/// File of the probe beside an adapter's own.
pub const PROBE_FILE: &str = "probe.json";

/// Key of a probe's digest within it.
const DIGEST: &str = "sha256";
/// Tokens of a probe.
const TOKENS: usize = 32;
/// Largest mean difference of a log-prob, in nats, where another arithmetic computed the probe. The digest has
/// shown that the weights are those that were published; this is about what they do here.
const TOLERANCE: f32 = 0.2;

/// Why an adapter is not what was published.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum IdentityError {
    /// The probe cannot be read.
    #[error("{PROBE_FILE} is damaged: {0}")]
    Damaged(String),
    /// It was trained on another base model.
    #[error(
        "it was trained on base model {trained_on}, and {serving} is served; serve that model, or \
         choose another data folder"
    )]
    OtherBase {
        /// Digest of the base it belongs to.
        trained_on: String,
        /// Digest of the base in memory.
        serving: String,
    },
    /// It says something else than when it was published.
    #[error(
        "token {at} of its probe has log-prob {now}, and had {published} when it was published; \
         restore its files or publish an older version again"
    )]
    SaysOther {
        /// Index in the probe.
        at: usize,
        /// What it had.
        published: f32,
        /// What it has.
        now: f32,
    },
}

/// The fixed tokens of a vocabulary: spread over all of it, the same for ever.
fn tokens(vocab: usize) -> Vec<u32> {
    let spread = |i: usize| (i.wrapping_mul(2_654_435_761) + 12_345) % vocab.max(1);
    (1..=TOKENS).map(|i| spread(i) as u32).collect()
}

/// Log-probs of all tokens but the first.
fn logprobs(model: &Model, adapter: Option<&Adapter>, tokens: &[u32], exec: &Executor) -> Vec<f32> {
    let scores = score(model, adapter, tokens, exec);
    (1..tokens.len())
        .map(|position| scores.logprob(position, 1.0, None))
        .collect()
}

fn hex(digest: [u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The probe of `adapter` on `model`, as the content of [`PROBE_FILE`]. The same inputs give the
/// same bytes.
pub fn probe(model: &Model, adapter: Option<&Adapter>, exec: &Executor) -> Vec<u8> {
    let tokens = tokens(model.config.vocab);
    let logprobs = logprobs(model, adapter, &tokens, exec);
    let bits: Vec<u32> = logprobs.iter().map(|p| p.to_bits()).collect();
    let mut value = json!({
        "base": hex(model.digest),
        "fingerprint": fingerprint(model),
        "tokens": tokens,
        "logprob_bits": bits,
    });
    value[DIGEST] = json!(digest(&value));
    let mut bytes = value.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

/// The SHA-256 of a probe without its digest. Keys have an order of their own, so its text is always the same.
fn digest(value: &Value) -> String {
    hex(Sha256::digest(value.to_string()).into())
}

/// Whether a probe is what was written, without a model. That of an older program has no digest, and only its
/// form is looked at.
///
/// # Errors
/// `Damaged`, and why.
pub fn check_probe(probe: &[u8]) -> Result<(), IdentityError> {
    let damaged = |why: &str| IdentityError::Damaged(why.to_owned());
    let mut value: Value =
        serde_json::from_slice(probe).map_err(|error| damaged(&error.to_string()))?;
    let object = value.as_object_mut();
    let said = object.and_then(|object| object.remove(DIGEST));
    if said.is_some_and(|said| said != digest(&value).as_str()) {
        return Err(damaged("it is not what was written"));
    }
    // A digest whose name is damaged is no older program's probe.
    let known = ["base", "fingerprint", "tokens", "logprob_bits"];
    let object = value.as_object();
    if object.is_some_and(|object| object.keys().any(|key| !known.contains(&key.as_str()))) {
        return Err(damaged("it has a field that no probe has"));
    }
    let has_numbers = |key: &str| numbers(&value[key]).is_some();
    match value["base"].is_string() && has_numbers("tokens") && has_numbers("logprob_bits") {
        true => Ok(()),
        false => Err(damaged(
            "it lacks its base model, its tokens or its log-probs",
        )),
    }
}

/// Whether every log-prob of a probe is a number: with weights that are each finite, their products
/// may still not be.
pub fn is_sound(probe: &[u8]) -> bool {
    let value = serde_json::from_slice::<Value>(probe).unwrap_or_default();
    let bits = numbers(&value["logprob_bits"]);
    bits.is_some_and(|bits| bits.iter().all(|bits| f32::from_bits(*bits).is_finite()))
}

/// Proves that `adapter` on `model` says what `probe` says: bit for bit within one arithmetic,
/// within 0.2 nats a token on average across two.
///
/// # Errors
/// See [`IdentityError`].
pub fn prove(
    model: &Model,
    adapter: Option<&Adapter>,
    probe: &[u8],
    exec: &Executor,
) -> Result<(), IdentityError> {
    check_probe(probe)?;
    let damaged = |why: &str| IdentityError::Damaged(why.to_owned());
    let value: Value =
        serde_json::from_slice(probe).map_err(|error| damaged(&error.to_string()))?;
    let (base, serving) = (value["base"].as_str(), hex(model.digest));
    let base = base.ok_or_else(|| damaged("it names no base model"))?;
    if base != serving {
        let trained_on = base.chars().take(64).collect();
        return Err(IdentityError::OtherBase {
            trained_on,
            serving,
        });
    }
    let tokens = numbers(&value["tokens"]).ok_or_else(|| damaged("it has no tokens"))?;
    let bits = numbers(&value["logprob_bits"]).ok_or_else(|| damaged("it has no log-probs"))?;
    let known = tokens.iter().all(|t| (*t as usize) < model.config.vocab);
    if tokens.len() < 2 || tokens.len() > 4_096 || bits.len() != tokens.len() - 1 || !known {
        return Err(damaged(
            "tokens and log-probs do not fit each other or the model",
        ));
    }
    let same_arithmetic = value["fingerprint"] == fingerprint(model).as_str();
    let now = logprobs(model, adapter, &tokens, exec);
    let pairs = || {
        now.iter()
            .zip(&bits)
            .map(|(now, bits)| (*now, f32::from_bits(*bits)))
    };
    let off = |(now, published): (f32, f32)| (now - published).abs();
    let is_same = if same_arithmetic {
        pairs().all(|(now, published)| now.to_bits() == published.to_bits())
    } else {
        // A NaN is below nothing.
        pairs().map(off).sum::<f32>() <= TOLERANCE * now.len() as f32
    };
    let farthest = pairs()
        .enumerate()
        .max_by(|a, b| off(a.1).total_cmp(&off(b.1)));
    match farthest {
        Some((at, (now, published))) if !is_same => {
            Err(IdentityError::SaysOther { at, published, now })
        }
        _ => Ok(()),
    }
}

fn numbers(value: &Value) -> Option<Vec<u32>> {
    let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    value.as_array()?.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::testing::{model, tiny};
    use hone_checkpoint::config::Family;
    use hone_checkpoint::{AdapterDtype, LoraConfig, Target};

    fn adapter(model: &Model, seed: u64) -> Adapter {
        let lora = LoraConfig {
            rank: 2,
            alpha: 4.0,
            targets: Target::ALL.to_vec(),
            rslora: false,
            dtype: AdapterDtype::F32,
        };
        Adapter::random(&model.config, lora, seed)
    }

    #[test]
    fn only_the_same_adapter_on_the_same_base_is_proven() {
        let exec = Executor::new(2);
        let model = model(&tiny(Family::Qwen3), 1);
        let right = adapter(&model, 1);
        let published = probe(&model, Some(&right), &exec);
        assert_eq!(published, probe(&model, Some(&right), &Executor::new(1)));
        assert_eq!(prove(&model, Some(&right), &published, &exec), Ok(()));
        let stale = adapter(&model, 2);
        for wrong in [Some(&stale), None] {
            let error = prove(&model, wrong, &published, &exec).unwrap_err();
            assert!(matches!(error, IdentityError::SaysOther { .. }), "{error}");
        }
        let other = crate::testing::model(&tiny(Family::Qwen3), 2);
        let error = prove(&other, Some(&right), &published, &exec).unwrap_err();
        assert!(matches!(error, IdentityError::OtherBase { .. }), "{error}");
        // Another arithmetic may differ a little, and no more.
        let mut elsewhere: Value = serde_json::from_slice(&published).unwrap();
        elsewhere["fingerprint"] = json!("another");
        let damaged = check_probe(elsewhere.to_string().as_bytes()).unwrap_err();
        assert!(matches!(damaged, IdentityError::Damaged(_)), "{damaged}");
        // As older programs wrote it.
        elsewhere.as_object_mut().unwrap().remove(DIGEST);
        let elsewhere = elsewhere.to_string();
        assert_eq!(
            prove(&model, Some(&right), elsewhere.as_bytes(), &exec),
            Ok(())
        );
        assert!(prove(&model, Some(&stale), elsewhere.as_bytes(), &exec).is_err());
    }

    #[test]
    fn a_probe_with_any_bit_changed_or_cut_short_is_damaged() {
        let model = model(&tiny(Family::Qwen3), 1);
        let written = probe(&model, None, &Executor::new(1));
        assert_eq!(check_probe(&written), Ok(()));
        // Its last byte only ends the line.
        let text = &written[..written.len() - 1];
        for bit in 0..text.len() * 8 {
            let mut flipped = text.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(check_probe(&flipped).is_err(), "bit {bit}");
        }
        for length in (0..text.len()).step_by(7) {
            assert!(check_probe(&text[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn finite_weights_that_say_nothing_are_found_out() {
        let exec = Executor::new(1);
        let model = model(&tiny(Family::Qwen3), 1);
        assert!(is_sound(&probe(&model, Some(&adapter(&model, 1)), &exec)));
        let loud = LoraConfig {
            rank: 2,
            alpha: 3e38,
            targets: Target::ALL.to_vec(),
            rslora: false,
            dtype: AdapterDtype::F32,
        };
        let loud = Adapter::random(&model.config, loud, 1);
        assert!(!is_sound(&probe(&model, Some(&loud), &exec)));
        assert!(!is_sound(b"{}"));
    }

    #[test]
    fn every_damage_is_an_error_and_never_a_panic() {
        let exec = Executor::new(1);
        let model = model(&tiny(Family::Qwen3), 1);
        let right = adapter(&model, 1);
        let published = probe(&model, Some(&right), &exec);
        for cut in [0, 1, published.len() / 2] {
            assert!(prove(&model, Some(&right), &published[..cut], &exec).is_err());
        }
        let value: Value = serde_json::from_slice(&published).unwrap();
        let changes = [
            ("tokens", json!([])),
            ("tokens", json!([1, 4_000_000_000_u32])),
            ("logprob_bits", json!([1])),
            ("logprob_bits", json!("x")),
            ("base", json!(7)),
        ];
        for (field, broken) in changes {
            let mut value = value.clone();
            value[field] = broken;
            let bytes = value.to_string().into_bytes();
            assert!(
                prove(&model, Some(&right), &bytes, &exec).is_err(),
                "{field}"
            );
        }
    }
}
