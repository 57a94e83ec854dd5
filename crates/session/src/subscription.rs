//! The subscriptions of a connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A subscription of a connection: 22 bits of index and, above them, 10 bits that change when an index is used again,
/// so that a delivery meant for a subscription that is gone does not reach its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubSlot(pub u32);

const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: u32 = (1 << (32 - INDEX_BITS)) - 1;

/// Most subscriptions of one connection, whatever the configuration says; more are refused as over the limit.
pub(crate) const SUBSCRIPTIONS_MAX: usize = 1 << INDEX_BITS;

impl SubSlot {
    const fn new(index: u32, generation: u32) -> Self {
        Self((generation & GENERATION_MASK) << INDEX_BITS | index & INDEX_MASK)
    }

    const fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    const fn generation(self) -> u32 {
        self.0 >> INDEX_BITS
    }
}

/// One subscription.
#[derive(Debug)]
pub struct Subscription {
    subject: Arc<[u8]>,
    queue: Option<Arc<[u8]>>,
    sid: Box<[u8]>,
    /// Deliveries after which it ends; `u64::MAX` for never.
    pub(crate) max: u64,
    pub(crate) delivered: u64,
    /// Whether deliveries must be checked against the subscribe permissions.
    pub(crate) deny_filter: bool,
    /// `HMSG subject sid ` of the last delivery; without the first byte it is the prefix of a MSG.
    prefix: Vec<u8>,
    prefix_subject_len: usize,
}

impl Subscription {
    /// The subject, valid, perhaps with wildcards.
    #[must_use]
    pub const fn subject(&self) -> &Arc<[u8]> {
        &self.subject
    }

    /// The queue group.
    #[must_use]
    pub const fn queue(&self) -> Option<&Arc<[u8]>> {
        self.queue.as_ref()
    }

    /// The client's name of it.
    #[must_use]
    pub fn sid(&self) -> &[u8] {
        &self.sid
    }

    /// Deliveries so far.
    #[must_use]
    pub const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Deliveries after which it ends, if there is such a number.
    #[must_use]
    pub const fn max(&self) -> Option<u64> {
        match self.max {
            u64::MAX => None,
            max => Some(max),
        }
    }

    /// `HMSG subject sid `, from the last delivery if the subject is the same.
    #[inline]
    pub(crate) fn prefix(&mut self, subject: &[u8]) -> &[u8] {
        let cached = self.prefix.get(5..5 + self.prefix_subject_len);
        if cached != Some(subject) {
            self.write_prefix(subject);
        }
        &self.prefix
    }

    fn write_prefix(&mut self, subject: &[u8]) {
        self.prefix.clear();
        for part in [b"HMSG ", subject, b" ", &self.sid, b" "] {
            self.prefix.extend_from_slice(part);
        }
        self.prefix_subject_len = subject.len();
    }
}

/// Subscriptions by slot and by sid.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    entries: Vec<Entry>,
    /// Free indexes, oldest first.
    free: VecDeque<u32>,
    by_sid: BTreeMap<Box<[u8]>, SubSlot>,
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    sub: Option<Subscription>,
}

impl Subscriptions {
    pub(crate) fn len(&self) -> usize {
        self.by_sid.len()
    }

    /// The slot of a sid.
    pub(crate) fn find(&self, sid: &[u8]) -> Option<SubSlot> {
        self.by_sid.get(sid).copied()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: SubSlot) -> Option<&mut Subscription> {
        let entry = self.entries.get_mut(slot.index())?;
        if entry.generation == slot.generation() {
            entry.sub.as_mut()
        } else {
            None
        }
    }

    pub(crate) fn get(&self, slot: SubSlot) -> Option<&Subscription> {
        let entry = self.entries.get(slot.index())?;
        if entry.generation == slot.generation() {
            entry.sub.as_ref()
        } else {
            None
        }
    }

    /// Adds a subscription whose sid is not used yet. `None` if there is no room for another.
    pub(crate) fn insert(
        &mut self,
        subject: &[u8],
        queue: Option<&[u8]>,
        sid: &[u8],
        deny_filter: bool,
    ) -> Option<SubSlot> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.entries.len() < SUBSCRIPTIONS_MAX => {
                self.entries.push(Entry::default());
                u32::try_from(self.entries.len() - 1).ok()?
            }
            None => return None,
        };
        let entry = self.entries.get_mut(index as usize)?;
        entry.sub = Some(Subscription {
            subject: Arc::from(subject),
            queue: queue.map(Arc::from),
            sid: Box::from(sid),
            max: u64::MAX,
            delivered: 0,
            deny_filter,
            prefix: Vec::new(),
            prefix_subject_len: 0,
        });
        let slot = SubSlot::new(index, entry.generation);
        self.by_sid.insert(Box::from(sid), slot);
        Some(slot)
    }

    pub(crate) fn remove(&mut self, slot: SubSlot) -> Option<Subscription> {
        self.get(slot)?;
        let entry = self.entries.get_mut(slot.index())?;
        let sub = entry.sub.take()?;
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        self.free.push_back(slot.0 & INDEX_MASK);
        self.by_sid.remove(&sub.sid);
        Some(sub)
    }

    /// All subscriptions in the order of their slots' indexes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SubSlot, &Subscription)> {
        (0_u32..).zip(&self.entries).filter_map(|(index, entry)| {
            entry
                .sub
                .as_ref()
                .map(|sub| (SubSlot::new(index, entry.generation), sub))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_slot_does_not_reach_the_successor() {
        let mut subs = Subscriptions::default();
        let first = subs.insert(b"a", None, b"1", false).unwrap();
        assert!(subs.remove(first).is_some());
        let second = subs.insert(b"b", Some(b"q"), b"2", false).unwrap();
        assert_eq!(first.index(), second.index());
        assert!(subs.get(first).is_none());
        assert!(subs.remove(first).is_none());
        assert_eq!(subs.find(b"1"), None);
        assert_eq!(subs.find(b"2"), Some(second));
        assert_eq!(
            subs.iter().map(|(slot, s)| (slot, s.sid())).collect::<Vec<_>>(),
            [(second, &b"2"[..])]
        );
    }

    #[test]
    fn the_prefix_follows_the_subject() {
        let mut subs = Subscriptions::default();
        let slot = subs.insert(b"a.*", None, b"17", false).unwrap();
        let sub = subs.get_mut(slot).unwrap();
        for subject in [&b"a.b"[..], b"a.b", b"a.bc", b"a.b"] {
            let expected = [b"HMSG ", subject, b" 17 "].concat();
            assert_eq!(sub.prefix(subject), expected);
        }
    }
}
