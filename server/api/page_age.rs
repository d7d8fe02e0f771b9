//! Whether the built page is older than what it is built from.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What `make web` builds from, as far as it is there.
pub(crate) fn sources(web: &Path) -> Vec<PathBuf> {
    let mut found = vec![web.join("src"), web.join("index.html")];
    let beside = std::fs::read_dir(web).into_iter().flatten().flatten();
    let kinds = ["json", "ts", "mjs"];
    found.extend(beside.map(|entry| entry.path()).filter(|path| {
        let kind = path.extension().and_then(|kind| kind.to_str());
        kind.is_some_and(|kind| kinds.contains(&kind))
    }));
    found.retain(|path| path.exists());
    found.sort();
    found
}

/// A file that was written after the page was built; none where no page was built.
pub(crate) fn newer(web: &Path) -> Option<PathBuf> {
    let built = written(&web.join("dist/index.html"))?;
    let mut open = sources(web);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let inside = std::fs::read_dir(&path).into_iter().flatten().flatten();
            open.extend(inside.map(|entry| entry.path()));
        } else if written(&path).is_some_and(|at| at > built) {
            return Some(path);
        }
    }
    None
}

fn written(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|meta| meta.modified()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_a_source_that_is_newer_than_the_page_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let web = folder.path();
        let put = |name: &str, second: u64| {
            let path = web.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            File::create(&path).unwrap().set_modified(at).unwrap();
        };
        put("src/chat/Chat.svelte", 10);
        put("package.json", 10);
        put("README.md", 99);
        assert_eq!(newer(web), None, "nothing was built");
        put("dist/index.html", 10);
        put("dist/assets/page.js", 9);
        assert_eq!(newer(web), None, "as old as the checkout");
        for (name, told) in [
            ("src/chat/Chat.svelte", true),
            ("vite.config.ts", true),
            ("node_modules/x/y.ts", false),
        ] {
            put(name, 11);
            assert_eq!(newer(web), told.then(|| web.join(name)));
            put(name, 10);
        }
        fs::remove_dir_all(web.join("src")).unwrap();
        assert_eq!(newer(web), None, "an image is built without the sources");
    }
}
