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

pragma user_version = 21;
