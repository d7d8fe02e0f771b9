-- The ledger. `number` is the order of arrival and the key inside; `id` is the name outside (UUIDv7).
-- Text that people wrote is UTF-8 in a blob: U+0000 is legal there, and not every database and tool
-- keeps it in a text column. Arrays of numbers are little-endian blobs. Times are milliseconds since
-- the Unix epoch. The last line states the schema's version; it equals this file's number.

create table scopes (
    number integer primary key,
    name blob not null,
    constraint scopes_name_once unique (name)
) strict;

create table sessions (
    number integer primary key,
    id blob not null,
    owner text not null,
    scope_number integer not null,
    first_ms integer not null,
    last_ms integer not null,
    constraint sessions_id_once unique (id),
    constraint sessions_scope_known foreign key (scope_number) references scopes (number)
) strict;

-- What a log-prob depends on besides the adapter.
create table arithmetics (
    number integer primary key,
    fingerprint text not null,
    base blob not null,
    constraint arithmetics_once unique (fingerprint, base)
) strict;

-- Each different message once, however many prompts repeat it.
create table messages (
    number integer primary key,
    hash blob not null,
    body blob not null,
    constraint messages_hash_once unique (hash)
) strict;

-- Message lists as a tree of shared beginnings: a turn names its last node. `hash` covers the node
-- and everything before it, so that one lookup finds what an earlier turn already stored.
create table histories (
    number integer primary key,
    hash blob not null,
    parent_number integer,
    message_number integer not null,
    constraint histories_hash_once unique (hash),
    constraint histories_parent_known foreign key (parent_number) references histories (number),
    constraint histories_message_known foreign key (message_number) references messages (number)
) strict;

-- Prompt tokens likewise, in full blocks; what is left over stays with the turn.
create table token_blocks (
    number integer primary key,
    hash blob not null,
    parent_number integer,
    tokens blob not null,
    constraint token_blocks_hash_once unique (hash),
    constraint token_blocks_parent_known foreign key (parent_number) references token_blocks (number)
) strict;

-- The small half of a turn, which changes as it moves on. Exactly one of `stage`, `reason` and
-- `trained_version` says what became of it. `score` repeats its current verdict's.
create table turns (
    number integer primary key,
    id blob not null,
    request_id blob not null,
    choice_index integer not null,
    group_id blob,
    session_number integer not null,
    parent_id blob,
    owner text not null,
    scope_number integer not null,
    arithmetic_number integer not null,
    origin text not null,
    kind text not null,
    version integer not null,
    stage text,
    reason text,
    trained_version integer,
    score real,
    started_ms integer not null,
    finished_ms integer not null,
    constraint turns_id_once unique (id),
    constraint turns_session_known foreign key (session_number) references sessions (number),
    constraint turns_scope_known foreign key (scope_number) references scopes (number),
    constraint turns_arithmetic_known foreign key (arithmetic_number) references arithmetics (number),
    constraint turns_one_fate check (
        (stage is not null) + (reason is not null) + (trained_version is not null) = 1
    )
) strict;

create index turns_open on turns (number) where stage = 'awaiting_next_state';
create index turns_to_judge on turns (number) where stage = 'awaiting_verdict';
create index turns_ready on turns (scope_number, number) where stage = 'awaiting_training';
create index turns_by_scope on turns (scope_number, number);
create index turns_scored on turns (scope_number, version, score) where score is not null;

-- The large half, written once.
create table turn_payloads (
    turn_number integer primary key,
    session_key blob,
    history_number integer,
    block_number integer,
    prompt_tail blob not null,
    completion_tokens blob not null,
    behavior_logprobs blob not null,
    raw_logprobs blob not null,
    kept blob,
    stop text not null,
    completion_text blob not null,
    sampling blob not null,
    spans blob not null,
    digest blob,
    untrainable text,
    constraint turn_payloads_turn_known foreign key (turn_number) references turns (number),
    constraint turn_payloads_history_known foreign key (history_number) references histories (number),
    constraint turn_payloads_block_known foreign key (block_number) references token_blocks (number)
) strict;

create table transitions (
    number integer primary key,
    id blob not null,
    turn_number integer not null,
    next_state blob not null,
    next_turn_id blob,
    settled_ms integer not null,
    constraint transitions_turn_known foreign key (turn_number) references turns (number)
) strict;

create unique index transitions_id_once on transitions (id);
create unique index transitions_one_per_turn on transitions (turn_number);

create table verdicts (
    number integer primary key,
    id blob not null,
    transition_number integer not null,
    revision integer not null,
    current integer not null,
    score real,
    decided_by text,
    hint blob,
    judged_ms integer not null,
    constraint verdicts_id_once unique (id),
    constraint verdicts_revision_once unique (transition_number, revision),
    constraint verdicts_transition_known foreign key (transition_number)
        references transitions (number),
    constraint verdicts_score_range check (score between -1 and 1),
    constraint verdicts_current_flag check (current in (0, 1))
) strict;

create unique index verdicts_one_current on verdicts (transition_number) where current = 1;

create table votes (
    verdict_number integer not null,
    position integer not null,
    signal text not null,
    outcome text not null,
    reason blob not null,
    model text,
    latency_ms integer not null,
    constraint votes_position_once primary key (verdict_number, position),
    constraint votes_verdict_known foreign key (verdict_number) references verdicts (number)
) strict, without rowid;

-- Feedback may come before its turn, so it names the turn by id and is held to no foreign key.
create table feedback (
    number integer primary key,
    id blob not null,
    turn_id blob not null,
    owner text not null,
    client_id blob,
    score real,
    comment blob,
    correction blob,
    received_ms integer not null,
    constraint feedback_id_once unique (id),
    constraint feedback_client_id_once unique (turn_id, owner, client_id)
) strict;

-- A claim on a transition. The row stays when the lease is given back, so that the fence only grows.
create table leases (
    transition_number integer not null,
    consumer text not null,
    fence integer not null,
    held integer not null,
    free_from_ms integer not null,
    attempts integer not null,
    batch_id blob,
    constraint leases_one_per_consumer primary key (transition_number, consumer),
    constraint leases_transition_known foreign key (transition_number)
        references transitions (number),
    constraint leases_held_flag check (held in (0, 1))
) strict, without rowid;

create table versions (
    number integer primary key,
    scope_number integer not null,
    version integer not null,
    parent integer not null,
    digest blob not null,
    blob text not null,
    status text not null,
    batch_id blob,
    samples integer not null,
    report text not null,
    gate text not null,
    published_ms integer not null,
    constraint versions_once unique (scope_number, version),
    constraint versions_batch_once unique (batch_id),
    constraint versions_scope_known foreign key (scope_number) references scopes (number),
    constraint versions_parent_older check (parent >= 0 and parent < version)
) strict;

-- What each version learned from; a transition trains at most once per chain.
create table version_samples (
    scope_number integer not null,
    version integer not null,
    transition_number integer not null,
    constraint version_samples_version_known foreign key (scope_number, version)
        references versions (scope_number, version),
    constraint version_samples_transition_known foreign key (transition_number)
        references transitions (number)
) strict;

create unique index version_samples_once on version_samples (transition_number, scope_number);
create index version_samples_by_version on version_samples (scope_number, version);

create table refusals (
    number integer primary key,
    scope_number integer not null,
    parent integer not null,
    digest blob,
    batch_id blob not null,
    reason text not null,
    samples integer not null,
    report text not null,
    refused_ms integer not null,
    constraint refusals_batch_once unique (batch_id),
    constraint refusals_scope_known foreign key (scope_number) references scopes (number)
) strict;

-- How many turns have which fate, kept by triggers so that nothing can forget to count.
create table fate_counts (
    fate text not null,
    turns integer not null,
    constraint fate_counts_fate_once primary key (fate)
) strict, without rowid;

create trigger turns_counted after insert on turns
begin
    insert into fate_counts (fate, turns)
    values (coalesce(new.stage, new.reason, 'trained'), 1)
    on conflict (fate) do update set turns = turns + 1;
end;

create trigger turns_recounted after update of stage, reason, trained_version on turns
begin
    update fate_counts set turns = turns - 1
    where fate = coalesce(old.stage, old.reason, 'trained');
    insert into fate_counts (fate, turns)
    values (coalesce(new.stage, new.reason, 'trained'), 1)
    on conflict (fate) do update set turns = turns + 1;
end;

create trigger turns_uncounted after delete on turns
begin
    update fate_counts set turns = turns - 1
    where fate = coalesce(old.stage, old.reason, 'trained');
end;

-- "HONE", so that another program's database is told from ours.
pragma application_id = 1213156933;
pragma user_version = 1;
