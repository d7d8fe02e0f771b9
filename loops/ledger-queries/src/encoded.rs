//! Turns with everything encoded that does not need the database.

use hone_domain::Turn;

use super::chains::{self, BlockLink, MessageLink};
use super::texts::{name_of, signed};
use crate::db::Fault;

/// A turn with everything encoded that does not need the database, so that the writer is held
/// only for writing.
pub(crate) struct Encoded<'a> {
    pub(crate) turn: &'a Turn,
    pub(crate) messages: Vec<MessageLink>,
    pub(crate) blocks: Vec<BlockLink>,
    pub(crate) tail: Vec<u8>,
    pub(crate) origin: String,
    pub(crate) kind: String,
    pub(crate) version: i64,
}

pub(crate) fn encode(turns: &[Turn]) -> Result<Vec<Encoded<'_>>, Fault> {
    turns
        .iter()
        .map(|turn| {
            let (blocks, tail) = chains::block_links(&turn.prompt_tokens);
            Ok(Encoded {
                turn,
                messages: chains::message_links(&turn.messages)?,
                blocks,
                tail,
                origin: name_of(&turn.origin)?,
                kind: name_of(&turn.kind)?,
                version: signed(turn.version().0)?,
            })
        })
        .collect()
}
