-- What lists of sessions and turns are read by. A session's title is its first user message, cut;
-- `title_folded` is the same in lower case, for the search.

alter table sessions add column title blob;
alter table sessions add column title_folded blob;

create index sessions_recent on sessions (scope_number, last_ms, number);
create index if not exists turns_by_session on turns (session_number, number);
create index turns_by_reason on turns (reason, number) where reason is not null;

update sessions set title = (
    with recursive path (parent_number, message_number, depth) as (
        select parent_number, message_number, 0 from histories
        where number = (
            select turn_payloads.history_number
            from turns join turn_payloads on turn_payloads.turn_number = turns.number
            where turns.session_number = sessions.number and turns.kind = 'main'
            order by turns.number limit 1
        )
        union all
        select histories.parent_number, histories.message_number, path.depth + 1
        from path join histories on histories.number = path.parent_number
    )
    select cast(substr(json_extract(cast(messages.body as text), '$.content'), 1, 200) as blob)
    from path join messages on messages.number = path.message_number
    where json_extract(cast(messages.body as text), '$.role') = 'user'
    order by path.depth desc limit 1
);
update sessions set title_folded = cast(lower(cast(title as text)) as blob)
where title is not null;

pragma user_version = 5;
