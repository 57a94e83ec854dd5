//! A disk that is full, or takes nothing: what is refused, what goes on, and what comes back. See `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net, route};
use std::sync::Arc;
use std::time::Duration;
use tidelock_record::{Fault, MemDisk};

const SECOND: Duration = Duration::from_secs(1);
const CONFIG: &str = "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n";
const REFUSED: &str = "\"code\":503,\"err_code\":10023";
const UNKNOWN: &str = "\"code\":503,\"err_code\":10008";

/// A node with a stream `S` on `s.>`, and its disk.
fn node(config: &str) -> (Net, Client, Arc<MemDisk>) {
    let mut net = Net::new();
    let node = net.add(1, config);
    net.run(SECOND);
    let client = client(&mut net);
    let made = api(
        &mut net,
        client,
        "STREAM.CREATE.S",
        r#"{"name":"S","subjects":["s.>"]}"#,
    );
    assert!(made.contains("\"did_create\":true"), "{made}");
    let disk = net.nodes[node].disk.clone().unwrap();
    (net, client, disk)
}

/// A client that hears answers on `in`.
fn client(net: &mut Net) -> Client {
    let client = net.client(0, 0);
    net.tell(client, "SUB in 1\r\n");
    client
}

/// What a client is answered at once.
fn api(net: &mut Net, client: Client, what: &str, body: &str) -> String {
    net.hear(client);
    let len = body.len();
    net.tell(client, &format!("PUB $JS.API.{what} in {len}\r\n{body}\r\n"));
    net.hear(client)
}

/// What a client is answered to a publish at once.
fn publish(net: &mut Net, client: Client, len: usize) -> String {
    net.hear(client);
    net.tell(client, &format!("PUB s.x in {len}\r\n{}\r\n", "x".repeat(len)));
    net.hear(client)
}

fn used(disk: &MemDisk) -> u64 {
    disk.files().iter().map(|(_, len)| len).sum()
}

/// From now on the log cannot be written.
fn break_log(disk: &MemDisk) {
    for _ in 0..1_000 {
        disk.fail(Fault::Sync, 0);
    }
}

fn messages(info: &str) -> Option<u64> {
    let (_, rest) = info.split_once("\"messages\":")?;
    rest.split(',').next()?.parse().ok()
}

#[test]
fn while_the_log_is_broken_reads_are_answered_and_changes_refused() {
    let (mut net, publisher, disk) = node(CONFIG);
    let create = r#"{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit"}}"#;
    let made = api(&mut net, publisher, "CONSUMER.DURABLE.CREATE.S.c", create);
    assert!(made.contains("\"name\":\"c\""), "{made}");
    assert!(publish(&mut net, publisher, 10).contains("\"seq\":1"));
    net.tell(
        publisher,
        "SUB pull 2\r\nPUB $JS.API.CONSUMER.MSG.NEXT.S.c pull 0\r\n\r\n",
    );
    let delivered = net.hear(publisher);
    let ack = delivered
        .split_whitespace()
        .find(|word| word.starts_with("$JS.ACK."))
        .expect("a delivery");

    break_log(&disk);
    assert_eq!(publish(&mut net, publisher, 10), "", "it is under way");
    let other = client(&mut net);
    let info = api(&mut net, other, "STREAM.INFO.S", "");
    assert_eq!(messages(&info), Some(1), "{info}");
    assert!(api(&mut net, other, "STREAM.MSG.GET.S", r#"{"seq":1}"#).contains("\"data\""));
    assert!(api(&mut net, other, "STREAM.NAMES", "").contains("\"S\""));
    assert!(api(&mut net, other, "STREAM.LIST", "").contains("\"name\":\"S\""));
    assert!(api(&mut net, other, "CONSUMER.INFO.S.c", "").contains("\"delivered\""));
    for (what, body) in [
        ("STREAM.PURGE.S", ""),
        ("STREAM.DELETE.S", ""),
        ("STREAM.CREATE.T", r#"{"name":"T","subjects":["t"]}"#),
        (
            "STREAM.UPDATE.S",
            r#"{"name":"S","subjects":["s.>"],"max_msgs":7}"#,
        ),
        ("STREAM.MSG.DELETE.S", r#"{"seq":1}"#),
        ("CONSUMER.DELETE.S.c", ""),
        (
            "CONSUMER.DURABLE.CREATE.S.d",
            r#"{"stream_name":"S","config":{"durable_name":"d","ack_policy":"explicit"}}"#,
        ),
    ] {
        let answer = api(&mut net, other, what, body);
        assert!(answer.contains(REFUSED), "{what}: {answer}");
    }
    assert!(publish(&mut net, other, 10).contains(REFUSED));
    // An acknowledgement that is to be answered must not look as if it counted.
    net.hear(other);
    net.tell(other, &format!("PUB {ack} in 4\r\n+ACK\r\n"));
    assert!(net.hear(other).contains("NATS/1.0 503"));
    // Who has published what is not written must not be shown a state without it.
    let info = api(&mut net, publisher, "STREAM.INFO.S", "");
    assert!(info.contains(UNKNOWN), "{info}");

    disk.fail_no_more();
    net.run(4 * SECOND);
    let late = net.hear(publisher);
    assert!(late.contains("\"seq\":2"), "{late}");
    let info = api(&mut net, publisher, "STREAM.INFO.S", "");
    assert_eq!(messages(&info), Some(2), "{info}");
    assert!(publish(&mut net, other, 10).contains("\"seq\":3"));
    let purged = api(&mut net, other, "STREAM.PURGE.S", "");
    assert!(purged.contains("\"purged\":3"), "{purged}");
}

#[test]
fn health_says_that_the_log_is_broken() {
    let config = "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n\
                  no_auth_user: a\naccounts { A { users: [{user: a, password: a}], jetstream: enabled }\n\
                  SYS { users: [{user: s, password: s}] } }\nsystem_account: SYS\n";
    let (mut net, client, disk) = node(config);
    net.nodes[0].shared.system.set_ready();
    let system = net.open(0, 0, tidelock_node::Listener::Client);
    net.tell(
        system,
        "CONNECT {\"user\":\"s\",\"pass\":\"s\"}\r\nSUB in 1\r\nPUB $SYS.REQ.SERVER.PING.HEALTHZ in 0\r\n\r\n",
    );
    net.run(SECOND);
    let well = net.hear(system);
    assert!(well.contains("\"status\":\"ok\""), "{well}");
    break_log(&disk);
    publish(&mut net, client, 10);
    net.tell(system, "PUB $SYS.REQ.SERVER.PING.HEALTHZ in 0\r\n\r\n");
    net.run(SECOND);
    let ill = net.hear(system);
    assert!(
        ill.contains("write-ahead log cannot be written") && ill.contains("503"),
        "{ill}"
    );
    disk.fail_no_more();
    net.run(4 * SECOND);
    net.tell(system, "PUB $SYS.REQ.SERVER.PING.HEALTHZ in 0\r\n\r\n");
    net.run(SECOND);
    assert!(net.hear(system).contains("\"status\":\"ok\""));
}

#[test]
fn what_waits_when_the_log_breaks_is_told_so() {
    let (mut net, asker, disk) = node(CONFIG);
    assert!(publish(&mut net, asker, 10).contains("\"seq\":1"));
    net.hold_disk(0, true);
    let reader = client(&mut net);
    assert_eq!(api(&mut net, asker, "STREAM.PURGE.S", ""), "", "the disk is slow");
    let waits = api(&mut net, reader, "STREAM.INFO.S", "");
    assert_eq!(waits, "", "it waits for what was proposed before");
    break_log(&disk);
    net.hold_disk(0, false);
    net.settle();
    let (purge, info) = (net.hear(asker), net.hear(reader));
    assert!(
        purge.contains(UNKNOWN),
        "nobody knows what becomes of it: {purge}"
    );
    assert_eq!(messages(&info), Some(1), "{info}");
    disk.fail_no_more();
    net.run(4 * SECOND);
    let info = api(&mut net, reader, "STREAM.INFO.S", "");
    assert_eq!(messages(&info), Some(0), "it was carried out after all: {info}");
}

#[test]
fn below_the_low_water_mark_publishes_wait_for_what_a_purge_frees() {
    let (mut net, client, disk) = node(CONFIG);
    for _ in 0..200 {
        net.tell(client, &format!("PUB s.x 32768\r\n{}\r\n", "x".repeat(32_768)));
    }
    net.run(2 * SECOND);
    let used = used(&disk);
    disk.set_capacity(Some(used + used / 32));
    net.run(2 * SECOND);
    assert!(publish(&mut net, client, 10).contains(REFUSED));
    let stored = net.nodes[0].shared.room.files_stored();
    assert!(stored > 200 * 32_768, "{stored}");
    let create = r#"{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit"}}"#;
    let made = api(&mut net, client, "CONSUMER.DURABLE.CREATE.S.c", create);
    assert!(made.contains("\"name\":\"c\""), "consumers go on: {made}");
    assert_eq!(messages(&api(&mut net, client, "STREAM.INFO.S", "")), Some(200));
    let purged = api(&mut net, client, "STREAM.PURGE.S", "");
    assert!(purged.contains("\"purged\":200"), "{purged}");
    net.run(4 * SECOND);
    let acked = publish(&mut net, client, 10);
    assert!(acked.contains("\"seq\":201"), "{acked}");
}

#[test]
fn a_disk_without_a_byte_left_still_takes_the_purge_that_frees_it() {
    let (mut net, client, disk) = node(CONFIG);
    // Large enough that a reserve is made.
    disk.set_capacity(Some(1 << 30));
    for _ in 0..200 {
        net.tell(client, &format!("PUB s.x 32768\r\n{}\r\n", "x".repeat(32_768)));
    }
    net.run(3 * SECOND);
    disk.set_capacity(Some(used(&disk)));
    net.run(2 * SECOND);
    assert!(publish(&mut net, client, 10).contains(REFUSED));
    let purged = api(&mut net, client, "STREAM.PURGE.S", "");
    assert!(purged.contains("\"purged\":200"), "{purged}");
    net.run(8 * SECOND);
    let blocks = disk.files().iter().any(|(path, _)| path.name().ends_with(".blk"));
    assert!(!blocks, "the checkpoint that lets them go has found its place");
    let acked = publish(&mut net, client, 10);
    assert!(acked.contains("\"seq\":201"), "{acked}");
}

#[test]
fn a_start_on_a_full_disk_brings_back_all_that_was_acknowledged() {
    let (mut net, client, disk) = node(CONFIG);
    let mut acked = 0;
    for _ in 0..100 {
        acked += u64::from(!publish(&mut net, client, 32_768).contains(REFUSED));
    }
    disk.set_capacity(Some(used(&disk)));
    for _ in 0..100 {
        acked += u64::from(!publish(&mut net, client, 32_768).contains(REFUSED));
    }
    net.run(2 * SECOND);
    assert!((100..200).contains(&acked), "{acked}");
    assert!(publish(&mut net, client, 10).contains(REFUSED));
    net.kill(0);
    net.restart(0, 1, CONFIG, 2);
    net.run(2 * SECOND);
    let client = self::client(&mut net);
    let info = api(&mut net, client, "STREAM.INFO.S", "");
    assert_eq!(messages(&info), Some(acked), "{info}");
    assert!(publish(&mut net, client, 10).contains(REFUSED));
    disk.set_capacity(None);
    net.run(8 * SECOND);
    let again = publish(&mut net, client, 10);
    assert!(again.contains(&format!("\"seq\":{}", acked + 1)), "{again}");
}

#[test]
fn the_server_stores_no_more_than_it_may() {
    let config =
        "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1MB, max_mem: 1MB }\n";
    let (mut net, client, _disk) = node(config);
    let made = api(
        &mut net,
        client,
        "STREAM.CREATE.M",
        r#"{"name":"M","subjects":["m"],"storage":"memory"}"#,
    );
    assert!(made.contains("did_create"), "{made}");
    // As nats-server: what comes is refused once there is more than there may be.
    for seq in 1..=11 {
        let acked = publish(&mut net, client, 100_000);
        assert!(acked.contains(&format!("\"seq\":{seq}")), "{acked}");
    }
    assert!(publish(&mut net, client, 1).contains(REFUSED));
    net.tell(client, "PUB m in 1\r\nx\r\n");
    assert!(net.hear(client).contains("\"seq\":1"), "memory counts apart");
    assert!(api(&mut net, client, "STREAM.PURGE.S", "").contains("\"purged\":11"));
    assert!(publish(&mut net, client, 1).contains("\"seq\":12"));
    assert!(net.nodes[0].shared.room.files_stored() < 100);
    api(&mut net, client, "STREAM.DELETE.S", "");
    assert_eq!(net.nodes[0].shared.room.files_stored(), 0);
}

#[test]
fn an_account_stores_no_more_than_it_may() {
    let config = "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n\
                  no_auth_user: a\naccounts { A { users: [{user: a, password: a}], jetstream { max_file: 1MB } } }\n";
    let (mut net, client, _disk) = node(config);
    for seq in 1..=10 {
        let acked = publish(&mut net, client, 100_000);
        assert!(acked.contains(&format!("\"seq\":{seq}")), "{acked}");
    }
    // As nats-server: what would go beyond is refused, and what still fits is taken.
    let refused = publish(&mut net, client, 100_000);
    assert!(refused.contains("\"code\":400,\"err_code\":10002"), "{refused}");
    assert!(publish(&mut net, client, 10).contains("\"seq\":11"));
    assert!(api(&mut net, client, "STREAM.PURGE.S", "").contains("\"purged\":11"));
    assert!(publish(&mut net, client, 100_000).contains("\"seq\":12"));
}

#[test]
fn a_publish_from_another_node_is_refused_by_the_log() {
    let config = |n: usize| {
        format!(
            "server_name: n{n}\nport: 4222\njetstream {{ store_dir: \"/n{n}\", max_file_store: 1MB }}\n\
             cluster {{ name: c, listen: \"10.0.0.9:6222\", ping_interval: 2, routes: [\"nats-route://{}\", \
             \"nats-route://{}\", \"nats-route://{}\"] }}\n",
            route(0),
            route(1),
            route(2)
        )
    };
    let mut net = Net::new();
    for n in 0..3 {
        net.add(1, &config(n));
    }
    net.run(10 * SECOND);
    let first = client(&mut net);
    net.tell(
        first,
        "PUB $JS.API.STREAM.CREATE.S in 31\r\n{\"name\":\"S\",\"subjects\":[\"s.>\"]}\r\n",
    );
    net.run(SECOND);
    let made = net.hear(first);
    assert!(made.contains("did_create"), "{made}");
    for node in 0..3 {
        let client = net.client(node, 0);
        net.tell(client, "SUB in 1\r\n");
        let mut refused = 0;
        for _ in 0..12 {
            net.tell(
                client,
                &format!("PUB s.x in 100000\r\n{}\r\n", "x".repeat(100_000)),
            );
            net.run(Duration::from_millis(50));
            refused += u64::from(net.hear(client).contains(REFUSED));
        }
        assert_eq!(refused, if node == 0 { 1 } else { 12 }, "through node {node}");
    }
    net.hear(first);
    net.tell(first, "PUB $JS.API.STREAM.PURGE.S in 0\r\n\r\n");
    net.run(SECOND);
    assert!(net.hear(first).contains("\"purged\":11"));
    let client = net.client(2, 0);
    net.tell(client, "SUB in 1\r\nPUB s.x in 1\r\nx\r\n");
    net.run(SECOND);
    assert!(net.hear(client).contains("\"seq\":12"));
}

/// A publish that the log did not take comes again, and a pull request behind it waits for that.
#[test]
fn a_pull_request_that_does_not_wait_gets_what_its_connection_has_published_before() {
    let config = |n: usize| {
        format!(
            "server_name: n{n}\nport: 4222\njetstream {{ store_dir: \"/n{n}\", max_file_store: 1GB }}\n\
             cluster {{ name: c, listen: \"10.0.0.9:6222\", ping_interval: 2, routes: [\"nats-route://{}\", \
             \"nats-route://{}\", \"nats-route://{}\"] }}\n",
            route(0),
            route(1),
            route(2)
        )
    };
    for next in [false, true] {
        let mut net = Net::new();
        for n in 0..3 {
            net.add(1, &config(n));
        }
        net.run(10 * SECOND);
        let first = client(&mut net);
        for (what, body) in [
            ("STREAM.CREATE.S", r#"{"name":"S","subjects":["s.>"]}"#),
            (
                "CONSUMER.DURABLE.CREATE.S.c",
                r#"{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit","filter_subject":"s.x"}}"#,
            ),
        ] {
            let len = body.len();
            net.tell(first, &format!("PUB $JS.API.{what} in {len}\r\n{body}\r\n"));
            net.run(SECOND);
            let made = net.hear(first);
            assert!(made.contains("\"created\""), "{made}");
        }
        net.tell(first, "PUB $JS.API.STREAM.INFO.S in 0\r\n\r\n");
        net.run(SECOND);
        let heard = net.hear(first);
        let (_, rest) = heard.split_once("\"leader\":\"n").unwrap();
        let leader = usize::from(rest.as_bytes()[0] - b'0');
        let (near, far) = (net.client(leader, 0), net.client((leader + 1) % 3, 0));
        for (client, inbox) in [(near, "near"), (far, "far.*")] {
            net.tell(client, &format!("SUB {inbox} 1\r\n"));
        }
        net.run(SECOND);
        let disk = net.nodes[leader].disk.clone().unwrap();
        break_log(&disk);
        // The one breaks the log, the other meets a broken one.
        net.tell(near, "PUB s.y 1\r\ny\r\n");
        net.run(SECOND / 2);
        net.tell(far, "PUB s.x far.1 3\r\nxyz\r\n");
        net.run(Duration::from_millis(10));
        disk.fail_no_more();
        let mut waited = 0;
        while !net.hear(near).contains("{\"stream\":\"S\"") {
            net.tell(near, "PUB s.z near 1\r\nz\r\n");
            net.run(Duration::from_millis(10));
            waited += 1;
            assert!(waited < 1_000, "the log is never well again");
        }
        let acked = net.hear(far);
        assert!(!acked.contains("MSG"), "it was not taken yet: {acked}");
        let body = r#"{"batch":1,"no_wait":true}"#;
        let len = body.len();
        let pull = if next {
            format!("PUB $JS.ACK.S.c.1.1.1.1.1 far.3 {}\r\n+NXT {body}\r\n", len + 5)
        } else {
            format!("PUB $JS.API.CONSUMER.MSG.NEXT.S.c far.3 {len}\r\n{body}\r\n")
        };
        net.tell(far, &pull);
        net.run(2 * SECOND);
        let heard = net.hear(far);
        assert!(heard.contains("xyz") && !heard.contains("404"), "{heard}");
    }
}
