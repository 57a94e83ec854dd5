//! A batch on its way to disk: open while records are added, closed when its header's lists are final, stamped with
//! its place when it is written, and again if that write fails.
//!
//! The buffer is one piece of aligned memory: room for the header, whose length is only known at the close, then the
//! frames. The room is guessed from the batch before; if it does not do, the frames are moved once.

use crate::frame::Frame;
use crate::header::{Item, Stamp, Unplaced, header_len, stamp};
use bytes::Bytes;
use tidelock_record::{ALIGNMENT, AlignedBuf};

/// Identity of the lane, for headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneId {
    pub(crate) lane: u16,
    pub(crate) id: u64,
}

/// What the next header repeats of a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repeated {
    /// 0 if unknown.
    pub(crate) total_len: u32,
    pub(crate) items: Vec<Item>,
}

/// What may follow a large frame in its batch, beyond the cap of a batch.
const BEYOND_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct OpenBatch {
    pub(crate) number: u64,
    buf: AlignedBuf,
    body_start: usize,
    items: Vec<Item>,
    /// Where the last frame that was larger than [`BEYOND_MAX`] ends.
    large: Option<usize>,
}

/// A batch that no record is added to any more.
#[derive(Debug)]
pub(crate) struct ClosedBatch {
    pub(crate) number: u64,
    /// Header, frames, and zeros up to a multiple of 4096.
    bytes: Bytes,
}

impl OpenBatch {
    /// An empty batch in that memory, after a batch with so many items.
    pub(crate) fn new(number: u64, mut buf: AlignedBuf, items_before: usize) -> Self {
        buf.clear();
        let body_start = header_len(2 * items_before + 4).next_multiple_of(8);
        buf.pad_to(body_start);
        Self {
            number,
            buf,
            body_start,
            items: Vec::new(),
            large: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buf.len() == self.body_start
    }

    /// Whether a frame of that length belongs into this batch, which is to have no more than `cap` bytes. An entry may be
    /// larger than that by itself; the few bytes that a group wants with it (its hard state) go along, and cost no sync
    /// of their own.
    pub(crate) fn takes(&self, len: usize, cap: usize) -> bool {
        let beyond = self.large.map_or(0, |end| self.buf.len() - end);
        self.is_empty() || self.buf.len() + len <= cap || (self.large.is_some() && beyond + len <= BEYOND_MAX)
    }

    /// Bytes so far, room for the header included.
    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Appends a frame. `listed` is where its group stands in the list, if it does; the answer is where it stands
    /// from now on.
    pub(crate) fn push(&mut self, frame: &Frame<'_>, listed: Option<usize>) -> usize {
        let start = self.buf.len();
        frame.encode(&mut self.buf);
        if self.buf.len() - start > BEYOND_MAX {
            self.large = Some(self.buf.len());
        }
        if let Some(at) = listed
            && let Some(item) = self.items.get_mut(at)
        {
            item.merge(frame);
            at
        } else {
            self.items.push(Item::new(frame));
            self.items.len() - 1
        }
    }

    /// Appends bytes as they are, for fuzzing.
    pub(crate) fn push_raw(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// Writes the header but for the stamp. `before` is the batch before, and becomes this one.
    pub(crate) fn close(mut self, id: LaneId, before: &mut Repeated) -> ClosedBatch {
        let body_len = self.buf.len() - self.body_start;
        let needed = header_len(self.items.len() + before.items.len());
        if needed > self.body_start {
            let body = self.buf.as_slice().get(self.body_start..).unwrap_or_default();
            let mut moved = AlignedBuf::with_capacity(needed + body.len());
            moved.pad_to(needed);
            moved.extend_from_slice(body);
            (self.buf, self.body_start) = (moved, needed);
        }
        self.buf.pad();
        Unplaced {
            lane: id.lane,
            lane_id: id.id,
            number: self.number,
            body_start: self.body_start,
            body_len,
            items: &self.items,
            prev_total: before.total_len,
            prev_items: &before.items,
        }
        .write(self.buf.as_mut_slice());
        *before = Repeated {
            total_len: u32::try_from(self.buf.len()).expect("batches are shorter than 4 GiB"),
            items: self.items,
        };
        ClosedBatch {
            number: self.number,
            bytes: self.buf.freeze(),
        }
    }
}

impl ClosedBatch {
    /// A batch that was read from a segment, to be written again elsewhere under its number.
    pub(crate) fn again(number: u64, batch: &[u8]) -> Self {
        let mut buf = AlignedBuf::with_capacity(batch.len());
        buf.extend_from_slice(batch);
        assert!(buf.len().is_multiple_of(ALIGNMENT), "batches are read whole");
        Self {
            number,
            bytes: buf.freeze(),
        }
    }

    /// Length in the segment, a multiple of 4096.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The bytes to be written at this place. Copies only if someone still holds the bytes of an earlier place.
    pub(crate) fn stamped(&mut self, place: &Stamp) -> Bytes {
        let bytes = std::mem::take(&mut self.bytes);
        let mut buf = match AlignedBuf::reclaim_content(bytes) {
            Ok(buf) => buf,
            Err(shared) => {
                let mut copy = AlignedBuf::with_capacity(shared.len());
                copy.extend_from_slice(&shared);
                copy
            }
        };
        stamp(buf.as_mut_slice(), place);
        self.bytes = buf.freeze();
        self.bytes.clone()
    }

    /// The memory, if no one else holds it.
    pub(crate) fn into_buf(self) -> Option<AlignedBuf> {
        AlignedBuf::reclaim(self.bytes)
    }
}
