-- How much work waits for processes with the loop rollout, for whatever starts and ends such processes: jobs that wait and are due,
-- those that run, and those of which their rollouts have not made rows yet. A rollout that is learned from makes a group once
-- there is room for it, so one group of it counts.
create view scaling as
    select 'rollout' as role, queued, running, to_begin, queued + running + to_begin as open
    from (
        select
            (select count(*) from jobs where state = 'queued'
                and not_before_ms <= (extract(epoch from clock_timestamp()) * 1000)::bigint) as queued,
            (select count(*) from jobs where state = 'running') as running,
            (select coalesce(sum((said ->> 'attempts')::bigint
                    * case when (said ->> 'evaluates')::boolean then groups else 1 end), 0)::bigint
                from (
                    select convert_from(spec, 'UTF8')::json as said, group_count - groups_made as groups from rollouts
                    where cancelled_ms is null and groups_made < group_count
                ) as unfinished) as to_begin
    ) as counted;
