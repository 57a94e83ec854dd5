//! One worker's log: collects records in batches, writes one batch at a time, and survives a failing disk.
//!
//! ```text
//!  append -> open batch -> (cap) -> closed batches -> cut -> in flight -> Synced
//!                                                             |  ^ ^
//!                        write or sync fails the first time   |  | | retry()
//!                        (Retrying): another segment ---------+--+ |
//!                        fails again (Broken): held ---------------+
//! ```
//! Invariants:
//! - At most one batch is in flight, so at most one batch can be torn by a crash, and each header can say how far the
//!   log is durable: up to where the batch itself begins, or to where its segment was begun.
//! - Nothing is written to a segment after a write to it failed.
//! - A batch keeps its number and its content through all attempts.

use crate::batch::{ClosedBatch, LaneId, OpenBatch, Repeated};
use crate::config::LaneConfig;
use crate::control::Control;
use crate::frame::{Frame, WalEntry, WalRecord};
use crate::header::{Position, Stamp};
use crate::index::Index;
use crate::read_back::{ReadBacks, StoredEntry};
use crate::segments::Segments;
use crate::space::Relocation;
use bytes::Bytes;
use std::collections::VecDeque;
use tidelock_base::{GroupId, LogIndex};
use tidelock_record::{AlignedBuf, FilePath, IoDone, IoError, IoOp, IoRequest, IoToken};

/// Number of a batch of a lane; rises by one from batch to batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchNo(pub u64);

/// What the end of an operation means. After each, [`Lane::take_requests`] has what is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneEvent {
    /// The operation was not this lane's.
    Foreign,
    /// Nothing that the node has to act on.
    Pending,
    /// All records up to this batch are durable. The next batch may be cut.
    Synced(BatchNo),
    /// A write, sync or creation failed; the batch is being written to another segment. A warning is in order.
    Retrying(IoError),
    /// It failed a second time. The batch is held in memory; the node hands over its leaderships, refuses writes,
    /// and calls [`Lane::retry`] every few seconds.
    Broken(IoError),
    /// A file ahead of use could not be made; writes go on while there is room. The disk may be full.
    SpareFailed(IoError),
    /// Entries that were to be moved out of an old segment could not be read. They stay where they are; the next
    /// [`Lane::relocate`] tries again.
    RelocationFailed(IoError),
    /// Entries that were to be moved out of an old segment failed their checksum. These groups are damaged from now
    /// on, as if recovery had found it.
    Damaged(Vec<GroupId>),
    /// What [`Lane::read_back`] was asked for: entries from `first` on, one after the other. None if they could not be
    /// read, are damaged, or are no longer part of the log.
    ReadBack {
        /// The group.
        group: GroupId,
        /// Index of the first one.
        first: LogIndex,
        /// The entries.
        entries: Vec<StoredEntry>,
    },
}

/// Buffers kept for reuse.
const POOL_MAX: usize = 3;
/// Larger buffers are not kept.
const POOL_BUF_BYTES_MAX: usize = 2 * 1024 * 1024;
/// First size of a batch's buffer.
const BUF_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for a file that is being made.
    NeedsSegment,
    Writing(IoToken),
    /// Waits for `retry`.
    Held,
}

#[derive(Debug)]
struct Flight {
    batch: ClosedBatch,
    stage: Stage,
    failures: u32,
}

/// Where the control file stands.
#[derive(Debug, Default)]
pub(crate) struct ControlState {
    /// Of the last write, successful or not.
    pub(crate) sequence: u64,
    /// What the last successful write says.
    pub(crate) synced: Position,
    /// A write on its way, and what it says.
    writing: Option<(IoToken, Position)>,
}

/// See the module's text. Made by [`recover`](crate::recover).
#[derive(Debug)]
pub struct Lane {
    pub(crate) id: LaneId,
    pub(crate) config: LaneConfig,
    pub(crate) dir: FilePath,
    pub(crate) index: Index,
    pub(crate) segments: Segments,
    pub(crate) control: ControlState,
    pub(crate) relocation: Relocation,
    pub(crate) read_backs: ReadBacks,
    open: Option<OpenBatch>,
    closed: VecDeque<ClosedBatch>,
    closed_bytes: usize,
    /// The last batch that was closed, for the next header.
    last: Repeated,
    /// Of the open batch, or of the next to be opened.
    next_number: u64,
    /// Place of the node-wide facts in the list of the batch of that number.
    meta_listed: (u64, usize),
    flight: Option<Flight>,
    /// End of the last durable batch.
    synced: Position,
    synced_number: u64,
    pool: Vec<AlignedBuf>,
    next_token: u64,
    outbox: Vec<IoRequest>,
}

/// Where recovery found the end of the log.
#[derive(Debug, Default)]
pub(crate) struct LogEnd {
    /// End of the last batch that counts as durable.
    pub(crate) synced: Position,
    /// Its number.
    pub(crate) number: u64,
    pub(crate) last: Repeated,
}

impl Lane {
    pub(crate) fn assemble(
        id: LaneId,
        config: LaneConfig,
        dir: FilePath,
        index: Index,
        segments: Segments,
        end: LogEnd,
    ) -> Self {
        Self {
            id,
            config,
            dir,
            index,
            segments,
            control: ControlState::default(),
            relocation: Relocation::default(),
            read_backs: ReadBacks::default(),
            open: None,
            closed: VecDeque::new(),
            closed_bytes: 0,
            last: end.last,
            next_number: end.number + 1,
            meta_listed: (0, 0),
            flight: None,
            synced: end.synced,
            synced_number: end.number,
            pool: Vec::new(),
            next_token: 0,
            outbox: Vec::new(),
        }
    }

    /// Number of the lane, which is that of its worker.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.id.lane
    }

    /// Adds a record to the open batch and says which that is: the record is durable once that batch, or a later one,
    /// is reported as synced.
    ///
    /// # Panics
    /// If the record's data exceeds [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX).
    pub fn append(&mut self, record: &WalRecord<'_>) -> BatchNo {
        BatchNo(self.append_frame(&Frame::plain(*record)))
    }

    /// Adds an entry as [`Lane::append`] does. A large one whose data begins at an aligned address (see
    /// [`AlignedBuf`]) is written from there if it opens its batch, and copied otherwise.
    ///
    /// # Panics
    /// If the data exceeds [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX).
    pub fn append_entry(&mut self, entry: &WalEntry<'_>) -> BatchNo {
        let record = WalRecord::Entry {
            group: entry.group,
            index: entry.index,
            term: entry.term,
            kind: entry.kind,
            data: entry.data,
        };
        BatchNo(self.append_shared(&Frame::plain(record), Some(entry.data)))
    }

    pub(crate) fn append_frame(&mut self, frame: &Frame<'_>) -> u64 {
        self.append_shared(frame, None)
    }

    fn append_shared(&mut self, frame: &Frame<'_>, data: Option<&Bytes>) -> u64 {
        let (cap, len) = (self.config.batch_bytes_max, frame.encoded_len());
        if let Some(full) = self.open.take_if(|open| !open.takes(len, cap)) {
            self.close(full);
        }
        let number = self.next_number;
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let buf = self
                    .pool
                    .pop()
                    .unwrap_or_else(|| AlignedBuf::with_capacity(BUF_BYTES));
                none.insert(OpenBatch::new(number, buf, self.last.items.len()))
            }
        };
        let listed = match frame.group() {
            Some(group) => self.index.groups.get(&group).map(|group| group.listed),
            None => Some(self.meta_listed),
        };
        let at = listed.and_then(|(batch, at)| (batch == number).then_some(at));
        let at = open.push(frame, data, at);
        self.index.apply(number, frame);
        match frame.group() {
            Some(group) => {
                if let Some(group) = self.index.groups.get_mut(&group) {
                    group.listed = (number, at);
                }
            }
            None => self.meta_listed = (number, at),
        }
        number
    }

    fn close(&mut self, open: OpenBatch) {
        debug_assert_eq!(open.number, self.next_number);
        let closed = open.close(self.id, &mut self.last);
        self.closed_bytes += usize::try_from(closed.len()).unwrap_or(usize::MAX);
        self.closed.push_back(closed);
        self.next_number += 1;
    }

    /// Puts a batch that recovery found at the end of the log in line again; it is not known to be durable.
    pub(crate) fn write_again(&mut self, batch: ClosedBatch, repeated: Repeated) {
        assert!(
            self.open.is_none() && batch.number >= self.next_number,
            "recovery comes before appends"
        );
        self.closed_bytes += usize::try_from(batch.len()).unwrap_or(usize::MAX);
        self.next_number = batch.number + 1;
        self.last = repeated;
        self.closed.push_back(batch);
    }

    /// Bytes that wait to be cut.
    #[must_use]
    pub fn open_bytes(&self) -> usize {
        let open = self.open.as_ref().filter(|open| !open.is_empty());
        self.closed_bytes + open.map_or(0, OpenBatch::len)
    }

    /// Whether a batch is being written, or held because the disk fails.
    #[must_use]
    pub const fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// Whether the last attempt ended in [`LaneEvent::Broken`].
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.flight
            .as_ref()
            .is_some_and(|flight| flight.stage == Stage::Held)
    }

    /// Bytes of the batch that is being written, or held.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.flight.as_ref().map_or(0, |flight| flight.batch.len())
    }

    /// The last batch that is durable.
    #[must_use]
    pub const fn synced(&self) -> BatchNo {
        BatchNo(self.synced_number)
    }

    /// Starts writing the next batch, unless one is in flight or there is nothing to write. The operations may
    /// run in any order; each one's end goes to [`Lane::done`].
    pub fn cut(&mut self) -> Option<(BatchNo, Vec<IoRequest>)> {
        if self.flight.is_some() {
            return None;
        }
        if self.closed.is_empty()
            && let Some(open) = self.open.take_if(|open| !open.is_empty())
        {
            self.close(open);
        }
        let batch = self.closed.pop_front()?;
        self.closed_bytes -= usize::try_from(batch.len()).unwrap_or(usize::MAX);
        let number = BatchNo(batch.number);
        self.flight = Some(Flight {
            batch,
            stage: Stage::NeedsSegment,
            failures: 0,
        });
        self.submit();
        Some((number, self.take_requests()))
    }

    /// Operations that came up outside of [`Lane::cut`]: a batch written elsewhere, files made or removed. To be
    /// asked for after each [`Lane::done`].
    pub fn take_requests(&mut self) -> Vec<IoRequest> {
        std::mem::take(&mut self.outbox)
    }

    /// Whether the log lives on its reserve: no file can be made ahead of use. What frees space is written all the
    /// same; publishes are to be refused, and [`Lane::retry`] called every few seconds.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.segments.is_short()
    }

    /// Tries again after [`LaneEvent::Broken`], in a new segment, and to make a file ahead of use where that has
    /// failed.
    pub fn retry(&mut self) -> Vec<IoRequest> {
        if let Some(flight) = self.flight.as_mut().filter(|flight| flight.stage == Stage::Held) {
            flight.failures = 1;
            flight.stage = Stage::NeedsSegment;
            self.submit();
        } else if self.segments.is_short() && !self.segments.is_creating() {
            self.make_file(0);
        }
        self.take_requests()
    }

    /// Writes the position of the last durable batch into the control file, if that is not there yet and nothing is
    /// in flight. Only then can damage of the very last batch be told from a torn write, so a node does this when
    /// a lane has been idle for a while, and when it stops.
    pub fn settle(&mut self) -> Vec<IoRequest> {
        let quiet = self.flight.is_none() && self.closed.is_empty() && self.control.writing.is_none();
        if quiet && self.control.synced != self.synced {
            let control = self.next_control(false);
            let op = if self.segments.is_short() {
                rewrite_control(&self.dir, &control)
            } else {
                replace_control(&self.dir, &control)
            };
            let token = self.request(op);
            self.control.writing = Some((token, self.synced));
        }
        self.take_requests()
    }

    /// The control file as it is to be written next.
    pub(crate) fn next_control(&mut self, drained: bool) -> Control {
        self.control.sequence += 1;
        Control {
            lane: self.id.lane,
            drained,
            sequence: self.control.sequence,
            lane_id: self.id.id,
            synced: self.synced,
            first_generation: self.segments.first_generation(),
            number: self.synced_number,
            last: self.last.clone(),
        }
    }

    /// Takes the end of an operation.
    pub fn done(&mut self, done: &IoDone) -> LaneEvent {
        let result = done.result.as_ref();
        if self
            .flight
            .as_ref()
            .is_some_and(|flight| flight.stage == Stage::Writing(done.token))
        {
            return match result {
                Ok(_) => self.write_succeeded(),
                Err(error) => self.write_failed(error),
            };
        }
        if self.segments.created(done.token, result.map(|_| ())) {
            return self.created(result.err());
        }
        if let Some((_, position)) = self.control.writing.take_if(|(token, _)| *token == done.token) {
            if result.is_ok() {
                self.control.synced = position;
            }
            return LaneEvent::Pending;
        }
        if let Some(event) = self.relocation_read(done.token, result) {
            return event;
        }
        if let Some(event) = self.read_back_done(done.token, result) {
            return event;
        }
        if self.relocation.removals.remove(&done.token) {
            return LaneEvent::Pending;
        }
        LaneEvent::Foreign
    }

    pub(crate) fn request(&mut self, op: IoOp) -> IoToken {
        self.next_token += 1;
        let token = IoToken(self.next_token);
        self.outbox.push(IoRequest { token, op });
        token
    }

    fn remove(&mut self, op: IoOp) {
        let token = self.request(op);
        self.relocation.removals.insert(token);
    }

    /// Gives the batch in flight a place and writes it there, or has a file made first.
    fn submit(&mut self) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        let total_len = flight.batch.len();
        let Some(segment) = self.segments.current(total_len, self.synced) else {
            flight.stage = Stage::NeedsSegment;
            if !self.segments.is_creating() {
                self.make_file(total_len);
            }
            return;
        };
        let at = Position {
            generation: segment.generation,
            offset: segment.used,
        };
        let (slot, sealed) = (segment.slot, segment.sealed);
        let parts = flight.batch.stamped(&Stamp {
            at,
            synced: self.synced,
            sealed,
            first_generation: self.segments.first_generation(),
        });
        let number = flight.batch.number;
        self.index.batches.place(number, at, total_len);
        let token = self.request(IoOp::Write {
            file: self.segments.file(slot),
            offset: at.offset,
            parts,
            sync: true,
        });
        if let Some(flight) = &mut self.flight {
            flight.stage = Stage::Writing(token);
        }
    }

    pub(crate) fn make_file(&mut self, total_len: u64) {
        let token = IoToken(self.next_token + 1);
        let op = self.segments.create(token, total_len);
        let given = self.request(op);
        assert_eq!(given, token, "the segments know the creation by this token");
    }

    fn write_succeeded(&mut self) -> LaneEvent {
        let Some(flight) = self.flight.take() else {
            return LaneEvent::Pending;
        };
        let (number, total_len) = (flight.batch.number, flight.batch.len());
        self.segments.written(number, total_len);
        if let Some(segment) = self.segments.list.back() {
            self.synced = Position {
                generation: segment.generation,
                offset: segment.used,
            };
        }
        assert!(number > self.synced_number, "batches become durable in order");
        self.synced_number = number;
        if let Some(buf) = flight.batch.into_buf()
            && self.pool.len() < POOL_MAX
            && buf.capacity() <= POOL_BUF_BYTES_MAX
        {
            self.pool.push(buf);
        }
        self.reclaim();
        if self.segments.wants_spare() {
            self.make_file(0);
        }
        LaneEvent::Synced(BatchNo(number))
    }

    /// Frees what is not needed any more.
    fn reclaim(&mut self) {
        self.index.batches.forget_unneeded(self.synced_number);
        let next = self.synced_number + 1;
        self.segments
            .free(self.index.batches.oldest().unwrap_or(next), next);
        for op in self.segments.recycle(self.synced_number) {
            self.remove(op);
        }
    }

    fn write_failed(&mut self, error: &IoError) -> LaneEvent {
        if let Some(op) = self.segments.condemn() {
            self.remove(op);
        }
        self.trouble(error)
    }

    /// The batch in flight could not be written.
    fn trouble(&mut self, error: &IoError) -> LaneEvent {
        let Some(flight) = &mut self.flight else {
            return LaneEvent::Pending;
        };
        flight.failures += 1;
        if flight.failures > 1 {
            flight.stage = Stage::Held;
            return LaneEvent::Broken(error.clone());
        }
        self.submit();
        LaneEvent::Retrying(error.clone())
    }

    fn created(&mut self, error: Option<&IoError>) -> LaneEvent {
        let waits = self
            .flight
            .as_ref()
            .is_some_and(|flight| flight.stage == Stage::NeedsSegment);
        match error {
            Some(error) if waits => self.trouble(error),
            Some(error) => LaneEvent::SpareFailed(error.clone()),
            None => {
                if waits {
                    self.submit();
                }
                LaneEvent::Pending
            }
        }
    }
}

/// The operation that writes a control file over itself: for a full disk. A crash meanwhile may lose this slot; the
/// other one holds what was written before.
pub(crate) fn rewrite_control(dir: &FilePath, control: &Control) -> IoOp {
    let file = dir.join(control.slot()).expect("slot names are valid in a path");
    IoOp::ReplaceFrom {
        reserve: file.clone(),
        file,
        data: control.encode(),
    }
}

/// The operation that writes a control file.
pub(crate) fn replace_control(dir: &FilePath, control: &Control) -> IoOp {
    IoOp::Replace {
        file: dir.join(control.slot()).expect("slot names are valid in a path"),
        data: control.encode(),
    }
}
