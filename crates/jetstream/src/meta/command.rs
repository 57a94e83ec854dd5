//! The entries of the meta log.
//!
//! Shape: version u8 (1), then JSON: `{"stamp":ns,"commands":[...]}`. This log carries configuration changes, not
//! messages, so it is written to be read.

use super::{Candidate, MetaError, Survivor, ids};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidelock_base::{BootId, GroupId, NodeId, ReplicaId, Wall};

/// The version that this code writes; it reads this one only.
pub const META_ENTRY_VERSION: u8 = 1;

/// One entry of the meta log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetaEntry {
    /// The log's time: the leader's stamp.
    #[serde(with = "ids::wall")]
    pub stamp: Wall,
    /// Its commands, numbered from 0.
    pub commands: Vec<MetaCommand>,
}

impl MetaEntry {
    /// The entry's bytes.
    ///
    /// # Panics
    /// Never: an entry is plain data.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = vec![META_ENTRY_VERSION];
        serde_json::to_writer(&mut out, self)
            .expect("plain data can be written as JSON, and a Vec takes all of it");
        Bytes::from(out)
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// [`MetaError::Version`] or [`MetaError::Malformed`]: the replica must stop.
    pub fn decode(entry: &[u8]) -> Result<Self, MetaError> {
        match entry.split_first() {
            Some((&META_ENTRY_VERSION, json)) => {
                serde_json::from_slice(json).map_err(|error| MetaError::Malformed(error.to_string()))
            }
            Some((version, _)) => Err(MetaError::Version(*version)),
            None => Err(MetaError::Malformed("empty entry".to_owned())),
        }
    }
}

/// What a server says of itself; all but the id may change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// The random id of its store.
    #[serde(with = "ids::node")]
    pub id: NodeId,
    /// Its `server_name`.
    pub name: String,
    /// Where its cluster port is reached.
    pub addresses: Vec<String>,
    /// Its `server_tags`.
    pub tags: Vec<String>,
    /// The highest apply version that it supports.
    pub apply_version: u32,
}

/// Limits in force for the account of a request; `None` means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountLimits {
    /// Most streams.
    pub max_streams: Option<u64>,
    /// Most consumers of a stream.
    pub max_consumers: Option<u64>,
    /// Bytes that memory streams may reserve, replicas counted.
    pub max_memory: Option<u64>,
    /// Bytes that file streams may reserve, replicas counted.
    pub max_storage: Option<u64>,
}

/// What the leader knows of the servers when it asks for a placement, and what apply must not look up itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementHint {
    /// Name of this cluster, against `placement.cluster`.
    pub cluster: String,
    /// Servers with JetStream, and what they have left.
    pub candidates: Vec<Candidate>,
    /// `unique_tag`, if it is configured.
    pub unique_tag: Option<String>,
}

/// One change of the cluster's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum MetaCommand {
    /// A server is part of the cluster. It gets a replica id for the meta group; one that is known keeps it.
    ServerJoin {
        /// The server.
        server: ServerSpec,
        /// The start in which it asked.
        #[serde(with = "ids::boot")]
        boot: BootId,
    },
    /// A server's attributes have changed.
    ServerUpdate {
        /// The server.
        server: ServerSpec,
    },
    /// A server is gone for good. Its replicas of streams stay listed until they are replaced.
    ServerLeave {
        /// The server.
        #[serde(with = "ids::node")]
        node: NodeId,
    },
    /// A server has no replica of the meta group and was not given one in this start: it has lost what it had, and
    /// needs a new id for it.
    MetaReplicaReplace {
        /// The server.
        #[serde(with = "ids::node")]
        node: NodeId,
        /// The start of it that is without state.
        #[serde(with = "ids::boot")]
        boot: BootId,
    },
    /// Create a stream.
    StreamCreate {
        /// Name of its account.
        account: String,
        /// Its valid configuration, encoded.
        config: String,
        /// Limits in force.
        limits: AccountLimits,
        /// Where it may be.
        hint: PlacementHint,
    },
    /// The group's first leader has committed its first entry.
    GroupFormed {
        /// The group.
        #[serde(with = "ids::group")]
        group: GroupId,
    },
    /// These replicas were made and are about to vote or to answer an append for the first time. The first record
    /// counts, but for the only replica of a memory stream: that is made anew at each start.
    ReplicasPresent {
        /// Their group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// Their ids.
        #[serde(with = "ids::replicas")]
        replicas: Vec<ReplicaId>,
        /// The start of their server in which they were made.
        #[serde(with = "ids::boot")]
        boot: BootId,
    },
    /// The server of a replica that was present has not got its state any more.
    ReplicaLost {
        /// The group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// The replica.
        #[serde(with = "ids::replica")]
        replica: ReplicaId,
    },
    /// Start a group anew, elsewhere and under another id: one that is still forming, or one of a memory stream of which
    /// nothing is left.
    GroupReform {
        /// The group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// Where it may be.
        hint: PlacementHint,
    },
    /// A replica in memory finds that the majority of its group is lost for good. When all that are left have said so,
    /// the one with the longest log goes on alone.
    ReplicaSurvives {
        /// The group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// The replica, and what it has.
        survivor: Survivor,
    },
    /// Delete a stream.
    StreamDelete {
        /// Name of its account.
        account: String,
        /// Its name.
        name: String,
    },
    /// Delete all streams of an account.
    AccountPurge {
        /// Name of the account.
        account: String,
    },
    /// Reserve what a new configuration needs beside the old one; the stream's own log decides next.
    UpdateBegin {
        /// Name of the account.
        account: String,
        /// The valid new configuration, encoded; it names the stream.
        config: String,
        /// The revision against which it was checked.
        rev: u64,
        /// Limits in force.
        limits: AccountLimits,
    },
    /// The stream's log has accepted the new configuration.
    UpdateFinish {
        /// The stream's group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// Revision of the new configuration.
        rev: u64,
    },
    /// The stream's log has refused the new configuration.
    UpdateRevert {
        /// The stream's group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// Revision of the new configuration.
        rev: u64,
    },
    /// A further replica, first as a learner.
    ReplicaAdd {
        /// The group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// On which server; a server that has lost its replica may be named again.
        #[serde(with = "ids::maybe_node")]
        node: Option<NodeId>,
        /// Where it may be, if no server is named.
        hint: PlacementHint,
    },
    /// A further replica, which is to take the place of another one. That stays what it is until the new one votes: the group
    /// may need its vote, or what only it has.
    ReplicaReplace {
        /// The group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// The replica that is to go.
        #[serde(with = "ids::replica")]
        replica: ReplicaId,
        /// Where the new one may be; not where there is one.
        hint: PlacementHint,
    },
    /// A learner has caught up and votes.
    ReplicaPromote {
        /// The group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// The replica.
        #[serde(with = "ids::replica")]
        replica: ReplicaId,
    },
    /// A replica is given up.
    ReplicaRemove {
        /// The group.
        #[serde(with = "ids::group")]
        group: GroupId,
        /// The replica.
        #[serde(with = "ids::replica")]
        replica: ReplicaId,
        /// Its server is there and gets another one, if the replica was lost.
        again: bool,
    },
}
