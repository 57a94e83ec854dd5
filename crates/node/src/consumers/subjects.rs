//! Subjects of acknowledgements and flow control: reading both forms, writing the first.
//!
//! ```text
//!   $JS.ACK.<stream>.<consumer>.<count>.<stream seq>.<consumer seq>.<time ns>.<pending>                      9 tokens
//!   $JS.ACK.<domain or _>.<account hash>.<stream>.<consumer>.<count>. ... .<pending>[.more]         11 tokens or more
//!   $JS.FC.<stream>.<consumer>.<id>                                                                          5 tokens
//!   $JS.FC.<domain or _>.<account hash>.<stream>.<consumer>.<id>                                             7 tokens
//! ```

use bytes::Bytes;
use smallvec::SmallVec;
use tidelock_base::{StreamSeq, Wall};
use tidelock_jetstream::consumer::{Delivered, Names};
use tidelock_subject::tokens;

/// Tokens that are looked at; a subject may have more.
const TOKENS: usize = 12;

/// What the subject of an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckSubject<'a> {
    /// The stream.
    pub(crate) stream: &'a str,
    /// The consumer.
    pub(crate) consumer: &'a str,
    /// The message.
    pub(crate) seq: StreamSeq,
}

/// Everything that the reply subject of a delivery says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliverySubject<'a> {
    /// Stream, consumer and message.
    pub(crate) ack: AckSubject<'a>,
    /// Sequence of the delivery.
    pub(crate) deliver_seq: u64,
    /// When the message was stored.
    pub(crate) stored: Wall,
    /// Messages left for the consumer after this one.
    pub(crate) pending: u64,
}

impl<'a> DeliverySubject<'a> {
    /// Reads the reply subject of a delivery; `None` if it is something else.
    pub(crate) fn parse(subject: &'a [u8]) -> Option<Self> {
        let ack = AckSubject::parse(subject)?;
        let form = if tokens(subject).count() == 9 { 6 } else { 8 };
        let mut numbers = tokens(subject).skip(form).map(number);
        let mut next = || numbers.next().flatten();
        let (deliver_seq, stored, pending) = (next()?, next()?, next()?);
        Some(Self {
            ack,
            deliver_seq,
            stored: Wall(i64::try_from(stored).ok()?),
            pending,
        })
    }
}

/// What the subject of an answer to a flow control request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowSubject<'a> {
    /// The stream.
    pub(crate) stream: &'a str,
    /// The consumer.
    pub(crate) consumer: &'a str,
    /// Which request.
    pub(crate) id: &'a [u8],
}

impl<'a> AckSubject<'a> {
    /// Reads a subject below `$JS.ACK.`; `None` if it has neither form.
    pub(crate) fn parse(subject: &'a [u8]) -> Option<Self> {
        let tokens: SmallVec<[&[u8]; TOKENS]> = tokens(subject).take(TOKENS).collect();
        if !matches!(tokens.as_slice(), [b"$JS", b"ACK", ..]) {
            return None;
        }
        let names = match tokens.len() {
            9 => 2,
            11.. => 4,
            _ => return None,
        };
        let text = |at: usize| std::str::from_utf8(tokens.get(at)?).ok();
        let seq = number(tokens.get(names + 3)?)?;
        Some(Self {
            stream: text(names)?,
            consumer: text(names + 1)?,
            seq: StreamSeq(seq),
        })
    }
}

impl<'a> FlowSubject<'a> {
    /// Reads a subject below `$JS.FC.`; `None` if it has neither form.
    pub(crate) fn parse(subject: &'a [u8]) -> Option<Self> {
        let tokens: SmallVec<[&[u8]; TOKENS]> = tokens(subject).take(TOKENS).collect();
        let ([b"$JS", b"FC", stream, consumer, id] | [b"$JS", b"FC", _, _, stream, consumer, id]) =
            tokens.as_slice()
        else {
            return None;
        };
        Some(Self {
            stream: std::str::from_utf8(stream).ok()?,
            consumer: std::str::from_utf8(consumer).ok()?,
            id,
        })
    }
}

/// A decimal number without sign; `None` for anything else.
fn number(token: &[u8]) -> Option<u64> {
    let ok = !token.is_empty() && token.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(token).ok().filter(|_| ok)?.parse().ok()
}

/// The subjects of a consumer.
pub(crate) fn names(stream: &str, consumer: &str) -> Names {
    Names {
        ack_prefix: Bytes::from(format!("$JS.ACK.{stream}.{consumer}.")),
        flow_prefix: Bytes::from(format!("$JS.FC.{stream}.{consumer}.")),
    }
}

/// Writes the ack subject of a delivery in place of what `out` holds.
pub(crate) fn write_ack_subject(
    out: &mut Vec<u8>,
    prefix: &[u8],
    delivered: &Delivered,
    stored: Wall,
    num_pending: u64,
) {
    let mut digits = itoa::Buffer::new();
    out.clear();
    out.extend_from_slice(prefix);
    for number in [
        u64::from(delivered.count),
        delivered.stream_seq.0,
        delivered.deliver_seq.0,
    ] {
        out.extend_from_slice(digits.format(number).as_bytes());
        out.push(b'.');
    }
    out.extend_from_slice(digits.format(stored.0).as_bytes());
    out.push(b'.');
    out.extend_from_slice(digits.format(num_pending).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_base::DeliverSeq;

    #[test]
    fn both_forms_of_ack_subjects_are_read() {
        let expected = Some(AckSubject {
            stream: "S",
            consumer: "C",
            seq: StreamSeq(7),
        });
        assert_eq!(
            AckSubject::parse(b"$JS.ACK.S.C.1.7.3.1700000000000000000.5"),
            expected
        );
        assert_eq!(
            AckSubject::parse(b"$JS.ACK._.abcdefgh.S.C.1.7.3.1700000000000000000.5"),
            expected
        );
        assert_eq!(
            AckSubject::parse(b"$JS.ACK.hub.abcdefgh.S.C.1.7.3.1700000000000000000.5.x.y.z"),
            expected
        );
    }

    #[test]
    fn other_subjects_are_refused() {
        for subject in [
            "$JS.ACK",
            "$JS.ACK.S.C",
            "$JS.ACK.S.C.1.7.3.17",
            "$JS.ACK.S.C.1.x.3.17.5",
            "$JS.ACK.S.C.1.+7.3.17.5",
            "$JS.ACK.S.C.1..3.17.5",
            "$JS.ACK.S.C.1.99999999999999999999.3.17.5",
            "$JS.ACK.a.S.C.1.7.3.17.5",
            "$JS.API.S.C.1.7.3.17.5",
        ] {
            assert_eq!(AckSubject::parse(subject.as_bytes()), None, "{subject}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let names = names("S", "C");
        let delivered = Delivered {
            stream_seq: StreamSeq(u64::MAX),
            deliver_seq: DeliverSeq(8),
            count: 2,
        };
        let mut out = b"old".to_vec();
        write_ack_subject(&mut out, &names.ack_prefix, &delivered, Wall(17), 4);
        assert_eq!(out, b"$JS.ACK.S.C.2.18446744073709551615.8.17.4");
        let read = AckSubject::parse(&out).unwrap();
        assert_eq!(
            (read.stream, read.consumer, read.seq),
            ("S", "C", StreamSeq(u64::MAX))
        );
    }

    #[test]
    fn deliveries_say_more() {
        for subject in [
            &b"$JS.ACK.S.C.1.7.3.17.5"[..],
            b"$JS.ACK._.abcdefgh.S.C.1.7.3.17.5.x",
        ] {
            let read = DeliverySubject::parse(subject).unwrap();
            assert_eq!((read.ack.seq, read.deliver_seq), (StreamSeq(7), 3));
            assert_eq!((read.stored, read.pending), (Wall(17), 5));
        }
        assert_eq!(DeliverySubject::parse(b"$JS.ACK.S.C.1.7.3.x.5"), None);
        assert_eq!(DeliverySubject::parse(b"_INBOX.a"), None);
    }

    #[test]
    fn both_forms_of_flow_control_subjects_are_read() {
        let expected = Some(FlowSubject {
            stream: "S",
            consumer: "C",
            id: b"0A1Z",
        });
        assert_eq!(FlowSubject::parse(b"$JS.FC.S.C.0A1Z"), expected);
        assert_eq!(FlowSubject::parse(b"$JS.FC._.abcdefgh.S.C.0A1Z"), expected);
        assert_eq!(FlowSubject::parse(b"$JS.FC.S.C"), None);
        assert_eq!(FlowSubject::parse(b"$JS.FC.a.S.C.0A1Z"), None);
    }
}
