//! Which conversations the model sees, and behind what.

use crate::grammar::{Dialogues, Grammar, Parts, Wish};
use crate::noise;
use crate::rng::Rng;
use crate::tokens::{ChatEncoder, Row};

/// Short system prompts as chat programs send them.
const SHORT_SYSTEMS: [&str; 8] = [
    "You are a helpful assistant.",
    "You are Hone, a helpful assistant.",
    "You are a friendly assistant. Answer the user's questions.",
    "Be helpful.",
    "You are an assistant. Be honest and kind.",
    "Answer as well as you can.",
    "You are a chat bot for everyday questions.",
    "Help the user.",
];

/// Share of rows whose system prompt says how to answer; of those that are not behind noise.
const STANDING: f64 = 0.12;

/// A short system prompt that says how to answer; none if it would be empty.
pub(crate) fn system_prompt(
    introduction: Option<&str>,
    standing: &[Wish],
    rng: &mut Rng,
) -> Option<String> {
    let wishes = standing.iter().map(|wish| *rng.pick(wish.standing()));
    let sentences: Vec<&str> = introduction.into_iter().chain(wishes).collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// How much noise stands before the dialogues.
#[derive(Clone, Copy, Debug)]
pub struct NoiseMix {
    /// Share of rows behind noise.
    pub share: f64,
    /// Fewest and most characters of it.
    pub characters: (usize, usize),
}

/// A seeded series of training rows.
#[derive(Debug)]
pub struct Rows<'g> {
    encoder: &'g ChatEncoder,
    dialogues: Dialogues<'g>,
    seed: u64,
}

impl<'g> Rows<'g> {
    /// Rows from the dialogues of this grammar.
    pub fn new(grammar: &'g Grammar, encoder: &'g ChatEncoder, seed: u64) -> Self {
        Self {
            encoder,
            dialogues: grammar.dialogues(seed),
            seed,
        }
    }

    /// Rows in which people say in many words how they want to be answered.
    #[must_use]
    pub fn freely(mut self, share: f64) -> Self {
        self.dialogues = self.dialogues.freely(share, Parts::Trained);
        self
    }

    /// The row with this number: the same for the same seed, number and mix.
    pub fn row(&self, number: u64, mix: NoiseMix) -> Row {
        let mut rng = Rng::at(self.seed, number);
        if rng.chance(mix.share) {
            let characters = rng.between(mix.characters.0, mix.characters.1);
            let system = noise::text(noise::Split::Trained, characters, &mut rng);
            // The noise costs as much as the dialogue, so one noise serves a long conversation.
            let turns = if rng.chance(0.3) {
                rng.between(1, 3)
            } else {
                rng.between(4, 9)
            };
            return self.encoder.row(
                Some(&system),
                &self.dialogues.of_turns(turns, &[], &mut rng),
            );
        }
        let turns = if rng.chance(0.4) {
            1
        } else {
            rng.between(2, 6)
        };
        let standing = if rng.chance(STANDING) {
            Wish::several(&mut rng)
        } else {
            Vec::new()
        };
        let dialogue = self.dialogues.of_turns(turns, &standing, &mut rng);
        let introduced = rng.chance(if standing.is_empty() { 0.3 } else { 0.5 });
        let introduction = introduced.then(|| *rng.pick(&SHORT_SYSTEMS));
        let system = system_prompt(introduction, &standing, &mut rng);
        self.encoder.row(system.as_deref(), &dialogue)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::tokens::train_tokenizer;

    #[test]
    fn rows_are_decided_by_seed_and_number_and_noise_comes_in_its_share() {
        let grammar = Grammar::new();
        let encoder = ChatEncoder::new(&train_tokenizer(&grammar, 1).unwrap()).unwrap();
        let rows = Rows::new(&grammar, &encoder, 3);
        let mix = NoiseMix {
            share: 0.25,
            characters: (2_000, 2_500),
        };
        let made: Vec<Row> = (0..400).map(|number| rows.row(number, mix)).collect();
        let again = Rows::new(&grammar, &encoder, 3);
        assert_eq!(made[7], again.row(7, mix));
        assert_ne!(made[7], Rows::new(&grammar, &encoder, 4).row(7, mix));
        let noisy = made.iter().filter(|row| row.learned[0] > 500).count();
        assert!(
            (60..140).contains(&noisy),
            "{noisy} of 400 rows are behind noise"
        );
        for row in made {
            assert!(!row.learned.is_empty());
            assert!(
                row.learned
                    .iter()
                    .all(|at| *at > 0 && *at < row.tokens.len())
            );
        }
    }
}
