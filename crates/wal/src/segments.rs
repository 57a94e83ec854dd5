//! Files of a lane: which segments hold the log, which are free, which are being made.
//!
//! ```text
//!            Create            first write             no room          nothing in it is needed
//!  (nothing) ------> spare -----------------> current ---------> sealed ------------------------> freed
//!                      ^                         | write fails     |                                |
//!                      |                         v                 |        a later header that says so is durable
//!                      |                      condemned -----------+                                |
//!                      +----------------------------------------------------------------------------+
//! ```
//! Condemned files are removed when they are freed: a file whose write or sync failed is never written again.

use crate::header::Position;
use std::collections::VecDeque;
use tidelock_record::{ALIGNMENT, FilePath, IoError, IoOp, IoToken};

/// Spare files kept; what is freed beyond is removed. A checkpoint frees several segments at once, as many as the budget
/// of a log has (DESIGN section 9: 64 MiB): they all come to use again before the next one, and to fill files with zeros
/// anew would cost a busy disk a third of its writes.
const SPARES_MAX: usize = 6;
/// Spare files beside the next one to be used: what a full disk leaves for deletes, acknowledgements and votes, once
/// publishes are refused. They lie there whole, so that nobody else can take their space.
const RESERVE: usize = 1;
/// On a full disk a batch that waits gets a segment of this part of the usual length, if nothing more is to be had.
const SMALL_PART: u64 = 16;
/// Batches that are written before a spare that could not be made is asked for again.
const SPARE_PAUSE: u32 = 256;

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) generation: u64,
    pub(crate) slot: u64,
    pub(crate) len: u64,
    /// Where the next batch goes: the end of the last durable one.
    pub(crate) used: u64,
    /// Number of the last durable batch in it.
    pub(crate) last_number: u64,
    /// End of the log when this segment was begun.
    pub(crate) sealed: Position,
    /// No batch is added.
    pub(crate) closed: bool,
    /// Not to be used again.
    pub(crate) condemned: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spare {
    pub(crate) slot: u64,
    pub(crate) len: u64,
}

#[derive(Debug)]
struct Freed {
    file: Spare,
    condemned: bool,
    /// The batch whose header, once durable, says that the segment is free.
    told_by: u64,
}

#[derive(Debug)]
struct Creating {
    token: IoToken,
    file: Spare,
}

#[derive(Debug)]
pub(crate) struct Segments {
    dir: FilePath,
    segment_bytes: u64,
    /// In the order of their generations; the last may be current.
    pub(crate) list: VecDeque<Segment>,
    spares: Vec<Spare>,
    freed: Vec<Freed>,
    creating: Option<Creating>,
    next_slot: u64,
    next_generation: u64,
    spare_pause: u32,
    /// Why the last file that was asked for could not be made.
    refused: Option<IoError>,
}

impl Segments {
    pub(crate) const fn new(dir: FilePath, segment_bytes: u64, next_slot: u64, next_generation: u64) -> Self {
        Self {
            dir,
            segment_bytes,
            list: VecDeque::new(),
            spares: Vec::new(),
            freed: Vec::new(),
            creating: None,
            next_slot,
            next_generation,
            spare_pause: 0,
            refused: None,
        }
    }

    pub(crate) fn file(&self, slot: u64) -> FilePath {
        segment_file(&self.dir, slot)
    }

    /// Lowest generation that is part of the log.
    pub(crate) fn first_generation(&self) -> u64 {
        self.list
            .front()
            .map_or(self.next_generation, |first| first.generation)
    }

    /// Bytes of the files that are part of the log.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.list.iter().map(|segment| segment.used).sum()
    }

    /// The segment to which a batch of this length goes next, begun now if need be; `None` if a file has to be made
    /// first. `end` is the end of the log.
    pub(crate) fn current(&mut self, total_len: u64, end: Position) -> Option<&Segment> {
        let fits = |s: &Segment| !s.closed && s.used.saturating_add(total_len) <= s.len;
        if !self.list.back().is_some_and(fits) {
            let at = self.spares.iter().position(|spare| spare.len >= total_len)?;
            let Spare { slot, len } = self.spares.remove(at);
            if let Some(last) = self.list.back_mut() {
                last.closed = true;
            }
            self.list.push_back(Segment {
                generation: self.next_generation,
                slot,
                len,
                used: 0,
                last_number: 0,
                sealed: end,
                closed: false,
                condemned: false,
            });
            self.next_generation += 1;
        }
        self.list.back()
    }

    /// A batch of the current segment is durable.
    pub(crate) fn written(&mut self, number: u64, total_len: u64) {
        if let Some(current) = self.list.back_mut() {
            current.used += total_len;
            current.last_number = number;
        }
    }

    /// A write to the current segment failed. Without a durable batch in it, it is not part of the log at all.
    pub(crate) fn condemn(&mut self) -> Option<IoOp> {
        let current = self.list.back_mut()?;
        (current.closed, current.condemned) = (true, true);
        if current.used > 0 {
            return None;
        }
        let slot = current.slot;
        self.list.pop_back();
        let file = self.file(slot);
        Some(IoOp::Remove { file })
    }

    /// Frees the oldest segments if their batches are all older than the oldest that is needed. `next` is the
    /// number of the batch that will be written next.
    pub(crate) fn free(&mut self, oldest_needed: u64, next: u64) {
        while let Some(segment) = self
            .list
            .pop_front_if(|s| s.closed && s.last_number < oldest_needed)
        {
            self.freed.push(Freed {
                file: Spare {
                    slot: segment.slot,
                    len: segment.len,
                },
                condemned: segment.condemned,
                told_by: next,
            });
        }
    }

    /// Makes freed segments spares, or removes them, where batches up to `synced` are durable.
    pub(crate) fn recycle(&mut self, synced: u64) -> Vec<IoOp> {
        let (ready, wait) = std::mem::take(&mut self.freed)
            .into_iter()
            .partition(|f: &Freed| f.told_by <= synced);
        self.freed = wait;
        let mut ops = Vec::new();
        for freed in ready {
            if freed.condemned {
                let file = self.file(freed.file.slot);
                ops.push(IoOp::Remove { file });
            } else {
                ops.extend(self.add_spare(freed.file));
            }
        }
        ops
    }

    /// Takes a free file in; the operation removes it if it is not wanted.
    pub(crate) fn add_spare(&mut self, file: Spare) -> Option<IoOp> {
        let wanted = self.spares.len() < SPARES_MAX + RESERVE && file.len == self.segment_bytes;
        if wanted {
            self.spares.push(file);
            if self.spares.len() > RESERVE {
                self.refused = None;
            }
            return None;
        }
        let file = self.file(file.slot);
        Some(IoOp::Remove { file })
    }

    /// Whether a spare should be made ahead of use. Called once a batch.
    pub(crate) fn wants_spare(&mut self) -> bool {
        let in_use = self
            .list
            .back()
            .is_none_or(|current| current.used > current.len / 4);
        if self.spare_pause > 0 {
            self.spare_pause -= 1;
            return false;
        }
        let wanted = if in_use { RESERVE + 1 } else { RESERVE };
        self.spares.len() + self.freed.len() < wanted && self.creating.is_none()
    }

    /// Whether the reserve is all that is left, and the disk gives no more.
    pub(crate) fn is_short(&self) -> bool {
        self.refused.is_some() && self.spares.len() + self.freed.len() <= RESERVE
    }

    /// Bytes of the smallest file that is made.
    pub(crate) const fn least_bytes(&self) -> u64 {
        (self.segment_bytes / SMALL_PART).next_multiple_of(ALIGNMENT as u64)
    }

    /// Whether a file is being made.
    pub(crate) const fn is_creating(&self) -> bool {
        self.creating.is_some()
    }

    /// Asks for a new file in which a batch of that length fits.
    pub(crate) fn create(&mut self, token: IoToken, total_len: u64) -> IoOp {
        let small = total_len > 0 && self.refused == Some(IoError::NoSpace);
        let part = if small { SMALL_PART } else { 1 };
        let len = (self.segment_bytes / part)
            .next_multiple_of(ALIGNMENT as u64)
            .max(total_len);
        let slot = self.next_slot;
        self.next_slot += 1;
        self.creating = Some(Creating {
            token,
            file: Spare { slot, len },
        });
        let file = self.file(slot);
        IoOp::Create { file, len }
    }

    /// The end of a creation, if the token is of one.
    pub(crate) fn created(&mut self, token: IoToken, result: Result<(), &IoError>) -> bool {
        let Some(creating) = self.creating.take_if(|creating| creating.token == token) else {
            return false;
        };
        match result {
            // Kept whatever its length: it was made for a batch that waits.
            Ok(()) => {
                if creating.file.len >= self.segment_bytes {
                    self.refused = None;
                }
                self.spares.push(creating.file);
            }
            Err(error) => {
                self.spare_pause = SPARE_PAUSE;
                self.refused = Some(error.clone());
            }
        }
        true
    }
}

const NAME_PREFIX: &str = "slot-";

/// Path of a segment's file in the directory of its lane.
pub(crate) fn segment_file(dir: &FilePath, slot: u64) -> FilePath {
    dir.join(&format!("{NAME_PREFIX}{slot:08}"))
        .expect("letters and digits are valid in a path")
}

/// Slot of a segment by the name of its file.
pub(crate) fn slot_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(NAME_PREFIX)?;
    let number = digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse().ok())?;
    number.filter(|slot| *slot < u64::MAX >> 8)
}
