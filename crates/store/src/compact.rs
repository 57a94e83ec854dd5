//! Tidying: blocks of which little is left, or of which there are many small ones side by side, are written again as
//! one. The messages stay where they are until the new file is durable, so nothing is ever in doubt; removals go on
//! meanwhile. One job at a time, and only blocks all of whose messages pass their checks.

use crate::block::{Block, BlockBuilder, BlockIndex, BlockInfo, FileHeader, Frame, HEADER_BYTES, Piece};
use crate::store::{Store, accounted};
use crate::types::{StoreEvent, StoreKind};
use bytes::Bytes;
use roaring::RoaringBitmap;
use std::collections::{BTreeSet, VecDeque};
use tidelock_base::StreamSeq;
use tidelock_record::{FilePath, IoError, IoOp, IoOutput, IoToken};

/// Bytes of a piece.
const PIECE_BYTES: usize = 1024 * 1024;
/// Small blocks side by side that are worth joining.
const SMALL_RUN: usize = 8;
/// Most blocks of one job.
const SOURCES_MAX: usize = 32;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Compactor {
    /// Blocks (first sequence) that may be worth it.
    candidates: BTreeSet<u64>,
    /// Blocks that cannot be read; left alone.
    pub(crate) refused: BTreeSet<u64>,
    /// Damaged blocks; see `mend`.
    pub(crate) suspects: BTreeSet<u64>,
    job: Option<Job>,
}

#[derive(Debug)]
struct Job {
    id: u64,
    file: FilePath,
    /// First sequence and number of each source that is still to be read.
    unread: VecDeque<(u64, u64)>,
    /// First sequence and number of all sources.
    sources: Vec<(u64, u64)>,
    reading: Option<IoToken>,
    builder: Option<BlockBuilder>,
    done: Option<(BlockInfo, BlockIndex)>,
    created: bool,
    pieces: VecDeque<Piece>,
    out: BTreeSet<IoToken>,
    sync: Option<IoToken>,
    abandoned: bool,
    /// Its only source is damaged.
    mends: bool,
}

/// How the messages of a source got into the new file.
enum Copied {
    /// All that are live.
    Whole,
    /// Some fail their checks.
    Damaged,
}

impl Compactor {
    /// Whether a damaged block is being written again.
    pub(crate) fn mends(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.mends)
    }
}

impl Store {
    /// A message of a block was removed: the block may be worth tidying.
    pub(crate) fn note_sparse(&mut self, key: u64) {
        if self.blocks.get(&key).is_some_and(is_sparse) {
            self.compactor.candidates.insert(key);
        }
    }

    /// A block is new: it, or the run of small ones that it ends, may be worth tidying.
    pub(crate) fn note_new(&mut self, key: u64) {
        self.note_sparse(key);
        if self.small_run(key) >= SMALL_RUN {
            self.compactor.candidates.insert(key);
        }
    }

    /// How many small blocks lie side by side, up to and with this one.
    fn small_run(&self, key: u64) -> usize {
        let small = self.config.block_bytes / 8;
        let blocks = self.blocks.range(..=key).rev().take(SMALL_RUN);
        blocks.take_while(|(_, block)| block.live_data < small).count()
    }

    /// Moves the tidying on as far as it goes without waiting.
    pub(crate) fn compact(&mut self) {
        if self.config.kind == StoreKind::Memory {
            return;
        }
        let idle = |job: &Job| job.out.is_empty() && job.sync.is_none() && job.reading.is_none();
        if let Some(job) = self.compactor.job.take_if(|job| job.abandoned && idle(job)) {
            if job.created {
                self.free_file(job.id, false);
            }
            if job.mends {
                job.sources.iter().for_each(|(key, _)| self.suspect(*key));
            }
        }
        if self.compactor.job.is_none() && !self.writes_are_stalled() {
            self.start_job();
        }
        self.read_next_source();
        let Some(job) = self
            .compactor
            .job
            .as_mut()
            .filter(|job| job.created && !job.abandoned)
        else {
            return;
        };
        for (offset, parts) in job.pieces.drain(..) {
            job.out.insert(self.io.ask(IoOp::Write {
                file: job.file.clone(),
                offset,
                parts,
                sync: false,
            }));
        }
        if job.done.is_some() && job.out.is_empty() && job.sync.is_none() {
            job.sync = Some(self.io.ask(IoOp::Sync {
                file: job.file.clone(),
            }));
        }
    }

    fn start_job(&mut self) {
        let (sources, mends) = match self.next_to_mend() {
            Some(damaged) => (vec![damaged], true),
            None => match self.next_to_tidy() {
                Some(sources) => (sources, false),
                None => return,
            },
        };
        let id = self.files.next_id();
        let Some(file) = self.block_path(id) else { return };
        let create = self.io.ask(IoOp::Create {
            file: file.clone(),
            len: 0,
        });
        self.compactor.job = Some(Job {
            id,
            file,
            unread: sources.iter().copied().collect(),
            sources,
            reading: None,
            builder: Some(BlockBuilder::new(id, PIECE_BYTES)),
            done: None,
            created: false,
            pieces: VecDeque::new(),
            out: BTreeSet::from([create]),
            sync: None,
            abandoned: false,
            mends,
        });
    }

    /// The next blocks that are worth it.
    fn next_to_tidy(&mut self) -> Option<Vec<(u64, u64)>> {
        while let Some(key) = self.compactor.candidates.pop_first() {
            let Some(block) = self.blocks.get(&key) else {
                continue;
            };
            if !self.is_usable(block) || !(is_sparse(block) || self.small_run(key) >= SMALL_RUN) {
                continue;
            }
            let sources = self.sources_around(key);
            // Alone, a small block stays what it is.
            if sources.len() > 1 || is_sparse(block) {
                return Some(sources);
            }
        }
        None
    }

    fn is_usable(&self, block: &Block) -> bool {
        !block.broken && block.damaged.is_empty() && !self.compactor.refused.contains(&block.info.first_seq)
    }

    /// The block and the small or sparse ones beside it, as many as make one block together.
    fn sources_around(&self, key: u64) -> Vec<(u64, u64)> {
        let limit = self.config.block_bytes.min(1 << 30);
        let mut room = limit.saturating_sub(self.blocks.get(&key).map_or(0, |block| block.live_data));
        let mut take = |block: &Block| {
            let worth = block.live_data < limit / 2 || is_sparse(block);
            if !self.is_usable(block) || !worth || block.live_data > room {
                return false;
            }
            room -= block.live_data;
            true
        };
        let mut sources: VecDeque<&Block> = self.blocks.get(&key).into_iter().collect();
        for (_, block) in self.blocks.range(..key).rev() {
            let reach = sources
                .back()
                .map_or(0, |last| last.info.last_seq - block.info.first_seq);
            if sources.len() >= SOURCES_MAX || reach >= u64::from(u32::MAX) || !take(block) {
                break;
            }
            sources.push_front(block);
        }
        for (_, block) in self.blocks.range(key + 1..) {
            let reach = sources
                .front()
                .map_or(0, |first| block.info.last_seq - first.info.first_seq);
            if sources.len() >= SOURCES_MAX || reach >= u64::from(u32::MAX) || !take(block) {
                break;
            }
            sources.push_back(block);
        }
        sources
            .iter()
            .map(|block| (block.info.first_seq, block.info.id))
            .collect()
    }

    /// Reads the next source, or completes the file after the last.
    fn read_next_source(&mut self) {
        let Some(job) = &mut self.compactor.job else {
            return;
        };
        // The pieces of one source are on their way before the next is read: that bounds the memory.
        if job.abandoned || job.reading.is_some() || job.done.is_some() || !job.pieces.is_empty() {
            return;
        }
        while let Some((key, id)) = job.unread.pop_front() {
            let Some(block) = self.blocks.get(&key).filter(|block| block.info.id == id) else {
                continue;
            };
            let len = block.info.summary_offset();
            let Some(file) = self.block_path(id) else { return };
            let token = self.io.ask(IoOp::Read { file, offset: 0, len });
            if let Some(job) = &mut self.compactor.job {
                job.reading = Some(token);
                job.unread.push_front((key, id));
            }
            return;
        }
        match job.builder.take() {
            Some(builder) if !builder.is_empty() => {
                let built = builder.finish();
                job.pieces.push_back(built.piece);
                job.done = Some((built.info, built.index));
            }
            // Everything has died meanwhile.
            Some(_) | None => job.abandoned = true,
        }
    }

    pub(crate) fn compactor_owns(&self, token: IoToken) -> bool {
        self.compactor.job.as_ref().is_some_and(|job| {
            job.out.contains(&token) || job.sync == Some(token) || job.reading == Some(token)
        })
    }

    pub(crate) fn compact_done(&mut self, token: IoToken, result: &Result<IoOutput, IoError>) -> StoreEvent {
        let Some(job) = &mut self.compactor.job else {
            return StoreEvent::Nothing;
        };
        if job.reading.take_if(|reading| *reading == token).is_some() {
            return self.source_read(result);
        }
        let synced = job.sync.take_if(|sync| *sync == token).is_some();
        job.out.remove(&token);
        job.created |= result.is_ok();
        match result {
            Err(error) => {
                job.abandoned = true;
                self.stall_writes();
                StoreEvent::WriteFailed(error.clone())
            }
            Ok(_) if synced && !job.abandoned => self.swap(),
            Ok(_) => StoreEvent::Nothing,
        }
    }

    /// A source was read: its messages go into the new file.
    fn source_read(&mut self, result: &Result<IoOutput, IoError>) -> StoreEvent {
        let Some(job) = &mut self.compactor.job else {
            return StoreEvent::Nothing;
        };
        let Some((key, id)) = job.unread.pop_front() else {
            return StoreEvent::Nothing;
        };
        let is_needed = self.blocks.get(&key).is_some_and(Block::needs_file);
        let data = match result {
            Ok(IoOutput::Data(data)) => data.clone(),
            Ok(_) | Err(IoError::NotFound) => Bytes::new(),
            Err(_) if job.mends && !is_needed => Bytes::new(),
            Err(error) => {
                job.abandoned = true;
                self.compactor.refused.insert(key);
                return StoreEvent::ReadFailed {
                    from: StreamSeq(key),
                    upto: StreamSeq(self.blocks.get(&key).map_or(key, |block| block.info.last_seq)),
                    error: error.clone(),
                };
            }
        };
        let mends = job.mends;
        let copied = if mends {
            self.copy_damaged(key, id, &data)
        } else {
            self.copy_source(key, id, &data)
        };
        if let (Copied::Damaged, Some(job)) = (copied, &mut self.compactor.job) {
            job.abandoned = true;
            self.suspect(key);
            if let Some(block) = self.blocks.get(&key).filter(|_| mends) {
                return StoreEvent::Damaged {
                    from: StreamSeq(key),
                    upto: StreamSeq(block.info.last_seq),
                };
            }
        }
        StoreEvent::Nothing
    }

    /// Copies the live messages of a source.
    fn copy_source(&mut self, key: u64, id: u64, file: &Bytes) -> Copied {
        let Some(job) = &mut self.compactor.job else {
            return Copied::Whole;
        };
        let (Some(block), Some(builder)) = (
            self.blocks.get(&key).filter(|b| b.info.id == id),
            &mut job.builder,
        ) else {
            return Copied::Whole;
        };
        if FileHeader::decode(file) != Ok(FileHeader { id }) {
            return Copied::Damaged;
        }
        let mut left = block.live.len();
        let mut at = HEADER_BYTES;
        while left > 0 {
            let Some((frame, len)) = file.get(at..).and_then(|rest| Frame::parse(rest).ok()) else {
                return Copied::Damaged;
            };
            at += len;
            if !block.is_live(frame.seq) {
                continue;
            }
            let bytes = file.slice_ref(frame.record.bytes());
            let sound = frame.record.check().is_ok() && builder.fits(frame.seq, len);
            if !sound || builder.push(frame.seq, frame.ts, &bytes).is_err() {
                return Copied::Damaged;
            }
            left -= 1;
            job.pieces.extend(builder.take_piece(PIECE_BYTES));
        }
        Copied::Whole
    }

    /// Copies the live messages of a damaged block: what is sound in the file, and for the rest what has come from
    /// another replica. What is found to be lacking is noted.
    fn copy_damaged(&mut self, key: u64, id: u64, file: &Bytes) -> Copied {
        let Some(job) = &mut self.compactor.job else {
            return Copied::Whole;
        };
        let (Some(block), Some(builder)) = (
            self.blocks.get_mut(&key).filter(|b| b.info.id == id),
            &mut job.builder,
        ) else {
            return Copied::Whole;
        };
        let mut lacking = Vec::new();
        for rel in &block.live {
            let seq = block.seq(rel);
            let Some((ts, record)) = block.sound(rel, file) else {
                lacking.push(rel);
                continue;
            };
            if lacking.is_empty() {
                let pushed = builder.push(seq, ts, &record);
                debug_assert!(pushed.is_ok(), "records are parsed before they are taken");
                job.pieces.extend(builder.take_piece(PIECE_BYTES));
            }
        }
        if lacking.is_empty() {
            return Copied::Whole;
        }
        block.damaged.extend(lacking);
        Copied::Damaged
    }

    /// The new file is durable: it takes the place of its sources.
    fn swap(&mut self) -> StoreEvent {
        let Some(job) = self.compactor.job.take() else {
            return StoreEvent::Nothing;
        };
        let Some((info, index)) = job.done else {
            return StoreEvent::Nothing;
        };
        let (from, upto) = (StreamSeq(info.first_seq), StreamSeq(info.last_seq));
        let damaged = StoreEvent::Damaged { from, upto };
        let mut block = Block::new(info, RoaringBitmap::new());
        for row in index.rows() {
            let seq = info.first_seq + u64::from(row.rel);
            if self.block_at(seq).is_some_and(|block| block.is_live(seq)) {
                block.add(row, accounted(self.config.kind, row.extent));
            }
        }
        block.live.optimize();
        let is_source =
            |(key, id): &(u64, u64)| self.blocks.get(key).is_some_and(|block| block.info.id == *id);
        let sources: Vec<u64> = job
            .sources
            .iter()
            .filter(|source| is_source(source))
            .map(|(key, _)| *key)
            .collect();
        let digest = sources
            .iter()
            .filter_map(|key| self.blocks.get(key))
            .fold(0_u64, |sum, source| sum.wrapping_add(source.digest));
        if digest != block.digest {
            // The copy is not what the sources hold: it is not used, and they are left alone.
            for key in sources {
                self.compactor.refused.insert(key);
                if let Some(source) = self.blocks.get_mut(&key) {
                    source.copies.clear();
                }
            }
            self.free_file(info.id, false);
            return if job.mends { damaged } else { StoreEvent::Nothing };
        }
        for key in sources {
            self.drop_block(key);
        }
        if block.live.is_empty() {
            self.free_file(info.id, false);
            return StoreEvent::Nothing;
        }
        self.blocks.insert(info.first_seq, block);
        self.keep_index(info.first_seq, index);
        self.note_new(info.first_seq);
        if job.mends {
            StoreEvent::Mended { from, upto }
        } else {
            StoreEvent::Sealed { from, upto }
        }
    }
}

/// Whether more than half of the file is dead, and more than half of what lies behind the first live message too: a
/// block that is consumed from its front will soon be gone as a whole, and is not worth a copy.
fn is_sparse(block: &Block) -> bool {
    let Some(first) = block.first_live() else {
        return false;
    };
    // Messages written behind the first live one, estimated from the sequences.
    let span = |from: u64| u128::from(block.info.last_seq - from) + 1;
    let written = u128::from(block.info.count) * span(first);
    block.dead_data() * 2 > block.info.data_len
        && u128::from(block.live.len()) * 2 * span(block.info.first_seq) < written
}
