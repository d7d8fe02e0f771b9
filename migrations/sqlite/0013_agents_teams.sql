-- Agents: accounts of programs that a person or a team keeps. Teams: accounts that share limits.

create table teams (
    number integer primary key,
    name text not null,
    disabled integer not null check (disabled in (0, 1)),
    -- What all members and agents may use together, beside the configured limits, as JSON.
    limits text not null,
    created_ms integer not null,
    constraint teams_name_once unique (name)
) strict;

-- A member need not be a user: somebody known by a token of an identity provider is not. Everybody is in
-- one team at most, so that it is clear whose limits and agents they share.
create table team_members (
    number integer primary key,
    team_number integer not null,
    member text not null,
    lead integer not null check (lead in (0, 1)),
    joined_ms integer not null,
    constraint team_members_once unique (member),
    constraint team_members_team_known foreign key (team_number) references teams (number)
) strict;

create index team_members_team on team_members (team_number);

-- Whose agent an account is; null for an account of its own. Nobody signs in as an agent.
alter table users add column keeper text check (keeper is null or password is null);
alter table users add column keeper_team integer references teams (number)
    check (keeper_team is null or (keeper is null and password is null));

create trigger teams_added after insert on teams
begin update people_revision set revision = revision + 1; end;
create trigger teams_changed after update on teams
begin update people_revision set revision = revision + 1; end;
create trigger team_members_added after insert on team_members
begin update people_revision set revision = revision + 1; end;
create trigger team_members_changed after update on team_members
begin update people_revision set revision = revision + 1; end;
create trigger team_members_gone after delete on team_members
begin update people_revision set revision = revision + 1; end;

pragma user_version = 13;
