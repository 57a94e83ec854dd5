//! Reading back: indexes of blocks and records, on demand, with a bounded memory for each.
//!
//! A record is read together with those that follow it, since most readers go on. Each is compared with the index
//! and checked before anyone sees it; what fails is marked damaged and never handed out.

use crate::block::{Block, BlockIndex, BlockInfo, FRAME_HEAD_BYTES, Frame, Row, rebuild};
use crate::codec::index as to_index;
use crate::store::Store;
use crate::types::{Need, StoreEvent};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidelock_base::StreamSeq;
use tidelock_record::{IoError, IoOp, IoOutput, IoToken};

/// Bytes read with a record, that record included, unless it is larger itself.
const READ_AHEAD_BYTES: u64 = 128 * 1024;

/// What is being read and what was.
#[derive(Debug, Default)]
pub(crate) struct ReadState {
    pending: BTreeMap<IoToken, Read>,
    /// Records that wait for the index of their block.
    waiting: BTreeSet<u64>,
    /// Blocks (first sequence) whose index is here, oldest first; blocks that are gone may still be named.
    indexes: VecDeque<u64>,
    index_bytes: u64,
    /// Records that are here, oldest first.
    chunks: VecDeque<Chunk>,
    chunk_bytes: u64,
}

/// A read that is out. Blocks are named by their first sequence and their number: one may take another's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Index {
        key: u64,
        id: u64,
    },
    /// The whole file, to make the index again.
    Rebuild {
        key: u64,
        id: u64,
    },
    /// The whole file, to see whether it is sound.
    Scrub {
        key: u64,
        id: u64,
    },
    /// The frames from `offset` to `end`.
    Chunk {
        key: u64,
        id: u64,
        offset: u64,
        end: u64,
    },
}

/// Consecutive frames of a block file.
#[derive(Debug)]
struct Chunk {
    id: u64,
    offset: u64,
    data: Bytes,
}

impl Read {
    const fn block(self) -> (u64, u64) {
        match self {
            Self::Index { key, id }
            | Self::Rebuild { key, id }
            | Self::Scrub { key, id }
            | Self::Chunk { key, id, .. } => (key, id),
        }
    }
}

impl Chunk {
    fn frame(&self, row: &Row) -> Option<Bytes> {
        let start = to_index(u64::from(row.offset).checked_sub(self.offset)?);
        let end = to_index(row.end().checked_sub(self.offset)?);
        (end <= self.data.len()).then(|| self.data.slice(start..end))
    }
}

impl ReadState {
    /// A record that is here. It has been checked.
    pub(crate) fn record(&self, id: u64, row: &Row) -> Option<Bytes> {
        let frame = self
            .chunks
            .iter()
            .rev()
            .filter(|chunk| chunk.id == id)
            .find_map(|chunk| chunk.frame(row))?;
        Some(frame.slice(FRAME_HEAD_BYTES..))
    }

    fn is_reading(&self, wanted: impl Fn(&Read) -> bool) -> bool {
        self.pending.values().any(wanted)
    }

    /// A block is being read whole.
    pub(crate) fn scrubbed(&mut self, token: IoToken, key: u64, id: u64) {
        self.pending.insert(token, Read::Scrub { key, id });
    }

    /// A block is gone: so is what was kept of it.
    pub(crate) fn forget(&mut self, block: &Block) {
        if let Some(index) = &block.index {
            self.index_bytes -= index.memory();
            self.indexes.retain(|&key| key != block.info.first_seq);
        }
        let id = block.info.id;
        let before: u64 = self.chunks.iter().map(|chunk| chunk.data.len() as u64).sum();
        self.chunks.retain(|chunk| chunk.id != id);
        let after: u64 = self.chunks.iter().map(|chunk| chunk.data.len() as u64).sum();
        self.chunk_bytes -= before - after;
    }

    fn keep_chunk(&mut self, chunk: Chunk, limit: u64) {
        self.chunk_bytes += chunk.data.len() as u64;
        self.chunks.push_back(chunk);
        while self.chunk_bytes > limit && self.chunks.len() > 1 {
            let gone = self.chunks.pop_front();
            self.chunk_bytes -= gone.map_or(0, |chunk| chunk.data.len() as u64);
        }
    }
}

impl Store {
    /// Starts reading what is needed; [`Store::take_io`] has the operation. `false`: nothing has to be read (any
    /// more), ask again at once.
    pub fn fetch(&mut self, need: Need) -> bool {
        let Some(block) = self.block_at(need.seq.value()) else {
            return false;
        };
        let (key, id) = (block.info.first_seq, block.info.id);
        if block.broken {
            return false;
        }
        if block.index.is_none() {
            if need.record {
                self.reads.waiting.insert(need.seq.value());
            }
            self.read_index(key, id);
            return true;
        }
        need.record && self.read_chunk(need.seq.value())
    }

    pub(crate) fn read_index(&mut self, key: u64, id: u64) {
        let same = |read: &Read| {
            matches!(read, Read::Index { .. } | Read::Rebuild { .. }) && read.block() == (key, id)
        };
        if self.reads.is_reading(same) {
            return;
        }
        let (Some(block), Some(file)) = (self.blocks.get(&key), self.block_path(id)) else {
            return;
        };
        let token = self.io.ask(IoOp::Read {
            file,
            offset: block.info.summary_offset(),
            len: u64::from(block.info.summary_len) + u64::from(block.info.index_len),
        });
        self.reads.pending.insert(token, Read::Index { key, id });
    }

    /// Reads a record and what follows it; whether a read is out.
    fn read_chunk(&mut self, seq: u64) -> bool {
        let Some(block) = self.block_at(seq) else {
            return false;
        };
        let (key, id) = (block.info.first_seq, block.info.id);
        let (Some(index), Some(rel)) = (block.index.as_deref(), block.rel(seq)) else {
            return false;
        };
        let place = index.place(rel);
        let Some(row) = index.rows().get(place).filter(|row| row.rel == rel) else {
            return false;
        };
        if block.is_damaged(rel) || !block.live.contains(rel) || self.reads.record(id, row).is_some() {
            return false;
        }
        let offset = u64::from(row.offset);
        let row_end = row.end();
        let covers = |read: &Read| match *read {
            Read::Chunk {
                id: other,
                offset: start,
                end,
                ..
            } => other == id && start <= offset && row_end <= end,
            Read::Index { .. } | Read::Rebuild { .. } | Read::Scrub { .. } => false,
        };
        if self.reads.is_reading(covers) {
            return true;
        }
        let ahead = index.rows().get(place..).unwrap_or_default().iter();
        let end = ahead
            .map(Row::end)
            .take_while(|end| end - offset <= READ_AHEAD_BYTES)
            .last()
            .unwrap_or(row_end);
        let Some(file) = self.block_path(id) else {
            return false;
        };
        let token = self.io.ask(IoOp::Read {
            file,
            offset,
            len: end - offset,
        });
        self.reads
            .pending
            .insert(token, Read::Chunk { key, id, offset, end });
        true
    }

    /// A read has ended; `None` if it was not one of these.
    pub(crate) fn read_done(
        &mut self,
        token: IoToken,
        result: Result<&IoOutput, IoError>,
    ) -> Option<StoreEvent> {
        let read = self.reads.pending.remove(&token)?;
        let (key, id) = read.block();
        // The block may be gone, or another may have its place: whoever waited asks again and finds out.
        let Some(block) = self.blocks.get(&key).filter(|block| block.info.id == id) else {
            return Some(StoreEvent::Arrived {
                from: StreamSeq(key),
                upto: StreamSeq(u64::MAX),
            });
        };
        let (from, upto) = (StreamSeq(key), StreamSeq(block.info.last_seq));
        let data = match result {
            Ok(IoOutput::Data(data)) => data.clone(),
            Ok(IoOutput::Done | IoOutput::Names(_) | IoOutput::Size(_) | IoOutput::Space { .. }) => {
                Bytes::new()
            }
            // A file that is not there is damage; everything else may pass.
            Err(IoError::NotFound) => Bytes::new(),
            Err(error) => return Some(StoreEvent::ReadFailed { from, upto, error }),
        };
        Some(match read {
            Read::Index { .. } => self.index_read(key, &data),
            Read::Scrub { .. } => self.scrub_read(key, &data),
            Read::Rebuild { .. } => match rebuild(&block.info, &data) {
                Ok(index) => {
                    self.suspect(key);
                    self.index_arrived(key, index)
                }
                Err(_) => self.index_lost(key),
            },
            Read::Chunk { offset, end, .. } => self.chunk_read(key, offset, end, data),
        })
    }

    fn index_read(&mut self, key: u64, data: &Bytes) -> StoreEvent {
        let Some(block) = self.blocks.get(&key) else {
            return StoreEvent::Nothing;
        };
        let info = block.info;
        if let Some(index) = decode_index(&info, data) {
            return self.index_arrived(key, index);
        }
        let Some(file) = self.block_path(info.id) else {
            return self.index_lost(key);
        };
        let token = self.io.ask(IoOp::Read {
            file,
            offset: 0,
            len: info.summary_offset(),
        });
        self.reads
            .pending
            .insert(token, Read::Rebuild { key, id: info.id });
        StoreEvent::Nothing
    }

    fn index_arrived(&mut self, key: u64, index: BlockIndex) -> StoreEvent {
        self.keep_index(key, index);
        let Some(block) = self.blocks.get(&key) else {
            return StoreEvent::Nothing;
        };
        let (from, upto) = (key, block.info.last_seq);
        let waiting: Vec<u64> = self.reads.waiting.range(from..=upto).copied().collect();
        for seq in waiting {
            self.reads.waiting.remove(&seq);
            self.read_chunk(seq);
        }
        StoreEvent::Arrived {
            from: StreamSeq(from),
            upto: StreamSeq(upto),
        }
    }

    fn index_lost(&mut self, key: u64) -> StoreEvent {
        let Some(block) = self.blocks.get_mut(&key) else {
            return StoreEvent::Nothing;
        };
        block.broken = true;
        let (from, upto) = (key, block.info.last_seq);
        self.suspect(key);
        self.reads.waiting.retain(|seq| !(from..=upto).contains(seq));
        StoreEvent::Damaged {
            from: StreamSeq(from),
            upto: StreamSeq(upto),
        }
    }

    /// Puts an index into memory, and others out.
    pub(crate) fn keep_index(&mut self, key: u64, index: BlockIndex) {
        let Some(block) = self.blocks.get_mut(&key) else {
            return;
        };
        if block.index.is_some() {
            return;
        }
        self.reads.index_bytes += index.memory();
        self.reads.indexes.push_back(key);
        block.index = Some(Box::new(index));
        block.learn_first_ts();
        let first = self.blocks.first_key_value().map(|(&key, _)| key);
        let mut tries = self.reads.indexes.len();
        while self.reads.index_bytes > self.config.index_cache_bytes && tries > 1 {
            tries -= 1;
            let Some(old) = self.reads.indexes.pop_front() else {
                return;
            };
            if old == key || Some(old) == first || self.needs_index(old) {
                // The first block's index says what comes next when the stream is trimmed.
                self.reads.indexes.push_back(old);
                continue;
            }
            if let Some(index) = self.blocks.get_mut(&old).and_then(|block| block.index.take()) {
                self.reads.index_bytes -= index.memory();
            }
        }
    }

    /// Records that are being read are compared with the index of their block, and so are those that come from another
    /// replica in place of damaged ones.
    fn needs_index(&self, key: u64) -> bool {
        self.reads.is_reading(|read| read.block().0 == key)
            || self
                .blocks
                .get(&key)
                .is_some_and(|block| !block.damaged.is_empty())
    }

    fn chunk_read(&mut self, key: u64, offset: u64, end: u64, data: Bytes) -> StoreEvent {
        let Some(block) = self.blocks.get_mut(&key) else {
            return StoreEvent::Nothing;
        };
        let chunk = Chunk {
            id: block.info.id,
            offset,
            data,
        };
        let mut bad = Vec::new();
        let (mut from, mut upto) = (u64::MAX, 0);
        // Without the index nothing can be compared: then the read was in vain, and whoever waits asks again.
        if let Some(index) = block.index.as_deref() {
            let start = index.rows().partition_point(|row| u64::from(row.offset) < offset);
            let rows = index.rows().get(start..).unwrap_or_default();
            for row in rows.iter().take_while(|row| row.end() <= end) {
                let seq = block.seq(row.rel);
                (from, upto) = (from.min(seq), upto.max(seq));
                if block.live.contains(row.rel) && !is_sound(seq, row, chunk.frame(row).as_ref()) {
                    bad.push(row.rel);
                }
            }
        }
        if upto == 0 {
            return StoreEvent::Arrived {
                from: StreamSeq(key),
                upto: StreamSeq(block.info.last_seq),
            };
        }
        let (from, upto) = (StreamSeq(from), StreamSeq(upto));
        let damaged = !bad.is_empty();
        block.damaged.extend(bad);
        self.reads.keep_chunk(chunk, self.config.data_cache_bytes);
        if damaged {
            self.suspect(key);
            StoreEvent::Damaged { from, upto }
        } else {
            StoreEvent::Arrived { from, upto }
        }
    }

    /// Memory that indexes and records read from blocks take, in bytes: what [`Store::shed`] can free.
    #[must_use]
    pub const fn cached_bytes(&self) -> u64 {
        self.reads.index_bytes + self.reads.chunk_bytes
    }

    /// Frees what can be read again, but for the index of the first block: for a node that is short of memory.
    pub fn shed(&mut self) {
        self.reads.chunks.clear();
        self.reads.chunk_bytes = 0;
        let first = self.blocks.first_key_value().map(|(&key, _)| key);
        for key in std::mem::take(&mut self.reads.indexes) {
            let is_needed = self.needs_index(key);
            let Some(block) = self.blocks.get_mut(&key) else {
                continue;
            };
            if Some(key) == first || is_needed {
                self.reads.indexes.push_back(key);
            } else if let Some(index) = block.index.take() {
                self.reads.index_bytes -= index.memory();
            }
        }
    }
}

/// The index from summary and index as read, if they are what was written.
pub(crate) fn decode_index(info: &BlockInfo, data: &Bytes) -> Option<BlockIndex> {
    let parts = info.summary_len as usize;
    if data.len() != parts + info.index_len as usize {
        return None;
    }
    let (summary, index) = (data.slice(..parts), data.slice(parts..));
    let sound = crc32c::crc32c(&summary) == info.summary_crc && crc32c::crc32c(&index) == info.index_crc;
    if !sound {
        return None;
    }
    BlockIndex::decode(info, &summary, &index).ok()
}

/// Whether a frame is the one that the index speaks of, with sound bytes.
pub(crate) fn is_sound(seq: u64, row: &Row, frame: Option<&Bytes>) -> bool {
    frame
        .and_then(|bytes| Frame::parse(bytes).ok())
        .is_some_and(|(frame, len)| {
            frame.seq == seq
                && frame.ts == row.ts
                && len as u64 == row.frame_len()
                && frame.extent() == Some(row.extent)
                && frame.record.check().is_ok()
        })
}
