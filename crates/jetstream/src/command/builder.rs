//! Writing an entry, piece by piece, as commands come in during a turn.

use super::{
    AckKind, COMMAND_HEAD_BYTES, ENTRY_HEAD_BYTES, ENTRY_VERSION, RUN_COUNT_AT, RUN_HEAD_BYTES,
    RUN_LOW_WATER_AT, SetAction, WindowKey, kind,
};
use crate::codec::Put;
use bytes::{Bytes, BytesMut};
use tidelock_base::limits::ENTRY_BYTES_MAX;
use tidelock_base::{ApiErrorCode, ConsumerId, DeliverSeq, StreamSeq, Wall};
use tidelock_record::{AlignedBuf, RecordError};

/// Publishes of so many bytes make room for a whole entry.
const LARGE_BYTES: usize = 64 * 1024;

/// Collects the commands of one entry. Commands are numbered from 0; each method that writes one returns its
/// *ordinal*, by which the effects of the applied entry name it.
///
/// Publishes that follow one another with consecutive numbers of one window share a run; nothing is allocated for
/// a publish but room in the entry.
#[derive(Debug, Default)]
pub struct EntryBuilder {
    buf: BytesMut,
    /// Bytes that the next entry gets at once.
    room: usize,
    commands: u32,
    /// The run at the end of `buf`, if the last command is one.
    run: Option<OpenRun>,
}

#[derive(Clone, Copy, Debug)]
struct OpenRun {
    /// Where its command starts in the entry.
    at: usize,
    key: WindowKey,
    first: u64,
    count: u32,
}

/// What follows the last record of an open run is that of number `first + count`.
impl OpenRun {
    fn continues(&self, key: WindowKey, number: u64) -> bool {
        self.key == key && self.first.wrapping_add(u64::from(self.count)) == number && self.count < u32::MAX
    }
}

impl EntryBuilder {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to propose.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Bytes so far, for the cap of an entry.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Commands so far.
    #[must_use]
    pub const fn commands(&self) -> u32 {
        self.commands
    }

    /// Ends the entry with the leader's stamp and takes it; `None` if there is no command.
    ///
    /// The next entry starts with a buffer for as much as the largest of the last few, so that a steady load does not
    /// grow it anew.
    pub fn finish(&mut self, stamp: Wall) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        self.room = self.buf.len().max(self.room - self.room / 8);
        let mut entry = std::mem::replace(&mut self.buf, room_for(self.room));
        self.commands = 0;
        self.run = None;
        let at = ENTRY_HEAD_BYTES - 8;
        patch(&mut entry, at, &stamp.0.to_le_bytes());
        Some(entry.freeze())
    }

    /// Adds a publish whose record is already encoded.
    pub fn publish(&mut self, key: WindowKey, number: u64, low_water: u64, record: &[u8]) -> u32 {
        self.publish_many(key, number, low_water, 1, record)
    }

    /// Adds a publish that is encoded in place.
    ///
    /// # Errors
    /// [`RecordError::TooLarge`], and nothing is added.
    pub fn publish_parts(
        &mut self,
        key: WindowKey,
        number: u64,
        low_water: u64,
        [subject, header, payload]: [&[u8]; 3],
    ) -> Result<u32, RecordError> {
        // The head is made first, so that a message that cannot be a record leaves no trace.
        let head = tidelock_record::encode_head(subject, header, payload)?;
        let ordinal = self.publish_many(key, number, low_water, 1, &head);
        self.buf.put(subject);
        self.buf.put(header);
        self.buf.put(payload);
        self.patch_run_len();
        Ok(ordinal)
    }

    /// Adds `count` publishes, numbered from `first` on, whose records lie back to back.
    pub fn publish_many(
        &mut self,
        key: WindowKey,
        first: u64,
        low_water: u64,
        count: u32,
        records: &[u8],
    ) -> u32 {
        if !self
            .run
            .is_some_and(|run| run.continues(key, first) && run.count.checked_add(count).is_some())
        {
            self.open_run(key, first);
        }
        if let Some(run) = &mut self.run {
            run.count += count;
            let (body, count) = (run.at + COMMAND_HEAD_BYTES, run.count);
            patch(&mut self.buf, body + RUN_COUNT_AT, &count.to_le_bytes());
            patch(&mut self.buf, body + RUN_LOW_WATER_AT, &low_water.to_le_bytes());
        }
        if self.buf.capacity() - self.buf.len() < records.len() && records.len() >= LARGE_BYTES {
            // Much is coming: growing little by little would copy it again and again.
            let mut larger = room_for(self.buf.len() + ENTRY_BYTES_MAX.max(records.len()));
            larger.extend_from_slice(&self.buf);
            self.buf = larger;
        }
        self.buf.put(records);
        self.patch_run_len();
        self.commands - 1
    }

    fn open_run(&mut self, key: WindowKey, first: u64) {
        self.command(kind::PUBLISH_RUN, |buf| {
            buf.put_u128(key.boot.0);
            buf.put_u16(key.worker.0);
            buf.put_u16(0);
            buf.put_u32(0);
            buf.put_u64(first);
            buf.put_u64(0);
        });
        self.run = Some(OpenRun {
            at: self.buf.len() - COMMAND_HEAD_BYTES - RUN_HEAD_BYTES,
            key,
            first,
            count: 0,
        });
    }

    fn patch_run_len(&mut self) {
        if let Some(run) = self.run {
            patch_len(&mut self.buf, run.at);
        }
    }

    /// Adds a delivery of these sequences.
    pub fn deliver(
        &mut self,
        consumer: ConsumerId,
        epoch: u32,
        seqs: impl IntoIterator<Item = StreamSeq>,
    ) -> u32 {
        self.command(kind::DELIVER, |buf| {
            buf.put_u64(consumer.0);
            buf.put_u32(epoch);
            let count_at = buf.len();
            buf.put_u32(0);
            let mut count = 0u32;
            for seq in seqs {
                buf.put_u64(seq.0);
                count += 1;
            }
            patch(buf, count_at, &count.to_le_bytes());
        })
    }

    /// Adds acknowledgements of one kind; `ranges` are inclusive, `reason` is the text after `+TERM`.
    pub fn acks(
        &mut self,
        consumer: ConsumerId,
        epoch: u32,
        verb: AckKind,
        ranges: &[(StreamSeq, StreamSeq)],
        reason: &[u8],
    ) -> u32 {
        self.command(kind::ACKS, |buf| {
            buf.put_u64(consumer.0);
            buf.put_u32(epoch);
            let (verb, delay) = match verb {
                AckKind::Ack => (0, 0),
                AckKind::Nak { delay_ns: None } => (1, 0),
                AckKind::Nak {
                    delay_ns: Some(delay),
                } => (2, delay),
                AckKind::Term => (3, 0),
                AckKind::Progress => (4, 0),
            };
            buf.put(&[verb, 0, 0, 0]);
            buf.put_i64(delay);
            buf.put_len(ranges.len());
            for (from, to) in ranges {
                buf.put_u64(from.0);
                buf.put_u64(to.0);
            }
            buf.put(reason);
        })
    }

    /// Adds the creation or update of a consumer; `config` as [`crate::config`] encodes it.
    pub fn consumer_set(&mut self, action: SetAction, max_consumers: u32, name: &str, config: &[u8]) -> u32 {
        self.command(kind::CONSUMER_SET, |buf| {
            let action = match action {
                SetAction::CreateOrUpdate => 0,
                SetAction::Create => 1,
                SetAction::Update => 2,
            };
            buf.put(&[action, 0, 0, 0]);
            buf.put_u32(max_consumers);
            buf.put_sized(name.as_bytes());
            buf.put_sized(config);
        })
    }

    /// Adds the deletion of a consumer.
    pub fn consumer_delete(&mut self, name: &str) -> u32 {
        self.command(kind::CONSUMER_DELETE, |buf| buf.put_sized(name.as_bytes()))
    }

    /// Adds the progress of a consumer without acknowledgements.
    pub fn progress(
        &mut self,
        consumer: ConsumerId,
        epoch: u32,
        stream_seq: StreamSeq,
        deliver_seq: DeliverSeq,
    ) -> u32 {
        self.command(kind::PROGRESS, |buf| {
            buf.put_u64(consumer.0);
            buf.put_u32(epoch);
            buf.put_u32(0);
            buf.put_u64(stream_seq.0);
            buf.put_u64(deliver_seq.0);
        })
    }

    /// Adds the deletion of a consumer that was not active since its mark was `activity`.
    pub fn delete_if_idle(&mut self, consumer: ConsumerId, activity: u64) -> u32 {
        self.command(kind::DELETE_IF_IDLE, |buf| {
            buf.put_u64(consumer.0);
            buf.put_u64(activity);
        })
    }

    /// Adds the reset of a consumer, to its ack floor unless a sequence is given.
    pub fn consumer_reset(&mut self, name: &str, seq: Option<StreamSeq>) -> u32 {
        self.command(kind::CONSUMER_RESET, |buf| {
            buf.put_u64(seq.map_or(0, StreamSeq::value));
            buf.put_sized(name.as_bytes());
        })
    }

    /// Adds the pause of a consumer, or its end.
    pub fn consumer_pause(&mut self, name: &str, until: Option<Wall>) -> u32 {
        self.command(kind::CONSUMER_PAUSE, |buf| {
            buf.put_i64(until.map_or(0, |until| until.0));
            buf.put_sized(name.as_bytes());
        })
    }

    /// Adds a purge of what matches `filter`, lies below `upto` and is not among the newest `keep`.
    pub fn purge(&mut self, filter: Option<&[u8]>, upto: Option<StreamSeq>, keep: Option<u64>) -> u32 {
        self.command(kind::PURGE, |buf| {
            buf.put_u64(upto.map_or(0, StreamSeq::value));
            buf.put_u64(keep.unwrap_or(0));
            buf.put_sized(filter.unwrap_or_default());
        })
    }

    /// Adds the deletion of one message.
    pub fn msg_delete(&mut self, seq: StreamSeq) -> u32 {
        self.command(kind::MSG_DELETE, |buf| buf.put_u64(seq.0))
    }

    /// Adds a new configuration; `config` as [`crate::config`] encodes it.
    pub fn stream_update(&mut self, rev: u64, config: &[u8]) -> u32 {
        self.command(kind::STREAM_UPDATE, |buf| {
            buf.put_u64(rev);
            buf.put_sized(config);
        })
    }

    /// Adds the expiry of everything that is due at the entry's stamp.
    pub fn expire_through(&mut self) -> u32 {
        self.command(kind::EXPIRE_THROUGH, |_| ())
    }

    /// Adds the messages of a source.
    pub fn source_batch(&mut self, batch: &SourceBatchBuilder) -> u32 {
        self.command(kind::SOURCE_BATCH, |buf| {
            buf.put_u64(batch.prev_seq.0);
            buf.put_u64(batch.last_seq.0);
            buf.put_u32(batch.count);
            buf.put_sized(&batch.source);
            buf.put_sized(&batch.identity);
            buf.put(&batch.messages);
        })
    }

    /// Adds the end of a window.
    pub fn window_close(&mut self, key: WindowKey) -> u32 {
        self.command(kind::WINDOW_CLOSE, |buf| {
            buf.put_u128(key.boot.0);
            buf.put_u16(key.worker.0);
        })
    }

    /// Adds the raise of the version of apply.
    pub fn apply_version(&mut self, version: u32) -> u32 {
        self.command(kind::APPLY_VERSION, |buf| buf.put_u32(version))
    }

    /// Adds a comparison of digests.
    pub fn digest_check(&mut self) -> u32 {
        self.command(kind::DIGEST_CHECK, |_| ())
    }

    /// Adds the refusal of `count` publishes, numbered from `first` on, that are not let in.
    pub fn refuse_many(
        &mut self,
        key: WindowKey,
        first: u64,
        low_water: u64,
        count: u32,
        code: ApiErrorCode,
    ) -> u32 {
        self.command(kind::REFUSE_RUN, |buf| {
            buf.put_u128(key.boot.0);
            buf.put_u16(key.worker.0);
            buf.put_u16(code.err_code());
            buf.put_u32(count);
            buf.put_u64(first);
            buf.put_u64(low_water);
        })
    }

    fn command(&mut self, kind: u8, body: impl FnOnce(&mut BytesMut)) -> u32 {
        if self.buf.is_empty() {
            self.buf.put(&[ENTRY_VERSION, 0, 0, 0, 0, 0, 0, 0]);
            self.buf.put_i64(0);
        }
        self.run = None;
        let at = self.buf.len();
        self.buf.put(&[kind, 0, 0, 0]);
        self.buf.put_u32(0);
        body(&mut self.buf);
        patch_len(&mut self.buf, at);
        let ordinal = self.commands;
        self.commands += 1;
        ordinal
    }
}

/// Collects the messages of one [`super::SourceBatch`].
#[derive(Clone, Debug)]
pub struct SourceBatchBuilder {
    source: Vec<u8>,
    identity: Vec<u8>,
    prev_seq: StreamSeq,
    last_seq: StreamSeq,
    count: u32,
    messages: Vec<u8>,
}

impl SourceBatchBuilder {
    /// An empty batch that starts at position `prev_seq` of the origin.
    #[must_use]
    pub fn new(source: &[u8], identity: &[u8], prev_seq: StreamSeq) -> Self {
        Self {
            source: source.to_vec(),
            identity: identity.to_vec(),
            prev_seq,
            last_seq: prev_seq,
            count: 0,
            messages: Vec::new(),
        }
    }

    /// Adds a message; `record` as it is to be stored. Sequences must rise.
    pub fn message(&mut self, seq: StreamSeq, ts: Wall, record: &[u8]) {
        debug_assert!(seq > self.last_seq, "origin sequences rise");
        self.messages.put_u64(seq.0);
        self.messages.put_i64(ts.0);
        self.messages.put(record);
        self.count += 1;
        self.last_seq = seq;
    }

    /// Moves the position over origin sequences that hold nothing for this source.
    pub fn skip_to(&mut self, seq: StreamSeq) {
        self.last_seq = self.last_seq.max(seq);
    }

    /// Bytes so far, for the cap of an entry.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether it would change nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.last_seq == self.prev_seq
    }
}

/// Room for an entry of that length. That of a large one begins at an aligned address, from which the log can write it
/// as it is.
fn room_for(bytes: usize) -> BytesMut {
    if bytes >= LARGE_BYTES {
        AlignedBuf::with_capacity(bytes).into_bytes()
    } else {
        BytesMut::with_capacity(bytes)
    }
}

fn patch(buf: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = buf.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Writes the length of the body of the command at `at`, which reaches to the end.
fn patch_len(buf: &mut [u8], at: usize) {
    let len = u32::try_from(buf.len() - at - COMMAND_HEAD_BYTES).expect("entries are far below 4 GiB");
    patch(buf, at + 4, &len.to_le_bytes());
}
