//! Opening a node's store: what was durable comes back, and a store that is new is founded.
//!
//! Waits for the disk; runs once, before the first turn. Files: `node` (the store's id), `cluster` (`belonging.rs`), `wal/…` (lanes), `groups/<id>`
//! (checkpoints), `streams/<folder>/…` (blocks).

use super::chain::{Checkpoint, put, take};
use super::checkpoint::{blocks_folder, checkpoint_file};
use super::damage::{Kept, Unopened};
use super::folders::Folders;
use super::manifest::{Manifest, is_of_snapshot, state_file};
use super::trouble::What;
use super::{Machine, Open, Slot, belonging, checkpoint, snapshot};
use crate::worker::Core;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use tidelock_base::{AccountId, BootId, ClusterId, GroupId, ReplicaId, Wall};
use tidelock_jetstream::config::StreamConfig;
use tidelock_jetstream::meta::{Meta, Replica, ServerSpec, StreamEntry};
use tidelock_jetstream::stream::Stream;
use tidelock_record::{Disk, IoError, IoOp};
use tidelock_replica::{
    EntryKind, Group, GroupConfig, HardState, Limits, LogEntry, Members, Start, StartError, Timers,
};
use tidelock_store::{OnLoss, StoreConfig, StoreKind};
use tidelock_wal::{Lane, Recovered, RecoveredGroup, WalRecord};

/// What the log remembers of a group from its creation.
pub(super) struct Birth {
    pub(super) account: String,
    pub(super) name: String,
    pub(super) config: Bytes,
    pub(super) created: Wall,
    pub(super) rev: u64,
    /// The start of this server in which it was made.
    pub(super) boot: BootId,
    /// The founding voters; empty for a replica that joined later.
    pub(super) voters: Vec<ReplicaId>,
    /// For the metadata: its founding state.
    pub(super) meta: Bytes,
}

impl Birth {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.account.as_bytes());
        put(&mut out, self.name.as_bytes());
        put(&mut out, &self.config);
        put(&mut out, &self.created.0.to_le_bytes());
        put(&mut out, &self.rev.to_le_bytes());
        put(&mut out, &self.boot.0.to_le_bytes());
        put(&mut out, &self.meta);
        for voter in &self.voters {
            out.extend_from_slice(&voter.0.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(bytes: &Bytes) -> Option<Self> {
        let mut rest = bytes.as_ref();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        Some(Self {
            account: text(take(&mut rest)?)?,
            name: text(take(&mut rest)?)?,
            config: Bytes::copy_from_slice(take(&mut rest)?),
            created: Wall(i64::from_le_bytes(take(&mut rest)?.try_into().ok()?)),
            rev: u64::from_le_bytes(take(&mut rest)?.try_into().ok()?),
            boot: BootId(u128::from_le_bytes(take(&mut rest)?.try_into().ok()?)),
            meta: Bytes::copy_from_slice(take(&mut rest)?),
            voters: rest
                .chunks_exact(8)
                .filter_map(|chunk| Some(ReplicaId(u64::from_le_bytes(chunk.try_into().ok()?))))
                .collect(),
        })
    }
}

/// What a store is set up with beside its folder.
pub(super) struct Sizes {
    block: u64,
    tail: u64,
    first_io: u64,
}

/// A store may ask for so many operations before its numbers run into those of the next one: 34 years of a thousand a
/// second.
const IO_NUMBERS: u64 = 1 << 40;

/// What a group is opened from.
struct Newest {
    /// The newest durable state, if it is not all in the log.
    checkpoint: Option<Checkpoint>,
    /// It is that of a snapshot, of which there is no checkpoint yet.
    staged: bool,
    /// The folders of blocks that a checkpoint or the log names.
    named: Vec<String>,
}

impl Core {
    /// For the next store of this worker. The disk reports to the group, whose store may have been replaced meanwhile by
    /// that of a snapshot, or of another replica; so no two stores of a worker number their operations alike, but for those
    /// with 16 million others between them.
    pub(super) fn next_sizes(&mut self) -> Sizes {
        let first_io = self.groups.stores.wrapping_mul(IO_NUMBERS);
        self.groups.stores += 1;
        Sizes {
            block: self.shared.budgets.block,
            tail: self.shared.budgets.tail,
            first_io,
        }
    }

    /// Takes over this worker's lane and the groups that it holds. Those that cannot be opened are kept as they are;
    /// what becomes of a replica of the metadata is decided next, in [`Core::begin_formation`].
    pub(crate) fn open_groups(
        &mut self,
        lane: Lane,
        recovered: Recovered,
        disk: &Arc<dyn Disk + Send + Sync>,
    ) {
        self.groups.lane.lane = Some(lane);
        self.look_at_reserve();
        self.disk = Some(Arc::clone(disk));
        self.groups.damages.found(recovered.damage);
        let folders = Folders::list(&**disk);
        for (group, recovered) in recovered.groups {
            if let Err(why) = self.open_group(group, &recovered, &**disk, &folders) {
                self.keep_group(group, &recovered, why, &folders);
            }
        }
    }

    fn keep_group(&mut self, group: GroupId, recovered: &RecoveredGroup, why: Unopened, folders: &Folders) {
        let why = self.with_places(group, why);
        if group != GroupId::META {
            tracing::error!("Group {group} cannot be opened: {why}; its files are kept");
        }
        let kept = Kept {
            replica: recovered.replica,
            why,
            begun: !has_not_begun(recovered),
            folders: folders.of(group),
        };
        self.groups.damages.keep(group, kept);
    }

    fn open_group(
        &mut self,
        group: GroupId,
        recovered: &RecoveredGroup,
        disk: &dyn Disk,
        folders: &Folders,
    ) -> Result<(), Unopened> {
        let birth = Birth::decode(&recovered.created).ok_or("its record of creation is lost")?;
        let Newest {
            checkpoint,
            staged,
            mut named,
        } = self
            .newest_checkpoint(group, recovered, disk)
            .map_err(|why| why.in_file(&self.path_of(&format!("groups/{group}"))))?;
        if group != GroupId::META && checkpoint.is_none() && has_not_begun(recovered) {
            // Nothing of it has left this server, and must not before it is recorded that it is here.
            self.groups.presence.found(group, recovered.replica, birth);
            return Ok(());
        }
        check_whole(group, &birth, recovered, checkpoint.as_ref())?;
        let new = folder_of(group, recovered.replica);
        let sizes = self.next_sizes();
        let machine = match &checkpoint {
            Some(checkpoint) => {
                let alone = is_alone(&birth, recovered, Some(checkpoint));
                let on_loss = if alone { OnLoss::Report } else { OnLoss::Await };
                restore(
                    group,
                    checkpoint,
                    (&birth.name, recovered.damaged),
                    (disk, &sizes),
                    on_loss,
                )?
            }
            None => {
                remove_blocks(&new, disk).map_err(|why| self.path_of(&why))?;
                found(group, &birth, &new, &sizes)?
            }
        };
        let start = start_of(&birth, recovered, checkpoint.as_ref());
        if group == GroupId::META {
            let founding = Meta::restore(&birth.meta).map_err(|e| e.to_string())?;
            if let Some(text) = belonging::foreign(&founding, recovered.replica, self.shared.identity.node) {
                return Err(Unopened::Failed(text));
            }
        }
        if group == GroupId::META && !birth.voters.is_empty() {
            self.groups.formation.birth = Some(recovered.created.clone());
        }
        let folder = checkpoint.map_or(new, |checkpoint| checkpoint.folder);
        named.push(folder.clone());
        self.add_slot(group, recovered.replica, &birth, machine, start, folder.clone())?;
        if !recovered.damaged && !self.groups.damages.touch(group) {
            folders.remove_unnamed(group, &named, disk);
            named.retain(|name| *name != folder);
            let mut left = folders.files_in(group, &named, disk);
            if is_of_snapshot(&folder) {
                left.extend(state_file(&folder));
            }
            if let Some(slot) = self.slot_mut(group) {
                slot.checkpoint.left = left;
            }
        }
        if recovered.damaged {
            self.goes_on_alone(group, &birth, recovered);
        }
        if staged {
            self.want_checkpoint(group);
        }
        self.hold_if_unlisted(group);
        Ok(())
    }

    /// Something of a log is lost, and no other replica has it.
    fn goes_on_alone(&mut self, group: GroupId, birth: &Birth, recovered: &RecoveredGroup) {
        if recovered.log_is_whole {
            // It has no one to whom it could have promised a vote.
            self.groups.log(&WalRecord::Healed { group });
            return;
        }
        let why = self.with_places(group, "records of its log are lost".into());
        tracing::error!(
            "JetStream stream '{} > {}': {why}; no other replica has them, so messages that were acknowledged may be missing",
            birth.account,
            birth.name
        );
    }

    /// The newest durable state: that of an installed snapshot, or of the file of checkpoints.
    fn newest_checkpoint(
        &self,
        group: GroupId,
        recovered: &RecoveredGroup,
        disk: &dyn Disk,
    ) -> Result<Newest, Unopened> {
        let file = checkpoint_file(group).map_err(|e| e.to_string())?;
        let mut named = Vec::new();
        let stored = match disk.size(&file).and_then(|size| disk.read(&file, 0, size)) {
            Ok(bytes) => {
                let (checkpoint, torn) = Checkpoint::read_file(&bytes).ok_or("its checkpoint is damaged")?;
                if torn > 0 {
                    tracing::info!("Group {group}: the last checkpoint was not finished ({torn} bytes)");
                }
                named.push(checkpoint.folder.clone());
                // What a replica left behind that was lost is not this one's.
                Some(checkpoint).filter(|checkpoint| checkpoint.replica == recovered.replica)
            }
            Err(IoError::NotFound) => None,
            Err(error) => return Err(error.to_string().into()),
        };
        let installed = recovered.snapshot.as_ref().and_then(|snapshot| {
            let manifest = Manifest::of_blob(&snapshot.blob, snapshot.index)?;
            Some((snapshot.index, manifest))
        });
        named.extend(installed.iter().map(|(_, manifest)| manifest.folder.clone()));
        let installed = installed.filter(|(index, _)| {
            stored
                .as_ref()
                .is_none_or(|stored| stored.position.index < *index)
        });
        let staged = installed.is_some();
        let checkpoint = match installed {
            Some((_, manifest)) => Some(manifest.read(disk)?),
            None => stored,
        };
        Ok(Newest {
            checkpoint,
            staged,
            named,
        })
    }

    /// How the consensus of a replica that is put to work now is set up.
    pub(super) fn group_config(&mut self, group: GroupId, me: ReplicaId) -> GroupConfig {
        self.groups.lives += 1;
        GroupConfig {
            group,
            me,
            seed: self.shared.identity.node.0,
            life: self.shared.identity.boot.0.wrapping_add(self.groups.lives),
            timers: Timers {
                announce_commits: group == GroupId::META,
                ..Timers::default()
            },
            limits: Limits {
                cache_bytes: self.shared.budgets.entries,
                ..Limits::default()
            },
        }
    }

    /// Puts a replica to work.
    pub(super) fn add_slot(
        &mut self,
        group: GroupId,
        me: ReplicaId,
        birth: &Birth,
        machine: Machine,
        start: Start,
        folder: String,
    ) -> Result<(), Unopened> {
        let config = self.group_config(group, me);
        let members = start.members.clone();
        let applied_term = start.base.term;
        let base = start.base;
        let mut raft = Group::new(config, start, self.now.mono).map_err(|error| unstartable(&error))?;
        let settled_beyond = raft.last_index();
        let durable = machine.is_durable() && self.groups.lane.lane.is_some();
        if durable {
            raft.keep_stored();
        }
        let replicas = match &machine {
            Machine::Meta(meta) => super::membership::meta_replicas(meta),
            Machine::Stream(_) => self.known_replicas(group, me, &members),
        };
        let listed = group == GroupId::META || self.entry_of(group).is_some();
        let account = self.served_account(&birth.account).unwrap_or(AccountId::NONE);
        let stamps = super::stamp::Stamps::from(&machine, self.now.mono);
        let slot = Slot {
            group,
            raft,
            me,
            machine,
            account,
            name: birth.name.as_str().into(),
            replicas,
            listed,
            leads: false,
            leads_since: Wall(0),
            moving_since: None,
            heard: Vec::new(),
            leader: None,
            consumers: crate::consumers::Leading::default(),
            events: Vec::new(),
            durable,
            open: Open::default(),
            sealed: VecDeque::new(),
            proposed: VecDeque::new(),
            stamps,
            digests: super::digests::Digests::default(),
            expiring: false,
            queue: VecDeque::new(),
            applying: None,
            applied_term,
            pending_replies: Vec::new(),
            pending_acked: Vec::new(),
            reads: super::reads::Reads::default(),
            early: super::early::Early::default(),
            charged: super::room::Charge::default(),
            write_again_at: None,
            fetches: Vec::new(),
            unread: super::unread::Unread::default(),
            mending: super::mending::Mending::default(),
            unsynced: VecDeque::new(),
            armed: None,
            handing_over: false,
            rest_due: None,
            quiet: false,
            rescued: false,
            checkpoint: checkpoint::State::begin(folder, base),
            transfers: snapshot::Transfers::default(),
            settled_beyond,
            failed: None,
        };
        self.groups.slots.insert(group, Box::new(slot));
        self.charge(group);
        self.groups.touched.insert(group);
        Ok(())
    }

    /// What the metadata here says of a stream.
    fn entry_of(&self, group: GroupId) -> Option<&StreamEntry> {
        self.meta()?.stream_of_group(group)
    }

    /// The replicas of a stream as the metadata here has them, or at least this one.
    fn known_replicas(&self, group: GroupId, me: ReplicaId, members: &Members) -> Vec<Replica> {
        if let Some(entry) = self.entry_of(group) {
            return entry.replicas.clone();
        }
        let role = if members.voters.contains(&me) {
            tidelock_jetstream::meta::ReplicaRole::Voter
        } else {
            tidelock_jetstream::meta::ReplicaRole::Learner
        };
        vec![Replica {
            id: me,
            node: self.shared.identity.node,
            role,
            present: Some(self.shared.identity.boot),
            lost: false,
        }]
    }

    /// Founds the metadata of a cluster: this node's replica of it.
    pub(crate) fn found_meta(
        &mut self,
        cluster: ClusterId,
        servers: Vec<(ServerSpec, BootId)>,
        created: Wall,
    ) -> Result<(), String> {
        let me = self.shared.identity.node;
        let meta = Meta::found(cluster, servers, created);
        let voters: Vec<ReplicaId> = meta.servers().map(|server| server.meta_replica).collect();
        let mine = meta
            .server(me)
            .map(|server| server.meta_replica)
            .ok_or("this server is not among the founders")?;
        let birth = Birth {
            account: String::new(),
            name: "_meta_".to_owned(),
            config: Bytes::new(),
            created,
            rev: 0,
            boot: self.shared.identity.boot,
            voters: voters.clone(),
            meta: Bytes::from(meta.checkpoint()),
        };
        self.log_birth(GroupId::META, mine, &birth);
        self.groups.formation.birth = Some(Bytes::from(birth.encode()));
        let first = voters.first() == Some(&mine);
        let start = Start::found(&voters);
        self.add_slot(
            GroupId::META,
            mine,
            &birth,
            Machine::Meta(Box::new(meta)),
            start,
            String::new(),
        )
        .map_err(|why| why.to_string())?;
        if first {
            let now = self.now.mono;
            if let Some(slot) = self.slot_mut(GroupId::META) {
                slot.raft.campaign(now);
            }
        }
        Ok(())
    }

    /// A replica of the metadata for a server that joins a cluster: it is filled by a snapshot. Until then it has the
    /// state that another server told, so that it knows whom to answer.
    pub(crate) fn join_meta(&mut self, me: ReplicaId, state: &[u8]) -> Result<(), String> {
        let meta = Meta::restore(state).map_err(|e| e.to_string())?;
        let birth = Birth {
            account: String::new(),
            name: "_meta_".to_owned(),
            config: Bytes::new(),
            created: Wall(0),
            rev: 0,
            boot: self.shared.identity.boot,
            voters: Vec::new(),
            meta: Bytes::copy_from_slice(state),
        };
        self.log_birth(GroupId::META, me, &birth);
        self.add_slot(
            GroupId::META,
            me,
            &birth,
            Machine::Meta(Box::new(meta)),
            Start::join(),
            String::new(),
        )
        .map_err(|why| why.to_string())?;
        // What is damaged of the replica before is of no more interest.
        self.groups.damages.forget(GroupId::META);
        Ok(())
    }

    pub(super) fn log_birth(&mut self, group: GroupId, me: ReplicaId, birth: &Birth) {
        self.groups.log(&WalRecord::Created {
            group,
            replica: me,
            blob: &birth.encode(),
        });
    }

    /// Puts a replica to work that was made here and is recorded in the metadata.
    pub(super) fn begin_replica(
        &mut self,
        entry: &StreamEntry,
        me: ReplicaId,
        birth: &Birth,
    ) -> Result<(), String> {
        let start = if birth.voters.is_empty() {
            Start::join()
        } else {
            Start::found(&birth.voters)
        };
        let folder = folder_of(entry.group, me);
        let machine = found(entry.group, birth, &folder, &self.next_sizes())?;
        self.add_slot(entry.group, me, birth, machine, start, folder)
            .map_err(|why| why.to_string())?;
        let now = self.now.mono;
        if let Some(slot) = self.slot_mut(entry.group) {
            slot.replicas.clone_from(&entry.replicas);
            slot.listed = true;
            if birth.voters.first() == Some(&me) {
                slot.raft.campaign(now);
            }
        }
        Ok(())
    }

    /// Stops a replica for good and removes its files.
    pub(super) fn remove_replica(&mut self, group: GroupId, replica: ReplicaId) {
        let waited = self.forget_waiting(group, replica);
        self.remove_kept(group, replica);
        if waited {
            return;
        }
        if self.slot(group).is_none_or(|slot| slot.me != replica) {
            return;
        }
        self.consumers_follow(group);
        self.sources_follow(group);
        let Some(slot) = self.groups.slots.remove(&group) else {
            return;
        };
        if let Some(at) = slot.armed {
            self.groups.timers.remove(&(at, group));
        }
        self.groups.touched.remove(&group);
        self.groups.ticked.remove(&group);
        self.groups.wanted_checkpoints.remove(&group);
        self.trouble_forgotten(What::Reads(group));
        let durable = slot.durable;
        self.discharge(&slot);
        self.end_all(*slot);
        if durable {
            self.groups.log(&WalRecord::Destroyed { group });
            self.remove_files(group);
        }
    }
}

/// The folder of a replica that was not filled by another one.
fn folder_of(group: GroupId, replica: ReplicaId) -> String {
    format!("{}-{}", group.0, replica.0)
}

/// Whether a replica has neither voted nor taken anything.
fn has_not_begun(recovered: &RecoveredGroup) -> bool {
    recovered.hard_state.is_none()
        && recovered.entries.is_empty()
        && recovered.snapshot.is_none()
        && recovered.truncated.is_none()
        && !recovered.damaged
}

/// What is certain to be lost: such a replica of several must not come back (DESIGN section 7). Nor the only one of the
/// metadata, unless its log is whole: ids that it has given out would be given out again.
fn check_whole(
    group: GroupId,
    birth: &Birth,
    recovered: &RecoveredGroup,
    checkpoint: Option<&Checkpoint>,
) -> Result<(), &'static str> {
    let alone = birth.voters.len() == 1 && is_alone(birth, recovered, checkpoint);
    let may_lose_entries = group != GroupId::META || recovered.log_is_whole;
    if recovered.damaged && !(alone && may_lose_entries) {
        return Err("records of its log are lost");
    }
    let covered = checkpoint.map_or(0, |checkpoint| checkpoint.position.index.0);
    if recovered.truncated.is_some_and(|(index, _)| index.0 > covered) {
        return Err("its checkpoint is lost");
    }
    Ok(())
}

/// Whether a replica is the only member of its group, as far as anything that is left of it says: the log knows of
/// changes since the checkpoint.
fn is_alone(birth: &Birth, recovered: &RecoveredGroup, checkpoint: Option<&Checkpoint>) -> bool {
    let log_says = recovered.members.as_ref().and_then(|blob| blob.get(8..));
    let members = checkpoint.map_or(birth.voters.len(), |one| one.members.all().len());
    members <= 1
        && log_says.is_none_or(|bytes| Members::decode(bytes).is_ok_and(|members| members.all().len() <= 1))
}

/// Why a replica's consensus does not start.
fn unstartable(error: &StartError) -> Unopened {
    match error {
        StartError::Lost { .. } | StartError::Gap { .. } | StartError::Disorder { .. } => {
            Unopened::Damaged(error.to_string())
        }
        StartError::BadChange { .. } | StartError::Config(_) => Unopened::Failed(error.to_string()),
    }
}

/// The state of a new group.
fn found(group: GroupId, birth: &Birth, folder: &str, sizes: &Sizes) -> Result<Machine, String> {
    if group == GroupId::META {
        let meta = Meta::restore(&birth.meta).map_err(|e| e.to_string())?;
        return Ok(Machine::Meta(Box::new(meta)));
    }
    let config = StreamConfig::decode(&birth.config).map_err(|e| e.to_string())?;
    let store = store_config(folder, sizes)?;
    Ok(Machine::Stream(Box::new(Stream::create(
        config,
        birth.created,
        store,
    ))))
}

/// Removes what a replica without a checkpoint has left of blocks: its log has all of it, and writes it again. An error
/// begins with the file that it is about.
fn remove_blocks(folder: &str, disk: &dyn Disk) -> Result<(), String> {
    let folder = blocks_folder(folder).map_err(|e| e.to_string())?;
    let names = match disk.list(&folder) {
        Ok(names) => names,
        Err(IoError::NotFound) => return Ok(()),
        Err(error) => return Err(format!("{folder}: {error}")),
    };
    for name in names {
        let file = folder.join(&name).map_err(|e| e.to_string())?;
        disk.run(&IoOp::Remove { file })
            .map_err(|error| format!("{folder}/{name}: {error}"))?;
    }
    Ok(())
}

/// The state that a checkpoint holds.
pub(super) fn restore(
    group: GroupId,
    checkpoint: &Checkpoint,
    (name, damaged): (&str, bool),
    (disk, sizes): (&dyn Disk, &Sizes),
    on_loss: OnLoss,
) -> Result<Machine, String> {
    if group == GroupId::META {
        let state = checkpoint.states.last().ok_or("there is no state")?;
        let meta = Meta::restore(state).map_err(|e| e.to_string())?;
        return Ok(Machine::Meta(Box::new(meta)));
    }
    let store = store_config(&checkpoint.folder, sizes)?;
    let states: Vec<&[u8]> = checkpoint.states.iter().map(|state| &state[..]).collect();
    let mut stream = Stream::restore(store, &states, disk, on_loss).map_err(|e| e.to_string())?;
    let lost = stream.store().lost();
    if lost.is_empty() && !damaged {
        // Blocks that were written after the checkpoint: the log has their messages.
        stream.remove_orphans();
    } else {
        tracing::error!("Stream {name:?} has lost messages to damage on disk: {lost:?}");
    }
    Ok(Machine::Stream(Box::new(stream)))
}

fn store_config(folder: &str, sizes: &Sizes) -> Result<StoreConfig, String> {
    let folder = blocks_folder(folder).map_err(|e| e.to_string())?;
    Ok(StoreConfig {
        block_bytes: sizes.block,
        tail_bytes: sizes.tail,
        first_io: sizes.first_io,
        ..StoreConfig::new(StoreKind::File, folder)
    })
}

/// What a replica's consensus starts from.
fn start_of(birth: &Birth, recovered: &RecoveredGroup, checkpoint: Option<&Checkpoint>) -> Start {
    let mut start = if birth.voters.is_empty() {
        Start::join()
    } else {
        Start::found(&birth.voters)
    };
    if let Some(checkpoint) = checkpoint {
        start.base = checkpoint.position;
        start.applied = checkpoint.position.index;
        start.members = checkpoint.members.clone();
        start.members_at = checkpoint.members_at;
        start.hard = HardState {
            term: checkpoint.position.term,
            vote: ReplicaId(0),
            commit: checkpoint.position.index,
        };
    }
    let base = start.base;
    start.entries = recovered
        .entries
        .iter()
        .filter(|entry| entry.index > base.index)
        .filter_map(|entry| {
            let kind = EntryKind::from_u8(entry.kind)?;
            Some(LogEntry {
                index: entry.index,
                term: entry.term,
                kind,
                data: entry.data.clone(),
            })
        })
        .collect();
    if let Some(hard) = &recovered.hard_state {
        let commit = hard.commit.max(base.index);
        start.hard = HardState {
            term: hard.term,
            vote: hard.vote,
            commit,
        };
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_base::{LogIndex, Term};
    use tidelock_replica::LogPosition;

    fn birth(voters: &[u64]) -> Birth {
        Birth {
            account: String::new(),
            name: "S".to_owned(),
            config: Bytes::new(),
            created: Wall(0),
            rev: 1,
            boot: BootId(1),
            voters: voters.iter().map(|id| ReplicaId(*id)).collect(),
            meta: Bytes::new(),
        }
    }

    fn checkpoint(voters: &[u64]) -> Checkpoint {
        let voters: Vec<ReplicaId> = voters.iter().map(|id| ReplicaId(*id)).collect();
        Checkpoint {
            replica: ReplicaId(1),
            folder: String::new(),
            position: LogPosition {
                index: LogIndex(9),
                term: Term(1),
            },
            members_at: LogIndex(1),
            members: Members::of_voters(&voters),
            states: Vec::new(),
        }
    }

    /// A log whose last change of members led to these.
    fn log(members: Option<&Members>) -> RecoveredGroup {
        let blob = members.map(|members| [&10_u64.to_le_bytes()[..], &members.encode()].concat());
        RecoveredGroup {
            members: blob.map(Bytes::from),
            ..RecoveredGroup::default()
        }
    }

    #[test]
    fn a_replica_is_alone_only_if_nothing_that_is_left_of_it_speaks_of_others() {
        let (one, three) = (&[1][..], &[1, 2, 3][..]);
        let grown = Members::of_voters(&[1, 2, 3].map(ReplicaId));
        let mut filling = Members::of_voters(&[ReplicaId(1)]);
        filling.learners = vec![ReplicaId(2)];
        let sole = Members::of_voters(&[ReplicaId(1)]);
        for (founded, saved, logged, alone) in [
            (one, None, None, true),
            (three, None, None, false),
            (one, Some(one), None, true),
            // Scaled up since its checkpoint.
            (one, Some(one), Some(&grown), false),
            (one, Some(one), Some(&filling), false),
            // Scaled down.
            (three, Some(one), Some(&sole), true),
            (three, Some(three), None, false),
        ] {
            let saved = saved.map(checkpoint);
            let found = is_alone(&birth(founded), &log(logged), saved.as_ref());
            assert_eq!(found, alone, "{founded:?} {logged:?}");
        }
    }
}
