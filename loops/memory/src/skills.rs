//! Which skills fit a question. The index holds whole texts, because what a skill is for often stands in its body; a prompt is
//! shown names and descriptions of a few, and the body of one that clearly fits.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use hone_domain::{SkillId, SkillOrigin, body_of, words_of};
use hone_ledger::ActiveSkill;

use crate::Index;
use crate::index::meaning_of;

/// Most skills whose words are compared with a question.
const RELATED_MAX: usize = 8;
/// Longest body that a prompt can show; what is longer is loaded by its reader.
const BODY_BYTES_MAX: usize = 32 << 10;
/// Bytes of a body that the index knows.
const INDEXED_BYTES_MAX: usize = 16 << 10;
/// Words of a body that a question shares at least where it shares none of the description.
const BODY_WORDS_MIN: usize = 3;
/// Words of name and description that a question shares at least where the skill clearly fits.
const CLEAR_WORDS_MIN: usize = 2;

/// A skill as prompts show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedSkill {
    /// Its id.
    pub id: SkillId,
    /// Which version.
    pub version: u32,
    /// Its name.
    pub name: Arc<str>,
    /// What it does and when it is used.
    pub description: Arc<str>,
    /// What SKILL.md says behind its header; none where that is too long for a prompt.
    pub body: Option<Arc<str>>,
    /// Whether it fits every question: how a person wants to be answered.
    pub is_general: bool,
}

impl From<ActiveSkill> for OfferedSkill {
    fn from(active: ActiveSkill) -> Self {
        let body = body_of(&active.main).trim();
        let current = active.skill.current;
        Self {
            id: active.skill.id,
            version: current.version,
            name: active.skill.name.into(),
            description: current.description.into(),
            body: (body.len() <= BODY_BYTES_MAX && !body.is_empty()).then(|| body.into()),
            is_general: current.origin == SkillOrigin::Corrections,
        }
    }
}

/// A skill that fits a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit<'a> {
    /// The skill.
    pub skill: &'a OfferedSkill,
    /// Whether its body is likely to be needed, too.
    pub is_clear: bool,
}

/// The skills of a scope that may be shown.
#[derive(Default)]
pub struct KnownSkills {
    /// Newest first.
    all: Vec<OfferedSkill>,
    /// Made when it is first searched.
    words: OnceLock<Words>,
}

struct Words {
    index: Index,
    /// Of each skill, the words that carry meaning: of name and description, and of the body.
    of: Vec<(HashSet<String>, HashSet<String>)>,
}

impl KnownSkills {
    /// From skills that may be shown, newest first.
    pub fn new(all: Vec<OfferedSkill>) -> Self {
        let words = OnceLock::new();
        Self { all, words }
    }

    /// The skill with this id.
    pub fn get(&self, id: SkillId) -> Option<&OfferedSkill> {
        self.all.iter().find(|skill| skill.id == id)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Makes the index, which the first search would do otherwise.
    pub(crate) fn make_index(&self) {
        let _made = self.words();
    }

    fn words(&self) -> &Words {
        self.words.get_or_init(|| {
            let head = |skill: &OfferedSkill| format!("{} {}", skill.name, skill.description);
            let body = |skill: &OfferedSkill| {
                let body = skill.body.as_deref().unwrap_or_default();
                body[..body.floor_char_boundary(INDEXED_BYTES_MAX)].to_owned()
            };
            let parts: Vec<_> = self.all.iter().map(|one| (head(one), body(one))).collect();
            let whole: Vec<_> = parts
                .iter()
                .map(|(head, body)| format!("{head}\n{body}"))
                .collect();
            let of = parts.iter();
            Words {
                index: Index::of(whole.iter().map(String::as_str)),
                of: of
                    .map(|(head, body)| (meaning_of(head), meaning_of(body)))
                    .collect(),
            }
        })
    }

    /// The skills that fit a question: how the person wants to be answered, then the best matches (BM25). Of the matches only
    /// the first can fit clearly: the question names it, or shares words with its description and fewer with any other's.
    pub fn fitting(&self, asked: &str) -> Vec<Fit<'_>> {
        let general = self.all.iter().filter(|skill| skill.is_general);
        let mut fits: Vec<Fit<'_>> = general
            .map(|skill| Fit {
                skill,
                is_clear: true,
            })
            .collect();
        if self.all.len() > fits.len() {
            fits.extend(self.matches(asked));
        }
        fits
    }

    fn matches(&self, asked: &str) -> Vec<Fit<'_>> {
        let words = self.words();
        let meant = meaning_of(asked);
        let said = words_of(asked);
        let shared = |at: usize| words.of[at].0.intersection(&meant).count();
        let found = words.index.matches(asked, RELATED_MAX).into_iter();
        let fits = |at: &usize| {
            let in_body = || words.of[*at].1.intersection(&meant).count();
            !self.all[*at].is_general && (shared(*at) > 0 || in_body() >= BODY_WORDS_MIN)
        };
        let mut found: Vec<usize> = found.filter(fits).collect();
        // The one that is named, or shares most with the question, is the first; BM25 decides between equals.
        let rank = |at: usize| (is_named(&self.all[at].name, &said), shared(at));
        found.sort_by_key(|at| std::cmp::Reverse(rank(*at)));
        let is_clear = match found[..] {
            [] => false,
            [first] => rank(first).0 || shared(first) >= CLEAR_WORDS_MIN,
            [first, second, ..] => {
                let is_first = rank(first) > rank(second);
                is_first && (rank(first).0 || shared(first) >= CLEAR_WORDS_MIN)
            }
        };
        let fit = |(place, at): (usize, usize)| Fit {
            skill: &self.all[at],
            is_clear: is_clear && place == 0,
        };
        found.into_iter().enumerate().map(fit).collect()
    }
}

/// Whether a question names a skill: the words of its name stand in a row there. A name of one word that is also a word of
/// the language would be found everywhere, so that needs a second sign.
fn is_named(name: &str, said: &[String]) -> bool {
    let name: Vec<&str> = name.split('-').collect();
    name.len() > 1
        && said
            .windows(name.len())
            .any(|row| row.iter().eq(name.iter().copied()))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn skill(n: u128, name: &str, description: &str, body: &str) -> OfferedSkill {
        OfferedSkill {
            id: SkillId(Uuid::from_u128(n)),
            version: 1,
            name: name.into(),
            description: description.into(),
            body: Some(body.into()),
            is_general: false,
        }
    }

    fn known() -> KnownSkills {
        let manner = OfferedSkill {
            is_general: true,
            ..skill(
                4,
                "keep-it-short",
                "How this person wants to be answered.",
                "less",
            )
        };
        KnownSkills::new(vec![
            manner,
            skill(
                3,
                "weekly-report",
                "Writes the weekly report of the team.",
                "Sum up tickets; invoice numbers last.",
            ),
            skill(
                2,
                "release-notes",
                "Writes release notes for customers.",
                "Read the changelog of the team.",
            ),
            skill(
                1,
                "invoice-check",
                "Checks invoices of suppliers against orders.",
                "Compare the sums.",
            ),
        ])
    }

    fn fits(asked: &str) -> Vec<(u128, bool)> {
        let known = known();
        let fits = known.fitting(asked).into_iter();
        fits.map(|fit| (fit.skill.id.0.as_u128(), fit.is_clear))
            .collect()
    }

    #[test]
    fn what_fits_is_found_and_one_that_clearly_fits_is_told() {
        for (asked, expected) in [
            ("What is the capital of France?", &[(4, true)][..]),
            (
                "Please write the weekly report for my team.",
                &[(4, true), (3, true), (2, false)],
            ),
            ("Use release-notes for this.", &[(4, true), (2, true)]),
            ("Check this supplier's invoice!", &[(4, true), (1, true)]),
            // One word is no clear sign.
            ("Are there customers in Spain?", &[(4, true), (2, false)]),
        ] {
            assert_eq!(fits(asked), expected, "{asked}");
        }
        assert!(KnownSkills::default().fitting("weekly report").is_empty());
    }

    #[test]
    fn a_thousand_skills_are_searched_in_milliseconds() {
        let body = "Look at every line and compare it with the order. ".repeat(80);
        let one = |n: u128| {
            let description = format!("Handles documents of department {n} and its budget.");
            skill(n, &format!("department-{n}"), &description, &body)
        };
        let known = KnownSkills::new((0..1_000).map(one).collect());
        known.make_index();
        let began = std::time::Instant::now();
        let fits = known.fitting("Handle the documents of department 711, please.");
        let took = began.elapsed();
        assert_eq!(fits[0].skill.id.0.as_u128(), 711);
        assert!(took.as_millis() < 500, "{took:?}");
    }
}
