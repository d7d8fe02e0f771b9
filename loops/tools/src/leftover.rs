//! Names that say which process they belong to, so that the next one can remove what a killed one left behind.

use std::fs;
use std::path::{Path, PathBuf};

/// The beginning of a name that belongs to this process.
pub(crate) fn own(prefix: &str) -> String {
    format!("{prefix}{}-", std::process::id())
}

/// What lies in a folder under such a name and whose process is gone.
pub(crate) fn ownerless(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let owner =
        |name: &str| -> Option<u32> { name.strip_prefix(prefix)?.split('-').next()?.parse().ok() };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let gone = entries.filter(|entry| {
        let owner = entry.file_name().to_str().and_then(owner);
        owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    });
    gone.map(|entry| entry.path()).collect()
}

/// Removes such folders. Those of another user stay.
pub(crate) fn remove_folders(prefix: &str) {
    for path in ownerless(&std::env::temp_dir(), prefix) {
        let _ = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_belongs_to_nobody_is_found() {
        let at = tempfile::tempdir().unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let dead = format!("x-{}-1", ended.id());
        for name in [&dead, &format!("{}1", own("x-")), "x-y-1", "y-1-1", "x-"] {
            fs::create_dir(at.path().join(name)).unwrap();
        }
        assert_eq!(ownerless(at.path(), "x-"), [at.path().join(dead)]);
    }
}
