//! Commands that concern servers and replicas.

use super::{
    Meta, MetaEffects, MetaOutcome, PlacementHint, Replica, ReplicaRole, Server, ServerSpec, placement,
};
use tidelock_base::{ApiErrorCode, GroupId, NodeId, ReplicaId};

impl Meta {
    pub(super) fn server_join(&mut self, spec: ServerSpec, fx: &mut impl MetaEffects) -> MetaOutcome {
        let known = self
            .servers
            .get(&spec.id)
            .map(|known| (known.meta_replica, known.joined));
        let (meta_replica, joined) = known.unwrap_or_else(|| (self.new_replica(), self.stamp));
        let server = Server {
            spec,
            meta_replica,
            joined,
        };
        fx.server_changed(&server);
        self.servers.insert(server.spec.id, server);
        MetaOutcome::Server { meta_replica }
    }

    pub(super) fn server_update(
        &mut self,
        spec: ServerSpec,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        if !self.servers.contains_key(&spec.id) {
            return Err(ApiErrorCode::ClusterServerNotMember.into());
        }
        Ok(self.server_join(spec, fx))
    }

    pub(super) fn server_leave(
        &mut self,
        node: NodeId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let server = self
            .servers
            .remove(&node)
            .ok_or(ApiErrorCode::ClusterServerNotMember)?;
        fx.server_removed(&server);
        Ok(MetaOutcome::Done)
    }

    pub(super) fn meta_replica_replace(
        &mut self,
        node: NodeId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        if !self.servers.contains_key(&node) {
            return Err(ApiErrorCode::ClusterServerNotMember.into());
        }
        let meta_replica = self.new_replica();
        if let Some(server) = self.servers.get_mut(&node) {
            server.meta_replica = meta_replica;
            fx.server_changed(server);
        }
        Ok(MetaOutcome::Server { meta_replica })
    }

    pub(super) fn replica_add(
        &mut self,
        group: GroupId,
        node: Option<NodeId>,
        hint: &PlacementHint,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        let spec = stream.spec.clone();
        let taken: Vec<NodeId> = stream.nodes().collect();
        let node = match node {
            Some(node) if self.servers.contains_key(&node) => node,
            Some(_) => return Err(ApiErrorCode::ClusterServerNotMember.into()),
            None => placement::place(self, &spec, hint, &taken, 1)
                .map_err(MetaOutcome::Refused)?
                .first()
                .copied()
                .ok_or(ApiErrorCode::PeerRemap)?,
        };
        let replica = Replica {
            id: self.new_replica(),
            node,
            role: ReplicaRole::Learner,
            present: false,
        };
        let stream = self.by_group(group)?;
        stream.replicas.push(replica);
        fx.replica_start(stream, &replica);
        fx.stream_changed(stream);
        Ok(MetaOutcome::Replica { replica })
    }

    pub(super) fn replica_promote(
        &mut self,
        group: GroupId,
        id: ReplicaId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        let replica = stream.replicas.iter_mut().find(|replica| replica.id == id);
        let replica = replica.ok_or(ApiErrorCode::ClusterPeerNotMember)?;
        replica.role = ReplicaRole::Voter;
        replica.present = true;
        fx.stream_changed(stream);
        Ok(MetaOutcome::Done)
    }

    pub(super) fn replica_remove(
        &mut self,
        group: GroupId,
        id: ReplicaId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        let replica = *stream.replica(id).ok_or(ApiErrorCode::ClusterPeerNotMember)?;
        let others_vote = stream
            .replicas
            .iter()
            .any(|other| other.id != id && other.role == ReplicaRole::Voter);
        if !others_vote {
            return Err(ApiErrorCode::PeerRemap.into());
        }
        stream.replicas.retain(|other| other.id != id);
        fx.replica_stop(group, &replica);
        fx.stream_changed(stream);
        Ok(MetaOutcome::Done)
    }
}
