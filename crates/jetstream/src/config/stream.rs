//! A valid stream configuration.

use super::{invalid_stream, is_valid_name, limit, span, unlimited};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tidelock_api as api;
use tidelock_api::{Discard, Nanos, PersistMode, Retention, Storage, decode_strict, to_json};
use tidelock_base::{ApiError, Wall};
use tidelock_subject::{SubjectFilter, Transform};

/// A valid stream configuration: shared, immutable, cheap to clone. Its settings are read through [`StreamFields`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig(Arc<StreamFields>);

/// The settings of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFields {
    /// The stream's name.
    pub name: String,
    /// Text for people.
    pub description: String,
    /// Subjects the stream stores; none for a mirror.
    pub subjects: Vec<SubjectFilter>,
    /// When a message leaves.
    pub retention: Retention,
    /// Most consumers.
    pub max_consumers: Option<u32>,
    /// Most messages.
    pub max_msgs: Option<u64>,
    /// Most bytes.
    pub max_bytes: Option<u64>,
    /// Greatest age of a message.
    pub max_age: Option<Duration>,
    /// Most messages of one subject.
    pub max_msgs_per_subject: Option<u64>,
    /// Largest message: header block and payload, in bytes.
    pub max_msg_size: Option<u32>,
    /// What gives way when a limit is reached.
    pub discard: Discard,
    /// Where messages are kept.
    pub storage: Storage,
    /// How many servers keep the stream, 1 to 5.
    pub num_replicas: u8,
    /// Publishes are not acknowledged, refusals included.
    pub no_ack: bool,
    /// How long a message id is remembered.
    pub duplicate_window: Option<Duration>,
    /// Which servers may keep the stream.
    pub placement: Option<api::Placement>,
    /// The stream this one copies, sequences and all.
    pub mirror: Option<Origin>,
    /// Streams whose messages this one takes in.
    pub sources: Vec<Origin>,
    /// Sequence that the first message was to get; reported, without effect on a stream that exists.
    pub first_seq: u64,
    /// Publishes each stored message again.
    pub republish: Option<RepublishRule>,
    /// `DIRECT.GET` is answered.
    pub allow_direct: bool,
    /// A mirror answers its origin's `DIRECT.GET`.
    pub mirror_direct: bool,
    /// Discard new applies to each subject on its own.
    pub discard_new_per_subject: bool,
    /// Nothing can be stored or removed any more.
    pub sealed: bool,
    /// Messages can not be deleted by the API.
    pub deny_delete: bool,
    /// The stream can not be purged by the API.
    pub deny_purge: bool,
    /// `Nats-Rollup` is honoured.
    pub allow_rollup_hdrs: bool,
    /// Defaults and limits of the stream's consumers.
    pub consumer_limits: ConsumerDefaults,
    /// `Nats-TTL` is honoured (ADR-43).
    pub allow_msg_ttl: bool,
    /// TTL of the marker that is stored when the last message of a subject expires (ADR-43).
    pub subject_delete_marker_ttl: Option<Duration>,
    /// Whether publishes are answered before they are durable.
    pub persist_mode: PersistMode,
    /// Labels of users, and `_nats.req.level`.
    pub metadata: BTreeMap<String, String>,
}

/// Defaults and limits of the consumers of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerDefaults {
    /// Longest inactivity; also the default.
    pub inactive_threshold: Option<Duration>,
    /// Largest `max_ack_pending`; also the default.
    pub max_ack_pending: Option<u64>,
}

/// Where a mirror or source takes its messages from: another stream of the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Name of the origin.
    pub name: String,
    /// First sequence to take.
    pub start_seq: Option<u64>,
    /// Time of the first message to take.
    pub start_time: Option<Wall>,
    /// Which subjects to take.
    pub filter: Option<SubjectFilter>,
}

impl Origin {
    /// What tells the sources of a stream apart: the name and, if there is one, the filter.
    #[must_use]
    pub fn key(&self) -> String {
        match &self.filter {
            Some(filter) => format!("{} {filter}", self.name),
            None => self.name.clone(),
        }
    }
}

/// Publishes each stored message again under another subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepublishRule {
    /// Pattern of subjects.
    pub src: String,
    /// Template of the new subject.
    pub dest: String,
    /// Without payloads.
    pub headers_only: bool,
}

impl RepublishRule {
    /// The transform from stored to republished subjects.
    ///
    /// # Errors
    /// None for a rule of a valid configuration; the rule was made by hand otherwise.
    pub fn transform(&self) -> Result<Transform, tidelock_subject::TransformError> {
        Transform::parse(&self.src, &self.dest)
    }
}

impl Deref for StreamConfig {
    type Target = StreamFields;

    fn deref(&self) -> &StreamFields {
        &self.0
    }
}

impl StreamConfig {
    /// Takes over a configuration in wire form that is normalised already.
    ///
    /// # Errors
    /// The form holds something that the types can not: 10052.
    pub(super) fn from_normalised(raw: api::StreamConfig) -> Result<Self, ApiError> {
        if !is_valid_name(&raw.name) {
            return Err(invalid_stream(
                "stream name is required and can not contain '.', '*', '>', '\\', '/'",
            ));
        }
        if raw.compression != api::Compression::None || raw.subject_transform.is_some() {
            return Err(invalid_stream("configuration of a later version"));
        }
        let republish = raw.republish.map(republish_rule).transpose()?;
        let num_replicas = u8::try_from(raw.num_replicas)
            .ok()
            .filter(|replicas| (1..=5).contains(replicas))
            .ok_or_else(|| invalid_stream("maximum replicas is 5"))?;
        Ok(Self(Arc::new(StreamFields {
            name: raw.name,
            description: raw.description,
            subjects: filters(&raw.subjects)?,
            retention: raw.retention,
            max_consumers: limit(raw.max_consumers),
            max_msgs: limit(raw.max_msgs),
            max_bytes: limit(raw.max_bytes),
            max_age: span(raw.max_age),
            max_msgs_per_subject: limit(raw.max_msgs_per_subject),
            max_msg_size: limit(i64::from(raw.max_msg_size)),
            discard: raw.discard,
            storage: raw.storage,
            num_replicas,
            no_ack: raw.no_ack,
            duplicate_window: span(raw.duplicate_window),
            placement: raw.placement,
            mirror: raw.mirror.map(origin).transpose()?,
            sources: raw.sources.into_iter().map(origin).collect::<Result<_, _>>()?,
            first_seq: raw.first_seq,
            republish,
            allow_direct: raw.allow_direct,
            mirror_direct: raw.mirror_direct,
            discard_new_per_subject: raw.discard_new_per_subject,
            sealed: raw.sealed,
            deny_delete: raw.deny_delete,
            deny_purge: raw.deny_purge,
            allow_rollup_hdrs: raw.allow_rollup_hdrs,
            consumer_limits: ConsumerDefaults {
                inactive_threshold: span(raw.consumer_limits.inactive_threshold),
                max_ack_pending: limit(raw.consumer_limits.max_ack_pending).filter(|most| *most > 0),
            },
            allow_msg_ttl: raw.allow_msg_ttl,
            subject_delete_marker_ttl: span(raw.subject_delete_marker_ttl),
            persist_mode: raw.persist_mode,
            metadata: raw.metadata,
        })))
    }

    /// A copy with a change that keeps it valid.
    pub(super) fn changed(&self, change: impl FnOnce(&mut StreamFields)) -> Self {
        let mut fields = StreamFields::clone(&self.0);
        change(&mut fields);
        Self(Arc::new(fields))
    }

    /// The wire form, every value filled in.
    #[must_use]
    pub fn to_api(&self) -> api::StreamConfig {
        let own = &*self.0;
        api::StreamConfig {
            name: own.name.clone(),
            description: own.description.clone(),
            subjects: own.subjects.iter().map(ToString::to_string).collect(),
            retention: own.retention,
            max_consumers: unlimited(own.max_consumers),
            max_msgs: own.max_msgs.map_or(-1, signed),
            max_bytes: own.max_bytes.map_or(-1, signed),
            max_age: nanos(own.max_age),
            max_msgs_per_subject: own.max_msgs_per_subject.map_or(-1, signed),
            max_msg_size: own
                .max_msg_size
                .map_or(-1, |size| i32::try_from(size).unwrap_or(i32::MAX)),
            discard: own.discard,
            storage: own.storage,
            num_replicas: i64::from(own.num_replicas),
            no_ack: own.no_ack,
            duplicate_window: nanos(own.duplicate_window),
            placement: own.placement.clone(),
            mirror: own.mirror.as_ref().map(origin_to_api),
            sources: own.sources.iter().map(origin_to_api).collect(),
            compression: api::Compression::None,
            first_seq: own.first_seq,
            subject_transform: None,
            republish: own.republish.as_ref().map(|rule| api::Republish {
                src: rule.src.clone(),
                dest: rule.dest.clone(),
                headers_only: rule.headers_only,
            }),
            allow_direct: own.allow_direct,
            mirror_direct: own.mirror_direct,
            discard_new_per_subject: own.discard_new_per_subject,
            sealed: own.sealed,
            deny_delete: own.deny_delete,
            deny_purge: own.deny_purge,
            allow_rollup_hdrs: own.allow_rollup_hdrs,
            consumer_limits: api::ConsumerLimits {
                inactive_threshold: nanos(own.consumer_limits.inactive_threshold),
                max_ack_pending: own.consumer_limits.max_ack_pending.map_or(0, signed),
            },
            allow_msg_ttl: own.allow_msg_ttl,
            subject_delete_marker_ttl: nanos(own.subject_delete_marker_ttl),
            persist_mode: own.persist_mode,
            metadata: own.metadata.clone(),
            ..api::StreamConfig::default()
        }
    }

    /// The bytes for the log and for checkpoints: the wire form in JSON. The same configuration always has the same
    /// bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        to_json(&self.to_api())
    }

    /// Reads what [`StreamConfig::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are something else, or hold what this version does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, ApiError> {
        Self::from_normalised(decode_strict(bytes, true)?)
    }
}

pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn nanos(span: Option<Duration>) -> Nanos {
    span.map_or(Nanos(0), Nanos::from)
}

pub(super) fn filters(texts: &[String]) -> Result<Vec<SubjectFilter>, ApiError> {
    texts.iter().map(|text| filter(text)).collect()
}

pub(super) fn filter(text: &str) -> Result<SubjectFilter, ApiError> {
    SubjectFilter::try_from(text).map_err(|_| invalid_stream("invalid subject"))
}

fn republish_rule(raw: api::Republish) -> Result<RepublishRule, ApiError> {
    let rule = RepublishRule {
        src: raw.src,
        dest: raw.dest,
        headers_only: raw.headers_only,
    };
    if rule.transform().is_err() {
        return Err(invalid_stream(format!(
            "stream configuration for republish with transform from '{}' to '{}' not valid",
            rule.src, rule.dest
        )));
    }
    Ok(rule)
}

fn origin(raw: api::StreamSource) -> Result<Origin, ApiError> {
    if raw.external.is_some() || raw.consumer.is_some() || !raw.subject_transforms.is_empty() {
        return Err(invalid_stream("configuration of a later version"));
    }
    Ok(Origin {
        filter: match raw.filter_subject.as_str() {
            "" => None,
            text => Some(filter(text)?),
        },
        name: raw.name,
        start_seq: (raw.opt_start_seq > 0).then_some(raw.opt_start_seq),
        start_time: raw.opt_start_time.map(|time| time.0),
    })
}

fn origin_to_api(origin: &Origin) -> api::StreamSource {
    api::StreamSource {
        name: origin.name.clone(),
        opt_start_seq: origin.start_seq.unwrap_or(0),
        opt_start_time: origin.start_time.map(api::Time),
        filter_subject: origin
            .filter
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        ..api::StreamSource::default()
    }
}
