//! The entries of a stream's log: how commands are written into one and read back.
//!
//! Shape, little-endian, no padding:
//! ```text
//! entry     version u8 (1) | zero u8 x 7 | stamp i64 ns since 1970 | command...
//! command   kind u8 | zero u8 x 3 | body_len u32 | body
//! ```
//! Bodies, by kind (`text` and `bytes` follow their length as u32; ranges are inclusive):
//! ```text
//!  1 PublishRun     boot u128 | worker u16 | zero u16 | count u32 | first u64 | low_water u64 | record x count
//!  2 Deliver        consumer u64 | epoch u32 | count u32 | stream seq u64 x count
//!  3 Acks           consumer u64 | epoch u32 | kind u8 | zero u8 x 3 | delay i64 ns | count u32
//!                   | (from u64 | to u64) x count | reason (the rest)
//!  4 ConsumerSet    action u8 | zero u8 x 3 | max_consumers u32 | name text | config bytes
//!  5 ConsumerDelete name text
//!  6 Progress       consumer u64 | epoch u32 | zero u32 | stream seq u64 | deliver seq u64
//!  7 DeleteIfIdle   consumer u64 | activity u64
//!  8 ConsumerReset  seq u64 (0: to the ack floor) | name text
//!  9 ConsumerPause  until i64 ns since 1970 (0: resume) | name text
//! 10 Purge          upto u64 (exclusive, 0: none) | keep u64 (0: none) | filter bytes (empty: none)
//! 11 MsgDelete      seq u64
//! 12 StreamUpdate   rev u64 | config bytes
//! 13 ExpireThrough  (empty: the entry's stamp counts)
//! 14 SourceBatch    prev_seq u64 | last_seq u64 | count u32 | source bytes | identity bytes
//!                   | (origin seq u64 | origin time i64 ns | record) x count
//! 15 WindowClose    boot u128 | worker u16
//! 16 ApplyVersion   version u32
//! 17 DigestCheck    (empty)
//! 18 RefuseRun      boot u128 | worker u16 | err_code u16 | count u32 | first u64 | low_water u64
//! ```
//! A record is that of `tidelock-record`, the same bytes wherever it goes. What cannot be decoded stops the replica:
//! guessing would let replicas differ.
//!
//! **Who checks checksums.** Neither the builder nor the decoder does: [`check_records`] is called once a node, where
//! an entry comes in from a peer or from disk.

use crate::codec::{Malformed, Reader};
use crate::consumer::AckKind;
use crate::window::WINDOW_RESULTS_MAX;
use tidelock_base::{ApiErrorCode, BootId, ConsumerId, DeliverSeq, StreamSeq, Wall, WorkerId};
use tidelock_record::{RecordError, RecordRef};

/// The version that this code writes; it reads this one only.
pub const ENTRY_VERSION: u8 = 1;
/// Bytes before the first command.
pub const ENTRY_HEAD_BYTES: usize = 16;
const COMMAND_HEAD_BYTES: usize = 8;
const RUN_HEAD_BYTES: usize = 40;
/// Where in a run's body its count and its low-water mark stand.
const RUN_COUNT_AT: usize = 20;
const RUN_LOW_WATER_AT: usize = 32;

/// Why an entry cannot be decoded. Each stops the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Written by a later version.
    #[error("log entry of version {0} is unknown")]
    Version(u8),
    /// A command of a kind that this version does not know.
    #[error("command of kind {0} is unknown")]
    Kind(u8),
    /// The bytes contradict themselves.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A record in a publish run or source batch is none.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Which window of forward numbers a publish belongs to: one worker of one start of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowKey {
    /// The start of the server that received the publish.
    pub boot: BootId,
    /// Its worker.
    pub worker: WorkerId,
}

/// What `CONSUMER.CREATE` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAction {
    /// Only a new one, or one with the same configuration.
    Create,
    /// Only an existing one.
    Update,
    /// Either.
    CreateOrUpdate,
}

/// The records of a run or batch, back to back; empty space is not allowed between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordBytes<'a>(pub &'a [u8]);

/// One command of an entry, as a view of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Publishes of one window, numbered from `first` on without gaps.
    PublishRun {
        /// The window.
        key: WindowKey,
        /// Number of the first publish.
        first: u64,
        /// The sender needs no result up to this number, inclusive.
        low_water: u64,
        /// How many records follow.
        count: u32,
        /// The records.
        records: RecordBytes<'a>,
    },
    /// The leader means to deliver these messages.
    Deliver {
        /// The consumer.
        consumer: ConsumerId,
        /// Its epoch, as the leader knew it.
        epoch: u32,
        /// Their sequences, in order of delivery.
        seqs: Seqs<'a>,
    },
    /// Acknowledgements of one kind.
    Acks {
        /// The consumer.
        consumer: ConsumerId,
        /// Its epoch, as the leader knew it.
        epoch: u32,
        /// What they do.
        verb: AckKind,
        /// Ranges of stream sequences.
        ranges: Ranges<'a>,
        /// Text after `+TERM`.
        reason: &'a [u8],
    },
    /// Create or update a consumer.
    ConsumerSet {
        /// Which of the two is allowed.
        action: SetAction,
        /// Most consumers that the account and server allow; the stream's own limit counts beside it.
        max_consumers: u32,
        /// Its name.
        name: &'a str,
        /// Its configuration, encoded.
        config: &'a [u8],
    },
    /// Delete a consumer.
    ConsumerDelete {
        /// Its name.
        name: &'a str,
    },
    /// A consumer without acknowledgements has got this far.
    Progress {
        /// The consumer.
        consumer: ConsumerId,
        /// Its epoch, as the leader knew it.
        epoch: u32,
        /// Last stream sequence delivered or passed over.
        stream_seq: StreamSeq,
        /// Deliveries so far.
        deliver_seq: DeliverSeq,
    },
    /// Delete a consumer unless it was active since.
    DeleteIfIdle {
        /// The consumer.
        consumer: ConsumerId,
        /// Its activity mark, as the leader knew it.
        activity: u64,
    },
    /// Set a consumer's position back.
    ConsumerReset {
        /// Its name.
        name: &'a str,
        /// First sequence to deliver; `None` means after the ack floor.
        seq: Option<StreamSeq>,
    },
    /// Pause or resume a consumer.
    ConsumerPause {
        /// Its name.
        name: &'a str,
        /// End of the pause; `None` resumes.
        until: Option<Wall>,
    },
    /// Remove many messages.
    Purge {
        /// Only those that match.
        filter: Option<&'a [u8]>,
        /// Only those below this sequence.
        upto: Option<StreamSeq>,
        /// All but this many of the newest.
        keep: Option<u64>,
    },
    /// Remove one message.
    MsgDelete {
        /// Its sequence.
        seq: StreamSeq,
    },
    /// A new configuration.
    StreamUpdate {
        /// Its revision; one that is not above the present is ignored.
        rev: u64,
        /// The configuration, encoded.
        config: &'a [u8],
    },
    /// Everything that is due at the entry's stamp happens.
    ExpireThrough,
    /// Messages of an origin.
    SourceBatch(SourceBatch<'a>),
    /// The window's server is gone for good.
    WindowClose {
        /// The window.
        key: WindowKey,
    },
    /// All servers of the group support this version of apply.
    ApplyVersion {
        /// The version.
        version: u32,
    },
    /// Replicas compare their digests at this entry.
    DigestCheck,
    /// Publishes of one window that the leader has not let in, numbered from `first` on without gaps: server or account
    /// hold as much as they may. Each that was not judged before is refused.
    RefuseRun {
        /// The window.
        key: WindowKey,
        /// Number of the first publish.
        first: u64,
        /// The sender needs no result up to this number, inclusive.
        low_water: u64,
        /// How many there are, at most [`WINDOW_RESULTS_MAX`].
        count: u32,
        /// What they are told.
        code: ApiErrorCode,
    },
}

/// Messages that a source or mirror takes over, with the position before and after (DESIGN section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceBatch<'a> {
    /// Which source of the stream.
    pub source: &'a [u8],
    /// Identity of the origin; another one means that the origin was made anew.
    pub identity: &'a [u8],
    /// Position before; the batch counts only if it is the stream's.
    pub prev_seq: StreamSeq,
    /// Position after; at or above the last message's.
    pub last_seq: StreamSeq,
    /// How many messages follow.
    pub count: u32,
    /// The messages, each behind its origin sequence and time.
    pub messages: RecordBytes<'a>,
}

/// One message of a [`SourceBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceMessage<'a> {
    /// Its sequence in the origin.
    pub seq: StreamSeq,
    /// When the origin stored it.
    pub ts: Wall,
    /// The message, as it is to be stored.
    pub record: RecordRef<'a>,
}

/// Stream sequences, eight bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seqs<'a>(&'a [u8]);

/// Inclusive ranges of stream sequences, sixteen bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges<'a>(&'a [u8]);

impl<'a> Seqs<'a> {
    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len() / 8
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In order of delivery.
    pub fn iter(&self) -> impl Iterator<Item = StreamSeq> + use<'a> {
        self.0
            .as_chunks()
            .0
            .iter()
            .map(|seq| StreamSeq(u64::from_le_bytes(*seq)))
    }

    /// The one at `index`.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<StreamSeq> {
        self.0
            .as_chunks()
            .0
            .get(index)
            .map(|seq| StreamSeq(u64::from_le_bytes(*seq)))
    }
}

impl Ranges<'_> {
    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len() / 16
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The range at `index`: first and last sequence, both inclusive.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<(StreamSeq, StreamSeq)> {
        let words = self.0.as_chunks::<8>().0;
        let word = |at: usize| words.get(at).map(|word| StreamSeq(u64::from_le_bytes(*word)));
        let at = index.checked_mul(2)?;
        Some((word(at)?, word(at.checked_add(1)?)?))
    }
}

impl<'a> RecordBytes<'a> {
    /// Reads the record at `offset`, and where the next one starts.
    ///
    /// # Errors
    /// [`CommandError::Record`].
    pub fn at(&self, offset: usize) -> Result<(RecordRef<'a>, usize), CommandError> {
        let bytes = self.0.get(offset..).ok_or(Malformed("record offset"))?;
        let (record, len) = RecordRef::parse(bytes)?;
        Ok((record, offset + len))
    }

    /// Reads the message of a source batch at `offset`, and where the next one starts.
    ///
    /// # Errors
    /// [`CommandError::Malformed`] or [`CommandError::Record`].
    pub fn message_at(&self, offset: usize) -> Result<(SourceMessage<'a>, usize), CommandError> {
        let mut reader = Reader::new(self.0.get(offset..).ok_or(Malformed("message offset"))?);
        let seq = StreamSeq(reader.u64("origin seq")?);
        let ts = Wall(reader.i64("origin time")?);
        let (record, next) = self.at(offset + 16)?;
        Ok((SourceMessage { seq, ts, record }, next))
    }
}

/// What stands before the commands of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHead {
    /// The log's time: the leader's stamp.
    pub stamp: Wall,
}

impl EntryHead {
    /// Reads the head of an entry; the commands start at [`ENTRY_HEAD_BYTES`].
    ///
    /// # Errors
    /// [`CommandError::Version`] or [`CommandError::Malformed`].
    pub fn parse(entry: &[u8]) -> Result<Self, CommandError> {
        let mut reader = Reader::new(entry);
        let version = reader.u8("version")?;
        if version != ENTRY_VERSION {
            return Err(CommandError::Version(version));
        }
        if reader.bytes(7, "head")?.iter().any(|byte| *byte != 0) {
            return Err(Malformed("head").into());
        }
        Ok(Self {
            stamp: Wall(reader.i64("stamp")?),
        })
    }
}

/// Reads the command at `offset` of an entry, and where the next one starts; `None` at the entry's end.
///
/// # Errors
/// [`CommandError`]: the replica must stop.
pub fn command_at(entry: &[u8], offset: usize) -> Result<Option<(Command<'_>, usize)>, CommandError> {
    let bytes = entry.get(offset..).ok_or(Malformed("command offset"))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut reader = Reader::new(bytes);
    let kind = reader.u8("kind")?;
    if reader.bytes(3, "command head")?.iter().any(|byte| *byte != 0) {
        return Err(Malformed("command head").into());
    }
    let body = reader.sized("command body")?;
    let command = decode(kind, Reader::new(body))?;
    Ok(Some((command, offset + COMMAND_HEAD_BYTES + body.len())))
}

/// Iterates over the commands of an entry.
///
/// # Errors
/// [`CommandError`] if the head is not one; each item says the same of its command.
pub fn commands(
    entry: &[u8],
) -> Result<(EntryHead, impl Iterator<Item = Result<Command<'_>, CommandError>>), CommandError> {
    let head = EntryHead::parse(entry)?;
    let mut offset = Some(ENTRY_HEAD_BYTES);
    let iter = std::iter::from_fn(move || match command_at(entry, offset?) {
        Ok(Some((command, next))) => {
            offset = Some(next);
            Some(Ok(command))
        }
        Ok(None) => None,
        Err(error) => {
            offset = None;
            Some(Err(error))
        }
    });
    Ok((head, iter))
}

/// Checks the whole entry: its framing, every command and the checksum of every record. To be called once a node,
/// where an entry comes in.
///
/// # Errors
/// [`CommandError`]: the first thing that is wrong.
pub fn check_records(entry: &[u8]) -> Result<(), CommandError> {
    let (_, commands) = commands(entry)?;
    for command in commands {
        match command? {
            Command::PublishRun { count, records, .. } => {
                let mut offset = 0;
                for _ in 0..count {
                    let (record, next) = records.at(offset)?;
                    record.check()?;
                    offset = next;
                }
                Reader::new(records.0.get(offset..).unwrap_or_default()).end("after the last record")?;
            }
            Command::SourceBatch(batch) => {
                let mut offset = 0;
                for _ in 0..batch.count {
                    let (message, next) = batch.messages.message_at(offset)?;
                    message.record.check()?;
                    offset = next;
                }
                Reader::new(batch.messages.0.get(offset..).unwrap_or_default())
                    .end("after the last message")?;
            }
            Command::Deliver { .. }
            | Command::Acks { .. }
            | Command::ConsumerSet { .. }
            | Command::ConsumerDelete { .. }
            | Command::Progress { .. }
            | Command::DeleteIfIdle { .. }
            | Command::ConsumerReset { .. }
            | Command::ConsumerPause { .. }
            | Command::Purge { .. }
            | Command::MsgDelete { .. }
            | Command::StreamUpdate { .. }
            | Command::ExpireThrough
            | Command::WindowClose { .. }
            | Command::ApplyVersion { .. }
            | Command::DigestCheck
            | Command::RefuseRun { .. } => {}
        }
    }
    Ok(())
}

/// Numbers of the kinds on disk and on the wire; they never change their meaning.
mod kind {
    pub(super) const PUBLISH_RUN: u8 = 1;
    pub(super) const DELIVER: u8 = 2;
    pub(super) const ACKS: u8 = 3;
    pub(super) const CONSUMER_SET: u8 = 4;
    pub(super) const CONSUMER_DELETE: u8 = 5;
    pub(super) const PROGRESS: u8 = 6;
    pub(super) const DELETE_IF_IDLE: u8 = 7;
    pub(super) const CONSUMER_RESET: u8 = 8;
    pub(super) const CONSUMER_PAUSE: u8 = 9;
    pub(super) const PURGE: u8 = 10;
    pub(super) const MSG_DELETE: u8 = 11;
    pub(super) const STREAM_UPDATE: u8 = 12;
    pub(super) const EXPIRE_THROUGH: u8 = 13;
    pub(super) const SOURCE_BATCH: u8 = 14;
    pub(super) const WINDOW_CLOSE: u8 = 15;
    pub(super) const APPLY_VERSION: u8 = 16;
    pub(super) const DIGEST_CHECK: u8 = 17;
    pub(super) const REFUSE_RUN: u8 = 18;
}

fn decode(kind: u8, mut body: Reader<'_>) -> Result<Command<'_>, CommandError> {
    let command = match kind {
        kind::PUBLISH_RUN => decode_run(&mut body)?,
        kind::DELIVER => Command::Deliver {
            consumer: ConsumerId(body.u64("consumer")?),
            epoch: body.u32("epoch")?,
            seqs: {
                let count = body.count(8, "count of sequences")?;
                Seqs(body.bytes(count * 8, "sequences")?)
            },
        },
        kind::ACKS => decode_acks(&mut body)?,
        kind::CONSUMER_SET
        | kind::CONSUMER_DELETE
        | kind::PROGRESS
        | kind::DELETE_IF_IDLE
        | kind::CONSUMER_RESET
        | kind::CONSUMER_PAUSE => decode_consumer(kind, &mut body)?,
        kind::PURGE => {
            let (upto, keep) = (body.u64("upto")?, body.u64("keep")?);
            let filter = body.sized("filter")?;
            Command::Purge {
                filter: (!filter.is_empty()).then_some(filter),
                upto: (upto > 0).then_some(StreamSeq(upto)),
                keep: (keep > 0).then_some(keep),
            }
        }
        kind::MSG_DELETE => Command::MsgDelete {
            seq: StreamSeq(body.u64("seq")?),
        },
        kind::STREAM_UPDATE => Command::StreamUpdate {
            rev: body.u64("rev")?,
            config: body.sized("config")?,
        },
        kind::EXPIRE_THROUGH => Command::ExpireThrough,
        kind::SOURCE_BATCH => decode_source_batch(&mut body)?,
        kind::WINDOW_CLOSE => Command::WindowClose {
            key: window_key(&mut body)?,
        },
        kind::APPLY_VERSION => Command::ApplyVersion {
            version: body.u32("version")?,
        },
        kind::DIGEST_CHECK => Command::DigestCheck,
        kind::REFUSE_RUN => decode_refusals(&mut body)?,
        unknown => return Err(CommandError::Kind(unknown)),
    };
    body.end("after the command")?;
    Ok(command)
}

/// The commands that name a consumer, deliveries and acknowledgements apart.
fn decode_consumer<'a>(kind: u8, body: &mut Reader<'a>) -> Result<Command<'a>, CommandError> {
    Ok(match kind {
        kind::CONSUMER_SET => Command::ConsumerSet {
            action: set_action(body.u8("action")?, body.bytes(3, "action")?)?,
            max_consumers: body.u32("max_consumers")?,
            name: body.text("name")?,
            config: body.sized("config")?,
        },
        kind::CONSUMER_DELETE => Command::ConsumerDelete {
            name: body.text("name")?,
        },
        kind::PROGRESS => Command::Progress {
            consumer: ConsumerId(body.u64("consumer")?),
            epoch: body.u32("epoch")?,
            stream_seq: {
                zeros(body.bytes(4, "epoch")?)?;
                StreamSeq(body.u64("stream seq")?)
            },
            deliver_seq: DeliverSeq(body.u64("deliver seq")?),
        },
        kind::DELETE_IF_IDLE => Command::DeleteIfIdle {
            consumer: ConsumerId(body.u64("consumer")?),
            activity: body.u64("activity")?,
        },
        kind::CONSUMER_RESET => {
            let seq = body.u64("seq")?;
            Command::ConsumerReset {
                name: body.text("name")?,
                seq: (seq > 0).then_some(StreamSeq(seq)),
            }
        }
        kind::CONSUMER_PAUSE => {
            let until = body.i64("until")?;
            Command::ConsumerPause {
                name: body.text("name")?,
                until: (until != 0).then_some(Wall(until)),
            }
        }
        unknown => return Err(CommandError::Kind(unknown)),
    })
}

fn window_key(body: &mut Reader<'_>) -> Result<WindowKey, Malformed> {
    Ok(WindowKey {
        boot: BootId(body.u128("boot")?),
        worker: WorkerId(body.u16("worker")?),
    })
}

fn zeros(bytes: &[u8]) -> Result<(), Malformed> {
    if bytes.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(Malformed("reserved bytes are used"))
    }
}

fn decode_run<'a>(body: &mut Reader<'a>) -> Result<Command<'a>, Malformed> {
    let key = window_key(body)?;
    zeros(body.bytes(2, "run head")?)?;
    let count = body.u32("count")?;
    Ok(Command::PublishRun {
        key,
        first: body.u64("first")?,
        low_water: body.u64("low water")?,
        count,
        records: RecordBytes(body.take_rest()),
    })
}

fn decode_refusals(body: &mut Reader<'_>) -> Result<Command<'static>, Malformed> {
    let key = window_key(body)?;
    let code = tidelock_base::api_error_by_code(body.u16("error code")?).ok_or(Malformed("error code"))?;
    let count = body.u32("count")?;
    if u64::from(count) > WINDOW_RESULTS_MAX {
        return Err(Malformed("count of refusals"));
    }
    Ok(Command::RefuseRun {
        key,
        first: body.u64("first")?,
        low_water: body.u64("low water")?,
        count,
        code,
    })
}

fn decode_acks<'a>(body: &mut Reader<'a>) -> Result<Command<'a>, Malformed> {
    let consumer = ConsumerId(body.u64("consumer")?);
    let epoch = body.u32("epoch")?;
    let verb = body.u8("ack kind")?;
    zeros(body.bytes(3, "ack kind")?)?;
    let delay = body.i64("delay")?;
    let verb = match verb {
        0 => AckKind::Ack,
        1 => AckKind::Nak { delay_ns: None },
        2 => AckKind::Nak {
            delay_ns: Some(delay),
        },
        3 => AckKind::Term,
        4 => AckKind::Progress,
        _ => return Err(Malformed("ack kind")),
    };
    let count = body.count(16, "count of ranges")?;
    Ok(Command::Acks {
        consumer,
        epoch,
        verb,
        ranges: Ranges(body.bytes(count * 16, "ranges")?),
        reason: body.take_rest(),
    })
}

fn set_action(action: u8, reserved: &[u8]) -> Result<SetAction, Malformed> {
    zeros(reserved)?;
    match action {
        0 => Ok(SetAction::CreateOrUpdate),
        1 => Ok(SetAction::Create),
        2 => Ok(SetAction::Update),
        _ => Err(Malformed("action")),
    }
}

fn decode_source_batch<'a>(body: &mut Reader<'a>) -> Result<Command<'a>, Malformed> {
    let prev_seq = StreamSeq(body.u64("prev seq")?);
    let last_seq = StreamSeq(body.u64("last seq")?);
    let count = body.u32("count")?;
    Ok(Command::SourceBatch(SourceBatch {
        source: body.sized("source")?,
        identity: body.sized("identity")?,
        prev_seq,
        last_seq,
        count,
        messages: RecordBytes(body.take_rest()),
    }))
}

mod builder;
pub use builder::{EntryBuilder, SourceBatchBuilder};

#[cfg(test)]
mod tests;
