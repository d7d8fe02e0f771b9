//! Cases of tasks, rollouts and jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_domain::{
    AgentKind, Digest, GroupId, Job, JobId, JobKind, JobReason, JobState, Millis, RolloutId,
    RolloutSpec, SessionId, TaskId, TaskManifest, TaskSetId, TaskSpec, TaskState,
};
use serde_json::{Value, json};

use super::personal::{begin, remove_all, wish};
use super::world::{ALL, LEASE, NOW, OWNER, World};
use crate::{
    ForgetWhat, JOB_ATTEMPTS_MAX, JobClaim, JobEnd, JobLease, JobOutcome, Jobs, Ledger,
    LedgerError, NewGroups, NewRollout, NewTask, NewTaskSet, NewTasks, Personal, Room, Window,
};

/// A ledger with makers of tasks.
pub(super) struct Case<L> {
    pub(super) world: World,
    pub(super) ledger: Arc<L>,
}

/// What decides on every task here.
pub(super) const TEST: &[u8] = &[0, 255, b'x'];
/// Room for any.
const ROOM: Room = Room {
    jobs: u64::MAX,
    untrained: 0,
};
const PAGE: Window = Window {
    limit: ALL,
    before: None,
};

impl<L: Ledger + Personal + Jobs + 'static> Case<L> {
    pub(super) fn new(ledger: Arc<L>) -> Self {
        Self {
            world: World::new(ledger.clone()),
            ledger,
        }
    }

    pub(super) fn task(&self, name: &str, held_out: bool) -> NewTask {
        NewTask {
            id: TaskId(self.world.batch().0),
            name: name.to_owned(),
            held_out,
            spec: TaskSpec {
                instruction: "Write 4 to a.txt.\0".to_owned(),
                answer_file: None,
                agent_seconds: 60,
                verifier_seconds: 60,
            },
            files: TaskManifest {
                tests: BTreeMap::from([("test.sh".to_owned(), Digest::of(TEST))]),
                ..TaskManifest::default()
            },
        }
    }

    pub(super) fn set(&self, name: &str, tasks: Vec<NewTask>) -> NewTaskSet {
        NewTaskSet {
            id: TaskSetId(self.world.batch().0),
            owner: OWNER.to_owned(),
            name: name.to_owned(),
            tasks: of(tasks),
        }
    }

    pub(super) async fn add(&self, set: &NewTaskSet) {
        let scope = self.world.scope();
        self.ledger
            .add_task_set(set, &scope, NOW)
            .await
            .expect("added");
    }

    /// A set of ready tasks, whose checks are done.
    async fn ready(&self, tasks: usize) -> NewTaskSet {
        let tasks = (0..tasks).map(|n| self.task(&format!("t{n}"), false));
        let set = self.set("set", tasks.collect());
        self.add(&set).await;
        for job in self.claim(ALL, NOW).await {
            assert_eq!(job.kind, JobKind::Check);
            self.end(&job, &settled(None), NOW).await.expect("ended");
        }
        for task in &set.tasks.tasks {
            let noted = self.ledger.note_task(task.id, TaskState::Ready, None);
            noted.await.expect("noted");
        }
        set
    }

    /// A rollout of `attempts` at the set's first task, begun.
    async fn begun(
        &self,
        set: &NewTaskSet,
        attempts: u32,
        evaluates: bool,
    ) -> (RolloutId, GroupId) {
        let id = RolloutId(self.world.batch().0);
        let new = NewRollout {
            id,
            owner: OWNER.to_owned(),
            scope: self.world.scope(),
            set: set.id,
            spec: spec(attempts, evaluates),
        };
        assert!(self.ledger.add_rollout(&new, NOW).await.expect("ordered"));
        let group = GroupId(self.world.batch().0);
        assert!(self.groups(id, 0, &[(group, set.tasks.tasks[0].id)]).await);
        (id, group)
    }

    async fn groups(&self, rollout: RolloutId, after: u32, groups: &[(GroupId, TaskId)]) -> bool {
        let new = NewGroups {
            rollout,
            after,
            groups: groups.to_vec(),
            priority: 0.0,
        };
        self.ledger.add_groups(&new, NOW).await.expect("begun")
    }

    pub(super) async fn claim(&self, limit: usize, now_ms: Millis) -> Vec<Job> {
        let claim = JobClaim {
            limit,
            lease_ms: LEASE,
            now_ms,
        };
        self.ledger.claim_jobs(&claim).await.expect("claimed")
    }

    pub(super) async fn end(
        &self,
        job: &Job,
        end: &JobEnd,
        now_ms: Millis,
    ) -> Result<(), LedgerError> {
        self.ledger.end_job(lease(job), end, now_ms).await
    }

    pub(super) async fn counts(&self) -> BTreeMap<(JobKind, JobState), u64> {
        let rows = self.ledger.queues(Some(OWNER)).await.expect("read");
        let mut counts = BTreeMap::new();
        for row in rows {
            *counts.entry((row.kind, row.state)).or_default() += row.count;
        }
        counts
    }
}

/// Tasks with the content that they have in common.
pub(super) fn of(tasks: Vec<NewTask>) -> NewTasks {
    NewTasks {
        tasks,
        contents: BTreeMap::from([(Digest::of(TEST), TEST.to_vec())]),
    }
}

fn spec(attempts: u32, evaluates: bool) -> RolloutSpec {
    RolloutSpec {
        agent: AgentKind::Bash,
        command: None,
        attempts,
        groups: 2,
        evaluates,
        version: None,
        steps_max: 4,
        tokens_max: 64,
        temperature: 1.0,
    }
}

fn lease(job: &Job) -> JobLease {
    JobLease {
        job: job.id,
        fence: job.fence,
    }
}

pub(super) fn settled(reward: Option<f32>) -> JobEnd {
    JobEnd::Settled {
        state: JobState::Done,
        reason: JobReason::Submitted,
        outcome: JobOutcome {
            reward,
            version: reward.map(|_| 3),
            session: None,
            result: json!({"steps": 2}),
        },
    }
}

pub(super) fn failed(retry_ms: Millis) -> JobEnd {
    JobEnd::Failed {
        reason: JobReason::Jail,
        result: Value::Null,
        retry_ms,
    }
}

/// What a rollout still has to begin counts, where it measures all of it and else one group; what waits for a later
/// attempt does not.
pub(super) async fn work_that_waits_is_counted<L: Ledger + Personal + Jobs + 'static>(
    case: &Case<L>,
) {
    let counted = async || {
        let rows = case.ledger.scaling().await.expect("read");
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(row.open, row.queued + row.running + row.to_begin);
        (row.role.clone(), [row.queued, row.running, row.to_begin])
    };
    let is = |counts| ("rollout".to_owned(), counts);
    assert_eq!(counted().await, is([0, 0, 0]));
    let set = case.ready(2).await;
    // Of two groups of three one is begun.
    let (measures, _) = case.begun(&set, 3, true).await;
    assert_eq!(counted().await, is([3, 0, 3]));
    let (learns, _) = case.begun(&set, 2, false).await;
    assert_eq!(counted().await, is([5, 0, 5]));
    let jobs = case.claim(2, NOW).await;
    assert_eq!(counted().await, is([3, 2, 5]));
    let far = Millis::MAX / 2;
    case.end(&jobs[0], &failed(far), NOW).await.expect("ended");
    case.end(&jobs[1], &settled(None), NOW)
        .await
        .expect("ended");
    assert_eq!(counted().await, is([3, 0, 5]));
    for rollout in [measures, learns] {
        case.ledger
            .cancel_rollout(OWNER, rollout, NOW)
            .await
            .expect("cancelled");
    }
    assert_eq!(counted().await, is([0, 0, 0]));
}

pub(super) async fn a_rollout_begins_its_groups_once<L: Ledger + Personal + Jobs + 'static>(
    case: &Case<L>,
) {
    let set = case.ready(2).await;
    let (rollout, _) = case.begun(&set, 3, false).await;
    let open = case.ledger.open_rollouts(ALL, ROOM).await.expect("read");
    assert_eq!(
        (open.len(), open[0].groups_made, open[0].queued_jobs),
        (1, 1, 3)
    );
    assert_eq!(open[0].tasks.len(), 2);
    // Somebody who knows less than is begun begins nothing.
    let next = [(GroupId(case.world.batch().0), set.tasks.tasks[1].id)];
    assert!(!case.groups(rollout, 0, &next).await);
    assert!(case.groups(rollout, 1, &next).await);
    assert_eq!(
        case.ledger.open_rollouts(ALL, ROOM).await.expect("read"),
        []
    );
    let row = case
        .ledger
        .rollout(OWNER, rollout)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(
        (row.groups_made, row.open_jobs, row.is_done()),
        (2, 6, false)
    );
    assert_eq!(row.episodes, BTreeMap::from([(JobState::Queued, 6)]));
    assert_eq!(row.set_name, "set");
    assert!(
        case.ledger
            .rollout("other", rollout)
            .await
            .expect("read")
            .is_none()
    );
    assert_eq!(case.ledger.rollouts("other", PAGE).await.expect("read"), []);
    assert_eq!(
        case.ledger.rollouts(OWNER, PAGE).await.expect("read"),
        [row]
    );
    // A measuring rollout has only held-out tasks, of which there are none.
    let new = NewRollout {
        id: RolloutId(case.world.batch().0),
        owner: OWNER.to_owned(),
        scope: case.world.scope(),
        set: set.id,
        spec: spec(1, true),
    };
    assert!(case.ledger.add_rollout(&new, NOW).await.expect("ordered"));
    let open = case.ledger.open_rollouts(ALL, ROOM).await.expect("read");
    assert_eq!((open.len(), open[0].tasks.len()), (1, 0));
    let stranger = NewRollout {
        owner: "other".to_owned(),
        ..new
    };
    assert!(
        !case
            .ledger
            .add_rollout(&stranger, NOW)
            .await
            .expect("asked")
    );
}

pub(super) async fn a_rollout_waits_for_room<L: Ledger + Personal + Jobs + 'static>(
    case: &Case<L>,
) {
    let set = case.ready(1).await;
    case.begun(&set, 3, false).await;
    // Where enough jobs are open, or more waits to be learned from than may, no more are begun.
    let full = Room { jobs: 3, ..ROOM };
    assert_eq!(
        case.ledger.open_rollouts(ALL, full).await.expect("read"),
        []
    );
    let turn = case.world.turn();
    let transition = case.world.answered(&turn).await;
    let claimed = case.world.claim(ALL, NOW).await;
    assert_eq!(claimed[0].claim.transition, transition.id);
    let verdict = case.world.verdict(claimed[0].claim, Some(1.0));
    let judged = case
        .world
        .ledger
        .record_verdict(claimed[0].claim, &verdict)
        .await;
    judged.expect("judged");
    assert_eq!(
        case.ledger.open_rollouts(ALL, ROOM).await.expect("read"),
        []
    );
    let room = Room {
        untrained: 1,
        ..ROOM
    };
    assert_eq!(
        case.ledger
            .open_rollouts(ALL, room)
            .await
            .expect("read")
            .len(),
        1
    );
}

pub(super) async fn a_job_is_held_by_one_and_ends_once<L: Ledger + Personal + Jobs + 'static>(
    case: &Case<L>,
) {
    let set = case.ready(1).await;
    let (rollout, _) = case.begun(&set, 2, false).await;
    let taken = case.claim(1, NOW).await;
    assert_eq!(
        (taken.len(), taken[0].attempt, taken[0].state),
        (1, 1, JobState::Running)
    );
    assert_eq!((taken[0].member, taken[0].rollout), (0, Some(rollout)));
    let other = case.claim(ALL, NOW).await;
    assert_eq!((other.len(), other[0].member), (1, 1));
    assert!(case.claim(ALL, NOW).await.is_empty());
    // Held on, it is nobody else's after the first lease ran out.
    let leases = [lease(&taken[0]), lease(&other[0])];
    let later = NOW + LEASE - 1;
    let lost = case
        .ledger
        .renew_jobs(&leases, later, LEASE)
        .await
        .expect("renewed");
    assert_eq!(lost, []);
    assert!(case.claim(ALL, later + LEASE - 1).await.is_empty());
    // Given back, it is the same attempt with a new fence.
    case.end(&other[0], &JobEnd::Released, later)
        .await
        .expect("given back");
    let again = case.claim(ALL, later).await;
    assert_eq!((again.len(), again[0].attempt), (1, 1));
    assert!(again[0].fence > other[0].fence);
    // Who held it before changes nothing any more.
    let late = case.end(&other[0], &settled(Some(1.0)), later).await;
    assert!(matches!(late, Err(LedgerError::Fenced(_))), "{late:?}");
    case.end(&taken[0], &settled(Some(0.5)), later)
        .await
        .expect("ended");
    let twice = case.end(&taken[0], &settled(Some(1.0)), later).await;
    assert!(matches!(twice, Err(LedgerError::Fenced(_))), "{twice:?}");
    let done = case
        .ledger
        .job(OWNER, taken[0].id)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(
        (done.state, done.reward, done.version),
        (JobState::Done, Some(0.5), Some(3))
    );
    assert_eq!(done.result, Some(json!({"steps": 2})));
    assert!(
        case.ledger
            .job("other", taken[0].id)
            .await
            .expect("read")
            .is_none()
    );
}

pub(super) async fn what_is_lost_is_tried_again_and_then_skipped<
    L: Ledger + Personal + Jobs + 'static,
>(
    case: &Case<L>,
) {
    let set = case.ready(1).await;
    let (rollout, group) = case.begun(&set, 2, false).await;
    let first = case.claim(1, NOW).await;
    let good = case.claim(1, NOW).await;
    case.end(&good[0], &settled(Some(1.0)), NOW)
        .await
        .expect("ended");
    // The first attempt's worker is gone; the second fails and waits.
    let after = NOW + LEASE;
    let second = case.claim(ALL, after).await;
    assert_eq!((second.len(), second[0].attempt), (1, 2));
    assert_ne!(second[0].id, first[0].id);
    case.end(&second[0], &failed(after + 500), after)
        .await
        .expect("ended");
    assert!(case.claim(ALL, after).await.is_empty());
    let third = case.claim(ALL, after + 500).await;
    assert_eq!((third.len(), third[0].attempt), (1, JOB_ATTEMPTS_MAX));
    case.end(&third[0], &failed(after), after)
        .await
        .expect("ended");
    let members = case.ledger.group(group).await.expect("read");
    let states: Vec<JobState> = members.iter().map(|job| job.state).collect();
    assert_eq!(states, [JobState::Skipped, JobState::Done]);
    let (task, _) = case
        .ledger
        .task(set.tasks.tasks[0].id)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(task.state, TaskState::Quarantined);
    let counts = case.counts().await;
    let of = |state| counts.get(&(JobKind::Episode, state)).copied();
    assert_eq!(of(JobState::Retried), Some(2));
    assert_eq!(
        (of(JobState::Skipped), of(JobState::Done)),
        (Some(1), Some(1))
    );
    // The group has ended, so its rewards are given.
    let credit = case.claim(ALL, after + 500).await;
    assert_eq!((credit.len(), credit[0].kind), (1, JobKind::Credit));
    let episodes = case.ledger.episodes(rollout, PAGE).await.expect("read");
    assert_eq!(episodes.len(), 4);
}

pub(super) async fn a_group_is_credited_once_with_its_last_episode<
    L: Ledger + Personal + Jobs + 'static,
>(
    case: &Case<L>,
) {
    let set = case.ready(1).await;
    let (_, group) = case.begun(&set, 2, false).await;
    let jobs = case.claim(ALL, NOW).await;
    case.end(&jobs[1], &settled(Some(0.0)), NOW)
        .await
        .expect("ended");
    assert!(case.claim(ALL, NOW).await.is_empty());
    case.end(&jobs[0], &settled(Some(1.0)), NOW)
        .await
        .expect("ended");
    let credit = case.claim(ALL, NOW).await;
    assert_eq!(
        (credit.len(), credit[0].kind, credit[0].group),
        (1, JobKind::Credit, group)
    );
    case.end(&credit[0], &settled(None), NOW)
        .await
        .expect("ended");
    assert!(case.claim(ALL, NOW).await.is_empty());
    // What only measures is not credited.
    let (_, measured) = case.begun(&set, 1, true).await;
    let jobs = case.claim(ALL, NOW).await;
    assert_eq!((jobs.len(), jobs[0].group), (1, measured));
    case.end(&jobs[0], &settled(Some(1.0)), NOW)
        .await
        .expect("ended");
    assert!(case.claim(ALL, NOW).await.is_empty());
}

pub(super) async fn cancelling_ends_what_waits_and_what_runs<
    L: Ledger + Personal + Jobs + 'static,
>(
    case: &Case<L>,
) {
    let set = case.ready(1).await;
    let (rollout, _) = case.begun(&set, 2, false).await;
    let running = case.claim(1, NOW).await;
    assert!(
        !case
            .ledger
            .cancel_rollout("other", rollout, NOW)
            .await
            .expect("asked")
    );
    assert!(
        case.ledger
            .cancel_rollout(OWNER, rollout, NOW + 5)
            .await
            .expect("cancelled")
    );
    assert!(case.claim(ALL, NOW + 10 * LEASE).await.is_empty());
    let lost = case
        .ledger
        .renew_jobs(&[lease(&running[0])], NOW, LEASE)
        .await
        .expect("asked");
    assert_eq!(lost, [running[0].id]);
    let late = case.end(&running[0], &settled(Some(1.0)), NOW).await;
    assert!(matches!(late, Err(LedgerError::Fenced(_))), "{late:?}");
    let row = case
        .ledger
        .rollout(OWNER, rollout)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(
        (row.cancelled_ms, row.ended_ms),
        (Some(NOW + 5), Some(NOW + 5))
    );
    assert!(row.is_done());
    let next = [(GroupId(case.world.batch().0), set.tasks.tasks[0].id)];
    assert!(!case.groups(rollout, 1, &next).await);
    assert_eq!(
        case.ledger.open_rollouts(ALL, ROOM).await.expect("read"),
        []
    );
}

pub(super) async fn success_is_told_by_task_and_version<L: Ledger + Personal + Jobs + 'static>(
    case: &Case<L>,
) {
    let set = case.ready(2).await;
    let (rollout, _) = case.begun(&set, 3, false).await;
    let jobs = case.claim(ALL, NOW).await;
    for (job, reward) in jobs.iter().zip([Some(1.0), Some(0.25), None]) {
        case.end(job, &settled(reward), NOW).await.expect("ended");
    }
    let row = case
        .ledger
        .rollout(OWNER, rollout)
        .await
        .expect("read")
        .expect("there");
    let success = row.versions[&3];
    assert_eq!(
        (success.episodes, success.passed, success.rewards),
        (2, 1, 1.25)
    );
    let (_, tasks) = case
        .ledger
        .task_set(OWNER, set.id)
        .await
        .expect("read")
        .expect("there");
    assert_eq!((tasks[0].tries, tasks[0].rewards), (2, 1.25));
    assert_eq!((tasks[1].tries, tasks[1].rewards), (0, 0.0));
}

pub(super) async fn an_erasure_takes_what_came_out<L: Ledger + Personal + Jobs + 'static>(
    case: &Case<L>,
) {
    let set = case.ready(1).await;
    let (rollout, _) = case.begun(&set, 2, true).await;
    let turn = case.world.turn();
    case.world.record(&turn).await;
    let jobs = case.claim(1, NOW).await;
    let end = JobEnd::Settled {
        state: JobState::Done,
        reason: JobReason::Submitted,
        outcome: JobOutcome {
            reward: Some(1.0),
            version: Some(0),
            session: Some(turn.session),
            result: json!({"output": "a secret"}),
        },
    };
    case.end(&jobs[0], &end, NOW).await.expect("ended");
    let read = async |id: JobId| case.ledger.job(OWNER, id).await.expect("read");
    let kept = read(jobs[0].id).await.expect("there");
    assert_eq!(kept.session, Some::<SessionId>(turn.session));
    let session = wish(&case.world, ForgetWhat::Session(turn.session));
    begin(&*case.ledger, &session).await;
    remove_all(&*case.ledger, session.id).await;
    let kept = read(jobs[0].id).await.expect("there");
    assert_eq!(
        (kept.session, kept.result, kept.reward),
        (None, None, Some(1.0))
    );
    let all = wish(&case.world, ForgetWhat::All);
    begin(&*case.ledger, &all).await;
    remove_all(&*case.ledger, all.id).await;
    assert!(read(jobs[0].id).await.is_none());
    assert!(
        case.ledger
            .rollout(OWNER, rollout)
            .await
            .expect("read")
            .is_none()
    );
}
