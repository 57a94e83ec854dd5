//! How much a node may store, how much it does, and whether its disk has room: one for all workers, in atomics.
//!
//! A worker adds what an applied entry has changed, once an entry. Whether a publish is let in is asked before it is
//! logged ([`crate::groups`]); nothing here is ever read by `apply`.
//!
//! The low-water mark: below it publishes are refused, and what is left is for deletes, purges, acknowledgements and
//! votes. It is a sixteenth of the file system, 256 MiB at most; half as much again must be free before publishes are
//! let in again, so that the state does not flicker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidelock_jetstream::config::Storage;

/// Part of the file system that is kept for what frees room.
const MARK_PART: u64 = 16;
/// Most that is kept.
const MARK_MAX: u64 = 256 << 20;

/// Bytes in memory and in files.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    memory: AtomicU64,
    files: AtomicU64,
    /// The log says already that there is as much as may be; in memory, in files.
    told: [AtomicBool; 2],
}

impl Stored {
    const fn of(&self, storage: Storage) -> &AtomicU64 {
        match storage {
            Storage::Memory => &self.memory,
            Storage::File => &self.files,
        }
    }

    /// Bytes stored.
    pub(crate) fn load(&self, storage: Storage) -> u64 {
        self.of(storage).load(Ordering::Relaxed)
    }

    const fn told(&self, storage: Storage) -> &AtomicBool {
        let [memory, files] = &self.told;
        match storage {
            Storage::Memory => memory,
            Storage::File => files,
        }
    }

    /// Whether this is the first refusal since there was room. The log says so once.
    pub(crate) fn first_refusal(&self, storage: Storage) -> bool {
        let told = self.told(storage);
        !told.load(Ordering::Relaxed) && !told.swap(true, Ordering::Relaxed)
    }

    /// There is room.
    pub(crate) fn has_room(&self, storage: Storage) {
        let told = self.told(storage);
        if told.load(Ordering::Relaxed) {
            told.store(false, Ordering::Relaxed);
        }
    }

    /// Replaces a share of `from` bytes by one of `to`.
    pub(crate) fn change(&self, storage: Storage, from: u64, to: u64) {
        if to >= from {
            self.of(storage).fetch_add(to - from, Ordering::Relaxed);
        } else {
            self.of(storage).fetch_sub(from - to, Ordering::Relaxed);
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Room {
    pub(crate) stored: Stored,
    memory_max: AtomicU64,
    files_max: AtomicU64,
    low: AtomicBool,
    /// By worker: the log cannot be written.
    broken: AtomicU64,
    /// By worker: the log has nothing but its reserve left, and the disk gives no more.
    short: AtomicU64,
}

impl Default for Room {
    /// Without an end.
    fn default() -> Self {
        Self {
            stored: Stored::default(),
            memory_max: AtomicU64::new(u64::MAX),
            files_max: AtomicU64::new(u64::MAX),
            low: AtomicBool::new(false),
            broken: AtomicU64::new(0),
            short: AtomicU64::new(0),
        }
    }
}

/// What is wrong with the log of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogTrouble {
    /// It cannot be written.
    Broken,
    /// It lives on its reserve.
    Short,
}

impl Room {
    const fn max_of(&self, storage: Storage) -> &AtomicU64 {
        match storage {
            Storage::Memory => &self.memory_max,
            Storage::File => &self.files_max,
        }
    }

    /// Most bytes of messages that the server stores; `u64::MAX` without an end.
    pub(crate) fn max(&self, storage: Storage) -> u64 {
        self.max_of(storage).load(Ordering::Relaxed)
    }

    /// Most bytes of messages in file streams; `u64::MAX` without an end.
    #[must_use]
    pub fn files_max(&self) -> u64 {
        self.max(Storage::File)
    }

    /// Most bytes of messages in memory streams; `u64::MAX` without an end.
    #[must_use]
    pub fn memory_max(&self) -> u64 {
        self.max(Storage::Memory)
    }

    /// Sets how many bytes of messages file streams hold at most.
    pub fn set_files_max(&self, bytes: u64) {
        self.files_max.store(bytes, Ordering::Relaxed);
    }

    /// Sets how many bytes of messages memory streams hold at most.
    pub fn set_memory_max(&self, bytes: u64) {
        self.memory_max.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of messages in the file streams of this node.
    #[must_use]
    pub fn files_stored(&self) -> u64 {
        self.stored.load(Storage::File)
    }

    /// The disk has said how much is free; answers whether that is below the mark, if that is news.
    pub(crate) fn disk_has(&self, free: u64, total: u64) -> Option<bool> {
        let mark = low_water(total);
        let was = self.low.load(Ordering::Relaxed);
        let low = free < if was { mark + mark / 2 } else { mark };
        (low != was && self.low.swap(low, Ordering::Relaxed) != low).then_some(low)
    }

    /// Whether the disk is below its low-water mark.
    pub(crate) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    /// Says what is wrong with a worker's log, or that it is not.
    pub(crate) fn set_log(&self, worker: u16, trouble: LogTrouble, on: bool) {
        let bit = 1_u64 << (worker % 64);
        let bits = match trouble {
            LogTrouble::Broken => &self.broken,
            LogTrouble::Short => &self.short,
        };
        if on {
            bits.fetch_or(bit, Ordering::Relaxed);
        } else {
            bits.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether a worker's log can take publishes.
    pub(crate) fn log_takes(&self, worker: u16) -> bool {
        let bits = self.broken.load(Ordering::Relaxed) | self.short.load(Ordering::Relaxed);
        bits & (1 << (worker % 64)) == 0
    }

    /// Whether a worker's log can be written.
    pub(crate) fn log_is_broken(&self, worker: u16) -> bool {
        self.broken.load(Ordering::Relaxed) & (1 << (worker % 64)) != 0
    }

    /// Whether any log cannot take publishes, or the disk is low: what health reports.
    pub(crate) fn trouble(&self) -> Option<&'static str> {
        if self.broken.load(Ordering::Relaxed) != 0 {
            Some("the write-ahead log cannot be written")
        } else if self.short.load(Ordering::Relaxed) != 0 || self.is_low() {
            Some("the disk is nearly full, publishes are refused")
        } else {
            None
        }
    }
}

/// Free bytes below which publishes are refused.
pub(crate) const fn low_water(total: u64) -> u64 {
    let part = total / MARK_PART;
    if part < MARK_MAX { part } else { MARK_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_left_only_with_half_as_much_again() {
        let room = Room::default();
        let total = 1600;
        assert_eq!(room.disk_has(100, total), None);
        assert_eq!(room.disk_has(99, total), Some(true));
        assert_eq!(room.disk_has(0, total), None);
        assert_eq!(room.disk_has(149, total), None, "still low");
        assert_eq!(room.disk_has(150, total), Some(false));
        assert_eq!(room.disk_has(120, total), None);
        assert!(!room.is_low());
    }

    #[test]
    fn a_disk_without_an_end_is_never_low() {
        let room = Room::default();
        assert_eq!(room.disk_has(u64::MAX, u64::MAX), None);
        assert_eq!(low_water(u64::MAX), MARK_MAX);
    }

    #[test]
    fn each_worker_speaks_for_its_own_log() {
        let room = Room::default();
        room.set_log(2, LogTrouble::Broken, true);
        room.set_log(1, LogTrouble::Short, true);
        assert!(room.log_takes(0) && !room.log_takes(1) && !room.log_takes(2));
        assert!(room.log_is_broken(2) && !room.log_is_broken(1));
        assert!(room.trouble().is_some_and(|text| text.contains("write-ahead")));
        room.set_log(2, LogTrouble::Broken, false);
        room.set_log(1, LogTrouble::Short, false);
        assert_eq!(room.trouble(), None);
    }
}
