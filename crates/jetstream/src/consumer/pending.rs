//! Messages delivered and not yet acknowledged.
//!
//! First deliveries come in the order of the stream, so the entries are one queue sorted by sequence: found by their
//! distance from the front, or by binary search. What is acknowledged is marked, and swept when it is at the front or
//! more than half of the queue; memory follows the number of pending messages, however far apart they lie.
//!
//! Deadlines need no second structure in the usual case: with a constant ack wait they rise along the queue
//! ([`Wait::Ordered`]), so the earliest is that of the first such entry. Only what breaks that order (redeliveries,
//! delays, progress) stands in a sorted set ([`Wait::Timed`]).

use std::collections::{BTreeSet, VecDeque};
use tidelock_base::{DeliverSeq, StreamSeq, Wall};

/// The deadline of what waits for ever.
pub(super) const NEVER: Wall = Wall(i64::MAX);

/// Marked entries that are kept at most, beside as many as there are live ones.
const GONE_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    /// Ascending by sequence; the first one is live.
    entries: VecDeque<Entry>,
    live: usize,
    /// Live entries with more than one delivery.
    redelivered: usize,
    /// No entry before this place is `Ordered`.
    ordered_from: usize,
    /// Deadline of the last entry made `Ordered`.
    ordered_last: Wall,
    timed: BTreeSet<(Wall, StreamSeq)>,
    queue: BTreeSet<StreamSeq>,
    /// Rises whenever something enters `queue`. Not part of the replicated state.
    queue_mark: u64,
}

/// One pending message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) seq: StreamSeq,
    /// Sequence of its first delivery.
    pub(super) deliver_seq: DeliverSeq,
    /// When the wait for its acknowledgement ends; without meaning while queued.
    pub(super) deadline: Wall,
    /// Deliveries so far.
    pub(super) count: u32,
    wait: Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Acknowledged; the entry is to be swept.
    Gone,
    /// Waits, and no later entry of this kind has an earlier deadline.
    Ordered,
    /// Waits, and stands in `timed`.
    Timed,
    /// Stands in `queue`.
    Queued,
}

impl Entry {
    pub(super) const fn is_queued(&self) -> bool {
        matches!(self.wait, Wait::Queued)
    }

    const fn is_live(&self) -> bool {
        !matches!(self.wait, Wait::Gone)
    }
}

impl Pending {
    /// Live entries.
    pub(super) const fn len(&self) -> usize {
        self.live
    }

    /// Entries held, swept or not.
    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.entries.len()
    }

    pub(super) const fn redelivered(&self) -> usize {
        self.redelivered
    }

    /// Sequences to be delivered again, in order.
    pub(super) const fn queue(&self) -> &BTreeSet<StreamSeq> {
        &self.queue
    }

    pub(super) const fn queue_mark(&self) -> u64 {
        self.queue_mark
    }

    /// Live entries in the order of their sequences.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.is_live())
    }

    pub(super) fn first(&self) -> Option<&Entry> {
        self.entries.front()
    }

    pub(super) fn get(&self, seq: StreamSeq) -> Option<&Entry> {
        self.entries.get(self.place(seq)?)
    }

    /// The place of a live entry.
    fn place(&self, seq: StreamSeq) -> Option<usize> {
        let distance = seq.0.checked_sub(self.entries.front()?.seq.0)?;
        // Without gaps in what was delivered, the distance is the place.
        let guess = usize::try_from(distance)
            .ok()
            .filter(|at| self.entries.get(*at).is_some_and(|e| e.seq == seq));
        let at = match guess {
            Some(at) => at,
            None => self.entries.binary_search_by_key(&seq, |entry| entry.seq).ok()?,
        };
        self.entries.get(at).filter(|entry| entry.is_live()).map(|_| at)
    }

    /// Adds a message that was delivered for the first time. Its sequence must be above all others.
    pub(super) fn push(&mut self, seq: StreamSeq, deliver_seq: DeliverSeq, deadline: Wall) {
        self.restore(seq, deliver_seq, deadline, 1, false);
    }

    /// Adds an entry as it stood in a checkpoint; false if its sequence is not above all others.
    pub(super) fn restore(
        &mut self,
        seq: StreamSeq,
        deliver_seq: DeliverSeq,
        deadline: Wall,
        count: u32,
        queued: bool,
    ) -> bool {
        if self.entries.back().is_some_and(|last| seq <= last.seq) {
            debug_assert!(false, "pending messages come in order");
            return false;
        }
        let wait = if queued {
            self.queue.insert(seq);
            self.queue_mark += 1;
            Wait::Queued
        } else if self.ordered_from >= self.entries.len() || deadline >= self.ordered_last {
            self.ordered_last = deadline;
            Wait::Ordered
        } else {
            self.timed.insert((deadline, seq));
            Wait::Timed
        };
        self.entries.push_back(Entry {
            seq,
            deliver_seq,
            deadline,
            count,
            wait,
        });
        self.live += 1;
        self.redelivered += usize::from(count > 1);
        self.advance();
        true
    }

    /// Takes a message out.
    pub(super) fn take(&mut self, seq: StreamSeq) -> Option<Entry> {
        let at = self.place(seq)?;
        let entry = self.detach(at, Wait::Gone)?;
        self.live -= 1;
        self.redelivered -= usize::from(entry.count > 1);
        self.sweep();
        Some(entry)
    }

    /// Takes out all messages up to this one, the oldest first.
    pub(super) fn take_through(&mut self, seq: StreamSeq, taken: &mut impl FnMut(&Entry)) {
        while let Some(first) = self.first().copied()
            && first.seq <= seq
        {
            self.take(first.seq);
            taken(&first);
        }
    }

    /// Puts a message into the queue for redelivery; false if it is there already or not pending.
    pub(super) fn enqueue(&mut self, seq: StreamSeq) -> bool {
        let Some(at) = self.place(seq) else {
            return false;
        };
        let was_queued = self
            .detach(at, Wait::Queued)
            .is_some_and(|entry| entry.is_queued());
        self.queue.insert(seq);
        self.queue_mark += 1;
        self.advance();
        !was_queued
    }

    /// Lets a pending message wait until a deadline, whatever it did before.
    pub(super) fn wait_until(&mut self, seq: StreamSeq, deadline: Wall) {
        if let Some(at) = self.place(seq) {
            self.detach(at, Wait::Timed);
            if let Some(entry) = self.entries.get_mut(at) {
                entry.deadline = deadline;
            }
            self.timed.insert((deadline, seq));
            self.advance();
        }
    }

    /// Counts one more delivery of a pending message; returns the count.
    pub(super) fn count_delivery(&mut self, seq: StreamSeq) -> u32 {
        let Some(entry) = self.place(seq).and_then(|at| self.entries.get_mut(at)) else {
            return 0;
        };
        self.redelivered += usize::from(entry.count == 1);
        entry.count = entry.count.saturating_add(1);
        entry.count
    }

    /// The earliest deadline of what waits.
    pub(super) fn next_due(&self) -> Option<Wall> {
        let ordered = self.entries.get(self.ordered_from).map(|entry| entry.deadline);
        let timed = self.timed.first().map(|(deadline, _)| *deadline);
        ordered.into_iter().chain(timed).min().filter(|due| *due != NEVER)
    }

    /// The messages whose deadline is at or before `stamp`, by sequence. They stay as they are.
    pub(super) fn due(&self, stamp: Wall) -> Vec<StreamSeq> {
        let late = |deadline: Wall| deadline <= stamp && deadline != NEVER;
        let waiting = self.entries.range(self.ordered_from.min(self.entries.len())..);
        let mut due: Vec<StreamSeq> = waiting
            .filter(|entry| entry.wait == Wait::Ordered)
            .take_while(|entry| late(entry.deadline))
            .map(|entry| entry.seq)
            .collect();
        due.extend(
            self.timed
                .iter()
                .take_while(|(deadline, _)| late(*deadline))
                .map(|(_, seq)| *seq),
        );
        due.sort_unstable();
        due
    }

    /// Gives the entry at a place another state and takes it out of the sets of its old one; returns it as it was.
    fn detach(&mut self, at: usize, wait: Wait) -> Option<Entry> {
        let entry = self.entries.get_mut(at)?;
        let before = *entry;
        entry.wait = wait;
        match before.wait {
            Wait::Timed => {
                self.timed.remove(&(before.deadline, before.seq));
            }
            Wait::Queued => {
                self.queue.remove(&before.seq);
            }
            Wait::Ordered | Wait::Gone => {}
        }
        Some(before)
    }

    /// Sweeps marked entries from the front, and all of them when they are too many.
    fn sweep(&mut self) {
        while self.entries.front().is_some_and(|entry| !entry.is_live()) {
            self.entries.pop_front();
            self.ordered_from = self.ordered_from.saturating_sub(1);
        }
        if self.entries.len() > 2 * self.live + GONE_MAX {
            self.entries.retain(Entry::is_live);
            self.ordered_from = 0;
        }
        self.advance();
    }

    /// Moves to the first `Ordered` entry at or after the mark. An entry never becomes `Ordered` later on, so each is
    /// passed once.
    fn advance(&mut self) {
        while self
            .entries
            .get(self.ordered_from)
            .is_some_and(|entry| entry.wait != Wait::Ordered)
        {
            self.ordered_from += 1;
        }
    }
}
