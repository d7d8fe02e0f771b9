//! What people prefer, and the few lines per preference that tell whether an answer is as wished.
//! The checks share nothing with the judge.

/// What one person wants of every answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preference {
    Short,
    Bullets,
    NoLists,
    Spanish,
    Name,
    Metric,
    Formal,
    AnswerFirst,
    Ending,
    Lowercase,
    NoExclamation,
    Steps,
    Emoji,
    Long,
}

/// A short answer has at most this many words, a long one at least that many.
const SHORT_WORDS_MAX: usize = 25;
const LONG_WORDS_MIN: usize = 120;
/// List lines that make a list.
const LIST_LINES_MIN: usize = 2;
/// Share of Spanish function words from which on a text is Spanish; running Spanish has about 0.4.
const SPANISH_SHARE_MIN: f64 = 0.2;

impl Preference {
    pub(super) const ALL: [Self; 14] = [
        Self::Short,
        Self::Bullets,
        Self::NoLists,
        Self::Spanish,
        Self::Name,
        Self::Metric,
        Self::Formal,
        Self::AnswerFirst,
        Self::Ending,
        Self::Lowercase,
        Self::NoExclamation,
        Self::Steps,
        Self::Emoji,
        Self::Long,
    ];

    /// Its key in the phrase bank.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Bullets => "bullets",
            Self::NoLists => "no_lists",
            Self::Spanish => "spanish",
            Self::Name => "name",
            Self::Metric => "metric",
            Self::Formal => "formal",
            Self::AnswerFirst => "answer_first",
            Self::Ending => "ending",
            Self::Lowercase => "lowercase",
            Self::NoExclamation => "no_exclamation",
            Self::Steps => "steps",
            Self::Emoji => "emoji",
            Self::Long => "long",
        }
    }

    /// The preference of that name.
    ///
    /// # Errors
    /// There is none; the sentence lists all.
    pub(super) fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            format!("{name:?} is not a preference; there are {all}")
        })
    }

    /// Whether a question can show the preference: units show in answers about quantities only.
    pub(super) fn suits(self, question: &str) -> bool {
        self != Self::Metric || asks_for_quantity(question)
    }

    /// Whether the answer is as this person wishes. An empty answer never is.
    pub(super) fn is_met(self, answer: &str) -> bool {
        let answer = answer.trim();
        if answer.is_empty() {
            return false;
        }
        match self {
            Self::Short => word_count(answer) <= SHORT_WORDS_MAX,
            Self::Bullets => bullet_lines(answer) >= LIST_LINES_MIN,
            Self::NoLists => bullet_lines(answer) + numbered_lines(answer) == 0,
            Self::Spanish => spanish_share(answer) >= SPANISH_SHARE_MIN,
            Self::Name => words(answer).any(|word| word == "Sam"),
            Self::Metric => is_metric(answer),
            Self::Formal => begins(answer, "dear reader"),
            Self::AnswerFirst => begins(answer, "in short"),
            Self::Ending => answer.trim_end_matches(['*', '_', '"', ' ']).ends_with('?'),
            Self::Lowercase => {
                answer.chars().any(char::is_lowercase) && !answer.chars().any(char::is_uppercase)
            }
            Self::NoExclamation => !answer.contains(['!', '¡']),
            Self::Steps => numbered_lines(answer) >= LIST_LINES_MIN,
            Self::Emoji => answer.chars().any(is_emoji),
            Self::Long => word_count(answer) >= LONG_WORDS_MIN,
        }
    }
}

/// Words: what stands between spaces and has a letter or a digit.
pub(super) fn word_count(text: &str) -> usize {
    let has_letter = |word: &&str| word.chars().any(char::is_alphanumeric);
    text.split_whitespace().filter(has_letter).count()
}

/// Lines that begin with a bullet.
pub(super) fn bullet_lines(text: &str) -> usize {
    let is_bullet = |line: &&str| {
        let mut chars = line.trim_start().chars();
        let mark = chars.next().is_some_and(|c| "-*•–—◦▪".contains(c));
        mark && chars.next().is_some_and(char::is_whitespace)
    };
    text.lines().filter(is_bullet).count()
}

/// Lines that begin with a number, as in `1.` or `2)`.
pub(super) fn numbered_lines(text: &str) -> usize {
    let is_numbered = |line: &&str| {
        let line = line.trim_start().trim_start_matches('*');
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.len() < line.len() && rest.starts_with(['.', ')'])
    };
    text.lines().filter(is_numbered).count()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '\'');
    words.filter(|word| !word.is_empty())
}

fn begins(answer: &str, opening: &str) -> bool {
    let bare = answer.trim_start_matches(['*', '#', ' ']).to_lowercase();
    bare.starts_with(opening)
}

/// Function words of Spanish that English does not have.
const SPANISH: [&str; 58] = [
    "de", "la", "que", "el", "en", "y", "los", "se", "del", "las", "un", "por", "con", "una", "su",
    "para", "es", "al", "lo", "como", "más", "pero", "sus", "le", "si", "sin", "sobre", "este",
    "esta", "ya", "entre", "cuando", "todo", "ser", "también", "fue", "era", "muy", "hasta",
    "desde", "está", "porque", "qué", "puede", "pueden", "hay", "donde", "cada", "otro", "otros",
    "eso", "esto", "estos", "estas", "nos", "tu", "te", "ha",
];

fn spanish_share(text: &str) -> f64 {
    let (mut all, mut spanish) = (0_u32, 0_u32);
    for word in words(text) {
        all += 1;
        spanish += u32::from(SPANISH.contains(&word.to_lowercase().as_str()));
    }
    f64::from(spanish) / f64::from(all.max(1))
}

/// Unit words, and those that are one behind a number only.
const IMPERIAL: [&str; 21] = [
    "mile",
    "miles",
    "mph",
    "foot",
    "feet",
    "ft",
    "inch",
    "inches",
    "yard",
    "yards",
    "pound",
    "pounds",
    "lb",
    "lbs",
    "ounce",
    "ounces",
    "oz",
    "fahrenheit",
    "gallon",
    "gallons",
    "pint",
];
const IMPERIAL_BEHIND_NUMBER: [&str; 5] = ["f", "cup", "cups", "yd", "quarts"];
const METRIC: [&str; 36] = [
    "km",
    "kilometre",
    "kilometres",
    "kilometer",
    "kilometers",
    "metre",
    "metres",
    "meter",
    "meters",
    "cm",
    "centimetre",
    "centimetres",
    "centimeter",
    "centimeters",
    "mm",
    "millimetre",
    "millimetres",
    "millimeter",
    "millimeters",
    "gram",
    "grams",
    "kg",
    "kilogram",
    "kilograms",
    "kilo",
    "kilos",
    "kph",
    "litre",
    "litres",
    "liter",
    "liters",
    "ml",
    "millilitres",
    "milliliters",
    "celsius",
    "kmh",
];
const METRIC_BEHIND_NUMBER: [&str; 5] = ["m", "c", "g", "l", "t"];

fn is_metric(text: &str) -> bool {
    let (mut metric, mut imperial) = (false, false);
    // What stands before a word, spaces aside: the `5` of "5 m", the `°` of "20 °C".
    let mut before = ' ';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_alphabetic() || c == '\'' || c == '’';
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        if end == 0 {
            if !first.is_whitespace() {
                before = first;
            }
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let word = rest[..end].to_lowercase();
        let word = word.as_str();
        let behind_number = before.is_ascii_digit() || before == '°';
        imperial |=
            IMPERIAL.contains(&word) || (behind_number && IMPERIAL_BEHIND_NUMBER.contains(&word));
        metric |= METRIC.contains(&word) || (behind_number && METRIC_BEHIND_NUMBER.contains(&word));
        before = 'a';
        rest = &rest[end..];
    }
    metric && !imperial
}

/// What the answer to a question about a quantity is likely to hold a unit for.
const QUANTITIES: [&str; 16] = [
    "how far ",
    "how much ",
    "how tall ",
    "how heavy ",
    "how deep ",
    "how fast ",
    "how high ",
    "how long is",
    "how big ",
    "how cold ",
    "how hot ",
    "how strong ",
    "how warm ",
    "how many miles",
    "temperature",
    "right weight",
];

fn asks_for_quantity(question: &str) -> bool {
    let question = question.to_lowercase();
    QUANTITIES.iter().any(|words| question.contains(words))
}

fn is_emoji(c: char) -> bool {
    matches!(u32::from(c),
        0x1F300..=0x1FAFF | 0x1F1E6..=0x1F1FF | 0x2600..=0x27BF | 0x2B50 | 0x2B55 | 0x231A..=0x231B)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Preference::{
        AnswerFirst, Bullets, Emoji, Ending, Formal, Long, Lowercase, Metric, Name, NoExclamation,
        NoLists, Short, Spanish, Steps,
    };

    #[test]
    fn answers_are_as_wished_or_not() {
        let rows = [
            (Short, "Paris.", true),
            (Short, "a ".repeat(26).leak() as &str, false),
            (Bullets, "Sure:\n- one\n- two", true),
            (Bullets, "• one\n* two", true),
            (Bullets, "- one", false),
            (Bullets, "**one**\n**two**", false),
            (NoLists, "One, then two. 3 more.", true),
            (NoLists, "Well:\n1. one", false),
            (NoLists, "- one", false),
            (
                Spanish,
                "Los gatos ronronean porque están contentos y se sienten bien.",
                true,
            ),
            (Spanish, "Cats purr when they are content.", false),
            (Spanish, "In Los Angeles, no one saw a cat near me.", false),
            (Name, "Of course, Sam!", true),
            (Name, "A sample from Samoa.", false),
            (Metric, "About 384,400 km.", true),
            (Metric, "It is 20 °C, or 3m deep.", true),
            (Metric, "About 384,400 km (238,855 miles).", false),
            (Metric, "I'm sure that it is far.", false),
            (Metric, "5 km at 70°F", false),
            (Formal, "**Dear reader**, cats purr.", true),
            (Formal, "Oh dear reader", false),
            (AnswerFirst, "**In short:** yes.", true),
            (AnswerFirst, "Yes. In short.", false),
            (Ending, "Yes. Do you have a cat?", true),
            (Ending, "Do you? Yes.", false),
            (Lowercase, "cats purr. 3 of them.", true),
            (Lowercase, "Cats purr.", false),
            (Lowercase, "123", false),
            (NoExclamation, "Yes.", true),
            (NoExclamation, "Yes!", false),
            (Steps, "1. one\n2. two", true),
            (Steps, "**1)** one\n**2)** two", true),
            (Steps, "1. one", false),
            (Emoji, "Yes 😀", true),
            (Emoji, "Yes — 20 °C…", false),
            (Long, "word ".repeat(120).leak() as &str, true),
            (Long, "word ".repeat(119).leak() as &str, false),
        ];
        for (preference, answer, wished) in rows {
            assert_eq!(
                preference.is_met(answer),
                wished,
                "{preference:?} {answer:?}"
            );
        }
        for preference in Preference::ALL {
            assert!(!preference.is_met(" \n"), "{preference:?}");
            assert_eq!(Preference::named(preference.name()), Ok(preference));
        }
        assert!(Preference::named("klingon").is_err());
    }

    #[test]
    fn units_are_asked_about_quantities_only() {
        assert!(Metric.suits("How far away is the Moon?"));
        assert!(!Metric.suits("Why do cats purr?"));
        assert!(Short.suits("Why do cats purr?"));
    }
}
