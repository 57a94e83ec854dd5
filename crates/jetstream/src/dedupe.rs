//! Message ids seen within the duplicate window (`Nats-Msg-Id`, ADR-4 headers; jetstream protocol, "Dedupe").
//!
//! An id is kept as its 128-bit xxh3 hash with the sequence of its message: whoever could make two ids collide could
//! as well publish the other's id itself, so a stronger hash would protect nothing, and nothing is allocated for an
//! id. Entries leave by the log's time only; removing the message does not free its id.
//!
//! A lookup goes by the exact time; the sweep that frees memory may come late, so that an idle stream is not woken
//! for each id.

use crate::codec::{Malformed, Put, Reader};
use crate::digest::Running;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use tidelock_base::{StreamSeq, Wall};
use xxhash_rust::xxh3::xxh3_128;

/// Ids that are swept with each new one, so that a steady stream of ids needs no sweep of its own.
const SWEEP_PER_INSERT: usize = 2;
/// Bytes of an encoded id, and of what stands before all.
const SEEN_BYTES: usize = 32;
const HEAD_BYTES: usize = 28;

/// The ids of one stream.
#[derive(Clone, Debug, Default)]
pub struct Dedupe {
    window_ns: i64,
    /// Oldest first. Iteration and encoding go by this order, never by the map's.
    queue: VecDeque<Seen>,
    /// Number of the entry at the front of `queue`.
    front: u64,
    /// Entries below this number are in the last checkpoint, as long as they are kept.
    saved: u64,
    /// Number of the newest entry of each id.
    newest: HashMap<u128, u64, BuildHasherDefault<TakeLow>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    id: u128,
    seq: StreamSeq,
    ts: Wall,
}

/// The keys are hashes already; their low half serves as it is.
#[derive(Clone, Copy, Debug, Default)]
struct TakeLow(u64);

impl Hasher for TakeLow {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxhash_rust::xxh3::xxh3_64(bytes);
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half of a hash is a hash")]
    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Dedupe {
    /// An empty set with this window in nanoseconds; 0 remembers nothing.
    #[must_use]
    pub fn new(window_ns: i64) -> Self {
        Self {
            window_ns,
            ..Self::default()
        }
    }

    /// The window changes; ids that are kept are judged by the new one.
    pub fn set_window(&mut self, window_ns: i64) {
        self.window_ns = window_ns;
        if window_ns <= 0 {
            while self.pop() {}
        }
    }

    /// The sequence of the message with this id, if it was seen within the window before `now`.
    #[must_use]
    pub fn lookup(&self, id: &[u8], now: Wall) -> Option<StreamSeq> {
        if self.newest.is_empty() {
            return None;
        }
        let number = self.newest.get(&xxh3_128(id))?;
        let at = usize::try_from(number.checked_sub(self.front)?).ok()?;
        let seen = self.queue.get(at)?;
        (!self.is_old(seen, now)).then_some(seen.seq)
    }

    /// Remembers an id.
    pub fn insert(&mut self, id: &[u8], seq: StreamSeq, now: Wall) {
        if self.window_ns <= 0 {
            return;
        }
        self.sweep_some(now, SWEEP_PER_INSERT);
        self.push(Seen {
            id: xxh3_128(id),
            seq,
            ts: now,
        });
    }

    fn push(&mut self, seen: Seen) {
        self.newest.insert(seen.id, self.front + self.queue.len() as u64);
        self.queue.push_back(seen);
    }

    /// Frees every id that is older than the window.
    pub fn sweep(&mut self, now: Wall) {
        self.sweep_some(now, usize::MAX);
        if self.queue.is_empty() {
            self.queue.shrink_to_fit();
            self.newest.shrink_to_fit();
        }
    }

    /// When all ids have passed the window, so that a sweep empties the set.
    #[must_use]
    pub fn next_due(&self) -> Option<Wall> {
        self.queue
            .back()
            .map(|newest| newest.ts.plus_nanos(self.window_ns))
    }

    /// Ids that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn is_old(&self, seen: &Seen, now: Wall) -> bool {
        seen.ts.plus_nanos(self.window_ns) <= now
    }

    fn sweep_some(&mut self, now: Wall, most: usize) {
        for _ in 0..most {
            if !self.queue.front().is_some_and(|oldest| self.is_old(oldest, now)) {
                return;
            }
            self.pop();
        }
    }

    /// Forgets the oldest entry; `false` if there is none.
    fn pop(&mut self) -> bool {
        let Some(oldest) = self.queue.pop_front() else {
            return false;
        };
        // The same id may have come again since: then the map speaks of that entry.
        if self.newest.get(&oldest.id) == Some(&self.front) {
            self.newest.remove(&oldest.id);
        }
        self.front += 1;
        true
    }

    pub(crate) fn digest(&self, digest: &mut Running) {
        digest.mix(self.queue.len() as u64);
        for seen in [self.queue.front(), self.queue.back()].into_iter().flatten() {
            digest.mix(seen.seq.0);
            digest.mix(seen.ts.0.cast_unsigned());
        }
    }

    /// Bytes that [`Dedupe::encode`] would append.
    pub(crate) fn encoded_bytes(&self, is_delta: bool) -> usize {
        HEAD_BYTES + SEEN_BYTES * (self.queue.len() - self.skipped(is_delta))
    }

    /// How many of the oldest entries a delta leaves out, since the last checkpoint has them.
    fn skipped(&self, is_delta: bool) -> usize {
        let known = if is_delta {
            self.saved.saturating_sub(self.front)
        } else {
            0
        };
        usize::try_from(known).unwrap_or(usize::MAX).min(self.queue.len())
    }

    /// All ids, or as a delta those that came since the last time.
    ///
    /// Shape: window i64 | number of the oldest id kept u64 | number of the first id that follows u64 | count u32
    /// | (id u128 | seq u64 | time i64) x count.
    pub(crate) fn encode(&mut self, is_delta: bool, out: &mut Vec<u8>) {
        let skipped = self.skipped(is_delta);
        let new = self.queue.iter().skip(skipped);
        out.put_i64(self.window_ns);
        out.put_u64(self.front);
        out.put_u64(self.front + skipped as u64);
        out.put_len(new.len());
        for seen in new {
            out.put_u128(seen.id);
            out.put_u64(seen.seq.0);
            out.put_i64(seen.ts.0);
        }
        self.saved = self.front + self.queue.len() as u64;
    }

    /// Takes what [`Dedupe::encode`] wrote: in place of everything, or as a delta on top of what is there.
    pub(crate) fn decode(&mut self, is_delta: bool, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let window_ns = reader.i64("without message ids")?;
        let front = reader.u64("without message ids")?;
        let first = reader.u64("without message ids")?;
        if !is_delta {
            *self = Self::default();
            self.front = first;
        }
        self.window_ns = window_ns;
        let count = reader.count(SEEN_BYTES, "cut short in its message ids")?;
        if first < front || first.checked_add(count as u64).is_none() {
            return Err(Malformed("wrong in its message ids"));
        }
        while self.front < front && self.pop() {}
        if self.queue.is_empty() {
            self.front = first;
        } else if self.front + self.queue.len() as u64 != first {
            return Err(Malformed("not what follows in its message ids"));
        }
        self.queue.reserve(count);
        self.newest.reserve(count);
        for _ in 0..count {
            self.push(Seen {
                id: reader.u128("message id")?,
                seq: StreamSeq(reader.u64("message id")?),
                ts: Wall(reader.i64("message id")?),
            });
        }
        self.saved = self.front + self.queue.len() as u64;
        reader.end("longer than its message ids")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_counts_for_exactly_the_window() {
        let mut dedupe = Dedupe::new(100);
        dedupe.insert(b"a", StreamSeq(1), Wall(1_000));
        assert_eq!(dedupe.lookup(b"a", Wall(1_099)), Some(StreamSeq(1)));
        assert_eq!(dedupe.lookup(b"a", Wall(1_100)), None);
        assert_eq!(dedupe.lookup(b"b", Wall(1_000)), None);
        // It comes again before the sweep: the newer entry counts, also after the sweep of the older.
        dedupe.insert(b"a", StreamSeq(2), Wall(1_100));
        dedupe.sweep(Wall(1_150));
        assert_eq!(
            (dedupe.len(), dedupe.lookup(b"a", Wall(1_199))),
            (1, Some(StreamSeq(2)))
        );
        assert_eq!(dedupe.next_due(), Some(Wall(1_200)));
        dedupe.sweep(Wall(1_200));
        assert!(dedupe.is_empty() && dedupe.next_due().is_none());
    }

    #[test]
    fn without_a_window_nothing_is_kept() {
        let mut dedupe = Dedupe::new(0);
        dedupe.insert(b"a", StreamSeq(1), Wall(1));
        assert!(dedupe.is_empty());
        dedupe.set_window(10);
        dedupe.insert(b"a", StreamSeq(1), Wall(1));
        dedupe.set_window(0);
        assert_eq!(dedupe.lookup(b"a", Wall(1)), None);
    }

    proptest! {
        /// Against a list that is searched backwards, with checkpoints and deltas in between.
        #[test]
        fn agrees_with_a_plain_list(steps in prop::collection::vec((0u8..12, 0i64..30, 0u8..10), 1..200)) {
            let mut dedupe = Dedupe::new(100);
            let mut saved: Vec<(bool, Vec<u8>)> = Vec::new();
            let mut list: Vec<(u8, u64, i64)> = Vec::new();
            let mut now = 0;
            for (at, (id, wait, checkpoint)) in steps.into_iter().enumerate() {
                now += wait;
                let seq = at as u64;
                let known = list.iter().rev().find(|seen| seen.0 == id && seen.2 + 100 > now);
                let known = known.map(|seen| StreamSeq(seen.1));
                prop_assert_eq!(dedupe.lookup(&[id], Wall(now)), known);
                if known.is_none() {
                    dedupe.insert(&[id], StreamSeq(seq), Wall(now));
                    list.push((id, seq, now));
                }
                if checkpoint > 1 {
                    continue;
                }
                let is_delta = checkpoint == 1 && !saved.is_empty();
                let mut bytes = Vec::new();
                let room = dedupe.encoded_bytes(is_delta);
                dedupe.encode(is_delta, &mut bytes);
                prop_assert_eq!(bytes.len(), room);
                if !is_delta {
                    saved.clear();
                }
                saved.push((is_delta, bytes));
                let mut again = Dedupe::default();
                for (is_delta, bytes) in &saved {
                    again.decode(*is_delta, &mut Reader::new(bytes)).unwrap();
                }
                prop_assert_eq!(&again.queue, &dedupe.queue);
                prop_assert_eq!(&again.newest, &dedupe.newest);
                dedupe = again;
            }
        }
    }
}
