//! How many files and connections this process may have open at once.

/// Descriptors that connections leave alone: the ledger, adapters, the model, logs, calls to others.
const RESERVE: u64 = 256;

/// Raises the soft limit of open files to the hard one, and says what it is; none where it is unlimited or
/// not known.
pub(crate) fn raise() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current?;
    if limit.maximum.is_some_and(|hard| hard <= soft) {
        return Some(soft);
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files stays as it is");
            Some(soft)
        }
    }
}

/// How many connections fit under a limit of open files, at most those that are wanted. Of a small limit
/// connections get half.
pub(crate) fn connections(files: Option<u64>, wanted: usize) -> usize {
    let Some(files) = files else {
        return wanted;
    };
    let left = files.saturating_sub(RESERVE.min(files / 2)).max(1);
    usize::try_from(left).map_or(wanted, |left| left.min(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_reserve() {
        let rows = [
            (None, 4_096, 4_096),
            (Some(1 << 20), 4_096, 4_096),
            (Some(1_024), 4_096, 768),
            (Some(256), 4_096, 128),
            (Some(1_024), 100, 100),
            (Some(1), 4_096, 1),
        ];
        for (files, wanted, fit) in rows {
            assert_eq!(connections(files, wanted), fit, "{files:?}");
        }
        let raised = raise();
        assert_eq!(raise(), raised, "there is nothing left to raise");
    }
}
