//! `hone export trajectories --new-for NAME`: what a consumer has not had yet, and who the consumers are.

use clap::Args;
use hone_domain::{Millis, Scope};
use hone_ledger::{Follower, LedgerError, Read, Unread};
use hone_ledger_sql::StoredLedger;
use serde_json::{Value, json};

use super::common::{entry, now_ms, open, run};
use super::export_trajectories::{Format, Trajectories, is_free};
use crate::cli::place::Place;
use crate::config::Config;
use crate::table::{
    Side::{Left, Right},
    table,
};

/// Turns read, noted or removed at a time.
const PAGE: usize = 256;
/// What the ledger calls an export is this, and then its name.
const PREFIX: &str = "export:";
/// Longest name.
const NAME_MAX: usize = 64;

/// `hone export consumers`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hone export trajectories --new-for trainer > new.jsonl\n  \
    hone export consumers\n  hone export consumers --remove trainer"
)]
pub(crate) struct ConsumersArgs {
    /// Forget what this one has had; its name is free again.
    #[arg(long, value_name = "NAME")]
    remove: Option<String>,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// A name that a consumer may have: it stands in tables and commands.
pub(super) fn parse_name(name: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match name {
        "" => Err("a name has at least one character".to_owned()),
        _ if name.len() > NAME_MAX => Err(format!("a name has at most {NAME_MAX} characters")),
        _ if !name.chars().all(is_plain) => {
            Err("a name is made of letters, digits, '-', '_' and '.'".to_owned())
        }
        _ => Ok(name.to_owned()),
    }
}

/// A consumer and what it has asked for.
pub(super) struct Consumer<'a> {
    pub(super) name: &'a str,
    pub(super) format: Format,
    pub(super) owner: Option<&'a str>,
    pub(super) scope: Option<Scope>,
}

/// What was written for a consumer and is not noted yet.
#[derive(Default)]
pub(super) struct Written {
    pub(super) lines: u64,
    pub(super) read: Vec<Read>,
}

impl Consumer<'_> {
    fn spec(&self) -> String {
        let format = self.format.name();
        json!({"format": format, "owner": self.owner, "scope": self.scope}).to_string()
    }

    /// Hands the lines that the consumer has not had to `each`, the oldest turn first. The first time these are all.
    pub(super) async fn write(
        &self,
        ledger: &dyn StoredLedger,
        each: &mut dyn FnMut(&Value) -> Result<(), String>,
    ) -> Result<Written, String> {
        let failed = |error: LedgerError| error.to_string();
        let name = format!("{PREFIX}{}", self.name);
        let enrolled = ledger.enrol(&name, &self.spec(), now_ms()).await;
        enrolled.map_err(|error| self.refusal(&error))?;
        while ledger.fill(&name, PAGE).await.map_err(failed)? {}
        let exported = Trajectories::of(ledger).await?;
        let (mut written, mut after) = (Written::default(), 0);
        loop {
            let page = ledger.unread_of(&name, after, PAGE).await.map_err(failed)?;
            let Some(last) = page.last() else {
                return Ok(written);
            };
            after = last.number;
            for unread in &page {
                // One that cannot be read is given when it can.
                let view = ledger.turn_if_readable(unread.turn).await.map_err(failed)?;
                let Some(view) = view else { continue };
                let is_asked_for = self.owner.is_none_or(|owner| view.turn.owner == owner)
                    && self
                        .scope
                        .as_ref()
                        .is_none_or(|scope| view.turn.scope == *scope);
                if is_asked_for
                    && exported.has(&view)
                    && !self.is_continued(ledger, unread).await?
                    && let Some(line) = exported.line(&view, self.format).await?
                {
                    each(&line)?;
                    written.lines += 1;
                }
                written.read.push(unread.into());
            }
        }
    }

    /// Whether a later turn has all that is said in this one, and so is the line of the conversation.
    async fn is_continued(
        &self,
        ledger: &dyn StoredLedger,
        unread: &Unread,
    ) -> Result<bool, String> {
        if self.format == Format::Tokens {
            return Ok(false);
        }
        for next in &unread.continued_by {
            let view = ledger.turn_if_readable(*next).await;
            let view = view.map_err(|error| error.to_string())?;
            if view.is_some_and(|view| is_free(&view)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn refusal(&self, error: &LedgerError) -> String {
        match error {
            LedgerError::Conflict(why) => format!(
                "nothing is exported for {}: {why}. A name keeps the --format, --owner and --scope that it began with \
                 (`hone export consumers` shows them); use those, choose another name, or remove one \
                 (`hone export consumers --remove NAME`)",
                self.name
            ),
            other => other.to_string(),
        }
    }

    /// Notes what is on the disk, or in other hands.
    pub(super) fn acknowledge(&self, config: &Config, read: &[Read]) -> Result<(), String> {
        let name = format!("{PREFIX}{}", self.name);
        let done = run(async {
            let ledger = open(config).await?;
            let mut done = Ok(());
            for page in read.chunks(PAGE) {
                done = ledger.acknowledge(&name, page, now_ms()).await;
                if done.is_err() {
                    break;
                }
            }
            ledger.close().await;
            done.map_err(|error| error.to_string())
        });
        done.map_err(|error| {
            format!(
                "the lines are written, and that could not be noted ({error}); the next export for {} gives \
                 some of them again",
                self.name
            )
        })
    }
}

/// Prints the consumers, or removes one.
///
/// # Errors
/// A sentence with a remedy.
pub(super) fn consumers(args: &ConsumersArgs) -> Result<(), String> {
    let config = args.place.config()?;
    if let Some(name) = &args.remove {
        return run(remove(&config, name));
    }
    let followers = run(async {
        let ledger = open(&config).await?;
        let followers = ledger.followers().await;
        ledger.close().await;
        followers.map_err(|error| error.to_string())
    })?;
    let exports: Vec<_> = followers.iter().filter_map(Shown::of).collect();
    match args.json {
        true => println!(
            "{}",
            json!({"data": exports.iter().map(Shown::json).collect::<Vec<_>>()})
        ),
        false => print!("{}", table_of(&exports, now_ms())),
    }
    Ok(())
}

async fn remove(config: &Config, name: &str) -> Result<(), String> {
    let failed = |error: LedgerError| error.to_string();
    let ledger = open(config).await?;
    let removed = async {
        let stored = format!("{PREFIX}{name}");
        let known = ledger.followers().await.map_err(failed)?;
        if !known.iter().any(|one| one.name == stored) {
            return Err(format!(
                "there is no consumer {name}; `hone export consumers` shows those that there are"
            ));
        }
        let act = entry("export.remove_consumer", name, json!({}));
        ledger.record(&act).await.map_err(failed)?;
        while ledger
            .remove_follower(&stored, PAGE)
            .await
            .map_err(failed)?
        {}
        Ok(())
    };
    let removed = removed.await;
    ledger.close().await;
    removed
}

/// A consumer as people see it.
struct Shown<'a> {
    name: &'a str,
    spec: Value,
    follower: &'a Follower,
}

impl<'a> Shown<'a> {
    /// None where it is no export.
    fn of(follower: &'a Follower) -> Option<Self> {
        Some(Self {
            name: follower.name.strip_prefix(PREFIX)?,
            spec: serde_json::from_str(&follower.spec).unwrap_or_default(),
            follower,
        })
    }

    fn text(&self, key: &str) -> String {
        self.spec[key].as_str().unwrap_or("-").to_owned()
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "format": self.spec["format"],
            "owner": self.spec["owner"],
            "scope": self.spec["scope"],
            "created_ms": self.follower.created_ms,
            "read_ms": self.follower.read_ms,
            "read_count": self.follower.read_count,
            "unread": self.follower.unread,
        })
    }
}

fn table_of(exports: &[Shown<'_>], now_ms: Millis) -> String {
    let names = [
        ("name", Left),
        ("format", Left),
        ("owner", Left),
        ("scope", Left),
        ("read", Right),
        ("unread", Right),
        ("last read", Right),
    ];
    let row = |one: &Shown<'_>| {
        vec![
            one.name.to_owned(),
            one.text("format"),
            one.text("owner"),
            one.text("scope"),
            one.follower.read_count.to_string(),
            one.follower.unread.to_string(),
            one.follower
                .read_ms
                .map_or("never".to_owned(), |at_ms| ago(now_ms - at_ms)),
        ]
    };
    table(&names, &exports.iter().map(row).collect::<Vec<_>>())
}

/// How long ago something was, in its largest unit.
fn ago(past_ms: Millis) -> String {
    match past_ms / 60_000 {
        ..1 => "now".to_owned(),
        minutes @ 1..60 => format!("{minutes} min ago"),
        minutes @ 60..2_880 => format!("{} h ago", minutes / 60),
        minutes => format!("{} days ago", minutes / 1_440),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["trainer", "nightly-2.sft_a", &"n".repeat(NAME_MAX)] {
            assert_eq!(parse_name(name), Ok(name.to_owned()));
        }
        for name in ["", "a b", "a:b", "ä", "a/b", &"n".repeat(NAME_MAX + 1)] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_time_is_shown_in_its_largest_unit() {
        for (past_ms, wanted) in [
            (-5, "now"),
            (59_999, "now"),
            (60_000, "1 min ago"),
            (3_600_000, "1 h ago"),
            (86_400_000, "24 h ago"),
            (172_800_000, "2 days ago"),
        ] {
            assert_eq!(ago(past_ms), wanted);
        }
    }
}
