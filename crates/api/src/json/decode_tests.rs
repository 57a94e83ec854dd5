//! Texts as nats-server 2.15.1 gives them, each taken from the real server.

use super::*;
use crate::{
    ConsumerInfo, CreateConsumerRequest, Discard, PauseRequest, StreamConfig, StreamConfigRequest,
    StreamInfo, StreamListRequest, StreamNamesRequest, to_json,
};
use proptest::prelude::*;

/// The error's text without `invalid JSON: `, or `ok`.
fn refusal<T: Decode>(body: &[u8]) -> String {
    match decode_strict::<T>(body, true) {
        Ok(_) => "ok".to_owned(),
        Err(error) => {
            assert_eq!(error.code, ApiErrorCode::InvalidJSON);
            error
                .description
                .strip_prefix("invalid JSON: ")
                .unwrap()
                .to_owned()
        }
    }
}

fn stream(body: &str) -> String {
    refusal::<StreamConfigRequest>(body.as_bytes())
}

fn consumer(body: &str) -> String {
    refusal::<CreateConsumerRequest>(body.as_bytes())
}

/// Bodies and their syntax errors.
const SYNTAX: &[(&str, &str)] = &[
    (
        "{b",
        "invalid character 'b' looking for beginning of object key string at offset 2",
    ),
    (
        "  {b",
        "invalid character 'b' looking for beginning of object key string at offset 4",
    ),
    (
        "{,}",
        "invalid character ',' looking for beginning of object key string at offset 2",
    ),
    (
        "{\"name\":\"X\",}",
        "invalid character '}' looking for beginning of object key string at offset 13",
    ),
    (
        "{\"name\":\"X\"}x",
        "invalid character 'x' looking for beginning of value at offset 13",
    ),
    (
        "{\"name\":\"X\"}}",
        "invalid character '}' looking for beginning of value at offset 13",
    ),
    (
        "{\"name\":\"X\"}'",
        "invalid character '\\'' looking for beginning of value at offset 13",
    ),
    (
        "{\"name\":\"X\"}é",
        "invalid character 'é' looking for beginning of value at offset 14",
    ),
    (
        "[1,]",
        "invalid character ']' looking for beginning of value at offset 4",
    ),
    ("[1 2]", "invalid character '2' after array element at offset 4"),
    (
        "{\"name\":\"X\" \"a\":1}",
        "invalid character '\"' after object key:value pair at offset 13",
    ),
    (
        "{\"name\" \"X\"}",
        "invalid character '\"' after object key at offset 9",
    ),
    (
        "{\"name\":01}",
        "invalid character '1' after object key:value pair at offset 10",
    ),
    (
        "{\"name\":-}",
        "invalid character '}' in numeric literal at offset 10",
    ),
    (
        "{\"name\":1.}",
        "invalid character '}' in numeric literal at offset 11",
    ),
    (
        "{\"name\":1e}",
        "invalid character '}' in numeric literal at offset 11",
    ),
    (
        "{\"name\":nul}",
        "invalid character '}' in literal null (expecting 'l') at offset 12",
    ),
    (
        "{\"name\":trux}",
        "invalid character 'x' in literal true (expecting 'e') at offset 12",
    ),
    (
        "{\"name\":\"a\tb\"}",
        "invalid character '\\t' in string at offset 11",
    ),
    (
        "{\"name\":\"X\n\"}",
        "invalid character '\\n' in string at offset 11",
    ),
    (
        "{\"name\":\"X\\q\"}",
        "invalid escape sequence `\\q` in string at offset 12",
    ),
    (
        "{\"name\":\"\\u12\"}",
        "invalid escape sequence `\\u12\"}` in string at offset 15",
    ),
    (
        "\x01",
        "invalid character '\\x01' looking for beginning of value at offset 1",
    ),
];

#[test]
fn syntax_errors_have_the_texts_and_offsets_of_go() {
    for &(body, text) in SYNTAX {
        assert_eq!(stream(body), text, "{body}");
    }
    assert_eq!(
        refusal::<StreamConfigRequest>(b"\xff"),
        "invalid character '\\xff' looking for beginning of value at offset 1"
    );
    assert_eq!(stream(&"[".repeat(20_000)), "exceeded max depth at offset 10001");
}

#[test]
fn what_ends_early_is_an_unexpected_eof() {
    for body in [
        "{",
        "{\"name\"",
        "{\"name\":",
        "{\"name\":\"X\"",
        "{\"name\":\"X",
        "tru",
        "[1",
        "{\"a\":\"\\u00",
        "-",
    ] {
        assert_eq!(stream(body), "unexpected EOF", "{body}");
    }
}

#[test]
fn unknown_fields_are_refused_only_when_strict() {
    assert_eq!(
        stream("{\"name\":\"X\",\"bogus\":1}"),
        "json: unknown field \"bogus\""
    );
    assert_eq!(
        stream("{\"mirror\":{\"name\":\"Y\",\"bogus\":1}}"),
        "json: unknown field \"bogus\""
    );
    assert_eq!(
        stream("{\"name\":\"X\"} {\"bogus\":1}"),
        "json: unknown field \"bogus\""
    );
    assert_eq!(stream("{\"x\\ny\":1}"), "json: unknown field \"x\\ny\"");
    assert_eq!(
        stream("{\"template_owner\":\"\"}"),
        "json: unknown field \"template_owner\""
    );
    // A syntax error later in the body comes first.
    assert_eq!(
        stream("{\"bogus\":{\"a\":b}}"),
        "invalid character 'b' looking for beginning of value at offset 15"
    );
    let body = b"{\"bogus\":{\"a\":[1,\"}\"]},\"name\":\"X\"}";
    let request: StreamConfigRequest = decode_strict(body, false).unwrap();
    assert_eq!(request.config.name, "X");
}

/// Bodies and what is said after `json: cannot unmarshal `.
const TYPES: &[(&str, &str)] = &[
    ("[]", "array into Go value of type server.StreamConfigRequest"),
    ("[5][]", "array into Go value of type server.StreamConfigRequest"),
    ("\"x\"", "string into Go value of type server.StreamConfigRequest"),
    ("1", "number into Go value of type server.StreamConfigRequest"),
    (
        "{\"name\":5}",
        "number into Go struct field StreamConfigRequest.name of type string",
    ),
    (
        "{\"NAME\":5}",
        "number into Go struct field StreamConfigRequest.NAME of type string",
    ),
    (
        "{\"max_msgs\":\"5\"}",
        "string into Go struct field StreamConfigRequest.max_msgs of type int64",
    ),
    (
        "{\"max_msgs\":1.5}",
        "number 1.5 into Go struct field StreamConfigRequest.max_msgs of type int64",
    ),
    (
        "{\"max_msgs\":1e2}",
        "number 1e2 into Go struct field StreamConfigRequest.max_msgs of type int64",
    ),
    (
        "{\"max_msgs\":{}}",
        "object into Go struct field StreamConfigRequest.max_msgs of type int64",
    ),
    (
        "{\"max_msgs\":true}",
        "bool into Go struct field StreamConfigRequest.max_msgs of type int64",
    ),
    (
        "{\"max_msg_size\":99999999999}",
        "number 99999999999 into Go struct field StreamConfigRequest.max_msg_size of type int32",
    ),
    (
        "{\"first_seq\":-1}",
        "number -1 into Go struct field StreamConfigRequest.first_seq of type uint64",
    ),
    (
        "{\"subjects\":\"a\"}",
        "string into Go struct field StreamConfigRequest.subjects of type []string",
    ),
    (
        "{\"subjects\":[1]}",
        "number into StreamConfigRequest.subjects.0 of type string",
    ),
    (
        "{\"sources\":{}}",
        "object into Go struct field StreamConfigRequest.sources of type []*server.StreamSource",
    ),
    (
        "{\"sources\":[5]}",
        "number into StreamConfigRequest.sources.0 of type server.StreamSource",
    ),
    (
        "{\"sources\":[{\"name\":5}]}",
        "number into Go struct field StreamConfigRequest.sources.0.name of type string",
    ),
    (
        "{\"mirror\":[]}",
        "array into Go struct field StreamConfigRequest.mirror of type server.StreamSource",
    ),
    (
        "{\"mirror\":{\"opt_start_time\":5}}",
        "number into Go struct field StreamConfigRequest.mirror.opt_start_time of type time.Time",
    ),
    (
        "{\"metadata\":{\"a\":5}}",
        "number into Go struct field StreamConfigRequest.metadata.a of type string",
    ),
    (
        "{\"metadata\":[]}",
        "array into Go struct field StreamConfigRequest.metadata of type map[string]string",
    ),
    (
        "{\"max_age\":\"1s\"}",
        "string into Go struct field StreamConfigRequest.max_age of type time.Duration",
    ),
    (
        "{\"no_ack\":1}",
        "number into Go struct field StreamConfigRequest.no_ack of type bool",
    ),
    (
        "{\"pedantic\":5}",
        "number into Go struct field StreamConfigRequest.pedantic of type bool",
    ),
    (
        "{\"consumer_limits\":{\"max_ack_pending\":\"a\"}}",
        "string into Go struct field StreamConfigRequest.consumer_limits.max_ack_pending of type int",
    ),
    (
        "{\"placement\":[]}",
        "array into Go struct field StreamConfigRequest.placement of type server.Placement",
    ),
];

#[test]
fn a_value_of_the_wrong_type_is_named_by_its_field() {
    for &(body, text) in TYPES {
        assert_eq!(stream(body), format!("json: cannot unmarshal {text}"), "{body}");
    }
    assert_eq!(
        consumer("{\"config\":{\"backoff\":[\"x\"]}}"),
        "json: cannot unmarshal string into CreateConsumerRequest.config.backoff.0 of type time.Duration"
    );
    assert_eq!(
        consumer("{\"config\":{\"max_deliver\":\"x\"}}"),
        "json: cannot unmarshal string into Go struct field CreateConsumerRequest.config.max_deliver of type int"
    );
    assert_eq!(
        refusal::<StreamListRequest>(b"{\"offset\":{\"a\":[]}}"),
        "json: cannot unmarshal object into Go struct field JSApiStreamListRequest.offset of type int"
    );
    assert_eq!(
        refusal::<StreamNamesRequest>(b"{\"offset\":\"x\"}"),
        "json: cannot unmarshal string into Go struct field JSApiStreamNamesRequest.offset of type int"
    );
    assert_eq!(
        refusal::<PauseRequest>(b"{\"pause_until\":{\"a\":[]}}"),
        "json: cannot unmarshal object into Go struct field JSApiConsumerPauseRequest.pause_until of type time.Time"
    );
}

#[test]
fn the_first_error_in_the_body_is_reported() {
    let bytes =
        "json: cannot unmarshal string into Go struct field StreamConfigRequest.max_bytes of type int64";
    assert_eq!(stream("{\"max_bytes\":\"x\",\"bogus\":1}"), bytes);
    assert_eq!(
        stream("{\"bogus\":1,\"max_bytes\":\"x\"}"),
        "json: unknown field \"bogus\""
    );
    assert_eq!(
        stream("{\"bogus\":1,\"retention\":\"foo\"}"),
        "json: unknown field \"bogus\""
    );
}

#[test]
fn enumerations_refuse_other_words_and_null() {
    for field in ["retention", "discard", "storage", "persist_mode"] {
        assert_eq!(
            stream(&format!("{{\"{field}\":\"foo\"}}")),
            r#"can not unmarshal "\"foo\"""#
        );
        assert_eq!(
            stream(&format!("{{\"{field}\":null}}")),
            r#"can not unmarshal "null""#
        );
        assert_eq!(stream(&format!("{{\"{field}\":1}}")), r#"can not unmarshal "1""#);
    }
    for field in ["deliver_policy", "ack_policy", "replay_policy"] {
        let body = |value: &str| consumer(&format!("{{\"config\":{{\"{field}\":{value}}}}}"));
        assert_eq!(body("\"x\""), r#"can not unmarshal "\"x\"""#);
        assert_eq!(body("\"\""), r#"can not unmarshal "\"\"""#);
        assert_eq!(body("null"), r#"can not unmarshal "null""#);
    }
    assert_eq!(
        stream("{\"compression\":\"foo\"}"),
        "unknown compression algorithm"
    );
    assert_eq!(stream("{\"compression\":null}"), "unknown compression algorithm");
    assert_eq!(
        stream("{\"compression\":5}"),
        "json: cannot unmarshal number into Go value of type string"
    );
    assert_eq!(consumer("{\"action\":\"x\"}"), "unknown consumer action: \"x\"");
    assert_eq!(consumer("{\"action\":null}"), "unknown consumer action: null");
    assert_eq!(
        consumer("{\"config\":{\"priority_policy\":5}}"),
        "unknown priority policy: 5"
    );
    assert_eq!(stream("{\"persist_mode\":\"\"}"), "ok");
    assert_eq!(
        stream("{\"retention\":\"Limits\"}"),
        r#"can not unmarshal "\"Limits\"""#
    );
    assert_eq!(consumer("{\"config\":{\"deliver_policy\":\"undefined\"}}"), "ok");
    let request: StreamConfigRequest = decode_strict(b"{\"discard\":\"NEW\"}", true).unwrap();
    assert_eq!(request.config.discard, Discard::New);
}

#[test]
fn keys_match_in_any_case_and_the_last_one_wins() {
    let body = br#"{"name":"Q","name":"Q2","NAME":"Q","Subjects":["a"],"subjects":["b"]}"#;
    let request: StreamConfigRequest = decode_strict(body, true).unwrap();
    assert_eq!(
        (request.config.name.as_str(), request.config.subjects.as_slice()),
        ("Q", &["b".to_owned()][..])
    );
}

#[test]
fn null_is_the_same_as_absent() {
    let body = br#"{"name":"X","subjects":null,"max_msgs":null,"mirror":null,"metadata":null,"sources":null,
        "consumer_limits":null,"no_ack":null,"placement":null,"max_age":null}"#;
    let request: StreamConfigRequest = decode_strict(body, true).unwrap();
    let expected = StreamConfig {
        name: "X".to_owned(),
        ..StreamConfig::default()
    };
    assert_eq!(request.config, expected);
    assert_eq!(
        decode_strict::<StreamConfigRequest>(b"null", true),
        Ok(StreamConfigRequest::default())
    );
}

#[test]
fn bodies_may_be_empty_or_left_out() {
    assert_eq!(
        decode_strict::<StreamConfigRequest>(b" ", true),
        Ok(StreamConfigRequest::default())
    );
    assert_eq!(
        decode_optional::<StreamListRequest>(b"junk", true),
        Ok(StreamListRequest::default())
    );
    assert_eq!(
        decode_optional::<StreamListRequest>(b" {\"bogus\":1}", true)
            .unwrap_err()
            .description,
        "invalid JSON: json: unknown field \"bogus\""
    );
    for (body, empty) in [
        ("", true),
        ("{}", true),
        (" { } ", true),
        ("[]", false),
        ("{\"a\":1}", false),
        ("x", false),
    ] {
        assert_eq!(is_empty_request(body.as_bytes()), empty, "{body}");
    }
}

#[test]
fn strings_are_unescaped_and_mended() {
    let name = |body: &[u8]| {
        decode_strict::<StreamConfigRequest>(body, true)
            .unwrap()
            .config
            .name
    };
    assert_eq!(name(br#"{"name":"a\u00e9\n\"\/\ud83d\ude00"}"#), "aé\n\"/😀");
    assert_eq!(name(br#"{"name":"\ud800x"}"#), "\u{FFFD}x");
    assert_eq!(name(br#"{"name":"\ud800\u0041"}"#), "\u{FFFD}A");
    assert_eq!(name(b"{\"name\":\"\xff\"}"), "\u{FFFD}");
}

fn json_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just("{".to_owned()),
        Just("}".to_owned()),
        Just("[".to_owned()),
        Just("]".to_owned()),
        Just(",".to_owned()),
        Just(":".to_owned()),
        Just("null".to_owned()),
        Just("\"\\ud800".to_owned()),
        Just("\"config\":".to_owned()),
        Just("\"sources\":[{".to_owned()),
        Just("\"max_msgs\":".to_owned()),
        Just("\"opt_start_time\":\"2020-01-01T00:00:00Z\"".to_owned()),
        "[-0-9.eE]{1,4}",
        "\"[a-z\\\\\"]{0,3}\"",
        "\\PC{0,2}",
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bytes_make_a_decoder_panic(body in prop_oneof![json_like(), prop::collection::vec(any::<u8>(), 0..40)]) {
        fuzz(&body);
    }

    #[test]
    fn the_scanner_accepts_what_serde_accepts(body in json_like()) {
        let ours = scan_value(&body, 0).ok().flatten().is_some_and(|end| {
            body.get(end..).unwrap_or_default().iter().all(u8::is_ascii_whitespace)
        });
        let theirs = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
        // serde_json refuses lone surrogates, which Go mends.
        let surrogate = body.windows(4).any(|window| window == b"\\ud8");
        prop_assert!(ours == theirs || (ours && surrogate));
    }

    #[test]
    fn what_is_written_is_read_back(name in "\\PC{0,8}", subjects in prop::collection::vec("\\PC{0,6}", 0..3),
        numbers in any::<(i64, i64, u64)>(), flags in any::<(bool, bool)>()) {
        let config = StreamConfig {
            name, subjects, max_msgs: numbers.0, max_age: crate::Nanos(numbers.1), first_seq: numbers.2,
            sealed: flags.0, no_ack: flags.1,
            ..StreamConfig::default()
        };
        let info = StreamInfo { config, created: crate::Time(tidelock_base::Wall(numbers.0)), ..StreamInfo::default() };
        let read: StreamInfo = decode_strict(&to_json(&info), true).unwrap();
        prop_assert_eq!(read, info);
    }
}

#[test]
fn every_field_of_a_consumer_is_read_back() {
    let config = br#"{"durable_name":"PC","name":"PC","deliver_policy":"by_start_time","opt_start_time":"2026-01-02T03:04:05.6Z","ack_policy":"explicit","ack_wait":30000000000,"max_deliver":-1,"backoff":[1,2],"filter_subject":"t.a","replay_policy":"instant","sample_freq":"30%","max_waiting":512,"max_ack_pending":1000,"num_replicas":0,"metadata":{"_nats.level":"5"},"priority_groups":["g"],"priority_policy":"pinned_client","priority_timeout":120000000000}"#;
    let body = [
        b"{\"stream_name\":\"S\",\"name\":\"PC\",\"created\":\"2026-01-02T03:04:05Z\",\"config\":",
        &config[..],
        b"}",
    ]
    .concat();
    let info: ConsumerInfo = decode_strict(&body, true).unwrap();
    assert_eq!(to_json(&info.config.unwrap()), config);
}
