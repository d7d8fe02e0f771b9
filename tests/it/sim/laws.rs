//! Every law, checked over the ledger, the blobs, what the clients were told and what serve sees.

use std::collections::HashMap;

use hone_domain::{Blobs, Fate, Policy, PolicyVersion, Scope, Stage, TurnId, invariants};
use hone_ledger::{Ledger, TurnRow, reason_at_record};

use super::trainer::{ADAPTER_FILE, digest_of};
use super::users::Told;
use super::world::World;

/// More than a run has.
const ALL: usize = 100_000;

/// What is broken, as sentences.
pub(super) async fn broken(world: &World) -> Vec<String> {
    let mut broken = world.ledger.check_laws().await.unwrap();
    broken.extend(world.ledger.log(|log| log.broken.clone()));
    let heads = world.raw.heads().await.unwrap();
    visible(world, &heads, &mut broken);
    let rows = world.raw.turns(None, ALL).await.unwrap();
    let rows: HashMap<TurnId, TurnRow> = rows.into_iter().map(|row| (row.id, row)).collect();
    told(world, &rows, &mut broken);
    published(world, (&rows, &heads), &mut broken);
    counted(world, &mut broken);
    broken
}

fn note(broken: &mut Vec<String>, law: Result<(), invariants::Broken>) {
    broken.extend(law.err().map(|law| law.to_string()));
}

/// P3, and that serve sees nothing that the ledger does not hold.
fn visible(world: &World, heads: &[Policy], broken: &mut Vec<String>) {
    let seen = world.gateway.policies.get();
    let mut all: Vec<&Policy> = heads.iter().chain(seen.iter()).collect();
    all.sort_by_key(|p| (&p.scope, p.version));
    all.dedup();
    for policy in all {
        let file = world.blobs.inner.get(&policy.blob, ADAPTER_FILE);
        let digest = file.ok().map(|bytes| digest_of(&bytes));
        note(broken, invariants::visible_is_durable(policy, digest));
    }
    for policy in seen.iter() {
        let head = version_of(heads, &policy.scope);
        if policy.version > head {
            let (scope, version) = (&policy.scope, policy.version);
            broken.push(format!(
                "serve sees version {version} of {scope}, the ledger's newest is {head}"
            ));
        }
    }
}

fn version_of(heads: &[Policy], scope: &Scope) -> PolicyVersion {
    let head = heads.iter().find(|p| p.scope == *scope);
    head.map(|p| p.version).unwrap_or_default()
}

/// Promises made to clients.
fn told(world: &World, rows: &HashMap<TurnId, TurnRow>, broken: &mut Vec<String>) {
    for asked in &world.users.asked {
        let id = asked.turn.id;
        let row = rows.get(&id);
        let trained = row.is_some_and(|row| matches!(row.fate, Fate::Trained { .. }));
        match asked.told {
            Told::Collected if row.is_none() => {
                broken.push(format!(
                    "turn {id} was acknowledged and is not in the ledger"
                ));
            }
            Told::NotCollected if trained => {
                broken.push(format!(
                    "turn {id} was trained, and its client was told it is not collected"
                ));
            }
            _ => {}
        }
        if trained && let Some(reason) = reason_at_record(&asked.turn) {
            broken.push(format!("turn {id} was trained in spite of {reason:?}"));
        }
    }
}

/// P2, and that who was trained is what was published.
fn published(
    world: &World,
    (rows, heads): (&HashMap<TurnId, TurnRow>, &[Policy]),
    broken: &mut Vec<String>,
) {
    for asked in &world.users.asked {
        let id = asked.turn.id;
        let Some(row) = rows.get(&id) else { continue };
        let newest = version_of(heads, &row.scope);
        note(
            broken,
            invariants::spans_are_published(&asked.turn.spans, newest),
        );
        let published = world.ledger.log(|log| log.trained.get(&id).copied());
        let trained = match row.fate {
            Fate::Trained { version } => Some(version),
            _ => None,
        };
        if published != trained {
            broken.push(format!(
                "turn {id} is {:?} and entered version {published:?}",
                row.fate
            ));
        }
    }
}

/// S1.
fn counted(world: &World, broken: &mut Vec<String>) {
    let number = |name| world.collect.number(name);
    let law = invariants::turns_are_accounted(
        number("turns_handed_total"),
        number("turns_recorded_total") + number("turns_spooled_total"),
        number("turns_dropped_total"),
        number("turns_held"),
    );
    note(broken, law);
}

/// After everything came to rest: every turn has its fate, every client its answer, and what is
/// acknowledged reads back as it was.
pub(super) async fn unfinished(world: &World) -> Vec<String> {
    let mut broken = Vec::new();
    let mut waiting: HashMap<Scope, usize> = HashMap::new();
    for row in world.raw.turns(None, ALL).await.unwrap() {
        match row.fate {
            Fate::Trained { .. } | Fate::Settled { .. } => {}
            Fate::Pending {
                stage: Stage::AwaitingTraining,
            } => *waiting.entry(row.scope).or_default() += 1,
            Fate::Pending { stage } => {
                broken.push(format!("turn {} still waits: {stage:?}", row.id));
            }
        }
    }
    let least = world.train_config.batch_turns_min;
    let too_many = waiting.iter().filter(|(_, count)| **count >= least);
    broken.extend(too_many.map(|(scope, n)| format!("{n} turns of {scope} were not trained")));
    for asked in &world.users.asked {
        let id = asked.turn.id;
        if asked.waiting.is_some() {
            broken.push(format!("the client of turn {id} never got its receipt"));
        }
        if asked.told.is_promised() {
            let view = world.raw.turn(id).await.unwrap();
            if view.is_none_or(|view| view.turn != asked.turn) {
                broken.push(format!("turn {id} reads back otherwise"));
            }
        }
    }
    let seen = world.gateway.policies.get();
    for head in world.raw.heads().await.unwrap() {
        if seen.newest(&head.scope) != Some(&head) {
            let (scope, version) = (head.scope, head.version);
            broken.push(format!("serve never saw version {version} of {scope}"));
        }
    }
    broken
}
