//! Checkpoints: what must be durable so that the log up to the last applied entry can be dropped.
//!
//! A checkpoint names the block files with what has changed in them (they are durable before they are named), and
//! holds the tail itself. A full one stands alone; a delta says what has changed since the one before. To bring a
//! store back takes the checkpoint, and the summary of each block: no message is read, nor any index.
//!
//! ```text
//! magic "TLSTORE\n" | version u16 | flags u16 (bit 0: delta) | number u64 | previous u64 (0 in a full one)
//! kind u8 | last_seq | last_ts | msgs | bytes | digest | last block number     (u64 each)
//! varint count, then numbers of blocks that are gone (u64 each; a delta only)
//! varint count, then blocks: BlockInfo | live bytes u64 | live data u64 | digest u64 | time of the first known u8
//!     | that time i64 | live set (varint length, roaring format)
//! varint count, then messages of the tail: seq u64 | ts i64 | varint length, record
//! crc32c u32 of all before
//! ```

use crate::block::{Block, BlockIndex, BlockInfo, read_summary, rebuild};
use crate::codec::{Malformed, Reader, put_bytes, put_varint};
use crate::files::block_number;
use crate::listing::Listing;
use crate::store::{Store, Totals};
use crate::types::{StoreConfig, StoreError, StoreKind};
use bytes::Bytes;
use roaring::RoaringBitmap;
use std::collections::BTreeMap;
use tidelock_base::{StreamSeq, Wall};
use tidelock_record::{Disk, FilePath, IoError, RecordRef};

const MAGIC: [u8; 8] = *b"TLSTORE\n";
const VERSION: u16 = 1;
const DELTA: u16 = 1;
/// The most that is written of a block beside its live set, of a message of the tail beside its record, and before and
/// after all of them.
const BLOCK_BYTES: usize = 72 + 33 + 10;
const TAIL_MSG_BYTES: u64 = 16 + 10;
const HEAD_BYTES: usize = 128;

/// Which checkpoint to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointKind {
    /// One that stands alone. Needed first, and after a checkpoint that did not become durable.
    Full,
    /// What has changed since the one before, to be kept together with it.
    Delta,
}

/// What [`Store::restore`] does about a block that cannot be brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// Fail: another replica has the messages.
    Refuse,
    /// Go on without its messages, and list them in [`Store::lost`]: there is no other replica.
    Report,
    /// Keep its place, for its messages to come from another replica ("Mending" in `mend.rs`). Until they have,
    /// [`Store::is_listed`] is `false`, and nothing may be asked of the store but those messages that it has.
    Await,
}

/// A checkpoint, or several put together.
#[derive(Debug, Default)]
struct Image {
    number: u64,
    totals: Totals,
    last_id: u64,
    /// By number.
    blocks: BTreeMap<u64, Block>,
    tail: Vec<(u64, i64, Bytes)>,
}

impl Store {
    /// Appends a checkpoint of the store as it is now, and gives its number: tell [`Store::checkpoint_durable`] when
    /// it is. Call [`Store::flush`] and wait for [`Store::is_flushed`] first to keep it small; what is in the tail is
    /// part of it in any case.
    pub fn encode_checkpoint(&mut self, kind: CheckpointKind, out: &mut Vec<u8>) -> u64 {
        let start = out.len();
        let delta = kind == CheckpointKind::Delta;
        let previous = self.files.checkpoint;
        self.files.checkpoint += 1;
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&if delta { DELTA } else { 0 }.to_le_bytes());
        let Totals {
            msgs,
            bytes,
            digest,
            last_seq,
            last_ts,
        } = self.totals;
        put_u64s(out, &[self.files.checkpoint, if delta { previous } else { 0 }]);
        out.push(kind_byte(self.config.kind));
        put_u64s(
            out,
            &[
                last_seq,
                last_ts.cast_unsigned(),
                msgs,
                bytes,
                digest,
                self.files.last_id(),
            ],
        );

        let gone = std::mem::take(&mut self.files.gone);
        put_varint(out, if delta { gone.len() as u64 } else { 0 });
        if delta {
            put_u64s(out, &gone);
        }
        let named = |block: &Block| !delta || block.dirty;
        put_varint(
            out,
            self.blocks.values().filter(|block| named(block)).count() as u64,
        );
        for block in self.blocks.values_mut().filter(|block| named(block)) {
            encode_block(block, out);
            block.dirty = false;
            block.saved = true;
        }
        put_varint(out, self.tail.len());
        for msg in self.tail.iter_from(0) {
            put_u64s(out, &[msg.seq, msg.ts.cast_unsigned()]);
            put_bytes(out, &msg.record);
        }
        let crc = crc32c::crc32c(out.get(start..).unwrap_or_default());
        out.extend_from_slice(&crc.to_le_bytes());
        self.files.checkpoint
    }

    /// About how many bytes [`Store::encode_checkpoint`] would append, and rarely less: as room to be made for them.
    #[must_use]
    pub fn checkpoint_bytes(&self, kind: CheckpointKind) -> usize {
        let named = |block: &&Block| kind == CheckpointKind::Full || block.dirty;
        let live = |block: &Block| BLOCK_BYTES + block.live.serialized_size();
        let blocks: usize = self.blocks.values().filter(named).map(live).sum();
        let tail = self.tail.bytes() + self.tail.len() * TAIL_MSG_BYTES;
        HEAD_BYTES + self.files.gone.len() * 8 + blocks + usize::try_from(tail).unwrap_or(0)
    }

    /// Brings a store back from a full checkpoint and the deltas that follow it, in order. Waits for the disk: for
    /// the start of a server, or a helper thread.
    ///
    /// # Errors
    /// [`StoreError::Checkpoint`] if the checkpoints are damaged or do not follow each other, [`StoreError::Io`] if
    /// the disk fails ([`OnLoss::Await`] takes a block that cannot be read for one that is lost), [`StoreError::Block`]
    /// if a block cannot be brought back and `on_loss` says to refuse.
    pub fn restore(
        config: StoreConfig,
        checkpoints: &[&[u8]],
        disk: &dyn Disk,
        on_loss: OnLoss,
    ) -> Result<Self, StoreError> {
        let image = Image::read(config.kind, checkpoints)?;
        let mut store = Self::new(config);
        store.files.checkpoint = image.number;
        store.files.reserve(image.last_id);
        store.find_orphans(&image, disk)?;
        let mut blocks: Vec<Block> = image.blocks.into_values().collect();
        blocks.sort_unstable_by_key(|block| block.info.first_seq);
        let mut end = 0;
        for block in blocks {
            if block.info.first_seq <= end {
                return Err(StoreError::Checkpoint("blocks overlap"));
            }
            end = block.info.last_seq;
            store.restore_block(block, disk, on_loss)?;
        }
        for (seq, ts, record) in image.tail {
            if seq <= end {
                return Err(StoreError::Checkpoint("tail and blocks overlap"));
            }
            end = seq;
            store
                .append(StreamSeq(seq), Wall(ts), record)
                .map_err(|_| StoreError::Checkpoint("a message of the tail is malformed"))?;
        }
        let sums = Totals {
            last_seq: image.totals.last_seq,
            last_ts: image.totals.last_ts,
            ..store.totals
        };
        if end > sums.last_seq || store.lost.is_empty() && sums != image.totals {
            return Err(StoreError::Checkpoint("sums do not agree"));
        }
        store.totals = sums;
        if store.is_listed() {
            store.learn_first(disk)?;
        }
        Ok(store)
    }

    /// Ranges of sequences whose messages [`Store::restore`] could not bring back; both ends belong to the range.
    #[must_use]
    pub fn lost(&self) -> &[(StreamSeq, StreamSeq)] {
        &self.lost
    }

    fn find_orphans(&mut self, image: &Image, disk: &dyn Disk) -> Result<(), StoreError> {
        if self.config.kind == StoreKind::Memory {
            return Ok(());
        }
        let folder = self.config.folder.clone();
        let names = disk.list(&folder).map_err(|error| io_error(&folder, error))?;
        let mut orphans = Vec::new();
        for name in names {
            let Some(id) = block_number(&name) else { continue };
            self.files.reserve(id);
            if !image.blocks.contains_key(&id) {
                orphans.extend(self.block_path(id));
            }
        }
        self.files.set_orphans(orphans);
        Ok(())
    }

    /// Enters a block and the subjects of its live messages.
    fn restore_block(
        &mut self,
        mut block: Block,
        disk: &dyn Disk,
        on_loss: OnLoss,
    ) -> Result<(), StoreError> {
        let Some(file) = self.block_path(block.info.id) else {
            return Err(StoreError::Checkpoint("a block has no file name"));
        };
        let listing = match self.list_block(&block, &file, disk) {
            Err(StoreError::Io { .. }) if on_loss == OnLoss::Await => Listing::Lost,
            listing => listing?,
        };
        if listing == Listing::Lost {
            match on_loss {
                OnLoss::Refuse => {
                    let lost = block.live.len();
                    return Err(StoreError::Block { file, lost });
                }
                OnLoss::Report => {
                    self.note_lost(&block);
                    return Ok(());
                }
                OnLoss::Await => block.broken = true,
            }
        }
        self.totals.msgs += block.live.len();
        self.totals.bytes += block.live_bytes;
        self.totals.digest = self.totals.digest.wrapping_add(block.digest);
        self.totals.last_seq = block.info.last_seq;
        let key = block.info.first_seq;
        self.blocks.insert(key, block);
        self.unlisted |= listing == Listing::Lost;
        if listing != Listing::Whole {
            self.suspect(key);
        }
        Ok(())
    }

    fn note_lost(&mut self, block: &Block) {
        let mut rels = block.live.iter();
        while let Some(range) = rels.next_range() {
            self.lost.push((
                StreamSeq(block.seq(*range.start())),
                StreamSeq(block.seq(*range.end())),
            ));
        }
    }

    /// Makes sure that the time of the first message is known: the block in front may be lost.
    pub(crate) fn learn_first(&mut self, disk: &dyn Disk) -> Result<(), StoreError> {
        let Some((&key, block)) = self.blocks.first_key_value() else {
            return Ok(());
        };
        if block.first_ts.is_some() {
            return Ok(());
        }
        let info = block.info;
        let file = self.block_path(info.id).unwrap_or_else(FilePath::root);
        let len = u64::from(info.summary_len) + u64::from(info.index_len);
        let data = read(disk, &file, info.summary_offset(), len)?;
        let index = match crate::reader::decode_index(&info, &data) {
            Some(index) => Some(index),
            None => rebuild(&info, &read(disk, &file, 0, info.summary_offset())?).ok(),
        };
        let lost = block.live.len();
        let index: BlockIndex = index.ok_or(StoreError::Block { file, lost })?;
        self.keep_index(key, index);
        Ok(())
    }
}

impl Image {
    fn read(kind: StoreKind, checkpoints: &[&[u8]]) -> Result<Self, StoreError> {
        let mut image = Self::default();
        for (at, bytes) in checkpoints.iter().enumerate() {
            image
                .add(kind, bytes, at == 0)
                .map_err(|Malformed(why)| StoreError::Checkpoint(why))?;
        }
        if checkpoints.is_empty() {
            return Err(StoreError::Checkpoint("there is none"));
        }
        Ok(image)
    }

    fn add(&mut self, kind: StoreKind, bytes: &[u8], first: bool) -> Result<(), Malformed> {
        let (covered, crc) = bytes
            .split_last_chunk::<4>()
            .ok_or(Malformed("checkpoint is short"))?;
        if crc32c::crc32c(covered).to_le_bytes() != *crc {
            return Err(Malformed("checkpoint fails its checksum"));
        }
        self.add_checked(kind, covered, first)
    }

    /// Takes in a checkpoint whose checksum was checked.
    fn add_checked(&mut self, kind: StoreKind, covered: &[u8], first: bool) -> Result<(), Malformed> {
        let mut reader = Reader::new(covered);
        if reader.take(8)? != MAGIC || reader.u16()? != VERSION {
            return Err(Malformed("not a checkpoint of a known version"));
        }
        let delta = match reader.u16()? {
            0 => false,
            DELTA => true,
            _ => return Err(Malformed("checkpoint has unknown flags")),
        };
        let (number, previous) = (reader.u64()?, reader.u64()?);
        if delta == first || delta && previous != self.number {
            return Err(Malformed("checkpoints do not follow each other"));
        }
        self.number = number;
        if reader.u8()? != kind_byte(kind) {
            return Err(Malformed("checkpoint of another kind of store"));
        }
        let (last_seq, last_ts) = (reader.u64()?, reader.i64()?);
        let (msgs, bytes, digest) = (reader.u64()?, reader.u64()?, reader.u64()?);
        self.totals = Totals {
            msgs,
            bytes,
            digest,
            last_seq,
            last_ts,
        };
        if last_seq == u64::MAX {
            return Err(Malformed("the last sequence is too large"));
        }
        self.last_id = reader.u64()?;
        for _ in 0..reader.varint()? {
            self.blocks.remove(&reader.u64()?);
        }
        for _ in 0..reader.varint()? {
            let block = decode_block(&mut reader)?;
            self.blocks.insert(block.info.id, block);
        }
        self.tail = decode_tail(&mut reader)?;
        if reader.left() > 0 {
            return Err(Malformed("checkpoint is too long"));
        }
        Ok(())
    }
}

const fn kind_byte(kind: StoreKind) -> u8 {
    match kind {
        StoreKind::File => 0,
        StoreKind::Memory => 1,
    }
}

fn put_u64s(out: &mut Vec<u8>, numbers: &[u64]) {
    for n in numbers {
        out.extend_from_slice(&n.to_le_bytes());
    }
}

fn encode_block(block: &mut Block, out: &mut Vec<u8>) {
    block.live.optimize();
    block.info.encode(out);
    put_u64s(out, &[block.live_bytes, block.live_data, block.digest]);
    out.push(u8::from(block.first_ts.is_some()));
    out.extend_from_slice(&block.first_ts.unwrap_or_default().to_le_bytes());
    put_varint(out, block.live.serialized_size() as u64);
    let written = block.live.serialize_into(&mut *out);
    debug_assert!(written.is_ok(), "a vector takes everything");
}

fn decode_block(reader: &mut Reader<'_>) -> Result<Block, Malformed> {
    const BAD: Malformed = Malformed("description of a block is malformed");
    let info = BlockInfo::decode(reader)?;
    let (live_bytes, live_data, digest) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let known = reader.u8()? == 1;
    let first_ts = Some(reader.i64()?).filter(|_| known);
    let mut set = reader.bytes()?;
    let live = RoaringBitmap::deserialize_from(&mut set).map_err(|_| BAD)?;
    let sound = set.is_empty()
        && live.max().is_some_and(|max| u64::from(max) <= info.span())
        && live.len() <= u64::from(info.count)
        && live_data <= info.data_len;
    if !sound {
        return Err(BAD);
    }
    let mut block = Block::new(info, live);
    block.live_bytes = live_bytes;
    block.live_data = live_data;
    block.digest = digest;
    block.first_ts = first_ts;
    block.dirty = false;
    block.saved = true;
    Ok(block)
}

/// The messages of the tail, in a buffer of their own.
fn decode_tail(reader: &mut Reader<'_>) -> Result<Vec<(u64, i64, Bytes)>, Malformed> {
    let count = reader.varint()?;
    let left = reader.left();
    let own = Bytes::copy_from_slice(reader.take(left)?);
    let mut inner = Reader::new(&own);
    let mut tail = Vec::new();
    for _ in 0..count {
        let (seq, ts) = (inner.u64()?, inner.i64()?);
        let record = inner.bytes()?;
        let parsed = RecordRef::parse(record)
            .ok()
            .filter(|(_, len)| *len == record.len());
        if parsed.is_none_or(|(parsed, _)| parsed.check().is_err()) {
            return Err(Malformed("a record of the tail is damaged"));
        }
        tail.push((seq, ts, own.slice_ref(record)));
    }
    if inner.left() > 0 {
        return Err(Malformed("checkpoint is too long"));
    }
    Ok(tail)
}

/// Reads a part of a file; a file that is not there, or too short, gives what there is: the checksum will tell.
pub(crate) fn read(disk: &dyn Disk, file: &FilePath, offset: u64, len: u64) -> Result<Bytes, StoreError> {
    match disk.read(file, offset, len) {
        Ok(data) => Ok(data),
        Err(IoError::NotFound) => Ok(Bytes::new()),
        Err(error) => Err(io_error(file, error)),
    }
}

fn io_error(file: &FilePath, error: IoError) -> StoreError {
    StoreError::Io {
        file: file.clone(),
        error,
    }
}

/// Reads arbitrary bytes in every way in which bytes from disk are read: nothing may panic or allocate without
/// bound. The first byte chooses the reader. For fuzzing.
pub fn fuzz(bytes: &[u8]) {
    let Some((&way, rest)) = bytes.split_first() else {
        return;
    };
    let shared = Bytes::copy_from_slice(rest);
    match way % 4 {
        0 => {
            let mut image = Image::default();
            let _ = image.add_checked(StoreKind::File, rest, true);
        }
        1 => {
            if let Ok(info) = BlockInfo::from_trailer(rest) {
                let _ = rebuild(&info, &shared);
            }
        }
        2 => {
            let _ = rebuild(&BlockInfo::default(), &shared);
            let _ = read_summary(&fuzz_info(), rest, &mut |_| {});
        }
        _ => {
            let half = rest.len() / 2;
            let _ = BlockIndex::decode(
                &fuzz_info(),
                &shared.slice(..half),
                rest.get(half..).unwrap_or_default(),
            );
        }
    }
}

fn fuzz_info() -> BlockInfo {
    BlockInfo {
        first_seq: 1,
        last_seq: 1000,
        count: 3,
        data_len: 300,
        ..BlockInfo::default()
    }
}
