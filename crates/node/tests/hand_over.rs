//! What consumers see when the leadership of their stream is handed over: see `net` for the network.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net, route};
use std::time::Duration;

const NODES: usize = 3;
const SECOND: Duration = Duration::from_secs(1);

/// A cluster with a stream `S` on `s`, the node that leads it, and a client there.
struct Scene {
    net: Net,
    leader: usize,
    client: Client,
}

fn config(node: usize) -> String {
    let routes: Vec<String> = (0..NODES)
        .map(|n| format!("\"nats-route://{}\"", route(n)))
        .collect();
    format!(
        "server_name: n{node}\nport: 4222\njetstream {{ store_dir: \"/n{node}\", max_file_store: 1GB }}\n\
         cluster {{ name: c, listen: \"10.0.0.9:6222\", routes: [{}] }}\n",
        routes.join(", ")
    )
}

impl Scene {
    fn new(consumer: &str) -> Self {
        let mut net = Net::new();
        for node in 0..NODES {
            net.add(1, &config(node));
        }
        net.run(SECOND * 8);
        let client = net.client(0, 0);
        let mut scene = Self {
            net,
            leader: 0,
            client,
        };
        scene.net.tell(client, "SUB in 1\r\n");
        scene.ask(
            "$JS.API.STREAM.CREATE.S",
            r#"{"name":"S","subjects":["s"],"num_replicas":3}"#,
        );
        let info = scene.ask("$JS.API.STREAM.INFO.S", "");
        let (_, rest) = info.split_once("\"leader\":\"n").unwrap();
        scene.leader = usize::from(rest.as_bytes()[0] - b'0');
        scene.client = scene.net.client(scene.leader, 0);
        scene.net.tell(scene.client, "SUB in 1\r\nSUB out 2\r\n");
        scene.net.run(SECOND);
        scene.ask("$JS.API.CONSUMER.DURABLE.CREATE.S.c", consumer);
        scene
    }

    /// What comes in answer within a while.
    fn ask(&mut self, subject: &str, body: &str) -> String {
        self.net.hear(self.client);
        self.say(subject, body);
        self.net.run(SECOND * 2);
        let heard = self.net.hear(self.client);
        assert!(heard.contains("MSG in 1 "), "{subject}: {heard}");
        heard
    }

    fn say(&mut self, subject: &str, body: &str) {
        let text = format!("PUB {subject} in {}\r\n{body}\r\n", body.len());
        self.net.tell(self.client, &text);
    }

    fn others(&self) -> Vec<usize> {
        (0..NODES).filter(|node| *node != self.leader).collect()
    }
}

#[test]
fn an_acknowledgement_that_was_taken_and_not_proposed_goes_to_the_next_leader() {
    let mut scene =
        Scene::new(r#"{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit"}}"#);
    for _ in 0..3 {
        scene.ask("s", "x");
    }
    scene.net.tell(
        scene.client,
        "PUB $JS.API.CONSUMER.MSG.NEXT.S.c out 11\r\n{\"batch\":3}\r\n",
    );
    scene.net.run(SECOND);
    let heard = scene.net.hear(scene.client);
    let subjects = heard
        .split_whitespace()
        .filter(|word| word.starts_with("$JS.ACK."));
    let subjects: Vec<String> = subjects.map(str::to_owned).collect();
    assert_eq!(subjects.len(), 3, "{heard}");

    // The log is busy with as many entries as may be on their way; then the others are not heard of any more.
    let (leader, others) = (scene.leader, scene.others());
    scene.net.hold_disk(leader, true);
    scene.net.tell(scene.client, "PUB s 1\r\nx\r\n");
    scene.net.tell(scene.client, "PUB s 1\r\nx\r\n");
    for other in &others {
        scene.net.stall(leader, *other, true);
        scene.net.stall(*other, leader, true);
    }
    for (subject, verb) in subjects.iter().zip(["+ACK", "+TERM", "-NAK"]) {
        scene.say(subject, verb);
    }
    scene.net.run(SECOND * 3);
    assert_eq!(scene.net.hear(scene.client), "", "nothing can be proposed");
    scene.net.hold_disk(leader, false);
    for other in &others {
        scene.net.stall(leader, *other, false);
        scene.net.stall(*other, leader, false);
    }
    scene.net.run(SECOND);
    let heard = scene.net.hear(scene.client);
    assert_eq!(heard.matches("MSG in 1 0\r\n").count(), 3, "{heard}");
    let info = scene.ask("$JS.API.CONSUMER.INFO.S.c", "");
    assert!(!info.contains(&format!("\"leader\":\"n{leader}\"")), "{info}");
    assert!(
        info.contains("\"ack_floor\":{\"consumer_seq\":2,\"stream_seq\":2"),
        "{info}"
    );
    assert!(info.contains("\"num_ack_pending\":1"), "{info}");
}

#[test]
fn what_was_sent_without_acknowledgements_is_not_sent_again_by_the_next_leader() {
    let mut scene = Scene::new(
        r#"{"stream_name":"S","config":{"durable_name":"c","deliver_subject":"out","ack_policy":"none"}}"#,
    );
    for turn in 0..4 {
        for _ in 0..5 {
            scene.net.tell(scene.client, "PUB s 1\r\nx\r\n");
        }
        let sent = scene.net.hear(scene.client);
        assert_eq!(sent.matches("MSG s 2 ").count(), 5, "{turn}: {sent}");
        scene.say("$JS.API.STREAM.LEADER.STEPDOWN.S", "");
        scene.net.run(SECOND * 3);
        let heard = scene.net.hear(scene.client);
        assert!(heard.contains("\"success\":true"), "{turn}: {heard}");
        assert_eq!(heard.matches("MSG s 2 ").count(), 0, "{turn}: {heard}");
    }
    let info = scene.ask("$JS.API.CONSUMER.INFO.S.c", "");
    assert!(
        info.contains("\"delivered\":{\"consumer_seq\":20,\"stream_seq\":20"),
        "{info}"
    );
}

/// Advisories say who leads a stream and its consumers, and nothing of the consumers that feed mirrors.
#[test]
fn advisories_tell_of_new_leaders() {
    let mut scene =
        Scene::new(r#"{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit"}}"#);
    let told = |heard: &str| -> Vec<String> {
        let subjects = heard
            .split_whitespace()
            .filter(|word| word.starts_with("$JS.EVENT."));
        subjects
            .map(|subject| subject.trim_start_matches("$JS.EVENT.ADVISORY.").to_owned())
            .collect()
    };
    scene.net.tell(scene.client, "SUB $JS.EVENT.ADVISORY.> 9\r\n");
    scene.say("$JS.API.STREAM.LEADER.STEPDOWN.S", "");
    scene.net.run(SECOND * 3);
    let heard = scene.net.hear(scene.client);
    assert_eq!(
        told(&heard),
        ["API", "STREAM.LEADER_ELECTED.S", "CONSUMER.LEADER_ELECTED.S.c"],
        "{heard}"
    );
    let info = scene.ask("$JS.API.STREAM.INFO.S", "");
    let leader = info.split("\"leader\":").nth(1).unwrap()[..4].to_owned();
    let elected = format!("\"leader\":{leader}");
    assert_eq!(heard.matches(&elected).count(), 2, "{elected} of {heard}");
    assert!(
        (0..NODES).all(|node| heard.contains(&format!("\"name\":\"n{node}\""))),
        "{heard}"
    );

    let create = "$JS.API.CONSUMER.DURABLE.CREATE.S.d";
    let made = scene.ask(create, r#"{"stream_name":"S","config":{"durable_name":"d"}}"#);
    assert_eq!(
        told(&made),
        ["CONSUMER.CREATED.S.d", "CONSUMER.LEADER_ELECTED.S.d", "API"],
        "{made}"
    );
    let mirror = scene.ask("$JS.API.STREAM.CREATE.M", r#"{"name":"M","mirror":{"name":"S"}}"#);
    let told: Vec<String> = told(&mirror).into_iter().filter(|what| what != "API").collect();
    assert_eq!(told, ["STREAM.CREATED.M"], "{mirror}");
}
