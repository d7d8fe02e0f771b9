-- How a verdict's hint was chosen, as JSON, where several could be kept.
alter table verdicts add column hint_choice blob;

pragma user_version = 11;
