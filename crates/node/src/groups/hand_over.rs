//! Leadership that is given away on purpose: a step-down, a graceful stop, a disk that is ill.
//!
//! The next leader is to know all that this one has done. What consumers without acknowledgements have been sent is
//! logged once a second only, so it is logged now, and nothing more is sent to consumers until the leadership has gone or
//! stays after all. What clients say meanwhile waits: publishes at their senders, acknowledgements in entries that are
//! not proposed any more and go to the next leader (`consumers::again`).

use super::Machine;
use crate::worker::Core;
use tidelock_base::{GroupId, NodeId};

impl Core {
    /// Hands every leadership over that can be handed over; whether all are gone.
    pub(crate) fn hand_over_all(&mut self) -> bool {
        let mut left = false;
        let groups: Vec<GroupId> = self.groups.slots.keys().copied().collect();
        for group in groups {
            let Some(slot) = self.slot_mut(group) else {
                continue;
            };
            if slot.raft.is_leader() && slot.raft.members().0.voters.len() > 1 {
                left = true;
                self.step_down(group, None);
            }
        }
        !left
    }

    /// Hands the leadership of a group to a node, or to the best one; whether that could begin.
    pub(crate) fn step_down(&mut self, group: GroupId, to: Option<NodeId>) -> bool {
        self.begin_hand_over(group);
        let now = self.now.mono;
        let Some(slot) = self.slot_mut(group) else {
            return false;
        };
        let replica = to.map(|node| {
            let mut replicas = slot.replicas.iter();
            replicas.find(|replica| replica.node == node)
        });
        let begun = match replica {
            None => slot.raft.hand_over(now).is_some(),
            Some(replica) => replica.is_some_and(|replica| slot.raft.transfer(now, replica.id).is_ok()),
        };
        self.look_at_hand_over(group);
        begun
    }

    /// The next leader is to know what this one has sent.
    fn begin_hand_over(&mut self, group: GroupId) {
        let now = self.now.mono;
        let log_is_broken = self.log_is_broken();
        let Some(slot) = self
            .slot_mut(group)
            .filter(|slot| slot.leads && !slot.handing_over)
        else {
            return;
        };
        if log_is_broken || !matches!(slot.machine, Machine::Stream(_)) {
            return;
        }
        slot.handing_over = true;
        slot.consumers.log_progress(now);
        self.consumers_turn(group);
        self.propose(group);
    }

    /// Consumers go on if the leadership has stayed.
    pub(super) fn look_at_hand_over(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if slot.handing_over && !slot.raft.is_handing_over() {
            slot.handing_over = false;
            slot.consumers.touch_all();
            self.slot_mut(group);
        }
    }

    /// Whether consumers of a group wait for the end of a hand-over.
    pub(crate) fn is_handing_over(&self, group: GroupId) -> bool {
        self.slot(group).is_some_and(|slot| slot.handing_over)
    }
}
