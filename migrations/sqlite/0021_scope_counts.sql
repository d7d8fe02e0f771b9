-- How many turns of each scope have which fate, and how many of them a score; kept by triggers, so that
-- what was learned from a scope is told without counting its turns.
create table scope_counts (
    scope_number integer not null,
    fate text not null,
    turns integer not null,
    judged integer not null,
    constraint scope_counts_once primary key (scope_number, fate)
) strict, without rowid;

insert into scope_counts (scope_number, fate, turns, judged)
select scope_number, coalesce(stage, reason, 'trained'), count(*), count(score)
from turns group by 1, 2;

create trigger turns_counted_by_scope after insert on turns
begin
    insert into scope_counts (scope_number, fate, turns, judged)
    values (
        new.scope_number, coalesce(new.stage, new.reason, 'trained'), 1, new.score is not null
    )
    on conflict (scope_number, fate) do update set
        turns = turns + 1, judged = judged + excluded.judged;
end;

create trigger turns_recounted_by_scope
after update of stage, reason, trained_version, score on turns
begin
    update scope_counts set turns = turns - 1, judged = judged - (old.score is not null)
    where scope_number = old.scope_number
      and fate = coalesce(old.stage, old.reason, 'trained');
    insert into scope_counts (scope_number, fate, turns, judged)
    values (
        new.scope_number, coalesce(new.stage, new.reason, 'trained'), 1, new.score is not null
    )
    on conflict (scope_number, fate) do update set
        turns = turns + 1, judged = judged + excluded.judged;
end;

create trigger turns_uncounted_by_scope after delete on turns
begin
    update scope_counts set turns = turns - 1, judged = judged - (old.score is not null)
    where scope_number = old.scope_number
      and fate = coalesce(old.stage, old.reason, 'trained');
end;

-- The scores of each version's turns, kept likewise, so that means are told without reading the turns. Sums
-- are whole numbers of 2^-30, so that what was added can be taken away without a rest.
create table version_scores (
    scope_number integer not null,
    version integer not null,
    judged integer not null,
    total integer not null,
    constraint version_scores_once primary key (scope_number, version)
) strict, without rowid;

insert into version_scores (scope_number, version, judged, total)
select scope_number, version, count(*), sum(cast(round(score * 1073741824.0) as integer))
from turns where score is not null group by 1, 2;

create trigger turns_scored_at_insert after insert on turns when new.score is not null
begin
    insert into version_scores (scope_number, version, judged, total)
    values (
        new.scope_number, new.version, 1, cast(round(new.score * 1073741824.0) as integer)
    )
    on conflict (scope_number, version) do update set
        judged = judged + 1, total = total + excluded.total;
end;

create trigger turns_unscored_at_update
after update of score, version, scope_number on turns when old.score is not null
begin
    update version_scores set judged = judged - 1,
        total = total - cast(round(old.score * 1073741824.0) as integer)
    where scope_number = old.scope_number and version = old.version;
end;

create trigger turns_scored_at_update
after update of score, version, scope_number on turns when new.score is not null
begin
    insert into version_scores (scope_number, version, judged, total)
    values (
        new.scope_number, new.version, 1, cast(round(new.score * 1073741824.0) as integer)
    )
    on conflict (scope_number, version) do update set
        judged = judged + 1, total = total + excluded.total;
end;

create trigger turns_unscored_at_delete after delete on turns when old.score is not null
begin
    update version_scores set judged = judged - 1,
        total = total - cast(round(old.score * 1073741824.0) as integer)
    where scope_number = old.scope_number and version = old.version;
end;

-- What a report on improvement reads: the newest scored turns of a scope.
create index turns_scored_newest on turns (scope_number, number) where score is not null;

pragma user_version = 21;
