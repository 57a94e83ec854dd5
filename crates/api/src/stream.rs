//! Streams: configuration, state and information, in wire form.

use crate::cluster::ClusterInfo;
use crate::json::{decodable, is_zero};
use crate::response::ErrorBody;
use crate::{Compression, Discard, Nanos, PersistMode, Retention, Storage, Time};
use serde::Serialize;
use std::collections::BTreeMap;

/// A stream's configuration as it stands in requests and responses. Nothing about it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamConfig {
    /// The stream's name.
    pub name: String,
    /// Text for people.
    #[serde(skip_serializing_if = "is_zero")]
    pub description: String,
    /// Subjects the stream stores, wildcards allowed.
    #[serde(skip_serializing_if = "is_zero")]
    pub subjects: Vec<String>,
    /// When a message leaves.
    pub retention: Retention,
    /// Most consumers; -1 means no limit.
    pub max_consumers: i64,
    /// Most messages; -1 means no limit.
    pub max_msgs: i64,
    /// Most bytes; -1 means no limit.
    pub max_bytes: i64,
    /// Greatest age of a message; 0 means no limit.
    pub max_age: Nanos,
    /// Most messages of one subject; -1 means no limit.
    pub max_msgs_per_subject: i64,
    /// Largest message in bytes; -1 means no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_msg_size: i32,
    /// What gives way when a limit is reached.
    pub discard: Discard,
    /// Where messages are kept.
    pub storage: Storage,
    /// How many servers keep the stream.
    pub num_replicas: i64,
    /// Publishes are not acknowledged.
    #[serde(skip_serializing_if = "is_zero")]
    pub no_ack: bool,
    /// How long a message id is remembered.
    #[serde(skip_serializing_if = "is_zero")]
    pub duplicate_window: Nanos,
    /// Which servers may keep the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// The stream this one copies, sequences and all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<StreamSource>,
    /// Streams whose messages this one takes in.
    #[serde(skip_serializing_if = "is_zero")]
    pub sources: Vec<StreamSource>,
    /// Compression of blocks.
    pub compression: Compression,
    /// Sequence of the first message.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_seq: u64,
    /// Renames subjects before storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_transform: Option<SubjectTransform>,
    /// Publishes each stored message again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub republish: Option<Republish>,
    /// `DIRECT.GET` is answered.
    pub allow_direct: bool,
    /// A mirror answers its origin's `DIRECT.GET`.
    pub mirror_direct: bool,
    /// Discard new applies to each subject on its own.
    #[serde(skip_serializing_if = "is_zero")]
    pub discard_new_per_subject: bool,
    /// Nothing can be stored or removed any more.
    pub sealed: bool,
    /// Messages can not be deleted by the API.
    pub deny_delete: bool,
    /// The stream can not be purged by the API.
    pub deny_purge: bool,
    /// `Nats-Rollup` is honoured.
    pub allow_rollup_hdrs: bool,
    /// Defaults and limits of the stream's consumers.
    pub consumer_limits: ConsumerLimits,
    /// `Nats-TTL` is honoured (ADR-43).
    pub allow_msg_ttl: bool,
    /// TTL of the marker that is stored when the last message of a subject expires (ADR-43).
    #[serde(skip_serializing_if = "is_zero")]
    pub subject_delete_marker_ttl: Nanos,
    /// Messages are counters (ADR-49).
    #[serde(skip_serializing_if = "is_zero")]
    pub allow_msg_counter: bool,
    /// Atomic batches are accepted (ADR-50).
    #[serde(skip_serializing_if = "is_zero")]
    pub allow_atomic: bool,
    /// Message schedules are accepted (ADR-51).
    #[serde(skip_serializing_if = "is_zero")]
    pub allow_msg_schedules: bool,
    /// Whether publishes are answered before they are durable.
    #[serde(skip_serializing_if = "is_zero")]
    pub persist_mode: PersistMode,
    /// Fast-ingest batches are accepted.
    #[serde(skip_serializing_if = "is_zero")]
    pub allow_batched: bool,
    /// Labels of users and of the server (`_nats.*`).
    #[serde(skip_serializing_if = "is_zero")]
    pub metadata: BTreeMap<String, String>,
}

decodable!(StreamConfig as "StreamConfig" {
    name, description, subjects, retention, max_consumers: "int", max_msgs, max_bytes, max_age,
    max_msgs_per_subject, max_msg_size, discard, storage, num_replicas: "int", no_ack, duplicate_window,
    placement, mirror, sources: "[]*server.StreamSource", compression, first_seq, subject_transform, republish, allow_direct,
    mirror_direct, discard_new_per_subject, sealed, deny_delete, deny_purge, allow_rollup_hdrs,
    consumer_limits, allow_msg_ttl, subject_delete_marker_ttl, allow_msg_counter, allow_atomic,
    allow_msg_schedules, persist_mode, allow_batched, metadata,
});

/// Where a stream may be placed (`placement`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Name of the cluster.
    #[serde(skip_serializing_if = "is_zero")]
    pub cluster: String,
    /// Tags that a server must have, or with a leading `!` must not have.
    #[serde(skip_serializing_if = "is_zero")]
    pub tags: Vec<String>,
    /// Name of the server that should lead; in step-down requests only.
    #[serde(skip_serializing_if = "is_zero")]
    pub preferred: String,
}

decodable!(Placement as "Placement" { cluster, tags, preferred });

/// An origin of a mirror or a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamSource {
    /// Name of the origin stream.
    pub name: String,
    /// First sequence to take; 0 means from the first.
    #[serde(skip_serializing_if = "is_zero")]
    pub opt_start_seq: u64,
    /// Time of the first message to take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opt_start_time: Option<Time>,
    /// Which subjects to take; empty means all.
    #[serde(skip_serializing_if = "is_zero")]
    pub filter_subject: String,
    /// Filters that also rename.
    #[serde(skip_serializing_if = "is_zero")]
    pub subject_transforms: Vec<SubjectTransform>,
    /// How to reach an origin in another account or domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// A consumer of the origin that was made beforehand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<SourceConsumer>,
}

decodable!(StreamSource as "StreamSource" {
    name, opt_start_seq, opt_start_time, filter_subject, subject_transforms, external, consumer,
});

/// Prefixes under which an origin in another account or domain is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct External {
    /// Replaces `$JS.API`.
    pub api: String,
    /// Prefix of the delivery subject.
    pub deliver: String,
}

decodable!(External as "ExternalStream" { api, deliver });

/// A durable consumer of the origin that was made beforehand for sourcing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SourceConsumer {
    /// The consumer's name.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Its delivery subject.
    #[serde(skip_serializing_if = "is_zero")]
    pub deliver_subject: String,
}

decodable!(SourceConsumer as "StreamConsumerSource" { name, deliver_subject });

/// Renames subjects that match `src` to `dest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct SubjectTransform {
    /// Pattern with wildcards; empty means `>`.
    pub src: String,
    /// Template.
    pub dest: String,
}

decodable!(SubjectTransform as "SubjectTransformConfig" { src, dest });

/// Publishes each stored message again under another subject (`republish`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Republish {
    /// Pattern with wildcards; empty means `>`.
    #[serde(skip_serializing_if = "is_zero")]
    pub src: String,
    /// Template.
    pub dest: String,
    /// Without payloads.
    #[serde(skip_serializing_if = "is_zero")]
    pub headers_only: bool,
}

decodable!(Republish as "RePublish" { src, dest, headers_only });

/// Defaults and limits of a stream's consumers (`consumer_limits`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerLimits {
    /// Longest `inactive_threshold`; also the default.
    #[serde(skip_serializing_if = "is_zero")]
    pub inactive_threshold: Nanos,
    /// Largest `max_ack_pending`; also the default.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_ack_pending: i64,
}

decodable!(ConsumerLimits as "StreamConsumerLimits" { inactive_threshold, max_ack_pending: "int" });

/// What a stream holds (`state`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamState {
    /// Messages.
    pub messages: u64,
    /// Their bytes, by the formula of the storage kind.
    pub bytes: u64,
    /// First sequence; last + 1 when empty after messages were removed.
    pub first_seq: u64,
    /// When the first message was stored.
    pub first_ts: Time,
    /// Last sequence.
    pub last_seq: u64,
    /// When the last message was stored.
    pub last_ts: Time,
    /// Different subjects.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_subjects: u64,
    /// Messages of each subject, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subjects: Option<BTreeMap<String, u64>>,
    /// Sequences missing between first and last.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_deleted: u64,
    /// Those sequences, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub deleted: Vec<u64>,
    /// What was lost to damage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostData>,
    /// Consumers.
    pub consumer_count: u64,
}

decodable!(StreamState as "StreamState" {
    messages, bytes, first_seq, first_ts, last_seq, last_ts, num_subjects, subjects, num_deleted, deleted, lost,
    consumer_count,
});

/// Messages lost to damage (`lost`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LostData {
    /// Their sequences.
    pub msgs: Vec<u64>,
    /// Their bytes.
    pub bytes: u64,
}

decodable!(LostData as "LostStreamData" { msgs, bytes });

/// A stream as `STREAM.INFO` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamInfo {
    /// Its configuration.
    pub config: StreamConfig,
    /// When it was created.
    pub created: Time,
    /// What it holds.
    pub state: StreamState,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: String,
    /// Its replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterInfo>,
    /// How far a mirror is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<StreamSourceInfo>,
    /// How far each source is.
    #[serde(skip_serializing_if = "is_zero")]
    pub sources: Vec<StreamSourceInfo>,
    /// The stream and its mirrors, nearest first; only with two or more, in clusters.
    #[serde(skip_serializing_if = "is_zero")]
    pub alternates: Vec<Alternate>,
    /// When this was written.
    pub ts: Time,
}

decodable!(StreamInfo as "StreamInfo" { config, created, state, domain, cluster, mirror, sources, alternates, ts });

/// How far a mirror or source is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamSourceInfo {
    /// Name of the origin.
    pub name: String,
    /// How it is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// Messages of the origin not yet taken.
    pub lag: u64,
    /// Sequence of the origin that was stored last; sources only.
    #[serde(skip_serializing_if = "is_zero")]
    pub seq: u64,
    /// Time since the origin was last heard; -1 ns means never.
    pub active: Nanos,
    /// What stops it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
    /// Filter of the source.
    #[serde(skip_serializing_if = "is_zero")]
    pub filter_subject: String,
    /// Filters that also rename.
    #[serde(skip_serializing_if = "is_zero")]
    pub subject_transforms: Vec<SubjectTransform>,
}

decodable!(StreamSourceInfo as "StreamSourceInfo" {
    name, external, lag, seq, active, error, filter_subject, subject_transforms,
});

/// One of several streams that hold the same messages (`alternates`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Alternate {
    /// Name of the stream.
    pub name: String,
    /// Its domain.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: String,
    /// Its cluster.
    pub cluster: String,
}

decodable!(Alternate as "StreamAlternate" { name, domain, cluster });
