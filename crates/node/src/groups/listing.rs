//! Bringing this node in line with the metadata as a whole, where its entries were not applied one by one: at a start,
//! after founding or joining, and after a snapshot of the metadata.
//!
//! A replica goes only if the metadata knows of its making and does not list it (DESIGN section 8): then it was removed
//! for good, since ids are never used again. One that the metadata does not know of yet stays.

use super::meta::MetaNotice;
use crate::worker::Core;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidelock_base::{GroupId, ReplicaId, WorkerId};
use tidelock_jetstream::meta::StreamEntry;

/// What the metadata says of this node's replicas.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The replica of each group that is placed here.
    here: BTreeMap<GroupId, ReplicaId>,
    /// Replicas of other groups, or other replicas of these, of whose making the metadata knows.
    made_below: ReplicaId,
}

impl Listing {
    /// Whether a local replica was removed for good.
    fn is_removed(&self, group: GroupId, replica: ReplicaId) -> bool {
        group != GroupId::META && replica < self.made_below && self.here.get(&group) != Some(&replica)
    }
}

impl Core {
    /// Starts the replicas that the metadata places here and that are not there, stops those that it has removed, and
    /// makes subjects lead where they should. Only the worker of the metadata knows what to do.
    pub(crate) fn follow_listing(&mut self) {
        let me = self.shared.identity.node;
        let Some(meta) = self.meta() else { return };
        let entries: Vec<StreamEntry> = meta.streams().cloned().collect();
        let mine = |entry: &StreamEntry| entry.replicas.iter().find(|replica| replica.node == me).copied();
        let here = entries
            .iter()
            .filter_map(|entry| Some((entry.group, mine(entry)?.id)))
            .collect();
        let listing = Arc::new(Listing {
            here,
            made_below: meta.next_replica(),
        });
        for group in self.shared.directory.load().groups() {
            if !entries.iter().any(|entry| entry.group == group) {
                self.forget_route(group);
            }
        }
        for worker in 0..self.shared.workers {
            let notice = MetaNotice::Listed(Arc::clone(&listing));
            self.notice_to(WorkerId(worker), notice);
        }
        for entry in entries {
            self.enter_directory(&entry);
            let Some(replica) = mine(&entry) else { continue };
            self.meta_notice(MetaNotice::Start(Box::new(entry.clone()), replica));
            self.meta_notice(MetaNotice::Changed(Box::new(entry)));
        }
    }

    /// Stops the replicas of this worker that were removed for good.
    pub(super) fn stop_unlisted(&mut self, listing: &Listing) {
        let removed: Vec<(GroupId, ReplicaId)> = self
            .groups
            .slots
            .values()
            .map(|slot| (slot.group, slot.me))
            .chain(self.groups.presence.replicas())
            .chain(self.groups.damages.replicas())
            .filter(|(group, replica)| listing.is_removed(*group, *replica))
            .collect();
        for (group, replica) in removed.into_iter().collect::<BTreeSet<_>>() {
            tracing::info!("Replica {replica} of group {group} was removed meanwhile");
            self.remove_replica(group, replica);
        }
        let directory = self.shared.directory.load_full();
        let gone: Vec<GroupId> = self
            .senders
            .keys()
            .copied()
            .filter(|group| directory.by_group(*group).is_none())
            .collect();
        for group in gone {
            self.drop_sender(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_metadata_knows_and_does_not_list_is_removed() {
        let here = [(GroupId(2), ReplicaId(5)), (GroupId(3), ReplicaId(7))].into();
        let listing = Listing {
            here,
            made_below: ReplicaId(9),
        };
        for (group, replica, removed) in [
            (GroupId::META, 1, false),
            (GroupId(2), 5, false),
            (GroupId(2), 4, true),
            (GroupId(3), 9, false),
            (GroupId(4), 8, true),
            (GroupId(5), 10, false),
        ] {
            assert_eq!(
                listing.is_removed(group, ReplicaId(replica)),
                removed,
                "{group} {replica}"
            );
        }
    }
}
