//! Where a command finds the server's data.

use std::path::PathBuf;

use clap::Args;
use hone_ledger_sql::LedgerPlace;
use toml::Value as Toml;

use crate::config::{Config, Sources};

/// Who acts in the audit log.
pub(crate) const ACTOR: &str = "command line";

/// Where the data is.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Configuration file (TOML) of the server.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data folder of the server.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

impl Place {
    /// The configuration of the server there.
    pub(crate) fn config(&self) -> Result<Config, String> {
        let flags = self.data.as_ref().map(|folder| {
            let folder = Toml::String(folder.display().to_string());
            ("store.data_dir".to_owned(), folder)
        });
        let sources = Sources::read(self.config.as_deref(), flags.into_iter().collect());
        Config::load(&sources.map_err(|e| e.to_string())?).map_err(|e| e.to_string())
    }
}

/// Where the ledger is that a configuration names; a file has to exist.
pub(crate) fn old_ledger(config: &Config) -> Result<LedgerPlace, String> {
    let place = config.store.place(&config.store.folder()?, &[]);
    match &place {
        LedgerPlace::Sqlite(sqlite) if !sqlite.file.exists() => Err(format!(
            "there is no ledger {}; --data or --config says where it is",
            sqlite.file.display()
        )),
        _ => Ok(place),
    }
}

/// Says on the terminal where a ledger is about to be made: it may not be the server's.
pub(crate) fn tell_of_new_ledger(config: &Config) {
    if old_ledger(config).is_err()
        && let Ok(folder) = config.store.folder()
    {
        eprintln!(
            "hone: there is no ledger in {} yet, so one is made; if the server keeps its data elsewhere, say \
             where with --config or --data",
            folder.display()
        );
    }
}
