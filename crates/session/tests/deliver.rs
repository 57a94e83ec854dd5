//! What receivers get, with and without headers, small and large, from clients and from the server.

mod common;

use bytes::Bytes;
use common::{Session, receiver, sent};
use tidelock_base::Mono;
use tidelock_session::{ChunkPool, Delivered, Parts, Settings};

const WITH_HEADERS: &str = "CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB > 1\r\n";
const WITHOUT_HEADERS: &str = "CONNECT {\"verbose\":false}\r\nSUB > 22\r\n";
const HEADER: &str = "NATS/1.0\r\nA: 1\r\n\r\n";

/// What two receivers, with and without headers, get of a publish.
fn publish(input: &[u8]) -> [Vec<u8>; 2] {
    let mut session = Session::new(Settings::default());
    session.worker.others = vec![receiver(WITH_HEADERS), receiver(WITHOUT_HEADERS)];
    session.receive(b"CONNECT {\"verbose\":false,\"headers\":true}\r\n");
    session.receive(input);
    assert_eq!(session.worker.notes, "");
    let mut others = std::mem::take(&mut session.worker.others);
    let mut all = others
        .iter_mut()
        .map(|(out, _)| sent(out, &mut session.worker.pool));
    [all.next().unwrap_or_default(), all.next().unwrap_or_default()]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn headers_are_taken_off_for_who_does_not_know_them() {
    for spaces in [" ", "  "] {
        let [with, without] = publish(format!("HPUB a{spaces}r 18 0020\r\n{HEADER}hi\r\n").as_bytes());
        assert_eq!(text(&with), format!("HMSG a 1 r 18 0020\r\n{HEADER}hi\r\n"));
        assert_eq!(text(&without), "MSG a 22 r 2\r\nhi\r\n");
    }
    let [with, without] = publish(format!("HPUB a 18 18\r\n{HEADER}\r\n").as_bytes());
    assert_eq!(text(&with), format!("HMSG a 1 18 18\r\n{HEADER}\r\n"));
    assert_eq!(text(&without), "MSG a 22 0\r\n\r\n");
}

#[test]
fn large_messages_too() {
    let payload = "p".repeat(50_000);
    // In one piece, and read to its exact size.
    for cut in [0, 30_000] {
        let input = format!("HPUB a r 18 50018\r\n{HEADER}{payload}\r\n");
        let mut session = Session::new(Settings::default());
        session.worker.others = vec![receiver(WITH_HEADERS), receiver(WITHOUT_HEADERS)];
        session.receive(b"CONNECT {\"verbose\":false,\"headers\":true}\r\n");
        let (front, back) = input.as_bytes().split_at(cut);
        session.receive(front);
        session.receive(back);
        let expected = [
            format!("HMSG a 1 r 18 50018\r\n{HEADER}{payload}\r\n"),
            format!("MSG a 22 r 50000\r\n{payload}\r\n"),
        ];
        for ((out, _), expected) in session.worker.others.iter_mut().zip(expected) {
            assert_eq!(out.pending(), expected.len());
            assert!(text(&sent(out, &mut session.worker.pool)) == expected);
        }
    }
}

#[test]
fn a_large_payload_is_shared_by_its_receivers() {
    let mut pool = ChunkPool::new();
    let payload = Bytes::from(vec![b'p'; 50_000]);
    let (mut out, slot) = receiver(WITH_HEADERS);
    let parts = Parts {
        subject: b"a",
        reply: Some(b"r"),
        header: HEADER.as_bytes(),
        payload: &payload,
        shared: Some(&payload),
        now: Mono(0),
    };
    assert_eq!(out.deliver_parts(slot, &parts, &mut pool), Delivered::Ok);
    let mut iov = Vec::new();
    out.chunks(&mut iov);
    assert!(iov.iter().any(|s| s.as_ptr() == payload.as_ptr()));
    drop(iov);
    let expected = [
        format!("HMSG a 1 r 18 50018\r\n{HEADER}").as_bytes(),
        &payload,
        b"\r\n",
    ]
    .concat();
    assert!(sent(&mut out, &mut pool) == expected);
    assert_eq!((out.counters().messages, out.counters().bytes), (1, 50_018));
}

#[test]
fn messages_of_the_server() {
    let mut pool = ChunkPool::new();
    let (mut with, slot) = receiver(WITH_HEADERS);
    let parts = Parts {
        subject: b"_INBOX.x",
        reply: None,
        header: b"",
        payload: b"{}",
        shared: None,
        now: Mono(0),
    };
    assert_eq!(with.deliver_parts(slot, &parts, &mut pool), Delivered::Ok);
    assert_eq!(text(&sent(&mut with, &mut pool)), "MSG _INBOX.x 1 2\r\n{}\r\n");
    let parts = Parts {
        header: HEADER.as_bytes(),
        reply: Some(b"r"),
        ..parts
    };
    assert_eq!(with.deliver_parts(slot, &parts, &mut pool), Delivered::Ok);
    assert_eq!(
        text(&sent(&mut with, &mut pool)),
        format!("HMSG _INBOX.x 1 r 18 20\r\n{HEADER}{{}}\r\n")
    );
    let (mut without, slot) = receiver(WITHOUT_HEADERS);
    assert_eq!(without.deliver_parts(slot, &parts, &mut pool), Delivered::Ok);
    assert_eq!(
        text(&sent(&mut without, &mut pool)),
        "MSG _INBOX.x 22 r 2\r\n{}\r\n"
    );
}

#[test]
fn nothing_reaches_a_subscription_that_is_gone() {
    let mut pool = ChunkPool::new();
    let (mut out, slot) = receiver(WITH_HEADERS);
    let parts = Parts {
        subject: b"a",
        reply: None,
        header: b"",
        payload: b"",
        shared: None,
        now: Mono(0),
    };
    out.remove(slot);
    assert_eq!(out.deliver_parts(slot, &parts, &mut pool), Delivered::Gone);
    let (mut out, slot) = receiver(WITH_HEADERS);
    out.close();
    assert_eq!(out.deliver_parts(slot, &parts, &mut pool), Delivered::Gone);
    assert_eq!(out.pending(), 0);
}
