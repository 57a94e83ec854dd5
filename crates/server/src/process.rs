//! Memory and processor time of this process, from `/proc`; where there is none, monitoring shows 0.

use tidelock_node::{ProcessProbe, ProcessStats};

/// Nanoseconds of a tick in `/proc`: Linux shows times in hundredths of a second whatever its own clock is.
const TICK_NS: u64 = 10_000_000;

/// Reads `/proc/self`.
pub(crate) struct Probe;

impl ProcessProbe for Probe {
    fn read(&self) -> ProcessStats {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        ProcessStats {
            resident_bytes: kilobytes(&status, "VmRSS:").unwrap_or(0),
            cpu_ns: ticks(&stat).unwrap_or(0).saturating_mul(TICK_NS),
        }
    }
}

/// The value of a line `name  n kB`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

/// Time in the process itself and in the kernel for it, in ticks. The name before them may hold blanks.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

/// Bytes of the machine's memory.
pub(crate) fn memory_bytes() -> Option<u64> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    kilobytes(&memory, "MemTotal:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_the_files_of_proc() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 500 0 0 0 7 5 0 0 20 0 4 0 100 0 0";
        assert_eq!(ticks(stat), Some(12));
        assert_eq!(ticks("42 (cut"), None);
        assert_eq!(
            kilobytes("VmSize:\t 9 kB\nVmRSS:\t  1234 kB\n", "VmRSS:"),
            Some(1234 * 1024)
        );
        assert_eq!(kilobytes("", "VmRSS:"), None);
    }
}
