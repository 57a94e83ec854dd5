//! Answers as nats-server 2.15.1 gives them, each taken from the real server.

use super::*;
use crate::{ClusterInfo, PriorityGroupState, StoredMsg, decode_strict};
use tidelock_base::{ApiErrorCode, Wall};

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

const STREAM: &str = r#""config":{"name":"S","subjects":["s.\u003e"],"retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old","storage":"file","num_replicas":1,"duplicate_window":120000000000,"compression":"none","allow_direct":false,"mirror_direct":false,"sealed":false,"deny_delete":false,"deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,"metadata":{"_nats.level":"5","_nats.req.level":"0","_nats.ver":"2.15.1"}},"created":"2026-11-29T15:02:09.549637953Z","state":{"messages":0,"bytes":0,"first_seq":0,"first_ts":"0001-01-01T00:00:00Z","last_seq":0,"last_ts":"0001-01-01T00:00:00Z","consumer_count":0},"ts":"2026-11-29T15:02:09.551341477Z""#;
const CONSUMER: &str = r#""stream_name":"T1","name":"PC","created":"2026-11-29T15:02:09.5Z","config":{"durable_name":"PC","name":"PC","deliver_policy":"all","ack_policy":"explicit","ack_wait":30000000000,"max_deliver":-1,"filter_subject":"t.a","replay_policy":"instant","max_waiting":512,"max_ack_pending":1000,"num_replicas":0,"metadata":{"_nats.level":"5","_nats.req.level":"1","_nats.ver":"2.15.1"},"priority_groups":["g"],"priority_policy":"pinned_client","priority_timeout":120000000000},"delivered":{"consumer_seq":0,"stream_seq":0},"ack_floor":{"consumer_seq":0,"stream_seq":0},"num_ack_pending":0,"num_redelivered":0,"num_waiting":0,"num_pending":3,"ts":"2026-11-29T15:02:10Z","priority_groups":[{"group":"g","pinned_ts":"0001-01-01T00:00:00Z"}]"#;

#[test]
fn a_created_stream_is_written_byte_for_byte() {
    let info: StreamInfo = decode_strict(format!("{{{STREAM}}}").as_bytes(), true).unwrap();
    let create = StreamCreateResponse {
        info,
        did_create: true,
    };
    assert_eq!(
        text(ok_response(ResponseKind::StreamCreate, &create)),
        format!(r#"{{"type":"io.nats.jetstream.api.v1.stream_create_response",{STREAM},"did_create":true}}"#)
    );
}

#[test]
fn stream_info_starts_with_the_page() {
    let mut info: StreamInfo = decode_strict(format!("{{{STREAM}}}").as_bytes(), true).unwrap();
    info.cluster = Some(ClusterInfo {
        leader: "PROBE".to_owned(),
        ..ClusterInfo::default()
    });
    info.state.num_subjects = 2;
    info.state.subjects = Some(BTreeMap::from([("t.a".to_owned(), 3), ("t.b".to_owned(), 1)]));
    let response = StreamInfoResponse {
        total: 2,
        offset: 0,
        limit: 100_000,
        info,
    };
    let written = text(ok_response(ResponseKind::StreamInfo, &response));
    assert!(written.starts_with(
        r#"{"type":"io.nats.jetstream.api.v1.stream_info_response","total":2,"offset":0,"limit":100000,"config":{"#
    ));
    assert!(written.contains(r#""num_subjects":2,"subjects":{"t.a":3,"t.b":1},"consumer_count":0},"cluster":{"leader":"PROBE"},"ts""#));
}

#[test]
fn a_created_consumer_is_written_byte_for_byte() {
    let info: ConsumerInfo = decode_strict(format!("{{{CONSUMER}}}").as_bytes(), true).unwrap();
    assert_eq!(
        info.priority_groups,
        [PriorityGroupState {
            group: "g".to_owned(),
            ..PriorityGroupState::default()
        }]
    );
    assert_eq!(
        text(ok_response(ResponseKind::ConsumerCreate, &info)),
        format!(r#"{{"type":"io.nats.jetstream.api.v1.consumer_create_response",{CONSUMER}}}"#)
    );
    let reset = ConsumerResetResponse { info, reset_seq: 1 };
    assert!(text(ok_response(ResponseKind::ConsumerReset, &reset)).ends_with(r#"}],"reset_seq":1}"#));
}

#[test]
fn the_block_of_a_cluster_is_written_byte_for_byte() {
    let block = r#"{"name":"CK","raft_group":"S-R3F-Gkz7WyOk","leader":"K5","leader_since":"2026-11-29T11:20:28.225045034Z","system_account":true,"traffic_account":"SYS","replicas":[{"name":"K1","current":true,"active":1002221048,"peer":"0Xq7uiHg"},{"name":"K4","current":true,"active":1002127340,"peer":"CyHHroGP"}],"desired":{"created":"2026-11-29T11:20:28Z","name":"CK","replicas":[{"name":"K4","peer":"CyHHroGP"}],"origin":{"replicas":1,"placement":{"tags":["r:a"]}},"status":{"description":"waiting for peer to catch up before adding it","type":"catchup"}}}"#;
    let info: ClusterInfo = decode_strict(block.as_bytes(), true).unwrap();
    assert_eq!(text(to_json(&info)), block);
}

#[test]
fn an_error_stands_before_what_is_never_left_out() {
    let error = |kind, code: ApiErrorCode| text(error_response(kind, &code.into()));
    let not_found = r#""error":{"code":404,"err_code":10059,"description":"stream not found"}"#;
    for (kind, suffix, tail) in [
        (
            ResponseKind::StreamInfo,
            "stream_info",
            r#","total":0,"offset":0,"limit":0"#,
        ),
        (
            ResponseKind::StreamNames,
            "stream_names",
            r#","total":0,"offset":0,"limit":0,"streams":null"#,
        ),
        (
            ResponseKind::StreamList,
            "stream_list",
            r#","total":0,"offset":0,"limit":0,"streams":[]"#,
        ),
        (
            ResponseKind::ConsumerNames,
            "consumer_names",
            r#","total":0,"offset":0,"limit":0,"consumers":[]"#,
        ),
        (
            ResponseKind::ConsumerList,
            "consumer_list",
            r#","total":0,"offset":0,"limit":0,"consumers":[]"#,
        ),
        (ResponseKind::StreamPurge, "stream_purge", r#","purged":0"#),
        (ResponseKind::StreamDelete, "stream_delete", ""),
        (
            ResponseKind::StreamRestore,
            "stream_restore",
            r#","deliver_subject":"""#,
        ),
        (
            ResponseKind::ConsumerPause,
            "consumer_pause",
            r#","paused":false,"pause_until":"0001-01-01T00:00:00Z""#,
        ),
    ] {
        assert_eq!(
            error(kind, ApiErrorCode::StreamNotFound),
            format!(r#"{{"type":"io.nats.jetstream.api.v1.{suffix}_response",{not_found}{tail}}}"#)
        );
    }
}

#[test]
fn small_answers_are_written_byte_for_byte() {
    let written = text(ok_response(ResponseKind::StreamDelete, &Success::YES));
    assert_eq!(
        written,
        r#"{"type":"io.nats.jetstream.api.v1.stream_delete_response","success":true}"#
    );
    let purged = PurgeResponse {
        success: true,
        purged: 1,
    };
    assert_eq!(
        text(ok_response(ResponseKind::StreamPurge, &purged)),
        r#"{"type":"io.nats.jetstream.api.v1.stream_purge_response","success":true,"purged":1}"#
    );
    assert_eq!(
        text(ok_response(ResponseKind::ConsumerUnpin, &NoFields {})),
        r#"{"type":"io.nats.jetstream.api.v1.consumer_unpin_response"}"#
    );
    let pause = PauseResponse {
        paused: true,
        pause_until: Time(Wall(1_893_456_000_000_000_000)),
        pause_remaining: Nanos(5),
    };
    assert_eq!(
        text(ok_response(ResponseKind::ConsumerPause, &pause)),
        r#"{"type":"io.nats.jetstream.api.v1.consumer_pause_response","paused":true,"pause_until":"2030-01-01T00:00:00Z","pause_remaining":5}"#
    );
    let names = StreamNames {
        total: 1,
        offset: 0,
        limit: 1024,
        streams: Some(vec!["T1".to_owned()]),
    };
    assert_eq!(
        text(ok_response(ResponseKind::StreamNames, &names)),
        r#"{"type":"io.nats.jetstream.api.v1.stream_names_response","total":1,"offset":0,"limit":1024,"streams":["T1"]}"#
    );
}

#[test]
fn a_stored_message_is_in_base64() {
    let message = StoredMsg {
        subject: "c.x",
        seq: 2,
        hdrs: b"NATS/1.0\r\n\r\n",
        data: br#"{"val":"3"}"#,
        time: Time(Wall(1)),
    };
    assert_eq!(
        text(ok_response(
            ResponseKind::StreamMsgGet,
            &MsgGetResponse { message }
        )),
        r#"{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{"subject":"c.x","seq":2,"hdrs":"TkFUUy8xLjANCg0K","data":"eyJ2YWwiOiIzIn0=","time":"1970-01-01T00:00:00.000000001Z"}}"#
    );
}

#[test]
fn account_information_is_written_byte_for_byte() {
    let info = crate::AccountInfo {
        total: crate::AccountTier {
            storage: 3064,
            streams: 9,
            consumers: 5,
            ..crate::AccountTier::default()
        },
        api: crate::ApiStats {
            level: 5,
            total: 1057,
            errors: 20,
            inflight: 0,
        },
        ..crate::AccountInfo::default()
    };
    assert_eq!(
        text(ok_response(ResponseKind::AccountInfo, &info)),
        r#"{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":3064,"reserved_memory":0,"reserved_storage":0,"streams":9,"consumers":5,"limits":{"max_memory":-1,"max_storage":-1,"max_streams":-1,"max_consumers":-1,"max_ack_pending":-1,"memory_max_stream_bytes":-1,"storage_max_stream_bytes":-1,"max_bytes_required":false},"api":{"level":5,"total":1057,"errors":20}}"#
    );
}
