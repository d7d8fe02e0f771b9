-- Feedback whose turn was not on record when it came. The turn may never come, so such feedback is kept
-- for a while only. A row goes with its feedback; the row of one whose turn came since says nothing.

create table early_feedback (
    feedback_number integer primary key,
    owner text not null,
    received_ms integer not null,
    constraint early_feedback_known foreign key (feedback_number) references feedback (number)
        on delete cascade
) strict;

create index early_feedback_by_owner on early_feedback (owner, feedback_number);
create index early_feedback_by_time on early_feedback (received_ms);

insert into early_feedback (feedback_number, owner, received_ms)
select number, owner, received_ms from feedback
where not exists (
    select 1 from turns where turns.id = feedback.turn_id and turns.owner = feedback.owner
);

pragma user_version = 16;
