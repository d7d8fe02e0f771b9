//! Which skills a prompt shows, and how much of each.
//!
//! The first turn of a conversation is shown names and descriptions of a few that fit, and the body of one that clearly fits,
//! where there is place for it. A later turn is shown what the turn that it continues was shown, and with its newest message at
//! most one skill more. Earlier messages change only where a skill was paused, changed or removed.

use hone_domain::{Message, Role, ShownSkill, skill_text};
use hone_memory::{Budget, Fit, KnownSkills, OfferedSkill};

/// Most skills that the beginning of a conversation is shown, beside how the person wants to be answered.
const START_MAX: usize = 3;
/// Most skills that a later message brings.
const LATER_MAX: usize = 1;

/// What a request is shown, and where; `before` is what the turn that it continues was shown.
pub(super) fn chosen(
    known: &KnownSkills,
    messages: &[Message],
    before: Option<&[ShownSkill]>,
    mut budget: Budget<'_>,
) -> Vec<ShownSkill> {
    if known.is_empty() {
        return Vec::new();
    }
    let mut users = messages
        .iter()
        .enumerate()
        .filter(|(_, message)| message.role == Role::User);
    let mut shown = Vec::new();
    let Some(before) = before else {
        let Some((first, message)) = users.next() else {
            return shown;
        };
        let asked = users.next_back().map_or(message, |(_, last)| last);
        let fits = known.fitting(&asked.content).into_iter();
        let mut matches = 0;
        for fit in fits {
            matches += usize::from(!fit.skill.is_general);
            if matches > START_MAX {
                break;
            }
            shown.extend(taken(fit, first, &mut budget));
        }
        return shown;
    };
    for one in before {
        let fit = known.get(one.id).map(|skill| Fit {
            skill,
            is_clear: one.is_whole,
        });
        shown.extend(fit.and_then(|fit| taken(fit, one.at, &mut budget)));
    }
    let last = messages.iter().enumerate().next_back();
    let Some((at, newest)) = last.filter(|(_, message)| message.role == Role::User) else {
        return shown;
    };
    // A request that is sent again is shown what it was shown.
    if before.iter().any(|one| one.at == at) {
        return shown;
    }
    let is_new = |fit: &Fit<'_>| {
        let of = |one: &&ShownSkill| one.id == fit.skill.id;
        let mut earlier = before.iter().filter(of).peekable();
        earlier.peek().is_none() || (fit.is_clear && !earlier.any(|one| one.is_whole))
    };
    let fits = known.fitting(&newest.content).into_iter().filter(is_new);
    let new: Vec<ShownSkill> = fits
        .filter_map(|fit| taken(fit, at, &mut budget))
        .take(LATER_MAX)
        .collect();
    shown.extend(new);
    shown
}

/// A skill as far as there is place for it.
fn taken(fit: Fit<'_>, at: usize, budget: &mut Budget<'_>) -> Option<ShownSkill> {
    let skill = fit.skill;
    let forms = [fit.is_clear && skill.body.is_some(), false];
    for is_whole in forms {
        let takes = (budget.tokens)(&format!("{}\n", text(skill, is_whole)));
        if takes <= budget.left {
            budget.left -= takes;
            let (id, version) = (skill.id, skill.version);
            return Some(ShownSkill {
                id,
                version,
                at,
                is_whole,
            });
        }
    }
    None
}

fn text(skill: &OfferedSkill, is_whole: bool) -> String {
    let body = skill.body.as_deref().filter(|_| is_whole);
    skill_text(&skill.name, &skill.description, body)
}

/// The words of a shown skill.
pub(super) fn text_of(known: &KnownSkills, shown: &ShownSkill) -> Option<String> {
    known.get(shown.id).map(|skill| text(skill, shown.is_whole))
}

/// Whether the body of a shown skill says something.
pub(super) fn says(known: &KnownSkills, shown: &[ShownSkill], words: &str) -> bool {
    let whole = shown.iter().filter(|one| one.is_whole);
    let mut bodies = whole.filter_map(|one| known.get(one.id)?.body.as_deref());
    bodies.any(|body| body.contains(words))
}

#[cfg(test)]
mod tests {
    use hone_domain::SkillId;
    use uuid::Uuid;

    use super::*;

    fn skill(n: u128, name: &str, description: &str) -> OfferedSkill {
        OfferedSkill {
            id: SkillId(Uuid::from_u128(n)),
            version: 1,
            name: name.into(),
            description: description.into(),
            body: Some(format!("The body of {name}.").into()),
            is_general: false,
        }
    }

    fn known() -> KnownSkills {
        KnownSkills::new(vec![
            OfferedSkill {
                is_general: true,
                ..skill(9, "keep-it-short", "How to answer.")
            },
            skill(2, "weekly-report", "Writes the weekly report of a team."),
            skill(1, "invoice-check", "Checks an invoice of a supplier."),
        ])
    }

    fn talk(texts: &[&str]) -> Vec<Message> {
        let role = |n| match n % 2 {
            0 => Role::User,
            _ => Role::Assistant,
        };
        let all = texts.iter().enumerate();
        all.map(|(n, text)| Message::text(role(n), *text)).collect()
    }

    fn shown(
        messages: &[Message],
        before: Option<&[ShownSkill]>,
        left: usize,
    ) -> Vec<(u128, usize, bool)> {
        let budget = Budget {
            left,
            tokens: &|text| text.len(),
        };
        let all = chosen(&known(), messages, before, budget).into_iter();
        all.map(|one| (one.id.0.as_u128(), one.at, one.is_whole))
            .collect()
    }

    fn before(shown: &[(u128, usize, bool)]) -> Vec<ShownSkill> {
        let one = |&(n, at, is_whole): &(u128, usize, bool)| ShownSkill {
            id: SkillId(Uuid::from_u128(n)),
            version: 1,
            at,
            is_whole,
        };
        shown.iter().map(one).collect()
    }

    #[test]
    fn a_body_is_shown_where_it_clearly_fits_and_has_place() {
        let asked = talk(&["Write the weekly report for my team."]);
        assert_eq!(shown(&asked, None, 1_000), [(9, 0, true), (2, 0, true)]);
        // A body that does not fit leaves name and description.
        assert_eq!(shown(&asked, None, 130), [(9, 0, true), (2, 0, false)]);
        assert_eq!(shown(&asked, None, 70), [(9, 0, true)]);
        assert_eq!(shown(&asked, None, 0), []);
        let other = talk(&["What is the weather like?"]);
        assert_eq!(shown(&other, None, 1_000), [(9, 0, true)]);
        let whole = skill_text("a", "b \n c", Some(" d\ne\n"));
        assert_eq!(whole, "Skill a: b c\nd\ne");
    }

    #[test]
    fn a_conversation_keeps_its_skills_and_gets_one_more() {
        let asked = talk(&[
            "Is there a report?",
            "Yes.",
            "Now check the invoice of the supplier.",
        ]);
        let start = shown(&asked[..1], None, 1_000);
        assert_eq!(start, [(9, 0, true), (2, 0, false)]);
        let later = shown(&asked, Some(&before(&start)), 1_000);
        assert_eq!(later, [(9, 0, true), (2, 0, false), (1, 2, true)]);
        // Sent again.
        assert_eq!(shown(&asked, Some(&before(&later)), 1_000), later);
        // What was shown by name is shown whole once it is clearly meant.
        let meant = talk(&[
            "Is there a report?",
            "Yes.",
            "Then write the weekly report!",
        ]);
        let whole = shown(&meant, Some(&before(&start)), 1_000);
        assert_eq!(whole, [(9, 0, true), (2, 0, false), (2, 2, true)]);
        // What was removed is gone, and a skill that was unknown at the start comes once.
        let gone = before(&[(7, 0, true), (2, 0, true)]);
        assert_eq!(shown(&asked[..1], Some(&gone), 1_000), [(2, 0, true)]);
        assert_eq!(shown(&asked, Some(&before(&[])), 1_000), [(9, 2, true)]);
        let tool = [
            asked.clone(),
            vec![Message::text(Role::Tool, "invoice of a supplier")],
        ]
        .concat();
        assert_eq!(shown(&tool, Some(&before(&start)), 1_000), start);
    }

    #[test]
    fn what_a_body_says_is_known() {
        let all = before(&[(2, 0, true), (1, 0, false)]);
        assert!(says(&known(), &all, "body of weekly-report"));
        assert!(!says(&known(), &all, "body of invoice-check"));
        assert_eq!(
            text_of(&known(), &all[1]).as_deref(),
            Some("Skill invoice-check: Checks an invoice of a supplier.")
        );
    }
}
