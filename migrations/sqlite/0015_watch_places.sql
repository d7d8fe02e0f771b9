-- SQLite gives the numbers of erased rows again, so the watch's places follow the greatest that is left.

create trigger turns_unwatched after delete on turns
begin
    update watch_places set turn_number = min(
        turn_number, (select coalesce(max(number), 0) from turns)
    );
end;

create trigger verdicts_unwatched after delete on verdicts
begin
    update watch_places set verdict_number = min(
        verdict_number, (select coalesce(max(number), 0) from verdicts)
    );
end;

update watch_places set
    turn_number = min(turn_number, (select coalesce(max(number), 0) from turns)),
    verdict_number = min(verdict_number, (select coalesce(max(number), 0) from verdicts));

-- For training, `attempts` counts claims that were never given back; one that is held may yet be.
update leases set attempts = held where consumer = 'train';

pragma user_version = 15;
