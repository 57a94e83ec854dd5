//! Publishes and consumers over whole turns of a node, with a disk that can be held: see `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net};
use std::time::Duration;

/// A node with a stream `S` on `s`, and a client of it.
fn node() -> (Net, Client) {
    let mut net = Net::new();
    let node = net.add(
        1,
        "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n",
    );
    net.run(Duration::from_secs(1));
    let client = net.client(node, 0);
    net.tell(client, "SUB in 1\r\n");
    request(
        &mut net,
        client,
        "$JS.API.STREAM.CREATE.S",
        r#"{"name":"S","subjects":["s"]}"#,
    );
    (net, client)
}

fn request(net: &mut Net, client: Client, subject: &str, body: &str) {
    net.tell(client, &format!("PUB {subject} in {}\r\n{body}\r\n", body.len()));
    let heard = net.hear(client);
    assert!(heard.contains("\"created\""), "{subject}: {heard}");
}

/// Stream sequences of the messages that a client has received.
fn delivered(net: &mut Net, client: Client) -> Vec<u64> {
    let heard = net.hear(client);
    let acks = heard
        .lines()
        .filter_map(|line| line.split_once("$JS.ACK.S.c.")?.1.split('.').nth(1));
    acks.map(|seq| seq.parse().unwrap()).collect()
}

/// What is stored while a delivery is on its way through the log is delivered without any further event.
fn stored_meanwhile(consumer: &str, demand: &str) {
    let (mut net, client) = node();
    request(&mut net, client, "$JS.API.CONSUMER.CREATE.S.c", consumer);
    net.tell(client, "SUB out 2\r\n");
    net.tell(client, demand);
    // Each time the disk has written, a message is stored; its delivery goes into the log beside the next message.
    net.hold_disk(0, true);
    for body in ["a", "b", "c"] {
        net.tell(client, &format!("PUB s 1\r\n{body}\r\n"));
        net.release_disk_once(0);
    }
    net.hold_disk(0, false);
    net.settle();
    assert_eq!(delivered(&mut net, client), [1, 2, 3]);
}

/// What comes while the log is being written goes into one entry, however many turns it takes.
#[test]
fn publishes_gather_while_the_disk_is_busy() {
    let (mut net, client) = node();
    net.hold_disk(0, true);
    for _ in 0..40 {
        net.tell(client, "PUB s in 1\r\nx\r\n");
    }
    let mut acks = Vec::new();
    for _ in 0..3 {
        net.release_disk_once(0);
        acks.push(net.hear(client).matches("\"seq\"").count());
    }
    assert_eq!(acks.iter().sum::<usize>(), 40, "{acks:?}");
}

#[test]
fn a_push_consumer_delivers_what_is_stored_during_a_delivery() {
    stored_meanwhile(
        r#"{"stream_name":"S","config":{"name":"c","durable_name":"c","deliver_subject":"out","ack_policy":"explicit"}}"#,
        "",
    );
}

#[test]
fn a_pull_request_gets_what_is_stored_during_a_delivery() {
    stored_meanwhile(
        r#"{"stream_name":"S","config":{"name":"c","durable_name":"c","ack_policy":"explicit"}}"#,
        "PUB $JS.API.CONSUMER.MSG.NEXT.S.c out 12\r\n{\"batch\":10}\r\n",
    );
}
