//! What a simulated user likes, how the user says so, and the scorer. A taste is read off the
//! answer's surface by its own few lines; it knows nothing of the judge's rules, and the judge
//! knows nothing of these words.

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
}

impl Taste {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::List, Self::Brief, Self::Greeted, Self::Prose];

    /// Its name for the summary.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Brief => "brief",
            Self::Greeted => "greeted",
            Self::Prose => "prose",
        }
    }

    /// Whether an answer is to this taste.
    pub(crate) fn likes(self, answer: &str) -> bool {
        let bullets = answer
            .lines()
            .filter(|line| line.trim_start().starts_with("- "))
            .count();
        let words = answer.split_whitespace().count();
        let first = answer
            .split(|c: char| !c.is_alphabetic())
            .find(|w| !w.is_empty());
        match self {
            Self::List => bullets > 0,
            Self::Prose => bullets == 0 && words > 0,
            Self::Brief => words > 0 && words <= 9,
            Self::Greeted => {
                let opener = first.unwrap_or_default().to_lowercase();
                ["hello", "hi", "hey", "good", "greetings", "welcome"].contains(&opener.as_str())
            }
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
        }
    }

    /// The taste as a wish, said with a question.
    pub(crate) fn wish(self) -> &'static str {
        match self {
            Self::List => "use bullet points",
            Self::Brief => "keep it short",
            Self::Greeted => "greet me first",
            Self::Prose => "no bullets please",
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
        ];
        for (taste, answer, likes) in rows {
            assert_eq!(taste.likes(answer), likes, "{taste:?} {answer:?}");
        }
    }
}
