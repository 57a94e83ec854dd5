//! A stream as the leader's side of one consumer sees it.

use crate::interest::Root;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use tidelock_base::StreamSeq;
use tidelock_jetstream::consumer::{Lookup, Next};
use tidelock_jetstream::stream::{Consumer, NextMessage, Stream};
use tidelock_record::RecordView;
use tidelock_store::{Lookup as Kept, Need, Unanswered};

/// Answers questions of one consumer's leader, for the time of one call.
pub(super) struct View<'a> {
    stream: &'a Stream,
    consumer: &'a Consumer,
    root: &'a Root,
    /// What has to be read before an answer can be given.
    need: Cell<Option<Need>>,
    /// Bytes of the messages that were found.
    bytes: Cell<u64>,
    /// The inbox that was asked about last, and the answer: requests of many messages are asked about again and again.
    listening: RefCell<(SmallVec<[u8; 64]>, bool)>,
}

impl<'a> View<'a> {
    pub(super) fn new(stream: &'a Stream, consumer: &'a Consumer, root: &'a Root) -> Self {
        Self {
            stream,
            consumer,
            root,
            need: Cell::new(None),
            bytes: Cell::new(0),
            listening: RefCell::new((SmallVec::new(), false)),
        }
    }

    /// What has to be read before the question can be answered that was answered [`Next::Cold`].
    pub(super) fn need(&self) -> Option<Need> {
        self.need.take()
    }

    /// Bytes of the messages found so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    fn cold(&self, need: Need) -> Next {
        self.need.set(Some(need));
        Next::Cold
    }

    /// The block of a message is damaged; it must come from another replica, and nothing that lies behind it can be
    /// found until then.
    fn damaged(&self, seq: StreamSeq) -> Next {
        self.cold(Need { seq, record: true })
    }

    /// Bytes of a message as it is delivered, beside its reply subject.
    fn content_bytes(&self, seq: StreamSeq) -> Result<Option<u64>, Unanswered> {
        let store = self.stream.store();
        if !self.consumer.config().headers_only {
            return Ok(store.outline(seq)?.map(|outline| outline.content_bytes));
        }
        let stored = match store.get(seq) {
            Kept::Found(stored) => stored,
            Kept::Missing => return Ok(None),
            Kept::Cold(need) => return Err(Unanswered::Need(need)),
            Kept::Damaged => return Err(Unanswered::Damaged(seq)),
        };
        let Ok(record) = RecordView::parse(&stored.record) else {
            return Err(Unanswered::Damaged(seq));
        };
        let header = headers_only_bytes(record.header().len(), record.payload().len());
        Ok(Some((record.subject().len() + header) as u64))
    }

    /// Whether a message is damaged and can come from nowhere: it is passed over.
    fn is_lost(&self, seq: StreamSeq) -> bool {
        self.stream.config().num_replicas == 1 && self.stream.store().is_damaged(seq)
    }
}

impl Lookup for View<'_> {
    fn next_match(&self, from: StreamSeq) -> Next {
        let mut from = from;
        loop {
            let lost = match self.stream.next_for(self.consumer, from) {
                NextMessage::Seq(seq) | NextMessage::Damaged(seq) if self.is_lost(seq) => seq,
                NextMessage::Seq(seq) => return self.message(seq),
                NextMessage::End => return Next::End,
                NextMessage::Cold(need) => return self.cold(need),
                NextMessage::Damaged(seq) => return self.damaged(seq),
            };
            from = self.stream.store().shown_with(lost).1.next();
        }
    }

    fn message(&self, seq: StreamSeq) -> Next {
        if self.is_lost(seq) {
            return Next::End;
        }
        match self.content_bytes(seq) {
            Ok(Some(bytes)) => {
                self.bytes.set(self.bytes.get().saturating_add(bytes));
                Next::Seq(seq, u32::try_from(bytes).unwrap_or(u32::MAX))
            }
            Ok(None) => Next::End,
            Err(Unanswered::Need(need)) => self.cold(need),
            Err(Unanswered::Damaged(seq)) => self.damaged(seq),
        }
    }

    fn last_seq(&self) -> StreamSeq {
        self.stream.last_seq()
    }

    fn num_pending(&self, from: StreamSeq) -> u64 {
        self.stream.pending_for(self.consumer, from)
    }

    fn is_listening(&self, subject: &[u8]) -> bool {
        let mut last = self.listening.borrow_mut();
        if last.0.as_slice() != subject {
            last.0.clear();
            last.0.extend_from_slice(subject);
            last.1 = self.root.tree.has_match(subject);
        }
        last.1
    }
}

/// Length of the header block of a message that goes without its payload of so many bytes, which the block names.
fn headers_only_bytes(header: usize, payload: usize) -> usize {
    let digits = payload.checked_ilog10().unwrap_or(0) as usize + 1;
    let block = if header == 0 {
        "NATS/1.0\r\n\r\n".len()
    } else {
        header
    };
    block + "Nats-Msg-Size: \r\n".len() + digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_block_that_names_the_size_is_known_without_it() {
        for header in ["", "NATS/1.0\r\nA: b\r\n\r\n"] {
            for payload in [0, 9, 10, 2_000, 1 << 20] {
                let mut block = header.as_bytes().to_vec();
                tidelock_wire::header::append(&mut block, b"Nats-Msg-Size", payload.to_string().as_bytes());
                assert_eq!(
                    headers_only_bytes(header.len(), payload),
                    block.len(),
                    "{payload}"
                );
            }
        }
    }
}
