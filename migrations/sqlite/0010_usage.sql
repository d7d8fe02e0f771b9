-- What a model's vote took: tokens read and written, and their price; and the prompt it was cast under.
alter table votes add column prompt_tokens integer;
alter table votes add column completion_tokens integer;
alter table votes add column cost real;
alter table votes add column prompt text;

pragma user_version = 10;
