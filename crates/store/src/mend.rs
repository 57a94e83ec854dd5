//! Mending: what is damaged on this disk comes from another replica, and its block is written again.
//!
//! ```text
//!  a checksum fails ──> suspect ──wanted──> whoever owns the store asks another replica
//!                          ^                             │
//!                          │ more of it is damaged       v mend: served from memory at once
//!                          └──────────────── all there: read whole, written to a new file ──> mended
//! ```
//!
//! A message from elsewhere is taken only if it is the one that the block's index speaks of. A block whose index is lost
//! (`broken`) needs all of its messages, and shows none of them before the sum of the new file's checksums is the one
//! that the checkpoint and every removal since have kept. A block of which only index or header is damaged is written
//! again without anybody's help.
//!
//! One block is written at a time, by the compactor.

use crate::block::{Block, extent};
use crate::files::block_number;
use crate::reader::is_sound;
use crate::store::Store;
use crate::types::StoreEvent;
use bytes::Bytes;
use tidelock_base::StreamSeq;
use tidelock_record::{IoOp, RecordRef};

impl Block {
    pub(crate) fn is_damaged(&self, rel: u32) -> bool {
        self.broken || self.damaged.contains(&rel)
    }

    /// A message that has come from another replica and that may be shown.
    pub(crate) fn copy(&self, rel: u32) -> Option<&(i64, Bytes)> {
        self.copies.get(&rel).filter(|_| !self.broken)
    }

    /// Whether messages have to come from another replica before the file can be written again.
    fn lacks(&self) -> bool {
        if self.broken {
            return self.needs_file();
        }
        self.damaged.len() > self.copies.len()
    }

    /// Whether something of the file is needed to write it again.
    pub(crate) fn needs_file(&self) -> bool {
        self.live.len() > self.copies.len() as u64
    }

    /// Time and record of a live message: what came from another replica, or what is in the file, if that is sound.
    pub(crate) fn sound(&self, rel: u32, file: &Bytes) -> Option<(i64, Bytes)> {
        if let Some(copy) = self.copies.get(&rel) {
            return Some(copy.clone());
        }
        if self.is_damaged(rel) {
            return None;
        }
        let row = self.index.as_deref()?.find(rel)?;
        let frame = file.get(row.offset as usize..usize::try_from(row.end()).ok()?)?;
        let frame = file.slice_ref(frame);
        is_sound(self.seq(rel), row, Some(&frame))
            .then(|| (row.ts, frame.slice(crate::block::FRAME_HEAD_BYTES..)))
    }
}

impl Store {
    /// Something of a block is damaged.
    pub(crate) fn suspect(&mut self, key: u64) {
        self.compactor.suspects.insert(key);
    }

    /// Messages that are known to be unreadable here and that have not come from another replica, in order. They count
    /// in every total until they are removed.
    pub fn damaged(&self) -> impl Iterator<Item = StreamSeq> + '_ {
        let compactor = &self.compactor;
        let any = compactor.mends() || !compactor.suspects.is_empty() || !compactor.refused.is_empty();
        let blocks = self.blocks.values().take_while(move |_| any);
        blocks.filter(|block| block.lacks()).flat_map(|block| {
            let live = block.live.iter();
            live.filter(|rel| block.is_damaged(*rel) && !block.copies.contains_key(rel))
                .map(|rel| StreamSeq(block.seq(rel)))
        })
    }

    /// Whether blocks are damaged, as far as is known.
    #[must_use]
    pub fn has_damage(&self) -> bool {
        self.is_mending() || self.damaged().next().is_some()
    }

    /// Whether blocks are to be written again, for which something may have to come first.
    #[must_use]
    pub fn is_mending(&self) -> bool {
        self.compactor.mends() || !self.compactor.suspects.is_empty()
    }

    /// Somebody has found that a file of this name is not what it was.
    pub fn suspect_file(&mut self, name: &str) {
        if let Some((first, _)) = self.block_named(name) {
            self.suspect(first.value());
        }
    }

    /// Whether this message is damaged and not to be shown as yet. Where the index of a block is lost, that holds for all of
    /// its sequences, since nothing is known of any.
    #[must_use]
    pub fn is_damaged(&self, seq: StreamSeq) -> bool {
        let Some(block) = self.block_at(seq.value()) else {
            return false;
        };
        let is_one =
            |rel: u32| block.live.contains(rel) && block.is_damaged(rel) && block.copy(rel).is_none();
        block.broken || block.rel(seq.value()).is_some_and(is_one)
    }

    /// First and last of the messages that must all be whole before this one is shown: itself, or all of a block whose
    /// index is lost.
    #[must_use]
    pub fn shown_with(&self, seq: StreamSeq) -> (StreamSeq, StreamSeq) {
        match self.block_at(seq.value()) {
            Some(block) if block.broken => (StreamSeq(block.info.first_seq), StreamSeq(block.info.last_seq)),
            Some(_) | None => (seq, seq),
        }
    }

    /// Whether a damaged message can still be made good: `false` if its block was written again with what others have,
    /// and did not come to the sum that it must have.
    #[must_use]
    pub fn may_be_mended(&self, seq: StreamSeq) -> bool {
        let block = self.block_at(seq.value());
        block.is_some_and(|block| !self.compactor.refused.contains(&block.info.first_seq))
    }

    /// Bytes of messages that have come from other replicas and whose blocks are not written again yet.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        let copies = self.blocks.values().flat_map(|block| block.copies.values());
        copies.map(|(_, record)| record.len() as u64).sum()
    }

    /// Takes a damaged message as another replica has it. `false`: it is not wanted (any more), or is not that message.
    pub fn mend(&mut self, seq: StreamSeq, ts: i64, bytes: Bytes) -> bool {
        let Ok((record, len)) = RecordRef::parse(&bytes) else {
            return false;
        };
        if len != bytes.len() || record.check().is_err() {
            return false;
        }
        let found = extent(&record);
        let Some((_, block)) = self.blocks.range_mut(..=seq.value()).next_back() else {
            return false;
        };
        let Some(rel) = block.rel(seq.value()).filter(|rel| block.live.contains(*rel)) else {
            return false;
        };
        let is_refused = self.compactor.refused.contains(&block.info.first_seq);
        if is_refused || !block.is_damaged(rel) || block.copies.contains_key(&rel) {
            return false;
        }
        let fits = match block.row(seq.value()) {
            Some((index, row)) => {
                row.ts == ts && found == Some(row.extent) && index.subject(row) == record.subject()
            }
            None => block.broken,
        };
        if fits {
            block.copies.insert(rel, (ts, bytes));
        }
        fits
    }

    /// The disk does not give back a block: all of its messages are to come from another replica.
    pub fn give_up_block(&mut self, seq: StreamSeq) {
        let Some((&key, block)) = self.blocks.range_mut(..=seq.value()).next_back() else {
            return;
        };
        if block.index.is_some() {
            block.damaged = block.live.iter().collect();
        } else {
            block.broken = true;
        }
        self.compactor.refused.remove(&key);
        self.suspect(key);
    }

    /// First and last sequence of the block in the file of this name.
    #[must_use]
    pub fn block_named(&self, name: &str) -> Option<(StreamSeq, StreamSeq)> {
        let id = block_number(name);
        let mut blocks = self.blocks.values().map(|block| &block.info);
        let info = blocks.find(|info| Some(info.id) == id)?;
        Some((StreamSeq(info.first_seq), StreamSeq(info.last_seq)))
    }

    /// Reads the first block at or behind a message whole, and compares it with what the checkpoints say of it; what
    /// follows from that is told as of any other read. Gives the sequence behind that block; `None` if there is none.
    pub fn scrub(&mut self, from: StreamSeq) -> Option<StreamSeq> {
        let inside = self.block_at(from.value()).map(|block| block.info.first_seq);
        let key = inside.or_else(|| self.blocks.range(from.value()..).next().map(|(&key, _)| key))?;
        let block = self.blocks.get(&key)?;
        let (id, len) = (block.info.id, block.info.file_len);
        let next = StreamSeq(block.info.last_seq).next();
        if !block.broken && !self.compactor.refused.contains(&key) {
            let file = self.block_path(id)?;
            let token = self.io.ask(IoOp::Read { file, offset: 0, len });
            self.reads.scrubbed(token, key, id);
        }
        Some(next)
    }

    /// A block was read whole.
    pub(crate) fn scrub_read(&mut self, key: u64, data: &Bytes) -> StoreEvent {
        let Some(info) = self.blocks.get(&key).map(|block| block.info) else {
            return StoreEvent::Nothing;
        };
        if data.len() as u64 == info.file_len && crc32c::crc32c(data) == info.file_crc() {
            return StoreEvent::Nothing;
        }
        self.suspect(key);
        StoreEvent::Damaged {
            from: StreamSeq(key),
            upto: StreamSeq(info.last_seq),
        }
    }

    /// A damaged block that can be written again.
    pub(crate) fn next_to_mend(&mut self) -> Option<(u64, u64)> {
        let suspects: Vec<u64> = self.compactor.suspects.iter().copied().collect();
        for key in suspects {
            let Some(block) = self
                .blocks
                .get(&key)
                .filter(|_| !self.compactor.refused.contains(&key))
            else {
                self.compactor.suspects.remove(&key);
                continue;
            };
            if block.lacks() {
                continue;
            }
            let id = block.info.id;
            if block.index.is_none() && !block.broken {
                self.read_index(key, id);
                continue;
            }
            self.compactor.suspects.remove(&key);
            return Some((key, id));
        }
        None
    }
}
