-- What people decide about what is learned from them: consent, control group, erasure.

create table consents (
    scope_number integer primary key,
    learning text not null,
    despite_store_false integer not null,
    holdback integer,
    decided_ms integer not null,
    constraint consents_scope_known foreign key (scope_number) references scopes (number),
    constraint consents_learning_known check (learning in ('off', 'serve', 'full')),
    constraint consents_flags check (despite_store_false in (0, 1) and holdback in (0, 1))
) strict;

-- Whether the base model answered because the session is held back, and who of a shared scope
-- said it.
alter table turns add column holdback integer not null default 0;
alter table turns add column source blob;

-- When a version turned out to have learned from something that was erased since; null is clean.
-- `samples_gone` counts those of its samples that are no longer in version_samples.
alter table versions add column tainted_ms integer;
alter table versions add column samples_gone integer not null default 0;

-- One wish to be forgotten. The first transaction does everything that decides (what goes, which
-- versions are tainted, what is served instead); the rest only removes, piece by piece, so that it
-- goes on after a crash. `whole` covers everything of the scope that began up to `at_ms`.
create table forgets (
    number integer primary key,
    id blob not null,
    scope_number integer not null,
    whole integer not null,
    at_ms integer not null,
    done integer not null,
    turns integer not null,
    transitions integer not null,
    samples integer not null,
    samples_freed integer not null,
    versions_tainted text not null,
    rolls_back_to integer,
    constraint forgets_id_once unique (id),
    constraint forgets_scope_known foreign key (scope_number) references scopes (number)
) strict;

create index forgets_under_way on forgets (number) where done = 0;
create index forgets_whole on forgets (scope_number, at_ms) where whole = 1;

-- What is still to be removed: turns, then what they shared with others if nobody else uses it,
-- and the files of tainted versions.
create table forget_turns (
    turn_number integer primary key,
    forget_number integer not null
) strict;

create index forget_turns_by_forget on forget_turns (forget_number, turn_number);

-- Transitions that go, of turns that go and of turns that stay; empty between transactions.
create table gone_transitions (
    transition_number integer primary key,
    turn_stays integer not null
) strict;

create table loose_histories (number integer primary key) strict;
create table loose_blocks (number integer primary key) strict;
create table loose_sessions (number integer primary key) strict;
create table loose_blobs (
    blob text not null,
    scope_number integer not null,
    digest blob not null,
    constraint loose_blobs_once primary key (blob)
) strict, without rowid;

-- Names of what is gone, so that what comes late does not bring it back.
create table forgotten_turns (
    id blob not null,
    constraint forgotten_turns_once primary key (id)
) strict, without rowid;

create table forgotten_sessions (
    id blob not null,
    constraint forgotten_sessions_once primary key (id)
) strict, without rowid;

-- Ways back from what is shared to who uses it; removing asks for them, and so do foreign keys.
create index turns_by_session on turns (session_number, number);
create index turns_by_parent on turns (parent_id) where parent_id is not null;
create index turn_payloads_by_history on turn_payloads (history_number);
create index turn_payloads_by_block on turn_payloads (block_number) where block_number is not null;
create index histories_by_parent on histories (parent_number) where parent_number is not null;
create index histories_by_message on histories (message_number);
create index token_blocks_by_parent on token_blocks (parent_number)
    where parent_number is not null;

-- The control group's verdicts beside the others'.
create index turns_held_back on turns (scope_number, number) where holdback = 1;

pragma user_version = 3;
