-- Skills: folders with a SKILL.md. What a skill was at a time is a version, and one of them is the current one.
create table skills (
    number integer primary key,
    id blob not null,
    scope_number integer not null,
    name text not null,
    -- The current version.
    version integer not null,
    paused integer not null default 0,
    -- What the corrections have in common that it was made from.
    wish blob,
    created_ms integer not null,
    changed_ms integer not null,
    -- How many turns were shown its name and description, and how often its body was given to a model.
    listed integer not null default 0,
    uses integer not null default 0,
    constraint skills_id_once unique (id),
    constraint skills_name_once unique (scope_number, name),
    constraint skills_scope_known foreign key (scope_number) references scopes (number),
    constraint skills_paused check (paused in (0, 1))
) strict;

create index skills_by_scope on skills (scope_number, number);

create table skill_versions (
    number integer primary key,
    skill_number integer not null,
    version integer not null,
    origin text not null,
    description blob not null,
    -- What the scan found, as JSON, and whether a person read that and let the version be shown.
    findings blob not null,
    released integer not null default 0,
    created_ms integer not null,
    files integer not null,
    bytes integer not null,
    digest blob not null,
    constraint skill_versions_once unique (skill_number, version),
    constraint skill_versions_skill_known foreign key (skill_number) references skills (number),
    constraint skill_versions_released check (released in (0, 1))
) strict;

create table skill_files (
    number integer primary key,
    version_number integer not null,
    path blob not null,
    content blob not null,
    constraint skill_files_once unique (version_number, path),
    constraint skill_files_version_known foreign key (version_number) references skill_versions (number)
) strict;

-- The turns that a version was made from.
create table skill_turns (
    number integer primary key,
    version_number integer not null,
    turn_id blob not null,
    constraint skill_turns_once unique (version_number, turn_id),
    constraint skill_turns_version_known foreign key (version_number) references skill_versions (number)
) strict;

create index skill_turns_by_turn on skill_turns (turn_id);

-- What people said that should have been done, of which what repeats becomes a skill.
create table corrections (
    number integer primary key,
    scope_number integer not null,
    -- What equal wishes have in common.
    wish blob not null,
    words blob not null,
    turn_id blob not null,
    session_id blob not null,
    created_ms integer not null,
    constraint corrections_once unique (turn_id, wish),
    constraint corrections_scope_known foreign key (scope_number) references scopes (number)
) strict;

create index corrections_by_wish on corrections (scope_number, wish, number);

-- The skills that a turn was shown, as JSON; null is none.
alter table turn_memories add column skills blob;

create trigger skills_noted_added after insert on skills begin
    insert into changes (topic, scope_number, number)
    values ('memory', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger skills_noted_changed after update of version, paused, changed_ms on skills begin
    insert into changes (topic, scope_number, number)
    values ('memory', new.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

create trigger skills_noted_gone after delete on skills begin
    insert into changes (topic, scope_number, number)
    values ('memory', old.scope_number, (select coalesce(max(number), 0) + 1 from changes))
    on conflict (topic, scope_number) do update set number = excluded.number;
end;

pragma user_version = 34;
