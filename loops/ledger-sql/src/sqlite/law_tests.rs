//! Broken laws are found: each is planted with SQL, behind the ledger's back.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::{SqliteConfig, SqliteStore};
use hone_ledger::{Ledger, suite};

struct Planted {
    name: &'static str,
    /// Takes the constraint away, where one stands before the violation.
    sql: &'static str,
    /// What one of the sentences says.
    says: &'static str,
}

const PLANTED: &[Planted] = &[
    Planted {
        name: "a job that ended at no time",
        sql: "insert into task_sets (id, owner, name, created_ms) values (x'01', 'o', x'61', 1);
              insert into tasks (id, set_number, name, held_out, spec, files, has_solution, state)
              values (x'01', 1, x'61', 0, x'7b7d', x'7b7d', 0, 'ready');
              insert into jobs (id, kind, owner, scope_number, group_id, member, task_number, attempt, state,
                  priority, not_before_ms, created_ms, ended_ms)
              values (x'01', 'episode', 'o', 1, x'01', 0, 1, 1, 'done', 0, 0, 0, null)",
        says: "1 jobs ended without a time",
    },
    Planted {
        name: "an attempt that nobody follows",
        sql: "insert into task_sets (id, owner, name, created_ms) values (x'01', 'o', x'61', 1);
              insert into tasks (id, set_number, name, held_out, spec, files, has_solution, state)
              values (x'01', 1, x'61', 0, x'7b7d', x'7b7d', 0, 'ready');
              insert into jobs (id, kind, owner, scope_number, group_id, member, task_number, attempt, state,
                  priority, not_before_ms, created_ms, ended_ms)
              values (x'01', 'episode', 'o', 1, x'01', 0, 1, 1, 'retried', 0, 0, 0, 5)",
        says: "1 jobs were to be tried again",
    },
    Planted {
        name: "rewards of a group that goes on",
        sql: "insert into task_sets (id, owner, name, created_ms) values (x'01', 'o', x'61', 1);
              insert into tasks (id, set_number, name, held_out, spec, files, has_solution, state)
              values (x'01', 1, x'61', 0, x'7b7d', x'7b7d', 0, 'ready');
              insert into jobs (id, kind, owner, scope_number, group_id, member, task_number, attempt, state,
                  priority, not_before_ms, created_ms, ended_ms)
              values (x'01', 'episode', 'o', 1, x'01', 0, 1, 1, 'queued', 0, 0, 0, null),
                     (x'02', 'credit', 'o', 1, x'01', 0, 1, 1, 'done', 0, 0, 0, 5)",
        says: "1 jobs give the rewards of a group",
    },
    Planted {
        name: "a revision that nobody wrote",
        sql: "insert into unread (consumer, turn_number, is_new, revision)
              select 'nobody', max(number), 1, 9 from turns",
        says: "nobody has 1 turns to read",
    },
    Planted {
        name: "a gap in the versions",
        sql: "update versions set version = 7 where version = 2",
        says: "law P1 is broken: version 7 after 1",
    },
    Planted {
        name: "a parent that does not exist",
        sql: "pragma ignore_check_constraints = on; update versions set parent = 5 where version = 2",
        says: "names the parent 5, which does not exist",
    },
    Planted {
        name: "two transitions of one turn",
        sql: "drop index transitions_one_per_turn;
              insert into transitions (id, turn_number, next_state, settled_ms)
              select x'0102030405060708090a0b0c0d0e0f10', turn_number, next_state, settled_ms
              from transitions limit 1",
        says: "law C1 is broken: 2 transitions",
    },
    Planted {
        name: "a transition of a side turn",
        sql: "update turns set kind = 'side'",
        says: "law C1 is broken: 1 transitions of a Side turn",
    },
    Planted {
        name: "two current verdicts",
        sql: "drop index verdicts_one_current;
              insert into verdicts (id, transition_number, revision, current, score, judged_ms)
              select x'0102030405060708090a0b0c0d0e0f10', transition_number, 9, 1, 1, judged_ms
              from verdicts limit 1",
        says: "law J1 is broken: 2 current verdicts",
    },
    Planted {
        name: "a sample trained twice",
        sql: "drop index version_samples_once;
              insert into version_samples (scope_number, version, transition_number)
              select scope_number, 2, transition_number from version_samples where version = 1",
        says: "law L2 is broken: trained 2 times",
    },
    Planted {
        name: "a trained turn without a version",
        sql: "delete from version_samples where version = 2",
        says: "disagree about whether it was trained",
    },
    Planted {
        name: "a version that claims more samples",
        sql: "update versions set samples = 3 where version = 1",
        says: "does not have as many samples as it says",
    },
    Planted {
        name: "spans that leave tokens out",
        sql: "update turn_payloads set spans = x''",
        says: "law T1 is broken: spans end at 0 of 3 tokens",
    },
    Planted {
        name: "arrays of different length",
        sql: "update turn_payloads set behavior_logprobs = x'00000000'",
        says: "completion arrays differ in length",
    },
    Planted {
        name: "a turn that waits for training without a verdict",
        sql: "update turns set stage = 'awaiting_training', trained_version = null, score = null;
              delete from votes; delete from verdicts",
        says: "has a fate that its transition and verdict do not explain",
    },
    Planted {
        name: "a turn without its large half",
        sql: "delete from turn_payloads where turn_number = 1",
        says: "has no payload",
    },
    Planted {
        name: "a message of no turn",
        sql: "insert into messages (hash, body) values (x'01', x'7b7d');
              insert into histories (hash, parent_number, message_number)
              select x'02', null, number from messages where hash = x'01'",
        says: "law E1 is broken: 1 kept for no turn (messages in a conversation)",
    },
    Planted {
        name: "prompt tokens of no turn",
        sql: "insert into token_blocks (hash, parent_number, tokens) values (x'01', null, x'')",
        says: "law E1 is broken: 1 kept for no turn (blocks of prompt tokens)",
    },
    Planted {
        name: "a session of no turn",
        sql: "insert into sessions (id, owner, scope_number, first_ms, last_ms)
              select x'01', owner, scope_number, 0, 0 from sessions limit 1",
        says: "law E1 is broken: 1 kept for no turn (sessions)",
    },
    Planted {
        name: "a wrong count",
        sql: "update fate_counts set turns = turns + 1 where fate = 'trained'",
        says: "3 turns are counted as trained, there are 2",
    },
    Planted {
        name: "a wrong count of a scope",
        sql: "update scope_counts set judged = judged + 1 where fate = 'trained'",
        says: "are not as many as counted as trained",
    },
    Planted {
        name: "a wrong sum of scores",
        sql: "insert into version_scores select number, 99, 1, 5 from scopes limit 1",
        says: "the scores of version 99",
    },
];

#[tokio::test]
async fn broken_laws_are_found() {
    for planted in PLANTED {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
        let world = suite::World::new(ledger.clone());
        world.publish_next(0).await;
        world.publish_next(1).await;
        world.assert_lawful("before planting").await;
        sqlx::raw_sql("pragma foreign_keys = off")
            .execute(&mut *ledger.store.writer.take().await.unwrap())
            .await
            .unwrap();
        sqlx::raw_sql(planted.sql)
            .execute(&mut *ledger.store.writer.take().await.unwrap())
            .await
            .unwrap();
        let broken = ledger.check_laws().await.unwrap();
        assert!(
            broken.iter().any(|b| b.contains(planted.says)),
            "{}: {broken:#?}",
            planted.name
        );
    }
}

/// The constraints themselves stop what the laws forbid.
#[tokio::test]
async fn constraints_stand_before_the_laws() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let world = suite::World::new(ledger.clone());
    world.publish_next(0).await;
    for (sql, says) in [
        (
            "insert into transitions (id, turn_number, next_state, settled_ms)
             select x'01', turn_number, next_state, settled_ms from transitions",
            "transitions.turn_number",
        ),
        (
            "insert into verdicts (id, transition_number, revision, current, score, judged_ms)
             select x'01', transition_number, 9, 1, 1, judged_ms from verdicts",
            "verdicts.transition_number",
        ),
        (
            "insert into version_samples select scope_number, version, transition_number
             from version_samples",
            "version_samples.transition_number",
        ),
        (
            "update turns set stage = 'awaiting_verdict'",
            "turns_one_fate",
        ),
        ("update verdicts set score = 1.5", "verdicts_score_range"),
        (
            "update versions set parent = version",
            "versions_parent_older",
        ),
        ("delete from versions", "FOREIGN KEY"),
    ] {
        let error = sqlx::raw_sql(sql)
            .execute(&mut *ledger.store.writer.take().await.unwrap())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{sql}: {error}");
    }
}
