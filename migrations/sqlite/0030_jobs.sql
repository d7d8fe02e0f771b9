-- Tasks that agents try.
create table task_sets (
    number integer primary key,
    id blob not null,
    owner text not null,
    name blob not null,
    created_ms integer not null,
    constraint task_sets_id_once unique (id),
    constraint task_sets_name_once unique (owner, name)
) strict;

create table tasks (
    number integer primary key,
    id blob not null,
    set_number integer not null,
    name blob not null,
    held_out integer not null,
    spec blob not null,
    files blob not null,
    has_solution integer not null,
    state text not null,
    note blob,
    constraint tasks_id_once unique (id),
    constraint tasks_name_once unique (set_number, name),
    constraint tasks_flags check (held_out in (0, 1) and has_solution in (0, 1)),
    constraint tasks_set_known foreign key (set_number) references task_sets (number)
) strict;

-- Orders to try them.
create table rollouts (
    number integer primary key,
    id blob not null,
    owner text not null,
    scope_number integer not null,
    set_number integer not null,
    spec blob not null,
    group_count integer not null,
    groups_made integer not null default 0,
    created_ms integer not null,
    cancelled_ms integer,
    constraint rollouts_id_once unique (id),
    constraint rollouts_scope_known foreign key (scope_number) references scopes (number),
    constraint rollouts_set_known foreign key (set_number) references task_sets (number)
) strict;

create index rollouts_by_owner on rollouts (owner, number);
create index rollouts_by_scope on rollouts (scope_number);
create index rollouts_open on rollouts (number) where cancelled_ms is null and groups_made < group_count;
create index rollouts_by_set on rollouts (set_number);

-- Durable work: each row ends once.
create table jobs (
    number integer primary key,
    id blob not null,
    kind text not null,
    owner text not null,
    scope_number integer not null,
    rollout_number integer,
    group_id blob not null,
    member integer not null,
    task_number integer not null,
    attempt integer not null,
    state text not null,
    reason text,
    priority real not null,
    not_before_ms integer not null,
    created_ms integer not null,
    started_ms integer,
    ended_ms integer,
    free_from_ms integer not null default 0,
    fence integer not null default 0,
    reward real,
    version integer,
    session_id blob,
    result blob,
    constraint jobs_id_once unique (id),
    constraint jobs_attempt_once unique (group_id, kind, member, attempt),
    constraint jobs_scope_known foreign key (scope_number) references scopes (number),
    constraint jobs_rollout_known foreign key (rollout_number) references rollouts (number),
    constraint jobs_task_known foreign key (task_number) references tasks (number)
) strict;

create index jobs_queued on jobs (priority desc, number) where state = 'queued';
create index jobs_running on jobs (free_from_ms) where state = 'running';
create index jobs_by_rollout on jobs (rollout_number, number);
create index jobs_by_task on jobs (task_number, number);
create index jobs_by_scope on jobs (scope_number);
create index jobs_by_session on jobs (session_id) where session_id is not null;
create unique index jobs_done_once on jobs (group_id, kind, member) where state = 'done';

-- The rewards of the group that a session's reward is compared with.
alter table session_rewards add column peers blob;

-- What tasks pay is no person's word on a version, so it is not counted among its scores either.
drop trigger turns_scored_at_insert;
drop trigger turns_unscored_at_update;
drop trigger turns_scored_at_update;
drop trigger turns_unscored_at_delete;

create trigger turns_scored_at_insert
after insert on turns when new.score is not null and new.origin not in ('outside', 'rollout')
begin
    insert into version_scores (scope_number, version, judged, total)
    values (
        new.scope_number, new.version, 1, cast(round(new.score * 1073741824.0) as integer)
    )
    on conflict (scope_number, version) do update set
        judged = judged + 1, total = total + excluded.total;
end;

create trigger turns_unscored_at_update
after update of score, version, scope_number on turns
when old.score is not null and old.origin not in ('outside', 'rollout')
begin
    update version_scores set judged = judged - 1,
        total = total - cast(round(old.score * 1073741824.0) as integer)
    where scope_number = old.scope_number and version = old.version;
end;

create trigger turns_scored_at_update
after update of score, version, scope_number on turns
when new.score is not null and new.origin not in ('outside', 'rollout')
begin
    insert into version_scores (scope_number, version, judged, total)
    values (
        new.scope_number, new.version, 1, cast(round(new.score * 1073741824.0) as integer)
    )
    on conflict (scope_number, version) do update set
        judged = judged + 1, total = total + excluded.total;
end;

create trigger turns_unscored_at_delete
after delete on turns when old.score is not null and old.origin not in ('outside', 'rollout')
begin
    update version_scores set judged = judged - 1,
        total = total - cast(round(old.score * 1073741824.0) as integer)
    where scope_number = old.scope_number and version = old.version;
end;

pragma user_version = 30;
