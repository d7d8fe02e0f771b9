//! What a simulated user likes, how the user says so, and the scorer. A taste is read off the
//! answer's surface by its own few lines, which share nothing with the judge.
//!
//! The words do share: `wish()` is what the judge's rules turn complaints into
//! (`loops/judge/src/rules/manners.rs`), and what the built-in model was trained to follow
//! (`loops/starter/src/grammar/style.rs`); complaints and praise resemble rows of the judge's tables.
//! So whoever talks like this is understood by construction.

/// What a user likes in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taste {
    /// Bullet points.
    List,
    /// As few words as possible.
    Brief,
    /// A greeting first.
    Greeted,
    /// Running text, no bullet points.
    Prose,
    /// More than a few words.
    Detailed,
    /// No greeting.
    Ungreeted,
    /// A calm opening.
    Formal,
    /// A lively opening.
    Relaxed,
}

impl Taste {
    /// All of them.
    pub(crate) const ALL: [Self; 8] = [
        Self::List,
        Self::Brief,
        Self::Greeted,
        Self::Prose,
        Self::Detailed,
        Self::Ungreeted,
        Self::Formal,
        Self::Relaxed,
    ];

    /// Its name for the summary.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Brief => "brief",
            Self::Greeted => "greeted",
            Self::Prose => "prose",
            Self::Detailed => "detailed",
            Self::Ungreeted => "ungreeted",
            Self::Formal => "formal",
            Self::Relaxed => "relaxed",
        }
    }

    /// Whether no answer is to both tastes, the same taste twice among them: such a pair is none.
    pub(crate) fn excludes(self, other: Self) -> bool {
        let kind = |taste| match taste {
            Self::List | Self::Prose => 0,
            Self::Brief | Self::Detailed => 1,
            Self::Greeted | Self::Ungreeted => 2,
            Self::Formal | Self::Relaxed => 3,
        };
        kind(self) == kind(other)
    }

    /// Whether an answer is to this taste.
    pub(crate) fn likes(self, answer: &str) -> bool {
        let bullets = answer
            .lines()
            .filter(|line| line.trim_start().starts_with("- "))
            .count();
        let words = answer.split_whitespace().count();
        let mut spoken = answer.split(|c: char| !c.is_alphabetic());
        let first = spoken.find(|w| !w.is_empty()).unwrap_or_default();
        let greets = ["hello", "hi", "hey", "good", "greetings", "welcome"]
            .contains(&first.to_lowercase().as_str());
        let mark = answer.chars().find(|c| matches!(c, '.' | '!' | '?'));
        match self {
            Self::List => bullets > 0,
            Self::Prose => bullets == 0 && words > 0,
            Self::Brief => words > 0 && words <= 9,
            Self::Detailed => words > 9,
            Self::Greeted => greets,
            Self::Ungreeted => !greets && words > 0,
            Self::Formal => mark == Some('.'),
            Self::Relaxed => mark == Some('!'),
        }
    }

    /// What the user says when an answer is not to taste.
    pub(crate) fn complaints(self) -> &'static [&'static str] {
        match self {
            Self::List => &[
                "No, I wanted that as a list.",
                "That is not what I asked for, I like bullet points.",
                "Wrong format. Can you redo it with bullets?",
                "I don't like this wall of text, use bullet points.",
            ],
            Self::Brief => &[
                "That is too long for me.",
                "No, too wordy. Keep it short.",
                "I don't want all that text, be brief.",
                "Wrong, I only asked for the short answer.",
            ],
            Self::Greeted => &[
                "That was rude, you did not even say hello.",
                "No, please greet me first.",
                "I don't like that. Say hello before you answer.",
                "Not good, where is the greeting?",
            ],
            Self::Prose => &[
                "No, I don't want a list.",
                "Wrong format, please write normal sentences.",
                "Stop using bullet points, I dislike them.",
                "That is not what I want. No bullets.",
            ],
            Self::Detailed => &[
                "That is too short for me.",
                "No, I want more detail.",
                "I don't like such short answers, tell me more.",
                "Wrong, I asked for a longer answer.",
            ],
            Self::Ungreeted => &[
                "No, please leave out the greeting.",
                "Stop greeting me every time.",
                "I don't want a hello first, just the answer.",
                "That is not what I want. No greetings.",
            ],
            Self::Formal => &[
                "That is too casual for me.",
                "No, please use a more formal tone.",
                "I don't like this sloppy tone, be more polite.",
                "Wrong tone, please be formal.",
            ],
            Self::Relaxed => &[
                "That is too stiff for me.",
                "No, be more relaxed.",
                "I don't like this formal tone, loosen up.",
                "Wrong tone, please be more casual.",
            ],
        }
    }

    /// The taste as a wish, said with a question.
    pub(crate) fn wish(self) -> &'static str {
        match self {
            Self::List => "use bullet points",
            Self::Brief => "keep it short",
            Self::Greeted => "greet me first",
            Self::Prose => "no bullets please",
            Self::Detailed => "more detail please",
            Self::Ungreeted => "no greeting please",
            Self::Formal => "use a formal tone",
            Self::Relaxed => "be more relaxed",
        }
    }

    /// What the user says when the answer is right and to taste.
    pub(crate) fn praises(self) -> &'static [&'static str] {
        &[
            "Thanks, that is just what I needed!",
            "Perfect, thank you.",
            "Great answer, I like it.",
            "Exactly right, thanks a lot.",
        ]
    }

    /// What the user says when the answer is not even right.
    pub(crate) fn corrections() -> &'static [&'static str] {
        &[
            "That is wrong.",
            "No, that's not correct.",
            "This makes no sense.",
            "That is not an answer to my question.",
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tastes_are_read_off_the_surface() {
        let rows = [
            (Taste::List, "Sure:\n- Paris", true),
            (Taste::List, "Paris - it is.", false),
            (Taste::Prose, "Paris.", true),
            (Taste::Prose, "- Paris", false),
            (Taste::Prose, "", false),
            (Taste::Brief, "Paris.", true),
            (
                Taste::Brief,
                "The capital of France is Paris, and it is a very big town.",
                false,
            ),
            (Taste::Greeted, "Hello! Paris.", true),
            (Taste::Greeted, "Paris says hello.", false),
            (Taste::Ungreeted, "Paris says hello.", true),
            (Taste::Ungreeted, "Hey! Paris.", false),
            (Taste::Ungreeted, "", false),
            (
                Taste::Detailed,
                "The capital of France is Paris, and it is a very big town.",
                true,
            ),
            (Taste::Detailed, "Paris.", false),
            (Taste::Formal, "Certainly. Paris!", true),
            (Taste::Formal, "", false),
            (Taste::Relaxed, "Sure! Paris.", true),
            (Taste::Relaxed, "Of course. Paris.", false),
        ];
        for (taste, answer, likes) in rows {
            assert_eq!(taste.likes(answer), likes, "{taste:?} {answer:?}");
        }
        assert!(Taste::List.excludes(Taste::Prose) && Taste::Brief.excludes(Taste::Brief));
        assert!(!Taste::List.excludes(Taste::Greeted));
    }
}
