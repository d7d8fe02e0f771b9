//! Configuration: one documented struct per crate, defaults in `configs/default.toml` alone.
//!
//! Order: defaults, then the file of `--config`, then `HONE__SECTION__KEY`, then flags. A key that
//! nobody knows is an error that names it and the nearest known one.

mod error;
mod hidden;
mod keys;
mod layers;
mod origins;
mod sections;
mod settings;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use hone_accounts::{LimitsConfig, PeopleConfig};
use hone_api::HttpConfig;
use hone_api::settings::Origin;
use hone_domain::Loop;
use hone_inference::{BindingConfig, LearningConfig};
use hone_monitor::{ConsoleConfig, TelemetryConfig};
use hone_net::OutboundConfig;

use hone_api_types::plain;

pub use sections::{Engine, LogConfig, LogFormat, ModelConfig, Products, StoreConfig};

pub use error::ConfigError;
pub use origins::Origins;

/// The commented defaults; every key is in them.
pub const DEFAULTS: &str = include_str!("../../../../configs/default.toml");

/// What the built-in model needs instead of the defaults, which are for real models. It lies under a
/// person's own file, environment and flags.
pub const BUILT_IN: &str = include_str!("../../../../configs/builtin.toml");

/// Everything that can be configured.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The loops that run in this process.
    pub loops: Vec<Loop>,
    /// The HTTP server.
    pub http: HttpConfig,
    /// Accounts, keys, sign-ins.
    pub people: PeopleConfig,
    /// Limits of callers.
    pub limits: LimitsConfig,
    /// Calls to other servers.
    pub outbound: OutboundConfig,
    /// The console.
    pub console: ConsoleConfig,
    /// Which conversation a request belongs to.
    pub binding: BindingConfig,
    /// What may be learned from whom.
    pub learning: LearningConfig,
    /// Where data lives.
    pub store: StoreConfig,
    /// What is served.
    pub model: ModelConfig,
    /// The engine.
    pub serve: hone_serve::Config,
    /// The recorder.
    pub collect: hone_collect::Config,
    /// The judge.
    pub judge: hone_judge::Config,
    /// The trainer.
    pub train: hone_train::Config,
    /// What people say once.
    pub memory: hone_memory::Config,
    /// Agents that try tasks.
    pub rollout: hone_rollout::Config,
    /// The jails that they work in.
    pub tools: hone_rollouts::ToolsConfig,
    /// Traces and numbers for a collector.
    pub telemetry: TelemetryConfig,
    /// Logs.
    pub log: LogConfig,
    /// Where the values come from.
    #[serde(skip)]
    pub origins: Origins,
}

/// Where values come from, besides the defaults.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Text and name of the configuration file.
    pub file: Option<(String, String)>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// `section.key` and value, as flags set them.
    pub flags: Vec<(String, Value)>,
}

impl Sources {
    /// Reads the file and this process's environment.
    pub fn read(file: Option<&Path>, flags: Vec<(String, Value)>) -> Result<Self, ConfigError> {
        let file = match file {
            None => None,
            Some(path) => {
                let name = path.display().to_string();
                let text = std::fs::read_to_string(path).map_err(|error| {
                    ConfigError(format!(
                        "the configuration file {name} cannot be read: {error}"
                    ))
                })?;
                Some((text, name))
            }
        };
        Ok(Self {
            file,
            env: environment(std::env::vars_os())?,
            flags,
        })
    }
}

/// The variables that are text; one of ours has to be.
fn environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, ConfigError> {
    let mut env = Vec::new();
    for (name, value) in variables {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => env.push((name, value)),
            (Ok(name), Err(_)) if name.starts_with("HONE__") => {
                return Err(ConfigError(format!(
                    "the environment variable {name} is not text in UTF-8"
                )));
            }
            _ => {}
        }
    }
    Ok(env)
}

impl Config {
    /// Merges all layers and checks every value.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let under = |preset| {
            let (merged, origins) = Self::merged(sources, preset)?;
            let mut config = Self::checked(merged, |path| origins.source(path))?;
            config.origins = origins;
            Ok::<_, ConfigError>(config)
        };
        let built_in = under(Some((BUILT_IN, "configs/builtin.toml")))?;
        match built_in.model.is_built_in() {
            true => Ok(built_in),
            false => under(None),
        }
    }

    /// Merged layers as a configuration with every value checked; `source` names what set the value at
    /// a path.
    fn checked<'a>(
        merged: Table,
        source: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, ConfigError> {
        let wrong = |name: Option<&str>, why: String| {
            ConfigError(match name {
                Some(name) => format!("{name}: {why}"),
                None => why,
            })
        };
        let config: Self =
            serde_path_to_error::deserialize(Value::Table(merged)).map_err(|error| {
                let path = error.path().to_string();
                let why = plain::told(&path, error.inner().message());
                wrong(source(&path), why)
            })?;
        // Of the keys that do not fit together, the one that somebody set is theirs to correct.
        let checked = config.validate();
        checked.map_err(|why| {
            let name = keys::named(&why).find_map(&source);
            wrong(name, why)
        })?;
        Ok(config)
    }

    /// The merged layers as TOML, and where each value comes from.
    fn merged(
        sources: &Sources,
        preset: Option<(&str, &str)>,
    ) -> Result<(Table, Origins), ConfigError> {
        let mut origins = Origins::default();
        let mut merged = layers::parse(DEFAULTS, "configs/default.toml")?;
        let known = layers::with_optional(merged.clone())?;
        if let Some((text, name)) = preset {
            layers::merge(&mut merged, &known, layers::parse(text, name)?, name)?;
        }
        if let Some((text, name)) = &sources.file {
            let layer = layers::parse(text, name)?;
            origins.note(&layer, Origin::File, name);
            layers::merge(&mut merged, &known, layer, name)?;
        }
        for (name, value) in layers::env_values(&sources.env, &known)? {
            origins.note(&value, Origin::Environment, &name);
            layers::merge(&mut merged, &known, value, &name)?;
        }
        for (key, value) in &sources.flags {
            let layer = layers::nested(key, value.clone());
            origins.note(&layer, Origin::Flag, "");
            layers::merge(&mut merged, &known, layer, "a flag")?;
        }
        Ok((merged, origins))
    }

    fn validate(&self) -> Result<(), String> {
        if self.loops.is_empty() {
            let known = Loop::ALL.map(Loop::name).join(", ");
            return Err(format!("loops must name at least one of {known}"));
        }
        self.http.validate()?;
        self.people.validate()?;
        self.limits.validate()?;
        self.outbound.validate()?;
        self.telemetry.validate()?;
        self.console.validate()?;
        self.binding.validate()?;
        self.learning.validate()?;
        self.store.validate()?;
        self.model.validate()?;
        self.serve.validate()?;
        self.collect.validate()?;
        self.judge.validate()?;
        self.memory.validate()?;
        self.rollout.validate()?;
        self.tools.validate()?;
        self.check_mounts()?;
        self.train.validate()
    }

    /// Agents in jails are to see nothing of the data folder.
    fn check_mounts(&self) -> Result<(), String> {
        let Ok(data) = self.store.folder() else {
            return Ok(());
        };
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let data = real(&data);
        let shows = |mount: &&PathBuf| {
            let mount = real(mount);
            data.starts_with(&mount) || mount.starts_with(&data)
        };
        match self.tools.mounts.iter().find(shows) {
            None => Ok(()),
            Some(mount) => Err(format!(
                "tools.mounts has {}, which would show the data folder to agents; mount only the folders of their programs",
                mount.display()
            )),
        }
    }

    /// Whether a loop runs in this process.
    pub fn runs(&self, wanted: Loop) -> bool {
        self.loops.contains(&wanted)
    }

    /// This configuration with the values of another file in the place of its own.
    pub fn with(&self, file: (&str, &str)) -> Result<Self, ConfigError> {
        let (text, name) = file;
        let wrong = |error: toml::ser::Error| ConfigError(error.to_string());
        let mut merged = Table::try_from(self).map_err(wrong)?;
        let known = layers::with_optional(merged.clone())?;
        layers::merge(&mut merged, &known, layers::parse(text, name)?, name)?;
        Self::checked(merged, |_| Some(name))
    }

    /// The whole configuration as TOML, with secrets left out.
    pub fn print(&self) -> Result<String, ConfigError> {
        let mut shown = self.clone();
        for key in &mut shown.http.keys {
            key.sha256 = "(hidden)".to_owned();
        }
        shown.store.url = hidden::without_password(&shown.store.url);
        toml::to_string_pretty(&shown).map_err(|error| ConfigError(error.to_string()))
    }
}

#[cfg(test)]
mod tests;
