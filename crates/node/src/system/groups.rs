//! What the groups of a worker contribute to monitoring, and whether they are well.

use super::jetstream::{HealthPart, JetStreamPart, RaftGroup, RaftLog, RaftPeer, StreamPart};
use super::marks::{BEHIND_MAX, LOOK_EVERY, Seen};
use crate::groups::{Machine, Slot};
use crate::worker::Core;
use std::collections::BTreeMap;
use tidelock_api::Time;
use tidelock_api::monitor::{
    HealthError, HealthzOptions, JszOptions, MetaCluster, RaftGroup as ConsumerGroup, RaftzOptions,
    StreamDetail, TidelockStream,
};
use tidelock_auth::hash8;
use tidelock_base::{AccountId, GroupId, LogIndex, Mono, ReplicaId, Term};
use tidelock_jetstream::config::Storage;
use tidelock_jetstream::stream::{Consumer, Stream};

impl Slot {
    /// What the leader that this replica follows has told it lately to have committed.
    fn told(&self, now: Mono) -> Option<LogIndex> {
        let lately = Mono(
            now.0
                .saturating_sub(u64::try_from(BEHIND_MAX.as_nanos()).unwrap_or(u64::MAX)),
        );
        self.raft.told_commit(lately)
    }

    /// The leader that this replica follows, or is; `None` if it has not heard of one lately.
    fn followed(&self, now: Mono) -> Option<(Term, ReplicaId)> {
        let leader = self.leader?;
        let silence = self.silence(leader, now).filter(|_| !self.leads);
        silence
            .is_none_or(|silence| silence <= BEHIND_MAX)
            .then(|| (self.raft.term(), leader))
    }
}

impl Core {
    /// Looks how the replicas of this worker follow.
    pub(super) fn look_at_marks(&mut self) {
        let now = self.now.mono;
        let marks = &mut self.system.marks;
        if self.groups.slots.is_empty() {
            // The last replica may have gone: without one, no look is due.
            marks.look_at = None;
            return;
        }
        if marks.look_at.is_some_and(|at| now < at) {
            return;
        }
        marks.look_at = Some(now + LOOK_EVERY);
        marks
            .marks
            .retain(|group, _| self.groups.slots.contains_key(group));
        for (group, slot) in &self.groups.slots {
            let seen = Seen {
                told: slot.told(now),
                applied: slot.raft.applied_index(),
                led: slot.followed(now),
                committed: slot.raft.leaders_commit(),
            };
            marks.marks.entry(*group).or_default().look(now, &seen);
        }
    }

    /// What a group had committed a while ago, half a second at least and about one at most. A replica that has it
    /// follows; one that has not acknowledged the newest entries yet does so, too.
    pub(crate) fn committed_before(&self, group: GroupId) -> LogIndex {
        let mark = self.system.marks.marks.get(&group);
        mark.map_or(LogIndex(0), |mark| mark.before())
    }

    /// Whether a replica has applied what its leader had committed [`BEHIND_MAX`] ago, as far as it can know.
    fn is_current(&self, slot: &Slot) -> bool {
        let now = self.now.mono;
        if slot.leads || slot.followed(now).is_none() {
            return slot.leads;
        }
        // One that has not heard yet that it is a member knows nothing of what it lacks.
        if slot.is_receiving() || !slot.raft.members().0.contains(slot.me) {
            return false;
        }
        // Before it votes, the others cannot do without another one yet.
        if !slot.is_settled_voter() {
            return false;
        }
        let applied = slot.raft.applied_index();
        if slot.told(now).is_some_and(|commit| applied >= commit) {
            return true;
        }
        let mark = self.system.marks.marks.get(&slot.group);
        mark.is_some_and(|mark| mark.is_current(now))
    }

    /// This worker's streams, with the details that are asked for.
    pub(super) fn jetstream_part(&self, options: &JszOptions) -> JetStreamPart {
        let mut part = JetStreamPart {
            leads_meta: self.leads(GroupId::META),
            ..JetStreamPart::default()
        };
        part.meta = self.meta_cluster();
        let wants_detail = options.streams || options.consumer || options.config;
        for (group, slot) in &self.groups.slots {
            let Machine::Stream(stream) = &slot.machine else {
                continue;
            };
            if slot.account == AccountId::NONE {
                continue;
            }
            let account = self
                .shared
                .account(slot.account)
                .map_or("", |account| &*account.name);
            let wanted = wants_detail
                && (options.account.is_empty() || account == options.account)
                && (!options.stream_leader_only || slot.leads);
            let state = stream.state();
            let config = stream.config();
            part.streams.push(StreamPart {
                account: slot.account,
                in_memory: config.storage == Storage::Memory,
                replicated: slot.replicas.len() > 1,
                leads: slot.leads,
                messages: state.msgs,
                bytes: state.bytes,
                reserved: config.max_bytes.unwrap_or(0),
                consumers: stream.users_consumers().count() as u64,
                detail: wanted.then(|| Box::new(self.stream_detail(*group, slot, stream, options))),
            });
        }
        part
    }

    fn stream_detail(
        &self,
        group: GroupId,
        slot: &Slot,
        stream: &Stream,
        options: &JszOptions,
    ) -> StreamDetail {
        let info = self.describe(group).unwrap_or_default();
        let mut consumers: Vec<&Consumer> = Vec::new();
        if options.consumer {
            consumers.extend(stream.users_consumers());
            consumers.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        }
        let shows_groups = options.raft && self.is_clustered();
        let (digest, applied) = if stream.is_at_boundary() {
            (format!("{:016x}", stream.digest()), stream.applied())
        } else {
            (String::new(), stream.applied())
        };
        StreamDetail {
            name: slot.name.to_string(),
            created: info.created,
            cluster: info.cluster,
            config: options.config.then_some(info.config),
            state: info.state,
            consumer_detail: consumers
                .iter()
                .filter_map(|one| self.consumer_shown(group, one.name(), false))
                .collect(),
            mirror: info.mirror,
            sources: info.sources,
            stream_raft_group: if shows_groups {
                slot.raft_group_name()
            } else {
                String::new()
            },
            consumer_raft_groups: consumers
                .iter()
                .filter(|_| shows_groups)
                .map(|one| ConsumerGroup {
                    name: one.name().to_owned(),
                    raft_group: slot.consumer_group_name(stream, one),
                })
                .collect(),
            tidelock: Some(TidelockStream {
                digest,
                applied: applied.0,
                commit: slot.raft.commit().0,
                last: slot.raft.last_index().0,
                durable: slot.raft.persisted_index().0,
                term: slot.raft.term().0,
                in_flight: slot.entries_in_flight() as u64,
                leader: slot.leads,
                damaged: slot.damaged_messages(),
                mended: slot.mended_messages(),
            }),
            ..StreamDetail::default()
        }
    }

    /// The metadata's group as its local replica sees it; only in a cluster.
    fn meta_cluster(&self) -> Option<MetaCluster> {
        self.shared.options.cluster.as_ref()?;
        let slot = self.slot(GroupId::META)?;
        let info = self.cluster_info(GroupId::META)?;
        let size = slot.raft.members().0.voters.len() as u64;
        Some(MetaCluster {
            name: info.name,
            peer: if info.leader.is_empty() {
                String::new()
            } else {
                hash8(info.leader.as_bytes())
            },
            leader: info.leader,
            replicas: if slot.leads { info.replicas } else { Vec::new() },
            cluster_size: size,
            quorum_needed: size / 2 + 1,
            pending: slot
                .raft
                .last_index()
                .0
                .saturating_sub(slot.raft.applied_index().0),
            ..MetaCluster::default()
        })
    }

    /// What is wrong with the groups of this worker.
    pub(super) fn jetstream_health(&self, options: &HealthzOptions) -> HealthPart {
        let mut part = HealthPart {
            present: self.groups.slots.keys().copied().collect(),
            ..HealthPart::default()
        };
        for slot in self.groups.slots.values() {
            // What is wrong with a stream of which the account is not served is found below.
            if slot.group == GroupId::META || slot.account != AccountId::NONE {
                let account = self
                    .shared
                    .account(slot.account)
                    .map_or("", |account| &*account.name);
                part.errors.extend(self.unwell(slot, account));
            }
        }
        if let Some(meta) = self.meta() {
            let me = self.shared.identity.node;
            if self.is_clustered() && !self.has_its_place() {
                part.errors.push(meta_is_not_current());
            }
            let here = meta
                .streams()
                .filter(|entry| entry.nodes().any(|node| node == me) || self.awaits_replica(entry));
            let mut wanted = Vec::new();
            for entry in here {
                let (account, stream) = (entry.account.clone(), entry.spec.name.clone());
                if self.served_account(&account).is_some() {
                    wanted.push((entry.group, account, stream));
                } else {
                    part.unserved.insert((account, stream));
                }
            }
            part.wanted = Some(wanted);
        }
        self.named_asset(options, &mut part);
        part
    }

    /// What is wrong with one replica.
    fn unwell(&self, slot: &Slot, account: &str) -> Option<HealthError> {
        let stream = &*slot.name;
        let problem = match &slot.failed {
            Some(_) if slot.is_held() => "lacks messages that come from other replicas".to_owned(),
            Some(failed) => format!("has stopped: {failed}"),
            None if slot.is_disputed() => "has replicas that differ".to_owned(),
            None if slot.is_being_mended() => "has damaged messages".to_owned(),
            None if !self.is_current(slot) => "is not current".to_owned(),
            None => return None,
        };
        if slot.group == GroupId::META {
            let mut error = meta_is_not_current();
            if slot.failed.is_some() {
                error.error = format!("JetStream metadata {problem}");
            }
            return Some(error);
        }
        let error = format!("JetStream stream '{account} > {stream}' {problem}");
        Some(HealthError {
            kind: "STREAM".to_owned(),
            account: account.to_owned(),
            stream: stream.to_owned(),
            error,
            ..HealthError::default()
        })
    }

    /// Whether the stream and the consumer that were named exist; asked of the worker that would have them.
    fn named_asset(&self, options: &HealthzOptions, part: &mut HealthPart) {
        let HealthzOptions {
            account,
            stream,
            consumer,
            ..
        } = options;
        let Some(id) = self.served_account(account).filter(|_| !stream.is_empty()) else {
            return;
        };
        let directory = self.shared.directory.load();
        let error = |kind: &str, consumer: &str, error: String| HealthError {
            kind: kind.to_owned(),
            account: account.clone(),
            stream: stream.clone(),
            consumer: consumer.to_owned(),
            error,
        };
        let Some(route) = directory.stream(id, stream) else {
            // One worker says so.
            if self.id.0 == 0 {
                let text = format!("JetStream stream {stream:?} not found on account {account:?}");
                part.errors.push(error("STREAM", "", text));
            }
            return;
        };
        let Some(local) = self.stream(route.group) else {
            return;
        };
        if !consumer.is_empty() && local.consumer(consumer).is_none() {
            let text = format!(
                "JetStream consumer {consumer:?} not found for stream {stream:?} on account {account:?}"
            );
            part.errors.push(error("CONSUMER", consumer, text));
        }
    }

    /// Consensus of this worker's groups that have other members, or of the one that is named.
    pub(super) fn raft_part(&self, options: &RaftzOptions) -> BTreeMap<String, BTreeMap<String, RaftGroup>> {
        let mut accounts: BTreeMap<String, BTreeMap<String, RaftGroup>> = BTreeMap::new();
        // All traffic of groups belongs to the system account.
        let account = &self.shared.options.system_account;
        if self.shared.options.cluster.is_none()
            || (!options.account.is_empty() && options.account != *account)
        {
            return accounts;
        }
        for slot in self.groups.slots.values() {
            let name = slot.raft_group_name();
            let named = options.group.is_empty() || options.group == name;
            if named && (slot.replicas.len() > 1 || slot.group == GroupId::META) {
                accounts
                    .entry(account.clone())
                    .or_default()
                    .insert(name, self.raft_group(slot));
            }
        }
        accounts
    }

    fn raft_group(&self, slot: &Slot) -> RaftGroup {
        let members = slot.raft.members().0;
        let size = members.voters.len() as u64;
        let progress = slot.raft.progress();
        let leader = slot
            .leader
            .and_then(|leader| slot.node_of(leader))
            .map(|node| self.server_name(node));
        let me = self.shared.identity.node;
        let peers = slot
            .replicas
            .iter()
            .filter(|replica| replica.node != me)
            .map(|replica| {
                let name = self.server_name(replica.node);
                let matched = progress
                    .iter()
                    .find(|peer| peer.replica == replica.id)
                    .map(|peer| peer.matched.0);
                let peer = RaftPeer {
                    name: name.clone(),
                    known: members.contains(replica.id),
                    last_replicated_index: matched,
                };
                (hash8(name.as_bytes()), peer)
            });
        let first = slot.raft.floor_index().0 + 1;
        let last = slot.raft.last_index().0;
        RaftGroup {
            id: hash8(self.shared.identity.name.as_bytes()),
            state: match &slot.failed {
                Some(_) => "CLOSED",
                None if slot.raft.is_leader() => "LEADER",
                None if slot.leader.is_some() => "FOLLOWER",
                None => "CANDIDATE",
            },
            size,
            quorum_needed: size / 2 + 1,
            committed: slot.raft.commit().0,
            applied: slot.raft.applied_index().0,
            ever_had_leader: leader.is_some() || slot.raft.term().0 > 0,
            leader: leader.map(|name| hash8(name.as_bytes())).unwrap_or_default(),
            leader_since: slot.leads.then_some(Time(slot.leads_since)),
            term: slot.raft.term().0,
            pindex: last,
            system_account: true,
            traffic_account: self.shared.options.system_account.clone(),
            wal: RaftLog {
                messages: (last + 1).saturating_sub(first),
                bytes: slot.raft.resident_bytes() as u64,
                first_seq: first,
                last_seq: last,
            },
            peers: peers.collect(),
            ..RaftGroup::default()
        }
    }
}

/// In nats-server's words.
fn meta_is_not_current() -> HealthError {
    HealthError {
        kind: "JETSTREAM".to_owned(),
        error: "JetStream is not current with the meta leader".to_owned(),
        ..HealthError::default()
    }
}
