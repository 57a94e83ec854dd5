//! What configurations are checked against: limits in force, and the account's other streams.

use crate::worker::Core;
use tidelock_api::AccountLimits;
use tidelock_base::AccountId;
use tidelock_conf::JetStreamLimits;
use tidelock_jetstream::config::{Catalog, ConfigLimits, StreamConfig};
use tidelock_jetstream::meta::{self, Meta};

/// Most consumers of a stream where nobody has set a limit, as on nats-server 2.15.1.
const CONSUMERS_DEFAULT_MAX: u32 = 1000;

/// The streams of one account, as the metadata has them.
pub(super) struct MetaCatalog<'a> {
    pub(super) meta: &'a Meta,
    pub(super) account: &'a str,
}

impl Catalog for MetaCatalog<'_> {
    fn stream(&self, name: &str) -> Option<StreamConfig> {
        self.meta
            .stream(self.account, name)
            .map(|entry| entry.spec.config().clone())
    }

    fn overlaps(&self, filter: &[u8], except: &str) -> bool {
        let others = self
            .meta
            .streams_of(self.account)
            .filter(|entry| entry.spec.name != except);
        others
            .flat_map(|entry| {
                let pending = entry.pending.as_ref().map(|pending| &pending.spec);
                std::iter::once(&entry.spec).chain(pending)
            })
            .flat_map(|spec| &spec.subjects)
            .any(|subject| tidelock_subject::overlaps(subject, filter))
    }
}

impl Core {
    /// Limits that a configuration of this account is checked against.
    pub(super) fn config_limits(&self, account: AccountId) -> ConfigLimits {
        let server = self
            .shared
            .options
            .jetstream
            .as_ref()
            .map(|js| js.limits.clone())
            .unwrap_or_default();
        let small = |limit: Option<u64>| limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        ConfigLimits {
            clustered: self.is_clustered(),
            account: self
                .shared
                .account(account)
                .and_then(|own| own.jetstream.as_ref())
                .map_or_else(AccountLimits::default, account_limits),
            duplicate_window_max: server.duplicate_window,
            ack_pending_max: small(server.max_ack_pending),
            request_batch_max: small(server.max_request_batch),
            consumers_default_max: Some(CONSUMERS_DEFAULT_MAX),
        }
    }

    /// Limits of an account that the metadata's log decides by.
    pub(super) fn meta_limits(&self, account: AccountId) -> meta::AccountLimits {
        let Some(own) = self
            .shared
            .account(account)
            .and_then(|own| own.jetstream.as_ref())
        else {
            return meta::AccountLimits::default();
        };
        let limit = |value: i64| u64::try_from(value).ok();
        let count = |value: i64| limit(value).filter(|most| *most > 0);
        meta::AccountLimits {
            max_streams: count(own.max_streams),
            max_consumers: count(own.max_consumers),
            max_memory: limit(own.max_memory),
            max_storage: limit(own.max_store),
        }
    }
}

/// Limits of an account as the API shows them.
pub(super) fn account_limits(own: &JetStreamLimits) -> AccountLimits {
    AccountLimits {
        max_memory: own.max_memory,
        max_storage: own.max_store,
        max_streams: own.max_streams,
        max_consumers: own.max_consumers,
        max_ack_pending: own.max_ack_pending,
        memory_max_stream_bytes: own.mem_max_stream_bytes,
        storage_max_stream_bytes: own.disk_max_stream_bytes,
        max_bytes_required: own.max_bytes_required,
    }
}
