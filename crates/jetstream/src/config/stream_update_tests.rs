//! Refusals of updates; the texts were taken from nats-server 2.15.1.

use super::*;
use crate::config::{ConfigLimits, ConsumerContext, StreamMap, validate_consumer, validate_stream};
use tidelock_api::{ConsumerConfig as RawConsumer, StreamConfigRequest, decode_strict};
use tidelock_base::Wall;

fn config(members: &str) -> StreamConfig {
    let json =
        format!(r#"{{"name":"U","allow_msg_ttl":true,"deny_delete":true,"deny_purge":true{members}}}"#);
    let request: StreamConfigRequest = decode_strict(json.as_bytes(), true).unwrap();
    let limits = ConfigLimits {
        clustered: true,
        ..ConfigLimits::default()
    };
    validate_stream(&request.config, &limits, &StreamMap::default(), false).unwrap()
}

fn refusal(old: &str, new: &str) -> String {
    match check_stream_update(&config(old), &config(new)) {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{} {}", error.code.err_code(), error.description),
    }
}

#[test]
fn what_can_not_be_changed_is_refused() {
    let update = "10052 stream configuration update can not";
    for (old, new, expected) in [
        (
            "",
            r#","storage":"memory""#,
            format!("{update} change storage type"),
        ),
        (
            "",
            r#","retention":"workqueue""#,
            format!("{update} change retention policy to/from workqueue"),
        ),
        (
            r#","retention":"workqueue""#,
            "",
            format!("{update} change retention policy to/from workqueue"),
        ),
        ("", r#","retention":"interest""#, "ok".to_owned()),
        (
            r#","sealed":true"#,
            "",
            format!("{update} unseal a sealed stream"),
        ),
        (
            "",
            r#","deny_delete":false"#,
            format!("{update} cancel deny message deletes"),
        ),
        (
            "",
            r#","deny_purge":false"#,
            format!("{update} cancel deny purge"),
        ),
        (
            "",
            r#","allow_msg_ttl":false"#,
            "10052 message TTL status can not be disabled".to_owned(),
        ),
        (
            "",
            r#","persist_mode":"async""#,
            format!("{update} change persist mode"),
        ),
        (
            "",
            r#","name":"Z""#,
            "10052 stream configuration name must match original".to_owned(),
        ),
        ("", r#","num_replicas":3"#, "ok".to_owned()),
        ("", r#","placement":{"tags":["a"]}"#, "ok".to_owned()),
        (
            "",
            r#","num_replicas":3,"placement":{"tags":["a"]}"#,
            "10123 can not move and scale a stream in a single update".to_owned(),
        ),
    ] {
        assert_eq!(refusal(old, new), expected, "{old} -> {new}");
    }
}

#[test]
fn a_mirror_can_only_be_promoted() {
    for (old, new, expected) in [
        (
            "",
            r#","mirror":{"name":"V"}"#,
            "10055 stream mirror configuration can not be updated".to_owned(),
        ),
        (
            r#","mirror":{"name":"V"}"#,
            r#","mirror":{"name":"V","filter_subject":"v.a"}"#,
            "10055 stream mirror configuration can not be updated".to_owned(),
        ),
        (
            r#","mirror":{"name":"V"}"#,
            r#","subjects":["mv"]"#,
            "ok".to_owned(),
        ),
    ] {
        assert_eq!(refusal(old, new), expected, "{old} -> {new}");
    }
}

#[test]
fn sealing_turns_off_what_would_still_remove_messages() {
    let old = config("");
    let sealed = check_stream_update(&old, &config(r#","sealed":true,"max_age":1000000000"#)).unwrap();
    assert!(sealed.sealed && sealed.deny_delete && sealed.deny_purge && !sealed.allow_rollup_hdrs);
    assert_eq!((sealed.max_age, sealed.discard), (None, Discard::New));
    assert_eq!(StreamConfig::decode(&sealed.encode()), Ok(sealed));
}

#[test]
fn tighter_limits_must_leave_room_for_the_consumers() {
    let stream = config("");
    let limits = ConfigLimits::default();
    let consumer = |name: &str, members: &str| {
        let json = format!(r#"{{"durable_name":"{name}","ack_policy":"explicit"{members}}}"#);
        let raw: RawConsumer = decode_strict(json.as_bytes(), true).unwrap();
        let context = ConsumerContext {
            stream: &stream,
            limits: &limits,
            now: Wall(0),
            auto_name: "AUTO",
        };
        validate_consumer(&raw, &context, false).unwrap()
    };
    let all = [
        consumer("a", r#","max_ack_pending":50"#),
        consumer("b", r#","max_ack_pending":5,"inactive_threshold":2000000000"#),
        consumer("c", r#","max_ack_pending":-1"#),
    ];
    let tight = config(r#","consumer_limits":{"max_ack_pending":10,"inactive_threshold":1000000000}"#);
    let error = check_consumers_fit(&tight, all.iter()).unwrap_err();
    assert_eq!(error.code, ApiErrorCode::StreamUpdate);
    assert_eq!(error.description, "change to limits violates consumers: a, b");
    assert_eq!(check_consumers_fit(&stream, all.iter()), Ok(()));
}
