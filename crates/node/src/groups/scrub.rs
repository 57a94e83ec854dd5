//! Scrubbing: all blocks of a worker's streams are read once a day, one a second at most, so that damage is found while
//! other replicas can still make it good, and not when somebody reads the message years later.

use super::Machine;
use crate::worker::Core;
use std::time::Duration;
use tidelock_base::{GroupId, Mono, StreamSeq};

/// A worker reads no more than one block in this time.
const PACE: Duration = Duration::from_secs(1);
/// From the beginning of one pass to that of the next, if it does not take longer.
const EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// From the start to the first pass: others have more to do then.
const FIRST_AFTER: Duration = Duration::from_secs(600);

/// How far a worker is.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    /// When the next block is read; `None` before the first look.
    next_at: Option<Mono>,
    /// When the pass has begun.
    begun: Mono,
    /// Where it goes on.
    group: GroupId,
    seq: StreamSeq,
}

impl Scrub {
    pub(super) const fn deadline(&self) -> Option<Mono> {
        self.next_at
    }
}

impl Core {
    /// Reads the next block, if it is time.
    pub(super) fn tick_scrub(&mut self) {
        let now = self.now.mono;
        let Some(at) = self.groups.scrub.next_at else {
            self.groups.scrub.next_at = Some(now + FIRST_AFTER);
            return;
        };
        if at > now {
            return;
        }
        if self.groups.scrub.seq == StreamSeq(0) && self.groups.scrub.group == GroupId::default() {
            self.groups.scrub.begun = now;
        }
        let Scrub {
            begun, group, seq, ..
        } = self.groups.scrub;
        self.groups.scrub.next_at = Some(match self.scrub_next(group, seq) {
            Some((group, seq)) => {
                (self.groups.scrub.group, self.groups.scrub.seq) = (group, seq);
                now + PACE
            }
            None => {
                (self.groups.scrub.group, self.groups.scrub.seq) = (GroupId::default(), StreamSeq(0));
                (begun + EVERY).max(now + PACE)
            }
        });
    }

    /// Begins with this group.
    pub(super) fn scrub_now(&mut self, group: GroupId) {
        let now = self.now.mono;
        self.groups.scrub = Scrub {
            next_at: Some(now),
            begun: now,
            group,
            seq: StreamSeq(0),
        };
    }

    /// Reads the first block from there on; gives where to go on, `None` at the end.
    fn scrub_next(&mut self, group: GroupId, seq: StreamSeq) -> Option<(GroupId, StreamSeq)> {
        let mut next = None;
        for (id, slot) in self.groups.slots.range_mut(group..) {
            let start = if *id == group { seq } else { StreamSeq(0) };
            if slot.failed.is_some() {
                continue;
            }
            if let Machine::Stream(stream) = &mut slot.machine
                && let Some(behind) = stream.scrub(start)
            {
                next = Some((*id, behind));
                break;
            }
        }
        let (group, _) = next?;
        self.store_io(group);
        next
    }
}
