//! A skill from corrections that repeat, in the person's own words.

use super::{CORRECTIONS_MIN, SkillFile, SkillFolder};
use crate::{Millis, SessionId, TurnId, civil, folded};

/// Most characters of the words that a description quotes.
const QUOTED_CHARS: usize = 120;
/// Most characters of a name that is made of a wish.
const NAME_CHARS: usize = 40;

/// What a person said should have been done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// What equal wishes have in common: see [`wish_key`].
    pub wish: String,
    /// The person's own words.
    pub words: String,
    /// The turn that they are about.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionId,
    /// When they were read.
    pub created_ms: Millis,
}

/// What equal wishes have in common: the manner that rules read in the words, or else the words themselves.
pub fn wish_key(manner: Option<&str>, words: &str) -> String {
    match manner {
        Some(manner) => format!("wish:{manner}"),
        None => format!("words:{}", folded(words)),
    }
}

/// The skill that corrections of one wish make, newest last, once enough sessions have one; `is_taken` tells names that the
/// person's skills have. None where they are too few.
pub fn drafted(corrections: &[Correction], is_taken: impl Fn(&str) -> bool) -> Option<SkillFolder> {
    let mut sessions: Vec<SessionId> = corrections.iter().map(|one| one.session).collect();
    sessions.sort_unstable();
    sessions.dedup();
    let last = corrections.last()?;
    if sessions.len() < CORRECTIONS_MIN {
        return None;
    }
    let manner = last.wish.strip_prefix("wish:");
    let begin = name_of(manner.unwrap_or(&last.words));
    let name = (1..=99).map(|n| match n {
        1 => begin.clone(),
        n => format!("{begin}-{n}"),
    });
    let name = name.into_iter().find(|name| !is_taken(name))?;
    let quoted: String = last.words.chars().take(QUOTED_CHARS).collect();
    let description = format!(
        "How this person wants to be answered. They said so in {} conversations: “{quoted}”",
        sessions.len()
    );
    let said = corrections
        .iter()
        .map(|one| format!("- “{}” ({})\n", one.words, day(one.created_ms)));
    let manner = manner
        .map(|manner| format!("In short: {manner}.\n\n"))
        .unwrap_or_default();
    let main = format!(
        "---\nname: {name}\ndescription: \"{}\"\nmetadata:\n  hone-origin: corrections\n---\n{manner}Made from these {} \
         corrections, in the person's own words:\n\n{}",
        escaped(&description),
        number(corrections.len()),
        said.collect::<String>(),
    );
    let file = SkillFile {
        path: "SKILL.md".to_owned(),
        content: main.into_bytes(),
    };
    SkillFolder::new(None, vec![file]).ok()
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn number(count: usize) -> String {
    let words = ["three", "four", "five", "six", "seven", "eight"];
    let word = count.checked_sub(3).and_then(|at| words.get(at));
    word.map_or_else(|| count.to_string(), |word| (*word).to_owned())
}

fn day(ms: Millis) -> String {
    let days = u64::try_from(ms.div_euclid(86_400_000)).unwrap_or(0);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A name of letters that names may have.
fn name_of(wish: &str) -> String {
    let words = wish.to_lowercase();
    let words = words.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit());
    let mut name = String::new();
    for word in words.filter(|word| !word.is_empty()) {
        if name.len() + word.len() >= NAME_CHARS {
            break;
        }
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(word);
    }
    match name.len() {
        0..=2 => "how-to-answer".to_owned(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::scan;
    use super::*;

    fn said(n: u128, session: u128, manner: Option<&str>, words: &str) -> Correction {
        Correction {
            wish: wish_key(manner, words),
            words: words.to_owned(),
            turn: TurnId(Uuid::from_u128(n)),
            session: SessionId(Uuid::from_u128(session)),
            created_ms: 1_700_000_000_000,
        }
    }

    #[test]
    fn three_sessions_make_a_skill_in_the_persons_words() {
        let manner = Some("keep it short");
        let all = [
            said(1, 1, manner, "not so long"),
            said(2, 2, manner, "say \"less\"\\, please"),
            said(3, 3, manner, "too wordy"),
        ];
        assert_eq!(drafted(&all[..2], |_| false), None);
        let twice = [
            all[0].clone(),
            all[1].clone(),
            said(3, 2, manner, "too wordy"),
        ];
        assert_eq!(drafted(&twice, |_| false), None, "two sessions");
        let made = drafted(&all, |name| name == "keep-it-short").expect("a skill");
        assert_eq!(made.header().name, "keep-it-short-2");
        let told =
            "How this person wants to be answered. They said so in 3 conversations: “too wordy”";
        assert_eq!(made.header().description, told);
        assert_eq!(made.header().metadata["hone-origin"], "corrections");
        assert_eq!(
            made.body(),
            "In short: keep it short.\n\nMade from these three corrections, in the person's own words:\n\n\
             - “not so long” (2023-11-14)\n- “say \"less\"\\, please” (2023-11-14)\n- “too wordy” (2023-11-14)\n"
        );
        assert_eq!(scan(&made), Ok(Vec::new()));
    }

    #[test]
    fn names_are_made_of_what_names_may_have() {
        for (wish, name) in [
            ("keep it short", "keep-it-short"),
            ("Réponds en français!", "r-ponds-en-fran-ais"),
            ("请简短", "how-to-answer"),
            ("", "how-to-answer"),
            (
                &"word ".repeat(30),
                "word-word-word-word-word-word-word-word",
            ),
        ] {
            assert_eq!(name_of(wish), name);
            assert_eq!(super::super::frontmatter::name_fault(name), None, "{name}");
        }
        assert_eq!(wish_key(None, "In French!"), wish_key(None, "in  french"));
    }
}
