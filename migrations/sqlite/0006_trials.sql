-- Trials with a share, and versions that are not to be served again.

-- Share of the sessions that the version on trial answers.
alter table standings add column trial_share real;
-- When it was taken out of service by a person; it can be taken back in.
alter table versions add column retired_ms integer;

pragma user_version = 6;
