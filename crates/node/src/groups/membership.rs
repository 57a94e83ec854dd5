//! Changes of members: scaling, moves, removal of peers, servers that join.
//!
//! The metadata lists the replicas that a group is to have; the group's leader brings its consensus there, one step at
//! a time: a replica that is listed and not a member becomes a learner; a learner that has caught up becomes a voter,
//! and the metadata is told; a member that is not listed is removed (a leader that removes itself hands over first).
//! For the metadata's own group the list is that of the servers.

use super::{Done, Slot, Waiter};
use crate::cell::{Cell, LaneKind, Request, RequestId};
use crate::worker::Core;
use bytes::Bytes;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelock_base::{AccountId, GroupId, LogIndex, Mono, NodeId, ReplicaId};
use tidelock_jetstream::command::{EntryBuilder, WindowKey};
use tidelock_jetstream::config::Storage;
use tidelock_jetstream::meta::{
    GroupState, Meta, MetaCommand, MetaOutcome, PlacementHint, Replica, ReplicaRole, Server, StreamEntry,
};
use tidelock_replica::{MemberChange, Members};

/// A learner this close to the end of the log counts as caught up.
const CAUGHT_UP_WITHIN: u64 = 64;
/// Steps that wait for others are looked at this often.
pub(super) const MEMBERSHIP_TICK: Duration = Duration::from_millis(250);
/// Subject of a command for the metadata that one node sends another; never a client's.
const META_SUBJECT: &[u8] = b"$TL.META";

/// The replicas of the metadata, one a server.
pub(super) fn meta_replicas(meta: &Meta) -> Vec<Replica> {
    let replica = |server: &Server| Replica {
        id: server.meta_replica,
        node: server.spec.id,
        role: ReplicaRole::Voter,
        present: Some(server.birth),
        lost: false,
    };
    meta.servers().map(replica).collect()
}

impl Core {
    /// Sends a command to the metadata's leader, wherever it is; nobody waits for the outcome, and whoever sends it
    /// does so again until the metadata shows it.
    pub(crate) fn tell_meta(&mut self, command: MetaCommand) {
        if self.leads(GroupId::META) {
            self.meta_command(command, Waiter::Nobody);
            return;
        }
        let Ok(payload) = serde_json::to_vec(&command) else {
            return;
        };
        let me = self.shared.identity.node;
        // A worker without the metadata hands the command to the one that has it. That one may be about to lead: sent to
        // itself, the command would come back in each turn until it does, and that may be never.
        let node = if self.shared.worker_of(GroupId::META) == self.id {
            self.leader_of(GroupId::META).filter(|leader| *leader != me)
        } else {
            Some(me)
        };
        let Some(node) = node else { return };
        let request = Request {
            id: RequestId {
                sender: WindowKey {
                    boot: self.shared.identity.boot,
                    worker: self.id,
                },
                number: 0,
            },
            node: me,
            group: Some(GroupId::META),
            account: AccountId(0),
            subject: Bytes::from_static(META_SUBJECT),
            reply: Bytes::new(),
            header: Bytes::new(),
            payload: Bytes::from(payload),
            client: Bytes::new(),
            after: 0,
        };
        self.send_cell(node, LaneKind::Client, Cell::Request(Box::new(request)));
    }

    /// Takes a request between nodes; `false` if it is a client's.
    pub(crate) fn internal_request(&mut self, request: &Request) -> bool {
        if request.subject == META_SUBJECT {
            let Ok(command) = serde_json::from_slice(&request.payload) else {
                return true;
            };
            if self.leads(GroupId::META) {
                self.meta_command(command, Waiter::Nobody);
            } else if request.node == self.shared.identity.node {
                // From another worker of this node; what another node sends is not passed on any further.
                self.tell_meta(command);
            }
            return true;
        }
        self.formation_request(request) || self.file_request(request) || self.messages_request(request)
    }

    /// Brings a stream's group one step nearer to what the metadata lists.
    pub(super) fn reconcile(&mut self, entry: &StreamEntry) {
        self.reconcile_members(entry.group, &to_stay(&entry.replicas));
    }

    /// The same for the metadata's own group.
    fn reconcile_meta(&mut self) {
        let Some(meta) = self.meta() else { return };
        let replicas = meta_replicas(meta);
        let wanted: Vec<ReplicaId> = replicas.iter().map(|replica| replica.id).collect();
        if let Some(slot) = self.slot_mut(GroupId::META) {
            slot.replicas = replicas;
        }
        self.reconcile_members(GroupId::META, &wanted);
    }

    fn reconcile_members(&mut self, group: GroupId, wanted: &[ReplicaId]) {
        let now = self.now.mono;
        let Some(slot) = self.slot_mut(group).filter(|slot| slot.leads) else {
            return;
        };
        let members = slot.raft.members().0.clone();
        if members.is_joint() {
            return;
        }
        let me = slot.me;
        // One that is lost counts for the quorum and never votes, so it goes first: nothing that it had is there.
        let lost = slot
            .replicas
            .iter()
            .find(|one| one.lost && members.contains(one.id));
        if let Some(lost) = lost.map(|one| one.id).filter(|id| *id != me) {
            let _ = slot.raft.change_members(now, &MemberChange::Remove(lost), &[]);
            return;
        }
        if let Some(new) = wanted
            .iter()
            .find(|id| !members.contains(**id) && slot.is_to_be_added(**id))
        {
            let _ = slot
                .raft
                .change_members(now, &MemberChange::AddLearner(*new), &[]);
            return;
        }
        if let Some(ready) = slot.caught_up_learner(wanted) {
            let _ = slot.raft.change_members(now, &MemberChange::Promote(ready), &[]);
            return;
        }
        let gone = members.all().into_iter().find(|id| !wanted.contains(id));
        let Some(gone) = gone.or_else(|| slot.surplus(&members, now)) else {
            return;
        };
        // Nobody is removed before all who are to stay can vote.
        if members.learners.iter().any(|id| wanted.contains(id)) {
            return;
        }
        if gone == me {
            slot.raft.hand_over(now);
        } else {
            let _ = slot.raft.change_members(now, &MemberChange::Remove(gone), &[]);
        }
    }

    /// A change of members has taken effect.
    pub(super) fn members_changed(&mut self, group: GroupId, change: &MemberChange, _context: &Bytes) {
        let Some(slot) = self.slot_mut(group) else { return };
        slot.settled_beyond = slot.raft.last_index();
        if slot.is_meta() {
            self.reconcile_meta();
            return;
        }
        if let MemberChange::Promote(replica) = change
            && slot.leads
        {
            self.tell_meta(MetaCommand::ReplicaPromote {
                group,
                replica: *replica,
            });
        }
        self.reconcile_known(group);
    }

    /// Looks again at a group whose members are on their way.
    fn reconcile_known(&mut self, group: GroupId) {
        if group == GroupId::META {
            self.reconcile_meta();
        } else if let Some(slot) = self.slot(group).filter(|slot| slot.listed && !slot.is_settled()) {
            let wanted = to_stay(&slot.replicas);
            self.reconcile_members(group, &wanted);
        }
    }

    /// What the leader of groups looks at again and again: steps that wait for others, reports that may be lost.
    pub(crate) fn tick_membership(&mut self) {
        let now = self.now.mono;
        if self.groups.membership_at.is_some_and(|at| at > now) {
            return;
        }
        if self.groups.slots.is_empty() && self.groups.presence.is_empty() {
            self.groups.membership_at = None;
            return;
        }
        self.groups.membership_at = Some(now + MEMBERSHIP_TICK);
        self.tick_presence();
        if let Some(meta) = self.meta() {
            let listed = meta.servers().count();
            self.shared.servers_listed.store(listed, Ordering::Relaxed);
        }
        let wall = self.now.wall;
        let mut leading = Vec::new();
        for slot in self.groups.slots.values_mut().filter(|slot| slot.leads) {
            leading.push(slot.group);
            slot.moving_since = slot.is_moving().then(|| slot.moving_since.unwrap_or(wall));
        }
        for group in leading {
            self.reconcile_known(group);
            self.report_again(group);
            self.tick_digests(group);
        }
        if self.leads(GroupId::META) {
            self.meta_replaces_servers();
            self.meta_scales();
        }
    }

    /// Tells the metadata again what it does not show yet.
    fn report_again(&mut self, group: GroupId) {
        let formed = self
            .shared
            .directory
            .load()
            .by_group(group)
            .is_none_or(|route| route.formed);
        if !formed {
            self.tell_meta(MetaCommand::GroupFormed { group });
        }
        let Some(slot) = self.slot(group) else { return };
        let members = slot.raft.members().0;
        let promoted: Vec<ReplicaId> = slot
            .replicas
            .iter()
            .filter(|replica| replica.role == ReplicaRole::Learner && members.voters.contains(&replica.id))
            .map(|replica| replica.id)
            .collect();
        let removed: Vec<(ReplicaId, NodeId)> = slot
            .replicas
            .iter()
            .filter(|replica| replica.role != ReplicaRole::Learner || replica.lost)
            .filter(|replica| !members.contains(replica.id))
            .map(|replica| (replica.id, replica.node))
            .collect();
        let settled = slot.applied() > slot.settled_beyond;
        for replica in promoted {
            self.tell_meta(MetaCommand::ReplicaPromote { group, replica });
        }
        if removed.is_empty() {
            return;
        }
        // The metadata will have a removed replica destroyed. Until a quorum of those that stay knows durably that it
        // is no member any more, they may need its vote after a crash: an entry that is proposed, committed and so
        // synced after the removal carries that knowledge.
        if !settled {
            self.command(group, Waiter::Nobody, EntryBuilder::digest_check);
            return;
        }
        for (replica, node) in removed {
            let again = self.is_online(node);
            self.tell_meta(MetaCommand::ReplicaRemove {
                group,
                replica,
                again,
            });
        }
    }

    /// The metadata's leader lists further replicas until each stream has as many as its configuration says. Those
    /// that are too many leave the group first, and the list when the group's leader says so: a replica that stopped
    /// before would count for the quorum and not vote.
    fn meta_scales(&mut self) {
        self.meta_reforms();
        let Some(meta) = self.meta() else { return };
        let settled = |entry: &&StreamEntry| entry.state == GroupState::Formed && entry.pending.is_none();
        let short = |entry: &&StreamEntry| {
            entry.replicas.len() < usize::from(entry.spec.num_replicas)
                && entry
                    .replicas
                    .iter()
                    .all(|replica| replica.role == ReplicaRole::Voter)
        };
        let groups: Vec<GroupId> = meta
            .streams()
            .filter(settled)
            .filter(short)
            .map(|entry| entry.group)
            .collect();
        for group in groups {
            let hint = self.placement_hint();
            self.meta_command(
                MetaCommand::ReplicaAdd {
                    group,
                    node: None,
                    hint,
                },
                Waiter::Nobody,
            );
        }
    }

    /// Groups that cannot go on are started anew: those that have not answered anything yet and have lost a majority,
    /// and those of memory streams of which nothing is left.
    fn meta_reforms(&mut self) {
        let Some(meta) = self.meta() else { return };
        let beyond_help = |entry: &&StreamEntry| match entry.state {
            GroupState::Forming => entry.has_lost_majority(),
            GroupState::Formed | GroupState::Rescued => {
                meta.has_nothing_left(entry, |node| !self.is_online(node))
            }
        };
        let groups: Vec<(GroupId, String)> = meta
            .streams()
            .filter(beyond_help)
            .map(|entry| (entry.group, format!("{} > {}", entry.account, entry.spec.name)))
            .collect();
        for (group, name) in groups {
            let hint = self.placement_hint();
            let waiter = Waiter::Reform(name.into());
            self.meta_command(MetaCommand::GroupReform { group, hint }, waiter);
        }
    }

    /// Whether this server, which has no replica of a stream, may be given one in a moment: the stream has too few, and the
    /// next one is about to be added, or there are no more servers for them than it lacks.
    ///
    /// Until it has that replica it is not well: whoever waits for it to go on with another server would take the stream a
    /// replica that it has not got twice.
    pub(crate) fn awaits_replica(&self, entry: &StreamEntry) -> bool {
        let Some(meta) = self.meta() else { return false };
        // One on a server that was removed is not replaced as long as the others cannot do without it.
        let stay = to_stay(&entry.replicas).len();
        if stay == 0 {
            // There is nothing that another one could be filled from.
            return false;
        }
        let lacks = usize::from(entry.spec.num_replicas).saturating_sub(stay);
        let me = self.shared.identity.node;
        if lacks == 0 {
            return false;
        }
        let hint = self.placement_hint();
        let may_hold = |node: NodeId| meta.may_hold(entry, &hint, node);
        let is_settled = entry
            .replicas
            .iter()
            .all(|replica| replica.role == ReplicaRole::Voter);
        let nodes = hint.candidates.iter().map(|candidate| candidate.node);
        may_hold(me) && (is_settled || nodes.filter(|node| may_hold(*node)).count() <= lacks)
    }

    /// Whether the metadata lists this server, and no other one in its place. A server that comes back with an empty store
    /// takes the place of the one that it was, and of what that one had, a moment after it has the metadata.
    pub(crate) fn has_its_place(&self) -> bool {
        let Some(meta) = self.meta() else { return false };
        let me = &self.shared.identity;
        let is_before = |id: NodeId, name: &str| id != me.node && *name == *me.name && !self.is_online(id);
        let is_taken = meta
            .servers()
            .any(|server| is_before(server.spec.id, &server.spec.name));
        meta.server(me.node).is_some() && !is_taken
    }

    /// What a placement may choose from, as this node sees it.
    pub(crate) fn placement_hint(&self) -> PlacementHint {
        let mut hint = PlacementHint {
            cluster: self
                .shared
                .cluster_name()
                .as_deref()
                .unwrap_or_default()
                .to_owned(),
            candidates: Vec::new(),
            unique_tag: self
                .shared
                .options
                .jetstream
                .as_ref()
                .and_then(|js| js.unique_tag.clone()),
        };
        if let Some(meta) = self.meta() {
            for server in meta.servers() {
                hint.candidates.push(self.candidate(server.spec.id));
            }
        }
        hint
    }

    /// The metadata's list of servers has changed.
    pub(super) fn meta_servers_changed(&mut self) {
        self.look_at_formation();
        self.reconcile_meta();
    }

    /// This node has come to lead the metadata.
    pub(super) fn meta_leads(&mut self) {
        self.reconcile_meta();
        self.formation_leads();
    }

    /// The number of replicas of a stream is to change; the metadata's leader sees to it.
    pub(crate) fn rescale(&mut self, group: GroupId, _replicas: u8) {
        self.groups.touched.insert(group);
        self.groups.membership_at = Some(self.now.mono);
    }

    /// Gives a replica up and wants another in its place. What a stream in memory had on a server that is not reached is
    /// gone; all others stay until they are replaced.
    pub(crate) fn replace_replica(&mut self, group: GroupId, node: NodeId, waiter: Waiter) -> bool {
        let Some(entry) = self.meta().and_then(|meta| meta.stream_of_group(group)) else {
            return false;
        };
        let Some(replica) = entry.replicas.iter().find(|replica| replica.node == node) else {
            return false;
        };
        let replica = replica.id;
        let is_gone = entry.spec.storage == Storage::Memory && !self.is_online(node);
        let command = if is_gone {
            MetaCommand::ReplicaLost { group, replica }
        } else {
            let hint = self.placement_hint();
            MetaCommand::ReplicaReplace { group, replica, hint }
        };
        self.meta_command(command, waiter);
        true
    }
}

/// Says what has become of a group that cannot go on. What was known when that was proposed may have changed since: then
/// nothing has.
pub(super) fn say_reformed(name: &str, done: Done<'_>) {
    if let Done::Meta(MetaOutcome::Stream { created: true, .. }) = done {
        tracing::warn!("JetStream stream '{name}' has lost its replicas; it is formed anew, empty");
    }
}

/// The listed replicas that are neither lost nor leaving.
fn to_stay(replicas: &[Replica]) -> Vec<ReplicaId> {
    let stays = |replica: &&Replica| !replica.lost && replica.role != ReplicaRole::Leaving;
    let stay = replicas.iter().filter(stays);
    stay.map(|replica| replica.id).collect()
}

impl Slot {
    /// Whether a listed replica that is no member is on its way in; otherwise it is on its way out.
    fn is_to_be_added(&self, replica: ReplicaId) -> bool {
        self.is_meta()
            || self
                .replicas
                .iter()
                .any(|one| one.id == replica && one.role == ReplicaRole::Learner && !one.lost)
    }

    /// A voter beyond the number that the stream's configuration wants: of the others the one that has been silent for
    /// longest, since those that stay cannot go on without those that answer.
    fn surplus(&self, members: &Members, now: Mono) -> Option<ReplicaId> {
        if members.voters.len() <= self.replicas_wanted()? {
            return None;
        }
        let listed = self.replicas.iter().rev().map(|replica| replica.id);
        listed
            .filter(|id| *id != self.me && members.voters.contains(id))
            .max_by_key(|id| self.silence(*id, now).unwrap_or(Duration::MAX))
    }

    /// Whether it votes, and the metadata knows. That of the metadata is one of its members, also while another member is
    /// replaced.
    pub(crate) fn is_settled_voter(&self) -> bool {
        let members = self.raft.members().0;
        let is_me = |one: &Replica| one.id == self.me && one.role == ReplicaRole::Voter;
        let is_settled = self.is_meta() || !members.is_joint() && self.replicas.iter().any(is_me);
        members.is_voter(self.me) && is_settled
    }

    fn replicas_wanted(&self) -> Option<usize> {
        match &self.machine {
            super::Machine::Stream(stream) => Some(usize::from(stream.config().num_replicas)),
            super::Machine::Meta(_) => None,
        }
    }

    /// Whether the members are those that the metadata lists, all of them voters, as many as are wanted.
    fn is_settled(&self) -> bool {
        let members = self.raft.members().0;
        if self
            .replicas_wanted()
            .is_some_and(|wanted| members.voters.len() > wanted)
        {
            return false;
        }
        members.learners.is_empty()
            && members.outgoing.is_empty()
            && members.voters.len() == self.replicas.len()
            && self
                .replicas
                .iter()
                .all(|replica| members.voters.contains(&replica.id) && !replica.lost)
    }

    /// Whether a stream's members are not yet those that they are to be.
    pub(super) fn is_moving(&self) -> bool {
        let short = |wanted| self.replicas.len() < wanted;
        !self.is_meta() && (!self.is_settled() || self.replicas_wanted().is_some_and(short))
    }

    /// Whether a stream is to have fewer replicas than it has.
    pub(super) fn is_shrinking(&self) -> bool {
        self.replicas_wanted()
            .is_some_and(|wanted| wanted < self.raft.members().0.voters.len())
    }

    /// A learner that is wanted as a voter and has nearly the whole log. One that has not acknowledged anything may not
    /// even exist durably, however short the log is.
    fn caught_up_learner(&self, wanted: &[ReplicaId]) -> Option<ReplicaId> {
        let last = self.raft.last_index().0;
        let members = self.raft.members().0;
        self.raft
            .progress()
            .into_iter()
            .filter(|peer| members.learners.contains(&peer.replica) && wanted.contains(&peer.replica))
            .filter(|peer| peer.recent_active && peer.matched > LogIndex(0))
            .find(|peer| peer.matched.0 + CAUGHT_UP_WITHIN >= last)
            .map(|peer| peer.replica)
    }
}
