//! Tars that try to leave their folder, or that are too much.

use std::path::Path;

use hone_tools::archive::{Bounds, open_folder, unpack};
use hone_tools::{Executor, Files, JailSpec, ToolsError};
use tar::EntryType;

use crate::support::{MIB, bubblewrap, said, small};

/// One entry: kind, name, target or content. Names are written as they are, which the tar library would refuse.
type Entry = (EntryType, &'static str, &'static str);

fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, rest) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o6755);
        let links = matches!(kind, EntryType::Symlink | EntryType::Link);
        let content = if links { "" } else { rest };
        header.set_size(content.len() as u64);
        let raw = header.as_old_mut();
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        if links {
            raw.linkname[..rest.len()].copy_from_slice(rest.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;
const HARD: EntryType = EntryType::Link;
const FOLDER: EntryType = EntryType::Directory;

/// Each is refused, and nothing appears outside the folder.
const TRICKS: &[(&str, &[Entry])] = &[
    ("a path up", &[(FILE, "../x", "x")]),
    ("a path up and down", &[(FILE, "a/../../x", "x")]),
    ("a path up within", &[(FILE, "a/../x", "x")]),
    ("an absolute path", &[(FILE, "/tmp/x", "x")]),
    ("a folder above", &[(FOLDER, "../x", "")]),
    ("a link to the outside", &[(LINK, "l", "/tmp")]),
    ("a link up", &[(LINK, "l", "..")]),
    ("a link up from a folder", &[(LINK, "a/l", "../../x")]),
    ("a link up behind a name", &[(LINK, "a/b/l", "x/../../..")]),
    (
        "a link and a file through it",
        &[(LINK, "a/l", "."), (FILE, "a/l/../../x", "x")],
    ),
    (
        "a file through a link",
        &[(FOLDER, "d", ""), (LINK, "l", "d"), (FILE, "l/x", "x")],
    ),
    (
        "a folder over a link",
        &[(FOLDER, "d", ""), (LINK, "l", "d"), (FOLDER, "l", "")],
    ),
    ("a hard link to the outside", &[(HARD, "h", "/etc/passwd")]),
    ("a hard link up", &[(HARD, "h", "../../etc/passwd")]),
    ("a hard link to nothing", &[(HARD, "h", "missing")]),
    ("a link without a target", &[(LINK, "l", "")]),
    ("a device", &[(EntryType::Char, "null", "")]),
    ("a block device", &[(EntryType::Block, "disk", "")]),
    ("a pipe", &[(EntryType::Fifo, "pipe", "")]),
    ("a file without a name", &[(FILE, ".", "x")]),
    ("a file in a file", &[(FILE, "f", "x"), (FILE, "f/x", "x")]),
];

fn everything_in(folder: &Path) -> Vec<String> {
    let list = std::process::Command::new("find")
        .arg(folder)
        .output()
        .unwrap();
    let text = String::from_utf8(list.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn tricks_are_refused_on_this_machine() {
    for (name, entries) in TRICKS {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("in");
        std::fs::create_dir(&inner).unwrap();
        let folder = open_folder(&inner).unwrap();
        let result = unpack(&tar(entries)[..], &folder, &Bounds::of(MIB));
        assert!(result.is_err(), "{name}");
        for path in everything_in(outer.path()) {
            let inside = Path::new(&path).starts_with(&inner) || Path::new(&path) == outer.path();
            assert!(inside, "{name} made {path}");
        }
    }
}

#[tokio::test]
async fn tricks_are_refused_by_a_jail() {
    let executor = bubblewrap();
    for (name, entries) in TRICKS {
        let bytes = tar(entries);
        let jail = executor.open(&small()).await.unwrap();
        let refused = jail.put_tar("", &bytes).await.unwrap_err();
        assert!(!matches!(refused, ToolsError::Lost(_)), "{name}: {refused}");
        assert_eq!(said(&*jail, "ls -A /tmp").await, "", "{name}");
        jail.close().await;
        let spec = JailSpec {
            files: Files::Tar(bytes.into()),
            ..small()
        };
        assert!(executor.open(&spec).await.is_err(), "{name}");
    }
}

#[test]
fn ordinary_tars_are_unpacked() {
    let at = tempfile::tempdir().unwrap();
    let folder = open_folder(at.path()).unwrap();
    let bytes = tar(&[
        (EntryType::XGlobalHeader, "pax_global_header", ""),
        (FOLDER, "a", ""),
        (FILE, "a/f", "one"),
        (LINK, "a/l", "../b/f"),
        (FILE, "b/f", "two"),
        (HARD, "b/h", "a/f"),
        (FILE, "./b/./f", "three"),
    ]);
    unpack(&bytes[..], &folder, &Bounds::of(MIB)).unwrap();
    let read = |path: &str| std::fs::read_to_string(at.path().join(path)).unwrap();
    assert_eq!([read("a/l"), read("b/h")], ["three", "one"]);
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(at.path().join("a/f"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(
        mode & 0o7777,
        0o755,
        "a file never changes the user that runs it"
    );
    // A link that is there already is replaced and not followed.
    std::os::unix::fs::symlink("a/f", at.path().join("x")).unwrap();
    unpack(&tar(&[(FILE, "x", "new")])[..], &folder, &Bounds::of(MIB)).unwrap();
    assert_eq!([read("x"), read("a/f")], ["new", "one"]);
}

#[test]
fn too_much_is_refused() {
    let at = tempfile::tempdir().unwrap();
    let folder = open_folder(at.path()).unwrap();
    let two = tar(&[(FILE, "a", "12345"), (FILE, "b", "12345")]);
    let refused = unpack(&two[..], &folder, &Bounds::of(9))
        .unwrap_err()
        .to_string();
    assert_eq!(refused, "b: the tar has more than 9 bytes");
    unpack(&two[..], &folder, &Bounds::of(10)).unwrap();
    let few = Bounds {
        entries_max: 1,
        ..Bounds::of(100)
    };
    let refused = unpack(&two[..], &folder, &few).unwrap_err().to_string();
    assert_eq!(refused, "the tar has more than 1 entries");
    let mut lies = tar(&[(FILE, "a", "12345")]);
    for size in [1_u64 << 62, 1000] {
        let mut header = tar::Header::from_byte_slice(&lies[..512]).clone();
        header.set_size(size);
        header.set_cksum();
        lies[..512].copy_from_slice(header.as_bytes());
        lies.truncate(520);
        assert!(
            unpack(&lies[..], &folder, &Bounds::of(2000)).is_err(),
            "{size}"
        );
    }
    assert!(unpack(&[b'x'; 1024][..], &folder, &Bounds::of(100)).is_err());
    let long = "d/".repeat(45);
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    let long = format!("{}f", long.repeat(100));
    builder
        .append_data(&mut header, long, std::io::empty())
        .unwrap();
    let long = builder.into_inner().unwrap();
    assert!(unpack(&long[..], &folder, &Bounds::of(100)).is_err());
}

#[tokio::test]
async fn a_jail_refuses_more_than_its_disk() {
    let jail = bubblewrap().open(&small()).await.unwrap();
    let refused = jail.put("f", &vec![0; 17 << 20]).await.unwrap_err();
    assert!(matches!(refused, ToolsError::Refused(_)), "{refused}");
    let error = jail.put_tar("", b"no tar at all").await.unwrap_err();
    assert!(matches!(error, ToolsError::Refused(_)), "{error}");
    assert_eq!(said(&*jail, "echo here").await, "here\n");
    jail.close().await;
}
