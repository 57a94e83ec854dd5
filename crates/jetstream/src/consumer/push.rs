//! A push consumer at its leader: whether somebody listens, heartbeats, flow control.
//!
//! **Flow control.** The window is what may be on its way to the client without word from it. When more than half of it
//! is, the client is asked to answer once it has come so far; each answer doubles the window up to its limit. Beyond
//! the window delivery stops. Only the newest request counts.

use super::leader::Notice;
use super::state::Position;
use super::status::Status;
use crate::config;
use bytes::Bytes;
use std::time::Duration;
use tidelock_base::Mono;

/// Largest window, in bytes.
const WINDOW_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Window of a new subscriber, in bytes.
const WINDOW_BYTES_START: u64 = WINDOW_BYTES_MAX / 16;
/// Distinct last tokens of flow control requests: four digits to base 36.
const FLOW_IDS: u32 = 36 * 36 * 36 * 36;

#[derive(Clone, Debug)]
pub(super) struct PushSide {
    subject: Bytes,
    active: bool,
    heartbeat: Option<Duration>,
    next_heartbeat: Option<Mono>,
    flow: Option<Flow>,
}

#[derive(Clone, Debug)]
struct Flow {
    /// Subject of requests up to the last token, with its dot.
    prefix: Bytes,
    window: u64,
    /// Bytes sent and not answered for.
    outstanding: u64,
    /// The request that waits for an answer, and the bytes that the answer covers.
    asked: Option<(Bytes, u64)>,
    next_id: u32,
}

impl PushSide {
    pub(super) fn new(config: &config::Push, flow_prefix: &Bytes) -> Self {
        Self {
            subject: Bytes::copy_from_slice(&config.subject),
            active: false,
            heartbeat: config.idle_heartbeat,
            next_heartbeat: None,
            flow: config.flow_control.then(|| Flow {
                prefix: flow_prefix.clone(),
                window: WINDOW_BYTES_START,
                outstanding: 0,
                asked: None,
                next_id: 0,
            }),
        }
    }

    pub(super) const fn is_active(&self) -> bool {
        self.active
    }

    /// Somebody listens, or nobody does any more. A new subscriber starts with a new window.
    pub(super) fn set_active(&mut self, now: Mono, active: bool) {
        if active && !self.active {
            self.rest(now);
            if let Some(flow) = &mut self.flow {
                (flow.window, flow.outstanding, flow.asked) = (WINDOW_BYTES_START, 0, None);
            }
        }
        self.active = active;
    }

    /// Whether flow control lets another message go while so many bytes are on their way through the log.
    pub(super) fn has_room(&self, in_flight_bytes: u64) -> bool {
        self.flow
            .as_ref()
            .is_none_or(|flow| flow.outstanding.saturating_add(in_flight_bytes) <= flow.window)
    }

    /// A message of this size leaves: where to. A flow control request may have to follow it.
    pub(super) fn sent(&mut self, now: Mono, bytes: i64, out: &mut Vec<Notice>) -> Bytes {
        self.rest(now);
        if let Some(flow) = &mut self.flow {
            flow.outstanding = flow.outstanding.saturating_add(u64::try_from(bytes).unwrap_or(0));
            if flow.asked.is_none() && flow.outstanding > flow.window / 2 {
                let reply = flow.next_reply();
                flow.asked = Some((reply.clone(), flow.outstanding));
                let status = Status::FlowControlRequest;
                out.push(Notice::Status {
                    to: self.subject.clone(),
                    reply: Some(reply),
                    status,
                });
            }
        }
        self.subject.clone()
    }

    /// An answer to a flow control request; false if it is not the newest that is asked about.
    pub(super) fn answered(&mut self, subject: &[u8]) -> bool {
        let Some(flow) = &mut self.flow else {
            return false;
        };
        let Some((_, covered)) = flow.asked.take_if(|(reply, _)| reply == subject) else {
            return false;
        };
        flow.outstanding = flow.outstanding.saturating_sub(covered);
        flow.window = (flow.window * 2).min(WINDOW_BYTES_MAX);
        true
    }

    /// Sends the heartbeat if it is due.
    pub(super) fn tick(&mut self, now: Mono, last: Position, out: &mut Vec<Notice>) {
        if self.next_deadline().is_none_or(|due| due > now) {
            return;
        }
        self.rest(now);
        let asked = self.flow.as_ref().and_then(|flow| flow.asked.as_ref());
        let stalled = asked.map(|(reply, _)| reply.to_vec());
        let status = Status::IdleHeartbeat { last, stalled };
        out.push(Notice::Status {
            to: self.subject.clone(),
            reply: None,
            status,
        });
    }

    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.next_heartbeat.filter(|_| self.active)
    }

    /// The next heartbeat is a full interval away.
    fn rest(&mut self, now: Mono) {
        self.next_heartbeat = self.heartbeat.map(|every| now + every);
    }
}

impl Flow {
    /// The subject of the next request.
    fn next_reply(&mut self) -> Bytes {
        let mut left = self.next_id;
        self.next_id = (self.next_id + 1) % FLOW_IDS;
        let mut digits = [b'0'; 4];
        for digit in digits.iter_mut().rev() {
            let value = left % 36;
            left /= 36;
            let letter = char::from_digit(value, 36).unwrap_or('0');
            *digit = u8::try_from(letter.to_ascii_uppercase()).unwrap_or(b'0');
        }
        [&self.prefix[..], &digits].concat().into()
    }
}
