//! What an applied entry brings about outside the state machine.

use super::removal::Removal;
use crate::command::WindowKey;
use crate::consumer::Delivered;
use crate::window::{PubOutcome, Refusal};
use bytes::Bytes;
use tidelock_base::{ApiError, ConsumerId, DeliverSeq, LogIndex, StreamSeq, Wall};
use tidelock_record::RecordRef;

/// What became of a command that somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// It is done, or had been before.
    Done,
    /// So many messages were purged.
    Purged(u64),
    /// The consumer is there, with this configuration.
    Consumer {
        /// Its incarnation.
        id: ConsumerId,
        /// Whether this command created it.
        created: bool,
    },
    /// The consumer starts again.
    Reset {
        /// Its incarnation.
        id: ConsumerId,
        /// First sequence to deliver.
        seq: StreamSeq,
    },
    /// The consumer is paused until then, or runs.
    Paused {
        /// Its incarnation.
        id: ConsumerId,
        /// End of the pause.
        until: Option<Wall>,
    },
    /// The configuration of this revision, or of a later one, is in force.
    Updated {
        /// The revision in force.
        rev: u64,
    },
    /// A batch of a source was taken, as far as this says.
    Source(SourceOutcome),
    /// It named an epoch, an activity mark or a position that is no longer the present one; nothing changed.
    Stale,
    /// Refused; nothing changed.
    Refused(ApiError),
}

/// How far a source batch came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceOutcome {
    /// The source's position now.
    pub position: StreamSeq,
    /// Messages stored.
    pub stored: u32,
    /// Messages left out because their id was known.
    pub duplicates: u32,
    /// Messages left out because they are larger than the stream allows; a person should know.
    pub too_large: u32,
    /// Why the batch ended before its end: try again from the position when there is room.
    pub refused: Option<Refusal>,
}

/// A message that was stored just now.
#[derive(Clone, Copy, Debug)]
pub struct StoredMessage<'a> {
    /// Its sequence.
    pub seq: StreamSeq,
    /// Its time.
    pub ts: Wall,
    /// The message before it on its subject, 0 if there was none; looked up only if the stream republishes.
    pub previous: StreamSeq,
    /// The record, as it is stored.
    pub bytes: &'a Bytes,
    /// The same, parsed.
    pub record: RecordRef<'a>,
}

/// Why a consumer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Somebody deleted it.
    Deleted,
    /// It was not used for its `inactive_threshold`.
    Inactive,
}

/// What has changed about a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerChange {
    /// It is new.
    Created,
    /// It has another configuration and epoch.
    Updated,
    /// It starts again, in another epoch.
    Reset,
    /// It is paused.
    Paused,
    /// Its pause is over.
    Resumed,
    /// Messages wait for redelivery.
    Redeliver,
}

/// What operators may subscribe to (`$JS.EVENT.ADVISORY.CONSUMER.*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advisory<'a> {
    /// A message was delivered as often as allowed and never acknowledged.
    MaxDeliveries {
        /// The consumer.
        consumer: ConsumerId,
        /// The message.
        seq: StreamSeq,
        /// How often.
        deliveries: u32,
    },
    /// A message was refused by a client.
    Naked {
        /// The consumer.
        consumer: ConsumerId,
        /// The message.
        seq: StreamSeq,
        /// Its first delivery.
        deliver_seq: DeliverSeq,
        /// How often it was delivered.
        deliveries: u32,
    },
    /// A client has given a message up.
    Terminated {
        /// The consumer.
        consumer: ConsumerId,
        /// The message.
        seq: StreamSeq,
        /// Its first delivery.
        deliver_seq: DeliverSeq,
        /// How often it was delivered.
        deliveries: u32,
        /// What the client says.
        reason: &'a [u8],
    },
}

/// Takes what applied entries bring about. Called while the entry is applied, on every replica; only the leader acts
/// on it, and only what the leader knows the receivers of. Nothing is allocated for a call.
///
/// The default of each method does nothing, so that a follower can pass [`NoEffects`].
#[expect(unused_variables, reason = "the defaults ignore everything")]
pub trait Effects {
    /// A publish was judged, now or earlier: this is its result.
    fn published(&mut self, key: WindowKey, number: u64, outcome: &PubOutcome) {}
    /// A message was stored: republish it, and look whether consumers want it.
    fn stored(&mut self, message: &StoredMessage<'_>) {}
    /// A message has left the stream.
    fn removed(&mut self, seq: StreamSeq, why: Removal) {}
    /// All messages below this sequence have left the stream.
    fn removed_below(&mut self, first: StreamSeq, why: Removal) {}
    /// A delivery is in the log: the message may leave.
    fn delivered(&mut self, consumer: ConsumerId, delivered: &Delivered) {}
    /// The acknowledgements of the command with this ordinal count.
    fn acked(&mut self, ordinal: u32) {}
    /// The command with this ordinal came to this end.
    fn replied(&mut self, ordinal: u32, outcome: &CommandOutcome) {}
    /// Operators may want to know.
    fn advisory(&mut self, advisory: &Advisory<'_>) {}
    /// Something about a consumer has changed.
    fn consumer_changed(&mut self, consumer: ConsumerId, change: ConsumerChange) {}
    /// A consumer is gone.
    fn consumer_gone(&mut self, consumer: ConsumerId, name: &str, why: Gone) {}
    /// The digest at a comparison.
    fn digest(&mut self, index: LogIndex, digest: u64) {}
}

/// For replicas that do not lead.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEffects;

impl Effects for NoEffects {}
