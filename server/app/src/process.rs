//! The life of the process: runtime, signals, what a person sees at the start.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use hone_domain::Loop;

use crate::app::{App, FirstLink};
use crate::config::Config;
use crate::{logs, memory};

/// Serves until a signal or until serving fails.
///
/// `read` reads the configuration again, for SIGHUP.
pub(crate) fn serve(
    config: Config,
    read: &dyn Fn() -> Result<Config, String>,
) -> Result<ExitCode, String> {
    memory::check_start()?;
    let _logging = logs::start(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.http.worker_threads)
        .thread_name("hone-async")
        .enable_all()
        .build()
        .map_err(|error| format!("the async threads could not be started: {error}"))?;
    let result = runtime.block_on(live(config, read));
    // A blocking read of a file may still be under way; nothing waits for its result.
    runtime.shutdown_background();
    result
}

async fn live(
    config: Config,
    read: &dyn Fn() -> Result<Config, String>,
) -> Result<ExitCode, String> {
    let (mut signals, mut hangup) = Signals::listen()?;
    let scheme = config.http.scheme();
    let serves = config.runs(Loop::Serve);
    let needs_key = config.people.asks_everybody();
    let is_first = config.store.folder().is_ok_and(|folder| !folder.exists());
    let app = tokio::select! {
        app = App::start(config) => app?,
        () = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    greet(&app, serves, needs_key, is_first, scheme);
    let failure = loop {
        tokio::select! {
            () = signals.next() => break None,
            why = app.failed() => break Some(why),
            _ = hangup.recv() => reload(&app, read).await,
        }
    };
    match &failure {
        None => eprintln!("hone: stopping; once more stops at once"),
        Some(why) => eprintln!("hone: {why}; stopping"),
    }
    let lost = app.lost();
    tokio::select! {
        _drained = app.stop() => {}
        () = signals.next() => {
            eprintln!("hone: stopped at once");
            std::process::exit(130);
        }
    }
    if let Some(why) = &lost {
        eprintln!("hone: {why}");
    }
    Ok(match failure.or(lost) {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

/// Reads the configuration again; what is wrong with it changes nothing.
async fn reload(app: &App, read: &dyn Fn() -> Result<Config, String>) {
    let done = match read() {
        Ok(config) => app.reload(&config).await,
        Err(error) => Err(error),
    };
    match done {
        Err(error) => eprintln!("hone: the configuration was not read again: {error}"),
        Ok(late) if late.is_empty() => eprintln!("hone: the configuration was read again"),
        Ok(late) => eprintln!(
            "hone: the configuration was read again; these wait for a restart: {}",
            late.join(", ")
        ),
    }
}

/// What a person needs to begin.
fn greet(app: &App, serves: bool, needs_key: bool, is_first: bool, scheme: &str) {
    let url = format!("{scheme}://{}", app.addr);
    println!("Hone {} listens on {url}", env!("CARGO_PKG_VERSION"));
    let new = if is_first { " (new)" } else { "" };
    println!("  data   {}{new}", app.data_dir.display());
    if let Some(FirstLink { link, file }) = &app.first_link {
        // What a service prints lands in a log that others read; a terminal is one person's.
        if std::io::stdout().is_terminal() {
            println!("  first  nobody has an account yet; this link makes the first admin, once:");
            println!("         {link}");
        } else {
            println!(
                "  first  nobody has an account yet; the link that makes the first admin, once, is in"
            );
            println!("         {}", file.display());
        }
    }
    if serves {
        println!("  model  {}", app.model);
        if let Some(computed) = app.computed() {
            println!("  engine {computed}");
        }
        // Who would make the first account has a key afterwards.
        let key = match needs_key || app.first_link.is_some() {
            true => " -H 'authorization: Bearer YOUR-KEY'",
            false => "",
        };
        println!(
            "  try    curl {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}]}}'",
            app.model
        );
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// What stops, and what has the configuration read again.
    fn listen() -> Result<(Self, Signal), String> {
        let on = |kind| signal(kind).map_err(|error| format!("signals cannot be heard: {error}"));
        let stops = Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        };
        Ok((stops, on(SignalKind::hangup())?))
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
