//! Refusals and corrections of stream configurations. Unless a test says otherwise, the texts were taken from
//! nats-server 2.15.1.

use super::*;
use crate::config::StreamMap;
use proptest::prelude::*;
use std::time::Duration;
use tidelock_api::{StreamConfigRequest, decode_strict, to_json};

fn parse(json: &str) -> StreamConfigRequest {
    decode_strict(json.as_bytes(), true).unwrap()
}

/// Checks a configuration against a catalog. `V` and `Q` exist; `Q` allows messages of 100 bytes and direct gets.
fn check(json: &str) -> Result<StreamConfig, ApiError> {
    let request = parse(json);
    validate_stream(
        &request.config,
        &ConfigLimits::default(),
        &catalog(),
        request.pedantic,
    )
}

fn catalog() -> StreamMap {
    let mut map = StreamMap::default();
    for json in [
        r#"{"name":"V","subjects":["v.>"]}"#,
        r#"{"name":"Q","max_msg_size":100,"allow_direct":true}"#,
        r#"{"name":"C1","subjects":["c1"],"sources":[{"name":"C2"}]}"#,
    ] {
        let limits = ConfigLimits::default();
        let config = validate_stream(&parse(json).config, &limits, &map, false).unwrap();
        map.0.insert(config.name.clone(), config);
    }
    map
}

fn refusal(json: &str) -> String {
    match check(json) {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{} {}", error.code.err_code(), error.description),
    }
}

/// The members of a configuration of stream `X`, and how it is refused.
const REFUSALS: &[(&str, &str)] = &[
    (r#""num_replicas":6"#, "10052 maximum replicas is 5"),
    (r#""num_replicas":-1"#, "10133 replicas count cannot be negative"),
    (
        r#""num_replicas":3"#,
        "10074 replicas > 1 not supported in non-clustered mode",
    ),
    (r#""num_replicas":0"#, "ok"),
    (r#""max_age":-1"#, "10052 max age can not be negative"),
    (r#""max_age":5"#, "10052 max age needs to be >= 100ms"),
    (
        r#""duplicate_window":-1"#,
        "10052 duplicates window can not be negative",
    ),
    (
        r#""duplicate_window":5"#,
        "10052 duplicates window needs to be >= 100ms",
    ),
    (
        r#""duplicate_window":1000000000000,"max_age":100000000000"#,
        "10052 duplicates window can not be larger then max age",
    ),
    (
        r#""deny_purge":true,"allow_rollup_hdrs":true"#,
        "10052 roll-ups require the purge permission",
    ),
    (
        r#""discard_new_per_subject":true"#,
        "10052 discard new per subject requires discard new policy to be set",
    ),
    (
        r#""discard_new_per_subject":true,"discard":"new""#,
        "10052 discard new per subject requires max msgs per subject > 0",
    ),
    (
        r#""discard_new_per_subject":true,"discard":"new","max_msgs_per_subject":1"#,
        "ok",
    ),
    (
        r#""subject_delete_marker_ttl":5"#,
        "10052 subject delete marker TTL must be at least 1 second",
    ),
    (
        r#""subject_delete_marker_ttl":-5"#,
        "10052 subject delete marker TTL must not be negative",
    ),
    (
        r#""persist_mode":"async","storage":"memory""#,
        "10052 async persist mode is only supported on file storage",
    ),
    (
        r#""persist_mode":"async","num_replicas":3"#,
        "10052 async persist mode is not supported on replicated streams",
    ),
    (r#""persist_mode":"async""#, "ok"),
    (
        r#""placement":{"preferred":"P"}"#,
        "10052 preferred server not permitted in placement",
    ),
    (r#""subjects":["a..b"]"#, "10052 invalid subject"),
    (r#""subjects":[""]"#, "10052 invalid subject"),
    (
        r#""subjects":["a","a"]"#,
        r#"10052 subject "a" overlaps with "a""#,
    ),
    (
        r#""subjects":["a.*","a.b"]"#,
        r#"10052 subject "a.*" overlaps with "a.b""#,
    ),
    (
        r#""subjects":[">"]"#,
        "10052 capturing all subjects requires no-ack to be true",
    ),
    (r#""subjects":[">"],"no_ack":true"#, "ok"),
    (
        r#""subjects":[">"],"no_ack":true,"num_replicas":3"#,
        "10052 capturing all subjects requires replicas of 1",
    ),
    (
        r#""subjects":["$JS.>"]"#,
        "10052 subjects that overlap with jetstream api require no-ack to be true",
    ),
    (
        r#""subjects":["$JSC.x"]"#,
        "10052 subjects that overlap with jetstream api require no-ack to be true",
    ),
    (
        r#""subjects":["*.x"]"#,
        "10052 subjects that overlap with jetstream api require no-ack to be true",
    ),
    (r#""subjects":["$JS.API.>"],"no_ack":true"#, "ok"),
    (r#""subjects":["$JS.EVENT.>"]"#, "ok"),
    (
        r#""subjects":["$SYS.>"]"#,
        "10052 subjects that overlap with system api require no-ack to be true",
    ),
    (r#""subjects":["$SYS.ACCOUNT.x"]"#, "ok"),
    (r#""subjects":["*"]"#, "ok"),
    (
        r#""republish":{"dest":"X"}"#,
        "10052 stream configuration for republish destination forms a cycle",
    ),
    (
        r#""republish":{"src":">","dest":"b"}"#,
        "10052 stream configuration for republish with transform from '>' to 'b' not valid",
    ),
    (
        r#""subjects":["a.*"],"republish":{"src":"a.*","dest":"b.$1"}"#,
        "ok",
    ),
    (r#""first_seq":9223372036854775808"#, "ok"),
    (
        r#""first_seq":9223372036854775809"#,
        "10052 first sequence can not be above 9223372036854775808",
    ),
    (
        r#""mirror":{"name":"Y"},"first_seq":5"#,
        "10143 stream mirrors can not have first sequence configured",
    ),
    (
        r#""mirror":{"name":"Y"},"subjects":["a"]"#,
        "10034 stream mirrors can not contain subjects",
    ),
    (
        r#""mirror":{"name":"Y"},"sources":[{"name":"Y"}]"#,
        "10031 stream mirrors can not also contain other sources",
    ),
    (
        r#""mirror":{"name":"Y"},"subject_delete_marker_ttl":1000000000"#,
        "10052 subject delete markers forbidden on mirrors",
    ),
    (
        r#""mirror":{"name":"a.b"}"#,
        "10142 mirrored stream name is invalid",
    ),
    (r#""mirror":{}"#, "10142 mirrored stream name is invalid"),
    (
        r#""mirror":{"name":"Y","filter_subject":"a..b"}"#,
        "10049 subject filter 'a..b' for the mirror invalid subject",
    ),
    (
        r#""mirror":{"name":"Q"},"max_msg_size":5"#,
        "10030 stream mirror must have max message size >= source",
    ),
    (r#""mirror":{"name":"Q"},"max_msg_size":500"#, "ok"),
    (r#""mirror":{"name":"V"},"max_msg_size":5"#, "ok"),
    (r#""mirror":{"name":"X"}"#, "10052 detected cycle"),
    (
        r#""sources":[{"name":"Y"},{"name":"Y"}]"#,
        "10140 duplicate source configuration detected",
    ),
    (
        r#""sources":[{"name":"Y","opt_start_seq":3},{"name":"Y"}]"#,
        "10140 duplicate source configuration detected",
    ),
    (
        r#""sources":[{"name":"Y","filter_subject":"a"},{"name":"Y"}]"#,
        "ok",
    ),
    (
        r#""sources":[{"name":"a.b"}]"#,
        "10141 sourced stream name is invalid",
    ),
    (
        r#""sources":[{"name":"Y","filter_subject":"a..b"}]"#,
        "10049 subject filter 'a..b' for the source: invalid subject",
    ),
    (
        r#""sources":[{"name":"Q"}],"max_msg_size":5"#,
        "10046 stream source must have max message size >= target",
    ),
    (
        r#""sources":[{"name":"X"}],"subjects":["q"]"#,
        "10052 detected cycle",
    ),
    (
        r#""sources":[{"name":"X","filter_subject":"z"}],"subjects":["q"]"#,
        "ok",
    ),
];

#[test]
fn refusals_are_those_of_nats_server() {
    for &(members, expected) in REFUSALS {
        assert_eq!(
            refusal(&format!(r#"{{"name":"X",{members}}}"#)),
            expected,
            "{members}"
        );
    }
}

#[test]
fn names_and_texts_have_limits() {
    let name = "10052 stream name is required and can not contain '.', '*', '>', '\\', '/'";
    for bad in ["", "a.b", "a*", "a b", "a/b", "a>b"] {
        assert_eq!(refusal(&format!(r#"{{"name":"{bad}"}}"#)), name, "{bad}");
    }
    let long = |count| "a".repeat(count);
    assert_eq!(
        refusal(&format!(r#"{{"name":"{}"}}"#, long(256))),
        "10052 stream name is too long, maximum allowed is 255"
    );
    assert_eq!(
        refusal(&format!(r#"{{"name":"X","description":"{}"}}"#, long(4097))),
        "10052 stream description is too long, maximum allowed is 4096"
    );
    assert_eq!(
        refusal(&format!(
            r#"{{"name":"X","metadata":{{"a":"{}"}}}}"#,
            long(131_072)
        )),
        "10052 stream metadata exceeds maximum size of 131072 bytes"
    );
}

#[test]
fn pedantic_mode_refuses_what_would_be_corrected() {
    let pedantic = |members: &str| refusal(&format!(r#"{{"name":"X","pedantic":true,{members}}}"#));
    for field in [
        "max_msgs",
        "max_msgs_per_subject",
        "max_bytes",
        "max_msg_size",
        "max_consumers",
    ] {
        let expected = format!("10157 pedantic mode: {field} must be set to -1");
        assert_eq!(pedantic(&format!(r#""{field}":-7"#)), expected);
        assert_eq!(refusal(&format!(r#"{{"name":"X","{field}":-7}}"#)), "ok");
    }
    assert_eq!(
        pedantic(r#""max_age":1000000000"#),
        "10157 pedantic mode: duplicate window cannot be bigger than max age"
    );
    assert_eq!(
        pedantic(r#""subject_delete_marker_ttl":1000000000"#),
        "10052 subject delete marker cannot be set if message TTLs are disabled"
    );
    assert_eq!(
        pedantic(r#""subject_delete_marker_ttl":1000000000,"allow_msg_ttl":true"#),
        "10052 subject delete marker cannot be set if roll-ups are disabled"
    );
    assert_eq!(
        pedantic(r#""republish":{"dest":"rp.>"}"#),
        "10157 pedantic mode: republish source can not be empty"
    );
    assert_eq!(
        pedantic(r#""mirror":{"name":"Q"}"#),
        "10157 pedantic mode: origin stream has direct get set, mirror has it disabled"
    );
}

#[test]
fn a_cycle_is_found_through_other_streams() {
    // C1 takes from C2 already.
    assert_eq!(
        refusal(r#"{"name":"C2","subjects":["c2"],"sources":[{"name":"C1"}]}"#),
        "10052 detected cycle"
    );
    assert_eq!(
        refusal(r#"{"name":"C2","mirror":{"name":"C1"}}"#),
        "10052 detected cycle"
    );
    assert_eq!(
        refusal(r#"{"name":"C3","subjects":["c3"],"sources":[{"name":"C1"}]}"#),
        "ok"
    );
}

#[test]
fn missing_features_are_refused_by_name() {
    // These texts are Tidelock's own.
    for (members, feature) in [
        (r#""allow_msg_counter":true"#, "allow_msg_counter"),
        (r#""allow_atomic":true"#, "allow_atomic"),
        (r#""allow_batched":true"#, "allow_batched"),
        (r#""allow_msg_schedules":true"#, "allow_msg_schedules"),
        (
            r#""subject_transform":{"src":"a","dest":"b"}"#,
            "subject_transform",
        ),
        (r#""compression":"s2""#, "compression"),
        (
            r#""mirror":{"name":"Y","external":{"api":"$JS.hub.API"}}"#,
            "external",
        ),
        (
            r#""sources":[{"name":"Y","consumer":{"name":"c"}}]"#,
            "source consumer",
        ),
        (
            r#""sources":[{"name":"Y","subject_transforms":[{"src":"a","dest":"b"}]}]"#,
            "subject_transforms",
        ),
    ] {
        let expected = format!("10052 {feature} is not supported by this version yet");
        assert_eq!(refusal(&format!(r#"{{"name":"X",{members}}}"#)), expected);
    }
    assert_eq!(
        refusal(r#"{"name":"X","allow_atomic":false,"compression":"none"}"#),
        "ok"
    );
}

#[test]
fn a_bare_name_is_filled_in_byte_for_byte() {
    let mut form = check(r#"{"name":"S1","subjects":["s1.>"]}"#).unwrap().to_api();
    form.metadata = metadata::with_dynamic(form.metadata);
    assert_eq!(
        String::from_utf8(to_json(&form)).unwrap(),
        r#"{"name":"S1","subjects":["s1.\u003e"],"retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old","storage":"file","num_replicas":1,"duplicate_window":120000000000,"compression":"none","allow_direct":false,"mirror_direct":false,"sealed":false,"deny_delete":false,"deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,"metadata":{"_nats.level":"5","_nats.req.level":"0","_nats.ver":"2.15.1"}}"#
    );
}

#[test]
fn values_are_corrected_as_by_nats_server() {
    let config = check(r#"{"name":"X","max_age":1000000000}"#).unwrap();
    assert_eq!(
        config.subjects.first().map(ToString::to_string).as_deref(),
        Some("X")
    );
    assert_eq!(config.duplicate_window, Some(Duration::from_secs(1)));

    let config = check(r#"{"name":"X","subject_delete_marker_ttl":1000000000,"deny_purge":true}"#).unwrap();
    assert!(config.allow_msg_ttl && config.allow_rollup_hdrs && !config.deny_purge);
    assert_eq!(
        config.metadata.get("_nats.req.level").map(String::as_str),
        Some("1")
    );

    let config = check(r#"{"name":"X","sources":[{"name":"V"}]}"#).unwrap();
    assert!(config.subjects.is_empty() && config.duplicate_window.is_none());

    let config = check(r#"{"name":"X","mirror":{"name":"Q"},"max_msg_size":500}"#).unwrap();
    assert!(config.mirror_direct, "follows the origin");
    let config = check(r#"{"name":"X","mirror":{"name":"V"},"mirror_direct":true}"#).unwrap();
    assert!(!config.mirror_direct, "follows the origin");

    let config = check(r#"{"name":"X","placement":{"cluster":""},"republish":{"dest":"rp.>"}}"#).unwrap();
    assert_eq!(config.placement, None);
    assert_eq!(config.republish.as_ref().map(|rule| rule.src.as_str()), Some(">"));

    let config =
        check(r#"{"name":"X","metadata":{"_nats.ver":"1","_nats.level":"3","_nats.req.level":"9","a":"b"}}"#);
    let labels = config.unwrap().metadata.clone();
    assert_eq!(
        labels.into_iter().map(|(k, v)| k + "=" + &v).collect::<Vec<_>>(),
        ["_nats.req.level=0", "a=b"]
    );
}

#[test]
fn limits_of_account_and_server_hold() {
    let mut limits = ConfigLimits {
        clustered: true,
        duplicate_window_max: Some(Duration::from_secs(60)),
        ..ConfigLimits::default()
    };
    let check = |json: &str, limits: &ConfigLimits| {
        let request = parse(json);
        let result = validate_stream(&request.config, limits, &StreamMap::default(), request.pedantic);
        result.map_err(|error| format!("{} {}", error.code.err_code(), error.description))
    };
    let config = check(r#"{"name":"X","num_replicas":3}"#, &limits).unwrap();
    assert_eq!(
        (config.num_replicas, config.duplicate_window),
        (3, Some(Duration::from_secs(60)))
    );
    assert_eq!(
        check(r#"{"name":"X","duplicate_window":61000000000}"#, &limits).unwrap_err(),
        "10052 duplicates window can not be larger then server limit of 1m0s"
    );
    assert_eq!(
        check(r#"{"name":"X","pedantic":true}"#, &limits).unwrap_err(),
        "10157 pedantic mode: duplicate window limits are higher than current limits"
    );
    limits.account.max_bytes_required = true;
    limits.account.storage_max_stream_bytes = 100;
    assert!(
        check(r#"{"name":"X"}"#, &limits)
            .unwrap_err()
            .starts_with("10113 ")
    );
    assert!(
        check(r#"{"name":"X","max_bytes":101}"#, &limits)
            .unwrap_err()
            .starts_with("10122 ")
    );
    assert!(check(r#"{"name":"X","max_bytes":101,"storage":"memory"}"#, &limits).is_ok());
}

#[test]
fn a_create_request_is_checked_against_its_subject() {
    let refuse = |name: &str, json: &str| {
        let error = check_create_request(name, &parse(json).config).unwrap_err();
        format!("{} {}", error.code.err_code(), error.description)
    };
    assert_eq!(
        refuse("X", r#"{"name":"Y"}"#),
        "10056 stream name in subject does not match request"
    );
    assert_eq!(
        refuse("a/b", r#"{"name":"a/b"}"#),
        "10128 Stream name can not contain path separators"
    );
    assert_eq!(
        refuse("X", r#"{"name":"X","sealed":true}"#),
        "10052 stream configuration for create can not be sealed"
    );
    assert_eq!(
        refuse("X", r#"{"name":"X","mirror_direct":true}"#),
        "10052 stream has no mirror but does have mirror direct"
    );
}

#[test]
fn subjects_of_other_streams_are_taken() {
    let config = check(r#"{"name":"W","subjects":["v.x"]}"#).unwrap();
    let error = check_subject_overlap(&config, &catalog()).unwrap_err();
    assert_eq!(error.code, ApiErrorCode::StreamSubjectOverlap);
    let own = check(r#"{"name":"V","subjects":["v.x","v.y"]}"#).unwrap();
    assert_eq!(check_subject_overlap(&own, &catalog()), Ok(()));
}

fn raw_config() -> impl Strategy<Value = api::StreamConfig> {
    let counts = prop::array::uniform5(prop_oneof![Just(0i64), Just(-1), 1..i64::MAX]);
    let spans = (
        prop_oneof![Just(0i64), 100_000_000..i64::MAX],
        prop_oneof![Just(0i64), 1_000_000_000..i64::MAX],
    );
    let flags = prop::array::uniform6(any::<bool>());
    let sources = prop::collection::vec(("[a-c]", 0..9u64, prop_oneof![Just(""), Just("s.*")]), 0..3);
    (
        counts,
        spans,
        flags,
        sources,
        prop::collection::btree_map("[a-z]{1,3}", "\\PC{0,3}", 0..3),
    )
        .prop_map(|(counts, spans, flags, sources, metadata)| api::StreamConfig {
            name: "X".to_owned(),
            subjects: vec!["x.>".to_owned()],
            max_msgs: counts[0],
            max_bytes: counts[1],
            max_msgs_per_subject: counts[2],
            max_consumers: counts[3] % 1_000_000,
            max_msg_size: i32::try_from(counts[4] % 1_000_000).unwrap(),
            max_age: Nanos(spans.0),
            subject_delete_marker_ttl: Nanos(spans.1),
            no_ack: flags[0],
            allow_direct: flags[1],
            deny_delete: flags[2],
            allow_msg_ttl: flags[3],
            discard: if flags[4] { Discard::New } else { Discard::Old },
            storage: if flags[5] { Storage::File } else { Storage::Memory },
            sources: sources
                .into_iter()
                .map(|(name, opt_start_seq, filter)| api::StreamSource {
                    name,
                    opt_start_seq,
                    filter_subject: filter.to_owned(),
                    ..api::StreamSource::default()
                })
                .collect(),
            metadata,
            ..api::StreamConfig::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_valid_configuration_survives_the_log(raw in raw_config()) {
        if let Ok(config) = validate_stream(&raw, &ConfigLimits::default(), &StreamMap::default(), false) {
            let bytes = config.encode();
            let read = StreamConfig::decode(&bytes).unwrap();
            prop_assert_eq!(&read, &config);
            prop_assert_eq!(read.encode(), bytes);
            // Checking what was filled in changes nothing more.
            let again = validate_stream(&config.to_api(), &ConfigLimits::default(), &StreamMap::default(), false);
            prop_assert_eq!(again, Ok(config));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..32)) {
        let _ = StreamConfig::decode(&bytes);
    }
}
