//! `hone import`: an adapter that was made elsewhere becomes a version of a running server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Subcommand;
use hone_checkpoint::peft::{CONFIG_FILE, PICKLE_FILE, PeftError, WEIGHTS_FILE};
use reqwest::Method;
use serde_json::{Value, json};

use super::call::{Call, Server, meant, send, show};
use super::text::one;
use hone_domain::LOCAL_OWNER;

/// Most bytes of an adapter's settings.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// The server's setting for how much it takes.
const LIMIT: &str = "http.import_bytes_max";

/// What to take in.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  hone import adapter my-adapter\n  \
    hone import adapter my-adapter --scope ann --note \"trained on support tickets\"")]
pub(crate) enum ImportCommand {
    /// Publish the LoRA in a folder that PEFT wrote as the newest version of a policy.
    Adapter {
        /// Folder with adapter_config.json and adapter_model.safetensors.
        folder: PathBuf,
        /// Whose policy: a scope as `hone versions scopes` shows it, or an owner's name.
        #[arg(long, default_value = LOCAL_OWNER, value_parser = meant)]
        scope: String,
        /// Why, for others to read.
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        server: Server,
    },
}

/// Runs one import.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn import(command: ImportCommand) -> Result<ExitCode, String> {
    let ImportCommand::Adapter {
        folder,
        scope,
        note,
        server,
    } = command;
    let config = config(&folder)?;
    let weights = weights(&folder)?;
    let body = json!({ "scope": scope, "note": note, "config": config });
    show(&server, publish(&server, body, &weights), one)
}

/// Asks how much the server takes first: one that refuses a body while it is sent is not heard.
async fn publish(server: &Server, mut body: Value, weights: &Path) -> Result<Value, String> {
    let settings = Call::get("/admin/v1/config".to_owned(), one);
    let settings = send(server, &settings).await?;
    let bytes = fs::metadata(weights).map_or(0, |found| found.len());
    let bytes = bytes.div_ceil(3) * 4 + body.to_string().len() as u64;
    if limit(&settings).is_some_and(|most| bytes >= most) {
        return Err(format!(
            "{} takes {bytes} bytes on its way, and the server does not take as many ({LIMIT}); raise \
             that, or save the adapter as bf16 or with a smaller rank",
            weights.display()
        ));
    }
    body["weights"] = STANDARD.encode(contents(weights)?).into();
    let call = Call {
        method: Method::POST,
        path: "/admin/v1/versions/import".to_owned(),
        body: Some(body),
        show: one,
    };
    send(server, &call).await
}

/// The value of [`LIMIT`] among a server's settings.
fn limit(settings: &Value) -> Option<u64> {
    let rows = settings["data"].as_array()?;
    let row = rows.iter().find(|row| row["key"] == LIMIT)?;
    row["value"].as_u64()
}

fn inside(folder: &Path, error: &PeftError) -> String {
    format!("{}: {error}", folder.display())
}

/// The settings in a folder.
fn config(folder: &Path) -> Result<Value, String> {
    if !folder.is_dir() {
        return Err(format!(
            "{} is no folder; name one with {CONFIG_FILE} and {WEIGHTS_FILE}",
            folder.display()
        ));
    }
    let file = folder.join(CONFIG_FILE);
    let found = fs::metadata(&file);
    let found = found.map_err(|_| inside(folder, &PeftError::MissingFile(CONFIG_FILE)))?;
    if found.len() > CONFIG_BYTES_MAX {
        return Err(format!(
            "{} has {} bytes, and at most {CONFIG_BYTES_MAX} are read; it is not what PEFT writes",
            file.display(),
            found.len()
        ));
    }
    serde_json::from_slice(&contents(&file)?).map_err(|error| {
        let why = error.to_string();
        let file = CONFIG_FILE;
        inside(folder, &PeftError::Damaged { file, why })
    })
}

/// The file of weights in a folder.
fn weights(folder: &Path) -> Result<PathBuf, String> {
    let file = folder.join(WEIGHTS_FILE);
    if file.is_file() {
        return Ok(file);
    }
    let error = match folder.join(PICKLE_FILE).exists() {
        true => PeftError::Pickle,
        false => PeftError::MissingFile(WEIGHTS_FILE),
    };
    Err(inside(folder, &error))
}

fn contents(file: &Path) -> Result<Vec<u8>, String> {
    let read = fs::read(file);
    read.map_err(|error| format!("{} cannot be read ({error})", file.display()))
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
