//! `hone ledger prune`: removes what is older than it is kept.

use clap::Args;
use hone_ledger::{Pruned, Retention};
use serde_json::{Value, json};

use super::common::{entry, now_ms, open, run};
use super::space::shown;
use crate::cli::place::Place;
use crate::config::Config;
use crate::progress::{Progress, Unit};
use crate::retention::pass;
use crate::table::{
    Side::{Left, Right},
    table,
};

/// Work below this many bytes is too short to report.
const TOLD_FROM: u64 = 1 << 20;

/// `hone ledger prune`.
#[derive(Debug, Args)]
#[command(
    after_help = "It may run beside the server. What waits to be judged or learned from stays, and so does what versions,\n\
    erasures and comparisons need. The space is used for what comes next; `hone ledger compact` gives it back.\n\n\
    Examples:\n  hone ledger prune --dry-run\n  hone ledger prune --logprobs 90 --turns 365"
)]
pub(crate) struct PruneArgs {
    /// Only show what would go.
    #[arg(long)]
    dry_run: bool,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Days that turns are kept, instead of store.keep_turns_days; 0 keeps them for good.
    #[arg(long, value_name = "DAYS")]
    turns: Option<u32>,
    /// Days that log-probs are kept, instead of store.keep_logprobs_days.
    #[arg(long, value_name = "DAYS")]
    logprobs: Option<u32>,
    /// Days that votes are kept, instead of store.keep_votes_days.
    #[arg(long, value_name = "DAYS")]
    votes: Option<u32>,
    /// Days that reports of refused candidates are kept, instead of store.keep_reports_days.
    #[arg(long, value_name = "DAYS")]
    reports: Option<u32>,
    #[command(flatten)]
    place: Place,
}

impl PruneArgs {
    /// What goes now by the configuration and these flags.
    fn retention(&self, config: &Config) -> Result<Retention, String> {
        let mut store = config.store.clone();
        for (kept, asked) in [
            (&mut store.keep_turns_days, self.turns),
            (&mut store.keep_logprobs_days, self.logprobs),
            (&mut store.keep_votes_days, self.votes),
            (&mut store.keep_reports_days, self.reports),
        ] {
            *kept = asked.unwrap_or(*kept);
        }
        let retention = store.retention(now_ms(), config.train.gate.held_out_max);
        match retention.is_off() {
            false => Ok(retention),
            true => Err(
                "everything is kept for good; say how many days with --turns, --logprobs, --votes or --reports, or set \
                 store.keep_turns_days and the others"
                    .to_owned(),
            ),
        }
    }
}

/// Shows what goes, and removes it unless it is only to be shown.
///
/// # Errors
/// A sentence with a remedy.
pub(super) fn prune(args: &PruneArgs) -> Result<(), String> {
    let config = args.place.config()?;
    let retention = args.retention(&config)?;
    let pruned = run(async {
        let ledger = open(&config).await?;
        let text = |error: hone_ledger::LedgerError| error.to_string();
        let done = async {
            let planned = ledger.plan_pruning(&retention).await.map_err(text)?;
            if args.dry_run || planned == Pruned::default() {
                return Ok(planned);
            }
            let entry = entry("ledger.prune", "", detail(&planned));
            ledger.record(&entry).await.map_err(text)?;
            let mut progress = Progress::new("removing", (Unit::Bytes, TOLD_FROM));
            let mut on_progress = |so_far: &Pruned| progress.at(so_far.bytes(), planned.bytes());
            pass(&*ledger, &retention, &mut on_progress)
                .await
                .map_err(text)
        }
        .await;
        ledger.close().await;
        done
    })?;
    match args.json {
        true => println!("{}", json!({"dry_run": args.dry_run, "pruned": pruned})),
        false => print!("{}", summary(&pruned, args.dry_run)),
    }
    Ok(())
}

/// What the audit log says of it.
fn detail(planned: &Pruned) -> Value {
    json!({"turns": planned.turns.rows, "turns_without_words": planned.words.rows, "bytes": planned.bytes()})
}

fn summary(pruned: &Pruned, is_plan: bool) -> String {
    let names = [("what", Left), ("rows", Right), ("size", Right)];
    let kinds = pruned.kinds();
    let rows = kinds.iter().map(|(kind, tally)| {
        vec![
            (*kind).to_owned(),
            tally.rows.to_string(),
            shown(tally.bytes),
        ]
    });
    let table = table(&names, &rows.collect::<Vec<_>>());
    let verb = if is_plan { "would go" } else { "went" };
    let next = match is_plan {
        true => "",
        false => "; `hone ledger compact` gives the space back to the disk",
    };
    format!("{table}\n{} {verb}{next}\n", shown(pruned.bytes()))
}
