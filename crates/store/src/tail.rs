//! The messages that are not in a block (yet): all of a memory store, the newest of a file store.
//!
//! They lie in segments of up to [`SEGMENT`] messages in the order of their sequences; a removed message leaves an
//! empty slot until its segment is tidied. Records are slices of log entries, and one of them keeps its whole entry in
//! memory; so a segment of which little is left is copied into a buffer of its own.
//!
//! Invariants: no segment is empty or without a live message; sequences ascend.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// Messages of a segment.
const SEGMENT: usize = 512;

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct TailMsg {
    pub(crate) seq: u64,
    /// Nanoseconds since 1970.
    pub(crate) ts: i64,
    /// The record; empty once removed.
    pub(crate) record: Bytes,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    msgs: Vec<TailMsg>,
    live: usize,
    live_bytes: usize,
    /// Bytes of all records since the segment was made or tidied last.
    held_bytes: usize,
    /// At least the greatest time in it.
    ts_max: i64,
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    segments: VecDeque<Segment>,
    live: u64,
    bytes: u64,
    /// Slots of a segment that is gone, so that a stream with a message at a time does not allocate for each.
    spare: Vec<TailMsg>,
}

impl TailMsg {
    pub(crate) const fn is_live(&self) -> bool {
        !self.record.is_empty()
    }
}

impl Segment {
    fn first_seq(&self) -> u64 {
        self.msgs.first().map_or(0, |msg| msg.seq)
    }

    fn last_seq(&self) -> u64 {
        self.msgs.last().map_or(0, |msg| msg.seq)
    }

    /// Place of the first slot at or above `seq`.
    fn place(&self, seq: u64) -> usize {
        // Without gaps the place follows from the sequence.
        let guess = usize::try_from(seq.saturating_sub(self.first_seq())).unwrap_or(usize::MAX);
        if self.msgs.get(guess).is_some_and(|msg| msg.seq == seq) {
            return guess;
        }
        self.msgs.partition_point(|msg| msg.seq < seq)
    }

    fn next_live(&self, from: u64) -> Option<&TailMsg> {
        self.msgs
            .get(self.place(from)..)?
            .iter()
            .find(|msg| msg.is_live())
    }

    fn prev_live(&self, upto: u64) -> Option<&TailMsg> {
        let end = self.msgs.partition_point(|msg| msg.seq <= upto);
        self.msgs.get(..end)?.iter().rev().find(|msg| msg.is_live())
    }

    /// Drops empty slots, and lets go of entries of which little is used.
    fn tidy(&mut self) {
        if self.live * 2 < self.msgs.len() {
            self.msgs.retain(TailMsg::is_live);
            self.msgs.shrink_to_fit();
        }
        if self.live_bytes * 2 < self.held_bytes {
            let mut own = BytesMut::with_capacity(self.live_bytes);
            for msg in &self.msgs {
                own.extend_from_slice(&msg.record);
            }
            let mut own = own.freeze();
            for msg in &mut self.msgs {
                msg.record = own.split_to(msg.record.len());
            }
            self.held_bytes = self.live_bytes;
        }
    }
}

impl Tail {
    /// Live messages.
    pub(crate) const fn len(&self) -> u64 {
        self.live
    }

    /// Bytes of the records of live messages.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a message; its sequence lies beyond all others, and its record is not empty.
    pub(crate) fn push(&mut self, seq: u64, ts: i64, record: Bytes) {
        let len = record.len();
        self.live += 1;
        self.bytes += len as u64;
        if self
            .segments
            .back()
            .is_none_or(|segment| segment.msgs.len() >= SEGMENT)
        {
            if let Some(full) = self.segments.back_mut() {
                full.tidy();
            }
            let mut msgs = std::mem::take(&mut self.spare);
            if !self.segments.is_empty() {
                msgs.reserve(SEGMENT);
            }
            self.segments.push_back(Segment {
                msgs,
                ts_max: ts,
                ..Segment::default()
            });
        }
        if let Some(segment) = self.segments.back_mut() {
            segment.msgs.push(TailMsg { seq, ts, record });
            segment.live += 1;
            segment.live_bytes += len;
            segment.held_bytes += len;
            segment.ts_max = segment.ts_max.max(ts);
        }
    }

    /// Number of the first segment that reaches to `seq` or beyond.
    fn segment(&self, seq: u64) -> usize {
        // Most questions are about the newest messages.
        let last = self.segments.len().saturating_sub(1);
        if self
            .segments
            .get(last)
            .is_some_and(|segment| segment.first_seq() <= seq && seq <= segment.last_seq())
        {
            return last;
        }
        self.segments.partition_point(|segment| segment.last_seq() < seq)
    }

    pub(crate) fn get(&self, seq: u64) -> Option<&TailMsg> {
        let segment = self.segments.get(self.segment(seq))?;
        segment
            .msgs
            .get(segment.place(seq))
            .filter(|msg| msg.seq == seq && msg.is_live())
    }

    /// Removes a live message and gives its record.
    pub(crate) fn remove(&mut self, seq: u64) -> Option<Bytes> {
        let number = self.segment(seq);
        let last = number + 1 == self.segments.len();
        let segment = self.segments.get_mut(number)?;
        let place = segment.place(seq);
        let msg = segment
            .msgs
            .get_mut(place)
            .filter(|msg| msg.seq == seq && msg.is_live())?;
        let record = std::mem::take(&mut msg.record);
        segment.live -= 1;
        segment.live_bytes -= record.len();
        self.live -= 1;
        self.bytes -= record.len() as u64;
        if segment.live == 0 {
            if let Some(gone) = self.segments.remove(number) {
                self.spare = gone.msgs;
                self.spare.clear();
            }
        } else if !last
            && (segment.live * 2 < segment.msgs.len() || segment.live_bytes * 2 < segment.held_bytes)
        {
            segment.tidy();
        }
        Some(record)
    }

    /// The first live message at or above `from`.
    pub(crate) fn next_live(&self, from: u64) -> Option<&TailMsg> {
        let number = self.segment(from);
        let found = self.segments.get(number)?.next_live(from);
        found.or_else(|| self.segments.get(number + 1)?.next_live(0))
    }

    /// The last live message at or below `upto`.
    pub(crate) fn prev_live(&self, upto: u64) -> Option<&TailMsg> {
        let end = self
            .segments
            .partition_point(|segment| segment.first_seq() <= upto);
        self.segments
            .range(..end)
            .rev()
            .find_map(|segment| segment.prev_live(upto))
    }

    /// Live messages from `from` on, ascending.
    pub(crate) fn iter_from(&self, from: u64) -> impl Iterator<Item = &TailMsg> {
        let number = self.segment(from).min(self.segments.len());
        self.segments
            .range(number..)
            .flat_map(|segment| &segment.msgs)
            .filter(move |msg| msg.seq >= from && msg.is_live())
    }

    /// Live messages up to `upto`, descending.
    pub(crate) fn iter_back(&self, upto: u64) -> impl Iterator<Item = &TailMsg> {
        let end = self
            .segments
            .partition_point(|segment| segment.first_seq() <= upto);
        self.segments
            .range(..end)
            .rev()
            .flat_map(|segment| segment.msgs.iter().rev())
            .filter(move |msg| msg.seq <= upto && msg.is_live())
    }

    /// How many live messages are at or above `from`.
    pub(crate) fn count_from(&self, from: u64) -> u64 {
        let number = self.segment(from);
        let Some(segment) = self.segments.get(number) else {
            return 0;
        };
        let after = self.segments.len() - number - 1;
        // The side with fewer segments is counted.
        let whole: usize = if after <= number {
            self.segments
                .range(number + 1..)
                .map(|segment| segment.live)
                .sum()
        } else {
            let before: usize = self.segments.range(..=number).map(|segment| segment.live).sum();
            usize::try_from(self.live).unwrap_or(usize::MAX) - before
        };
        let part = segment
            .msgs
            .get(segment.place(from)..)
            .map_or(0, |msgs| msgs.iter().filter(|msg| msg.is_live()).count());
        (whole + part) as u64
    }

    /// The first live message with a time at or after `ts`.
    pub(crate) fn at_or_after(&self, ts: i64) -> Option<u64> {
        self.segments
            .iter()
            .filter(|segment| segment.ts_max >= ts)
            .flat_map(|segment| &segment.msgs)
            .find(|msg| msg.is_live() && msg.ts >= ts)
            .map(|msg| msg.seq)
    }

    /// Runs of live messages with consecutive sequences, ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        let mut rest = self.iter_from(0).map(|msg| msg.seq).peekable();
        std::iter::from_fn(move || {
            let first = rest.next()?;
            let mut last = first;
            while rest.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            Some(first..=last)
        })
    }

    /// Forgets messages up to `upto`, which are in a block now.
    pub(crate) fn forget_through(&mut self, upto: u64) {
        while let Some(segment) = self.segments.front_mut() {
            if segment.first_seq() > upto {
                return;
            }
            if segment.last_seq() <= upto {
                self.live -= segment.live as u64;
                self.bytes -= segment.live_bytes as u64;
                self.segments.pop_front();
                continue;
            }
            let place = segment.msgs.partition_point(|msg| msg.seq <= upto);
            let (mut live, mut bytes) = (0, 0);
            for msg in segment.msgs.drain(..place).filter(TailMsg::is_live) {
                live += 1;
                bytes += msg.record.len();
            }
            segment.live -= live;
            segment.live_bytes -= bytes;
            segment.held_bytes = segment.held_bytes.saturating_sub(bytes);
            self.live -= live as u64;
            self.bytes -= bytes as u64;
            if segment.live == 0 {
                self.segments.pop_front();
                continue;
            }
            return;
        }
    }

    /// Frees a segment; whether anything is left. The tail is of no other use afterwards.
    pub(crate) fn dismantle(&mut self) -> bool {
        self.segments.pop_back();
        !self.segments.is_empty()
    }
}
