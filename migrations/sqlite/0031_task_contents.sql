-- Contents of the files of a task set, each once. `tasks.files` names them by their SHA-256. Tasks of before hold
-- their contents in that column, as lists of bytes, and are read as they are.
create table task_contents (
    number integer primary key,
    set_number integer not null,
    digest blob not null,
    content blob not null,
    constraint task_contents_once unique (set_number, digest),
    constraint task_contents_set_known foreign key (set_number) references task_sets (number)
) strict;

pragma user_version = 31;
