-- The manner that a verdict's hint asks for, in the words of the rules' table, where it holds it.
alter table verdicts add column wish blob;

pragma user_version = 22;
