//! A stream and all its consumers: one state machine behind one log.
//!
//! ```text
//!   begin(entry) -> step(budget) -> More | Need | Damaged ... -> Done      (one entry at a time)
//! ```
//! Every decision about the stream is made here, from the entry and the state alone: sequences, expected-sequence
//! checks, message ids, limits, retention, expiry (DESIGN section 2). [`Stream::step`] does a bounded amount of work
//! and can stop anywhere between two units of it; what it does next never depends on how often it stopped. Questions
//! are answered only between entries.
//!
//! # Order of checks of a publish
//! One order, whatever the number of replicas. What the message alone decides comes first, then what depends on the
//! stream's state:
//!
//! 1. the stream: a mirror takes no publishes (10003), sealed (10109)
//! 2. sizes: `max_msg_size` (10054), header block over 65,535 bytes (10097)
//! 3. form of headers: `Nats-Stream-Source` from a client (10227), `Nats-Incr` (10171, 10168), `Nats-Batch-Id` (10174),
//!    `Nats-Schedule` (10188), `Nats-Schedule-Next` and `Nats-Scheduler` (10188, 10212), `Nats-TTL` invalid (10165) or
//!    disabled (10166), `Nats-Rollup` not permitted or no value (10111), a subject for the expected last sequence
//!    without the sequence (10193)
//! 4. `Nats-Expected-Stream` (10060)
//! 5. `Nats-Msg-Id`: a known one is a duplicate. Before what is expected, so that a publish which is sent again, because
//!    its acknowledgement was lost, is not refused for its own first copy
//! 6. `Nats-Expected-Last-Subject-Sequence` (10071 with the true sequence)
//! 7. `Nats-Expected-Last-Sequence` (10071 with the true sequence)
//! 8. `Nats-Expected-Last-Msg-Id` (10070)
//! 9. interest retention without a consumer that matches: the sequence is used, nothing is stored
//! 10. discard new: per subject, `max_msgs`, `max_bytes` (10077)
//!
//! Then the message is stored, a rollup removes what came before it, and discard old makes room: first on its
//! subject, then by `max_msgs`, then by `max_bytes`.
//!
//! # Left to others
//! Whether a configuration is valid ([`crate::config`]), the bytes of messages (`tidelock_store`), who asks and who is
//! answered (the node).

mod checkpoint;
mod consumers;
mod effects;
mod expiry;
mod header;
mod publish;
mod removal;
mod source;
mod ttl;
mod update;

pub use checkpoint::RestoreError;
pub(crate) use checkpoint::fuzz_restore;
pub use consumers::{Consumer, NextMessage};
pub use effects::{
    Advisory, CommandOutcome, ConsumerChange, Effects, Gone, NoEffects, SourceOutcome, StoredMessage,
};
pub use removal::Removal;
pub use source::{SourcePosition, mirror_header, source_header, source_key};

use crate::command::{Command, CommandError, ENTRY_HEAD_BYTES, EntryHead, command_at};
use crate::config::StreamConfig;
use crate::dedupe::Dedupe;
use crate::digest::Running;
use crate::window::Windows;
use bytes::Bytes;
use removal::Task;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidelock_base::{ApiError, ConsumerId, LogIndex, StreamSeq, Term, Wall};
use tidelock_record::{Disk, IoDone, IoRequest};
use tidelock_store::{Need, Store, StoreConfig, StoreError, StoreEvent, StoreKind, StoreState, Unanswered};
use ttl::TtlIndex;

/// The highest version of apply that this code knows.
pub const APPLY_VERSION: u32 = 1;

/// Why an entry cannot be applied. Each stops the replica; none is an outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The entry cannot be decoded.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A configuration that this version cannot read.
    #[error("configuration in the log cannot be read: {0}")]
    Config(ApiError),
    /// The group applies by rules of a later version.
    #[error("apply version {0} is unknown")]
    ApplyVersion(u32),
    /// Entries must come in order, and one must end before the next begins.
    #[error("entry {got} comes after {applied}, or before that one has ended")]
    OutOfOrder {
        /// The entry's index.
        got: LogIndex,
        /// The last one applied.
        applied: LogIndex,
    },
    /// The store refuses what the log has.
    #[error("the store refuses a message of the log: {0}")]
    Store(#[from] StoreError),
}

/// How far [`Stream::step`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The entry is applied.
    Done,
    /// The budget is used up; call again.
    More,
    /// Something must be read from disk first: [`Stream::fetch`] it, and call again when it has arrived.
    Need(Need),
    /// The block of this message is damaged. It must be fetched from another replica before apply can go on.
    Damaged(StreamSeq),
}

/// Why work stops before its end.
#[derive(Debug)]
enum Halt {
    More,
    Need(Need),
    Damaged(StreamSeq),
    Fatal(ApplyError),
}

impl From<ApplyError> for Halt {
    fn from(error: ApplyError) -> Self {
        Self::Fatal(error)
    }
}

impl From<CommandError> for Halt {
    fn from(error: CommandError) -> Self {
        Self::Fatal(error.into())
    }
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Self {
        Self::Fatal(error.into())
    }
}

impl From<Unanswered> for Halt {
    fn from(why: Unanswered) -> Self {
        match why {
            Unanswered::Need(need) => Self::Need(need),
            Unanswered::Damaged(seq) => Self::Damaged(seq),
        }
    }
}

/// What may be done in one step. At least one unit always is, so that every step gets somewhere.
#[derive(Debug)]
struct Budget(u32);

impl Budget {
    const fn ready(&self) -> Result<(), Halt> {
        if self.0 == 0 { Err(Halt::More) } else { Ok(()) }
    }

    const fn spend(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }
}

/// The entry that is being applied.
#[derive(Clone, Debug)]
struct Entry {
    bytes: Bytes,
    index: LogIndex,
    term: Term,
    /// Where the present command starts, and its number.
    at: usize,
    ordinal: u32,
    progress: Progress,
}

/// How far the present command is.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Bytes of its records that are dealt with.
    offset: usize,
    /// Items of it that are dealt with.
    done: u32,
    /// Next sequence of the present range.
    next: StreamSeq,
    /// A command of several steps is past its first.
    started: bool,
    source: SourceOutcome,
}

/// A stream with its consumers.
#[derive(Debug)]
pub struct Stream {
    config: StreamConfig,
    rev: u64,
    created: Wall,
    store: Store,
    consumers: BTreeMap<ConsumerId, Consumer>,
    names: BTreeMap<Arc<str>, ConsumerId>,
    next_consumer: ConsumerId,
    windows: Windows,
    dedupe: Dedupe,
    ttl: TtlIndex,
    sources: BTreeMap<Box<[u8]>, SourcePosition>,
    former_sources: source::FormerSources,
    /// `Nats-Msg-Id` of the last message, empty if it had none.
    last_msg_id: Vec<u8>,
    /// No message before this one can expire by age; with its time. Kept only with `max_age`.
    age_head: Option<(StreamSeq, Wall)>,
    last_sweep: Wall,
    /// The log's time: the highest stamp so far.
    clock: Wall,
    apply_version: u32,
    applied: LogIndex,
    term: Term,
    running: Running,
    entry: Option<Entry>,
    /// Work that a command has left to be done before the next one.
    tasks: VecDeque<Task>,
    /// Messages that a consumer is done with, on streams that let go of those.
    freed: VecDeque<StreamSeq>,
    /// Messages that the tasks of the present command have removed.
    task_removed: u64,
}

impl Stream {
    /// The state of a new stream, as the synthetic snapshot of its group has it: revision 1, nothing applied.
    #[must_use]
    pub fn create(config: StreamConfig, created: Wall, mut store: StoreConfig) -> Self {
        store.kind = store_kind(&config);
        store.first_seq = StreamSeq(config.first_seq.max(1));
        Self {
            store: Store::new(store),
            rev: 1,
            created,
            consumers: BTreeMap::new(),
            names: BTreeMap::new(),
            next_consumer: ConsumerId(1),
            windows: Windows::default(),
            dedupe: Dedupe::new(ns(config.duplicate_window)),
            config,
            ttl: TtlIndex::default(),
            sources: BTreeMap::new(),
            former_sources: source::FormerSources::default(),
            last_msg_id: Vec::new(),
            age_head: None,
            last_sweep: created,
            clock: created,
            apply_version: APPLY_VERSION,
            applied: LogIndex(1),
            term: Term(0),
            running: Running::default(),
            entry: None,
            tasks: VecDeque::new(),
            freed: VecDeque::new(),
            task_removed: 0,
        }
    }

    /// Takes the next entry; [`Stream::step`] applies it. Indexes rise; those between are entries that are not for
    /// the state machine.
    ///
    /// # Errors
    /// [`ApplyError`], and nothing changed.
    pub fn begin(&mut self, index: LogIndex, term: Term, entry: Bytes) -> Result<(), ApplyError> {
        if self.entry.is_some() || index <= self.applied {
            return Err(ApplyError::OutOfOrder {
                got: index,
                applied: self.applied,
            });
        }
        let head = EntryHead::parse(&entry)?;
        self.clock = self.clock.max(head.stamp);
        self.running.mix(self.clock.0.cast_unsigned());
        self.windows.advance(self.clock);
        self.entry = Some(Entry {
            bytes: entry,
            index,
            term,
            at: ENTRY_HEAD_BYTES,
            ordinal: 0,
            progress: Progress::default(),
        });
        Ok(())
    }

    /// The first entry of a term, which holds nothing: the log has come this far.
    ///
    /// # Errors
    /// [`ApplyError::OutOfOrder`].
    pub fn term_start(&mut self, index: LogIndex, term: Term) -> Result<(), ApplyError> {
        if self.entry.is_some() || index <= self.applied {
            return Err(ApplyError::OutOfOrder {
                got: index,
                applied: self.applied,
            });
        }
        self.applied = index;
        self.term = term;
        Ok(())
    }

    /// Goes on with the entry, for about `budget` units of work (a message judged, delivered, acknowledged or
    /// removed); at least one.
    ///
    /// # Errors
    /// [`ApplyError`]: the replica must stop. The entry stays unfinished.
    pub fn step(&mut self, budget: u32, fx: &mut impl Effects) -> Result<Step, ApplyError> {
        let Some(mut entry) = self.entry.take() else {
            return Ok(Step::Done);
        };
        let step = match self.run(&mut entry, &mut Budget(budget.max(1)), fx) {
            Ok(()) => {
                debug_assert!(
                    self.tasks.is_empty() && self.freed.is_empty(),
                    "an entry ends with its work"
                );
                self.applied = entry.index;
                self.term = entry.term;
                return Ok(Step::Done);
            }
            Err(Halt::More) => Ok(Step::More),
            Err(Halt::Need(need)) => Ok(Step::Need(need)),
            Err(Halt::Damaged(seq)) => Ok(Step::Damaged(seq)),
            Err(Halt::Fatal(error)) => Err(error),
        };
        self.entry = Some(entry);
        step
    }

    fn run(&mut self, entry: &mut Entry, budget: &mut Budget, fx: &mut impl Effects) -> Result<(), Halt> {
        // Commands are views of the entry; this handle lets its progress change meanwhile.
        let bytes = entry.bytes.clone();
        loop {
            self.run_tasks(budget, fx)?;
            let Some((command, next)) = command_at(&bytes, entry.at)? else {
                return Ok(());
            };
            budget.ready()?;
            if !entry.progress.started {
                self.task_removed = 0;
            }
            self.command(&command, entry, budget, fx)?;
            // It is not run again, even if the tasks that it has left halt.
            budget.spend();
            entry.at = next;
            entry.ordinal += 1;
            entry.progress = Progress::default();
        }
    }

    /// Runs one command from where its progress says. It must leave that progress behind before it halts.
    fn command(
        &mut self,
        command: &Command<'_>,
        entry: &mut Entry,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<(), Halt> {
        let ordinal = entry.ordinal;
        let outcome = match command {
            Command::PublishRun { .. } => return self.publish_run(command, entry, budget, fx),
            Command::RefuseRun { .. } => return self.refuse_run(command, entry, budget, fx),
            Command::Deliver {
                consumer,
                epoch,
                seqs,
            } => {
                return self.deliver(*consumer, *epoch, *seqs, entry, budget, fx);
            }
            Command::Acks { .. } => return self.acks(command, entry, budget, fx),
            Command::SourceBatch(batch) => self.source_batch(batch, entry, budget, fx)?,
            Command::ConsumerSet {
                action,
                max_consumers,
                name,
                config,
            } => self.consumer_set(*action, *max_consumers, name, config, fx)?,
            Command::ConsumerDelete { name } => self.consumer_delete(name, fx),
            Command::Progress {
                consumer,
                epoch,
                stream_seq,
                deliver_seq,
            } => {
                let to = crate::consumer::Position {
                    stream_seq: *stream_seq,
                    deliver_seq: *deliver_seq,
                };
                self.consumer_progress(*consumer, *epoch, to)
            }
            Command::DeleteIfIdle { consumer, activity } => self.delete_if_idle(*consumer, *activity, fx),
            Command::ConsumerReset { name, seq } => self.consumer_reset(name, *seq, fx)?,
            Command::ConsumerPause { name, until } => self.consumer_pause(name, *until, fx),
            Command::Purge { filter, upto, keep } => {
                self.purge(*filter, *upto, *keep, &mut entry.progress, budget, fx)?
            }
            Command::MsgDelete { seq } => self.msg_delete(*seq, fx)?,
            Command::StreamUpdate { rev, config } => self.stream_update(*rev, config, fx)?,
            Command::ExpireThrough => return self.expire_through(&mut entry.progress, budget, fx),
            Command::WindowClose { key } => {
                self.windows.close(*key);
                CommandOutcome::Done
            }
            Command::ApplyVersion { version } => {
                if *version > APPLY_VERSION {
                    return Err(ApplyError::ApplyVersion(*version).into());
                }
                self.apply_version = self.apply_version.max(*version);
                CommandOutcome::Done
            }
            Command::DigestCheck => {
                fx.digest(entry.index, self.digest());
                CommandOutcome::Done
            }
        };
        fx.replied(ordinal, &outcome);
        Ok(())
    }

    // --- questions, between entries ---

    /// The configuration in force.
    #[must_use]
    pub const fn config(&self) -> &StreamConfig {
        &self.config
    }

    /// Its revision.
    #[must_use]
    pub const fn rev(&self) -> u64 {
        self.rev
    }

    /// When the stream was created.
    #[must_use]
    pub const fn created(&self) -> Wall {
        self.created
    }

    /// Totals.
    #[must_use]
    pub fn state(&self) -> StoreState {
        let mut state = self.store.state();
        if state.first_seq == StreamSeq(0) && self.config.first_seq == 1 {
            // Whoever has asked for it is told so before there is a message.
            state.first_seq = StreamSeq(1);
        }
        state
    }

    /// The messages: lookups by sequence, subject and time.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Last sequence used.
    #[must_use]
    pub const fn last_seq(&self) -> StreamSeq {
        self.store.last_seq()
    }

    /// Index of the last entry that was applied whole.
    #[must_use]
    pub const fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Term of that entry.
    #[must_use]
    pub const fn applied_term(&self) -> Term {
        self.term
    }

    /// The log's time: a new entry must not be stamped before it.
    #[must_use]
    pub const fn stamp(&self) -> Wall {
        self.clock
    }

    /// Whether no entry is under way: questions, digests and checkpoints are allowed.
    #[must_use]
    pub const fn is_at_boundary(&self) -> bool {
        self.entry.is_none()
    }

    /// The forward windows.
    #[must_use]
    pub const fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Where each source stands, by its key.
    pub fn sources(&self) -> impl Iterator<Item = (&[u8], &SourcePosition)> {
        self.sources.iter().map(|(key, position)| (&**key, position))
    }

    /// Where the source with this key stands.
    #[must_use]
    pub fn source(&self, key: &[u8]) -> Option<&SourcePosition> {
        self.sources.get(key)
    }

    // --- disk ---

    /// Starts to read what [`Step::Need`] or a lookup asks for; `false`: nothing has to be read, ask again at once.
    pub fn fetch(&mut self, need: Need) -> bool {
        self.store.fetch(need)
    }

    /// Takes the operations that are to be run.
    pub fn take_io(&mut self) -> Vec<IoRequest> {
        self.store.take_io()
    }

    /// An operation has ended.
    pub fn io_done(&mut self, done: &IoDone) -> StoreEvent {
        self.store.io_done(done)
    }

    /// After [`StoreEvent::WriteFailed`]: tries again.
    pub fn resume_writes(&mut self) {
        self.store.resume_writes();
    }

    /// Takes a damaged message as another replica has it; see [`Store::mend`].
    pub fn mend(&mut self, seq: StreamSeq, ts: i64, record: Bytes) -> bool {
        self.store.mend(seq, ts, record)
    }

    /// The disk does not give back the block of a message; see [`Store::give_up_block`].
    pub fn give_up_block(&mut self, seq: StreamSeq) {
        self.store.give_up_block(seq);
    }

    /// Lists the subjects of all messages anew; see [`Store::relist`].
    ///
    /// # Errors
    /// As [`Store::relist`].
    pub fn relist(&mut self, disk: &dyn Disk) -> Result<bool, StoreError> {
        self.store.relist(disk)
    }

    /// A block file of this name is damaged; see [`Store::suspect_file`].
    pub fn suspect_file(&mut self, name: &str) {
        self.store.suspect_file(name);
    }

    /// Reads the first block from a message on to see whether it is sound; see [`Store::scrub`].
    pub fn scrub(&mut self, from: StreamSeq) -> Option<StreamSeq> {
        self.store.scrub(from)
    }
}

fn store_kind(config: &StreamConfig) -> StoreKind {
    match config.storage {
        crate::config::Storage::File => StoreKind::File,
        crate::config::Storage::Memory => StoreKind::Memory,
    }
}

/// Nanoseconds of a duration, 0 for none.
pub(crate) fn ns(duration: Option<Duration>) -> i64 {
    duration.map_or(0, |duration| {
        i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
