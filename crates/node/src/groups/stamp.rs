//! The stamps of a group's entries: they follow the time of the cluster, never stand still and never go back.
//!
//! A leader whose predecessor was ahead goes on from its last stamp, at nine tenths of the pace, until the time has caught
//! up with it. So what falls due in that stream does so at most a tenth late, and never early.

use super::{Machine, Slot};
use tidelock_base::{Mono, Now, Wall};

/// A stamp that is ahead of the time goes slower than that by this part.
const SLOWER_PART: u32 = 10;

/// The last stamp of a group that was made or seen, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamps {
    last: Wall,
    at: Mono,
}

impl Stamps {
    /// A stamp of somebody else was applied.
    pub(super) fn seen(&mut self, stamp: Wall, now: Mono) {
        if stamp > self.last {
            (self.last, self.at) = (stamp, now);
        }
    }

    /// The stamp that an entry would get.
    pub(super) fn time(&self, now: Now) -> Wall {
        let passed = now.mono.since(self.at);
        now.wall.max(self.last + (passed - passed / SLOWER_PART))
    }

    /// The stamp of the next entry.
    pub(super) fn next(&mut self, now: Now) -> Wall {
        let stamp = self.time(now).max(self.last.plus_nanos(1));
        (self.last, self.at) = (stamp, now.mono);
        stamp
    }
}

impl Slot {
    /// The stamp of the last entry applied.
    pub(super) fn applied_stamp(&self) -> Wall {
        match &self.machine {
            Machine::Stream(stream) => stream.stamp(),
            Machine::Meta(meta) => meta.stamp(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(mono: u64, wall: i64) -> Now {
        let (mono, wall) = (Mono(mono), Wall(wall));
        Now { mono, wall }
    }

    #[test]
    fn stamps_follow_the_time_and_never_stand_still() {
        let mut stamps = Stamps::default();
        assert_eq!(stamps.next(at(5, 1_000)), Wall(1_000));
        assert_eq!(stamps.next(at(5, 1_000)), Wall(1_001));
        assert_eq!(stamps.next(at(6, 2_000)), Wall(2_000));
    }

    #[test]
    fn a_stamp_that_is_ahead_goes_on_slower_until_the_time_is_there() {
        let mut stamps = Stamps::default();
        let hour = 3_600 * SECOND.cast_signed();
        stamps.seen(Wall(hour), Mono(SECOND));
        stamps.seen(Wall(hour - 1), Mono(2 * SECOND));
        assert_eq!(
            stamps.time(at(11 * SECOND, 10)),
            Wall(hour + 9 * SECOND.cast_signed())
        );
        for second in 2..=101 {
            stamps.next(at(second * SECOND, second.cast_signed()));
        }
        assert_eq!(
            stamps.time(at(101 * SECOND, 10)),
            Wall(hour + 90 * SECOND.cast_signed())
        );
        assert_eq!(stamps.next(at(102 * SECOND, 2 * hour)), Wall(2 * hour));
    }
}
