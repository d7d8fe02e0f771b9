//! The YAML at the beginning of a SKILL.md.
//!
//! The specification needs texts and one map of texts, and so that is what is read: plain, quoted and block texts. Anchors,
//! aliases, tags and nested values are refused, so no file grows while it is read. Keys that the specification does not name
//! are left as they are.

use std::collections::{BTreeMap, BTreeSet};

/// Most bytes between the two lines of three hyphens.
const BYTES_MAX: usize = 16 << 10;
/// Most entries of `metadata`.
const METADATA_MAX: usize = 64;
/// Most characters of a description.
const DESCRIPTION_CHARS_MAX: usize = 1_024;
/// Most characters of `compatibility`, `license` and each value of `metadata`.
const TEXT_CHARS_MAX: usize = 500;
/// Most characters of a name.
const NAME_CHARS_MAX: usize = 64;

/// What the beginning of a SKILL.md says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkillHeader {
    /// The skill's name.
    pub name: String,
    /// What it does and when it is used.
    pub description: String,
    /// Under which license, or in which file that stands.
    pub license: Option<String>,
    /// What it needs around it.
    pub compatibility: Option<String>,
    /// What else its author says.
    pub metadata: BTreeMap<String, String>,
    /// The tools that it may use.
    pub allowed_tools: Option<String>,
}

/// What is wrong with the beginning of a SKILL.md.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("SKILL.md, line {line}: {what}")]
pub struct HeaderFault {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

fn fault(line: usize, what: impl Into<String>) -> HeaderFault {
    let what = what.into();
    HeaderFault { line, what }
}

/// The body of a SKILL.md: what stands behind its header.
pub fn body_of(text: &str) -> &str {
    match split(text) {
        Ok((_, body)) => body,
        Err(_) => text,
    }
}

/// The lines of the header and the body.
fn split(text: &str) -> Result<(Vec<&str>, &str), HeaderFault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let begin = "the file begins with a line of three hyphens (---), then name: and description:, then another such line";
    let mut lines = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end();
        at += line.len();
        match (lines.is_empty(), bare == "---") {
            (true, true) => lines.push(bare),
            (true, false) => return Err(fault(1, begin)),
            (false, true) => return Ok((lines.split_off(1), &text[at..])),
            (false, false) => lines.push(bare),
        }
        if at > BYTES_MAX {
            let why = format!(
                "no second line of three hyphens within {BYTES_MAX} bytes; shorten the part between them"
            );
            return Err(fault(lines.len(), why));
        }
    }
    Err(fault(lines.len().max(1), begin))
}

/// Reads a SKILL.md as the specification has it.
///
/// # Errors
/// The first thing that is not so.
pub(super) fn read(text: &str) -> Result<SkillHeader, HeaderFault> {
    let (lines, _) = split(text)?;
    let mut header = SkillHeader::default();
    let mut seen = BTreeSet::new();
    let mut at = 0;
    while at < lines.len() {
        let (line, number) = (lines[at], at + 2);
        at += 1;
        if line.trim_start().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        if line.starts_with([' ', '\t']) {
            return Err(fault(number, "this line is indented and belongs to no key"));
        }
        let (key, rest) = key_of(line, number)?;
        let block: Vec<&str> = lines[at..]
            .iter()
            .take_while(|line| is_inner(line))
            .copied()
            .collect();
        at += block.len();
        if !seen.insert(key.to_owned()) {
            return Err(fault(number, format!("{key} is given twice; keep one")));
        }
        let value = Value {
            number,
            rest,
            block,
        };
        put(&mut header, key, &value)?;
    }
    for (key, is_there) in [
        ("name", seen.contains("name")),
        ("description", seen.contains("description")),
    ] {
        if !is_there {
            return Err(fault(
                1,
                format!("{key} is missing; add a line `{key}: ...`"),
            ));
        }
    }
    Ok(header)
}

/// Whether a line belongs to the key above it.
fn is_inner(line: &str) -> bool {
    line.is_empty() || line.starts_with([' ', '\t']) || line.starts_with("- ") || line == "-"
}

fn key_of(line: &str, number: usize) -> Result<(&str, &str), HeaderFault> {
    let found = line.split_once(':').filter(|(key, rest)| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        !key.is_empty()
            && key.len() <= 64
            && key.chars().all(is_name)
            && (rest.is_empty() || rest.starts_with([' ', '\t']))
    });
    let (key, rest) = found.ok_or_else(|| fault(number, "write `key: value`"))?;
    Ok((key, rest.trim()))
}

/// What stands behind a key.
struct Value<'a> {
    number: usize,
    rest: &'a str,
    block: Vec<&'a str>,
}

fn put(header: &mut SkillHeader, key: &str, value: &Value<'_>) -> Result<(), HeaderFault> {
    match key {
        "name" => header.name = name(value)?,
        "description" => header.description = text_up_to(value, key, DESCRIPTION_CHARS_MAX)?,
        "license" => header.license = Some(text_up_to(value, key, TEXT_CHARS_MAX)?),
        "compatibility" => header.compatibility = Some(text_up_to(value, key, TEXT_CHARS_MAX)?),
        "metadata" => header.metadata = map(value)?,
        "allowed-tools" => header.allowed_tools = Some(tools(value)?),
        _ => {}
    }
    Ok(())
}

fn name(value: &Value<'_>) -> Result<String, HeaderFault> {
    let name = value.text()?;
    match name_fault(&name) {
        Some(why) => Err(fault(value.number, why)),
        None => Ok(name),
    }
}

/// What is wrong with the name of a skill.
pub(super) fn name_fault(name: &str) -> Option<String> {
    let is_right = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let count = name.chars().count();
    if count == 0 || count > NAME_CHARS_MAX {
        return Some(format!(
            "name has {count} characters; it needs 1 to {NAME_CHARS_MAX}"
        ));
    }
    let is_plain = name.chars().all(is_right)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--");
    (!is_plain).then(|| {
        let shown: String = name.chars().take(NAME_CHARS_MAX).collect();
        format!("the name {shown:?} may have a-z, 0-9 and single hyphens between them, as in weekly-report")
    })
}

fn text_up_to(value: &Value<'_>, key: &str, most: usize) -> Result<String, HeaderFault> {
    let text = value.text()?;
    match text.chars().count() {
        0 => Err(fault(
            value.number,
            format!("{key} is empty; write it or leave the line out"),
        )),
        n if n > most => Err(fault(
            value.number,
            format!("{key} has {n} characters; the most is {most}"),
        )),
        _ => Ok(text),
    }
}

/// Names of tools: a text with spaces, or a list.
fn tools(value: &Value<'_>) -> Result<String, HeaderFault> {
    let items = value.block.iter().filter(|line| !line.trim().is_empty());
    let items: Vec<&str> = items.map(|line| line.trim()).collect();
    if value.rest.is_empty() && !items.is_empty() && items.iter().all(|item| item.starts_with("- "))
    {
        let items: Vec<&str> = items.iter().map(|item| item[2..].trim()).collect();
        return Ok(items.join(" "));
    }
    let list = value
        .rest
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match list {
        Some(list) => Ok(list.split(',').map(str::trim).collect::<Vec<_>>().join(" ")),
        None => value.text(),
    }
}

/// `metadata`: indented lines with a text each.
fn map(value: &Value<'_>) -> Result<BTreeMap<String, String>, HeaderFault> {
    let mut map = BTreeMap::new();
    let told = "metadata is a map of texts: write indented lines `key: value` below it";
    if !value.rest.is_empty() && value.rest != "{}" {
        return Err(fault(value.number, told));
    }
    let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let first = value
        .block
        .iter()
        .find(|line| !is_blank(line))
        .map_or(0, |line| indent(line));
    let mut at = 0;
    while at < value.block.len() {
        let (line, number) = (value.block[at], value.number + at + 1);
        at += 1;
        if is_blank(line) {
            continue;
        }
        if indent(line) != first || first == 0 {
            return Err(fault(number, told));
        }
        let (key, rest) = key_of(line.trim(), number)?;
        let deeper = value.block[at..]
            .iter()
            .take_while(|line| line.is_empty() || indent(line) > first);
        let block: Vec<&str> = deeper.copied().collect();
        at += block.len();
        if rest.is_empty() && block.iter().any(|line| !line.is_empty()) {
            return Err(fault(number, told));
        }
        let text = Value {
            number,
            rest,
            block,
        }
        .text()?;
        if text.chars().count() > TEXT_CHARS_MAX || map.len() == METADATA_MAX {
            let why = format!(
                "metadata has at most {METADATA_MAX} entries of {TEXT_CHARS_MAX} characters"
            );
            return Err(fault(number, why));
        }
        if map.insert(key.to_owned(), text).is_some() {
            return Err(fault(
                number,
                format!("metadata names {key} twice; keep one"),
            ));
        }
    }
    Ok(map)
}

impl Value<'_> {
    /// The text that it is.
    fn text(&self) -> Result<String, HeaderFault> {
        let wrong = |what: &str| fault(self.number, what);
        match self.rest.chars().next() {
            Some('|') => self
                .literal()
                .map(|lines| lines.join("\n").trim().to_owned()),
            Some('>') => self.literal().map(|lines| folded(&lines)),
            Some('"') => double_quoted(&self.in_one_line()).map_err(|what| wrong(&what)),
            Some('\'') => single_quoted(&self.in_one_line()).map_err(|what| wrong(&what)),
            Some('&' | '*' | '!') => Err(wrong(
                "anchors, aliases and tags (&, *, !) are not read; write the text itself, in quotes where it begins so",
            )),
            Some('{' | '[' | '}' | ']' | '%' | '@' | '`' | ',' | '?') => {
                Err(wrong("a text that begins so needs quotes around it"))
            }
            _ => Ok(self.plain()),
        }
    }

    /// The lines of a block text without their indentation.
    fn literal(&self) -> Result<Vec<String>, HeaderFault> {
        let marks = without_comment(&self.rest[1..]).trim();
        if marks.len() > 2 || marks.chars().any(|c| !"+-123456789".contains(c)) {
            return Err(fault(
                self.number,
                "the text begins on the line below | or >",
            ));
        }
        let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
        let first = self.block.iter().find(|line| !line.trim().is_empty());
        let first = first.map_or(0, |line| indent(line));
        let bare = |line: &&str| {
            line.get(first.min(indent(line))..)
                .unwrap_or_default()
                .to_owned()
        };
        Ok(self.block.iter().map(bare).collect())
    }

    fn in_one_line(&self) -> String {
        let lines = std::iter::once(self.rest).chain(self.block.iter().copied());
        lines
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn plain(&self) -> String {
        let lines = std::iter::once(self.rest).chain(self.block.iter().copied());
        let bare = lines.map(|line| without_comment(line).trim());
        bare.filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn without_comment(line: &str) -> &str {
    match line.starts_with('#') {
        true => "",
        false => line.split(" #").next().unwrap_or_default(),
    }
}

/// Lines as one text: a blank line is a line break.
fn folded(lines: &[String]) -> String {
    let mut out = String::new();
    for line in lines {
        match line.trim() {
            "" => out.push('\n'),
            words => {
                if !out.is_empty() && !out.ends_with('\n') {
                    out.push(' ');
                }
                out.push_str(words);
            }
        }
    }
    out.trim().to_owned()
}

/// What may follow the end of a quoted text.
fn ended(rest: &str) -> Result<(), String> {
    match rest.trim().is_empty() || rest.trim_start().starts_with('#') {
        true => Ok(()),
        false => Err("something stands behind the closing quote".to_owned()),
    }
}

fn single_quoted(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = &text[1..];
    loop {
        let Some(end) = rest.find('\'') else {
            return Err("the closing quote is missing".to_owned());
        };
        out.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('\'') {
            Some(more) => {
                out.push('\'');
                rest = more;
            }
            None => {
                ended(rest)?;
                return Ok(out);
            }
        }
    }
}

fn double_quoted(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text[1..].chars();
    loop {
        match chars.next() {
            None => return Err("the closing quote is missing".to_owned()),
            Some('"') => {
                ended(chars.as_str())?;
                return Ok(out);
            }
            Some('\\') => out.push(escape(&mut chars)?),
            Some(c) => out.push(c),
        }
    }
}

fn escape(chars: &mut std::str::Chars<'_>) -> Result<char, String> {
    let wrong = || "an escape that is not known; write the character itself".to_owned();
    let digits = match chars.next() {
        Some('n') => return Ok('\n'),
        Some('t') => return Ok('\t'),
        Some('r') => return Ok('\r'),
        Some(c @ ('"' | '\\' | '/' | ' ')) => return Ok(c),
        Some('x') => 2,
        Some('u') => 4,
        Some('U') => 8,
        _ => return Err(wrong()),
    };
    let digits: String = chars.take(digits).collect();
    let code = u32::from_str_radix(&digits, 16).map_err(|_| wrong())?;
    char::from_u32(code).ok_or_else(wrong)
}

#[cfg(test)]
#[path = "frontmatter_tests.rs"]
mod tests;
