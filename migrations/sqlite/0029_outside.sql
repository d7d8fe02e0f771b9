-- Turns from outside are no version's answers, so their scores are not counted among those of a version.
drop trigger turns_scored_at_insert;
drop trigger turns_unscored_at_update;
drop trigger turns_scored_at_update;
drop trigger turns_unscored_at_delete;

create trigger turns_scored_at_insert
after insert on turns when new.score is not null and new.origin <> 'outside'
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
when old.score is not null and old.origin <> 'outside'
begin
    update version_scores set judged = judged - 1,
        total = total - cast(round(old.score * 1073741824.0) as integer)
    where scope_number = old.scope_number and version = old.version;
end;

create trigger turns_scored_at_update
after update of score, version, scope_number on turns
when new.score is not null and new.origin <> 'outside'
begin
    insert into version_scores (scope_number, version, judged, total)
    values (
        new.scope_number, new.version, 1, cast(round(new.score * 1073741824.0) as integer)
    )
    on conflict (scope_number, version) do update set
        judged = judged + 1, total = total + excluded.total;
end;

create trigger turns_unscored_at_delete
after delete on turns when old.score is not null and old.origin <> 'outside'
begin
    update version_scores set judged = judged - 1,
        total = total - cast(round(old.score * 1073741824.0) as integer)
    where scope_number = old.scope_number and version = old.version;
end;

pragma user_version = 29;
