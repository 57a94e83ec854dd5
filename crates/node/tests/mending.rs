//! Stored messages that are damaged on one node's disk come from the other replicas (promise P4): whoever needs one gets
//! the right one, and the file is written again. See `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net, clustered_for_clients};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tidelock_base::ReplicaId;
use tidelock_node::{Budgets, LaneKind};
use tidelock_record::{Disk, Fault, FilePath, IoOp, MemDisk};

const SECOND: Duration = Duration::from_secs(1);
const MESSAGES: usize = 600;
/// Length of a payload; longer than what the alignment of a file leaves unused.
const PAYLOAD: usize = 400;

const ALONE: &str = "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\nno_auth_user: a\n\
                     accounts { A { jetstream: enabled, users: [{user: a, password: p}] }, \
                     SYS { users: [{user: s, password: p}] } }\nsystem_account: SYS\n";

fn payload(seq: usize) -> String {
    let mut text = format!("message {seq} ");
    while text.len() < PAYLOAD {
        text.push('x');
    }
    text
}

/// Nodes with a stream `S` on all of them, whose messages are in blocks of different sizes on each, and in no cache.
struct Bed {
    net: Net,
    nodes: usize,
}

impl Bed {
    fn new(nodes: usize) -> Self {
        let mut net = Net::new();
        net.segment_bytes = 64 << 10;
        for node in 0..nodes {
            net.budgets = Budgets {
                block: (24 << 10) + (node as u64 * (5 << 10)),
                tail: 4 << 10,
                // A start finds the blocks, and does not make them anew from the log.
                log: 1,
                log_remains: 1 << 10,
                log_held: 0,
                ..Budgets::default()
            };
            let config = if nodes == 1 {
                ALONE.to_owned()
            } else {
                clustered_for_clients(nodes, node)
            };
            net.add(1, &config);
        }
        net.run(SECOND * 8);
        let mut bed = Self { net, nodes };
        let body = format!(r#"{{"name":"S","subjects":["s"],"num_replicas":{nodes},"allow_direct":true}}"#);
        let made = bed.ask(0, "$JS.API.STREAM.CREATE.S", &body);
        assert_eq!(made["did_create"], true, "{made}");
        let client = bed.net.client(0, 0);
        bed.net.tell(client, "SUB in 1\r\n");
        let mut text = String::new();
        for seq in 1..=MESSAGES {
            let _ = write!(text, "PUB s in {PAYLOAD}\r\n{}\r\n", payload(seq));
        }
        bed.net.tell(client, &text);
        bed.net.run(SECOND * 5);
        assert_eq!(bed.net.hear(client).matches("\"seq\"").count(), MESSAGES);
        bed.net.run(SECOND * 30);
        assert!(!bed.blocks(nodes - 1).is_empty(), "the messages lie in blocks");
        bed
    }

    fn ask(&mut self, node: usize, subject: &str, body: &str) -> serde_json::Value {
        self.net.ask_json("a", node, subject, body)
    }

    fn disk(&self, node: usize) -> Arc<MemDisk> {
        self.net.nodes[node].disk.clone().unwrap()
    }

    /// Files of blocks of a node, in the order of their messages.
    fn blocks(&self, node: usize) -> Vec<(FilePath, u64)> {
        let mut files = self.disk(node).files();
        files.retain(|(file, len)| file.as_str().ends_with(".blk") && *len > 0);
        files.sort();
        files
    }

    /// Where a message lies in the files of a node.
    fn place(&self, node: usize, seq: usize) -> (FilePath, u64) {
        let disk = self.disk(node);
        let wanted = format!("message {seq} ");
        for (file, len) in self.blocks(node) {
            let bytes = disk.read(&file, 0, len).unwrap();
            let found = bytes
                .windows(wanted.len())
                .position(|window| window == wanted.as_bytes());
            if let Some(at) = found {
                return (file, at as u64);
            }
        }
        panic!("message {seq} is in no block of node {node}");
    }

    /// Turns a bit of a message over on the disk of a node.
    fn rot(&self, node: usize, seq: usize) -> FilePath {
        let (file, at) = self.place(node, seq);
        assert!(self.disk(node).flip_bit(&file, at * 8));
        file
    }

    /// Damages index and first message of a block, so that the index cannot be made again; gives its first message.
    fn break_block(&self, node: usize, number: usize) -> usize {
        let (file, len) = self.blocks(node)[number].clone();
        let disk = self.disk(node);
        let trailer = disk.read(&file, len - 128, 128).unwrap();
        let word = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().unwrap());
        let (first, frames) = (word(8), word(32));
        assert!(disk.flip_bit(&file, (64 + frames + 9) * 8));
        assert!(disk.flip_bit(&file, (64 + 100) * 8));
        usize::try_from(first).unwrap()
    }

    /// Asks a node for a message, and answers what has come by then.
    fn get(&mut self, node: usize, seq: usize) -> Client {
        let client = self.net.client(node, 0);
        let body = format!("{{\"seq\":{seq}}}");
        let request = format!("PUB $JS.API.DIRECT.GET.S in {}\r\n{body}\r\n", body.len());
        self.net.tell(client, &format!("SUB in 1\r\n{request}"));
        client
    }

    fn heard(&mut self, client: Client) -> String {
        for _ in 0..30 {
            let heard = self.net.hear(client);
            if heard.contains("MSG in 1 ") {
                return heard;
            }
            self.net.run(SECOND / 10);
        }
        panic!("no answer");
    }

    /// A consumer from a sequence on whose messages come to a client of that node.
    fn consume(&mut self, node: usize, from: usize) -> Client {
        let client = self.net.client(node, 0);
        let body = format!(
            r#"{{"stream_name":"S","config":{{"deliver_subject":"out.{from}","ack_policy":"none","deliver_policy":"by_start_sequence","opt_start_seq":{from}}}}}"#
        );
        let request = format!("PUB $JS.API.CONSUMER.CREATE.S in {}\r\n{body}\r\n", body.len());
        self.net
            .tell(client, &format!("SUB out.{from} 1\r\nSUB in 2\r\n{request}"));
        client
    }

    /// What a client hears within ten seconds.
    fn all_heard(&mut self, client: Client) -> String {
        let mut heard = String::new();
        for _ in 0..100 {
            self.net.run(SECOND / 10);
            heard += &self.net.hear(client);
        }
        heard
    }

    #[track_caller]
    fn assert_right(&mut self, node: usize, seq: usize) {
        let client = self.get(node, seq);
        let heard = self.heard(client);
        assert!(heard.contains(&payload(seq)), "{seq} through {node}: {heard}");
    }

    fn damage(&mut self, node: usize) -> (u64, u64) {
        let subject = format!("$SYS.REQ.SERVER.NSERVER{node}.JSZ");
        let shown = self
            .net
            .ask_json("s", node, &subject, r#"{"accounts":true,"streams":true}"#);
        let accounts = shown["data"]["account_details"].as_array().unwrap();
        let streams = accounts.iter().filter_map(|one| one["stream_detail"].as_array());
        let stream = streams.flatten().find(|one| one["name"] == "S").unwrap();
        let number = |key: &str| stream["tidelock"][key].as_u64().unwrap();
        (number("damaged"), number("mended"))
    }

    fn is_healthy(&mut self, node: usize) -> bool {
        self.net.health(node).contains("\"status\":\"ok\"")
    }

    fn replicas(&self) -> Vec<ReplicaId> {
        let views = (0..self.nodes).map(|node| self.net.replica(node, "S").unwrap());
        views.map(|view| view.replica).collect()
    }

    fn leader(&self) -> usize {
        let leads = |node: &usize| self.net.replica(*node, "S").is_some_and(|view| view.is_leader);
        (0..self.nodes).find(leads).unwrap()
    }

    /// All replicas go on, and have come to the same.
    #[track_caller]
    fn assert_equal(&self) {
        let views: Vec<_> = (0..self.nodes)
            .map(|node| self.net.replica(node, "S").unwrap())
            .collect();
        assert!(
            views
                .iter()
                .all(|view| view.digest == views[0].digest && view.failed.is_none() && !view.is_held)
        );
    }

    /// Every message is right on every node, and none is damaged any more.
    fn assert_whole(&mut self) {
        for node in 0..self.nodes {
            for seq in (1..=MESSAGES).step_by(7) {
                self.assert_right(node, seq);
            }
            assert_eq!(self.damage(node).0, 0, "node {node}");
            assert!(self.is_healthy(node), "node {node}");
        }
    }
}

fn said(lines: &[String], word: &str) -> usize {
    lines.iter().filter(|line| line.contains(word)).count()
}

#[test]
fn a_request_for_a_damaged_message_gets_the_right_one_from_every_replica() {
    let mut bed = Bed::new(3);
    let replicas = bed.replicas();
    for node in 0..3 {
        // Not what a read on behalf of another one has brought into memory.
        let seq = 100 + 150 * node;
        let file = bed.rot(node, seq);
        let lines = net::log::said(|| {
            let client = bed.get(node, seq);
            let heard = bed.heard(client);
            assert!(heard.contains(&payload(seq)) && !heard.contains("500"), "{heard}");
            bed.net.run(SECOND);
        });
        assert_eq!(
            said(
                &lines,
                &format!("WARN JetStream stream 'A > S': 1 messages are damaged on disk, the first is {seq}")
            ),
            1,
            "{lines:?}"
        );
        let over = "any more; 1 messages have come from other replicas";
        assert_eq!(said(&lines, over), 1, "{lines:?}");
        assert_eq!(bed.damage(node), (0, 1));
        assert!(
            bed.blocks(node).iter().all(|(other, _)| *other != file),
            "the damaged file is gone"
        );
    }
    bed.assert_whole();
    assert_eq!(bed.replicas(), replicas, "no replica is given up for a message");
}

#[test]
fn a_batch_and_a_request_in_json_get_the_right_ones_too() {
    let mut bed = Bed::new(3);
    for node in 0..3 {
        let seq = 200 + 10 * node;
        bed.rot(node, seq);
        bed.rot(node, seq + 3);
        let message = bed.ask(node, "$JS.API.STREAM.MSG.GET.S", &format!("{{\"seq\":{seq}}}"));
        assert!(message["message"]["data"].is_string(), "{message}");
        let client = bed.net.client(node, 0);
        let body = format!("{{\"seq\":{},\"batch\":5}}", seq + 1);
        bed.net.tell(
            client,
            &format!(
                "SUB in 1\r\nPUB $JS.API.DIRECT.GET.S in {}\r\n{body}\r\n",
                body.len()
            ),
        );
        bed.net.run(SECOND);
        let heard = bed.net.hear(client);
        for seq in seq + 1..seq + 6 {
            assert!(heard.contains(&payload(seq)), "{seq}: {heard}");
        }
    }
    bed.assert_whole();
}

#[test]
fn a_consumer_gets_every_message_though_the_leader_has_damage() {
    let mut bed = Bed::new(3);
    let leader = bed.leader();
    for seq in [50, 51, 250] {
        bed.rot(leader, seq);
    }
    let broken = bed.break_block(leader, 7);
    assert!(broken > 251);
    let client = bed.net.client((leader + 1) % 3, 0);
    let body = r#"{"stream_name":"S","config":{"deliver_subject":"out","ack_policy":"none","deliver_policy":"all","max_deliver":1}}"#;
    bed.net.tell(
        client,
        &format!(
            "SUB out 1\r\nSUB in 2\r\nPUB $JS.API.CONSUMER.CREATE.S in {}\r\n{body}\r\n",
            body.len()
        ),
    );
    let heard = bed.all_heard(client);
    let mut rest = heard.as_str();
    for seq in 1..=MESSAGES {
        let at = rest.find(&payload(seq));
        assert!(at.is_some(), "message {seq} comes, in order");
        rest = &rest[at.unwrap()..];
    }
    assert_eq!(heard.matches("MSG s 1 ").count(), MESSAGES);
    bed.assert_whole();
}

#[test]
fn the_next_replica_is_asked_where_one_has_damage_itself_or_is_away() {
    let mut bed = Bed::new(3);
    bed.rot(0, 100);
    bed.rot(1, 100);
    bed.assert_right(0, 100);
    bed.assert_right(1, 100);
    bed.rot(1, 400);
    bed.rot(2, 400);
    bed.net.kill(0);
    bed.net.run(SECOND * 5);
    // Whoever has it is not there.
    let client = bed.get(1, 400);
    let heard = bed.heard(client);
    assert!(heard.contains("500"), "nobody can have it: {heard}");
    assert_eq!(bed.damage(1).0, 1);
    assert!(!bed.is_healthy(1));
    bed.assert_right(1, 401);
    // A consumer passes over nothing that somebody may have.
    let leader = bed.leader();
    bed.rot(leader, 395);
    let consumer = bed.consume(leader, 380);
    bed.net.run(SECOND * 30);
    let heard = bed.net.hear(consumer);
    assert!(
        heard.contains(&payload(399)) && !heard.contains(&payload(401)),
        "{heard}"
    );
    bed.net.restart(0, 1, &clustered_for_clients(3, 0), 2);
    bed.net.run(SECOND * 20);
    bed.assert_right(1, 400);
    bed.assert_right(2, 400);
    assert!(bed.net.hear(consumer).contains(&payload(MESSAGES)));
    bed.assert_whole();
}

#[test]
fn a_message_that_is_damaged_everywhere_is_said_to_be_and_the_rest_is_served() {
    let mut bed = Bed::new(3);
    (0..3).for_each(|node| drop(bed.rot(node, 100)));
    let lines = net::log::said(|| {
        for node in 0..3 {
            let client = bed.get(node, 100);
            let heard = bed.heard(client);
            assert!(heard.contains("NATS/1.0 500 message is damaged"), "{heard}");
            // Another one is made good at once.
            bed.rot(node, 230 + 120 * node);
            bed.assert_right(node, 230 + 120 * node);
            assert_eq!(bed.damage(node), (1, 1));
            for seq in (2..=MESSAGES).step_by(9) {
                bed.assert_right(node, seq);
            }
            assert!(!bed.is_healthy(node));
        }
        bed.net.run(SECOND * 45);
    });
    assert_eq!(
        said(
            &lines,
            "message 100 is damaged on disk, and no other replica that is reached has it"
        ),
        0
    );
    assert_eq!(said(&lines, "1 messages are damaged on disk"), 3, "{lines:?}");
    // It can be removed, and then nothing is damaged any more.
    let gone = bed.ask(0, "$JS.API.STREAM.MSG.DELETE.S", r#"{"seq":100}"#);
    assert_eq!(gone["success"], true, "{gone}");
    bed.net.run(SECOND * 15);
    for node in 0..3 {
        assert_eq!(bed.damage(node).0, 0);
        assert!(bed.is_healthy(node));
    }
}

/// Starts a node again, so that no index is in memory; but for that of its first block.
fn start_again(bed: &mut Bed, node: usize) {
    bed.net.kill(node);
    bed.net.restart(node, 1, &clustered_for_clients(3, node), 2);
    bed.net.run(SECOND * 6);
}

#[test]
fn an_entry_waits_for_the_index_that_it_needs() {
    let mut bed = Bed::new(3);
    let (node, behind) = ((bed.leader() + 1) % 3, (bed.leader() + 2) % 3);
    let replicas = bed.replicas();
    start_again(&mut bed, node);
    let body = format!(r#"{{"placement":{{"preferred":"n{node}"}}}}"#);
    bed.ask(node, "$JS.API.STREAM.LEADER.STEPDOWN.S", &body);
    bed.net.run(SECOND * 2);
    assert_eq!(bed.leader(), node);
    // One of the others has not removed the message yet.
    bed.net.hold_lane(node, behind, LaneKind::Log, true);
    let first = bed.break_block(node, 3);
    let gone = bed.ask(
        node,
        "$JS.API.STREAM.MSG.DELETE.S",
        &format!("{{\"seq\":{}}}", first + 1),
    );
    assert_eq!(gone["success"], true, "{gone}");
    assert!(bed.damage(node).1 > 20);
    bed.assert_right(node, first);
    bed.net.hold_lane(node, behind, LaneKind::Log, false);
    bed.net.run(SECOND * 5);
    assert_eq!(bed.replicas(), replicas, "no replica is given up");
    bed.assert_equal();
}

#[test]
fn a_replica_that_cannot_tell_what_it_is_to_remove_is_replaced() {
    let mut bed = Bed::new(3);
    let node = (bed.leader() + 1) % 3;
    let replica = bed.replicas()[node];
    start_again(&mut bed, node);
    // Of a message that the others have removed already only the lost index knew the size.
    let first = bed.break_block(node, 3);
    let gone = bed.ask(
        0,
        "$JS.API.STREAM.MSG.DELETE.S",
        &format!("{{\"seq\":{}}}", first + 1),
    );
    assert_eq!(gone["success"], true, "{gone}");
    bed.net.run(SECOND * 20);
    assert!(bed.replicas()[node] > replica);
    bed.assert_right(node, first);
    bed.assert_equal();
    assert!((0..3).all(|node| bed.is_healthy(node)));
}

#[test]
fn a_block_that_the_disk_does_not_give_back_comes_from_elsewhere() {
    let mut bed = Bed::new(3);
    let node = (bed.leader() + 1) % 3;
    let (file, _) = bed.place(node, 200);
    let disk = bed.disk(node);
    (0..5).for_each(|_| disk.fail(Fault::Read, 0));
    let lines = net::log::said(|| {
        let client = bed.get(node, 200);
        bed.net.run(SECOND * 6);
        let heard = bed.heard(client);
        assert!(heard.contains(&payload(200)), "{heard}");
    });
    assert_eq!(
        said(&lines, "could not be read and is tried again"),
        1,
        "{lines:?}"
    );
    assert_eq!(said(&lines, "messages are damaged on disk"), 1, "{lines:?}");
    bed.net.run(SECOND * 2);
    assert!(bed.blocks(node).iter().all(|(other, _)| *other != file));
    bed.assert_whole();
}

/// A node is away while so much is published that it needs a snapshot; gives it and its leader.
fn behind_a_snapshot(bed: &mut Bed, spoil: impl FnOnce(&Bed, usize)) -> (usize, usize) {
    let leader = bed.leader();
    let away = (leader + 1) % 3;
    bed.net.kill(away);
    let client = bed.net.client(leader, 0);
    for _ in 0..8 {
        let mut text = String::new();
        for seq in 1..=MESSAGES {
            let _ = write!(text, "PUB s in {PAYLOAD}\r\n{}\r\n", payload(seq));
        }
        bed.net.tell(client, &text);
        bed.net.run(SECOND * 5);
    }
    spoil(bed, leader);
    bed.net.restart(away, 1, &clustered_for_clients(3, away), 2);
    (away, leader)
}

#[test]
fn a_snapshot_does_not_carry_damage_to_another_replica() {
    let mut bed = Bed::new(3);
    let mut nodes = (0, 0);
    let lines = net::log::said(|| {
        nodes = behind_a_snapshot(&mut bed, |bed, leader| drop(bed.rot(leader, 100)));
        bed.net.run(SECOND * 20);
    });
    let (away, leader) = nodes;
    assert_eq!(said(&lines, "is damaged on its leader"), 1, "{lines:?}");
    assert_eq!(bed.damage(leader), (0, 1), "it has been told");
    assert_eq!(bed.damage(away), (0, 0));
    bed.assert_right(away, 100);
    assert_eq!(bed.damage(away), (0, 0), "it was right from the beginning");
    bed.assert_whole();
}

#[test]
fn a_block_that_the_leader_cannot_read_does_not_keep_a_replica_from_being_filled() {
    let mut bed = Bed::new(3);
    let mut nodes = (0, 0);
    let lines = net::log::said(|| {
        nodes = behind_a_snapshot(&mut bed, |bed, leader| {
            let disk = bed.disk(leader);
            (0..5).for_each(|_| disk.fail(Fault::Read, 0));
        });
        bed.net.run(SECOND * 60);
    });
    let (away, leader) = nodes;
    assert_eq!(
        said(&lines, "messages are damaged on disk, the first is 1;"),
        1,
        "{lines:?}"
    );
    assert!(bed.damage(leader).1 > 50);
    bed.assert_right(away, 1);
    bed.assert_whole();
}

#[test]
fn what_nobody_has_does_not_keep_a_replica_from_being_filled() {
    let mut bed = Bed::new(3);
    let mut nodes = (0, 0);
    let lines = net::log::said(|| {
        nodes = behind_a_snapshot(&mut bed, |bed, _| {
            (0..3).for_each(|node| drop(bed.rot(node, 100)))
        });
        bed.net.run(SECOND * 120);
    });
    let (away, _) = nodes;
    assert_eq!(said(&lines, "is damaged on its leader"), 1, "{lines:?}");
    bed.assert_right(away, 101);
    bed.assert_right(away, 99);
    // It knows at once, and not when somebody reads the message.
    assert_eq!(bed.damage(away).0, 1);
    assert!(!bed.is_healthy(away));
    bed.assert_equal();
}

#[test]
fn the_only_replica_says_what_it_has_lost_and_serves_the_rest() {
    let mut bed = Bed::new(1);
    bed.rot(0, 100);
    let lines = net::log::said(|| {
        let client = bed.get(0, 100);
        let heard = bed.heard(client);
        assert!(heard.contains("NATS/1.0 500 message is damaged"), "{heard}");
        bed.assert_right(0, 99);
        bed.assert_right(0, 101);
        bed.net.run(SECOND * 100);
    });
    assert_eq!(
        said(
            &lines,
            "1 messages are damaged on disk, the first is 100; there is no other replica"
        ),
        1,
        "{lines:?}"
    );
    assert_eq!(
        lines.iter().filter(|line| line.contains("damage")).count(),
        1,
        "{lines:?}"
    );
    // Consumers pass over it.
    let consumer = bed.consume(0, 1);
    let heard = bed.all_heard(consumer);
    assert_eq!(heard.matches("MSG s 1 ").count(), MESSAGES - 1);
    assert_eq!(bed.damage(0), (1, 0));
    assert!(bed.is_healthy(0), "nothing can be done about it by waiting");
}

#[test]
fn what_nobody_reads_is_found_all_the_same() {
    let mut bed = Bed::new(3);
    let files: Vec<FilePath> = [60, 300].into_iter().map(|seq| bed.rot(1, seq)).collect();
    bed.net.run(SECOND * 900);
    assert_eq!(bed.damage(1), (0, 2));
    assert!(bed.blocks(1).iter().all(|(file, _)| !files.contains(file)));
    bed.assert_whole();
}

/// Files of blocks, by number on each node, go while all nodes are down; gives what the nodes say at and after the start.
fn start_without(bed: &mut Bed, lost: &[(usize, usize)], away: &[usize]) -> Vec<String> {
    (0..bed.nodes).for_each(|node| bed.net.kill(node));
    for &(node, number) in lost {
        let (file, _) = bed.blocks(node)[number].clone();
        bed.disk(node).run(&IoOp::Remove { file }).unwrap();
    }
    net::log::said(|| {
        for node in (0..bed.nodes).filter(|node| !away.contains(node)) {
            bed.net
                .restart(node, 1, &clustered_for_clients(bed.nodes, node), 2);
        }
        bed.net.run(SECOND * 20);
    })
}

const HELD: &str = "are missing or destroyed, the first is";
const GOES_ON: &str = "this replica takes part again";

#[test]
fn a_replica_without_some_of_its_files_fetches_them_and_goes_on() {
    let mut bed = Bed::new(3);
    let replicas = bed.replicas();
    let lines = start_without(&mut bed, &[(1, 0), (1, 3)], &[]);
    assert_eq!((said(&lines, HELD), said(&lines, GOES_ON)), (1, 1), "{lines:?}");
    assert_eq!(said(&lines, "is lost"), 0, "{lines:?}");
    assert_eq!(bed.replicas(), replicas, "it is not replaced");
    bed.assert_whole();
    bed.assert_equal();
    let (_, mended) = bed.damage(1);
    assert!(mended > 40, "{mended}");
    // What was mended is found by the next start.
    let lines = start_without(&mut bed, &[], &[]);
    assert_eq!(said(&lines, HELD), 0, "{lines:?}");
    bed.assert_whole();
}

#[test]
fn replicas_that_lack_different_files_serve_each_other() {
    let mut bed = Bed::new(3);
    let replicas = bed.replicas();
    let lines = start_without(&mut bed, &[(0, 0), (1, 4), (2, 7)], &[]);
    assert_eq!((said(&lines, HELD), said(&lines, GOES_ON)), (3, 3), "{lines:?}");
    assert_eq!(bed.replicas(), replicas);
    bed.assert_whole();
    bed.assert_equal();
    // Two of three are a majority, though both lack something.
    let lines = start_without(&mut bed, &[(0, 0), (1, 4)], &[2]);
    assert_eq!((said(&lines, HELD), said(&lines, GOES_ON)), (2, 2), "{lines:?}");
    bed.assert_right(0, 1);
    let client = bed.net.client(0, 0);
    bed.net.tell(client, "SUB in 1\r\nPUB s in 3\r\nnew\r\n");
    bed.net.run(SECOND);
    let heard = bed.net.hear(client);
    assert!(heard.contains(&format!("\"seq\":{}", MESSAGES + 1)), "{heard}");
}

#[test]
fn a_replica_that_lacks_files_neither_votes_nor_leads_nor_answers() {
    let mut bed = Bed::new(3);
    let replicas = bed.replicas();
    // Both that are there lack the same.
    let same = bed.blocks(0)[0].1.min(bed.blocks(1)[0].1);
    assert!(same > 0);
    let lines = start_without(&mut bed, &[(0, 0), (1, 0)], &[2]);
    assert_eq!((said(&lines, HELD), said(&lines, GOES_ON)), (2, 0), "{lines:?}");
    assert!(
        said(&lines, "no other replica that is reached has all") > 0,
        "{lines:?}"
    );
    for node in 0..2 {
        let view = bed.net.replica(node, "S").unwrap();
        assert!(!view.is_leader && view.is_held, "node {node}");
        let health = bed.net.health(node);
        assert!(
            health.contains("lacks messages that come from other replicas"),
            "{health}"
        );
        let client = bed.get(node, MESSAGES);
        bed.net.run(SECOND * 4);
        let heard = bed.net.hear(client);
        assert!(!heard.contains(&payload(MESSAGES)), "{heard}");
    }
    // The third has all of it.
    bed.net.restart(2, 1, &clustered_for_clients(3, 2), 2);
    bed.net.run(SECOND * 10);
    assert_eq!(bed.replicas(), replicas);
    bed.assert_whole();
    bed.assert_equal();
}

#[test]
fn a_replica_whose_lost_messages_are_removed_elsewhere_is_replaced() {
    let mut bed = Bed::new(3);
    let replicas = bed.replicas();
    let node = (bed.leader() + 1) % 3;
    bed.net.kill(node);
    let gone = bed.ask(bed.leader(), "$JS.API.STREAM.MSG.DELETE.S", "{\"seq\":2}");
    assert_eq!(gone["success"], true, "{gone}");
    let (file, _) = bed.blocks(node)[0].clone();
    bed.disk(node).run(&IoOp::Remove { file }).unwrap();
    let lines = net::log::said(|| {
        bed.net.restart(node, 1, &clustered_for_clients(3, node), 2);
        bed.net.run(SECOND * 30);
    });
    assert_eq!(said(&lines, HELD), 1, "{lines:?}");
    assert!(
        said(&lines, "the others have not all of these messages any more") > 0,
        "{lines:?}"
    );
    assert!(bed.replicas()[node] > replicas[node], "{lines:?}");
    bed.assert_equal();
    assert!((0..3).all(|node| bed.is_healthy(node)));
    bed.assert_right(node, 1);
}
