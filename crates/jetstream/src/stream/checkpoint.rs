//! The stream's state as bytes, and as a digest.
//!
//! A checkpoint holds what must be durable so that the log up to [`Stream::applied`] can be dropped. A full one stands
//! alone; a delta goes with those before it, back to a full one. Messages and message ids are written as what has
//! changed; the rest, small as a rule, is written whole each time and counts as the last checkpoint has it.
//! ```text
//! magic "TLSTREAM" | version u16 | flags u16 (bit 0: delta) | own sized | message ids sized | store sized
//! | xxh3 u64 of all before
//! ```

use super::source::FormerSources;
use super::{APPLY_VERSION, ApplyError, Consumer, SourcePosition, Stream, TtlIndex, store_kind};
use crate::codec::{Malformed, Put, PutSection, Reader};
use crate::config::StreamConfig;
use crate::dedupe::Dedupe;
use crate::digest::Running;
use crate::window::Windows;
use std::collections::{BTreeMap, VecDeque};
use tidelock_base::{ApiError, ConsumerId, LogIndex, StreamSeq, Term, Wall};
use tidelock_record::Disk;
use tidelock_store::{CheckpointKind, OnLoss, Store, StoreConfig, StoreError};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"TLSTREAM";
const VERSION: u16 = 2;
/// Without the positions of sources that were removed.
const VERSION_WITHOUT_FORMER: u16 = 1;
const DELTA: u16 = 1;
/// What a stream's configuration and sums take as a rule, and as much again each consumer.
const OWN_BYTES: usize = 1024;
/// What the position of a source takes as a rule.
const SOURCE_BYTES: usize = 128;

/// Why a stream cannot be brought back from its checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The bytes fail their checksum.
    #[error("checkpoint of a stream fails its checksum")]
    Checksum,
    /// Written by a later version.
    #[error("checkpoint of a stream has unknown version {0}")]
    Version(u16),
    /// The group applies by rules of a later version.
    #[error("apply version {0} is unknown")]
    ApplyVersion(u32),
    /// The bytes are something else.
    #[error("checkpoint of a stream is {0}")]
    Malformed(#[from] Malformed),
    /// A configuration that this version cannot read.
    #[error("configuration in a checkpoint cannot be read: {0}")]
    Config(ApiError),
    /// The messages cannot be brought back.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A checkpoint, cut into its parts.
struct Parts<'a> {
    version: u16,
    is_delta: bool,
    own: &'a [u8],
    ids: &'a [u8],
    store: &'a [u8],
}

impl<'a> Parts<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, RestoreError> {
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or(Malformed("empty"))?;
        if xxh3_64(body) != u64::from_le_bytes(*sum) {
            return Err(RestoreError::Checksum);
        }
        let mut reader = Reader::new(body);
        if reader.bytes(8, "without its magic")? != MAGIC {
            return Err(Malformed("without its magic").into());
        }
        let version = reader.u16("without a version")?;
        if !(VERSION_WITHOUT_FORMER..=VERSION).contains(&version) {
            return Err(RestoreError::Version(version));
        }
        let parts = Self {
            version,
            is_delta: reader.u16("without flags")? == DELTA,
            own: reader.sized("without a state")?,
            ids: reader.sized("without message ids")?,
            store: reader.sized("without messages")?,
        };
        reader.end("longer than its parts")?;
        Ok(parts)
    }
}

impl Stream {
    /// A hash of all decisions so far and of the whole state; equal on replicas that have applied the same entries.
    /// It says something only between entries; see [`Stream::is_at_boundary`].
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut digest = self.running;
        digest.mix(u64::from(self.apply_version));
        digest.mix(self.rev);
        digest.mix(self.next_consumer.0);
        digest.mix(self.store.digest());
        self.windows.digest(&mut digest);
        self.dedupe.digest(&mut digest);
        digest.mix(self.sources.len() as u64);
        for (key, position) in self.sources().chain(self.former_sources.iter()) {
            digest.mix_bytes(key);
            digest.mix_bytes(&position.identity);
            digest.mix(position.seq.0);
        }
        for consumer in self.consumers.values() {
            consumer.state().digest(&mut digest);
        }
        digest.value()
    }

    /// Wants the messages in blocks, so that the next checkpoint need not carry them; see `Store::flush`.
    pub fn flush(&mut self) {
        self.store.flush();
    }

    /// Appends a checkpoint of the state between two entries and gives its number, for
    /// [`Stream::checkpoint_durable`]. The first one is full, and so is one after another that did not become
    /// durable.
    ///
    /// # Panics
    /// If an entry is under way; see [`Stream::is_at_boundary`].
    pub fn checkpoint(&mut self, kind: CheckpointKind, out: &mut Vec<u8>) -> u64 {
        assert!(self.is_at_boundary(), "checkpoints are made between entries");
        let start = out.len();
        let is_delta = kind == CheckpointKind::Delta;
        out.put(MAGIC);
        out.put_u16(VERSION);
        out.put_u16(if is_delta { DELTA } else { 0 });
        out.put_section(|section| self.encode_own(section));
        out.put_section(|section| self.dedupe.encode(is_delta, section));
        let mut number = 0;
        out.put_section(|section| number = self.store.encode_checkpoint(kind, section));
        out.put_u64(xxh3_64(out.get(start..).unwrap_or_default()));
        number
    }

    /// About how many bytes [`Stream::checkpoint`] would append, as room to be made for them.
    #[must_use]
    pub fn checkpoint_bytes(&self, kind: CheckpointKind) -> usize {
        let ids = self.dedupe.encoded_bytes(kind == CheckpointKind::Delta);
        let sources = SOURCE_BYTES * (self.sources.len() + self.former_sources.iter().len());
        ids + sources + self.store.checkpoint_bytes(kind) + OWN_BYTES * (1 + self.consumers.len())
    }

    /// The checkpoint of this number is durable: files that only older ones name may go.
    pub fn checkpoint_durable(&mut self, number: u64) {
        self.store.checkpoint_durable(number);
    }

    /// Keeps every file until [`Stream::unpin`], so that a snapshot can be sent. Pins are counted.
    pub fn pin(&mut self) {
        self.store.pin();
    }

    /// Ends one pin.
    pub fn unpin(&mut self) {
        self.store.unpin();
    }

    /// Removes files that the checkpoint did not name. Only for a caller who knows that it was the newest.
    pub fn remove_orphans(&mut self) {
        self.store.remove_orphans();
    }

    /// Brings a stream back from a full checkpoint and the deltas that follow it. Waits for the disk: for the start
    /// of a server, or a helper thread.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore(
        mut config: StoreConfig,
        checkpoints: &[&[u8]],
        disk: &dyn Disk,
        on_loss: OnLoss,
    ) -> Result<Self, RestoreError> {
        let parts = checkpoints
            .iter()
            .map(|bytes| Parts::read(bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let last = parts.last().ok_or(Malformed("missing"))?;
        let own = Own::decode(last.own, last.version)?;
        config.kind = store_kind(&own.config);
        let mut dedupe = Dedupe::default();
        for part in &parts {
            dedupe.decode(part.is_delta, &mut Reader::new(part.ids))?;
        }
        let images: Vec<&[u8]> = parts.iter().map(|part| part.store).collect();
        let store = Store::restore(config, &images, disk, on_loss)?;
        Ok(own.into_stream(dedupe, store))
    }

    #[cfg(test)]
    pub(super) fn own_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_own(&mut out);
        out
    }

    fn encode_own(&self, out: &mut Vec<u8>) {
        out.put_u32(self.apply_version);
        out.put_u64(self.rev);
        out.put_sized(&self.config.encode());
        out.put_i64(self.created.0);
        out.put_u64(self.applied.0);
        out.put_u64(self.term.0);
        out.put_i64(self.clock.0);
        out.put_i64(self.last_sweep.0);
        out.put_u64(self.running.value());
        out.put_u64(self.next_consumer.0);
        out.put_sized(&self.last_msg_id);
        out.put_u8(u8::from(self.age_head.is_some()));
        if let Some((seq, ts)) = self.age_head {
            out.put_u64(seq.0);
            out.put_i64(ts.0);
        }
        self.windows.encode(out);
        self.ttl.encode(out);
        encode_sources(self.sources(), self.sources.len(), out);
        out.put_len(self.consumers.len());
        for consumer in self.consumers.values() {
            consumer.encode(out);
        }
        encode_sources(self.former_sources.iter(), self.former_sources.iter().len(), out);
    }
}

fn encode_sources<'a>(
    sources: impl Iterator<Item = (&'a [u8], &'a SourcePosition)>,
    count: usize,
    out: &mut Vec<u8>,
) {
    out.put_len(count);
    for (key, position) in sources {
        out.put_sized(key);
        out.put_sized(&position.identity);
        out.put_u64(position.seq.0);
    }
}

/// Everything but messages and message ids.
struct Own {
    apply_version: u32,
    rev: u64,
    config: StreamConfig,
    created: Wall,
    applied: LogIndex,
    term: Term,
    clock: Wall,
    last_sweep: Wall,
    running: Running,
    next_consumer: ConsumerId,
    last_msg_id: Vec<u8>,
    age_head: Option<(StreamSeq, Wall)>,
    windows: Windows,
    ttl: TtlIndex,
    sources: BTreeMap<Box<[u8]>, SourcePosition>,
    consumers: BTreeMap<ConsumerId, Consumer>,
    former_sources: FormerSources,
}

impl Own {
    fn decode(bytes: &[u8], version: u16) -> Result<Self, RestoreError> {
        let reader = &mut Reader::new(bytes);
        let apply_version = reader.u32("without an apply version")?;
        if apply_version > APPLY_VERSION {
            return Err(RestoreError::ApplyVersion(apply_version));
        }
        let own = Self {
            apply_version,
            rev: reader.u64("without a revision")?,
            config: StreamConfig::decode(reader.sized("without a configuration")?)
                .map_err(RestoreError::Config)?,
            created: Wall(reader.i64("cut short")?),
            applied: LogIndex(reader.u64("cut short")?),
            term: Term(reader.u64("cut short")?),
            clock: Wall(reader.i64("cut short")?),
            last_sweep: Wall(reader.i64("cut short")?),
            running: Running::resume(reader.u64("cut short")?),
            next_consumer: ConsumerId(reader.u64("cut short")?),
            last_msg_id: reader.sized("cut short")?.to_vec(),
            age_head: decode_head(reader)?,
            windows: Windows::decode(reader)?,
            ttl: TtlIndex::decode(reader)?,
            sources: decode_sources(reader)?.into_iter().collect(),
            consumers: decode_consumers(reader)?,
            former_sources: match version {
                VERSION_WITHOUT_FORMER => FormerSources::default(),
                _ => decode_former(reader)?,
            },
        };
        reader.end("longer than its state")?;
        Ok(own)
    }

    fn into_stream(self, dedupe: Dedupe, store: Store) -> Stream {
        let names = self
            .consumers
            .values()
            .map(|consumer| (consumer.name().into(), consumer.id()))
            .collect();
        Stream {
            config: self.config,
            rev: self.rev,
            created: self.created,
            store,
            names,
            consumers: self.consumers,
            next_consumer: self.next_consumer,
            windows: self.windows,
            dedupe,
            ttl: self.ttl,
            sources: self.sources,
            former_sources: self.former_sources,
            last_msg_id: self.last_msg_id,
            age_head: self.age_head,
            last_sweep: self.last_sweep,
            clock: self.clock,
            apply_version: self.apply_version,
            applied: self.applied,
            term: self.term,
            running: self.running,
            entry: None,
            tasks: VecDeque::new(),
            freed: VecDeque::new(),
            task_removed: 0,
        }
    }
}

fn decode_head(reader: &mut Reader<'_>) -> Result<Option<(StreamSeq, Wall)>, Malformed> {
    Ok(match reader.u8("cut short")? {
        0 => None,
        _ => Some((
            StreamSeq(reader.u64("cut short")?),
            Wall(reader.i64("cut short")?),
        )),
    })
}

/// Key and position of a source.
type Source = (Box<[u8]>, SourcePosition);

fn decode_sources(reader: &mut Reader<'_>) -> Result<Vec<Source>, Malformed> {
    let mut sources = Vec::new();
    for _ in 0..reader.count(16, "cut short in its sources")? {
        let key = reader.sized("cut short in its sources")?.into();
        let position = SourcePosition {
            identity: reader.sized("cut short in its sources")?.into(),
            seq: StreamSeq(reader.u64("cut short in its sources")?),
        };
        sources.push((key, position));
    }
    Ok(sources)
}

fn decode_former(reader: &mut Reader<'_>) -> Result<FormerSources, Malformed> {
    let mut former = FormerSources::default();
    for (key, position) in decode_sources(reader)? {
        former.put(key, position);
    }
    Ok(former)
}

fn decode_consumers(reader: &mut Reader<'_>) -> Result<BTreeMap<ConsumerId, Consumer>, RestoreError> {
    let mut consumers = BTreeMap::new();
    for _ in 0..reader.count(16, "cut short in its consumers")? {
        let consumer = Consumer::decode(reader)?;
        consumers.insert(consumer.id(), consumer);
    }
    Ok(consumers)
}

impl From<ApplyError> for RestoreError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Config(error) => Self::Config(error),
            ApplyError::ApplyVersion(version) => Self::ApplyVersion(version),
            ApplyError::Store(error) => Self::Store(error),
            ApplyError::Command(_) | ApplyError::OutOfOrder { .. } => {
                Self::Malformed(Malformed("holding a log entry"))
            }
        }
    }
}

/// Reads a state whose checksum is taken for right, for [`crate::fuzz`].
pub(crate) fn fuzz_restore(data: &[u8]) {
    drop(Parts::read(data));
    for version in [VERSION_WITHOUT_FORMER, VERSION] {
        drop(Own::decode(data, version));
    }
    let _ = Dedupe::default().decode(false, &mut Reader::new(data));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_api as api;
    use tidelock_record::FilePath;
    use tidelock_store::StoreKind;

    #[test]
    fn a_state_without_the_positions_of_removed_sources_is_read() {
        let form = api::StreamConfig {
            name: "S".to_owned(),
            subjects: vec!["s".to_owned()],
            num_replicas: 1,
            ..api::StreamConfig::default()
        };
        let config = StreamConfig::decode(&api::to_json(&form)).unwrap();
        let store = StoreConfig::new(StoreKind::File, FilePath::new("s").unwrap());
        let bytes = Stream::create(config, Wall(1), store).own_bytes();
        assert!(Own::decode(&bytes, VERSION).is_ok());
        let before = &bytes[..bytes.len() - 4];
        assert!(Own::decode(before, VERSION_WITHOUT_FORMER).is_ok());
        assert!(Own::decode(before, VERSION).is_err());
        assert!(Own::decode(&bytes, VERSION_WITHOUT_FORMER).is_err());
    }
}
