//! Blocks: immutable files of messages, what is known of them in memory, and how they come to be.

mod builder;
mod checksum;
mod format;
mod gather;
mod index;

pub(crate) use builder::{BlockBuilder, Piece, rebuild};
pub(crate) use format::{BlockInfo, FRAME_HEAD_BYTES, FileHeader, Frame, HEADER_BYTES, extent};
pub(crate) use index::{BlockIndex, Row, SubjectSummary, read_summary};

use bytes::Bytes;
use roaring::RoaringBitmap;
use std::collections::{BTreeMap, BTreeSet};

/// A block file of the store, as far as it is in memory. Sequences in sets are relative to `info.first_seq`.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) info: BlockInfo,
    /// Messages that are still there.
    pub(crate) live: RoaringBitmap,
    /// Their size as `state.bytes` counts it.
    pub(crate) live_bytes: u64,
    /// Bytes that their frames take in the file.
    pub(crate) live_data: u64,
    /// Their part of the store's digest.
    pub(crate) digest: u64,
    /// Time of the first live message. Always known for the first block of the store.
    pub(crate) first_ts: Option<i64>,
    /// Where each message lies; read on demand.
    pub(crate) index: Option<Box<BlockIndex>>,
    /// Messages whose bytes failed their checksum.
    pub(crate) damaged: BTreeSet<u32>,
    /// Time and record of damaged messages, from another replica: they count until the file is written again.
    pub(crate) copies: BTreeMap<u32, (i64, Bytes)>,
    /// The index could not be brought back.
    pub(crate) broken: bool,
    /// Changed since the last checkpoint.
    pub(crate) dirty: bool,
    /// Named by a checkpoint, so its file must outlive that checkpoint.
    pub(crate) saved: bool,
}

impl Block {
    /// A block whose sums are still to be filled in, and which no checkpoint knows.
    pub(crate) const fn new(info: BlockInfo, live: RoaringBitmap) -> Self {
        Self {
            info,
            live,
            live_bytes: 0,
            live_data: 0,
            digest: 0,
            first_ts: None,
            index: None,
            damaged: BTreeSet::new(),
            copies: BTreeMap::new(),
            broken: false,
            dirty: true,
            saved: false,
        }
    }

    /// Counts a message of the block as live; `bytes` is its size as `state.bytes` counts it.
    pub(crate) fn add(&mut self, row: &Row, bytes: u64) {
        self.live.insert(row.rel);
        self.live_bytes += bytes;
        self.live_data += row.frame_len();
        self.digest = self
            .digest
            .wrapping_add(message_hash(self.seq(row.rel), row.extent.crc));
    }

    /// Sequence relative to the block.
    pub(crate) const fn rel(&self, seq: u64) -> Option<u32> {
        if seq < self.info.first_seq || seq > self.info.last_seq {
            return None;
        }
        let rel = seq - self.info.first_seq;
        if rel > u32::MAX as u64 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked in the line above")]
        Some(rel as u32)
    }

    pub(crate) fn seq(&self, rel: u32) -> u64 {
        self.info.first_seq + u64::from(rel)
    }

    pub(crate) fn is_live(&self, seq: u64) -> bool {
        self.rel(seq).is_some_and(|rel| self.live.contains(rel))
    }

    pub(crate) fn first_live(&self) -> Option<u64> {
        self.live.min().map(|rel| self.seq(rel))
    }

    pub(crate) fn next_live(&self, from: u64) -> Option<u64> {
        let rel = match from.checked_sub(self.info.first_seq) {
            None => 0,
            Some(rel) => u32::try_from(rel).ok()?,
        };
        self.live.range(rel..).next().map(|rel| self.seq(rel))
    }

    pub(crate) fn prev_live(&self, upto: u64) -> Option<u64> {
        let rel = upto.checked_sub(self.info.first_seq)?;
        let rel = u32::try_from(rel).unwrap_or(u32::MAX);
        self.live.range(..=rel).next_back().map(|rel| self.seq(rel))
    }

    /// How many live messages are at or above `from`.
    pub(crate) fn count_from(&self, from: u64) -> u64 {
        match from.checked_sub(self.info.first_seq) {
            None | Some(0) => self.live.len(),
            Some(rel) => u32::try_from(rel).map_or(0, |rel| self.live.len() - self.live.rank(rel - 1)),
        }
    }

    /// The row of a live message, if the index is here.
    pub(crate) fn row(&self, seq: u64) -> Option<(&BlockIndex, &Row)> {
        let index = self.index.as_deref()?;
        Some((index, index.find(self.rel(seq)?)?))
    }

    /// The time of the first live message becomes known, once the index is here.
    pub(crate) fn learn_first_ts(&mut self) {
        if self.first_ts.is_none()
            && let Some(first) = self.first_live()
        {
            self.first_ts = self.row(first).map(|(_, row)| row.ts);
        }
    }

    /// Bytes in the file that belong to removed messages.
    pub(crate) const fn dead_data(&self) -> u64 {
        self.info.data_len.saturating_sub(self.live_data)
    }
}

/// A message's part of a digest. The sum over all messages does not depend on their order, nor on how they are
/// spread over blocks, which differs between replicas.
pub(crate) fn message_hash(seq: u64, crc: u32) -> u64 {
    let mut bytes = [0; 12];
    let (head, tail) = bytes.split_at_mut(8);
    head.copy_from_slice(&seq.to_le_bytes());
    tail.copy_from_slice(&crc.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
