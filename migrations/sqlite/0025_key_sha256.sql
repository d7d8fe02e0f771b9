-- A key is stored as the SHA-256 of its text: its secret has 260 random bits, so a slow hash protects nothing.
-- A key made before has only its Argon2id hash, which cannot be converted (null): it is refused until it is rotated.
alter table api_keys add column sha256 blob
    constraint api_keys_sha256 check (length(sha256) = 32);
alter table api_keys drop column hash;

pragma user_version = 25;
