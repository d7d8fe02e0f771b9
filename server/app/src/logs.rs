//! Logs to stderr: ids and counts, never user text.
//!
//! Lines go through a thread of their own: whoever reads them slowly, or not at all, holds up nobody.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_appender::non_blocking::NonBlockingBuilder;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{LogConfig, LogFormat};

/// Sets another filter where logging was started.
type Refilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

static REFILTER: OnceLock<Refilter> = OnceLock::new();

fn filter(level: &str) -> Result<EnvFilter, String> {
    // A plain word that is no level would be taken for a part of the program, and nothing be logged.
    let is_word = level.chars().all(|c| c.is_ascii_alphanumeric());
    if is_word && level.parse::<LevelFilter>().is_err() {
        return Err(format!(
            "log.level is {level:?}; it must be one of off, error, warn, info, debug, trace, or a \
             list such as \"warn,hone_train=debug\""
        ));
    }
    EnvFilter::try_new(level).map_err(|error| format!("log.level is {level:?}: {error}"))
}

/// Most lines that wait to be written; further ones are lost.
const LINES_MAX: usize = 16 * 1024;

/// Writes what still waits when it is dropped.
#[must_use = "lines are lost when it is dropped at once"]
pub struct Logging {
    _flushes: tracing_appender::non_blocking::WorkerGuard,
}

/// Starts logging; the second start of a process (tests) changes nothing.
pub fn start(config: &LogConfig) -> Result<Logging, String> {
    let filter = filter(&config.level)?;
    let (writer, flushes) = NonBlockingBuilder::default()
        .buffered_lines_limit(LINES_MAX)
        .lossy(true)
        .thread_name("hone-log")
        .finish(std::io::stderr());
    let builder = tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(writer);
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
    Ok(Logging { _flushes: flushes })
}

/// Logs another level from now on, where logging was started.
pub fn set_level(level: &str) -> Result<(), String> {
    let filter = filter(level)?;
    REFILTER.get().map_or(Ok(()), |refilter| refilter(filter))
}
