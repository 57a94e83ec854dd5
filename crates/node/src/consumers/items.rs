//! Acknowledgements on their way from where they entered to the leader.
//!
//! Layout, little-endian: `consumer_len u16 | reply_len u16 | text_len u16 | subject_len u16 | kind u8 | zero u8 | seq
//! u64 | delay i64 | consumer | reply | text | subject`. `text` is the reason of a termination or the id of a flow
//! control request.

use tidelock_base::StreamSeq;
use tidelock_base::limits::NAME_BYTES_MAX;

const HEAD: usize = 26;

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    /// The message is done.
    Ack,
    /// Deliver it again, after the delay if there is one, in nanoseconds.
    Nak(Option<i64>),
    /// Never deliver it again.
    Term,
    /// It is in work.
    Progress,
    /// Nothing that has an effect; an answer is wanted all the same.
    Nothing,
    /// A flow control request is answered; with a sequence, everything up to it is done.
    Flow,
}

/// One acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    /// Name of the consumer.
    pub(crate) consumer: &'a str,
    /// The message; 0 for none.
    pub(crate) seq: StreamSeq,
    /// What is said.
    pub(crate) say: Say,
    /// Where an answer is awaited; empty for nowhere.
    pub(crate) reply: &'a [u8],
    /// Reason of a termination, or id of a flow control request.
    pub(crate) text: &'a [u8],
    /// The subject it was sent to, if whoever sent it wants to hear that nobody listens there; else empty.
    pub(crate) subject: &'a [u8],
}

impl<'a> Item<'a> {
    /// Appends it. What is too long to be one is left out: names and subjects have their limits where they enter.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let parts = [self.consumer.as_bytes(), self.reply, self.text, self.subject];
        let [Ok(consumer), Ok(reply), Ok(text), Ok(subject)] = parts.map(|part| u16::try_from(part.len()))
        else {
            return;
        };
        let (kind, delay) = match self.say {
            Say::Ack => (0, 0),
            Say::Nak(None) => (1, 0),
            Say::Nak(Some(delay)) => (2, delay),
            Say::Term => (3, 0),
            Say::Progress => (4, 0),
            Say::Nothing => (5, 0),
            Say::Flow => (6, 0),
        };
        for len in [consumer, reply, text, subject] {
            out.extend_from_slice(&len.to_le_bytes());
        }
        out.extend_from_slice(&[kind, 0]);
        out.extend_from_slice(&self.seq.0.to_le_bytes());
        out.extend_from_slice(&delay.to_le_bytes());
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }

    /// Takes the first one off `bytes`; `None` at the end, or where the bytes are malformed, which only a broken peer
    /// can bring about.
    pub(crate) fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let [a, b, c, d, e, f, g, h, kind, _, numbers @ ..] = *head;
        let [consumer, reply, text, subject] =
            [[a, b], [c, d], [e, f], [g, h]].map(|len| usize::from(u16::from_le_bytes(len)));
        let (seq, delay) = numbers.split_first_chunk::<8>()?;
        let delay = i64::from_le_bytes(*delay.first_chunk::<8>()?);
        let say = match kind {
            0 => Say::Ack,
            1 => Say::Nak(None),
            2 => Say::Nak(Some(delay)),
            3 => Say::Term,
            4 => Say::Progress,
            5 => Say::Nothing,
            6 => Say::Flow,
            _ => return None,
        };
        if consumer > NAME_BYTES_MAX {
            return None;
        }
        let (consumer, rest) = rest.split_at_checked(consumer)?;
        let (reply, rest) = rest.split_at_checked(reply)?;
        let (text, rest) = rest.split_at_checked(text)?;
        let (subject, rest) = rest.split_at_checked(subject)?;
        *bytes = rest;
        let consumer = std::str::from_utf8(consumer).ok()?;
        Some(Self {
            consumer,
            seq: StreamSeq(u64::from_le_bytes(*seq)),
            say,
            reply,
            text,
            subject,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Item<'static>> {
        let item = Item {
            consumer: "C",
            seq: StreamSeq(5),
            say: Say::Ack,
            reply: b"",
            text: b"",
            subject: b"",
        };
        vec![
            item,
            Item {
                say: Say::Nak(None),
                reply: b"_INBOX.a",
                ..item
            },
            Item {
                say: Say::Nak(Some(77)),
                seq: StreamSeq(u64::MAX),
                ..item
            },
            Item {
                say: Say::Term,
                text: b"reason",
                ..item
            },
            Item {
                say: Say::Progress,
                ..item
            },
            Item {
                say: Say::Nothing,
                reply: b"r",
                subject: b"$JS.ACK.S.C.1.5.1.17.0",
                ..item
            },
            Item {
                say: Say::Flow,
                seq: StreamSeq(0),
                text: b"0001",
                ..item
            },
        ]
    }

    #[test]
    fn items_come_back_as_they_went_in() {
        let mut bytes = Vec::new();
        samples().iter().for_each(|item| item.encode(&mut bytes));
        let mut rest = bytes.as_slice();
        let read: Vec<_> = std::iter::from_fn(|| Item::take(&mut rest)).collect();
        assert_eq!(read, samples());
    }

    #[test]
    fn cut_bytes_end_early_and_do_not_panic() {
        let mut bytes = Vec::new();
        samples().iter().for_each(|item| item.encode(&mut bytes));
        for cut in 0..bytes.len() {
            let mut rest = &bytes[..cut];
            let count = std::iter::from_fn(|| Item::take(&mut rest)).count();
            assert!(count < samples().len());
        }
    }
}
