-- Whether a key's calls are collected although they say `store: false`: some clients say it on every
-- call without their user's knowledge.
alter table api_keys add column despite_store_false integer not null default 0
    check (despite_store_false in (0, 1));

drop trigger api_keys_changed;
create trigger api_keys_changed
after update of role, limits, despite_store_false, expires_ms, revoked_ms on api_keys
begin update people_revision set revision = revision + 1; end;

pragma user_version = 9;
