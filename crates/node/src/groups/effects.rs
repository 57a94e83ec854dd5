//! What applied entries bring about, collected while they are applied.

use crate::consumers::Event;
use tidelock_base::{ConsumerId, LogIndex, StreamSeq};
use tidelock_jetstream::command::WindowKey;
use tidelock_jetstream::consumer::Delivered;
use tidelock_jetstream::stream::{
    Advisory, CommandOutcome, ConsumerChange, Effects, Gone, Removal, StoredMessage,
};
use tidelock_jetstream::window::PubOutcome;

/// Outcomes of publishes of one sender, dense from `first` on.
pub(crate) struct OutcomeRun {
    pub(crate) key: WindowKey,
    pub(crate) first: u64,
    pub(crate) list: Vec<PubOutcome>,
}

/// A message to be published again under another subject.
pub(crate) struct Republish {
    pub(crate) seq: StreamSeq,
    pub(crate) previous: StreamSeq,
    pub(crate) ts: tidelock_base::Wall,
    pub(crate) record: bytes::Bytes,
}

/// Collects effects. A replica that does not lead collects only what waiters may want.
#[derive(Default)]
pub(crate) struct Fx {
    /// Whether this replica leads.
    pub(crate) leads: bool,
    /// Whether the stream republishes.
    pub(crate) republishes: bool,
    /// Whether the stream has consumers.
    pub(crate) has_consumers: bool,
    pub(crate) outcomes: Vec<OutcomeRun>,
    pub(crate) events: Vec<Event>,
    pub(crate) replies: Vec<(u32, CommandOutcome)>,
    pub(crate) acked: Vec<u32>,
    pub(crate) republish: Vec<Republish>,
    /// What the entry has asked to be compared, and of which index that is.
    pub(crate) digest: Option<(LogIndex, u64)>,
}

impl Effects for Fx {
    fn published(&mut self, key: WindowKey, number: u64, outcome: &PubOutcome) {
        if !self.leads {
            return;
        }
        if let Some(run) = self.outcomes.last_mut()
            && run.key == key
            && run.first + run.list.len() as u64 == number
        {
            run.list.push(outcome.clone());
            return;
        }
        self.outcomes.push(OutcomeRun {
            key,
            first: number,
            list: vec![outcome.clone()],
        });
    }

    fn stored(&mut self, message: &StoredMessage<'_>) {
        if !self.leads {
            return;
        }
        if self.has_consumers {
            self.events.push(Event::stored(message));
        }
        if self.republishes {
            self.republish.push(Republish {
                seq: message.seq,
                previous: message.previous,
                ts: message.ts,
                record: message.bytes.clone(),
            });
        }
    }

    fn removed(&mut self, seq: StreamSeq, why: Removal) {
        if self.leads && self.has_consumers {
            self.events.push(Event::removed(seq, why));
        }
    }

    fn removed_below(&mut self, first: StreamSeq, why: Removal) {
        if self.leads && self.has_consumers {
            self.events.push(Event::removed_below(first, why));
        }
    }

    fn delivered(&mut self, consumer: ConsumerId, delivered: &Delivered) {
        if self.leads {
            self.events.push(Event::delivered(consumer, delivered));
        }
    }

    fn acked(&mut self, ordinal: u32) {
        self.acked.push(ordinal);
    }

    fn replied(&mut self, ordinal: u32, outcome: &CommandOutcome) {
        self.replies.push((ordinal, outcome.clone()));
    }

    fn advisory(&mut self, advisory: &Advisory<'_>) {
        if self.leads {
            self.events.push(Event::advisory(advisory));
        }
    }

    fn consumer_changed(&mut self, consumer: ConsumerId, change: ConsumerChange) {
        self.has_consumers = true;
        if self.leads {
            self.events.push(Event::changed(consumer, change));
        }
    }

    fn consumer_gone(&mut self, consumer: ConsumerId, name: &str, why: Gone) {
        if self.leads {
            self.events.push(Event::gone(consumer, name, why));
        }
    }

    fn digest(&mut self, index: LogIndex, digest: u64) {
        tracing::debug!("digest at {index}: {digest:016x}");
        self.digest = Some((index, digest));
    }
}
