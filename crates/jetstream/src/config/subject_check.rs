//! Rules about the subjects of a stream, and about what it publishes again.

use super::{invalid_stream, pedantic_error};
use tidelock_api as api;
use tidelock_base::ApiError;
use tidelock_subject::{is_subset, is_valid_filter, overlaps};

/// Subjects that the server itself answers, the part of them that may be stored all the same, and the text.
const RESERVED: [(&[u8], &[u8], &str); 4] = [
    (b"$JS.>", b"$JS.EVENT.>", JETSTREAM),
    (b"$JSC.>", b"", JETSTREAM),
    (b"$NRG.>", b"", JETSTREAM),
    (b"$SYS.>", b"$SYS.ACCOUNT.>", SYSTEM),
];
const JETSTREAM: &str = "subjects that overlap with jetstream api require no-ack to be true";
const SYSTEM: &str = "subjects that overlap with system api require no-ack to be true";

/// The stream's own subjects.
pub(super) fn check_subjects(config: &api::StreamConfig) -> Result<(), ApiError> {
    for subject in &config.subjects {
        if !is_valid_filter(subject.as_bytes()) {
            return Err(invalid_stream("invalid subject"));
        }
        if subject == ">" {
            if !config.no_ack {
                return Err(invalid_stream(
                    "capturing all subjects requires no-ack to be true",
                ));
            }
            if config.num_replicas > 1 {
                return Err(invalid_stream("capturing all subjects requires replicas of 1"));
            }
        }
        if !config.no_ack {
            check_reserved(subject.as_bytes())?;
        }
    }
    let mut rest = config.subjects.as_slice();
    while let Some((first, others)) = rest.split_first() {
        if let Some(other) = others
            .iter()
            .find(|other| overlaps(first.as_bytes(), other.as_bytes()))
        {
            return Err(invalid_stream(format!(
                "subject {first:?} overlaps with {other:?}"
            )));
        }
        rest = others;
    }
    Ok(())
}

fn check_reserved(subject: &[u8]) -> Result<(), ApiError> {
    for (reserved, allowed, text) in RESERVED {
        let exempt = !allowed.is_empty() && is_subset(allowed, subject);
        if overlaps(reserved, subject) && !exempt {
            return Err(invalid_stream(text));
        }
    }
    Ok(())
}

/// What the stream publishes again: fills in the pattern, and refuses what would come back into the stream.
pub(super) fn check_republish(config: &mut api::StreamConfig, pedantic: bool) -> Result<(), ApiError> {
    let Some(republish) = &mut config.republish else {
        return Ok(());
    };
    if republish.src.is_empty() {
        if pedantic {
            return Err(pedantic_error("republish source can not be empty"));
        }
        republish.src = ">".to_owned();
    }
    let returns = |subject: &String| overlaps(republish.dest.as_bytes(), subject.as_bytes());
    if config.subjects.iter().any(returns) {
        return Err(invalid_stream(
            "stream configuration for republish destination forms a cycle",
        ));
    }
    Ok(())
}
