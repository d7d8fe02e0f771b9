//! Shared beginnings: message lists and prompt tokens as trees, so that a conversation's next turn
//! stores only what is new.

use std::collections::HashMap;

use hone_domain::{Message, Token};
use sha2::{Digest as _, Sha256};
use sqlx::SqliteConnection;

use super::fault::Fault;
use crate::codec::{tokens_from_bytes, tokens_to_bytes};

/// Prompt tokens per shared block.
const BLOCK_TOKENS: usize = 512;

type Hash = [u8; 32];

/// One step of a message list, encoded before a transaction begins.
pub(super) struct MessageLink {
    chain: Hash,
    own: Hash,
    body: Vec<u8>,
}

/// One full block of prompt tokens.
pub(super) struct BlockLink {
    chain: Hash,
    body: Vec<u8>,
}

/// Hash of a node together with everything before it.
fn chain(before: &Hash, own: &[u8]) -> Hash {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(own);
    hash.finalize().into()
}

pub(super) fn message_links(messages: &[Message]) -> Result<Vec<MessageLink>, Fault> {
    let mut before = [0; 32];
    messages
        .iter()
        .map(|message| {
            let body = serde_json::to_vec(message)?;
            let own: Hash = Sha256::digest(&body).into();
            before = chain(&before, &own);
            Ok(MessageLink {
                chain: before,
                own,
                body,
            })
        })
        .collect()
}

/// Full blocks, and the tokens left over.
pub(super) fn block_links(tokens: &[Token]) -> (Vec<BlockLink>, Vec<u8>) {
    let blocks = tokens.chunks_exact(BLOCK_TOKENS);
    let tail = tokens_to_bytes(blocks.remainder());
    let mut before = [0; 32];
    let links = blocks
        .map(|block| {
            let body = tokens_to_bytes(block);
            before = chain(&before, &body);
            BlockLink {
                chain: before,
                body,
            }
        })
        .collect();
    (links, tail)
}

/// Nodes found or made in the running transaction, so that a batch looks each up once.
#[derive(Default)]
pub(super) struct Seen(HashMap<Hash, i64>);

/// The longest beginning that is stored: its node and its length. Looks from the end, because a
/// conversation's next turn differs there only.
async fn deepest(
    connection: &mut SqliteConnection,
    select: &'static str,
    hashes: impl DoubleEndedIterator<Item = &Hash> + ExactSizeIterator,
    seen: &mut Seen,
) -> Result<(Option<i64>, usize), Fault> {
    for (index, hash) in hashes.enumerate().rev() {
        let node = match seen.0.get(hash) {
            Some(number) => Some(*number),
            None => {
                sqlx::query_scalar(select)
                    .bind(&hash[..])
                    .fetch_optional(&mut *connection)
                    .await?
            }
        };
        if let Some(number) = node {
            seen.0.insert(*hash, number);
            return Ok((node, index + 1));
        }
    }
    Ok((None, 0))
}

/// Stores what is new of a message list; returns its last node, none for an empty list.
pub(super) async fn store_messages(
    connection: &mut SqliteConnection,
    links: &[MessageLink],
    seen: &mut Seen,
) -> Result<Option<i64>, Fault> {
    let (mut node, known) = deepest(
        connection,
        "select number from histories where hash = ?",
        links.iter().map(|link| &link.chain),
        seen,
    )
    .await?;
    for link in &links[known..] {
        let message = store_message(connection, link).await?;
        let number: i64 = sqlx::query_scalar(
            "insert into histories (hash, parent_number, message_number) values (?, ?, ?)
             returning number",
        )
        .bind(&link.chain[..])
        .bind(node)
        .bind(message)
        .fetch_one(&mut *connection)
        .await?;
        node = Some(number);
    }
    if let (Some(link), Some(number)) = (links.last(), node) {
        seen.0.insert(link.chain, number);
    }
    Ok(node)
}

async fn store_message(
    connection: &mut SqliteConnection,
    link: &MessageLink,
) -> Result<i64, Fault> {
    let known = sqlx::query_scalar("select number from messages where hash = ?")
        .bind(&link.own[..])
        .fetch_optional(&mut *connection)
        .await?;
    if let Some(number) = known {
        return Ok(number);
    }
    let number =
        sqlx::query_scalar("insert into messages (hash, body) values (?, ?) returning number")
            .bind(&link.own[..])
            .bind(&link.body[..])
            .fetch_one(&mut *connection)
            .await?;
    Ok(number)
}

/// Stores what is new of a prompt's full blocks; returns the last, none for a short prompt.
pub(super) async fn store_blocks(
    connection: &mut SqliteConnection,
    links: &[BlockLink],
    seen: &mut Seen,
) -> Result<Option<i64>, Fault> {
    let (mut node, known) = deepest(
        connection,
        "select number from token_blocks where hash = ?",
        links.iter().map(|link| &link.chain),
        seen,
    )
    .await?;
    for link in &links[known..] {
        let number: i64 = sqlx::query_scalar(
            "insert into token_blocks (hash, parent_number, tokens) values (?, ?, ?)
             returning number",
        )
        .bind(&link.chain[..])
        .bind(node)
        .bind(&link.body[..])
        .fetch_one(&mut *connection)
        .await?;
        node = Some(number);
    }
    if let (Some(link), Some(number)) = (links.last(), node) {
        seen.0.insert(link.chain, number);
    }
    Ok(node)
}

/// The messages that end in `node`.
pub(super) async fn load_messages(
    connection: &mut SqliteConnection,
    node: Option<i64>,
) -> Result<Vec<Message>, Fault> {
    let Some(node) = node else {
        return Ok(Vec::new());
    };
    let bodies: Vec<Vec<u8>> = sqlx::query_scalar(
        "with recursive path (parent_number, message_number, depth) as (
             select parent_number, message_number, 0 from histories where number = ?
             union all
             select histories.parent_number, histories.message_number, path.depth + 1
             from path join histories on histories.number = path.parent_number
         )
         select messages.body from path
         join messages on messages.number = path.message_number
         order by path.depth desc",
    )
    .bind(node)
    .fetch_all(connection)
    .await?;
    bodies
        .iter()
        .map(|body| Ok(serde_json::from_slice(body)?))
        .collect()
}

/// The prompt tokens that end in `block`, then `tail`.
pub(super) async fn load_tokens(
    connection: &mut SqliteConnection,
    block: Option<i64>,
    tail: &[u8],
) -> Result<Vec<Token>, Fault> {
    let mut tokens = Vec::new();
    if let Some(block) = block {
        let bodies: Vec<Vec<u8>> = sqlx::query_scalar(
            "with recursive path (parent_number, tokens, depth) as (
                 select parent_number, tokens, 0 from token_blocks where number = ?
                 union all
                 select token_blocks.parent_number, token_blocks.tokens, path.depth + 1
                 from path join token_blocks on token_blocks.number = path.parent_number
             )
             select tokens from path order by depth desc",
        )
        .bind(block)
        .fetch_all(connection)
        .await?;
        for body in bodies {
            tokens.extend(tokens_from_bytes(&body)?);
        }
    }
    tokens.extend(tokens_from_bytes(tail)?);
    Ok(tokens)
}
