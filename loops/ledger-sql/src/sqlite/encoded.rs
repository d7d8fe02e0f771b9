//! Turns with everything encoded that does not need the database.

use hone_domain::Turn;

use super::chains::{self, BlockLink, MessageLink};
use super::fault::Fault;
use super::texts::{name_of, signed};

/// A turn with everything encoded that does not need the database, so that the writer is held
/// only for writing.
pub(super) struct Encoded<'a> {
    pub(super) turn: &'a Turn,
    pub(super) messages: Vec<MessageLink>,
    pub(super) blocks: Vec<BlockLink>,
    pub(super) tail: Vec<u8>,
    pub(super) origin: String,
    pub(super) kind: String,
    pub(super) version: i64,
}

pub(super) fn encode(turns: &[Turn]) -> Result<Vec<Encoded<'_>>, Fault> {
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
