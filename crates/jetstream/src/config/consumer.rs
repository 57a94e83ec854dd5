//! A valid consumer configuration.

use super::stream::{filters, nanos};
use super::{invalid_stream, is_valid_name, limit, span};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tidelock_api as api;
use tidelock_api::{AckPolicy, DeliverPolicy, Nanos, decode_strict, to_json};
use tidelock_base::{ApiError, ApiErrorCode, Wall};
use tidelock_subject::{Subject, SubjectFilter};

/// First byte of an encoded consumer configuration whose name was given by the client.
const NAMED: u8 = 1;
/// First byte of one whose name was made by the server, and which is reported without it.
const AUTO_NAMED: u8 = 2;

/// A valid consumer configuration: shared, immutable, cheap to clone. Its settings are read through
/// [`ConsumerFields`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerConfig(Arc<ConsumerFields>);

/// The settings of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerFields {
    /// The consumer's name.
    pub name: String,
    /// The name was made by the server; the reported configuration leaves it out.
    pub auto_named: bool,
    /// It stays without activity, unless `inactive_threshold` is set.
    pub durable: bool,
    /// Text for people.
    pub description: String,
    /// Where it starts.
    pub deliver_from: DeliverFrom,
    /// What an acknowledgement covers.
    pub ack_policy: AckPolicy,
    /// How long an acknowledgement is awaited; with `backoff` its first value. `None` with policies that have no
    /// deadlines.
    pub ack_wait: Option<Duration>,
    /// Most deliveries of one message.
    pub max_deliver: Option<u32>,
    /// Waits of the first deliveries in place of `ack_wait`; the last one holds for all further ones.
    pub backoff: Vec<Duration>,
    /// Which subjects it takes; none means all. No two of them overlap as subsets.
    pub filters: Vec<SubjectFilter>,
    /// The filter was given as `filter_subject`, and is reported so.
    pub single_filter: bool,
    /// Most pull requests waiting; 0 for a push consumer.
    pub max_waiting: u32,
    /// Most messages delivered and not acknowledged; `None` means no limit. Without meaning for ack policy none.
    pub max_ack_pending: Option<u32>,
    /// `max_ack_pending` was left unset with ack policy none, and is reported so.
    pub ack_pending_unset: bool,
    /// Headers without payloads.
    pub headers_only: bool,
    /// Most messages of one pull request.
    pub max_batch: Option<u32>,
    /// Longest life of a pull request.
    pub max_expires: Option<Duration>,
    /// Most bytes of one pull request.
    pub max_bytes: Option<u64>,
    /// Where and how a push consumer delivers; `None` for a pull consumer.
    pub push: Option<Push>,
    /// Queue group of a push consumer; a pull consumer reports it and ignores it.
    pub deliver_group: String,
    /// How long it stays without activity.
    pub inactive_threshold: Option<Duration>,
    /// Replicas as configured; 0 means as the stream.
    pub num_replicas: u8,
    /// State in memory was asked for; reported, the state is as durable as the stream's.
    pub mem_storage: bool,
    /// Made by a server for a mirror or source.
    pub direct: bool,
    /// Made by a server for sourcing with acknowledgements.
    pub sourcing: bool,
    /// Labels of users, and `_nats.req.level`.
    pub metadata: BTreeMap<String, String>,
    /// A time in the past up to which delivery was paused; reported only.
    pub pause_until: Option<Wall>,
}

/// Where in the stream a consumer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliverFrom {
    /// With the first message.
    First,
    /// With the last message.
    Last,
    /// With the last message of each subject.
    LastPerSubject,
    /// With the first message stored after the consumer was created.
    New,
    /// At this sequence or the first after it.
    Seq(u64),
    /// With the first message at or after this time.
    Time(Wall),
}

/// How a push consumer delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// Where.
    pub subject: Subject,
    /// Heartbeat when idle.
    pub idle_heartbeat: Option<Duration>,
    /// Flow control.
    pub flow_control: bool,
}

impl Deref for ConsumerConfig {
    type Target = ConsumerFields;

    fn deref(&self) -> &ConsumerFields {
        &self.0
    }
}

impl ConsumerConfig {
    /// Takes over a configuration in wire form that is normalised already, its name filled in.
    ///
    /// # Errors
    /// The form holds something that the types can not: 10012.
    pub(super) fn from_normalised(raw: api::ConsumerConfig, auto_named: bool) -> Result<Self, ApiError> {
        if !is_valid_name(&raw.name) {
            return Err(invalid_stream(
                "consumer name can not contain '.', '*', '>', '\\', '/'",
            ));
        }
        if !super::unsupported::consumer_is_supported(&raw) {
            return Err(invalid_consumer("configuration of a later version"));
        }
        let deliver_from = deliver_from(&raw)?;
        let single_filter = !raw.filter_subject.is_empty();
        let filters = if single_filter {
            filters(std::slice::from_ref(&raw.filter_subject))?
        } else {
            filters(&raw.filter_subjects)?
        };
        Ok(Self(Arc::new(ConsumerFields {
            auto_named,
            durable: !raw.durable_name.is_empty(),
            deliver_from,
            ack_policy: raw.ack_policy,
            ack_wait: span(raw.ack_wait),
            max_deliver: limit(raw.max_deliver).filter(|most| *most > 0),
            backoff: raw.backoff.iter().map(|wait| wait.duration()).collect(),
            filters,
            single_filter,
            max_waiting: limit(raw.max_waiting).unwrap_or(0),
            max_ack_pending: limit(raw.max_ack_pending).filter(|most| *most > 0),
            ack_pending_unset: raw.max_ack_pending == 0,
            headers_only: raw.headers_only,
            max_batch: limit(raw.max_batch).filter(|most| *most > 0),
            max_expires: span(raw.max_expires),
            max_bytes: limit(raw.max_bytes).filter(|most| *most > 0),
            push: push(&raw)?,
            deliver_group: raw.deliver_group,
            inactive_threshold: span(raw.inactive_threshold),
            num_replicas: limit(raw.num_replicas).unwrap_or(0),
            mem_storage: raw.mem_storage,
            direct: raw.direct,
            sourcing: raw.sourcing,
            metadata: raw.metadata,
            pause_until: raw.pause_until.map(|time| time.0),
            name: raw.name,
            description: raw.description,
        })))
    }

    /// A copy with a change that keeps it valid.
    pub(super) fn changed(&self, change: impl FnOnce(&mut ConsumerFields)) -> Self {
        let mut fields = ConsumerFields::clone(&self.0);
        change(&mut fields);
        Self(Arc::new(fields))
    }

    /// The wire form, every value filled in; the name is left out if the server made it.
    #[must_use]
    pub fn to_api(&self) -> api::ConsumerConfig {
        let mut form = self.to_api_named();
        if self.auto_named {
            form.name.clear();
        }
        form
    }

    fn to_api_named(&self) -> api::ConsumerConfig {
        let own = &*self.0;
        let (deliver_policy, opt_start_seq, opt_start_time) = match own.deliver_from {
            DeliverFrom::First => (DeliverPolicy::All, 0, None),
            DeliverFrom::Last => (DeliverPolicy::Last, 0, None),
            DeliverFrom::LastPerSubject => (DeliverPolicy::LastPerSubject, 0, None),
            DeliverFrom::New => (DeliverPolicy::New, 0, None),
            DeliverFrom::Seq(seq) => (DeliverPolicy::ByStartSequence, seq, None),
            DeliverFrom::Time(time) => (DeliverPolicy::ByStartTime, 0, Some(api::Time(time))),
        };
        let mut filters: Vec<String> = own.filters.iter().map(ToString::to_string).collect();
        let filter_subject = match own.single_filter {
            true => filters.pop().unwrap_or_default(),
            false => String::new(),
        };
        let push = own.push.as_ref();
        api::ConsumerConfig {
            durable_name: if own.durable {
                own.name.clone()
            } else {
                String::new()
            },
            name: own.name.clone(),
            description: own.description.clone(),
            deliver_policy,
            opt_start_seq,
            opt_start_time,
            ack_policy: own.ack_policy,
            ack_wait: nanos(own.ack_wait),
            max_deliver: own.max_deliver.map_or(-1, i64::from),
            backoff: own.backoff.iter().map(|wait| Nanos::from(*wait)).collect(),
            filter_subject,
            filter_subjects: filters,
            max_waiting: i64::from(own.max_waiting),
            max_ack_pending: match own.max_ack_pending {
                Some(most) => i64::from(most),
                None if own.ack_pending_unset => 0,
                None => -1,
            },
            flow_control: push.is_some_and(|push| push.flow_control),
            headers_only: own.headers_only,
            max_batch: own.max_batch.map_or(0, i64::from),
            max_expires: nanos(own.max_expires),
            max_bytes: own
                .max_bytes
                .map_or(0, |most| i64::try_from(most).unwrap_or(i64::MAX)),
            deliver_subject: push.map(|push| push.subject.to_string()).unwrap_or_default(),
            deliver_group: own.deliver_group.clone(),
            idle_heartbeat: nanos(push.and_then(|push| push.idle_heartbeat)),
            inactive_threshold: nanos(own.inactive_threshold),
            num_replicas: i64::from(own.num_replicas),
            mem_storage: own.mem_storage,
            direct: own.direct,
            sourcing: own.sourcing,
            metadata: own.metadata.clone(),
            pause_until: own.pause_until.map(api::Time),
            ..api::ConsumerConfig::default()
        }
    }

    /// The bytes for the log and for checkpoints: one byte that tells whether the server made the name, then the wire
    /// form in JSON. The same configuration always has the same bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![if self.auto_named { AUTO_NAMED } else { NAMED }];
        out.extend_from_slice(&to_json(&self.to_api_named()));
        out
    }

    /// Reads what [`ConsumerConfig::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are something else, or hold what this version does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, ApiError> {
        let (auto_named, form) = match bytes.split_first() {
            Some((&NAMED, form)) => (false, form),
            Some((&AUTO_NAMED, form)) => (true, form),
            _ => return Err(invalid_consumer("configuration of a later version")),
        };
        Self::from_normalised(decode_strict(form, true)?, auto_named)
    }

    /// How many servers keep the consumer, on a stream of `stream_replicas`: what is configured, else one for an
    /// ephemeral consumer of a limits stream, else as many as the stream.
    #[must_use]
    pub fn effective_replicas(&self, stream_replicas: u8, retention: api::Retention) -> u8 {
        if (1..=stream_replicas).contains(&self.num_replicas) {
            self.num_replicas
        } else if !self.durable && retention == api::Retention::Limits {
            1
        } else {
            stream_replicas
        }
    }
}

/// 10012 with a text of its own.
pub(super) fn invalid_consumer(text: impl Into<std::borrow::Cow<'static, str>>) -> ApiError {
    ApiError::text(ApiErrorCode::ConsumerCreate, text)
}

fn deliver_from(raw: &api::ConsumerConfig) -> Result<DeliverFrom, ApiError> {
    Ok(match raw.deliver_policy {
        DeliverPolicy::All => DeliverFrom::First,
        DeliverPolicy::Last => DeliverFrom::Last,
        DeliverPolicy::LastPerSubject => DeliverFrom::LastPerSubject,
        DeliverPolicy::New => DeliverFrom::New,
        DeliverPolicy::ByStartSequence => DeliverFrom::Seq(raw.opt_start_seq),
        DeliverPolicy::ByStartTime => {
            let time = raw
                .opt_start_time
                .ok_or_else(|| invalid_consumer("no start time"))?;
            DeliverFrom::Time(time.0)
        }
    })
}

fn push(raw: &api::ConsumerConfig) -> Result<Option<Push>, ApiError> {
    if raw.deliver_subject.is_empty() {
        return Ok(None);
    }
    let subject = Subject::try_from(raw.deliver_subject.as_str())
        .map_err(|_| ApiError::new(ApiErrorCode::ConsumerInvalidDeliverSubject))?;
    Ok(Some(Push {
        subject,
        idle_heartbeat: span(raw.idle_heartbeat),
        flow_control: raw.flow_control,
    }))
}
