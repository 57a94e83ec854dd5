//! Replicas that differ: who notices, who is replaced, and what is said. Here an entry is changed on its way to one of
//! them, as a broken machine would do it. See `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Net, clustered_for_clients};
use std::time::Duration;
use tidelock_node::{Budgets, ReplicaView};

const SECOND: Duration = Duration::from_secs(1);

fn publish(net: &mut Net, node: usize) {
    let ack = net.ask_json("a", node, "s", "some payload");
    assert!(ack["seq"].is_u64(), "{ack}");
}

/// Nodes with a stream on all of them.
fn cluster(nodes: usize) -> Net {
    let mut net = Net::new();
    for node in 0..nodes {
        net.add(2, &clustered_for_clients(nodes, node));
    }
    net.run(SECOND * 8);
    let body = format!(r#"{{"name":"S","subjects":["s"],"num_replicas":{nodes}}}"#);
    let made = net.ask_json("a", 0, "$JS.API.STREAM.CREATE.S", &body);
    assert_eq!(made["did_create"], true, "{made}");
    publish(&mut net, 0);
    net
}

fn view(net: &Net, node: usize) -> Option<ReplicaView> {
    net.replica(node, "S")
}

fn leader(net: &Net) -> usize {
    let mut nodes = 0..net.nodes.len();
    nodes
        .find(|node| view(net, *node).is_some_and(|view| view.is_leader))
        .unwrap()
}

/// The stamp of the next entry of the stream that the leader sends to a node becomes another one.
fn spoil(net: &mut Net, node: usize) {
    const RAFT: u8 = 20;
    const APPEND: u8 = 1;
    /// Head of a frame between nodes, address of the group, head of the group's frame.
    const HEADS: usize = 8 + 24 + 72;
    let group = view(net, node).unwrap().group.0;
    net.tamper = Some(Box::new(move |_, to, bytes| {
        if to != node || bytes.len() < HEADS + 16 || bytes[4] != RAFT || bytes[33] != APPEND {
            return false;
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let count = word(36) as usize;
        let first = HEADS + count * 16;
        if bytes[8..16] != group.to_le_bytes()
            || count == 0
            || word(HEADS + 8) < 24
            || bytes.len() < first + 16
        {
            return false;
        }
        bytes[first + 8] ^= 1;
        true
    }));
    publish(net, leader(net));
    net.run(SECOND);
    assert!(net.tamper.is_none(), "nothing was changed");
}

fn digests(net: &Net) -> Vec<u64> {
    let views = (0..net.nodes.len()).filter_map(|node| view(net, node));
    views.map(|view| view.digest.unwrap()).collect()
}

fn assert_whole(net: &mut Net, what: &str) {
    for node in 0..net.nodes.len() {
        let health = net.health(node);
        assert!(health.contains("\"status\":\"ok\""), "{what}: {health}");
    }
    let digests = digests(net);
    assert_eq!(digests.len(), net.nodes.len(), "{what}");
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{what}");
}

#[test]
fn replicas_that_agree_stay() {
    let mut net = cluster(3);
    let before: Vec<_> = (0..3).map(|node| view(&net, node).unwrap().replica).collect();
    for _ in 0..10 {
        publish(&mut net, 0);
        net.run(SECOND * 20);
    }
    assert_whole(&mut net, "untouched");
    let after: Vec<_> = (0..3).map(|node| view(&net, node).unwrap().replica).collect();
    assert_eq!(before, after);
    // Nothing is compared that has not changed.
    let applied = view(&net, 0).unwrap().applied;
    net.run(SECOND * 100);
    let once = view(&net, 0).unwrap().applied;
    net.run(SECOND * 300);
    assert_eq!(view(&net, 0).unwrap().applied, once);
    assert!(once.0 <= applied.0 + 1, "{applied} {once}");
}

#[test]
fn a_follower_that_differs_is_replaced() {
    let mut net = cluster(3);
    let node = (leader(&net) + 1) % 3;
    let before = view(&net, node).unwrap().replica;
    spoil(&mut net, node);
    let all = digests(&net);
    assert!(all[node] != all[(node + 1) % 3], "{all:x?}");
    let mut unwell = false;
    let lines = net::log::said(|| {
        for _ in 0..100 {
            net.run(SECOND / 20);
            unwell |= !net.health(node).contains("\"status\":\"ok\"");
        }
        net.run(SECOND * 90);
    });
    let said = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
    assert_eq!(said("differs from the majority at entry"), 1, "{lines:?}");
    assert_eq!(
        said("ERROR Replica of stream \"S\" has stopped: it differs"),
        1,
        "{lines:?}"
    );
    assert!(unwell, "it says so while it is wrong");
    assert!(view(&net, node).unwrap().replica > before);
    assert_whole(&mut net, "replaced");
    publish(&mut net, node);
}

#[test]
fn a_leader_that_differs_hands_over_first() {
    let mut net = cluster(3);
    let node = (leader(&net) + 1) % 3;
    let before = view(&net, node).unwrap().replica;
    spoil(&mut net, node);
    for step in 0..20 {
        if leader(&net) == node {
            break;
        }
        assert!(step < 19, "it never leads");
        net.ask_json("a", 0, "$JS.API.STREAM.LEADER.STEPDOWN.S", "");
        net.run(SECOND * 2);
    }
    net.run(SECOND * 60);
    assert_ne!(leader(&net), node);
    assert!(view(&net, node).unwrap().replica > before);
    assert_whole(&mut net, "replaced");
}

#[test]
fn where_nobody_can_tell_who_is_right_nothing_is_replaced_and_an_operator_hears_of_it() {
    let mut net = cluster(2);
    let node = (leader(&net) + 1) % 2;
    let before: Vec<_> = (0..2).map(|node| view(&net, node).unwrap().replica).collect();
    spoil(&mut net, node);
    let lines = net::log::said(|| net.run(SECOND * 150));
    let said = lines
        .iter()
        .filter(|line| line.contains("no majority of them agrees"));
    assert_eq!(said.count(), 1, "{lines:?}");
    let leader = leader(&net);
    let health = net.health(leader);
    assert!(health.contains("has replicas that differ"), "{health}");
    let after: Vec<_> = (0..2).map(|node| view(&net, node).unwrap().replica).collect();
    assert_eq!(before, after);
    let ack = net.ask_json("a", leader, "s", "goes on");
    assert!(ack["seq"].is_u64(), "{ack}");
}

/// What an entry removes can only be found in a block that the disk has damaged since it was written.
#[test]
fn a_replica_whose_blocks_are_damaged_while_it_runs_is_replaced() {
    let mut net = Net::new();
    net.segment_bytes = 64 << 10;
    net.budgets = Budgets {
        log: 1,
        log_remains: 1 << 10,
        log_held: 0,
        block: 16 << 10,
        tail: 4 << 10,
        entries: 16 << 10,
        ..Budgets::default()
    };
    for node in 0..3 {
        net.add(2, &clustered_for_clients(3, node));
    }
    net.run(SECOND * 8);
    let body = r#"{"name":"S","subjects":["s"],"num_replicas":3}"#;
    let made = net.ask_json("a", 0, "$JS.API.STREAM.CREATE.S", body);
    assert_eq!(made["did_create"], true, "{made}");
    let client = net.client(leader(&net), 0);
    net.tell(
        client,
        &format!("PUB s 2000\r\n{}\r\n", "x".repeat(2_000)).repeat(60),
    );
    net.run(SECOND * 3);
    let node = (leader(&net) + 1) % 3;
    let before = view(&net, node).unwrap().replica;
    // A restart forgets what it had in memory of the blocks.
    net.kill(node);
    net.restart(node, 2, &clustered_for_clients(3, node), 1);
    net.run(SECOND * 5);
    let disk = net.nodes[node].disk.clone().unwrap();
    let blocks = disk
        .files()
        .into_iter()
        .filter(|(file, _)| file.as_str().starts_with("streams/"));
    for (file, len) in blocks {
        for at in (0..len).step_by(10) {
            disk.flip_bit(&file, at * 8);
        }
    }
    let leader = leader(&net);
    assert_ne!(leader, node);
    let lines = net::log::said(|| {
        for seq in (2..50).step_by(3) {
            let body = format!(r#"{{"seq":{seq}}}"#);
            let deleted = net.ask_json("a", leader, "$JS.API.STREAM.MSG.DELETE.S", &body);
            assert_eq!(deleted["success"], true, "{deleted}");
        }
        net.run(SECOND * 20);
    });
    let said = lines.iter().filter(|line| line.contains("is damaged on disk"));
    assert_eq!(said.count(), 1, "{lines:?}");
    assert!(view(&net, node).unwrap().replica > before);
    assert_whole(&mut net, "replaced");
}

/// The answer of one that is away is not waited for.
#[test]
fn two_of_three_are_enough_to_compare() {
    let mut net = cluster(3);
    let first = leader(&net);
    let (wrong, away) = ((first + 1) % 3, (first + 2) % 3);
    spoil(&mut net, wrong);
    net.kill(away);
    let lines = net::log::said(|| net.run(SECOND * 100));
    let said = lines
        .iter()
        .filter(|line| line.contains("no majority of them agrees"));
    assert_eq!(said.count(), 1, "{lines:?}");
    net.restart(away, 2, &clustered_for_clients(3, away), 1);
    net.run(SECOND * 150);
    assert_whole(&mut net, "with all three");
}
