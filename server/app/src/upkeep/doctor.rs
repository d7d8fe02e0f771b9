//! `hone doctor`: looks at everything that a start needs and a disk can spoil, and says what to do.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::checks::{self, Outcome, State, broken, fine, skipped};
use super::common::{open, run};
use crate::cli::place::{Place, old_ledger};
use crate::config::Config;

/// Exit status where something is broken.
const UNHEALTHY: u8 = 3;
/// `hone doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if nothing is broken (warnings included), 3 otherwise.\n\n\
    Examples:\n  hone doctor --config my.toml\n  hone doctor --quick --json"
)]
pub(crate) struct DoctorArgs {
    /// Leave out what reads the whole ledger.
    #[arg(long)]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// What a check found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) state: State,
    pub(super) found: String,
    /// What to do; none where nothing has to be done.
    pub(super) remedy: Option<String>,
}

/// Looks at everything and prints it.
///
/// # Errors
/// Only where no look is possible at all.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, String> {
    let findings = match args.place.config() {
        Ok(config) => run(async { Ok(examine(&config, args.quick).await) })?,
        Err(error) => vec![Finding {
            check: "configuration",
            state: State::Broken,
            found: error,
            remedy: Some("correct it; `hone serve --print-config` shows what results".to_owned()),
        }],
    };
    let healthy = findings.iter().all(|f| f.state != State::Broken);
    let mut out = std::io::stdout().lock();
    let written = if args.json {
        let report = json!({"healthy": healthy, "checks": findings});
        writeln!(out, "{report:#}")
    } else {
        let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        findings
            .iter()
            .try_for_each(|f| writeln!(out, "{}", shown(f, colour)))
    };
    // Whoever closed the output early knows enough.
    let _closed_early = written.is_err();
    Ok(if healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(UNHEALTHY)
    })
}

fn shown(finding: &Finding, colour: bool) -> String {
    let (word, code) = match finding.state {
        State::Ok => ("ok", "32"),
        State::Warning => ("warning", "33"),
        State::Broken => ("BROKEN", "31"),
        State::Skipped => ("skipped", "2"),
    };
    let word = format!("{word:<8}");
    let word = if colour {
        format!("\x1b[{code}m{word}\x1b[0m")
    } else {
        word
    };
    let mut text = format!("{word} {:<14} {}", finding.check, finding.found);
    if let Some(remedy) = &finding.remedy {
        text.push_str(&format!("\n{:24}{remedy}", ""));
    }
    text
}

/// A folder without a ledger: new, or one whose ledger was lost.
fn no_ledger(config: &Config, folder: &Path) -> Outcome {
    match hone_ledger_sql::check_not_lost(&config.store.sqlite(folder).file) {
        Ok(()) => skipped("there is none yet; the first start makes it"),
        Err(error) => broken(error.to_string(), "see docs/operations.md"),
    }
}

/// Every check, in the order of a start.
pub(super) async fn examine(config: &Config, quick: bool) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut note = |check, (state, found, remedy): Outcome| {
        all.push(Finding {
            check,
            state,
            found,
            remedy,
        });
    };
    note(
        "configuration",
        fine("every key is known and every value fits"),
    );
    let Ok(folder) = config.store.folder() else {
        note(
            "data folder",
            broken("there is no home folder", "set store.data_dir"),
        );
        return all;
    };
    note("data folder", checks::data_folder(&folder));
    note("disk", checks::disk(&folder));
    note("file system", checks::file_system(&folder));
    note("spool", checks::spool(&config.store.spool(&folder)));
    let ledger = open(config).await;
    // What is not in a file is expected to be there.
    let exists = old_ledger(config).is_ok();
    match &ledger {
        Ok(ledger) => {
            let ledger = &**ledger;
            note("ledger", checks::integrity(ledger, quick).await);
            note("laws", checks::laws(ledger, quick).await);
            note("audit log", checks::audit(ledger).await);
            note("adapters", checks::adapters(ledger, config, &folder).await);
            note("clock", checks::clock(ledger).await);
            note("access", checks::access(config, ledger).await);
        }
        Err(error) if exists => note("ledger", broken(error, "see docs/operations.md")),
        Err(_) => note("ledger", no_ledger(config, &folder)),
    }
    if let Ok(ledger) = ledger {
        ledger.close().await;
    }
    note("model", checks::model(config));
    note("port", checks::port(config, &folder));
    note("secrets", checks::secrets(config));
    note("judge", checks::judge(config).await);
    note("jails", checks::jails(config).await);
    note("identity", checks::identity(config).await);
    all
}
