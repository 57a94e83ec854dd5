//! Mirrors and sources over whole turns of a node: where they begin, and where they go on. See `net`.
//!
//! What is expected here is what nats-server 2.15.1 does.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net};
use std::time::Duration;

const CONFIG: &str = "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n";

/// A node, and a client of it.
struct Bed {
    net: Net,
    node: usize,
    client: Client,
}

impl Bed {
    fn new() -> Self {
        let mut net = Net::new();
        let node = net.add(1, CONFIG);
        net.run(Duration::from_secs(1));
        let client = net.client(node, 0);
        net.tell(client, "SUB in 1\r\n");
        Self { net, node, client }
    }

    fn restart(&mut self) {
        self.net.kill(self.node);
        self.net.restart(self.node, 1, CONFIG, 2);
        self.net.run(Duration::from_secs(2));
        self.client = self.net.client(self.node, 0);
        self.net.tell(self.client, "SUB in 1\r\n");
    }

    /// The answer to a request to the API.
    fn ask(&mut self, subject: &str, body: &str) -> String {
        let text = format!("PUB $JS.API.{subject} in {}\r\n{body}\r\n", body.len());
        self.net.hear(self.client);
        self.net.tell(self.client, &text);
        self.net.hear(self.client)
    }

    fn create(&mut self, name: &str, config: &str) {
        let body = format!(r#"{{"name":"{name}",{config}}}"#);
        let heard = self.ask(&format!("STREAM.CREATE.{name}"), &body);
        assert!(heard.contains("\"created\""), "{heard}");
    }

    fn update(&mut self, name: &str, config: &str) {
        let body = format!(r#"{{"name":"{name}",{config}}}"#);
        let heard = self.ask(&format!("STREAM.UPDATE.{name}"), &body);
        assert!(heard.contains("\"created\""), "{heard}");
    }

    fn publish(&mut self, subject: &str, count: usize) {
        for _ in 0..count {
            self.net.tell(self.client, &format!("PUB {subject} 1\r\nx\r\n"));
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.net.run(Duration::from_secs(seconds));
    }

    /// The messages of a stream: sequences in the origin of those that have one, else their own.
    fn holds(&mut self, stream: &str) -> Vec<u64> {
        let info = self.ask(&format!("STREAM.INFO.{stream}"), "");
        let [first, last] = ["first_seq", "last_seq"].map(|name| number(&info, name));
        let mut seqs = Vec::new();
        for seq in first.max(1)..=last {
            // Headers are not encoded in the answers to direct gets.
            let got = self.ask(&format!("DIRECT.GET.{stream}"), &format!(r#"{{"seq":{seq}}}"#));
            if got.contains(" 404 ") {
                continue;
            }
            let source = got.split_once("Nats-Stream-Source: ");
            let origin = source.map(|(_, rest)| rest.split(' ').nth(1).unwrap().parse().unwrap());
            seqs.push(origin.unwrap_or(seq));
        }
        seqs
    }
}

fn number(json: &str, name: &str) -> u64 {
    let (_, rest) = json
        .split_once(&format!("\"{name}\":"))
        .unwrap_or_else(|| panic!("{json}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// `delivered.stream_seq` and `num_pending` of an answer about a consumer.
fn standing(info: &str) -> (u64, u64) {
    let (_, delivered) = info
        .split_once("\"delivered\":")
        .unwrap_or_else(|| panic!("{info}"));
    (number(delivered, "stream_seq"), number(info, "num_pending"))
}

fn seqs(from: u64, to: u64) -> Vec<u64> {
    (from..=to).collect()
}

#[test]
fn a_start_beyond_the_end_of_the_origin_is_waited_for() {
    let mut bed = Bed::new();
    bed.create("O", r#""subjects":["o"]"#);
    bed.publish("o", 10);
    let origin = r#"{"name":"O","opt_start_seq":15}"#;
    bed.create("S", &format!(r#""allow_direct":true,"sources":[{origin}]"#));
    bed.create("M", &format!(r#""allow_direct":true,"mirror":{origin}"#));
    let consumer = |policy: &str| {
        format!(
            r#"{{"stream_name":"O","config":{{"durable_name":"{policy}","ack_policy":"{policy}","deliver_policy":"by_start_sequence","opt_start_seq":15}}}}"#
        )
    };
    for policy in ["explicit", "none"] {
        let heard = bed.ask(&format!("CONSUMER.DURABLE.CREATE.O.{policy}"), &consumer(policy));
        assert_eq!(standing(&heard), (14, 0));
    }
    bed.wait(2);
    bed.publish("o", 4);
    bed.wait(2);
    assert_eq!((bed.holds("S"), bed.holds("M")), (vec![], vec![]));
    bed.restart();
    bed.publish("o", 6);
    bed.wait(2);
    assert_eq!(bed.holds("S"), seqs(15, 20));
    assert_eq!(bed.holds("M"), seqs(15, 20));
    for policy in ["explicit", "none"] {
        let heard = bed.ask(&format!("CONSUMER.INFO.O.{policy}"), "");
        assert_eq!(standing(&heard), (14, 6));
        let got = bed.ask(
            &format!("CONSUMER.MSG.NEXT.O.{policy}"),
            r#"{"batch":9,"no_wait":true}"#,
        );
        let first = got.split_once(&format!("$JS.ACK.O.{policy}.1.")).unwrap().1;
        assert!(first.starts_with("15.1."), "{got}");
        assert_eq!(got.matches("$JS.ACK").count(), 6, "{got}");
        let heard = bed.ask(&format!("CONSUMER.INFO.O.{policy}"), "");
        assert_eq!(standing(&heard), (20, 0));
    }
}

#[test]
fn an_origin_that_was_made_anew_is_begun_as_configured() {
    let mut bed = Bed::new();
    bed.create("O", r#""subjects":["o"]"#);
    bed.publish("o", 10);
    for (name, start) in [("A", 0), ("T", 3), ("E", 8)] {
        let origin = format!(r#"{{"name":"O","opt_start_seq":{start}}}"#);
        bed.create(name, &format!(r#""allow_direct":true,"sources":[{origin}]"#));
        bed.create(
            &format!("M{name}"),
            &format!(r#""allow_direct":true,"mirror":{origin}"#),
        );
    }
    bed.wait(2);
    assert_eq!(bed.holds("T"), seqs(3, 10));
    bed.ask("STREAM.DELETE.O", "");
    bed.wait(1);
    bed.create("O", r#""subjects":["o"]"#);
    bed.publish("o", 6);
    bed.wait(30);
    assert_eq!(bed.holds("A"), [seqs(1, 10), seqs(1, 6)].concat());
    assert_eq!(bed.holds("T"), [seqs(3, 10), seqs(3, 6)].concat());
    assert_eq!(bed.holds("E"), seqs(8, 10));
    assert_eq!(bed.holds("MT"), seqs(3, 10));
    bed.publish("o", 6);
    bed.wait(2);
    assert_eq!(bed.holds("A"), [seqs(1, 10), seqs(1, 12)].concat());
    assert_eq!(bed.holds("T"), [seqs(3, 10), seqs(3, 12)].concat());
    assert_eq!(bed.holds("E"), [seqs(8, 10), seqs(8, 12)].concat());
    // A mirror goes on behind what it has.
    assert_eq!(bed.holds("MA"), seqs(1, 12));
    assert_eq!(bed.holds("MT"), seqs(3, 12));
    assert_eq!(bed.holds("ME"), seqs(8, 12));
}

#[test]
fn a_source_that_was_removed_goes_on_when_it_is_added_again() {
    let mut bed = Bed::new();
    bed.create("O", r#""subjects":["o"]"#);
    bed.publish("o", 5);
    let sources = r#""allow_direct":true,"sources":[{"name":"O"}]"#;
    let late = r#""allow_direct":true,"sources":[{"name":"O","opt_start_seq":2}]"#;
    for name in ["S", "P", "L"] {
        bed.create(name, sources);
    }
    bed.wait(2);
    for name in ["S", "P", "L"] {
        assert_eq!(bed.holds(name), seqs(1, 5));
        bed.update(name, r#""allow_direct":true"#);
    }
    bed.ask("STREAM.PURGE.P", "");
    bed.publish("o", 2);
    bed.restart();
    bed.update("S", sources);
    bed.update("P", sources);
    bed.update("L", late);
    bed.wait(2);
    assert_eq!(bed.holds("S"), seqs(1, 7));
    assert_eq!(bed.holds("P"), seqs(6, 7), "purged of all that it had");
    assert_eq!(bed.holds("L"), seqs(1, 7), "the start counts once");
    bed.publish("o", 1);
    bed.wait(2);
    assert_eq!(bed.holds("S"), seqs(1, 8));
}
