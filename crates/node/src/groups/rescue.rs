//! A memory stream that has lost the majority of its replicas, and not all of them, goes on from what is left.
//!
//! ```text
//!   two of three servers start anew: their replicas are gone, and the metadata lists them as lost
//!   each replica that is left ──what it has──> metadata: once all have told, the longest log wins
//!   that one: all of its log is committed, it is the only member <── listed alone ("rescued")
//!       leads ──> metadata: formed; others are added and filled as ever
//! ```
//! Acknowledged messages may be missing then, if only the lost ones had them: that is what memory means, and the log says
//! so. Nothing forks: those that are lost never come back under their ids, and without them no other majority exists.

use super::{GroupId, Machine, Slot};
use crate::worker::Core;
use tidelock_base::ReplicaId;
use tidelock_jetstream::config::Storage;
use tidelock_jetstream::meta::{GroupState, MetaCommand, Replica, ReplicaRole, StreamEntry, Survivor};
use tidelock_replica::{Group, Role};

impl Slot {
    /// Whether so many voters are gone for good, as the metadata has it, that the others are no majority.
    ///
    /// One that has not been filled yet knows of no voters. It has nothing, and says so, for nobody to wait for it.
    fn has_lost_majority(&self) -> bool {
        let voters = &self.raft.members().0.voters;
        let is_left = |id| self.replicas.iter().any(|one| one.id == id && !one.lost);
        if voters.is_empty() {
            return !self.leader.is_some_and(is_left) && self.replicas.iter().any(|one| one.lost);
        }
        let left = voters.iter().filter(|id| is_left(**id)).count();
        2 * left <= voters.len()
    }

    /// Whether it may be what a stream goes on from.
    fn is_survivor(&self) -> bool {
        let Machine::Stream(stream) = &self.machine else {
            return false;
        };
        stream.config().storage == Storage::Memory
            && self.failed.is_none()
            && !self.rescued
            && !self.raft.is_leader()
            && self.replicas.iter().any(|one| one.id == self.me && !one.lost)
            && self.has_lost_majority()
    }
}

impl Core {
    /// Tells the metadata what is left of streams, and carries on those that were rescued.
    pub(super) fn tick_rescue(&mut self) {
        let slots = self.groups.slots.values();
        let survivors: Vec<(GroupId, Survivor)> = slots
            .filter(|slot| slot.is_survivor())
            .map(|slot| (slot.group, survivor(slot)))
            .collect();
        for (group, survivor) in survivors {
            self.tell_meta(MetaCommand::ReplicaSurvives { group, survivor });
        }
        let rescued: Vec<GroupId> = self
            .groups
            .slots
            .values()
            .filter(|slot| slot.rescued)
            .map(|slot| slot.group)
            .collect();
        for group in rescued {
            self.go_on_alone(group);
        }
    }

    /// The metadata has decided what a stream goes on from, or knows that it does.
    pub(super) fn rescued(&mut self, entry: &StreamEntry) {
        let Some(slot) = self.slot_mut(entry.group) else {
            return;
        };
        match entry.state {
            GroupState::Rescued if goes_on_from(entry, slot.me) => {
                slot.rescued = true;
                self.go_on_alone(entry.group);
            }
            GroupState::Formed if slot.leads && std::mem::take(&mut slot.rescued) => {
                self.say_rescued(entry.group);
            }
            GroupState::Forming | GroupState::Formed | GroupState::Rescued => {}
        }
    }

    fn go_on_alone(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.slot(group) else { return };
        if slot.leads && slot.raft.members().0.is_sole_voter(slot.me) {
            return self.tell_meta(MetaCommand::GroupFormed { group });
        }
        if slot.applying.is_some() || slot.failed.is_some() || slot.raft.members().0.is_sole_voter(slot.me) {
            return;
        }
        let Some(start) = slot.raft.survivor(slot.applied_term) else {
            return;
        };
        let (me, last) = (slot.me, start.last_index());
        let config = self.group_config(group, me);
        let raft = match Group::new(config, start, now) {
            Ok(raft) => raft,
            Err(error) => return self.stop_replica(group, error.to_string()),
        };
        self.role_changed(group, Role::Follower, None);
        self.end_reads(group);
        let Some(slot) = self.slot_mut(group) else { return };
        slot.raft = raft;
        slot.queue.clear();
        slot.unsynced.clear();
        slot.transfers = super::snapshot::Transfers::default();
        slot.settled_beyond = last;
    }

    /// It leads, with all that it had.
    fn say_rescued(&self, group: GroupId) {
        let Some(slot) = self.slot(group) else { return };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        tracing::warn!(
            "JetStream stream '{} > {}', in memory, has lost the majority of its replicas; it goes on from this one, which has {} \
             messages, the last is {}; what was acknowledged in the last moments may be missing",
            self.account_name(slot.account),
            slot.name,
            stream.state().msgs,
            stream.last_seq()
        );
    }
}

/// Whether a stream that was rescued goes on from this replica. The others that are listed are to be filled from it.
fn goes_on_from(entry: &StreamEntry, me: ReplicaId) -> bool {
    let is_it = |one: &Replica| one.id == me && one.role == ReplicaRole::Voter;
    entry.replicas.iter().any(is_it)
}

/// What a replica has.
fn survivor(slot: &Slot) -> Survivor {
    let last = slot.raft.last_position();
    Survivor {
        replica: slot.me,
        term: last.term.value(),
        index: last.index.value(),
    }
}
