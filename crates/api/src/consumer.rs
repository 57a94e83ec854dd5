//! Consumers: configuration and information, in wire form.

use crate::cluster::ClusterInfo;
use crate::json::{decodable, is_zero};
use crate::{AckPolicy, DeliverPolicy, Nanos, PriorityPolicy, ReplayPolicy, Time};
use serde::Serialize;
use std::collections::BTreeMap;

/// A consumer's configuration as it stands in requests and responses. Nothing about it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerConfig {
    /// Name of a durable consumer.
    #[serde(skip_serializing_if = "is_zero")]
    pub durable_name: String,
    /// Name.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Text for people.
    #[serde(skip_serializing_if = "is_zero")]
    pub description: String,
    /// Where it starts.
    pub deliver_policy: DeliverPolicy,
    /// First sequence, with [`DeliverPolicy::ByStartSequence`].
    #[serde(skip_serializing_if = "is_zero")]
    pub opt_start_seq: u64,
    /// Time of the first message, with [`DeliverPolicy::ByStartTime`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opt_start_time: Option<Time>,
    /// What an acknowledgement covers.
    pub ack_policy: AckPolicy,
    /// How long an acknowledgement is awaited.
    #[serde(skip_serializing_if = "is_zero")]
    pub ack_wait: Nanos,
    /// Most deliveries of one message; -1 means no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_deliver: i64,
    /// Waits of the first deliveries in place of `ack_wait`.
    #[serde(skip_serializing_if = "is_zero")]
    pub backoff: Vec<Nanos>,
    /// Which subjects it takes; empty means all.
    #[serde(skip_serializing_if = "is_zero")]
    pub filter_subject: String,
    /// Several such filters.
    #[serde(skip_serializing_if = "is_zero")]
    pub filter_subjects: Vec<String>,
    /// Pace.
    pub replay_policy: ReplayPolicy,
    /// Rate limit in bits per second; 0 means none.
    #[serde(skip_serializing_if = "is_zero")]
    pub rate_limit_bps: u64,
    /// Share of acknowledgements that are reported, in percent, `%` optional.
    #[serde(skip_serializing_if = "is_zero")]
    pub sample_freq: String,
    /// Most pull requests waiting.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_waiting: i64,
    /// Most messages delivered and not acknowledged; -1 means no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_ack_pending: i64,
    /// Flow control of a push consumer.
    #[serde(skip_serializing_if = "is_zero")]
    pub flow_control: bool,
    /// Headers without payloads.
    #[serde(skip_serializing_if = "is_zero")]
    pub headers_only: bool,
    /// Most messages of one pull request.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_batch: i64,
    /// Longest life of a pull request.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_expires: Nanos,
    /// Most bytes of one pull request.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_bytes: i64,
    /// Where a push consumer delivers; empty means pull.
    #[serde(skip_serializing_if = "is_zero")]
    pub deliver_subject: String,
    /// Queue group of a push consumer.
    #[serde(skip_serializing_if = "is_zero")]
    pub deliver_group: String,
    /// Heartbeat of a push consumer when idle.
    #[serde(skip_serializing_if = "is_zero")]
    pub idle_heartbeat: Nanos,
    /// How long it stays without activity.
    #[serde(skip_serializing_if = "is_zero")]
    pub inactive_threshold: Nanos,
    /// Replicas; 0 means as the stream.
    pub num_replicas: i64,
    /// State in memory.
    #[serde(skip_serializing_if = "is_zero")]
    pub mem_storage: bool,
    /// Made by a server for a mirror or source.
    #[serde(skip_serializing_if = "is_zero")]
    pub direct: bool,
    /// Made by a server for sourcing with acknowledgements.
    #[serde(skip_serializing_if = "is_zero")]
    pub sourcing: bool,
    /// Labels of users and of the server (`_nats.*`).
    #[serde(skip_serializing_if = "is_zero")]
    pub metadata: BTreeMap<String, String>,
    /// Nothing is delivered before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_until: Option<Time>,
    /// Priority groups (ADR-42).
    #[serde(skip_serializing_if = "is_zero")]
    pub priority_groups: Vec<String>,
    /// Priority policy (ADR-42).
    #[serde(skip_serializing_if = "is_zero")]
    pub priority_policy: PriorityPolicy,
    /// How long a client stays pinned without asking (ADR-42).
    #[serde(skip_serializing_if = "is_zero")]
    pub priority_timeout: Nanos,
}

decodable!(ConsumerConfig as "ConsumerConfig" {
    durable_name, name, description, deliver_policy, opt_start_seq, opt_start_time, ack_policy, ack_wait,
    max_deliver: "int", backoff, filter_subject, filter_subjects, replay_policy, rate_limit_bps, sample_freq,
    max_waiting: "int", max_ack_pending: "int", flow_control, headers_only, max_batch: "int", max_expires,
    max_bytes: "int", deliver_subject, deliver_group, idle_heartbeat, inactive_threshold, num_replicas: "int",
    mem_storage, direct, sourcing, metadata, pause_until, priority_groups, priority_policy, priority_timeout,
});

/// A position of a consumer (`delivered`, `ack_floor`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SequenceInfo {
    /// Sequence of the delivery.
    pub consumer_seq: u64,
    /// Sequence in the stream.
    pub stream_seq: u64,
    /// When it last moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_active: Option<Time>,
}

decodable!(SequenceInfo as "SequenceInfo" { consumer_seq, stream_seq, last_active });

/// A consumer as `CONSUMER.INFO` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConsumerInfo {
    /// Name of its stream.
    pub stream_name: String,
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created: Time,
    /// Its configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ConsumerConfig>,
    /// What was delivered last.
    pub delivered: SequenceInfo,
    /// Everything up to here is acknowledged.
    pub ack_floor: SequenceInfo,
    /// Messages delivered and not acknowledged.
    pub num_ack_pending: u64,
    /// Of those, delivered more than once.
    pub num_redelivered: u64,
    /// Pull requests waiting.
    pub num_waiting: u64,
    /// Messages not yet delivered.
    pub num_pending: u64,
    /// Its replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterInfo>,
    /// A push consumer has a subscriber.
    #[serde(skip_serializing_if = "is_zero")]
    pub push_bound: bool,
    /// Delivery is paused.
    #[serde(skip_serializing_if = "is_zero")]
    pub paused: bool,
    /// For how long yet.
    #[serde(skip_serializing_if = "is_zero")]
    pub pause_remaining: Nanos,
    /// When this was written.
    pub ts: Time,
    /// State of each priority group.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority_groups: Vec<PriorityGroupState>,
}

decodable!(ConsumerInfo as "ConsumerInfo" {
    stream_name, name, created, config, delivered, ack_floor, num_ack_pending, num_redelivered, num_waiting,
    num_pending, cluster, push_bound, paused, pause_remaining, ts, priority_groups,
});

/// State of a priority group (ADR-42).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PriorityGroupState {
    /// Its name.
    pub group: String,
    /// Id of the pinned client.
    #[serde(skip_serializing_if = "is_zero")]
    pub pinned_client_id: String,
    /// When it was pinned.
    pub pinned_ts: Time,
}

decodable!(PriorityGroupState as "PriorityGroupState" { group, pinned_client_id, pinned_ts });
