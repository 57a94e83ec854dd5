//! The sequences of one subject, ascending: two inline, more of them in chunks.
//!
//! A chunk is either a run of equal strides (a stream with one subject, or subjects taken in turn, costs nothing per
//! message) or up to [`CHUNK_MAX`] varint deltas (one to three bytes a message). Removal from within a long run
//! carves a window out of it; a window that gets small joins its left neighbour.
//!
//! Invariants: sequences are at least 1 and strictly ascending; `more` exists only for three sequences or more, and
//! then holds all of them; chunks do not overlap, and the key of a chunk is at most its first sequence and greater
//! than the last sequence of the chunk before.

use crate::codec::{Malformed, Reader, put_varint, varint};
use std::collections::BTreeMap;

/// Most sequences in a chunk of deltas.
const CHUNK_MAX: u32 = 128;
/// A run this short turns into deltas when a sequence does not continue it; a longer one is kept as it is.
const RUN_MIN: u32 = 16;
/// A chunk of deltas that has shrunk to this joins its left neighbour, if both fit into one.
const CHUNK_SMALL: u32 = CHUNK_MAX / 4;

/// The sequences of one subject. Empty only between creation and the first push, and after the last removal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Postings {
    first: u64,
    last: u64,
    more: Option<Box<SeqList>>,
}

#[derive(Clone, Debug)]
struct SeqList {
    count: u64,
    chunks: Chunks,
}

#[derive(Clone, Debug)]
enum Chunks {
    One(Chunk),
    Many(BTreeMap<u64, Chunk>),
}

#[derive(Clone, Debug)]
struct Chunk {
    first: u64,
    last: u64,
    count: u32,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    /// Every `stride`-th sequence; of no meaning in a chunk of one.
    Run(u64),
    /// `count - 1` varints, each the distance from the sequence before.
    Deltas(Vec<u8>),
}

/// Sequences `first`, `first + stride`, ... (`count` of them): how lists travel between blocks and the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) stride: u64,
    pub(crate) count: u32,
}

impl Postings {
    pub(crate) const fn first(&self) -> u64 {
        self.first
    }

    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn count(&self) -> u64 {
        match &self.more {
            Some(list) => list.count,
            None => match (self.first, self.last) {
                (0, _) => 0,
                (first, last) if first == last => 1,
                _ => 2,
            },
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.first == 0
    }

    /// Adds `seq`, which is greater than all that are there.
    pub(crate) fn push(&mut self, seq: u64) {
        assert!(seq > self.last, "sequences of a subject ascend");
        if self.first == 0 {
            self.first = seq;
        } else if let Some(list) = &mut self.more {
            list.push(seq);
        } else if self.first != self.last {
            let mut list = SeqList::new(self.first);
            list.push(self.last);
            list.push(seq);
            self.more = Some(Box::new(list));
        }
        self.last = seq;
    }

    /// Adds the sequences of a run, which lie beyond all that are there.
    pub(crate) fn push_run(&mut self, run: Run) {
        let mut seq = run.first;
        let mut left = run.count;
        // The first three settle the form; the rest of a long run extends the last chunk at once.
        while left > 0 && (run.count - left < 3 || self.more.is_none()) {
            self.push(seq);
            seq = seq.saturating_add(run.stride);
            left -= 1;
        }
        while left > 0 {
            let taken = match &mut self.more {
                Some(list) => list.extend(seq, run.stride, left),
                None => 0,
            };
            if taken == 0 {
                self.push(seq);
                seq = seq.saturating_add(run.stride);
                left -= 1;
            } else {
                self.last = seq.saturating_add(run.stride.saturating_mul(u64::from(taken) - 1));
                seq = self.last.saturating_add(run.stride);
                left -= taken;
            }
        }
    }

    /// Removes `seq`; whether it was there.
    pub(crate) fn remove(&mut self, seq: u64) -> bool {
        let Some(list) = &mut self.more else {
            return self.remove_inline(seq);
        };
        if !list.remove(seq) {
            return false;
        }
        self.settle();
        true
    }

    const fn remove_inline(&mut self, seq: u64) -> bool {
        if seq == 0 {
            return false;
        }
        match (seq == self.first, seq == self.last) {
            (true, true) => (self.first, self.last) = (0, 0),
            (true, false) => self.first = self.last,
            (false, true) => self.last = self.first,
            (false, false) => return false,
        }
        true
    }

    /// Removes every sequence below `floor`; how many there were.
    pub(crate) fn remove_below(&mut self, floor: u64) -> u64 {
        let before = self.count();
        if let Some(list) = &mut self.more {
            list.remove_below(floor);
            self.settle();
        } else {
            if self.first < floor {
                self.first = if self.last < floor { 0 } else { self.last };
            }
            if self.last < floor {
                self.last = 0;
            }
        }
        before - self.count()
    }

    /// After a change of the list: takes the ends from it, and its content if only two are left.
    fn settle(&mut self) {
        let Some(list) = &self.more else { return };
        self.first = if list.count == 0 {
            0
        } else {
            list.next(1).unwrap_or(0)
        };
        self.last = if list.count == 0 {
            0
        } else {
            list.prev(u64::MAX).unwrap_or(0)
        };
        if list.count <= 2 {
            self.more = None;
        }
    }

    /// The smallest sequence at or above `from`.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        if self.is_empty() || from > self.last {
            return None;
        }
        if from <= self.first {
            return Some(self.first);
        }
        match &self.more {
            Some(list) => list.next(from),
            None => Some(self.last),
        }
    }

    /// The greatest sequence at or below `upto`.
    pub(crate) fn prev(&self, upto: u64) -> Option<u64> {
        if self.is_empty() || upto < self.first {
            return None;
        }
        if upto >= self.last {
            return Some(self.last);
        }
        match &self.more {
            Some(list) => list.prev(upto),
            None => Some(self.first),
        }
    }

    /// How many sequences are at or above `from`.
    pub(crate) fn count_from(&self, from: u64) -> u64 {
        if self.is_empty() || from > self.last {
            return 0;
        }
        if from <= self.first {
            return self.count();
        }
        match &self.more {
            Some(list) => list.count_from(from),
            None => 1,
        }
    }
}

impl SeqList {
    const fn new(first: u64) -> Self {
        Self {
            count: 1,
            chunks: Chunks::One(Chunk::one(first)),
        }
    }

    fn last_chunk(&mut self) -> Option<&mut Chunk> {
        match &mut self.chunks {
            Chunks::One(chunk) => Some(chunk),
            Chunks::Many(map) => map
                .last_entry()
                .map(std::collections::btree_map::OccupiedEntry::into_mut),
        }
    }

    fn push(&mut self, seq: u64) {
        self.count += 1;
        if self.last_chunk().is_some_and(|chunk| chunk.push(seq)) {
            return;
        }
        self.insert(Chunk::one(seq));
    }

    /// Takes as many of `count` sequences from `seq` on as the last chunk takes without a change of form.
    fn extend(&mut self, seq: u64, stride: u64, count: u32) -> u32 {
        let taken = self
            .last_chunk()
            .map_or(0, |chunk| chunk.extend(seq, stride, count));
        self.count += u64::from(taken);
        taken
    }

    fn insert(&mut self, chunk: Chunk) {
        if let Chunks::One(only) = &mut self.chunks {
            let only = std::mem::replace(only, Chunk::one(0));
            self.chunks = Chunks::Many(BTreeMap::from([(only.first, only)]));
        }
        if let Chunks::Many(map) = &mut self.chunks {
            map.insert(chunk.first, chunk);
        }
    }

    fn remove(&mut self, seq: u64) -> bool {
        let outcome = match &mut self.chunks {
            Chunks::One(chunk) => chunk.remove(seq),
            Chunks::Many(map) => {
                let Some((&key, chunk)) = map.range_mut(..=seq).next_back() else {
                    return false;
                };
                let outcome = chunk.remove(seq);
                if chunk.count == 0 {
                    map.remove(&key);
                } else if matches!(outcome, Removal::Done) {
                    join_left(map, key);
                }
                outcome
            }
        };
        match outcome {
            Removal::NotThere => return false,
            Removal::Done => {}
            Removal::Carved(parts) => {
                for part in parts.into_iter().flatten() {
                    self.insert(part);
                }
            }
        }
        self.count -= 1;
        true
    }

    fn remove_below(&mut self, floor: u64) {
        match &mut self.chunks {
            Chunks::One(chunk) => self.count -= chunk.remove_below(floor),
            Chunks::Many(map) => {
                while let Some(mut entry) = map.first_entry() {
                    self.count -= entry.get_mut().remove_below(floor);
                    if entry.get().count > 0 {
                        break;
                    }
                    entry.remove();
                }
            }
        }
    }

    fn next(&self, from: u64) -> Option<u64> {
        match &self.chunks {
            Chunks::One(chunk) => chunk.next(from),
            Chunks::Many(map) => map
                .range(..=from)
                .next_back()
                .and_then(|(_, chunk)| chunk.next(from))
                .or_else(|| map.range(from..).find_map(|(_, chunk)| chunk.next(from))),
        }
    }

    fn prev(&self, upto: u64) -> Option<u64> {
        match &self.chunks {
            Chunks::One(chunk) => chunk.prev(upto),
            Chunks::Many(map) => map.range(..=upto).rev().find_map(|(_, chunk)| chunk.prev(upto)),
        }
    }

    fn count_from(&self, from: u64) -> u64 {
        match &self.chunks {
            Chunks::One(chunk) => u64::from(chunk.count_from(from)),
            Chunks::Many(map) => map
                .values()
                .rev()
                .map(|chunk| u64::from(chunk.count_from(from)))
                .take_while(|&n| n > 0)
                .sum(),
        }
    }
}

/// Joins the chunk at `key` with the one before it, if it is small and both are deltas that fit into one chunk.
fn join_left(map: &mut BTreeMap<u64, Chunk>, key: u64) {
    let Some(small) = map.get(&key) else { return };
    if small.count > CHUNK_SMALL || matches!(small.body, Body::Run(_)) {
        return;
    }
    let mut seqs: Vec<u64> = small.iter().collect();
    if let Some((_, left)) = map.range_mut(..key).next_back() {
        let joined = left.count.saturating_add(small_len(&seqs));
        if joined > CHUNK_MAX || matches!(left.body, Body::Run(_)) {
            return;
        }
        for seq in seqs.drain(..) {
            let fits = left.push(seq);
            debug_assert!(fits, "the sum was checked");
        }
        map.remove(&key);
    }
}

fn small_len(seqs: &[u64]) -> u32 {
    u32::try_from(seqs.len()).unwrap_or(u32::MAX)
}

/// What became of a removal within a chunk.
enum Removal {
    NotThere,
    Done,
    /// The chunk was cut short in front of the sequence; these come after it.
    Carved([Option<Chunk>; 2]),
}

impl Chunk {
    const fn one(seq: u64) -> Self {
        Self::run(seq, 0, 1)
    }

    const fn run(first: u64, stride: u64, count: u32) -> Self {
        Self {
            first,
            last: first + stride * (count as u64 - 1),
            count,
            body: Body::Run(stride),
        }
    }

    /// A chunk of deltas. `seqs` ascends.
    fn deltas(seqs: impl Iterator<Item = u64>) -> Option<Self> {
        let mut seqs = seqs;
        let first = seqs.next()?;
        let mut chunk = Self {
            first,
            last: first,
            count: 1,
            body: Body::Deltas(Vec::new()),
        };
        for seq in seqs {
            chunk.push_delta(seq);
        }
        Some(chunk)
    }

    fn push_delta(&mut self, seq: u64) {
        if let Body::Deltas(bytes) = &mut self.body {
            put_varint(bytes, seq - self.last);
            self.last = seq;
            self.count += 1;
        }
    }

    /// Adds `seq` if it fits here.
    fn push(&mut self, seq: u64) -> bool {
        match &mut self.body {
            Body::Run(stride) => {
                if self.count == 1 {
                    *stride = seq - self.last;
                }
                if seq - self.last == *stride && self.count < u32::MAX {
                    self.last = seq;
                    self.count += 1;
                    return true;
                }
                if self.count > RUN_MIN {
                    return false;
                }
                let Some(deltas) = Self::deltas(self.iter()) else {
                    return false;
                };
                *self = deltas;
            }
            Body::Deltas(bytes) if self.count >= CHUNK_MAX => {
                bytes.shrink_to_fit();
                return false;
            }
            Body::Deltas(_) => {}
        }
        self.push_delta(seq);
        true
    }

    /// Takes all of the sequences that continue the run.
    const fn extend(&mut self, seq: u64, stride: u64, count: u32) -> u32 {
        match &self.body {
            Body::Run(own) if *own == stride && self.count > 1 && seq == self.last.saturating_add(stride) => {
                let room = u32::MAX - self.count;
                let taken = if count < room { count } else { room };
                self.count += taken;
                self.last = self.last.saturating_add(stride.saturating_mul(taken as u64));
                taken
            }
            Body::Run(_) | Body::Deltas(_) => 0,
        }
    }

    fn iter(&self) -> ChunkIter<'_> {
        ChunkIter {
            next: self.first,
            left: self.count,
            body: match &self.body {
                Body::Run(stride) => IterBody::Run(*stride),
                Body::Deltas(bytes) => IterBody::Deltas(bytes),
            },
        }
    }

    /// Place of the smallest sequence at or above `seq` in a run; `None` beyond its end.
    fn run_place(&self, stride: u64, seq: u64) -> Option<u64> {
        if seq <= self.first {
            return Some(0);
        }
        if seq > self.last {
            return None;
        }
        Some((seq - self.first).div_ceil(stride.max(1)))
    }

    fn next(&self, from: u64) -> Option<u64> {
        match &self.body {
            Body::Run(stride) => Some(self.first + self.run_place(*stride, from)? * stride),
            Body::Deltas(_) if from > self.last => None,
            Body::Deltas(_) => self.iter().find(|&seq| seq >= from),
        }
    }

    fn prev(&self, upto: u64) -> Option<u64> {
        if upto < self.first {
            return None;
        }
        if upto >= self.last {
            return Some(self.last);
        }
        match &self.body {
            Body::Run(stride) => Some(self.first + (upto - self.first) / (*stride).max(1) * stride),
            Body::Deltas(_) => self.iter().take_while(|&seq| seq <= upto).last(),
        }
    }

    fn count_from(&self, from: u64) -> u32 {
        match &self.body {
            Body::Run(stride) => self.run_place(*stride, from).map_or(0, |place| {
                u32::try_from(u64::from(self.count) - place).unwrap_or(u32::MAX)
            }),
            Body::Deltas(_) if from > self.last => 0,
            Body::Deltas(_) if from <= self.first => self.count,
            Body::Deltas(_) => {
                self.count - small_len(&self.iter().take_while(|&seq| seq < from).collect::<Vec<_>>())
            }
        }
    }

    fn remove(&mut self, seq: u64) -> Removal {
        if self.count == 0 || seq < self.first || seq > self.last {
            return Removal::NotThere;
        }
        if let Body::Run(stride) = self.body {
            return self.remove_from_run(stride, seq);
        }
        let mut found = false;
        let kept = Self::deltas(self.iter().filter(|&s| {
            found |= s == seq;
            s != seq
        }));
        match kept {
            _ if !found => return Removal::NotThere,
            Some(kept) => *self = kept,
            None => self.count = 0,
        }
        Removal::Done
    }

    fn remove_from_run(&mut self, stride: u64, seq: u64) -> Removal {
        let stride = stride.max(1);
        if !(seq - self.first).is_multiple_of(stride) {
            return Removal::NotThere;
        }
        if seq == self.first {
            self.first += stride;
            self.count -= 1;
        } else if seq == self.last {
            self.last -= stride;
            self.count -= 1;
        } else if self.count <= CHUNK_MAX {
            if let Some(kept) = Self::deltas(self.iter().filter(|&s| s != seq)) {
                *self = kept;
            }
        } else {
            return self.carve(stride, seq);
        }
        Removal::Done
    }

    /// Parts a long run into the run in front of the window of `seq`, the window without `seq`, and the run behind.
    fn carve(&mut self, stride: u64, seq: u64) -> Removal {
        let window = u64::from(CHUNK_MAX);
        let count = u64::from(self.count);
        let place = (seq - self.first) / stride;
        let (start, end) = (
            place - place % window,
            (place - place % window + window).min(count),
        );
        let at = |place: u64| self.first + place * stride;
        let middle = Self::deltas((start..end).filter(|&p| p != place).map(at));
        let behind =
            (end < count).then(|| Self::run(at(end), stride, u32::try_from(count - end).unwrap_or(u32::MAX)));
        if start == 0 {
            // Nothing stays in front: the window takes this chunk's place, and with it its key.
            let Some(middle) = middle else {
                return Removal::NotThere;
            };
            *self = middle;
            return Removal::Carved([None, behind]);
        }
        *self = Self::run(self.first, stride, u32::try_from(start).unwrap_or(u32::MAX));
        Removal::Carved([middle, behind])
    }

    /// Removes what is below `floor`; how many there were.
    fn remove_below(&mut self, floor: u64) -> u64 {
        let before = self.count;
        if self.last < floor {
            self.count = 0;
        } else if self.first < floor {
            match self.body {
                Body::Run(stride) => {
                    let place = self.run_place(stride, floor).unwrap_or_else(|| u64::from(before));
                    self.first += place * stride;
                    self.count -= u32::try_from(place).unwrap_or(before);
                }
                Body::Deltas(_) => {
                    if let Some(kept) = Self::deltas(self.iter().filter(|&seq| seq >= floor)) {
                        *self = kept;
                    }
                }
            }
        }
        u64::from(before - self.count)
    }
}

struct ChunkIter<'a> {
    next: u64,
    left: u32,
    body: IterBody<'a>,
}

enum IterBody<'a> {
    Run(u64),
    Deltas(&'a [u8]),
}

impl Iterator for ChunkIter<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let seq = self.next;
        self.left -= 1;
        if self.left > 0 {
            self.next += match &mut self.body {
                IterBody::Run(stride) => *stride,
                IterBody::Deltas(bytes) => {
                    let (delta, len) = varint(bytes)?;
                    *bytes = bytes.get(len..)?;
                    delta
                }
            };
        }
        Some(seq)
    }
}

/// Writes ascending sequences, relative to `base`: `count`, `first - base`, then either one number
/// `stride * 2 + 1`, or the distances, the first of them doubled. All are varints.
pub(crate) fn encode_list(out: &mut Vec<u8>, base: u64, seqs: &[u64]) {
    put_varint(out, seqs.len() as u64);
    let [first, rest @ ..] = seqs else { return };
    put_varint(out, first - base);
    let distances = || rest.iter().zip(seqs).map(|(next, seq)| next - seq);
    let Some(stride) = distances().next() else { return };
    if distances().all(|distance| distance == stride) {
        put_varint(out, stride * 2 + 1);
        return;
    }
    for (at, distance) in distances().enumerate() {
        put_varint(out, if at == 0 { distance * 2 } else { distance });
    }
}

/// Reads what [`encode_list`] wrote, as runs. Sequences that do not ascend or exceed `base + span` are refused, so
/// that no list from a file can break the order within a subject.
pub(crate) fn decode_list(
    reader: &mut Reader<'_>,
    base: u64,
    span: u64,
    run: &mut impl FnMut(Run),
) -> Result<u64, Malformed> {
    const BAD: Malformed = Malformed("a list of sequences is malformed");
    let count = reader.varint()?;
    if count == 0 {
        return Err(BAD);
    }
    let end = base.checked_add(span).ok_or(BAD)?;
    let first = base
        .checked_add(reader.varint()?)
        .filter(|&s| s <= end && s > 0)
        .ok_or(BAD)?;
    if count == 1 {
        run(Run {
            first,
            stride: 1,
            count: 1,
        });
        return Ok(1);
    }
    let form = reader.varint()?;
    if form & 1 == 1 {
        let stride = form >> 1;
        let last = stride.checked_mul(count - 1).and_then(|n| first.checked_add(n));
        let count32 = u32::try_from(count).map_err(|_| BAD)?;
        if stride == 0 || last.is_none_or(|last| last > end) {
            return Err(BAD);
        }
        run(Run {
            first,
            stride,
            count: count32,
        });
        return Ok(count);
    }
    let mut seq = first;
    let mut distance = form >> 1;
    run(Run {
        first,
        stride: 1,
        count: 1,
    });
    for left in (1..count).rev() {
        seq = seq
            .checked_add(distance)
            .filter(|&s| s <= end && distance > 0)
            .ok_or(BAD)?;
        run(Run {
            first: seq,
            stride: 1,
            count: 1,
        });
        if left > 1 {
            distance = reader.varint()?;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u64),
        Run(u64, u64, u32),
        Remove(usize),
        RemoveAround(u64),
        Below(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (1_u64..4).prop_map(Op::Push),
            1 => (1_u64..1_000_000).prop_map(Op::Push),
            2 => (1_u64..5, 1_u64..4, 1_u32..600).prop_map(|(gap, stride, count)| Op::Run(gap, stride, count)),
            6 => any::<usize>().prop_map(Op::Remove),
            1 => (0_u64..2_000).prop_map(Op::RemoveAround),
            1 => (0_u64..500).prop_map(Op::Below),
        ]
    }

    fn check(list: &Postings, model: &BTreeSet<u64>) {
        assert_eq!(list.count(), model.len() as u64);
        assert_eq!(list.is_empty(), model.is_empty());
        assert_eq!(list.first(), model.first().copied().unwrap_or(0));
        assert_eq!(list.last(), model.last().copied().unwrap_or(0));
        let end = list.last() + 2;
        let step = (end / 97).max(1);
        for from in (0..end).step_by(usize::try_from(step).unwrap()) {
            assert_eq!(
                list.next(from),
                model.range(from..).next().copied(),
                "next {from}"
            );
            assert_eq!(
                list.prev(from),
                model.range(..=from).next_back().copied(),
                "prev {from}"
            );
            assert_eq!(
                list.count_from(from),
                model.range(from..).count() as u64,
                "count {from}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        #[test]
        fn behaves_like_a_sorted_set(ops in prop::collection::vec(op(), 1..60)) {
            let (mut list, mut model) = (Postings::default(), BTreeSet::new());
            let mut last = 0;
            for op in ops {
                match op {
                    Op::Push(gap) => {
                        last += gap;
                        list.push(last);
                        model.insert(last);
                    }
                    Op::Run(gap, stride, count) => {
                        let run = Run { first: last + gap, stride, count };
                        list.push_run(run);
                        for n in 0..u64::from(count) {
                            last = run.first + n * stride;
                            model.insert(last);
                        }
                    }
                    Op::Remove(n) => {
                        if let Some(&seq) = model.iter().nth(n % model.len().max(1)) {
                            prop_assert!(list.remove(seq));
                            model.remove(&seq);
                        }
                    }
                    Op::RemoveAround(seq) => prop_assert_eq!(list.remove(seq), model.remove(&seq)),
                    Op::Below(n) => {
                        let floor = list.first() + n;
                        let before = model.len() as u64;
                        model = model.split_off(&floor);
                        prop_assert_eq!(list.remove_below(floor), before - model.len() as u64);
                    }
                }
            }
            check(&list, &model);
            for seq in model {
                prop_assert!(list.remove(seq));
            }
            prop_assert!(list.is_empty() && list.more.is_none());
        }

        #[test]
        fn lists_come_back(base in 1_u64..1000, gaps in prop::collection::vec(1_u64..300, 1..50), even: bool) {
            let seqs: Vec<u64> = gaps.iter().scan(base, |seq, gap| {
                *seq += if even { 3 } else { *gap };
                Some(*seq)
            }).collect();
            let mut out = Vec::new();
            encode_list(&mut out, base, &seqs);
            let mut back = Vec::new();
            let mut reader = Reader::new(&out);
            decode_list(&mut reader, base, 1 << 20, &mut |run| {
                back.extend((0..u64::from(run.count)).map(|n| run.first + n * run.stride));
            }).unwrap();
            prop_assert_eq!(back, seqs);
            prop_assert_eq!(reader.left(), 0);
        }
    }

    #[test]
    fn long_runs_cost_nothing_per_sequence() {
        let mut list = Postings::default();
        list.push_run(Run {
            first: 1,
            stride: 1,
            count: 100_000,
        });
        assert!(matches!(&list.more.as_ref().unwrap().chunks, Chunks::One(chunk) if chunk.count == 100_000));
        for seq in (2..100_000).step_by(2) {
            assert!(list.remove(seq));
        }
        let Chunks::Many(map) = &list.more.as_ref().unwrap().chunks else {
            panic!("one chunk")
        };
        assert!(map.len() < 100_000 / 100, "{} chunks", map.len());
    }
}
