//! Nodes that are linked to a cluster: see `net` for the network that they are on.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net, route};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelock_base::NodeId;
use tidelock_node::{LaneKind, Listener};

const SECOND: Duration = Duration::from_secs(1);

/// A configuration with these routes and more.
fn config(name: &str, routes: &[usize], more: &str) -> String {
    let routes: Vec<String> = routes
        .iter()
        .map(|n| format!("\"nats-route://{}\"", route(*n)))
        .collect();
    format!(
        "server_name: {name}\nport: 4222\nping_interval: 60\ncluster {{ name: c, listen: \"10.0.0.9:6222\", \
         ping_interval: 2, routes: [{}]\n{more} }}\n",
        routes.join(", ")
    )
}

/// Nodes that all know all, and have found each other.
fn cluster(workers: &[u16]) -> Net {
    let all: Vec<usize> = (0..workers.len()).collect();
    let mut net = Net::new();
    for (n, workers) in workers.iter().enumerate() {
        net.add(*workers, &config(&format!("n{n}"), &all, ""));
    }
    net.run(SECOND * 3);
    assert_mesh(&net);
    net
}

fn peers_up(net: &Net, node: usize) -> Vec<u64> {
    let table = net.nodes[node].shared.peers.load();
    table
        .peers
        .iter()
        .filter(|peer| peer.up)
        .map(|peer| peer.facts.node.0)
        .collect()
}

fn assert_mesh(net: &Net) {
    for (n, node) in net.nodes.iter().enumerate() {
        let others: Vec<u64> = (1..=net.nodes.len() as u64)
            .filter(|id| *id != n as u64 + 1)
            .collect();
        assert_eq!(peers_up(net, n), others, "peers of node {n}");
        for peer in &node.shared.peers.load().peers {
            let lanes = |dialled| peer.links.iter().filter(|link| link.dialled == dialled).count();
            assert_eq!((lanes(true), lanes(false)), (4, 4), "links of node {n}");
        }
    }
}

/// Client messages that one node has sent to another.
fn crossed(net: &Net, from: usize, to: usize) -> u64 {
    let table = net.nodes[from].shared.peers.load();
    let peer = table.get(NodeId(to as u64 + 1)).expect("a peer");
    let link = peer
        .links
        .iter()
        .find(|link| link.dialled && link.lane == LaneKind::Client)
        .expect("a client lane");
    link.stats.messages.load(Ordering::Relaxed)
}

/// What a client has received, but for what the server says of itself.
fn messages(net: &mut Net, client: Client) -> String {
    let heard = net.hear(client);
    let kept = heard
        .split_inclusive("\r\n")
        .filter(|line| !line.starts_with("INFO ") && *line != "PING\r\n");
    kept.collect()
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

#[test]
fn messages_and_replies_go_to_where_interest_is() {
    let mut net = cluster(&[2, 2]);
    let (alice, bob) = (net.client(0, 1), net.client(1, 1));
    net.tell(bob, "SUB greet.* 1\r\n");
    net.tell(
        alice,
        "SUB inbox.1 9\r\nPUB greet.joe inbox.1 5\r\nhello\r\nHPUB greet.h 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    );
    assert_eq!(
        net.hear(bob),
        "MSG greet.joe 1 inbox.1 5\r\nhello\r\nHMSG greet.h 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    );
    net.tell(bob, "PUB inbox.1 3\r\nyes\r\n");
    assert_eq!(net.hear(alice), "MSG inbox.1 9 3\r\nyes\r\n");
    net.tell(bob, "UNSUB 1\r\n");
    net.tell(alice, "PUB greet.joe inbox.1 0\r\n\r\n");
    assert!(net.hear(alice).starts_with("HMSG inbox.1 9 "), "no responders");
    assert_eq!(net.hear(bob), "");
}

#[test]
fn a_mesh_grows_from_one_seed_and_names_of_clusters_without_one_agree() {
    let mut net = Net::new();
    let named = |n: usize| config(&format!("n{n}"), &[0], "").replace("name: c,", "");
    net.add(
        1,
        &named(0).replace(&format!("\"nats-route://{}\"", route(0)), ""),
    );
    net.add(2, &named(1));
    net.add(1, &config("n2", &[0], ""));
    net.add(1, &named(3));
    net.run(SECOND * 8);
    assert_mesh(&net);
    for node in &net.nodes {
        assert_eq!(node.shared.cluster_name().as_deref(), Some("c"));
    }
}

#[test]
fn a_configured_route_to_the_node_itself_counts_as_found() {
    let mut net = Net::new();
    net.add(1, &config("n0", &[0], ""));
    net.run(SECOND);
    let table = net.nodes[0].shared.peers.load();
    assert_eq!(
        (table.routes_found, table.routes_configured, table.peers.len()),
        (1, 1, 0)
    );
}

#[test]
fn a_message_crosses_a_link_once() {
    let mut net = cluster(&[1, 2, 1]);
    let alice = net.client(0, 0);
    let receivers: Vec<Client> = (0..2).map(|worker| net.client(1, worker)).collect();
    for receiver in &receivers {
        net.tell(
            *receiver,
            "SUB a.* 1\r\nSUB a.b 2\r\nSUB a.b q 3\r\nSUB a.> r 4\r\n",
        );
    }
    net.tell(alice, "PUB a.b 1\r\nx\r\n");
    assert_eq!((crossed(&net, 0, 1), crossed(&net, 0, 2)), (1, 0));
    let all: String = receivers.iter().map(|receiver| net.hear(*receiver)).collect();
    let by_sid: Vec<usize> = (1..=4)
        .map(|sid| count(&all, &format!("MSG a.b {sid} 1\r\n")))
        .collect();
    assert_eq!(by_sid, [2, 2, 1, 1]);
}

#[test]
fn queue_groups_pick_one_member_in_the_cluster_and_all_alike() {
    let mut net = cluster(&[1, 2]);
    let publisher = net.client(0, 0);
    let mut members = vec![net.client(0, 0)];
    members.extend((0..3).map(|n| net.client(1, n % 2)));
    for member in &members {
        net.tell(*member, "SUB work group 1\r\n");
    }
    let jobs = "PUB work 0\r\n\r\n".repeat(4_000);
    net.tell(publisher, &jobs);
    let got: Vec<usize> = members
        .iter()
        .map(|member| count(&net.hear(*member), "MSG work 1 0\r\n"))
        .collect();
    assert_eq!(got.iter().sum::<usize>(), 4_000);
    assert!(got.iter().all(|n| (850..1_150).contains(n)), "{got:?}");
    net.tell(members[0], "UNSUB 1\r\n");
    net.tell(members[1], "UNSUB 1\r\n");
    net.tell(publisher, &jobs);
    let got: Vec<usize> = members
        .iter()
        .map(|member| count(&net.hear(*member), "MSG work 1 0\r\n"))
        .collect();
    assert_eq!((got[0], got[1], got[2] + got[3]), (0, 0, 4_000));
}

#[test]
fn a_lost_connection_takes_interest_away_and_a_new_one_brings_it_as_it_is_then() {
    let mut net = cluster(&[1, 1]);
    let (alice, bob) = (net.client(0, 0), net.client(1, 0));
    net.tell(bob, "SUB old 1\r\nSUB stays 2\r\n");
    net.disconnect(0, 1);
    net.settle();
    assert_eq!((peers_up(&net, 0), peers_up(&net, 1)), (vec![], vec![]));
    net.tell(alice, "SUB r 7\r\nPUB stays r 0\r\n\r\n");
    assert!(net.hear(alice).contains("503"), "nobody is there");
    net.tell(bob, "UNSUB 1\r\nSUB new 3\r\n");
    net.run(SECOND * 3);
    assert_mesh(&net);
    net.tell(alice, "PUB old r 0\r\n\r\nPUB stays 0\r\n\r\nPUB new 0\r\n\r\n");
    assert_eq!(
        messages(&mut net, bob),
        "MSG stays 2 0\r\n\r\nMSG new 3 0\r\n\r\n"
    );
    assert!(net.hear(alice).contains("503"), "nobody wants what was given up");
}

#[test]
fn a_restarted_node_is_met_again() {
    let mut net = cluster(&[1, 1, 1]);
    let bob = net.client(1, 0);
    net.tell(bob, "SUB a 1\r\n");
    net.kill(2);
    net.run(SECOND * 13 / 10);
    assert_eq!(peers_up(&net, 1), [1]);
    net.restart(2, 1, &config("n2", &[0, 1, 2], ""), 1);
    // The others do not wait for their next attempts: it has come to them.
    net.run(SECOND / 10);
    assert_mesh(&net);
    let carol = net.client(2, 0);
    net.tell(carol, "PUB a 1\r\nx\r\n");
    assert_eq!(messages(&mut net, bob), "MSG a 1 1\r\nx\r\n");
}

#[test]
fn strangers_are_refused() {
    let auth = "authorization { user: u, password: secret }";
    let mut net = Net::new();
    net.add(1, &config("n0", &[], auth));
    net.add(1, &config("good", &[0], auth));
    net.add(1, &config("other", &[0], auth).replace("name: c,", "name: d,"));
    net.add(
        1,
        &config("wrong", &[0], "authorization { user: u, password: guess }"),
    );
    net.add(1, &config("n0", &[0], auth));
    net.add(
        1,
        &config("url", &[], "").replace(
            "routes: []",
            &format!("routes: [\"nats-route://u:secret@{}\"]", route(0)),
        ),
    );
    net.run(SECOND * 4);
    assert_eq!(
        peers_up(&net, 0),
        [2, 6],
        "its like, and who brings the password in the URL"
    );
    assert_eq!(
        (peers_up(&net, 2), peers_up(&net, 3), peers_up(&net, 4)),
        (vec![], vec![], vec![])
    );

    let lost = net.open(0, 0, Listener::Route);
    net.say(lost, "CONNECT {\"lang\":\"go\"}\r\nPING\r\n");
    net.run(SECOND);
    assert_eq!(net.hear(lost), "-ERR 'attempted to connect to route port'\r\n");
    assert!(net.is_closed(lost));
    let silent = net.open(0, 0, Listener::Route);
    net.run(SECOND);
    assert!(!net.is_closed(silent));
    net.run(SECOND * 2);
    assert!(net.is_closed(silent), "the handshake took too long");
    let hasty = net.open(0, 0, Listener::Route);
    net.say(hasty, [4, 0, 0, 0, 23, 2, 0, 0]);
    net.run(SECOND);
    assert!(net.is_closed(hasty), "a cell before the handshake");
}

#[test]
fn a_network_that_is_cut_one_way_works_the_other_way_until_it_is_noticed_and_heals() {
    let mut net = cluster(&[1, 1]);
    let (alice, bob) = (net.client(0, 0), net.client(1, 0));
    net.tell(alice, "SUB to.alice 1\r\n");
    net.tell(bob, "SUB to.bob 1\r\n");
    net.cut(0, 1);
    net.tell(alice, "PUB to.bob 0\r\n\r\n");
    net.tell(bob, "PUB to.alice 0\r\n\r\n");
    assert_eq!(
        (net.hear(alice).as_str(), net.hear(bob).as_str()),
        ("MSG to.alice 1 0\r\n\r\n", "")
    );
    net.run(SECOND * 12);
    assert_eq!(
        (peers_up(&net, 0), peers_up(&net, 1)),
        (vec![], vec![]),
        "pings tell"
    );
    net.heal();
    net.run(SECOND * 4);
    assert_mesh(&net);
    net.tell(alice, "PUB to.bob 0\r\n\r\n");
    assert_eq!(messages(&mut net, bob), "MSG to.bob 1 0\r\n\r\n");
}

#[test]
fn nodes_that_lost_each_other_meet_again_through_a_third() {
    let mut net = Net::new();
    net.add(1, &config("n0", &[], ""));
    net.add(1, &config("n1", &[0], ""));
    net.add(1, &config("n2", &[0], ""));
    net.run(SECOND * 6);
    assert_mesh(&net);
    net.cut(1, 2);
    net.cut(2, 1);
    net.run(SECOND * 30);
    assert_eq!((peers_up(&net, 1), peers_up(&net, 2)), (vec![1], vec![1]));
    net.heal();
    net.run(SECOND * 10);
    assert_mesh(&net);
}

#[test]
fn clients_are_told_where_else_to_connect() {
    let mut net = Net::new();
    net.add(2, &config("n0", &[], ""));
    let alice = net.client(0, 1);
    net.add(1, &config("n1", &[0], ""));
    net.add(1, &config("n2", &[0], "no_advertise: true"));
    net.run(SECOND * 3);
    let told = net.hear(alice);
    assert_eq!(count(&told, "INFO "), 1, "{told}");
    assert!(
        told.contains(r#""connect_urls":["10.0.0.1:4222","10.0.0.2:4222"]"#),
        "{told}"
    );
    net.kill(1);
    net.run(SECOND);
    let told = net.hear(alice);
    assert!(count(&told, "INFO ") == 1 && !told.contains("10.0.0.2"), "{told}");
}

#[test]
fn large_messages_arrive_whole_in_order_with_small_ones() {
    let mut net = cluster(&[1, 1]);
    let (alice, bob) = (net.client(0, 0), net.client(1, 0));
    net.tell(bob, "SUB a 1\r\n");
    let mut expected = String::new();
    for (n, len) in [3, 20_000, 0, 200_000, 70_000, 1, 900_000]
        .into_iter()
        .enumerate()
    {
        let payload = "abcdefg".chars().cycle().skip(n).take(len).collect::<String>();
        net.say(alice, format!("PUB a {len}\r\n{payload}\r\n"));
        expected.push_str(&format!("MSG a 1 {len}\r\n{payload}\r\n"));
    }
    let mut heard = String::new();
    for _ in 0..40 {
        net.settle();
        heard.push_str(&net.hear(bob));
    }
    assert!(heard == expected, "{} of {} bytes", heard.len(), expected.len());
    assert_eq!(crossed(&net, 0, 1), 7);
}

#[test]
fn publishers_to_a_node_that_is_behind_are_paused_and_nothing_is_lost() {
    let mut net = cluster(&[2, 1]);
    let (alice, bob) = (net.client(0, 1), net.client(1, 0));
    net.tell(bob, "SUB a 1\r\n");
    net.stall(0, 1, true);
    let payload = "x".repeat(1_000);
    let message = format!("PUB a 1000\r\n{payload}\r\n");
    for _ in 0..16 {
        net.tell(alice, &message.repeat(500));
    }
    let paused = net.nodes[0].shared.totals.stalled_clients.load(Ordering::Relaxed);
    assert!(
        paused > 0 && crossed(&net, 0, 1) < 8_000,
        "{} have crossed",
        crossed(&net, 0, 1)
    );
    net.stall(0, 1, false);
    let mut got = 0;
    for _ in 0..100 {
        net.settle();
        got += count(&net.hear(bob), "MSG a 1 1000\r\n");
    }
    assert_eq!(got, 8_000);
}

/// A subscriber that takes nothing: its publisher waits for it for a second, and no more.
#[test]
fn a_publisher_does_not_wait_long_for_a_receiver_that_is_stuck() {
    let mut net = Net::new();
    net.add(1, "max_pending: 16MB");
    net.settle();
    let (alice, bob) = (net.client(0, 0), net.client(0, 0));
    net.tell(bob, "SUB a 1\r\n");
    let message = format!("PUB a 100000\r\n{}\r\n", "x".repeat(100_000));
    for _ in 0..300 {
        net.say(alice, &message);
    }
    net.hear(alice);
    net.tell(alice, "PING\r\n");
    assert_eq!(net.hear(alice), "", "the publisher is paused");
    let lines = net::log::said(|| net.run(SECOND + SECOND / 2));
    assert_eq!(net.hear(alice), "PONG\r\n");
    assert!(net.is_closed(bob), "cut with more than max_pending");
    let detected = "Slow Consumer Detected: MaxPending of 16777216 Exceeded";
    assert!(lines.iter().any(|line| line.contains(detected)), "{lines:?}");
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let run = || {
        let mut net = cluster(&[2, 2, 1]);
        let clients: Vec<Client> = (0..3).map(|n| net.client(n, 0)).collect();
        for client in &clients {
            net.tell(*client, "SUB a.* q 1\r\nSUB a.> 2\r\n");
        }
        net.tell(clients[0], &"PUB a.b 2\r\nhi\r\n".repeat(50));
        net.disconnect(1, 2);
        net.run(SECOND * 5);
        net.digest()
    };
    assert_eq!(run(), run());
}
