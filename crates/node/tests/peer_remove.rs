//! What becomes of streams when a server is taken out of the cluster: see `net` for the network that they are on.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Net, host, route};
use serde_json::Value;
use std::time::Duration;
use tidelock_node::Listener;

const SECOND: Duration = Duration::from_secs(1);

fn config(node: usize) -> String {
    let routes: Vec<String> = (0..3).map(|n| format!("\"nats-route://{}\"", route(n))).collect();
    format!(
        "server_name: n{node}\nlisten: \"{0}:4222\"\njetstream {{ store_dir: \"/n{node}\", max_file_store: 1GB }}\n\
         cluster {{ name: c, listen: \"{0}:6222\", ping_interval: 2, routes: [{1}] }}\nauthorization {{ timeout: 60 }}\n\
         accounts {{ A {{ jetstream: enabled, users: [{{user: a, password: p}}] }}, \
         SYS {{ users: [{{user: s, password: p}}] }} }}\nsystem_account: SYS\n",
        host(node),
        routes.join(", ")
    )
}

/// Sends a request to the first node and answers what comes within a while.
fn ask(net: &mut Net, user: &str, subject: &str, body: &str) -> Value {
    let client = net.open(0, 0, Listener::Client);
    net.tell(
        client,
        &format!(
            "CONNECT {{\"verbose\":false,\"user\":\"{user}\",\"pass\":\"p\"}}\r\nSUB in 1\r\nPUB {subject} in {}\r\n{body}\r\n",
            body.len()
        ),
    );
    for _ in 0..50 {
        let heard = net.hear(client);
        if let Some(line) = heard.lines().find(|line| line.starts_with('{')) {
            return serde_json::from_str(line).unwrap();
        }
        net.run(SECOND / 10);
    }
    panic!("{subject} was not answered");
}

/// The other replicas of a stream, and whether they are current.
fn replicas(net: &mut Net, stream: &str) -> Vec<(String, bool)> {
    let info = ask(net, "a", &format!("$JS.API.STREAM.INFO.{stream}"), "");
    let leader = info["cluster"]["leader"].clone();
    let others = info["cluster"]["replicas"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let others = others
        .iter()
        .map(|one| (one["name"].as_str().unwrap().to_owned(), one["current"] == true));
    let mut all: Vec<(String, bool)> = others.collect();
    all.push((leader.as_str().unwrap_or_default().to_owned(), true));
    all.sort();
    all
}

/// Three nodes, a stream on all of them, and the third node is gone for good.
fn without_the_third() -> Net {
    let mut net = Net::new();
    for node in 0..3 {
        net.add(1, &config(node));
    }
    net.run(SECOND * 5);
    let made = ask(
        &mut net,
        "a",
        "$JS.API.STREAM.CREATE.three",
        r#"{"name":"three","subjects":["three"],"num_replicas":3}"#,
    );
    assert_eq!(made["did_create"], true, "{made}");
    let ack = ask(&mut net, "a", "three", "x");
    assert_eq!(ack["seq"], 1, "{ack}");
    net.kill(2);
    net.run(SECOND * 6);
    let removed = ask(&mut net, "s", "$JS.API.SERVER.REMOVE", r#"{"peer":"n2"}"#);
    assert_eq!(removed["success"], true, "{removed}");
    net.run(SECOND * 3);
    net
}

#[test]
fn streams_go_on_without_a_server_that_was_removed_and_take_another_when_there_is_one() {
    let mut net = without_the_third();
    let all = |names: &[&str]| -> Vec<(String, bool)> {
        names.iter().map(|name| ((*name).to_owned(), true)).collect()
    };
    assert_eq!(replicas(&mut net, "three"), all(&["n0", "n1"]));
    let ack = ask(&mut net, "a", "three", "y");
    assert_eq!(ack["seq"], 2, "{ack}");

    net.add(1, &config(3));
    net.run(SECOND * 10);
    assert_eq!(replicas(&mut net, "three"), all(&["n0", "n1", "n3"]));
}
