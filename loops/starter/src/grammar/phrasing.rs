//! Wishes in many words: what users say of an answer and of the next one, put together from parts. Some
//! parts are never trained on, so that the measures can use them.

use super::question::surface;
use super::style::{Form, Greeting, Length, Register, Wish};
use crate::rng::Rng;

/// Which parts are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    Trained,
    Unseen,
}

/// What the answer was, and what to do instead.
struct Said {
    faults: &'static [&'static str],
    orders: &'static [&'static str],
}

/// One in so many parts of a list is never trained on.
const UNSEEN_ONE_IN: usize = 4;

const FAULT_FRAMES: [&str; 8] = [
    "{}",
    "that was {}",
    "that is {}",
    "your answer is {}",
    "this is {} for me",
    "hmm, {}",
    "sorry, that was {}",
    "i find that {}",
];
const ORDER_FRAMES: [&str; 12] = [
    "{}",
    "{}",
    "please {}",
    "{} please",
    "{}, please",
    "can you {}",
    "could you {}",
    "i want you to {}",
    "{} next time",
    "{} from now on",
    "you should {}",
    "next time {}",
];

const SHORT_LENGTH: Said = Said {
    faults: &[
        "too long",
        "too wordy",
        "far too long",
        "way too much text",
        "too much to read",
        "much too long",
        "longer than I need",
        "so many words",
    ],
    orders: &[
        "keep it short",
        "be brief",
        "shorten it",
        "use fewer words",
        "be shorter",
        "get to the point",
        "give me a short answer",
        "make it shorter",
        "say less",
        "cut it down",
        "answer in a few words",
        "keep your answers short",
    ],
};
const LONG_LENGTH: Said = Said {
    faults: &[
        "too short",
        "not enough",
        "too brief",
        "far too short",
        "a bit thin",
        "very short",
        "less than I need",
        "missing details",
    ],
    orders: &[
        "give me more detail",
        "explain more",
        "say more",
        "write more",
        "be longer",
        "tell me more about it",
        "give a longer answer",
        "go into detail",
        "add more details",
        "make it longer",
        "write a long answer",
        "explain it in depth",
    ],
};
const BULLETED_FORM: Said = Said {
    faults: &[
        "hard to read",
        "a wall of text",
        "not a list",
        "badly laid out",
    ],
    orders: &[
        "use a list",
        "make a list",
        "use bullets",
        "write it as a list",
        "use bullet points",
        "answer with a list",
        "give me bullets",
        "list it",
        "put it in a list",
        "turn it into bullet points",
    ],
};
const PLAIN_FORM: Said = Said {
    faults: &[
        "too many bullets",
        "a list and I dislike lists",
        "not plain text",
        "chopped up",
    ],
    orders: &[
        "leave out the list",
        "do not use lists",
        "write plain text",
        "write sentences",
        "do not use bullets",
        "stop using lists",
        "use plain text",
        "write full sentences",
    ],
};
const FORMAL_REGISTER: Said = Said {
    faults: &["too casual", "rude", "too relaxed", "not polite"],
    orders: &[
        "be polite",
        "be more formal",
        "sound formal",
        "use a polite tone",
        "be formal",
        "speak politely",
        "be serious",
        "write formally",
    ],
};
const CASUAL_REGISTER: Said = Said {
    faults: &["too formal", "stiff", "too polite", "so serious"],
    orders: &[
        "be casual",
        "relax",
        "sound casual",
        "be less formal",
        "talk like a friend",
        "loosen up",
        "be friendly",
        "use a casual tone",
    ],
};
const WITH_GREETING: Said = Said {
    faults: &["cold", "missing a hello", "abrupt", "missing a greeting"],
    orders: &[
        "say hello",
        "greet me",
        "begin with a greeting",
        "say hi first",
        "start with hello",
        "always greet me",
        "say hello before you answer",
        "open with a greeting",
    ],
};
const WITHOUT_GREETING: Said = Said {
    faults: &[
        "too much hello",
        "full of greetings",
        "greeting me again",
        "starting with a hello",
    ],
    orders: &[
        "do not greet me",
        "skip the greeting",
        "leave the hello out",
        "stop greeting me",
        "drop the greeting",
        "do not say hello",
        "answer without a greeting",
        "start right away",
    ],
};

fn said(wish: Wish) -> Said {
    match wish {
        Wish::Length(Length::Short) => SHORT_LENGTH,
        Wish::Length(Length::Long) => LONG_LENGTH,
        Wish::Form(Form::Bulleted) => BULLETED_FORM,
        Wish::Form(Form::Plain) => PLAIN_FORM,
        Wish::Register(Register::Formal) => FORMAL_REGISTER,
        Wish::Register(Register::Casual) => CASUAL_REGISTER,
        Wish::Greeting(Greeting::With) => WITH_GREETING,
        Wish::Greeting(Greeting::Without) => WITHOUT_GREETING,
    }
}

fn one(of: &'static [&'static str], parts: Parts, rng: &mut Rng) -> &'static str {
    let is_unseen = |at: usize| at % UNSEEN_ONE_IN == UNSEEN_ONE_IN - 1;
    let left = of.iter().enumerate();
    let left = left.filter(|(at, _)| is_unseen(*at) == (parts == Parts::Unseen));
    let left: Vec<&'static str> = left.map(|(_, part)| *part).collect();
    let chosen: &&str = rng.pick(&left);
    chosen
}

/// What some user says who wants this.
pub(super) fn words(wish: Wish, parts: Parts, rng: &mut Rng) -> String {
    let said = said(wish);
    let fault = |rng: &mut Rng| {
        rng.word(&FAULT_FRAMES)
            .replace("{}", one(said.faults, parts, rng))
    };
    let order = |rng: &mut Rng| {
        rng.word(&ORDER_FRAMES)
            .replace("{}", one(said.orders, parts, rng))
    };
    let mut text = match rng.weighted(&[0.3, 0.45, 0.25]) {
        0 => fault(rng),
        1 => order(rng),
        _ => {
            let gap = rng.word(&[", ", ". ", " - ", "; "]).to_owned();
            format!("{}{gap}{}", fault(rng), order(rng))
        }
    };
    if rng.chance(0.5) {
        text.push_str(rng.word(&[".", "!", ".", "..."]));
    }
    surface(&text, rng)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_part_is_both_trained_on_and_kept() {
        let mut rng = Rng::new(1);
        for wish in Wish::ALL {
            for list in [said(wish).faults, said(wish).orders] {
                let mut seen = |parts| -> HashSet<&str> {
                    (0..400).map(|_| one(list, parts, &mut rng)).collect()
                };
                let (trained, unseen) = (seen(Parts::Trained), seen(Parts::Unseen));
                assert!(trained.is_disjoint(&unseen));
                assert_eq!(trained.len() + unseen.len(), list.len());
            }
        }
    }
}
