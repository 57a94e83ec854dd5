//! The state machine of the meta group: servers, streams and where their replicas are (DESIGN section 8).
//!
//! A stream's life here:
//! ```text
//!   StreamCreate -> Forming --GroupFormed--> Formed --StreamDelete--> gone
//!                     |  ^                     |
//!                     +--+ GroupReform         +-- UpdateBegin -> pending --UpdateFinish | UpdateRevert--> Formed
//!                     (new group id)
//! ```
//! and a replica's: `learner -> voter -> removed`; those a group is founded with vote at once. Ids of groups and
//! replicas are never used twice. A pending update reserves the union of old and new: its subjects collide with other
//! streams' and its bytes count, until the stream's own log has decided.
//!
//! What is left to others: whether a configuration is valid, and whether an update is allowed, is checked by the
//! leader before it proposes; a revision in the command makes sure that nothing changed in between.

mod checkpoint;
mod command;
mod ids;
mod members;
mod placement;
mod spec;
mod streams;

pub use command::{AccountLimits, META_ENTRY_VERSION, MetaCommand, MetaEntry, PlacementHint, ServerSpec};
pub use placement::Candidate;
pub use spec::StreamSpec;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidelock_base::{ApiError, ApiErrorCode, BootId, ClusterId, GroupId, LogIndex, NodeId, ReplicaId, Wall};

/// Why an entry or a checkpoint cannot be applied. Each stops the replica.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Written by a later version.
    #[error("meta entry of version {0} is unknown")]
    Version(u8),
    /// Not what was written.
    #[error("meta entry or checkpoint is malformed: {0}")]
    Malformed(String),
    /// A configuration that this version cannot read.
    #[error("stream configuration in the meta log cannot be read: {0}")]
    Config(ApiError),
    /// Entries must come in order.
    #[error("meta entry {got} comes after {applied}")]
    OutOfOrder {
        /// The entry's index.
        got: LogIndex,
        /// The last one applied.
        applied: LogIndex,
    },
}

/// A server of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// What it says of itself.
    pub spec: ServerSpec,
    /// Its replica of the meta group.
    #[serde(with = "ids::replica")]
    pub meta_replica: ReplicaId,
    /// The start of the server in which that replica was made, or is to be made: in any other start it is lost if its
    /// state is not there.
    #[serde(with = "ids::boot")]
    pub birth: BootId,
    /// When it joined.
    #[serde(with = "ids::wall")]
    pub joined: Wall,
}

/// Whether a replica votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaRole {
    /// It counts towards the quorum.
    Voter,
    /// It is being filled.
    Learner,
    /// It counts towards the quorum until another one does in its place; then it goes.
    Leaving,
}

/// One replica of a stream's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Its raft id.
    #[serde(with = "ids::replica")]
    pub id: ReplicaId,
    /// The server that holds it.
    #[serde(with = "ids::node")]
    pub node: NodeId,
    /// Whether it votes.
    pub role: ReplicaRole,
    /// The start of its server in which it was made, recorded before it votes or answers an append for the first
    /// time. Without the state that was made then it is lost, not new.
    #[serde(with = "ids::maybe_boot")]
    pub present: Option<BootId>,
    /// Its server has not got its state any more: it neither votes nor comes back, and is to be replaced.
    pub lost: bool,
}

/// Whether a stream's group has a log yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupState {
    /// Its replicas may start from the synthetic snapshot; nothing has been answered yet.
    Forming,
    /// It has committed.
    Formed,
    /// A majority of its replicas was lost, and the one that is listed goes on alone; it has not committed since.
    Rescued,
}

/// What is left of a group whose majority is lost, in the words of one of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    /// The replica.
    #[serde(with = "ids::replica")]
    pub replica: ReplicaId,
    /// Term of its last entry.
    pub term: u64,
    /// Index of its last entry.
    pub index: u64,
}

/// A configuration that waits for the stream's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingUpdate {
    /// Its revision.
    pub rev: u64,
    /// The configuration.
    pub spec: StreamSpec,
}

/// A stream as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntry {
    /// Name of its account.
    pub account: String,
    /// Its configuration.
    pub spec: StreamSpec,
    /// Revision of the configuration; the first is 1.
    pub rev: u64,
    /// Its group.
    pub group: GroupId,
    /// Its replicas; at founding the first of them campaigns.
    pub replicas: Vec<Replica>,
    /// When it was created.
    pub created: Wall,
    /// Whether its group has a log.
    pub state: GroupState,
    /// An update on its way.
    pub pending: Option<PendingUpdate>,
    /// Who has said that the majority is lost, since the replicas changed last.
    pub survivors: Vec<Survivor>,
}

impl StreamEntry {
    /// The replica with this id.
    #[must_use]
    pub fn replica(&self, id: ReplicaId) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.id == id)
    }

    /// Servers that hold a replica, in its order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.replicas.iter().map(|replica| replica.node)
    }

    /// Whether so many voters are lost that the others are no majority.
    #[must_use]
    pub fn has_lost_majority(&self) -> bool {
        let voters = || {
            self.replicas
                .iter()
                .filter(|replica| replica.role == ReplicaRole::Voter)
        };
        voters().filter(|replica| !replica.lost).count() * 2 <= voters().count()
    }

    /// The replicas that the group could go on from. One that is being added may have all of it by now, and says what it
    /// has.
    fn rest(&self) -> impl Iterator<Item = &Replica> {
        let is_new = |replica: &Replica| replica.role == ReplicaRole::Learner && replica.present.is_none();
        let replicas = self.replicas.iter();
        replicas.filter(move |replica| !replica.lost && !is_new(replica))
    }

    fn specs(&self) -> impl Iterator<Item = &StreamSpec> {
        std::iter::once(&self.spec).chain(self.pending.as_ref().map(|pending| &pending.spec))
    }
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaOutcome {
    /// It is done, or had been before.
    Done,
    /// The server has this replica of the meta group.
    Server {
        /// The replica id.
        meta_replica: ReplicaId,
    },
    /// The stream is there.
    Stream {
        /// Its group.
        group: GroupId,
        /// Whether this command created it; otherwise one of the same configuration was there.
        created: bool,
    },
    /// The new configuration is reserved under this revision.
    Update {
        /// The stream's group.
        group: GroupId,
        /// The revision.
        rev: u64,
    },
    /// A replica was added.
    Replica {
        /// The new replica.
        replica: Replica,
    },
    /// So many streams were deleted.
    Deleted {
        /// How many.
        streams: u64,
    },
    /// Somebody else was faster: check against the present revision and propose again.
    Conflict,
    /// Refused; nothing changed.
    Refused(ApiError),
}

impl From<ApiErrorCode> for MetaOutcome {
    fn from(code: ApiErrorCode) -> Self {
        Self::Refused(ApiError::new(code))
    }
}

/// What an applied entry brings about. Every server acts on those that concern its own replicas.
pub trait MetaEffects {
    /// The command with this ordinal came to this end.
    fn replied(&mut self, ordinal: u32, outcome: &MetaOutcome);
    /// This replica is to exist on its server.
    fn replica_start(&mut self, stream: &StreamEntry, replica: &Replica);
    /// This replica is to be stopped, and its files removed.
    fn replica_stop(&mut self, group: GroupId, replica: &Replica);
    /// A stream is new or has changed (configuration, members, state).
    fn stream_changed(&mut self, stream: &StreamEntry);
    /// A stream is gone.
    fn stream_removed(&mut self, stream: &StreamEntry);
    /// A server is new or has changed.
    fn server_changed(&mut self, server: &Server);
    /// A server is gone.
    fn server_removed(&mut self, server: &Server);
}

/// A stream's key: account and name.
type Key = (String, String);

/// The state of the meta group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    cluster: ClusterId,
    applied: LogIndex,
    stamp: Wall,
    servers: BTreeMap<NodeId, Server>,
    streams: BTreeMap<Key, StreamEntry>,
    groups: BTreeMap<GroupId, Key>,
    next_group: GroupId,
    next_replica: ReplicaId,
}

impl Meta {
    /// The state of a cluster that forms with these servers, as the synthetic snapshot at index 1 has it. The
    /// replica ids of the meta group are 1, 2, ... in the order of the servers' ids. Each server comes with the start in
    /// which it has agreed to that: its replica can be made in that start only.
    #[must_use]
    pub fn found(
        cluster: ClusterId,
        servers: impl IntoIterator<Item = (ServerSpec, BootId)>,
        created: Wall,
    ) -> Self {
        let mut meta = Self {
            cluster,
            applied: LogIndex(1),
            stamp: created,
            servers: BTreeMap::new(),
            streams: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_group: GroupId::META.next(),
            next_replica: ReplicaId(1),
        };
        let sorted: BTreeMap<NodeId, (ServerSpec, BootId)> = servers
            .into_iter()
            .map(|(server, boot)| (server.id, (server, boot)))
            .collect();
        for (spec, birth) in sorted.into_values() {
            let meta_replica = meta.new_replica();
            let server = Server {
                spec,
                meta_replica,
                birth,
                joined: created,
            };
            meta.servers.insert(server.spec.id, server);
        }
        meta
    }

    /// The cluster's id.
    #[must_use]
    pub const fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Index of the last entry applied.
    #[must_use]
    pub const fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Stamp of the last entry applied.
    #[must_use]
    pub const fn stamp(&self) -> Wall {
        self.stamp
    }

    /// All servers, by id.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.values()
    }

    /// Whether nothing is left of a stream in memory: its replicas are lost, or on servers that were removed and, as far as
    /// is known, will not be there again with what they had.
    pub fn has_nothing_left(&self, entry: &StreamEntry, is_gone: impl Fn(NodeId) -> bool) -> bool {
        let is_left = |one: &Replica| self.servers.contains_key(&one.node) || !is_gone(one.node);
        entry.spec.is_memory() && !entry.rest().any(is_left)
    }

    /// The server with this id.
    #[must_use]
    pub fn server(&self, node: NodeId) -> Option<&Server> {
        self.servers.get(&node)
    }

    /// The server with this name.
    #[must_use]
    pub fn server_named(&self, name: &str) -> Option<&Server> {
        self.servers.values().find(|server| server.spec.name == name)
    }

    /// All streams, by account and name.
    pub fn streams(&self) -> impl Iterator<Item = &StreamEntry> {
        self.streams.values()
    }

    /// The streams of an account, by name.
    pub fn streams_of<'a>(&'a self, account: &'a str) -> impl Iterator<Item = &'a StreamEntry> {
        self.streams
            .range((account.to_owned(), String::new())..)
            .map(|(_, stream)| stream)
            .take_while(move |stream| stream.account == account)
    }

    /// A stream by its names.
    #[must_use]
    pub fn stream(&self, account: &str, name: &str) -> Option<&StreamEntry> {
        self.streams.get(&(account.to_owned(), name.to_owned()))
    }

    /// The stream of a group.
    #[must_use]
    pub fn stream_of_group(&self, group: GroupId) -> Option<&StreamEntry> {
        self.streams.get(self.groups.get(&group)?)
    }

    /// Whether a group of this id was ever handed out. One that was, and that no stream has, is deleted for good.
    #[must_use]
    pub fn group_was_made(&self, group: GroupId) -> bool {
        group < self.next_group
    }

    /// The id that the next replica gets. All below were handed out; those that are not listed were removed for good.
    #[must_use]
    pub const fn next_replica(&self) -> ReplicaId {
        self.next_replica
    }

    /// Nothing but the first entry of a term: the log has come this far.
    pub fn term_start(&mut self, index: LogIndex) {
        self.applied = self.applied.max(index);
    }

    /// Applies one entry.
    ///
    /// # Errors
    /// [`MetaError`]: nothing was applied, and the replica must stop.
    pub fn apply(
        &mut self,
        index: LogIndex,
        entry: &[u8],
        fx: &mut impl MetaEffects,
    ) -> Result<(), MetaError> {
        if index <= self.applied {
            return Err(MetaError::OutOfOrder {
                got: index,
                applied: self.applied,
            });
        }
        let entry = MetaEntry::decode(entry)?;
        // All configurations are read before anything changes, so that an entry is applied whole or not at all.
        let specs = entry
            .commands
            .iter()
            .map(spec_of)
            .collect::<Result<Vec<_>, _>>()?;
        self.applied = index;
        self.stamp = self.stamp.max(entry.stamp);
        for (ordinal, (command, spec)) in (0..).zip(entry.commands.into_iter().zip(specs)) {
            let outcome = self.run(command, spec, fx).unwrap_or_else(|refused| refused);
            fx.replied(ordinal, &outcome);
        }
        Ok(())
    }

    /// Runs one command; an `Err` is a refusal that changed nothing.
    fn run(
        &mut self,
        command: MetaCommand,
        spec: Option<StreamSpec>,
        fx: &mut impl MetaEffects,
    ) -> Result<MetaOutcome, MetaOutcome> {
        match command {
            MetaCommand::ServerJoin { server, boot } => Ok(self.server_join(server, boot, fx)),
            MetaCommand::ServerUpdate { server } => self.server_update(server, fx),
            MetaCommand::ServerLeave { node } => self.server_leave(node, fx),
            MetaCommand::MetaReplicaReplace { node, boot } => self.meta_replica_replace(node, boot, fx),
            MetaCommand::StreamCreate {
                account,
                config: _,
                limits,
                hint,
            } => self.stream_create(account, spec.ok_or(ApiErrorCode::BadRequest)?, &limits, &hint, fx),
            MetaCommand::GroupFormed { group } => self.group_formed(group, fx),
            MetaCommand::ReplicasPresent {
                group,
                replicas,
                boot,
            } => self.replicas_present(group, &replicas, boot, fx),
            MetaCommand::ReplicaLost { group, replica } => self.replica_lost(group, replica, fx),
            MetaCommand::GroupReform { group, hint } => self.group_reform(group, &hint, fx),
            MetaCommand::ReplicaSurvives { group, survivor } => self.replica_survives(group, survivor, fx),
            MetaCommand::StreamDelete { account, name } => {
                if self.remove_stream(&(account, name), fx) {
                    Ok(MetaOutcome::Deleted { streams: 1 })
                } else {
                    Err(ApiErrorCode::StreamNotFound.into())
                }
            }
            MetaCommand::AccountPurge { account } => {
                let keys: Vec<Key> = self.streams_of(&account).map(key_of).collect();
                let streams = keys.iter().filter(|key| self.remove_stream(key, fx)).count() as u64;
                Ok(MetaOutcome::Deleted { streams })
            }
            MetaCommand::UpdateBegin {
                account,
                config: _,
                rev,
                limits,
            } => self.update_begin(account, spec.ok_or(ApiErrorCode::BadRequest)?, rev, &limits, fx),
            MetaCommand::UpdateFinish { group, rev } => self.update_end(group, rev, true, fx),
            MetaCommand::UpdateRevert { group, rev } => self.update_end(group, rev, false, fx),
            MetaCommand::ReplicaAdd { group, node, hint } => self.replica_add(group, node, &hint, fx),
            MetaCommand::ReplicaReplace { group, replica, hint } => {
                self.replica_replace(group, replica, &hint, fx)
            }
            MetaCommand::ReplicaPromote { group, replica } => self.replica_promote(group, replica, fx),
            MetaCommand::ReplicaRemove {
                group,
                replica,
                again,
            } => self.replica_remove(group, replica, again, fx),
        }
    }

    fn new_replica(&mut self) -> ReplicaId {
        let id = self.next_replica;
        self.next_replica = id.next();
        id
    }

    fn new_group(&mut self) -> GroupId {
        let id = self.next_group;
        self.next_group = id.next();
        id
    }

    fn by_group(&mut self, group: GroupId) -> Result<&mut StreamEntry, MetaOutcome> {
        self.groups
            .get(&group)
            .and_then(|key| self.streams.get_mut(key))
            .ok_or_else(|| ApiErrorCode::StreamNotFound.into())
    }
}

fn spec_of(command: &MetaCommand) -> Result<Option<StreamSpec>, MetaError> {
    match command {
        MetaCommand::StreamCreate { config, .. } | MetaCommand::UpdateBegin { config, .. } => {
            StreamSpec::read(config).map(Some)
        }
        MetaCommand::ServerJoin { .. }
        | MetaCommand::ServerUpdate { .. }
        | MetaCommand::ServerLeave { .. }
        | MetaCommand::MetaReplicaReplace { .. }
        | MetaCommand::GroupFormed { .. }
        | MetaCommand::ReplicasPresent { .. }
        | MetaCommand::GroupReform { .. }
        | MetaCommand::ReplicaSurvives { .. }
        | MetaCommand::StreamDelete { .. }
        | MetaCommand::AccountPurge { .. }
        | MetaCommand::UpdateFinish { .. }
        | MetaCommand::UpdateRevert { .. }
        | MetaCommand::ReplicaAdd { .. }
        | MetaCommand::ReplicaLost { .. }
        | MetaCommand::ReplicaReplace { .. }
        | MetaCommand::ReplicaPromote { .. }
        | MetaCommand::ReplicaRemove { .. } => Ok(None),
    }
}

fn key_of(stream: &StreamEntry) -> Key {
    (stream.account.clone(), stream.spec.name.clone())
}

#[cfg(test)]
mod tests;
