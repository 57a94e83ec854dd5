//! `/jsz`: JetStream.

use crate::json::is_zero;
use crate::{
    ApiStats, ClusterInfo, ConsumerInfo, Nanos, PeerInfo, StreamConfig, StreamSourceInfo, StreamState, Time,
};
use serde::Serialize;

/// JetStream of a server, with as many details as were asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Jsz {
    /// Usage.
    #[serde(flatten)]
    pub stats: JetStreamStats,
    /// Id of the server.
    pub server_id: String,
    /// When this was written.
    pub now: Time,
    /// JetStream is off.
    #[serde(skip_serializing_if = "is_zero")]
    pub disabled: bool,
    /// Configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<JetStreamConfig>,
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<JetStreamLimits>,
    /// Streams.
    pub streams: u64,
    /// Streams that this server leads.
    #[serde(skip_serializing_if = "is_zero")]
    pub streams_leader: u64,
    /// Consumers.
    pub consumers: u64,
    /// Consumers that this server leads.
    #[serde(skip_serializing_if = "is_zero")]
    pub consumers_leader: u64,
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
    /// The meta group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta_cluster: Option<MetaCluster>,
    /// Accounts, a page of them.
    #[serde(skip_serializing_if = "is_zero")]
    pub account_details: Vec<AccountDetailJs>,
    /// Accounts there are.
    pub total: u64,
}

/// Usage of JetStream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JetStreamStats {
    /// Bytes in memory.
    pub memory: u64,
    /// Bytes on disk.
    pub storage: u64,
    /// Bytes of memory that are reserved; of an account without limit 2^64 - 1.
    pub reserved_memory: u64,
    /// Bytes on disk that are reserved; of an account without limit 2^64 - 1.
    pub reserved_storage: u64,
    /// Accounts.
    pub accounts: u64,
    /// Replicated assets.
    pub ha_assets: u64,
    /// Requests.
    pub api: ApiStats,
}

/// JetStream in `/varz` and in the statistics of a server; empty when JetStream is off.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JetStreamVarz {
    /// Configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<JetStreamConfig>,
    /// Usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<JetStreamStats>,
    /// The meta group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<MetaCluster>,
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<JetStreamLimits>,
}

/// Configuration of JetStream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JetStreamConfig {
    /// Most bytes in memory.
    pub max_memory: i64,
    /// Most bytes on disk.
    pub max_storage: i64,
    /// Where; left out of what is published.
    #[serde(skip_serializing_if = "is_zero")]
    pub store_dir: String,
    /// Time between syncs, for who asked for that.
    #[serde(skip_serializing_if = "is_zero")]
    pub sync_interval: Nanos,
    /// Every write is synced.
    #[serde(skip_serializing_if = "is_zero")]
    pub sync_always: bool,
    /// Domain.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: String,
    /// Compressed transfers are understood.
    #[serde(skip_serializing_if = "is_zero")]
    pub compress_ok: bool,
    /// Prefix of the tag in which replicas must differ.
    #[serde(skip_serializing_if = "is_zero")]
    pub unique_tag: String,
    /// Unknown fields of requests are refused.
    #[serde(skip_serializing_if = "is_zero")]
    pub strict: bool,
}

/// Limits of JetStream (`jetstream.limits`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JetStreamLimits {
    /// Largest batch of a pull request.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_request_batch: u64,
    /// Largest `max_ack_pending`.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_ack_pending: u64,
    /// Most replicated assets.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_ha_assets: u64,
    /// Longest `duplicate_window`.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_duplicate_window: Nanos,
    /// Most consumers of a stream that sets no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub default_max_consumers: u64,
}

/// The meta group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MetaCluster {
    /// Name of the cluster.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Name of the server that leads.
    #[serde(skip_serializing_if = "is_zero")]
    pub leader: String,
    /// Its id.
    #[serde(skip_serializing_if = "is_zero")]
    pub peer: String,
    /// The others; known to the leader only.
    #[serde(skip_serializing_if = "is_zero")]
    pub replicas: Vec<PeerInfo>,
    /// Servers.
    pub cluster_size: u64,
    /// Servers of a quorum.
    pub quorum_needed: u64,
    /// The quorum was lowered by hand.
    #[serde(skip_serializing_if = "is_zero")]
    pub rescue: bool,
    /// Entries waiting.
    pub pending: u64,
    /// Requests waiting.
    pub pending_requests: u64,
    /// Information requests waiting.
    pub pending_infos: u64,
    /// Snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<MetaSnapshot>,
}

/// Snapshots of the meta group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MetaSnapshot {
    /// Entries since the last one.
    pub pending_entries: u64,
    /// Their bytes.
    pub pending_size: u64,
    /// When the last one was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_time: Option<Time>,
    /// How long it took.
    #[serde(skip_serializing_if = "is_zero")]
    pub last_duration: Nanos,
}

/// JetStream of one account.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AccountDetailJs {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Usage.
    #[serde(flatten)]
    pub stats: JetStreamStats,
    /// Streams, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub stream_detail: Vec<StreamDetail>,
}

/// One stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamDetail {
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created: Time,
    /// Its replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterInfo>,
    /// Its configuration, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<StreamConfig>,
    /// What it holds.
    pub state: StreamState,
    /// Consumers, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub consumer_detail: Vec<ConsumerInfo>,
    /// Consumers that feed other streams, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub direct_consumer_detail: Vec<ConsumerInfo>,
    /// How far a mirror is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<StreamSourceInfo>,
    /// How far each source is.
    #[serde(skip_serializing_if = "is_zero")]
    pub sources: Vec<StreamSourceInfo>,
    /// Its raft group, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub stream_raft_group: String,
    /// Raft groups of its consumers, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub consumer_raft_groups: Vec<RaftGroup>,
    /// What only Tidelock has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tidelock: Option<TidelockStream>,
}

/// The replica of a stream on the server that answers. Replicas that have applied the same entry have the same
/// digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TidelockStream {
    /// Hash of all decisions and of the whole state, in hexadecimal; absent while an entry is being applied.
    #[serde(skip_serializing_if = "is_zero")]
    pub digest: String,
    /// Index of the last entry that was applied.
    pub applied: u64,
    /// Index of the last entry that is known to be committed.
    pub commit: u64,
    /// Index of the last entry of the log.
    pub last: u64,
    /// Index up to which the log is durable here.
    pub durable: u64,
    /// The term of the log.
    pub term: u64,
    /// Entries that wait to be proposed, or to be applied after that.
    pub in_flight: u64,
    /// This server leads the stream.
    pub leader: bool,
    /// Messages that are known to be damaged on this server's disk and have not come from another replica.
    pub damaged: u64,
    /// Messages that were damaged and have come from another replica, since the start.
    pub mended: u64,
}

/// The raft group of a consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RaftGroup {
    /// Name of the consumer.
    pub name: String,
    /// Name of the group.
    #[serde(skip_serializing_if = "is_zero")]
    pub raft_group: String,
}
