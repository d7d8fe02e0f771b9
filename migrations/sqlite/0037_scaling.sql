-- How much work waits for processes with the loop rollout, for whatever starts and ends such processes: jobs that wait and are due,
-- those that run, and those of which their rollouts have not made rows yet. A rollout that is learned from makes a group once
-- there is room for it, so one group of it counts.
create view scaling as
    select 'rollout' as role, queued, running, to_begin, queued + running + to_begin as open
    from (
        select
            (select count(*) from jobs where state = 'queued'
                and not_before_ms <= cast(unixepoch('subsec') * 1000 as integer)) as queued,
            (select count(*) from jobs where state = 'running') as running,
            (select coalesce(sum(json_extract(said, '$.attempts')
                    * case json_extract(said, '$.evaluates') when 1 then groups else 1 end), 0)
                from (
                    select cast(spec as text) as said, group_count - groups_made as groups from rollouts
                    where cancelled_ms is null and groups_made < group_count
                )) as to_begin
    );

pragma user_version = 37;
