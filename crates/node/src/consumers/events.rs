//! What an applied entry means for the consumers of a stream, kept until the entry is applied whole.

use bytes::Bytes;
use tidelock_base::{ConsumerId, DeliverSeq, StreamSeq};
use tidelock_jetstream::consumer::Delivered;
use tidelock_jetstream::stream::{Advisory, ConsumerChange, Gone, Removal, StoredMessage};

/// One thing that an applied entry has brought about.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message was stored.
    Stored {
        /// Its sequence.
        seq: StreamSeq,
        /// Its record.
        record: Bytes,
    },
    /// A message has left the stream.
    Removed(StreamSeq),
    /// All messages below this one have left the stream.
    RemovedBelow(StreamSeq),
    /// A delivery is in the log.
    Delivered(ConsumerId, Delivered),
    /// Something about a consumer has changed.
    Changed(ConsumerId, ConsumerChange),
    /// A consumer is gone.
    Gone(ConsumerId, Gone),
    /// Operators may want to know.
    Advisory(Box<OwnedAdvisory>),
}

/// An advisory that owns what it says.
#[derive(Debug)]
pub(crate) struct OwnedAdvisory {
    /// What happened.
    pub(crate) kind: AdvisoryKind,
    /// The consumer.
    pub(crate) consumer: ConsumerId,
    /// The message.
    pub(crate) seq: StreamSeq,
    /// Its first delivery; 0 where it is not reported.
    pub(crate) deliver_seq: DeliverSeq,
    /// How often it was delivered.
    pub(crate) deliveries: u32,
    /// Why; empty for nothing.
    pub(crate) reason: Vec<u8>,
}

/// What an advisory is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdvisoryKind {
    /// A message was delivered as often as allowed.
    MaxDeliveries,
    /// A client has refused a message.
    Naked,
    /// A client has given a message up.
    Terminated,
}

impl Event {
    /// A message was stored.
    pub(crate) fn stored(message: &StoredMessage<'_>) -> Self {
        Self::Stored {
            seq: message.seq,
            record: message.bytes.clone(),
        }
    }

    /// A message has left the stream.
    pub(crate) const fn removed(seq: StreamSeq, _why: Removal) -> Self {
        Self::Removed(seq)
    }

    /// All messages below this one have left the stream.
    pub(crate) const fn removed_below(first: StreamSeq, _why: Removal) -> Self {
        Self::RemovedBelow(first)
    }

    /// A delivery is in the log.
    pub(crate) const fn delivered(consumer: ConsumerId, delivered: &Delivered) -> Self {
        Self::Delivered(consumer, *delivered)
    }

    /// Something about a consumer has changed.
    pub(crate) const fn changed(consumer: ConsumerId, change: ConsumerChange) -> Self {
        Self::Changed(consumer, change)
    }

    /// A consumer is gone.
    pub(crate) const fn gone(consumer: ConsumerId, _name: &str, why: Gone) -> Self {
        Self::Gone(consumer, why)
    }

    /// Operators may want to know.
    pub(crate) fn advisory(advisory: &Advisory<'_>) -> Self {
        let none = DeliverSeq(0);
        let (kind, consumer, seq, deliver_seq, deliveries, reason) = match *advisory {
            Advisory::MaxDeliveries {
                consumer,
                seq,
                deliveries,
            } => (
                AdvisoryKind::MaxDeliveries,
                consumer,
                seq,
                none,
                deliveries,
                &[][..],
            ),
            Advisory::Naked {
                consumer,
                seq,
                deliver_seq,
                deliveries,
            } => (
                AdvisoryKind::Naked,
                consumer,
                seq,
                deliver_seq,
                deliveries,
                &[][..],
            ),
            Advisory::Terminated {
                consumer,
                seq,
                deliver_seq,
                deliveries,
                reason,
            } => (
                AdvisoryKind::Terminated,
                consumer,
                seq,
                deliver_seq,
                deliveries,
                reason,
            ),
        };
        let reason = reason.to_vec();
        Self::Advisory(Box::new(OwnedAdvisory {
            kind,
            consumer,
            seq,
            deliver_seq,
            deliveries,
            reason,
        }))
    }
}
