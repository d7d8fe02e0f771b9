//! What the ledger knows of a batch of turns before it is written, looked up in one call.

use std::collections::{HashMap, HashSet};

use hone_domain::{Millis, Reason, Scope, Turn, TurnId};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::chains::{Hash, Link as _};
use super::collect::Encoded;
use super::fault::{Fault, corrupt};
use super::many::Values;
use super::rows;

/// Begins the transaction. Every `?` is given a JSON list of what is looked up, in hexadecimal digits.
const LOOK: &str = "
    begin immediate;
    select 'scope' as kind, scopes.name as scope, consents.learning <> 'full' as barred,
           (select max(at_ms) from forgets
            where forgets.scope_number = scopes.number and whole = 1) as until
    from scopes left join consents on consents.scope_number = scopes.number
    where scopes.name in (select unhex(value) from json_each(?));
    select 'arithmetic' as kind, fingerprint, base from arithmetics
    where fingerprint in (select cast(unhex(value) as text) from json_each(?));
    select 'session' as kind, id from forgotten_sessions
    where id in (select unhex(value) from json_each(?));
    select 'parent' as kind, id from forgotten_turns
    where id in (select unhex(value) from json_each(?));
    select 'turn' as kind, id, number, reason = 'cancelled' as is_cut from turns
    where id in (select unhex(value) from json_each(?));
    select 'history' as kind, hash from histories
    where hash in (select unhex(value) from json_each(?));
    select 'block' as kind, hash from token_blocks
    where hash in (select unhex(value) from json_each(?))";

/// A turn that is stored.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    pub(super) number: i64,
    /// Its client went away before the answer was there.
    pub(super) is_cut: bool,
}

/// What is known of a batch.
#[derive(Default)]
pub(super) struct Known {
    pub(super) scopes: HashSet<Scope>,
    pub(super) turns: HashMap<TurnId, Stored>,
    /// Message lists and blocks of tokens that are stored.
    pub(super) histories: HashSet<Hash>,
    pub(super) blocks: HashSet<Hash>,
    /// Of the batch's fingerprints, with the bases.
    pub(super) arithmetics: HashSet<(String, Hash)>,
    barred: HashSet<Scope>,
    /// Everything of a scope that began up to then was erased.
    forgotten: HashMap<Scope, Millis>,
    sessions: HashSet<[u8; 16]>,
    parents: HashSet<TurnId>,
}

impl Known {
    /// Begins a transaction with it.
    pub(super) async fn look(
        connection: &mut SqliteConnection,
        turns: &[Encoded<'_>],
    ) -> Result<Self, Fault> {
        let each = || turns.iter().map(|encoded| encoded.turn);
        let messages = turns.iter().flat_map(|encoded| &encoded.messages);
        let blocks = turns.iter().flat_map(|encoded| &encoded.blocks);
        let lists = [
            list(each().map(|turn| turn.scope.as_str().as_bytes()))?,
            list(each().map(|turn| turn.fingerprint.as_bytes()))?,
            list(each().map(|turn| &turn.session.0.as_bytes()[..]))?,
            list(each().filter_map(|turn| turn.parent.as_ref().map(|p| &p.0.as_bytes()[..])))?,
            list(each().map(|turn| &turn.id.0.as_bytes()[..]))?,
            list(messages.map(|link| &link.chain()[..]))?,
            list(blocks.map(|link| &link.chain()[..]))?,
        ];
        let values = lists.into_iter().fold(Values::default(), Values::bind);
        let mut known = Self::default();
        for row in values.run(connection, LOOK.to_owned()).await? {
            known.learn(&row)?;
        }
        Ok(known)
    }

    fn learn(&mut self, row: &SqliteRow) -> Result<(), Fault> {
        match row.try_get("kind")? {
            "scope" => self.learn_scope(row)?,
            "arithmetic" => {
                let base = rows::digest(row.try_get("base")?)?.0;
                self.arithmetics.insert((row.try_get("fingerprint")?, base));
            }
            "session" => {
                let session = rows::session_id(row.try_get("id")?)?;
                self.sessions.insert(session.0.into_bytes());
            }
            "parent" => {
                self.parents.insert(rows::turn_id(row.try_get("id")?)?);
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

    fn learn_scope(&mut self, row: &SqliteRow) -> Result<(), Fault> {
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
    pub(super) fn objection(&self, turn: &Turn) -> Option<Reason> {
        self.barred
            .contains(&turn.scope)
            .then_some(Reason::LearningOff)
    }

    /// Whether its session, the turn it continues or its whole scope was erased while it was being
    /// answered.
    pub(super) fn is_forgotten(&self, turn: &Turn) -> bool {
        let until = self.forgotten.get(&turn.scope);
        until.is_some_and(|at_ms| turn.started_ms <= *at_ms)
            || self.sessions.contains(&turn.session.0.into_bytes())
            || turn
                .parent
                .is_some_and(|parent| self.parents.contains(&parent))
    }
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
