-- Which experts a model of experts used where it predicted each completion token: how many bytes an
-- id takes (1 or 2), then the ids token by token, layer by layer.
alter table turn_payloads add column experts blob;

pragma user_version = 14;
