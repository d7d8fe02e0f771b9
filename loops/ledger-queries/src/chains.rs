//! Shared beginnings: message lists and prompt tokens as trees, so that a conversation's next turn
//! stores only what is new.

use std::collections::{HashMap, HashSet};

use hone_domain::{Message, Token};
use sha2::{Digest as _, Sha256};

use crate::codec::{tokens_from_bytes, tokens_to_bytes};
use crate::db::{self, Connection, Fault, Script};

/// Prompt tokens per shared block.
const BLOCK_TOKENS: usize = 512;

pub(crate) type Hash = [u8; 32];

/// One step of a message list, encoded before a transaction begins.
pub(crate) struct MessageLink {
    chain: Hash,
    own: Hash,
    body: Vec<u8>,
}

/// One full block of prompt tokens.
pub(crate) struct BlockLink {
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

pub(crate) fn message_links(messages: &[Message]) -> Result<Vec<MessageLink>, Fault> {
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
pub(crate) fn block_links(tokens: &[Token]) -> (Vec<BlockLink>, Vec<u8>) {
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

/// A step of a list.
pub(crate) trait Link {
    /// Hash of the step and everything before it.
    fn chain(&self) -> &Hash;
}

impl Link for MessageLink {
    fn chain(&self) -> &Hash {
        &self.chain
    }
}

impl Link for BlockLink {
    fn chain(&self) -> &Hash {
        &self.chain
    }
}

/// A link with the one before it.
type After<'a, L> = (Option<&'a L>, &'a L);

/// The links of one list that are not stored. Looks from the end, because a conversation's next turn
/// differs there only.
fn missing<'a, L: Link>(
    links: &'a [L],
    stored: &HashSet<Hash>,
) -> impl ExactSizeIterator<Item = After<'a, L>> + use<'a, L> {
    let is_stored = |link: &L| stored.contains(link.chain());
    let known = links.iter().rposition(is_stored).map_or(0, |last| last + 1);
    (known..links.len()).map(|index| (index.checked_sub(1).map(|i| &links[i]), &links[index]))
}

/// How many links of a list are not stored.
pub(crate) fn missing_count(links: &[impl Link], stored: &HashSet<Hash>) -> usize {
    missing(links, stored).len()
}

/// The links of several lists that are not stored, each once.
fn new_links<'a, L: Link>(lists: &[&'a [L]], stored: &HashSet<Hash>) -> Vec<After<'a, L>> {
    let mut met = HashSet::new();
    let links = lists.iter().flat_map(|links| missing(links, stored));
    links.filter(|(_, link)| met.insert(link.chain())).collect()
}

/// Stores what is new of the message lists of a batch; `stored` are the chains that are there.
pub(crate) async fn store_messages(
    connection: &mut Connection<'_>,
    script: &mut Script,
    lists: &[&[MessageLink]],
    stored: &HashSet<Hash>,
) -> Result<(), Fault> {
    let mut bodies = HashSet::new();
    let new = new_links(lists, stored);
    let links = new.iter().map(|(_, link)| *link);
    let messages: Vec<_> = links.filter(|link| bodies.insert(&link.own)).collect();
    script
        .apart(
            connection,
            "insert into messages (hash, body) values ($1, $2) on conflict (hash) do nothing",
            &messages,
            |values, link| values.bind(&link.own[..]).bind(&link.body[..]),
        )
        .await?;
    script
        .each(
            connection,
            "insert into histories (hash, parent_number, message_number) values (
                 $1, (select number from histories where hash = $2),
                 (select number from messages where hash = $3)
             )",
            &new,
            |values, (before, link)| {
                values
                    .bind(&link.chain[..])
                    .bind(before.map(|before| &before.chain[..]))
                    .bind(&link.own[..])
            },
        )
        .await
}

/// Stores what is new of the prompts' full blocks; `stored` are the chains that are there.
pub(crate) async fn store_blocks(
    connection: &mut Connection<'_>,
    script: &mut Script,
    prompts: &[&[BlockLink]],
    stored: &HashSet<Hash>,
) -> Result<(), Fault> {
    let new = new_links(prompts, stored);
    script
        .each(
            connection,
            "insert into token_blocks (hash, parent_number, tokens)
             values ($1, (select number from token_blocks where hash = $2), $3)",
            &new,
            |values, (before, link)| {
                values
                    .bind(&link.chain[..])
                    .bind(before.map(|before| &before.chain[..]))
                    .bind(&link.body[..])
            },
        )
        .await
}

/// The messages that end in `node`.
pub(crate) async fn load_messages(
    connection: &mut Connection<'_>,
    node: Option<i64>,
) -> Result<Vec<Message>, Fault> {
    let Some(node) = node else {
        return Ok(Vec::new());
    };
    let bodies: Vec<Vec<u8>> = db::query_scalar(
        "with recursive path (parent_number, message_number, depth) as (
             select parent_number, message_number, 0 from histories where number = $1
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

/// The messages that end in each of many nodes, in one call; none of a node with one that cannot be read.
pub(crate) async fn load_many_messages(
    connection: &mut Connection<'_>,
    mut nodes: Vec<i64>,
) -> Result<HashMap<i64, Option<Vec<Message>>>, Fault> {
    nodes.sort_unstable();
    nodes.dedup();
    let rows = db::query(
        "with recursive path (node, parent_number, message_number, depth) as (
             select number, parent_number, message_number, 0 from histories
             where number in (select cast(value as bigint) from json_each($1))
             union all
             select path.node, histories.parent_number, histories.message_number, path.depth + 1
             from path join histories on histories.number = path.parent_number
         )
         select node, messages.body from path
         join messages on messages.number = path.message_number
         order by path.depth desc",
    )
    .bind(serde_json::to_string(&nodes)?)
    .fetch_all(connection);
    let mut found: HashMap<i64, Option<Vec<Message>>> = HashMap::with_capacity(nodes.len());
    for row in rows.await? {
        let messages = found
            .entry(row.try_get(0)?)
            .or_insert_with(|| Some(Vec::new()));
        let read = row
            .try_get(1)
            .ok()
            .and_then(|body| serde_json::from_slice(body).ok());
        match (messages.as_mut(), read) {
            (Some(messages), Some(message)) => messages.push(message),
            _ => *messages = None,
        }
    }
    Ok(found)
}

/// The prompt tokens that end in `block`, then `tail`.
pub(crate) async fn load_tokens(
    connection: &mut Connection<'_>,
    block: Option<i64>,
    tail: &[u8],
) -> Result<Vec<Token>, Fault> {
    let mut tokens = Vec::new();
    if let Some(block) = block {
        let bodies: Vec<Vec<u8>> = db::query_scalar(
            "with recursive path (parent_number, tokens, depth) as (
                 select parent_number, tokens, 0 from token_blocks where number = $1
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
