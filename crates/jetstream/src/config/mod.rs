//! Configurations of streams and consumers that exist only in a valid state.
//!
//! The wire form (`tidelock_api::StreamConfig`, `tidelock_api::ConsumerConfig`) can say anything. A request's
//! configuration is filled in and checked once ([`validate_stream`], [`validate_consumer`]), in the order and with
//! the texts of nats-server 2.15.1, and becomes a [`StreamConfig`] or [`ConsumerConfig`]: shared, immutable, with
//! limits as options, subjects parsed and durations as durations. What comes from the log or a checkpoint was checked
//! when it was logged, and is read back by `decode`, which checks only what the types themselves promise; so a rule
//! that a later version tightens can not make an old log unreadable.
//!
//! What this version can not do is refused here, never accepted and ignored.

mod catalog;
mod consumer;
mod consumer_check;
mod consumer_update;
mod metadata;
mod origin_check;
mod stream;
mod stream_check;
mod stream_update;
mod subject_check;
mod unsupported;

pub use catalog::{Catalog, ConfigLimits, StreamMap};
pub use consumer::{ConsumerConfig, ConsumerFields, DeliverFrom, Push};
pub use consumer_check::{
    ConsumerContext, ConsumerTarget, check_consumer_names, check_work_queue, validate_consumer,
};
pub use consumer_update::check_consumer_update;
pub use metadata::{
    check_required_level, offline_reason, required_level_of_consumer, required_level_of_stream,
    strip_dynamic, with_dynamic,
};
pub use stream::{ConsumerDefaults, Origin, RepublishRule, StreamConfig, StreamFields};
pub use stream_check::{check_create_request, check_subject_overlap, validate_stream};
pub use stream_update::{check_consumers_fit, check_stream_update};
pub use tidelock_api::{AckPolicy, Discard, PersistMode, Retention, Storage};

use tidelock_api::Nanos;
use tidelock_base::{ApiError, ApiErrorCode};

/// Longest name of a stream or consumer, in bytes.
const NAME_BYTES_MAX: usize = tidelock_base::limits::NAME_BYTES_MAX;
/// Longest description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 4096;
/// Most bytes of all keys and values of a metadata.
const METADATA_BYTES_MAX: usize = 128 * 1024;
/// Highest sequence that a stream can be told to begin at. Beyond it there is room for so many messages that no
/// stream ever comes to the end of the numbers.
pub(crate) const MAX_FIRST_SEQ: u64 = 1 << 63;
/// Most replicas.
const REPLICAS_MAX: i64 = 5;

/// The error that most rules of a stream's configuration have: 10052 with a text of its own.
fn invalid_stream(text: impl Into<std::borrow::Cow<'static, str>>) -> ApiError {
    ApiError::text(ApiErrorCode::StreamInvalidConfigF, text)
}

/// What pedantic mode says in place of a correction: 10157.
fn pedantic_error(reason: &str) -> ApiError {
    ApiError::with(ApiErrorCode::Pedantic, &[reason])
}

/// A count as an option: -1 (any negative one) means no limit.
fn limit<T: TryFrom<i64>>(value: i64) -> Option<T> {
    if value < 0 { None } else { T::try_from(value).ok() }
}

/// A duration as an option: 0 means none.
fn span(value: Nanos) -> Option<std::time::Duration> {
    (value.0 > 0).then(|| value.duration())
}

/// The wire form of a limit.
fn unlimited<T: Into<i64>>(value: Option<T>) -> i64 {
    value.map_or(-1, Into::into)
}

/// Bytes of all keys and values.
fn metadata_bytes(metadata: &std::collections::BTreeMap<String, String>) -> usize {
    metadata.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Whether a name may be that of a stream or consumer: not empty, without white space, wildcards, dots and slashes.
#[must_use]
pub fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && !name.contains([' ', '\t', '\r', '\n', '\x0c', '.', '*', '>', '/', '\\'])
}
