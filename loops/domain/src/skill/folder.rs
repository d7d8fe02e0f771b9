//! The folder of a skill: its files within limits, and what its SKILL.md says.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::frontmatter::{HeaderFault, SkillHeader, body_of, read};
use super::limits::{SKILL_BYTES_MAX, SKILL_FILE_BYTES_MAX, SKILL_FILES_MAX};
use crate::{Digest, Secret};

/// The file that every skill has.
const MAIN: &str = "SKILL.md";
/// Longest path of a file, and most folders in it.
const PATH_BYTES_MAX: usize = 200;
const PATH_PARTS_MAX: usize = 8;

/// A file of a skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillFile {
    /// Its path in the folder, with slashes.
    pub path: String,
    /// What is in it.
    pub content: Vec<u8>,
}

/// Why a folder is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkillRefusal {
    /// It has too many files.
    #[error("a skill has at most {SKILL_FILES_MAX} files; leave out what it does not need")]
    Files,
    /// A file is too large.
    #[error(
        "{0} has {1} bytes, and a file of a skill at most {SKILL_FILE_BYTES_MAX}; shorten or split it"
    )]
    FileBytes(String, u64),
    /// All files together are too large.
    #[error(
        "the files have more than {SKILL_BYTES_MAX} bytes together, the most of a skill; leave some out"
    )]
    Bytes,
    /// A path leaves the folder, or is none.
    #[error("{0:?} is no path inside the folder: {1}")]
    Path(String, &'static str),
    /// Two files have one path, or a file has the name of a folder.
    #[error("{0} is there twice; keep one")]
    Twice(String),
    /// There is no SKILL.md.
    #[error("the folder has no SKILL.md at its top; a skill begins with that file")]
    NoMain,
    /// The SKILL.md is no text.
    #[error("SKILL.md is not UTF-8 text")]
    NoText,
    /// Its header is not as the specification has it.
    #[error("{0}")]
    Header(#[from] HeaderFault),
    /// The folder has another name.
    #[error("the folder is called {0:?} and SKILL.md says `name: {1}`; both have to be the same")]
    Folder(String, String),
    /// It holds what is never stored.
    #[error("{path}, line {line} holds {}; secrets are not stored, so take it out", secret.what())]
    Secret {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// What it looks like.
        secret: Secret,
    },
}

/// A folder that is as the specification has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillFolder {
    header: SkillHeader,
    files: Vec<SkillFile>,
}

impl SkillFolder {
    /// From files, and the name of their folder where that is known.
    ///
    /// # Errors
    /// The first thing that is not as it has to be.
    pub fn new(folder: Option<&str>, files: Vec<SkillFile>) -> Result<Self, SkillRefusal> {
        if files.len() > SKILL_FILES_MAX {
            return Err(SkillRefusal::Files);
        }
        let mut bytes = 0;
        let mut by_path = BTreeMap::new();
        for file in files {
            check_path(&file.path)?;
            if file.content.len() > SKILL_FILE_BYTES_MAX {
                return Err(SkillRefusal::FileBytes(
                    file.path,
                    file.content.len() as u64,
                ));
            }
            bytes += file.content.len();
            let SkillFile { path, content } = file;
            if by_path.insert(path.clone(), content).is_some() {
                return Err(SkillRefusal::Twice(path));
            }
        }
        if bytes > SKILL_BYTES_MAX {
            return Err(SkillRefusal::Bytes);
        }
        check_folders(&by_path)?;
        let main = by_path.get(MAIN).ok_or(SkillRefusal::NoMain)?;
        let main = std::str::from_utf8(main).map_err(|_| SkillRefusal::NoText)?;
        let header = read(main)?;
        if let Some(folder) = folder.filter(|folder| *folder != header.name) {
            let shown = folder.chars().take(100).collect();
            return Err(SkillRefusal::Folder(shown, header.name));
        }
        let files = by_path.into_iter();
        let files = files.map(|(path, content)| SkillFile { path, content });
        Ok(Self {
            header,
            files: files.collect(),
        })
    }

    /// What its SKILL.md says.
    pub fn header(&self) -> &SkillHeader {
        &self.header
    }

    /// Its files, by path.
    pub fn files(&self) -> &[SkillFile] {
        &self.files
    }

    /// The text of its SKILL.md.
    pub fn main(&self) -> &str {
        let main = self.files.iter().find(|file| file.path == MAIN);
        let text = main.map(|file| std::str::from_utf8(&file.content));
        text.and_then(Result::ok).unwrap_or_default()
    }

    /// The text of its SKILL.md behind the header.
    pub fn body(&self) -> &str {
        body_of(self.main())
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files
            .iter()
            .map(|file| file.content.len() as u64)
            .sum()
    }

    /// A hash of all paths and contents.
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        for file in &self.files {
            for part in [file.path.as_bytes(), &file.content] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        Digest(hash.finalize().into())
    }
}

fn check_path(path: &str) -> Result<(), SkillRefusal> {
    let refuse = |why| {
        let shown = path.chars().take(PATH_BYTES_MAX).collect();
        Err(SkillRefusal::Path(shown, why))
    };
    if path.len() > PATH_BYTES_MAX {
        return refuse("it is longer than 200 bytes");
    }
    if path.starts_with('/') || path.contains([':', '\\']) {
        return refuse("it begins with a slash, or has a colon or a backslash");
    }
    if path.chars().any(char::is_control) {
        return refuse("it has a control character");
    }
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return refuse("a part of it is empty, . or ..");
    }
    match path.split('/').count() > PATH_PARTS_MAX {
        true => refuse("it lies more than 8 folders deep"),
        false => Ok(()),
    }
}

/// No file may have the path of a folder that another one lies in.
fn check_folders(files: &BTreeMap<String, Vec<u8>>) -> Result<(), SkillRefusal> {
    let ends = |path: &str| {
        path.match_indices('/')
            .map(|(at, _)| at)
            .collect::<Vec<_>>()
    };
    let folders = files
        .keys()
        .flat_map(|path| ends(path).into_iter().map(move |at| &path[..at]));
    let folders: BTreeSet<&str> = folders.collect();
    match folders.iter().find(|folder| files.contains_key(**folder)) {
        Some(folder) => Err(SkillRefusal::Twice((*folder).to_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &[u8]) -> SkillFile {
        let (path, content) = (path.to_owned(), content.to_vec());
        SkillFile { path, content }
    }

    fn main() -> SkillFile {
        file("SKILL.md", b"---\nname: a-b\ndescription: c\n---\nDo it.\n")
    }

    #[test]
    fn a_folder_has_files_in_their_order_and_a_hash_of_all_of_them() {
        let files = vec![file("scripts/x.py", b"pass"), main()];
        let folder = SkillFolder::new(Some("a-b"), files).expect("a skill");
        assert_eq!(folder.header().name, "a-b");
        assert_eq!(folder.body(), "Do it.\n");
        assert_eq!(folder.bytes(), main().content.len() as u64 + 4);
        let paths: Vec<_> = folder
            .files()
            .iter()
            .map(|file| file.path.as_str())
            .collect();
        assert_eq!(paths, ["SKILL.md", "scripts/x.py"]);
        let other = SkillFolder::new(None, vec![main(), file("scripts/x.py", b"pas")]);
        assert_ne!(other.expect("a skill").digest(), folder.digest());
    }

    #[test]
    fn what_is_no_folder_of_a_skill_is_refused_in_words() {
        let many = |count: usize| {
            (0..count)
                .map(|n| file(&format!("f{n}"), b""))
                .collect::<Vec<_>>()
        };
        let large = vec![b'x'; SKILL_FILE_BYTES_MAX + 1];
        let full = |n: usize| file(&format!("f{n}"), &large[1..]);
        for (files, part) in [
            (many(100_000), "at most 64 files"),
            (vec![], "no SKILL.md"),
            (vec![file("skill.md", b"")], "no SKILL.md"),
            (vec![file("a/SKILL.md", b"")], "no SKILL.md"),
            (vec![main(), file("x", &large)], "x has 262145 bytes"),
            (
                vec![main(), full(1), full(2), full(3), full(4)],
                "more than 1048576 bytes",
            ),
            (vec![main(), main()], "SKILL.md is there twice"),
            (
                vec![main(), file("a", b""), file("a/b", b"")],
                "a is there twice",
            ),
            (vec![file("SKILL.md", b"\xff\xfe")], "not UTF-8"),
            (vec![file("SKILL.md", b"# Title")], "line 1"),
            (vec![main(), file("../x", b"")], "no path inside the folder"),
            (
                vec![main(), file("/etc/passwd", b"")],
                "begins with a slash",
            ),
            (vec![main(), file("a/../../x", b"")], "empty, . or .."),
            (vec![main(), file("a//x", b"")], "empty, . or .."),
            (vec![main(), file("C:x", b"")], "a colon"),
            (vec![main(), file("..\\x", b"")], "a backslash"),
            (vec![main(), file("a\nb", b"")], "control character"),
            (vec![main(), file(&"d/".repeat(8), b"")], "empty, . or .."),
            (
                vec![main(), file(&format!("{}x", "d/".repeat(8)), b"")],
                "8 folders",
            ),
            (vec![main(), file(&"x".repeat(201), b"")], "200 bytes"),
        ] {
            let refusal = SkillFolder::new(None, files).expect_err(part).to_string();
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
        let refusal = SkillFolder::new(Some("b"), vec![main()]).expect_err("another name");
        let told =
            "the folder is called \"b\" and SKILL.md says `name: a-b`; both have to be the same";
        assert_eq!(refusal.to_string(), told);
    }
}
