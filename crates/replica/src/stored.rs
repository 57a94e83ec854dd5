//! The part of the log that is not in memory any more: the write-ahead log still has it, and it is read back for members
//! that are behind.
//!
//! ```text
//!   forgotten   │ stored: terms are known, entries are read back │ resident: in memory
//!             floor                                             base
//! ```
//! The library asks for stored entries and is told to wait; the node is told which are wanted ([`Ready::read_back`]), reads
//! them and hands them over ([`Group::entries_read`]), and the library asks once more. Who needs what is forgotten gets a
//! snapshot.
//!
//! [`Ready::read_back`]: crate::Ready::read_back

use crate::frame::to_entry;
use crate::group::Group;
use crate::types::LogEntry;
use raft::GetEntriesContext;
use raft::eraftpb::Entry;
use std::cell::RefCell;
use std::collections::VecDeque;
use tidelock_base::{LogIndex, Term};

/// Stretches of entries that were read and are not sent yet; the oldest go first. Members that are behind are few.
const STRETCHES_MAX: usize = 8;
/// Members that wait for the same entries; others ask again.
const WAITING_MAX: usize = 8;

/// See the module.
#[derive(Default)]
pub(crate) struct Stored {
    /// Entries that leave the memory can be read back.
    is_kept: bool,
    /// Index and term of the last entry that is forgotten.
    floor: (u64, u64),
    /// Stretches of one term above the floor: the first index and the term of each.
    terms: VecDeque<(u64, u64)>,
    wanted: RefCell<Vec<Wanted>>,
    read: RefCell<VecDeque<Vec<Entry>>>,
}

/// Entries that the library waits for.
struct Wanted {
    first: u64,
    /// The node was told.
    is_told: bool,
    waiting: Vec<GetEntriesContext>,
}

impl Stored {
    /// Nothing is stored, up to this index and term.
    pub(crate) fn new(floor: (u64, u64)) -> Self {
        Self {
            floor,
            ..Self::default()
        }
    }

    pub(crate) const fn floor(&self) -> (u64, u64) {
        self.floor
    }

    pub(crate) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub(crate) const fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Forgets everything: the log now ends at a snapshot.
    pub(crate) fn restore(&mut self, index: u64, term: u64) {
        self.floor = (index, term);
        self.terms.clear();
        self.wanted.borrow_mut().clear();
        self.read.borrow_mut().clear();
    }

    /// An entry leaves the memory, the one after the last that has left it.
    pub(crate) fn left(&mut self, index: u64, term: u64) {
        if !self.is_kept {
            self.floor = (index, term);
        } else if self.terms.back().is_none_or(|(_, last)| *last != term) {
            self.terms.push_back((index, term));
        }
    }

    /// Entries up to `index`, which have left the memory, are forgotten.
    pub(crate) fn forget(&mut self, index: u64) {
        let Some(term) = self.term(index).filter(|_| index > self.floor.0) else {
            return;
        };
        self.floor = (index, term);
        while self.terms.get(1).is_some_and(|(first, _)| *first <= index + 1) {
            self.terms.pop_front();
        }
    }

    /// The term of an entry that has left the memory.
    pub(crate) fn term(&self, index: u64) -> Option<u64> {
        if index == self.floor.0 {
            return Some(self.floor.1);
        }
        let at = self.terms.partition_point(|(first, _)| *first <= index);
        let stretch = at.checked_sub(1).and_then(|at| self.terms.get(at));
        stretch.filter(|_| index > self.floor.0).map(|(_, term)| *term)
    }

    /// Entries from `low` on, if they were read back; or else `context` waits for them.
    pub(crate) fn entries(&self, low: u64, context: GetEntriesContext) -> Option<Vec<Entry>> {
        let mut read = self.read.borrow_mut();
        let has = |entries: &Vec<Entry>| {
            let (first, last) = (entries.first(), entries.last());
            first.is_some_and(|first| first.index <= low) && last.is_some_and(|last| low <= last.index)
        };
        if let Some(entries) = read.iter_mut().find(|entries| has(entries)) {
            entries.retain(|entry| entry.index >= low);
            return Some(entries.clone());
        }
        let mut wanted = self.wanted.borrow_mut();
        let known = wanted.iter().position(|one| one.first == low);
        let at = known.unwrap_or(wanted.len());
        if known.is_none() {
            wanted.push(Wanted {
                first: low,
                is_told: false,
                waiting: Vec::new(),
            });
        }
        if let Some(one) = wanted.get_mut(at).filter(|one| one.waiting.len() < WAITING_MAX) {
            one.waiting.push(context);
        }
        None
    }

    /// Where to begin to read, once for each that is wanted.
    pub(crate) fn take_wanted(&self) -> Vec<LogIndex> {
        let mut wanted = self.wanted.borrow_mut();
        let new =
            |one: &mut Wanted| (!std::mem::replace(&mut one.is_told, true)).then_some(LogIndex(one.first));
        wanted.iter_mut().filter_map(new).collect()
    }

    /// Entries were read; gives who waits for them. None: they cannot be read, and nor can any before.
    fn read(&mut self, first: u64, entries: Vec<Entry>, base: u64) -> Vec<GetEntriesContext> {
        let as_known =
            |(entry, index): (&Entry, u64)| entry.index == index && self.term(index) == Some(entry.term);
        let whole = entries.iter().zip(first..).all(as_known);
        if whole && !entries.is_empty() {
            let read = self.read.get_mut();
            if read.len() >= STRETCHES_MAX {
                read.pop_front();
            }
            read.push_back(entries);
        } else if first > self.floor.0 {
            self.forget(base);
        }
        let wanted = self.wanted.get_mut();
        let at = wanted.iter().position(|one| one.first == first);
        at.map(|at| wanted.swap_remove(at).waiting).unwrap_or_default()
    }

    /// A stretch of which everything is sent is let go.
    pub(crate) fn sent_through(&self, index: u64) {
        let is_sent = |entries: &Vec<Entry>| entries.last().is_none_or(|last| last.index <= index);
        let mut read = self.read.borrow_mut();
        if let Some(at) = read.iter().position(is_sent) {
            read.remove(at);
        }
    }
}

impl Group {
    /// From now on, applied entries that leave the memory are taken to be in the write-ahead log until
    /// [`Group::forget`], and are asked for when a member needs them.
    pub fn keep_stored(&mut self) {
        self.node.mut_store().stored_mut().keep();
    }

    /// The write-ahead log does not have applied entries up to `upto` any more, or will not in a moment. Members that
    /// need them get a snapshot.
    pub fn forget(&mut self, upto: LogIndex) {
        self.node.mut_store().forget_through(upto.value());
    }

    /// Index before the first entry that members can be sent; one that needs it or less gets a snapshot.
    #[must_use]
    pub fn floor_index(&self) -> LogIndex {
        LogIndex(self.node.store().stored().floor().0)
    }

    /// The term of an entry that is not forgotten.
    #[must_use]
    pub fn term_of(&self, index: LogIndex) -> Option<Term> {
        let known = raft::Storage::term(self.node.store(), index.value());
        known.ok().map(Term)
    }

    /// Entries that a `Ready` wanted to be read back, from the first one on, one after the other, as many as were read.
    /// None if they cannot be: whoever needs them, or any before, gets a snapshot.
    pub fn entries_read(&mut self, first: LogIndex, entries: Vec<LogEntry>) {
        self.guarded((), |group| {
            let entries = entries
                .into_iter()
                .map_while(|entry| to_entry(entry.index.value(), entry.term.value(), entry.kind, entry.data));
            let entries = entries.collect();
            let store = group.node.mut_store();
            let base = store.base().0;
            for context in store.stored_mut().read(first.value(), entries, base) {
                group.node.on_entries_fetched(context);
            }
        });
    }

    /// As leader: the lowest index that a member lacks, as far as is known; what a member is being filled with counts as
    /// there. `None` if it does not lead, or nobody lacks anything.
    #[must_use]
    pub fn lowest_lacked(&self) -> Option<LogIndex> {
        let last = self.last_index();
        let peers = self.progress().into_iter();
        let has = |peer: crate::PeerProgress| {
            self.snapshots
                .filled_with(peer.replica)
                .map_or(peer.matched, LogIndex)
        };
        let lowest = peers.map(has).min()?;
        (lowest < last).then_some(LogIndex(lowest.0 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::EntryKind;
    use bytes::Bytes;

    fn entries(range: std::ops::Range<u64>, term: u64) -> Vec<Entry> {
        let entry = |index| to_entry(index, term, EntryKind::Normal, Bytes::from_static(b"x"));
        range.filter_map(entry).collect()
    }

    /// Entries 2 to 9 are of term 1, 10 to 19 of term 2.
    fn stored() -> Stored {
        let mut stored = Stored::new((1, 1));
        stored.keep();
        for index in 2..20 {
            stored.left(index, 1 + index / 10);
        }
        stored
    }

    fn ask(stored: &Stored, low: u64) -> Option<u64> {
        let entries = stored.entries(low, GetEntriesContext::empty(true))?;
        assert_eq!(entries.first().map(|entry| entry.index), Some(low));
        entries.last().map(|entry| entry.index)
    }

    #[test]
    fn terms_are_known_down_to_the_floor() {
        let mut stored = stored();
        let terms = |stored: &Stored| [1, 2, 9, 10, 19].map(|index| stored.term(index));
        assert_eq!(terms(&stored), [1, 1, 1, 2, 2].map(Some));
        stored.forget(9);
        assert_eq!(terms(&stored), [None, None, Some(1), Some(2), Some(2)]);
        assert_eq!((stored.floor(), stored.terms.len()), ((9, 1), 1));
        stored.forget(3);
        assert_eq!(stored.floor(), (9, 1), "it never falls");
        stored.forget(15);
        assert_eq!((stored.term(15), stored.term(16)), (Some(2), Some(2)));
    }

    #[test]
    fn what_is_wanted_is_asked_for_once_and_goes_to_all_who_wait() {
        let mut stored = stored();
        assert_eq!(
            (ask(&stored, 5), ask(&stored, 5), ask(&stored, 12)),
            (None, None, None)
        );
        assert_eq!(stored.take_wanted(), [LogIndex(5), LogIndex(12)]);
        assert_eq!((ask(&stored, 5), stored.take_wanted()), (None, vec![]));
        assert_eq!(stored.read(5, entries(5..9, 1), 19).len(), 3);
        assert_eq!((ask(&stored, 5), ask(&stored, 7)), (Some(8), Some(8)));
        stored.sent_through(8);
        assert_eq!(ask(&stored, 7), None);
        assert_eq!(stored.read(12, entries(12..14, 2), 19).len(), 1);
        assert_eq!((ask(&stored, 13), stored.floor()), (Some(13), (1, 1)));
    }

    #[test]
    fn what_cannot_be_read_or_is_something_else_is_forgotten() {
        for wrong in [Vec::new(), entries(5..9, 2), entries(6..9, 1)] {
            let mut stored = stored();
            assert_eq!(ask(&stored, 5), None);
            assert_eq!(stored.read(5, wrong, 19).len(), 1);
            assert_eq!(stored.floor(), (19, 2));
        }
    }

    #[test]
    fn nothing_is_stored_where_there_is_no_log() {
        let mut stored = Stored::new((1, 1));
        stored.left(2, 1);
        assert_eq!((stored.floor(), stored.term(1)), ((2, 1), None));
    }
}
