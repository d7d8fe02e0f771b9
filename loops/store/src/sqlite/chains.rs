//! Shared beginnings: message lists and prompt tokens as trees, so that a conversation's next turn
//! stores only what is new.

use std::collections::{HashMap, HashSet};

use hone_domain::{Digest, Message, Token};
use sha2::{Digest as _, Sha256};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::fault::Fault;
use super::{many, rows};
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

/// Which nodes of a tree are stored, by hash.
pub(super) struct Nodes(HashMap<Hash, i64>);

impl Nodes {
    /// Looks up nodes with a select of hash and number that is given a JSON list of hashes.
    async fn look(
        connection: &mut SqliteConnection,
        select: &'static str,
        hashes: HashSet<&Hash>,
    ) -> Result<Self, Fault> {
        let mut nodes = Self(HashMap::new());
        if hashes.is_empty() {
            return Ok(nodes);
        }
        let hex: Vec<String> = hashes.iter().map(|hash| Digest(**hash).to_hex()).collect();
        let list = serde_json::to_string(&hex)?;
        let rows = sqlx::query(select).bind(list).fetch_all(connection).await?;
        nodes.learn(&rows)?;
        Ok(nodes)
    }

    fn learn(&mut self, rows: &[SqliteRow]) -> Result<(), Fault> {
        for row in rows {
            let digest = rows::digest(row.try_get("hash")?)?;
            self.0.insert(digest.0, row.try_get("number")?);
        }
        Ok(())
    }

    /// The number of a list's last node; none for an empty list.
    fn last(&self, hash: Option<&Hash>) -> Option<i64> {
        hash.and_then(|hash| self.0.get(hash).copied())
    }

    /// The links of one list that are not stored, each with the one before it. Looks from the end,
    /// because a conversation's next turn differs there only.
    fn missing<'a, L>(
        &self,
        links: &'a [L],
        hash: impl Fn(&L) -> &Hash,
    ) -> impl Iterator<Item = (Option<&'a L>, &'a L)> {
        let stored = |link: &L| self.0.contains_key(hash(link));
        let known = links.iter().rposition(stored).map_or(0, |last| last + 1);
        (known..links.len()).map(|index| (index.checked_sub(1).map(|i| &links[i]), &links[index]))
    }
}

/// Message lists of a batch that are stored.
pub(super) struct Histories(Nodes);

impl Histories {
    /// Stores what is new of the message lists of a batch.
    pub(super) async fn store<'a>(
        connection: &mut SqliteConnection,
        lists: &[&'a [MessageLink]],
    ) -> Result<Self, Fault> {
        let mut nodes = Nodes::look(
            connection,
            "select hash, number from histories
             where hash in (select unhex(value) from json_each(?))",
            lists.iter().copied().flatten().map(|l| &l.chain).collect(),
        )
        .await?;
        let (mut met, mut bodies) = (HashSet::new(), HashSet::new());
        let new: Vec<_> = lists
            .iter()
            .flat_map(|links| nodes.missing(links, |link| &link.chain))
            .filter(|(_, link)| met.insert(&link.chain))
            .collect();
        let links = new.iter().map(|(_, link)| *link);
        let messages: Vec<_> = links.filter(|link| bodies.insert(&link.own)).collect();
        many::each(
            connection,
            "insert into messages (hash, body) values (?, ?) on conflict (hash) do nothing",
            &messages,
            |asked, link| asked.bind(&link.own[..]).bind(&link.body[..]),
        )
        .await?;
        let rows = many::each(
            connection,
            "insert into histories (hash, parent_number, message_number) values (
                 ?, (select number from histories where hash = ?),
                 (select number from messages where hash = ?)
             ) returning hash, number",
            &new,
            |asked, (before, link)| {
                asked
                    .bind(&link.chain[..])
                    .bind(before.map(|before| &before.chain[..]))
                    .bind(&link.own[..])
            },
        )
        .await?;
        nodes.learn(&rows)?;
        Ok(Self(nodes))
    }

    /// The last node of a list, none for an empty one.
    pub(super) fn node(&self, links: &[MessageLink]) -> Option<i64> {
        self.0.last(links.last().map(|link| &link.chain))
    }
}

/// Blocks of prompt tokens of a batch that are stored.
pub(super) struct Blocks(Nodes);

impl Blocks {
    /// Stores what is new of the prompts' full blocks.
    pub(super) async fn store<'a>(
        connection: &mut SqliteConnection,
        prompts: &[&'a [BlockLink]],
    ) -> Result<Self, Fault> {
        let mut nodes = Nodes::look(
            connection,
            "select hash, number from token_blocks
             where hash in (select unhex(value) from json_each(?))",
            prompts
                .iter()
                .copied()
                .flatten()
                .map(|l| &l.chain)
                .collect(),
        )
        .await?;
        let mut met = HashSet::new();
        let new: Vec<_> = prompts
            .iter()
            .flat_map(|links| nodes.missing(links, |link| &link.chain))
            .filter(|(_, link)| met.insert(&link.chain))
            .collect();
        let rows = many::each(
            connection,
            "insert into token_blocks (hash, parent_number, tokens)
             values (?, (select number from token_blocks where hash = ?), ?)
             returning hash, number",
            &new,
            |asked, (before, link)| {
                asked
                    .bind(&link.chain[..])
                    .bind(before.map(|before| &before.chain[..]))
                    .bind(&link.body[..])
            },
        )
        .await?;
        nodes.learn(&rows)?;
        Ok(Self(nodes))
    }

    /// The last block of a prompt, none for a short one.
    pub(super) fn node(&self, links: &[BlockLink]) -> Option<i64> {
        self.0.last(links.last().map(|link| &link.chain))
    }
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
