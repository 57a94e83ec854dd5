//! Publishes and consumers over whole turns of a node, with a disk that can be held: see `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net};
use std::time::Duration;

/// A node with a stream `S` on `s`, and a client of it.
fn node() -> (Net, Client) {
    let mut net = Net::new();
    let node = net.add(
        1,
        "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n",
    );
    net.run(Duration::from_secs(1));
    let client = net.client(node, 0);
    net.tell(client, "SUB in 1\r\n");
    request(
        &mut net,
        client,
        "$JS.API.STREAM.CREATE.S",
        r#"{"name":"S","subjects":["s"]}"#,
    );
    (net, client)
}

fn request(net: &mut Net, client: Client, subject: &str, body: &str) -> String {
    net.tell(client, &format!("PUB {subject} in {}\r\n{body}\r\n", body.len()));
    let heard = net.hear(client);
    assert!(heard.contains("\"created\""), "{subject}: {heard}");
    heard
}

/// Stream sequences of the messages that a client has received.
fn delivered(net: &mut Net, client: Client) -> Vec<u64> {
    let heard = net.hear(client);
    let acks = heard
        .lines()
        .filter_map(|line| line.split_once("$JS.ACK.S.c.")?.1.split('.').nth(1));
    acks.map(|seq| seq.parse().unwrap()).collect()
}

/// What is stored while a delivery is on its way through the log is delivered without any further event.
fn stored_meanwhile(consumer: &str, demand: &str) {
    let (mut net, client) = node();
    request(&mut net, client, "$JS.API.CONSUMER.CREATE.S.c", consumer);
    net.tell(client, "SUB out 2\r\n");
    net.tell(client, demand);
    // Each time the disk has written, a message is stored; its delivery goes into the log beside the next message.
    net.hold_disk(0, true);
    for body in ["a", "b", "c"] {
        net.tell(client, &format!("PUB s 1\r\n{body}\r\n"));
        net.release_disk_once(0);
    }
    net.hold_disk(0, false);
    net.settle();
    assert_eq!(delivered(&mut net, client), [1, 2, 3]);
}

/// What comes while the log is being written goes into one entry, however many turns it takes.
#[test]
fn publishes_gather_while_the_disk_is_busy() {
    let (mut net, client) = node();
    net.hold_disk(0, true);
    for _ in 0..40 {
        net.tell(client, "PUB s in 1\r\nx\r\n");
    }
    let mut acks = Vec::new();
    for _ in 0..3 {
        net.release_disk_once(0);
        acks.push(net.hear(client).matches("\"seq\"").count());
    }
    assert_eq!(acks.iter().sum::<usize>(), 40, "{acks:?}");
}

#[test]
fn a_push_consumer_delivers_what_is_stored_during_a_delivery() {
    stored_meanwhile(
        r#"{"stream_name":"S","config":{"name":"c","durable_name":"c","deliver_subject":"out","ack_policy":"explicit"}}"#,
        "",
    );
}

#[test]
fn a_pull_request_gets_what_is_stored_during_a_delivery() {
    stored_meanwhile(
        r#"{"stream_name":"S","config":{"name":"c","durable_name":"c","ack_policy":"explicit"}}"#,
        "PUB $JS.API.CONSUMER.MSG.NEXT.S.c out 12\r\n{\"batch\":10}\r\n",
    );
}

/// The answer to the creation says already whether somebody listens.
#[test]
fn a_new_push_consumer_is_bound_if_somebody_listens() {
    let (mut net, client) = node();
    let create = |net: &mut Net, name: &str, subject: &str| {
        let config = format!(
            r#"{{"stream_name":"S","config":{{"durable_name":"{name}","deliver_subject":"{subject}"}}}}"#
        );
        request(net, client, &format!("$JS.API.CONSUMER.CREATE.S.{name}"), &config)
    };
    net.tell(client, "SUB heard 2\r\n");
    let heard = create(&mut net, "c", "heard");
    assert!(heard.contains("\"push_bound\":true"), "{heard}");
    let unheard = create(&mut net, "d", "unheard");
    assert!(unheard.contains("\"config\""), "{unheard}");
    assert!(!unheard.contains("push_bound"), "{unheard}");
}

/// The bytes of a request are those of what is delivered.
#[test]
fn a_consumer_of_headers_counts_no_payloads() {
    let (mut net, client) = node();
    net.tell(
        client,
        &format!("PUB s 2000\r\n{}\r\n", "x".repeat(2_000)).repeat(2),
    );
    let config =
        r#"{"stream_name":"S","config":{"durable_name":"h","headers_only":true,"ack_policy":"explicit"}}"#;
    request(&mut net, client, "$JS.API.CONSUMER.CREATE.S.h", config);
    let ask = r#"{"batch":5,"no_wait":true,"max_bytes":500}"#;
    net.tell(
        client,
        &format!(
            "SUB got 77\r\nPUB $JS.API.CONSUMER.MSG.NEXT.S.h got {}\r\n{ask}\r\n",
            ask.len()
        ),
    );
    net.settle();
    let heard = net.hear(client);
    assert_eq!(heard.matches("Nats-Msg-Size: 2000").count(), 2, "{heard}");
}

/// Somebody who polls is told that there is nothing, however many wait.
#[test]
fn a_request_that_does_not_wait_is_not_refused_for_those_that_do() {
    let (mut net, client) = node();
    let config =
        r#"{"stream_name":"S","config":{"durable_name":"w","max_waiting":1,"ack_policy":"explicit"}}"#;
    request(&mut net, client, "$JS.API.CONSUMER.CREATE.S.w", config);
    let next = |net: &mut Net, body: &str| {
        net.tell(
            client,
            &format!(
                "PUB $JS.API.CONSUMER.MSG.NEXT.S.w got {}\r\n{body}\r\n",
                body.len()
            ),
        );
        net.settle();
        net.hear(client)
    };
    net.tell(client, "SUB got 77\r\n");
    next(&mut net, r#"{"batch":1,"expires":60000000000}"#);
    let heard = next(&mut net, r#"{"batch":1,"no_wait":true}"#);
    assert!(heard.contains("404 No Messages"), "{heard}");
    let heard = next(&mut net, r#"{"batch":1,"expires":60000000000}"#);
    assert!(heard.contains("409 Exceeded MaxWaiting"), "{heard}");
}

/// The last message that there was is not there any more: the consumer starts behind it.
#[test]
fn a_consumer_from_the_last_message_on_does_not_go_back_to_the_one_before() {
    let (mut net, client) = node();
    net.tell(client, "PUB s 1\r\nx\r\nPUB s 1\r\ny\r\n");
    net.tell(
        client,
        "PUB $JS.API.STREAM.MSG.DELETE.S gone 9\r\n{\"seq\":2}\r\n",
    );
    net.settle();
    for (filter, pending) in [("", 0), (r#","filter_subject":"s""#, 1)] {
        let config = format!(
            r#"{{"stream_name":"S","config":{{"name":"l{pending}","deliver_policy":"last","ack_policy":"explicit"{filter}}}}}"#
        );
        let made = request(
            &mut net,
            client,
            &format!("$JS.API.CONSUMER.CREATE.S.l{pending}"),
            &config,
        );
        assert!(made.contains(&format!("\"num_pending\":{pending}")), "{made}");
    }
}

/// Clients edit what they were shown, and send all of it.
#[test]
fn a_consumer_that_is_paused_can_be_edited() {
    let (mut net, client) = node();
    let create = |net: &mut Net, more: &str| {
        let config =
            format!(r#"{{"stream_name":"S","config":{{"durable_name":"p","ack_policy":"explicit"{more}}}}}"#);
        net.tell(
            client,
            &format!(
                "PUB $JS.API.CONSUMER.CREATE.S.p answer {}\r\n{config}\r\n",
                config.len()
            ),
        );
        net.settle();
        net.hear(client)
    };
    net.tell(client, "SUB answer 78\r\n");
    create(&mut net, "");
    let until = r#"{"pause_until":"2100-01-01T00:00:00Z"}"#;
    net.tell(
        client,
        &format!(
            "PUB $JS.API.CONSUMER.PAUSE.S.p answer {}\r\n{until}\r\n",
            until.len()
        ),
    );
    net.settle();
    assert!(net.hear(client).contains("\"paused\":true"));
    let edited = create(
        &mut net,
        r#","description":"d","pause_until":"2100-01-01T00:00:00Z""#,
    );
    assert!(
        edited.contains("\"description\":\"d\"") && edited.contains("\"paused\":true"),
        "{edited}"
    );
    let moved = create(&mut net, r#","pause_until":"2101-01-01T00:00:00Z""#);
    assert!(
        moved.contains("pause_until is not supported by this version yet"),
        "{moved}"
    );
}

/// As on nats-server, the message that goes beyond the limit is the last one.
#[test]
fn a_batch_by_direct_get_ends_with_the_message_that_reaches_its_bytes() {
    let (mut net, client) = node();
    let body = r#"{"name":"D","subjects":["d"],"allow_direct":true}"#;
    request(&mut net, client, "$JS.API.STREAM.CREATE.D", body);
    // Each counts 1 + 20 bytes.
    net.tell(client, &format!("PUB d 20\r\n{}\r\n", "x".repeat(20)).repeat(5));
    net.settle();
    net.hear(client);
    for (max_bytes, messages) in [(1, 1), (21, 1), (22, 2), (42, 2), (43, 3), (1_000, 5)] {
        let ask = format!(r#"{{"seq":1,"batch":9,"max_bytes":{max_bytes}}}"#);
        net.tell(
            client,
            &format!(
                "SUB got{max_bytes} 1{max_bytes}\r\nPUB $JS.API.DIRECT.GET.D got{max_bytes} {}\r\n{ask}\r\n",
                ask.len()
            ),
        );
        net.settle();
        let heard = net.hear(client);
        assert_eq!(
            heard.matches("Nats-Sequence: ").count(),
            messages,
            "{max_bytes}: {heard}"
        );
        assert_eq!(heard.matches("204 EOB").count(), 1);
    }
}

/// Somebody who listens to more than that, or in another group, is not who the messages are for: a look at all that goes on
/// must not use them up.
#[test]
fn a_push_consumer_waits_for_who_listens_to_its_subject_and_in_its_group() {
    let cases = [
        ("out", "", "", true),
        ("*", "", "", false),
        (">", "", "", false),
        ("out", "g", "", false),
        ("out", "", "g", false),
        ("out", "g", "g", true),
        ("*", "g", "g", false),
        ("out", "h", "g", false),
    ];
    for (subject, queue, group, is_bound) in cases {
        let (mut net, client) = node();
        net.tell(client, "PUB s 1\r\nx\r\n");
        let listener = net.client(0, 0);
        net.tell(listener, &format!("SUB {subject} {queue} 1\r\n"));
        let group_field = if group.is_empty() {
            String::new()
        } else {
            format!(r#","deliver_group":"{group}""#)
        };
        let config = format!(
            r#"{{"stream_name":"S","config":{{"durable_name":"c","deliver_subject":"out"{group_field}}}}}"#
        );
        let made = request(&mut net, client, "$JS.API.CONSUMER.CREATE.S.c", &config);
        let case = (subject, queue, group);
        assert_eq!(made.contains("\"push_bound\":true"), is_bound, "{case:?} {made}");
        let info = request(&mut net, client, "$JS.API.CONSUMER.INFO.S.c", "");
        let pending = if is_bound {
            "\"num_pending\":0"
        } else {
            "\"num_pending\":1"
        };
        assert!(info.contains(pending), "{case:?} {info}");
    }
}

/// A deliver group says who has to listen for anything to be delivered. One of its members gets each message; everybody
/// else who listens there gets a copy, as of any message.
#[test]
fn others_get_copies_of_what_a_deliver_group_is_served() {
    let (mut net, client) = node();
    net.tell(client, "PUB s 1\r\nx\r\nPUB s 1\r\ny\r\n");
    request(
        &mut net,
        client,
        "$JS.API.CONSUMER.CREATE.S.c",
        r#"{"stream_name":"S","config":{"name":"c","durable_name":"c","deliver_subject":"out","deliver_group":"g","ack_policy":"explicit"}}"#,
    );
    let plain = net.client(0, 0);
    net.tell(plain, "SUB out 1\r\n");
    let other_group = net.client(0, 0);
    net.tell(other_group, "SUB out h 1\r\nSUB out h 2\r\n");
    assert_eq!(delivered(&mut net, plain), [0; 0], "nobody of the group listens");
    let members = [net.client(0, 0), net.client(0, 0)];
    for member in members {
        net.tell(member, "SUB out g 1\r\n");
    }
    net.tell(client, "PUB s 1\r\nz\r\n");
    net.settle();
    assert_eq!(delivered(&mut net, plain), [1, 2, 3]);
    assert_eq!(delivered(&mut net, other_group), [1, 2, 3]);
    let mut served: Vec<u64> = members
        .iter()
        .flat_map(|member| delivered(&mut net, *member))
        .collect();
    served.sort_unstable();
    assert_eq!(served, [1, 2, 3]);
}

/// After a reset a consumer looks as if it had delivered nothing.
#[test]
fn a_reset_forgets_when_something_was_delivered() {
    let (mut net, client) = node();
    net.tell(client, "PUB s 1\r\nx\r\n");
    request(
        &mut net,
        client,
        "$JS.API.CONSUMER.CREATE.S.c",
        r#"{"stream_name":"S","config":{"name":"c","durable_name":"c","ack_policy":"explicit"}}"#,
    );
    net.tell(client, "PUB $JS.API.CONSUMER.MSG.NEXT.S.c in 0\r\n\r\n");
    let heard = net.hear(client);
    let reply = heard.split(' ').nth(3).unwrap().to_owned();
    net.tell(client, &format!("PUB {reply} 4\r\n+ACK\r\n"));
    net.tell(client, "PUB $JS.API.CONSUMER.INFO.S.c in 0\r\n\r\n");
    assert_eq!(net.hear(client).matches("\"last_active\"").count(), 2);
    net.tell(client, "PUB $JS.API.CONSUMER.RESET.S.c in 9\r\n{\"seq\":1}\r\n");
    let heard = net.hear(client);
    assert!(heard.contains("\"reset_seq\":1"), "{heard}");
    assert!(!heard.contains("\"last_active\""), "{heard}");
}

/// A request that has run out says what it asked for, whatever that was; it was good for one message.
#[test]
fn a_request_for_no_number_of_messages_tells_it_as_it_was() {
    let (mut net, client) = node();
    request(
        &mut net,
        client,
        "$JS.API.CONSUMER.CREATE.S.c",
        r#"{"stream_name":"S","config":{"name":"c","durable_name":"c","ack_policy":"explicit"}}"#,
    );
    for (body, pending) in [
        (r#"{"expires":-1}"#, "0"),
        (r#"{"expires":-1,"batch":-3}"#, "-3"),
        (r#"{"expires":-1,"batch":2}"#, "2"),
    ] {
        net.tell(
            client,
            &format!(
                "PUB $JS.API.CONSUMER.MSG.NEXT.S.c in {}\r\n{body}\r\n",
                body.len()
            ),
        );
        net.run(Duration::from_millis(10));
        let heard = net.hear(client);
        let header = format!("Nats-Pending-Messages: {pending}\r\n");
        assert!(heard.contains(&header), "{body}: {heard}");
    }
    let least = r#"{"batch":-9223372036854775808}"#;
    net.tell(
        client,
        &format!(
            "PUB $JS.API.CONSUMER.MSG.NEXT.S.c in {}\r\n{least}\r\n",
            least.len()
        ),
    );
    net.tell(client, "PUB s 1\r\nx\r\nPUB s 1\r\ny\r\n");
    assert_eq!(delivered(&mut net, client), [1]);
}

/// As nats-server: without acknowledgements the floor moves with what is delivered, also where that skips messages.
#[test]
fn the_ack_floor_of_a_consumer_without_acknowledgements_is_what_it_has_delivered() {
    let (mut net, client) = node();
    let config = r#"{"stream_name":"S","config":{"durable_name":"c","ack_policy":"none"}}"#;
    request(&mut net, client, "$JS.API.CONSUMER.CREATE.S.c", config);
    for _ in 0..5 {
        net.tell(client, "PUB s 1\r\nx\r\n");
    }
    let info = |count: u64, net: &mut Net| {
        let body = format!(r#"{{"batch":{count},"no_wait":true}}"#);
        let len = body.len();
        net.tell(
            client,
            &format!("PUB $JS.API.CONSUMER.MSG.NEXT.S.c in {len}\r\n{body}\r\n"),
        );
        net.hear(client);
        net.tell(client, "PUB $JS.API.CONSUMER.INFO.S.c in 0\r\n\r\n");
        net.hear(client)
    };
    for (count, at) in [(2, 2), (1, 3), (9, 5)] {
        let heard = info(count, &mut net);
        let at = format!("\"consumer_seq\":{at},\"stream_seq\":{at}");
        assert!(
            heard.contains(&format!("\"delivered\":{{{at},\"last_active\"")),
            "{heard}"
        );
        assert!(heard.contains(&format!("\"ack_floor\":{{{at}}}")), "{heard}");
    }
    net.tell(client, "PUB $JS.API.STREAM.PURGE.S in 0\r\n\r\n");
    let heard = info(1, &mut net);
    assert!(
        heard.contains("\"ack_floor\":{\"consumer_seq\":5,\"stream_seq\":5}"),
        "{heard}"
    );
}

/// Acknowledgements and answers to flow control that nobody wants are told of as requests without a receiver are.
#[test]
fn nobody_listens_to_acknowledgements_of_a_consumer_without_them() {
    let (mut net, client) = node();
    for (name, policy) in [("none", "none"), ("some", "explicit")] {
        let config = format!(
            r#"{{"stream_name":"S","config":{{"name":"{name}","durable_name":"{name}","ack_policy":"{policy}"}}}}"#
        );
        request(
            &mut net,
            client,
            &format!("$JS.API.CONSUMER.CREATE.S.{name}"),
            &config,
        );
    }
    net.tell(client, "PUB s 1\r\nx\r\n");
    for consumer in ["none", "missing"] {
        for body in ["", "+ACK", "-NAK", "+WPI", "+TERM", "+NXT", "junk"] {
            let subject = format!("$JS.ACK.S.{consumer}.1.1.1.17.0");
            net.tell(client, &format!("PUB {subject} in {}\r\n{body}\r\n", body.len()));
            let header = format!("NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n");
            let len = header.len();
            assert_eq!(
                net.hear(client),
                format!("HMSG in 1 {len} {len}\r\n{header}\r\n"),
                "{consumer} {body}"
            );
        }
    }
    for subject in [
        "$JS.FC.S.some.x",
        "$JS.FC.S.missing.x",
        "$JS.API.CONSUMER.MSG.NEXT.S.missing",
    ] {
        net.tell(client, &format!("PUB {subject} in 0\r\n\r\n"));
        let heard = net.hear(client);
        assert!(
            heard.contains(&format!("NATS/1.0 503\r\nNats-Subject: {subject}\r\n")),
            "{subject}: {heard}"
        );
    }
    net.tell(client, "PUB $JS.ACK.S.some.1.1.1.17.0 in 4\r\n+ACK\r\n");
    assert_eq!(net.hear(client), "MSG in 1 0\r\n\r\n");
    net.tell(client, "PUB $JS.ACK.S.some.1.1.1.17.0 in 4\r\n+NXT\r\n");
    assert!(
        net.hear(client).starts_with("MSG s 1 $JS.ACK.S.some."),
        "+NXT asks for the next"
    );
}

/// What is wrong with the body of a request is told before it is looked whether there is such a stream, and before the
/// names are compared.
#[test]
fn bodies_are_read_before_anything_is_looked_up() {
    let (mut net, client) = node();
    let mut code = |subject: &str, body: &str| {
        net.tell(
            client,
            &format!("PUB $JS.API.{subject} in {}\r\n{body}\r\n", body.len()),
        );
        let heard = net.hear(client);
        let code = heard
            .split_once("\"err_code\":")
            .map(|(_, rest)| rest[..5].to_owned());
        code.unwrap_or(heard)
    };
    for subject in [
        "STREAM.INFO.NOPE",
        "STREAM.PURGE.NOPE",
        "STREAM.MSG.GET.NOPE",
        "STREAM.MSG.DELETE.NOPE",
        "CONSUMER.LIST.NOPE",
        "CONSUMER.NAMES.NOPE",
        "CONSUMER.PAUSE.NOPE.C",
    ] {
        assert_eq!(code(subject, "{\"a\":"), "10025", "{subject}");
        assert_eq!(code(subject, "{\"nonsense\":1}"), "10025", "{subject}");
    }
    assert_eq!(code("STREAM.INFO.NOPE", ""), "10059");
    assert_eq!(code("STREAM.PURGE.NOPE", ""), "10059");
    assert_eq!(code("STREAM.PURGE.NOPE", r#"{"seq":1,"keep":1}"#), "10003");
    assert_eq!(
        code("STREAM.MSG.GET.NOPE", r#"{"seq":1,"last_by_subj":"a"}"#),
        "10003"
    );
    for stream in ["S", "NOPE"] {
        let subject = format!("STREAM.UPDATE.{stream}");
        assert_eq!(code(&subject, r#"{"subjects":["a"]}"#), "10052", "{stream}");
        assert_eq!(code(&subject, r#"{"name":"a.b"}"#), "10052", "{stream}");
        assert_eq!(code(&subject, r#"{"name":"T"}"#), "10056", "{stream}");
    }
    assert_eq!(code("STREAM.CREATE.S", r#"{"subjects":["a"]}"#), "10056");
    assert_eq!(code("STREAM.MSG.DELETE.S", r#"{"seq":0}"#), "10057");
}

/// A consumer without a durable name and without a time that it may stay idle is not created twice by `create`.
#[test]
fn creating_again_compares_what_was_asked_for() {
    let (mut net, client) = node();
    let mut ask = |name: &str, action: &str, config: &str| {
        let body = format!(
            r#"{{"stream_name":"S","action":"{action}","config":{{"name":"{name}","ack_policy":"explicit"{config}}}}}"#
        );
        let subject = format!("$JS.API.CONSUMER.CREATE.S.{name}");
        net.tell(client, &format!("PUB {subject} in {}\r\n{body}\r\n", body.len()));
        let heard = net.hear(client);
        let code = heard
            .split_once("\"err_code\":")
            .map(|(_, rest)| rest[..5].to_owned());
        code.unwrap_or_else(|| "ok".to_owned())
    };
    for (name, config, again) in [
        ("plain", "", "10148"),
        ("below", r#","inactive_threshold":-1"#, "10148"),
        ("timed", r#","inactive_threshold":9000000000"#, "ok"),
        ("durable", r#","durable_name":"durable""#, "ok"),
    ] {
        assert_eq!(ask(name, "create", config), "ok", "{name}");
        assert_eq!(ask(name, "create", config), again, "{name}");
        assert_eq!(ask(name, "", config), "ok", "{name}");
        assert_eq!(ask(name, "update", config), "ok", "{name}");
        assert_eq!(ask(name, "create", config), again, "{name}");
    }
}
