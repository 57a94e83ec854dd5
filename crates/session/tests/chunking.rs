//! However input is cut, and whichever way large payloads are read, receivers get the same bytes.

#![expect(clippy::indexing_slicing, reason = "a slip in a test may panic")]

mod common;

use common::Session;
use proptest::prelude::*;
use tidelock_session::{Settings, Want};

/// Gives `input` in pieces; large payloads go straight into their buffer if `direct`.
fn run(input: &[u8], pieces: &[usize], direct: bool) -> (Vec<u8>, String) {
    let mut session = Session::new(Settings::default());
    let mut out = Vec::new();
    let mut rest = input;
    let mut pieces = pieces.iter().cycle();
    while !rest.is_empty() && session.closed.is_none() {
        let n = (*pieces.next().unwrap_or(&100)).clamp(1, rest.len());
        let (piece, after) = rest.split_at(n);
        rest = after;
        let mut want = session.receive(piece);
        while let (true, Want::Payload { missing }) = (direct, want) {
            let room = session.inbound.payload_buffer();
            assert_eq!(room.len(), missing);
            let n = room.len().min(rest.len()).min(9000);
            room[..n].copy_from_slice(&rest[..n]);
            session.inbound.payload_filled(n);
            // What a vectored read would have brought behind the payload.
            let behind = if n == missing { 50.min(rest.len() - n) } else { 0 };
            let piece = rest[n..n + behind].to_vec();
            rest = &rest[n + behind..];
            want = session.receive(&piece);
            if n == 0 {
                break;
            }
        }
        out.extend(session.sent());
    }
    (out, session.worker.notes)
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![4 => 0_usize..60, 1 => 16_000_usize..17_000, 2 => 17_000_usize..90_000];
    (size, "(|r\\.[a-z]{1,8} )", any::<bool>(), any::<u8>()).prop_map(|(size, reply, header, fill)| {
        let mut out = if header && size >= 12 {
            format!("HPUB a {reply}12 {size}\r\nNATS/1.0\r\n\r\n").into_bytes()
        } else {
            format!("PUB a {reply}{size}\r\n").into_bytes()
        };
        let n = if header && size >= 12 { size - 12 } else { size };
        out.extend((0..n).map(|i| fill.wrapping_add(i.to_le_bytes()[0])));
        out.extend_from_slice(b"\r\n");
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_chunking_delivers_the_same(
        messages in prop::collection::vec(message(), 1..8),
        pieces in prop::collection::vec(prop_oneof![1_usize..40, 100_usize..70_000], 1..6),
        headers in any::<bool>(),
    ) {
        let connect = b"CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB a 1\r\nSUB * 2\r\n";
        let mut input = connect.to_vec();
        input.extend(messages.concat());
        if !headers {
            input.extend_from_slice(b"CONNECT {\"headers\":false}\r\nSUB a 1\r\nPUB a 2\r\nhi\r\n");
        }
        let (whole, notes) = run(&input, &[usize::MAX], false);
        // Two receivers get what was sent, each with a line of its own.
        let bodies: usize = messages.iter().map(Vec::len).sum();
        prop_assert!(whole.len() > bodies);
        for direct in [false, true] {
            let (cut, cut_notes) = run(&input, &pieces, direct);
            prop_assert!(cut == whole, "direct: {}", direct);
            prop_assert_eq!(&cut_notes, &notes);
        }
    }

    #[test]
    fn any_bytes_are_taken_without_panic(input in prop::collection::vec(any::<u8>(), 0..300), verb in 0_usize..4) {
        let verbs: [&[u8]; 4] = [b"", b"PUB ", b"SUB ", b"CONNECT {"];
        let input = [verbs[verb], &input].concat();
        run(&input, &[7, 1, 50], true);
    }
}

#[test]
fn a_large_payload_without_its_line_end_is_refused() {
    let mut input = b"PUB a 20000\r\n".to_vec();
    input.extend_from_slice(&[b'x'; 20_010]);
    let (out, notes) = run(&input, &[500], false);
    assert_eq!(out, b"-ERR 'Unknown Protocol Operation'\r\n");
    assert!(notes.ends_with("close: Protocol Violation\n"), "{notes}");
}
