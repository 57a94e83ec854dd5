//! From a requested stream configuration to a valid one.

use super::{
    Catalog, ConfigLimits, DESCRIPTION_BYTES_MAX, MAX_FIRST_SEQ, METADATA_BYTES_MAX, NAME_BYTES_MAX,
    REPLICAS_MAX, StreamConfig, invalid_stream, is_valid_name, metadata, metadata_bytes, origin_check,
    pedantic_error, subject_check, unsupported,
};
use tidelock_api as api;
use tidelock_api::{Discard, Nanos, PersistMode, Storage};
use tidelock_base::{ApiError, ApiErrorCode};

/// How long message ids are remembered if nothing else is said.
const DUPLICATE_WINDOW_DEFAULT: Nanos = Nanos::from_secs(120);
/// Shortest window of message ids, and shortest age of messages.
const SPAN_MIN: Nanos = Nanos::from_millis(100);
/// Shortest TTL of a subject delete marker.
const MARKER_TTL_MIN: Nanos = Nanos::from_secs(1);

/// What only `STREAM.CREATE` checks, before anything else: `name` is the one in the request's subject.
///
/// # Errors
/// 10056, 10128, 10052.
pub fn check_create_request(name: &str, raw: &api::StreamConfig) -> Result<(), ApiError> {
    if name != raw.name {
        return Err(ApiErrorCode::StreamMismatch.into());
    }
    if name.contains(['/', '\\']) {
        return Err(ApiErrorCode::StreamNameContainsPathSeparators.into());
    }
    if raw.sealed {
        return Err(invalid_stream(
            "stream configuration for create can not be sealed",
        ));
    }
    if raw.mirror_direct && raw.mirror.is_none() {
        return Err(invalid_stream("stream has no mirror but does have mirror direct"));
    }
    Ok(())
}

/// Fills in and checks a stream configuration, for a create and for an update alike: `raw` replaces whatever was
/// there. With `pedantic`, what would be corrected is refused instead.
///
/// # Errors
/// The first rule that is broken, in the order of nats-server 2.15.1: most are 10052 with a text, others have codes
/// of their own. A feature that is missing here is 10052 with `… is not supported by this version yet`.
pub fn validate_stream(
    raw: &api::StreamConfig,
    limits: &ConfigLimits,
    catalog: &impl Catalog,
    pedantic: bool,
) -> Result<StreamConfig, ApiError> {
    let mut config = raw.clone();
    check_texts(&config)?;
    unsupported::check_stream(&config)?;
    fill_replicas(&mut config)?;
    fill_limits(&mut config, pedantic)?;
    check_age(&config)?;
    fill_duplicate_window(&mut config, limits, pedantic)?;
    if config.deny_purge && config.allow_rollup_hdrs {
        return Err(invalid_stream("roll-ups require the purge permission"));
    }
    check_discard(&config)?;
    fill_delete_markers(&mut config, pedantic)?;
    check_persist_mode(&config)?;
    if config.first_seq > MAX_FIRST_SEQ {
        return Err(invalid_stream(format!(
            "first sequence can not be above {MAX_FIRST_SEQ}"
        )));
    }
    origin_check::check_mirror(&mut config, catalog, pedantic)?;
    origin_check::check_sources(&config, catalog)?;
    if config.subjects.is_empty() && config.mirror.is_none() && config.sources.is_empty() {
        config.subjects.push(config.name.clone());
    }
    origin_check::check_cycle(&config, catalog)?;
    subject_check::check_subjects(&config)?;
    check_account(&config, limits)?;
    subject_check::check_republish(&mut config, pedantic)?;
    fill_placement(&mut config)?;
    if config.num_replicas > 1 && !limits.clustered {
        return Err(ApiErrorCode::StreamReplicasNotSupported.into());
    }
    let level = metadata::required_level_of_stream(&config);
    metadata::store(&mut config.metadata, level);
    StreamConfig::from_normalised(config)
}

/// Checks that no other stream of the account stores what this one would.
///
/// # Errors
/// 10065.
pub fn check_subject_overlap(config: &StreamConfig, catalog: &impl Catalog) -> Result<(), ApiError> {
    if config
        .subjects
        .iter()
        .any(|subject| catalog.overlaps(subject, &config.name))
    {
        return Err(ApiErrorCode::StreamSubjectOverlap.into());
    }
    Ok(())
}

fn check_texts(config: &api::StreamConfig) -> Result<(), ApiError> {
    if !is_valid_name(&config.name) {
        return Err(invalid_stream(
            "stream name is required and can not contain '.', '*', '>', '\\', '/'",
        ));
    }
    if config.name.len() > NAME_BYTES_MAX {
        return Err(invalid_stream(format!(
            "stream name is too long, maximum allowed is {NAME_BYTES_MAX}"
        )));
    }
    if config.description.len() > DESCRIPTION_BYTES_MAX {
        return Err(invalid_stream(format!(
            "stream description is too long, maximum allowed is {DESCRIPTION_BYTES_MAX}"
        )));
    }
    if metadata_bytes(&config.metadata) > METADATA_BYTES_MAX {
        return Err(invalid_stream(format!(
            "stream metadata exceeds maximum size of {METADATA_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

fn fill_replicas(config: &mut api::StreamConfig) -> Result<(), ApiError> {
    if config.num_replicas == 0 {
        config.num_replicas = 1;
    }
    if config.num_replicas > REPLICAS_MAX {
        return Err(invalid_stream(format!("maximum replicas is {REPLICAS_MAX}")));
    }
    if config.num_replicas < 0 {
        return Err(ApiErrorCode::ReplicasCountCannotBeNegative.into());
    }
    Ok(())
}

/// Limits that are 0 or below -1 become -1, no limit.
fn fill_limits(config: &mut api::StreamConfig, pedantic: bool) -> Result<(), ApiError> {
    let mut size = i64::from(config.max_msg_size);
    let fields = [
        ("max_msgs", &mut config.max_msgs),
        ("max_msgs_per_subject", &mut config.max_msgs_per_subject),
        ("max_bytes", &mut config.max_bytes),
        ("max_msg_size", &mut size),
        ("max_consumers", &mut config.max_consumers),
    ];
    for (name, value) in fields {
        if pedantic && *value < -1 {
            return Err(pedantic_error(&format!("{name} must be set to -1")));
        }
        if *value <= 0 {
            *value = -1;
        }
    }
    if size < 0 {
        config.max_msg_size = -1;
    }
    Ok(())
}

fn check_age(config: &api::StreamConfig) -> Result<(), ApiError> {
    if config.max_age.0 < 0 {
        return Err(invalid_stream("max age can not be negative"));
    }
    if config.max_age.0 != 0 && config.max_age < SPAN_MIN {
        return Err(invalid_stream("max age needs to be >= 100ms"));
    }
    Ok(())
}

fn fill_duplicate_window(
    config: &mut api::StreamConfig,
    limits: &ConfigLimits,
    pedantic: bool,
) -> Result<(), ApiError> {
    let most = limits.duplicate_window_max.map(Nanos::from);
    if config.duplicate_window.0 == 0 && config.mirror.is_none() && config.sources.is_empty() {
        let mut window = DUPLICATE_WINDOW_DEFAULT;
        if let Some(most) = most.filter(|most| most.0 > 0 && *most < window) {
            if pedantic {
                return Err(pedantic_error(
                    "duplicate window limits are higher than current limits",
                ));
            }
            window = most;
        }
        if config.max_age.0 > 0 && config.max_age < window {
            if pedantic {
                return Err(pedantic_error("duplicate window cannot be bigger than max age"));
            }
            window = config.max_age;
        }
        config.duplicate_window = window;
    }
    let window = config.duplicate_window;
    if window.0 < 0 {
        return Err(invalid_stream("duplicates window can not be negative"));
    }
    if config.max_age.0 != 0 && window > config.max_age {
        return Err(invalid_stream("duplicates window can not be larger then max age"));
    }
    if let Some(most) = most.filter(|most| most.0 > 0 && window > *most) {
        return Err(invalid_stream(format!(
            "duplicates window can not be larger then server limit of {most}"
        )));
    }
    if window.0 > 0 && window < SPAN_MIN {
        return Err(invalid_stream("duplicates window needs to be >= 100ms"));
    }
    Ok(())
}

fn check_discard(config: &api::StreamConfig) -> Result<(), ApiError> {
    if !config.discard_new_per_subject {
        return Ok(());
    }
    if config.discard != Discard::New {
        return Err(invalid_stream(
            "discard new per subject requires discard new policy to be set",
        ));
    }
    if config.max_msgs_per_subject <= 0 {
        return Err(invalid_stream(
            "discard new per subject requires max msgs per subject > 0",
        ));
    }
    Ok(())
}

/// Subject delete markers need message TTLs and roll-ups, and so the purge permission.
fn fill_delete_markers(config: &mut api::StreamConfig, pedantic: bool) -> Result<(), ApiError> {
    let ttl = config.subject_delete_marker_ttl;
    if ttl.0 < 0 {
        return Err(invalid_stream("subject delete marker TTL must not be negative"));
    }
    if ttl.0 == 0 {
        return Ok(());
    }
    if ttl < MARKER_TTL_MIN {
        return Err(invalid_stream(
            "subject delete marker TTL must be at least 1 second",
        ));
    }
    if pedantic && !config.allow_msg_ttl {
        return Err(invalid_stream(
            "subject delete marker cannot be set if message TTLs are disabled",
        ));
    }
    if pedantic && !config.allow_rollup_hdrs {
        return Err(invalid_stream(
            "subject delete marker cannot be set if roll-ups are disabled",
        ));
    }
    // On a mirror they are refused a little later; filling in must not turn that into another error.
    config.allow_msg_ttl = true;
    config.allow_rollup_hdrs = true;
    config.deny_purge = false;
    Ok(())
}

fn check_persist_mode(config: &api::StreamConfig) -> Result<(), ApiError> {
    if config.persist_mode != PersistMode::Async {
        return Ok(());
    }
    if config.storage != Storage::File {
        return Err(invalid_stream(
            "async persist mode is only supported on file storage",
        ));
    }
    if config.num_replicas > 1 {
        return Err(invalid_stream(
            "async persist mode is not supported on replicated streams",
        ));
    }
    Ok(())
}

fn check_account(config: &api::StreamConfig, limits: &ConfigLimits) -> Result<(), ApiError> {
    let account = &limits.account;
    if account.max_bytes_required && config.max_bytes <= 0 {
        return Err(ApiErrorCode::StreamMaxBytesRequired.into());
    }
    let most = match config.storage {
        Storage::File => account.storage_max_stream_bytes,
        Storage::Memory => account.memory_max_stream_bytes,
    };
    if most > 0 && config.max_bytes > most {
        return Err(ApiErrorCode::StreamMaxStreamBytesExceeded.into());
    }
    Ok(())
}

/// A placement that says nothing is dropped: the CLI sends `{"cluster":""}`.
fn fill_placement(config: &mut api::StreamConfig) -> Result<(), ApiError> {
    if config.placement == Some(api::Placement::default()) {
        config.placement = None;
    }
    if config
        .placement
        .as_ref()
        .is_some_and(|placement| !placement.preferred.is_empty())
    {
        return Err(invalid_stream("preferred server not permitted in placement"));
    }
    Ok(())
}

#[cfg(test)]
#[path = "stream_check_tests.rs"]
mod tests;
