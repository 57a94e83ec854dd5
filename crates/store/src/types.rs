//! What the store is asked and what it answers.

use bytes::Bytes;
use thiserror::Error;
use tidelock_base::{StreamSeq, Wall};
use tidelock_record::{FilePath, IoError, RECORD_HEAD_BYTES, RecordRef};

/// Where messages are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In block files, behind an in-memory tail.
    File,
    /// In memory only.
    Memory,
}

impl StoreKind {
    /// What one message counts in `state.bytes` and against `max_bytes`, as nats-server counts it: a file store
    /// adds 30 bytes to subject, headers and payload, and 4 more if there are headers; a memory store adds 16.
    #[must_use]
    pub fn message_bytes(self, record: &RecordRef<'_>) -> u64 {
        self.accounted(record.bytes().len() as u64, !record.header().is_empty())
    }

    /// What is added to subject, headers and payload.
    #[must_use]
    pub const fn overhead_bytes(self, has_headers: bool) -> u64 {
        match self {
            Self::File if has_headers => 34,
            Self::File => 30,
            Self::Memory => 16,
        }
    }

    /// The same from the length of the record.
    pub(crate) const fn accounted(self, record_len: u64, has_headers: bool) -> u64 {
        record_len.saturating_sub(RECORD_HEAD_BYTES as u64) + self.overhead_bytes(has_headers)
    }
}

/// How a store is set up. Sizes are bytes.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// File or memory.
    pub kind: StoreKind,
    /// Directory of the block files. Nothing else may live there.
    pub folder: FilePath,
    /// A block is closed when its records reach this; up to 1 GiB.
    pub block_bytes: u64,
    /// Records stay in memory unwritten up to this, so that what dies young is never written.
    pub tail_bytes: u64,
    /// Memory for indexes of blocks. One index is always kept, however large.
    pub index_cache_bytes: u64,
    /// Memory for records read from blocks. What was read last is always kept.
    pub data_cache_bytes: u64,
    /// Sequence of the first message; 1 unless the stream was created with `first_seq`.
    pub first_seq: StreamSeq,
    /// Number of its first disk operation. Where one store takes another's place, each has a range of its own: what the
    /// one before has asked for may end when it is gone, and must not be taken for an operation of this one.
    pub first_io: u64,
}

impl StoreConfig {
    /// Defaults of a store in `folder`: blocks of 4 MiB, a tail of 1 MiB, 8 MiB of indexes and 2 MiB of records.
    #[must_use]
    pub const fn new(kind: StoreKind, folder: FilePath) -> Self {
        Self {
            kind,
            folder,
            block_bytes: 4 << 20,
            tail_bytes: 1 << 20,
            index_cache_bytes: 8 << 20,
            data_cache_bytes: 2 << 20,
            first_seq: StreamSeq(1),
            first_io: 0,
        }
    }
}

/// Totals of a stream, as `state` of STREAM.INFO shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreState {
    /// Messages.
    pub msgs: u64,
    /// Their size by [`StoreKind::message_bytes`].
    pub bytes: u64,
    /// Sequence of the first message. Without messages: 0 if none was ever there, else `last_seq + 1`.
    pub first_seq: StreamSeq,
    /// Its time; [`Wall::ZERO`] without messages.
    pub first_ts: Wall,
    /// Last sequence used, whether or not its message is still there.
    pub last_seq: StreamSeq,
    /// Its time; [`Wall::ZERO`] if none was ever used.
    pub last_ts: Wall,
    /// Different subjects.
    pub num_subjects: u64,
    /// Sequences between first and last without a message.
    pub num_deleted: u64,
}

/// What is known of one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubjectState {
    /// Messages on it, at least 1.
    pub count: u64,
    /// The oldest.
    pub first: StreamSeq,
    /// The newest.
    pub last: StreamSeq,
}

/// A message as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its sequence.
    pub seq: StreamSeq,
    /// Its time.
    pub ts: Wall,
    /// The record (`tidelock_record`), shared with the log entry or the block; its checksum has been checked.
    pub record: Bytes,
}

/// Something that must be read from disk first: hand it to [`crate::Store::fetch`] and ask again after the
/// [`StoreEvent::Arrived`] that covers `seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// A sequence in the block in question.
    pub seq: StreamSeq,
    /// Whether the record is needed, or only the index of its block.
    pub record: bool,
}

/// Answer to a question for one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Here it is.
    Found(Stored),
    /// There is no such message.
    Missing,
    /// It is on disk and not in memory.
    Cold(Need),
    /// It is there, but its bytes are damaged. They must come from another replica.
    Damaged,
}

/// Size and subject of a message, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Its time.
    pub ts: Wall,
    /// Its subject.
    pub subject: Bytes,
    /// Length of subject, header block and payload together, in bytes: what `max_bytes` of a pull request counts.
    pub content_bytes: u64,
}

/// A message that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its sequence.
    pub seq: StreamSeq,
    /// Its size by [`StoreKind::message_bytes`].
    pub bytes: u64,
    /// Its subject.
    pub subject: Bytes,
    /// Messages that are left on the subject. 0: it was the last one, which may call for a delete marker.
    pub subject_left: u64,
}

/// The oldest message of a subject, removed by [`crate::Store::remove_oldest_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// Its sequence.
    pub seq: StreamSeq,
    /// Its size by [`StoreKind::message_bytes`].
    pub bytes: u64,
    /// Messages that are left on the subject.
    pub subject_left: u64,
}

/// Why a removal did not take place. The store is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RemoveError {
    /// There is no such message.
    #[error("no message found")]
    Missing,
    /// Something must be read first.
    #[error("the index of the block is not in memory")]
    Need(Need),
    /// The index of the message's block is damaged beyond repair.
    #[error("the block of message {0} is damaged")]
    Damaged(StreamSeq),
}

/// Why a question about sequences or times has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unanswered {
    /// Something must be read first.
    #[error("the index of the block is not in memory")]
    Need(Need),
    /// The index of the block of this message is damaged beyond repair.
    #[error("the block of message {0} is damaged")]
    Damaged(StreamSeq),
}

/// What [`crate::Store::io_done`] has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// Nothing of interest; [`crate::Store::take_io`] may have more to do.
    Nothing,
    /// What was needed for messages `from..=upto` has arrived: ask again.
    Arrived {
        /// First sequence.
        from: StreamSeq,
        /// Last sequence.
        upto: StreamSeq,
    },
    /// A block is durable and its messages have left the tail.
    Sealed {
        /// First sequence in the block.
        from: StreamSeq,
        /// Last sequence in the block.
        upto: StreamSeq,
    },
    /// Bytes of this block fail their checksums. [`crate::Store::damaged`] lists the messages, [`crate::Store::mend`]
    /// takes them from another replica. Whoever waits for something of `from..=upto` must ask again, too.
    Damaged {
        /// First sequence in the block.
        from: StreamSeq,
        /// Last sequence in the block.
        upto: StreamSeq,
    },
    /// A block that was damaged is written again, whole. Whoever waits for something of `from..=upto` must ask again.
    Mended {
        /// First sequence in the block.
        from: StreamSeq,
        /// Last sequence in the block.
        upto: StreamSeq,
    },
    /// A read failed; `fetch` again to retry.
    ReadFailed {
        /// First sequence in the block.
        from: StreamSeq,
        /// Last sequence in the block.
        upto: StreamSeq,
        /// Why.
        error: IoError,
    },
    /// Writing a block failed. Its messages are still in the tail, the file is given up, and nothing is written
    /// until [`crate::Store::resume_writes`].
    WriteFailed(IoError),
}

/// A block file, for a snapshot's manifest. The file never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFile {
    /// Its path.
    pub file: FilePath,
    /// Its length in bytes.
    pub len: u64,
    /// crc32c of the whole file.
    pub crc: u32,
}

/// Why a store cannot be brought back, or a message not be taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The checkpoint is damaged or of a version that is not known.
    #[error("checkpoint: {0}")]
    Checkpoint(&'static str),
    /// A block file is damaged so that some of its messages are lost. Other replicas have them.
    #[error("block file {file} has lost {lost} of its messages")]
    Block {
        /// The file.
        file: FilePath,
        /// Live messages that cannot be brought back.
        lost: u64,
    },
    /// The disk failed.
    #[error("{file}: {error}")]
    Io {
        /// The file.
        file: FilePath,
        /// Why.
        error: IoError,
    },
    /// The bytes handed in are not a record.
    #[error("not a record")]
    Record,
    /// The sequence handed in is not beyond the last one.
    #[error("sequence {0} is not beyond the last one")]
    Order(StreamSeq),
}
