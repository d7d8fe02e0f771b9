//! Logs to stderr: ids and counts, never user text.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Starts logging; the second start of a process (tests) changes nothing.
pub fn start(config: &LogConfig) -> Result<(), String> {
    let filter = EnvFilter::try_new(&config.level)
        .map_err(|error| format!("log.level is {:?}: {error}", config.level))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let _first = match config.format {
        LogFormat::Text => builder.try_init().is_ok(),
        LogFormat::Json => builder.json().try_init().is_ok(),
    };
    Ok(())
}
