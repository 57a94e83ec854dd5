//! How servers become a cluster: founding the metadata, or joining one that is there (DESIGN section 8).
//!
//! A server without a cluster in its configuration founds one of its own at once. Others first reach all configured
//! routes; when every server that they have reached is empty and proposes the same set, the one with the lowest id
//! founds it, and tells the others until they have it too. An empty server that meets a cluster asks to join it. Two
//! clusters never merge.
//!
//! ```text
//!   Seeking --all routes reached, all empty, same proposal--> Founded
//!      |----------- a peer has a cluster: ask to join ------> Joined
//! ```

use super::GroupId;
use super::open::Birth;
use crate::cell::{Cell, LaneKind, Request, RequestId};
use crate::worker::Core;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::{AccountId, BootId, ClusterId, Mono, NodeId, ReplicaId};
use tidelock_jetstream::command::WindowKey;
use tidelock_jetstream::meta::{Candidate, Meta, MetaCommand, ServerSpec};
use tidelock_jetstream::stream::APPLY_VERSION;

/// Subject of what servers tell each other about forming; never a client's.
const FORM_SUBJECT: &[u8] = b"$TL.FORM";
/// What is waited for is looked at this often.
const TICK: Duration = Duration::from_millis(100);

/// Where this server is on its way into a cluster.
#[derive(Default)]
pub(super) struct Formation {
    /// It has JetStream and no metadata yet.
    seeking: bool,
    /// What peers say of themselves.
    peers: BTreeMap<NodeId, Status>,
    next_tick: Option<Mono>,
    /// The founding state of the metadata, for servers that have missed it.
    pub(super) birth: Option<Bytes>,
    warned: bool,
}

/// What a server tells about its part in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Status {
    /// The cluster it belongs to, as a decimal number; none while it is empty.
    cluster: Option<String>,
    /// The servers that it would found a cluster with, sorted.
    proposal: Vec<u64>,
    /// What it would be listed as.
    spec: ServerSpec,
    /// This start of it, as a decimal number: a replica of the metadata is made in the start for which it was meant.
    boot: String,
}

impl Status {
    fn boot(&self) -> BootId {
        BootId(self.boot.parse().unwrap_or_default())
    }
}

/// What servers say to each other about forming.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Message {
    /// Where the sender is.
    Status(Status),
    /// Found the metadata from this founding state.
    Found(Vec<u8>),
    /// Join the metadata of this cluster with this replica.
    Join {
        /// The cluster, as a decimal number.
        cluster: String,
        /// The replica's id.
        replica: u64,
        /// The metadata as the sender has it: who else holds replicas.
        meta: Vec<u8>,
    },
}

impl Formation {
    pub(super) const fn deadline(&self) -> Option<Mono> {
        self.next_tick
    }
}

impl Core {
    /// Starts forming, after the store was opened.
    pub(crate) fn begin_formation(&mut self) {
        if self.shared.options.jetstream.is_none() || self.shared.worker_of(GroupId::META) != self.id {
            return;
        }
        if let Some(meta) = self.meta() {
            let cluster = meta.cluster();
            self.set_cluster_id(cluster);
            self.groups.formation.next_tick = Some(self.now.mono);
            return;
        }
        if self.shared.options.cluster.is_none() {
            let cluster = self.new_cluster_id();
            let me = self.my_spec();
            let boot = self.shared.identity.boot;
            if let Err(text) = self.found_meta(cluster, vec![(me, boot)], self.now.wall) {
                tracing::error!("JetStream cannot start: {text}");
            }
            self.set_cluster_id(cluster);
            return;
        }
        self.groups.formation.seeking = true;
        self.groups.formation.next_tick = Some(self.now.mono);
    }

    fn new_cluster_id(&mut self) -> ClusterId {
        ClusterId((u128::from(self.random.next()) << 64) | u128::from(self.random.next()))
    }

    /// What the metadata lists this server as.
    fn my_spec(&self) -> ServerSpec {
        let addresses = self.shared.addresses.load();
        ServerSpec {
            id: self.shared.identity.node,
            name: self.shared.identity.name.to_string(),
            addresses: vec![format!("{}:{}", addresses.cluster_host, addresses.cluster_port)],
            tags: self.shared.options.server_tags.clone(),
            apply_version: APPLY_VERSION,
        }
    }

    fn my_status(&self) -> Status {
        let cluster = self.meta().map(|meta| meta.cluster().to_string());
        let mut proposal: Vec<u64> = self
            .shared
            .peers
            .load()
            .peers
            .iter()
            .filter(|peer| peer.up && peer.facts.jetstream)
            .map(|peer| peer.facts.node.0)
            .collect();
        proposal.push(self.shared.identity.node.0);
        proposal.sort_unstable();
        Status {
            cluster,
            proposal,
            spec: self.my_spec(),
            boot: self.shared.identity.boot.0.to_string(),
        }
    }

    /// A peer came or went: what is waited for may be there.
    pub(crate) fn formation_peer(&mut self, gone: Option<NodeId>) {
        if let Some(node) = gone {
            self.groups.formation.peers.remove(&node);
        }
        let forms = self.shared.worker_of(GroupId::META) == self.id;
        if forms && self.shared.options.jetstream.is_some() {
            self.groups.formation.next_tick = Some(self.now.mono);
        }
    }

    /// What is due about forming.
    pub(crate) fn tick_formation(&mut self) {
        let now = self.now.mono;
        if self.groups.formation.next_tick.is_none_or(|at| at > now) {
            return;
        }
        self.groups.formation.next_tick = None;
        let status = self.my_status();
        let peers: Vec<NodeId> = self
            .shared
            .peers
            .load()
            .peers
            .iter()
            .filter(|peer| peer.up)
            .map(|peer| peer.facts.node)
            .collect();
        let known = peers
            .iter()
            .all(|node| self.groups.formation.peers.contains_key(node));
        let all_formed = self
            .groups
            .formation
            .peers
            .values()
            .all(|peer| peer.cluster.is_some());
        for node in peers {
            self.tell(node, &Message::Status(status.clone()));
        }
        if self.groups.formation.seeking {
            self.seek(&status);
        } else {
            self.invite();
        }
        let settled = !self.groups.formation.seeking && known && all_formed;
        if !settled {
            self.groups.formation.next_tick = Some(now + TICK);
        }
    }

    /// Looks whether a cluster can be founded or joined.
    fn seek(&mut self, mine: &Status) {
        let table = self.shared.peers.load_full();
        if let Some((node, _)) = self
            .groups
            .formation
            .peers
            .iter()
            .find(|(_, peer)| peer.cluster.is_some())
        {
            // The status told above is the request to join; the cluster's answer brings the replica id.
            tracing::debug!("Asking node {node} to join its cluster");
            return;
        }
        // Whoever was found must be heard both ways, or it would be left out of what is founded.
        let all_up = table.peers.iter().all(|peer| peer.up);
        if !all_up || table.routes_found < table.routes_configured || mine.proposal.len() < 2 {
            return;
        }
        let me = self.shared.identity.node;
        let peers = &self.groups.formation.peers;
        let agreed = mine.proposal.iter().filter(|id| **id != me.0).all(|id| {
            peers
                .get(&NodeId(*id))
                .is_some_and(|peer| peer.cluster.is_none() && peer.proposal == mine.proposal)
        });
        if !agreed || mine.proposal.first() != Some(&me.0) {
            return;
        }
        let mut servers: Vec<(ServerSpec, BootId)> = peers
            .iter()
            .filter(|(node, _)| mine.proposal.contains(&node.0))
            .map(|(_, peer)| (peer.spec.clone(), peer.boot()))
            .collect();
        servers.push((mine.spec.clone(), self.shared.identity.boot));
        let cluster = self.new_cluster_id();
        self.formed(cluster, |core| core.found_meta(cluster, servers, core.now.wall));
        self.invite();
    }

    /// Carries out a step into a cluster.
    fn formed(&mut self, cluster: ClusterId, step: impl FnOnce(&mut Self) -> Result<(), String>) {
        match step(self) {
            Ok(()) => {
                tracing::info!("JetStream cluster formed: id {:032x}", cluster.0);
                self.groups.formation.seeking = false;
                self.groups.formation.next_tick = Some(self.now.mono + TICK);
                self.set_cluster_id(cluster);
                self.follow_listing();
            }
            Err(text) => tracing::error!("JetStream cluster cannot be formed: {text}"),
        }
    }

    /// Tells listed servers that are still empty what they need; asks the metadata to list those that are not.
    fn invite(&mut self) {
        let Some(meta) = self.meta() else { return };
        let cluster = meta.cluster();
        let state = meta.checkpoint();
        let founding = self.groups.formation.birth.clone();
        let founders = founding
            .as_ref()
            .and_then(Birth::decode)
            .and_then(|birth| Meta::restore(&birth.meta).ok());
        let mut messages = Vec::new();
        let mut commands = Vec::new();
        for (node, peer) in &self.groups.formation.peers {
            match &peer.cluster {
                Some(theirs) if *theirs != cluster.to_string() => {
                    self.groups.formation.warned |= {
                        if !self.groups.formation.warned {
                            tracing::error!(
                                "Server {:?} belongs to another cluster ({theirs}, this is {cluster}); the two are kept apart",
                                peer.spec.name
                            );
                        }
                        true
                    };
                }
                Some(_) => {}
                None => {
                    let boot = peer.boot();
                    let listed = self.meta().and_then(|meta| meta.server(*node));
                    let founds = founders.as_ref().is_some_and(|founders| {
                        founders
                            .server(*node)
                            .zip(listed)
                            .is_some_and(|(founder, listed)| {
                                founder.meta_replica == listed.meta_replica && listed.birth == boot
                            })
                    });
                    if founds && let Some(birth) = &founding {
                        messages.push((*node, Message::Found(birth.to_vec())));
                    } else if let Some(server) = listed.filter(|listed| listed.birth == boot) {
                        messages.push((
                            *node,
                            Message::Join {
                                cluster: cluster.to_string(),
                                replica: server.meta_replica.0,
                                meta: state.clone(),
                            },
                        ));
                    } else if listed.is_some() {
                        // It had a replica, or was to have one, in an earlier start.
                        commands.push(MetaCommand::MetaReplicaReplace { node: *node, boot });
                    } else {
                        let server = peer.spec.clone();
                        commands.push(MetaCommand::ServerJoin { server, boot });
                    }
                }
            }
        }
        for (node, message) in messages {
            self.tell(node, &message);
        }
        for command in commands {
            self.tell_meta(command);
        }
        let mine = self.my_spec();
        let listed = self
            .meta()
            .and_then(|meta| meta.server(mine.id))
            .map(|server| server.spec.clone());
        if listed.is_some_and(|listed| listed != mine) {
            self.tell_meta(MetaCommand::ServerUpdate { server: mine });
        }
    }

    /// This node leads the metadata: it invites who is missing.
    pub(super) fn formation_leads(&mut self) {
        self.groups.formation.next_tick = Some(self.now.mono);
    }

    fn tell(&mut self, node: NodeId, message: &Message) {
        let Ok(payload) = serde_json::to_vec(message) else {
            return;
        };
        let request = Request {
            id: RequestId {
                sender: WindowKey {
                    boot: self.shared.identity.boot,
                    worker: self.id,
                },
                number: 0,
            },
            node: self.shared.identity.node,
            group: Some(GroupId::META),
            account: AccountId(0),
            subject: Bytes::from_static(FORM_SUBJECT),
            reply: Bytes::new(),
            header: Bytes::new(),
            payload: Bytes::from(payload),
            client: Bytes::new(),
            after: 0,
        };
        self.send_cell(node, LaneKind::Client, Cell::Request(Box::new(request)));
    }

    /// A peer says something about forming; `false` if the request is something else.
    pub(super) fn formation_request(&mut self, request: &Request) -> bool {
        if request.subject != FORM_SUBJECT {
            return false;
        }
        if self.shared.options.jetstream.is_none() {
            return true;
        }
        let Ok(message) = serde_json::from_slice::<Message>(&request.payload) else {
            return true;
        };
        let now = self.now.mono;
        match message {
            Message::Status(status) => {
                let new = self.groups.formation.peers.insert(request.node, status.clone());
                if new.as_ref() != Some(&status) {
                    self.groups.formation.next_tick = Some(now);
                }
            }
            Message::Found(birth) if self.groups.formation.seeking => self.found_with(&Bytes::from(birth)),
            Message::Join {
                cluster,
                replica,
                meta,
            } if self.groups.formation.seeking => {
                if let Ok(cluster) = cluster.parse()
                    && self.is_meant(ReplicaId(replica), &meta)
                {
                    let cluster = ClusterId(cluster);
                    self.formed(cluster, |core| core.join_meta(ReplicaId(replica), &meta));
                }
            }
            Message::Found(_) | Message::Join { .. } => {}
        }
        true
    }

    /// Founds the metadata as another server has.
    fn found_with(&mut self, birth: &Bytes) {
        let meta =
            Birth::decode(birth).and_then(|birth| Meta::restore(&birth.meta).ok().map(|meta| (birth, meta)));
        let Some((birth, meta)) = meta else { return };
        if !self.may_make(&meta) {
            return;
        }
        let servers = meta
            .servers()
            .map(|server| (server.spec.clone(), server.birth))
            .collect();
        self.formed(meta.cluster(), |core| {
            core.found_meta(meta.cluster(), servers, birth.created)
        });
    }

    /// Whether the metadata lists this server with a replica to be made in this start. One that was meant for an earlier
    /// start may have voted then.
    fn may_make(&self, meta: &Meta) -> bool {
        let identity = &self.shared.identity;
        meta.server(identity.node)
            .is_some_and(|server| server.birth == identity.boot)
    }

    fn is_meant(&self, replica: ReplicaId, state: &[u8]) -> bool {
        let Ok(meta) = Meta::restore(state) else {
            return false;
        };
        let listed = meta.server(self.shared.identity.node);
        self.may_make(&meta) && listed.is_some_and(|server| server.meta_replica == replica)
    }

    /// What a placement may know of a server.
    pub(super) fn candidate(&self, node: NodeId) -> Candidate {
        let js = self.shared.options.jetstream.as_ref();
        if node == self.shared.identity.node {
            let file = js.and_then(|js| js.max_store).unwrap_or(u64::MAX >> 1);
            let memory = js.and_then(|js| js.max_memory).unwrap_or(u64::MAX >> 1);
            return Candidate {
                node,
                online: true,
                file_bytes: file,
                memory_bytes: memory,
            };
        }
        let table = self.shared.peers.load();
        let peer = table.peers.iter().find(|peer| peer.facts.node == node);
        let room = |free: u64| if free == 0 { u64::MAX >> 1 } else { free };
        Candidate {
            node,
            online: peer.is_some_and(|peer| peer.up),
            file_bytes: room(peer.map_or(0, |peer| peer.facts.file_free)),
            memory_bytes: room(peer.map_or(0, |peer| peer.facts.memory_free)),
        }
    }
}
