-- Answers that a retry with the same Idempotency-Key gets. `name` is a hash over owner, route and key,
-- `body` one over the request. A row without an answer stands for a request that began: `request_id` finds
-- the turn that it came to, which is among those after `after_turn`. What was not collected has no row.
create table answers (
    number integer primary key,
    name blob not null,
    owner text not null,
    body blob not null,
    request_id blob not null,
    after_turn integer not null,
    began_ms integer not null,
    status integer,
    headers blob,
    answer blob,
    bytes integer not null default 0,
    constraint answers_name_once unique (name),
    constraint answers_whole check (
        (status is null) = (answer is null) and (status is null) = (headers is null)
    )
) strict;

create index answers_by_owner on answers (owner);
create index answers_by_time on answers (began_ms, number, bytes);

pragma user_version = 20;
