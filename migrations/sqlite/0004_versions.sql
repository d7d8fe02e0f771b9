-- What is known of versions after they were published, and what stands between a scope and its
-- next one.

-- Why it was published, where a person or the watch said so.
alter table versions add column note blob;
-- When it was left because it did badly, and when its files were removed for space.
alter table versions add column tripped_ms integer;
alter table versions add column pruned_ms integer;

create index versions_by_parent on versions (scope_number, parent);

-- At most one row per scope; none where nothing was ever decided. While it is pinned, tripped or on
-- trial nothing is trained or published for the scope. `watch` is what the watch remembers of it.
create table standings (
    scope_number integer primary key,
    pinned_ms integer,
    tripped_note blob,
    tripped_version integer,
    tripped_ms integer,
    trial_version integer,
    trial_proven integer,
    trial_ms integer,
    watch text,
    constraint standings_scope_known foreign key (scope_number) references scopes (number),
    constraint standings_trip_whole check (
        (tripped_note is null) = (tripped_version is null)
        and (tripped_note is null) = (tripped_ms is null)
    ),
    constraint standings_trial_whole check (
        (trial_version is null) = (trial_proven is null)
        and (trial_version is null) = (trial_ms is null)
    )
) strict;

-- How far the watch has read, in one row.
create table watch_places (
    number integer primary key,
    turn_number integer not null,
    verdict_number integer not null,
    constraint watch_places_one check (number = 1)
) strict;

insert into watch_places (number, turn_number, verdict_number) values (1, 0, 0);

-- What the gate compares candidates on.
create index turns_held_out on turns (scope_number, number) where reason = 'held_out';

pragma user_version = 4;
