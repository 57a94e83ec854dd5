//! What is asked of the origin, and what it answers (jetstream protocol, "Sync consumer").

use super::feed::Feed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidelock_api::{AckPolicy, ConsumerConfig, DeliverPolicy, ErrorBody, Nanos, Time};
use tidelock_base::StreamSeq;

/// A consumer that nobody listens to any more is removed by the origin after this long.
const INACTIVE_NS: i64 = 10_000_000_000;
/// How often the origin says that it is there.
const HEARTBEAT_NS: i64 = 1_000_000_000;
/// Longer than any delivery takes; the consumer acknowledges nothing.
const ACK_WAIT_NS: i64 = 22 * 3_600 * 1_000_000_000;

/// What the origin is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Stands for the moment at which it was created.
    pub(super) identity: Vec<u8>,
    /// Its last sequence.
    pub(super) last_seq: StreamSeq,
    /// It lets go of what is acknowledged: it is a work queue, or keeps by interest.
    pub(super) frees: bool,
}

/// An answer that is no use.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Refused(pub(super) Option<ErrorBody>);

#[derive(Deserialize)]
struct ErrorShape {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl From<ErrorShape> for Refused {
    fn from(
        ErrorShape {
            code,
            err_code,
            description,
        }: ErrorShape,
    ) -> Self {
        Self(Some(ErrorBody {
            code,
            err_code,
            description,
        }))
    }
}

/// Reads the answer to STREAM.INFO.
///
/// # Errors
/// [`Refused`] with the origin's error, or with none if the answer is not one.
pub(super) fn read_info(payload: &[u8]) -> Result<Known, Refused> {
    #[derive(Deserialize)]
    struct Config {
        retention: String,
    }
    #[derive(Deserialize)]
    struct State {
        last_seq: u64,
    }
    #[derive(Deserialize)]
    struct Info {
        error: Option<ErrorShape>,
        created: Option<String>,
        config: Option<Config>,
        state: Option<State>,
    }
    let info: Info = serde_json::from_slice(payload).map_err(|_| Refused(None))?;
    if let Some(error) = info.error {
        return Err(error.into());
    }
    match (info.created, info.config, info.state) {
        (Some(created), Some(config), Some(state)) => Ok(Known {
            identity: tidelock_auth::hash8(created.as_bytes()).into_bytes(),
            last_seq: StreamSeq(state.last_seq),
            frees: config.retention != "limits",
        }),
        _ => Err(Refused(None)),
    }
}

/// Reads the answer to CONSUMER.CREATE: how many messages the consumer is to deliver.
///
/// # Errors
/// [`Refused`] with the origin's error, or with none if the answer is not one.
pub(super) fn read_created(payload: &[u8]) -> Result<u64, Refused> {
    #[derive(Deserialize)]
    struct Created {
        error: Option<ErrorShape>,
        #[serde(default)]
        num_pending: u64,
    }
    let created: Created = serde_json::from_slice(payload).map_err(|_| Refused(None))?;
    match created.error {
        Some(error) => Err(error.into()),
        None => Ok(created.num_pending),
    }
}

/// The name of the consumer that stays: the same for each leader of the destination.
pub(super) fn durable_name(feed: &Feed, destination: &str) -> String {
    let key = [destination.as_bytes(), b" ", &feed.key].concat();
    let kind = if feed.is_mirror { "MIRROR" } else { "SRC" };
    format!("JS_{kind}_{}", tidelock_auth::hash8(&key))
}

/// Subject and body of the request for a consumer of the origin, from `start` on, or from where the configuration
/// says. An origin that lets go of what is acknowledged gets a consumer that stays and acknowledges by flow control;
/// what it delivers again is told apart by its sequence, so it always starts where the configuration says.
pub(super) fn create_request(feed: &Feed, start: Option<StreamSeq>) -> (String, Bytes) {
    let origin = &feed.origin;
    let start = start
        .filter(|_| !feed.acknowledges)
        .map(StreamSeq::value)
        .or(origin.start_seq);
    let mut config = ConsumerConfig {
        name: feed.consumer.clone(),
        deliver_subject: String::from_utf8_lossy(&feed.inbox).into_owned(),
        flow_control: true,
        idle_heartbeat: Nanos(HEARTBEAT_NS),
        sourcing: true,
        filter_subject: origin
            .filter
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        ..ConsumerConfig::default()
    };
    match (start, origin.start_time) {
        (Some(seq), _) => {
            config.deliver_policy = DeliverPolicy::ByStartSequence;
            config.opt_start_seq = seq;
        }
        (None, Some(time)) => {
            config.deliver_policy = DeliverPolicy::ByStartTime;
            config.opt_start_time = Some(Time(time));
        }
        (None, None) => config.deliver_policy = DeliverPolicy::All,
    }
    let (name, stream) = (&feed.consumer, &origin.name);
    let subject = if feed.acknowledges {
        config.durable_name.clone_from(name);
        config.ack_policy = AckPolicy::FlowControl;
        format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}")
    } else {
        config.ack_policy = AckPolicy::None;
        config.ack_wait = Nanos(ACK_WAIT_NS);
        config.max_deliver = 1;
        config.direct = true;
        config.mem_storage = true;
        config.num_replicas = 1;
        config.inactive_threshold = Nanos(INACTIVE_NS);
        format!("$JS.API.CONSUMER.CREATE.{stream}")
    };
    #[derive(Serialize)]
    struct Create<'a> {
        stream_name: &'a str,
        config: &'a ConsumerConfig,
    }
    let body = serde_json::to_vec(&Create {
        stream_name: stream,
        config: &config,
    })
    .unwrap_or_default();
    (subject, body.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_api::CreateConsumerRequest;
    use tidelock_base::Mono;
    use tidelock_jetstream::config::Origin;

    fn feed(acknowledges: bool, start_seq: Option<u64>) -> Feed {
        let origin = Origin {
            name: "ORD".to_owned(),
            start_seq,
            start_time: None,
            filter: None,
        };
        let mut feed = Feed::new(origin, false, Mono(0));
        feed.begin(Mono(0), Bytes::from_static(b"$JS.S.x"));
        feed.create(Mono(0), Vec::new(), StreamSeq(0), acknowledges);
        feed.consumer = "JS_SRC_a".to_owned();
        feed
    }

    fn read(body: &[u8]) -> ConsumerConfig {
        tidelock_api::decode_strict::<CreateConsumerRequest>(body, true)
            .unwrap()
            .config
    }

    #[test]
    fn answers_are_read() {
        let info = br#"{"type":"io.nats.jetstream.api.v1.stream_info_response","config":{"name":"ORD","retention":"workqueue"},
            "created":"2026-01-02T03:04:05Z","state":{"messages":1,"last_seq":9}}"#;
        let known = read_info(info).unwrap();
        assert_eq!(
            (known.last_seq, known.frees, known.identity.len()),
            (StreamSeq(9), true, 8)
        );
        let error = br#"{"type":"x","error":{"code":404,"err_code":10059,"description":"stream not found"}}"#;
        let body = ErrorBody {
            code: 404,
            err_code: 10059,
            description: "stream not found".to_owned(),
        };
        assert_eq!(read_info(error), Err(Refused(Some(body.clone()))));
        assert_eq!(read_created(error), Err(Refused(Some(body))));
        assert_eq!(read_info(b"+OK"), Err(Refused(None)));
        assert_eq!(read_created(br#"{"num_pending":7}"#), Ok(7));
    }

    #[test]
    fn an_origin_that_keeps_its_messages_gets_a_consumer_that_goes() {
        let (subject, body) = create_request(&feed(false, Some(5)), Some(StreamSeq(8)));
        let config = read(&body);
        assert_eq!(subject, "$JS.API.CONSUMER.CREATE.ORD");
        assert_eq!(
            (config.ack_policy, config.direct, config.opt_start_seq),
            (AckPolicy::None, true, 8)
        );
        let (_, body) = create_request(&feed(false, Some(5)), None);
        assert_eq!(read(&body).opt_start_seq, 5);
    }

    #[test]
    fn an_origin_that_lets_go_gets_one_that_stays_and_never_changes() {
        let (subject, first) = create_request(&feed(true, None), Some(StreamSeq(8)));
        let (_, second) = create_request(&feed(true, None), Some(StreamSeq(80)));
        assert_eq!(subject, "$JS.API.CONSUMER.DURABLE.CREATE.ORD.JS_SRC_a");
        assert_eq!(first, second);
        let config = read(&first);
        assert_eq!(
            (config.ack_policy, config.deliver_policy),
            (AckPolicy::FlowControl, DeliverPolicy::All)
        );
    }
}
