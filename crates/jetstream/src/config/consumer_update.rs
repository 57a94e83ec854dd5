//! Which changes of a consumer's configuration are allowed.

use super::consumer::invalid_consumer;
use super::{ConsumerConfig, DeliverFrom};
use tidelock_base::ApiError;

/// Checks that `old` may become `new`, and returns what it becomes: a pause is kept, since only `CONSUMER.PAUSE`
/// changes it. Whether a new delivery subject may replace one that is in use is for the leader to say.
///
/// # Errors
/// 10012 with a text.
pub fn check_consumer_update(old: &ConsumerConfig, new: &ConsumerConfig) -> Result<ConsumerConfig, ApiError> {
    let heartbeat = |config: &ConsumerConfig| config.push.as_ref().and_then(|push| push.idle_heartbeat);
    let flow_control = |config: &ConsumerConfig| config.push.as_ref().is_some_and(|push| push.flow_control);
    let rules = [
        (
            !same_policy(old.deliver_from, new.deliver_from),
            "deliver policy can not be updated",
        ),
        (
            old.mem_storage != new.mem_storage,
            "storage type can not be updated",
        ),
        (old.direct != new.direct, "direct can not be updated"),
        (old.sourcing != new.sourcing, "sourcing can not be updated"),
        (
            start_seq(old) != start_seq(new),
            "start sequence can not be updated",
        ),
        (
            old.deliver_from != new.deliver_from,
            "start time can not be updated",
        ),
        (old.ack_policy != new.ack_policy, "ack policy can not be updated"),
        (heartbeat(old) != heartbeat(new), "heart beats can not be updated"),
        (
            flow_control(old) != flow_control(new),
            "flow control can not be updated",
        ),
        (
            old.push.is_none() && new.push.is_some(),
            "can not update pull consumer to push based",
        ),
        (
            old.push.is_some() && new.push.is_none(),
            "can not update push consumer to pull based",
        ),
        (
            old.max_waiting != new.max_waiting,
            "max waiting can not be updated",
        ),
    ];
    match rules.into_iter().find(|(broken, _)| *broken) {
        Some((_, text)) => Err(invalid_consumer(text)),
        None => Ok(new.changed(|fields| {
            fields.pause_until = old.pause_until;
            fields.auto_named = old.auto_named;
        })),
    }
}

fn same_policy(a: DeliverFrom, b: DeliverFrom) -> bool {
    std::mem::discriminant(&a) == std::mem::discriminant(&b)
}

fn start_seq(config: &ConsumerConfig) -> Option<u64> {
    match config.deliver_from {
        DeliverFrom::Seq(seq) => Some(seq),
        DeliverFrom::First
        | DeliverFrom::Last
        | DeliverFrom::LastPerSubject
        | DeliverFrom::New
        | DeliverFrom::Time(_) => None,
    }
}
