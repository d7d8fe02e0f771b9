//! A folder's config.json as candle's models read it: keys that newer writers put elsewhere or leave
//! out are put in place, and what candle would compute otherwise than the model means is refused.

use serde_json::{Map, Value, json};

/// A config.json that candle's model of `family` can be made from.
#[derive(Debug)]
pub(super) struct Settings {
    /// The `model_type`.
    pub(super) family: String,
    /// All keys.
    pub(super) config: Value,
    /// Most tokens that are computed rightly.
    pub(super) tokens_max: usize,
    /// Bytes of keys and values for so many tokens, in 32 bits.
    pub(super) cache_bytes: u64,
}

/// Reads `text`; at most `tokens_max` tokens are wanted.
///
/// # Errors
/// A sentence that names the key.
pub(super) fn read(text: &[u8], tokens_max: usize) -> Result<Settings, String> {
    let config: Value =
        serde_json::from_slice(text).map_err(|error| format!("config.json: {error}"))?;
    let Value::Object(mut config) = config else {
        return Err("config.json is no object".to_owned());
    };
    let family = config.get("model_type").and_then(Value::as_str);
    let family = family.unwrap_or("(none)").to_owned();
    rope(&mut config);
    refuse(&family, &config)?;
    let whole = |key: &str| whole(&config, key);
    let need = |key: &str| whole(key).ok_or(format!("config.json has no {key}"));
    let (hidden, heads) = (need("hidden_size")?, need("num_attention_heads")?.max(1));
    let layers = need("num_hidden_layers")?;
    let head_dim = whole("head_dim").unwrap_or(hidden / heads);
    let is_free = ["qwen3", "mistral", "gemma", "gemma2"].contains(&&*family);
    if head_dim * heads != hidden && !is_free {
        return Err(format!(
            "head_dim {head_dim} of model_type {family} is not computed here"
        ));
    }
    let kv_heads = whole("num_key_value_heads").unwrap_or(heads);
    let mut most = tokens_max.min(whole("max_position_embeddings").unwrap_or(tokens_max));
    // Beyond its window a long prompt, which is computed in pieces, would see too much.
    if ["mistral", "gemma2"].contains(&&*family) {
        most = most.min(whole("sliding_window").unwrap_or(most));
    }
    let mut fill = |key: &str, value: Value| {
        if config.get(key).is_none_or(Value::is_null) {
            config.insert(key.to_owned(), value);
        }
    };
    fill("head_dim", json!(head_dim));
    fill("num_key_value_heads", json!(kv_heads));
    fill("attention_bias", json!(false));
    fill("tie_word_embeddings", json!(false));
    fill("use_sliding_window", json!(false));
    fill("max_window_layers", json!(layers));
    // Rotary tables are made for so many positions.
    config.insert("max_position_embeddings".to_owned(), json!(most));
    if family == "qwen2" {
        config.insert("sliding_window".to_owned(), json!(most));
    }
    let cache = layers * kv_heads * head_dim * 2 * size_of::<f32>() * most;
    Ok(Settings {
        family,
        config: Value::Object(config),
        tokens_max: most,
        cache_bytes: cache as u64,
    })
}

fn whole(config: &Map<String, Value>, key: &str) -> Option<usize> {
    let value = config.get(key).and_then(Value::as_u64)?;
    Some(usize::try_from(value).unwrap_or(usize::MAX))
}

/// What candle's model of this family would leave out.
fn refuse(family: &str, config: &Map<String, Value>) -> Result<(), String> {
    let scaled = config.get("rope_scaling").filter(|value| !value.is_null());
    if let Some(scaling) = scaled.filter(|_| family != "llama") {
        return Err(format!(
            "rope_scaling {scaling} of model_type {family} is not computed here"
        ));
    }
    for key in ["use_sliding_window", "attention_bias", "mlp_bias"] {
        // Of these, only Qwen3 and Gemma have biases in their attention.
        let is_known = key == "attention_bias" && ["qwen3", "gemma", "gemma2"].contains(&family);
        if config.get(key).and_then(Value::as_bool) == Some(true) && !is_known {
            return Err(format!("{key} of model_type {family} is not computed here"));
        }
    }
    Ok(())
}

/// `rope_parameters` as the keys that it replaced.
fn rope(config: &mut Map<String, Value>) {
    let Some(Value::Object(mut rope)) = config.remove("rope_parameters") else {
        return;
    };
    if let Some(theta) = rope.remove("rope_theta") {
        config.insert("rope_theta".to_owned(), theta);
    }
    if rope.get("rope_type").is_some_and(|kind| kind != "default") {
        config.insert("rope_scaling".to_owned(), Value::Object(rope));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(family: &str, more: &Value) -> Result<Settings, String> {
        let mut config = json!({
            "model_type": family, "hidden_size": 32, "num_attention_heads": 4,
            "num_hidden_layers": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        });
        for (key, value) in more.as_object().cloned().unwrap_or_default() {
            config[key] = value;
        }
        read(config.to_string().as_bytes(), 1000)
    }

    #[test]
    fn missing_keys_are_put_in_place_and_memory_is_stated() {
        let rope = json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}});
        let read = with("qwen2", &rope).expect("it can be computed");
        assert_eq!(read.config["rope_theta"], 5e5);
        assert_eq!(read.config["sliding_window"], 1000, "it has none");
        assert_eq!(read.tokens_max, 1000);
        assert_eq!(read.cache_bytes, 2 * 2 * 8 * 2 * 4 * 1000);
        let windowed = with("mistral", &json!({"sliding_window": 64}));
        assert_eq!(windowed.map(|read| read.tokens_max), Ok(64));
    }

    #[test]
    fn what_would_be_computed_wrongly_is_refused() {
        for (family, more, named) in [
            (
                "qwen2",
                json!({"rope_scaling": {"type": "yarn"}}),
                "rope_scaling",
            ),
            (
                "qwen3",
                json!({"use_sliding_window": true}),
                "use_sliding_window",
            ),
            ("llama", json!({"attention_bias": true}), "attention_bias"),
            ("llama", json!({"head_dim": 64}), "head_dim"),
            ("llama", json!({"hidden_size": null}), "hidden_size"),
        ] {
            let error = with(family, &more).expect_err("it is refused");
            assert!(error.contains(named), "{error}");
        }
    }
}
