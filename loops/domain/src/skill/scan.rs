//! What in a skill a person has to look at before a model reads it.
//!
//! Rules over words. They find what is said openly, and quarantine rather than refuse: a person reads the finding and may
//! release the skill. What surely is a secret is refused.

use serde::{Deserialize, Serialize};

use super::folder::{SkillFolder, SkillRefusal};
use crate::Secret;

/// Most findings that are kept.
const FINDINGS_MAX: usize = 50;
/// Most characters of a line that a finding shows.
const EXCERPT_CHARS: usize = 120;
/// Words between a verb and what it is about.
const REACH: usize = 6;
/// Shortest word that looks like encoded bytes.
const ENCODED_CHARS: usize = 200;

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// The file.
    pub path: String,
    /// The line, from 1; none where it is the whole file.
    pub line: Option<usize>,
    /// The line's text, so that it can be seen.
    pub excerpt: String,
}

/// What a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A program or a script.
    Executable,
    /// Bytes that are no text.
    Binary,
    /// Words that tell a model to leave its rules.
    Instruction,
    /// Words that ask for a secret.
    SecretAsked,
    /// Characters that are not seen.
    HiddenText,
    /// A line that loads a program and runs it.
    FetchAndRun,
    /// What may be a secret.
    Secret,
    /// A long word that looks like encoded bytes.
    EncodedText,
}

impl FindingKind {
    /// What it is, for a person who decides.
    pub fn explain(self) -> &'static str {
        match self {
            Self::Executable => "a program or script, which an agent that loads it might run",
            Self::Binary => "a file that is no text, so nobody can read what it says",
            Self::Instruction => "words that tell a model to leave its rules or to hide something",
            Self::SecretAsked => "words that ask for a password, a key or another secret",
            Self::HiddenText => "characters that are not seen",
            Self::FetchAndRun => "a line that loads a program from elsewhere and runs it",
            Self::Secret => "what may be a password or a key",
            Self::EncodedText => "a long encoded text, which nobody can read",
        }
    }
}

/// Everything in a folder that a person has to look at.
///
/// # Errors
/// It holds what is never stored.
pub fn scan(folder: &SkillFolder) -> Result<Vec<Finding>, SkillRefusal> {
    let mut found = Found::default();
    for file in folder.files() {
        let text = std::str::from_utf8(&file.content);
        let text = text.ok().filter(|text| !text.contains('\0'));
        found.path.clone_from(&file.path);
        if is_program(&file.path, &file.content) {
            found.add(
                FindingKind::Executable,
                None,
                text.and_then(|text| text.lines().next())
                    .unwrap_or_default(),
            );
        } else if text.is_none() {
            found.add(FindingKind::Binary, None, "");
        }
        if let Some(text) = text {
            found.secrets(text)?;
            found.lines(text);
            found.words(text);
        }
    }
    found
        .all
        .sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(found.all)
}

/// How programs begin, and how their names end.
const MAGIC: [&[u8]; 8] = [
    b"\x7fELF",
    b"MZ",
    b"\0asm",
    b"\xfe\xed\xfa\xce",
    b"\xfe\xed\xfa\xcf",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",
    b"#!",
];
const ENDINGS: [&str; 24] = [
    ".sh", ".bash", ".zsh", ".fish", ".py", ".pyc", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl",
    ".php", ".lua", ".ps1", ".bat", ".cmd", ".vbs", ".exe", ".dll", ".so", ".jar", ".wasm",
    ".command",
];

fn is_program(path: &str, content: &[u8]) -> bool {
    let path = path.to_lowercase();
    MAGIC.iter().any(|magic| content.starts_with(magic))
        || ENDINGS.iter().any(|ending| path.ends_with(ending))
}

#[derive(Default)]
struct Found {
    path: String,
    all: Vec<Finding>,
}

impl Found {
    /// One finding of a kind and line is enough.
    fn add(&mut self, kind: FindingKind, line: Option<usize>, text: &str) {
        let is_same = |one: &Finding| one.kind == kind && one.line == line && one.path == self.path;
        if self.all.len() >= FINDINGS_MAX || self.all.iter().any(is_same) {
            return;
        }
        let seen = text.trim().chars().take(EXCERPT_CHARS);
        let excerpt = seen.map(|c| {
            if is_hidden(c) || c.is_control() {
                '\u{fffd}'
            } else {
                c
            }
        });
        self.all.push(Finding {
            kind,
            path: self.path.clone(),
            line,
            excerpt: excerpt.collect(),
        });
    }

    fn secrets(&mut self, text: &str) -> Result<(), SkillRefusal> {
        for (line, number) in text.lines().zip(1..) {
            if let Some(secret) = Secret::find_sure(line) {
                let (path, line) = (self.path.clone(), number);
                return Err(SkillRefusal::Secret { path, line, secret });
            }
            if Secret::find(line).is_some() {
                self.add(FindingKind::Secret, Some(number), "");
            }
        }
        Ok(())
    }

    fn lines(&mut self, text: &str) {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, number) in text.lines().zip(1..) {
            let at = Some(number);
            if line.chars().any(is_hidden) {
                self.add(FindingKind::HiddenText, at, line);
            }
            let lower = line.to_lowercase();
            if fetches_and_runs(&lower) {
                self.add(FindingKind::FetchAndRun, at, line);
            }
            if ROLE_MARKS.iter().any(|mark| lower.contains(mark)) {
                self.add(FindingKind::Instruction, at, line);
            }
            if line.split_whitespace().any(is_encoded) {
                self.add(FindingKind::EncodedText, at, line);
            }
        }
    }

    /// Words across lines, so that a line break hides nothing.
    fn words(&mut self, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        let mut words: Vec<(String, usize)> = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let seen: String = line.chars().filter(|c| !is_hidden(*c)).collect();
            let parts = seen.split(|c: char| !c.is_alphanumeric() && c != '.' && c != '\'');
            let parts = parts.map(|part| part.trim_matches(['.', '\'']).to_lowercase());
            words.extend(parts.filter(|part| !part.is_empty()).map(|part| (part, at)));
        }
        for (place, (word, at)) in words.iter().enumerate() {
            let rest = &words[place + 1..(place + 1 + REACH).min(words.len())];
            let kind = match () {
                () if is_in(LEAVE, word) && names(rest, RULES) => FindingKind::Instruction,
                () if is_in(REVEAL, word) && says(rest, &["system", "prompt"]) => {
                    FindingKind::Instruction
                }
                () if PHRASES.iter().any(|phrase| begins(word, rest, phrase)) => {
                    FindingKind::Instruction
                }
                () if is_in(REVEAL, word) && asks_secret(rest) => FindingKind::SecretAsked,
                () => continue,
            };
            self.add(kind, Some(at + 1), lines[*at]);
        }
    }
}

/// Verbs that leave rules, in English, German, French, Spanish, Italian, Portuguese and Dutch.
const LEAVE: &str = "ignore ignoring disregard forget override bypass circumvent violate ignoriere ignorieren missachte vergiss umgehe \
    ignorez oublie oubliez contourne ignora ignorar ignorad olvida omite ignorare dimentica aggira esqueça negeer vergeet omzeil";
/// What is left.
const RULES: &str = "instructions instruction rules guidelines guardrails restrictions safeguards policies directives regeln anweisungen vorgaben \
    richtlinien règles consignes instrucciones reglas normas istruzioni regole instruções regras instructies regels";
/// Verbs that give something away.
const REVEAL: &str = "send share paste post upload email give provide enter reveal print show tell submit exfiltrate leak forward schicke sende \
    nenne verrate zeige envoie donne envía dame muestra invia mostra envie stuur geef";
/// What is given away.
const SECRETS: &str = "password passwords passphrase credentials credential secrets cookies passwort passwörter zugangsdaten contraseña \
    contraseñas senha senhas wachtwoord motdepasse .env .netrc id_rsa";
/// The same in two words.
const SECRET_PAIRS: [[&str; 2]; 8] = [
    ["api", "key"],
    ["api", "keys"],
    ["private", "key"],
    ["ssh", "key"],
    ["access", "token"],
    ["access", "tokens"],
    ["secret", "key"],
    ["credit", "card"],
];
/// Phrases, each word after the other.
const PHRASES: [&[&str]; 10] = [
    &["do", "not", "tell", "the", "user"],
    &["don't", "tell", "the", "user"],
    &["without", "telling", "the", "user"],
    &["hide", "this", "from", "the", "user"],
    &["never", "mention", "this", "to", "the", "user"],
    &["you", "are", "no", "longer"],
    &["developer", "mode"],
    &["jailbreak"],
    &["new", "system", "prompt"],
    &["act", "as", "dan"],
];
/// What templates mark roles with.
const ROLE_MARKS: [&str; 8] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|system|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<start_of_turn>",
    "[inst]",
    "<<sys>>",
];

fn is_in(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|listed| listed == word)
}

fn names(rest: &[(String, usize)], list: &str) -> bool {
    rest.iter().any(|(word, _)| is_in(list, word))
}

fn says(rest: &[(String, usize)], pair: &[&str; 2]) -> bool {
    rest.windows(2)
        .any(|two| two[0].0 == pair[0] && two[1].0 == pair[1])
}

fn asks_secret(rest: &[(String, usize)]) -> bool {
    let rest = &rest[..rest.len().min(REACH)];
    names(rest, SECRETS) || SECRET_PAIRS.iter().any(|pair| says(rest, pair))
}

fn begins(word: &str, rest: &[(String, usize)], phrase: &[&str]) -> bool {
    let more = rest.iter().map(|(word, _)| word.as_str());
    let words = std::iter::once(word).chain(more);
    words.take(phrase.len()).eq(phrase.iter().copied())
}

/// Whether a line loads a program and runs it.
fn fetches_and_runs(line: &str) -> bool {
    let loads = [
        "curl ",
        "wget ",
        "iwr ",
        "invoke-webrequest",
        "invoke-restmethod",
        "base64 -d",
        "base64 --decode",
    ];
    let Some(at) = loads.iter().filter_map(|load| line.find(load)).min() else {
        return false;
    };
    let runs = |word: &str| {
        let name = word.rsplit('/').next().unwrap_or_default();
        matches!(
            name,
            "sh" | "bash"
                | "zsh"
                | "dash"
                | "python"
                | "python3"
                | "perl"
                | "ruby"
                | "node"
                | "iex"
                | "sudo"
        )
    };
    let piped = line[at..].split('|').skip(1);
    let is_piped = piped
        .filter_map(|part| part.split_whitespace().next())
        .any(runs);
    let before = line[..at].trim_end();
    let is_inside = before.ends_with("$(") || before.ends_with("<(") || before.ends_with('`');
    let is_run = ["sh ", "bash ", "zsh ", "eval ", "source ", "python", "iex"];
    is_piped || (is_inside && is_run.iter().any(|run| before.contains(run)))
}

/// Characters that are not seen: marks that turn the direction of text, spaces without width, tags.
fn is_hidden(c: char) -> bool {
    matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        | '\u{00ad}' | '\u{180e}' | '\u{e0000}'..='\u{e007f}' | '\u{e0100}'..='\u{e01ef}')
}

fn is_encoded(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+/=-_".contains(c);
    let has = |of: fn(&char) -> bool| word.chars().any(|c| of(&c));
    word.len() >= ENCODED_CHARS
        && word.chars().all(is_part)
        && has(char::is_ascii_digit)
        && has(char::is_ascii_alphabetic)
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
