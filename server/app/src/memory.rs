//! How much of the machine's memory this process may still take.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Least address space that a start takes beside the program, its model and its keys and values: the stacks
/// and allocators of threads, and the ledger.
const START_BYTES: u64 = 512 << 20;
/// What of it is still to come once the engine has its keys and values.
const REST_BYTES: u64 = 256 << 20;
/// What loading a model takes, as a multiple of its files: as they are, and as they are computed.
const LOADING: u64 = 2;

/// Bytes that are available on Linux: what the kernel says, and no more than the process's control group (a
/// container, a unit) or one around it allows. None elsewhere.
pub(crate) fn free() -> Option<u64> {
    let machine = available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(own.unwrap_or_default());
    let groups = own.ancestors().take_while(|group| group.starts_with(root));
    Some(groups.filter_map(left).fold(machine, u64::min))
}

/// Refuses a start under a limit of address space (`ulimit -v`) that leaves too little for one: threads and
/// libraries end the process where they get no memory, so this is said before there are any.
///
/// # Errors
/// A sentence with the remedy.
pub(crate) fn check_start() -> Result<(), String> {
    check_limit(("a start", START_BYTES))
}

/// The same before a model with files of so many bytes is read.
///
/// # Errors
/// A sentence with the remedy.
pub(crate) fn check_model(bytes: u64) -> Result<(), String> {
    check_limit(("loading the model", bytes.saturating_mul(LOADING)))
}

/// The same once the engine has its keys and values.
///
/// # Errors
/// A sentence with the remedy.
pub(crate) fn check_rest() -> Result<(), String> {
    check_limit(("the rest of a start", REST_BYTES))
}

fn check_limit(takes: (&str, u64)) -> Result<(), String> {
    let Some(limit) = getrlimit(Resource::As).current else {
        return Ok(());
    };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    check_space((limit, space_taken(&status).unwrap_or_default()), takes)
}

/// Whether a limit leaves enough beside what is taken.
fn check_space((limit, taken): (u64, u64), (what, takes): (&str, u64)) -> Result<(), String> {
    let left = limit.saturating_sub(taken);
    if left >= takes {
        return Ok(());
    }
    Err(format!(
        "the limit of address space (ulimit -v) leaves {} MiB, and {what} takes at least {}; raise the limit, \
         lower serve.kv_cache_bytes_max, or serve a smaller model",
        left >> 20,
        takes >> 20
    ))
}

/// Bytes of address space that `/proc/self/status` says are taken.
fn space_taken(status: &str) -> Option<u64> {
    kib(status, "VmSize:")
}

/// The number of KiB behind a name, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// What `/proc/meminfo` says is available.
fn available(meminfo: &str) -> Option<u64> {
    kib(meminfo, "MemAvailable:")
}

/// What a control group's limit leaves; none where it has no limit.
fn left(group: &Path) -> Option<u64> {
    let number = |file| -> Option<u64> {
        let text = fs::read_to_string(group.join(file)).ok()?;
        text.trim().parse().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_is_available_in_kib() {
        let rows = [
            (
                "MemTotal: 9 kB\nMemAvailable:    6100 kB\nBuffers: 1 kB",
                Some(6_100 << 10),
            ),
            ("MemTotal: 9 kB", None),
            ("MemAvailable: much", None),
        ];
        for (text, wanted) in rows {
            assert_eq!(available(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_limit_that_leaves_too_little_is_refused_with_a_remedy() {
        let taken = space_taken("Name: hone\nVmSize:\t  102400 kB\n").unwrap();
        assert_eq!(taken, 100 << 20);
        let takes = ("a start", 512 << 20);
        assert_eq!(check_space((taken + takes.1, taken), takes), Ok(()));
        let refused = check_space((taken + takes.1 - 1, taken), takes).unwrap_err();
        for says in [
            "ulimit -v",
            "leaves 511 MiB",
            "a start takes at least 512",
            "raise the limit",
        ] {
            assert!(refused.contains(says), "{refused}");
        }
        assert!(check_space((1, taken), takes).is_err());
    }
}
