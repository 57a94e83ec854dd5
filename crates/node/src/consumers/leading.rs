//! What a leader keeps of a stream's consumers.

use super::acks::AckBatch;
use super::items::Say;
use super::outbox::Out;
use super::subjects;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidelock_api::AckPolicy;
use tidelock_base::{ConsumerId, Mono, NodeId, Wall};
use tidelock_jetstream::command::WindowKey;
use tidelock_jetstream::consumer::{ConsumerLeader, Position, Stop, Ticket};
use tidelock_jetstream::stream::{Consumer, Stream};
use tidelock_store::Filters;

/// Leader-local state of a stream's consumers.
#[derive(Default)]
pub(crate) struct Leading {
    pub(super) consumers: BTreeMap<ConsumerId, Box<One>>,
    /// Those that have something to do at the end of the turn.
    pub(super) dirty: BTreeSet<ConsumerId>,
    /// When each wants to be looked at.
    pub(super) timers: BTreeSet<(Mono, ConsumerId)>,
    /// Those that have used up what a turn allows and go on in the next.
    pub(super) later: BTreeSet<ConsumerId>,
    /// The consumer that was acknowledged last, by name.
    pub(super) last: Option<(Arc<str>, ConsumerId)>,
}

/// Leader-local state of one consumer.
pub(super) struct One {
    pub(super) name: Arc<str>,
    pub(super) leader: ConsumerLeader,
    /// `$JS.ACK.<stream>.<consumer>.`
    pub(super) ack_prefix: Bytes,
    /// `$JS.FC.<stream>.<consumer>.`
    pub(super) flow_prefix: Bytes,
    pub(super) ack_policy: AckPolicy,
    /// Its receiver is asked how far it is.
    pub(super) flow_control: bool,
    pub(super) filters: Filters,
    pub(super) headers_only: bool,
    /// Deliver subject and group of a push consumer.
    pub(super) push: Option<Push>,
    /// Acknowledgements of this turn.
    pub(super) acks: AckBatch,
    /// Deliver commands up to this pick are applied.
    pub(super) applied: Option<Ticket>,
    /// What waits to leave, in order.
    pub(super) outbox: VecDeque<Out>,
    /// Something is being read from disk for it.
    pub(super) fetching: bool,
    /// Where the pull requests of each inbox came from that entered elsewhere, in the order in which they came.
    pub(super) entered: BTreeMap<Bytes, VecDeque<Entered>>,
    /// Its entry in [`Leading::timers`].
    pub(super) armed: Option<Mono>,
    /// Why picking stopped last.
    pub(super) stop: Stop,
    /// Not before this time is progress logged again.
    pub(super) progress_from: Mono,
    /// Not before this time is its deletion proposed again.
    pub(super) idle_from: Mono,
    /// When a message was last sent ahead of the log.
    pub(super) last_sent: Wall,
}

impl One {
    /// Whether it takes what clients say in this way. With flow control, they acknowledge by answering it and in no
    /// other way.
    pub(super) fn listens_to(&self, say: Say) -> bool {
        match say {
            Say::Flow => self.flow_control,
            _ => !matches!(self.ack_policy, AckPolicy::None | AckPolicy::FlowControl),
        }
    }
}

/// The receiver of a push consumer.
pub(super) struct Push {
    pub(super) subject: Bytes,
    /// Queue group, if any: one member of it gets each message, and nobody else.
    pub(super) group: Option<Arc<[u8]>>,
    /// Generation of the interest that was looked at last.
    pub(super) generation: Option<u64>,
}

/// Where a pull request is remembered that entered elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entered {
    /// The node.
    pub(crate) node: NodeId,
    /// Its worker.
    pub(crate) sender: WindowKey,
    /// The number it has there.
    pub(crate) number: u64,
}

/// What only the leader knows of a consumer, for CONSUMER.INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    /// Pull requests that wait.
    pub(crate) num_waiting: usize,
    /// Whether somebody listens to a push consumer.
    pub(crate) push_bound: bool,
    /// Messages that match and have not been delivered.
    pub(crate) num_pending: u64,
    /// What was delivered last; ahead of the log for consumers without acknowledgements.
    pub(crate) delivered: Position,
    /// When that was; [`Wall::ZERO`] means never.
    pub(crate) last_delivered: Wall,
    /// Picks that have not come back from the log.
    pub(crate) in_flight: usize,
}

impl Leading {
    /// Whether there are no consumers.
    pub(crate) fn is_empty(&self) -> bool {
        self.consumers.is_empty()
    }

    /// Whether something is to be done at the end of the turn.
    pub(super) fn has_work(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Marks a consumer as one with something to do.
    pub(super) fn touch(&mut self, id: ConsumerId) {
        self.dirty.insert(id);
    }

    pub(crate) fn touch_all(&mut self) {
        self.dirty.extend(self.consumers.keys());
    }

    /// What was sent and is not logged yet is logged in this turn.
    pub(crate) fn log_progress(&mut self, now: Mono) {
        for one in self.consumers.values_mut() {
            one.progress_from = one.progress_from.min(now);
        }
        self.touch_all();
    }

    /// Starts the leader's side of a consumer.
    pub(super) fn insert(&mut self, now: Mono, stream_name: &str, consumer: &Consumer) {
        let id = consumer.id();
        self.consumers
            .insert(id, Box::new(One::new(now, stream_name, consumer)));
        self.touch(id);
    }

    /// Takes a consumer out.
    pub(super) fn remove(&mut self, id: ConsumerId) -> Option<Box<One>> {
        let one = self.consumers.remove(&id)?;
        self.dirty.remove(&id);
        self.later.remove(&id);
        if let Some(at) = one.armed {
            self.timers.remove(&(at, id));
        }
        if self.last.as_ref().is_some_and(|(_, last)| *last == id) {
            self.last = None;
        }
        Some(one)
    }

    /// The consumer with this name.
    pub(super) fn id_of(&mut self, stream: &Stream, name: &str) -> Option<ConsumerId> {
        if let Some((last, id)) = &self.last
            && **last == *name
        {
            return Some(*id);
        }
        let id = stream.consumer(name)?.id();
        let one = self.consumers.get(&id)?;
        self.last = Some((Arc::clone(&one.name), id));
        Some(id)
    }

    /// Sets the timer of a consumer.
    pub(super) fn arm(&mut self, id: ConsumerId, at: Option<Mono>) {
        let Some(one) = self.consumers.get_mut(&id) else {
            return;
        };
        if one.armed == at {
            return;
        }
        if let Some(old) = one.armed {
            self.timers.remove(&(old, id));
        }
        one.armed = at;
        if let Some(at) = at {
            self.timers.insert((at, id));
        }
    }

    /// Marks those whose time has come.
    pub(super) fn tick(&mut self, now: Mono) {
        self.dirty.append(&mut self.later);
        while let Some((_, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.pop_first();
            if let Some(one) = self.consumers.get_mut(&id) {
                one.armed = None;
            }
            self.touch(id);
        }
    }

    /// When [`Leading::tick`] must run at the latest.
    pub(super) fn deadline(&self) -> Option<Mono> {
        if !self.later.is_empty() {
            return Some(Mono(0));
        }
        self.timers.first().map(|(at, _)| *at)
    }
}

impl One {
    fn new(now: Mono, stream_name: &str, consumer: &Consumer) -> Self {
        let names = subjects::names(stream_name, consumer.name());
        let (ack_prefix, flow_prefix) = (names.ack_prefix.clone(), names.flow_prefix.clone());
        let mut one = Self {
            name: consumer.name().into(),
            leader: ConsumerLeader::new(now, consumer.state(), names),
            ack_prefix,
            flow_prefix,
            ack_policy: AckPolicy::None,
            flow_control: false,
            filters: Filters::all(),
            headers_only: false,
            push: None,
            acks: AckBatch::default(),
            applied: None,
            outbox: VecDeque::new(),
            fetching: false,
            entered: BTreeMap::new(),
            armed: None,
            stop: Stop::Budget,
            progress_from: now,
            idle_from: now,
            last_sent: Wall::ZERO,
        };
        one.configure(consumer);
        one
    }

    /// Takes over what the configuration says; interest in the deliver subject is looked at anew.
    pub(super) fn configure(&mut self, consumer: &Consumer) {
        let config = consumer.config();
        self.ack_policy = config.ack_policy;
        self.flow_control = config.push.as_ref().is_some_and(|push| push.flow_control);
        self.filters = consumer.filters().clone();
        self.headers_only = config.headers_only;
        self.push = config.push.as_ref().map(|push| Push {
            subject: Bytes::copy_from_slice(&push.subject),
            group: (!config.deliver_group.is_empty()).then(|| config.deliver_group.as_bytes().into()),
            generation: None,
        });
    }

    /// Whether one acknowledgement stands for all messages before it.
    pub(super) const fn acks_all(&self) -> bool {
        matches!(self.ack_policy, AckPolicy::All | AckPolicy::FlowControl)
    }

    /// Takes note of where a pull request came from.
    pub(super) fn enter(&mut self, inbox: &Bytes, from: Entered) {
        self.entered.entry(inbox.clone()).or_default().push_back(from);
    }

    /// A pull request of this inbox has ended: where it is remembered; `None` if it entered on this worker.
    pub(super) fn leave(&mut self, inbox: &Bytes) -> Option<Entered> {
        let waiting = self.entered.get_mut(inbox)?;
        let from = waiting.pop_front();
        if waiting.is_empty() {
            self.entered.remove(inbox);
        }
        from
    }
}
