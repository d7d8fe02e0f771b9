//! Memories as a Markdown file that people can read and edit: a list of preferences and a list of facts.

use hone_domain::{Memory, MemoryKind};

/// An entry of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its first line, counted from 1.
    pub line: usize,
    /// What it is about: a preference below a heading that says so, else a fact.
    pub kind: MemoryKind,
    /// Its words.
    pub text: String,
}

/// A file with these memories, in their order.
pub fn write(memories: &[Memory]) -> String {
    let mut file = "# Memories\n".to_owned();
    for (kind, heading) in [
        (MemoryKind::Preference, "Preferences"),
        (MemoryKind::Fact, "Facts"),
    ] {
        let mut of_kind = memories
            .iter()
            .filter(|memory| memory.kind == kind)
            .peekable();
        if of_kind.peek().is_none() {
            continue;
        }
        file += &format!("\n## {heading}\n\n");
        for memory in of_kind {
            file += &format!("- {}\n", memory.text);
        }
    }
    file
}

/// The items of the lists of a file; where it has no list, its lines. Headings and code say nothing themselves.
pub fn read(file: &str) -> Vec<Entry> {
    let (mut items, mut lines) = (Vec::<Entry>::new(), Vec::new());
    let (mut kind, mut in_code, mut is_open) = (MemoryKind::Fact, false, false);
    for (number, line) in (1..).zip(file.lines()) {
        let bare = line.trim();
        if bare.starts_with("```") {
            in_code = !in_code;
        }
        // Rules, marks of empty items and of tables.
        let has_words = bare.contains(char::is_alphanumeric);
        if in_code || bare.starts_with("```") || !has_words {
            is_open = false;
            continue;
        }
        if let Some(heading) = bare.strip_prefix('#') {
            let is_preference = heading.to_lowercase().contains("preference");
            kind = match is_preference {
                true => MemoryKind::Preference,
                false => MemoryKind::Fact,
            };
            is_open = false;
            continue;
        }
        let entry = |text: &str| Entry {
            line: number,
            kind,
            text: text.to_owned(),
        };
        match (item(bare), items.last_mut()) {
            (Some(text), _) => {
                items.push(entry(text));
                is_open = true;
            }
            // What is indented below an item goes on with it.
            (None, Some(last)) if is_open && line.starts_with([' ', '\t']) => {
                last.text.push(' ');
                last.text.push_str(bare);
            }
            (None, _) => lines.push(entry(bare)),
        }
    }
    match items.is_empty() {
        true => lines,
        false => items,
    }
}

/// What stands behind the mark of a list's item.
fn item(line: &str) -> Option<&str> {
    let marked = ['-', '*', '+', '•'].iter().find_map(|mark| {
        let behind = line.strip_prefix(*mark)?;
        behind.starts_with([' ', '\t']).then_some(behind)
    });
    let numbered = || {
        let behind = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let has_number = behind.len() < line.len();
        let text = behind.strip_prefix(['.', ')'])?;
        (has_number && text.starts_with([' ', '\t'])).then_some(text)
    };
    marked.or_else(numbered).map(str::trim)
}

#[cfg(test)]
mod tests {
    use hone_domain::{MemoryId, MemoryOrigin, Scope};
    use uuid::Uuid;

    use super::*;

    fn memory(kind: MemoryKind, text: &str) -> Memory {
        Memory {
            id: MemoryId(Uuid::from_u128(1)),
            scope: Scope::of("ann", None),
            kind,
            text: text.to_owned(),
            topic: None,
            turn: None,
            created_ms: 0,
            valid_until_ms: None,
            superseded_by: None,
            paused: false,
            uses: 0,
            origin: MemoryOrigin::Said,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        use MemoryKind::{Fact, Preference};
        let all = [
            memory(Fact, "I am vegetarian."),
            memory(Preference, "- short please"),
            memory(Fact, "# is my favourite character"),
        ];
        let file = write(&all);
        assert_eq!(
            file,
            "# Memories\n\n## Preferences\n\n- - short please\n\n## Facts\n\n- I am vegetarian.\n- # is my favourite character\n"
        );
        let entry = |line, kind, text: &str| Entry {
            line,
            kind,
            text: text.to_owned(),
        };
        let expected = [
            entry(5, Preference, "- short please"),
            entry(9, Fact, "I am vegetarian."),
            entry(10, Fact, "# is my favourite character"),
        ];
        assert_eq!(read(&file), expected);
        assert_eq!(write(&[]), "# Memories\n");
        assert_eq!(read("# Memories\n"), []);
    }

    #[test]
    fn other_files_are_read_by_their_lists_or_lines() {
        let texts =
            |file: &str| -> Vec<String> { read(file).into_iter().map(|e| e.text).collect() };
        let lists = "Notes of mine\n\n-\n* * *\n|---|\n-\tzero\n* one\n  goes on\n+ two\n1. three\n23) four\n• five\n\n```\n- code\n```\nend\n";
        assert_eq!(
            texts(lists),
            ["zero", "one goes on", "two", "three", "four", "five"]
        );
        assert_eq!(
            texts("I am tall.\n\n# About\nI own 2. houses\n"),
            ["I am tall.", "I own 2. houses"]
        );
        assert!(texts("").is_empty());
        assert!(texts("```\n- never closed\n").is_empty());
        let kinds: Vec<_> = read("## My PREFERENCES\n- a\n## Else\n- b")
            .into_iter()
            .map(|e| e.kind)
            .collect();
        assert_eq!(kinds, [MemoryKind::Preference, MemoryKind::Fact]);
    }
}
