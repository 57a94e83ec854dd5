//! Which changes of a stream's configuration are allowed.

use super::{ConsumerConfig, StreamConfig, StreamFields, invalid_stream};
use tidelock_api::{Discard, Retention};
use tidelock_base::{ApiError, ApiErrorCode};

/// Checks that `old` may become `new`, and returns what it becomes: sealing a stream also turns off what would still
/// remove messages. `new` comes from [`super::validate_stream`]; overlap with other streams, reservations and the
/// consumers are for others to check.
///
/// # Errors
/// 10052 with a text; 10055 for another mirror; 10123 for a move and a change of replicas at once.
pub fn check_stream_update(old: &StreamConfig, new: &StreamConfig) -> Result<StreamConfig, ApiError> {
    let refuse = |text: &'static str| Err(invalid_stream(text));
    if old.name != new.name {
        return refuse("stream configuration name must match original");
    }
    if old.storage != new.storage {
        return refuse("stream configuration update can not change storage type");
    }
    let work_queue = |config: &StreamConfig| config.retention == Retention::WorkQueue;
    if work_queue(old) != work_queue(new) {
        return refuse("stream configuration update can not change retention policy to/from workqueue");
    }
    if old.sealed && !new.sealed {
        return refuse("stream configuration update can not unseal a sealed stream");
    }
    if old.deny_delete && !new.deny_delete {
        return refuse("stream configuration update can not cancel deny message deletes");
    }
    if old.deny_purge && !new.deny_purge {
        return refuse("stream configuration update can not cancel deny purge");
    }
    if new.mirror.is_some() && old.mirror != new.mirror {
        return Err(ApiErrorCode::StreamMirrorNotUpdatable.into());
    }
    if old.allow_msg_ttl && !new.allow_msg_ttl {
        return refuse("message TTL status can not be disabled");
    }
    if old.persist_mode != new.persist_mode {
        return refuse("stream configuration update can not change persist mode");
    }
    if old.num_replicas != new.num_replicas && old.placement != new.placement {
        return Err(ApiErrorCode::StreamMoveAndScale.into());
    }
    Ok(if new.sealed {
        new.changed(seal)
    } else {
        new.clone()
    })
}

fn seal(fields: &mut StreamFields) {
    fields.max_age = None;
    fields.discard = Discard::New;
    fields.deny_delete = true;
    fields.deny_purge = true;
    fields.allow_rollup_hdrs = false;
}

/// Checks that tighter `consumer_limits` leave the consumers that exist within them.
///
/// # Errors
/// 10069 with the names of those outside.
pub fn check_consumers_fit<'a>(
    new: &StreamConfig,
    consumers: impl Iterator<Item = &'a ConsumerConfig>,
) -> Result<(), ApiError> {
    let limits = new.consumer_limits;
    let outside = |consumer: &&ConsumerConfig| {
        let pending = limits.max_ack_pending.is_some_and(|most| {
            consumer
                .max_ack_pending
                .is_some_and(|pending| u64::from(pending) > most)
        });
        let inactive = limits.inactive_threshold.is_some_and(|most| {
            consumer
                .inactive_threshold
                .is_some_and(|threshold| threshold > most)
        });
        pending || inactive
    };
    let names: Vec<&str> = consumers
        .filter(outside)
        .map(|consumer| consumer.name.as_str())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(ApiError::text(
        ApiErrorCode::StreamUpdate,
        format!("change to limits violates consumers: {}", names.join(", ")),
    ))
}

#[cfg(test)]
#[path = "stream_update_tests.rs"]
mod tests;
