-- Erasures up to here could leave shared beginnings that no turn uses any more. They are listed here and
-- removed by the next start; what is above them in the tree follows by itself.

insert or ignore into loose_histories (number)
select number from histories
where not exists (select 1 from histories as child where child.parent_number = histories.number)
  and not exists (select 1 from turn_payloads where history_number = histories.number);

insert or ignore into loose_blocks (number)
select number from token_blocks
where not exists (
    select 1 from token_blocks as child where child.parent_number = token_blocks.number
)
  and not exists (select 1 from turn_payloads where block_number = token_blocks.number);

insert or ignore into loose_sessions (number)
select number from sessions
where not exists (select 1 from turns where turns.session_number = sessions.number);

delete from messages
where not exists (select 1 from histories where message_number = messages.number);

pragma user_version = 18;
