//! What is compared: a person who is learned from, and controls.

/// One arm of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// The person complains where an answer is not as wished, and the server learns.
    Learning,
    /// The same person, and training is paused.
    NoTraining,
    /// The same person; training is paused, and what was said is shown in later prompts.
    Memory,
    /// The person complains of what a random other preference would.
    Shuffled,
    /// The person complains where an answer is as wished, and praises the others.
    Inverted,
    /// The person tells the wish with every question; training is paused.
    Told,
}

/// What the person does after the first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    Leaves,
    Thanks,
    Complains,
    /// The complaint is another preference's.
    ComplainsOfOther,
}

/// A person says thanks for every answer of this number that was as wished.
const THANKS_EVERY: usize = 3;

impl Arm {
    pub(super) const ALL: [Self; 6] = [
        Self::Learning,
        Self::NoTraining,
        Self::Memory,
        Self::Shuffled,
        Self::Inverted,
        Self::Told,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Learning => "learning",
            Self::NoTraining => "none",
            Self::Memory => "memory",
            Self::Shuffled => "shuffled",
            Self::Inverted => "inverted",
            Self::Told => "told",
        }
    }

    /// The arms of these names; all where there is none.
    ///
    /// # Errors
    /// A name that no arm has.
    pub(super) fn named(names: &[String]) -> Result<Vec<Self>, String> {
        let arm = |name: &String| {
            let found = Self::ALL.into_iter().find(|arm| arm.name() == name);
            let all = || Self::ALL.map(Self::name).join(", ");
            found.ok_or_else(|| format!("{name:?} is not an arm; with --model there are {}", all()))
        };
        match names.is_empty() {
            true => Ok(Self::ALL.to_vec()),
            false => names.iter().map(arm).collect(),
        }
    }

    /// Whether the train loop runs.
    pub(super) fn trains(self) -> bool {
        matches!(self, Self::Learning | Self::Shuffled | Self::Inverted)
    }

    /// What its requests say that they do with memories.
    pub(super) fn memory(self) -> &'static str {
        match self {
            Self::Memory => "full",
            _ => "off",
        }
    }

    /// What the person does after a first answer. `wished` counts the first answers that were as
    /// wished so far, this one included.
    pub(super) fn reaction(self, is_met: bool, wished: usize) -> Reaction {
        match (self, is_met) {
            (Self::Told, _) => Reaction::Leaves,
            (Self::Inverted, true) | (Self::Learning | Self::NoTraining | Self::Memory, false) => {
                Reaction::Complains
            }
            (Self::Inverted, false) => Reaction::Thanks,
            (Self::Shuffled, false) => Reaction::ComplainsOfOther,
            (_, true) if wished.is_multiple_of(THANKS_EVERY) => Reaction::Thanks,
            (_, true) => Reaction::Leaves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_react_as_their_arm_says() {
        let rows = [
            (Arm::Learning, false, 0, Reaction::Complains),
            (Arm::Learning, true, 1, Reaction::Leaves),
            (Arm::Learning, true, 3, Reaction::Thanks),
            (Arm::NoTraining, false, 0, Reaction::Complains),
            (Arm::Memory, false, 0, Reaction::Complains),
            (Arm::Memory, true, 1, Reaction::Leaves),
            (Arm::Shuffled, false, 0, Reaction::ComplainsOfOther),
            (Arm::Shuffled, true, 3, Reaction::Thanks),
            (Arm::Inverted, true, 1, Reaction::Complains),
            (Arm::Inverted, false, 0, Reaction::Thanks),
            (Arm::Told, false, 0, Reaction::Leaves),
        ];
        for (arm, is_met, wished, reaction) in rows {
            assert_eq!(arm.reaction(is_met, wished), reaction, "{arm:?} {is_met}");
        }
    }

    #[test]
    fn arms_have_names() {
        let names = ["told".to_owned(), "none".to_owned()];
        assert_eq!(Arm::named(&names), Ok(vec![Arm::Told, Arm::NoTraining]));
        assert_eq!(Arm::named(&[]).map(|all| all.len()), Ok(6));
        assert!(Arm::named(&["combined".to_owned()]).is_err());
    }
}
