//! What was forgotten is in no file: neither the words nor the token ids, whatever was shared, stopped or
//! forked, in whatever pieces it is removed, and wherever the process dies meanwhile.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use hone_domain::{Completion, ForgetId, Message, Role, Scope, StopReason, Token, Turn, TurnId};

use super::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_ledger::{AuditEntry, ForgetStep, ForgetWhat, ForgetWish, Ledger, Personal, suite};
use hone_ledger_queries::codec::tokens_to_bytes;

/// Runs of the property.
const SEEDS: u64 = 24;
/// Turns of one run.
const TURNS: u64 = 60;
/// Token ids that stand for one word: no other word has two of them in this order.
const TOKENS_PER_WORD: u64 = 3;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

fn word(n: u64) -> String {
    format!("quixo{n:05}marvel")
}

fn tokens_of(n: u64) -> Vec<Token> {
    let first = 1_000_000 + n * TOKENS_PER_WORD;
    (first..first + TOKENS_PER_WORD)
        .map(|token| token as Token)
        .collect()
}

/// The words of a conversation.
type Words = Vec<u64>;

struct Run {
    rng: Rng,
    world: suite::World,
    next_word: u64,
    /// Conversations that may go on or fork, each with its last turn.
    open: Vec<(Words, Turn)>,
    /// The words of every turn that was recorded.
    turns: BTreeMap<TurnId, Words>,
}

impl Run {
    fn words(&mut self, n: usize) -> Words {
        let first = self.next_word;
        self.next_word += n as u64;
        (first..self.next_word).collect()
    }

    /// A turn whose messages, tokens and answer hold its words and nobody else's.
    async fn record(&mut self, words: Words, before: Option<&Turn>, scope: &Scope) {
        let mut turn = self.world.turn();
        turn.scope = scope.clone();
        if let Some(before) = before {
            turn.session = before.session;
            // A stop leaves the next turn without a parent.
            turn.parent = (self.rng.below(3) > 0).then_some(before.id);
        }
        turn.messages = words
            .iter()
            .map(|n| Message::text(Role::User, format!("my secret is {}", word(*n))))
            .collect();
        turn.prompt_tokens = words
            .iter()
            .flat_map(|n| tokens_of(*n).into_iter().cycle().take(300))
            .collect();
        let answer = self.words(1);
        turn.completion_text = word(answer[0]);
        let tokens = tokens_of(answer[0]);
        let (logprobs, kept) = (vec![-0.5; tokens.len()], vec![None; tokens.len()]);
        let completion = Completion::new(
            tokens,
            logprobs.clone(),
            logprobs,
            kept,
            StopReason::EndToken,
        );
        turn.completion = completion.unwrap();
        turn.spans[0].end = TOKENS_PER_WORD as u32;
        self.world.record(&turn).await;
        let all = words.iter().chain(&answer).copied().collect();
        self.turns.insert(turn.id, all);
        let heard = match self.rng.below(4) {
            // The client did not see the answer and goes on without it.
            0 => words,
            _ => [words, answer].concat(),
        };
        self.open.push((heard, turn));
    }

    async fn talk(&mut self) {
        let scopes = [self.world.scope(), Scope::of("other", None)];
        for _ in 0..TURNS {
            let more = 1 + self.rng.below(3);
            let new = self.words(more);
            match self.rng.below(6) {
                0 => {
                    let scope = &scopes[self.rng.below(scopes.len())];
                    self.record(new, None, scope).await;
                }
                // Another session that begins with the words of this one.
                1 if !self.open.is_empty() => {
                    let at = self.rng.below(self.open.len());
                    let words = [self.open[at].0.clone(), new].concat();
                    let scope = &scopes[self.rng.below(scopes.len())];
                    self.record(words, None, scope).await;
                }
                _ if self.open.is_empty() => self.record(new, None, &scopes[0]).await,
                // It goes on, mostly from where it is, sometimes from where it was.
                fork => {
                    let last = self.open.len() - 1;
                    let at = if fork == 2 {
                        self.rng.below(last + 1)
                    } else {
                        last
                    };
                    let (words, before) = self.open[at].clone();
                    let words = [words, new].concat();
                    let scope = before.scope.clone();
                    self.record(words, Some(&before), &scope).await;
                }
            }
        }
    }

    fn wish(&mut self, n: u128) -> ForgetWish {
        let scope = self.world.scope();
        let own: Vec<&Turn> = self
            .open
            .iter()
            .map(|(_, turn)| turn)
            .filter(|turn| turn.scope == scope)
            .collect();
        let turn = own[self.rng.below(own.len())];
        let what = match self.rng.below(3) {
            0 => ForgetWhat::All,
            1 => ForgetWhat::Session(turn.session),
            _ => ForgetWhat::Turns(vec![turn.id]),
        };
        ForgetWish {
            id: ForgetId(uuid::Uuid::from_u128(n)),
            scope,
            owner: "owner".to_owned(),
            what,
            now_ms: i64::MAX / 2,
            entry: AuditEntry {
                at_ms: 1,
                actor: "owner".to_owned(),
                act: "forget".to_owned(),
                object: String::new(),
                detail: serde_json::Value::Null,
            },
        }
    }
}

/// Finishes what is under way, and says where `seed` found something that is gone.
async fn finish(ledger: &SqliteLedger, piece: usize) {
    for id in ledger.forgets_under_way().await.unwrap() {
        while ledger.forget_piece(id, piece).await.unwrap() != ForgetStep::Done {}
    }
}

/// The words of `turns` that no turn of the ledger has any more.
async fn gone(ledger: &SqliteLedger, turns: &BTreeMap<TurnId, Words>) -> BTreeSet<u64> {
    let mut gone: BTreeSet<u64> = turns.values().flatten().copied().collect();
    for (id, words) in turns {
        if ledger.turn(*id).await.unwrap().is_some() {
            for word in words {
                gone.remove(word);
            }
        }
    }
    gone
}

/// What of `gone` is in a file of the folder.
fn found(folder: &Path, gone: &BTreeSet<u64>) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        for n in gone {
            let tokens = tokens_to_bytes(&tokens_of(*n));
            for needle in [word(*n).as_bytes(), &tokens] {
                if bytes.windows(needle.len()).any(|window| window == needle) {
                    found.push(format!(
                        "{} of word {n} in {}",
                        needle.len(),
                        path.display()
                    ));
                }
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[tokio::test]
async fn what_is_forgotten_is_in_no_file() {
    let mut erased = 0;
    for seed in 0..SEEDS {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
        let mut run = Run {
            rng: Rng(seed),
            world: suite::World::new(ledger.clone()),
            next_word: 0,
            open: Vec::new(),
            turns: BTreeMap::new(),
        };
        run.talk().await;
        let wish = run.wish(u128::from(seed) + 1);
        ledger.begin_forget(&wish).await.unwrap();
        let piece = [1, 2, 3, 64, 1_000][run.rng.below(5)];
        // As a process leaves the folder that dies between two pieces.
        let crash = tempfile::tempdir().unwrap();
        for _ in 0..run.rng.below(12) {
            ledger.forget_piece(wish.id, piece).await.unwrap();
        }
        copy(folder.path(), crash.path());
        finish(&ledger, piece).await;
        let at = format!("seed {seed}, {:?} in pieces of {piece}", wish.what);
        let lost = gone(&ledger, &run.turns).await;
        erased += lost.len();
        assert_eq!(found(folder.path(), &lost), Vec::<String>::new(), "{at}");
        run.world.assert_lawful(&at).await;

        let config = SqliteConfig::in_folder(crash.path());
        let again = SqliteStore::open(&config).await.unwrap();
        finish(&again, piece).await;
        assert_eq!(gone(&again, &run.turns).await, lost, "{at}");
        assert_eq!(found(crash.path(), &lost), Vec::<String>::new(), "{at}");
        let broken = again.check_laws().await.unwrap();
        assert_eq!(broken, Vec::<String>::new(), "{at}");
    }
    assert!(
        erased > 500,
        "only {erased} words went, so the runs prove little"
    );
}

/// What an older program left behind goes at the next start.
#[tokio::test]
async fn what_was_left_behind_is_swept() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let ledger = SqliteStore::open(&config).await.unwrap();
    let left = format!(
        "insert into messages (hash, body) values (x'01', cast('{}' as blob));
         insert into histories (hash, parent_number, message_number)
         select x'02', null, number from messages where hash = x'01';
         insert into histories (hash, parent_number, message_number)
         select x'03', histories.number, message_number from histories;
         insert into token_blocks (hash, parent_number, tokens) values (x'01', null, x'{}');
         delete from _sqlx_migrations where version = 18",
        word(7),
        tokens_to_bytes(&tokens_of(7))
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>(),
    );
    let mut writer = ledger.store.writer.take().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(left))
        .execute(&mut *writer)
        .await
        .unwrap();
    drop(writer);
    ledger.close().await;
    drop(ledger);
    let gone = BTreeSet::from([7]);
    assert_eq!(found(folder.path(), &gone).len(), 2, "it is there");
    let ledger = SqliteStore::open(&config).await.unwrap();
    while ledger.sweep(1).await.unwrap() != ForgetStep::Done {}
    assert_eq!(found(folder.path(), &gone), Vec::<String>::new());
    assert_eq!(ledger.check_laws().await.unwrap(), Vec::<String>::new());
}
