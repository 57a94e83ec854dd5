//! The labels that the server keeps in `metadata` (ADR-44).
//!
//! `_nats.req.level`, the API level that an asset needs, is stored. `_nats.ver` and `_nats.level`, version and API
//! level of the server, are added to answers and never stored; what a client sends for them is dropped.

use std::collections::BTreeMap;
use tidelock_api as api;
use tidelock_api::{AckPolicy, PersistMode, PriorityPolicy};
use tidelock_base::{API_LEVEL, ApiError, ApiErrorCode, COMPATIBLE_VERSION};

const REQUIRED_LEVEL: &str = "_nats.req.level";
const SERVER_VERSION: &str = "_nats.ver";
const SERVER_LEVEL: &str = "_nats.level";

/// Removes what is not stored and sets the level that the asset needs.
pub(super) fn store(metadata: &mut BTreeMap<String, String>, level: u32) {
    strip_dynamic(metadata);
    metadata.insert(REQUIRED_LEVEL.to_owned(), level.to_string());
}

/// Removes version and level of the server.
pub fn strip_dynamic(metadata: &mut BTreeMap<String, String>) {
    metadata.remove(SERVER_VERSION);
    metadata.remove(SERVER_LEVEL);
}

/// Adds version and level of the server, as answers carry them (lists do not).
#[must_use]
pub fn with_dynamic(mut metadata: BTreeMap<String, String>) -> BTreeMap<String, String> {
    metadata.insert(SERVER_VERSION.to_owned(), COMPATIBLE_VERSION.to_owned());
    metadata.insert(SERVER_LEVEL.to_owned(), API_LEVEL.to_string());
    metadata
}

/// The API level that a stream configuration needs.
#[must_use]
pub fn required_level_of_stream(config: &api::StreamConfig) -> u32 {
    if config.allow_batched {
        4
    } else if config.allow_msg_counter
        || config.allow_atomic
        || config.allow_msg_schedules
        || config.persist_mode == PersistMode::Async
    {
        2
    } else {
        u32::from(config.allow_msg_ttl || config.subject_delete_marker_ttl.0 > 0)
    }
}

/// The API level that a consumer configuration needs.
#[must_use]
pub fn required_level_of_consumer(config: &api::ConsumerConfig) -> u32 {
    if config.ack_policy == AckPolicy::FlowControl {
        return 4;
    }
    u32::from(
        config.pause_until.is_some_and(|until| until != api::Time::ZERO)
            || config.priority_policy != PriorityPolicy::None
            || !config.priority_groups.is_empty()
            || config.priority_timeout.0 != 0,
    )
}

/// Checks the header `Nats-Required-Api-Level` of a request.
///
/// # Errors
/// 10185: the value is no number, or above what this server has.
pub fn check_required_level(header: &str) -> Result<(), ApiError> {
    match header.parse::<i64>() {
        Ok(level) if level <= i64::from(API_LEVEL) => Ok(()),
        _ => Err(ApiError::new(ApiErrorCode::RequiredApiLevel)),
    }
}

/// Why an asset with this metadata can not be served: it needs an API level above this server's.
#[must_use]
pub fn offline_reason(metadata: &BTreeMap<String, String>) -> Option<String> {
    let level = metadata.get(REQUIRED_LEVEL)?;
    match level.parse::<u32>() {
        Ok(number) if number <= API_LEVEL => None,
        _ => Some(format!(
            "unsupported - required API level: {level}, current API level: {API_LEVEL}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_follow_the_features() {
        let stream = |change: fn(&mut api::StreamConfig)| {
            let mut config = api::StreamConfig::default();
            change(&mut config);
            required_level_of_stream(&config)
        };
        assert_eq!(stream(|_| ()), 0);
        assert_eq!(stream(|c| c.allow_msg_ttl = true), 1);
        assert_eq!(stream(|c| c.persist_mode = PersistMode::Async), 2);
        assert_eq!(stream(|c| c.allow_batched = true), 4);
        let paused = api::ConsumerConfig {
            pause_until: Some(api::Time(tidelock_base::Wall(1))),
            ..api::ConsumerConfig::default()
        };
        assert_eq!(required_level_of_consumer(&paused), 1);
    }

    #[test]
    fn a_required_level_above_ours_is_refused() {
        assert_eq!(check_required_level("5"), Ok(()));
        for header in ["6", "x", ""] {
            assert_eq!(check_required_level(header).unwrap_err().code.err_code(), 10185);
        }
        let level = |level: &str| BTreeMap::from([(REQUIRED_LEVEL.to_owned(), level.to_owned())]);
        assert_eq!(offline_reason(&level("5")), None);
        assert_eq!(
            offline_reason(&level("6")).as_deref(),
            Some("unsupported - required API level: 6, current API level: 5")
        );
    }
}
