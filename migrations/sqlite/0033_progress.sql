-- Consumers that follow: each reads every main turn, and every revision of the verdict on it, at a pace of its own.
create table followers (
    number integer primary key,
    name text not null,
    -- What it asked for when it was enrolled.
    spec blob not null,
    created_ms integer not null,
    -- When it last noted that it had read something, and how often.
    read_ms integer,
    read_count integer not null default 0,
    -- Turns below are not noted yet as unread: those of before it was enrolled.
    filled_from integer not null,
    constraint followers_name_once unique (name)
) strict;

-- What a consumer has yet to read of a turn: the turn itself, and the revision of the verdict on it. The memory loop
-- is a consumer without a row in followers: it reads turns whose requests used memories.
create table unread (
    consumer text not null,
    turn_number integer not null,
    is_new integer not null,
    revision integer,
    constraint unread_once primary key (consumer, turn_number),
    constraint unread_turn_known foreign key (turn_number) references turns (number),
    constraint unread_something check (is_new = 1 or (is_new = 0 and revision is not null))
) strict, without rowid;

create index unread_by_turn on unread (turn_number);

-- The flags of the memory loop become rows.
insert into unread (consumer, turn_number, is_new, revision)
select 'memory', turn_number, is_said, revision from (
    select turn_memories.turn_number, is_said, (
        select revision from transitions
        join verdicts on verdicts.transition_number = transitions.number
        where transitions.turn_number = turn_memories.turn_number and verdicts.current = 1
          and is_judged = 1
    ) as revision
    from turn_memories where is_said = 1 or is_judged = 1
) as flagged where is_said = 1 or revision is not null;

create table turn_memories_kept (
    turn_number integer primary key,
    mode text not null,
    shown blob not null,
    constraint turn_memories_known foreign key (turn_number) references turns (number)
) strict;
insert into turn_memories_kept (turn_number, mode, shown)
select turn_number, mode, shown from turn_memories;
drop table turn_memories;
alter table turn_memories_kept rename to turn_memories;

-- The end of an erasure is a change of its own: only then are there copies of files to remove.
create temporary table changes_before as select topic, scope_number, number from changes;
drop table changes;
create table changes (
    topic text not null,
    scope_number integer not null,
    number integer not null,
    primary key (topic, scope_number),
    check (topic in ('policy', 'consent', 'memory', 'files'))
) without rowid;
create unique index changes_by_number on changes (number);
insert into changes (topic, scope_number, number)
select topic, scope_number, number from changes_before;
drop table changes_before;

drop trigger forgets_noted_done;
create trigger forgets_noted_done after update of done on forgets begin
    insert into changes (topic, scope_number, number)
    values ('files', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

pragma user_version = 33;
