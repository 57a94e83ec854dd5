//! What a configuration is checked against: limits of the account and server, and the other streams of the account.

use super::StreamConfig;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_api::AccountLimits;
use tidelock_subject::overlaps;

/// Limits in force where a configuration is checked.
#[derive(Clone, Debug, Default)]
pub struct ConfigLimits {
    /// The server is part of a cluster; without one a stream has one replica.
    pub clustered: bool,
    /// Limits of the account; -1 means none.
    pub account: AccountLimits,
    /// Longest `duplicate_window` (`jetstream.limits.max_duplicate_window`).
    pub duplicate_window_max: Option<Duration>,
    /// Largest `max_ack_pending` (`jetstream.limits.max_ack_pending`).
    pub ack_pending_max: Option<u32>,
    /// Largest `max_batch` of a consumer (`jetstream.limits.max_request_batch`); also the default.
    pub request_batch_max: Option<u32>,
    /// Most consumers of a stream if neither it nor the account has a limit
    /// (`jetstream.limits.default_max_consumers`, 1000 on nats-server 2.15.1).
    pub consumers_default_max: Option<u32>,
}

impl ConfigLimits {
    /// How many consumers a stream may have; consumers that feed other streams do not count. One more is refused with
    /// 10026.
    #[must_use]
    pub fn consumers_max(&self, stream: &StreamConfig) -> Option<u32> {
        let account = u32::try_from(self.account.max_consumers)
            .ok()
            .filter(|most| *most > 0);
        let limits = [stream.max_consumers, account];
        limits.into_iter().flatten().min().or(self.consumers_default_max)
    }
}

/// The streams of the account.
pub trait Catalog {
    /// The stream of this name.
    fn stream(&self, name: &str) -> Option<StreamConfig>;

    /// Whether a stream other than `except` has a subject that overlaps `filter`.
    fn overlaps(&self, filter: &[u8], except: &str) -> bool;
}

/// A catalog in a map.
#[derive(Clone, Debug, Default)]
pub struct StreamMap(pub BTreeMap<String, StreamConfig>);

impl Catalog for StreamMap {
    fn stream(&self, name: &str) -> Option<StreamConfig> {
        self.0.get(name).cloned()
    }

    fn overlaps(&self, filter: &[u8], except: &str) -> bool {
        self.0
            .values()
            .filter(|stream| stream.name != except)
            .flat_map(|stream| &stream.subjects)
            .any(|subject| overlaps(subject, filter))
    }
}
