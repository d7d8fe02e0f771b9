//! How far turns come on their way to being learned from by a hint.

use std::collections::BTreeMap;

use hone_runtime::LoopStatus;

use crate::numbers::{
    HINTED, HINTS_CHOSEN, HINTS_OFFERED, HINTS_TRAINED, JUDGED, OwnNumber, TURNS_RECORDED,
};

/// Which number of which loop stands for each stage, the widest first. Chosen are those accepted for
/// which the policy chose among several; the others are trained as well.
const STAGES: [(&str, OwnNumber); 6] = [
    ("turns", TURNS_RECORDED),
    ("judged", JUDGED),
    ("hinted", HINTS_OFFERED),
    ("accepted", HINTED),
    ("chosen", HINTS_CHOSEN),
    ("trained", HINTS_TRAINED),
];

/// Turns by stage since the loops began; 0 where a loop does not run here.
pub fn funnel(loops: &BTreeMap<&'static str, LoopStatus>) -> [(&'static str, u64); 6] {
    STAGES.map(|(stage, number)| (stage, number.read(loops).map_or(0, |value| value as u64)))
}
