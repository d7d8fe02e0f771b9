-- People: users, their keys, sign-ins and invitations, and the record of who did what. No secret is
-- stored: passwords and keys as Argon2id strings, random tokens as SHA-256. Names are plain ASCII.

create table users (
    number integer primary key,
    name text not null,
    role text not null,
    -- None for somebody who never signs in and only uses keys.
    password text,
    disabled integer not null,
    -- Exceptions from the configured limits, as JSON.
    limits text not null,
    created_ms integer not null,
    signed_in_ms integer,
    constraint users_name_once unique (name)
) strict;

-- `id` is the public part of the key. An owner need not be a user: the person at the machine is not.
create table api_keys (
    number integer primary key,
    id text not null,
    owner text not null,
    label blob not null,
    role text not null,
    hash text not null,
    limits text not null,
    created_ms integer not null,
    expires_ms integer,
    revoked_ms integer,
    used_ms integer,
    constraint api_keys_id_once unique (id)
) strict;

create index api_keys_owner on api_keys (owner, number);

create table sign_ins (
    number integer primary key,
    token blob not null,
    user_name text not null,
    created_ms integer not null,
    used_ms integer not null,
    constraint sign_ins_token_once unique (token),
    constraint sign_ins_user_known foreign key (user_name) references users (name)
) strict;

create index sign_ins_user on sign_ins (user_name);
create index sign_ins_used on sign_ins (used_ms);

create table invites (
    number integer primary key,
    token blob not null,
    role text not null,
    -- The only name it makes; none lets the guest choose.
    user_name text,
    created_by text not null,
    created_ms integer not null,
    expires_ms integer not null,
    taken_ms integer,
    constraint invites_token_once unique (token)
) strict;

-- Grows with every change that could outdate what a process remembers of users and keys.
create table people_revision (
    revision integer not null
) strict;
insert into people_revision (revision) values (0);

create trigger users_added after insert on users
begin update people_revision set revision = revision + 1; end;
create trigger users_changed after update of role, password, disabled, limits on users
begin update people_revision set revision = revision + 1; end;
create trigger users_gone after delete on users
begin update people_revision set revision = revision + 1; end;
create trigger api_keys_added after insert on api_keys
begin update people_revision set revision = revision + 1; end;
create trigger api_keys_changed after update of role, limits, expires_ms, revoked_ms on api_keys
begin update people_revision set revision = revision + 1; end;
create trigger api_keys_gone after delete on api_keys
begin update people_revision set revision = revision + 1; end;
create trigger sign_ins_gone after delete on sign_ins
begin update people_revision set revision = revision + 1; end;

-- Who did what. Each hash covers its row and the hash before it, and rows are only ever added.
create table audit (
    number integer primary key,
    at_ms integer not null,
    actor text not null,
    act text not null,
    object blob not null,
    detail blob not null,
    hash blob not null
) strict;

create index audit_act on audit (act, number);

create trigger audit_keeps_rows before update on audit
begin select raise(abort, 'the audit log is append-only'); end;
create trigger audit_loses_none before delete on audit
begin select raise(abort, 'the audit log is append-only'); end;

pragma user_version = 2;
