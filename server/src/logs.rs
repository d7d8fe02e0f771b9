//! Logs to stderr: ids and counts, never user text.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Sets another filter where logging was started.
type Refilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

static REFILTER: OnceLock<Refilter> = OnceLock::new();

fn filter(level: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(level).map_err(|error| format!("log.level is {level:?}: {error}"))
}

/// Starts logging; the second start of a process (tests) changes nothing.
pub fn start(config: &LogConfig) -> Result<(), String> {
    let filter = filter(&config.level)?;
    let builder = tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let (refilter, first): (Refilter, bool) = match config.format {
        LogFormat::Text => {
            let builder = builder.with_env_filter(filter).with_filter_reloading();
            let handle = builder.reload_handle();
            let set = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (Box::new(set), builder.try_init().is_ok())
        }
        LogFormat::Json => {
            let builder = builder.json();
            let builder = builder.with_env_filter(filter).with_filter_reloading();
            let handle = builder.reload_handle();
            let set = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (Box::new(set), builder.try_init().is_ok())
        }
    };
    if first {
        let _only_one_can_be_first = REFILTER.set(refilter).is_ok();
    }
    Ok(())
}

/// Logs another level from now on, where logging was started.
pub fn set_level(level: &str) -> Result<(), String> {
    let filter = filter(level)?;
    REFILTER.get().map_or(Ok(()), |refilter| refilter(filter))
}
