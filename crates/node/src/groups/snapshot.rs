//! Filling a replica whose leader has no log for it any more: a manifest, the state, and the block files that it names.
//!
//! The leader pins its files, makes a checkpoint and offers it; the receiver fetches the state and the files into a folder
//! of its own, piece by piece, and syncs them, and brings the state back from them; only then the log is told. Its record of
//! the installed snapshot is the point from which the new state counts (DESIGN section 9), whatever crashes before or
//! after. Whatever fails before that point leaves the old state as it was: the files go, and the leader offers a
//! snapshot again.
//!
//! **Damage does not travel.** The manifest has a checksum of each file. A file that does not come to it is not taken: the
//! leader is told, mends the block ([`super::mending`]) and offers another snapshot. If that is damaged again nobody else
//! has what is lost, and a replica with all the rest is better than none: it is taken, and looked through at once.

use super::chain::{Checkpoint, put, take};
use super::checkpoint::{self, FileJob, blocks_folder};
use super::manifest::{File, Manifest, STATE, state_file};
use super::mending::MESSAGES_NUMBERS;
use super::trouble::What;
use super::{Machine, Slot};
use crate::cell::{Cell, LaneKind, Reply, Request, RequestId};
use crate::worker::{Core, IoJob, IoOwner};
use bytes::Bytes;
use std::time::Duration;
use tidelock_base::{AccountId, GroupId, LogIndex, Mono, NodeId, ReplicaId};
use tidelock_jetstream::command::WindowKey;
use tidelock_record::{FilePath, IoDone, IoError, IoOp, IoOutput, IoToken};
use tidelock_replica::{Group, Install, InstallError, LogPosition, Members, OfferError, SnapshotEvents};
use tidelock_store::OnLoss;

/// Subject of a request for a piece of a file; never a client's.
const FILE_SUBJECT: &[u8] = b"$TL.FILE";
/// Bytes of one piece.
const PIECE: u64 = 1 << 20;
/// A transfer from which nothing is heard for this long is given up.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// The state of a received snapshot is brought back at this attempt at the latest, or the files are fetched anew.
const RESTORES_MAX: usize = 3;
/// Pause between two attempts.
const RESTORE_AGAIN: Duration = Duration::from_secs(1);
/// Offset in a request for a piece that says that the file is damaged.
const IS_DAMAGED: u64 = u64::MAX;
/// Request numbers from here on are pieces of files.
const FILE_NUMBERS: u64 = 1 << 62;

/// Transfers of one group, in either direction.
#[derive(Default)]
pub(super) struct Transfers {
    /// As leader: whom to offer a snapshot once the store is flushed.
    needed: Vec<ReplicaId>,
    /// As leader: what is offered is kept until then.
    pinned_until: Option<Mono>,
    /// As leader: what is offered, to all who need a snapshot.
    offered: Option<Offered>,
    /// As receiver.
    staging: Option<Staging>,
    /// As receiver: a snapshot before had a damaged file.
    takes_damaged: bool,
}

/// A snapshot that a leader offers.
#[derive(Clone)]
struct Offered {
    position: LogPosition,
    members: Members,
    manifest: Bytes,
    /// The state, which is asked for in pieces.
    state: Bytes,
}

/// A snapshot that is being received.
struct Staging {
    install: Install,
    from: NodeId,
    /// What is still to be fetched, and where it is put.
    manifest: Manifest,
    /// The state, as far as it is here, and what it says.
    state: Vec<u8>,
    checkpoint: Option<Checkpoint>,
    /// How much of the first of the files is here, and its checksum.
    offset: u64,
    sum: u32,
    /// A file is not what the leader has written.
    is_damaged: bool,
    heard: Mono,
    created: bool,
    /// The write of a piece that is out: the late end of one for a snapshot that was given up is not this one's.
    writing: Option<IoToken>,
    /// Its files so far, whole or not.
    begun: Vec<FilePath>,
    /// The state could not be brought back so often, and is tried again at this time.
    failures: usize,
    again_at: Option<Mono>,
    /// The state. From here on the log may name the files, and nothing is given up any more.
    machine: Option<Machine>,
}

impl Transfers {
    /// When the state of a snapshot that was received is to be brought back once more.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.staging.as_ref().and_then(|staging| staging.again_at)
    }

    /// The files of a snapshot that is being received.
    pub(super) fn into_files(self) -> Vec<FilePath> {
        self.staging.map_or_else(Vec::new, |staging| staging.begun)
    }
}

impl Slot {
    /// Whether a snapshot is being received: the replica lacks what its leader does not have as entries any more.
    pub(crate) const fn is_receiving(&self) -> bool {
        self.transfers.staging.is_some()
    }
}

impl Transfers {
    /// A piece of the state that is offered under this name; empty if that is not it.
    fn piece_of_state(&self, name: &str, offset: u64, len: u64) -> Bytes {
        let offered = self.offered.as_ref();
        let offered = offered.filter(|offered| name == name_of_state(offered.position));
        let piece = offered.and_then(|offered| {
            let from = usize::try_from(offset).ok()?;
            let upto = usize::try_from(offset.checked_add(len)?).ok()?;
            (from <= upto && upto <= offered.state.len()).then(|| offered.state.slice(from..upto))
        });
        piece.unwrap_or_default()
    }

    /// Whether nothing is sent, received, or kept for somebody.
    pub(super) const fn are_none(&self) -> bool {
        self.needed.is_empty() && self.pinned_until.is_none() && self.staging.is_none()
    }
}

/// Under which name the state as of a position is asked for: there may be a newer one by then.
fn name_of_state(position: LogPosition) -> String {
    format!("{STATE}.{}.{}", position.index, position.term)
}

/// Names a piece of a file, in a request for it and in the answer.
fn piece_of(name: &str, offset: u64, len: u64) -> Bytes {
    let mut out = Vec::new();
    put(&mut out, name.as_bytes());
    put(&mut out, &offset.to_le_bytes());
    put(&mut out, &PIECE.min(len.saturating_sub(offset)).to_le_bytes());
    Bytes::from(out)
}

impl Core {
    /// What a group's consensus wants about snapshots.
    pub(super) fn snapshot_events(&mut self, group: GroupId, events: SnapshotEvents) {
        if let Some(restored) = events.restored {
            self.snapshot_restored(group, restored.position);
        }
        if !events.needed.is_empty()
            && let Some(slot) = self.slot_mut(group)
        {
            for replica in events.needed {
                if !slot.transfers.needed.contains(&replica) {
                    slot.transfers.needed.push(replica);
                }
            }
            if let Machine::Stream(stream) = &mut slot.machine {
                stream.flush();
            }
            self.store_io(group);
        }
        if let Some(install) = events.install {
            self.begin_install(group, install);
        }
    }

    /// Offers snapshots where they are wanted, gives up what has gone quiet.
    pub(super) fn tick_snapshots(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        slot.unpin_offered(now);
        if let Some(staging) = &slot.transfers.staging {
            let quiet = staging.heard + QUIET_MAX <= now && staging.machine.is_none();
            if staging.again_at.is_some_and(|at| at <= now) {
                self.bring_back(group);
            } else if quiet {
                tracing::warn!(
                    "Snapshot of stream {:?} was not received in time; asking again",
                    slot.name
                );
                self.give_up_install(group);
            }
        }
        self.offer_snapshots(group);
    }

    fn offer_snapshots(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if slot.transfers.needed.is_empty() || slot.applying.is_some() || slot.is_mending() {
            return;
        }
        if let Machine::Stream(stream) = &mut slot.machine {
            if !stream.is_at_boundary() || !stream.store().is_flushed() {
                stream.flush();
                self.store_io(group);
                return;
            }
            if slot.transfers.pinned_until.is_none() {
                stream.pin();
            }
        }
        slot.transfers.pinned_until = Some(now + QUIET_MAX * 2);
        for to in std::mem::take(&mut slot.transfers.needed) {
            if let Err(error) = slot.offer_snapshot(to) {
                tracing::debug!(
                    "Snapshot of stream {:?} not offered to replica {to}: {error}",
                    slot.name
                );
                slot.raft.snapshot_failed(to);
            }
        }
        self.groups.touched.insert(group);
    }

    /// A snapshot is offered to this replica: its files are fetched.
    fn begin_install(&mut self, group: GroupId, install: Install) {
        let now = self.now.mono;
        let Some(slot) = self.slot_mut(group) else { return };
        let manifest = Manifest::decode(&install.manifest, install.position.index);
        let Some((manifest, from)) = manifest.zip(slot.node_of(install.from)) else {
            slot.raft.install_failed(install.position);
            return;
        };
        debug_assert!(slot.transfers.staging.is_none(), "one at a time");
        slot.transfers.staging = Some(Staging {
            install,
            from,
            manifest,
            state: Vec::new(),
            checkpoint: None,
            offset: 0,
            sum: 0,
            is_damaged: false,
            heard: now,
            created: false,
            writing: None,
            begun: Vec::new(),
            failures: 0,
            again_at: None,
            machine: None,
        });
        self.next_piece(group);
    }

    /// Gives up a snapshot that is being received: what has been written of it goes, and the leader finds out. The log
    /// does not know of it. Operations on files run in order, so that what is still being written goes, too, and a
    /// snapshot that is received next may use the same names.
    fn give_up_install(&mut self, group: GroupId) {
        let Some(slot) = self.slot_mut(group) else { return };
        let Some(staging) = slot.transfers.staging.take() else {
            return;
        };
        slot.raft.install_failed(staging.install.position);
        self.remove_all(staging.begun.into_iter());
    }

    /// A node is not reached any more: what was asked of it does not come. What is still to be received from there is
    /// given up, and whoever leads now, or that node when it is there again, offers a snapshot anew.
    pub(crate) fn transfers_node_lost(&mut self, node: NodeId) {
        let from_there = |staging: &Staging| staging.from == node && !staging.manifest.files.is_empty();
        let slots = self.groups.slots.iter();
        let lost: Vec<GroupId> = slots
            .filter(|(_, slot)| slot.transfers.staging.as_ref().is_some_and(from_there))
            .map(|(group, _)| *group)
            .collect();
        for group in lost {
            self.give_up_install(group);
        }
    }

    /// Asks for the next piece of the next file, or takes the snapshot once all are there.
    fn next_piece(&mut self, group: GroupId) {
        let Some(slot) = self.slot_mut(group) else { return };
        let Some(staging) = &mut slot.transfers.staging else {
            return;
        };
        let Some((piece, from)) = staging.wanted().zip(Some(staging.from)) else {
            return self.bring_back(group);
        };
        self.ask_for_piece(group, from, piece);
    }

    fn ask_for_piece(&mut self, group: GroupId, from: NodeId, piece: Bytes) {
        self.ask_replica(group, from, FILE_NUMBERS | group.0, FILE_SUBJECT, piece);
    }

    /// Asks a node's replica of a group something that no client asks. The answer comes to [`Core::internal_reply`].
    pub(super) fn ask_replica(
        &mut self,
        group: GroupId,
        node: NodeId,
        number: u64,
        subject: &'static [u8],
        payload: Bytes,
    ) {
        let me = self.shared.identity.node;
        let sender = WindowKey {
            boot: self.shared.identity.boot,
            worker: self.id,
        };
        let request = Request {
            id: RequestId { sender, number },
            node: me,
            group: Some(group),
            account: AccountId(0),
            subject: Bytes::from_static(subject),
            reply: Bytes::new(),
            header: Bytes::new(),
            payload,
            client: Bytes::new(),
            after: 0,
        };
        self.send_cell(node, LaneKind::Bulk, Cell::Request(Box::new(request)));
    }

    /// A peer asks for a piece of a file; `false` if the request is something else.
    pub(super) fn file_request(&mut self, request: &Request) -> bool {
        if request.subject != FILE_SUBJECT {
            return false;
        }
        let now = self.now.mono;
        let Some(group) = request.group else { return true };
        let Some(slot) = self.slot_mut(group) else {
            return true;
        };
        if slot.transfers.pinned_until.is_none() {
            return true;
        }
        slot.transfers.pinned_until = Some(now + QUIET_MAX * 2);
        let mut rest = request.payload.as_ref();
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        let parsed = take(&mut rest)
            .and_then(|name| std::str::from_utf8(name).ok())
            .zip(
                take(&mut rest)
                    .and_then(number)
                    .zip(take(&mut rest).and_then(number)),
            );
        let Some((name, (offset, len))) = parsed else {
            return true;
        };
        if offset == IS_DAMAGED {
            slot.transfers.offered = None;
            if let Machine::Stream(stream) = &mut slot.machine {
                stream.suspect_file(name);
            }
            return true;
        }
        let len = len.min(PIECE);
        if name.starts_with(STATE) {
            let piece = slot.transfers.piece_of_state(name, offset, len);
            self.answer_piece(request, piece);
            return true;
        }
        let file = blocks_folder(&slot.checkpoint.folder).and_then(|folder| folder.join(name));
        let Ok(file) = file else { return true };
        let op = IoOp::Read { file, offset, len };
        let io = self
            .groups
            .files
            .request(FileJob::Read(Box::new(request.clone())), op);
        self.out.io.push(IoJob {
            owner: IoOwner::Node,
            requests: vec![io],
            inline: false,
        });
        true
    }

    /// A piece that a peer asked for was read.
    pub(super) fn file_piece_read(&mut self, request: &Request, done: &IoDone) {
        let payload = match &done.result {
            Ok(IoOutput::Data(data)) => data.clone(),
            Ok(_) => Bytes::new(),
            Err(error) => {
                self.piece_unread(request, error);
                Bytes::new()
            }
        };
        self.answer_piece(request, payload);
    }

    /// Answers with a piece; an empty one is none.
    fn answer_piece(&mut self, request: &Request, payload: Bytes) {
        let reply = Reply {
            id: request.id,
            // What the piece is of: one that was asked for earlier may come late.
            header: request.payload.clone(),
            payload,
            last: true,
            after_meta: LogIndex(0),
        };
        self.send_cell(request.node, LaneKind::Bulk, Cell::Reply(Box::new(reply)));
    }

    /// The disk does not give back a piece of a block.
    fn piece_unread(&mut self, request: &Request, error: &IoError) {
        let name = take(&mut request.payload.as_ref()).and_then(|name| std::str::from_utf8(name).ok());
        let Some((group, name)) = request.group.zip(name) else {
            return;
        };
        if let Some((from, upto)) = self
            .stream(group)
            .and_then(|stream| stream.store().block_named(name))
        {
            self.block_unread(group, from, upto, error);
        }
    }

    /// A reply between nodes; `false` if it is for a client's request.
    pub(crate) fn internal_reply(&mut self, reply: &Reply) -> bool {
        if reply.id.number & MESSAGES_NUMBERS != 0 {
            self.messages_came(GroupId(reply.id.number & !MESSAGES_NUMBERS), reply);
            return true;
        }
        if reply.id.number & FILE_NUMBERS == 0 {
            return false;
        }
        let group = GroupId(reply.id.number & !FILE_NUMBERS);
        let now = self.now.mono;
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return true;
        };
        let Some(staging) = &mut slot.transfers.staging else {
            return true;
        };
        if staging.wanted().is_none_or(|wanted| reply.header != wanted) {
            return true;
        }
        let Some(File { name, len, crc }) = staging.manifest.files.front().cloned() else {
            return true;
        };
        staging.heard = now;
        if reply.payload.len() as u64 != PIECE.min(len - staging.offset) {
            // The sender could not read it. What is there is no snapshot, and another attempt may fare better.
            tracing::warn!(
                "Snapshot of stream {:?} not received: {name} cannot be read",
                slot.name
            );
            self.give_up_install(group);
            return true;
        }
        staging.sum = crc32c::crc32c_append(staging.sum, &reply.payload);
        if staging.offset + reply.payload.len() as u64 >= len && staging.sum != crc {
            staging.is_damaged = true;
            if name == STATE || !slot.transfers.takes_damaged {
                self.refuse_damaged(group, &name);
                return true;
            }
        }
        if name == STATE {
            staging.take_state(&reply.payload, len);
            if !slot.durable {
                // Nothing of it is kept on the disk.
                staging.pass(reply.payload.len() as u64, len);
                self.next_piece(group);
                return true;
            }
        }
        self.stage_piece(group, &name, len, reply.payload.clone());
        true
    }

    /// Writes a piece behind what is there of its file.
    fn stage_piece(&mut self, group: GroupId, name: &str, len: u64, piece: Bytes) {
        let slot = self.groups.slots.get_mut(&group);
        let Some(staging) = slot.and_then(|slot| slot.transfers.staging.as_mut()) else {
            return;
        };
        let path = blocks_folder(&staging.manifest.folder).and_then(|folder| folder.join(name));
        let Ok(file) = path else { return };
        let mut requests = Vec::new();
        let files = &mut self.groups.files;
        if staging.offset == 0 && !staging.created {
            staging.created = true;
            staging.begun.push(file.clone());
            requests.push(files.request(FileJob::Removal, IoOp::Remove { file: file.clone() }));
            requests.push(files.request(
                FileJob::Removal,
                IoOp::Create {
                    file: file.clone(),
                    len: 0,
                },
            ));
        }
        let offset = staging.offset;
        let whole = staging.pass(piece.len() as u64, len);
        let write = IoOp::Write {
            file,
            offset,
            parts: vec![piece],
            sync: whole,
        };
        let request = files.request(FileJob::Staged(group), write);
        staging.writing = Some(request.token);
        requests.push(request);
        self.out.io.push(IoJob {
            owner: IoOwner::Node,
            requests,
            inline: false,
        });
    }

    /// A file of a snapshot is damaged where it comes from.
    fn refuse_damaged(&mut self, group: GroupId, name: &str) {
        let Some(slot) = self.slot_mut(group) else { return };
        let Some(from) = slot.transfers.staging.as_ref().map(|staging| staging.from) else {
            return;
        };
        // A state is of no use then.
        slot.transfers.takes_damaged |= name != STATE;
        tracing::warn!(
            "Snapshot of stream {:?} not received: {name} is damaged on its leader",
            slot.name
        );
        self.ask_for_piece(group, from, piece_of(name, IS_DAMAGED, 0));
        self.give_up_install(group);
    }

    /// A piece is written.
    pub(super) fn staged(&mut self, group: GroupId, done: &IoDone) {
        let Some(slot) = self.slot_mut(group) else { return };
        let name = &slot.name;
        let staging = slot.transfers.staging.as_mut();
        let Some(staging) = staging.filter(|staging| staging.writing == Some(done.token)) else {
            return;
        };
        staging.writing = None;
        if let Err(error) = &done.result {
            tracing::warn!("Snapshot of stream {name:?} cannot be written: {error}");
            return self.give_up_install(group);
        }
        self.next_piece(group);
    }

    /// All files of a snapshot are there and synced: the state is brought back from them, and the log is told.
    fn bring_back(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(disk) = self.disk.clone() else { return };
        let sizes = self.next_sizes();
        let Some(slot) = self.slot_mut(group) else { return };
        let name = std::sync::Arc::clone(&slot.name);
        let Some(staging) = &mut slot.transfers.staging else {
            return;
        };
        if staging.machine.is_some() {
            return;
        }
        staging.heard = now;
        let checkpoint = staging
            .checkpoint
            .as_ref()
            .ok_or_else(|| "its state is damaged".to_owned());
        let restored = checkpoint.and_then(|checkpoint| {
            super::open::restore(
                group,
                checkpoint,
                (&name, false),
                (&*disk, &sizes),
                OnLoss::Refuse,
            )
        });
        match restored {
            Ok(machine) => {
                let position = staging.install.position;
                staging.again_at = None;
                staging.machine = Some(machine);
                staging.checkpoint = None;
                let told = slot.raft.installed(position);
                match told {
                    Ok(()) => {}
                    // A replica that has stopped leaves everything as it is until the next start.
                    Err(InstallError::Failed) => slot.transfers.staging = None,
                    Err(InstallError::NotStaging) => self.give_up_install(group),
                }
                self.trouble_over(What::Snapshots);
            }
            Err(text) => {
                // A read that fails once is no damage.
                staging.failures += 1;
                let again = staging.failures < RESTORES_MAX;
                staging.again_at = again.then(|| now + RESTORE_AGAIN);
                self.trouble(
                    What::Snapshots,
                    &format_args!(
                        "A snapshot of stream {name:?} was received and cannot be read, and is tried again: {text}"
                    ),
                );
                if !again {
                    self.give_up_install(group);
                }
            }
        }
    }

    /// A snapshot is durable and in force: the state is swapped for it.
    fn snapshot_restored(&mut self, group: GroupId, position: LogPosition) {
        let Some(slot) = self.slot_mut(group) else { return };
        let staging = slot
            .transfers
            .staging
            .take_if(|staging| staging.install.position == position);
        let is_damaged = staging.as_ref().is_some_and(|staging| staging.is_damaged);
        let Some((machine, folder)) =
            staging.and_then(|staging| Some((staging.machine?, staging.manifest.folder)))
        else {
            let text = "a snapshot is in force whose state is not here".to_owned();
            return self.stop_replica(group, text);
        };
        let old = std::mem::replace(&mut slot.machine, machine);
        slot.queue.clear();
        slot.applying = None;
        // The blocks that they wait for were of the old state; the new one may have others.
        for fetch in slot.fetches.drain(..) {
            slot.reads.fetched(fetch.waiter);
        }
        slot.unread = super::unread::Unread::default();
        slot.mending = super::mending::Mending::default();
        slot.transfers.takes_damaged = false;
        slot.applied_term = position.term;
        let mut left = std::mem::take(&mut slot.checkpoint.left);
        if let Machine::Stream(old) = old {
            left.extend(old.store().all_files());
        }
        left.extend(state_file(&folder));
        slot.checkpoint = checkpoint::State::in_folder(folder);
        slot.checkpoint.left = left;
        self.trouble_forgotten(What::Reads(group));
        self.charge(group);
        if group == GroupId::META {
            self.publish_directory(|directory| directory.applied = position.index);
            self.look_at_formation();
            self.follow_listing();
        }
        self.trouble_forgotten(What::Damage(group));
        self.want_checkpoint(group);
        if is_damaged {
            self.scrub_now(group);
        }
    }

    /// Removes the checkpoints of a group that is gone.
    pub(super) fn remove_files(&mut self, group: GroupId) {
        self.remove_all(checkpoint::checkpoint_file(group).into_iter());
    }

    /// Removes files.
    pub(super) fn remove_all(&mut self, files: impl Iterator<Item = FilePath>) {
        let requests: Vec<_> = files
            .map(|file| self.groups.files.request(FileJob::Removal, IoOp::Remove { file }))
            .collect();
        if !requests.is_empty() {
            self.out.io.push(IoJob {
                owner: IoOwner::Node,
                requests,
                inline: false,
            });
        }
    }

    /// Tells all who wait for something of a replica that is gone.
    pub(super) fn end_all(&mut self, mut slot: Slot) {
        let mut waiters = std::mem::take(&mut slot.open.waiters);
        waiters.extend(slot.sealed.drain(..).flat_map(|sealed| sealed.waiters));
        waiters.extend(slot.proposed.drain(..).flat_map(|proposed| proposed.waiters));
        let reads = slot.take_all_reads();
        for waiter in waiters.into_iter().map(|(_, waiter)| waiter).chain(reads) {
            self.end(waiter, super::Done::Lost);
        }
        // What a snapshot has replaced or was to replace it with goes, too.
        let mut files = std::mem::take(&mut slot.transfers).into_files();
        files.append(&mut slot.checkpoint.left);
        if let Machine::Stream(stream) = &slot.machine {
            files.extend(stream.store().all_files());
        }
        self.remove_all(files.into_iter());
    }
}

impl Slot {
    /// Offers a replica the snapshot that others are fetching, if the log goes on from there, or else a new one.
    fn offer_snapshot(&mut self, to: ReplicaId) -> Result<(), OfferError> {
        if let Some(offered) = &self.transfers.offered
            && offered.to(to, &mut self.raft).is_ok()
        {
            return Ok(());
        }
        let offered = self.snapshot();
        if !self.durable {
            // What comes in until such a state is in force may be a part of it.
            self.raft.pin_more(offered.state.len() / 2);
        }
        self.transfers.offered.insert(offered).to(to, &mut self.raft)
    }

    /// The whole state, and the names and lengths of the files that it needs.
    fn snapshot(&mut self) -> Offered {
        let mut state = Vec::new();
        let position = self.encode_whole(&mut state);
        let mut manifest = Manifest::begin(&self.checkpoint.folder, &state);
        if let Machine::Stream(stream) = &self.machine {
            for block in stream.store().block_files() {
                let file = File {
                    name: block.file.name().to_owned(),
                    len: block.len,
                    crc: block.crc,
                };
                file.put(&mut manifest);
            }
        }
        Offered {
            position,
            members: self.raft.members().0.clone(),
            manifest: Bytes::from(manifest),
            state: Bytes::from(state),
        }
    }

    /// Keeps what was offered no longer than somebody may fetch it.
    fn unpin_offered(&mut self, now: Mono) {
        let Some(until) = self.transfers.pinned_until else {
            return;
        };
        // Who leads knows who fetches. Who led before does not.
        let is_fetched =
            !self.transfers.needed.is_empty() || self.raft.is_filling() || !self.raft.is_leader();
        if until > now && is_fetched {
            return;
        }
        self.transfers.pinned_until = None;
        self.transfers.offered = None;
        self.raft.pin_more(0);
        if let Machine::Stream(stream) = &mut self.machine {
            stream.unpin();
        }
    }
}

impl Offered {
    fn to(&self, to: ReplicaId, raft: &mut Group) -> Result<(), OfferError> {
        raft.offer_snapshot(to, self.position, &self.members, self.manifest.clone())
    }
}

impl Staging {
    /// The next piece to be asked for, if anything is still to be fetched.
    fn wanted(&self) -> Option<Bytes> {
        let file = self.manifest.files.front()?;
        if file.name == STATE {
            return Some(piece_of(
                &name_of_state(self.install.position),
                self.offset,
                file.len,
            ));
        }
        Some(piece_of(&file.name, self.offset, file.len))
    }

    /// A piece of the file in front is here; whether all of it is.
    fn pass(&mut self, bytes: u64, len: u64) -> bool {
        self.offset += bytes;
        let whole = self.offset >= len;
        if whole {
            self.manifest.files.pop_front();
            (self.offset, self.sum) = (0, 0);
            self.created = false;
        }
        whole
    }

    /// A piece of the state, which is so long.
    fn take_state(&mut self, piece: &[u8], len: u64) {
        if self.state.is_empty() {
            // It may be as large as all of a stream in memory, which is not to be copied again and again.
            let _ = self.state.try_reserve_exact(usize::try_from(len).unwrap_or(0));
        }
        self.state.extend_from_slice(piece);
        if self.state.len() as u64 >= len {
            let state = Bytes::from(std::mem::take(&mut self.state));
            self.checkpoint = self.manifest.checkpoint(&state);
        }
    }
}
