//! Blobs on a real disk.

#![allow(clippy::unwrap_used)]

use super::*;

fn files(text: &str) -> Vec<(String, Vec<u8>)> {
    vec![
        ("adapter_config.json".into(), b"{}".to_vec()),
        ("adapter_model.safetensors".into(), text.as_bytes().to_vec()),
    ]
}

fn key(text: &str) -> BlobKey {
    BlobKey::new(text).unwrap()
}

#[test]
fn what_was_put_is_there_after_a_restart_and_never_changes() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = FsBlobs::open(folder.path(), 1_000).unwrap();
    let k = key("adapters/0a/v1");
    blobs.put(&k, &files("one")).unwrap();
    blobs.put(&k, &files("one")).unwrap();
    let error = blobs.put(&k, &files("two")).unwrap_err().to_string();
    assert!(
        error.contains("never change") && error.contains("adapters/0a/v1"),
        "{error}"
    );
    assert!(blobs.put(&k, &files("one")[..1]).is_err(), "fewer files");
    drop(blobs);
    let blobs = FsBlobs::open(folder.path(), 1_000).unwrap();
    assert_eq!(blobs.get(&k, "adapter_model.safetensors").unwrap(), b"one");
    assert!(matches!(
        blobs.get(&k, "other").unwrap_err(),
        BlobError::Missing { .. }
    ));
    blobs.remove(&k).unwrap();
    blobs.remove(&k).unwrap();
    assert!(matches!(
        blobs.get(&k, "adapter_config.json").unwrap_err(),
        BlobError::Missing { .. }
    ));
    blobs.put(&k, &files("two")).unwrap();
    let left = fs::read_dir(folder.path().join(LIMBO)).unwrap().count();
    assert_eq!(left, 0, "unfinished folders are cleared");
}

#[test]
fn a_put_that_was_cut_short_leaves_nothing_visible() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = FsBlobs::open(folder.path(), 1_000).unwrap();
    let half = blobs.limbo();
    fs::create_dir(&half).unwrap();
    fs::write(half.join("adapter_config.json"), b"{").unwrap();
    drop(blobs);
    let blobs = FsBlobs::open(folder.path(), 1_000).unwrap();
    assert!(!half.exists());
    assert!(blobs.get(&key("a/b"), "adapter_config.json").is_err());
}

#[test]
fn a_removal_that_was_cut_short_is_not_done_until_the_bytes_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = FsBlobs::open(folder.path(), 1_000).unwrap();
    let (k, other) = (key("adapters/0a/v1"), key("adapters/0a.v1"));
    let limbo = folder.path().join(LIMBO);
    for again in [false, true] {
        for cut in [&k, &other] {
            blobs.put(cut, &files("one")).unwrap();
            fs::rename(blobs.place(cut).unwrap(), blobs.removed(cut)).unwrap();
        }
        if again {
            blobs.put(&k, &files("one")).unwrap();
        }
        assert_eq!(fs::read_dir(&limbo).unwrap().count(), 2);
        blobs.remove(&k).unwrap();
        assert_eq!(fs::read_dir(&limbo).unwrap().count(), 1, "of its key only");
        blobs.remove(&other).unwrap();
        assert_eq!(fs::read_dir(&limbo).unwrap().count(), 0);
    }
}

#[test]
fn sizes_names_and_nesting_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = FsBlobs::open(folder.path(), 10).unwrap();
    let one = |name: &str, n: usize| vec![(name.to_owned(), vec![0; n])];
    for (files, says) in [
        (one("f", 11), "at most 10"),
        (one("../f", 1), "not allowed"),
        (one(".f", 1), "not allowed"),
        (one("a/b", 1), "not allowed"),
        (one("a\0", 1), "not allowed"),
        (vec![], "1 to 64 files"),
        ([one("f", 1), one("f", 2)].concat(), "twice"),
    ] {
        let error = blobs.put(&key("k"), &files).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    blobs.put(&key("a/b"), &one("f", 10)).unwrap();
    assert!(
        blobs.put(&key("a/b/c"), &one("f", 1)).is_err(),
        "inside a blob"
    );
    assert!(blobs.put(&key("a"), &one("f", 1)).is_err(), "around a blob");
    fs::write(folder.path().join("a/b/f"), vec![0; 11]).unwrap();
    let error = blobs.get(&key("a/b"), "f").unwrap_err().to_string();
    assert!(error.contains("at most 10"), "{error}");
    assert!(blobs.get(&key("a/b"), "../b/f").is_err());
}

#[cfg(unix)]
#[test]
fn links_do_not_lead_out() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), b"secret").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let blobs = FsBlobs::open(folder.path(), 1_000).unwrap();
    symlink(outside.path(), folder.path().join("out")).unwrap();
    let error = blobs.get(&key("out"), "secret").unwrap_err();
    assert!(matches!(error, BlobError::Io { .. }), "{error}");
    assert!(blobs.put(&key("out/v1"), &files("x")).is_err());
    assert!(blobs.remove(&key("out")).is_err());
    blobs.put(&key("in"), &files("x")).unwrap();
    symlink(
        outside.path().join("secret"),
        folder.path().join("in/secret"),
    )
    .unwrap();
    assert!(matches!(
        blobs.get(&key("in"), "secret").unwrap_err(),
        BlobError::Io { .. }
    ));
    blobs.remove(&key("in")).unwrap();
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
}

#[test]
fn two_puts_of_one_key_at_once_agree() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = FsBlobs::open(folder.path(), 1_000).unwrap();
    for round in 0..20 {
        let k = key(&format!("a/{round}"));
        let (good, bad) = std::thread::scope(|scope| {
            let first = scope.spawn(|| blobs.put(&k, &files("one")));
            let second = scope.spawn(|| blobs.put(&k, &files("two")));
            let done = [first.join().unwrap(), second.join().unwrap()];
            done.into_iter().partition::<Vec<_>, _>(Result::is_ok)
        });
        assert_eq!((good.len(), bad.len()), (1, 1));
    }
}

#[test]
fn what_is_damaged_is_kept_aside_and_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = FsBlobs::open(folder.path(), 1_000).unwrap();
    let k = key("adapters/a/1");
    for content in ["first", "second"] {
        blobs.put(&k, &files(content)).unwrap();
        blobs.set_aside(&k).unwrap();
        blobs.set_aside(&k).unwrap();
        let name = &files(content)[0].0;
        assert!(matches!(
            blobs.get(&k, name),
            Err(BlobError::Missing { .. })
        ));
        assert_eq!(blobs.get(&k.aside(), name).unwrap(), files(content)[0].1);
    }
    assert_eq!(k.aside(), k.aside().aside());
    assert!(blobs.list("adapters").unwrap().is_empty());
    blobs.remove(&k.aside()).unwrap();
}
