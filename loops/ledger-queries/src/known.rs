//! What the ledger knows of a batch of turns before it is written, looked up in one call.

use std::collections::{HashMap, HashSet};

use hone_domain::{Millis, Reason, RequestId, Scope, SessionId, Turn, TurnId};

use super::chains::{Hash, Link as _};
use super::encoded::Encoded;
use super::rows;
use crate::db::{Connection, Fault, Row, Values, corrupt, many};

/// What is looked up of scopes, and who follows turns: `$1` is the newest wish that is older than this process.
const LOOK_SCOPES: &str =
    "select 'scope' as kind, scopes.name as scope, consents.learning <> 'full' as barred,
            (select max(at_ms) from forgets
             where forgets.scope_number = scopes.number and whole = 1
               and forgets.number > $1) as until, null as follower
     from scopes left join consents on consents.scope_number = scopes.number
     where scopes.name in (select unhex(value) from json_each($2))
     union all
     select 'follower', null, null, null, name from followers";

/// What else is looked up: `$1` is a JSON list of names, or of values in hexadecimal digits.
const LOOK: [&str; 7] = [
    "select 'arithmetic' as kind, fingerprint, base from arithmetics
     where fingerprint in (select value from json_each($1))",
    "select 'session' as kind, id from forgotten_sessions
     where id in (select unhex(value) from json_each($1))",
    "select 'gone' as kind, id from forgotten_turns
     where id in (select unhex(value) from json_each($1))",
    "select 'request' as kind, id, session_id from forgotten_requests
     where id in (select unhex(value) from json_each($1))",
    "select 'turn' as kind, id, number, reason = 'cancelled' as is_cut from turns
     where id in (select unhex(value) from json_each($1))",
    "select 'history' as kind, hash from histories
     where hash in (select unhex(value) from json_each($1))",
    "select 'block' as kind, hash from token_blocks
     where hash in (select unhex(value) from json_each($1))",
];

/// A turn that is stored.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    pub(crate) number: i64,
    /// Its client went away before the answer was there.
    pub(crate) is_cut: bool,
}

/// What is known of a batch.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) scopes: HashSet<Scope>,
    pub(crate) turns: HashMap<TurnId, Stored>,
    /// Message lists and blocks of tokens that are stored.
    pub(crate) histories: HashSet<Hash>,
    pub(crate) blocks: HashSet<Hash>,
    /// Of the batch's fingerprints, with the bases.
    pub(crate) arithmetics: HashSet<(String, Hash)>,
    /// Consumers that follow turns.
    pub(crate) followers: Vec<String>,
    barred: HashSet<Scope>,
    /// Everything of a scope that began up to then was erased, by a wish of this process: what an
    /// earlier one was answering ended with it, and its clock may have been wrong.
    forgotten: HashMap<Scope, Millis>,
    sessions: HashSet<[u8; 16]>,
    gone: HashSet<TurnId>,
    /// Each in a session.
    requests: HashSet<(RequestId, SessionId)>,
}

impl Known {
    /// Begins a transaction with it. Wishes up to the number `older` are older than this process.
    pub(crate) async fn look(
        connection: &mut Connection<'_>,
        turns: &[Encoded<'_>],
        older: i64,
    ) -> Result<Self, Fault> {
        let each = || turns.iter().map(|encoded| encoded.turn);
        let parents = each().flat_map(continued);
        let ids = each().map(|turn| &turn.id);
        let messages = turns.iter().flat_map(|encoded| &encoded.messages);
        let blocks = turns.iter().flat_map(|encoded| &encoded.blocks);
        let lists = [
            names(each().map(|turn| turn.fingerprint.as_str()))?,
            list(each().map(|turn| &turn.session.0.as_bytes()[..]))?,
            list(ids.chain(parents).map(|turn| &turn.0.as_bytes()[..]))?,
            list(each().map(|turn| &turn.request.0.as_bytes()[..]))?,
            list(each().map(|turn| &turn.id.0.as_bytes()[..]))?,
            list(messages.map(|link| &link.chain()[..]))?,
            list(blocks.map(|link| &link.chain()[..]))?,
        ];
        let scopes = list(each().map(|turn| turn.scope.as_str().as_bytes()))?;
        let scopes = Values::default().bind(older).bind(scopes);
        let others = LOOK.into_iter().zip(lists);
        let others = others.map(|(text, list)| (text, Values::default().bind(list)));
        let all = std::iter::once((LOOK_SCOPES, scopes)).chain(others);
        let mut known = Self::default();
        for row in many::open(connection, all).await? {
            known.learn(&row)?;
        }
        Ok(known)
    }

    fn learn(&mut self, row: &Row) -> Result<(), Fault> {
        match row.try_get("kind")? {
            "scope" => self.learn_scope(row)?,
            "follower" => self.followers.push(row.try_get("follower")?),
            "arithmetic" => {
                let base = rows::digest(row.try_get("base")?)?.0;
                self.arithmetics.insert((row.try_get("fingerprint")?, base));
            }
            "session" => {
                let session = rows::session_id(row.try_get("id")?)?;
                self.sessions.insert(session.0.into_bytes());
            }
            "gone" => {
                self.gone.insert(rows::turn_id(row.try_get("id")?)?);
            }
            "request" => {
                let session = rows::session_id(row.try_get("session_id")?)?;
                let request = rows::request_id(row.try_get("id")?)?;
                self.requests.insert((request, session));
            }
            "turn" => {
                let number = row.try_get("number")?;
                let is_cut = row.try_get::<Option<bool>, _>("is_cut")? == Some(true);
                let id = rows::turn_id(row.try_get("id")?)?;
                self.turns.insert(id, Stored { number, is_cut });
            }
            "history" => {
                self.histories.insert(rows::digest(row.try_get("hash")?)?.0);
            }
            "block" => {
                self.blocks.insert(rows::digest(row.try_get("hash")?)?.0);
            }
            other => return Err(corrupt(format!("a row of the kind {other:?}"))),
        }
        Ok(())
    }

    fn learn_scope(&mut self, row: &Row) -> Result<(), Fault> {
        let scope = rows::scope(row.try_get("scope")?)?;
        let until: Option<Millis> = row.try_get("until")?;
        self.forgotten
            .extend(until.map(|at_ms| (scope.clone(), at_ms)));
        if row.try_get::<Option<bool>, _>("barred")? == Some(true) {
            self.barred.insert(scope.clone());
        }
        self.scopes.insert(scope);
        Ok(())
    }

    /// Why a turn that could train must not: nothing new may be learned from its scope.
    pub(crate) fn objection(&self, turn: &Turn) -> Option<Reason> {
        self.barred
            .contains(&turn.scope)
            .then_some(Reason::LearningOff)
    }

    /// Whether it was erased, or its session, another choice of its request, a turn that it continues or
    /// its whole scope was while it was being answered. Then it is one of those, for the turns after it.
    pub(crate) fn forgets(&mut self, turn: &Turn) -> bool {
        let until = self.forgotten.get(&turn.scope);
        let is_gone = until.is_some_and(|at_ms| turn.started_ms <= *at_ms)
            || self.sessions.contains(&turn.session.0.into_bytes())
            || self.requests.contains(&(turn.request, turn.session))
            || self.gone.contains(&turn.id)
            || continued(turn).any(|turn| self.gone.contains(turn));
        if is_gone {
            self.gone.insert(turn.id);
            self.requests.insert((turn.request, turn.session));
        }
        is_gone
    }
}

/// The turns whose words a turn goes on from: its parent, and what it branches from.
fn continued(turn: &Turn) -> impl Iterator<Item = &TurnId> {
    let branch = turn.admission.branch.as_ref();
    turn.parent.iter().chain(branch.map(|branch| &branch.turn))
}

/// A JSON list of names, each once.
fn names<'a>(values: impl Iterator<Item = &'a str>) -> Result<String, Fault> {
    let values: HashSet<&str> = values.collect();
    Ok(serde_json::to_string(&values)?)
}

/// A JSON list of values in hexadecimal digits, each once.
fn list<'a>(values: impl Iterator<Item = &'a [u8]>) -> Result<String, Fault> {
    let values: HashSet<&[u8]> = values.collect();
    let hex: Vec<String> = values.into_iter().map(hex).collect();
    Ok(serde_json::to_string(&hex)?)
}

fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or_default();
    let pair = |byte: &u8| [digit(byte >> 4), digit(byte & 15)];
    bytes.iter().flat_map(pair).collect()
}
