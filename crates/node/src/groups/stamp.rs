//! The stamps of a group's entries: they follow the time of the cluster, never stand still and never go back.
//!
//! A leader whose predecessor was ahead goes on from its last stamp, at nine tenths of the pace, until the time has caught
//! up with it. So what falls due in that stream does so at most a tenth late, and never early. As long as a server is not
//! sure of the time, as after its start, it goes on from the last stamp at the pace of its monotonic clock.

use super::{Machine, Slot};
use crate::clock::LogTime;
use crate::worker::Core;
use tidelock_base::{GroupId, Mono, Now, Wall};

/// A stamp that is ahead of the time goes slower than that by this part.
const SLOWER_PART: u32 = 10;

/// The last stamp of a group that was made or seen, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamps {
    last: Wall,
    at: Mono,
}

impl Stamps {
    /// Those of a state that is there since this moment.
    pub(super) const fn from(machine: &Machine, now: Mono) -> Self {
        Self {
            last: stamp_of(machine),
            at: now,
        }
    }

    /// A stamp of somebody else was applied.
    pub(super) fn seen(&mut self, stamp: Wall, now: Mono) {
        if stamp > self.last {
            (self.last, self.at) = (stamp, now);
        }
    }

    /// The stamp that an entry would get.
    pub(super) fn time(&self, now: LogTime) -> Wall {
        let passed = now.mono.since(self.at);
        if now.is_sure || self.last == Wall::ZERO {
            now.wall.max(self.last + (passed - passed / SLOWER_PART))
        } else {
            self.last + passed
        }
    }

    /// The stamp of the next entry.
    pub(super) fn next(&mut self, now: LogTime) -> Wall {
        let stamp = self.time(now).max(self.last.plus_nanos(1));
        (self.last, self.at) = (stamp, now.mono);
        stamp
    }
}

impl Core {
    /// The time by which something of a group is due: what its next entry would be stamped with.
    pub(crate) fn group_time(&self, group: GroupId) -> Now {
        let time = self.log_time();
        let wall = self.slot(group).map_or(time.wall, |slot| slot.stamps.time(time));
        Now {
            mono: time.mono,
            wall,
        }
    }
}

impl Slot {
    /// The stamp of the last entry applied.
    pub(super) const fn applied_stamp(&self) -> Wall {
        stamp_of(&self.machine)
    }
}

const fn stamp_of(machine: &Machine) -> Wall {
    match machine {
        Machine::Stream(stream) => stream.stamp(),
        Machine::Meta(meta) => meta.stamp(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(mono: u64, wall: i64) -> LogTime {
        let (mono, wall) = (Mono(mono), Wall(wall));
        let is_sure = true;
        LogTime { mono, wall, is_sure }
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

    #[test]
    fn who_is_not_sure_of_the_time_goes_on_from_the_last_stamp() {
        let unsure = |mono, wall| LogTime {
            is_sure: false,
            ..at(mono, wall)
        };
        let hour = 3_600 * SECOND.cast_signed();
        let mut stamps = Stamps::default();
        assert_eq!(stamps.time(unsure(5, hour)), Wall(hour), "there is nothing else");
        stamps.seen(Wall(7), Mono(SECOND));
        assert_eq!(
            stamps.next(unsure(3 * SECOND, hour)),
            Wall(7 + 2 * SECOND.cast_signed())
        );
        assert_eq!(
            stamps.next(unsure(3 * SECOND, hour)),
            Wall(8 + 2 * SECOND.cast_signed())
        );
        assert_eq!(stamps.next(at(4 * SECOND, hour)), Wall(hour));
    }
}
