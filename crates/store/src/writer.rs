//! Write-behind: the oldest messages of the tail go into a block file, in pieces, while they can still be read, and
//! removed, in the tail. Once the file is durable they leave the tail.
//!
//! ```text
//!             create            pieces                     sync
//! (nothing) ---------> created --------> all pieces there ------> durable: the block joins the store
//!     ^                                                              |
//!     +------- abandoned: all its messages died, or the disk failed -+
//! ```
//! While a complete block becomes durable, the next one is filled, so that the disk has no pause between blocks. They
//! join the store in order; with an abandoned one the next is abandoned, too.
//!
//! What dies in the tail before its turn comes is not written. After a failed operation the file is given up, and
//! never synced again (DESIGN section 9, "Disk trouble"): the messages are still here, and go to a new file.

use crate::block::{Block, BlockBuilder, BlockIndex, BlockInfo, Piece};
use crate::store::{Store, accounted};
use crate::types::{StoreEvent, StoreKind};
use roaring::RoaringBitmap;
use std::collections::{BTreeSet, VecDeque};
use tidelock_base::StreamSeq;
use tidelock_record::{FilePath, IoError, IoOp, IoToken};

/// Least bytes of a piece but the last.
const PIECE_BYTES: usize = 512 * 1024;
/// Bytes that one call may copy into pieces, so that a full tail does not hold up the turn.
const FILL_BYTES: u64 = 1024 * 1024;
/// A tail up to this goes into the checkpoint rather than into a file of its own.
const INLINE_TAIL_BYTES: u64 = 64 * 1024;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Complete, and on its way to the disk; its messages come before those of the next one.
    sealing: Option<Building>,
    building: Option<Building>,
    /// Everything up to here is to leave the tail, however little it is; 0 without a wish.
    flush_to: u64,
    /// An operation failed, and nobody said yet to go on.
    stalled: bool,
}

#[derive(Debug)]
struct Building {
    id: u64,
    file: FilePath,
    /// `None` once the file is complete.
    builder: Option<BlockBuilder>,
    done: Option<(BlockInfo, BlockIndex)>,
    /// Sequences below this are not its own: they are those of the block before, which may have been given up.
    from: u64,
    /// The next sequence to take from the tail.
    cursor: u64,
    /// Bytes of records that are taken and still live.
    taken: u64,
    created: bool,
    pieces: VecDeque<Piece>,
    /// Operations that are out.
    out: BTreeSet<IoToken>,
    sync: Option<IoToken>,
    abandoned: bool,
}

impl Writer {
    /// A message was removed from the tail.
    pub(crate) fn removed(&mut self, seq: u64, len: u64, tail_is_empty: bool) {
        if let Some(holder) = self.blocks().find(|building| building.holds(seq)) {
            holder.taken -= len;
        }
        if tail_is_empty {
            self.abandon();
        }
    }

    /// The tail was dropped as a whole.
    pub(crate) fn tail_dropped(&mut self) {
        self.flush_to = 0;
        for building in self.blocks() {
            building.taken = 0;
        }
        self.abandon();
    }

    /// The blocks under way, the older one first.
    fn blocks(&mut self) -> impl Iterator<Item = &mut Building> {
        self.sealing.iter_mut().chain(self.building.iter_mut())
    }

    fn abandon(&mut self) {
        for building in self.blocks() {
            building.abandoned = true;
        }
    }

    /// The next sequence to take from the tail.
    fn cursor(&self) -> u64 {
        let newest = self.building.as_ref().or(self.sealing.as_ref());
        newest.map_or(0, |building| building.cursor)
    }

    /// Bytes of records in the tail that are taken.
    fn taken(&self) -> u64 {
        let blocks = self.sealing.iter().chain(self.building.iter());
        blocks.map(|building| building.taken).sum()
    }

    fn owns(&self, token: IoToken) -> bool {
        let mut blocks = self.sealing.iter().chain(self.building.iter());
        blocks.any(|building| building.owns(token))
    }
}

impl Building {
    /// Whether the message was taken into it, if it is one of the tail.
    fn holds(&self, seq: u64) -> bool {
        (self.from..self.cursor).contains(&seq)
    }

    fn owns(&self, token: IoToken) -> bool {
        self.out.contains(&token) || self.sync == Some(token)
    }

    /// Nothing is under way for a file that was given up.
    fn is_over(&self) -> bool {
        self.abandoned && self.out.is_empty() && self.sync.is_none()
    }
}

impl Store {
    /// Wants the tail in blocks, so that a checkpoint need not carry it. Without effect on a memory store, and if
    /// the tail is at most 64 KiB (half of `tail_bytes` if that is less), which a checkpoint carries at less cost
    /// than a file of its own.
    pub fn flush(&mut self) {
        let small = INLINE_TAIL_BYTES.min(self.config.tail_bytes / 2);
        if self.config.kind == StoreKind::File && self.tail.bytes() > small {
            self.writer.flush_to = self.totals.last_seq;
        }
    }

    /// Whether what [`Store::flush`] asked for is done.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.writer.flush_to == 0
            || self
                .tail
                .next_live(0)
                .is_none_or(|msg| msg.seq > self.writer.flush_to)
    }

    /// Bytes of records in memory that are not durable in blocks. They grow beyond `tail_bytes` and `block_bytes`
    /// together only while the disk is slow or failing; whoever admits messages must watch that.
    #[must_use]
    pub const fn tail_bytes(&self) -> u64 {
        self.tail.bytes()
    }

    /// Bytes of records that wait to be written; none in a memory store.
    #[must_use]
    pub const fn backlog_bytes(&self) -> u64 {
        match self.config.kind {
            StoreKind::File => self.tail.bytes(),
            StoreKind::Memory => 0,
        }
    }

    /// Goes on writing after [`StoreEvent::WriteFailed`], to a new file.
    pub const fn resume_writes(&mut self) {
        self.writer.stalled = false;
    }

    pub(crate) const fn writes_are_stalled(&self) -> bool {
        self.writer.stalled
    }

    pub(crate) const fn stall_writes(&mut self) {
        self.writer.stalled = true;
    }

    /// Moves the writing on as far as it goes without waiting.
    pub(crate) fn write_behind(&mut self) {
        if self.config.kind == StoreKind::Memory {
            return;
        }
        self.give_up_abandoned();
        loop {
            self.start_block();
            self.fill();
            let complete = |building: &mut Building| building.done.is_some() && !building.abandoned;
            if self.writer.sealing.is_some() {
                break;
            }
            let Some(building) = self.writer.building.take_if(complete) else {
                break;
            };
            self.writer.sealing = Some(building);
        }
        self.hand_out();
        if self.is_flushed() {
            self.writer.flush_to = 0;
        }
    }

    /// Whether a message that is not taken yet should be written.
    fn wants_to_write(&self) -> bool {
        let (flush, cursor) = (self.writer.flush_to, self.writer.cursor());
        self.tail.bytes().saturating_sub(self.writer.taken()) > self.config.tail_bytes
            || flush >= cursor.max(1) && self.tail.next_live(cursor).is_some_and(|msg| msg.seq <= flush)
    }

    /// Begins a block if one is wanted and none is being filled.
    fn start_block(&mut self) {
        let writer = &self.writer;
        let waits = writer.sealing.as_ref().is_some_and(|sealing| sealing.abandoned);
        if writer.building.is_some() || writer.stalled || waits || !self.wants_to_write() {
            return;
        }
        let cursor = self.writer.cursor();
        let id = self.files.next_id();
        let Some(file) = self.block_path(id) else { return };
        let create = self.io.ask(IoOp::Create {
            file: file.clone(),
            len: 0,
        });
        self.writer.building = Some(Building {
            id,
            file,
            builder: Some(BlockBuilder::new(id, PIECE_BYTES)),
            done: None,
            from: cursor,
            cursor,
            taken: 0,
            created: false,
            pieces: VecDeque::new(),
            out: BTreeSet::from([create]),
            sync: None,
            abandoned: false,
        });
    }

    /// Takes messages from the tail into pieces.
    fn fill(&mut self) {
        let Some(mut building) = self.writer.building.take_if(|building| !building.abandoned) else {
            return;
        };
        if let Some(mut builder) = building.builder.take() {
            let full = self.fill_from_tail(&mut building, &mut builder);
            let flushed = self.writer.flush_to > 0
                && !builder.is_empty()
                && self
                    .tail
                    .next_live(building.cursor)
                    .is_none_or(|msg| msg.seq > self.writer.flush_to);
            if full || flushed {
                let built = builder.finish();
                building.pieces.push_back(built.piece);
                building.done = Some((built.info, built.index));
            } else {
                building.builder = Some(builder);
            }
        }
        self.writer.building = Some(building);
    }

    /// Whether the block is full.
    fn fill_from_tail(&self, building: &mut Building, builder: &mut BlockBuilder) -> bool {
        let limit = self.config.block_bytes.min(1 << 30);
        let before = self.writer.taken();
        let start = builder.data_len();
        let mut messages = self.tail.iter_from(building.cursor).peekable();
        while builder.data_len() < limit {
            let flush = self.writer.flush_to;
            let Some(msg) = messages.peek() else { return false };
            let wanted = self.tail.bytes().saturating_sub(before + building.taken) > self.config.tail_bytes
                || msg.seq <= flush;
            if !wanted || builder.data_len() - start > FILL_BYTES {
                return false;
            }
            if !builder.fits(msg.seq, msg.record.len()) {
                return true;
            }
            let pushed = builder.push(msg.seq, msg.ts, &msg.record);
            debug_assert!(pushed.is_ok(), "records were parsed when they came in");
            building.cursor = msg.seq + 1;
            building.taken += msg.record.len() as u64;
            if let Some(piece) = builder.take_piece(PIECE_BYTES) {
                building.pieces.push_back(piece);
            }
            messages.next();
        }
        true
    }

    /// Hands out what can be written now, and the sync of a complete block once all of it is written.
    fn hand_out(&mut self) {
        let io = &mut self.io;
        for building in self.writer.blocks() {
            if !building.created || building.abandoned {
                continue;
            }
            for (offset, parts) in building.pieces.drain(..) {
                building.out.insert(io.ask(IoOp::Write {
                    file: building.file.clone(),
                    offset,
                    parts,
                    sync: false,
                }));
            }
        }
        if let Some(sealing) = &mut self.writer.sealing
            && sealing.created
            && !sealing.abandoned
            && sealing.out.is_empty()
            && sealing.sync.is_none()
        {
            sealing.sync = Some(self.io.ask(IoOp::Sync {
                file: sealing.file.clone(),
            }));
        }
    }

    /// Removes the files of abandoned blocks, once nothing is under way for them.
    fn give_up_abandoned(&mut self) {
        let writer = &mut self.writer;
        let over = [
            writer.sealing.take_if(|block| block.is_over()),
            writer.building.take_if(|block| block.is_over()),
        ];
        for block in over.into_iter().flatten().filter(|block| block.created) {
            self.free_file(block.id, false);
        }
    }

    pub(crate) fn writer_owns(&self, token: IoToken) -> bool {
        self.writer.owns(token)
    }

    /// An operation of the writer has ended.
    pub(crate) fn write_done(&mut self, token: IoToken, result: Result<(), IoError>) -> StoreEvent {
        let Some(building) = self.writer.blocks().find(|building| building.owns(token)) else {
            return StoreEvent::Nothing;
        };
        let synced = building.sync.take_if(|sync| *sync == token).is_some();
        building.out.remove(&token);
        // The creation ends before anything else is handed out.
        building.created |= result.is_ok();
        match result {
            Err(error) => {
                building.abandoned = true;
                if self.writer.sealing.as_ref().is_some_and(|older| older.abandoned) {
                    self.writer.abandon();
                }
                self.writer.stalled = true;
                StoreEvent::WriteFailed(error)
            }
            Ok(()) if building.abandoned => StoreEvent::Nothing,
            Ok(()) if synced => self.install(),
            Ok(()) => StoreEvent::Nothing,
        }
    }

    /// The complete block is durable: it takes over its messages from the tail.
    fn install(&mut self) -> StoreEvent {
        let Some((info, index)) = self.writer.sealing.take().and_then(|block| block.done) else {
            return StoreEvent::Nothing;
        };
        let mut block = Block::new(info, RoaringBitmap::new());
        for row in index.rows() {
            let seq = info.first_seq + u64::from(row.rel);
            if self.tail.get(seq).is_some() {
                block.add(row, accounted(self.config.kind, row.extent));
            }
        }
        block.live.optimize();
        self.tail.forget_through(info.last_seq);
        if block.live.is_empty() {
            self.free_file(info.id, false);
            return StoreEvent::Nothing;
        }
        self.blocks.insert(info.first_seq, block);
        self.keep_index(info.first_seq, index);
        self.note_new(info.first_seq);
        StoreEvent::Sealed {
            from: StreamSeq(info.first_seq),
            upto: StreamSeq(info.last_seq),
        }
    }
}
