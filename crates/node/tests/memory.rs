//! Streams in memory whose replicas are lost with the servers' processes: what is left goes on. See `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Net, clustered_for_clients};
use std::time::Duration;
use tidelock_node::LaneKind;

const SECOND: Duration = Duration::from_secs(1);
const MESSAGES: u64 = 300;
const GOES_ON: &str = "has lost the majority of its replicas; it goes on from this one";

/// Servers with a stream `M` in memory on all of them, which has a consumer with some of its messages acknowledged.
struct Bed {
    net: Net,
    nodes: usize,
    lives: u64,
}

impl Bed {
    fn new(nodes: usize) -> Self {
        let mut net = Net::new();
        for node in 0..nodes {
            net.add(1, &clustered_for_clients(nodes, node));
        }
        net.run(SECOND * 8);
        let mut bed = Self { net, nodes, lives: 1 };
        let body = format!(r#"{{"name":"M","subjects":["m"],"storage":"memory","num_replicas":{nodes}}}"#);
        let made = bed.ask(0, "$JS.API.STREAM.CREATE.M", &body);
        assert_eq!(made["did_create"], true, "{made}");
        bed.publish(0, MESSAGES);
        let body = r#"{"stream_name":"M","config":{"durable_name":"C","ack_policy":"explicit"}}"#;
        let made = bed.ask(0, "$JS.API.CONSUMER.CREATE.M.C", body);
        assert!(made["error"].is_null(), "{made}");
        assert_eq!(bed.pull(0, 20), 20);
        bed
    }

    fn ask(&mut self, node: usize, subject: &str, body: &str) -> serde_json::Value {
        self.net.ask_json("a", node, subject, body)
    }

    /// Publishes, and sees that all are acknowledged.
    #[track_caller]
    fn publish(&mut self, node: usize, count: u64) {
        let client = self.net.client(node, 0);
        let text: String = (0..count).map(|n| format!("PUB m in 6\r\n{n:06}\r\n")).collect();
        self.net.tell(client, &format!("SUB in 1\r\n{text}"));
        self.net.run(SECOND * 2);
        let heard = self.net.hear(client);
        assert_eq!(heard.matches("\"seq\"").count() as u64, count, "{heard}");
    }

    /// Pulls messages and acknowledges them; gives how many came.
    fn pull(&mut self, node: usize, count: usize) -> usize {
        let client = self.net.client(node, 0);
        let body = format!("{{\"batch\":{count},\"no_wait\":true}}");
        let request = format!(
            "PUB $JS.API.CONSUMER.MSG.NEXT.M.C in {}\r\n{body}\r\n",
            body.len()
        );
        self.net.tell(client, &format!("SUB in 1\r\n{request}"));
        self.net.run(SECOND);
        let heard = self.net.hear(client);
        let words = heard.split_ascii_whitespace();
        let replies: Vec<&str> = words.filter(|word| word.starts_with("$JS.ACK.M.C.")).collect();
        for reply in &replies {
            self.net.tell(client, &format!("PUB {reply} 4\r\n+ACK\r\n"));
        }
        self.net.run(SECOND);
        replies.len()
    }

    fn leader(&self) -> usize {
        let leads = |node: &usize| self.net.replica(*node, "M").is_some_and(|view| view.is_leader);
        (0..self.nodes).find(leads).unwrap()
    }

    /// These servers are killed, all at once, and started again.
    fn restart(&mut self, lost: &[usize]) {
        lost.iter().for_each(|node| self.net.kill(*node));
        self.lives += 1;
        for node in lost {
            let config = clustered_for_clients(self.nodes, *node);
            self.net.restart(*node, 1, &config, self.lives);
        }
    }

    /// A server is killed, and taken out of the cluster.
    fn lose_for_good(&mut self, node: usize) {
        self.net.kill(node);
        self.net.run(SECOND * 6);
        let body = format!(r#"{{"peer":"n{node}"}}"#);
        let removed = self.net.ask_json("s", 0, "$JS.API.SERVER.REMOVE", &body);
        assert_eq!(removed["success"], true, "{removed}");
        self.net.run(SECOND * 5);
    }

    /// These servers start anew, all at once; gives what the logs say until all is well again.
    fn start_anew(&mut self, lost: &[usize]) -> Vec<String> {
        net::log::said(|| {
            self.restart(lost);
            self.net.run(SECOND * 30);
        })
    }

    /// These servers start anew, all at once. None of them says that it is well before its replica is whole again.
    #[track_caller]
    fn start_anew_and_ask_for_health(&mut self, lost: &[usize]) {
        self.restart(lost);
        let mut well = 0;
        for _ in 0..3_000 {
            self.net.run(SECOND / 100);
            well = 0;
            for node in lost {
                if self.net.health(*node).contains("\"status\":\"ok\"") {
                    let view = self.net.replica(*node, "M");
                    let messages = view.map(|view| (view.messages, view.failed));
                    assert_eq!(messages, Some((MESSAGES, None)), "node {node}");
                    well += 1;
                }
            }
            if well == lost.len() {
                break;
            }
        }
        assert_eq!(well, lost.len());
    }

    /// Each server starts anew four times, as soon as the one before is well.
    fn roll(&mut self, messages: &mut u64) {
        for round in 0..12 {
            let node = (2 * round + round / 3) % 3;
            self.restart(&[node]);
            let mut steps = 0;
            while !self.net.health(node).contains("\"status\":\"ok\"") {
                self.net.run(SECOND / 100);
                steps += 1;
                assert!(
                    steps < 3_000,
                    "round {round}, node {node}: {}",
                    self.net.health(node)
                );
            }
            let view = self.net.replica(node, "M").map(|view| view.messages);
            assert_eq!(view, Some(*messages), "round {round}, node {node}");
            if round % 4 == 3 {
                self.publish((node + 1) % 3, 10);
                *messages += 10;
            }
        }
    }

    /// All replicas are there and the same, and have so many messages.
    #[track_caller]
    fn assert_whole(&mut self, messages: u64) {
        let views: Vec<_> = (0..self.nodes)
            .map(|node| self.net.replica(node, "M").unwrap())
            .collect();
        for view in &views {
            let shown = (
                view.digest,
                view.messages,
                view.voters.len(),
                view.failed.as_deref(),
            );
            assert_eq!(shown, (views[0].digest, messages, self.nodes, None), "{view:?}");
        }
        for node in 0..self.nodes {
            let health = self.net.health(node);
            assert!(health.contains("\"status\":\"ok\""), "node {node}: {health}");
        }
    }
}

fn said(lines: &[String], word: &str) -> usize {
    lines.iter().filter(|line| line.contains(word)).count()
}

#[test]
fn the_only_replica_that_is_left_goes_on_and_the_others_are_filled_from_it() {
    for left in 0..3 {
        let mut bed = Bed::new(3);
        let lost: Vec<usize> = (0..3).filter(|node| *node != left).collect();
        let lines = bed.start_anew(&lost);
        assert_eq!(said(&lines, GOES_ON), 1);
        bed.assert_whole(MESSAGES);
        bed.publish(left, 10);
        let info = bed.ask(lost[0], "$JS.API.CONSUMER.INFO.M.C", "");
        assert_eq!(info["ack_floor"]["stream_seq"], 20, "{info}");
        assert_eq!(bed.pull(lost[1], 500), 290, "the rest, once");
        // It can lose a majority again.
        let lines = bed.start_anew(&[left, lost[0]]);
        assert_eq!(said(&lines, GOES_ON), 1);
        bed.assert_whole(MESSAGES + 10);
    }
}

#[test]
fn of_several_that_are_left_the_one_with_the_longest_log_goes_on() {
    let mut bed = Bed::new(5);
    let leader = bed.leader();
    let others: Vec<usize> = (0..5).filter(|node| *node != leader).collect();
    // One of them hears nothing of what comes now.
    bed.net.hold_lane(leader, others[0], LaneKind::Log, true);
    bed.publish(leader, 50);
    let behind = bed.net.replica(others[0], "M").unwrap().messages;
    assert_eq!(behind, MESSAGES);
    bed.net.kill(leader);
    bed.net.hold_lane(leader, others[0], LaneKind::Log, false);
    let lines = bed.start_anew(&[leader, others[1], others[2]]);
    assert_eq!(said(&lines, GOES_ON), 1);
    bed.assert_whole(MESSAGES + 50);
}

#[test]
fn nobody_waits_for_one_that_has_not_been_filled_yet() {
    let mut bed = Bed::new(3);
    let leader = bed.leader();
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    for node in others {
        bed.net.kill(node);
        bed.net.hold_lane(leader, node, LaneKind::Bulk, true);
    }
    assert_eq!(said(&bed.start_anew(&others), GOES_ON), 1);
    let messages = |bed: &Bed, node| bed.net.replica(node, "M").map(|view| view.messages);
    // One after the other gets a replica.
    let filled = others.into_iter().find(|node| messages(&bed, *node).is_some());
    let filled = filled.unwrap();
    let empty = 3 - leader - filled;
    bed.net.hold_lane(leader, filled, LaneKind::Bulk, false);
    bed.net.run(SECOND * 10);
    assert_eq!(
        [leader, filled, empty].map(|node| messages(&bed, node)),
        [Some(MESSAGES), Some(MESSAGES), Some(0)]
    );
    bed.net.kill(leader);
    bed.net.hold_lane(leader, empty, LaneKind::Bulk, false);
    let lines = bed.start_anew(&[leader]);
    assert_eq!(said(&lines, GOES_ON), 1);
    bed.assert_whole(MESSAGES);
}

#[test]
fn what_the_last_leader_had_proposed_is_kept() {
    let mut bed = Bed::new(3);
    let leader = bed.leader();
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    for other in &others {
        bed.net.hold_lane(leader, *other, LaneKind::Log, true);
    }
    let client = bed.net.client(leader, 0);
    bed.net
        .tell(client, "SUB in 1\r\nPUB m in 1\r\nx\r\nPUB m in 1\r\ny\r\n");
    bed.net.run(SECOND / 10);
    assert_eq!(bed.net.hear(client).matches("\"seq\"").count(), 0);
    for other in &others {
        bed.net.kill(*other);
        bed.net.hold_lane(leader, *other, LaneKind::Log, false);
    }
    let lines = bed.start_anew(&others);
    assert_eq!(said(&lines, GOES_ON), 1);
    bed.assert_whole(MESSAGES + 2);
}

#[test]
fn a_stream_that_has_lost_one_replica_of_three_is_not_rescued() {
    let mut bed = Bed::new(3);
    let lines = bed.start_anew(&[0]);
    assert_eq!(said(&lines, GOES_ON), 0);
    bed.assert_whole(MESSAGES);
}

/// All messages of a stream in memory are in its state, and a frame of a link cannot be that long.
#[test]
fn more_messages_than_a_frame_can_hold_come_back_to_a_replica_that_is_lost() {
    let mut bed = Bed::new(3);
    let lost = (bed.leader() + 1) % 3;
    let client = bed.net.client(0, 0);
    bed.net.tell(client, "SUB in 1\r\n");
    let message = format!("PUB m in 1000000\r\n{}\r\n", "x".repeat(1_000_000));
    let mut acks = 0;
    for _ in 0..85 {
        bed.net.tell(client, &message);
        acks += bed.net.hear(client).matches("\"seq\"").count();
    }
    assert_eq!(acks, 85);
    let lines = bed.start_anew(&[lost]);
    bed.assert_whole(MESSAGES + 85);
    assert_eq!(said(&lines, "not received"), 0, "{lines:?}");
    bed.publish(lost, 10);
    assert_eq!(bed.pull(lost, 30), 30);
    bed.assert_whole(MESSAGES + 95);
}

/// A rolling restart that waits for nothing but `/healthz` must not take a stream its last replica.
#[test]
fn a_server_is_not_well_as_long_as_its_replica_is_to_be_made_again() {
    let mut bed = Bed::new(3);
    let one = (bed.leader() + 1) % 3;
    bed.start_anew_and_ask_for_health(&[one]);
    let leader = bed.leader();
    bed.start_anew_and_ask_for_health(&[leader]);
    let others: Vec<usize> = (0..3).filter(|node| *node != bed.leader()).collect();
    bed.start_anew_and_ask_for_health(&others);
    bed.net.run(SECOND * 2);
    bed.assert_whole(MESSAGES);
}

/// The log says what has become of a stream, and not what was thought of for it.
#[test]
fn a_stream_of_which_nothing_is_left_is_formed_anew_and_the_log_says_so_once() {
    let mut bed = Bed::new(3);
    let lines = bed.start_anew(&[0, 1, 2]);
    assert_eq!(said(&lines, "it is formed anew, empty"), 1, "{lines:?}");
    assert_eq!(said(&lines, GOES_ON), 0, "{lines:?}");
    bed.publish(0, 10);
    bed.assert_whole(10);
    // Twice in a row, the second time before all is well again.
    let lost = [bed.leader(), (bed.leader() + 1) % 3];
    let lines = net::log::said(|| {
        for seconds in [1, 31] {
            bed.restart(&lost);
            bed.net.run(SECOND * seconds);
        }
    });
    assert_eq!(said(&lines, "it is formed anew, empty"), 0, "{lines:?}");
    bed.assert_whole(10);
}

/// One server after the other starts anew, the next one as soon as the last one says that it is well.
#[test]
fn restarts_that_wait_for_nothing_but_health_lose_nothing() {
    let mut bed = Bed::new(3);
    let mut messages = MESSAGES;
    let lines = net::log::said(|| bed.roll(&mut messages));
    assert_eq!(said(&lines, GOES_ON), 0, "{lines:?}");
    assert!(said(&lines, "ended with its process") > 0);
    assert_eq!(
        said(&lines, "ERROR JetStream"),
        0,
        "it is as it should be: {lines:?}"
    );
    bed.net.run(SECOND * 10);
    bed.assert_whole(messages);
}

/// What was being added is all that is left, and has all of it.
#[test]
fn a_replica_that_has_just_been_filled_goes_on_when_it_is_the_only_one_left() {
    let mut bed = Bed::new(3);
    let leader = bed.leader();
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    bed.restart(&others);
    let has_all = |bed: &Bed, node: usize| {
        let view = bed.net.replica(node, "M");
        view.is_some_and(|view| view.messages == MESSAGES)
    };
    let mut steps = 0;
    while !others.iter().any(|node| has_all(&bed, *node)) {
        bed.net.run(SECOND / 1_000);
        steps += 1;
        assert!(steps < 30_000, "nothing is filled");
    }
    let lines = bed.start_anew(&[leader]);
    assert_eq!(said(&lines, "it is formed anew, empty"), 0, "{lines:?}");
    bed.assert_whole(MESSAGES);
}

/// One server is gone for good and was taken out of the cluster; then one of the two that are left starts anew.
#[test]
fn a_server_that_starts_anew_after_another_was_removed_gets_its_replicas_again() {
    let mut bed = Bed::new(3);
    let streams: Vec<String> = (0..8).map(|number| format!("M{number}")).collect();
    for name in &streams {
        let body = format!(r#"{{"name":"{name}","storage":"memory","num_replicas":3}}"#);
        let made = bed.ask(0, &format!("$JS.API.STREAM.CREATE.{name}"), &body);
        assert_eq!(made["did_create"], true, "{made}");
        assert_eq!(bed.ask(0, name, "x")["seq"], 1);
    }
    bed.lose_for_good(1);
    bed.start_anew(&[2]);
    for node in [0, 2] {
        for name in &streams {
            let view = bed.net.replica(node, name).unwrap();
            assert_eq!(
                (view.messages, view.voters.len(), view.failed),
                (1, 2, None),
                "{name}"
            );
        }
        let health = bed.net.health(node);
        assert!(health.contains("\"status\":\"ok\""), "{health}");
    }
}

/// What it had is gone with its process.
#[test]
fn a_stream_whose_only_server_was_removed_is_there_again_and_empty() {
    let mut bed = Bed::new(3);
    let made = |bed: &mut Bed, name: &str| {
        let body = format!(r#"{{"name":"{name}","storage":"memory","num_replicas":1}}"#);
        let made = bed.ask(0, &format!("$JS.API.STREAM.CREATE.{name}"), &body);
        assert_eq!(made["did_create"], true, "{made}");
        assert_eq!(bed.ask(0, name, "x")["seq"], 1);
        bed.net.replica(2, name).is_some()
    };
    let name = (0..9).map(|n| format!("alone{n}"));
    let name = name.into_iter().find(|name| made(&mut bed, name)).unwrap();
    bed.lose_for_good(2);
    let info = bed.ask(0, &format!("$JS.API.STREAM.INFO.{name}"), "");
    assert_eq!(info["state"]["messages"], 0, "{info}");
    assert_eq!(bed.ask(0, &name, "x")["seq"], 1);
}
