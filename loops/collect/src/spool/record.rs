//! What waits in the spool, in the order in which it is to reach the ledger.

use std::borrow::Cow;

use hone_domain::{Reason, Transition, Turn, TurnId};
use serde::{Deserialize, Serialize};

/// One thing for the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record<'a> {
    /// A turn, with the mark that [`hone_ledger::Ledger::record_spooled`] takes.
    Turn { turn: Box<Cow<'a, Turn>>, mark: i64 },
    /// The next state of a turn.
    Next(Cow<'a, Transition>),
    /// A turn that ends without a next state.
    Settle(TurnId, Reason),
}

impl Record<'_> {
    /// As it is stored.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// From what was stored.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Record<'static>, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hone_domain::{Completion, NextState, StopReason, TransitionId};
    use uuid::Uuid;

    use super::*;
    use crate::testing::{observed, turn};

    #[test]
    fn a_turn_comes_back_as_it_was() {
        let mut turn = turn(1, 2);
        let logprobs = vec![-0.1, f32::MIN_POSITIVE * -3.0, -16.777_217];
        let kept: Arc<[u32]> = Arc::from([4, 7]);
        turn.completion = Completion::new(
            vec![4, 7, 9],
            logprobs.clone(),
            logprobs,
            vec![Some(kept.clone()), None, Some(kept)],
            StopReason::ToolCall,
        )
        .unwrap()
        .with_experts(vec![1, 2, 3])
        .unwrap();
        turn.sampling.temperature = 0.7;
        turn.completion_text = "a \"quoted\" line\n\0 \u{1f980}".to_owned();
        turn.untrainable = Some(Reason::LateReceipt);
        turn.admission
            .metadata
            .insert("k".to_owned(), "v".to_owned());
        let check = serde_json::json!({
            "name": "n", "verifier": {"kind": "numeric", "expected": 0.1}
        });
        turn.admission.checks = vec![serde_json::from_value(check).unwrap()];
        let stored = Record::Turn {
            turn: Box::new(Cow::Borrowed(&turn)),
            mark: i64::MIN,
        };
        let bytes = stored.to_bytes().unwrap();
        assert_eq!(Record::from_bytes(&bytes).unwrap(), stored);
    }

    #[test]
    fn next_states_and_settled_turns_come_back_as_they_were() {
        let observed = observed(1, 2);
        let next = Transition {
            id: TransitionId(Uuid::from_u128(7)),
            turn: observed.parent,
            session: observed.session,
            scope: observed.scope.clone(),
            next_state: observed.next_state,
            next_turn: Some(TurnId(Uuid::from_u128(8))),
            settled_ms: -5,
        };
        let silent = Transition {
            next_state: NextState::feedback(),
            next_turn: None,
            ..next.clone()
        };
        for record in [
            Record::Next(Cow::Owned(next)),
            Record::Next(Cow::Owned(silent)),
            Record::Settle(observed.parent, Reason::NotChosen),
        ] {
            let bytes = record.to_bytes().unwrap();
            assert_eq!(Record::from_bytes(&bytes).unwrap(), record);
        }
        assert!(Record::from_bytes(b"{\"unknown\":1}").is_err());
    }
}
