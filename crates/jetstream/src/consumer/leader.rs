//! The leader's side of a consumer: who waits, and what is delivered next.
//!
//! What it picks becomes a Deliver command. Until that has been applied, the picked messages count as delivered in the
//! leader's own view, so that nothing is picked twice. Without acknowledgements there is nothing to decide in the log:
//! the message leaves at once, and the position is logged later (DESIGN section 5).
//!
//! Order on the wire: the messages that one call gives out leave before the notices that it gives out.

use super::push::PushSide;
use super::request::{check_form, check_limits, parse};
use super::state::{ConsumerState, Delivered, Position};
use super::status::{Remaining, Status};
use super::waiting::{Ask, InFlight, Waiting};
use crate::config::ConsumerConfig;
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tidelock_api::AckPolicy;
use tidelock_base::{Mono, Now, StreamSeq};

/// Picks on their way through the log. More wait until some have come back.
const IN_FLIGHT_MAX: usize = 8192;

/// What the leader must know of the stream. "Matching" is what the consumer's filter matches.
pub trait Lookup {
    /// The first matching message at or after `from`.
    fn next_match(&self, from: StreamSeq) -> Next;

    /// This message, whether or not it matches: an edit of the filter does not undo a delivery.
    fn message(&self, seq: StreamSeq) -> Next;

    /// Last sequence of the stream.
    fn last_seq(&self) -> StreamSeq;

    /// How many matching messages there are at or after `from`.
    fn num_pending(&self, from: StreamSeq) -> u64;

    /// Whether anybody listens on a subject. A pull request whose client has gone ends when its turn comes.
    fn is_listening(&self, subject: &[u8]) -> bool {
        let _ = subject;
        true
    }
}

/// Answer of [`Lookup::next_match`] and [`Lookup::message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A message and its size: the bytes of subject, header block and payload.
    Seq(StreamSeq, u32),
    /// There is none.
    End,
    /// The answer is not in memory; it has been asked for.
    Cold,
}

/// Subjects that belong to the consumer, each up to and including its last dot.
#[derive(Clone, Debug)]
pub struct Names {
    /// `$JS.ACK.<stream>.<consumer>.`
    pub ack_prefix: Bytes,
    /// `$JS.FC.<stream>.<consumer>.`
    pub flow_prefix: Bytes,
}

/// Number of a pick, rising from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A message to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// For [`ConsumerLeader::applied`].
    pub ticket: Ticket,
    /// Which message.
    pub seq: StreamSeq,
    /// With ack policy none: it leaves now and is not proposed.
    pub now: Option<Outgoing>,
}

/// A message that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Inbox of the pull request, or deliver subject.
    pub to: Bytes,
    /// Numbers of the delivery.
    pub delivered: Delivered,
    /// Messages left for the consumer after this one: last token of the ack subject.
    pub num_pending: u64,
}

/// What is to be told to a client or to the node where its request entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A status message.
    Status {
        /// Inbox of the pull request, or deliver subject.
        to: Bytes,
        /// Reply subject of a flow control request.
        reply: Option<Bytes>,
        /// The status.
        status: Status,
    },
    /// A pull request of this inbox has ended; its last message and status have been given out.
    Ended {
        /// Inbox of the request.
        to: Bytes,
    },
}

/// Why picking stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The budget is used up; there may be more.
    Budget,
    /// No request waits, or nobody listens.
    NoDemand,
    /// Nothing is left to deliver.
    End,
    /// As many messages as allowed are delivered and not acknowledged.
    MaxAckPending,
    /// The subscriber must answer for what it was sent.
    FlowControl,
    /// Delivery is paused.
    Paused,
    /// Something must be read first.
    Cold,
}

/// The leader's side of one consumer. Made when this replica becomes leader, dropped when it is no longer.
#[derive(Clone, Debug)]
pub struct ConsumerLeader {
    config: ConsumerConfig,
    names: Names,
    demand: Demand,
    /// First sequence that has not been looked at.
    next_seq: StreamSeq,
    /// The epoch of the state when it was last looked at.
    epoch: u32,
    /// Matching messages from `next_seq` on; `None` if it must be counted anew.
    num_pending: Option<u64>,
    /// What was given out last: the log's position, or with ack policy none ahead of it.
    sent: Position,
    last_ticket: Ticket,
    /// In the order of the log.
    in_flight: VecDeque<InFlight>,
    /// Of those, the redeliveries.
    redelivering: BTreeSet<StreamSeq>,
    /// No message queued for redelivery below this one can be picked, while the queue's mark is the one beside it.
    again_from: (StreamSeq, u64),
    in_flight_bytes: u64,
    last_active: Mono,
}

#[derive(Clone, Debug)]
enum Demand {
    Pull(Waiting),
    Push(PushSide),
}

impl Demand {
    fn new(config: &ConsumerConfig, names: &Names) -> Self {
        match &config.push {
            Some(push) => Self::Push(PushSide::new(push, &names.flow_prefix)),
            None => Self::Pull(Waiting::default()),
        }
    }
}

impl ConsumerLeader {
    /// The leader's side of a consumer at the present state. Nobody waits and nobody listens yet.
    #[must_use]
    pub fn new(now: Mono, state: &ConsumerState, names: Names) -> Self {
        Self {
            config: state.config().clone(),
            demand: Demand::new(state.config(), &names),
            names,
            next_seq: state.delivered().stream_seq.next(),
            epoch: state.epoch(),
            num_pending: None,
            sent: state.delivered(),
            last_ticket: Ticket::default(),
            in_flight: VecDeque::new(),
            redelivering: BTreeSet::new(),
            again_from: (StreamSeq(0), 0),
            in_flight_bytes: 0,
            last_active: now,
        }
    }

    /// Takes over the state after an edit or a reset has been applied. Picks of the epoch before are void: they are
    /// given back to their requests. Requests go on waiting; a changed deliver subject needs new interest.
    pub fn sync(&mut self, now: Mono, state: &ConsumerState, out: &mut Vec<Notice>) {
        self.void(self.last_ticket, out);
        let subject = |config: &ConsumerConfig| config.push.as_ref().map(|push| push.subject.clone());
        if subject(&self.config) != subject(state.config()) {
            self.demand = Demand::new(state.config(), &self.names);
        }
        self.config = state.config().clone();
        let is_reset = !state.accepts_ack(self.epoch);
        self.epoch = state.epoch();
        // What has left ahead of the log does not leave again.
        if is_reset || self.progress(state).is_none() {
            self.next_seq = state.delivered().stream_seq.next();
            self.sent = state.delivered();
        }
        self.num_pending = None;
        self.again_from.0 = StreamSeq(0);
        self.last_active = now;
    }

    /// Takes a pull request, its body as it came.
    pub fn pull(
        &mut self,
        now: Mono,
        reply: Bytes,
        body: &[u8],
        state: &ConsumerState,
        lookup: &impl Lookup,
        out: &mut Vec<Notice>,
    ) {
        self.last_active = now;
        if let Err(refusal) = self.admit(now, reply.clone(), body, state, lookup, out) {
            if let Some(status) = refusal {
                out.push(Notice::Status {
                    to: reply.clone(),
                    reply: None,
                    status,
                });
            }
            out.push(Notice::Ended { to: reply });
        }
    }

    fn admit(
        &mut self,
        now: Mono,
        reply: Bytes,
        body: &[u8],
        state: &ConsumerState,
        lookup: &impl Lookup,
        out: &mut Vec<Notice>,
    ) -> Result<(), Option<Status>> {
        if matches!(self.demand, Demand::Push(_)) {
            return Err(Some(Status::PushBased));
        }
        let request = parse(body)?;
        check_limits(&self.config, &request)?;
        check_form(&request)?;
        let num_pending = if request.no_wait {
            self.num_pending(state, lookup)
        } else {
            0
        };
        let Demand::Pull(waiting) = &mut self.demand else {
            return Err(Some(Status::PushBased));
        };
        let waiting_max = usize::try_from(self.config.max_waiting).unwrap_or(usize::MAX);
        if waiting.len() >= waiting_max {
            waiting.tick(now, self.sent, out);
        }
        if request.no_wait {
            if num_pending == 0 && request.expires.0 == 0 {
                return Err(Some(Status::NoMessages));
            }
            if num_pending > 0 && waiting.wanted() > num_pending {
                return Err(Some(Status::RequestsPending));
            }
        }
        if waiting.len() >= waiting_max {
            // A client with heartbeats misses them and asks again; the refusal would end its subscription.
            let heartbeat = request.idle_heartbeat.0 > 0;
            return Err((!heartbeat).then_some(Status::ExceededMaxWaiting));
        }
        let heartbeat = Some(request.idle_heartbeat.duration()).filter(|every| !every.is_zero());
        // A time in the past is one that is over at once.
        let expires = (request.expires.0 != 0).then(|| now + request.expires.duration());
        let (batch, max_bytes, no_wait) = (request.batch, request.max_bytes, request.no_wait);
        waiting.add(
            now,
            Ask {
                reply,
                batch,
                max_bytes,
                no_wait,
                expires,
                heartbeat,
            },
        );
        Ok(())
    }

    /// Messages for the consumer that have not been picked, redeliveries included.
    pub fn num_pending(&mut self, state: &ConsumerState, lookup: &impl Lookup) -> u64 {
        let queued = state
            .redelivery_queue()
            .len()
            .saturating_sub(self.redelivering.len());
        self.count_new(lookup)
            .saturating_add(u64::try_from(queued).unwrap_or(u64::MAX))
    }

    fn count_new(&mut self, lookup: &impl Lookup) -> u64 {
        *self
            .num_pending
            .get_or_insert_with(|| lookup.num_pending(self.next_seq))
    }

    /// Picks what can be delivered now, at most `budget` messages. Says why it stopped.
    pub fn pick(
        &mut self,
        now: Now,
        state: &ConsumerState,
        lookup: &impl Lookup,
        budget: usize,
        out: &mut Vec<Pick>,
        notices: &mut Vec<Notice>,
    ) -> Stop {
        if state.is_paused(now.wall) {
            // Who does not want to wait is not served after the pause either.
            if let Demand::Pull(waiting) = &mut self.demand {
                waiting.end_of_stream(notices);
            }
            return Stop::Paused;
        }
        for _ in 0..budget {
            match self.pick_one(now.mono, state, lookup, notices) {
                Ok(pick) => out.push(pick),
                Err(stop) => {
                    if let (Stop::End, Demand::Pull(waiting)) = (stop, &mut self.demand) {
                        waiting.end_of_stream(notices);
                    }
                    return stop;
                }
            }
        }
        Stop::Budget
    }

    fn pick_one(
        &mut self,
        now: Mono,
        state: &ConsumerState,
        lookup: &impl Lookup,
        notices: &mut Vec<Notice>,
    ) -> Result<Pick, Stop> {
        self.check_demand(now, lookup, notices)?;
        let (seq, bytes, again) = self.candidate(state, lookup)?;
        let num_pending = self.count_new(lookup).saturating_sub(u64::from(!again));
        let size = i64::from(bytes).saturating_add(self.ack_subject_bytes(seq, state, num_pending));
        let request = loop {
            let Demand::Pull(waiting) = &mut self.demand else {
                break None;
            };
            let Some(id) = waiting.front(now, |subject| lookup.is_listening(subject), notices) else {
                return Err(Stop::NoDemand);
            };
            if waiting.give(now, id, size, notices) {
                break Some(id);
            }
        };
        if again {
            self.redelivering.insert(seq);
        } else {
            self.next_seq = seq.next();
            self.num_pending = Some(num_pending);
        }
        self.last_ticket.0 += 1;
        let ticket = self.last_ticket;
        self.in_flight_bytes = self
            .in_flight_bytes
            .saturating_add(u64::try_from(size).unwrap_or(0));
        self.in_flight.push_back(InFlight {
            ticket,
            seq,
            request,
            bytes: size,
            again,
            num_pending,
        });
        let now = (self.config.ack_policy == AckPolicy::None).then(|| {
            let deliver_seq = self.sent.deliver_seq.next();
            self.on_delivered(
                now,
                &Delivered {
                    stream_seq: seq,
                    deliver_seq,
                    count: 1,
                },
                notices,
            )
        });
        Ok(Pick {
            ticket,
            seq,
            now: now.flatten(),
        })
    }

    /// Whether somebody can be given a message now, and if not, why.
    fn check_demand(
        &mut self,
        now: Mono,
        lookup: &impl Lookup,
        notices: &mut Vec<Notice>,
    ) -> Result<(), Stop> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(Stop::Budget);
        }
        let wanted = match &mut self.demand {
            Demand::Push(push) if push.has_room(self.in_flight_bytes) => push.is_active(),
            Demand::Push(_) => return Err(Stop::FlowControl),
            Demand::Pull(waiting) => waiting
                .front(now, |subject| lookup.is_listening(subject), notices)
                .is_some(),
        };
        if wanted { Ok(()) } else { Err(Stop::NoDemand) }
    }

    /// The message to deliver next, its size, and whether it is a redelivery.
    fn candidate(
        &mut self,
        state: &ConsumerState,
        lookup: &impl Lookup,
    ) -> Result<(StreamSeq, u32, bool), Stop> {
        if let Some((seq, bytes)) = self.queued(state, lookup)? {
            return Ok((seq, bytes, true));
        }
        if self.is_at_max_ack_pending(state) {
            return Err(Stop::MaxAckPending);
        }
        match lookup.next_match(self.next_seq) {
            Next::Seq(seq, bytes) => Ok((seq, bytes, false)),
            Next::Cold => Err(Stop::Cold),
            Next::End => {
                // What lies before the end need not be looked at again.
                self.next_seq = self.next_seq.max(lookup.last_seq().next());
                self.num_pending = Some(0);
                Err(Stop::End)
            }
        }
    }

    /// The first message queued for redelivery that is not on its way already.
    fn queued(
        &mut self,
        state: &ConsumerState,
        lookup: &impl Lookup,
    ) -> Result<Option<(StreamSeq, u32)>, Stop> {
        if self.again_from.1 != state.queue_mark() {
            self.again_from = (StreamSeq(0), state.queue_mark());
        }
        for seq in state.redelivery_queue().range(self.again_from.0..) {
            if !self.redelivering.contains(seq) {
                match lookup.message(*seq) {
                    Next::Seq(_, bytes) => return Ok(Some((*seq, bytes))),
                    Next::Cold => return Err(Stop::Cold),
                    // The stream is about to let go of it.
                    Next::End => {}
                }
            }
            self.again_from.0 = seq.next();
        }
        Ok(None)
    }

    fn is_at_max_ack_pending(&self, state: &ConsumerState) -> bool {
        if self.config.ack_policy == AckPolicy::None {
            return false;
        }
        let new = self.in_flight.len() - self.redelivering.len();
        let most = self
            .config
            .max_ack_pending
            .and_then(|most| usize::try_from(most).ok());
        most.is_some_and(|most| state.num_ack_pending() + new >= most)
    }

    /// Length of the ack subject of a delivery, which counts towards the bytes of a request. Its consumer sequence is
    /// the one it gets if everything that is on its way is delivered.
    fn ack_subject_bytes(&self, seq: StreamSeq, state: &ConsumerState, num_pending: u64) -> i64 {
        /// Digits of a time in nanoseconds, between the years 2001 and 2286.
        const TIME_DIGITS: u32 = 19;
        const DOTS: u32 = 4;
        let count = state.delivery_count(seq).map_or(1, |count| count + 1);
        let deliver_seq = self.sent.deliver_seq.0 + u64::try_from(self.in_flight.len()).unwrap_or(0) + 1;
        let digits = [u64::from(count), seq.0, deliver_seq, num_pending]
            .map(digits)
            .iter()
            .sum::<u32>();
        let prefix = i64::try_from(self.names.ack_prefix.len()).unwrap_or(i64::MAX);
        prefix.saturating_add(i64::from(digits + TIME_DIGITS + DOTS))
    }

    /// A Deliver command has had its effect on this message: gives the message out. `None` if nobody wants it any
    /// more; it is pending then, and is delivered again when its wait is over.
    pub fn on_delivered(
        &mut self,
        now: Mono,
        delivered: &Delivered,
        notices: &mut Vec<Notice>,
    ) -> Option<Outgoing> {
        self.sent = Position {
            stream_seq: self.sent.stream_seq.max(delivered.stream_seq),
            deliver_seq: delivered.deliver_seq,
        };
        let place = self
            .in_flight
            .iter()
            .position(|pick| pick.seq == delivered.stream_seq)?;
        // Commands keep the order of the picks, so those that are passed over had no effect.
        for _ in 0..place {
            self.void_first(notices);
        }
        let pick = self.in_flight.pop_front()?;
        self.forget(&pick);
        let to = match (&mut self.demand, pick.request) {
            (Demand::Pull(waiting), Some(request)) => waiting.sent(now, request, notices)?,
            (Demand::Push(push), None) if push.is_active() => push.sent(now, pick.bytes, notices),
            (Demand::Pull(_) | Demand::Push(_), _) => return None,
        };
        Some(Outgoing {
            to,
            delivered: *delivered,
            num_pending: pick.num_pending,
        })
    }

    /// All Deliver commands with picks up to this ticket have been applied. What had no effect, because the message
    /// is gone or the epoch was another, is given back to its request.
    pub fn applied(&mut self, upto: Ticket, notices: &mut Vec<Notice>) {
        self.void(upto, notices);
    }

    fn void(&mut self, upto: Ticket, notices: &mut Vec<Notice>) {
        while self.in_flight.front().is_some_and(|pick| pick.ticket <= upto) {
            self.void_first(notices);
        }
    }

    fn void_first(&mut self, notices: &mut Vec<Notice>) {
        let Some(pick) = self.in_flight.pop_front() else {
            return;
        };
        self.forget(&pick);
        self.again_from.0 = StreamSeq(0);
        if let (Demand::Pull(waiting), Some(request)) = (&mut self.demand, pick.request) {
            waiting.give_back(request, pick.bytes, notices);
        }
    }

    fn forget(&mut self, pick: &InFlight) {
        self.in_flight_bytes = self
            .in_flight_bytes
            .saturating_sub(u64::try_from(pick.bytes).unwrap_or(0));
        if pick.again {
            self.redelivering.remove(&pick.seq);
        }
    }

    /// A matching message was stored.
    pub fn stored(&mut self, seq: StreamSeq) {
        if seq >= self.next_seq {
            self.num_pending = self.num_pending.map(|count| count.saturating_add(1));
        }
    }

    /// A matching message was removed.
    pub fn removed(&mut self, seq: StreamSeq) {
        if seq >= self.next_seq {
            self.num_pending = self.num_pending.map(|count| count.saturating_sub(1));
        }
    }

    /// Many messages were removed; what is left is counted anew when it is next needed.
    pub const fn recount(&mut self) {
        self.num_pending = None;
    }

    /// Somebody listens on the deliver subject of a push consumer, or nobody does any more.
    pub fn set_interest(&mut self, now: Mono, active: bool) {
        self.last_active = now;
        if let Demand::Push(push) = &mut self.demand {
            push.set_active(now, active);
        }
    }

    /// A message to a subject below [`Names::flow_prefix`]; false if no such answer is awaited.
    pub fn flow_answered(&mut self, subject: &[u8]) -> bool {
        match &mut self.demand {
            Demand::Push(push) => push.answered(subject),
            Demand::Pull(_) => false,
        }
    }

    /// An acknowledgement came from a client; the consumer is in use.
    pub const fn touched(&mut self, now: Mono) {
        self.last_active = now;
    }

    /// With ack policy none: what was given out beyond what the log knows, to be proposed as progress.
    #[must_use]
    pub fn progress(&self, state: &ConsumerState) -> Option<Position> {
        (self.config.ack_policy == AckPolicy::None && self.sent > state.delivered()).then_some(self.sent)
    }

    /// What was given out last.
    #[must_use]
    pub const fn sent(&self) -> Position {
        self.sent
    }

    /// Ends requests whose time is over and sends the heartbeats that are due.
    pub fn tick(&mut self, now: Mono, out: &mut Vec<Notice>) {
        match &mut self.demand {
            Demand::Pull(waiting) => waiting.tick(now, self.sent, out),
            Demand::Push(push) => push.tick(now, self.sent, out),
        }
    }

    /// When [`Self::tick`] must run at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        match &self.demand {
            Demand::Pull(waiting) => waiting.next_deadline(),
            Demand::Push(push) => push.next_deadline(),
        }
    }

    /// When the consumer will have been without activity for its threshold, should nothing happen until then; `None`
    /// if it may stay, or is in use. Messages that are not acknowledged give it their ack wait in addition.
    #[must_use]
    pub fn idle_at(&self, state: &ConsumerState) -> Option<Mono> {
        let threshold = self.config.inactive_threshold?;
        let in_use = match &self.demand {
            Demand::Pull(waiting) => waiting.len() > 0,
            Demand::Push(push) => push.is_active(),
        };
        let unacknowledged = state.num_ack_pending() > 0 && self.config.push.is_none();
        let extra = self
            .config
            .ack_wait
            .filter(|_| unacknowledged)
            .unwrap_or(Duration::ZERO);
        (!in_use).then(|| self.last_active + threshold + extra)
    }

    /// The consumer is deleted, its leader changes, or the server stops: tells all requests that wait. Picks that are
    /// on their way find no receiver.
    pub fn close(&mut self, status: impl Fn(Remaining) -> Status, out: &mut Vec<Notice>) {
        if let Demand::Pull(waiting) = &mut self.demand {
            waiting.close(status, out);
        }
    }

    /// Pull requests that wait.
    #[must_use]
    pub const fn num_waiting(&self) -> usize {
        match &self.demand {
            Demand::Pull(waiting) => waiting.len(),
            Demand::Push(_) => 0,
        }
    }

    /// Whether somebody listens to a push consumer.
    #[must_use]
    pub const fn is_push_bound(&self) -> bool {
        match &self.demand {
            Demand::Pull(_) => false,
            Demand::Push(push) => push.is_active(),
        }
    }

    /// Picks that have not come back from the log.
    #[must_use]
    pub fn num_in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

/// Decimal digits of a number.
const fn digits(number: u64) -> u32 {
    match number.checked_ilog10() {
        Some(log) => log + 1,
        None => 1,
    }
}

#[cfg(test)]
mod tests;
