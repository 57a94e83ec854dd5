//! Members that are behind: entries that have left the memory are read back from the log for them, and as long as
//! somebody lacks entries the log is kept longer than this replica needs it.
//!
//! ```text
//!   forgotten │ covered by the last checkpoint, kept for others │ not covered by any checkpoint
//!           floor                                            covered
//! ```
//! What is kept for others is bounded for each worker ([`Budgets::log_held`](crate::shared::Budgets)). A member that is away
//! for longer, or whose leader has changed meanwhile, gets a snapshot.

use super::GroupId;
use super::lane::LaneState;
use crate::worker::{Core, IoJob, IoOwner};
use tidelock_base::LogIndex;
use tidelock_replica::{EntryKind, LogEntry};
use tidelock_wal::{Lane, StoredEntry, WalRecord};

/// Bytes of the log that one read covers.
const READ_BYTES: u64 = 1 << 20;

impl LaneState {
    /// Whether more is kept for others than may be.
    fn is_too_long(&self, held_max: u64) -> bool {
        self.lane
            .as_ref()
            .is_none_or(|lane| lane.retained_bytes() > held_max)
    }

    /// Whether there is no room to keep anything for others.
    fn cannot_be_kept(&self) -> bool {
        self.broken || self.lane.as_ref().is_none_or(Lane::is_short)
    }
}

impl Core {
    /// A member lacks entries from here on.
    pub(super) fn read_back(&mut self, group: GroupId, first: LogIndex) {
        let lane = self.groups.lane.lane.as_mut();
        let begun = lane.is_some_and(|lane| lane.read_back(group, first, READ_BYTES));
        if !begun {
            return self.entries_read(group, first, Vec::new());
        }
        let requests = self.groups.lane.lane.as_mut().map(Lane::take_requests);
        self.out.io.push(IoJob {
            owner: IoOwner::Log,
            requests: requests.unwrap_or_default(),
            inline: false,
        });
    }

    /// Entries were read, or cannot be.
    pub(super) fn entries_read(&mut self, group: GroupId, first: LogIndex, entries: Vec<StoredEntry>) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let entry = |entry: StoredEntry| {
            Some(LogEntry {
                index: entry.index,
                term: entry.term,
                kind: EntryKind::from_u8(entry.kind)?,
                data: entry.data,
            })
        };
        slot.raft
            .entries_read(first, entries.into_iter().map_while(entry).collect());
        self.groups.touched.insert(group);
    }

    /// Lets go of what the last checkpoint covers and nobody lacks; if the log is too long, of what others lack up to
    /// `oldest`, too. Whether there was anything.
    pub(super) fn forget_log(&mut self, group: GroupId, oldest: LogIndex) -> bool {
        let is_too_long = self.groups.lane.is_too_long(self.shared.budgets.log_held);
        let cannot_be_kept = self.groups.lane.cannot_be_kept();
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return false;
        };
        let Some(covered) = slot.checkpoint.covered else {
            return false;
        };
        let kept = slot
            .raft
            .lowest_lacked()
            .filter(|_| slot.durable && !cannot_be_kept);
        let mut index = kept.map_or(covered.index, |lacked| covered.index.min(LogIndex(lacked.0 - 1)));
        if is_too_long {
            index = index.max(oldest.min(covered.index));
        }
        let term = if index == covered.index {
            Some(covered.term)
        } else {
            slot.raft.term_of(index)
        };
        let Some(term) = term.filter(|_| index > slot.checkpoint.forgotten) else {
            return false;
        };
        slot.checkpoint.forgotten = index;
        slot.raft.forget(index);
        if slot.durable {
            self.groups.log(&WalRecord::Truncated { group, index, term });
        }
        true
    }
}
