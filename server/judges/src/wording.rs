//! The served language for training.

use std::sync::Arc;

use hone_domain::{Message, Token};
use hone_inference::{Language, template_message};
use serde_json::Map;

/// The served language for training: hints and corrections become tokens as requests do.
pub struct Words(pub Arc<dyn Language>);

impl hone_train::Wording for Words {
    fn render(&self, messages: &[Message]) -> Result<String, String> {
        let messages: Vec<_> = messages.iter().map(template_message).collect();
        let text = self.0.render(&messages, None, &Map::new());
        text.map_err(|error| error.to_string())
    }

    fn encode(&self, text: &str) -> Vec<Token> {
        self.0.encode(text, false)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        self.0.decode(tokens)
    }
}
