-- What changed of what processes remember: per scope and topic the number of the newest change.
create table changes (
    topic text not null,
    scope_number integer not null,
    number integer not null,
    primary key (topic, scope_number),
    check (topic in ('policy', 'consent', 'memory'))
) without rowid;

create unique index changes_by_number on changes (number);

create trigger versions_noted_added after insert on versions begin
    insert into changes (topic, scope_number, number)
    values ('policy', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger versions_noted_changed after update of tainted_ms, tripped_ms, pruned_ms, retired_ms, damaged_ms on versions begin
    insert into changes (topic, scope_number, number)
    values ('policy', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger versions_noted_gone after delete on versions begin
    insert into changes (topic, scope_number, number)
    values ('policy', old.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger standings_noted_added after insert on standings begin
    insert into changes (topic, scope_number, number)
    values ('policy', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger standings_noted_changed after update of trial_version, trial_proven, trial_ms, trial_share on standings begin
    insert into changes (topic, scope_number, number)
    values ('policy', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger standings_noted_gone after delete on standings begin
    insert into changes (topic, scope_number, number)
    values ('policy', old.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger consents_noted_added after insert on consents begin
    insert into changes (topic, scope_number, number)
    values ('consent', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger consents_noted_changed after update of learning, despite_store_false, holdback on consents begin
    insert into changes (topic, scope_number, number)
    values ('consent', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger consents_noted_gone after delete on consents begin
    insert into changes (topic, scope_number, number)
    values ('consent', old.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger memories_noted_added after insert on memories begin
    insert into changes (topic, scope_number, number)
    values ('memory', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger memories_noted_changed after update of text, valid_until_ms, superseded_by, paused on memories begin
    insert into changes (topic, scope_number, number)
    values ('memory', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger memories_noted_gone after delete on memories begin
    insert into changes (topic, scope_number, number)
    values ('memory', old.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

-- The files of an erasure are gone, and so are copies of them to go.
create trigger forgets_noted_done after update of done on forgets begin
    insert into changes (topic, scope_number, number)
    values ('policy', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

pragma user_version = 32;
