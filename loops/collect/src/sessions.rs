//! Which turns wait for a next state, by session and by age.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hone_domain::{GroupId, Millis, SessionId, TurnId};

use crate::OpenMeta;

/// A waiting turn.
#[derive(Debug)]
pub(crate) struct Open {
    pub meta: OpenMeta,
    /// Its next state or its reason is on its way to the ledger.
    pub closing: bool,
}

#[derive(Debug, Default)]
struct Session {
    last_ms: Millis,
    turns: BTreeSet<TurnId>,
    chosen: BTreeMap<GroupId, TurnId>,
}

/// The waiting turns.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    turns: BTreeMap<TurnId, Open>,
    sessions: HashMap<SessionId, Session>,
    by_age: BTreeSet<(Millis, SessionId)>,
}

impl Sessions {
    /// Waiting turns.
    pub(crate) fn len(&self) -> usize {
        self.turns.len()
    }

    /// Sessions that are not over.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Notes that a session is alive.
    pub(crate) fn touch(&mut self, id: SessionId, at_ms: Millis) {
        let session = self.sessions.entry(id).or_default();
        self.by_age.remove(&(session.last_ms, id));
        session.last_ms = session.last_ms.max(at_ms);
        self.by_age.insert((session.last_ms, id));
    }

    /// Notes a waiting turn; one that is known stays as it is.
    pub(crate) fn open(&mut self, meta: OpenMeta, alive_ms: Millis) {
        let (turn, session) = (meta.turn, meta.place.session);
        self.touch(session, alive_ms);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.turns.insert(turn);
        }
        self.turns.entry(turn).or_insert(Open {
            meta,
            closing: false,
        });
    }

    pub(crate) fn get(&self, turn: TurnId) -> Option<&Open> {
        self.turns.get(&turn)
    }

    pub(crate) fn get_mut(&mut self, turn: TurnId) -> Option<&mut Open> {
        self.turns.get_mut(&turn)
    }

    /// Forgets a turn that does not wait any more.
    pub(crate) fn close(&mut self, turn: TurnId) {
        if let Some(open) = self.turns.remove(&turn)
            && let Some(session) = self.sessions.get_mut(&open.meta.place.session)
        {
            session.turns.remove(&turn);
        }
    }

    /// Notes which of a group the client went on with; gives the waiting others.
    pub(crate) fn choose(&mut self, turn: TurnId) -> Vec<TurnId> {
        let Some(Open { meta, .. }) = self.turns.get(&turn) else {
            return Vec::new();
        };
        let (Some(group), Some(session)) = (meta.group, self.sessions.get_mut(&meta.place.session))
        else {
            return Vec::new();
        };
        session.chosen.entry(group).or_insert(turn);
        let sibling = |other: &&TurnId| {
            let waits = self.turns.get(other).filter(|open| !open.closing);
            **other != turn && waits.is_some_and(|open| open.meta.group == Some(group))
        };
        session.turns.iter().filter(sibling).copied().collect()
    }

    /// Whether the client already went on with another turn of the same group.
    pub(crate) fn is_passed_over(&self, turn: TurnId) -> bool {
        let chosen = self.turns.get(&turn).and_then(|open| {
            let session = self.sessions.get(&open.meta.place.session)?;
            session.chosen.get(&open.meta.group?)
        });
        chosen.is_some_and(|chosen| *chosen != turn)
    }

    /// Ends a session; gives its waiting turns.
    pub(crate) fn end(&mut self, id: SessionId) -> Vec<TurnId> {
        let Some(session) = self.sessions.remove(&id) else {
            return Vec::new();
        };
        self.by_age.remove(&(session.last_ms, id));
        let waiting = |turn: &TurnId| self.turns.get(turn).is_some_and(|open| !open.closing);
        session.turns.into_iter().filter(waiting).collect()
    }

    /// Sessions whose last sign of life is older than `before_ms`.
    pub(crate) fn idle(&self, before_ms: Millis) -> Vec<SessionId> {
        let old = self.by_age.iter().take_while(|(at, _)| *at < before_ms);
        old.map(|(_, id)| *id).collect()
    }

    /// The turn that waits longest.
    pub(crate) fn oldest(&self) -> Option<TurnId> {
        let waiting = self.turns.iter().find(|(_, open)| !open.closing);
        waiting.map(|(turn, _)| *turn)
    }

    /// Turns that wait since before `before_ms`. Ids rise with time, so the oldest come first.
    pub(crate) fn overdue(&self, before_ms: Millis) -> Vec<TurnId> {
        self.turns
            .values()
            .take_while(|open| open.meta.finished_ms < before_ms)
            .filter(|open| !open.closing)
            .map(|open| open.meta.turn)
            .collect()
    }
}
