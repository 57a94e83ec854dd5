//! Conversations. Each line of a script is a line of the client; `\` escapes as in Rust. `!wait N` lets N
//! milliseconds pass, `!raw` sends without a line end, `!slow` makes the next authentications slow and `!answer`
//! finishes one, `!stall` blocks the socket. Output shows what the server sends behind `<`, and what it tells its
//! worker. The answers are those of nats-server 2.15.1 to the same input.

#![expect(
    clippy::too_many_lines,
    reason = "a transcript is as long as its conversation"
)]

mod common;

use std::time::Duration;

use common::Session;
use expect_test::{Expect, expect};
use tidelock_session::Settings;

fn settings() -> Settings {
    Settings {
        max_payload: 1000,
        max_subscriptions: 3,
        ..Settings::default()
    }
}

fn with_users() -> Settings {
    Settings {
        auth_required: true,
        connect_optional: false,
        auth_timeout: Duration::from_secs(1),
        max_payload: 1000,
        ..Settings::default()
    }
}

fn unescape(line: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.extend(c.to_string().as_bytes());
            continue;
        }
        match chars.next() {
            Some('r') => out.push(b'\r'),
            Some('n') => out.push(b'\n'),
            Some('t') => out.push(b'\t'),
            Some('x') => {
                let hex: String = chars.by_ref().take(2).collect();
                out.push(u8::from_str_radix(&hex, 16).expect("two hex digits"));
            }
            other => out.extend(other.map(|c| c.to_string()).unwrap_or_default().as_bytes()),
        }
    }
    out
}

fn run(settings: Settings, script: &str) -> String {
    let mut session = Session::new(settings);
    let mut shown = String::new();
    let mut stalled = false;
    for line in script.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "!wait" => session.pass(Duration::from_millis(rest.parse().expect("milliseconds"))),
            "!raw" => drop(session.receive(&unescape(rest))),
            "!empty" => drop(session.receive(b"\r\n")),
            "!slow" => session.worker.slow_authentication = true,
            "!answer" => {
                session.authenticated();
                session.receive(b"");
            }
            "!stall" => stalled = true,
            _ => drop(session.receive(&[&unescape(line)[..], b"\r\n"].concat())),
        }
        if stalled {
            session.worker.out.stalled(session.now);
        } else {
            show(&session.sent(), &mut shown);
        }
        shown.push_str(&std::mem::take(&mut session.worker.notes));
    }
    shown
}

fn show(sent: &[u8], shown: &mut String) {
    if sent.is_empty() {
        return;
    }
    let text = sent
        .escape_ascii()
        .to_string()
        .replace("\\\"", "\"")
        .replace("\\'", "'");
    let text = text.strip_suffix("\\r\\n").expect("all output ends a line");
    for line in text.split("\\r\\n") {
        shown.push_str(format!("< {line}").trim_end());
        shown.push('\n');
    }
}

fn check(script: &str, expected: &Expect) {
    expected.assert_eq(&run(settings(), script));
}

fn check_users(script: &str, expected: &Expect) {
    expected.assert_eq(&run(with_users(), script));
}

#[test]
fn the_defaults_without_connect() {
    check(
        "SUB a 1
         PUB a 1\\r\\nx
         PUB a.* 0\\r\\n
         PING
         UNSUB 77",
        &expect![[r#"
            < +OK
            interest: +a
            < +OK
            < MSG a 1 1
            < x
            < -ERR 'Invalid Publish Subject'
            < +OK
            < PONG
            < +OK
        "#]],
    );
}

#[test]
fn connect_and_the_info_behind_the_first_pong() {
    check(
        r#"CONNECT {"VERBOSE":false,"Protocol":1,"protocol":null}
           PING
           PING"#,
        &expect![[r#"
            < PONG
            < INFO {"server_id":"","server_name":"","version":"","proto":0,"go":"","host":"","port":0,"headers":false,"max_payload":0,"connect_info":true}
            < PONG
        "#]],
    );
}

#[test]
fn a_second_connect_drops_subscriptions_and_keeps_what_it_does_not_name() {
    check(
        r#"SUB a 1
           CONNECT {"verbose":false,"protocol":1}
           PUB a 1\r\nx
           CONNECT {"pedantic":false}
           PUB a 1\r\ny
           PING"#,
        &expect![[r#"
            < +OK
            interest: +a
            < MSG a 1 1
            < x
            interest: -a
            < PONG
            < INFO {"server_id":"","server_name":"","version":"","proto":0,"go":"","host":"","port":0,"headers":false,"max_payload":0,"connect_info":true}
        "#]],
    );
}

#[test]
fn odd_connects() {
    for (json, expected) in [
        (
            "CONNECT {x",
            expect![[r#"
            log: Error key must be a string at line 1 column 2
            close: Protocol Violation
        "#]],
        ),
        (
            r#"CONNECT {"verbose":"x"}"#,
            expect![[r#"
            log: Error invalid type: string "x", expected a boolean at line 1 column 14
            close: Protocol Violation
        "#]],
        ),
        (
            "CONNECT",
            expect![[r#"
            log: Error EOF while parsing a value at line 1 column 0
            close: Protocol Violation
        "#]],
        ),
        (
            "CONNECT null",
            expect![[r#"
            < +OK
        "#]],
        ),
        (
            r#"CONNECT {"protocol":2}"#,
            expect![[r#"
            < -ERR 'invalid client protocol'
            log: Error invalid client protocol
            close: Bad Client Protocol Version
        "#]],
        ),
        (
            r#"CONNECT {"protocol":-1}"#,
            expect![[r#"
            < -ERR 'invalid client protocol'
            log: Error invalid client protocol
            close: Bad Client Protocol Version
        "#]],
        ),
        (
            r#"CONNECT {"no_responders":true}"#,
            expect![[r#"
            < -ERR 'no responders requires headers support'
            log: Error no responders requires headers support
            close: No Responders Requires Headers
        "#]],
        ),
        (
            r#"CONNECT {"account":"x"}"#,
            expect![[r#"
            < -ERR 'Authorization Violation'
            log: Error authentication error
            close: Authentication Failure
        "#]],
        ),
        (
            r#"CONNECT {"new_account":true}"#,
            expect![[r#"
            < -ERR 'Authorization Violation'
            log: Error authentication error
            close: Authentication Failure
        "#]],
        ),
    ] {
        check(json, &expected);
    }
}

#[test]
fn input_that_ends_the_connection() {
    for (script, expected) in [
        (
            "!empty",
            expect![[r#"
            < -ERR 'Unknown Protocol Operation'
            log: Error Client parser ERROR, proto='"\r\n"'...
            close: Protocol Violation
        "#]],
        ),
        (
            "!raw X",
            expect![[r#"
            < -ERR 'Unknown Protocol Operation'
            log: Error Client parser ERROR, proto='"X"'...
            close: Protocol Violation
        "#]],
        ),
        (
            "!raw PING\\r\\nPUB a 1001\\r\\n",
            expect![[r#"
            < PONG
            < -ERR 'Maximum Payload Violation'
            log: Error maximum payload exceeded: 1001 vs 1000
            close: Maximum Message Payload Exceeded
        "#]],
        ),
        (
            "PUB foo",
            expect![[r#"
            log: Error processPub Parse Error: "foo"
            close: Protocol Violation
        "#]],
        ),
        (
            "PUB a 1\\r\\nxyz",
            expect![[r#"
            < -ERR 'Unknown Protocol Operation'
            log: Error Client parser ERROR, proto='"yz"'...
            close: Protocol Violation
        "#]],
        ),
        (
            "-ERR 'x'",
            expect![[r#"
            log: Error Client Error 'x'
            close: Parse Error
        "#]],
        ),
        (
            "INFO {x",
            expect![[r#"
            log: Error INFO holds no valid JSON
            close: Protocol Violation
        "#]],
        ),
        (
            "HPUB a 12 12",
            expect![[r#"
            log: Error message headers not supported
            close: Protocol Violation
        "#]],
        ),
        (
            "hpub a x y",
            expect![[r#"
            log: Error message headers not supported
            close: Protocol Violation
        "#]],
        ),
        (
            "HPUB a 12 14\\r\\nNATS/1.0\\r\\n\\r\\nhiXX",
            expect![[r#"
            log: Error message headers not supported
            close: Protocol Violation
        "#]],
        ),
    ] {
        check(script, &expected);
    }
    check(
        &format!("!raw PUB {}", "x".repeat(4098)),
        &expect![[r#"
        < -ERR 'maximum control line exceeded'
        log: Error maximum control line exceeded
        close: Maximum Control Line Exceeded
    "#]],
    );
}

#[test]
fn input_that_does_not() {
    check(
        "+OK
         INFO {}
         PONG
         PINGxyz
         ping",
        &expect![[r#"
            < PONG
            < PONG
        "#]],
    );
}

#[test]
fn subscriptions() {
    check(
        "SUB a..b 1
         SUB foo.> 1
         SUB a..b 1
         SUB a _sys_ 2
         SUB a q..* 2
         SUB b 3
         SUB c 4
         SUB d 5
         UNSUB 3
         SUB d 5",
        &expect![[r#"
            < -ERR 'Invalid Subject'
            < +OK
            interest: +foo.>
            < +OK
            < -ERR 'Permissions Violation for Subscription to "a" using queue "_sys_"'
            log: Error Subscription Violation - Subject "a", Queue: "_sys_", SID 2
            < +OK
            interest: +a
            < +OK
            interest: +b
            < -ERR 'maximum subscriptions exceeded'
            log: Error maximum subscriptions exceeded
            < -ERR 'maximum subscriptions exceeded'
            < +OK
            interest: -b
            < +OK
            interest: +d
        "#]],
    );
    let tokens = Settings {
        max_subscription_tokens: 3,
        ..settings()
    };
    expect![[r#"
        < -ERR 'Permissions Violation for Subscription to "a.b.c.d", too many tokens'
        log: Error Subscription Violation Too Many Tokens - Subject "a.b.c.d", SID 1
        < +OK
        interest: +a.b.>
    "#]]
    .assert_eq(&run(tokens, "SUB a.b.c.d 1\nSUB a.b.> 1"));
}

#[test]
fn auto_unsubscribe() {
    check(
        r#"CONNECT {"verbose":false}
           SUB a 1
           UNSUB 1 2
           PUB a 1\r\nx
           PUB a 1\r\ny
           PUB a 1\r\nz
           SUB b 1
           PUB b 1\r\nx
           PUB b 1\r\ny
           UNSUB 1 2
           PUB b 1\r\nz
           SUB c 1
           UNSUB 1 0
           SUB c 1
           UNSUB 1 zz"#,
        &expect![[r#"
            interest: +a
            < MSG a 1 1
            < x
            < MSG a 1 1
            < y
            interest: -a
            interest: +b
            < MSG b 1 1
            < x
            < MSG b 1 1
            < y
            interest: -b
            interest: +c
            interest: -c
            interest: +c
            interest: -c
        "#]],
    );
}

#[test]
fn lines_for_receivers() {
    check(
        r#"CONNECT {"headers":true,"verbose":false}
           SUB a 1
           HPUB a   r 012 0014\r\nNATS/1.0\r\n\r\nhi
           HPUB a r 012 0014\r\nNATS/1.0\r\n\r\nhi
           HPUB a 3 3\r\nxyz
           HPUB a 0 3\r\nxyz
           pub  a\tr   002 \r\nhi
           !raw pub\ta 1\nx\r\n
           PUB a r 002\r\nhi
           CONNECT {"headers":false}
           SUB a 1"#,
        &expect![[r#"
            interest: +a
            < HMSG a 1 r 012 0014
            < NATS/1.0
            <
            < hi
            < HMSG a 1 r 012 0014
            < NATS/1.0
            <
            < hi
            < HMSG a 1 3 3
            < xyz
            < MSG a 1 3
            < xyz
            < MSG a 1 r 002
            < hi
            < MSG a 1 1
            < x
            < MSG a 1 r 002
            < hi
            interest: -a
            interest: +a
        "#]],
    );
}

#[test]
fn nobody_there() {
    check(
        r#"CONNECT {"verbose":false,"headers":true,"no_responders":true}
           SUB r 1
           PUB nobody r 0\r\n"#,
        &expect![[r#"
            interest: +r
            < HMSG r 1 38 38
            < NATS/1.0 503
            < Nats-Subject: nobody
            <
            <
        "#]],
    );
}

#[test]
fn no_echo() {
    check(
        r#"CONNECT {"verbose":false,"echo":false}
           SUB a 1
           PUB a 1\r\nx"#,
        &expect![[r#"
            interest: +a
        "#]],
    );
}

#[test]
fn reserved_subjects_and_replies() {
    check(
        "PUB _GR_.x 0\\r\\n
         PUB $NRG.x 0\\r\\n
         PUB $GNR.x 0\\r\\n
         PUB a _R_.x 0\\r\\n
         PUB a $JS.ACK.x 0\\r\\n
         PUB a _GR_.x 0\\r\\n
         PUB a _R_ 0\\r\\n
         PUB _GR_.a\"b\\\\c\\x01\\xff 0\\r\\n",
        &expect![[r#"
            < -ERR 'Permissions Violation for Publish to "_GR_.x"'
            log: Error Publish Violation - Subject "_GR_.x"
            < -ERR 'Permissions Violation for Publish to "$NRG.x"'
            log: Error Publish Violation - Subject "$NRG.x"
            < +OK
            < -ERR 'Permissions Violation for Publish with Reply of "_R_.x"'
            log: Error Publish Violation - Reply "_R_.x"
            < -ERR 'Permissions Violation for Publish with Reply of "$JS.ACK.x"'
            log: Error Publish Violation - Reply "$JS.ACK.x"
            < -ERR 'Permissions Violation for Publish with Reply of "_GR_.x"'
            log: Error Publish Violation - Reply "_GR_.x"
            < +OK
            < -ERR 'Permissions Violation for Publish to "_GR_.a\\"b\\\\c\\x01\\xff"'
            log: Error Publish Violation - Subject "_GR_.a\"b\\c\x01\xff"
        "#]],
    );
}

#[test]
fn authentication() {
    for (script, expected) in [
        (
            "PING",
            expect![[r#"
            < -ERR 'Authorization Violation'
            log: Error authentication error
            close: Authentication Failure
        "#]],
        ),
        (
            "xx",
            expect![[r#"
            < -ERR 'Authorization Violation'
            log: Error authentication error
            close: Authentication Failure
        "#]],
        ),
        (
            "!raw CX",
            expect![[r#"
            < -ERR 'Unknown Protocol Operation'
            log: Error Client parser ERROR, proto='"CX"'...
            close: Protocol Violation
        "#]],
        ),
        (
            "!wait 1000",
            expect![[r#"
            < -ERR 'Authentication Timeout'
            close: Authentication Timeout
        "#]],
        ),
        (
            r#"CONNECT {"user":"a","pass":"b","protocol":7}"#,
            expect![[r#"
                < -ERR 'Authorization Violation'
                log: Error authentication error - User "a"
                close: Authentication Failure
            "#]],
        ),
        (
            r#"CONNECT {"auth_token":"secret"}"#,
            expect![[r#"
            < -ERR 'Authorization Violation'
            log: Error authentication error - Token "[REDACTED]"
            close: Authentication Failure
        "#]],
        ),
        (
            "CONNECT {}",
            expect![[r#"
            < -ERR 'Authorization Violation'
            log: Error authentication error
            close: Authentication Failure
        "#]],
        ),
        (
            r#"CONNECT {"user":"full","pass":"full"}"#,
            expect![[r#"
            < -ERR 'maximum account active connections exceeded'
            log: Error maximum account active connections exceeded
            close: Maximum Account Connections Exceeded
        "#]],
        ),
        (
            "CONNECT {\"user\":\"a\",\"pass\":\"a\"}\n!wait 1500\nPING",
            expect![[r#"
                < +OK
                < PONG
            "#]],
        ),
        (
            "CONNECT {\"user\":\"a\",\"pass\":\"a\"}\nSUB a 1\nCONNECT {\"pass\":\"zz\"}\nPING",
            expect![[r#"
                < +OK
                < +OK
                interest: +a
                < -ERR 'Authorization Violation'
                interest: -a
                log: Error authentication error - User "a"
                close: Authentication Failure
            "#]],
        ),
    ] {
        check_users(script, &expected);
    }
}

#[test]
fn authentication_that_takes_time_holds_the_input_back() {
    check_users(
        r#"!slow
           !raw CONNECT {"user":"a","pass":"a"}\r\nPING\r\nSUB a 1\r\n
           PING
           !answer"#,
        &expect![[r#"
            < +OK
            < PONG
            < +OK
            < PONG
            interest: +a
        "#]],
    );
    check_users(
        r#"!slow
           !raw CONNECT {"user":"a","pass":"b"}\r\nPING\r\n
           !answer"#,
        &expect![[r#"
            < -ERR 'Authorization Violation'
            log: Error authentication error - User "a"
            close: Authentication Failure
        "#]],
    );
}

#[test]
fn publish_permissions() {
    check_users(
        r#"CONNECT {"headers":true,"user":"p","pass":"p","pedantic":false}
           PUB no 0\r\n
           PUB ok.a 0\r\n
           PUB ok.a 0\r\n
           PUB ok.no 0\r\n
           HPUB no 12 12\r\nNATS/1.0\r\n\r\n
           PUB ok.a $JS.ACK.x 0\r\n"#,
        &expect![[r#"
            < +OK
            < -ERR 'Permissions Violation for Publish to "no"'
            log: Error Publish Violation - Subject "no"
            < +OK
            < +OK
            < -ERR 'Permissions Violation for Publish to "ok.no"'
            log: Error Publish Violation - Subject "ok.no"
            < -ERR 'Permissions Violation for Publish to "no"'
            log: Error Publish Violation - Subject "no"
            < -ERR 'Permissions Violation for Publish with Reply of "$JS.ACK.x"'
            log: Error Publish Violation - Reply "$JS.ACK.x"
        "#]],
    );
}

#[test]
fn subscribe_permissions() {
    check_users(
        r#"CONNECT {"user":"p","pass":"p","pedantic":false}
           SUB no 1
           SUB no q 2
           SUB s.no 3
           SUB s.x.y 4
           SUB s.x.> 5
           SUB s.* 6
           SUB a..b 7
           PUB s.yes 1\r\nx
           PUB s.no 1\r\nx
           UNSUB 6"#,
        &expect![[r#"
            < +OK
            < -ERR 'Permissions Violation for Subscription to "no"'
            log: Error Subscription Violation - Subject "no", SID 1
            < -ERR 'Permissions Violation for Subscription to "no" using queue "q"'
            log: Error Subscription Violation - Subject "no", Queue: "q", SID 2
            < -ERR 'Permissions Violation for Subscription to "s.no"'
            log: Error Subscription Violation - Subject "s.no", SID 3
            < -ERR 'Permissions Violation for Subscription to "s.x.y"'
            log: Error Subscription Violation - Subject "s.x.y", SID 4
            < -ERR 'Permissions Violation for Subscription to "s.x.>"'
            log: Error Subscription Violation - Subject "s.x.>", SID 5
            < +OK
            interest: +s.*
            < -ERR 'Permissions Violation for Subscription to "a..b"'
            log: Error Subscription Violation - Subject "a..b", SID 7
            < +OK
            < MSG s.yes 6 1
            < x
            < +OK
            delivery: Denied
            < +OK
            interest: -s.*
        "#]],
    );
}

#[test]
fn a_delivered_reply_subject_may_be_answered_once_and_in_time() {
    check_users(
        r#"CONNECT {"verbose":false,"user":"p","pass":"p","pedantic":false}
           PUB answer.1 0\r\n
           SUB s.a 1
           PUB s.a answer.1 0\r\n
           PUB answer.1 0\r\n
           PUB answer.1 0\r\n
           PUB s.a answer.2 0\r\n
           !wait 1001
           PUB answer.2 0\r\n"#,
        &expect![[r#"
            < -ERR 'Permissions Violation for Publish to "answer.1"'
            log: Error Publish Violation - Subject "answer.1"
            interest: +s.a
            < MSG s.a 1 answer.1 0
            <
            < -ERR 'Permissions Violation for Publish to "answer.1"'
            log: Error Publish Violation - Subject "answer.1"
            < MSG s.a 1 answer.2 0
            <
            < -ERR 'Permissions Violation for Publish to "answer.2"'
            log: Error Publish Violation - Subject "answer.2"
        "#]],
    );
}

#[test]
fn a_silent_client_is_pinged_and_then_cut() {
    let fast = Settings {
        ping_interval: Duration::from_secs(3),
        ..settings()
    };
    let script = "CONNECT {\"verbose\":false}
        !wait 1999
        !wait 1
        !wait 3000
        !wait 3000";
    expect![[r#"
        < PING
        < PING
        < -ERR 'Stale Connection'
        close: Stale Connection
    "#]]
    .assert_eq(&run(fast.clone(), script));
    // Traffic alone does not stand in for the answer until a round trip is known; then it does.
    let script = "CONNECT {\"verbose\":false}
        !wait 2000
        PONG
        !wait 2000
        SUB a 1
        !wait 1000
        !wait 3000";
    expect![[r#"
        < PING
        interest: +a
        < PING
    "#]]
    .assert_eq(&run(fast.clone(), script));
    expect![[r#"
        < PING
    "#]]
    .assert_eq(&run(fast, "!wait 2999\n!wait 1"));
}

#[test]
fn the_time_up_to_connect_stands_for_a_round_trip_until_one_is_measured() {
    let mut session = Session::new(settings());
    assert_eq!(session.inbound.rtt(), None);
    session.pass(Duration::from_millis(300));
    session.receive(b"CONNECT {\"verbose\":false}\r\nPING\r\n");
    assert_eq!(session.inbound.rtt(), Some(Duration::from_millis(300)));
    session.pass(Duration::from_millis(2000));
    session.pass(Duration::from_millis(7));
    session.receive(b"PONG\r\n");
    assert_eq!(session.inbound.rtt(), Some(Duration::from_millis(7)));
}

#[test]
fn a_blocked_socket_is_cut() {
    check(
        "PING
         !stall
         SUB a 1
         !wait 10001",
        &expect![[r#"
            < PONG
            interest: +a
            close: Slow Consumer (Write Deadline)
        "#]],
    );
}

#[test]
fn a_client_that_does_not_read_is_cut() {
    let tight = Settings {
        max_pending: 30,
        ..settings()
    };
    let mut session = Session::new(tight);
    session.receive(b"CONNECT {\"verbose\":false}\r\nSUB a 1\r\nPUB a 5\r\nhello\r\nPUB a 5\r\nhello\r\nPUB a 5\r\nhello\r\n");
    expect![[r#"
        interest: +a
        delivery: OverLimit(18)
        delivery: Gone
        close: Slow Consumer (Pending Bytes)
    "#]]
    .assert_eq(&session.worker.notes);
    let mut session = Session::new(Settings {
        max_pending: 30,
        ..settings()
    });
    session.receive(b"PING\r\nPING\r\nPING\r\nPING\r\nPING\r\nPING\r\n");
    expect![[r#"
        close: Slow Consumer (Pending Bytes)
    "#]]
    .assert_eq(&session.worker.notes);
}
