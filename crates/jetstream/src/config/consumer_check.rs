//! From a requested consumer configuration to a valid one.

use super::consumer::invalid_consumer;
use super::stream::signed;
use super::{
    ConfigLimits, ConsumerConfig, DESCRIPTION_BYTES_MAX, METADATA_BYTES_MAX, NAME_BYTES_MAX, StreamConfig,
    invalid_stream, is_valid_name, metadata, metadata_bytes, pedantic_error, unsupported,
};
use tidelock_api as api;
use tidelock_api::{AckPolicy, DeliverPolicy, Nanos, Retention};
use tidelock_base::{ApiError, ApiErrorCode, Wall};
use tidelock_subject::{has_wildcard, is_subset, is_valid_filter, is_valid_literal, overlaps};

/// How long an acknowledgement is awaited if nothing else is said.
const ACK_WAIT_DEFAULT: Nanos = Nanos::from_secs(30);
/// Most messages without acknowledgement if nothing else is said.
const MAX_ACK_PENDING_DEFAULT: i64 = 1000;
/// Most waiting pull requests if nothing else is said.
const MAX_WAITING_DEFAULT: i64 = 512;
/// How long an ephemeral consumer stays without activity if nothing else is said.
const INACTIVE_THRESHOLD_DEFAULT: Nanos = Nanos::from_secs(5);
/// Shortest heartbeat.
const HEARTBEAT_MIN: Nanos = Nanos::from_millis(100);
/// Heartbeat of consumers with flow control acknowledgements.
const FLOW_CONTROL_HEARTBEAT: Nanos = Nanos::from_secs(1);
/// Shortest `max_expires`.
const EXPIRES_MIN: Nanos = Nanos::from_millis(1);

/// What the subject of a consumer create request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerTarget<'a> {
    /// `CONSUMER.CREATE.<stream>`: an ephemeral consumer; the configuration may name it.
    Ephemeral,
    /// `CONSUMER.DURABLE.CREATE.<stream>.<name>`: a durable consumer.
    Durable(&'a str),
    /// `CONSUMER.CREATE.<stream>.<name>[.<filter>]`.
    Named(&'a str, Option<&'a str>),
}

/// What a consumer configuration is checked against.
#[derive(Clone, Copy, Debug)]
pub struct ConsumerContext<'a> {
    /// The stream.
    pub stream: &'a StreamConfig,
    /// Limits of the account and server.
    pub limits: &'a ConfigLimits,
    /// The time now.
    pub now: Wall,
    /// The name that the consumer gets if the request has none: eight random characters.
    pub auto_name: &'a str,
}

/// Checks the names of a create request against its subject and puts the name that wins into the configuration.
/// `stream` is the stream in the subject.
///
/// # Errors
/// 10056, 10127, 10017, 10018, 10020, 10102, 10131, 10137; 10052 for a name that is none.
pub fn check_consumer_names(
    target: ConsumerTarget<'_>,
    stream: &str,
    request: &mut api::CreateConsumerRequest,
) -> Result<(), ApiError> {
    if request.stream_name != stream {
        return Err(ApiErrorCode::StreamMismatch.into());
    }
    let config = &mut request.config;
    let name = match target {
        ConsumerTarget::Ephemeral => {
            if !config.durable_name.is_empty() {
                return Err(ApiErrorCode::ConsumerEphemeralWithDurableName.into());
            }
            config.name.clone()
        }
        ConsumerTarget::Durable(name) | ConsumerTarget::Named(name, _) => name.to_owned(),
    };
    if name.contains(['/', '\\']) {
        return Err(ApiErrorCode::ConsumerNameContainsPathSeparators.into());
    }
    match target {
        ConsumerTarget::Ephemeral => {}
        ConsumerTarget::Durable(_) if config.durable_name.is_empty() => {
            return Err(ApiErrorCode::ConsumerDurableNameNotSet.into());
        }
        ConsumerTarget::Durable(_) | ConsumerTarget::Named(..) => {
            if !config.durable_name.is_empty() && config.durable_name != name {
                return Err(ApiErrorCode::ConsumerDurableNameNotMatchSubject.into());
            }
        }
    }
    if name.len() > NAME_BYTES_MAX {
        let most = NAME_BYTES_MAX.to_string();
        return Err(ApiError::with(ApiErrorCode::ConsumerNameTooLong, &[&most]));
    }
    if !name.is_empty() && !is_valid_name(&name) {
        return Err(invalid_stream(
            "consumer name can not contain '.', '*', '>', '\\', '/'",
        ));
    }
    if let ConsumerTarget::Named(_, Some(filter)) = target {
        if !config.filter_subjects.is_empty() {
            return Err(ApiErrorCode::ConsumerMultipleFiltersNotAllowed.into());
        }
        if config.filter_subject != filter {
            return Err(ApiErrorCode::ConsumerCreateFilterSubjectMismatch.into());
        }
    }
    config.name = name;
    Ok(())
}

/// Fills in and checks a consumer configuration, for a create and for an update alike. With `pedantic`, what would be
/// corrected is refused instead. Rules that depend on the other consumers are [`check_work_queue`]'s.
///
/// # Errors
/// The first rule that is broken. A feature that is missing here is 10012 with `… is not supported by this version
/// yet`.
pub fn validate_consumer(
    raw: &api::ConsumerConfig,
    context: &ConsumerContext<'_>,
    pedantic: bool,
) -> Result<ConsumerConfig, ApiError> {
    let mut config = raw.clone();
    fill_counts(&mut config, pedantic)?;
    fill_waits(&mut config, pedantic)?;
    fill_from_limits(&mut config, context, pedantic)?;
    check_texts(&config)?;
    check_replicas(&config, context)?;
    check_mode(&config, context)?;
    check_bounds(&config, context)?;
    check_start(&config)?;
    check_filters(&config)?;
    fill_sampling(&mut config)?;
    unsupported::check_consumer(&config, context.now)?;
    check_flow_control(&config)?;
    check_backoff(&config)?;
    let auto_named = fill_name(&mut config, context.auto_name)?;
    let level = metadata::required_level_of_consumer(&config);
    metadata::store(&mut config.metadata, level);
    ConsumerConfig::from_normalised(config, auto_named)
}

/// The rules of work-queue streams: no two consumers take the same messages, and each acknowledges what it takes.
/// `others` are the stream's other consumers. Consumers that feed other streams are exempt.
///
/// # Errors
/// 10084, 10098, 10101, 10099, 10100.
pub fn check_work_queue<'a>(
    config: &ConsumerConfig,
    stream: &StreamConfig,
    others: impl Iterator<Item = &'a ConsumerConfig>,
) -> Result<(), ApiError> {
    if stream.retention != Retention::WorkQueue || config.direct || config.sourcing {
        return Ok(());
    }
    match config.ack_policy {
        AckPolicy::Explicit | AckPolicy::FlowControl => {}
        AckPolicy::None if config.push.is_none() => return Err(ApiErrorCode::ConsumerPullRequiresAck.into()),
        AckPolicy::None | AckPolicy::All => return Err(ApiErrorCode::ConsumerWQRequiresExplicitAck.into()),
    }
    if config.deliver_from != super::DeliverFrom::First {
        return Err(ApiErrorCode::ConsumerWQConsumerNotDeliverAll.into());
    }
    for other in others.filter(|other| !other.direct && !other.sourcing && other.name != config.name) {
        if config.filters.is_empty() {
            return Err(ApiErrorCode::ConsumerWQMultipleUnfiltered.into());
        }
        let theirs = &other.filters;
        let shared = |filter: &[u8]| theirs.is_empty() || theirs.iter().any(|their| overlaps(their, filter));
        if config.filters.iter().any(|filter| shared(filter)) {
            return Err(ApiErrorCode::ConsumerWQConsumerNotUnique.into());
        }
    }
    Ok(())
}

fn fill_counts(config: &mut api::ConsumerConfig, pedantic: bool) -> Result<(), ApiError> {
    let limits = [
        ("max_deliver", &mut config.max_deliver),
        ("max_ack_pending", &mut config.max_ack_pending),
    ];
    for (name, value) in limits {
        if *value < -1 {
            if pedantic {
                return Err(pedantic_error(&format!("{name} must be set to -1")));
            }
            *value = -1;
        }
    }
    let counts = [
        ("max_waiting", &mut config.max_waiting),
        ("max_batch", &mut config.max_batch),
        ("max_expires", &mut config.max_expires.0),
        ("max_bytes", &mut config.max_bytes),
        ("idle_heartbeat", &mut config.idle_heartbeat.0),
        ("inactive_threshold", &mut config.inactive_threshold.0),
        ("priority_timeout", &mut config.priority_timeout.0),
    ];
    for (name, value) in counts {
        if *value < 0 {
            if pedantic {
                return Err(pedantic_error(&format!("{name} must not be negative")));
            }
            *value = 0;
        }
    }
    if config.max_deliver == 0 {
        config.max_deliver = -1;
    }
    if config.deliver_subject.is_empty() && config.max_waiting == 0 {
        config.max_waiting = MAX_WAITING_DEFAULT;
    }
    Ok(())
}

fn fill_waits(config: &mut api::ConsumerConfig, pedantic: bool) -> Result<(), ApiError> {
    if config.ack_policy == AckPolicy::FlowControl {
        config.flow_control = true;
        config.idle_heartbeat = FLOW_CONTROL_HEARTBEAT;
    }
    if let Some(first) = config.backoff.first().copied() {
        if pedantic && config.ack_wait != first {
            return Err(pedantic_error("first backoff value has to equal batch AckWait"));
        }
        config.ack_wait = first;
    }
    if config.backoff.is_empty()
        && config.ack_wait.0 == 0
        && matches!(config.ack_policy, AckPolicy::Explicit | AckPolicy::All)
    {
        config.ack_wait = ACK_WAIT_DEFAULT;
    }
    Ok(())
}

/// Defaults that come from the stream, the account and the server.
fn fill_from_limits(
    config: &mut api::ConsumerConfig,
    context: &ConsumerContext<'_>,
    pedantic: bool,
) -> Result<(), ApiError> {
    let own = context.stream.consumer_limits;
    if let Some(most) = own.max_ack_pending.filter(|_| config.max_ack_pending == 0) {
        if pedantic {
            return Err(pedantic_error(
                "max_ack_pending must be set if it's configured in stream limits",
            ));
        }
        // No consumer can have more than that here.
        config.max_ack_pending = signed(most).min(i64::from(u32::MAX));
    }
    if let Some(threshold) = own
        .inactive_threshold
        .filter(|_| config.inactive_threshold.0 == 0)
    {
        if pedantic {
            return Err(pedantic_error(
                "inactive_threshold must be set if it's configured in stream limits",
            ));
        }
        config.inactive_threshold = Nanos::from(threshold);
    }
    if config.max_ack_pending == 0 && config.ack_policy != AckPolicy::None {
        let most = ack_pending_limits(context)
            .min()
            .unwrap_or(MAX_ACK_PENDING_DEFAULT);
        config.max_ack_pending = most.min(MAX_ACK_PENDING_DEFAULT);
    }
    if let Some(most) = context.limits.request_batch_max.filter(|_| config.max_batch == 0) {
        config.max_batch = i64::from(most);
    }
    if config.durable_name.is_empty() && config.inactive_threshold.0 == 0 {
        config.inactive_threshold = INACTIVE_THRESHOLD_DEFAULT;
    }
    Ok(())
}

/// The limits of `max_ack_pending` that are in force.
fn ack_pending_limits(context: &ConsumerContext<'_>) -> impl Iterator<Item = i64> {
    let stream = context.stream.consumer_limits.max_ack_pending.map(signed);
    let account = Some(context.limits.account.max_ack_pending).filter(|most| *most > 0);
    let server = context.limits.ack_pending_max.map(i64::from);
    [stream, account, server].into_iter().flatten()
}

fn check_texts(config: &api::ConsumerConfig) -> Result<(), ApiError> {
    if metadata_bytes(&config.metadata) > METADATA_BYTES_MAX {
        return Err(ApiError::with(ApiErrorCode::ConsumerMetadataLength, &["128KB"]));
    }
    if config.description.len() > DESCRIPTION_BYTES_MAX {
        let most = DESCRIPTION_BYTES_MAX.to_string();
        return Err(ApiError::with(ApiErrorCode::ConsumerDescriptionTooLong, &[&most]));
    }
    if config.backoff.iter().any(|wait| wait.0 < 0) {
        return Err(ApiErrorCode::ConsumerBackOffNegative.into());
    }
    if config.ack_wait.0 < 0 {
        return Err(ApiErrorCode::ConsumerAckWaitNegative.into());
    }
    Ok(())
}

fn check_replicas(config: &api::ConsumerConfig, context: &ConsumerContext<'_>) -> Result<(), ApiError> {
    let stream = i64::from(context.stream.num_replicas);
    if config.num_replicas < 0 {
        return Err(ApiErrorCode::ReplicasCountCannotBeNegative.into());
    }
    if config.num_replicas > 1 && !context.limits.clustered {
        return Err(ApiErrorCode::StreamReplicasNotSupported.into());
    }
    if config.num_replicas > stream {
        return Err(ApiErrorCode::ConsumerReplicasExceedsStream.into());
    }
    let by_interest = context.stream.retention != Retention::Limits;
    if by_interest && config.num_replicas > 0 && config.num_replicas != stream {
        return Err(ApiErrorCode::ConsumerReplicasShouldMatchStream.into());
    }
    Ok(())
}

fn check_mode(config: &api::ConsumerConfig, context: &ConsumerContext<'_>) -> Result<(), ApiError> {
    if config.deliver_subject.is_empty() {
        let of_work_queue = context.stream.retention == Retention::WorkQueue;
        if config.ack_policy == AckPolicy::None && of_work_queue && !config.sourcing {
            return Err(ApiErrorCode::ConsumerPullRequiresAck.into());
        }
        return check_pull(config);
    }
    let subject = config.deliver_subject.as_bytes();
    if has_wildcard(subject) {
        return Err(ApiErrorCode::ConsumerDeliverToWildcards.into());
    }
    if !is_valid_literal(subject) {
        return Err(ApiErrorCode::ConsumerInvalidDeliverSubject.into());
    }
    if context.stream.subjects.iter().any(|own| own.matches(subject)) {
        return Err(ApiErrorCode::ConsumerDeliverCycle.into());
    }
    if config.max_waiting != 0 {
        return Err(ApiErrorCode::ConsumerPushMaxWaiting.into());
    }
    if config.max_ack_pending > 0 && config.ack_policy == AckPolicy::None {
        return Err(ApiErrorCode::ConsumerMaxPendingAckPolicyRequired.into());
    }
    if config.idle_heartbeat.0 > 0 && config.idle_heartbeat < HEARTBEAT_MIN {
        return Err(ApiErrorCode::ConsumerSmallHeartbeat.into());
    }
    if config.flow_control && config.idle_heartbeat.0 == 0 {
        return Err(ApiErrorCode::ConsumerWithFlowControlNeedsHeartbeats.into());
    }
    if config.direct && !config.durable_name.is_empty() {
        return Err(ApiErrorCode::ConsumerDirectRequiresEphemeral.into());
    }
    Ok(())
}

fn check_pull(config: &api::ConsumerConfig) -> Result<(), ApiError> {
    if config.ack_policy == AckPolicy::FlowControl {
        return Err(ApiErrorCode::ConsumerAckFCRequiresPush.into());
    }
    if config.rate_limit_bps > 0 {
        return Err(ApiErrorCode::ConsumerPullWithRateLimit.into());
    }
    if config.idle_heartbeat.0 > 0 {
        return Err(ApiErrorCode::ConsumerHBRequiresPush.into());
    }
    if config.flow_control {
        return Err(ApiErrorCode::ConsumerFCRequiresPush.into());
    }
    if config.direct {
        return Err(ApiErrorCode::ConsumerDirectRequiresPush.into());
    }
    Ok(())
}

fn check_bounds(config: &api::ConsumerConfig, context: &ConsumerContext<'_>) -> Result<(), ApiError> {
    if config.max_expires.0 > 0 && config.max_expires < EXPIRES_MIN {
        return Err(ApiErrorCode::ConsumerMaxRequestExpiresTooSmall.into());
    }
    if let Some(most) = context.limits.request_batch_max
        && config.max_batch > i64::from(most)
    {
        let most = most.to_string();
        return Err(ApiError::with(
            ApiErrorCode::ConsumerMaxRequestBatchExceededF,
            &[&most],
        ));
    }
    if let Some(most) = ack_pending_limits(context).min()
        && config.max_ack_pending > most
    {
        let most = most.to_string();
        return Err(ApiError::with(
            ApiErrorCode::ConsumerMaxPendingAckExcess,
            &[&most],
        ));
    }
    if let Some(most) = context.stream.consumer_limits.inactive_threshold.map(Nanos::from)
        && config.inactive_threshold > most
    {
        let most = most.to_string();
        return Err(ApiError::with(
            ApiErrorCode::ConsumerInactiveThresholdExcess,
            &[&most],
        ));
    }
    Ok(())
}

/// Start position: each policy wants its own option and no other.
fn check_start(config: &api::ConsumerConfig) -> Result<(), ApiError> {
    let refuse = |policy: &str, what: &str| {
        let text = format!("consumer delivery policy is deliver {policy}, but optional {what}");
        Err(ApiError::with(ApiErrorCode::ConsumerInvalidPolicy, &[&text]))
    };
    let (seq, time) = (config.opt_start_seq > 0, config.opt_start_time.is_some());
    let policy = match config.deliver_policy {
        DeliverPolicy::All => "all",
        DeliverPolicy::Last => "last",
        DeliverPolicy::New => "new",
        DeliverPolicy::LastPerSubject => {
            if config.filter_subject.is_empty() && config.filter_subjects.is_empty() {
                return refuse("last per subject", "filter subject is not set");
            }
            "last per subject"
        }
        DeliverPolicy::ByStartSequence => {
            return match (seq, time) {
                (false, _) => refuse("by start sequence", "start sequence is not set"),
                (true, true) => refuse("by start sequence", "start time is also set"),
                (true, false) => Ok(()),
            };
        }
        DeliverPolicy::ByStartTime => {
            return match (seq, time) {
                (_, false) => refuse("by start time", "start time is not set"),
                // The doubled word is nats-server's.
                (true, true) => refuse("by start time", "start start sequence is also set"),
                (false, true) => Ok(()),
            };
        }
    };
    if seq {
        return refuse(policy, "start sequence is also set");
    }
    if time {
        return refuse(policy, "start time is also set");
    }
    Ok(())
}

fn check_filters(config: &api::ConsumerConfig) -> Result<(), ApiError> {
    if !config.filter_subject.is_empty() && !config.filter_subjects.is_empty() {
        return Err(ApiErrorCode::ConsumerDuplicateFilterSubjects.into());
    }
    if config.filter_subjects.iter().any(String::is_empty) {
        return Err(ApiErrorCode::ConsumerEmptyFilter.into());
    }
    let single = Some(&config.filter_subject).filter(|filter| !filter.is_empty());
    if single
        .into_iter()
        .chain(&config.filter_subjects)
        .any(|filter| !is_valid_filter(filter.as_bytes()))
    {
        return Err(invalid_stream("invalid subject"));
    }
    let mut rest = config.filter_subjects.as_slice();
    while let Some((first, others)) = rest.split_first() {
        let nested = |other: &String| {
            let (a, b) = (first.as_bytes(), other.as_bytes());
            is_subset(a, b) || is_subset(b, a)
        };
        if others.iter().any(nested) {
            return Err(ApiErrorCode::ConsumerOverlappingSubjectFilters.into());
        }
        rest = others;
    }
    Ok(())
}

/// A share of zero percent is no sampling.
fn fill_sampling(config: &mut api::ConsumerConfig) -> Result<(), ApiError> {
    let refuse = |text: &str| Err(ApiError::with(ApiErrorCode::ConsumerInvalidSampling, &[text]));
    if config.sample_freq.is_empty() {
        return Ok(());
    }
    let digits = config
        .sample_freq
        .strip_suffix('%')
        .unwrap_or(&config.sample_freq);
    match digits.parse::<i64>() {
        Ok(0) => config.sample_freq.clear(),
        Ok(1..) => {}
        // The text is what nats-server prints for an error that is none.
        Ok(..0) => return refuse("<nil>"),
        Err(_) => return refuse(&format!("strconv.Atoi: parsing {digits:?}: invalid syntax")),
    }
    Ok(())
}

/// Flow control acknowledgements have neither deadlines nor redelivery.
fn check_flow_control(config: &api::ConsumerConfig) -> Result<(), ApiError> {
    if config.ack_policy != AckPolicy::FlowControl {
        return Ok(());
    }
    if config.max_ack_pending <= 0 {
        return Err(ApiErrorCode::ConsumerAckFCRequiresMaxAckPending.into());
    }
    if config.ack_wait.0 != 0 || !config.backoff.is_empty() {
        return Err(ApiErrorCode::ConsumerAckFCRequiresNoAckWait.into());
    }
    if config.max_deliver > 0 {
        return Err(ApiErrorCode::ConsumerAckFCRequiresNoMaxDeliver.into());
    }
    Ok(())
}

fn check_backoff(config: &api::ConsumerConfig) -> Result<(), ApiError> {
    let steps = i64::try_from(config.backoff.len()).unwrap_or(i64::MAX);
    if config.max_deliver != -1 && steps > config.max_deliver {
        return Err(ApiErrorCode::ConsumerMaxDeliverBackoff.into());
    }
    if u32::try_from(config.max_deliver.max(0)).is_err()
        || u32::try_from(config.max_ack_pending.max(0)).is_err()
    {
        return Err(invalid_consumer(
            "max_deliver and max_ack_pending can not exceed 4294967295",
        ));
    }
    Ok(())
}

/// The name: the durable one, the given one, or one made by the server (then true).
fn fill_name(config: &mut api::ConsumerConfig, auto_name: &str) -> Result<bool, ApiError> {
    if !config.durable_name.is_empty() {
        if !config.name.is_empty() && config.name != config.durable_name {
            return Err(ApiErrorCode::ConsumerCreateDurableAndNameMismatch.into());
        }
        config.name = config.durable_name.clone();
    }
    let auto_named = config.name.is_empty();
    if auto_named {
        config.name = auto_name.to_owned();
    }
    Ok(auto_named)
}

#[cfg(test)]
#[path = "consumer_check_tests.rs"]
mod tests;
