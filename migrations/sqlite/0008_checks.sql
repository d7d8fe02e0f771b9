-- What a completion is to be checked by, as JSON, where its request said so.
alter table turn_payloads add column checks blob;

-- How executed checks compared with what was argued; see `audits`.
create index votes_audits on votes (model, outcome) where model glob 'audit:*';

pragma user_version = 8;
