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
//!   Lost ----------- a peer has the same cluster: replaced -> Joined
//!   Joined ------ taken out of the cluster, and there (`returned`) -> Joined
//! ```
//! A server that belongs to a cluster and whose replica of the metadata is damaged or gone is *lost*: it founds nothing
//! and is not founded with. It waits until the others have given it a replica under a new id, for as long as that takes.

mod returned;

use super::GroupId;
use super::belonging::{self, Belonging, Found};
use super::damage::Unopened;
use super::open::Birth;
use crate::cell::{Cell, LaneKind, Request, RequestId};
use crate::worker::Core;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::{AccountId, BootId, ClusterId, Mono, NodeId, ReplicaId};
use tidelock_jetstream::command::WindowKey;
use tidelock_jetstream::config::Storage;
use tidelock_jetstream::meta::{Candidate, Meta, MetaCommand, Server, ServerSpec};
use tidelock_jetstream::stream::APPLY_VERSION;
use tidelock_replica::Failure;
use tidelock_wal::WalRecord;

/// Subject of what servers tell each other about forming; never a client's.
const FORM_SUBJECT: &[u8] = b"$TL.FORM";
/// What is waited for is looked at this often.
const TICK: Duration = Duration::from_millis(100);
/// A server without its metadata says so again after this long.
/// A cluster is founded without a time that a majority agrees on after this long.
const CLOCKS_MAX: Duration = Duration::from_secs(5);
const REMIND: Duration = Duration::from_secs(30);

/// Where this server is on its way into a cluster.
#[derive(Default)]
pub(super) struct Formation {
    /// It has JetStream and no metadata yet.
    seeking: bool,
    /// All servers have been there and ready since then.
    agreed_at: Option<Mono>,
    /// It had metadata, and has lost it.
    lost: Option<Lost>,
    /// What peers say of themselves.
    peers: BTreeMap<NodeId, Status>,
    next_tick: Option<Mono>,
    /// The founding state of the metadata, for servers that have missed it.
    pub(super) birth: Option<Bytes>,
    warned: bool,
    /// The replica of the metadata that this server was told was removed.
    removed: Option<ReplicaId>,
    /// The last server that asked to come in again, with its old replica: the log has said so.
    returned: Option<(NodeId, ReplicaId)>,
}

/// A replica of the metadata that is damaged or gone.
#[derive(Debug)]
struct Lost {
    /// Its cluster, unless that is lost, too.
    cluster: Option<ClusterId>,
    /// When to say so again.
    remind_at: Mono,
}

/// What a server has of a cluster's metadata; clusters are decimal numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Has {
    /// Nothing, and never had: it may found a cluster.
    Nothing,
    /// That of this cluster.
    Metadata(String),
    /// Nothing any more: that of this cluster is lost, or of one that it does not know any more.
    Lost(Option<String>),
}

/// What a server tells about its part in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Status {
    /// What it has.
    has: Has,
    /// The servers that it would found a cluster with, sorted.
    proposal: Vec<u64>,
    /// What it would be listed as.
    spec: ServerSpec,
    /// This start of it, as a decimal number: a replica of the metadata is made in the start for which it was meant.
    boot: String,
    /// Its replica of the metadata, if it has one: the others may have removed that.
    #[serde(default)]
    replica: Option<u64>,
    /// It was told that this replica was removed, and asks for another one.
    #[serde(default)]
    returns: bool,
}

impl Status {
    fn boot(&self) -> BootId {
        BootId(self.boot.parse().unwrap_or_default())
    }

    const fn has_metadata(&self) -> bool {
        matches!(self.has, Has::Metadata(_))
    }

    /// The cluster that it belongs to, if it says so.
    const fn cluster(&self) -> Option<&String> {
        match &self.has {
            Has::Nothing => None,
            Has::Metadata(cluster) => Some(cluster),
            Has::Lost(cluster) => cluster.as_ref(),
        }
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
    /// This replica of the metadata, which the receiver has, was removed for good: the sender leads the metadata.
    Removed(u64),
}

impl Formation {
    pub(super) const fn deadline(&self) -> Option<Mono> {
        self.next_tick
    }
}

impl Core {
    /// Starts forming, after the store was opened.
    ///
    /// # Errors
    /// When there can be no metadata for what is in the store; the text is for the log.
    pub(crate) fn begin_formation(&mut self) -> Result<(), String> {
        if self.shared.options.jetstream.is_none() || self.shared.worker_of(GroupId::META) != self.id {
            return Ok(());
        }
        let found = match &self.disk {
            Some(disk) => Belonging::read(&**disk)
                .map_err(|error| format!("{}: {error}", self.path_of(belonging::FILE)))?,
            None => Found::Nothing,
        };
        if let Some(meta) = self.meta() {
            let cluster = meta.cluster();
            self.check_belonging(found)?;
            self.set_cluster_id(cluster);
            self.groups.formation.next_tick = Some(self.now.mono);
            return Ok(());
        }
        let kept = self
            .groups
            .damages
            .kept(GroupId::META)
            .map(|kept| kept.why.clone());
        if kept.is_some() || found != Found::Nothing {
            return self.begin_without_metadata(kept, found);
        }
        if self.shared.options.cluster.is_none() {
            let cluster = self.new_cluster_id();
            let me = self.my_spec();
            let boot = self.shared.identity.boot;
            if let Err(text) = self.found_meta(cluster, vec![(me, boot)], self.log_time().wall) {
                tracing::error!("JetStream cannot start: {text}");
            }
            self.set_cluster_id(cluster);
            self.groups.formation.next_tick = Some(self.now.mono + TICK);
            return Ok(());
        }
        self.groups.formation.seeking = true;
        self.groups.formation.next_tick = Some(self.now.mono);
        Ok(())
    }

    /// There was metadata in this store, and there is none that can be used. If other servers have it, this one waits for
    /// them; otherwise it does not start.
    fn begin_without_metadata(&mut self, kept: Option<Unopened>, found: Found) -> Result<(), String> {
        let why = match kept {
            Some(Unopened::Failed(text)) => return Err(format!("the metadata cannot be read: {text}")),
            Some(Unopened::Damaged(text)) => text,
            None => self
                .with_places(GroupId::META, "its log is gone".into())
                .to_string(),
        };
        let belonging = match found {
            Found::Sound(belonging) => Some(belonging),
            Found::Nothing | Found::Damaged => None,
        };
        let me = self.shared.identity.node;
        if belonging.is_some_and(|belonging| belonging.node != me) {
            return Err(format!(
                "the files `node` and `cluster` in {} name different servers: one of the two belongs to another store",
                self.path_of(".")
            ));
        }
        let servers = belonging.map(|belonging| belonging.servers);
        let clustered = self.shared.options.cluster.is_some();
        if !clustered || servers.is_some_and(|servers| servers <= 1) {
            let others = match servers {
                Some(servers) if servers > 1 => format!(
                    "It is one of a cluster of {servers} servers: with a `cluster` block that leads to the others it starts and \
                     is filled by them"
                ),
                _ => "No other server has a copy: put the store's files back from a backup, or set another store_dir to start \
                      without its streams"
                    .to_owned(),
            };
            return Err(format!(
                "the metadata of the streams in {} is damaged: {why}. Nothing was deleted. {others}",
                self.path_of(".")
            ));
        }
        let cluster = belonging.map(|belonging| belonging.cluster);
        self.metadata_lost(cluster, &why);
        Ok(())
    }

    /// From now on this server waits for others to give it a replica of the metadata.
    fn metadata_lost(&mut self, cluster: Option<ClusterId>, why: &str) {
        tracing::error!(
            "JetStream metadata: the replica of this server is lost: {why}. Its streams and files are kept; it waits for the \
             other servers of its cluster to replace it, for which a majority of them must be there"
        );
        if let Some(cluster) = cluster {
            self.set_cluster_id(cluster);
        }
        let now = self.now.mono;
        self.groups.formation.lost = Some(Lost {
            cluster,
            remind_at: now + REMIND,
        });
        self.groups.formation.seeking = true;
        self.groups.formation.next_tick = Some(now);
    }

    /// A peer has proved that something is gone which this server's replica of the metadata had: it is given up, and
    /// another one is asked for. What is in it stays in force until then.
    pub(super) fn give_up_lost_metadata(&mut self) {
        let Some(slot) = self.slot(GroupId::META) else {
            return;
        };
        if slot.raft.failure() != Some(Failure::Lost) {
            return;
        }
        let Some(meta) = self.meta() else { return };
        let identity = &self.shared.identity;
        let made_now = meta
            .server(identity.node)
            .is_none_or(|server| server.birth == identity.boot);
        if made_now {
            // Another one can only be made in another start.
            return;
        }
        let cluster = meta.cluster();
        self.drop_metadata();
        self.metadata_lost(
            Some(cluster),
            "another server knows of entries that were in its log",
        );
    }

    /// Ends this server's replica of the metadata for good: it neither votes nor answers any more, in this start or a
    /// later one.
    fn drop_metadata(&mut self) {
        let Some(slot) = self.groups.slots.remove(&GroupId::META) else {
            return;
        };
        if let Some(at) = slot.armed {
            self.groups.timers.remove(&(at, GroupId::META));
        }
        self.groups.touched.remove(&GroupId::META);
        self.groups.ticked.remove(&GroupId::META);
        self.groups.wanted_checkpoints.remove(&GroupId::META);
        let group = GroupId::META;
        self.groups.log(&WalRecord::Destroyed { group });
        self.end_all(*slot);
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
        let lost = self.groups.formation.lost.as_ref();
        let has = match (self.meta(), lost) {
            (Some(meta), _) => Has::Metadata(meta.cluster().to_string()),
            (None, Some(lost)) => Has::Lost(lost.cluster.map(|cluster| cluster.to_string())),
            (None, None) => Has::Nothing,
        };
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
            has,
            proposal,
            spec: self.my_spec(),
            boot: self.shared.identity.boot.0.to_string(),
            replica: self.slot(GroupId::META).map(|slot| slot.me.0),
            returns: self.is_removed(),
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
        let all_formed = self.groups.formation.peers.values().all(Status::has_metadata);
        let returned = self.returned();
        let all_formed = all_formed && returned.is_empty();
        for node in peers {
            self.tell(node, &Message::Status(status.clone()));
        }
        if self.groups.formation.seeking {
            self.seek(&status);
        } else {
            self.tell_returned(returned);
            self.invite();
        }
        let noted = self.note_belonging();
        let settled = !self.groups.formation.seeking && known && all_formed && noted;
        if !settled {
            self.groups.formation.next_tick = Some(now + TICK);
        }
    }

    /// Looks whether a cluster can be founded or joined.
    fn seek(&mut self, mine: &Status) {
        let table = self.shared.peers.load_full();
        if self.groups.formation.lost.is_some() {
            self.remind_of_loss();
            return;
        }
        if let Some((node, _)) = self
            .groups
            .formation
            .peers
            .iter()
            .find(|(_, peer)| peer.has_metadata())
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
                .is_some_and(|peer| peer.has == Has::Nothing && peer.proposal == mine.proposal)
        });
        if !agreed || mine.proposal.first() != Some(&me.0) {
            return;
        }
        // What is founded now is stamped with this time. Clocks of which no majority agrees hold nothing up for long.
        let agreed_at = *self.groups.formation.agreed_at.get_or_insert(self.now.mono);
        if !self.log_time().is_sure && self.now.mono.since(agreed_at) < CLOCKS_MAX {
            return;
        }
        let mut servers: Vec<(ServerSpec, BootId)> = peers
            .iter()
            .filter(|(node, _)| mine.proposal.contains(&node.0))
            .map(|(_, peer)| (peer.spec.clone(), peer.boot()))
            .collect();
        servers.push((mine.spec.clone(), self.shared.identity.boot));
        let cluster = self.new_cluster_id();
        self.formed(cluster, |core| {
            core.found_meta(cluster, servers, core.log_time().wall)
        });
        self.invite();
    }

    /// Says again and again what a server without its metadata waits for.
    fn remind_of_loss(&mut self) {
        let now = self.now.mono;
        let formation = &mut self.groups.formation;
        let Some(lost) = formation.lost.as_mut().filter(|lost| lost.remind_at <= now) else {
            return;
        };
        lost.remind_at = now + REMIND;
        let cluster = lost.cluster.map(|cluster| cluster.to_string());
        let same = |peer: &&Status| cluster.is_none() || peer.cluster() == cluster.as_ref();
        let have = formation
            .peers
            .values()
            .filter(same)
            .filter(|peer| peer.has_metadata());
        let lack = formation
            .peers
            .values()
            .filter(same)
            .filter(|peer| matches!(peer.has, Has::Lost(_)));
        tracing::warn!(
            "JetStream metadata: this server still waits for a replica in place of the one that is lost; of the servers that \
             it has reached, {} have the metadata and {} have lost it, too. A majority of all replicas is needed to replace \
             one; nothing is founded anew",
            have.count(),
            lack.count()
        );
    }

    /// Carries out a step into a cluster.
    fn formed(&mut self, cluster: ClusterId, step: impl FnOnce(&mut Self) -> Result<(), String>) {
        match step(self) {
            Ok(()) => {
                tracing::info!("JetStream cluster formed: id {:032x}", cluster.0);
                self.groups.formation.seeking = false;
                if self.groups.formation.lost.take().is_some() {
                    tracing::info!(
                        "JetStream metadata: the replica of this server is replaced by another one, which is being filled"
                    );
                }
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
        let leads = self.leads(GroupId::META);
        let ours = cluster.to_string();
        for (node, peer) in &self.groups.formation.peers {
            if let Some(theirs) = peer.cluster().filter(|theirs| **theirs != ours) {
                if !self.groups.formation.warned {
                    tracing::error!(
                        "Server {:?} belongs to another cluster ({theirs}, this is {cluster}); the two are kept apart",
                        peer.spec.name
                    );
                }
                self.groups.formation.warned = true;
                continue;
            }
            if peer.has_metadata() && !self.may_return(*node, peer) {
                continue;
            }
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
            if founds
                && peer.has == Has::Nothing
                && let Some(birth) = &founding
            {
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
                // It had a replica, or was to have one, in an earlier start. Only the leader says so: servers that have
                // heard of different starts of it would have it replaced by turns.
                if leads {
                    commands.push(MetaCommand::MetaReplicaReplace { node: *node, boot });
                }
            } else if peer.has != Has::Lost(None) {
                // One that has lost even the name of its cluster is let in only where it is known.
                let server = peer.spec.clone();
                commands.push(MetaCommand::ServerJoin { server, boot });
            }
        }
        for (node, message) in messages {
            self.tell(node, &message);
        }
        for command in commands {
            self.tell_meta(command);
        }
        self.tell_who_i_am();
    }

    /// As the leader: a server that is gone, and under whose name another one has come in since and is there, has lost its
    /// store. That one takes its place, as on nats-server, which knows servers by their names. Should the other come back
    /// with its store after all, it is let in again.
    pub(super) fn meta_replaces_servers(&mut self) {
        let Some(meta) = self.meta() else { return };
        let is_there = |server: &Server| self.is_online(server.spec.id);
        let replaces = |new: &Server, old: &Server| {
            new.spec.name == old.spec.name && new.meta_replica > old.meta_replica && is_there(new)
        };
        let gone = meta.servers().filter(|old| !is_there(old));
        let replaced = gone.filter(|old| meta.servers().any(|new| replaces(new, old)));
        let replaced: Vec<ServerSpec> = replaced.map(|old| old.spec.clone()).collect();
        for old in replaced {
            tracing::warn!(
                "JetStream metadata: server {:?} has come back with an empty store, and takes the place of the one that the \
                 cluster has known under this name",
                old.name
            );
            self.tell_meta(MetaCommand::ServerLeave { node: old.id });
        }
    }

    /// Has the metadata know this server as it is in this start: its name and addresses may have changed.
    fn tell_who_i_am(&mut self) {
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
        self.look_at_formation();
    }

    /// Something has changed that what is waited for, or noted, may depend on.
    pub(super) fn look_at_formation(&mut self) {
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
            Message::Found(birth)
                if self.groups.formation.seeking && self.groups.formation.lost.is_none() =>
            {
                self.found_with(&Bytes::from(birth));
            }
            Message::Found(_) => {}
            Message::Join {
                cluster,
                replica,
                meta,
            } => self.invited(&cluster, ReplicaId(replica), &meta),
            Message::Removed(replica) => self.told_removed(ReplicaId(replica)),
        }
        true
    }

    /// A cluster has a replica of its metadata for this server.
    fn invited(&mut self, cluster: &str, replica: ReplicaId, state: &[u8]) {
        let Ok(cluster) = cluster.parse().map(ClusterId) else {
            return;
        };
        if !self.is_meant(replica, state) {
            return;
        }
        let formation = &self.groups.formation;
        let known = formation.lost.as_ref().and_then(|lost| lost.cluster);
        let wanted = if formation.seeking {
            known.is_none_or(|known| known == cluster)
        } else {
            self.leave_removed(cluster, replica)
        };
        if wanted {
            self.formed(cluster, |core| core.join_meta(replica, state));
        }
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
        if node == self.shared.identity.node {
            let room = |storage| self.shared.room.max(storage).min(u64::MAX >> 1);
            let (file, memory) = (room(Storage::File), room(Storage::Memory));
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
