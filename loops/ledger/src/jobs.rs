//! Tasks, orders to try them, and the durable work that they are.

use std::collections::BTreeMap;

use async_trait::async_trait;
use hone_domain::{
    Digest, GroupId, Job, JobId, JobKind, JobReason, JobState, Millis, RolloutId, RolloutSpec,
    Scope, SessionId, TaskFiles, TaskId, TaskManifest, TaskSetId, TaskSpec, TaskState,
};
use serde_json::Value;

use crate::LedgerError;
use crate::versions::Window;

/// Newest episodes of a task that its success is known by.
pub const RECENT_EPISODES: usize = 16;
/// Most attempts at one place for no fault of the agent.
pub const JOB_ATTEMPTS_MAX: u32 = 3;

/// A task to be added.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTask {
    /// Its id.
    pub id: TaskId,
    /// Its name; once in its set.
    pub name: String,
    /// Whether it is kept to measure on.
    pub held_out: bool,
    /// What is asked.
    pub spec: TaskSpec,
    /// Its files; the contents are among those of the set.
    pub files: TaskManifest,
}

/// Tasks to be added with contents of files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewTasks {
    /// The tasks.
    pub tasks: Vec<NewTask>,
    /// Contents by their SHA-256; those that the set has are stored no second time.
    pub contents: BTreeMap<Digest, Vec<u8>>,
}

/// Tasks to be added under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTaskSet {
    /// Its id.
    pub id: TaskSetId,
    /// Whose.
    pub owner: String,
    /// Its name; once per owner.
    pub name: String,
    /// Its first tasks.
    pub tasks: NewTasks,
}

/// A set in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSetRow {
    /// Its id.
    pub id: TaskSetId,
    /// Its name.
    pub name: String,
    /// When it was added.
    pub created_ms: Millis,
    /// How many tasks are in each state.
    pub states: BTreeMap<TaskState, u64>,
    /// How many are kept to measure on.
    pub held_out: u64,
}

/// A task in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRow {
    /// Its id.
    pub id: TaskId,
    /// Its name.
    pub name: String,
    /// Whether it is kept to measure on.
    pub held_out: bool,
    /// What is asked.
    pub spec: TaskSpec,
    /// Whether somebody wrote a solution.
    pub has_solution: bool,
    /// What is known of it.
    pub state: TaskState,
    /// Why.
    pub note: Option<String>,
    /// Its newest episodes that have a reward, at most [`RECENT_EPISODES`].
    pub tries: u64,
    /// The sum of their rewards.
    pub rewards: f64,
}

/// An order to try tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRollout {
    /// Its id.
    pub id: RolloutId,
    /// Who orders it.
    pub owner: String,
    /// Whose policy is asked and taught.
    pub scope: Scope,
    /// The tasks.
    pub set: TaskSetId,
    /// How.
    pub spec: RolloutSpec,
}

/// What came of the episodes of one version.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Success {
    /// Episodes that have a reward.
    pub episodes: u64,
    /// How many passed: their reward is 1.
    pub passed: u64,
    /// The sum of their rewards.
    pub rewards: f64,
}

/// A rollout with where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutRow {
    /// Its place in the list.
    pub number: i64,
    /// Its id.
    pub id: RolloutId,
    /// Who ordered it.
    pub owner: String,
    /// Whose policy.
    pub scope: Scope,
    /// The tasks.
    pub set: TaskSetId,
    /// Their name.
    pub set_name: String,
    /// How.
    pub spec: RolloutSpec,
    /// When it was ordered.
    pub created_ms: Millis,
    /// When it was cancelled.
    pub cancelled_ms: Option<Millis>,
    /// When its last job ended.
    pub ended_ms: Option<Millis>,
    /// Groups that were begun.
    pub groups_made: u32,
    /// Its episodes by where they stand.
    pub episodes: BTreeMap<JobState, u64>,
    /// Jobs that are not done, of every kind.
    pub open_jobs: u64,
    /// What came of them, by the version that answered last.
    pub versions: BTreeMap<u64, Success>,
}

impl RolloutRow {
    /// Whether nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.open_jobs == 0 && (self.cancelled_ms.is_some() || self.groups_made >= self.spec.groups)
    }
}

/// A rollout that has groups to begin.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRollout {
    /// Its id.
    pub id: RolloutId,
    /// How.
    pub spec: RolloutSpec,
    /// Groups that were begun.
    pub groups_made: u32,
    /// Its jobs that wait for a process.
    pub queued_jobs: u64,
    /// Its tasks that may be tried.
    pub tasks: Vec<TaskRow>,
}

/// When a rollout may begin more groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Fewer of its jobs than this wait for a process.
    pub jobs: u64,
    /// At most so many turns of its policy wait to be learned from, unless it only measures: what is tried long before it is
    /// learned from is stale then.
    pub untrained: u64,
}

/// Groups of a rollout to begin.
#[derive(Clone, Debug, PartialEq)]
pub struct NewGroups {
    /// The rollout.
    pub rollout: RolloutId,
    /// How many it has; where it has more by now, nothing is begun.
    pub after: u32,
    /// The group, and the task that it tries.
    pub groups: Vec<(GroupId, TaskId)>,
    /// Higher goes first.
    pub priority: f32,
}

/// Who asks for work, and how much.
#[derive(Clone, Debug, PartialEq)]
pub struct JobClaim {
    /// Most jobs.
    pub limit: usize,
    /// How long they are held without renewal.
    pub lease_ms: Millis,
    /// Now.
    pub now_ms: Millis,
}

/// A job that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobLease {
    /// The job.
    pub job: JobId,
    /// The fence it was taken with.
    pub fence: u64,
}

/// What came out of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobOutcome {
    /// The reward of an episode that has one.
    pub reward: Option<f32>,
    /// The version that answered last.
    pub version: Option<u64>,
    /// The session that its turns are in.
    pub session: Option<SessionId>,
    /// What else is known.
    pub result: Value,
}

/// How a job ended, or did not.
#[derive(Clone, Debug, PartialEq)]
pub enum JobEnd {
    /// It is done, or failed for good.
    Settled {
        /// Where it stands now; a terminal state.
        state: JobState,
        /// Why.
        reason: JobReason,
        /// What came out of it.
        outcome: JobOutcome,
    },
    /// It failed for no fault of its own. A later attempt takes its place, if it has one left.
    Failed {
        /// Why.
        reason: JobReason,
        /// What happened.
        result: Value,
        /// The next attempt begins at this time.
        retry_ms: Millis,
    },
    /// The worker stops; somebody else begins it anew, and it counts as no attempt.
    Released,
}

/// Work that a loop has to do in processes that may be started and ended as there is more or less of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalingRow {
    /// The loop.
    pub role: String,
    /// Jobs that wait and are due.
    pub queued: u64,
    /// Jobs that a process has.
    pub running: u64,
    /// Jobs that rollouts make once there is room for them; of a rollout that is learned from, those of one group.
    pub to_begin: u64,
    /// The sum of these three.
    pub open: u64,
}

/// A row of the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueRow {
    /// The kind of the jobs.
    pub kind: JobKind,
    /// Where they stand.
    pub state: JobState,
    /// Why.
    pub reason: Option<JobReason>,
    /// How many.
    pub count: u64,
    /// When the oldest of them was ordered.
    pub oldest_ms: Millis,
}

/// The durable record of tasks, rollouts and jobs. Every method is one transaction, durable on return.
/// Implementations pass `crate::suite::jobs`.
#[async_trait]
pub trait Jobs: Send + Sync {
    /// Adds tasks under a name, with a check of each. `Conflict` where the owner has a set of that name, or a set cannot
    /// have so much.
    async fn add_task_set(
        &self,
        set: &NewTaskSet,
        scope: &Scope,
        now_ms: Millis,
    ) -> Result<(), LedgerError>;

    /// Adds tasks to a set of an owner, with a check of each; false where there is no such set. `Conflict` where it has a
    /// task of that name, or cannot have so much.
    async fn add_tasks(
        &self,
        owner: &str,
        set: TaskSetId,
        new: &NewTasks,
        scope: &Scope,
        now_ms: Millis,
    ) -> Result<bool, LedgerError>;

    /// Which of these contents a set of an owner has, with their bytes.
    async fn stored_contents(
        &self,
        owner: &str,
        set: TaskSetId,
        digests: &[Digest],
    ) -> Result<BTreeMap<Digest, u64>, LedgerError>;

    /// The sets of an owner, newest first.
    async fn task_sets(&self, owner: &str) -> Result<Vec<TaskSetRow>, LedgerError>;

    /// A set of an owner with its tasks by name.
    async fn task_set(
        &self,
        owner: &str,
        set: TaskSetId,
    ) -> Result<Option<(TaskSetRow, Vec<TaskRow>)>, LedgerError>;

    /// Removes a set of an owner with its rollouts and their jobs; false where there is none. `Conflict` while jobs
    /// of it are not done.
    async fn remove_task_set(&self, owner: &str, set: TaskSetId) -> Result<bool, LedgerError>;

    /// A task with its files, for who runs it.
    async fn task(&self, task: TaskId) -> Result<Option<(TaskRow, TaskFiles)>, LedgerError>;

    /// Notes what is known of a task.
    async fn note_task(
        &self,
        task: TaskId,
        state: TaskState,
        note: Option<&str>,
    ) -> Result<(), LedgerError>;

    /// Puts a quarantined task of an owner's set back: it is new, and has another check, which is worked on in `scope`.
    /// False where there is no such task. `Conflict` where it is not quarantined.
    async fn release_task(
        &self,
        owner: &str,
        set: TaskSetId,
        task: TaskId,
        scope: &Scope,
        now_ms: Millis,
    ) -> Result<bool, LedgerError>;

    /// Orders a rollout; false where the owner has no such set.
    async fn add_rollout(&self, new: &NewRollout, now_ms: Millis) -> Result<bool, LedgerError>;

    /// Rollouts of an owner, newest first.
    async fn rollouts(&self, owner: &str, page: Window) -> Result<Vec<RolloutRow>, LedgerError>;

    /// A rollout of an owner.
    async fn rollout(&self, owner: &str, id: RolloutId) -> Result<Option<RolloutRow>, LedgerError>;

    /// A rollout, for who runs its jobs.
    async fn rollout_of(&self, id: RolloutId) -> Result<Option<RolloutRow>, LedgerError>;

    /// Cancels a rollout of an owner: what waits ends, and what runs is noticed by its next renewal. False where there is
    /// no such rollout.
    async fn cancel_rollout(
        &self,
        owner: &str,
        id: RolloutId,
        now_ms: Millis,
    ) -> Result<bool, LedgerError>;

    /// Episodes of a rollout, newest first.
    async fn episodes(
        &self,
        rollout: RolloutId,
        page: Window,
    ) -> Result<Vec<(i64, Job)>, LedgerError>;

    /// A job of an owner.
    async fn job(&self, owner: &str, id: JobId) -> Result<Option<Job>, LedgerError>;

    /// Rollouts that have groups to begin and room for them, oldest first.
    async fn open_rollouts(
        &self,
        limit: usize,
        room: Room,
    ) -> Result<Vec<OpenRollout>, LedgerError>;

    /// Begins groups of a rollout; false where somebody else did, or it was cancelled.
    async fn add_groups(&self, new: &NewGroups, now_ms: Millis) -> Result<bool, LedgerError>;

    /// Takes jobs that wait, the highest priority first, and those whose lease ran out, which are another attempt.
    async fn claim_jobs(&self, claim: &JobClaim) -> Result<Vec<Job>, LedgerError>;

    /// Holds jobs on; returns those that are not held any more.
    async fn renew_jobs(
        &self,
        leases: &[JobLease],
        now_ms: Millis,
        lease_ms: Millis,
    ) -> Result<Vec<JobId>, LedgerError>;

    /// Ends a job. With its last one, a group gets a job that gives its rewards. `Fenced` where the job is not held any
    /// more: then nothing changes.
    async fn end_job(
        &self,
        lease: JobLease,
        end: &JobEnd,
        now_ms: Millis,
    ) -> Result<(), LedgerError>;

    /// The last attempts of a group's episodes, by member.
    async fn group(&self, group: GroupId) -> Result<Vec<Job>, LedgerError>;

    /// What waits, runs and has ended, of everybody or of one owner.
    async fn queues(&self, owner: Option<&str>) -> Result<Vec<QueueRow>, LedgerError>;

    /// How much work there is for processes that come and go.
    async fn scaling(&self) -> Result<Vec<ScalingRow>, LedgerError>;
}
