//! Where each value of the configuration comes from.

use std::collections::BTreeMap;

use hone_api::settings::Origin;
use toml::{Table, Value};

/// Where each key's value comes from, besides the defaults: kind, and the file's or variable's name.
#[derive(Clone, Debug, Default)]
pub struct Origins(pub(super) BTreeMap<String, (Origin, String)>);

impl Origins {
    /// The file or variable that set what is at `path`, where it is not the defaults.
    pub(super) fn source(&self, path: &str) -> Option<&str> {
        let mut set = self.0.iter().filter(|(key, (_, name))| {
            let rest = path.strip_prefix(key.as_str());
            !name.is_empty() && rest.is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']))
        });
        set.next().map(|(_, (_, name))| name.as_str())
    }

    /// Every key of a layer now comes from there.
    pub(super) fn note(&mut self, layer: &Table, origin: Origin, name: &str) {
        leaves("", layer, &mut |key, _| {
            self.0.insert(key.to_owned(), (origin, name.to_owned()));
        });
    }
}

/// Calls `found` with every value that is no table, under its full key.
pub(super) fn leaves(prefix: &str, table: &Table, found: &mut impl FnMut(&str, &Value)) {
    for (key, value) in table {
        let path = if prefix.is_empty() {
            key.clone()
        } else {
            format!("{prefix}.{key}")
        };
        match value {
            Value::Table(inner) => leaves(&path, inner, found),
            value => found(&path, value),
        }
    }
}
