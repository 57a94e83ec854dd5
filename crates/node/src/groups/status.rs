//! What groups tell about themselves: the `cluster` block, and what operators see.

use super::Slot;
use crate::worker::Core;
use std::time::Duration;
use tidelock_api::{ClusterInfo, DesiredInfo, DesiredPeer, DesiredStatus, Nanos, PeerInfo, Time};
use tidelock_auth::hash8;
use tidelock_base::{BootId, GroupId, Mono, NodeId, ReplicaId};
use tidelock_jetstream::config::Storage;
use tidelock_jetstream::meta::ReplicaRole;
use tidelock_jetstream::stream::{Consumer, Stream};

/// A replica that has been silent for longer is not current; nats-server counts so, too.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

impl Core {
    /// The node that has this start.
    pub(super) fn node_of_boot(&self, boot: BootId) -> Option<NodeId> {
        let table = self.shared.peers.load();
        table
            .peers
            .iter()
            .find(|peer| peer.facts.boot == boot)
            .map(|peer| peer.facts.node)
    }

    /// Name of a server: of a peer, of this one, or as the metadata lists it.
    pub(crate) fn server_name(&self, node: NodeId) -> String {
        if node == self.shared.identity.node {
            return self.shared.identity.name.to_string();
        }
        let table = self.shared.peers.load();
        if let Some(peer) = table.peers.iter().find(|peer| peer.facts.node == node) {
            return peer.facts.name.to_string();
        }
        let listed = self
            .meta()
            .and_then(|meta| meta.server(node))
            .map(|server| server.spec.name.clone());
        listed.unwrap_or_else(|| format!("Server name unknown at this time (peerID: {:08x})", node.0 >> 32))
    }

    /// The server with this name or peer id.
    pub(crate) fn server_named(&self, name: &str) -> Option<NodeId> {
        let is_named = |candidate: &str| candidate == name || hash8(candidate.as_bytes()) == name;
        let meta = self.meta()?;
        meta.servers()
            .find(|server| is_named(&server.spec.name))
            .map(|server| server.spec.id)
    }

    /// Whether a server is connected; this one always is.
    pub(crate) fn is_online(&self, node: NodeId) -> bool {
        node == self.shared.identity.node
            || self
                .shared
                .peers
                .load()
                .peers
                .iter()
                .any(|peer| peer.facts.node == node && peer.up)
    }

    /// The `cluster` block of a stream, or of the metadata, as its local replica sees it.
    pub(crate) fn cluster_info(&self, group: GroupId) -> Option<ClusterInfo> {
        let slot = self.slot(group)?;
        let name = self
            .shared
            .cluster_name()
            .as_deref()
            .unwrap_or_default()
            .to_owned();
        let leader = slot.leader.and_then(|leader| slot.node_of(leader));
        let leader_name = leader.map(|node| self.server_name(node)).unwrap_or_default();
        if self.shared.options.cluster.is_none() || (slot.replicas.len() <= 1 && !slot.is_meta()) {
            return Some(ClusterInfo {
                name,
                leader: leader_name,
                desired: self.desired(slot),
                ..ClusterInfo::default()
            });
        }
        // The others, whoever is asked.
        let me = self.shared.identity.node;
        let mut replicas: Vec<PeerInfo> = slot
            .replicas
            .iter()
            .filter(|replica| replica.node != me && replica.role != ReplicaRole::Leaving)
            .map(|replica| self.peer_info(slot, replica.id, replica.node))
            .collect();
        replicas.sort_by(|a, b| a.name.cmp(&b.name));
        Some(ClusterInfo {
            name,
            raft_group: slot.raft_group_name(),
            leader: leader_name,
            leader_since: slot.leads.then_some(Time(slot.leads_since)),
            system_account: true,
            traffic_account: self.shared.options.system_account.clone(),
            replicas,
            desired: self.desired(slot),
        })
    }

    /// What a stream's members are on their way to, as its leader knows it.
    fn desired(&self, slot: &Slot) -> Option<DesiredInfo> {
        self.shared
            .options
            .cluster
            .as_ref()
            .filter(|_| slot.leads && slot.is_moving())?;
        let peer = |node: NodeId| {
            let name = self.server_name(node);
            DesiredPeer {
                peer: hash8(name.as_bytes()),
                name,
            }
        };
        let mut replicas = Vec::new();
        if !slot.is_shrinking() {
            replicas = slot.replicas.iter().map(|replica| peer(replica.node)).collect();
            replicas.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let (description, kind) = if slot.raft.members().0.learners.is_empty() {
            ("waiting for peer set to settle", "meta")
        } else {
            ("waiting for peer to catch up before adding it", "catchup")
        };
        Some(DesiredInfo {
            created: Time(slot.moving_since.unwrap_or(self.now.wall)),
            name: self
                .shared
                .cluster_name()
                .as_deref()
                .unwrap_or_default()
                .to_owned(),
            replicas,
            origin: None,
            status: Some(DesiredStatus {
                description: description.to_owned(),
                kind: kind.to_owned(),
                err: String::new(),
            }),
        })
    }

    /// All replicas of a group that is led here, this one too.
    pub(crate) fn all_peers(&self, slot: &Slot) -> Vec<PeerInfo> {
        let me = self.shared.identity.node;
        let peers = slot.replicas.iter().map(|replica| {
            let mut info = self.peer_info(slot, replica.id, replica.node);
            if replica.node == me {
                (info.current, info.offline, info.lag, info.active) = (true, false, 0, Nanos(0));
            }
            info
        });
        peers.collect()
    }

    fn peer_info(&self, slot: &Slot, replica: ReplicaId, node: NodeId) -> PeerInfo {
        let name = self.server_name(node);
        let peer = hash8(name.as_bytes());
        let online = self.is_online(node);
        let progress = slot
            .raft
            .progress()
            .into_iter()
            .find(|peer| peer.replica == replica);
        let lag = progress.as_ref().map_or(0, |progress| progress.lag);
        let before = self.committed_before(slot.group);
        let follows = progress
            .as_ref()
            .is_none_or(|progress| progress.matched >= before);
        // The consensus forgets who was active at each election timeout, and an idle replica answers only then and now.
        let silent = slot.silence(replica, self.now.mono);
        // One that was never heard of, as after a stream was made, has been silent for as long as this one leads.
        let led = self.now.wall.0.saturating_sub(slot.leads_since.0);
        let led = Duration::from_nanos(u64::try_from(led).unwrap_or(0));
        let active = silent.unwrap_or(led) < HEARD_WITHIN;
        let member = slot.raft.members().0.contains(replica);
        PeerInfo {
            name,
            current: online && member && (!slot.leads || (active && follows)),
            offline: !online,
            // Nothing at all means to tools that it was never heard of.
            active: silent.map_or(Nanos(0), |silent| {
                Nanos::from(silent.max(Duration::from_nanos(1)))
            }),
            lag,
            peer,
            pending: !member,
        }
    }

    /// A stream has a new leader, this one.
    pub(super) fn leader_elected(&mut self, group: GroupId) {
        let Some(slot) = self.slot(group) else { return };
        if slot.replicas.len() > 1 {
            let account = self.account_name(slot.account);
            tracing::info!(
                "JetStream cluster new stream leader for '{account} > {}'",
                slot.name
            );
        }
        self.stream_leader_elected(group);
    }
}

const fn storage_letter(storage: Storage) -> char {
    match storage {
        Storage::File => 'F',
        Storage::Memory => 'M',
    }
}

impl Slot {
    /// Entries that wait to be proposed, and those proposed that are not applied yet.
    pub(crate) fn entries_in_flight(&self) -> usize {
        self.sealed.len() + self.proposed.len()
    }

    /// A frame of another replica has come.
    pub(super) fn heard_of(&mut self, replica: ReplicaId, now: Mono) {
        if let Some((_, at)) = self.heard.iter_mut().find(|(id, _)| *id == replica) {
            *at = now;
        } else if self.replicas.iter().any(|listed| listed.id == replica) {
            let listed = &self.replicas;
            self.heard
                .retain(|(id, _)| listed.iter().any(|one| one.id == *id));
            self.heard.push((replica, now));
        }
    }

    /// For how long nothing has been heard of a replica; `None` if nothing ever was.
    pub(crate) fn silence(&self, replica: ReplicaId, now: Mono) -> Option<Duration> {
        let (_, at) = self.heard.iter().find(|(id, _)| *id == replica)?;
        Some(now.since(*at))
    }

    /// A name in the form that nats-server gives: `S-R3F-` and eight characters.
    pub(crate) fn raft_group_name(&self) -> String {
        if self.is_meta() {
            return "_meta_".to_owned();
        }
        let storage = match &self.machine {
            super::Machine::Stream(stream) => stream.config().storage,
            super::Machine::Meta(_) => Storage::File,
        };
        format!(
            "S-R{}{}-{}",
            self.replicas.len(),
            storage_letter(storage),
            hash8(&self.group.0.to_le_bytes())
        )
    }

    /// The name of the group that a consumer would have of its own, in the form that nats-server gives: `C-R1F-` and
    /// eight characters. Tools tell consumers with a leader by it.
    pub(crate) fn consumer_group_name(&self, stream: &Stream, consumer: &Consumer) -> String {
        let (config, own) = (stream.config(), consumer.config());
        let storage = if own.mem_storage {
            Storage::Memory
        } else {
            config.storage
        };
        let mut id = self.group.0.to_le_bytes().to_vec();
        id.extend_from_slice(consumer.name().as_bytes());
        format!(
            "C-R{}{}-{}",
            own.effective_replicas(config.num_replicas, config.retention),
            storage_letter(storage),
            hash8(&id)
        )
    }
}
