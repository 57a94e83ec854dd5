//! Pull requests as they come in: reading them, and what is refused before it can wait.
//!
//! A refusal is the status to answer with; `None` stands for none at all.

use super::status::Status;
use crate::config::ConsumerConfig;
use tidelock_api::PullRequest;

/// Reads a request's body. Text that is neither JSON nor a number asks for one message.
pub(super) fn parse(body: &[u8]) -> Result<PullRequest, Option<Status>> {
    PullRequest::from_body(body).or_else(|error| {
        if body.trim_ascii_start().starts_with(b"{") {
            Err(Some(Status::BadRequest(error.to_string())))
        } else {
            Ok(PullRequest {
                batch: 1,
                ..PullRequest::default()
            })
        }
    })
}

/// Limits that the consumer's configuration puts on each request.
pub(super) fn check_limits(config: &ConsumerConfig, request: &PullRequest) -> Result<(), Option<Status>> {
    if let Some(most) = config.max_batch
        && request.batch > i64::from(most)
    {
        return Err(Some(Status::ExceededMaxRequestBatch(most)));
    }
    if let Some(most) = config.max_expires
        && request.expires.duration() > most
    {
        return Err(Some(Status::ExceededMaxRequestExpires(most)));
    }
    if let Some(most) = config.max_bytes
        && u64::try_from(request.max_bytes).is_ok_and(|bytes| bytes > most)
    {
        return Err(Some(Status::ExceededMaxRequestMaxBytes(most)));
    }
    Ok(())
}

/// What is wrong with a request by itself. Priority groups need a policy that no consumer has yet; their fields are
/// refused as nats-server refuses them for such consumers, and a group alone is without meaning.
pub(super) fn check_form(request: &PullRequest) -> Result<(), Option<Status>> {
    let wrong = if request.min_pending != 0 || request.min_ack_pending != 0 {
        "Not a Overflow Priority consumer"
    } else if !request.id.is_empty() {
        "Not a Pinned Client Priority consumer"
    } else if !(0..=9).contains(&request.priority) {
        "Priority must be between 0 and 9"
    } else if request.idle_heartbeat.0 > 0 && request.idle_heartbeat.0 > request.expires.0 / 2 {
        "heartbeat value too large"
    } else {
        return Ok(());
    };
    Err(Some(Status::BadRequest(wrong.to_owned())))
}
