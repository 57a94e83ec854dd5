//! What the workload has copied from stream to stream: a work queue that a source empties, and a stream of which there
//! is a mirror (DESIGN section 6). The shape of both is chosen anew in each run.

use crate::rng::Rng;
use std::collections::BTreeMap;

/// A work queue that a source empties.
pub(crate) const QUEUE: &str = "SQ";
/// Takes from [`QUEUE`].
pub(crate) const QUEUE_COPY: &str = "SQC";
/// A stream that keeps everything.
pub(crate) const LOG: &str = "SL";
/// The mirror of [`LOG`].
pub(crate) const LOG_COPY: &str = "SLC";
/// All of them, origins first.
pub(crate) const STREAMS: [&str; 4] = [QUEUE, LOG, QUEUE_COPY, LOG_COPY];

/// One stream that takes from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copying {
    pub(crate) origin: &'static str,
    pub(crate) copy: &'static str,
    /// Replicas of the origin, to begin with.
    pub(crate) replicas: u8,
    /// Only every second subject is taken.
    filter: bool,
    /// What is before this sequence of the origin need not be taken; 0: everything is.
    start: u64,
}

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyPlan {
    pub(crate) queue: Copying,
    pub(crate) log: Copying,
}

impl CopyPlan {
    pub(crate) fn choose(rng: &mut Rng) -> Self {
        let mut copying = |origin, copy| Copying {
            origin,
            copy,
            replicas: if rng.per_mille(250) { 1 } else { 3 },
            filter: rng.per_mille(300),
            start: if rng.per_mille(250) { 1 + rng.below(30) } else { 0 },
        };
        Self {
            queue: copying(QUEUE, QUEUE_COPY),
            log: copying(LOG, LOG_COPY),
        }
    }

    pub(crate) const fn pairs(&self) -> [Copying; 2] {
        [self.queue, self.log]
    }

    /// Configuration of one of the streams. `round` counts how often it was made: a request to make it that comes late
    /// is refused, since this differs.
    pub(crate) fn configuration(&self, name: &str, replicas: u8, round: u64) -> String {
        let own = match name {
            QUEUE => {
                r#""subjects":["sq.>"],"duplicate_window":600000000000,"retention":"workqueue""#.to_owned()
            }
            LOG => r#""subjects":["sl.>"],"duplicate_window":600000000000"#.to_owned(),
            // What was sent again to a queue that was made anew is taken once, by its id.
            QUEUE_COPY => format!(
                r#""sources":[{}],"duplicate_window":600000000000"#,
                self.queue.source()
            ),
            _ => format!(r#""mirror":{}"#, self.log.source()),
        };
        format!(
            r#"{{"name":"{name}",{own},"description":"{round}","storage":"file","num_replicas":{replicas},"allow_direct":true}}"#
        )
    }

    /// Replicas of one of the streams, to begin with.
    pub(crate) fn replicas(&self, name: &str) -> u8 {
        let origin = self.pairs().into_iter().find(|pair| pair.origin == name);
        origin.map_or(3, |pair| pair.replicas)
    }
}

impl Copying {
    fn source(&self) -> String {
        let mut text = format!(r#"{{"name":"{}""#, self.origin);
        if self.filter {
            text.push_str(&format!(r#","filter_subject":"{}""#, self.subject(0)));
        }
        if self.start > 0 {
            text.push_str(&format!(r#","opt_start_seq":{}"#, self.start));
        }
        text.push('}');
        text
    }

    /// Subject of a message; messages of even kinds are always let through by the filter.
    pub(crate) fn subject(&self, kind: u64) -> String {
        let stem = if self.origin == QUEUE { "sq" } else { "sl" };
        format!("{stem}.{}", if kind.is_multiple_of(2) { "a" } else { "b" })
    }

    /// Whether a message of the origin is to be copied.
    pub(crate) fn takes(&self, seq: u64, subject: &str) -> bool {
        seq >= self.start && self.may_take(subject)
    }

    /// Whether a message may be copied: the filter lets it through. One from before the start is, too, if the origin had
    /// not come to the start when it was asked: as for any consumer, a start behind the end is the end.
    pub(crate) fn may_take(&self, subject: &str) -> bool {
        !self.filter || subject == self.subject(0)
    }

    /// The first sequence of the origin that can be copied.
    pub(crate) const fn first(&self) -> u64 {
        self.start
    }
}

/// What was done with these streams.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// `None` if they are not part of the workload.
    pub(crate) plan: Option<CopyPlan>,
    /// Messages sent to origins, by payload, which is unique.
    pub(crate) sent: BTreeMap<String, Sent>,
    /// When a stream that was created at this moment was first known to be there, in the order of the history.
    pub(crate) known: BTreeMap<(String, String), u64>,
    /// When a replica of a stream that was deleted was last there beside one of its successor: the only replica of a
    /// stream, on a node that is cut off, acknowledges until it hears of the deletion.
    pub(crate) mixed: BTreeMap<&'static str, u64>,
    /// Sequence of the last message of each origin.
    pub(crate) last: BTreeMap<&'static str, u64>,
    /// What each stream held at the end, as read through each node.
    pub(crate) audits: Vec<CopyAudit>,
    /// One of the streams may have less than three replicas.
    pub(crate) is_scaling: bool,
}

/// A message sent to an origin: as often as it takes, always with the same id.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) origin: &'static str,
    pub(crate) subject: String,
    /// When it was sent first, in the order of the history.
    pub(crate) begin: u64,
    /// Its sequence, once it was acknowledged.
    pub(crate) acked: Option<u64>,
}

/// The content of one of the streams as one node showed it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopyAudit {
    pub(crate) stream: &'static str,
    pub(crate) node: usize,
    /// When the stream was created, in the server's words.
    pub(crate) created: String,
    /// By sequence: payload, and what the header says of where it is from.
    pub(crate) messages: BTreeMap<u64, (String, Option<From>)>,
}

/// Where a sourced message is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct From {
    pub(crate) seq: u64,
    /// Stands for the moment at which the origin was created.
    pub(crate) identity: String,
}

impl From {
    /// Reads a `Nats-Stream-Source` (jetstream protocol, "Message handling"):
    /// `<origin> <seq> <filter> <dest> <subject> <identity>`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [_, seq, _, _, _, identity] = words.as_slice() else {
            return None;
        };
        Some(Self {
            seq: seq.parse().ok()?,
            identity: (*identity).to_owned(),
        })
    }
}
