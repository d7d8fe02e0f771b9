-- Branches: turns that go on from another turn's answer. Which turn, how many tokens of its completion stay, and how many
-- tokens at the end of the branch's prompt belong to the answer.
alter table turns add column branch_of bytea;
alter table turns add column branch_position bigint;
alter table turns add column branch_prefix bigint;

create index turns_by_branch on turns (branch_of) where branch_of is not null;
