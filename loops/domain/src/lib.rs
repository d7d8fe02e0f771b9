//! The nouns of Hone and their laws: pure values, without IO, clock, randomness or async.
//!
//! A record per stage, never one growing record: an [`Ask`] becomes a [`Turn`], a turn with its
//! [`NextState`] is a [`Transition`], a judged transition has a [`Verdict`], a credited one is a
//! [`Sample`], and samples end in a [`PolicyVersion`]. This crate never knows how any of them is
//! produced, stored or sent.

mod adapter_keys;
mod ask;
mod binding;
mod blobs;
mod calendar;
mod check;
mod consent;
mod fair;
mod fate;
mod holdback;
mod ids;
mod imports;
pub mod invariants;
mod job;
pub mod lift;
mod loops;
mod memory;
mod message;
mod output;
mod people;
mod policy;
mod sample;
mod session_reward;
mod skill;
mod task;
mod token_mask;
mod transition;
mod turn;
mod verdict;
mod words;

pub use adapter_keys::{ADAPTERS, LEARNERS, adapter_key, checkpoint_key, scope_hash};
pub use ask::{
    Ask, AskContext, Collect, Delta, End, Form, Grammar, Predicted, Receipt, ServeError, StopRules,
    TokenDelta,
};
pub use binding::{
    BindHow, BindRequest, Binding, Continued, Habits, Look, PendingTurn, SessionIndex,
    SessionIndexConfig, Shown, Trail, Transcript,
};
pub use blobs::{BlobError, BlobKey, Blobs, BlobsSize};
pub use calendar::civil;
pub use check::{Check, SourceFile, Subject, TestPlace, Verifier};
pub use consent::{Admitted, Consent, Consents, Learning, Wanted, admit, collect};
pub use fair::take_fairly;
pub use fate::{Fate, Reason, Stage};
pub use holdback::Holdback;
pub use ids::{
    BatchId, FeedbackId, ForgetId, GroupId, JobId, MemoryId, RequestId, RolloutId, SessionId,
    SkillId, TaskId, TaskSetId, TransitionId, TurnId, VerdictId, uuid_of,
};
pub use imports::{AdapterImporter, CheckedAdapter, GivenAdapter};
pub use job::{Job, JobKind, JobReason, JobState};
pub use loops::Loop;
pub use memory::{
    MEMORIES_MAX, MEMORY_CHARS_MAX, Memory, MemoryKind, MemoryMode, MemoryOrigin, MemoryRefusal,
    NAME, Secret, ShownMemory, Stated, folded, kept_text, memory_block, opening_words, says_how,
    stated, topic_of,
};
pub use message::{Message, Role, ToolCall};
pub use output::{
    CALL_CLOSE, CALL_OPEN, CallFinder, CallStyle, Called, FUNCTION_CLOSE, FUNCTION_OPEN, Functions,
    Named, OutputFormat, OutputParser, PARAMETER_CLOSE, PARAMETER_OPEN, ParsedOutput, Part,
    Reasoning, Span, guessed, members, worded,
};
pub use people::{LOCAL_OWNER, RateLimits, UserRole};
pub use policy::{Digest, OnTrial, Policies, Policy, PolicyChoice, PolicyVersion, Scope};
pub use sample::{Sample, SampleError, SamplePart};
pub use session_reward::{ReturnRule, SessionCredit, SessionReward, Step};
pub use skill::{
    CORRECTIONS_KEPT, CORRECTIONS_MAX, CORRECTIONS_MIN, Correction, Finding, FindingKind,
    SKILL_BYTES_MAX, SKILL_FILE_BYTES_MAX, SKILL_FILES_MAX, SKILL_VERSIONS_MAX, SKILLS_BYTES_MAX,
    SKILLS_MAX, ShownSkill, Skill, SkillFile, SkillFolder, SkillHeader, SkillOrigin, SkillRefusal,
    SkillState, SkillVersion, body_of, drafted, scan, skill_text, wish_key,
};
pub use task::{
    ATTEMPTS_MAX, AgentKind, GROUPS_MAX, RolloutSpec, TASK_BYTES_MAX, TASK_FILES_MAX,
    TASK_SET_BYTES_MAX, TASKS_MAX, TaskFiles, TaskFolders, TaskManifest, TaskSpec, TaskState,
    is_inside, learnability,
};
pub use token_mask::TokenMask;
pub use transition::{NextItem, NextKind, NextState, Transition};
pub use turn::{
    Admission, BranchOf, Completion, CompletionError, GREEDY_BELOW, MemoryUse, Origin, Sampling,
    SamplingMask, StopReason, Turn, TurnKind, VersionSpan,
};
pub use verdict::{
    ChosenBy, Feedback, HintCandidate, HintChoice, Outcome, Signal, Usage, Verdict, Vote,
};
pub use words::words_of;

/// Milliseconds since the Unix epoch, as handed in by the runtime's clock.
pub type Millis = i64;

/// One token id of the served model's tokenizer.
pub type Token = u32;
