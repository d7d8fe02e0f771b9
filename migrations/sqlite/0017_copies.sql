-- Requests of turns that are gone: another choice of one may still be under way. One request may ask in
-- several sessions, which have no part in each other.
create table forgotten_requests (
    id blob not null,
    session_id blob not null,
    constraint forgotten_requests_once primary key (id, session_id)
) strict, without rowid;

-- Import and erasure ask for every version that is the same adapter, or lies in the same files.
create index versions_by_digest on versions (digest);
create index versions_by_blob on versions (blob);

pragma user_version = 17;
