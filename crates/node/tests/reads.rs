//! Where reads of streams are served, and what they see: see `net` for the network.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net, route};
use std::time::Duration;
use tidelock_record::Fault;

const NODES: usize = 3;
/// A message that does not hide among heartbeats.
const LARGE: usize = 100_000;
/// A frame of a read with what is around it, and to spare.
const SMALL: u64 = 200;

fn config(node: usize) -> String {
    let routes: Vec<String> = (0..NODES)
        .map(|n| format!("\"nats-route://{}\"", route(n)))
        .collect();
    format!(
        "server_name: n{node}\nport: 4222\nping_interval: 60\njetstream {{ store_dir: \"/n{node}\", max_file_store: 1GB }}\n\
         cluster {{ name: c, listen: \"10.0.0.9:6222\", routes: [{}] }}\n",
        routes.join(", ")
    )
}

/// A cluster with a stream `S` on `s.>`, and who leads it.
struct Scene {
    net: Net,
    leader: usize,
    /// By node: those that do not lead.
    others: Vec<usize>,
    users: usize,
}

fn scene(workers: u16, replicas: usize) -> Scene {
    let mut net = Net::new();
    for node in 0..NODES {
        net.add(workers, &config(node));
    }
    net.run(Duration::from_secs(8));
    let client = net.client(0, 0);
    let body = format!(r#"{{"name":"S","subjects":["s.>"],"num_replicas":{replicas},"allow_direct":true}}"#);
    net.tell(client, "SUB in 1\r\n");
    net.tell(
        client,
        &format!("PUB $JS.API.STREAM.CREATE.S in {}\r\n{body}\r\n", body.len()),
    );
    net.run(Duration::from_secs(3));
    let heard = net.hear(client);
    assert!(heard.contains("\"created\""), "{heard}");
    let leader = leader(&mut net, client);
    let others = (0..NODES).filter(|node| *node != leader).collect();
    Scene {
        net,
        leader,
        others,
        users: 0,
    }
}

fn leader(net: &mut Net, client: Client) -> usize {
    net.tell(client, "PUB $JS.API.STREAM.INFO.S in 0\r\n\r\n");
    let heard = net.hear(client);
    let (_, rest) = heard.split_once("\"leader\":\"n").unwrap();
    usize::from(rest.as_bytes()[0] - b'0')
}

/// A client with an inbox that nobody else listens to.
#[derive(Clone, Copy)]
struct User {
    client: Client,
    number: usize,
}

impl User {
    /// A request, as the client says it.
    fn request(self, subject: &str, body: &str) -> String {
        format!("PUB {subject} in.{} {}\r\n{body}\r\n", self.number, body.len())
    }

    /// The forms that a read may have, and how its answer shows the message `x…` on `s.a`.
    fn reads(self) -> [(String, &'static str); 5] {
        let direct = "$JS.API.DIRECT.GET.S";
        [
            (self.request("$JS.API.DIRECT.GET.S.s.a", ""), "xxxx"),
            (self.request(direct, r#"{"seq":1}"#), "xxxx"),
            (self.request(direct, r#"{"last_by_subj":"s.a"}"#), "xxxx"),
            (
                self.request(direct, r#"{"next_by_subj":"s.*","batch":1}"#),
                "204 EOB",
            ),
            (self.request("$JS.API.STREAM.MSG.GET.S", r#"{"seq":1}"#), "eHh4"),
        ]
    }

    fn read(self) -> String {
        self.reads()[0].0.clone()
    }
}

impl Scene {
    fn user(&mut self, node: usize, worker: usize) -> User {
        let client = self.net.client(node, worker);
        self.users += 1;
        let number = self.users;
        self.net.tell(client, &format!("SUB in.{number} 1\r\n"));
        // The others know of the interest.
        self.net.run(Duration::from_secs(1));
        User { client, number }
    }

    fn tell(&mut self, user: User, text: &str) {
        self.net.tell(user.client, text);
    }

    fn hear(&mut self, user: User) -> String {
        self.net.hear(user.client)
    }

    /// Stores a message and hears that it is.
    fn publish(&mut self, user: User, subject: &str, body: &str) {
        self.tell(user, &user.request(subject, body));
        let heard = self.hear(user);
        assert!(heard.contains("\"seq\":"), "{heard}");
    }

    /// Stores a large message on `s.a`, everywhere.
    fn publish_large(&mut self) {
        let user = self.user(self.leader, 0);
        self.publish(user, "s.a", &"x".repeat(LARGE));
        self.net.run(Duration::from_secs(1));
    }

    /// Bytes that went from and to a node while a client said something.
    fn carried(&mut self, node: usize, user: User, text: &str) -> (u64, u64) {
        let count = |scene: &Self, of: fn(&(usize, usize)) -> usize| -> u64 {
            let links = scene.net.carried.iter();
            links
                .filter(|(pair, _)| of(pair) == node)
                .map(|(_, bytes)| bytes)
                .sum()
        };
        let before = (count(self, |pair| pair.0), count(self, |pair| pair.1));
        self.tell(user, text);
        let after = (count(self, |pair| pair.0), count(self, |pair| pair.1));
        (after.0 - before.0, after.1 - before.1)
    }
}

#[test]
fn a_follower_serves_reads_for_a_small_frame_each_way() {
    for workers in [1, 2] {
        let mut scene = scene(workers, 3);
        scene.publish_large();
        for node in scene.others.clone() {
            for worker in 0..usize::from(workers) {
                let user = scene.user(node, worker);
                for (read, shows) in user.reads() {
                    let (out, back) = scene.carried(node, user, &read);
                    let heard = scene.hear(user);
                    assert!(heard.contains(shows), "{read}: {heard:.300}");
                    assert!(out < SMALL && back < SMALL, "{read}: {out} and {back} bytes");
                    assert!(out > 0 && back > 0, "{read}: the leader was not asked");
                }
            }
        }
    }
}

#[test]
fn a_node_without_a_replica_asks_the_leader() {
    let mut scene = scene(1, 1);
    scene.publish_large();
    for node in scene.others.clone() {
        let user = scene.user(node, 0);
        for (read, shows) in user.reads() {
            let (_, back) = scene.carried(node, user, &read);
            let heard = scene.hear(user);
            assert!(heard.contains(shows), "{read}: {heard:.300}");
            assert!(back > LARGE as u64, "{read}: {back} bytes");
        }
    }
}

#[test]
fn a_read_sees_what_its_connection_has_published_before_it() {
    let mut scene = scene(2, 3);
    for node in 0..NODES {
        for worker in 0..2 {
            let user = scene.user(node, worker);
            for n in 0..20 {
                let body = format!("{node}{worker}.{n}");
                scene.tell(
                    user,
                    &format!("PUB s.a {}\r\n{body}\r\n{}", body.len(), user.read()),
                );
                let heard = scene.hear(user);
                assert!(heard.ends_with(&format!("\r\n\r\n{body}\r\n")), "{heard}");
            }
        }
    }
}

/// Only what the reader itself has published makes its read wait.
#[test]
fn publishes_of_others_do_not_keep_a_read_from_its_replica() {
    let mut scene = scene(1, 3);
    scene.publish_large();
    let node = scene.others[0];
    let (reader, writer) = (scene.user(node, 0), scene.user(node, 0));
    // Nothing is synced any more, so that nothing is acknowledged.
    for other in 0..NODES {
        scene.net.hold_disk(other, true);
    }
    scene.tell(writer, &writer.request("s.b", "y"));
    assert_eq!(scene.hear(writer), "");
    let (_, back) = scene.carried(node, reader, &reader.read());
    assert!(
        scene.hear(reader).contains("xxxx") && back < SMALL,
        "{back} bytes"
    );
    scene.tell(writer, &writer.request("$JS.API.DIRECT.GET.S.s.b", ""));
    assert_eq!(scene.hear(writer), "");
    for other in 0..NODES {
        scene.net.hold_disk(other, false);
    }
    scene.net.run(Duration::from_millis(100));
    let heard = scene.hear(writer);
    assert!(
        heard.contains("\"seq\":2") && heard.ends_with("\r\n\r\ny\r\n"),
        "{heard}"
    );
}

/// A follower whose disk hangs has not applied what a read must see. The leader answers instead, and does at once as
/// long as the follower has not caught up.
#[test]
fn a_follower_that_lags_has_its_reads_answered_by_the_leader() {
    let mut scene = scene(1, 3);
    let (node, at_leader) = (scene.others[0], scene.user(scene.leader, 0));
    let user = scene.user(node, 0);
    scene.publish(at_leader, "s.a", "old");
    scene.net.run(Duration::from_secs(1));
    scene.net.hold_disk(node, true);
    scene.publish(at_leader, "s.a", &"x".repeat(LARGE));
    scene.tell(user, &user.read());
    assert_eq!(scene.hear(user), "", "neither the old one nor a refusal");
    scene.net.run(Duration::from_millis(25));
    assert!(scene.hear(user).contains("xxxx"));
    let (_, back) = scene.carried(node, user, &user.read());
    assert!(scene.hear(user).contains("xxxx") && back > LARGE as u64);
    scene.net.hold_disk(node, false);
    scene.net.run(Duration::from_millis(300));
    let (_, back) = scene.carried(node, user, &user.read());
    assert!(scene.hear(user).contains("xxxx") && back < SMALL);
}

/// The leader is gone while a read waits for its answer: the next one gives it.
#[test]
fn a_read_outlives_the_leader_that_it_has_asked() {
    let mut scene = scene(1, 3);
    scene.publish_large();
    let others = scene.others.clone();
    let users: Vec<User> = others.iter().map(|node| scene.user(*node, 0)).collect();
    for node in others {
        scene.net.cut(node, scene.leader);
        scene.net.cut(scene.leader, node);
    }
    for user in &users {
        scene.tell(*user, &user.read());
        assert_eq!(scene.hear(*user), "");
    }
    scene.net.run(Duration::from_secs(3));
    for user in &users {
        let heard = scene.hear(*user);
        assert!(heard.contains("xxxx"), "{heard:.300}");
    }
}

#[test]
fn a_read_that_waits_when_the_log_breaks_does_not_miss_what_its_connection_published() {
    let mut scene = scene(1, 3);
    let (leader, others) = (scene.leader, scene.others.clone());
    let user = scene.user(leader, 0);
    scene.tell(user, &user.request("s.a", "wwww"));
    scene.net.run(Duration::from_secs(1));
    assert!(scene.net.hear(user.client).contains("\"seq\":1"));

    // The followers have the publish and the question for the read; their answers are on the way.
    others
        .iter()
        .for_each(|other| scene.net.stall(*other, leader, true));
    scene.net.hold_disk(leader, true);
    let read = user.request("$JS.API.STREAM.MSG.GET.S", r#"{"last_by_subj":"s.a"}"#);
    scene.tell(user, &format!("{}{read}", user.request("s.a", "xxxx")));
    others
        .iter()
        .for_each(|other| scene.net.stall(leader, *other, true));
    let disk = scene.net.nodes[leader].disk.clone().unwrap();
    for _ in 0..1_000 {
        disk.fail(Fault::Sync, 0);
    }
    scene.net.hold_disk(leader, false);
    scene.net.settle();
    others
        .iter()
        .for_each(|other| scene.net.stall(*other, leader, false));
    scene.net.settle();
    let heard = scene.net.hear(user.client);
    assert!(heard.contains("\"err_code\":10008"), "{heard}");

    disk.fail_no_more();
    others
        .iter()
        .for_each(|other| scene.net.stall(leader, *other, false));
    scene.net.run(Duration::from_secs(5));
    let heard = scene.net.hear(user.client);
    assert!(heard.contains("\"seq\":2"), "the publish counts: {heard}");
}

#[test]
fn a_node_that_has_lost_the_others_does_not_describe_a_stream_by_what_it_has() {
    let mut scene = scene(1, 3);
    let user = scene.user(scene.others[0], 0);
    scene.publish(user, "s.a", "old");
    scene.net.kill(scene.leader);
    scene.net.kill(scene.others[1]);
    for what in [
        "STREAM.INFO.S",
        "STREAM.MSG.GET.S",
        "CONSUMER.INFO.S.c",
        "STREAM.LIST",
        "STREAM.NAMES",
    ] {
        scene.net.hear(user.client);
        let body = if what.contains("GET") { r#"{"seq":1}"# } else { "" };
        scene.tell(user, &user.request(&format!("$JS.API.{what}"), body));
        scene.net.run(Duration::from_secs(15));
        let heard = scene.net.hear(user.client);
        assert!(heard.contains("\"err_code\":10008"), "{what}: {heard}");
    }
}

/// What INFO says of a stream, and how many replicas it calls current.
fn currents(scene: &mut Scene, user: User, stream: &str) -> (String, usize) {
    scene.tell(user, &user.request(&format!("$JS.API.STREAM.INFO.{stream}"), ""));
    let heard = scene.hear(user);
    let count = heard.matches("\"current\":true").count();
    (heard, count)
}

/// INFO of the leader calls a replica current that has only not acknowledged the newest yet.
#[test]
fn a_replica_is_current_unless_it_stays_behind() {
    let mut scene = scene(1, 3);
    let (leader, slow) = (scene.leader, scene.others[1]);
    let user = scene.user(leader, 0);
    scene.net.run(Duration::from_secs(2));
    scene.net.stall(slow, leader, true);
    scene.publish(user, "s.a", "x");
    for (wait, count) in [(0, 2), (1_100, 1)] {
        scene.net.run(Duration::from_millis(wait));
        let (heard, current) = currents(&mut scene, user, "S");
        assert!(heard.contains("\"lag\":1"), "{heard}");
        assert_eq!(current, count, "{heard}");
    }
}

/// A replica of a new stream is current before it has said anything, and not for ever.
#[test]
fn a_replica_that_was_never_heard_of_is_current_for_a_while() {
    let mut scene = scene(1, 3);
    let (leader, slow) = (scene.leader, scene.others[1]);
    let user = scene.user(leader, 0);
    scene.net.run(Duration::from_secs(2));
    scene.net.stall(slow, leader, true);
    let body = r#"{"name":"T","subjects":["t"],"num_replicas":3}"#;
    scene.tell(user, &user.request("$JS.API.STREAM.CREATE.T", body));
    let made = scene.hear(user);
    assert!(made.contains("\"created\""), "{made}");
    for (wait, count) in [(0, 2), (12, 1)] {
        scene.net.run(Duration::from_secs(wait));
        let (heard, current) = currents(&mut scene, user, "T");
        assert_eq!(current, count, "{heard}");
    }
}
