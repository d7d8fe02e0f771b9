//! What a process takes, as Linux tells it.

/// Resident memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Memory {
    pub(super) now_kib: u64,
    pub(super) peak_kib: u64,
}

impl Memory {
    /// In the text of `/proc/PID/status`.
    pub(super) fn in_status(status: &str) -> Result<Self, String> {
        let kib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|line| line.split_whitespace().next());
            let number = number.and_then(|number| number.parse::<u64>().ok());
            number.ok_or_else(|| format!("a process's status has no {key}"))
        };
        Ok(Self {
            now_kib: kib("VmRSS:")?,
            peak_kib: kib("VmHWM:")?,
        })
    }
}

/// Of this process.
pub(super) fn memory() -> Result<Memory, String> {
    let path = "/proc/self/status";
    let status = std::fs::read_to_string(path)
        .map_err(|error| format!("{path} cannot be read ({error}); memory needs Linux's /proc"))?;
    Memory::in_status(&status)
}

/// The peak of this process begins again at what it takes now (`clear_refs` in proc_pid(5)).
pub(super) fn forget_peak() -> Result<(), String> {
    let path = "/proc/self/clear_refs";
    std::fs::write(path, "5").map_err(|error| format!("{path} cannot be written ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kib() {
        let status = "Name:\thone\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n";
        let wanted = Memory {
            now_kib: 2048,
            peak_kib: 4096,
        };
        assert_eq!(Memory::in_status(status), Ok(wanted));
        assert!(Memory::in_status("Name:\thone\n").is_err());
    }

    #[test]
    fn this_process_tells_its_own_and_can_forget_its_peak() {
        assert_eq!(forget_peak(), Ok(()));
        let memory = memory().expect("Linux tells it");
        assert!(memory.now_kib > 0 && memory.peak_kib >= memory.now_kib);
    }
}
