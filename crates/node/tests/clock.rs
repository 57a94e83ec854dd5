//! Wall clocks that are wrong: what streams are stamped with, and what falls due by it. See `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Net, clustered_for_clients};
use serde_json::Value;
use std::time::Duration;
use tidelock_node::ReplicaView;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: i64 = 3_600_000_000_000;

/// Three nodes of two workers, and a stream whose messages live for a minute, with one message.
fn three() -> Net {
    let mut net = Net::new();
    for node in 0..3 {
        net.add(2, &clustered_for_clients(3, node));
    }
    net.run(SECOND * 8);
    make(&mut net, 3);
    net
}

fn make(net: &mut Net, replicas: usize) {
    let body = format!(r#"{{"name":"S","subjects":["s"],"num_replicas":{replicas},"max_age":60000000000}}"#);
    let made = net.ask_json("a", 0, "$JS.API.STREAM.CREATE.S", &body);
    assert_eq!(made["did_create"], true, "{made}");
    publish(net, 0, 1);
}

fn publish(net: &mut Net, node: usize, seq: u64) {
    let ack = net.ask_json("a", node, "s", "x");
    assert_eq!(ack["seq"], seq, "{ack}");
}

fn view(net: &Net, node: usize) -> ReplicaView {
    net.replica(node, "S").unwrap()
}

fn leader(net: &Net) -> usize {
    leader_of(net, &[0, 1, 2][..net.nodes.len()])
}

fn leader_of(net: &Net, nodes: &[usize]) -> usize {
    let found = nodes.iter().find(|node| view(net, **node).is_leader);
    *found.unwrap()
}

/// The node that has the only replica.
fn leader_of_one(net: &Net) -> usize {
    let has = |node: &usize| net.replica(*node, "S").is_some();
    (0..net.nodes.len()).find(has).unwrap()
}

fn count(net: &Net) -> u64 {
    view(net, leader(net)).messages
}

/// By how much the stamp of a message that is published now is off, in milliseconds.
fn stamp_off(net: &mut Net, seq: u64) -> i64 {
    publish(net, 0, seq);
    let now = net.wall().0;
    let got = net.ask_json("a", 0, "$JS.API.STREAM.MSG.GET.S", &format!(r#"{{"seq":{seq}}}"#));
    let time = got["message"]["time"].as_str().unwrap();
    let stamp = tidelock_api::Time::parse(time).unwrap();
    (stamp.0.0 - now) / 1_000_000
}

#[test]
fn a_leader_whose_clock_jumps_hands_over_and_nothing_expires_early_or_late() {
    for jump in [HOUR, -HOUR] {
        let mut net = three();
        net.run(SECOND * 3);
        let before = leader(&net);
        net.clocks.insert(before, jump);
        let lines = net::log::said(|| net.run(SECOND * 5));
        let said = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
        assert_eq!(said("3600.000 s off those of its cluster"), 1, "{lines:?}");
        assert_ne!(leader(&net), before, "{jump}");
        assert_eq!(count(&net), 1, "{jump}");
        let off = stamp_off(&mut net, 2);
        assert!(off.abs() < 2_100, "{jump}: {off} ms");
        net.run(SECOND * 40);
        assert_eq!(count(&net), 2, "{jump}: not a minute old");
        net.run(SECOND * 30);
        assert_eq!(count(&net), 0, "{jump}");
        let lines = net::log::said(|| {
            net.clocks.clear();
            net.run(SECOND * 3);
        });
        assert!(
            lines
                .iter()
                .any(|line| line.contains("agrees with those of its cluster again"))
        );
    }
}

#[test]
fn a_server_that_starts_with_a_wrong_clock_goes_by_those_of_the_others() {
    for wrong in [HOUR, -HOUR] {
        let mut net = three();
        net.kill(1);
        net.clocks.insert(1, wrong);
        net.restart(1, 2, &clustered_for_clients(3, 1), 1);
        net.run(SECOND * 5);
        // The one with the wrong clock is left to lead.
        for step in 0..20 {
            if leader(&net) == 1 {
                break;
            }
            assert!(step < 19, "{wrong}");
            net.ask_json("a", 0, "$JS.API.STREAM.LEADER.STEPDOWN.S", "");
            net.run(SECOND * 2);
        }
        assert_eq!(count(&net), 1, "{wrong}");
        let off = stamp_off(&mut net, 2);
        assert!(off.abs() < 2_100, "{wrong}: {off} ms");
    }
}

/// It cannot know better as long as one of the others says this and it says that, and is the leader of half of what there is.
#[test]
fn a_server_that_starts_with_a_wrong_clock_beside_one_other_does_not_believe_it() {
    for wrong in [HOUR, -HOUR] {
        let mut net = three();
        net.run(SECOND * 3);
        net.kill(2);
        net.kill(1);
        net.clocks.insert(1, wrong);
        net.restart(1, 2, &clustered_for_clients(3, 1), 1);
        net.run(SECOND * 5);
        for step in 0..20 {
            if leader_of(&net, &[0, 1]) == 1 {
                break;
            }
            assert!(step < 19, "{wrong}");
            net.ask_json("a", 0, "$JS.API.STREAM.LEADER.STEPDOWN.S", "");
            net.run(SECOND * 2);
        }
        assert_eq!(view(&net, 1).messages, 1, "{wrong}");
        // How long nothing happened before it stopped it does not know.
        let off = stamp_off(&mut net, 2);
        assert!((-6_000..=0).contains(&off), "{wrong}: {off} ms");
        net.run(SECOND * 15);
        assert_eq!(view(&net, 1).messages, 2, "{wrong}");
    }
}

/// The only replica of a stream is led as soon as its server has started.
#[test]
fn a_stream_of_one_replica_does_not_believe_a_server_that_starts_with_a_wrong_clock() {
    for wrong in [HOUR, -HOUR] {
        let mut net = three();
        let deleted = net.ask_json("a", 0, "$JS.API.STREAM.DELETE.S", "");
        assert_eq!(deleted["success"], true, "{deleted}");
        make(&mut net, 1);
        let node = leader_of_one(&net);
        net.kill(node);
        net.clocks.insert(node, wrong);
        net.restart(node, 2, &clustered_for_clients(3, node), 1);
        net.run(SECOND * 5);
        assert_eq!(view(&net, node).messages, 1, "{wrong}");
        net.run(SECOND * 70);
        assert_eq!(view(&net, node).messages, 0, "{wrong}");
    }
}

#[test]
fn a_cluster_is_founded_by_the_time_of_most_of_its_servers() {
    for first in 0..3 {
        let mut net = Net::new();
        net.clocks.insert(first, HOUR);
        for node in 0..3 {
            net.add(2, &clustered_for_clients(3, node));
        }
        net.run(SECOND * 8);
        make(&mut net, 3);
        let off = stamp_off(&mut net, 2);
        assert!(off.abs() < 2_100, "{first}: {off} ms");
    }
    // Without a majority it is founded all the same.
    let mut net = Net::new();
    net.clocks.insert(0, HOUR);
    net.clocks.insert(1, -HOUR);
    for node in 0..3 {
        net.add(2, &clustered_for_clients(3, node));
    }
    net.run(SECOND * 15);
    make(&mut net, 3);
}

#[test]
fn when_all_clocks_are_set_the_streams_follow() {
    let mut net = three();
    net.run(SECOND * 3);
    for node in 0..3 {
        net.clocks.insert(node, HOUR);
    }
    net.run(SECOND * 5);
    assert_eq!(count(&net), 0, "an hour old");
}

/// Nobody can tell it whether the others' clocks agree with its own.
#[test]
fn a_server_that_is_cut_off_goes_by_its_own_pace() {
    for jump in [HOUR, -HOUR] {
        let mut net = three();
        let deleted = net.ask_json("a", 0, "$JS.API.STREAM.DELETE.S", "");
        assert_eq!(deleted["success"], true, "{deleted}");
        make(&mut net, 1);
        let node = leader_of_one(&net);
        for other in (0..3).filter(|other| *other != node) {
            net.cut(node, other);
            net.cut(other, node);
        }
        net.clocks.insert(node, jump);
        let held = |net: &Net| view(net, node).messages;
        net.run(SECOND * 57);
        assert_eq!(held(&net), 1, "{jump}");
        net.run(SECOND * 4);
        assert_eq!(held(&net), 0, "{jump}");
    }
}

#[test]
fn a_server_alone_whose_clock_jumps_keeps_what_is_not_old() {
    for jump in [HOUR, -HOUR] {
        let mut net = Net::new();
        net.add(2, "jetstream: enabled\n");
        net.run(SECOND * 2);
        let ask = |net: &mut Net, subject: &str, body: &str| -> Value {
            let client = net.client(0, 0);
            net.tell(client, "SUB in 1\r\n");
            net.tell(client, &format!("PUB {subject} in {}\r\n{body}\r\n", body.len()));
            net.run(SECOND);
            let heard = net.hear(client);
            serde_json::from_str(&heard[heard.find('{').unwrap()..]).unwrap()
        };
        let body = r#"{"name":"S","subjects":["s"],"max_age":60000000000}"#;
        ask(&mut net, "$JS.API.STREAM.CREATE.S", body);
        let ack = ask(&mut net, "s", "x");
        assert_eq!(ack["seq"], 1, "{ack}");
        net.clocks.insert(0, jump);
        net.run(SECOND * 45);
        assert_eq!(count(&net), 1, "{jump}");
        // A tenth of the time at most is gained or lost.
        net.run(SECOND * 25);
        assert_eq!(count(&net), 0, "{jump}");
    }
}
