//! Reads of a replica: asked for in one go a turn, served once the replica has applied what they are to see.

use super::{Done, Slot, Waiter};
use crate::worker::Core;
use std::collections::VecDeque;
use tidelock_base::{GroupId, LogIndex};
use tidelock_replica::{ReadOutcome, ReadResult, ReadToken};

/// Ordinal of a read that rides on an entry.
pub(super) const READ_ORDINAL: u32 = u32::MAX;

impl Core {
    /// A linearizable read of the local replica: the waiter hears of it when the local state contains everything that
    /// was proposed before.
    pub(crate) fn read(&mut self, group: GroupId, waiter: Waiter) {
        match self.slot_mut(group) {
            Some(slot) => slot.waiting_reads.push(waiter),
            None => self.end(waiter, Done::Lost),
        }
    }

    /// Asks for the reads that came in this turn, all in one.
    pub(super) fn start_reads(&mut self, group: GroupId) {
        let now = self.now.mono;
        let token = ReadToken(self.groups.next_token + 1);
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if slot.waiting_reads.is_empty() {
            return;
        }
        let waiters = std::mem::take(&mut slot.waiting_reads);
        if slot.leads
            && let Some(sealed) = slot.sealed.back_mut()
        {
            // Proposed after the read arrived: once it is applied, this replica has led since then.
            sealed
                .waiters
                .extend(waiters.into_iter().map(|waiter| (READ_ORDINAL, waiter)));
            return;
        }
        self.groups.next_token = token.0;
        slot.raft.read(now, token);
        slot.asked.insert(token, waiters);
    }

    pub(super) fn read_ended(&mut self, group: GroupId, read: ReadResult) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let Some(waiters) = slot.asked.remove(&read.token) else {
            return;
        };
        match read.outcome {
            ReadOutcome::At(index) => {
                // What this leader has proposed before the read is seen by it, too.
                let proposed = slot.proposed.back().map_or(LogIndex(0), |entry| entry.index);
                let at = if slot.leads { index.max(proposed) } else { index };
                slot.reads.extend(waiters.into_iter().map(|waiter| (at, waiter)));
            }
            ReadOutcome::Dropped => {
                for waiter in waiters {
                    self.end(waiter, Done::Lost);
                }
            }
        }
    }

    /// Serves the reads that the applied state has caught up with.
    pub(super) fn serve_reads(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if slot.applying.is_some() || slot.reads.is_empty() {
            return;
        }
        let applied = slot.raft.applied_index();
        let (ready, later): (Vec<_>, Vec<_>) = slot.reads.drain(..).partition(|(index, _)| *index <= applied);
        slot.reads.extend(later);
        for (_, waiter) in ready {
            self.end(waiter, Done::Read);
        }
    }
}

impl Slot {
    /// Takes out who waits for a read to be confirmed. What was proposed here before the read may be lost with the
    /// leadership, and a follower's state would not show it to the connection that published it. Those who wait for
    /// the disk only have been served already.
    pub(super) fn take_reads(&mut self) -> Vec<Waiter> {
        let (served, unconfirmed): (VecDeque<_>, VecDeque<_>) =
            self.reads.drain(..).partition(|(index, _)| *index == LogIndex(0));
        self.reads = served;
        let mut waiters = std::mem::take(&mut self.waiting_reads);
        waiters.extend(std::mem::take(&mut self.asked).into_values().flatten());
        waiters.extend(unconfirmed.into_iter().map(|(_, waiter)| waiter));
        waiters
    }
}
