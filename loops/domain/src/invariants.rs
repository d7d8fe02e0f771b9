//! The laws as named predicates. The doctor checks them on a ledger; tests and the simulator assert them.

use crate::{Policy, PolicyVersion, Turn, TurnKind, VersionSpan};

/// A broken law: its id and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("law {law} is broken: {seen}")]
pub struct Broken {
    /// The law's id.
    pub law: &'static str,
    /// What was seen instead.
    pub seen: String,
}

fn holds(law: &'static str, good: bool, seen: impl FnOnce() -> String) -> Result<(), Broken> {
    if good {
        Ok(())
    } else {
        Err(Broken { law, seen: seen() })
    }
}

/// P1: versions of a scope grow by exactly one.
pub fn versions_grow_by_one(head: PolicyVersion, next: PolicyVersion) -> Result<(), Broken> {
    holds("P1", next == head.next(), || {
        format!("version {next} after {head}")
    })
}

/// P2: a span's version is never newer than the newest published one.
pub fn spans_are_published(spans: &[VersionSpan], newest: PolicyVersion) -> Result<(), Broken> {
    match spans.iter().find(|s| s.version > newest) {
        None => Ok(()),
        Some(s) => holds("P2", false, || {
            format!("span of version {} with newest {newest}", s.version)
        }),
    }
}

/// P3: a version is visible only after its files are durable and have its digest.
pub fn visible_is_durable(
    policy: &Policy,
    digest_on_disk: Option<crate::Digest>,
) -> Result<(), Broken> {
    holds("P3", digest_on_disk == Some(policy.digest), || {
        format!(
            "version {} of {} has digest {:?} on disk",
            policy.version, policy.scope, digest_on_disk
        )
    })
}

/// T1: spans cover the completion exactly, in order.
pub fn spans_cover(turn: &Turn) -> Result<(), Broken> {
    let mut at = 0;
    for span in &turn.spans {
        if span.start != at || span.end < span.start {
            return holds("T1", false, || {
                format!("span {}..{} after {at}", span.start, span.end)
            });
        }
        at = span.end;
    }
    holds("T1", at as usize == turn.completion.len(), || {
        format!("spans end at {at} of {} tokens", turn.completion.len())
    })
}

/// C1: a main turn has at most one current transition, a side turn none.
pub fn transitions_of(kind: TurnKind, current: usize) -> Result<(), Broken> {
    let most = usize::from(kind == TurnKind::Main);
    holds("C1", current <= most, || {
        format!("{current} transitions of a {kind:?} turn")
    })
}

/// J1: a transition has at most one current verdict.
pub fn verdicts_of(current: usize) -> Result<(), Broken> {
    holds("J1", current <= 1, || format!("{current} current verdicts"))
}

/// L1: no sample older than the limit enters a policy-gradient batch. `staleness` counts versions
/// learned since the sample, along the lineage of the newest.
pub fn fresh_enough(staleness: u64, staleness_max_versions: u64) -> Result<(), Broken> {
    holds("L1", staleness <= staleness_max_versions, || {
        format!("staleness {staleness} with a limit of {staleness_max_versions}")
    })
}

/// L2: a transition is trained at most once per chain.
pub fn trained_once(times: usize) -> Result<(), Broken> {
    holds("L2", times <= 1, || format!("trained {times} times"))
}

/// E1: shared text and token ids that no turn uses are gone, or on the list of what goes.
pub fn kept_is_used(unused: u64) -> Result<(), Broken> {
    holds("E1", unused == 0, || format!("{unused} kept for no turn"))
}

/// S1: what serve handed over equals what collect recorded, dropped or still holds.
pub fn turns_are_accounted(
    handed: u64,
    recorded: u64,
    dropped: u64,
    held: u64,
) -> Result<(), Broken> {
    holds("S1", handed == recorded + dropped + held, || {
        format!("{handed} handed over, {recorded} recorded, {dropped} dropped, {held} held")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_tell_good_from_bad() {
        let v = PolicyVersion;
        assert!(versions_grow_by_one(v(3), v(4)).is_ok());
        assert!(versions_grow_by_one(v(3), v(5)).is_err());
        assert!(fresh_enough(2, 2).is_ok());
        assert!(fresh_enough(3, 2).is_err());
        assert!(transitions_of(TurnKind::Side, 1).is_err());
        assert!(transitions_of(TurnKind::Main, 1).is_ok());
        assert!(verdicts_of(2).is_err());
        assert!(trained_once(2).is_err());
        assert!(kept_is_used(0).is_ok());
        assert!(kept_is_used(1).is_err());
        assert!(turns_are_accounted(5, 3, 1, 1).is_ok());
        assert!(turns_are_accounted(5, 3, 1, 0).is_err());
        let span = VersionSpan {
            version: v(2),
            start: 0,
            end: 1,
        };
        assert!(spans_are_published(&[span], v(1)).is_err());
    }
}
