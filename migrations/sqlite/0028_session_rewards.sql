-- Rewards of whole sessions, as their clients gave them.
create table session_rewards (
    number integer primary key,
    id blob not null,
    session_number integer not null,
    owner text not null,
    client_id blob,
    score real not null,
    parts blob not null,
    received_ms integer not null,
    constraint session_rewards_id_once unique (id),
    constraint session_rewards_client_id_once unique (session_number, owner, client_id),
    constraint session_rewards_session_known foreign key (session_number)
        references sessions (number)
) strict;

create index session_rewards_by_session on session_rewards (session_number, number);

-- Whether the score of feedback is the turn's return of such a reward.
alter table feedback add column of_session integer not null default 0
    constraint feedback_of_session check (of_session in (0, 1));

pragma user_version = 28;
