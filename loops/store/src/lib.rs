//! The ledger: remembers every noun, hands out work once. The only SQL of the house.
//!
//! [`Ledger`] speaks domain types in and out. [`SqliteLedger`] is the embedded implementation;
//! another database joins by implementing the trait and passing [`suite`]. [`FsBlobs`] stores
//! adapters as immutable folders. This crate never knows who asks or why.

mod answers;
mod backup;
mod blobs;
mod codec;
mod error;
mod late;
mod ledger;
mod people;
mod personal;
mod reading;
mod sqlite;
pub mod suite;
mod versions;

pub use answers::{Answer, AnswerLimits, AnswerName, Answered, Answers};
pub use backup::{
    BackupFile, CheckAdapter, MANIFEST, Maker, Manifest, Replacing, back_up, check_vacant, restore,
    verify, verify_whole,
};
pub use blobs::FsBlobs;
pub use error::LedgerError;
pub use late::LateTurns;
pub use ledger::{
    AuditCount, Claim, Claimed, ClaimedSamples, Consumer, EARLY_KEPT, EARLY_KEPT_MS, FEEDBACK_KEPT,
    FeedbackOutcome, Ledger, LedgerCounts, OpenPage, OpenTurn, PolicyRecord, PolicyStatus, Publish,
    Ready, Refusal, ReplayQuery, Replayed, SampleClaim, SampleMaterial, TurnRow, TurnView,
    WaitingTurn, reason_at_record,
};
pub use people::{
    AUDIT_ORIGIN, ApiKey, AuditCheck, AuditEntry, AuditQuery, AuditRecord, Changed, Invite, Keeper,
    KeyChange, Member, People, PeopleChange, SignIn, Team, TeamChange, User, UserChange, Uses,
};
pub use personal::{
    ConsentRow, ForgetBegun, ForgetReport, ForgetRow, ForgetStep, ForgetWhat, ForgetWish, Learned,
    LearnedVersion, LooseBlob, Personal,
};
pub use reading::{
    FateState, OldestPending, PREVIEW_CHARS_MAX, Page, Reading, SCAN_MAX, SampleAge, SessionCursor,
    SessionLine, SessionTurn, SessionView, TITLE_CHARS_MAX, TurnEntry, TurnFilter, TurnLine,
};
pub use sqlite::{SqliteConfig, SqliteLedger, check_not_lost, make_private};
pub use versions::{
    Arm, HeldOut, Import, Prunable, RefusalRecord, Restore, RestoreWhy, ScopeRow, Standing, Trial,
    Tripped, TryOut, VersionSample, VersionView, Versions, WatchNews, WatchPlace, WatchedTurn,
    WatchedVerdict, Window,
};
