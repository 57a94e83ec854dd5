//! The part of the log that is in memory: all entries that are not applied, and a bounded cache of applied ones.
//!
//! The library reads the log through this and panics where it gets an error, so whatever it may ask for is here:
//! everything above the applied index. What is below the first resident entry is read back for members that need it
//! ([`crate::stored`]), down to the floor, where the log has ended as far as the library knows; a follower that needs what
//! is gone is sent a snapshot, once the node has offered one.

use crate::stored::Stored;
use raft::eraftpb::{Entry, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What an entry costs beyond its bytes.
const ENTRY_OVERHEAD: usize = size_of::<Entry>();
/// Applied entries above a pin are kept up to this many times the cache's budget.
const PINNED_FACTOR: usize = 8;
/// The same where they cannot be read back.
const PINNED_FACTOR_IN_MEMORY: usize = 64;

/// See the module.
pub(crate) struct GroupLog {
    /// Index and term before the first resident entry.
    base: (u64, u64),
    entries: VecDeque<Entry>,
    /// Bytes of resident entries, and of those among them that are applied.
    resident_bytes: usize,
    cached_bytes: usize,
    applied: u64,
    cache_bytes_max: usize,
    /// So much more may be kept above a pin.
    pinned_more: usize,
    /// What is below the base.
    stored: Stored,
    initial: RaftState,
    /// Snapshots that the node has offered, by receiver; each is used once.
    offers: RefCell<BTreeMap<u64, Snapshot>>,
    /// Followers that need a snapshot.
    wanted: RefCell<BTreeSet<u64>>,
}

impl GroupLog {
    /// A log that ends at `base` (index, term), with `entries` above it.
    pub(crate) fn new(
        base: (u64, u64),
        entries: VecDeque<Entry>,
        initial: RaftState,
        cache_bytes_max: usize,
    ) -> Self {
        let resident_bytes = entries.iter().map(entry_bytes).sum();
        Self {
            base,
            entries,
            resident_bytes,
            cached_bytes: 0,
            applied: base.0,
            cache_bytes_max,
            pinned_more: 0,
            stored: Stored::new(base),
            initial,
            offers: RefCell::default(),
            wanted: RefCell::default(),
        }
    }

    /// So many bytes more may be kept above a pin from now on.
    pub(crate) const fn pin_more(&mut self, bytes: usize) {
        self.pinned_more = bytes;
    }

    pub(crate) const fn base(&self) -> (u64, u64) {
        self.base
    }

    pub(crate) const fn stored(&self) -> &Stored {
        &self.stored
    }

    pub(crate) const fn stored_mut(&mut self) -> &mut Stored {
        &mut self.stored
    }

    pub(crate) fn last(&self) -> u64 {
        self.entries.back().map_or(self.base.0, |entry| entry.index)
    }

    pub(crate) const fn resident_bytes(&self) -> usize {
        self.resident_bytes
    }

    pub(crate) const fn unapplied_bytes(&self) -> usize {
        self.resident_bytes - self.cached_bytes
    }

    /// Appends entries, superseding those at and above the first of them.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.applied, "an applied entry is never superseded");
        assert!(first.index <= self.last() + 1, "entries follow each other");
        while self.last() >= first.index {
            let dropped = self.entries.pop_back().expect("last() is above the base");
            self.resident_bytes -= entry_bytes(&dropped);
        }
        self.resident_bytes += entries.iter().map(entry_bytes).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Forgets everything: the log now ends at a snapshot.
    pub(crate) fn restore(&mut self, index: u64, term: u64) {
        self.entries = VecDeque::new();
        self.base = (index, term);
        self.stored.restore(index, term);
        self.applied = index;
        self.resident_bytes = 0;
        self.cached_bytes = 0;
    }

    /// Entries up to `applied` join the cache; entries above `pin` stay in it a good while longer.
    pub(crate) fn set_applied(&mut self, applied: u64, pin: u64) {
        let newly = self.offset(self.applied + 1)..self.offset(applied + 1);
        self.cached_bytes += self.entries.range(newly).map(entry_bytes).sum::<usize>();
        self.applied = applied;
        let factor = if self.stored.is_kept() {
            PINNED_FACTOR
        } else {
            PINNED_FACTOR_IN_MEMORY
        };
        let pinned_max = (self.cache_bytes_max.saturating_mul(factor)).saturating_add(self.pinned_more);
        while self.cached_bytes > self.cache_bytes_max {
            let pinned = self.base.0 >= pin && self.cached_bytes <= pinned_max;
            if pinned || !self.drop_first() {
                break;
            }
        }
        self.release_capacity();
    }

    /// Drops applied entries up to `upto` from memory.
    pub(crate) fn compact(&mut self, upto: u64) {
        while self.base.0 < upto && self.drop_first() {}
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
        self.release_capacity();
    }

    /// Drops applied entries up to `upto`; they cannot be read back, either.
    pub(crate) fn forget_through(&mut self, upto: u64) {
        self.compact(upto);
        self.stored.forget(upto.min(self.base.0));
    }

    /// Forgets what only the library's start needed.
    pub(crate) fn forget_initial(&mut self) {
        self.initial = RaftState::default();
    }

    fn drop_first(&mut self) -> bool {
        if self.base.0 >= self.applied {
            return false;
        }
        let Some(first) = self.entries.pop_front() else {
            return false;
        };
        self.base = (first.index, first.term);
        self.stored.left(first.index, first.term);
        self.resident_bytes -= entry_bytes(&first);
        self.cached_bytes -= entry_bytes(&first);
        true
    }

    /// A burst must not leave an idle group with a large empty ring.
    fn release_capacity(&mut self) {
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Offers the snapshot that `to` will be sent.
    pub(crate) fn offer(&self, to: u64, snapshot: Snapshot) {
        self.offers.borrow_mut().insert(to, snapshot);
        self.wanted.borrow_mut().remove(&to);
    }

    /// Forgets offers and wishes of `to`, or of everyone.
    pub(crate) fn forget(&self, to: Option<u64>) {
        let (mut offers, mut wanted) = (self.offers.borrow_mut(), self.wanted.borrow_mut());
        match to {
            Some(to) => {
                offers.remove(&to);
                wanted.remove(&to);
            }
            None => {
                offers.clear();
                wanted.clear();
            }
        }
    }

    /// Followers that need a snapshot and have none offered.
    pub(crate) fn wanted(&self) -> Vec<u64> {
        self.wanted.borrow().iter().copied().collect()
    }

    /// Position of `index` in the ring, clamped to its ends.
    fn offset(&self, index: u64) -> usize {
        let offset = index.saturating_sub(self.base.0 + 1);
        usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.entries.len())
    }

    fn get(&self, index: u64) -> Option<&Entry> {
        let offset = index.checked_sub(self.base.0 + 1)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }
}

fn entry_bytes(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + ENTRY_OVERHEAD
}

impl Storage for GroupLog {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        let max_size = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0u64;
        let mut fits = |entry: &Entry| {
            let first = size == 0;
            size = size.saturating_add(u64::try_from(entry_bytes(entry)).unwrap_or(u64::MAX));
            first || size <= max_size
        };
        if low <= self.base.0 {
            if low <= self.stored.floor().0 || !context.can_async() {
                return Err(Error::Store(StorageError::Compacted));
            }
            let waits = Error::Store(StorageError::LogTemporarilyUnavailable);
            let mut entries = self.stored.entries(low, context).ok_or(waits)?;
            let wanted = |entry: &&Entry| entry.index < high && fits(entry);
            entries.truncate(entries.iter().take_while(wanted).count());
            self.stored
                .sent_through(entries.last().map_or(low, |entry| entry.index));
            return Ok(entries);
        }
        let range = self.offset(low)..self.offset(high);
        let resident = self.entries.range(range);
        Ok(resident.take_while(|entry| fits(entry)).cloned().collect())
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.base.0 {
            return Ok(self.base.1);
        }
        if index < self.base.0 {
            let stored = self.stored.term(index);
            return stored.ok_or(Error::Store(StorageError::Compacted));
        }
        self.get(index)
            .map(|entry| entry.term)
            .ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.stored.floor().0 + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _: u64, to: u64) -> Result<Snapshot> {
        if let Some(snapshot) = self.offers.borrow_mut().remove(&to) {
            return Ok(snapshot);
        }
        self.wanted.borrow_mut().insert(to);
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::to_entry;
    use crate::types::EntryKind;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn entry(index: u64, term: u64, size: usize) -> Entry {
        to_entry(index, term, EntryKind::Normal, Bytes::from(vec![1; size])).expect("data fits")
    }

    fn list(log: &GroupLog) -> Vec<(u64, u64)> {
        log.entries
            .iter()
            .map(|entry| (entry.index, entry.term))
            .collect()
    }

    #[test]
    fn what_is_not_applied_is_never_let_go() {
        let mut log = GroupLog::new((1, 1), VecDeque::new(), RaftState::default(), 0);
        log.append(&[entry(2, 1, 10), entry(3, 1, 10), entry(4, 2, 10)]);
        log.compact(4);
        assert_eq!(list(&log), [(2, 1), (3, 1), (4, 2)]);
        log.set_applied(3, u64::MAX);
        assert_eq!(list(&log), [(4, 2)]);
        assert_eq!(log.term(3), Ok(1));
        assert_eq!(log.term(2), Err(Error::Store(StorageError::Compacted)));
        let needed = log.entries(3, 5, None, GetEntriesContext::empty(false));
        assert_eq!(needed, Err(Error::Store(StorageError::Compacted)));
    }

    #[test]
    fn a_pin_keeps_what_follows_a_snapshot() {
        for (is_kept, then) in [(true, 260..280), (false, 70..100)] {
            let mut log = GroupLog::new((1, 1), VecDeque::new(), RaftState::default(), 700);
            if is_kept {
                log.stored_mut().keep();
            }
            let mut grow = |range: std::ops::Range<u64>| {
                for index in range {
                    log.append(&[entry(index, 1, 100)]);
                    log.set_applied(index, 10);
                }
                log.base().0
            };
            assert_eq!(grow(2..20), 10);
            assert!(then.contains(&grow(20..300)), "as much as fits");
            log.pin_more(4_000);
            let held = log.base().0;
            log.append(&(300..310).map(|index| entry(index, 1, 100)).collect::<Vec<_>>());
            log.set_applied(309, 10);
            assert_eq!(log.base().0, held, "there is more room");
            log.set_applied(309, u64::MAX);
            assert!(log.base().0 > 290);
        }
    }

    #[test]
    fn an_offer_is_used_once() {
        let log = GroupLog::new((5, 1), VecDeque::new(), RaftState::default(), 0);
        assert!(log.snapshot(0, 7).is_err());
        assert_eq!(log.wanted(), [7]);
        log.offer(7, Snapshot::default());
        assert!(log.wanted().is_empty());
        assert!(log.snapshot(0, 7).is_ok());
        assert!(log.snapshot(0, 7).is_err());
    }

    proptest! {
        #[test]
        fn a_log_is_what_a_plain_list_is(steps in proptest::collection::vec((0u64..6, 1usize..40, 0u8..3), 1..60)) {
            let mut log = GroupLog::new((1, 1), VecDeque::new(), RaftState::default(), 500);
            let mut model: Vec<Entry> = Vec::new();
            let mut applied = 1;
            for ((back, size, what), term) in steps.into_iter().zip(1..) {
                let last = model.last().map_or(1, |entry| entry.index);
                if what == 0 {
                    applied = last - back.min(last - applied);
                    log.set_applied(applied, u64::MAX);
                } else {
                    let first = (last + 1 - back.min(last)).max(applied + 1);
                    model.retain(|entry| entry.index < first);
                    let new = [entry(first, term, size), entry(first + 1, term, size)];
                    model.extend(new.iter().cloned());
                    log.append(&new);
                }
                let kept: Vec<_> = model.iter().filter(|e| e.index > log.base().0).cloned().collect();
                prop_assert!(log.base().0 <= applied);
                prop_assert_eq!(log.entries.iter().cloned().collect::<Vec<_>>(), kept.clone());
                prop_assert_eq!(log.resident_bytes(), kept.iter().map(entry_bytes).sum::<usize>());
                let fresh = kept.iter().filter(|e| e.index > applied).map(entry_bytes).sum::<usize>();
                prop_assert_eq!(log.unapplied_bytes(), fresh);
                prop_assert!(log.cached_bytes <= 500);
            }
        }
    }
}
