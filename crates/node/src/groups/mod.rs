//! The replicated groups of a worker: each stream with its consumers is one, the cluster's metadata is another.
//!
//! A turn hands a group commands ([`Core::command`]), forwarded publishes, frames of peers and reports of the disk; at
//! its end each touched group proposes at most one entry, its [`tidelock_replica::Ready`] goes into the worker's lane of
//! the write-ahead log and to its peers, and what is committed is applied, within a budget. What apply brings about
//! leaves only after that, and only on the leader.
//!
//! ```text
//!  command, forward ─> builder ─> propose ─> Ready ─┬─> lane (one batch, one sync for all groups) ─> persisted
//!                                                   ├─> peers
//!                                                   └─> committed ─> apply ─> effects ─> acks, deliveries, replies
//! ```
//!
//! Invariants:
//! - a waiter is told of the outcome of exactly the entry that its command went into, or [`Done::Lost`];
//! - nothing is told to anyone before the entry is applied, and nothing is applied before it is committed;
//! - a memory stream's group writes nothing to the log; it is founded anew at each start.

mod apply;
mod behind;
mod belonging;
mod chain;
mod checkpoint;
mod damage;
mod digests;
mod drive;
mod early;
mod effects;
mod folders;
mod formation;
mod forwards;
mod hand_over;
mod held;
mod lane;
mod listing;
mod manifest;
mod membership;
mod mending;
mod meta;
mod open;
mod presence;
mod reads;
mod rescue;
mod room;
mod scrub;
mod snapshot;
mod stamp;
mod status;
mod trouble;
mod unread;
mod view;

pub(crate) use early::Behind;
pub(crate) use effects::Fx;
pub use listing::Listing;
pub use meta::MetaNotice;
pub use view::ReplicaView;

use crate::api;
use crate::consumers;
use crate::worker::{Core, IoOwner};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidelock_base::{AccountId, GroupId, LogIndex, Mono, NodeId, ReplicaId, Term, Wall};
use tidelock_jetstream::command::EntryBuilder;
use tidelock_jetstream::config::Storage;
use tidelock_jetstream::meta::{Meta, MetaCommand, MetaOutcome, Replica};
use tidelock_jetstream::stream::{CommandOutcome, Stream};
use tidelock_replica::{Committed, Group};
use tidelock_wal::BatchNo;

/// The state machine of a group.
pub(crate) enum Machine {
    /// A stream.
    Stream(Box<Stream>),
    /// The cluster's metadata.
    Meta(Box<Meta>),
}

impl Machine {
    /// Whether its log is to be kept on the disk.
    fn is_durable(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.config().storage == Storage::File,
            Self::Meta(_) => true,
        }
    }
}

/// Who waits for the end of a command or read.
pub(crate) enum Waiter {
    /// Nobody.
    Nobody,
    /// A job of the JetStream API.
    Api(Box<api::Job>),
    /// Clients that want to know that their acknowledgements count.
    Ack(consumers::AckWaiter),
    /// A source that waits for its batch.
    Source(crate::sources::SourceWaiter),
    /// Another replica that has asked for messages.
    Messages(Box<crate::cell::Request>),
    /// The log: a stream of this name is to be formed anew.
    Reform(Box<str>),
}

/// How a command or read ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Done<'a> {
    /// A stream's command was applied.
    Stream(&'a CommandOutcome),
    /// A command of the metadata was applied.
    Meta(&'a MetaOutcome),
    /// Acknowledgements were applied.
    Acked,
    /// The local state contains everything that was proposed before the read.
    Read,
    /// Leadership was lost; what became of it is not known.
    Lost,
    /// The log cannot be written. [`tidelock_base::ApiErrorCode::InsufficientResources`]: nothing was done;
    /// otherwise it is not known what becomes of it.
    Refused(tidelock_base::ApiErrorCode),
}

/// One replica of a group.
pub(crate) struct Slot {
    /// The group.
    pub(crate) group: GroupId,
    /// Its consensus.
    pub(crate) raft: Group,
    /// This replica.
    pub(crate) me: ReplicaId,
    /// Its state.
    pub(crate) machine: Machine,
    /// Account of the stream.
    pub(crate) account: AccountId,
    /// Name of the stream; `_meta_` for the metadata.
    pub(crate) name: Arc<str>,
    /// All replicas, as the metadata has them; only this one as long as `listed` is false.
    pub(crate) replicas: Vec<Replica>,
    /// The metadata has said who the replicas are.
    listed: bool,
    /// It leads, and has applied the first entry of its own term: its state is current.
    pub(crate) leads: bool,
    /// When it began to lead.
    pub(crate) leads_since: Wall,
    /// Since when this replica, as the leader, has seen members that are not what they are to be.
    moving_since: Option<Wall>,
    /// When each of the other replicas was last heard of.
    heard: Vec<(ReplicaId, Mono)>,
    /// The leader as its consensus knows it.
    pub(crate) leader: Option<ReplicaId>,
    /// Leader-local state of its consumers.
    pub(crate) consumers: consumers::Leading,
    /// Events of applied entries for the consumers; its memory is used again.
    pub(crate) events: Vec<consumers::Event>,
    /// It writes to the log.
    durable: bool,
    open: Open,
    sealed: VecDeque<Sealed>,
    proposed: VecDeque<Proposed>,
    stamps: stamp::Stamps,
    digests: digests::Digests,
    expiring: bool,
    queue: VecDeque<Committed>,
    applying: Option<Applying>,
    /// Outcomes of commands of the entry that is being applied.
    pending_replies: Vec<(u32, CommandOutcome)>,
    pending_acked: Vec<u32>,
    /// Term of the last entry applied.
    applied_term: Term,
    reads: reads::Reads,
    early: early::Early,
    fetches: Vec<Fetch>,
    unsynced: VecDeque<(u64, BatchNo)>,
    armed: Option<Mono>,
    /// Its leadership is being handed over.
    handing_over: bool,
    /// When something else than its consensus is due.
    rest_due: Option<Mono>,
    /// Nothing waits in it: as long as only its consensus moves, nothing but that has to be looked at. Said at the end
    /// of [`Core::run_groups`], and taken back by [`Core::slot_mut`].
    quiet: bool,
    /// The metadata has decided that the stream goes on from this replica alone; it may not know yet that it does.
    rescued: bool,
    /// Bytes that the node and the account count for it.
    charged: room::Charge,
    /// The disk has refused a block; when it is tried again.
    write_again_at: Option<Mono>,
    /// Blocks that could not be read.
    unread: unread::Unread,
    mending: mending::Mending,
    checkpoint: checkpoint::State,
    transfers: snapshot::Transfers,
    /// Where the log ended when the members last changed. What is committed beyond was sent along with the news that
    /// the change is committed.
    settled_beyond: LogIndex,
    /// The replica has stopped for good, with the reason.
    pub(crate) failed: Option<String>,
}

/// The entry that this turn's commands go into.
#[derive(Default)]
struct Open {
    stream: EntryBuilder,
    meta: Vec<MetaCommand>,
    waiters: Vec<(u32, Waiter)>,
}

/// An entry that waits to be proposed.
struct Sealed {
    data: bytes::Bytes,
    waiters: Vec<(u32, Waiter)>,
}

/// An entry on its way.
struct Proposed {
    index: LogIndex,
    term: Term,
    /// Its length.
    bytes: usize,
    waiters: Vec<(u32, Waiter)>,
}

/// The entry that is being applied.
struct Applying {
    index: LogIndex,
    term: Term,
}

/// Somebody waits for a block of the store.
struct Fetch {
    seq: tidelock_base::StreamSeq,
    waiter: Waiter,
}

/// All groups of a worker, and its lane of the log.
#[derive(Default)]
pub(crate) struct Groups {
    pub(crate) slots: BTreeMap<GroupId, Box<Slot>>,
    lane: lane::LaneState,
    touched: BTreeSet<GroupId>,
    /// Groups of which only the consensus has moved, and which were quiet before.
    ticked: BTreeSet<GroupId>,
    /// Touched, but not before the next turn.
    later: BTreeSet<GroupId>,
    checkpoints_at: Mono,
    timers: BTreeSet<(Mono, GroupId)>,
    next_token: u64,
    lives: u128,
    /// Stores made so far.
    stores: u64,
    meta_events: Vec<api::MetaEvent>,
    /// Where the leader of a group was last seen, for groups without a local replica.
    pub(crate) hints: BTreeMap<GroupId, NodeId>,
    formation: formation::Formation,
    noted: belonging::Noted,
    damages: damage::Damages,
    presence: presence::Presence,
    membership_at: Option<Mono>,
    files: checkpoint::Files,
    trouble: trouble::Trouble,
    space: room::Space,
    scrub: scrub::Scrub,
    wanted_checkpoints: BTreeSet<GroupId>,
}

impl Groups {
    /// All groups have something to do at the end of this turn.
    pub(crate) fn look_at_all(&mut self) {
        self.touched.extend(self.slots.keys());
    }
}

impl Core {
    /// The local replica of a group.
    pub(crate) fn slot(&self, group: GroupId) -> Option<&Slot> {
        self.groups.slots.get(&group).map(|slot| &**slot)
    }

    /// The local replica of a group, which has work to do at the end of the turn.
    pub(crate) fn slot_mut(&mut self, group: GroupId) -> Option<&mut Slot> {
        let slot = self.groups.slots.get_mut(&group)?;
        slot.quiet = false;
        self.groups.touched.insert(group);
        Some(slot)
    }

    /// A stream's local state.
    pub(crate) fn stream(&self, group: GroupId) -> Option<&Stream> {
        match &self.slot(group)?.machine {
            Machine::Stream(stream) => Some(stream),
            Machine::Meta(_) => None,
        }
    }

    /// The metadata's local state.
    pub(crate) fn meta(&self) -> Option<&Meta> {
        match &self.slot(GroupId::META)?.machine {
            Machine::Meta(meta) => Some(meta),
            Machine::Stream(_) => None,
        }
    }

    /// Whether this node leads a group, with a state that is current.
    pub(crate) fn leads(&self, group: GroupId) -> bool {
        self.slot(group).is_some_and(|slot| slot.leads)
    }

    /// The node that leads a group, as far as this node knows.
    pub(crate) fn leader_of(&self, group: GroupId) -> Option<NodeId> {
        match self.slot(group) {
            Some(slot) => {
                let leader = slot.leader?;
                slot.node_of(leader)
            }
            None => self.groups.hints.get(&group).copied(),
        }
    }

    /// Adds a command to the group's next entry. Without leadership the waiter is told at once that it is lost.
    pub(crate) fn command(
        &mut self,
        group: GroupId,
        waiter: Waiter,
        add: impl FnOnce(&mut EntryBuilder) -> u32,
    ) {
        let now = self.log_time();
        let mut waiter = waiter;
        if self.is_held_up(group) && self.leads(group) {
            match self.refuse_held_up(waiter) {
                Some(still) => waiter = still,
                None => return,
            }
        }
        let Some(slot) = self.slot_mut(group).filter(|slot| slot.leads) else {
            self.end(waiter, Done::Lost);
            return;
        };
        let ordinal = add(&mut slot.open.stream);
        if !matches!(waiter, Waiter::Nobody) {
            slot.open.waiters.push((ordinal, waiter));
        }
        slot.seal_if_full(now);
    }

    /// Adds a command to the next entry of the metadata.
    pub(crate) fn meta_command(&mut self, command: MetaCommand, waiter: Waiter) {
        let mut waiter = waiter;
        if self.is_held_up(GroupId::META) && self.leads(GroupId::META) {
            match self.refuse_held_up(waiter) {
                Some(still) => waiter = still,
                None => return,
            }
        }
        let Some(slot) = self.slot_mut(GroupId::META).filter(|slot| slot.leads) else {
            self.end(waiter, Done::Lost);
            return;
        };
        let ordinal = u32::try_from(slot.open.meta.len()).unwrap_or(u32::MAX);
        slot.open.meta.push(command);
        slot.open.waiters.push((ordinal, waiter));
    }

    /// Reads a block of a stream's store; the waiter gets [`Done::Read`] when it is there, or could not be read.
    pub(crate) fn fetch(&mut self, group: GroupId, need: tidelock_store::Need, waiter: Waiter) {
        let Some(slot) = self.slot_mut(group) else {
            self.end(waiter, Done::Lost);
            return;
        };
        let Machine::Stream(stream) = &mut slot.machine else {
            return;
        };
        // What could not be read just now is asked for again after a pause; what is damaged comes from elsewhere.
        if slot.unread.pauses(need.seq) || stream.fetch(need) || stream.store().is_damaged(need.seq) {
            slot.fetches.push(Fetch {
                seq: need.seq,
                waiter,
            });
        } else {
            slot.reads.fetched(waiter);
        }
    }

    /// Tells a waiter how it ended.
    pub(crate) fn end(&mut self, waiter: Waiter, done: Done<'_>) {
        match waiter {
            Waiter::Nobody => {}
            Waiter::Api(job) => self.api_done(job, done),
            Waiter::Ack(waiter) => self.ack_done(waiter, done),
            Waiter::Source(waiter) => self.source_done(waiter, done),
            Waiter::Messages(request) => self.give_messages(request),
            Waiter::Reform(name) => membership::say_reformed(&name, done),
        }
    }

    /// When a group, or the log, must be looked at next.
    pub(crate) fn groups_deadline(&self) -> Option<Mono> {
        let groups = self.groups.timers.first().map(|(at, _)| *at);
        [
            groups,
            self.groups.lane.deadline(),
            self.groups.formation.deadline(),
            self.groups.membership_at,
            self.groups.space.deadline(),
            self.groups.scrub.deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// A disk operation has ended.
    pub(crate) fn groups_io_done(&mut self, owner: IoOwner, done: &tidelock_record::IoDone) {
        match owner {
            IoOwner::Log => self.lane_done(done),
            IoOwner::Store(group) => self.store_done(group, done),
            IoOwner::Node => self.file_done(done),
        }
    }
}

impl Slot {
    /// The node that holds a replica.
    pub(crate) fn node_of(&self, replica: ReplicaId) -> Option<NodeId> {
        self.replicas
            .iter()
            .find(|one| one.id == replica)
            .map(|one| one.node)
    }
}
