use std::path::{Path as FsPath, PathBuf};

use super::*;

struct Shop {
    folder: tempfile::TempDir,
}

impl Shop {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn cache(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A process that has the store and a cache of its own.
    fn process(&self, name: &str) -> ObjectBlobs {
        self.limited(name, 1 << 20)
    }

    fn limited(&self, name: &str, cache_bytes: u64) -> ObjectBlobs {
        let address = format!("file://{}", self.store().display());
        ObjectBlobs::open(&address, &self.cache(name), cache_bytes, 1_000).unwrap()
    }

    /// The only file below a folder whose path contains a text.
    fn only(&self, below: &FsPath, part: &str) -> PathBuf {
        let mut found = all(below);
        found.retain(|path| path.display().to_string().contains(part));
        assert_eq!(found.len(), 1, "{part}: {found:?}");
        found.remove(0)
    }
}

fn all(below: &FsPath) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![below.to_owned()]);
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => left.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found
}

fn key(text: &str) -> BlobKey {
    BlobKey::new(text).unwrap()
}

fn files(text: &str) -> Vec<(String, Vec<u8>)> {
    vec![
        ("weights".to_owned(), text.as_bytes().to_vec()),
        ("config.json".to_owned(), b"{}".to_vec()),
    ]
}

fn listed(blobs: &ObjectBlobs) -> Vec<String> {
    let listed = blobs.list("adapters").unwrap().into_iter();
    let mut keys: Vec<String> = listed.map(|(key, _)| key.as_str().to_owned()).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn what_one_process_puts_another_one_gets() {
    let shop = Shop::new();
    let (one, other) = (shop.process("one"), shop.process("other"));
    let a = key("adapters/scope/a");
    assert!(matches!(
        other.get(&a, "weights"),
        Err(BlobError::Missing { .. })
    ));
    assert!(!other.has(&a).unwrap());
    one.put(&a, &files("first")).unwrap();
    one.put(&a, &files("first")).unwrap();
    assert_eq!(other.get(&a, "weights").unwrap(), b"first");
    assert_eq!(other.get(&a, "config.json").unwrap(), b"{}");
    assert!(matches!(
        other.get(&a, "none"),
        Err(BlobError::Missing { .. })
    ));
    assert!(other.has(&a).unwrap());
    assert_eq!(listed(&other), ["adapters/scope/a"]);
    let sizes = other.sizes().unwrap();
    assert_eq!(
        (&*sizes[0].kind, sizes[0].files, sizes[0].bytes),
        ("adapters", 2, 7)
    );
    // From an async thread too, where a call that blocks must not end the process.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let seen = runtime.block_on(async { other.get(&a, "weights").unwrap() });
    assert_eq!(seen, b"first");
    runtime.block_on(async { drop(other) });
}

#[test]
fn a_key_never_changes_and_of_two_at_once_one_decides() {
    let shop = Shop::new();
    let (one, other) = (shop.process("one"), shop.process("other"));
    let a = key("adapters/scope/a");
    one.put(&a, &files("first")).unwrap();
    let error = other.put(&a, &files("second")).unwrap_err().to_string();
    assert!(error.contains("exists with other content"), "{error}");
    for round in 0..20 {
        let b = key(&format!("adapters/scope/b{round}"));
        let results = std::thread::scope(|scope| {
            let puts = [(&one, "of one"), (&other, "of the other")].map(|(blobs, text)| {
                let b = &b;
                scope.spawn(move || blobs.put(b, &files(text)).is_ok())
            });
            puts.map(|put| put.join().unwrap())
        });
        assert_eq!(results.iter().filter(|won| **won).count(), 1, "{results:?}");
        let won = if results[0] { "of one" } else { "of the other" };
        // The loser has no copy of its own.
        for blobs in [&one, &other] {
            assert_eq!(blobs.get(&b, "weights").unwrap(), won.as_bytes());
        }
    }
}

#[test]
fn copies_answer_while_the_store_is_away_and_go_when_it_says_so() {
    let shop = Shop::new();
    let (one, other) = (shop.process("one"), shop.process("other"));
    let a = key("adapters/scope/a");
    one.put(&a, &files("first")).unwrap();
    other.get(&a, "weights").unwrap();
    let away = shop.folder.path().join("away");
    std::fs::rename(shop.store(), &away).unwrap();
    assert_eq!(other.get(&a, "weights").unwrap(), b"first");
    std::fs::rename(&away, shop.store()).unwrap();
    one.remove(&a).unwrap();
    one.remove(&a).unwrap();
    // Nothing of it is left in the store and in its own cache, and after a look in no other.
    other.tidy().unwrap();
    let left = all(shop.folder.path());
    let named = |path: &&PathBuf| path.display().to_string().contains("scope");
    assert_eq!(
        left.iter().filter(named).collect::<Vec<_>>(),
        Vec::<&PathBuf>::new()
    );
    assert!(matches!(
        other.get(&a, "weights"),
        Err(BlobError::Missing { .. })
    ));
}

#[test]
fn damage_is_noticed() {
    let shop = Shop::new();
    let (one, other) = (shop.process("one"), shop.process("other"));
    let a = key("adapters/scope/a");
    one.put(&a, &files("first")).unwrap();
    // A damaged copy is fetched again.
    let copy = shop.only(&shop.cache("one"), "weights");
    std::fs::write(&copy, "damaged").unwrap();
    assert_eq!(one.get(&a, "weights").unwrap(), b"first");
    assert_eq!(std::fs::read(&copy).unwrap(), b"first");
    // A damaged object is told as it is, to whoever has the digest of what was published, and is not kept.
    let object = shop.only(&shop.store(), &digest(b"first"));
    std::fs::write(&object, "damaged").unwrap();
    assert_eq!(other.get(&a, "weights").unwrap(), b"damaged");
    assert_eq!(all(&shop.cache("other")), Vec::<PathBuf>::new());
    // Set aside, nothing reads it, and its key is free for the same content.
    other.set_aside(&a).unwrap();
    assert!(!other.has(&a).unwrap() && other.has(&a.aside()).unwrap());
    other.set_aside(&a).unwrap();
    other.put(&a, &files("first")).unwrap();
    other.remove(&a.aside()).unwrap();
    assert_eq!(shop.process("third").get(&a, "weights").unwrap(), b"first");
}

#[test]
fn a_put_that_never_ended_is_listed_and_can_be_removed() {
    let shop = Shop::new();
    let one = shop.process("one");
    let a = key("adapters/scope/a");
    one.put(&a, &files("first")).unwrap();
    std::fs::remove_file(shop.only(&shop.store(), "a.json")).unwrap();
    assert!(!one.has(&a).unwrap());
    assert_eq!(listed(&one), ["adapters/scope/a"]);
    one.remove(&a).unwrap();
    assert_eq!(listed(&one), [""; 0]);
}

#[test]
fn the_cache_keeps_what_was_used_last() {
    let shop = Shop::new();
    let one = shop.limited("one", 2_000);
    let text = "x".repeat(500);
    for at in 0..6 {
        one.put(&key(&format!("adapters/scope/{at}")), &files(&text))
            .unwrap();
        // Times of files have a grain.
        std::thread::sleep(Duration::from_millis(15));
        one.get(&key("adapters/scope/0"), "weights").unwrap();
    }
    let kept = one.cache.keys();
    assert!(kept.contains(&key("adapters/scope/0")), "{kept:?}");
    assert!(kept.contains(&key("adapters/scope/5")), "{kept:?}");
    assert!(!kept.contains(&key("adapters/scope/1")), "{kept:?}");
    let bytes: u64 = all(&shop.cache("one"))
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert!(bytes <= 2_000, "{bytes}");
    assert_eq!(
        one.get(&key("adapters/scope/1"), "weights").unwrap(),
        text.as_bytes()
    );
}

#[test]
fn an_address_that_cannot_be_used_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    for (address, says) in [
        ("nonsense".to_owned(), "write s3://BUCKET/PREFIX"),
        ("ftp://host/x".to_owned(), "there is no store for ftp://"),
        (format!("file://{}/below", file.display()), "cannot be used"),
    ] {
        let opened = ObjectBlobs::open(&address, &folder.path().join("cache"), 1, 1);
        let error = opened.err().unwrap().to_string();
        assert!(error.contains(says) && error.contains(&address), "{error}");
    }
}
