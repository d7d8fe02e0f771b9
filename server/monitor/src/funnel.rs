//! How far turns come on their way to being learned from by a hint.

use std::collections::BTreeMap;

use hone_runtime::LoopStatus;

/// Which number of which loop stands for each stage, the widest first. Chosen are those accepted for
/// which the policy chose among several; the others are trained as well.
const STAGES: [(&str, &str, &str); 6] = [
    ("turns", "collect", "turns_recorded_total"),
    ("judged", "judge", "judged_total"),
    ("hinted", "judge", "hint_offered_total"),
    ("accepted", "judge", "hinted_total"),
    ("chosen", "judge", "hints_chosen_total"),
    ("trained", "train", "hints_trained_total"),
];

/// Turns by stage since the loops began; 0 where a loop does not run here.
pub fn funnel(loops: &BTreeMap<&'static str, LoopStatus>) -> [(&'static str, u64); 6] {
    STAGES.map(|(stage, loop_name, number)| {
        let status = loops.get(loop_name);
        let value = status.and_then(|status| status.numbers.get(number));
        (stage, value.map_or(0, |value| *value as u64))
    })
}
