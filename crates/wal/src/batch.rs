//! A batch on its way to disk: open while records are added, closed when its header's lists are final, stamped with
//! its place when it is written, and again if that write fails.
//!
//! The buffer is one piece of aligned memory: room for the header, whose length is only known at the close, then the
//! frames. The room is guessed from the batch before; if it does not do, the frames are moved once.
//!
//! A large entry that opens a batch and lies in aligned memory is not copied: its whole pages are written from where
//! they are. The batch then has three parts, each a number of pages:
//! ```text
//!  header .. head of the frame | whole pages of the entry | rest of the entry, more frames, zeros
//! ```

use crate::frame::{FRAME_HEAD_BYTES, Frame};
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
/// Entries from this size on are written from where they are.
const SHARED_BYTES_MIN: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct OpenBatch {
    pub(crate) number: u64,
    /// Room for the header, and the frames; only the head of the first one if that is shared.
    buf: AlignedBuf,
    shared: Option<Shared>,
    body_start: usize,
    items: Vec<Item>,
    /// Where the last frame that was larger than [`BEYOND_MAX`] ends.
    large: Option<usize>,
}

/// What follows the head of a frame whose data is not copied.
#[derive(Debug)]
struct Shared {
    /// Whole pages of the data.
    pages: Bytes,
    /// The rest of it, and what comes after.
    rest: AlignedBuf,
}

/// A batch that no record is added to any more.
#[derive(Debug)]
pub(crate) struct ClosedBatch {
    pub(crate) number: u64,
    /// Whole pages, the header in the first ones.
    head: Bytes,
    /// The pages behind these, if they lie elsewhere. The last part ends in zeros.
    behind: Vec<Bytes>,
}

/// The whole pages at the start of data that need not be copied.
fn whole_pages(data: &Bytes) -> Option<Bytes> {
    let in_place = data.len() >= SHARED_BYTES_MIN && data.as_ptr().align_offset(ALIGNMENT) == 0;
    in_place.then(|| data.slice(..data.len() - data.len() % ALIGNMENT))
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
            shared: None,
            body_start,
            items: Vec::new(),
            large: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buf.len() == self.body_start
    }

    /// Where the next frame goes.
    const fn end(&mut self) -> &mut AlignedBuf {
        match &mut self.shared {
            Some(shared) => &mut shared.rest,
            None => &mut self.buf,
        }
    }

    /// Whether a frame of that length belongs into this batch, which is to have no more than `cap` bytes. An entry may be
    /// larger than that by itself; the few bytes that a group wants with it (its hard state) go along, and cost no sync
    /// of their own.
    pub(crate) fn takes(&self, len: usize, cap: usize) -> bool {
        let beyond = self.large.map_or(0, |end| self.len() - end);
        self.is_empty() || self.len() + len <= cap || (self.large.is_some() && beyond + len <= BEYOND_MAX)
    }

    /// Bytes so far, room for the header included.
    pub(crate) fn len(&self) -> usize {
        let shared = self.shared.as_ref();
        self.buf.len() + shared.map_or(0, |shared| shared.pages.len() + shared.rest.len())
    }

    /// Appends a frame; `data` is that of the frame, if it may be shared. `listed` is where its group stands in the
    /// list, if it does; the answer is where it stands from now on.
    pub(crate) fn push(&mut self, frame: &Frame<'_>, data: Option<&Bytes>, listed: Option<usize>) -> usize {
        let start = self.len();
        match data.filter(|_| self.is_empty()).and_then(whole_pages) {
            Some(pages) => self.share(frame, pages),
            None => frame.encode(self.end()),
        }
        if self.len() - start > BEYOND_MAX {
            self.large = Some(self.len());
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

    /// Appends the first frame, whose data begins with these pages.
    fn share(&mut self, frame: &Frame<'_>, pages: Bytes) {
        self.body_start = page_end(self.body_start);
        self.buf.pad_to(self.body_start);
        frame.encode_head(&mut self.buf);
        let mut rest = AlignedBuf::with_capacity(ALIGNMENT);
        rest.extend_from_slice(frame.data().get(pages.len()..).unwrap_or_default());
        self.shared = Some(Shared { pages, rest });
    }

    /// Appends bytes as they are, for fuzzing.
    pub(crate) fn push_raw(&mut self, bytes: &[u8]) {
        self.end().extend_from_slice(bytes);
    }

    /// Writes the header but for the stamp. `before` is the batch before, and becomes this one.
    pub(crate) fn close(mut self, id: LaneId, before: &mut Repeated) -> ClosedBatch {
        let needed = header_len(self.items.len() + before.items.len());
        if needed > self.body_start {
            self.move_body(needed);
        }
        let body_len = self.len() - self.body_start;
        let body_crc = self.body_crc();
        self.end().pad();
        let total_len = self.len();
        Unplaced {
            lane: id.lane,
            lane_id: id.id,
            number: self.number,
            body_start: self.body_start,
            body_len,
            body_crc,
            total_len,
            items: &self.items,
            prev_total: before.total_len,
            prev_items: &before.items,
        }
        .write(self.buf.as_mut_slice());
        *before = Repeated {
            total_len: u32::try_from(total_len).expect("batches are shorter than 4 GiB"),
            items: self.items,
        };
        let mut behind = Vec::new();
        if let Some(Shared { pages, rest }) = self.shared {
            behind.extend([pages, rest.freeze()].into_iter().filter(|part| !part.is_empty()));
        }
        ClosedBatch {
            number: self.number,
            head: self.buf.freeze(),
            behind,
        }
    }

    /// Makes room for a header of that length.
    fn move_body(&mut self, needed: usize) {
        let start = if self.shared.is_some() {
            page_end(needed)
        } else {
            needed
        };
        let body = self.buf.as_slice().get(self.body_start..).unwrap_or_default();
        let mut moved = AlignedBuf::with_capacity(start + body.len());
        moved.pad_to(start);
        moved.extend_from_slice(body);
        (self.buf, self.body_start) = (moved, start);
    }

    fn body_crc(&self) -> u32 {
        let body = self.buf.as_slice().get(self.body_start..).unwrap_or_default();
        let crc = crc32c::crc32c(body);
        self.shared.as_ref().map_or(crc, |shared| {
            let crc = crc32c::crc32c_append(crc, &shared.pages);
            crc32c::crc32c_append(crc, shared.rest.as_slice())
        })
    }
}

/// The first place from `at` on behind which the head of a frame ends with a page.
const fn page_end(at: usize) -> usize {
    (at + FRAME_HEAD_BYTES).next_multiple_of(ALIGNMENT) - FRAME_HEAD_BYTES
}

impl ClosedBatch {
    /// A batch that was read from a segment, to be written again elsewhere under its number.
    pub(crate) fn again(number: u64, batch: &[u8]) -> Self {
        let mut buf = AlignedBuf::with_capacity(batch.len());
        buf.extend_from_slice(batch);
        assert!(buf.len().is_multiple_of(ALIGNMENT), "batches are read whole");
        Self {
            number,
            head: buf.freeze(),
            behind: Vec::new(),
        }
    }

    /// Length in the segment, a multiple of 4096.
    pub(crate) fn len(&self) -> u64 {
        let behind: usize = self.behind.iter().map(Bytes::len).sum();
        (self.head.len() + behind) as u64
    }

    /// The bytes to be written at this place, each part whole pages. Copies the header's part only if someone still
    /// holds it with an earlier place.
    pub(crate) fn stamped(&mut self, place: &Stamp) -> Vec<Bytes> {
        let head = std::mem::take(&mut self.head);
        let mut buf = match AlignedBuf::reclaim_content(head) {
            Ok(buf) => buf,
            Err(shared) => {
                let mut copy = AlignedBuf::with_capacity(shared.len());
                copy.extend_from_slice(&shared);
                copy
            }
        };
        stamp(buf.as_mut_slice(), place);
        self.head = buf.freeze();
        std::iter::once(&self.head).chain(&self.behind).cloned().collect()
    }

    /// The memory, if no one else holds it.
    pub(crate) fn into_buf(self) -> Option<AlignedBuf> {
        AlignedBuf::reclaim(self.head)
    }
}
