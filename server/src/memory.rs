//! How much of the machine's memory this process may still take.

use std::fs;
use std::path::Path;

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

/// What `/proc/meminfo` says is available.
fn available(meminfo: &str) -> Option<u64> {
    let rest = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
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
}
