-- Turns from outside are no version's answers, so their scores are not counted among those of a version.
create or replace function count_turn(turn turns, step bigint) returns void language plpgsql as $$
declare
    turn_fate text collate "C" := coalesce(turn.stage, turn.reason, 'trained');
    is_judged bigint := case when turn.score is null then 0 else step end;
begin
    insert into fate_counts (fate, turns) values (turn_fate, step)
    on conflict (fate) do update set turns = fate_counts.turns + step;
    insert into scope_counts (scope_number, fate, turns, judged)
    values (turn.scope_number, turn_fate, step, is_judged)
    on conflict (scope_number, fate) do update set
        turns = scope_counts.turns + step, judged = scope_counts.judged + is_judged;
    if turn.score is not null and turn.origin <> 'outside' then
        insert into version_scores (scope_number, version, judged, total)
        values (
            turn.scope_number, turn.version, step,
            step * cast(round(turn.score * 1073741824.0) as integer)
        )
        on conflict (scope_number, version) do update set
            judged = version_scores.judged + excluded.judged,
            total = version_scores.total + excluded.total;
    end if;
end $$;
