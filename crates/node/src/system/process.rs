//! Memory and processor time of the process. The node cannot read them itself: the shell gives it a probe.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidelock_base::Mono;

/// What the system knows of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStats {
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Processor time used since the start, in nanoseconds, over all threads.
    pub cpu_ns: u64,
}

/// Reads the figures of the process; may block for as long as a read of a file in memory takes.
pub trait ProcessProbe: Send + Sync {
    /// The figures now.
    fn read(&self) -> ProcessStats;
}

/// Figures older than this are read anew when somebody asks.
const FRESH: Duration = Duration::from_secs(1);

/// The figures that monitoring shows, read at most once a second. Without a probe they are 0.
#[derive(Default)]
pub(crate) struct Process {
    probe: OnceLock<Box<dyn ProcessProbe>>,
    read_at: AtomicU64,
    resident: AtomicU64,
    cpu_ns: AtomicU64,
    /// Processor time between the last two readings, in hundredths of a percent of one core.
    load: AtomicU64,
}

impl Process {
    pub(crate) fn set_probe(&self, probe: Box<dyn ProcessProbe>) {
        // A node has one probe for its life; a second one would only read the same.
        let _ = self.probe.set(probe);
    }

    /// Resident memory in bytes, and processor use in percent of one core since the reading before.
    pub(crate) fn figures(&self, now: Mono, start: Mono) -> (u64, f64) {
        self.refresh(now, start);
        let load = u32::try_from(self.load.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        (self.resident.load(Ordering::Relaxed), f64::from(load) / 100.0)
    }

    fn refresh(&self, now: Mono, start: Mono) {
        let Some(probe) = self.probe.get() else { return };
        let last = self.read_at.load(Ordering::Relaxed);
        let fresh = last != 0 && now.since(Mono(last)) < FRESH;
        // Whoever wins reads; the others show what was read before.
        if fresh
            || self
                .read_at
                .compare_exchange(last, now.0, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        let stats = probe.read();
        let since = now.since(if last == 0 { start } else { Mono(last) });
        let used = stats
            .cpu_ns
            .saturating_sub(self.cpu_ns.swap(stats.cpu_ns, Ordering::Relaxed));
        let elapsed = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1);
        let load = u128::from(used) * 10_000 / u128::from(elapsed);
        self.load
            .store(u64::try_from(load).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.resident.store(stats.resident_bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("probe", &self.probe.get().is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    struct Fake(Arc<AtomicU64>);

    impl ProcessProbe for Fake {
        fn read(&self) -> ProcessStats {
            ProcessStats {
                resident_bytes: 7,
                cpu_ns: self.0.load(Ordering::Relaxed),
            }
        }
    }

    #[test]
    fn load_is_of_the_time_between_two_readings() {
        const SECOND: u64 = 1_000_000_000;
        let used = Arc::new(AtomicU64::new(SECOND / 2));
        let process = Process::default();
        assert_eq!(process.figures(Mono(SECOND), Mono(0)), (0, 0.0));
        process.set_probe(Box::new(Fake(Arc::clone(&used))));
        assert_eq!(process.figures(Mono(SECOND), Mono(0)), (7, 50.0));
        used.store(SECOND, Ordering::Relaxed);
        assert_eq!(
            process.figures(Mono(SECOND + 1), Mono(0)),
            (7, 50.0),
            "too early for another reading"
        );
        assert_eq!(process.figures(Mono(3 * SECOND), Mono(0)), (7, 25.0));
    }
}
