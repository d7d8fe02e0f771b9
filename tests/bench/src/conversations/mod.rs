//! A generated corpus: many conversations under way at once, by clients of every habit. People open
//! with the same few words and the model often answers alike, so that much can be mixed up.

pub mod gateway;

use std::collections::HashMap;

use hone_domain::TurnId;
use serde_json::{Value, json};
use uuid::Uuid;

use gateway::{Gateway, Sent, Table, say};

/// Conversations under way at the same time.
const AT_ONCE: usize = 300;
/// People; some share one name, and some have none.
const USERS: usize = 150;
/// Sessions the gateway remembers: fewer than there are, so that some come back forgotten.
const SESSIONS_MAX: usize = 2_000;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

/// What a client does to its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// Sends the whole history, nothing else.
    Resends,
    /// Sends the last messages only.
    Trims,
    /// Puts the time into its instructions.
    Dates,
    /// Adds a message in passing, with a known mark or without.
    Passes,
    /// An agent with a counted key, passing context, heartbeats, rewritten calls and new beginnings.
    Claws,
    /// A key, and a title asked for before the first answer.
    Titles,
    /// A key shared with sub-agents.
    Delegates,
    /// Calls two tools at once.
    Calls,
    /// Loses its stream now and then and asks again.
    Retries,
    /// Asks for another answer and goes on with that.
    Regenerates,
    /// Rewrites an earlier question.
    Edits,
    /// Says store: false, and brings long prompts with many tools.
    Stores,
    /// As Claude Code: a line for accounts first, reminders around the words; a key, or in half of them none.
    Reminds,
    /// As Codex: agents that share a session and differ in their thread, an environment told first, and
    /// conversations that are compacted.
    Threads,
}

const HABITS: [Habit; 14] = [
    Habit::Resends,
    Habit::Trims,
    Habit::Dates,
    Habit::Passes,
    Habit::Claws,
    Habit::Titles,
    Habit::Delegates,
    Habit::Calls,
    Habit::Retries,
    Habit::Regenerates,
    Habit::Edits,
    Habit::Stores,
    Habit::Reminds,
    Habit::Threads,
];

/// One history that a client keeps.
#[derive(Clone, Debug, Default)]
struct Branch {
    system: String,
    history: Vec<Value>,
    /// The turn whose answer ends the history.
    tip: Option<TurnId>,
    /// Places in the history after which there was a tip, for those who edit.
    tips: Vec<(usize, Option<TurnId>)>,
}

struct Conversation {
    number: usize,
    habit: Habit,
    user: Option<String>,
    uuid: Uuid,
    resets: usize,
    branches: Vec<Branch>,
    left: usize,
}

struct World {
    gateway: Gateway,
    rng: Rng,
}

/// Holds `conversations` conversations, 300 at a time.
pub fn run(seed: u64, conversations: usize) -> Table {
    let mut world = World {
        gateway: Gateway::new(SESSIONS_MAX),
        rng: Rng(seed),
    };
    let mut under_way: Vec<Conversation> = Vec::new();
    let mut begun = 0;
    while begun < conversations || !under_way.is_empty() {
        while under_way.len() < AT_ONCE && begun < conversations {
            under_way.push(begin(&mut world.rng, begun));
            begun += 1;
        }
        let at = world.rng.below(under_way.len());
        world.gateway.now_ms += 500;
        if world.rng.below(2_000) == 0 {
            let now_ms = world.gateway.now_ms;
            world.gateway.evict_idle(now_ms - 600_000);
        }
        world.act(&mut under_way[at]);
        if under_way[at].left == 0 {
            under_way.swap_remove(at);
        }
    }
    world.gateway.table
}

/// How many conversations of the same person begin with the same words.
pub fn equal_openings(seed: u64, conversations: usize) -> usize {
    let mut rng = Rng(seed);
    let mut seen: HashMap<(Option<String>, &str), usize> = HashMap::new();
    for number in 0..conversations {
        let user = begin(&mut rng, number).user;
        *seen.entry((user, opening(&mut rng))).or_default() += 1;
    }
    seen.values().map(|n| n - 1).sum()
}

fn begin(rng: &mut Rng, number: usize) -> Conversation {
    let user = rng.below(USERS);
    let systems = ["You are a helpful assistant.", "Be brief.", ""];
    Conversation {
        number,
        habit: HABITS[rng.below(HABITS.len())],
        user: (user > 20).then(|| format!("user-{user}")),
        uuid: Uuid::from_u128(u128::from(rng.next()) << 64 | number as u128),
        resets: 0,
        branches: vec![Branch {
            system: rng.pick(&systems).to_owned(),
            ..Branch::default()
        }],
        left: 3 + rng.below(6),
    }
}

fn opening(rng: &mut Rng) -> &'static str {
    rng.pick(&[
        "hi",
        "hello",
        "Hello!",
        "help me please",
        "what is rust?",
        "good morning",
    ])
}

fn question(rng: &mut Rng, branch: &Branch) -> String {
    if branch.history.is_empty() {
        return opening(rng).to_owned();
    }
    match rng.below(4) {
        0 => rng
            .pick(&["thanks", "go on", "no", "why?", "and then?"])
            .to_owned(),
        _ => format!("question {}", rng.below(5_000)),
    }
}

fn answer(rng: &mut Rng, branch: &Branch) -> String {
    if branch.history.len() < 2 || rng.below(4) == 0 {
        return rng
            .pick(&[
                "Hello! How can I help?",
                "Sure.",
                "Done.",
                "You're welcome!",
            ])
            .to_owned();
    }
    format!("answer {} with some more words to it", rng.below(5_000))
}

impl World {
    /// One thing a person does, with every request that follows from it.
    fn act(&mut self, talk: &mut Conversation) {
        talk.left -= 1;
        let first = talk.branches[0].history.is_empty();
        match talk.habit {
            Habit::Titles if first => self.title(talk),
            Habit::Claws if self.rng.below(4) == 0 && !first => return self.heartbeat(talk),
            Habit::Claws if self.rng.below(8) == 0 && !first => {
                // A new beginning: sometimes counted in the key, sometimes not.
                talk.resets += self.rng.below(2);
                let system = talk.branches[0].system.clone();
                talk.branches[0] = Branch {
                    system,
                    ..Branch::default()
                };
            }
            Habit::Delegates if self.rng.below(2) == 0 && !first => return self.delegate(talk),
            Habit::Threads if self.rng.below(3) == 0 && !first => return self.spawn(talk),
            Habit::Threads if self.rng.below(4) == 0 && !first => self.compact(talk),
            Habit::Edits if self.rng.below(3) == 0 => edit(&mut self.rng, &mut talk.branches[0]),
            Habit::Regenerates if self.rng.below(3) == 0 && !first => self.regenerate(talk),
            _ => {}
        }
        let said = question(&mut self.rng, &talk.branches[0]);
        self.say(talk, 0, &said);
        let calls = matches!(talk.habit, Habit::Calls | Habit::Claws);
        if calls && self.rng.below(2) == 0 {
            self.call_tools(talk);
        }
    }

    /// A question and its answer, with the streams that were cut before it.
    fn say(&mut self, talk: &mut Conversation, at: usize, said: &str) {
        let branch = &mut talk.branches[at];
        branch.tips.push((branch.history.len(), branch.tip));
        if talk.habit == Habit::Threads && branch.history.is_empty() {
            branch.history.push(say("user", ENVIRONMENT));
        }
        branch.history.push(match talk.habit {
            Habit::Reminds => reminded(said, branch.history.is_empty()),
            _ => say("user", said),
        });
        let mut sent = request(&mut self.rng, talk, at);
        sent.class = match (sent.continues.is_some(), talk.key().is_some()) {
            (false, _) => "begins",
            (true, false) => "continues",
            (true, true) => "continues by key",
        };
        if talk.habit == Habit::Retries && self.rng.below(3) == 0 {
            sent = self.cut(sent);
        }
        sent.answer = say("assistant", &answer(&mut self.rng, &talk.branches[at]));
        self.finish(talk, at, &sent);
    }

    fn finish(&mut self, talk: &mut Conversation, at: usize, sent: &Sent) {
        let turn = self.gateway.ask(sent);
        let branch = &mut talk.branches[at];
        branch.tip = Some(turn);
        branch.history.push(match talk.habit {
            Habit::Claws => rewritten(&sent.answer),
            _ => sent.answer.clone(),
        });
    }

    /// The same request up to seven times without its end.
    fn cut(&mut self, mut sent: Sent) -> Sent {
        for _ in 0..=self.rng.below(7) {
            sent.cut = true;
            sent.answer = say("assistant", &"word ".repeat(1 + self.rng.below(9)));
            let turn = self.gateway.ask(&sent);
            self.gateway.now_ms += 2_000;
            sent.class = "retry of a cut stream";
            sent.retries = Some(turn);
        }
        sent.cut = false;
        sent
    }

    /// Two calls at once, their results in any order, and what the model makes of them.
    fn call_tools(&mut self, talk: &mut Conversation) {
        let number = self.rng.below(100_000);
        let call = |n: usize| {
            let arguments = format!(r#"{{"days": {n}.0, "city": "c{number}", "more": []}}"#);
            let function = json!({"name": "get_weather", "arguments": arguments});
            json!({"id": format!("call_{number}_{n}"), "type": "function", "function": function})
        };
        let branch = &mut talk.branches[0];
        branch.tips.push((branch.history.len(), branch.tip));
        branch.history.push(say("user", "what is the weather?"));
        let mut sent = request(&mut self.rng, talk, 0);
        sent.class = "asks for a tool";
        sent.answer =
            json!({"role": "assistant", "content": null, "tool_calls": [call(1), call(2)]});
        self.finish(talk, 0, &sent);
        for n in [2, 1] {
            let id = format!("call{number}{n}");
            let result =
                json!({"role": "tool", "tool_call_id": id, "content": format!("sunny {n}")});
            talk.branches[0].history.push(result);
        }
        let mut sent = request(&mut self.rng, talk, 0);
        sent.class = "tool results";
        sent.answer = say("assistant", &answer(&mut self.rng, &talk.branches[0]));
        self.finish(talk, 0, &sent);
    }

    /// Another answer to the last question; the client goes on with it.
    fn regenerate(&mut self, talk: &mut Conversation) {
        let branch = &mut talk.branches[0];
        branch.history.pop();
        let (_, tip) = branch.tips.last().copied().unwrap_or_default();
        branch.tip = tip;
        let mut sent = request(&mut self.rng, talk, 0);
        sent.class = "another answer wanted";
        sent.answer = say("assistant", &answer(&mut self.rng, &talk.branches[0]));
        self.finish(talk, 0, &sent);
    }

    /// Housekeeping under the conversation's own key.
    fn title(&mut self, talk: &Conversation) {
        let asked = "Generate a title for this conversation: hi";
        let messages = vec![
            say("system", "You are a title generator."),
            say("user", asked),
        ];
        let sent = Sent {
            class: "title",
            messages,
            answer: say("assistant", "Greetings"),
            ..plain(talk)
        };
        self.gateway.ask(&sent);
    }

    /// A heartbeat: other instructions, and a question that later stands there in other words.
    fn heartbeat(&mut self, talk: &mut Conversation) {
        let mut messages = vec![say("system", "You are woken up now and then.")];
        messages.extend(talk.branches[0].history.clone());
        let asked = "Read HEARTBEAT.md if it exists. If nothing needs attention, say HEARTBEAT_OK.";
        messages.push(say("user", asked));
        let sent = Sent {
            class: "heartbeat",
            messages,
            answer: say("assistant", "HEARTBEAT_OK"),
            ..plain(talk)
        };
        self.gateway.ask(&sent);
        let branch = &mut talk.branches[0];
        branch
            .history
            .push(say("user", "[a periodic check was made]"));
        branch.history.push(sent.answer);
    }

    /// An agent of the conversation that does one thing and ends.
    fn spawn(&mut self, talk: &mut Conversation) {
        let at = talk.branches.len();
        talk.branches.push(Branch {
            system: format!("You are helper {at}."),
            ..Branch::default()
        });
        for _ in 0..2 + self.rng.below(2) {
            let said = question(&mut self.rng, &talk.branches[at]);
            self.say(talk, at, &said);
        }
    }

    /// A conversation grew long: its client has it retold, and goes on from that in a new beginning.
    fn compact(&mut self, talk: &mut Conversation) {
        let mut history = talk.branches[0].history.clone();
        let asked =
            "You are performing a CONTEXT CHECKPOINT COMPACTION. Retell what was done so far.";
        history.push(say("user", asked));
        let mut sent = Sent {
            class: "compaction",
            messages: history,
            answer: say("assistant", "They said hello."),
            ..plain(talk)
        };
        sent.headers.push(thread(talk, 0));
        self.gateway.ask(&sent);
        let retold = "Another model began this work and left a summary: they said hello.";
        talk.branches[0] = Branch {
            system: talk.branches[0].system.clone(),
            history: vec![say("user", ENVIRONMENT), say("user", retold)],
            ..Branch::default()
        };
    }

    /// A sub-agent under the same key, with a history of its own.
    fn delegate(&mut self, talk: &mut Conversation) {
        if talk.branches.len() < 3 && self.rng.below(2) == 0 {
            talk.branches.push(Branch {
                system: format!("You are helper {}.", talk.branches.len()),
                ..Branch::default()
            });
        }
        let at = self.rng.below(talk.branches.len());
        let said = question(&mut self.rng, &talk.branches[at]);
        self.say(talk, at, &said);
    }
}

/// An earlier question is rewritten; what followed it is gone.
fn edit(rng: &mut Rng, branch: &mut Branch) {
    let Some(at) = branch.tips.len().checked_sub(1 + rng.below(2)) else {
        return;
    };
    let (length, tip) = branch.tips[at];
    branch.tips.truncate(at);
    branch.history.truncate(length);
    branch.tip = tip;
}

impl Conversation {
    /// The header with the session's key, where this client sends one.
    fn key(&self) -> Option<(String, String)> {
        let header = |name: &str, value: String| Some((name.to_owned(), value));
        match self.habit {
            Habit::Claws => header(
                "x-client-request-id",
                format!("{}:{}", self.uuid, self.resets),
            ),
            Habit::Titles => header("x-session-id", format!("ses_{}", self.number)),
            Habit::Delegates => header("x-session-affinity", self.uuid.to_string()),
            Habit::Threads => header("session-id", self.uuid.to_string()),
            Habit::Reminds if self.number.is_multiple_of(2) => {
                header("x-claude-code-session-id", self.uuid.to_string())
            }
            _ => None,
        }
    }
}

/// What Codex says before the words of a person.
const ENVIRONMENT: &str = "<environment_context>\n  <cwd>/home/ann/shop</cwd>\n  <shell>bash</shell>\n</environment_context>";

/// The header that tells an agent of a conversation from its others.
fn thread(talk: &Conversation, at: usize) -> (String, String) {
    ("thread-id".to_owned(), format!("{}-{at}", talk.uuid))
}

/// Words with what Claude Code puts around them.
fn reminded(said: &str, is_first: bool) -> Value {
    let part = |text: &str| json!({"type": "text", "text": text});
    let before =
        "<system-reminder>\nThe project's notes: tests live beside the code.\n</system-reminder>";
    let behind = "<system-reminder>\nYour list of things to do is empty.\n</system-reminder>";
    let parts = match is_first {
        true => vec![part(before), part(said), part(behind)],
        false => vec![part(said), part(behind)],
    };
    json!({"role": "user", "content": parts})
}

/// What every request of a conversation has.
fn plain(talk: &Conversation) -> Sent {
    Sent {
        conversation: talk.number,
        user: talk.user.clone(),
        headers: talk.key().into_iter().collect(),
        fields: json!({}),
        ..Sent::default()
    }
}

/// The next request of a branch.
fn request(rng: &mut Rng, talk: &Conversation, at: usize) -> Sent {
    let branch = &talk.branches[at];
    let mut system = branch.system.clone();
    let mut history = branch.history.clone();
    let mut sent = plain(talk);
    match talk.habit {
        Habit::Dates => {
            let (hours, minutes) = (rng.below(24), rng.below(60));
            system = format!("Be kind. It is 2026-11-21 {hours:02}:{minutes:02}.");
        }
        Habit::Trims => {
            let from = history.len().saturating_sub(6);
            history.drain(..from);
        }
        Habit::Passes | Habit::Claws => {
            let marks = [
                "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> noon",
                "(context) it is noon",
            ];
            // One client, one kind of mark.
            let known = talk.habit == Habit::Claws || talk.number.is_multiple_of(2);
            history.push(say("user", marks[usize::from(!known)]));
        }
        Habit::Threads => sent.headers.push(thread(talk, at)),
        Habit::Reminds => {
            // Its end is another one in every conversation, and no part of what is recognised.
            let line = format!(
                "x-anthropic-billing-header: cc_version=2.1; cch={:x};",
                talk.uuid.as_u128()
            );
            history.insert(0, say("system", &line));
            // Gone from the next request.
            history.push(say(
                "user",
                "<system-reminder>\nNo file changed.\n</system-reminder>",
            ));
        }
        Habit::Stores => {
            sent.fields = json!({"store": false});
            system = format!("{system} {}", "long instructions ".repeat(40));
            if talk.number.is_multiple_of(50) {
                system = "a very long prompt ".repeat(2_700);
            }
        }
        _ => {}
    }
    if talk.number.is_multiple_of(3) && talk.key().is_none() {
        // As SDKs do: new with every request, and no key.
        let id = Uuid::from_u128(u128::from(rng.next()));
        sent.headers
            .push(("x-client-request-id".to_owned(), id.to_string()));
    }
    let instructions = (!system.is_empty()).then(|| say("system", &system));
    sent.messages = instructions.into_iter().chain(history).collect();
    sent.continues = branch.tip;
    sent
}

/// Calls as some clients send them back: ids without signs, arguments serialised anew, no content.
fn rewritten(answer: &Value) -> Value {
    let Some(calls) = answer["tool_calls"].as_array() else {
        return answer.clone();
    };
    let calls = calls.iter().map(|call| {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let parsed: Value = serde_json::from_str(arguments).unwrap_or_default();
        let days = parsed["days"].as_f64().unwrap_or_default() as i64;
        let again = json!({"city": parsed["city"], "days": days, "more": parsed["more"]});
        let id = call["id"].as_str().unwrap_or_default().replace('_', "");
        let function = json!({"name": call["function"]["name"], "arguments": again.to_string()});
        json!({"id": id, "type": "function", "function": function})
    });
    json!({"role": "assistant", "content": null, "tool_calls": calls.collect::<Vec<_>>()})
}
