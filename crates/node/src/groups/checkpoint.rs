//! Checkpoints: what lets the log forget.
//!
//! When the log of the worker has grown over its budget, the groups that hold most of its oldest segment are
//! checkpointed; once a checkpoint is durable the log is told that it may forget. A checkpoint holds what has changed since
//! the one before, and is appended to the group's file (see `chain`). It is a new base, and the file replaced, when what
//! was appended outgrows the base, and whenever the one before is not known to be durable in that file: at the first of a
//! process, after a failure, after a snapshot was made of the state or installed in its place.

use super::chain::{Head, PADDING_BYTES, RECORD_BYTES, RecordWriter, Tip};
use super::trouble::What;
use super::{Groups, Machine, Slot};
use crate::worker::{Core, IoJob, IoOwner};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::{GroupId, LogIndex, Mono, StreamSeq};
use tidelock_record::{FilePath, IoDone, IoError, IoOp, IoRequest, IoToken};
use tidelock_replica::LogPosition;
use tidelock_store::CheckpointKind;

/// A log that is too long is looked at this often: going over all its groups costs.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// If it is only kept for others, it is looked at again after this.
const LOOK_LATER: Duration = Duration::from_secs(1);
/// A block that the disk has refused is tried again after this long.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// What a group's checkpoints are at.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Folder of the stream's blocks, below `streams`.
    pub(super) folder: String,
    /// One is wanted as soon as the store is flushed.
    wanted: bool,
    writing: Option<Writing>,
    /// Up to where the last durable checkpoint goes.
    pub(super) covered: Option<LogPosition>,
    /// What the log was last told to forget.
    pub(super) forgotten: LogIndex,
    /// The last record of the file, if the next one may be a delta that goes with it.
    tip: Option<Tip>,
    /// Files of a state that a snapshot has replaced: they go once a checkpoint of the new one is durable.
    pub(super) left: Vec<FilePath>,
}

/// A checkpoint on its way to the disk.
#[derive(Debug)]
struct Writing {
    token: IoToken,
    /// Its number in the store, and what it contains.
    made: Made,
    tip: Tip,
    is_base: bool,
    /// The next one must be a base in any case.
    is_last: bool,
}

/// What a checkpoint contains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    /// Its number in the store; 0 for the metadata.
    number: u64,
    /// The log up to here.
    pub(super) position: LogPosition,
}

impl State {
    /// Of a group that begins with what a checkpoint, or its founding, has up to this position.
    pub(super) fn begin(folder: String, covered: LogPosition) -> Self {
        Self {
            covered: Some(covered),
            ..Self::in_folder(folder)
        }
    }

    /// Of a group whose blocks lie in this folder. Its next checkpoint is a base.
    pub(super) fn in_folder(folder: String) -> Self {
        Self {
            folder,
            ..Self::default()
        }
    }

    /// The state was told to somebody else: the next delta would be the difference to that.
    fn begin_anew(&mut self) {
        self.tip = None;
        if let Some(writing) = &mut self.writing {
            writing.is_last = true;
        }
    }
}

/// Files of the node that are being written or read.
#[derive(Debug, Default)]
pub(super) struct Files {
    next: u64,
    pub(super) out: BTreeMap<IoToken, FileJob>,
}

/// What a file operation is for.
#[derive(Debug)]
pub(super) enum FileJob {
    /// The checkpoint of a group.
    Checkpoint(GroupId),
    /// A file whose removal nobody waits for.
    Removal,
    /// A piece of a block file that a peer asked for.
    Read(Box<crate::cell::Request>),
    /// A piece of a snapshot that was received.
    Staged(GroupId),
    /// How much room there is.
    Space,
    /// The file that is kept for a checkpoint on a full disk.
    Reserve,
    /// Which cluster this store belongs to.
    Belonging,
    /// The names in a folder that is to be emptied.
    Folder(FilePath),
}

/// Where a group's checkpoints lie.
pub(super) fn checkpoint_file(group: GroupId) -> Result<FilePath, IoError> {
    FilePath::new(&format!("groups/{}", group.0))
}

/// Where a stream's blocks lie.
pub(super) fn blocks_folder(folder: &str) -> Result<FilePath, IoError> {
    FilePath::new(&format!("streams/{folder}"))
}

impl Files {
    pub(super) fn request(&mut self, job: FileJob, op: IoOp) -> IoRequest {
        self.next += 1;
        let token = IoToken(self.next);
        self.out.insert(token, job);
        IoRequest { token, op }
    }
}

impl Groups {
    /// Whether this worker has a log that holds more than so many bytes.
    fn log_is_longer(&self, than: u64) -> bool {
        self.lane
            .lane
            .as_ref()
            .is_some_and(|lane| lane.retained_bytes() > than)
    }
}

impl Core {
    /// Wants checkpoints where the log has grown too long, and writes those whose stores are flushed.
    pub(super) fn checkpoints(&mut self) {
        if self.groups.checkpoints_at <= self.now.mono && self.groups.log_is_longer(self.shared.budgets.log) {
            let pause = if self.want_checkpoints() {
                LOOK_AGAIN
            } else {
                LOOK_LATER
            };
            self.groups.checkpoints_at = self.now.mono + pause;
        }
        let ready: Vec<GroupId> = self.groups.wanted_checkpoints.iter().copied().collect();
        for group in ready {
            self.write_checkpoint(group);
        }
    }

    /// Wants checkpoints of the groups that hold most of what the log has beyond its budget, and has the rest copied
    /// forward. Whether there was something to be done.
    fn want_checkpoints(&mut self) -> bool {
        let (budget, remains) = (self.shared.budgets.log, self.shared.budgets.log_remains);
        let Some(lane) = &self.groups.lane.lane else {
            return false;
        };
        let retained = lane.retained(budget);
        let mut busy = false;
        for held in &retained.groups {
            if self.is_covered(held.group, held.last_beyond) {
                busy |= self.forget_log(held.group, held.last_in_oldest);
            } else if held.bytes_beyond > remains {
                self.want_checkpoint(held.group);
                busy = true;
            }
        }
        let lane = self.groups.lane.lane.as_mut();
        let requests = lane.map(|lane| lane.relocate(remains)).unwrap_or_default();
        if !requests.is_empty() {
            busy = true;
            self.out.io.push(IoJob {
                owner: IoOwner::Log,
                requests,
                inline: false,
            });
        }
        busy
    }

    /// Whether the last checkpoint of a group goes so far.
    fn is_covered(&self, group: GroupId, index: LogIndex) -> bool {
        let covered = self.slot(group).and_then(|slot| slot.checkpoint.covered);
        covered.is_some_and(|covered| covered.index >= index)
    }

    /// Wants a checkpoint of a group, if it writes to the log at all.
    pub(super) fn want_checkpoint(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let busy = slot.checkpoint.wanted || slot.checkpoint.writing.is_some();
        if busy || slot.failed.is_some() || !slot.durable {
            return;
        }
        slot.checkpoint.wanted = true;
        if let Machine::Stream(stream) = &mut slot.machine {
            stream.flush();
        }
        self.groups.wanted_checkpoints.insert(group);
        self.store_io(group);
    }

    fn write_checkpoint(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            self.groups.wanted_checkpoints.remove(&group);
            return;
        };
        if !slot.checkpoint_is_possible() {
            return;
        }
        let budgets = self.shared.budgets;
        if slot.backlog() > budgets.tail + 4 * budgets.block
            && let Machine::Stream(stream) = &mut slot.machine
        {
            // So much has come in meanwhile that it is better in blocks of its own than in the checkpoint.
            stream.flush();
            return self.store_io(group);
        }
        self.groups.wanted_checkpoints.remove(&group);
        slot.checkpoint.wanted = false;
        let Ok(file) = checkpoint_file(group) else { return };
        let before = slot.checkpoint.tip.take().filter(|tip| !tip.is_outgrown());
        let before = before.filter(|_| matches!(slot.machine, Machine::Stream(_)));
        let mut out = Vec::with_capacity(slot.checkpoint_bytes(before.is_some()));
        let (made, record) = slot.encode_checkpoint(before, &mut out);
        let tip = record.end_page();
        let data = Bytes::from(out);
        let op = match before {
            None => self.groups.space.replace(file, data),
            Some(before) => IoOp::Write {
                file,
                offset: before.end(),
                parts: vec![data],
                sync: true,
            },
        };
        let request = self.groups.files.request(FileJob::Checkpoint(group), op);
        slot.checkpoint.writing = Some(Writing {
            token: request.token,
            made,
            tip,
            is_base: before.is_none(),
            is_last: false,
        });
        self.out.io.push(IoJob {
            owner: IoOwner::Node,
            requests: vec![request],
            inline: false,
        });
    }

    /// A file operation of the node has ended.
    pub(super) fn file_done(&mut self, done: &IoDone) {
        let Some(job) = self.groups.files.out.remove(&done.token) else {
            return;
        };
        match job {
            FileJob::Checkpoint(group) => self.checkpoint_written(group, done),
            FileJob::Removal => {}
            FileJob::Read(request) => self.file_piece_read(&request, done),
            FileJob::Staged(group) => self.staged(group, done),
            FileJob::Space => self.space_known(done),
            FileJob::Reserve => self.reserve_made(done),
            FileJob::Belonging => self.belonging_written(done),
            FileJob::Folder(dir) => self.folder_listed(&dir, done),
        }
    }

    fn checkpoint_written(&mut self, group: GroupId, done: &IoDone) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        // One of a replica that was here before, or of a state that a snapshot has replaced, says nothing about this one.
        let Some(writing) = slot
            .checkpoint
            .writing
            .take_if(|writing| writing.token == done.token)
        else {
            return;
        };
        if let Err(error) = &done.result {
            let (name, error) = (slot.name.clone(), error.clone());
            self.trouble(
                What::Checkpoints,
                &format_args!("Checkpoint of stream {name:?} not written: {error}"),
            );
            return self.checkpoint_failed(group, writing.is_base, &error);
        }
        self.trouble_over(What::Checkpoints);
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if !writing.is_last {
            slot.checkpoint.tip = Some(writing.tip);
        }
        let Made { number, position } = writing.made;
        if let Machine::Stream(stream) = &mut slot.machine {
            stream.checkpoint_durable(number);
        }
        slot.raft.compact(position.index);
        slot.checkpoint.covered = Some(position);
        let left = std::mem::take(&mut slot.checkpoint.left);
        self.remove_all(left.into_iter());
        self.forget_log(group, LogIndex(0));
        self.store_io(group);
        self.files_have_gone();
    }

    /// An operation of a stream's store has ended.
    pub(super) fn store_done(&mut self, group: GroupId, done: &IoDone) {
        use tidelock_store::StoreEvent;
        let now = self.now.mono;
        let Some(slot) = self.slot_mut(group) else { return };
        let Machine::Stream(stream) = &mut slot.machine else {
            return;
        };
        match stream.io_done(done) {
            StoreEvent::Nothing => {}
            StoreEvent::Sealed { .. } => self.trouble_over(What::Blocks),
            StoreEvent::Arrived { from, upto } => self.block_answered(group, from, upto),
            StoreEvent::Mended { from, upto } => {
                self.block_answered(group, from, upto);
                // The last one names the damaged file.
                self.want_checkpoint(group);
            }
            StoreEvent::Damaged { from, upto } => {
                self.damage_found(group);
                self.block_answered(group, from, upto);
            }
            StoreEvent::ReadFailed { from, upto, error } => self.block_unread(group, from, upto, &error),
            StoreEvent::WriteFailed(error) => {
                slot.write_again_at = Some(now + WRITE_AGAIN);
                let name = slot.name.clone();
                self.trouble(
                    What::Blocks,
                    &format_args!(
                        "A block of stream {name:?} could not be written and is tried again: {error}"
                    ),
                );
            }
        }
        self.store_io(group);
    }

    /// The disk has failed to read a block. If it does so again and again, and there are other replicas, the block is
    /// taken for damaged.
    pub(super) fn block_unread(&mut self, group: GroupId, from: StreamSeq, upto: StreamSeq, error: &IoError) {
        let now = self.now.mono;
        let Some(slot) = self.slot_mut(group) else { return };
        let name = slot.name.clone();
        let gives_up = slot.unread.failed(from, upto, now) && slot.has_others();
        self.trouble(
            What::Reads(group),
            &format_args!("A block of stream {name:?} could not be read and is tried again: {error}"),
        );
        if gives_up
            && let Some(slot) = self.slot_mut(group)
            && let Machine::Stream(stream) = &mut slot.machine
        {
            stream.give_up_block(from);
            self.damage_found(group);
            self.block_answered(group, from, upto);
        }
    }

    /// Something of a block was read, or cannot be: those that wait for it ask again.
    fn block_answered(&mut self, group: GroupId, from: StreamSeq, upto: StreamSeq) {
        let Some(slot) = self.slot_mut(group) else { return };
        slot.wake_fetches(from, upto);
        if slot.unread.arrived(from, upto) {
            self.trouble_over(What::Reads(group));
        }
    }
}

impl Slot {
    /// Goes on writing blocks if the disk has refused one and has had its pause.
    pub(super) fn write_again(&mut self, now: Mono) {
        if self.write_again_at.is_some_and(|at| at <= now) {
            self.write_again_at = None;
            if let Machine::Stream(stream) = &mut self.machine {
                stream.resume_writes();
            }
        }
    }

    fn checkpoint_is_possible(&self) -> bool {
        let flushed = match &self.machine {
            Machine::Stream(stream) => stream.is_at_boundary() && stream.store().is_flushed(),
            Machine::Meta(_) => true,
        };
        flushed && self.applying.is_none() && self.checkpoint.writing.is_none()
    }

    /// What a checkpoint will take, as room to be made for it.
    fn checkpoint_bytes(&self, is_delta: bool) -> usize {
        let state = match &self.machine {
            Machine::Stream(stream) => stream.checkpoint_bytes(kind(is_delta)),
            Machine::Meta(_) => 0,
        };
        state + RECORD_BYTES + PADDING_BYTES
    }

    /// Begins a record with the state as of the last entry applied: what has changed since the checkpoint `before`, or
    /// all of it. The caller ends it.
    fn encode_checkpoint<'a>(
        &mut self,
        before: Option<Tip>,
        out: &'a mut Vec<u8>,
    ) -> (Made, RecordWriter<'a>) {
        let (index, term) = match &self.machine {
            Machine::Stream(stream) => (stream.applied(), stream.applied_term()),
            Machine::Meta(meta) => (meta.applied(), self.applied_term),
        };
        let position = LogPosition { index, term };
        let (members, members_at) = self.raft.members();
        let head = Head {
            replica: self.me,
            folder: &self.checkpoint.folder,
            position,
            members_at,
            members,
        };
        let mut record = RecordWriter::begin(out, before, &head);
        let number = match &mut self.machine {
            Machine::Stream(stream) => stream.checkpoint(kind(before.is_some()), record.out()),
            Machine::Meta(meta) => {
                record.out().extend_from_slice(&meta.checkpoint());
                0
            }
        };
        (Made { number, position }, record)
    }

    /// Appends the whole state for somebody else: a base that stands alone. This replica's own next checkpoint is a base
    /// then, since the state counts what it has told once.
    pub(super) fn encode_whole(&mut self, out: &mut Vec<u8>) -> LogPosition {
        self.checkpoint.begin_anew();
        out.reserve(self.checkpoint_bytes(false));
        let (made, record) = self.encode_checkpoint(None, out);
        record.end_alone();
        made.position
    }
}

const fn kind(is_delta: bool) -> CheckpointKind {
    if is_delta {
        CheckpointKind::Delta
    } else {
        CheckpointKind::Full
    }
}
