//! Commands that concern streams.

use super::{
    AccountLimits, GroupState, Key, Meta, MetaEffects, MetaOutcome, PendingUpdate, PlacementHint, Replica,
    ReplicaRole, StreamEntry, StreamSpec, key_of, placement,
};
use tidelock_base::{ApiErrorCode, GroupId, NodeId};

impl Meta {
    pub(super) fn stream_create(
        &mut self,
        account: String,
        spec: StreamSpec,
        limits: &AccountLimits,
        hint: &PlacementHint,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        if let Some(present) = self.stream(&account, &spec.name) {
            if present.spec != spec {
                return Err(ApiErrorCode::StreamNameExist.into());
            }
            return Ok(MetaOutcome::Stream {
                group: present.group,
                created: false,
            });
        }
        self.check_overlap(&account, &spec)?;
        self.check_limits(&account, &spec, limits)?;
        let nodes = placement::place(self, &spec, hint, &[], usize::from(spec.num_replicas))
            .map_err(MetaOutcome::Refused)?;

        let group = self.new_group();
        let stream = StreamEntry {
            account,
            spec,
            rev: 1,
            group,
            replicas: self.founding_replicas(nodes),
            created: self.stamp,
            state: GroupState::Forming,
            pending: None,
            survivors: Vec::new(),
        };
        self.groups.insert(group, key_of(&stream));
        start_all(&stream, fx);
        self.streams.insert(key_of(&stream), stream);
        Ok(MetaOutcome::Stream { group, created: true })
    }

    pub(super) fn founding_replicas(&mut self, nodes: Vec<NodeId>) -> Vec<Replica> {
        let replica = |node| Replica {
            id: self.new_replica(),
            node,
            role: ReplicaRole::Voter,
            present: None,
            lost: false,
        };
        nodes.into_iter().map(replica).collect()
    }

    /// 10065: a subject of the new configuration meets one of another stream, present or pending.
    pub(super) fn check_overlap(&self, account: &str, spec: &StreamSpec) -> Result<(), MetaOutcome> {
        let others = self
            .streams_of(account)
            .filter(|other| other.spec.name != spec.name);
        for other in others.flat_map(StreamEntry::specs) {
            if spec.overlaps(other) {
                return Err(ApiErrorCode::StreamSubjectOverlap.into());
            }
        }
        Ok(())
    }

    /// Checks in nats-server's order: number of streams, consumers of the configuration, reserved bytes.
    pub(super) fn check_limits(
        &self,
        account: &str,
        spec: &StreamSpec,
        limits: &AccountLimits,
    ) -> Result<(), MetaOutcome> {
        let others = || {
            self.streams_of(account)
                .filter(|other| other.spec.name != spec.name)
        };
        if limits
            .max_streams
            .is_some_and(|max| others().count() as u64 >= max)
        {
            return Err(ApiErrorCode::MaximumStreamsLimit.into());
        }
        if let (Some(max), Some(wanted)) = (limits.max_consumers, spec.max_consumers)
            && u64::from(wanted) > max
        {
            return Err(ApiErrorCode::MaximumConsumersLimit.into());
        }
        let (max, code) = if spec.is_memory() {
            (limits.max_memory, ApiErrorCode::MemoryResourcesExceeded)
        } else {
            (limits.max_storage, ApiErrorCode::StorageResourcesExceeded)
        };
        let reserved = |stream: &StreamEntry| {
            let specs = stream
                .specs()
                .filter(|other| other.is_memory() == spec.is_memory());
            specs.map(StreamSpec::reserved_bytes).max().unwrap_or(0)
        };
        let total = others()
            .map(reserved)
            .fold(spec.reserved_bytes(), u64::saturating_add);
        // A stream without `max_bytes` reserves nothing, so no reservation stands in its way.
        if spec.max_bytes.is_some() && max.is_some_and(|max| total > max) {
            return Err(code.into());
        }
        Ok(())
    }

    pub(super) fn group_formed(
        &mut self,
        group: GroupId,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        stream.state = GroupState::Formed;
        fx.stream_changed(stream);
        Ok(MetaOutcome::Done)
    }

    pub(super) fn group_reform(
        &mut self,
        group: GroupId,
        hint: &PlacementHint,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let old = self.by_group(group)?.clone();
        let formed = old.state != GroupState::Forming;
        if formed && !self.has_nothing_left(&old, |_| true) {
            return Err(MetaOutcome::Conflict);
        }
        // The stream that gives way must not count against the servers that may take it.
        self.streams.remove(&key_of(&old));
        let placed = placement::place(self, &old.spec, hint, &[], usize::from(old.spec.num_replicas));
        let nodes = match placed {
            Ok(nodes) => nodes,
            Err(error) => {
                self.streams.insert(key_of(&old), old);
                return Err(MetaOutcome::Refused(error));
            }
        };
        for replica in &old.replicas {
            fx.replica_stop(group, replica);
        }
        self.groups.remove(&group);
        if formed {
            fx.stream_removed(&old);
        }
        let stream = StreamEntry {
            group: self.new_group(),
            replicas: self.founding_replicas(nodes),
            state: GroupState::Forming,
            pending: None,
            survivors: Vec::new(),
            ..old
        };
        self.groups.insert(stream.group, key_of(&stream));
        start_all(&stream, fx);
        let group = stream.group;
        self.streams.insert(key_of(&stream), stream);
        Ok(MetaOutcome::Stream { group, created: true })
    }

    pub(super) fn remove_stream(&mut self, key: &Key, fx: &mut impl MetaEffects) -> bool {
        let Some(stream) = self.streams.remove(key) else {
            return false;
        };
        self.groups.remove(&stream.group);
        for replica in &stream.replicas {
            fx.replica_stop(stream.group, replica);
        }
        fx.stream_removed(&stream);
        true
    }

    pub(super) fn update_begin(
        &mut self,
        account: String,
        spec: StreamSpec,
        rev: u64,
        limits: &AccountLimits,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let present = self
            .stream(&account, &spec.name)
            .ok_or(ApiErrorCode::StreamNotFound)?;
        if present.rev != rev {
            return Err(MetaOutcome::Conflict);
        }
        if present.pending.is_some() {
            return Err(ApiErrorCode::StreamReconfigureInProgress.into());
        }
        self.check_overlap(&account, &spec)?;
        // Only what grows is checked: an account over its limits may still make its streams smaller.
        if spec.reserved_bytes() > present.spec.reserved_bytes() {
            let limits = AccountLimits {
                max_streams: None,
                ..*limits
            };
            self.check_limits(&account, &spec, &limits)?;
        }
        let group = present.group;
        let stream = self.by_group(group)?;
        let rev = stream.rev + 1;
        stream.pending = Some(PendingUpdate { rev, spec });
        fx.stream_changed(stream);
        Ok(MetaOutcome::Update { group, rev })
    }

    pub(super) fn update_end(
        &mut self,
        group: GroupId,
        rev: u64,
        accepted: bool,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        let stream = self.by_group(group)?;
        match stream.pending.take_if(|pending| pending.rev == rev) {
            Some(pending) => {
                // A revision that was refused is not given out again: the stream's log may have seen it.
                stream.rev = rev;
                if accepted {
                    stream.spec = pending.spec;
                }
                fx.stream_changed(stream);
                Ok(MetaOutcome::Done)
            }
            // A second leader may finish what the first has finished.
            None if stream.rev >= rev => Ok(MetaOutcome::Done),
            None => Err(MetaOutcome::Conflict),
        }
    }
}

fn start_all(stream: &StreamEntry, fx: &mut impl MetaEffects) {
    for replica in &stream.replicas {
        fx.replica_start(stream, replica);
    }
    fx.stream_changed(stream);
}
