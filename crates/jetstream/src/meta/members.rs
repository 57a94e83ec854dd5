//! Commands that concern servers and replicas.

use super::{
    GroupState, Meta, MetaEffects, MetaOutcome, PlacementHint, Replica, ReplicaRole, Server, ServerSpec,
    StreamEntry, Survivor, placement,
};
use tidelock_base::{ApiErrorCode, BootId, GroupId, NodeId, ReplicaId};

/// Index of the last entry of a replica that has nothing but its founding.
const FOUNDED: u64 = 1;

impl Meta {
    pub(super) fn server_join(
        &mut self,
        spec: ServerSpec,
        boot: BootId,
        fx: &mut impl MetaEffects,
    ) -> MetaOutcome {
        let known = self
            .servers
            .get(&spec.id)
            .map(|known| (known.meta_replica, known.birth, known.joined));
        let (meta_replica, birth, joined) = known.unwrap_or_else(|| (self.new_replica(), boot, self.stamp));
        let server = Server {
            spec,
            meta_replica,
            birth,
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
        let Some(birth) = self.servers.get(&spec.id).map(|known| known.birth) else {
            return Err(ApiErrorCode::ClusterServerNotMember.into());
        };
        Ok(self.server_join(spec, birth, fx))
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
        self.give_up_replicas(node, fx);
        Ok(MetaOutcome::Done)
    }

    /// The replicas of a server that is no member any more are as good as lost: where the others are a majority, they go
    /// on without it, and another server takes its place when there is one; in memory the best of the others does.
    /// Elsewhere they are what is left.
    fn give_up_replicas(&mut self, node: NodeId, fx: &mut impl MetaEffects) {
        for stream in self.streams.values_mut() {
            let stay = stream.replicas.iter().filter(|one| one.node != node && !one.lost);
            let stay = stay.count();
            let is_rescued = stream.spec.is_memory() && stay > 0;
            if 2 * stay <= stream.replicas.len() && !is_rescued {
                continue;
            }
            if let Some(replica) = stream.replicas.iter_mut().find(|one| one.node == node) {
                replica.lost = true;
                replicas_changed(stream, fx);
            }
        }
    }

    pub(super) fn meta_replica_replace(
        &mut self,
        node: NodeId,
        boot: BootId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let server = self
            .servers
            .get(&node)
            .ok_or(ApiErrorCode::ClusterServerNotMember)?;
        // Everyone who meets that server says so, each once or more.
        if server.birth == boot {
            let meta_replica = server.meta_replica;
            return Ok(MetaOutcome::Server { meta_replica });
        }
        let meta_replica = self.new_replica();
        if let Some(server) = self.servers.get_mut(&node) {
            server.meta_replica = meta_replica;
            server.birth = boot;
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
        let stream = self.by_group(group)?.clone();
        let node = match node {
            Some(node) if self.servers.contains_key(&node) => node,
            Some(_) => return Err(ApiErrorCode::ClusterServerNotMember.into()),
            None => self.further_node(&stream, hint)?,
        };
        self.add_learner(group, node, fx)
    }

    /// A replica is to go, and another one to take its place.
    pub(super) fn replica_replace(
        &mut self,
        group: GroupId,
        id: ReplicaId,
        hint: &PlacementHint,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?.clone();
        let replica = stream.replica(id).ok_or(ApiErrorCode::ClusterPeerNotMember)?;
        if replica.role == ReplicaRole::Leaving {
            return Err(ApiErrorCode::ClusterPeerNotMember.into());
        }
        if !others_vote(&stream, id) {
            return Err(ApiErrorCode::PeerRemap.into());
        }
        let node = self.further_node(&stream, hint)?;
        if replica.role == ReplicaRole::Learner {
            // It has no vote, and nothing that others lack.
            self.replica_remove(group, id, false, fx)?;
        } else {
            member(self.by_group(group)?, id)?.role = ReplicaRole::Leaving;
        }
        self.add_learner(group, node, fx)
    }

    /// The best server for one more replica of a stream.
    fn further_node(&self, stream: &StreamEntry, hint: &PlacementHint) -> Result<NodeId, MetaOutcome> {
        let taken: Vec<NodeId> = stream.nodes().collect();
        let nodes = placement::place(self, &stream.spec, hint, &taken, 1).map_err(MetaOutcome::Refused)?;
        nodes
            .first()
            .copied()
            .ok_or_else(|| ApiErrorCode::PeerRemap.into())
    }

    fn add_learner(
        &mut self,
        group: GroupId,
        node: NodeId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let replica = Replica {
            id: self.new_replica(),
            node,
            role: ReplicaRole::Learner,
            present: None,
            lost: false,
        };
        let stream = self.by_group(group)?;
        stream.replicas.push(replica);
        fx.replica_start(stream, &replica);
        replicas_changed(stream, fx);
        Ok(MetaOutcome::Replica { replica })
    }

    pub(super) fn replica_promote(
        &mut self,
        group: GroupId,
        id: ReplicaId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        let replica = member(stream, id)?;
        replica.role = ReplicaRole::Voter;
        replicas_changed(stream, fx);
        Ok(MetaOutcome::Done)
    }

    pub(super) fn replicas_present(
        &mut self,
        group: GroupId,
        ids: &[ReplicaId],
        boot: BootId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        let made_anew = stream.spec.is_memory() && stream.replicas.len() == 1;
        let mut changed = false;
        for replica in stream
            .replicas
            .iter_mut()
            .filter(|replica| ids.contains(&replica.id))
            .filter(|replica| replica.present.is_none() || (made_anew && replica.present != Some(boot)))
        {
            replica.present = Some(boot);
            replica.lost = false;
            changed = true;
        }
        if changed {
            fx.stream_changed(stream);
        }
        Ok(MetaOutcome::Done)
    }

    pub(super) fn replica_lost(
        &mut self,
        group: GroupId,
        id: ReplicaId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        let replica = member(stream, id)?;
        // One that was never recorded has promised nothing: it can still be made.
        if replica.present.is_some() && !replica.lost {
            replica.lost = true;
            replicas_changed(stream, fx);
        }
        Ok(MetaOutcome::Done)
    }

    pub(super) fn replica_remove(
        &mut self,
        group: GroupId,
        id: ReplicaId,
        again: bool,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        let replica = *stream.replica(id).ok_or(ApiErrorCode::ClusterPeerNotMember)?;
        if !others_vote(stream, id) {
            return Err(ApiErrorCode::PeerRemap.into());
        }
        stream.replicas.retain(|other| other.id != id);
        let lacks = stream.replicas.len() < usize::from(stream.spec.num_replicas);
        fx.replica_stop(group, &replica);
        replicas_changed(stream, fx);
        // Whoever waits for that server to be well again waits for the stream to be whole, too.
        if again && replica.lost && lacks && self.servers.contains_key(&replica.node) {
            self.add_learner(group, replica.node, fx)?;
        }
        Ok(MetaOutcome::Done)
    }

    /// Notes what is left of a memory stream that has lost its majority. Once all that are left have told it, each for itself,
    /// the one with the longest log is all that the group consists of from now on: it has whatever any of them has of what
    /// was acknowledged.
    pub(super) fn replica_survives(
        &mut self,
        group: GroupId,
        survivor: Survivor,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        let replica = member(stream, survivor.replica)?;
        if replica.lost || !stream.spec.is_memory() || stream.state != GroupState::Formed {
            return Err(MetaOutcome::Conflict);
        }
        stream.survivors.retain(|one| one.replica != survivor.replica);
        stream.survivors.push(survivor);
        let told = |id| stream.survivors.iter().any(|one| one.replica == id);
        // One that was never recorded has neither voted nor taken anything.
        let has_something = |one: &&Replica| !one.lost && one.present.is_some();
        let all = stream
            .replicas
            .iter()
            .filter(has_something)
            .all(|one| told(one.id));
        let some_lost = stream.replicas.iter().any(|one| one.lost);
        let best = stream.survivors.iter().max_by_key(|one| {
            let first = std::cmp::Reverse(one.replica);
            (one.term, one.index, first)
        });
        let Some(best) = best.copied().filter(|_| all && some_lost) else {
            return Ok(MetaOutcome::Done);
        };
        if best.index <= FOUNDED {
            // They are as new: what there was is gone with the others.
            for replica in &mut stream.replicas {
                replica.lost = true;
            }
            replicas_changed(stream, fx);
            return Ok(MetaOutcome::Done);
        }
        let best = best.replica;
        stream.state = GroupState::Rescued;
        let (stay, gone): (Vec<Replica>, Vec<Replica>) =
            stream.replicas.iter().partition(|one| one.id == best);
        stream.replicas = stay;
        for replica in &mut stream.replicas {
            replica.role = ReplicaRole::Voter;
        }
        for replica in &gone {
            fx.replica_stop(group, replica);
        }
        replicas_changed(stream, fx);
        Ok(MetaOutcome::Done)
    }
}

/// What replicas have said of those that are left counts no more.
fn replicas_changed(stream: &mut StreamEntry, fx: &mut impl MetaEffects) {
    stream.survivors.clear();
    fx.stream_changed(stream);
}

/// Whether a stream has voters that stay beside this one.
fn others_vote(stream: &StreamEntry, id: ReplicaId) -> bool {
    let mut others = stream.replicas.iter().filter(|other| other.id != id);
    others.any(|other| other.role == ReplicaRole::Voter)
}

/// A replica of a stream.
fn member(stream: &mut StreamEntry, id: ReplicaId) -> Result<&mut Replica, ApiErrorCode> {
    let replica = stream.replicas.iter_mut().find(|replica| replica.id == id);
    replica.ok_or(ApiErrorCode::ClusterPeerNotMember)
}
