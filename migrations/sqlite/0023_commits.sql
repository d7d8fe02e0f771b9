-- How many transactions changed something. A file beside the ledger says how many were acknowledged, so that a
-- ledger that lacks some of them is told from a whole one.
create table commits (
    one integer not null,
    number integer not null,
    constraint commits_one_row primary key (one),
    constraint commits_one check (one = 1)
) strict;

insert into commits (one, number) values (1, 0);

pragma user_version = 23;
