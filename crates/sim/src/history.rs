//! What the workload did and was told: the checkers' material.

use crate::client::ClientId;
use crate::copies::Copies;
use std::collections::BTreeMap;
use tidelock_base::Mono;

/// Everything that was recorded.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Publishes into streams, by their payload, which is unique.
    pub(crate) publishes: BTreeMap<String, Publish>,
    /// Operations on keys.
    pub(crate) kv: Vec<KvOp>,
    /// Deliveries of a work queue, in order.
    pub(crate) deliveries: Vec<Delivery>,
    /// What each stream held at the end, as read through each node.
    pub(crate) audits: Vec<Audit>,
    /// The times of those messages.
    pub(crate) times: Vec<Times>,
    /// Reads that followed a publish on its connection.
    pub(crate) looks: Vec<Look>,
    /// What sources and mirrors had to do.
    pub(crate) copies: Copies,
    /// What was seen to be wrong at once.
    pub(crate) problems: Vec<String>,
    /// Requests that were answered, by actor: when the last one was, and what was done before it.
    pub(crate) answered: BTreeMap<usize, Mono>,
    /// The operator may be about to take replicas away.
    pub(crate) is_scaling: bool,
    /// A node has lost its files, and not all replicas are replaced yet. Who takes replicas away then may be left with
    /// the one that is lost.
    pub(crate) is_disk_lost: bool,
    /// Counts of anything, for the report.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    order: u64,
}

/// A publish into a stream.
#[derive(Clone, Debug)]
pub(crate) struct Publish {
    /// Name of the stream.
    pub(crate) stream: &'static str,
    /// The connection that published it.
    pub(crate) client: ClientId,
    /// Its number on that connection.
    pub(crate) number: u64,
    /// What became of it.
    pub(crate) outcome: Outcome,
}

/// What became of a publish, as far as its client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Not known: it may have been stored or not, or may be stored later.
    Unknown,
    /// Stored under this sequence.
    Acked(u64),
    /// Not stored, and never will be.
    Refused(String),
}

/// An operation on a key.
#[derive(Clone, Debug)]
pub(crate) struct KvOp {
    pub(crate) key: usize,
    /// Order of its begin and of its end among all events of the history; an end that is not known is the highest number.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) action: KvAction,
    /// Who did it.
    #[expect(
        dead_code,
        reason = "for people: Debug shows it with a history that does not fit"
    )]
    pub(crate) by: ClientId,
}

/// What an operation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KvAction {
    /// Found nothing, or a value and its revision.
    Read(Option<(u64, u64)>),
    /// Wrote a value if the revision was this one (0: none).
    Write {
        expected: u64,
        value: u64,
        result: WriteResult,
    },
}

/// How a conditional write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    /// Stored under this revision.
    Stored(u64),
    /// Refused, since the revision was this one.
    Conflict(u64),
    /// Not known.
    Unknown,
}

/// A message of a work queue was delivered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delivery {
    pub(crate) payload: String,
    /// Its sequence in the stream, that of the delivery, and how often the message was delivered with this one.
    pub(crate) stream_seq: u64,
    pub(crate) deliver_seq: u64,
    pub(crate) count: u64,
    /// Order among all events.
    pub(crate) at: u64,
    /// When its acknowledgement was sent.
    pub(crate) acked: Option<u64>,
    /// When its acknowledgement was confirmed.
    pub(crate) confirmed: Option<u64>,
}

/// The content of a stream as one node showed it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Audit {
    pub(crate) stream: &'static str,
    pub(crate) node: usize,
    /// Payloads by sequence.
    pub(crate) messages: BTreeMap<u64, String>,
}

/// The times of the messages of a stream as one node showed them, by sequence: texts that sort as the times do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub(crate) stream: &'static str,
    pub(crate) node: usize,
    pub(crate) times: BTreeMap<u64, String>,
}

/// A connection has asked for the last message of a subject right after it had published to it.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    /// The payload that it had published.
    pub(crate) behind: String,
    /// The sequence that it was shown; 0 for no message.
    pub(crate) found: u64,
}

/// The order of what never ended.
pub(crate) const NEVER: u64 = u64::MAX;

impl History {
    /// The next number in the order of events.
    pub(crate) const fn tick(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}
