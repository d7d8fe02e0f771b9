//! Which tasks are tried next.

use hone_domain::{GroupId, TaskId, learnability};
use hone_ledger::{NewGroups, OpenRollout, TaskRow};

/// How sharply tasks are preferred that teach much (the exponent of prioritised replay, Schaul et al. 2016,
/// arXiv 1511.05952, equation 1).
const SHARPNESS: f64 = 0.6;
/// The share of groups whose task is drawn evenly, so that every task stays measured.
const EVEN_SHARE: f64 = 0.2;

/// The groups that a rollout begins so that at least `jobs` of its jobs wait for a process; none where it has enough, or no
/// task to try. `draw` makes ids, whose bits are the draws.
pub(crate) fn groups(
    open: &OpenRollout,
    jobs: usize,
    mut draw: impl FnMut() -> GroupId,
) -> Option<NewGroups> {
    let wanted = (jobs as u64).saturating_sub(open.queued_jobs);
    let groups = wanted.div_ceil(u64::from(open.spec.attempts.max(1)));
    let left = open.spec.groups.saturating_sub(open.groups_made);
    let groups = groups.min(u64::from(left));
    if groups == 0 || open.tasks.is_empty() {
        return None;
    }
    let begun = (0..groups).filter_map(|at| {
        let group = draw();
        let ordinal = u64::from(open.groups_made) + at;
        let task = match open.spec.evaluates {
            // Each as often as the others.
            true => {
                open.tasks
                    .get((ordinal % open.tasks.len() as u64) as usize)?
                    .id
            }
            false => chosen(&open.tasks, unit(group))?,
        };
        Some((group, task))
    });
    Some(NewGroups {
        rollout: open.id,
        after: open.groups_made,
        groups: begun.collect(),
        priority: 0.0,
    })
}

/// A number in [0, 1) of an id's random bits.
fn unit(id: GroupId) -> f64 {
    let bits = id.0.as_u64_pair().1 & ((1 << 53) - 1);
    bits as f64 / (1u64 << 53) as f64
}

/// `P(task) = 0.8 · ℓ^0.6 / Σ ℓ^0.6 + 0.2 / n` with the learnability ℓ of [`learnability`].
fn chosen(tasks: &[TaskRow], draw: f64) -> Option<TaskId> {
    let weight = |task: &TaskRow| learnability(task.tries, task.rewards).powf(SHARPNESS);
    let sum: f64 = tasks.iter().map(weight).sum();
    let mut left = draw;
    for task in tasks {
        left -= (1.0 - EVEN_SHARE) * weight(task) / sum + EVEN_SHARE / tasks.len() as f64;
        if left < 0.0 {
            return Some(task.id);
        }
    }
    tasks.last().map(|task| task.id)
}

#[cfg(test)]
mod tests {
    use hone_domain::{AgentKind, RolloutId, RolloutSpec, TaskSpec, TaskState};
    use uuid::Uuid;

    use super::*;

    fn task(number: u8, tries: u64, rewards: f64) -> TaskRow {
        TaskRow {
            id: TaskId(Uuid::from_u128(u128::from(number))),
            name: number.to_string(),
            held_out: false,
            spec: TaskSpec {
                instruction: String::new(),
                answer_file: None,
                agent_seconds: 1,
                verifier_seconds: 1,
            },
            has_solution: false,
            state: TaskState::Ready,
            note: None,
            tries,
            rewards,
        }
    }

    fn open(evaluates: bool, tasks: Vec<TaskRow>) -> OpenRollout {
        OpenRollout {
            id: RolloutId(Uuid::from_u128(9)),
            spec: RolloutSpec {
                agent: AgentKind::Bash,
                command: None,
                attempts: 4,
                groups: 10,
                evaluates,
                version: None,
                steps_max: 1,
                tokens_max: 1,
                temperature: 1.0,
            },
            groups_made: 7,
            queued_jobs: 3,
            tasks,
        }
    }

    fn drawn() -> impl FnMut() -> GroupId {
        let mut state = 1u64;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            GroupId(Uuid::from_u64_pair(state, state >> 11))
        }
    }

    #[test]
    fn as_many_groups_begin_as_keep_workers_busy() {
        let one = || vec![task(1, 0, 0.0)];
        let count = |open: &OpenRollout, jobs| {
            groups(open, jobs, drawn()).map_or(0, |new| new.groups.len())
        };
        let rollout = open(false, one());
        assert_eq!(count(&rollout, 3), 0);
        assert_eq!(count(&rollout, 4), 1);
        assert_eq!(count(&rollout, 8), 2);
        // No more than it has left, and none without tasks.
        assert_eq!(count(&rollout, 1_000), 3);
        assert_eq!(count(&open(false, Vec::new()), 1_000), 0);
    }

    #[test]
    fn measuring_takes_each_task_as_often() {
        let rollout = open(true, vec![task(1, 0, 0.0), task(2, 0, 0.0)]);
        let new = groups(&rollout, 1_000, drawn())
            .map(|new| new.groups)
            .unwrap_or_default();
        let numbers: Vec<u128> = new.iter().map(|(_, task)| task.0.as_u128()).collect();
        assert_eq!(numbers, [2, 1, 2]);
    }

    /// Half solved 2.1 times as often as solved, by the formula: ℓ is 1 and 4 · 17/18 · 1/18.
    #[test]
    fn what_teaches_most_is_tried_most_and_nothing_is_left_out() {
        let tasks = [task(1, 16, 8.0), task(2, 16, 16.0), task(3, 0, 0.0)];
        let mut counts = [0u32; 3];
        let mut draw = drawn();
        for _ in 0..20_000 {
            let task = chosen(&tasks, unit(draw())).map_or(0, |id| id.0.as_u128());
            counts[task as usize - 1] += 1;
        }
        let [half, solved, untried] = counts.map(|count| f64::from(count) / 20_000.0);
        let weight = (4.0f64 * 17.0 / 18.0 / 18.0).powf(0.6);
        let expected = 0.8 * weight / (2.0 + weight) + 0.2 / 3.0;
        assert!((solved - expected).abs() < 0.02, "{solved} not {expected}");
        assert!((half - untried).abs() < 0.02, "{half} and {untried}");
    }
}
