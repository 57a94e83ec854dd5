//! `/subsz`: subscriptions.

use super::SubDetail;
use crate::Time;
use crate::json::is_zero;
use serde::Serialize;

/// Subscriptions: counts, and a page of them if asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Subsz {
    /// Id of the server.
    pub server_id: String,
    /// When this was written.
    pub now: Time,
    /// Counts.
    #[serde(flatten)]
    pub stats: SublistStats,
    /// Subscriptions that match what was asked for.
    pub total: u64,
    /// How many were left out.
    pub offset: u64,
    /// Most subscriptions of an answer.
    pub limit: u64,
    /// The subscriptions.
    #[serde(skip_serializing_if = "is_zero")]
    pub subscriptions_list: Vec<SubDetail>,
}

/// Counts of an interest tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SublistStats {
    /// Subscriptions.
    pub num_subscriptions: u64,
    /// Subjects whose matches are kept.
    pub num_cache: u64,
    /// Subscriptions added so far.
    pub num_inserts: u64,
    /// Subscriptions removed so far.
    pub num_removes: u64,
    /// Matches so far.
    pub num_matches: u64,
    /// Share of matches that were found in the cache.
    pub cache_hit_rate: f64,
    /// Most receivers of a subject.
    pub max_fanout: u64,
    /// Receivers of a subject on average.
    pub avg_fanout: f64,
}
