//! The reading of replies, which a server fits once in its life: here once for all servers of a run.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Bench;
use crate::folder::Folder;
use crate::wire::Wire;
use hone::app::App;

/// Its folder in a data folder.
const NAME: &str = "reading";
/// Longest fit, and how often it is looked at.
const FIT_MAX: Duration = Duration::from_secs(1_800);
const LOOK: Duration = Duration::from_millis(500);

/// What the first server fitted.
pub(super) struct Reading(Folder);

impl Reading {
    pub(super) fn new(bench: &Bench) -> Result<Self, String> {
        Ok(Self(bench.folder()?))
    }

    /// A server of its own in the configuration that it ships with, once it reads replies.
    pub(super) async fn app<T>(
        &self,
        bench: &Bench,
        work: impl AsyncFnOnce(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        let folder = bench.folder()?;
        let (kept, own) = (self.0.path().join(NAME), folder.path().join(NAME));
        copy(&kept, &own)?;
        let mut config = bench.config.clone();
        config.store.data_dir = folder.text();
        let app = App::start(config).await?;
        let url = format!("http://{}", app.addr);
        let done = match fitted(&url).await {
            Ok(()) => work(&url).await,
            Err(error) => Err(error),
        };
        app.stop().await;
        copy(&own, &kept)?;
        done
    }
}

/// Waits until the server reads replies, or says that it does not.
async fn fitted(url: &str) -> Result<(), String> {
    let wire = Wire::new(url)?;
    let began = Instant::now();
    while wire.status().await?["loops"][NAME]["state"] == "starting" {
        if began.elapsed() > FIT_MAX {
            return Err("the reading of replies was not fitted in time".to_owned());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Copies the files of `from`, where there are some.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{} cannot be copied: {error}", from.display());
    if !from.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        fs::copy(entry.path(), to.join(entry.file_name())).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_fitted_is_found_by_the_next_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("a"), folder.path().join("b"));
        copy(&from, &to).expect("nothing to copy");
        assert!(!to.exists());
        fs::create_dir(&from).expect("made");
        fs::write(from.join("x.probe"), "1").expect("written");
        copy(&from, &to).expect("copied");
        assert_eq!(fs::read_to_string(to.join("x.probe")).expect("there"), "1");
    }
}
