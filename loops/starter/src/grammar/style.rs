//! How an answer is said: four independent choices, their words, and the words users ask them with.

use crate::rng::Rng;

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Length {
    Short,
    Long,
}

/// Running text or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    Plain,
    Bulleted,
}

/// The tone of the opening words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    Formal,
    Casual,
}

/// Whether the answer greets first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Greeting {
    With,
    Without,
}

/// One way of saying an answer: a point in the product of the four choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Style {
    pub length: Length,
    pub form: Form,
    pub register: Register,
    pub greeting: Greeting,
}

/// One choice a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    Length(Length),
    Form(Form),
    Register(Register),
    Greeting(Greeting),
}

/// Which opening words fit what is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tone {
    Answer,
    Talk,
    Sorry,
}

impl Style {
    /// All sixteen styles.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..16u8).map(|bits| Self {
            length: if bits & 1 == 0 {
                Length::Short
            } else {
                Length::Long
            },
            form: if bits & 2 == 0 {
                Form::Plain
            } else {
                Form::Bulleted
            },
            register: if bits & 4 == 0 {
                Register::Formal
            } else {
                Register::Casual
            },
            greeting: if bits & 8 == 0 {
                Greeting::Without
            } else {
                Greeting::With
            },
        })
    }

    /// A style as the training data mixes them: each choice on its own, none rare.
    pub fn sample(rng: &mut Rng) -> Self {
        Self {
            length: if rng.chance(0.5) {
                Length::Long
            } else {
                Length::Short
            },
            form: if rng.chance(0.4) {
                Form::Bulleted
            } else {
                Form::Plain
            },
            register: if rng.chance(0.5) {
                Register::Casual
            } else {
                Register::Formal
            },
            greeting: if rng.chance(0.4) {
                Greeting::With
            } else {
                Greeting::Without
            },
        }
    }

    /// The same style with one choice replaced.
    #[must_use]
    pub fn with(self, wish: Wish) -> Self {
        match wish {
            Wish::Length(length) => Self { length, ..self },
            Wish::Form(form) => Self { form, ..self },
            Wish::Register(register) => Self { register, ..self },
            Wish::Greeting(greeting) => Self { greeting, ..self },
        }
    }

    /// The same style with several choices replaced.
    #[must_use]
    pub fn with_all(self, wishes: &[Wish]) -> Self {
        wishes.iter().fold(self, |style, wish| style.with(*wish))
    }

    /// Whether this style is as the user asked.
    pub fn meets(self, wish: Wish) -> bool {
        self.with(wish) == self
    }
}

impl Wish {
    /// All eight wishes.
    pub const ALL: [Self; 8] = [
        Self::Length(Length::Short),
        Self::Length(Length::Long),
        Self::Form(Form::Plain),
        Self::Form(Form::Bulleted),
        Self::Register(Register::Formal),
        Self::Register(Register::Casual),
        Self::Greeting(Greeting::With),
        Self::Greeting(Greeting::Without),
    ];

    /// The ways users say this wish.
    pub fn wordings(self) -> &'static [&'static str] {
        match self {
            Self::Length(Length::Short) => &[
                "shorter please",
                "keep it short",
                "that is too long",
                "make it brief",
            ],
            Self::Length(Length::Long) => &[
                "more detail please",
                "tell me more",
                "that is too short",
                "longer please",
            ],
            Self::Form(Form::Bulleted) => &[
                "as a list please",
                "use bullet points",
                "make it a list",
                "bullets please",
            ],
            Self::Form(Form::Plain) => &[
                "as plain text please",
                "no list please",
                "no bullets please",
                "write it in a line",
            ],
            Self::Register(Register::Formal) => {
                &["more formal please", "be more polite", "use a formal tone"]
            }
            Self::Register(Register::Casual) => &[
                "more casual please",
                "be more relaxed",
                "less formal please",
            ],
            Self::Greeting(Greeting::With) => &[
                "greet me first",
                "say hello first please",
                "start with a greeting",
            ],
            Self::Greeting(Greeting::Without) => &[
                "no greeting please",
                "skip the hello",
                "leave out the greeting",
            ],
        }
    }

    /// How a system prompt says this wish for all answers.
    pub fn standing(self) -> &'static [&'static str] {
        match self {
            Self::Length(Length::Short) => &["Keep answers short.", "Be brief."],
            Self::Length(Length::Long) => &["Give detailed answers.", "Explain in detail."],
            Self::Form(Form::Bulleted) => &["Use bullet points.", "Answer with lists."],
            Self::Form(Form::Plain) => &["Do not use lists.", "Write plain text."],
            Self::Register(Register::Formal) => &["Use a formal tone.", "Be polite."],
            Self::Register(Register::Casual) => &["Use a casual tone.", "Be relaxed."],
            Self::Greeting(Greeting::With) => &["Greet the user first.", "Start with a greeting."],
            Self::Greeting(Greeting::Without) => &["Do not greet.", "Skip the greeting."],
        }
    }

    /// One to three wishes for different choices, in any order.
    pub fn several(rng: &mut Rng) -> Vec<Self> {
        let count = 1 + rng.weighted(&[0.5, 0.35, 0.15]);
        let mut open = Self::ALL.to_vec();
        let choose = |_| {
            let wish = Self::one_of(&open, rng);
            open.retain(|other| std::mem::discriminant(other) != std::mem::discriminant(&wish));
            wish
        };
        (0..count).map(choose).collect()
    }

    /// A wish that the given style does not meet yet, so that asking for it makes sense.
    pub fn against(style: Style, rng: &mut Rng) -> Self {
        let open: Vec<Self> = Self::ALL
            .into_iter()
            .filter(|wish| !style.meets(*wish))
            .collect();
        Self::one_of(&open, rng)
    }

    /// Wishes for a length are asked twice as often: they are the hardest to learn.
    fn one_of(wishes: &[Self], rng: &mut Rng) -> Self {
        let weight = |wish: &Self| match wish {
            Self::Length(_) => 2.0,
            _ => 1.0,
        };
        wishes[rng.weighted(&wishes.iter().map(weight).collect::<Vec<f64>>())]
    }
}

/// The greetings of a register.
pub(super) fn greetings(register: Register) -> &'static [&'static str] {
    match register {
        Register::Formal => &["Good day.", "Greetings."],
        Register::Casual => &["Hey!", "Hi there!"],
    }
}

/// The opening words of a register that fit a tone.
pub(super) fn openers(register: Register, tone: Tone) -> &'static [&'static str] {
    match (register, tone) {
        (Register::Formal, Tone::Answer) => &["Certainly.", "Of course."],
        (Register::Casual, Tone::Answer) => &["Sure!", "No problem!"],
        (Register::Formal, Tone::Talk) => &["Very well.", "Indeed."],
        (Register::Casual, Tone::Talk) => &["Cool!", "Awesome!"],
        (Register::Formal, Tone::Sorry) => &["I apologise.", "I regret that."],
        (Register::Casual, Tone::Sorry) => &["Oops!", "Sorry!"],
    }
}

/// Puts greeting and opening words before a body.
pub(super) fn dress(style: Style, tone: Tone, body: &str, rng: &mut Rng) -> String {
    let opener = rng.word(openers(style.register, tone));
    let gap = if style.form == Form::Bulleted {
        "\n"
    } else {
        " "
    };
    match style.greeting {
        Greeting::With => {
            format!(
                "{} {opener}{gap}{body}",
                rng.word(greetings(style.register))
            )
        }
        Greeting::Without => format!("{opener}{gap}{body}"),
    }
}

/// An answer taken apart by its surface alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undressed<'a> {
    pub register: Register,
    pub greeting: Greeting,
    pub form: Form,
    pub tone: Tone,
    pub body: &'a str,
}

/// Takes greeting and opening words off. None if the opening words are not ours, or do not fit
/// the greeting.
pub(super) fn undress(answer: &str) -> Option<Undressed<'_>> {
    for register in [Register::Formal, Register::Casual] {
        let greeted = greetings(register)
            .iter()
            .find_map(|greeting| answer.strip_prefix(greeting)?.strip_prefix(' '));
        let greeting = if greeted.is_some() {
            Greeting::With
        } else {
            Greeting::Without
        };
        let rest = greeted.unwrap_or(answer);
        for tone in [Tone::Answer, Tone::Talk, Tone::Sorry] {
            let Some(rest) = openers(register, tone)
                .iter()
                .find_map(|opener| rest.strip_prefix(opener))
            else {
                continue;
            };
            let form = if rest.starts_with("\n- ") {
                Form::Bulleted
            } else {
                Form::Plain
            };
            let body = rest.strip_prefix(['\n', ' '])?;
            return Some(Undressed {
                register,
                greeting,
                form,
                tone,
                body,
            });
        }
    }
    None
}
