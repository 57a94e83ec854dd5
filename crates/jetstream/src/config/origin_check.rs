//! Rules about where a mirror or a source takes its messages from.

use super::{Catalog, StreamConfig, invalid_stream, is_valid_name, pedantic_error};
use std::collections::{BTreeSet, VecDeque};
use tidelock_api as api;
use tidelock_base::{ApiError, ApiErrorCode};
use tidelock_subject::{is_valid_filter, overlaps};

/// A mirror: what it can not have beside the origin, and what follows from the origin if that is known here.
pub(super) fn check_mirror(
    config: &mut api::StreamConfig,
    catalog: &impl Catalog,
    pedantic: bool,
) -> Result<(), ApiError> {
    let Some(mirror) = &config.mirror else {
        return Ok(());
    };
    if config.first_seq > 0 {
        return Err(ApiErrorCode::MirrorWithFirstSeq.into());
    }
    if !config.subjects.is_empty() {
        return Err(ApiErrorCode::MirrorWithSubjects.into());
    }
    if !config.sources.is_empty() {
        return Err(ApiErrorCode::MirrorWithSources.into());
    }
    if config.subject_delete_marker_ttl.0 != 0 {
        return Err(invalid_stream("subject delete markers forbidden on mirrors"));
    }
    if !is_valid_name(&mirror.name) {
        return Err(ApiErrorCode::MirrorInvalidStreamName.into());
    }
    if let Some(filter) = bad_filter(mirror) {
        return Err(ApiError::text(
            ApiErrorCode::StreamCreate,
            format!("subject filter '{filter}' for the mirror invalid subject"),
        ));
    }
    if let Some(origin) = catalog
        .stream(&mirror.name)
        .filter(|origin| origin.name != config.name)
    {
        if is_smaller(config.max_msg_size, &origin) {
            return Err(ApiErrorCode::MirrorMaxMessageSizeTooBig.into());
        }
        if config.mirror_direct != origin.allow_direct {
            if pedantic {
                return Err(pedantic_error(
                    "origin stream has direct get set, mirror has it disabled",
                ));
            }
            config.mirror_direct = origin.allow_direct;
        }
    }
    Ok(())
}

/// The sources of a stream.
pub(super) fn check_sources(config: &api::StreamConfig, catalog: &impl Catalog) -> Result<(), ApiError> {
    let mut seen = BTreeSet::new();
    for source in &config.sources {
        if !is_valid_name(&source.name) {
            return Err(ApiErrorCode::SourceInvalidStreamName.into());
        }
        if !seen.insert((&source.name, &source.filter_subject)) {
            return Err(ApiErrorCode::SourceDuplicateDetected.into());
        }
        if let Some(filter) = bad_filter(source) {
            return Err(ApiError::text(
                ApiErrorCode::StreamCreate,
                format!("subject filter '{filter}' for the source: invalid subject"),
            ));
        }
        let too_large = |origin: StreamConfig| is_smaller(config.max_msg_size, &origin);
        if catalog.stream(&source.name).is_some_and(too_large) {
            return Err(ApiErrorCode::SourceMaxMessageSizeTooBig.into());
        }
    }
    Ok(())
}

fn bad_filter(source: &api::StreamSource) -> Option<&str> {
    let filter = source.filter_subject.as_str();
    (!filter.is_empty() && !is_valid_filter(filter.as_bytes())).then_some(filter)
}

/// Whether the origin allows larger messages than `max_msg_size`; only where both have a limit.
fn is_smaller(max_msg_size: i32, origin: &StreamConfig) -> bool {
    u32::try_from(max_msg_size)
        .is_ok_and(|ours| ours > 0 && origin.max_msg_size.is_some_and(|size| ours < size))
}

/// Refuses a stream whose messages would come back to it through mirrors and sources. The streams that exist have no
/// cycle, so that a new one leads through this stream: it is enough to follow the origins of its origins and look for
/// it. An edge back counts unless its filter lets none of the stream's own subjects through.
pub(super) fn check_cycle(config: &api::StreamConfig, catalog: &impl Catalog) -> Result<(), ApiError> {
    let returns = |origin: &str, filter: &[u8]| {
        let passes = filter.is_empty()
            || config.subjects.is_empty()
            || config.subjects.iter().any(|own| overlaps(filter, own.as_bytes()));
        origin == config.name && passes
    };
    let mut waiting = VecDeque::new();
    for origin in config.mirror.iter().chain(&config.sources) {
        if returns(&origin.name, origin.filter_subject.as_bytes()) {
            return Err(invalid_stream("detected cycle"));
        }
        waiting.push_back(origin.name.clone());
    }
    let mut visited = BTreeSet::from([config.name.clone()]);
    while let Some(name) = waiting.pop_front() {
        if !visited.insert(name.clone()) {
            continue;
        }
        let Some(stream) = catalog.stream(&name) else {
            continue;
        };
        for origin in stream.mirror.iter().chain(&stream.sources) {
            let filter = origin
                .filter
                .as_ref()
                .map_or(&[] as &[u8], |filter| filter.as_bytes());
            if returns(&origin.name, filter) {
                return Err(invalid_stream("detected cycle"));
            }
            waiting.push_back(origin.name.clone());
        }
    }
    Ok(())
}
