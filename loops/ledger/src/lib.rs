//! The ledger as others see it: what it remembers, what it hands out once, and the suite that every
//! implementation passes.
//!
//! [`Ledger`] and its sisters ([`People`], [`Personal`], [`Reading`], [`Versions`], [`Memories`], [`Progress`], [`Skills`], [`Jobs`], [`Answers`], [`Storage`]) speak domain types in and
//! out. Another database joins by implementing them and passing [`suite`].
//!
//! Never: SQL, who asks, or why.

mod answers;
mod changes;
mod error;
mod jobs;
mod late;
mod ledger;
mod memories;
mod people;
mod personal;
mod progress;
mod reading;
mod retention;
mod rewards;
mod skills;
mod storage;
#[cfg(any(test, feature = "test-switches"))]
pub mod suite;
mod turn_view;
mod versions;

pub use answers::{Answer, AnswerLimits, AnswerName, Answered, Answers};
pub use changes::{Change, Changes, IsKnown, Topic};
pub use error::LedgerError;
pub use jobs::{
    JOB_ATTEMPTS_MAX, JobClaim, JobEnd, JobLease, JobOutcome, Jobs, NewGroups, NewRollout, NewTask,
    NewTaskSet, NewTasks, OpenRollout, QueueRow, RECENT_EPISODES, RolloutRow, Room, ScalingRow,
    Success, TaskRow, TaskSetRow,
};
pub use late::LateTurns;
pub use ledger::{
    AuditCount, Claim, Claimed, ClaimedSamples, Consumer, EARLY_KEPT, EARLY_KEPT_MS, FEEDBACK_KEPT,
    FeedbackOutcome, Ledger, LedgerCounts, OpenPage, OpenTurn, PolicyRecord, PolicyStatus, Publish,
    Ready, Refusal, ReplayQuery, Replayed, SampleClaim, SampleMaterial, TurnRow, WaitingTurn,
    reason_at_record,
};
pub use memories::{
    Added, Extraction, Memories, MemoryChange, MemoryCounts, MemoryRow, NewMemory, UnreadTurn,
    UnreadVerdict,
};
pub use people::{
    AUDIT_ORIGIN, ApiKey, AuditCheck, AuditEntry, AuditQuery, AuditRecord, Changed, Invite, Keeper,
    KeyChange, Member, People, PeopleChange, SignIn, Team, TeamChange, User, UserChange, Uses,
    chained,
};
pub use personal::{
    ConsentRow, ForgetBegun, ForgetReport, ForgetRow, ForgetStep, ForgetWhat, ForgetWish, Learned,
    LearnedVersion, LooseBlob, Personal,
};
pub use progress::{
    FOLLOWER_NAME_MAX, FOLLOWERS_MAX, Follower, MEMORY_CONSUMER, Progress, Read, Unread,
};
pub use reading::{
    FateState, OldestPending, PREVIEW_CHARS_MAX, Page, Reading, SCAN_MAX, SampleAge, SessionCursor,
    SessionLine, SessionTurn, SessionView, TITLE_CHARS_MAX, TurnEntry, TurnFilter, TurnLine,
};
pub use retention::{
    EndedBefore, Extent, PrunePiece, PrunePlace, PruneStage, Pruned, Retention, Tally,
};
pub use rewards::{Missed, REWARDED_TURNS_MAX, REWARDS_KEPT, Rewarded, RewardedTurn};
pub use skills::{
    ActiveSkill, NewSkill, PutSkill, SkillChange, SkillKey, SkillRow, Skills, SkillsFull, WishState,
};
pub use storage::{LedgerSize, Storage, TableSize};
pub use turn_view::TurnView;
pub use versions::{
    Arm, HeldOut, Import, Prunable, RefusalRecord, Restore, RestoreWhy, ScopeRow, Standing, Trial,
    Tripped, TryOut, VersionSample, VersionView, Versions, WatchNews, WatchPlace, WatchedTurn,
    WatchedVerdict, Window,
};
