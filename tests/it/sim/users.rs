//! Simulated users, and the gateway as far as they see it: the only source of turns.

use std::collections::BTreeMap;

use hone_collect::{Input, Observed, Rewarding, SharedIndex};
use hone_domain::{
    BindRequest, Binding, Completion, Feedback, FeedbackId, GroupId, Message, Origin, PendingTurn,
    Policies, Reason, Receipt, RequestId, ReturnRule, Role, Sampling, Scope, SessionCredit,
    SessionId, SessionReward, StopReason, Turn, TurnId, TurnKind, VersionSpan,
};
use hone_runtime::{Clock, Ids, Latest, Outbox};
use tokio::sync::oneshot;

use super::rng::Rng;
use super::trainer::{BASE, FINGERPRINT};

/// Who talks; each is a scope of its own.
pub(super) const OWNERS: [&str; 3] = ["ann", "bob", "eve"];

/// What they reply: clearly pleased, clearly not, and neither.
const REPLIES: [&str; 7] = [
    "Thanks, that was perfect.",
    "Great answer, exactly what I wanted.",
    "Thank you, well done!",
    "No, that is wrong. Answer in one sentence.",
    "That's not what I asked for.",
    "You misunderstood me, try again.",
    "And what about the sea?",
];

/// What a client was told about a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Nothing yet, or the process died before.
    Nothing,
    /// It is in the ledger.
    Collected,
    /// It is in the spool.
    Spooled,
    /// It is not collected.
    NotCollected,
}

impl Told {
    /// Whether it is to be found in the ledger in the end.
    pub(super) fn is_promised(self) -> bool {
        matches!(self, Self::Collected | Self::Spooled)
    }
}

/// One turn as its client sees it.
pub(super) struct Asked {
    pub(super) turn: Turn,
    pub(super) told: Told,
    /// Open while the client waits for the receipt.
    pub(super) waiting: Option<oneshot::Receiver<Receipt>>,
}

struct Talk {
    owner: &'static str,
    key: Option<String>,
    messages: Vec<Message>,
    session: Option<SessionId>,
}

/// What the users reach.
pub(super) struct Gateway {
    pub(super) index: SharedIndex,
    pub(super) policies: Latest<Policies>,
    pub(super) to_collect: Outbox<Input>,
}

/// All users.
#[derive(Default)]
pub(super) struct Users {
    talks: Vec<Talk>,
    /// Turns being sampled: their talk and place in `asked`.
    sampling: Vec<(usize, usize)>,
    pub(super) asked: Vec<Asked>,
}

/// The hour and the makers.
pub(super) struct Moment<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) ids: &'a dyn Ids,
    pub(super) rng: &'a mut Rng,
    pub(super) now_ms: i64,
}

impl<'a> Moment<'a> {
    /// Now, by this clock.
    pub(super) fn now(
        gateway: &'a Gateway,
        ids: &'a dyn Ids,
        rng: &'a mut Rng,
        clock: &dyn Clock,
    ) -> Self {
        Self {
            gateway,
            ids,
            rng,
            now_ms: clock.now_ms(),
        }
    }
}

impl Users {
    /// A user asks: the request is bound, answers what it answers, and pins a version.
    pub(super) fn ask(&mut self, moment: &mut Moment<'_>) {
        let place = if self.talks.len() < 3 || moment.rng.chance(20) {
            self.talks.push(Talk {
                owner: OWNERS[moment.rng.below(OWNERS.len())],
                key: moment
                    .rng
                    .chance(50)
                    .then(|| format!("key-{}", self.talks.len())),
                messages: Vec::new(),
                session: None,
            });
            self.talks.len() - 1
        } else {
            // Mostly one of the newest; an old one may be a fork or come after its session ended.
            let newest = self
                .talks
                .len()
                .min(if moment.rng.chance(80) { 4 } else { 40 });
            self.talks.len() - 1 - moment.rng.below(newest)
        };
        let side = moment.rng.chance(8);
        let messages = self.request(place, side, moment.rng);
        let kind = if side { TurnKind::Side } else { TurnKind::Main };
        let talk = &mut self.talks[place];
        let scope = Scope::of(talk.owner, None);
        let binding = moment.gateway.index.lock().unwrap().bind(&BindRequest {
            owner: talk.owner,
            scope: &scope,
            session_key: talk.key.as_deref(),
            kind,
            continues: None,
            keeps: true,
            messages: &messages,
            new_session: SessionId(moment.ids.next()),
            now_ms: moment.now_ms,
        });
        if !side {
            talk.session = Some(binding.session);
        }
        let choices = 1 + u32::from(!side && moment.rng.chance(12));
        let group = (choices > 1).then(|| GroupId(moment.ids.next()));
        let request = RequestId(moment.ids.next());
        let first = self.asked.len();
        for choice_index in 0..choices {
            let owner = self.talks[place].owner;
            let mut turn = sampled(moment, (owner, &scope), (&messages, &binding));
            (turn.choice_index, turn.group, turn.request) = (choice_index, group, request);
            (turn.kind, turn.session_key) = (kind, self.talks[place].key.clone());
            self.sampling.push((place, self.asked.len()));
            self.asked.push(Asked {
                turn,
                told: Told::Nothing,
                waiting: None,
            });
        }
        if let (Some(parent), false) = (binding.parent, binding.next_state.is_empty()) {
            let observed = Observed {
                parent,
                session: binding.session,
                scope,
                next_state: binding.next_state,
                next_turn: Some(self.asked[first].turn.id),
                at_ms: moment.now_ms,
            };
            let _dropped = moment
                .gateway
                .to_collect
                .send(Input::Next(observed))
                .is_err();
        }
    }

    fn request(&mut self, place: usize, side: bool, rng: &mut Rng) -> Vec<Message> {
        let mut messages = self.talks[place].messages.clone();
        let text = if side {
            "Write a title for this conversation.".to_owned()
        } else if messages.is_empty() {
            format!("Question {place}: where is the moon?")
        } else {
            (*rng.pick(&REPLIES)).to_owned()
        };
        messages.push(Message::text(Role::User, text));
        messages
    }

    /// A completion ends: it can be continued, and collect is to record it.
    pub(super) fn finish(&mut self, moment: &mut Moment<'_>) {
        if self.sampling.is_empty() {
            return;
        }
        let (place, number) = self.sampling.remove(moment.rng.below(self.sampling.len()));
        let asked = &mut self.asked[number];
        let turn = &mut asked.turn;
        turn.finished_ms = moment.now_ms;
        turn.completion = completion(moment.rng);
        turn.completion_text = format!("Answer {number}.");
        turn.spans[0].end = turn.completion.len() as u32;
        if turn.kind == TurnKind::Main {
            moment
                .gateway
                .index
                .lock()
                .unwrap()
                .record(&pending(turn), None);
            let talk = &mut self.talks[place];
            talk.messages = turn.messages.clone();
            talk.messages.push(turn.completion_message());
        }
        let (receipt, waiting) = oneshot::channel();
        let turn = Box::new(turn.clone());
        match moment
            .gateway
            .to_collect
            .send(Input::Turn { turn, receipt })
        {
            Ok(()) => asked.waiting = Some(waiting),
            Err(_full) => asked.told = Told::NotCollected,
        }
    }

    /// Whether completions are under way.
    pub(super) fn is_sampling(&self) -> bool {
        !self.sampling.is_empty()
    }

    /// Clients look for their receipts. One that is gone counts as a no.
    pub(super) fn look(&mut self) {
        for asked in &mut self.asked {
            let Some(waiting) = &mut asked.waiting else {
                continue;
            };
            asked.told = match waiting.try_recv() {
                Ok(Receipt::Collected) => Told::Collected,
                Ok(Receipt::Spooled) => Told::Spooled,
                Ok(Receipt::NotCollected(_)) | Err(oneshot::error::TryRecvError::Closed) => {
                    Told::NotCollected
                }
                Err(oneshot::error::TryRecvError::Empty) => continue,
            };
            asked.waiting = None;
        }
    }

    /// The gateway stops waiting for one receipt and says no; the receipt's place is gone when what
    /// is returned is dropped.
    pub(super) fn time_out(&mut self, rng: &mut Rng) -> Option<oneshot::Receiver<Receipt>> {
        self.look();
        let waiting: Vec<usize> = (0..self.asked.len())
            .filter(|n| self.asked[*n].waiting.is_some())
            .collect();
        if waiting.is_empty() {
            return None;
        }
        let asked = &mut self.asked[*rng.pick(&waiting)];
        asked.told = Told::NotCollected;
        asked.waiting.take()
    }

    /// Turns that clients were told are not collected; the gateway notes them on disk before it tells.
    pub(super) fn noted_late(&self) -> Vec<TurnId> {
        let late = self.asked.iter().filter(|a| a.told == Told::NotCollected);
        late.map(|asked| asked.turn.id).collect()
    }

    /// The process died: completions under way are lost, and nobody is told anything any more.
    pub(super) fn cut(&mut self) {
        self.sampling.clear();
        for asked in &mut self.asked {
            asked.waiting = None;
        }
    }

    /// Somebody says something about a turn, in time or not, theirs or not.
    pub(super) fn give_feedback(&self, moment: &mut Moment<'_>) {
        if self.asked.is_empty() {
            return;
        }
        let newest = self.asked.len().min(12);
        let turn = &self.asked[self.asked.len() - 1 - moment.rng.below(newest)].turn;
        if moment.rng.chance(15) {
            return give_reward(turn, moment);
        }
        let said = moment.rng.below(4);
        let feedback = Feedback {
            id: FeedbackId(moment.ids.next()),
            turn: turn.id,
            owner: if moment.rng.chance(10) {
                "mallory".to_owned()
            } else {
                turn.owner.clone()
            },
            client_id: moment.rng.chance(50).then(|| "thumb".to_owned()),
            score: (said < 2).then_some(if said == 0 { 1.0 } else { -1.0 }),
            comment: (said == 2).then(|| "hm".to_owned()),
            correction: (said == 3).then(|| "The sea is blue.".to_owned()),
            of_session: false,
            received_ms: moment.now_ms,
        };
        let (reply, _nobody_waits) = oneshot::channel();
        let feedback = Box::new(feedback);
        let input = Input::Feedback { feedback, reply };
        let _dropped = moment.gateway.to_collect.send(input).is_err();
    }

    /// A client says that a session is over.
    pub(super) fn end_session(&self, moment: &mut Moment<'_>) {
        if self.talks.is_empty() {
            return;
        }
        if let Some(session) = moment.rng.pick(&self.talks).session {
            let input = Input::SessionDone(session);
            let _dropped = moment.gateway.to_collect.send(input).is_err();
        }
    }
}

/// The whole session of a turn gets a reward, from its own user or not.
fn give_reward(turn: &Turn, moment: &mut Moment<'_>) {
    let owner = match moment.rng.chance(10) {
        true => "mallory".to_owned(),
        false => turn.owner.clone(),
    };
    let rules = [
        ReturnRule::Turn,
        ReturnRule::Terminal,
        ReturnRule::Discounted,
    ];
    let reward = SessionReward {
        id: FeedbackId(moment.ids.next()),
        session: turn.session,
        owner,
        client_id: moment.rng.chance(50).then(|| "end".to_owned()),
        score: if moment.rng.chance(50) { 1.0 } else { -0.5 },
        parts: BTreeMap::new(),
        peers: Vec::new(),
        received_ms: moment.now_ms,
    };
    let (reply, _nobody_waits) = oneshot::channel();
    let input = Input::Reward(Rewarding {
        reward: Box::new(reward),
        credit: SessionCredit {
            rule: *moment.rng.pick(&rules),
            discount: 0.5,
        },
        reply,
    });
    let _dropped = moment.gateway.to_collect.send(input).is_err();
}

/// A turn that is being sampled by the newest version that serve sees.
pub(super) fn sampled(
    moment: &mut Moment<'_>,
    (owner, scope): (&str, &Scope),
    (messages, binding): (&[Message], &Binding),
) -> Turn {
    let policies = moment.gateway.policies.get();
    let policy = policies.newest(scope);
    let rng = &mut *moment.rng;
    let prompt = if rng.chance(3) { 40 } else { 2 + rng.below(6) };
    Turn {
        id: TurnId(moment.ids.next()),
        request: RequestId(moment.ids.next()),
        choice_index: 0,
        group: None,
        session: binding.session,
        session_key: None,
        parent: binding.parent,
        owner: owner.to_owned(),
        scope: scope.clone(),
        origin: Origin::User,
        kind: TurnKind::Main,
        messages: messages.to_vec(),
        prompt_tokens: (0..prompt).map(|_| rng.below(50) as u32).collect(),
        completion: completion(rng),
        completion_text: String::new(),
        sampling: Sampling {
            temperature: if rng.chance(4) { 0.0 } else { 1.0 },
            ..Sampling::default()
        },
        spans: vec![VersionSpan {
            version: policies.version(scope),
            start: 0,
            end: 0,
        }],
        digest: policy.map(|p| p.digest),
        base: BASE,
        fingerprint: if rng.chance(3) { "other" } else { FINGERPRINT }.to_owned(),
        admission: Default::default(),
        untrainable: rng.chance(3).then_some(Reason::BackendCannotTrain),
        started_ms: moment.now_ms,
        finished_ms: moment.now_ms,
    }
}

fn completion(rng: &mut Rng) -> Completion {
    let tokens: Vec<u32> = if rng.chance(3) {
        Vec::new()
    } else {
        (0..=rng.below(4)).map(|_| rng.below(50) as u32).collect()
    };
    let logprobs: Vec<f32> = tokens.iter().map(|t| -0.1 - *t as f32 / 64.0).collect();
    let stop = if rng.chance(4) {
        StopReason::Cancelled
    } else {
        StopReason::EndToken
    };
    let kept = vec![None; tokens.len()];
    Completion::new(tokens, logprobs.clone(), logprobs, kept, stop).unwrap()
}

fn pending(turn: &Turn) -> PendingTurn {
    PendingTurn {
        turn: turn.id,
        session: turn.session,
        session_key: turn.session_key.clone(),
        owner: turn.owner.clone(),
        scope: turn.scope.clone(),
        messages: turn.messages.clone(),
        completion: turn.completion_message(),
        parent: turn.parent,
        memories: turn.admission.memory.shown.clone(),
        skills: turn.admission.memory.skills.clone(),
        kind: turn.kind,
        delivered: true,
        continued: false,
        ended_ms: turn.finished_ms,
    }
}
