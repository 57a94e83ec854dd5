//! Checkpoints: what lets the log forget.
//!
//! A group's checkpoint file, `groups/<id>`, is replaced as a whole: magic, folder of its blocks, position in the log,
//! members, state of the machine, checksum. When the log of the worker has grown over its budget, the groups that hold
//! most of its oldest segment are checkpointed; once the file is durable the log is told that it may forget.

use super::{Groups, Machine, Slot};
use crate::worker::{Core, IoJob, IoOwner};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::{GroupId, LogIndex, Mono, ReplicaId, Term};
use tidelock_record::{FilePath, IoDone, IoError, IoOp, IoRequest, IoToken};
use tidelock_replica::{LogPosition, Members};
use tidelock_store::CheckpointKind;
use tidelock_wal::WalRecord;

/// A log that is too long is looked at this often: going over all its groups costs.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// A block that the disk has refused is tried again after this long.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
const MAGIC: &[u8; 8] = b"TLCHECK1";

/// What a group's checkpoints are at.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Folder of the stream's blocks, below `streams`.
    pub(super) folder: String,
    /// One is wanted as soon as the store is flushed.
    wanted: bool,
    /// One is being written: its number in the store, and what it contains.
    writing: Option<(u64, LogPosition)>,
}

impl State {
    /// Of a group whose blocks lie in this folder.
    pub(super) fn in_folder(folder: String) -> Self {
        Self {
            folder,
            ..Self::default()
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
    /// Which cluster this store belongs to.
    Belonging,
    /// The names in a folder that is to be emptied.
    Folder(FilePath),
}

/// A checkpoint as it is read back.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// Whose it is.
    pub(super) replica: ReplicaId,
    pub(super) folder: String,
    pub(super) position: LogPosition,
    pub(super) members_at: LogIndex,
    pub(super) members: Members,
    pub(super) state: Bytes,
}

impl Checkpoint {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = MAGIC.to_vec();
        let members = self.members.encode();
        put(&mut out, self.folder.as_bytes());
        let position = self.position;
        for number in [
            self.replica.0,
            position.index.0,
            position.term.0,
            self.members_at.0,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put(&mut out, &members);
        put(&mut out, &self.state);
        let sum = crc32c::crc32c(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        Bytes::from(out)
    }

    /// Reads a checkpoint; `None` if it is damaged.
    pub(super) fn decode(bytes: &Bytes) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return None;
        }
        let mut rest = body.strip_prefix(MAGIC)?;
        let folder = String::from_utf8(take(&mut rest)?.to_vec()).ok()?;
        let replica = ReplicaId(number(&mut rest)?);
        let index = LogIndex(number(&mut rest)?);
        let term = Term(number(&mut rest)?);
        let members_at = LogIndex(number(&mut rest)?);
        let members = Members::decode(take(&mut rest)?).ok()?;
        let state = bytes.slice_ref(take(&mut rest)?);
        Some(Self {
            replica,
            folder,
            position: LogPosition { index, term },
            members_at,
            members,
            state,
        })
    }
}

/// Appends a length and bytes.
pub(super) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Takes what [`put`] has appended.
pub(super) fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(number(rest)?).ok()?;
    let (front, back) = rest.split_at_checked(len)?;
    *rest = back;
    Some(front)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (front, back) = rest.split_first_chunk::<8>()?;
    *rest = back;
    Some(u64::from_le_bytes(*front))
}

/// Where a group's checkpoint lies.
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
            self.groups.checkpoints_at = self.now.mono + LOOK_AGAIN;
            self.want_checkpoints();
        }
        let ready: Vec<GroupId> = self.groups.wanted_checkpoints.iter().copied().collect();
        for group in ready {
            self.write_checkpoint(group);
        }
    }

    fn want_checkpoints(&mut self) {
        let remains = self.shared.budgets.log_remains;
        let Some(lane) = &mut self.groups.lane.lane else {
            return;
        };
        let retained = lane.retained();
        let requests = lane.relocate(remains);
        if !requests.is_empty() {
            self.out.io.push(IoJob {
                owner: IoOwner::Log,
                requests,
                inline: false,
            });
        }
        for held in retained
            .groups
            .iter()
            .filter(|held| held.bytes_in_oldest > remains)
        {
            self.want_checkpoint(held.group);
        }
    }

    /// Wants a checkpoint of a group.
    pub(super) fn want_checkpoint(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if slot.checkpoint.wanted || slot.checkpoint.writing.is_some() || slot.failed.is_some() {
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
        slot.checkpoint.wanted = false;
        let (number, checkpoint) = slot.make_checkpoint();
        slot.checkpoint.writing = Some((number, checkpoint.position));
        self.groups.wanted_checkpoints.remove(&group);
        let Ok(file) = checkpoint_file(group) else { return };
        let op = IoOp::Replace {
            file,
            data: checkpoint.encode(),
        };
        let request = self.groups.files.request(FileJob::Checkpoint(group), op);
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
            FileJob::Belonging => self.belonging_written(done),
            FileJob::Folder(dir) => self.folder_listed(&dir, done),
        }
    }

    fn checkpoint_written(&mut self, group: GroupId, done: &IoDone) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let Some((number, position)) = slot.checkpoint.writing.take() else {
            return;
        };
        if let Err(error) = &done.result {
            tracing::warn!("Checkpoint of stream {:?} not written: {error}", slot.name);
            return;
        }
        if let Machine::Stream(stream) = &mut slot.machine {
            stream.checkpoint_durable(number);
        }
        slot.raft.compact(position.index);
        let durable = slot.durable;
        if durable {
            self.groups.log(&WalRecord::Truncated {
                group,
                index: position.index,
                term: position.term,
            });
        }
        self.store_io(group);
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
            StoreEvent::Nothing | StoreEvent::Sealed { .. } => {}
            StoreEvent::Arrived { from, upto } | StoreEvent::Damaged { from, upto } => {
                let (ready, later): (Vec<_>, Vec<_>) = slot
                    .fetches
                    .drain(..)
                    .partition(|fetch| (from..=upto).contains(&fetch.seq));
                slot.fetches.extend(later);
                slot.reads
                    .extend(ready.into_iter().map(|fetch| (LogIndex(0), fetch.waiter)));
            }
            StoreEvent::ReadFailed { .. } => {
                tracing::warn!("A block of stream {:?} could not be read", slot.name);
                let all: Vec<_> = slot.fetches.drain(..).collect();
                slot.reads
                    .extend(all.into_iter().map(|fetch| (LogIndex(0), fetch.waiter)));
            }
            StoreEvent::WriteFailed(error) => {
                tracing::warn!(
                    "A block of stream {:?} could not be written and will be tried again: {error}",
                    slot.name
                );
                slot.write_again_at = Some(now + WRITE_AGAIN);
            }
        }
        self.store_io(group);
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

    /// The state as of the last entry applied.
    pub(super) fn make_checkpoint(&mut self) -> (u64, Checkpoint) {
        let mut state = Vec::new();
        let (number, index, term) = match &mut self.machine {
            Machine::Stream(stream) => {
                let number = stream.checkpoint(CheckpointKind::Full, &mut state);
                (number, stream.applied(), stream.applied_term())
            }
            Machine::Meta(meta) => {
                state = meta.checkpoint();
                (0, meta.applied(), self.applied_term)
            }
        };
        let (members, members_at) = self.raft.members();
        let checkpoint = Checkpoint {
            replica: self.me,
            folder: self.checkpoint.folder.clone(),
            position: LogPosition { index, term },
            members_at,
            members: members.clone(),
            state: Bytes::from(state),
        };
        (number, checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_come_back_and_damage_is_noticed() {
        let checkpoint = Checkpoint {
            replica: ReplicaId(5),
            folder: "7.1".to_owned(),
            position: LogPosition {
                index: LogIndex(9),
                term: Term(2),
            },
            members_at: LogIndex(4),
            members: Members::of_voters(&[ReplicaId(1), ReplicaId(5)]),
            state: Bytes::from_static(b"state"),
        };
        let bytes = checkpoint.encode();
        let read = Checkpoint::decode(&bytes).expect("whole");
        assert_eq!(
            (read.replica, read.folder.as_str(), read.position, read.members_at),
            (ReplicaId(5), "7.1", checkpoint.position, LogIndex(4))
        );
        assert_eq!((read.members, read.state), (checkpoint.members, checkpoint.state));
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert!(Checkpoint::decode(&Bytes::from(damaged)).is_none());
        }
        assert!(Checkpoint::decode(&bytes.slice(..bytes.len() - 1)).is_none());
    }
}
