-- What changed of what processes remember: per scope and topic the number of the newest change. Whoever listens hears of
-- it on the channel that has the schema's name.
create table changes (
    topic text collate "C" not null,
    scope_number bigint not null,
    number bigint not null,
    constraint changes_once primary key (topic, scope_number),
    constraint changes_topic_known check (topic in ('policy', 'consent', 'memory'))
);

create unique index changes_by_number on changes (number);

create function scope_changed() returns trigger language plpgsql as $$
declare
    changed bigint;
begin
    if tg_op = 'DELETE' then
        changed := old.scope_number;
    else
        changed := new.scope_number;
    end if;
    insert into changes (topic, scope_number, number)
    values (tg_argv[0], changed, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
    perform pg_notify(tg_table_schema, tg_argv[0]);
    return null;
end $$;

create trigger versions_noted_added_or_gone after insert or delete on versions
    for each row execute function scope_changed('policy');
create trigger versions_noted_changed after update of tainted_ms, tripped_ms, pruned_ms, retired_ms, damaged_ms on versions
    for each row execute function scope_changed('policy');

create trigger standings_noted_added_or_gone after insert or delete on standings
    for each row execute function scope_changed('policy');
create trigger standings_noted_changed after update of trial_version, trial_proven, trial_ms, trial_share on standings
    for each row execute function scope_changed('policy');

create trigger consents_noted_added_or_gone after insert or delete on consents
    for each row execute function scope_changed('consent');
create trigger consents_noted_changed after update of learning, despite_store_false, holdback on consents
    for each row execute function scope_changed('consent');

create trigger memories_noted_added_or_gone after insert or delete on memories
    for each row execute function scope_changed('memory');
create trigger memories_noted_changed after update of text, valid_until_ms, superseded_by, paused on memories
    for each row execute function scope_changed('memory');

-- The files of an erasure are gone, and so are copies of them to go.
create trigger forgets_noted_done after update of done on forgets
    for each row execute function scope_changed('policy');
