-- What people said once, kept for later conversations.
create table memories (
    number integer primary key,
    id blob not null,
    scope_number integer not null,
    kind text not null,
    text blob not null,
    -- What equal texts have in common.
    folded blob not null,
    topic blob,
    turn_id blob,
    created_ms integer not null,
    valid_until_ms integer,
    superseded_by blob,
    paused integer not null default 0,
    uses integer not null default 0,
    origin text not null,
    constraint memories_id_once unique (id),
    constraint memories_scope_known foreign key (scope_number) references scopes (number),
    constraint memories_paused check (paused in (0, 1))
) strict;

create index memories_by_scope on memories (scope_number, number);
create index memories_by_turn on memories (turn_id) where turn_id is not null;
create unique index memories_text_once on memories (scope_number, folded)
    where valid_until_ms is null;

-- What a turn did with memories, and whether the memory loop has read the turn and the verdict on it.
create table turn_memories (
    turn_number integer primary key,
    mode text not null,
    shown blob not null,
    is_said integer not null,
    is_judged integer not null default 0,
    constraint turn_memories_known foreign key (turn_number) references turns (number),
    constraint turn_memories_flags check (is_said in (0, 1) and is_judged in (0, 1))
) strict;

create index turn_memories_unread on turn_memories (turn_number) where is_said = 1 or is_judged = 1;

-- What requests of a key do with memories where they do not say; null is what the configuration says.
alter table api_keys add column memory text
    constraint api_keys_memory check (memory in ('off', 'read', 'full'));

pragma user_version = 26;
