//! Pull requests that wait at the consumer's leader, served in turn.
//!
//! A request ends when its batch is full, its time is up, nothing is left for one that does not wait, the next message
//! is too large for it, or its client has gone. Messages picked for it may still be on their way through the log then;
//! its last status follows them.

use super::leader::{Notice, Ticket};
use super::state::Position;
use super::status::{Remaining, Status};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidelock_base::{Mono, StreamSeq};

/// Requests that wait, and those that have ended while messages for them are on their way.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    requests: BTreeMap<RequestId, Request>,
    /// Whose turn it is. Names of requests that have ended are passed over.
    order: VecDeque<RequestId>,
    next_id: u64,
    /// Requests that have not ended.
    open: usize,
    /// Of those, the ones that do not wait.
    one_shots: usize,
    /// At or before the earliest deadline of a request.
    deadline: Option<Mono>,
}

/// Which request; in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestId(u64);

/// What a request asks for.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) reply: Bytes,
    /// Messages wanted; one if not positive.
    pub(super) batch: i64,
    /// Bytes wanted; no limit if not positive.
    pub(super) max_bytes: i64,
    pub(super) no_wait: bool,
    pub(super) expires: Option<Mono>,
    pub(super) heartbeat: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Request {
    ask: Ask,
    left: Remaining,
    /// Messages picked.
    picked: u64,
    /// Of those, the ones that have not come back from the log.
    in_flight: u32,
    next_heartbeat: Option<Mono>,
    end: Option<End>,
}

/// How a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its batch is full.
    Full,
    Expired,
    NoMessages,
    TooLarge,
    /// Nobody listens.
    Silent,
}

impl Request {
    /// A status is due to one whose batch is full only if bytes are left that it might wait for.
    fn last_status(&self, end: End) -> Option<Status> {
        match end {
            End::Full if self.ask.max_bytes > 0 && self.left.bytes > 0 => {
                Some(Status::BatchCompleted(self.left))
            }
            End::Full | End::Silent => None,
            End::Expired => Some(Status::RequestTimeout(self.left)),
            End::NoMessages => Some(Status::NoMessages),
            End::TooLarge => Some(Status::MessageSizeExceedsMaxBytes(self.left)),
        }
    }

    const fn is_open(&self) -> bool {
        self.end.is_none()
    }

    fn deadline(&self) -> Option<Mono> {
        self.ask.expires.into_iter().chain(self.next_heartbeat).min()
    }
}

impl Waiting {
    /// Requests that have not ended.
    pub(super) const fn len(&self) -> usize {
        self.open
    }

    /// Messages that all of them together still want.
    pub(super) fn wanted(&self) -> u64 {
        let open = self.requests.values().filter(|request| request.is_open());
        open.map(|request| u64::try_from(request.left.messages.max(1)).unwrap_or(1))
            .sum()
    }

    pub(super) fn add(&mut self, now: Mono, ask: Ask) {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let request = Request {
            left: Remaining {
                messages: ask.batch,
                bytes: ask.max_bytes,
            },
            picked: 0,
            in_flight: 0,
            next_heartbeat: ask.heartbeat.map(|every| now + every),
            end: None,
            ask,
        };
        self.arm(request.deadline());
        self.open += 1;
        self.one_shots += usize::from(request.ask.no_wait);
        self.requests.insert(id, request);
        self.order.push_back(id);
    }

    fn arm(&mut self, due: Option<Mono>) {
        self.deadline = self.deadline.into_iter().chain(due).min();
    }

    /// The request whose turn it is. Ends on the way what has expired, and what `is_listening` says nobody waits for.
    pub(super) fn front(
        &mut self,
        now: Mono,
        is_listening: impl Fn(&[u8]) -> bool,
        out: &mut Vec<Notice>,
    ) -> Option<RequestId> {
        while let Some(id) = self.order.front().copied() {
            let end = match self.requests.get(&id).filter(|request| request.is_open()) {
                None => {
                    self.order.pop_front();
                    continue;
                }
                Some(request) if request.ask.expires.is_some_and(|due| due <= now) => End::Expired,
                Some(request) if !is_listening(&request.ask.reply) => End::Silent,
                Some(_) => return Some(id),
            };
            self.end(id, end, out);
        }
        None
    }

    /// Gives a message of this size to the request whose turn it is, which then goes to the end of the line. Returns
    /// false if the message is too large for it, which ends it.
    pub(super) fn give(&mut self, now: Mono, id: RequestId, bytes: i64, out: &mut Vec<Notice>) -> bool {
        let Some(request) = self.requests.get_mut(&id) else {
            return false;
        };
        let counts_bytes = request.ask.max_bytes > 0;
        if counts_bytes && bytes > request.left.bytes {
            self.end(id, End::TooLarge, out);
            return false;
        }
        if counts_bytes {
            request.left.bytes -= bytes;
        }
        // A request names any number, and gets one message for none or less.
        request.left.messages = request.left.messages.saturating_sub(1);
        request.picked += 1;
        request.in_flight += 1;
        request.next_heartbeat = request.ask.heartbeat.map(|every| now + every);
        let full = request.left.messages <= 0;
        self.order.pop_front();
        if full {
            self.end(id, End::Full, out);
        } else {
            self.order.push_back(id);
        }
        true
    }

    /// A message picked for the request leaves: where to. Its last status follows if it was the last.
    pub(super) fn sent(&mut self, now: Mono, id: RequestId, out: &mut Vec<Notice>) -> Option<Bytes> {
        let request = self.requests.get_mut(&id)?;
        request.in_flight = request.in_flight.saturating_sub(1);
        request.next_heartbeat = request.ask.heartbeat.map(|every| now + every);
        let reply = request.ask.reply.clone();
        self.finish(id, out);
        Some(reply)
    }

    /// A message picked for the request was not delivered: it may have another.
    pub(super) fn give_back(&mut self, id: RequestId, bytes: i64, out: &mut Vec<Notice>) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        request.in_flight = request.in_flight.saturating_sub(1);
        request.picked = request.picked.saturating_sub(1);
        request.left.messages = request.left.messages.saturating_add(1);
        if request.ask.max_bytes > 0 {
            request.left.bytes += bytes;
        }
        if request.end == Some(End::Full) {
            request.end = None;
            self.open += 1;
            self.one_shots += usize::from(request.ask.no_wait);
            let due = request.deadline();
            self.arm(due);
            self.order.push_front(id);
        }
        self.finish(id, out);
    }

    /// Ends a request. Its name stays in `order` until its turn comes.
    fn end(&mut self, id: RequestId, end: End, out: &mut Vec<Notice>) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| request.is_open()) else {
            return;
        };
        request.end = Some(end);
        self.open -= 1;
        self.one_shots -= usize::from(request.ask.no_wait);
        self.finish(id, out);
        // Names of ended requests whose turn never comes must not pile up.
        if self.order.len() > 2 * self.open + 16 {
            let requests = &self.requests;
            self.order
                .retain(|id| requests.get(id).is_some_and(Request::is_open));
        }
    }

    /// Lets go of a request that has ended, once nothing for it is on its way.
    fn finish(&mut self, id: RequestId, out: &mut Vec<Notice>) {
        let Some(request) = self.requests.get(&id).filter(|request| request.in_flight == 0) else {
            return;
        };
        let Some(end) = request.end else {
            return;
        };
        let to = request.ask.reply.clone();
        if let Some(status) = request.last_status(end) {
            out.push(Notice::Status {
                to: to.clone(),
                reply: None,
                status,
            });
        }
        out.push(Notice::Ended { to });
        self.requests.remove(&id);
    }

    /// Nothing is left to deliver: ends the requests that do not wait for more. One that gave itself time waits for
    /// its first message.
    pub(super) fn end_of_stream(&mut self, out: &mut Vec<Notice>) {
        if self.one_shots == 0 {
            return;
        }
        let done =
            |request: &Request| request.ask.no_wait && (request.picked > 0 || request.ask.expires.is_none());
        for id in self.open_where(done) {
            self.end(id, End::NoMessages, out);
        }
    }

    fn open_where(&self, wanted: impl Fn(&Request) -> bool) -> Vec<RequestId> {
        let open = self
            .requests
            .iter()
            .filter(|(_, request)| request.is_open() && wanted(request));
        open.map(|(id, _)| *id).collect()
    }

    /// Ends what has expired and sends the heartbeats that are due.
    pub(super) fn tick(&mut self, now: Mono, last: Position, out: &mut Vec<Notice>) {
        if self.deadline.is_none_or(|due| due > now) {
            return;
        }
        for id in self.open_where(|request| request.ask.expires.is_some_and(|due| due <= now)) {
            self.end(id, End::Expired, out);
        }
        for request in self.requests.values_mut().filter(|request| request.is_open()) {
            if request.next_heartbeat.is_some_and(|due| due <= now) {
                request.next_heartbeat = request.ask.heartbeat.map(|every| now + every);
                let status = Status::IdleHeartbeat { last, stalled: None };
                out.push(Notice::Status {
                    to: request.ask.reply.clone(),
                    reply: None,
                    status,
                });
            }
        }
        let open = self.requests.values().filter(|request| request.is_open());
        self.deadline = open.filter_map(Request::deadline).min();
    }

    /// When [`Self::tick`] must run at the latest; it may find nothing to do.
    pub(super) const fn next_deadline(&self) -> Option<Mono> {
        self.deadline
    }

    /// Ends all requests at once with a status each. What is on its way for them finds no receiver.
    pub(super) fn close(&mut self, status: impl Fn(Remaining) -> Status, out: &mut Vec<Notice>) {
        for (_, request) in std::mem::take(&mut self.requests) {
            let to = request.ask.reply.clone();
            if request.is_open() {
                out.push(Notice::Status {
                    to: to.clone(),
                    reply: None,
                    status: status(request.left),
                });
            }
            out.push(Notice::Ended { to });
        }
        *self = Self {
            next_id: self.next_id,
            ..Self::default()
        };
    }
}

/// A pick that has not come back from the log.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) ticket: Ticket,
    pub(super) seq: StreamSeq,
    /// Whose; `None` for a push consumer.
    pub(super) request: Option<RequestId>,
    pub(super) bytes: i64,
    /// A redelivery.
    pub(super) again: bool,
    /// Messages left for the consumer after this one.
    pub(super) num_pending: u64,
}
