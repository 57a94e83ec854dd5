//! Refusals and corrections of consumer configurations. Unless a test says otherwise, the texts were taken from
//! nats-server 2.15.1.

use super::*;
use crate::config::{StreamMap, check_consumer_update, validate_stream};
use proptest::prelude::*;
use std::time::Duration;
use tidelock_api::{CreateConsumerRequest, StreamConfigRequest, decode_strict, to_json};

fn stream(members: &str) -> StreamConfig {
    let json = format!(r#"{{"name":"S","subjects":["s.>"]{members}}}"#);
    let request: StreamConfigRequest = decode_strict(json.as_bytes(), true).unwrap();
    validate_stream(
        &request.config,
        &ConfigLimits::default(),
        &StreamMap::default(),
        false,
    )
    .unwrap()
}

/// Checks the members of a configuration on a stream, at second 1000.
fn check_on(stream: &StreamConfig, members: &str, pedantic: bool) -> Result<ConsumerConfig, ApiError> {
    let raw: api::ConsumerConfig = decode_strict(format!("{{{members}}}").as_bytes(), true).unwrap();
    let context = ConsumerContext {
        stream,
        limits: &ConfigLimits::default(),
        now: Wall(1_000_000_000_000),
        auto_name: "NQjY6Qu2",
    };
    validate_consumer(&raw, &context, pedantic)
}

fn check(members: &str) -> Result<ConsumerConfig, ApiError> {
    check_on(&stream(""), members, false)
}

fn text<T>(result: Result<T, ApiError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{} {}", error.code.err_code(), error.description),
    }
}

const FLOW_CONTROL: &str = r#""sourcing":true,"ack_policy":"flow_control","deliver_subject":"d""#;

/// The members of a configuration, and how it is refused.
const REFUSALS: &[(&str, &str)] = &[
    (r#""ack_wait":-1"#, "10183 consumer ack wait needs to be positive"),
    (
        r#""ack_policy":"explicit","backoff":[-1,2]"#,
        "10184 consumer backoff needs to be positive",
    ),
    (
        r#""ack_policy":"explicit","backoff":[1,2],"max_deliver":1"#,
        "10116 max deliver is required to be > length of backoff values",
    ),
    (r#""ack_policy":"explicit","backoff":[1,2],"max_deliver":2"#, "ok"),
    (r#""ack_policy":"explicit","backoff":[1,2],"max_deliver":0"#, "ok"),
    (r#""filter_subjects":["s.a","s.b"]"#, "ok"),
    (
        r#""filter_subjects":["s.a","s.>"]"#,
        "10138 consumer subject filters cannot overlap",
    ),
    (
        r#""filter_subjects":["s.a",""]"#,
        "10139 consumer filter in FilterSubjects cannot be empty",
    ),
    (
        r#""filter_subjects":["s.a"],"filter_subject":"s.b""#,
        "10136 consumer cannot have both FilterSubject and FilterSubjects specified",
    ),
    (r#""filter_subject":"s..b""#, "10052 invalid subject"),
    (r#""filter_subjects":["s..b"]"#, "10052 invalid subject"),
    (r#""filter_subject":"elsewhere""#, "ok"),
    (
        r#""opt_start_seq":5"#,
        "10094 consumer delivery policy is deliver all, but optional start sequence is also set",
    ),
    (
        r#""opt_start_time":"2020-01-01T00:00:00Z""#,
        "10094 consumer delivery policy is deliver all, but optional start time is also set",
    ),
    (
        r#""deliver_policy":"last","opt_start_seq":5"#,
        "10094 consumer delivery policy is deliver last, but optional start sequence is also set",
    ),
    (
        r#""deliver_policy":"new","opt_start_seq":5"#,
        "10094 consumer delivery policy is deliver new, but optional start sequence is also set",
    ),
    (
        r#""deliver_policy":"by_start_sequence""#,
        "10094 consumer delivery policy is deliver by start sequence, but optional start sequence is not set",
    ),
    (
        r#""deliver_policy":"by_start_sequence","opt_start_seq":5,"opt_start_time":"2020-01-01T00:00:00Z""#,
        "10094 consumer delivery policy is deliver by start sequence, but optional start time is also set",
    ),
    (
        r#""deliver_policy":"by_start_time""#,
        "10094 consumer delivery policy is deliver by start time, but optional start time is not set",
    ),
    (
        r#""deliver_policy":"by_start_time","opt_start_seq":5,"opt_start_time":"2020-01-01T00:00:00Z""#,
        "10094 consumer delivery policy is deliver by start time, but optional start start sequence is also set",
    ),
    (
        r#""deliver_policy":"last_per_subject""#,
        "10094 consumer delivery policy is deliver last per subject, but optional filter subject is not set",
    ),
    (
        r#""deliver_policy":"last_per_subject","filter_subject":"s.a","opt_start_seq":5"#,
        "10094 consumer delivery policy is deliver last per subject, but optional start sequence is also set",
    ),
    (
        r#""deliver_subject":"s.x""#,
        "10081 consumer deliver subject forms a cycle",
    ),
    (
        r#""deliver_subject":"d.*""#,
        "10079 consumer deliver subject has wildcards",
    ),
    (
        r#""deliver_subject":"d..x""#,
        "10112 invalid push consumer deliver subject",
    ),
    (
        r#""deliver_subject":"d","max_waiting":5"#,
        "10080 consumer in push mode can not set max waiting",
    ),
    (
        r#""deliver_subject":"d","flow_control":true"#,
        "10108 consumer with flow control also needs heartbeats",
    ),
    (
        r#""deliver_subject":"d","idle_heartbeat":5"#,
        "10083 consumer idle heartbeat needs to be >= 100ms",
    ),
    (
        r#""deliver_subject":"d","max_ack_pending":5"#,
        "10082 consumer requires ack policy for max ack pending",
    ),
    (
        r#""deliver_subject":"d","idle_heartbeat":100000000,"flow_control":true"#,
        "ok",
    ),
    (
        r#""idle_heartbeat":100000000"#,
        "10088 consumer idle heartbeat requires a push based consumer",
    ),
    (
        r#""flow_control":true"#,
        "10089 consumer flow control requires a push based consumer",
    ),
    (
        r#""rate_limit_bps":5"#,
        "10086 consumer in pull mode can not have rate limit set",
    ),
    (
        r#""max_expires":5"#,
        "10115 consumer max request expires needs to be >= 1ms",
    ),
    (
        r#""num_replicas":3"#,
        "10074 replicas > 1 not supported in non-clustered mode",
    ),
    (r#""num_replicas":-1"#, "10133 replicas count cannot be negative"),
    (
        r#""direct":true"#,
        "10090 consumer direct requires a push based consumer",
    ),
    (
        r#""direct":true,"deliver_subject":"d","durable_name":"D""#,
        "10091 consumer direct requires an ephemeral consumer",
    ),
    (
        r#""sample_freq":"abc""#,
        r#"10095 failed to parse consumer sampling configuration: strconv.Atoi: parsing "abc": invalid syntax"#,
    ),
    (
        r#""sample_freq":"-1""#,
        "10095 failed to parse consumer sampling configuration: <nil>",
    ),
    (r#""sample_freq":"0""#, "ok"),
    (
        r#""ack_policy":"flow_control""#,
        "10218 flow control ack policy requires a push based consumer",
    ),
    (
        r#""durable_name":"D","name":"a""#,
        "10132 Consumer Durable and Name have to be equal if both are provided",
    ),
];

#[test]
fn refusals_are_those_of_nats_server() {
    for &(members, expected) in REFUSALS {
        assert_eq!(text(check(members)), expected, "{members}");
    }
    for (members, expected) in [
        (
            r#","ack_wait":5"#,
            "10221 flow control ack policy requires unset ack wait",
        ),
        (
            r#","max_deliver":5"#,
            "10222 flow control ack policy requires unset max deliver",
        ),
        (
            r#","max_ack_pending":-1"#,
            "10220 flow control ack policy requires max ack pending",
        ),
        ("", "ok"),
    ] {
        assert_eq!(
            text(check(&format!("{FLOW_CONTROL}{members}"))),
            expected,
            "{members}"
        );
    }
}

#[test]
fn texts_have_limits() {
    let long = |count| "b".repeat(count);
    assert_eq!(
        text(check(&format!(r#""description":"{}""#, long(4097)))),
        "10107 consumer description is too long, maximum allowed is 4096"
    );
    assert_eq!(
        text(check(&format!(r#""metadata":{{"a":"{}"}}"#, long(131_072)))),
        "10135 consumer metadata exceeds maximum size of 128KB"
    );
}

#[test]
fn missing_features_are_refused_by_name() {
    // These texts are Tidelock's own.
    for (members, feature) in [
        (r#""priority_policy":"overflow""#, "priority_policy"),
        (r#""priority_groups":["g"]"#, "priority_groups"),
        (r#""priority_timeout":5"#, "priority_timeout"),
        (r#""replay_policy":"original""#, "replay_policy original"),
        (r#""deliver_subject":"d","rate_limit_bps":5"#, "rate_limit_bps"),
        (r#""sample_freq":"30%""#, "sample_freq"),
        (
            r#""ack_policy":"flow_control","deliver_subject":"d""#,
            "ack_policy flow_control",
        ),
        (r#""pause_until":"2020-01-01T00:00:00Z""#, "pause_until"),
    ] {
        let expected = format!("10012 {feature} is not supported by this version yet");
        assert_eq!(text(check(members)), expected);
    }
    assert_eq!(
        text(check(
            r#""pause_until":"1970-01-01T00:00:01Z","replay_policy":"instant""#
        )),
        "ok"
    );
}

#[test]
fn pedantic_mode_refuses_what_would_be_corrected() {
    let pedantic = |members: &str| text(check_on(&stream(""), members, true));
    for field in [
        "max_waiting",
        "max_batch",
        "max_bytes",
        "max_expires",
        "inactive_threshold",
    ] {
        let expected = format!("10157 pedantic mode: {field} must not be negative");
        assert_eq!(pedantic(&format!(r#""{field}":-5"#)), expected);
        assert_eq!(text(check(&format!(r#""{field}":-5"#))), "ok");
    }
    for field in ["max_ack_pending", "max_deliver"] {
        let expected = format!("10157 pedantic mode: {field} must be set to -1");
        assert_eq!(pedantic(&format!(r#""{field}":-5"#)), expected);
    }
    assert_eq!(
        pedantic(r#""ack_policy":"explicit","ack_wait":5,"backoff":[1,2]"#),
        "10157 pedantic mode: first backoff value has to equal batch AckWait"
    );
    let limited = stream(r#","consumer_limits":{"max_ack_pending":50,"inactive_threshold":1000000000}"#);
    assert_eq!(
        text(check_on(&limited, r#""ack_policy":"explicit""#, true)),
        "10157 pedantic mode: max_ack_pending must be set if it's configured in stream limits"
    );
}

#[test]
fn a_limit_of_the_stream_may_be_larger_than_what_a_consumer_can_have() {
    let limited = stream(r#","consumer_limits":{"max_ack_pending":5000000000}"#);
    assert_eq!(limited.to_api().consumer_limits.max_ack_pending, 5_000_000_000);
    let config = check_on(&limited, r#""durable_name":"d","ack_policy":"explicit""#, false).unwrap();
    assert_eq!(config.max_ack_pending, Some(u32::MAX));
}

#[test]
fn the_first_step_of_a_backoff_is_the_ack_wait_even_if_it_is_none() {
    let wait = |backoff: &str| {
        let members = format!(r#""durable_name":"d","ack_policy":"explicit","backoff":{backoff}"#);
        let config = check(&members).unwrap();
        (config.ack_wait, config.to_api().backoff.len())
    };
    assert_eq!(wait("[0]"), (None, 1));
    assert_eq!(wait("[0,5]"), (None, 2));
    assert_eq!(wait("[5]"), (Some(Duration::from_nanos(5)), 1));
    assert_eq!(wait("[]"), (Some(Duration::from_secs(30)), 0));
}

#[test]
fn limits_of_the_stream_are_defaults_and_bounds() {
    let limited = stream(r#","consumer_limits":{"max_ack_pending":50,"inactive_threshold":1000000000}"#);
    let config = check_on(&limited, r#""durable_name":"d","ack_policy":"explicit""#, false).unwrap();
    assert_eq!(
        (config.max_ack_pending, config.inactive_threshold),
        (Some(50), Some(Duration::from_secs(1)))
    );
    let refuse = |members: &str| text(check_on(&limited, members, false));
    assert_eq!(
        refuse(r#""ack_policy":"explicit","max_ack_pending":51"#),
        "10121 consumer max ack pending exceeds system limit of 50"
    );
    assert_eq!(refuse(r#""ack_policy":"explicit","max_ack_pending":-1"#), "ok");
    assert_eq!(
        refuse(r#""inactive_threshold":2000000000"#),
        "10153 consumer inactive threshold exceeds system limit of 1s"
    );
}

#[test]
fn configurations_are_filled_in_byte_for_byte() {
    for (members, expected) in [
        (
            "",
            r#""deliver_policy":"all","ack_policy":"none","max_deliver":-1,"replay_policy":"instant","max_waiting":512,"inactive_threshold":5000000000,"num_replicas":0"#,
        ),
        (
            r#""max_ack_pending":-5"#,
            r#""deliver_policy":"all","ack_policy":"none","max_deliver":-1,"replay_policy":"instant","max_waiting":512,"max_ack_pending":-1,"inactive_threshold":5000000000,"num_replicas":0"#,
        ),
        (
            r#""durable_name":"D","ack_policy":"explicit","filter_subject":"s.a""#,
            r#""durable_name":"D","name":"D","deliver_policy":"all","ack_policy":"explicit","ack_wait":30000000000,"max_deliver":-1,"filter_subject":"s.a","replay_policy":"instant","max_waiting":512,"max_ack_pending":1000,"num_replicas":0"#,
        ),
        (
            r#""ack_policy":"none","backoff":[1,2],"filter_subjects":["s.a"]"#,
            r#""deliver_policy":"all","ack_policy":"none","ack_wait":1,"max_deliver":-1,"backoff":[1,2],"filter_subjects":["s.a"],"replay_policy":"instant","max_waiting":512,"inactive_threshold":5000000000,"num_replicas":0"#,
        ),
        (
            r#""ack_policy":"none","deliver_subject":"d","max_batch":5,"max_bytes":7,"max_expires":1000000000"#,
            r#""deliver_policy":"all","ack_policy":"none","max_deliver":-1,"replay_policy":"instant","max_batch":5,"max_expires":1000000000,"max_bytes":7,"deliver_subject":"d","inactive_threshold":5000000000,"num_replicas":0"#,
        ),
    ] {
        let form = to_json(&check(members).unwrap().to_api());
        let expected = format!(r#"{{{expected},"metadata":{{"_nats.req.level":"0"}}}}"#);
        assert_eq!(String::from_utf8(form).unwrap(), expected, "{members}");
    }
    let sourcing = check(FLOW_CONTROL).unwrap();
    let push = sourcing.push.as_ref().unwrap();
    assert!(push.flow_control && push.idle_heartbeat == Some(Duration::from_secs(1)));
    assert_eq!(
        sourcing.metadata.get("_nats.req.level").map(String::as_str),
        Some("4")
    );
}

fn names(target: ConsumerTarget<'_>, json: &str) -> String {
    let mut request: CreateConsumerRequest = decode_strict(json.as_bytes(), true).unwrap();
    match check_consumer_names(target, "S", &mut request) {
        Ok(()) => request.config.name,
        Err(error) => format!("{} {}", error.code.err_code(), error.description),
    }
}

#[test]
fn the_name_in_the_subject_wins() {
    let request = |members: &str| format!(r#"{{"stream_name":"S","config":{{{members}}}}}"#);
    let (named, ephemeral) = (ConsumerTarget::Named("y", None), ConsumerTarget::Ephemeral);
    let durable = ConsumerTarget::Durable("q");
    for (target, members, expected) in [
        (named, r#""name":"x""#, "y"),
        (named, r#""durable_name":"y""#, "y"),
        (ephemeral, r#""name":"x""#, "x"),
        (ephemeral, "", ""),
        (durable, r#""durable_name":"q","name":"r""#, "q"),
        (
            named,
            r#""durable_name":"x""#,
            "10017 consumer name in subject does not match durable name in request",
        ),
        (
            durable,
            "",
            "10018 consumer expected to be durable but a durable name was not set",
        ),
        (
            durable,
            r#""durable_name":"z""#,
            "10017 consumer name in subject does not match durable name in request",
        ),
        (
            ephemeral,
            r#""durable_name":"D""#,
            "10020 consumer expected to be ephemeral but a durable name was set in request",
        ),
        (
            ephemeral,
            r#""name":"a.b""#,
            "10052 consumer name can not contain '.', '*', '>', '\\', '/'",
        ),
        (
            ephemeral,
            r#""name":"a/b""#,
            "10127 Consumer name can not contain path separators",
        ),
        (
            ConsumerTarget::Named("a\\b", None),
            "",
            "10127 Consumer name can not contain path separators",
        ),
        (
            ConsumerTarget::Named("y", Some("s.a")),
            r#""filter_subject":"s.a""#,
            "y",
        ),
        (
            ConsumerTarget::Named("y", Some("s.a")),
            r#""filter_subject":"s.b""#,
            "10131 Consumer create request did not match filtered subject from create subject",
        ),
        (
            ConsumerTarget::Named("y", Some("s.a")),
            r#""filter_subjects":["s.a","s.b"]"#,
            "10137 consumer with multiple subject filters cannot use subject based API",
        ),
    ] {
        assert_eq!(names(target, &request(members)), expected, "{target:?} {members}");
    }
}

#[test]
fn names_in_the_subject_are_checked() {
    let request = |members: &str| format!(r#"{{"stream_name":"S","config":{{{members}}}}}"#);
    let long = "a".repeat(300);
    assert_eq!(
        names(ConsumerTarget::Named(&long, None), &request("")),
        "10102 consumer name is too long, maximum allowed is 255"
    );
    assert_eq!(
        names(ConsumerTarget::Named("y", None), r#"{"stream_name":"T"}"#),
        "10056 stream name in subject does not match request"
    );
}

#[test]
fn consumers_of_a_work_queue_share_no_messages() {
    let queue = stream(r#","retention":"workqueue""#);
    let on_queue = |members: &str| check_on(&queue, members, false).unwrap();
    let taken = on_queue(r#""durable_name":"a","ack_policy":"explicit","filter_subject":"s.a.*""#);
    let judge = |members: &str| text(check_work_queue(&on_queue(members), &queue, [&taken].into_iter()));
    // This one does not depend on whether there is such a consumer, and so comes first.
    for members in [
        "",
        r#""idle_heartbeat":5"#,
        r#""direct":true"#,
        r#""opt_start_seq":4"#,
    ] {
        assert_eq!(
            text(check_on(&queue, members, false)),
            "10084 consumer in pull mode requires explicit ack policy on workqueue stream"
        );
    }
    let unchecked = check_on(&stream(""), r#""durable_name":"n""#, false).unwrap();
    assert_eq!(
        text(check_work_queue(&unchecked, &queue, [&taken].into_iter())),
        "10084 consumer in pull mode requires explicit ack policy on workqueue stream"
    );
    assert_eq!(
        judge(r#""ack_policy":"all""#),
        "10098 workqueue stream requires explicit ack"
    );
    assert_eq!(
        judge(r#""deliver_subject":"d""#),
        "10098 workqueue stream requires explicit ack"
    );
    assert_eq!(
        judge(r#""ack_policy":"explicit","deliver_policy":"new""#),
        "10101 consumer must be deliver all on workqueue stream"
    );
    assert_eq!(
        judge(r#""ack_policy":"explicit""#),
        "10099 multiple non-filtered consumers not allowed on workqueue stream"
    );
    assert_eq!(
        judge(r#""ack_policy":"explicit","filter_subject":"s.*.b""#),
        "10100 filtered consumer not unique on workqueue stream"
    );
    assert_eq!(judge(r#""ack_policy":"explicit","filter_subject":"s.b""#), "ok");
    assert_eq!(judge(r#""durable_name":"a","ack_policy":"explicit""#), "ok");
    assert_eq!(judge(FLOW_CONTROL), "ok");
}

#[test]
fn what_can_not_be_changed_is_refused() {
    let pull = r#""durable_name":"q""#;
    let push = r#""durable_name":"q","deliver_subject":"d1","idle_heartbeat":1000000000"#;
    for (old, new, expected) in [
        (
            pull,
            r#""durable_name":"q","deliver_policy":"new""#,
            "deliver policy can not be updated",
        ),
        (
            pull,
            r#""durable_name":"q","mem_storage":true"#,
            "storage type can not be updated",
        ),
        (
            pull,
            r#""durable_name":"q","sourcing":true"#,
            "sourcing can not be updated",
        ),
        (
            pull,
            r#""durable_name":"q","ack_policy":"explicit""#,
            "ack policy can not be updated",
        ),
        (
            pull,
            r#""durable_name":"q","deliver_subject":"dd""#,
            "can not update pull consumer to push based",
        ),
        (
            pull,
            r#""durable_name":"q","max_waiting":7"#,
            "max waiting can not be updated",
        ),
        (push, pull, "heart beats can not be updated"),
        (
            push,
            r#""durable_name":"q","deliver_subject":"d1","idle_heartbeat":1000000000,"flow_control":true"#,
            "flow control can not be updated",
        ),
        (
            r#""durable_name":"q","deliver_subject":"d1""#,
            pull,
            "can not update push consumer to pull based",
        ),
        (
            r#""durable_name":"q","deliver_policy":"by_start_sequence","opt_start_seq":5"#,
            r#""durable_name":"q","deliver_policy":"by_start_sequence","opt_start_seq":6"#,
            "start sequence can not be updated",
        ),
        (
            r#""durable_name":"q","deliver_policy":"by_start_time","opt_start_time":"2020-01-01T00:00:00Z""#,
            r#""durable_name":"q","deliver_policy":"by_start_time","opt_start_time":"2020-01-02T00:00:00Z""#,
            "start time can not be updated",
        ),
    ] {
        let error = check_consumer_update(&check(old).unwrap(), &check(new).unwrap()).unwrap_err();
        assert_eq!(
            (error.code.err_code(), &*error.description),
            (10012, expected),
            "{old} -> {new}"
        );
    }
    let moved = r#""durable_name":"q","deliver_subject":"d2","idle_heartbeat":1000000000,"backoff":[1]"#;
    let new = check(moved).unwrap();
    assert_eq!(check_consumer_update(&check(push).unwrap(), &new), Ok(new));
}

#[test]
fn replicas_follow_the_stream_unless_set() {
    let limits = Retention::Limits;
    let queue = Retention::WorkQueue;
    let (ephemeral, durable) = (check("").unwrap(), check(r#""durable_name":"d""#).unwrap());
    assert_eq!(ephemeral.effective_replicas(3, limits), 1);
    assert_eq!(ephemeral.effective_replicas(3, queue), 3);
    assert_eq!(durable.effective_replicas(3, limits), 3);
    assert_eq!(
        check(r#""num_replicas":1"#).unwrap().effective_replicas(3, queue),
        1
    );
}

#[test]
fn the_default_limit_of_consumers_gives_way_to_any_other() {
    let mut limits = ConfigLimits {
        consumers_default_max: Some(1000),
        ..ConfigLimits::default()
    };
    assert_eq!(limits.consumers_max(&stream("")), Some(1000));
    assert_eq!(
        limits.consumers_max(&stream(r#","max_consumers":2000"#)),
        Some(2000)
    );
    limits.account.max_consumers = 1500;
    assert_eq!(
        limits.consumers_max(&stream(r#","max_consumers":2000"#)),
        Some(1500)
    );
}

fn members() -> impl Strategy<Value = api::ConsumerConfig> {
    let counts = prop::array::uniform6(prop_oneof![Just(0i64), Just(-1), 1..1_000_000i64]);
    let spans = prop::array::uniform3(prop_oneof![Just(0i64), 1_000_000..i64::MAX]);
    let words = (
        prop_oneof![Just(""), Just("D")],
        prop_oneof![Just(""), Just("d")],
        prop_oneof![Just(""), Just("s.*")],
    );
    let policies = (0..AckPolicy::ALL.len(), 0..DeliverPolicy::ALL.len());
    (counts, spans, words, policies, any::<(bool, bool, bool)>()).prop_map(
        |(counts, spans, words, policies, flags)| api::ConsumerConfig {
            durable_name: words.0.to_owned(),
            deliver_subject: words.1.to_owned(),
            filter_subject: if flags.2 {
                words.2.to_owned()
            } else {
                String::new()
            },
            filter_subjects: if flags.2 {
                Vec::new()
            } else {
                vec!["s.a".to_owned(), "s.b".to_owned()]
            },
            ack_policy: AckPolicy::ALL[policies.0],
            deliver_policy: DeliverPolicy::ALL[policies.1],
            opt_start_seq: if DeliverPolicy::ALL[policies.1] == DeliverPolicy::ByStartSequence {
                7
            } else {
                0
            },
            max_deliver: counts[0],
            max_ack_pending: counts[1],
            max_waiting: if words.1.is_empty() { counts[2] } else { 0 },
            max_batch: counts[3],
            max_bytes: counts[4],
            num_replicas: counts[5].clamp(0, 1),
            ack_wait: Nanos(spans[0]),
            max_expires: Nanos(spans[1]),
            inactive_threshold: Nanos(spans[2]),
            headers_only: flags.0,
            mem_storage: flags.1,
            sourcing: flags.1,
            ..api::ConsumerConfig::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_valid_configuration_survives_the_log(raw in members()) {
        let (stream, limits) = (stream(""), ConfigLimits::default());
        let context = ConsumerContext { stream: &stream, limits: &limits, now: Wall(0), auto_name: "AUTO" };
        if let Ok(config) = validate_consumer(&raw, &context, false) {
            let bytes = config.encode();
            let read = ConsumerConfig::decode(&bytes).unwrap();
            prop_assert_eq!(&read, &config);
            prop_assert_eq!(read.encode(), bytes);
            // Checking what was filled in changes nothing more.
            prop_assert_eq!(validate_consumer(&config.to_api(), &context, false), Ok(config));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..32)) {
        let _ = ConsumerConfig::decode(&bytes);
        let _ = ConsumerConfig::decode(&[&[NAMED_BYTE], &bytes[..]].concat());
    }
}

/// The first byte of an encoded configuration with a given name.
const NAMED_BYTE: u8 = 1;
