//! Features that this version does not have yet. A configuration that uses one is refused; a field that is set to
//! its default uses nothing.

use super::consumer::invalid_consumer;
use super::invalid_stream;
use tidelock_api as api;
use tidelock_api::{AckPolicy, Compression, PriorityPolicy, ReplayPolicy};
use tidelock_base::{ApiError, Wall};

/// The first feature of a stream configuration that is missing here.
fn missing_stream_feature(raw: &api::StreamConfig) -> Option<&'static str> {
    let origins = || raw.mirror.iter().chain(&raw.sources);
    let features = [
        (raw.allow_msg_counter, "allow_msg_counter"),
        (raw.allow_atomic, "allow_atomic"),
        (raw.allow_batched, "allow_batched"),
        (raw.allow_msg_schedules, "allow_msg_schedules"),
        (raw.subject_transform.is_some(), "subject_transform"),
        (raw.compression != Compression::None, "compression"),
        (origins().any(|origin| origin.external.is_some()), "external"),
        (
            origins().any(|origin| origin.consumer.is_some()),
            "source consumer",
        ),
        (
            origins().any(|origin| !origin.subject_transforms.is_empty()),
            "subject_transforms",
        ),
    ];
    features.into_iter().find_map(|(used, name)| used.then_some(name))
}

/// The first feature of a consumer configuration that is missing here, apart from pausing and flow control
/// acknowledgements.
fn missing_consumer_feature(raw: &api::ConsumerConfig) -> Option<&'static str> {
    let features = [
        (raw.priority_policy != PriorityPolicy::None, "priority_policy"),
        (!raw.priority_groups.is_empty(), "priority_groups"),
        (raw.priority_timeout.0 != 0, "priority_timeout"),
        (
            raw.replay_policy != ReplayPolicy::Instant,
            "replay_policy original",
        ),
        (raw.rate_limit_bps != 0, "rate_limit_bps"),
        (!raw.sample_freq.is_empty(), "sample_freq"),
    ];
    features.into_iter().find_map(|(used, name)| used.then_some(name))
}

fn text(feature: &str) -> String {
    format!("{feature} is not supported by this version yet")
}

/// Refuses a stream configuration that uses a feature that is missing here: 10052.
pub(super) fn check_stream(raw: &api::StreamConfig) -> Result<(), ApiError> {
    match missing_stream_feature(raw) {
        Some(feature) => Err(invalid_stream(text(feature))),
        None => Ok(()),
    }
}

/// Refuses a consumer configuration that uses a feature that is missing here: 10012. Flow control acknowledgements
/// are for consumers that feed other streams.
pub(super) fn check_consumer(raw: &api::ConsumerConfig, now: Wall) -> Result<(), ApiError> {
    let missing = missing_consumer_feature(raw)
        .or_else(|| {
            (raw.ack_policy == AckPolicy::FlowControl && !raw.sourcing).then_some("ack_policy flow_control")
        })
        .or_else(|| {
            raw.pause_until
                .is_some_and(|until| until.0 > now)
                .then_some("pause_until")
        });
    match missing {
        Some(feature) => Err(invalid_consumer(text(feature))),
        None => Ok(()),
    }
}

/// Whether a logged consumer configuration uses only what this version has.
pub(super) fn consumer_is_supported(raw: &api::ConsumerConfig) -> bool {
    missing_consumer_feature(raw).is_none()
}
