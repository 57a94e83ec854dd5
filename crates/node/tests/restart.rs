//! What a node leaves on its disk over restarts: see `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net};
use std::time::Duration;
use tidelock_node::Budgets;
use tidelock_record::Fault;

const CONFIG: &str = "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n";

/// A node with a stream `S` on `s`, and a client of it.
fn node() -> (Net, usize, Client) {
    node_with(Budgets::default())
}

fn node_with(budgets: Budgets) -> (Net, usize, Client) {
    let mut net = Net::new();
    net.budgets = budgets;
    let node = net.add(1, CONFIG);
    net.run(Duration::from_secs(1));
    let client = net.client(node, 0);
    net.tell(client, "SUB in 1\r\n");
    let body = r#"{"name":"S","subjects":["s"]}"#;
    net.tell(
        client,
        &format!("PUB $JS.API.STREAM.CREATE.S in {}\r\n{body}\r\n", body.len()),
    );
    (net, node, client)
}

#[test]
fn restarts_before_the_first_checkpoint_leave_no_blocks_behind() {
    let (mut net, node, client) = node();
    let publish = format!("PUB s 32768\r\n{}\r\n", "x".repeat(32_768));
    for _ in 0..200 {
        net.tell(client, &publish);
    }
    net.run(Duration::from_secs(2));
    let blocks = |net: &Net| {
        let files = net.nodes[node].disk.as_ref().unwrap().files();
        files
            .iter()
            .filter(|(path, _)| path.name().ends_with(".blk"))
            .count()
    };
    let before = blocks(&net);
    assert!(before > 0);
    for life in 2..5 {
        net.kill(node);
        net.restart(node, 1, CONFIG, life);
        net.run(Duration::from_secs(2));
        assert_eq!(blocks(&net), before, "life {life}");
    }
    let client = net.client(node, 0);
    net.tell(client, "SUB in 1\r\nPUB $JS.API.STREAM.INFO.S in 0\r\n\r\n");
    let heard = net.hear(client);
    assert!(heard.contains("\"messages\":200"), "{heard}");
}

#[test]
fn a_block_that_the_disk_refuses_is_tried_again_once_a_second() {
    let (mut net, node, client) = node();
    let disk = net.nodes[node].disk.clone().unwrap();
    disk.refuse(".blk", 3);
    let publish = format!("PUB s 32768\r\n{}\r\n", "x".repeat(32_768));
    for _ in 0..200 {
        net.tell(client, &publish);
    }
    let blocks = || {
        disk.files()
            .iter()
            .filter(|(path, _)| path.name().ends_with(".blk"))
            .count()
    };
    net.run(Duration::from_millis(500));
    assert_eq!(blocks(), 0, "one try has failed");
    net.run(Duration::from_millis(1_800));
    assert_eq!(blocks(), 0, "three tries have failed");
    net.run(Duration::from_millis(1_500));
    assert!(blocks() > 0, "the disk is well again");
}

/// A configuration with accounts `A` and, as `rest` says, others.
fn accounts(rest: &str) -> String {
    format!(
        "{CONFIG}accounts {{ SYS {{ users: [{{ user: sys, password: s }}] }}, {rest} }}\nsystem_account: SYS\n\
         authorization {{ timeout: 60 }}\n"
    )
}

fn user(net: &mut Net, node: usize, user: &str) -> Client {
    let client = net.open(node, 0, tidelock_node::Listener::Client);
    let connect = format!(
        "CONNECT {{\"verbose\":false,\"headers\":true,\"no_responders\":true,\"user\":\"{user}\",\"pass\":\"p\"}}\r\nSUB in \
         1\r\nPING\r\n"
    );
    net.tell(client, &connect);
    let greeting = net.hear(client);
    assert!(greeting.contains("PONG\r\n"), "{greeting}");
    client
}

fn ask(net: &mut Net, client: Client, subject: &str, body: &str) -> String {
    net.tell(client, &format!("PUB {subject} in {}\r\n{body}\r\n", body.len()));
    net.hear(client)
}

fn health(net: &mut Net, node: usize) -> String {
    net.nodes[node].shared.system.set_ready();
    let client = net.open(node, 0, tidelock_node::Listener::Client);
    net.tell(
        client,
        "CONNECT {\"verbose\":false,\"user\":\"sys\",\"pass\":\"s\"}\r\nSUB in 1\r\n",
    );
    net.hear(client);
    let heard = ask(net, client, "$SYS.REQ.SERVER.PING.HEALTHZ", "{\"details\":true}");
    let data = heard.split_once("\"data\":").map(|(_, data)| data.to_owned());
    data.unwrap_or(heard)
}

/// Streams of an account that is not configured any more, or has no JetStream, rest: nothing is stored, nothing is
/// delivered, health says so, and all is there again with the configuration.
#[test]
fn the_streams_of_an_account_without_jetstream_rest() {
    const A: &str = "A { jetstream: enabled, users: [{ user: a, password: p }] }";
    const A_OFF: &str = "A { jetstream: disabled, users: [{ user: a, password: p }] }";
    const A_RENAMED: &str = "B { jetstream: enabled, users: [{ user: a, password: p }] }";
    let mut net = Net::new();
    let node = net.add(1, &accounts(A));
    net.run(Duration::from_secs(1));
    let client = user(&mut net, node, "a");
    let stream = r#"{"name":"S","subjects":["s"]}"#;
    ask(&mut net, client, "$JS.API.STREAM.CREATE.S", stream);
    let push =
        r#"{"stream_name":"S","config":{"durable_name":"P","deliver_subject":"out","ack_policy":"none"}}"#;
    let created = ask(&mut net, client, "$JS.API.CONSUMER.CREATE.S.P", push);
    assert!(created.contains("\"created\""), "{created}");
    let stored = ask(&mut net, client, "s", "x");
    assert!(stored.contains("\"seq\":1"), "{stored}");
    assert!(health(&mut net, node).contains("\"status\":\"ok\""));

    let off = r#"[{"type":"STREAM","account":"A","stream":"S","error":"JetStream stream 'A \u003e S' could not be recovered"}]"#;
    let gone = r#"[{"type":"ACCOUNT","account":"A","error":"JetStream account 'A' could not be resolved"}]"#;
    let lives = [(A_OFF, "10039", off), (A_RENAMED, "10059", gone)];
    for (life, (config, code, errors)) in (2..).zip(lives) {
        net.kill(node);
        net.restart(node, 1, &accounts(config), life);
        net.run(Duration::from_secs(3));
        let client = user(&mut net, node, "a");
        net.tell(client, "SUB out 2\r\n");
        assert_eq!(net.hear(client), "", "{config}");
        let answer = ask(&mut net, client, "s", "x");
        assert!(answer.contains("NATS/1.0 503"), "{config}: {answer}");
        let answer = ask(&mut net, client, "$JS.API.STREAM.INFO.S", "");
        assert!(answer.contains(code), "{config}: {answer}");
        let health = health(&mut net, node);
        assert!(
            health.contains("\"status_code\":503") && health.contains(errors),
            "{config}: {health}"
        );
    }

    net.kill(node);
    net.restart(node, 1, &accounts(A), 9);
    net.run(Duration::from_secs(3));
    let client = user(&mut net, node, "a");
    net.tell(client, "SUB out 2\r\n");
    let heard = net.hear(client);
    assert!(heard.starts_with("MSG s 2 $JS.ACK.S.P.1.1."), "{heard}");
    let stored = ask(&mut net, client, "s", "x");
    assert!(stored.contains("\"seq\":2"), "{stored}");
    assert!(health(&mut net, node).contains("\"status\":\"ok\""));
}

/// A message that is stored, whoever needs it: the entry that removes it, a request, a consumer.
#[test]
fn a_block_that_cannot_be_read_is_asked_for_again_once_a_second() {
    const CREATE: &str = r#"{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit","deliver_policy":"by_start_sequence","opt_start_seq":100}}"#;
    let consumer = "$JS.API.CONSUMER.DURABLE.CREATE.S.c";
    for (what, body, answer) in [
        (
            "$JS.API.STREAM.MSG.DELETE.S",
            r#"{"seq":100}"#,
            "\"success\":true",
        ),
        ("$JS.API.STREAM.MSG.GET.S", r#"{"seq":100}"#, "\"data\":"),
        ("$JS.API.CONSUMER.MSG.NEXT.S.c", "", "xxx"),
    ] {
        // A checkpoint soon after, so that a start has nothing of the blocks in memory.
        let (mut net, node, client) = node_with(Budgets {
            log: 1,
            log_remains: 1 << 10,
            log_held: 0,
            block: 1 << 20,
            ..Budgets::default()
        });
        let publish = format!("PUB s 32768\r\n{}\r\n", "x".repeat(32_768));
        for _ in 0..200 {
            net.tell(client, &publish);
        }
        let length = CREATE.len();
        net.tell(client, &format!("PUB {consumer} in {length}\r\n{CREATE}\r\n"));
        net.run(Duration::from_secs(2));
        net.kill(node);
        net.restart(node, 1, CONFIG, 2);
        net.run(Duration::from_secs(2));
        let client = net.client(node, 0);
        net.tell(client, "SUB in 1\r\n");
        let disk = net.nodes[node].disk.clone().unwrap();
        for _ in 0..3 {
            disk.fail(Fault::Read, 0);
        }
        net.tell(client, &format!("PUB {what} in {}\r\n{body}\r\n", body.len()));
        let before = disk.ops();
        net.run(Duration::from_millis(2_900));
        let (heard, ops) = (net.hear(client), disk.ops() - before);
        assert!(!heard.contains(answer), "{what}: {heard:.300}");
        assert!(ops < 100, "{what}: {ops}");
        // Others go on meanwhile, where they need nothing of that block.
        net.tell(client, "PUB s in 1\r\nx\r\n");
        net.run(Duration::from_millis(300));
        let heard = net.hear(client);
        assert!(
            heard.contains(answer) && heard.contains("\"seq\":201"),
            "{what}: {heard:.300}"
        );
    }
}
