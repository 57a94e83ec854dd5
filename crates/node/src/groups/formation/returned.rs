//! Servers that were taken out of the cluster and are there: how they notice, and how they come in again.
//!
//! A server that was removed while it was down or cut off is sent nothing of that, and one that ran may not have heard
//! it in time. It tells the others which replica of the metadata it has, as every server does. Ids of replicas are never
//! used again: one that the metadata has given out and does not list was removed for good. The leader tells that server
//! so. It asks to come in, by which it shows that it is there and not only has been, and the leader lists it with a new
//! replica, for the start in which it is now. That entry of the metadata is what the server goes by:
//! ```text
//!   removed server                              leader of the metadata
//!     Status{replica 3} ----------------------> 3 was given out, is not listed, is no member
//!                       <---------- Removed(3)
//!     Status{replica 3, returns} -------------> ServerJoin, committed: replica 7, to be made in this start
//!     gives up 3, makes 7 <---- Join{7, metadata}
//! ```
//! A replica that is merely slow is listed, and stays. A peer that lags, or has led before, convinces nobody: what makes
//! a server give up its replica names the start in which it is, and is committed.
//!
//! The others may need the vote of the old replica until they know durably that it is no member. So the entry that lists
//! the server anew is proposed once the removal is in force at the leader ([`Core::has_let_go`]): whoever takes that entry
//! learns with it that the removal is committed, and a majority of those that stay has taken it when it is committed itself.

use super::{Lost, Message, REMIND, Status};
use crate::groups::GroupId;
use crate::worker::Core;
use tidelock_base::{ClusterId, NodeId, ReplicaId};

/// A peer whose replica of the metadata was removed.
pub(super) struct Returned {
    node: NodeId,
    name: String,
    /// What it has.
    replica: ReplicaId,
    /// It knows, and asks for another one.
    asks: bool,
}

impl Status {
    /// The replica of the metadata of a cluster that the sender has.
    fn replica_in(&self, cluster: ClusterId) -> Option<ReplicaId> {
        let has = self.has_metadata() && self.cluster() == Some(&cluster.to_string());
        self.replica.map(ReplicaId).filter(|_| has)
    }
}

impl Core {
    /// The peers whose replicas of the metadata were removed, as far as it is applied here.
    pub(super) fn returned(&self) -> Vec<Returned> {
        let peers = self.groups.formation.peers.iter();
        let returned = peers.filter_map(|(node, peer)| {
            Some(Returned {
                node: *node,
                name: peer.spec.name.clone(),
                replica: self.removed_replica(*node, peer)?,
                asks: peer.returns,
            })
        });
        returned.collect()
    }

    /// The replica that a peer has, if it was removed for good.
    fn removed_replica(&self, node: NodeId, peer: &Status) -> Option<ReplicaId> {
        let meta = self.meta()?;
        let replica = peer.replica_in(meta.cluster())?;
        let listed = meta.server(node).map(|server| server.meta_replica);
        (replica < meta.next_replica() && listed != Some(replica)).then_some(replica)
    }

    /// Where a replica of the metadata is that is not listed any more, as its server says itself. Until its removal is
    /// committed it counts for the quorum, and its answer may be the one that is missing.
    pub(in crate::groups) fn member_unlisted(&self, group: GroupId, replica: ReplicaId) -> Option<NodeId> {
        let meta = self.meta().filter(|_| group == GroupId::META)?;
        let cluster = meta.cluster();
        let mut peers = self.groups.formation.peers.iter();
        let (node, _) = peers.find(|(_, peer)| peer.replica_in(cluster) == Some(replica))?;
        Some(*node)
    }

    /// Whether a peer with metadata is to come in anew: only the leader says so.
    pub(super) fn may_return(&self, node: NodeId, peer: &Status) -> bool {
        let removed = self.removed_replica(node, peer).filter(|_| peer.returns);
        removed.is_some_and(|replica| self.has_let_go(replica))
    }

    /// Whether this node leads the metadata, and a replica is no member of it any more.
    fn has_let_go(&self, replica: ReplicaId) -> bool {
        let slot = self.slot(GroupId::META).filter(|slot| slot.leads);
        slot.is_some_and(|slot| !slot.raft.members().0.contains(replica))
    }

    /// As the leader: tells the servers that were removed.
    pub(super) fn tell_returned(&mut self, returned: Vec<Returned>) {
        for one in returned {
            if !self.has_let_go(one.replica) {
                continue;
            }
            if !one.asks {
                self.tell(one.node, &Message::Removed(one.replica.0));
            } else if self.is_news(one.node, one.replica) {
                tracing::info!(
                    "JetStream metadata: server {:?} was taken out of the cluster with replica {} and is there; it is let in \
                     again under a new id",
                    one.name,
                    one.replica
                );
            }
        }
    }

    fn is_news(&mut self, node: NodeId, replica: ReplicaId) -> bool {
        let returned = Some((node, replica));
        std::mem::replace(&mut self.groups.formation.returned, returned) != returned
    }

    /// Whether this server was told that its replica of the metadata was removed.
    pub(super) fn is_removed(&self) -> bool {
        let removed = self.groups.formation.removed;
        removed.is_some() && self.slot(GroupId::META).map(|slot| slot.me) == removed
    }

    /// The leader of the metadata says that the replica here was removed. Nothing is given up for that: this server asks
    /// for another one.
    pub(super) fn told_removed(&mut self, replica: ReplicaId) {
        let has = self.slot(GroupId::META).is_some_and(|slot| slot.me == replica);
        if !has || self.is_removed() {
            return;
        }
        tracing::warn!(
            "JetStream metadata: this server was taken out of its cluster, and replica {replica} of the metadata that it has \
             is no member any more; it asks to be let in again"
        );
        self.groups.formation.removed = Some(replica);
        self.look_at_formation();
    }

    /// The metadata has another replica for this server: the one that it has was removed, and is given up. `false` if
    /// that is not so.
    pub(super) fn leave_removed(&mut self, cluster: ClusterId, replica: ReplicaId) -> bool {
        let Some((slot, meta)) = self.slot(GroupId::META).zip(self.meta()) else {
            return false;
        };
        let old = slot.me;
        // One that was meant for this server earlier may be told late. A leader that is none any more will notice.
        if meta.cluster() != cluster || replica <= old || slot.leads {
            return false;
        }
        tracing::warn!(
            "JetStream metadata: this server is let in again, with replica {replica} in place of {old}; the replicas of \
             streams that the cluster does not place here any more are removed"
        );
        self.drop_metadata();
        let remind_at = self.now.mono + REMIND;
        self.groups.formation.lost = Some(Lost {
            cluster: Some(cluster),
            remind_at,
        });
        self.groups.formation.seeking = true;
        true
    }
}
