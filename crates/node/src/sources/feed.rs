//! One mirror or source at its stream's leader: what has come from the origin, and how far the log has taken it.
//!
//! ```text
//!            it is time            origin found           consumer made
//!  Waiting ─────────────▶ Asking ───────────────▶ Creating ────────────▶ Running
//!     ▲                     │ refused, too slow      │                      │ a delivery is missing, silence
//!     └─────────────────────┴────────────────────────┴──────────────────────┘
//! ```
//! Each attempt has an inbox of its own, so that what an earlier one has asked for is never taken for the present.

use crate::consumers::subjects::DeliverySubject;
use bytes::{Bytes, BytesMut};
use std::time::Duration;
use tidelock_api::ErrorBody;
use tidelock_base::{Mono, StreamSeq};
use tidelock_jetstream::command::SourceBatchBuilder;
use tidelock_jetstream::config::Origin;
use tidelock_jetstream::stream::{SourceOutcome, mirror_header, source_header, source_key};

/// An answer of the origin is awaited so long.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// An origin that is silent for so long is asked anew; it sends a heartbeat every second.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Pause before an attempt that follows from a missing delivery.
const SOON: Duration = Duration::from_millis(250);
/// Pause for each attempt that has failed in a row.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, in attempts.
const PAUSES_MAX: u32 = 10;
/// A batch leaves for the log when it has grown to this many bytes.
const BATCH_BYTES_MAX: usize = 256 << 10;

/// How far an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The next attempt begins later.
    Waiting,
    /// The origin was asked what it is.
    Asking,
    /// A consumer of the origin was asked for.
    Creating,
    /// Messages come.
    Running,
}

/// Something that came to the inbox of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) subject: &'a [u8],
    pub(super) reply: &'a [u8],
    pub(super) header: &'a [u8],
    pub(super) payload: &'a [u8],
}

/// A delivery is missing: the attempt is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap;

/// A flow control request that is to be answered.
#[derive(Debug)]
struct Asked {
    reply: Bytes,
    /// When everything up to here is in the log.
    after: StreamSeq,
    deliver_seq: u64,
}

/// An answer to the origin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Subject of the request; `None` for an acknowledgement that was not asked for.
    pub(super) reply: Option<Bytes>,
    /// Last delivery that came before the request.
    pub(super) deliver_seq: u64,
    /// Everything up to here is in the log.
    pub(super) seq: StreamSeq,
}

/// A mirror or source.
pub(super) struct Feed {
    pub(super) origin: Origin,
    pub(super) key: Vec<u8>,
    pub(super) is_mirror: bool,
    pub(super) stage: Stage,
    /// When the stage is over, if nothing happens.
    pub(super) until: Mono,
    /// Where deliveries of this attempt come to; empty while waiting.
    pub(super) inbox: Bytes,
    pub(super) identity: Vec<u8>,
    /// The consumer, once a name is chosen.
    pub(super) consumer: String,
    /// The origin lets go of what is acknowledged.
    pub(super) acknowledges: bool,
    /// Last delivery that came; `None` before the first of a consumer that goes on where another attempt stopped.
    last_delivery: Option<u64>,
    /// Last sequence of the origin that came.
    pub(super) taken: StreamSeq,
    /// Last sequence of the origin that the log has dealt with.
    pub(super) done: StreamSeq,
    batch: Option<SourceBatchBuilder>,
    asked: Option<Asked>,
    /// The origin is to hear what is in the log.
    owes: bool,
    fails: u32,
    /// When something last came.
    pub(super) heard: Option<Mono>,
    /// Messages of the origin that had not come yet, as it said last.
    pub(super) lag: u64,
    /// What stopped the last attempt.
    pub(super) error: Option<ErrorBody>,
}

impl Feed {
    pub(super) fn new(origin: Origin, is_mirror: bool, first_at: Mono) -> Self {
        Self {
            key: source_key(&origin),
            origin,
            is_mirror,
            stage: Stage::Waiting,
            until: first_at,
            inbox: Bytes::new(),
            identity: Vec::new(),
            consumer: String::new(),
            acknowledges: false,
            last_delivery: None,
            taken: StreamSeq(0),
            done: StreamSeq(0),
            batch: None,
            asked: None,
            owes: false,
            fails: 0,
            heard: None,
            lag: 0,
            error: None,
        }
    }

    /// Begins an attempt: the origin is asked.
    pub(super) fn begin(&mut self, now: Mono, inbox: Bytes) {
        self.stage = Stage::Asking;
        self.until = now + ANSWER_WITHIN;
        self.inbox = inbox;
        self.batch = None;
        self.asked = None;
        self.owes = false;
    }

    /// The origin is known; its consumer is asked for. `position`: what the log has dealt with of this origin.
    pub(super) fn create(&mut self, now: Mono, identity: Vec<u8>, position: StreamSeq, acknowledges: bool) {
        self.stage = Stage::Creating;
        self.until = now + ANSWER_WITHIN;
        self.identity = identity;
        (self.taken, self.done) = (position, position);
        self.acknowledges = acknowledges;
        self.last_delivery = (!acknowledges).then_some(0);
    }

    /// The consumer is there.
    pub(super) fn run(&mut self, now: Mono, pending: u64) {
        self.stage = Stage::Running;
        self.until = now + SILENCE_MAX;
        self.lag = pending;
        self.error = None;
    }

    /// The attempt has failed; the next one comes later.
    pub(super) fn fail(&mut self, now: Mono, error: Option<ErrorBody>) {
        self.fails = (self.fails + 1).min(PAUSES_MAX);
        self.wait(now + PAUSE * self.fails);
        if error.is_some() {
            self.error = error;
        }
    }

    /// The attempt is given up; the next one comes soon.
    pub(super) fn restart(&mut self, now: Mono) {
        self.wait(now + SOON);
    }

    fn wait(&mut self, until: Mono) {
        self.stage = Stage::Waiting;
        self.until = until;
        self.inbox = Bytes::new();
        self.batch = None;
        self.asked = None;
        self.owes = false;
    }

    /// Takes what came to the inbox: a message, a heartbeat or a flow control request.
    ///
    /// # Errors
    /// [`Gap`], and nothing is taken.
    pub(super) fn arrived(
        &mut self,
        now: Mono,
        arrival: &Arrival<'_>,
        record: &mut BytesMut,
    ) -> Result<(), Gap> {
        self.heard = Some(now);
        self.fails = 0;
        if self.stage == Stage::Running {
            self.until = now + SILENCE_MAX;
        }
        match DeliverySubject::parse(arrival.reply) {
            Some(delivery) => self.message(&delivery, arrival, record),
            None => self.status(arrival),
        }
    }

    fn message(
        &mut self,
        delivery: &DeliverySubject<'_>,
        arrival: &Arrival<'_>,
        record: &mut BytesMut,
    ) -> Result<(), Gap> {
        if self
            .last_delivery
            .is_some_and(|last| delivery.deliver_seq != last + 1)
        {
            return Err(Gap);
        }
        self.last_delivery = Some(delivery.deliver_seq);
        self.lag = delivery.pending;
        let seq = delivery.ack.seq;
        if seq <= self.taken {
            // The origin was not told that the log has it, or will be when it has.
            self.owes |= seq <= self.done;
            return Ok(());
        }
        let header = match self.is_mirror {
            true => mirror_header(arrival.header),
            false => source_header(arrival.header, &self.origin, seq, arrival.subject, &self.identity),
        };
        let prev = self.taken;
        let batch = self
            .batch
            .get_or_insert_with(|| SourceBatchBuilder::new(&self.key, &self.identity, prev));
        record.clear();
        match tidelock_record::encode_into(record, arrival.subject, &header, arrival.payload) {
            Ok(_) => batch.message(seq, delivery.stored, record),
            Err(error) => {
                tracing::warn!("Message {seq} of {:?} is left out: {error}", self.origin.name);
                batch.skip_to(seq);
            }
        }
        self.taken = seq;
        Ok(())
    }

    fn status(&mut self, arrival: &Arrival<'_>) -> Result<(), Gap> {
        let find = |name: &[u8]| tidelock_wire::header::find(arrival.header, name);
        let last: Option<u64> = find(b"Nats-Last-Consumer")
            .and_then(|value| std::str::from_utf8(value).ok()?.trim().parse().ok());
        if let (Some(last), Some(own)) = (last, self.last_delivery)
            && own != last
        {
            return Err(Gap);
        }
        let asks = Some(arrival.reply)
            .filter(|reply| !reply.is_empty())
            .or_else(|| find(b"Nats-Consumer-Stalled"));
        if let Some(reply) = asks {
            self.asked = Some(Asked {
                reply: Bytes::copy_from_slice(reply),
                after: self.taken,
                deliver_seq: self.last_delivery.unwrap_or(0),
            });
        }
        Ok(())
    }

    /// Whether the batch should leave for the log at once.
    pub(super) fn is_full(&self) -> bool {
        self.batch
            .as_ref()
            .is_some_and(|batch| batch.len() >= BATCH_BYTES_MAX)
    }

    /// Takes the batch out, for the log.
    pub(super) fn take_batch(&mut self) -> Option<SourceBatchBuilder> {
        self.batch.take().filter(|batch| !batch.is_empty())
    }

    /// The log has taken a batch, as far as the outcome says. `false`: it stopped before the end, and the rest must be
    /// read again.
    pub(super) fn logged(&mut self, outcome: &SourceOutcome) -> bool {
        self.done = self.done.max(outcome.position);
        self.owes = true;
        outcome.refused.is_none()
    }

    /// What the origin is to hear now.
    pub(super) fn answer(&mut self) -> Option<Answer> {
        if let Some(asked) = self.asked.take_if(|asked| asked.after <= self.done) {
            self.owes = false;
            let Asked {
                reply, deliver_seq, ..
            } = asked;
            return Some(Answer {
                reply: Some(reply),
                deliver_seq,
                seq: self.done,
            });
        }
        let owes = std::mem::take(&mut self.owes) && self.acknowledges && self.done > StreamSeq(0);
        owes.then(|| Answer {
            reply: None,
            deliver_seq: self.last_delivery.unwrap_or(0),
            seq: self.done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(acknowledges: bool, position: u64) -> Feed {
        let origin = Origin {
            name: "ORD".to_owned(),
            start_seq: None,
            start_time: None,
            filter: None,
        };
        let mut feed = Feed::new(origin, false, Mono(0));
        feed.begin(Mono(0), Bytes::from_static(b"$JS.S.x"));
        feed.create(Mono(0), b"ident".to_vec(), StreamSeq(position), acknowledges);
        feed.run(Mono(0), 0);
        feed
    }

    fn message(feed: &mut Feed, seq: u64, delivery: u64) -> Result<(), Gap> {
        let reply = format!("$JS.ACK.ORD.C.1.{seq}.{delivery}.17.0");
        let arrival = Arrival {
            subject: b"ord.1",
            reply: reply.as_bytes(),
            header: b"",
            payload: b"p",
        };
        feed.arrived(Mono(1), &arrival, &mut BytesMut::new())
    }

    fn status(feed: &mut Feed, header: &str, reply: &str) -> Result<(), Gap> {
        let header = format!("NATS/1.0 100 Idle Heartbeat\r\n{header}\r\n");
        let arrival = Arrival {
            subject: b"$JS.S.x",
            reply: reply.as_bytes(),
            header: header.as_bytes(),
            payload: b"",
        };
        feed.arrived(Mono(1), &arrival, &mut BytesMut::new())
    }

    fn logged(position: u64) -> SourceOutcome {
        SourceOutcome {
            position: StreamSeq(position),
            ..SourceOutcome::default()
        }
    }

    #[test]
    fn a_missing_delivery_is_noticed() {
        let mut feed = feed(false, 0);
        assert_eq!(message(&mut feed, 4, 1), Ok(()));
        assert_eq!(message(&mut feed, 9, 2), Ok(()));
        assert_eq!(message(&mut feed, 11, 4), Err(Gap));
        assert_eq!(
            status(&mut feed, "Nats-Last-Consumer: 2\r\nNats-Last-Stream: 9\r\n", ""),
            Ok(())
        );
        assert_eq!(
            status(&mut feed, "Nats-Last-Consumer: 3\r\nNats-Last-Stream: 10\r\n", ""),
            Err(Gap)
        );
        assert_eq!(feed.taken, StreamSeq(9));
    }

    #[test]
    fn what_the_log_has_is_not_taken_again_but_acknowledged_again() {
        let mut feed = feed(true, 5);
        assert_eq!(
            message(&mut feed, 4, 70),
            Ok(()),
            "the first delivery may have any number"
        );
        assert!(feed.take_batch().is_none());
        let expected = Answer {
            reply: None,
            deliver_seq: 70,
            seq: StreamSeq(5),
        };
        assert_eq!(feed.answer(), Some(expected));
        assert_eq!(feed.answer(), None);
    }

    #[test]
    fn a_request_is_answered_when_the_log_has_what_came_before_it() {
        let mut feed = feed(false, 0);
        message(&mut feed, 1, 1).unwrap();
        message(&mut feed, 2, 2).unwrap();
        status(&mut feed, "", "$JS.FC.ORD.C.0001").unwrap();
        message(&mut feed, 3, 3).unwrap();
        assert!(feed.take_batch().is_some());
        assert!(feed.logged(&logged(1)));
        assert_eq!(feed.answer(), None);
        assert!(feed.logged(&logged(2)));
        let reply = Some(Bytes::from_static(b"$JS.FC.ORD.C.0001"));
        assert_eq!(
            feed.answer(),
            Some(Answer {
                reply,
                deliver_seq: 2,
                seq: StreamSeq(2)
            })
        );
        assert_eq!(
            feed.answer(),
            None,
            "without a policy that acknowledges nothing is sent unasked"
        );
    }

    #[test]
    fn pauses_grow_with_failures_and_end_with_success() {
        let mut feed = feed(false, 0);
        feed.fail(Mono(0), None);
        assert_eq!((feed.stage, feed.until), (Stage::Waiting, Mono(0) + PAUSE));
        feed.fail(Mono(0), None);
        assert_eq!(feed.until, Mono(0) + PAUSE * 2);
        for _ in 0..100 {
            feed.fail(Mono(0), None);
        }
        assert_eq!(feed.until, Mono(0) + PAUSE * PAUSES_MAX);
        feed.begin(Mono(0), Bytes::from_static(b"$JS.S.y"));
        feed.create(Mono(0), Vec::new(), StreamSeq(0), false);
        message(&mut feed, 1, 1).unwrap();
        feed.fail(Mono(0), None);
        assert_eq!(feed.until, Mono(0) + PAUSE);
    }
}
