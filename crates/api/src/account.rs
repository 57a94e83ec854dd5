//! The answer of `$JS.API.INFO`.

use crate::json::is_zero;
use serde::Serialize;
use std::collections::BTreeMap;

/// What an account uses of JetStream and what it may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountInfo {
    /// Usage and limits; with tiers, the sums and zero limits.
    #[serde(flatten)]
    pub total: AccountTier,
    /// Domain of the server.
    #[serde(skip_serializing_if = "is_zero")]
    pub domain: String,
    /// Requests so far.
    pub api: ApiStats,
    /// Usage and limits by tier (`R1`, `R3`), only of accounts with tiered limits.
    #[serde(skip_serializing_if = "is_zero")]
    pub tiers: BTreeMap<String, AccountTier>,
}

/// Usage and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountTier {
    /// Bytes in memory.
    pub memory: u64,
    /// Bytes on disk.
    pub storage: u64,
    /// Bytes of memory that `max_bytes` of streams reserve.
    pub reserved_memory: u64,
    /// Bytes on disk that `max_bytes` of streams reserve.
    pub reserved_storage: u64,
    /// Streams.
    pub streams: u64,
    /// Consumers.
    pub consumers: u64,
    /// Limits.
    pub limits: AccountLimits,
}

/// Limits of an account or tier; -1 means none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccountLimits {
    /// Bytes in memory.
    pub max_memory: i64,
    /// Bytes on disk.
    pub max_storage: i64,
    /// Streams.
    pub max_streams: i64,
    /// Consumers.
    pub max_consumers: i64,
    /// `max_ack_pending` of a consumer.
    pub max_ack_pending: i64,
    /// `max_bytes` of a memory stream.
    pub memory_max_stream_bytes: i64,
    /// `max_bytes` of a file stream.
    pub storage_max_stream_bytes: i64,
    /// A stream must set `max_bytes`.
    pub max_bytes_required: bool,
}

impl Default for AccountLimits {
    /// No limits.
    fn default() -> Self {
        Self {
            max_memory: -1,
            max_storage: -1,
            max_streams: -1,
            max_consumers: -1,
            max_ack_pending: -1,
            memory_max_stream_bytes: -1,
            storage_max_stream_bytes: -1,
            max_bytes_required: false,
        }
    }
}

/// Counters of API requests (`api`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ApiStats {
    /// API level of the server (ADR-44).
    pub level: u64,
    /// Requests answered.
    pub total: u64,
    /// Of those, with an error.
    pub errors: u64,
    /// Requests in work.
    #[serde(skip_serializing_if = "is_zero")]
    pub inflight: u64,
}
