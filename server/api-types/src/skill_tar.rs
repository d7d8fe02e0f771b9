//! The folder of a skill as a tar archive. Nothing is unpacked onto a disk.

use std::io::Read as _;

use hone_domain::{SKILL_FILE_BYTES_MAX, SKILL_FILES_MAX, SkillFile};
use tar::{Archive, Builder, EntryType, Header};

/// Most entries of an archive, folders among them.
const ENTRIES_MAX: usize = 4 * SKILL_FILES_MAX;

/// The files of an archive, and the name of the folder that holds them all, where there is one.
///
/// # Errors
/// A sentence: it is no archive, or holds what no skill has.
pub fn read(tar: &[u8]) -> Result<(Option<String>, Vec<SkillFile>), String> {
    if tar.starts_with(b"\x1f\x8b") || tar.starts_with(b"PK") {
        return Err("the archive is compressed; send a plain tar".to_owned());
    }
    let broken = |error: std::io::Error| format!("the archive cannot be read: {error}");
    let mut archive = Archive::new(tar);
    let mut files = Vec::new();
    for (count, entry) in archive.entries().map_err(broken)?.enumerate() {
        let mut entry = entry.map_err(broken)?;
        if count == ENTRIES_MAX || files.len() > SKILL_FILES_MAX {
            return Err(format!(
                "the archive has more than {SKILL_FILES_MAX} files, the most of a skill; leave out what it does not need"
            ));
        }
        let path = entry.path_bytes();
        let path = String::from_utf8(path.into_owned());
        let path = path.map_err(|_| "a path in the archive is not UTF-8".to_owned())?;
        let shown = || path.chars().take(200).collect::<String>();
        if path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(format!("{:?} leads out of the folder", shown()));
        }
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {}
            EntryType::Directory | EntryType::XGlobalHeader => continue,
            _ => {
                return Err(format!(
                    "{:?} is a link or a device; a skill has files and folders only",
                    shown()
                ));
            }
        }
        if entry.size() > SKILL_FILE_BYTES_MAX as u64 {
            return Err(format!(
                "{} has {} bytes, and a file of a skill at most {SKILL_FILE_BYTES_MAX}",
                shown(),
                entry.size()
            ));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(broken)?;
        let path = path.trim_start_matches("./").to_owned();
        files.push(SkillFile { path, content });
    }
    Ok(without_folder(files))
}

/// Paths without the one folder that all of them begin with.
fn without_folder(mut files: Vec<SkillFile>) -> (Option<String>, Vec<SkillFile>) {
    let first = files.first().and_then(|file| file.path.split_once('/'));
    let Some(folder) = first.map(|(folder, _)| folder.to_owned()) else {
        return (None, files);
    };
    let begin = format!("{folder}/");
    if !files.iter().all(|file| file.path.starts_with(&begin)) {
        return (None, files);
    }
    for file in &mut files {
        file.path = file.path.split_off(begin.len());
    }
    (Some(folder), files)
}

/// An archive with a folder that holds files. The same files make the same bytes.
///
/// # Errors
/// A path that no archive holds.
pub fn write(folder: &str, files: &[SkillFile]) -> std::io::Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    for file in files {
        let mut header = Header::new_gnu();
        header.set_size(file.content.len() as u64);
        header.set_mode(0o644);
        let path = format!("{folder}/{}", file.path);
        builder.append_data(&mut header, path, file.content.as_slice())?;
    }
    builder.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &[u8]) -> SkillFile {
        SkillFile {
            path: path.to_owned(),
            content: content.to_vec(),
        }
    }

    /// An archive with one entry whose path is written as it is.
    fn raw(path: &str, kind: EntryType, size: u64) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        let mut tar = header.as_bytes().to_vec();
        tar.resize(tar.len() + 1024, 0);
        tar
    }

    #[test]
    fn what_is_written_is_read() {
        let long = format!("references/{}.md", "x".repeat(150));
        let files = vec![
            file("SKILL.md", b"# A"),
            file("scripts/x.bin", b"\0\xff"),
            file(&long, b""),
        ];
        let tar = write("a-b", &files).expect("an archive");
        assert_eq!(read(&tar), Ok((Some("a-b".to_owned()), files.clone())));
        assert_eq!(write("a-b", &files).expect("an archive"), tar);
        let mut plain = Builder::new(Vec::new());
        for (path, content) in [("./SKILL.md", b"# A"), ("./x", b"abc")] {
            let mut header = Header::new_ustar();
            header.set_size(content.len() as u64);
            plain
                .append_data(&mut header, path, &content[..])
                .expect("an entry");
        }
        let tar = plain.into_inner().expect("an archive");
        let expected = vec![file("SKILL.md", b"# A"), file("x", b"abc")];
        assert_eq!(read(&tar), Ok((None, expected)));
    }

    #[test]
    fn what_no_skill_has_is_refused_in_words() {
        let mut many = Builder::new(Vec::new());
        let mut empty = Header::new_gnu();
        empty.set_size(0);
        for n in 0..1_000 {
            many.append_data(&mut empty, format!("a/{n}"), &b""[..])
                .expect("an entry");
        }
        let many = many.into_inner().expect("an archive");
        for (tar, part) in [
            (
                raw("../x", EntryType::Regular, 0),
                "leads out of the folder",
            ),
            (
                raw("a/../../x", EntryType::Regular, 0),
                "leads out of the folder",
            ),
            (
                raw("/etc/passwd", EntryType::Regular, 0),
                "leads out of the folder",
            ),
            (
                raw("../", EntryType::Directory, 0),
                "leads out of the folder",
            ),
            (raw("a/x", EntryType::Symlink, 0), "link or a device"),
            (raw("a/x", EntryType::Link, 0), "link or a device"),
            (raw("a/x", EntryType::Fifo, 0), "link or a device"),
            (raw("a/x", EntryType::Char, 0), "link or a device"),
            (
                raw("a/x", EntryType::Regular, 1 << 40),
                "1099511627776 bytes",
            ),
            (raw("a/x", EntryType::Regular, 100_000), "cannot be read"),
            (b"\x1f\x8b\x08\0".to_vec(), "compressed"),
            (b"PK\x03\x04".to_vec(), "compressed"),
            (vec![b'x'; 600], "cannot be read"),
            (many, "more than 64 files"),
        ] {
            let why = read(&tar).expect_err(part);
            assert!(why.contains(part), "{part}: {why}");
        }
        assert_eq!(read(&[]), Ok((None, Vec::new())));
    }
}
