-- When a version was found to be damaged: its files are kept aside, and nothing serves it. `pruned_ms` is
-- set with it, because its files are no longer where they were.
alter table versions add column damaged_ms integer;

pragma user_version = 19;
