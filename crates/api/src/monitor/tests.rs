//! The members that nats-server 2.15.1 writes for an idle server with one client, in their order.

use super::*;
use crate::event::{AccountStat, ServerInfo};
use crate::{ApiStats, to_json};
use serde::Serialize;
use tidelock_base::Wall;

/// The keys of the outermost object, in order.
fn keys<T: Serialize>(value: &T) -> String {
    let json = String::from_utf8(to_json(value)).unwrap();
    let mut keys = Vec::new();
    let (mut depth, mut rest) = (0, json.as_str());
    while let Some(at) = rest.find(['{', '}', '[', ']', '"']) {
        let (_, tail) = rest.split_at(at);
        let mut after = tail.get(1..).unwrap();
        match tail.as_bytes()[0] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {
                let (text, behind) = after.split_once('"').unwrap();
                if depth == 1 && behind.starts_with(':') {
                    keys.push(text.to_owned());
                }
                after = behind;
            }
        }
        rest = after;
    }
    keys.join(" ")
}

#[test]
fn varz_has_the_members_of_nats_server() {
    let varz = Varz {
        git_commit: "b2fd3ef".to_owned(),
        auth_required: true,
        feature_flags: [("js_ack_fc_v2".to_owned(), false)].into(),
        system_account: "SYS".to_owned(),
        ..Varz::default()
    };
    assert_eq!(
        keys(&varz),
        "server_id server_name version proto git_commit go host port auth_required max_connections ping_interval \
         ping_max http_host http_port http_base_path https_port auth_timeout max_control_line max_payload max_pending \
         cluster gateway leaf mqtt websocket jetstream tls_timeout write_deadline start now uptime mem cores \
         gomaxprocs cpu connections total_connections routes remotes leafnodes in_msgs in_bytes in_client_msgs \
         in_client_bytes out_msgs out_bytes out_client_msgs out_client_bytes slow_consumers stale_connections \
         stalled_clients subscriptions http_req_stats config_load_time config_digest feature_flags system_account \
         slow_consumer_stats stale_connection_stats disk_io_wait_stats"
    );
    assert_eq!(String::from_utf8(to_json(&varz.cluster)).unwrap(), "{}");
    assert_eq!(String::from_utf8(to_json(&varz.jetstream)).unwrap(), "{}");
}

#[test]
fn connz_has_the_members_of_nats_server() {
    let connection = ConnInfo {
        kind: "Client".to_owned(),
        client_type: "nats".to_owned(),
        rtt: "184µs".to_owned(),
        lang: "x".to_owned(),
        version: "1".to_owned(),
        authorized_user: "a".to_owned(),
        account: "A".to_owned(),
        subscriptions_list_detail: vec![SubDetail {
            qgroup: "q".to_owned(),
            ..SubDetail::default()
        }],
        name_tag: "A".to_owned(),
        ..ConnInfo::default()
    };
    assert_eq!(
        keys(&connection),
        "cid kind type ip port start last_activity rtt uptime idle pending_bytes in_msgs out_msgs in_bytes out_bytes \
         subscriptions lang version authorized_user account subscriptions_list_detail name_tag"
    );
    assert_eq!(
        keys(&connection.subscriptions_list_detail[0]),
        "subject qgroup sid msgs cid"
    );
    assert_eq!(
        keys(&Connz::default()),
        "server_id now num_connections total offset limit connections"
    );
}

#[test]
fn jsz_has_the_members_of_nats_server() {
    let jsz = Jsz {
        config: Some(JetStreamConfig::default()),
        limits: Some(JetStreamLimits {
            default_max_consumers: 1000,
            ..JetStreamLimits::default()
        }),
        streams_leader: 1,
        consumers_leader: 1,
        account_details: vec![AccountDetailJs {
            stream_detail: vec![StreamDetail::default()],
            ..AccountDetailJs::default()
        }],
        ..Jsz::default()
    };
    assert_eq!(
        keys(&jsz),
        "memory storage reserved_memory reserved_storage accounts ha_assets api server_id now config limits streams \
         streams_leader consumers consumers_leader messages bytes account_details total"
    );
    assert_eq!(
        keys(&jsz.account_details[0]),
        "name id memory storage reserved_memory reserved_storage accounts ha_assets api stream_detail"
    );
    assert_eq!(
        String::from_utf8(to_json(&jsz.limits)).unwrap(),
        r#"{"default_max_consumers":1000}"#
    );
    assert_eq!(
        String::from_utf8(to_json(&ApiStats {
            level: 5,
            total: 83,
            errors: 46,
            inflight: 0
        }))
        .unwrap(),
        r#"{"level":5,"total":83,"errors":46}"#
    );
}

#[test]
fn the_other_bodies_have_the_members_of_nats_server() {
    assert_eq!(
        keys(&Subsz::default()),
        "server_id now num_subscriptions num_cache num_inserts num_removes num_matches cache_hit_rate max_fanout \
         avg_fanout total offset limit"
    );
    assert_eq!(
        keys(&Routez::default()),
        "server_id server_name now num_routes routes"
    );
    assert_eq!(keys(&Leafz::default()), "server_id now leafnodes leafs");
    assert_eq!(
        keys(&AccountDetail {
            name_tag: "A".to_owned(),
            ..AccountDetail::default()
        }),
        "account_name update_time expired complete jetstream_enabled leafnode_connections client_connections \
         subscriptions name_tag"
    );
    assert_eq!(
        keys(&AccountStat::default()),
        "acc name conns leafnodes total_conns num_subscriptions sent received slow_consumers"
    );
    let stats = Statsz {
        active_servers: 1,
        gomaxprocs: 2,
        ..Statsz::default()
    };
    assert_eq!(
        keys(&stats),
        "start mem cores cpu connections total_connections active_accounts subscriptions sent sent_to_clients received \
         received_from_clients slow_consumers active_servers gomaxprocs"
    );
    assert_eq!(
        keys(&StatsReply {
            server: &ServerInfo::default(),
            statsz: &stats
        }),
        "server statsz"
    );
}

#[test]
fn healthz_is_written_byte_for_byte() {
    let text = |health: &Healthz| String::from_utf8(to_json(health)).unwrap();
    let mut health = Healthz {
        status: "ok".to_owned(),
        ..Healthz::default()
    };
    assert_eq!(text(&health), r#"{"status":"ok"}"#);
    health.status_code = 200;
    assert_eq!(text(&health), r#"{"status":"ok","status_code":200}"#);
    let missing = HealthError {
        kind: "STREAM".to_owned(),
        account: "A".to_owned(),
        stream: "NOPE".to_owned(),
        error: r#"JetStream stream "NOPE" not found on account "A""#.to_owned(),
        ..HealthError::default()
    };
    let health = Healthz {
        status: "error".to_owned(),
        errors: vec![missing],
        ..Healthz::default()
    };
    assert_eq!(
        text(&health),
        r#"{"status":"error","errors":[{"type":"STREAM","account":"A","stream":"NOPE","error":"JetStream stream \"NOPE\" not found on account \"A\""}]}"#
    );
}

#[test]
fn a_server_is_found_by_its_properties() {
    let server = ServerInfo {
        name: "east-1".to_owned(),
        cluster: "east".to_owned(),
        tags: vec!["az:1".to_owned()],
        ..ServerInfo::default()
    };
    let filter = |json: &str| {
        crate::decode_lenient::<EventFilter>(json.as_bytes())
            .unwrap()
            .matches(&server)
    };
    assert!(filter("{}"));
    assert!(filter(r#"{"server_name":"east","tags":["az:1"],"limit":5}"#));
    assert!(!filter(r#"{"server_name":"east","exact_match":true}"#));
    assert!(!filter(r#"{"tags":["az:1","az:2"]}"#));
    assert!(!filter(r#"{"domain":"hub"}"#));
}

#[test]
fn uptime_has_the_units_it_needs() {
    let text = |seconds: i64| uptime(Time(Wall(0)), Time(Wall(seconds * 1_000_000_000)));
    assert_eq!(text(0), "0s");
    assert_eq!(text(463), "7m43s");
    assert_eq!(text(3_600), "1h0m0s");
    assert_eq!(text(93_784), "1d2h3m4s");
    assert_eq!(text(366 * 86_400), "1y1d0h0m0s");
}
