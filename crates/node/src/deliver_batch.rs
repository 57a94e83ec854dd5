//! Client messages on their way to another worker of this node or to another node.
//!
//! A [`DeliverBatch`] is what one turn routes to one place: items back to back in one buffer, large payloads beside it
//! as shared bytes. The receiver delivers an item to its own plain subscriptions (if asked), to the queue members that
//! the sender picked (workers of one node) and to one member of each queue group that it names (other nodes).
//!
//! Layout of an item, little-endian, 36 bytes of head and then its parts:
//! `total u32 | account u32 | subject_len u16 | target_len u16 | reply_len u16 | picks u16 | queues u16 | flags u16 |
//! header_len u32 | payload_len u32 | shared u32 | reserved u32 | picks (12 bytes each) | queues (u16 length, name) |
//! subject | target | reply | header | payload`. `target` is the subject to match when it is not the subject shown
//! (deliveries of consumers); `shared` is 1 + the index of the payload in [`DeliverBatch::shared`], or 0 if the payload
//! stands in the buffer.

use crate::interest::ConnKey;
use crate::route::Local;
use bytes::Bytes;
use tidelock_base::AccountId;
use tidelock_base::limits::COPY_BYTES_MAX;
use tidelock_session::SubSlot;

const HEAD: usize = 36;
const PICK: usize = 12;
/// The receiver delivers to its own plain subscriptions.
const FLAG_PLAIN: u16 = 1;

/// A message as it is routed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// Subject that receivers see.
    pub(crate) subject: &'a [u8],
    /// Subject that is matched; the same as `subject` but for deliveries of consumers.
    pub(crate) target: &'a [u8],
    /// Reply subject; empty for none.
    pub(crate) reply: &'a [u8],
    /// Header block; empty for none.
    pub(crate) header: &'a [u8],
    /// Payload without header.
    pub(crate) payload: &'a [u8],
    /// The payload as shared bytes, if it is held that way.
    pub(crate) shared: Option<&'a Bytes>,
}

/// Who gets an item at the receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receivers<'a> {
    /// The receiver's plain subscriptions.
    pub(crate) plain: bool,
    /// Queue members chosen by the sender.
    pub(crate) picks: &'a [Local],
    /// Queue groups of which the receiver chooses one member each.
    pub(crate) queues: &'a [&'a [u8]],
}

/// Client messages for one place.
#[derive(Clone, Debug, Default)]
pub struct DeliverBatch {
    /// Items back to back.
    pub(crate) bytes: Vec<u8>,
    /// Large payloads.
    pub(crate) shared: Vec<Bytes>,
    /// How many items there are.
    pub(crate) messages: u32,
}

/// A [`DeliverBatch`] as it stands in a received frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchRef<'a> {
    /// Items back to back.
    pub(crate) bytes: &'a [u8],
    /// Large payloads.
    pub(crate) shared: &'a [Bytes],
}

/// One item of a [`DeliverBatch`], borrowed.
#[derive(Clone, Debug)]
pub(crate) struct Item<'a> {
    /// Account of the message, in the sender's numbering.
    pub(crate) account: AccountId,
    /// The message.
    pub(crate) message: Message<'a>,
    /// Whether plain subscriptions get it.
    pub(crate) plain: bool,
    picks: &'a [u8],
    queues: &'a [u8],
    /// Length of the item in the buffer.
    pub(crate) len: usize,
}

impl DeliverBatch {
    /// Whether there is nothing in it.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The batch, borrowed.
    #[must_use]
    pub(crate) fn borrowed(&self) -> BatchRef<'_> {
        BatchRef {
            bytes: &self.bytes,
            shared: &self.shared,
        }
    }

    /// Appends a message.
    pub(crate) fn push(&mut self, account: AccountId, message: &Message<'_>, to: &Receivers<'_>) {
        let shared = message.shared.filter(|_| message.payload.len() > COPY_BYTES_MAX);
        let target = if message.target == message.subject {
            &[][..]
        } else {
            message.target
        };
        let inline = if shared.is_some() {
            &[][..]
        } else {
            message.payload
        };
        let queue_bytes: usize = to.queues.iter().map(|q| 2 + q.len()).sum();
        let total = HEAD
            + to.picks.len() * PICK
            + queue_bytes
            + message.subject.len()
            + target.len()
            + message.reply.len()
            + message.header.len()
            + inline.len();
        let shared_index = shared.map_or(0, |bytes| {
            self.shared.push(bytes.clone());
            len32(self.shared.len())
        });
        self.messages += 1;
        let out = &mut self.bytes;
        out.reserve(total);
        out.extend_from_slice(&len32(total).to_le_bytes());
        out.extend_from_slice(&account.0.to_le_bytes());
        for n in [
            message.subject.len(),
            target.len(),
            message.reply.len(),
            to.picks.len(),
            to.queues.len(),
        ] {
            out.extend_from_slice(&len16(n).to_le_bytes());
        }
        out.extend_from_slice(&(if to.plain { FLAG_PLAIN } else { 0 }).to_le_bytes());
        out.extend_from_slice(&len32(message.header.len()).to_le_bytes());
        out.extend_from_slice(&len32(message.payload.len()).to_le_bytes());
        out.extend_from_slice(&shared_index.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for pick in to.picks {
            out.extend_from_slice(&pick.conn.index.to_le_bytes());
            out.extend_from_slice(&pick.conn.generation.to_le_bytes());
            out.extend_from_slice(&pick.slot.0.to_le_bytes());
        }
        for queue in to.queues {
            out.extend_from_slice(&len16(queue.len()).to_le_bytes());
            out.extend_from_slice(queue);
        }
        for part in [message.subject, target, message.reply, message.header, inline] {
            out.extend_from_slice(part);
        }
    }
}

impl<'a> BatchRef<'a> {
    /// The items, in order. Stops at the first that is malformed, which can only come from a broken peer.
    pub(crate) fn items(self) -> impl Iterator<Item = Item<'a>> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let item = Item::parse(rest, self.shared)?;
            rest = rest.get(item.len..)?;
            Some(item)
        })
    }
}

impl<'a> Item<'a> {
    fn parse(bytes: &'a [u8], shared: &'a [Bytes]) -> Option<Self> {
        let mut head = Reader(bytes.get(..HEAD)?);
        let len = head.u32()? as usize;
        let account = AccountId(head.u32()?);
        let (subject, target, reply) = (head.u16()?, head.u16()?, head.u16()?);
        let (picks, queues, flags) = (head.u16()?, head.u16()?, head.u16()?);
        let (header, payload, shared_index) = (head.u32()? as usize, head.u32()? as usize, head.u32()?);
        let mut rest = Reader(bytes.get(HEAD..len)?);
        let picks = rest.take(usize::from(picks) * PICK)?;
        let before = rest.0;
        for _ in 0..queues {
            let n = rest.u16()?;
            rest.take(usize::from(n))?;
        }
        let queues = before.get(..before.len() - rest.0.len())?;
        let subject = rest.take(usize::from(subject))?;
        let target = rest.take(usize::from(target))?;
        let reply = rest.take(usize::from(reply))?;
        let header = rest.take(header)?;
        let shared = match shared_index.checked_sub(1) {
            Some(index) => Some(shared.get(index as usize)?),
            None => None,
        };
        let payload = match shared {
            Some(bytes) => bytes.as_ref(),
            None => rest.take(payload)?,
        };
        let target = if target.is_empty() { subject } else { target };
        let message = Message {
            subject,
            target,
            reply,
            header,
            payload,
            shared,
        };
        Some(Self {
            account,
            message,
            plain: flags & FLAG_PLAIN != 0,
            picks,
            queues,
            len,
        })
    }

    /// Queue members that the sender picked.
    pub(crate) fn picks(&self) -> impl Iterator<Item = Local> + use<'a> {
        self.picks.chunks_exact(PICK).filter_map(|chunk| {
            let mut r = Reader(chunk);
            let conn = ConnKey {
                index: r.u32()?,
                generation: r.u32()?,
            };
            Some(Local {
                conn,
                slot: SubSlot(r.u32()?),
            })
        })
    }

    /// Queue groups of which one member is to be chosen.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut r = Reader(self.queues);
        std::iter::from_fn(move || {
            let n = r.u16()?;
            r.take(usize::from(n))
        })
    }
}

/// Reads numbers and slices off the front of a buffer.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(front)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
}

/// Lengths here are bounded by the control line (subjects) and by the number of groups that one subject matches.
fn len16(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// Lengths here are bounded by the largest payload, which is below 2 GiB.
fn len32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_back_as_they_went_in() {
        let big = Bytes::from(vec![7; COPY_BYTES_MAX + 1]);
        let mut batch = DeliverBatch::default();
        let pick = Local {
            conn: ConnKey {
                index: 3,
                generation: 9,
            },
            slot: SubSlot(5),
        };
        let small = Message {
            subject: b"a.b",
            target: b"_INBOX.x",
            reply: b"r",
            header: b"NATS/1.0\r\n\r\n",
            payload: b"hi",
            shared: None,
        };
        let large = Message {
            target: b"a.b",
            reply: b"",
            header: b"",
            payload: &big,
            shared: Some(&big),
            ..small
        };
        batch.push(
            AccountId(2),
            &small,
            &Receivers {
                plain: true,
                picks: &[pick],
                queues: &[b"q1", b""],
            },
        );
        batch.push(
            AccountId(1),
            &large,
            &Receivers {
                plain: false,
                picks: &[],
                queues: &[],
            },
        );
        let items: Vec<_> = batch.borrowed().items().collect();
        let [first, second] = items.as_slice() else {
            panic!("two items")
        };
        assert_eq!(
            (first.account, first.plain, first.message.target),
            (AccountId(2), true, &b"_INBOX.x"[..])
        );
        assert_eq!(first.message.payload, b"hi");
        assert_eq!(first.picks().collect::<Vec<_>>(), [pick]);
        assert_eq!(first.queues().collect::<Vec<_>>(), [&b"q1"[..], b""]);
        assert_eq!(
            (second.message.subject, second.message.target),
            (&b"a.b"[..], &b"a.b"[..])
        );
        assert_eq!(second.message.shared, Some(&big));
    }

    #[test]
    fn a_cut_batch_ends_early_and_does_not_panic() {
        let mut batch = DeliverBatch::default();
        let message = Message {
            subject: b"s",
            target: b"s",
            reply: b"",
            header: b"",
            payload: b"xyz",
            shared: None,
        };
        batch.push(
            AccountId(1),
            &message,
            &Receivers {
                plain: true,
                picks: &[],
                queues: &[],
            },
        );
        for cut in 0..batch.bytes.len() {
            let part = BatchRef {
                bytes: batch.bytes.get(..cut).unwrap_or_default(),
                shared: &[],
            };
            assert_eq!(part.items().count(), 0);
        }
    }
}
