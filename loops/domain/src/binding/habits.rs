//! Habits of clients that binding has to know: what they add to a request in passing or put around a
//! person's words, and what they ask for housekeeping under the conversation's own id.

use std::borrow::Cow;

use crate::{Message, Role, TurnKind};

/// Most bytes of a message that patterns are looked for in.
const LOOKED_AT_BYTES: usize = 8_192;
/// Fewest lines of a message that begin with a speaker, where it retells a conversation.
const RETOLD_LINES_MIN: usize = 2;
/// Most tokens that housekeeping about a retold conversation asks for, where it says how many.
const SHORT_TOKENS_MAX: u32 = 512;
/// Most messages of a request that is housekeeping by the form of its answer.
const FORM_MESSAGES_MAX: usize = 3;

/// Names of what housekeeping asks for, as the members of a JSON form.
const FORM_MEMBERS: [&str; 14] = [
    "title",
    "topic",
    "isnewtopic",
    "queries",
    "searchqueries",
    "followups",
    "followupquestions",
    "suggestions",
    "tags",
    "emoji",
    "emojis",
    "branch",
    "branchname",
    "slug",
];

/// What clients ask for one token of, to see whether they may ask at all.
const PROBES: [&str; 3] = ["quota", "count", "ping"];

/// Words before a colon that a retold conversation begins its lines with.
const SPEAKERS: [&str; 8] = [
    "user",
    "human",
    "assistant",
    "ai",
    "system",
    "tool",
    "<user>",
    "<assistant>",
];

/// Tags around a retold conversation.
const RETOLD_TAGS: [&str; 8] = [
    "<chat_history>",
    "<conversation>",
    "<conversation_history>",
    "<session>",
    "<transcript>",
    "<messages>",
    "### chat history",
    "<previous_conversation>",
];

/// Where a housekeeping pattern is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In system and developer messages.
    System,
    /// In the last message of the user.
    User,
}

/// Patterns by which habits are recognised.
#[derive(Clone, Debug, Default)]
pub struct Habits {
    passing: Vec<String>,
    /// Names of tags around what clients add to a person's words.
    injected: Vec<String>,
    /// Beginnings of what clients add behind a person's words, to their end.
    appended: Vec<String>,
    /// What clients have a model say to what is in passing.
    echoes: Vec<String>,
    side: Vec<(Place, String)>,
}

/// What a request looks like, where its client does not say what kind it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look<'a> {
    /// Its messages.
    pub messages: &'a [Message],
    /// Whether it offers tools.
    pub offers_tools: bool,
    /// The members of the JSON object that its answer has to be, where it has to be one.
    pub form: Option<&'a [String]>,
    /// Most tokens of the answer, where it says so.
    pub max_tokens: Option<u32>,
}

impl Habits {
    /// From configuration. `passing` holds what a user message begins with that is in one request
    /// only. `side` holds `system: words` or `user: words`, looked for without regard to case.
    ///
    /// # Errors
    /// The pattern that is none.
    pub fn new(passing: &[String], side: &[String]) -> Result<Self, String> {
        let whole = |text: &str| !text.trim().is_empty();
        if passing.iter().any(|text| !whole(text)) {
            return Err("an empty beginning would match every message".to_owned());
        }
        let side = side.iter().map(|pattern| {
            let (place, words) = pattern
                .split_once(':')
                .ok_or_else(|| format!("{pattern:?} must begin with \"system:\" or \"user:\""))?;
            let place = match place.trim() {
                "system" => Place::System,
                "user" => Place::User,
                other => return Err(format!("{other:?} must be system or user")),
            };
            let words = words.trim().to_lowercase();
            if whole(&words) {
                Ok((place, words))
            } else {
                Err(format!("{pattern:?} has no words"))
            }
        });
        Ok(Self {
            passing: passing.to_vec(),
            injected: Vec::new(),
            appended: Vec::new(),
            echoes: Vec::new(),
            side: side.collect::<Result<_, _>>()?,
        })
    }

    /// The same with the names of tags around what clients add to a person's words.
    ///
    /// # Errors
    /// The name that is none.
    pub fn with_injected(mut self, tags: &[String]) -> Result<Self, String> {
        let is_name = |tag: &&String| {
            let mut chars = tag.chars();
            chars.next().is_some_and(char::is_alphabetic)
                && chars.all(|c| c.is_alphanumeric() || "_-.: ".contains(c))
        };
        if let Some(wrong) = tags.iter().find(|tag| !is_name(tag)) {
            return Err(format!("{wrong:?} is not the name of a tag"));
        }
        self.injected = tags.to_vec();
        Ok(self)
    }

    /// The same with beginnings of what clients add behind a person's words, and with the answers that clients
    /// themselves put behind what is in passing.
    ///
    /// # Errors
    /// The text that is none.
    pub fn with_added(mut self, appended: &[String], echoes: &[String]) -> Result<Self, String> {
        if appended
            .iter()
            .chain(echoes)
            .any(|text| text.trim().is_empty())
        {
            return Err("an empty text is added everywhere".to_owned());
        }
        (self.appended, self.echoes) = (appended.to_vec(), echoes.to_vec());
        Ok(self)
    }

    /// A message's own words: the text without what its client put before, within or behind them.
    pub fn own_words<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.appended_at(text) {
            None => self.outside_tags(text),
            Some(at) => {
                let words = self.outside_tags(&text[..at]);
                Cow::Owned(words.trim_end().to_owned())
            }
        }
    }

    /// Where what a client added behind a person's words begins: after an empty line.
    fn appended_at(&self, text: &str) -> Option<usize> {
        let places = self.appended.iter().filter_map(|begin| {
            let mut found = text.match_indices(begin.as_str()).map(|(at, _)| at);
            found.find(|at| text[..*at].ends_with("\n\n") && !text[..*at].trim().is_empty())
        });
        places.min()
    }

    fn outside_tags<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.injected.is_empty() || !text.contains('<') {
            return Cow::Borrowed(text);
        }
        let mut words = String::new();
        let (mut rest, mut is_changed) = (text, false);
        while let Some(open) = rest.find('<') {
            let within = &rest[open + 1..];
            let block = self.injected.iter().find_map(|tag| end_of(within, tag));
            let Some(length) = block else {
                words.push_str(&rest[..=open]);
                rest = within;
                continue;
            };
            words.push_str(rest[..open].trim_end_matches(['\n', '\r']));
            rest = &within[length..];
            if !rest.trim().is_empty() && !words.trim().is_empty() {
                words.push('\n');
            }
            rest = rest.trim_start_matches(['\n', '\r']);
            is_changed = true;
        }
        if !is_changed {
            return Cow::Borrowed(text);
        }
        words.push_str(rest);
        Cow::Owned(words.trim().to_owned())
    }

    /// The message as its speaker said it.
    pub fn as_said(&self, message: &Message) -> Message {
        let content = match message.role {
            Role::User | Role::Tool => self.own_words(&message.content).into_owned(),
            _ => message.content.clone(),
        };
        Message {
            content,
            ..message.clone()
        }
    }

    /// Whether a message is in this request only, or holds no word of the person.
    pub fn is_passing(&self, message: &Message) -> bool {
        if message.role != Role::User {
            return false;
        }
        let text = message.content.trim_start();
        let begins = self.passing.iter().any(|begin| text.starts_with(begin));
        begins || (!text.is_empty() && self.own_words(text).trim().is_empty())
    }

    /// Whether a client itself put this answer behind what is in passing.
    pub fn is_echo(&self, message: &Message) -> bool {
        let text = message.content.trim();
        message.role == Role::Assistant && self.echoes.iter().any(|echo| echo == text)
    }

    /// Housekeeping by its words or by its look: titles, topics, search queries, summaries, memory.
    pub fn kind(&self, look: &Look<'_>) -> TurnKind {
        let is_system = |m: &&Message| matches!(m.role, Role::System | Role::Developer);
        let messages = look.messages.iter();
        let system: Vec<String> = messages.clone().filter(is_system).map(looked_at).collect();
        let last = messages
            .rev()
            .find(|m| m.role == Role::User && !self.is_passing(m))
            .map(|message| looked_at(&self.as_said(message)))
            .unwrap_or_default();
        let hit = |(place, words): &(Place, String)| match place {
            Place::System => system.iter().any(|text| text.contains(words)),
            Place::User => last.contains(words),
        };
        if self.side.iter().any(hit) || is_side_by_look(look, &last) {
            TurnKind::Side
        } else {
            TurnKind::Main
        }
    }
}

/// The first bytes of a message, in lower case.
fn looked_at(message: &Message) -> String {
    let text = &message.content;
    text[..text.floor_char_boundary(LOOKED_AT_BYTES)].to_lowercase()
}

/// Where the block ends that the tag opens whose text begins here, behind its `<`.
fn end_of(text: &str, tag: &str) -> Option<usize> {
    let behind = text.strip_prefix(tag)?;
    if !behind.starts_with(['>', ' ', '\n', '\t']) {
        return None;
    }
    let close = format!("</{tag}>");
    let at = behind.find(&close)?;
    Some(tag.len() + at + close.len())
}

/// Housekeeping offers no tools. It asks whether it may ask, for a JSON object that names what it is for, or
/// for something short about a conversation that it retells.
fn is_side_by_look(look: &Look<'_>, last: &str) -> bool {
    if look.offers_tools {
        return false;
    }
    let said = look.messages.iter();
    let said = said.filter(|m| !matches!(m.role, Role::System | Role::Developer));
    let (count, has_answer) = said.fold((0, false), |(count, answered), message| {
        (count + 1, answered || message.role == Role::Assistant)
    });
    let is_probe = look.max_tokens == Some(1) && count == 1 && PROBES.contains(&last.trim());
    let is_short = look.max_tokens.is_none_or(|n| n <= SHORT_TOKENS_MAX);
    let instructed = look.messages.len() > count;
    let of_form = look.form.is_some_and(|members| {
        let plain = |name: &String| -> String {
            let chars = name.chars().filter(char::is_ascii_alphanumeric);
            chars.flat_map(char::to_lowercase).collect()
        };
        let known = |name: &String| FORM_MEMBERS.contains(&plain(name).as_str());
        !members.is_empty() && members.iter().all(known)
    });
    let by_form = of_form && count <= FORM_MESSAGES_MAX && (instructed || is_retold(last));
    let by_retelling =
        !has_answer && is_short && (instructed || last.contains("task")) && is_retold(last);
    is_probe || by_form || by_retelling
}

/// Whether a text retells a conversation.
fn is_retold(text: &str) -> bool {
    if RETOLD_TAGS.iter().any(|tag| text.contains(tag)) {
        return true;
    }
    let speaks = |line: &&str| {
        let line = line.trim_start_matches(['[', '*', '#', '-', ' ']);
        let begins = |speaker: &&str| {
            let behind = line.strip_prefix(*speaker);
            behind.is_some_and(|rest| rest.trim_start_matches([']', '*', ' ']).starts_with(':'))
        };
        SPEAKERS.iter().any(begins)
    };
    text.lines().filter(speaks).count() >= RETOLD_LINES_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn housekeeping_is_told_by_its_words() {
        let side = ["system: You are a title generator", "user: concise title"];
        let side = side.map(str::to_owned);
        let passing = ["<<<BEGIN".to_owned()];
        let habits = Habits::new(&passing, &side).expect("patterns");
        let user = |text: &str| Message::text(Role::User, text);
        let rows = [
            (
                vec![user("Write a CONCISE TITLE for this chat")],
                TurnKind::Side,
            ),
            (
                vec![user("a concise title"), user("<<<BEGIN context")],
                TurnKind::Side,
            ),
            (
                vec![user("a concise title"), user("what is rust?")],
                TurnKind::Main,
            ),
            (
                vec![
                    Message::text(Role::System, "you are a title generator."),
                    user("hi"),
                ],
                TurnKind::Side,
            ),
            (vec![user("you are a title generator")], TurnKind::Main),
            (vec![user(&"ä".repeat(9_000))], TurnKind::Main),
            (vec![], TurnKind::Main),
        ];
        for (messages, kind) in rows {
            let look = Look {
                messages: &messages,
                offers_tools: true,
                ..Look::default()
            };
            assert_eq!(habits.kind(&look), kind, "{messages:?}");
        }
        for wrong in ["title", "assistant: x", "user: "] {
            assert!(Habits::new(&[], &[wrong.to_owned()]).is_err(), "{wrong}");
        }
        assert!(Habits::new(&[" ".to_owned()], &[]).is_err());
    }

    #[test]
    fn what_clients_add_is_not_the_persons() {
        let tags = ["system-reminder", "environment_context"].map(str::to_owned);
        let habits = Habits::default().with_injected(&tags).expect("names");
        let reminder = "<system-reminder>\nBe careful.\n</system-reminder>";
        let rows = [
            (format!("{reminder}\nfix the bug"), "fix the bug"),
            (format!("fix the bug\n\n{reminder}"), "fix the bug"),
            (format!("fix {reminder} the bug"), "fix \n the bug"),
            (format!("{reminder}{reminder}"), ""),
            (
                format!("{reminder}\n<environment_context a=\"b\">x</environment_context>\nhi"),
                "hi",
            ),
            (
                "a <b> c </system-reminder>".to_owned(),
                "a <b> c </system-reminder>",
            ),
            (
                "what is <system-reminder>?".to_owned(),
                "what is <system-reminder>?",
            ),
            (
                "<system-reminders>x</system-reminders>".to_owned(),
                "<system-reminders>x</system-reminders>",
            ),
        ];
        for (text, words) in rows {
            assert_eq!(habits.own_words(&text), words, "{text}");
            let message = Message::text(Role::User, text);
            assert_eq!(habits.is_passing(&message), words.is_empty());
        }
        assert!(
            Habits::default()
                .with_injected(&["<a>".to_owned()])
                .is_err()
        );
    }

    #[test]
    fn what_clients_add_behind_a_persons_words_is_cut() {
        let appended = ["To suggest changes".to_owned()];
        let echoes = ["Ok.".to_owned()];
        let habits = Habits::default().with_added(&appended, &echoes);
        let habits = habits.expect("texts");
        for (text, words) in [
            ("fix it\n\nTo suggest changes to a file", "fix it"),
            ("fix it\n\n\n\nTo suggest changes", "fix it"),
            ("fix it. To suggest changes", "fix it. To suggest changes"),
            ("\n\nTo suggest changes", "\n\nTo suggest changes"),
            (
                "a To suggest changes\n\nTo suggest changes",
                "a To suggest changes",
            ),
        ] {
            assert_eq!(habits.own_words(text), words, "{text}");
        }
        assert!(habits.is_echo(&Message::text(Role::Assistant, "Ok.\n")));
        assert!(!habits.is_echo(&Message::text(Role::Assistant, "Ok, sure.")));
        assert!(!habits.is_echo(&Message::text(Role::User, "Ok.")));
        assert!(
            Habits::default()
                .with_added(&[], &[" ".to_owned()])
                .is_err()
        );
    }

    /// Messages, whether there are tools, members of a form, most tokens, kind.
    type Row<'a> = (
        Vec<Message>,
        bool,
        Option<&'a [String]>,
        Option<u32>,
        TurnKind,
    );

    fn told((messages, offers_tools, form, max_tokens, kind): &Row<'_>) {
        let look = Look {
            messages,
            offers_tools: *offers_tools,
            form: *form,
            max_tokens: *max_tokens,
        };
        assert_eq!(Habits::default().kind(&look), *kind, "{look:?}");
    }

    #[test]
    fn housekeeping_is_told_by_its_look() {
        let system = Message::text(Role::System, "Name what this is about.");
        let user = |text: &str| Message::text(Role::User, text);
        let retold = user("### Task:\nName it.\n<chat_history>\nUSER: hi\n</chat_history>");
        let lines = user("Name it.\nUser: why is the sky blue?\nAssistant: It scatters.");
        let title = vec!["title".to_owned()];
        let titles = Some(title.as_slice());
        let many = ["title".to_owned(), "price".to_owned()];
        type Row<'a> = (
            Vec<Message>,
            bool,
            Option<&'a [String]>,
            Option<u32>,
            TurnKind,
        );
        let rows: [Row<'_>; 12] = [
            (vec![retold.clone()], false, None, None, TurnKind::Side),
            (vec![retold.clone()], true, None, None, TurnKind::Main),
            (vec![retold], false, None, Some(8_000), TurnKind::Main),
            (
                vec![system.clone(), lines.clone()],
                false,
                None,
                Some(50),
                TurnKind::Side,
            ),
            // A person may paste a conversation.
            (vec![lines], false, None, None, TurnKind::Main),
            (
                vec![system.clone(), user("why?")],
                false,
                titles,
                None,
                TurnKind::Side,
            ),
            (
                vec![system.clone(), user("why?")],
                true,
                titles,
                None,
                TurnKind::Main,
            ),
            (
                vec![user("A title for a book on bees?")],
                false,
                titles,
                None,
                TurnKind::Main,
            ),
            (
                vec![system.clone(), user("why?")],
                false,
                Some(&many),
                None,
                TurnKind::Main,
            ),
            (vec![user("quota")], false, None, Some(1), TurnKind::Side),
            (
                vec![system, user("why?")],
                false,
                None,
                Some(100),
                TurnKind::Main,
            ),
            (vec![], false, None, None, TurnKind::Main),
        ];
        rows.iter().for_each(told);
    }
}
