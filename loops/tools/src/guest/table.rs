//! The processes beside the guest, as /proc has them.

use std::collections::{HashMap, HashSet};

/// One process. Its start tells it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: i32,
    pub parent: i32,
    pub session: i32,
    pub start: u64,
    pub zombie: bool,
}

/// Who is who: a number and a start.
pub(super) type Known = HashSet<(i32, u64)>;

/// Reads one line of /proc/<pid>/stat. The name may hold anything, so fields count from its last bracket.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat
        .get(stat.rfind(')')? + 1..)?
        .split_whitespace()
        .collect();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// Every live process but the guest: all of them where the guest is the first process, else its descendants.
pub(super) fn processes(walls: bool) -> Vec<Process> {
    let guest = i32::try_from(std::process::id()).unwrap_or(0);
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        if pid == guest {
            continue;
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        all.extend(stat.ok().and_then(|stat| parse(pid, &stat)));
    }
    if !walls {
        let parents = parents(&all);
        all.retain(|p| descends(p.pid, guest, &parents));
    }
    all.retain(|p| !p.zombie);
    all
}

fn parents(all: &[Process]) -> HashMap<i32, i32> {
    all.iter().map(|p| (p.pid, p.parent)).collect()
}

fn descends(pid: i32, from: i32, parents: &HashMap<i32, i32>) -> bool {
    let mut at = pid;
    for _ in 0..=parents.len() {
        if at == from {
            return true;
        }
        match parents.get(&at) {
            Some(parent) => at = *parent,
            None => return false,
        }
    }
    false
}

/// What a command began with: its process, and all that was there before.
pub(super) struct Origin<'a> {
    pub pid: i32,
    pub before: &'a Known,
}

/// The processes that a command left behind or still runs. Whoever was there before it is not of it; whoever is a
/// descendant or of the session of another command is not of it either. A process that cut both ties while several
/// commands ran is spared: nobody can say whose it is.
pub(super) fn of_command(all: &[Process], mine: &Origin<'_>, others: &[Origin<'_>]) -> Vec<i32> {
    let parents = parents(all);
    let belongs = |p: &Process, to: i32| p.session == to || descends(p.pid, to, &parents);
    let of_mine = |p: &&Process| {
        !mine.before.contains(&(p.pid, p.start))
            && (belongs(p, mine.pid)
                || others.iter().all(|o| {
                    !belongs(p, o.pid) && p.pid != o.pid && o.before.contains(&(p.pid, p.start))
                }))
    };
    all.iter().filter(of_mine).map(|p| p.pid).collect()
}

/// Bytes of memory that all processes hold beside files.
pub(super) fn memory_bytes(walls: bool) -> u64 {
    let of = |p: &Process| -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", p.pid)).unwrap_or_default();
        let rss = status.lines().filter(|l| {
            l.starts_with("RssAnon:") || l.starts_with("RssShmem:") || l.starts_with("VmSwap:")
        });
        let kib = rss.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
        kib.sum::<u64>() * 1024
    };
    processes(walls).iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, session: i32) -> Process {
        Process {
            pid,
            parent,
            session,
            start: 5,
            zombie: false,
        }
    }

    #[test]
    fn a_name_full_of_brackets_is_read() {
        let line = "7 (a) S 1 (b)) R 3 7 2 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 99 0";
        let read = parse(7, line).unwrap();
        assert_eq!((read.parent, read.session, read.start), (3, 2, 99));
        assert_eq!(parse(7, "7 (a"), None);
    }

    #[test]
    fn a_command_owns_what_it_started_and_nothing_else() {
        let all = [
            process(10, 1, 10), // this command
            process(11, 10, 10),
            process(12, 1, 12), // left its session and its parent
            process(20, 1, 20), // another command
            process(21, 20, 21),
            process(5, 1, 5), // was there before
        ];
        let before: Known = [(5, 5)].into();
        let mine = Origin {
            pid: 10,
            before: &before,
        };
        assert_eq!(of_command(&all, &mine, &[]), [10, 11, 12, 20, 21]);
        let later: Known = [(5, 5), (10, 5), (11, 5), (12, 5)].into();
        let other = |before| Origin { pid: 20, before };
        assert_eq!(of_command(&all, &mine, &[other(&later)]), [10, 11, 12]);
        assert_eq!(of_command(&all, &mine, &[other(&before)]), [10, 11]);
    }
}
