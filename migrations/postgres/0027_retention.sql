-- How much of a turn is stored: 2 is everything, 1 all but what only training reads (log-probs, sampling masks, experts),
-- 0 its row without a word.
alter table turns add column extent bigint not null default 2
    constraint turns_extent check (extent in (0, 1, 2));

-- What may go with its age.
create index turns_by_age on turns (extent, finished_ms, number) where stage is null and extent > 0;
