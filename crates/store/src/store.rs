//! The store itself: totals, adding, removing and looking up single messages.
//!
//! Invariants:
//! - every live message is in exactly one place, the tail or a block, and in the list of its subject;
//! - blocks do not overlap, none is without a live message, and all end below the first message of the tail;
//! - the time of the first message is always known, whatever is in memory: a removal that would lose it is refused
//!   with the [`Need`] of the index that tells it;
//! - totals and digest follow from the live messages alone: not from how they are spread over tail and blocks, nor
//!   from what is in memory. So replicas agree on them, each with files of its own.

use crate::block::{Block, extent, message_hash};
use crate::compact::Compactor;
use crate::files::FileState;
use crate::reader::ReadState;
use crate::tail::Tail;
use crate::tree::{Extent, SubjectTree};
use crate::types::{
    Lookup, Need, Outline, RemoveError, Removed, StoreConfig, StoreError, StoreKind, StoreState, Stored,
    SubjectState, Trimmed, Unanswered,
};
use crate::writer::Writer;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use tidelock_base::{StreamSeq, Wall};
use tidelock_record::{IoOp, IoRequest, IoToken, RECORD_HEAD_BYTES, RecordRef};

/// The messages of one stream. See the crate's text.
#[derive(Debug)]
pub struct Store {
    pub(crate) config: StoreConfig,
    pub(crate) tree: SubjectTree,
    pub(crate) tail: Tail,
    /// By first sequence written, which never changes.
    pub(crate) blocks: BTreeMap<u64, Block>,
    pub(crate) totals: Totals,
    pub(crate) writer: Writer,
    pub(crate) reads: ReadState,
    pub(crate) compactor: Compactor,
    pub(crate) files: FileState,
    /// What was purged as a whole and is freed in small steps.
    pub(crate) graveyard: VecDeque<Remains>,
    pub(crate) io: IoQueue,
    /// Ranges of sequences that [`Store::restore`] could not bring back.
    pub(crate) lost: Vec<(StreamSeq, StreamSeq)>,
    /// Blocks are missing of which not even the subjects are known.
    pub(crate) unlisted: bool,
}

/// Sums over the live messages, and the end of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) msgs: u64,
    pub(crate) bytes: u64,
    pub(crate) digest: u64,
    pub(crate) last_seq: u64,
    pub(crate) last_ts: i64,
}

/// Memory that waits to be freed.
#[derive(Debug)]
pub(crate) enum Remains {
    Tree(SubjectTree),
    Tail(Tail),
}

/// Operations on their way out.
#[derive(Debug)]
pub(crate) struct IoQueue {
    next: u64,
    requests: Vec<IoRequest>,
}

impl IoQueue {
    const fn numbered_from(first: u64) -> Self {
        Self {
            next: first,
            requests: Vec::new(),
        }
    }

    pub(crate) fn ask(&mut self, op: IoOp) -> IoToken {
        let token = IoToken(self.next);
        self.next += 1;
        self.requests.push(IoRequest { token, op });
        token
    }

    pub(crate) fn take(&mut self) -> Vec<IoRequest> {
        std::mem::take(&mut self.requests)
    }
}

impl Store {
    /// An empty store. Nothing is written until there is something to write.
    #[must_use]
    pub fn new(config: StoreConfig) -> Self {
        let last_seq = config.first_seq.value().saturating_sub(1);
        let io = IoQueue::numbered_from(config.first_io);
        Self {
            config,
            tree: SubjectTree::default(),
            tail: Tail::default(),
            blocks: BTreeMap::new(),
            totals: Totals {
                last_seq,
                ..Totals::default()
            },
            writer: Writer::default(),
            reads: ReadState::default(),
            compactor: Compactor::default(),
            files: FileState::default(),
            graveyard: VecDeque::new(),
            io,
            lost: Vec::new(),
            unlisted: false,
        }
    }

    /// How the store was set up.
    #[must_use]
    pub const fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// Totals.
    #[must_use]
    pub fn state(&self) -> StoreState {
        let Totals {
            msgs,
            bytes,
            last_seq,
            last_ts,
            ..
        } = self.totals;
        let (first_seq, first_ts) = match self.first() {
            Some(first) => first,
            None if last_seq == 0 => (0, 0),
            None => (last_seq + 1, 0),
        };
        StoreState {
            msgs,
            bytes,
            first_seq: StreamSeq(first_seq),
            first_ts: Wall(first_ts),
            last_seq: StreamSeq(last_seq),
            last_ts: Wall(last_ts),
            num_subjects: self.tree.len(),
            num_deleted: if msgs == 0 {
                0
            } else {
                last_seq + 1 - first_seq - msgs
            },
        }
    }

    /// Last sequence used.
    #[must_use]
    pub const fn last_seq(&self) -> StreamSeq {
        StreamSeq(self.totals.last_seq)
    }

    /// Messages.
    #[must_use]
    pub const fn msgs(&self) -> u64 {
        self.totals.msgs
    }

    /// Size of all messages by [`StoreKind::message_bytes`].
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.totals.bytes
    }

    /// Hash of the live messages (sequence and checksum of each) and the last sequence. Equal for equal replicas.
    #[must_use]
    pub fn digest(&self) -> u64 {
        message_hash(self.totals.last_seq, 0).wrapping_add(self.totals.digest)
    }

    /// The first message and its time.
    #[must_use]
    pub fn oldest(&self) -> Option<(StreamSeq, Wall)> {
        self.first().map(|(seq, ts)| (StreamSeq(seq), Wall(ts)))
    }

    pub(crate) fn first(&self) -> Option<(u64, i64)> {
        match self.blocks.first_key_value() {
            Some((_, block)) => {
                debug_assert!(block.first_ts.is_some(), "the time of the first message is known");
                Some((block.first_live()?, block.first_ts.unwrap_or_default()))
            }
            None => self.tail.next_live(0).map(|msg| (msg.seq, msg.ts)),
        }
    }

    /// Adds a message at the end and gives its size by [`StoreKind::message_bytes`]. Sequences between the last one
    /// and `seq` stay without a message. The record is shared, not copied; the caller has checked its checksum.
    ///
    /// # Errors
    /// [`StoreError::Record`] if the bytes are not one whole record, [`StoreError::Order`] if `seq` is not beyond the
    /// last sequence. The store is unchanged then.
    pub fn append(&mut self, seq: StreamSeq, ts: Wall, record: Bytes) -> Result<u64, StoreError> {
        if seq.value() <= self.totals.last_seq {
            return Err(StoreError::Order(seq));
        }
        let (parsed, len) = RecordRef::parse(&record).map_err(|_| StoreError::Record)?;
        let extent = extent(&parsed)
            .filter(|_| len == record.len())
            .ok_or(StoreError::Record)?;
        self.tree.entry(parsed.subject()).push(seq.value(), extent);
        let bytes = accounted(self.config.kind, extent);
        self.totals.msgs += 1;
        self.totals.bytes += bytes;
        self.totals.digest = self
            .totals
            .digest
            .wrapping_add(message_hash(seq.value(), extent.crc));
        self.totals.last_seq = seq.value();
        self.totals.last_ts = ts.0;
        self.tail.push(seq.value(), ts.0, record);
        Ok(bytes)
    }

    /// Uses up the sequences through `upto` without a message; nothing if they are used already.
    pub const fn skip(&mut self, upto: StreamSeq, ts: Wall) {
        if upto.value() > self.totals.last_seq {
            self.totals.last_seq = upto.value();
            self.totals.last_ts = ts.0;
        }
    }

    /// Removes a message.
    ///
    /// # Errors
    /// See [`RemoveError`].
    pub fn remove(&mut self, seq: StreamSeq) -> Result<Removed, RemoveError> {
        let seq = seq.value();
        if let Some(msg) = self.tail.get(seq) {
            let record = msg.record.clone();
            let (parsed, _) = RecordRef::parse(&record).map_err(|_| RemoveError::Missing)?;
            let extent = extent(&parsed).ok_or(RemoveError::Missing)?;
            let subject = record.slice_ref(parsed.subject());
            return Ok(self.removed(seq, extent, subject));
        }
        let block = self
            .block_at(seq)
            .filter(|block| block.is_live(seq))
            .ok_or(RemoveError::Missing)?;
        let Some((index, row)) = block.row(seq) else {
            return Err(self.need_index(block, seq).into());
        };
        let (extent, subject) = (row.extent, index.subject_bytes(row));
        self.first_stays_known(seq)?;
        Ok(self.removed(seq, extent, subject))
    }

    fn removed(&mut self, seq: u64, extent: Extent, subject: Bytes) -> Removed {
        let bytes = self.take_out(seq, extent);
        let subject_left = self.unlist(&subject, seq);
        Removed {
            seq: StreamSeq(seq),
            bytes,
            subject,
            subject_left,
        }
    }

    /// Removes the oldest message of a subject. Where the subject had one message, or its oldest was stored
    /// recently, this never needs a read: overwriting keys costs none.
    ///
    /// # Errors
    /// See [`RemoveError`]; `Missing` if the subject has no message.
    pub fn remove_oldest_of(&mut self, subject: &[u8]) -> Result<Trimmed, RemoveError> {
        let leaf = self.tree.get(subject).ok_or(RemoveError::Missing)?;
        let seq = leaf.seqs.first();
        let known = leaf.first.or_else(|| extent_of(&self.tail, &self.blocks, seq));
        let Some(extent) = known else {
            let block = self.block_at(seq).ok_or(RemoveError::Missing)?;
            return Err(self.need_index(block, seq).into());
        };
        self.first_stays_known(seq)?;
        let bytes = self.take_out(seq, extent);
        let subject_left = self.unlist(subject, seq);
        Ok(Trimmed {
            seq: StreamSeq(seq),
            bytes,
            subject_left,
        })
    }

    /// Checks that the time of the first message will be known without `seq`.
    pub(crate) fn first_stays_known(&self, seq: u64) -> Result<(), Unanswered> {
        let Some((&key, block)) = self.blocks.first_key_value() else {
            return Ok(());
        };
        if block.first_live() != Some(seq) {
            return Ok(());
        }
        match block.next_live(seq + 1) {
            Some(next) if block.row(next).is_none() => Err(self.need_index(block, next)),
            Some(_) => Ok(()),
            None => match self.blocks.range(key + 1..).next() {
                Some((_, after)) if after.first_ts.is_none() => {
                    Err(self.need_index(after, after.info.first_seq))
                }
                Some(_) | None => Ok(()),
            },
        }
    }

    /// What to answer when the index of a block is not here.
    #[expect(clippy::unused_self, reason = "reads as a question to the store")]
    pub(crate) const fn need_index(&self, block: &Block, seq: u64) -> Unanswered {
        if block.broken {
            return Unanswered::Damaged(StreamSeq(seq));
        }
        Unanswered::Need(Need {
            seq: StreamSeq(seq),
            record: false,
        })
    }

    /// Takes a live message out of tail or block, and out of the totals. Its size is known.
    pub(crate) fn take_out(&mut self, seq: u64, extent: Extent) -> u64 {
        let bytes = accounted(self.config.kind, extent);
        let hash = message_hash(seq, extent.crc);
        self.totals.msgs -= 1;
        self.totals.bytes -= bytes;
        self.totals.digest = self.totals.digest.wrapping_sub(hash);
        if let Some(record) = self.tail.remove(seq) {
            self.writer
                .removed(seq, record.len() as u64, self.tail.len() == 0);
            return bytes;
        }
        let Some((&key, block)) = self.blocks.range_mut(..=seq).next_back() else {
            return bytes;
        };
        let Some(rel) = block.rel(seq) else { return bytes };
        let was_first = block.first_live() == Some(seq);
        let was_there = block.live.remove(rel);
        assert!(was_there, "only live messages are removed");
        block.live_bytes -= bytes;
        block.live_data -= crate::block::FRAME_HEAD_BYTES as u64 + u64::from(extent.len());
        block.digest = block.digest.wrapping_sub(hash);
        block.damaged.remove(&rel);
        block.copies.remove(&rel);
        block.dirty = true;
        if block.live.is_empty() {
            self.drop_block(key);
        } else {
            if was_first {
                block.first_ts = None;
                block.learn_first_ts();
            }
            self.note_sparse(key);
        }
        bytes
    }

    /// Takes a sequence out of the list of its subject; how many are left.
    pub(crate) fn unlist(&mut self, subject: &[u8], seq: u64) -> u64 {
        let Some(leaf) = self.tree.get_mut(subject) else {
            debug_assert!(false, "the subject of a live message is listed");
            return 0;
        };
        let was_first = leaf.seqs.first() == seq;
        let was_listed = leaf.seqs.remove(seq);
        debug_assert!(was_listed, "a live message is in the list of its subject");
        let left = leaf.seqs.count();
        if left == 0 {
            self.tree.remove(subject);
        } else if was_first {
            leaf.first = extent_of(&self.tail, &self.blocks, leaf.seqs.first());
        }
        left
    }

    /// One message.
    #[must_use]
    pub fn get(&self, seq: StreamSeq) -> Lookup {
        if let Some(msg) = self.tail.get(seq.value()) {
            return Lookup::Found(Stored {
                seq,
                ts: Wall(msg.ts),
                record: msg.record.clone(),
            });
        }
        let Some(block) = self
            .block_at(seq.value())
            .filter(|block| block.is_live(seq.value()))
        else {
            return Lookup::Missing;
        };
        if let Some(rel) = block.rel(seq.value()).filter(|rel| block.is_damaged(*rel)) {
            return block.copy(rel).map_or(Lookup::Damaged, |(ts, record)| {
                Lookup::Found(Stored {
                    seq,
                    ts: Wall(*ts),
                    record: record.clone(),
                })
            });
        }
        let found = block.row(seq.value()).and_then(|(_, row)| {
            Some(Stored {
                seq,
                ts: Wall(row.ts),
                record: self.reads.record(block.info.id, row)?,
            })
        });
        found.map_or(Lookup::Cold(Need { seq, record: true }), Lookup::Found)
    }

    /// Time, subject and size of a message; `None` if there is no such message.
    ///
    /// # Errors
    /// See [`Unanswered`].
    pub fn outline(&self, seq: StreamSeq) -> Result<Option<Outline>, Unanswered> {
        if let Some(msg) = self.tail.get(seq.value()) {
            let Ok((record, len)) = RecordRef::parse(&msg.record) else {
                return Ok(None);
            };
            return Ok(Some(Outline {
                ts: Wall(msg.ts),
                subject: msg.record.slice_ref(record.subject()),
                content_bytes: (len - RECORD_HEAD_BYTES) as u64,
            }));
        }
        let Some(block) = self
            .block_at(seq.value())
            .filter(|block| block.is_live(seq.value()))
        else {
            return Ok(None);
        };
        let (index, row) = block
            .row(seq.value())
            .ok_or_else(|| self.need_index(block, seq.value()))?;
        Ok(Some(Outline {
            ts: Wall(row.ts),
            subject: index.subject_bytes(row),
            content_bytes: u64::from(row.extent.len()) - RECORD_HEAD_BYTES as u64,
        }))
    }

    /// Whether there is such a message.
    #[must_use]
    pub fn contains(&self, seq: StreamSeq) -> bool {
        let seq = seq.value();
        self.tail.get(seq).is_some() || self.block_at(seq).is_some_and(|block| block.is_live(seq))
    }

    /// The newest message of a subject.
    #[must_use]
    pub fn last_of(&self, subject: &[u8]) -> Option<StreamSeq> {
        self.tree.get(subject).map(|leaf| StreamSeq(leaf.seqs.last()))
    }

    /// What is known of a subject; `None` if it has no message.
    #[must_use]
    pub fn subject_state(&self, subject: &[u8]) -> Option<SubjectState> {
        self.tree.get(subject).map(subject_state)
    }

    /// The block that a sequence lies in, live or not.
    pub(crate) fn block_at(&self, seq: u64) -> Option<&Block> {
        let (_, block) = self.blocks.range(..=seq).next_back()?;
        (seq <= block.info.last_seq).then_some(block)
    }
}

pub(crate) fn subject_state(leaf: &crate::tree::Leaf) -> SubjectState {
    SubjectState {
        count: leaf.seqs.count(),
        first: StreamSeq(leaf.seqs.first()),
        last: StreamSeq(leaf.seqs.last()),
    }
}

/// What a record counts in `state.bytes`.
pub(crate) fn accounted(kind: StoreKind, extent: Extent) -> u64 {
    kind.accounted(u64::from(extent.len()), extent.has_headers())
}

/// Size and checksum of a live message, if they are in memory.
pub(crate) fn extent_of(tail: &Tail, blocks: &BTreeMap<u64, Block>, seq: u64) -> Option<Extent> {
    if let Some(msg) = tail.get(seq) {
        let (record, _) = RecordRef::parse(&msg.record).ok()?;
        return extent(&record);
    }
    let (_, block) = blocks.range(..=seq).next_back()?;
    block.row(seq).map(|(_, row)| row.extent)
}

impl From<Unanswered> for RemoveError {
    fn from(why: Unanswered) -> Self {
        match why {
            Unanswered::Need(need) => Self::Need(need),
            Unanswered::Damaged(seq) => Self::Damaged(seq),
        }
    }
}
