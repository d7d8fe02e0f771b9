-- Which log-probs replies to a key have where a request does not say: the model's own (1), those of the
-- distribution that is sampled from (0), or what the configuration says (null).
alter table api_keys add column raw_logprobs integer
    constraint api_keys_raw_logprobs check (raw_logprobs in (0, 1));

pragma user_version = 24;
