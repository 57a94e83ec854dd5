//! Requests and events of the system account, over several workers and nodes: see `net` for the network that they are
//! on.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net, route};
use serde_json::Value;
use std::time::Duration;
use tidelock_node::Listener;

const SECOND: Duration = Duration::from_secs(1);

fn cluster(workers: &[u16]) -> Net {
    let mut net = Net::new();
    let routes: Vec<String> = (0..workers.len())
        .map(|n| format!("\"nats-route://{}\"", route(n)))
        .collect();
    for (n, workers) in workers.iter().enumerate() {
        let config = format!(
            "server_name: n{n}\nport: 4222\nping_interval: 60\ncluster {{ name: c, listen: \"10.0.0.9:6222\", \
             routes: [{}] }}\naccounts {{ SYS {{ users: [{{ user: sys, password: s }}] }}, A {{ users: [{{ user: a, \
             password: a }}] }} }}\nsystem_account: SYS\nauthorization {{ timeout: 60 }}\n",
            routes.join(", ")
        );
        net.add(*workers, &config);
    }
    net.run(SECOND * 3);
    net
}

fn client(net: &mut Net, node: usize, worker: usize, user: &str, password: &str) -> Client {
    let client = net.open(node, worker, Listener::Client);
    let connect = format!(
        "CONNECT {{\"verbose\":false,\"protocol\":1,\"headers\":true,\"no_responders\":true,\"user\":\"{user}\",\
         \"pass\":\"{password}\",\"name\":\"on {node}.{worker}\"}}\r\nPING\r\n"
    );
    net.tell(client, &connect);
    let greeting = net.hear(client);
    assert!(greeting.contains("PONG\r\n"), "{greeting}");
    client
}

/// Bodies of the messages that a client has received, in their order.
fn bodies(net: &mut Net, client: Client) -> Vec<Value> {
    let heard = net.hear(client);
    heard
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn request(net: &mut Net, client: Client, subject: &str, body: &str) -> Vec<Value> {
    net.tell(
        client,
        &format!(
            "SUB inbox 77\r\nPUB {subject} inbox {}\r\n{body}\r\nUNSUB 77 9\r\n",
            body.len()
        ),
    );
    let answers = bodies(net, client);
    net.tell(client, "UNSUB 77\r\n");
    net.hear(client);
    answers
}

fn names(connz: &Value) -> Vec<&str> {
    let connections = connz["data"]["connections"].as_array().unwrap();
    connections
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect()
}

#[test]
fn every_node_answers_for_all_its_workers() {
    let mut net = cluster(&[2, 3]);
    let system = client(&mut net, 0, 1, "sys", "s");
    for (node, worker) in [(0, 0), (0, 1), (1, 0), (1, 2)] {
        client(&mut net, node, worker, "a", "a");
    }
    let mut answers = request(&mut net, system, "$SYS.REQ.SERVER.PING.CONNZ", r#"{"acc":"A"}"#);
    answers.sort_by_key(|answer| answer["server"]["name"].to_string());
    assert_eq!(answers.len(), 2);
    assert_eq!(names(&answers[0]), ["on 0.0", "on 0.1"]);
    assert_eq!(names(&answers[1]), ["on 1.0", "on 1.2"]);
    assert_eq!(answers[1]["data"]["total"], 2);
    let one = request(&mut net, system, "$SYS.REQ.SERVER.NSERVER1.VARZ", "");
    assert_eq!(one.len(), 1);
    assert_eq!(one[0]["data"]["server_name"], "n1");
    assert_eq!(one[0]["data"]["connections"], 2);
    assert_eq!(one[0]["data"]["remotes"], 1);
    let filtered = request(
        &mut net,
        system,
        "$SYS.REQ.SERVER.PING",
        r#"{"server_name":"n1"}"#,
    );
    assert_eq!(filtered.len(), 1);
    assert_eq!(filtered[0]["statsz"]["active_servers"], 2);
}

#[test]
fn accounts_ask_about_themselves_and_clients_about_their_own_user() {
    let mut net = cluster(&[1, 2]);
    let asking = client(&mut net, 0, 0, "a", "a");
    client(&mut net, 1, 1, "a", "a");
    client(&mut net, 1, 0, "sys", "s");
    let answers = request(&mut net, asking, "$SYS.REQ.SERVER.PING.CONNZ", r#"{"acc":"SYS"}"#);
    let mut all: Vec<&str> = answers.iter().flat_map(names).collect();
    all.sort_unstable();
    assert_eq!(
        all,
        ["on 0.0", "on 1.1"],
        "of the own account, whatever was asked for"
    );
    let user = request(&mut net, asking, "$SYS.REQ.USER.INFO", "");
    assert_eq!(user.len(), 1, "the server that knows the client answers alone");
    assert_eq!(user[0]["data"]["user"], "a");
    assert!(request(&mut net, asking, "$SYS.REQ.SERVER.PING.VARZ", "").is_empty());
}

#[test]
fn a_client_of_another_worker_is_kicked() {
    let mut net = cluster(&[2]);
    let system = client(&mut net, 0, 0, "sys", "s");
    let victim = client(&mut net, 0, 1, "a", "a");
    let connz = request(&mut net, system, "$SYS.REQ.ACCOUNT.A.CONNZ", "");
    let cid = connz[0]["data"]["connections"][0]["cid"].as_u64().unwrap();
    let done = request(
        &mut net,
        system,
        "$SYS.REQ.SERVER.NSERVER0.KICK",
        &format!("{{\"cid\":{cid}}}"),
    );
    assert_eq!(done.len(), 1);
    assert!(done[0].get("error").is_none());
    assert!(net.is_closed(victim));
    let again = request(
        &mut net,
        system,
        "$SYS.REQ.SERVER.NSERVER0.KICK",
        &format!("{{\"cid\":{cid}}}"),
    );
    assert_eq!(again[0]["error"]["description"], "no such client or leafnode id");
    let closed = request(&mut net, system, "$SYS.REQ.SERVER.PING.CONNZ", r#"{"state":1}"#);
    assert_eq!(closed[0]["data"]["connections"][0]["reason"], "Kicked");
}

#[test]
fn events_of_one_node_are_heard_on_another() {
    let mut net = cluster(&[1, 2]);
    let system = client(&mut net, 0, 0, "sys", "s");
    net.tell(system, "SUB $SYS.ACCOUNT.A.> 1\r\nSUB $SYS.SERVER.*.STATSZ 2\r\n");
    net.hear(system);
    client(&mut net, 1, 1, "a", "a");
    let events = bodies(&mut net, system);
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "io.nats.server.advisory.v1.client_connect",
            "io.nats.server.advisory.v1.account_connections"
        ]
    );
    assert_eq!(events[0]["server"]["name"], "n1");
    assert_eq!(events[1]["conns"], 1);
    net.run(SECOND * 11);
    let stats = bodies(&mut net, system);
    let mut from: Vec<&str> = stats
        .iter()
        .map(|one| one["server"]["name"].as_str().unwrap())
        .collect();
    from.sort_unstable();
    from.dedup();
    assert_eq!(from, ["n0", "n1"]);
}

/// With users of the system account alone, whoever says nothing is let in, and INFO asks for a user all the same.
#[test]
fn info_asks_for_a_user_unless_the_configuration_names_one_for_those_without() {
    for (rest, asks) in [
        ("", false),
        (
            "accounts { $SYS { users: [{ user: sys, password: s }] } }\n",
            true,
        ),
        (
            "accounts { A { users: [{ user: a, password: a }] } }\nno_auth_user: a\n",
            false,
        ),
        ("accounts { A { users: [{ user: a, password: a }] } }\n", true),
    ] {
        let mut net = Net::new();
        let node = net.add(1, &format!("server_name: n0\nport: 4222\n{rest}"));
        net.run(SECOND);
        let client = net.open(node, 0, Listener::Client);
        net.tell(client, "PING\r\n");
        let info = net.hear(client);
        assert!(info.starts_with("INFO "), "{rest}: {info}");
        assert_eq!(info.contains("\"auth_required\":true"), asks, "{rest}: {info}");
    }
}

/// Three nodes with a stream of one replica and one of three, each with a consumer `C`.
fn nodes_with_streams() -> Net {
    let mut net = Net::new();
    for n in 0..3 {
        let routes: Vec<String> = (0..3).map(|n| format!("\"nats-route://{}\"", route(n))).collect();
        let config = format!(
            "server_name: n{n}\nport: 4222\ncluster {{ name: c, listen: \"10.0.0.9:6222\", routes: [{}] }}\n\
             jetstream {{ store_dir: \"/n{n}\", max_file_store: 1GB }}\naccounts {{ SYS {{ users: [{{ user: sys, \
             password: s }}] }}, A {{ jetstream: enabled, users: [{{ user: a, password: a }}] }} }}\nsystem_account: \
             SYS\nauthorization {{ timeout: 60 }}\n",
            routes.join(", ")
        );
        net.add(1, &config);
    }
    net.run(SECOND * 10);
    let user = client(&mut net, 0, 0, "a", "a");
    for (name, replicas) in [("R1", 1), ("R3", 3)] {
        let body = format!(r#"{{"name":"{name}","subjects":["{name}"],"num_replicas":{replicas}}}"#);
        net.tell(
            user,
            &format!("PUB $JS.API.STREAM.CREATE.{name} {}\r\n{body}\r\n", body.len()),
        );
        net.run(SECOND * 2);
        let body =
            format!(r#"{{"stream_name":"{name}","config":{{"durable_name":"C","ack_policy":"explicit"}}}}"#);
        net.tell(
            user,
            &format!(
                "PUB $JS.API.CONSUMER.CREATE.{name}.C {}\r\n{body}\r\n",
                body.len()
            ),
        );
        net.run(SECOND);
    }
    net
}

/// Tools tell by the names of groups which replicas belong together; one without others has a group, too.
#[test]
fn streams_and_consumers_name_their_groups() {
    let mut net = nodes_with_streams();
    let system = client(&mut net, 0, 0, "sys", "s");
    let info = &request(&mut net, system, "$SYS.REQ.ACCOUNT.A.INFO", "")[0]["data"];
    let imports = info["imports"].as_array().unwrap();
    assert!(
        imports.iter().any(|import| import["subject"] == "$JS.API.>"),
        "{info}"
    );
    let options = r#"{"accounts":true,"streams":true,"consumer":true,"raft":true}"#;
    let answers = request(&mut net, system, "$SYS.REQ.SERVER.PING.JSZ", options);
    assert_eq!(answers.len(), 3);
    let (mut single, mut others, mut groups) = (0, Vec::new(), std::collections::BTreeSet::new());
    for answer in &answers {
        let me = answer["server"]["name"].as_str().unwrap();
        let details = &answer["data"]["account_details"];
        let streams = details[0]["stream_detail"].as_array().unwrap();
        for stream in streams {
            let group = stream["stream_raft_group"].as_str().unwrap();
            let of_consumer = &stream["consumer_raft_groups"][0];
            assert_eq!(of_consumer["name"], "C", "{stream}");
            let of_consumer = of_consumer["raft_group"].as_str().unwrap();
            if stream["name"] == "R1" {
                single += 1;
                assert!(group.starts_with("S-R1F-"), "{group}");
                assert!(of_consumer.starts_with("C-R1F-"), "{of_consumer}");
                continue;
            }
            assert!(of_consumer.starts_with("C-R3F-"), "{of_consumer}");
            groups.extend([group.to_owned(), of_consumer.to_owned()]);
            assert_eq!(stream["cluster"]["raft_group"], group);
            assert_eq!(stream["consumer_detail"][0]["cluster"]["raft_group"], of_consumer);
            let replicas = stream["cluster"]["replicas"].as_array().unwrap();
            let names = replicas.iter().map(|one| one["name"].as_str().unwrap());
            others.push(format!("{me}: {}", names.collect::<Vec<_>>().join(" ")));
        }
    }
    assert_eq!(single, 1);
    others.sort();
    // The others, whoever is asked, and whoever leads.
    assert_eq!(others, ["n0: n1 n2", "n1: n0 n2", "n2: n0 n1"]);
    assert_eq!(groups.len(), 2, "{groups:?}");
}

/// The consumer that a mirror has at its origin is nobody's: it is counted as little as it is listed.
#[test]
fn consumers_of_mirrors_are_not_counted() {
    let mut net = nodes_with_streams();
    let user = client(&mut net, 0, 0, "a", "a");
    let body = r#"{"name":"M","num_replicas":1,"mirror":{"name":"R3"}}"#;
    net.tell(
        user,
        &format!(
            "PUB R3 1\r\nx\r\nPUB $JS.API.STREAM.CREATE.M {}\r\n{body}\r\n",
            body.len()
        ),
    );
    net.run(SECOND * 5);
    let info = &request(&mut net, user, "$JS.API.STREAM.INFO.M", "")[0];
    assert_eq!(info["state"]["messages"], 1, "{info}");
    let system = client(&mut net, 0, 0, "sys", "s");
    let options = r#"{"accounts":true,"streams":true,"consumer":true}"#;
    let mut counted = 0;
    for answer in request(&mut net, system, "$SYS.REQ.SERVER.PING.JSZ", options) {
        let data = &answer["data"];
        let streams = data["account_details"][0]["stream_detail"].as_array().unwrap();
        let consumers = |stream: &Value| stream["consumer_detail"].as_array().map_or(0, Vec::len);
        let listed: usize = streams.iter().map(consumers).sum();
        assert_eq!(data["consumers"], listed, "{data}");
        counted += listed;
    }
    assert_eq!(counted, 4, "one of R1, and one of each replica of R3");
}

/// A user without a name of his own is told what nats-server calls him: nobody, the holder of a token, or a user made up
/// at the start.
#[test]
fn users_without_a_name_are_told_one() {
    let user = |auth: &str, connect: &str| {
        let mut net = Net::new();
        net.add(1, &format!("server_name: n0\nport: 4222\n{auth}\n"));
        net.run(SECOND);
        let client = net.open(0, 0, Listener::Client);
        net.tell(
            client,
            &format!("CONNECT {{\"verbose\":false,\"headers\":true{connect}}}\r\nPING\r\n"),
        );
        let greeting = net.hear(client);
        assert!(greeting.contains("PONG\r\n"), "{greeting}");
        let answers = request(&mut net, client, "$SYS.REQ.USER.INFO", "");
        answers[0]["data"]["user"].as_str().unwrap().to_owned()
    };
    assert_eq!(user("", ""), "");
    let token = user("authorization { token: t }", r#","auth_token":"t""#);
    assert_eq!(token, "[REDACTED]");
    let single = user(
        "authorization { user: u, password: p }",
        r#","user":"u","pass":"p""#,
    );
    assert_eq!(single, "u");
    let made_up = user("accounts { $SYS { users: [{ user: sys, password: s }] } }", "");
    let random = made_up.strip_prefix("nats-").unwrap();
    assert!(
        random.len() == 8 && random.bytes().all(|b| b.is_ascii_alphanumeric()),
        "{made_up}"
    );
}

/// What one account asks of JetStream is not counted to another.
#[test]
fn requests_to_the_api_are_counted_by_account() {
    let mut net = Net::new();
    net.add(
        2,
        "server_name: n\nport: 4222\njetstream { store_dir: \"/n\", max_file_store: 1GB }\nauthorization { timeout: 60 }\n\
         accounts { A { jetstream: enabled, users: [{ user: a, password: a }] }, B { jetstream: enabled, users: [{ user: b, \
         password: b }] }, SYS { users: [{ user: sys, password: s }] } }\nsystem_account: SYS\n",
    );
    net.run(SECOND * 3);
    let [a, b] = ["a", "b"].map(|user| client(&mut net, 0, 1, user, user));
    for _ in 0..5 {
        request(&mut net, a, "$JS.API.STREAM.INFO.NONE", "");
    }
    let api = |net: &mut Net, client| request(net, client, "$JS.API.INFO", "")[0]["api"].clone();
    let (of_a, of_b) = (api(&mut net, a), api(&mut net, b));
    assert_eq!(
        (&of_a["total"], &of_a["errors"]),
        (&5.into(), &5.into()),
        "{of_a}"
    );
    assert_eq!(
        (&of_b["total"], &of_b["errors"]),
        (&0.into(), &0.into()),
        "{of_b}"
    );
    let operator = client(&mut net, 0, 0, "sys", "s");
    let jsz = &request(
        &mut net,
        operator,
        "$SYS.REQ.SERVER.PING.JSZ",
        r#"{"accounts":true}"#,
    )[0];
    let details = jsz["data"]["account_details"].as_array().unwrap();
    let errors = |name: &str| {
        let detail = details.iter().find(|detail| detail["name"] == name).unwrap();
        detail["api"]["errors"].clone()
    };
    assert_eq!((errors("A"), errors("B")), (5.into(), 0.into()));
    assert_eq!(jsz["data"]["api"]["errors"], 5);
}

/// The log says who it was, in the form of nats-server.
#[test]
fn lines_about_a_client_name_its_software_its_account_and_its_user() {
    let mut net = Net::new();
    let config = r#"accounts { A { users: [{user: a, password: p, permissions: {publish: "x"}}, {user: "we ird", password: p}] }
        B { users: [{user: b, password: p, permissions: {publish: "x"}}] } }
        no_auth_user: b"#;
    net.add(1, config);
    net.settle();
    for (connect, label) in [
        (
            r#"{"user":"a","pass":"p","name":"nm","lang":"py","version":"1"}"#,
            r#"cid:1 - "v1:py:nm" - "A/user:a" - Publish Violation - Subject "y""#,
        ),
        (
            r#"{"name":"nm"}"#,
            r#"cid:2 - "nm" - "B/user:b" - Publish Violation - Subject "y""#,
        ),
    ] {
        let lines = net::log::said(|| {
            let client = net.open(0, 0, Listener::Client);
            net.tell(client, &format!("CONNECT {connect}\r\nPUB y 1\r\nx\r\n"));
        });
        let said = lines.iter().find(|line| line.contains("Violation")).unwrap();
        let (_, said) = said.split_once(" - ").unwrap();
        let (_, number) = label.split_once(" - ").unwrap();
        assert!(said.ends_with(number), "{said}");
        assert!(
            lines
                .iter()
                .any(|line| line.ends_with(" - Client connection created")),
            "{lines:?}"
        );
    }
}
