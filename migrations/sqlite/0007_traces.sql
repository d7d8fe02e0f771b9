-- What a request brought along: the distributed trace it belongs to, where the client named one, and
-- what the client attached for itself, as a JSON object of texts.

alter table turns add column trace blob;
alter table turns add column metadata blob;

pragma user_version = 7;
