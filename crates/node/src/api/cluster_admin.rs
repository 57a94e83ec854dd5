//! What operators do to the cluster: step-downs, replicas and servers that are to go.

use super::entry::unsupported;
use super::subjects::{Call, Endpoint};
use super::{Job, Stage};
use crate::groups::Waiter;
use crate::worker::Core;
use tidelock_api::{
    PeerRequest, ServerRemoveRequest, StepdownRequest, Success, decode_optional, decode_strict,
};
use tidelock_base::{ApiError, ApiErrorCode, GroupId, NodeId};
use tidelock_jetstream::meta::{MetaCommand, ReplicaRole};

impl Core {
    /// STREAM.LEADER.STEPDOWN, CONSUMER.LEADER.STEPDOWN and META.LEADER.STEPDOWN, at the leader that is to go.
    pub(super) fn stepdown(&mut self, job: &Job, call: &Call<'_>) {
        match self.step_down_for(job, call) {
            Ok(()) => self.reply_ok(&job.request, call.endpoint.kind(), &Success::YES),
            Err(error) => self.refuse(&job.request, call.endpoint, &error),
        }
    }

    fn step_down_for(&mut self, job: &Job, call: &Call<'_>) -> Result<(), ApiError> {
        if call.endpoint == Endpoint::ConsumerStepdown {
            let found = self
                .stream(job.group)
                .and_then(|stream| stream.consumer(call.consumer))
                .is_some();
            if !found {
                return Err(ApiErrorCode::ConsumerNotFound.into());
            }
        }
        let wanted: StepdownRequest = decode_optional(&job.request.payload, self.is_strict())?;
        let others = self.other_voters(job.group);
        if others.is_empty() {
            // With one replica there is nobody else, and nothing happens.
            return Ok(());
        }
        let to = match wanted.placement {
            Some(placement) => self.next_leader(&placement, &others)?,
            None => None,
        };
        if self.step_down(job.group, to) {
            return Ok(());
        }
        match to {
            Some(_) => Err(no_replacement()),
            None => Err(ApiError::text(
                ApiErrorCode::RaftGeneral,
                "no replica can take over now",
            )),
        }
    }

    /// Servers with a vote in a group, this one left out.
    fn other_voters(&self, group: GroupId) -> Vec<NodeId> {
        let me = self.shared.identity.node;
        let Some(slot) = self.slot(group) else {
            return Vec::new();
        };
        let voters = slot
            .replicas
            .iter()
            .filter(|replica| replica.role == ReplicaRole::Voter);
        voters
            .map(|replica| replica.node)
            .filter(|node| *node != me)
            .collect()
    }

    /// The server that a request wants as the next leader.
    fn next_leader(
        &self,
        placement: &tidelock_api::Placement,
        others: &[NodeId],
    ) -> Result<Option<NodeId>, ApiError> {
        let refuse = |text: String| Err(ApiError::text(ApiErrorCode::ClusterNoPeers, text));
        let preferred = placement.preferred.as_str();
        if !preferred.is_empty() {
            if *preferred == *self.shared.identity.name {
                return refuse(format!("preferred server \"{preferred}\" is already leader"));
            }
            let node = self.server_named(preferred).filter(|node| others.contains(node));
            return match node {
                Some(node) if self.is_online(node) => Ok(Some(node)),
                Some(_) => Err(no_replacement()),
                None => refuse(format!("preferred server \"{preferred}\" not known")),
            };
        }
        let own_cluster = self.shared.cluster_name();
        let elsewhere =
            !placement.cluster.is_empty() && own_cluster.as_deref() != Some(placement.cluster.as_str());
        let fits = |node: &NodeId| {
            let server = self.meta().and_then(|meta| meta.server(*node));
            let has = |tag: &String| {
                server.is_some_and(|s| s.spec.tags.iter().any(|own| own.eq_ignore_ascii_case(tag)))
            };
            self.is_online(*node) && placement.tags.iter().all(has)
        };
        if placement.tags.is_empty() && !elsewhere {
            return Ok(None);
        }
        match others
            .iter()
            .copied()
            .find(|node| fits(node))
            .filter(|_| !elsewhere)
        {
            Some(node) => Ok(Some(node)),
            None => Err(no_replacement()),
        }
    }

    /// STREAM.PEER.REMOVE at the metadata's leader: the replica goes, and another one takes its place.
    pub(super) fn peer_remove(&mut self, job: Box<Job>, call: &Call<'_>) {
        match self.replica_to_remove(&job, call) {
            Ok((group, node)) => {
                let request = job.request.clone();
                if !self.replace_replica(group, node, Waiter::Api(job.at(Stage::Command))) {
                    self.refuse(
                        &request,
                        call.endpoint,
                        &ApiErrorCode::ClusterPeerNotMember.into(),
                    );
                }
            }
            Err(error) => self.refuse(&job.request, call.endpoint, &error),
        }
    }

    /// STREAM.PEER.EVACUATE at the metadata's leader: what cannot be is refused as on nats-server, and the rest as what
    /// this version does not do.
    pub(super) fn peer_evacuate(&mut self, job: &Job, call: &Call<'_>) {
        let error = match self.replica_to_remove(job, call) {
            Ok(_) => unsupported("moving replicas off a server"),
            Err(error) => error,
        };
        self.refuse(&job.request, call.endpoint, &error);
    }

    fn replica_to_remove(&self, job: &Job, call: &Call<'_>) -> Result<(GroupId, NodeId), ApiError> {
        let wanted: PeerRequest = decode_strict(&job.request.payload, self.is_strict())?;
        if wanted.peer.is_empty() {
            return Err(ApiErrorCode::BadRequest.into());
        }
        let account = self.account_name(job.request.account);
        let meta = self.meta().ok_or(ApiErrorCode::ClusterNotAvail)?;
        let entry = meta
            .stream(&account, call.stream)
            .ok_or(ApiErrorCode::StreamNotFound)?;
        let node = self
            .server_named(&wanted.peer)
            .filter(|node| {
                entry
                    .replicas
                    .iter()
                    .any(|one| one.node == *node && one.role != ReplicaRole::Leaving)
            })
            .ok_or(ApiErrorCode::ClusterPeerNotMember)?;
        let hint = self.placement_hint();
        let spare = hint
            .candidates
            .iter()
            .any(|candidate| candidate.online && entry.nodes().all(|member| member != candidate.node));
        if !spare || entry.replicas.len() < 2 {
            return Err(ApiErrorCode::PeerRemap.into());
        }
        Ok((entry.group, node))
    }

    /// SERVER.REMOVE at the metadata's leader.
    pub(super) fn server_remove(&mut self, job: Box<Job>) {
        let wanted = decode_strict::<ServerRemoveRequest>(&job.request.payload, self.is_strict());
        let node = wanted.and_then(|wanted| {
            let name = if wanted.peer_id.is_empty() {
                &wanted.peer
            } else {
                &wanted.peer_id
            };
            if name.is_empty() {
                return Err(ApiErrorCode::BadRequest.into());
            }
            self.server_named(name)
                .ok_or_else(|| ApiErrorCode::ClusterServerNotMember.into())
        });
        match node {
            Ok(node) => self.meta_command(
                MetaCommand::ServerLeave { node },
                Waiter::Api(job.at(Stage::Command)),
            ),
            Err(error) => self.refuse(&job.request, Endpoint::ServerRemove, &error),
        }
    }
}

fn no_replacement() -> ApiError {
    ApiError::text(ApiErrorCode::ClusterNoPeers, "no replacement peer connected")
}
