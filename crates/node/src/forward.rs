//! The sending side of publishes into streams: numbering, resending, and what their clients are told.
//!
//! One [`Sender`] a stream and worker. Publishes of a turn are encoded as records into one buffer, numbered densely,
//! and leave at the end of the turn as one [`Forward`] to the group's leader; they are kept until their outcome is
//! known. After a change of leader, or when a link was lost, everything unresolved is sent again, in order, before
//! anything new (DESIGN section 4), so that a publish is judged once and in order however often it travels.
//!
//! ```text
//!   numbers:  .. low_water | sent, unresolved ............ | open (this turn)
//! ```
//!
//! Bounds: at most [`UNRESOLVED_MAX`] publishes and [`UNRESOLVED_BYTES_MAX`] bytes are kept a stream; above, the
//! connection that publishes is paused ([`Full`]), and a publish that still comes is refused.

use crate::cell::Forward;
use crate::interest::ConnKey;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::time::Duration;
use tidelock_base::{AccountId, GroupId, Mono, NodeId};
use tidelock_jetstream::command::WindowKey;
use tidelock_record::encode_into;

/// Publishes kept unresolved a stream and worker; the state machine keeps results for twice as many.
pub(crate) const UNRESOLVED_MAX: u64 = 32_768;
/// Bytes of records kept unresolved a stream and worker.
pub(crate) const UNRESOLVED_BYTES_MAX: usize = 64 << 20;
/// An unresolved batch is sent again after this long without an answer: a frame was lost, or the leader changed
/// without our hearing of it. Numbers make that harmless.
pub(crate) const RESEND_AFTER: Duration = Duration::from_millis(1_000);

/// What a node that does not lead has sent back goes out again after this long.
pub(crate) const REDIRECT_AFTER: Duration = Duration::from_millis(50);

/// The stream takes no more for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Who waits for the outcome of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AckRoute {
    /// The connection; its acks go through ordinary routing, this only serves pausing and statistics.
    pub conn: ConnKey,
    /// Account of the reply subject.
    pub account: AccountId,
    /// Reply subject; empty if nobody waits.
    pub reply: Bytes,
    /// How many publishes in a row this stands for.
    pub count: u32,
}

/// Publishes that left together.
#[derive(Debug)]
struct Batch {
    first: u64,
    count: u32,
    records: Bytes,
    routes: VecDeque<AckRoute>,
    sent_at: Mono,
}

/// The sending side of one stream on one worker.
#[derive(Debug)]
pub(crate) struct Sender {
    group: GroupId,
    key: WindowKey,
    /// Where the leader is thought to be; `None` while unknown.
    pub leader: Option<NodeId>,
    next: u64,
    open: BytesMut,
    open_count: u32,
    /// Bytes of the last batch.
    room: usize,
    open_routes: VecDeque<AckRoute>,
    sent: VecDeque<Batch>,
    sent_bytes: usize,
    /// Batches from this number on have not been sent to the current leader.
    resend_from: Option<u64>,
    /// The last node did not take it and named another; nothing has been sent since.
    redirected: bool,
    /// Connections to be resumed when there is room again.
    pub paused: Vec<ConnKey>,
}

impl Sender {
    /// A sender that has sent nothing.
    #[must_use]
    pub(crate) fn new(group: GroupId, key: WindowKey) -> Self {
        Self {
            group,
            key,
            leader: None,
            next: 1,
            open: BytesMut::new(),
            open_count: 0,
            room: 0,
            open_routes: VecDeque::new(),
            sent: VecDeque::new(),
            sent_bytes: 0,
            resend_from: None,
            redirected: false,
            paused: Vec::new(),
        }
    }

    /// Numbers a publish and adds it to this turn's batch.
    ///
    /// # Errors
    /// [`Full`] if too much is unresolved; nothing was added.
    pub(crate) fn push(
        &mut self,
        conn: ConnKey,
        account: AccountId,
        message: (&[u8], &[u8], &[u8]),
        reply: &[u8],
    ) -> Result<(), Full> {
        if self.is_full() {
            return Err(Full);
        }
        let (subject, header, payload) = message;
        if self.open.is_empty() {
            // As much as the last time: growing would copy all of it again and again.
            self.open.reserve(self.room);
        }
        encode_into(&mut self.open, subject, header, payload).map_err(|_| Full)?;
        self.open_count += 1;
        match self.open_routes.back_mut() {
            Some(last) if last.conn == conn && last.account == account && last.reply == reply => {
                last.count += 1
            }
            _ => {
                let reply = Bytes::copy_from_slice(reply);
                self.open_routes.push_back(AckRoute {
                    conn,
                    account,
                    reply,
                    count: 1,
                });
            }
        }
        Ok(())
    }

    /// Whether nothing more may be added.
    #[must_use]
    pub(crate) fn is_full(&self) -> bool {
        self.unresolved() >= UNRESOLVED_MAX || self.sent_bytes + self.open.len() >= UNRESOLVED_BYTES_MAX
    }

    /// Whether those that publish should pause.
    #[must_use]
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.unresolved() >= UNRESOLVED_MAX / 4 * 3
            || self.sent_bytes + self.open.len() >= UNRESOLVED_BYTES_MAX / 4 * 3
    }

    /// Whether so little is unresolved that paused connections may go on.
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.unresolved() < UNRESOLVED_MAX / 2 && self.sent_bytes + self.open.len() < UNRESOLVED_BYTES_MAX / 2
    }

    /// Publishes whose outcome is not known, this turn's included.
    #[must_use]
    pub(crate) fn unresolved(&self) -> u64 {
        let first = self.sent.front().map_or(self.next, |batch| batch.first);
        self.next - first + u64::from(self.open_count)
    }

    /// Number of the last publish, this turn's included, if its outcome is not known; else 0.
    #[must_use]
    pub(crate) fn last_unresolved(&self) -> u64 {
        if self.unresolved() == 0 {
            0
        } else {
            self.next - 1 + u64::from(self.open_count)
        }
    }

    /// Whether something is waiting to be sent to the leader.
    #[must_use]
    pub(crate) fn has_work(&self) -> bool {
        self.open_count > 0 || self.resend_from.is_some()
    }

    /// The leader changed, or a link was lost: everything unresolved goes out again.
    pub(crate) fn restart(&mut self, leader: Option<NodeId>) {
        self.leader = leader;
        self.resend_from = self.sent.front().map(|batch| batch.first);
    }

    /// A node did not take what it got: everything unresolved goes to `leader` (where it went before, if `None`) when
    /// it is due, which is soon. Each batch that was not taken says so; the first counts.
    pub(crate) fn redirect(&mut self, leader: Option<NodeId>) {
        if leader.is_some() {
            self.leader = leader;
        }
        if !std::mem::replace(&mut self.redirected, true) {
            for batch in &mut self.sent {
                batch.sent_at = batch.sent_at - RESEND_AFTER + REDIRECT_AFTER;
            }
        }
    }

    /// Whether what was sent has met silence only.
    pub(crate) const fn is_unheard(&self) -> bool {
        !self.redirected
    }

    /// Marks old unanswered batches for resending; answers when to look again.
    pub(crate) fn tick(&mut self, now: Mono) -> Option<Mono> {
        let oldest = self.sent.front()?;
        let due = oldest.sent_at + RESEND_AFTER;
        if due <= now {
            self.resend_from = Some(oldest.first);
            return Some(now + RESEND_AFTER);
        }
        Some(due)
    }

    /// Takes what goes to the leader now: what has to be sent again, then this turn's batch.
    pub(crate) fn take(&mut self, now: Mono, out: &mut Vec<Forward>) {
        if self.leader.is_none() {
            self.close_batch(now);
            self.resend_from = self.sent.front().map(|batch| batch.first);
            return;
        }
        let low_water = self.sent.front().map_or(self.next, |batch| batch.first) - 1;
        let from = self.resend_from.take();
        let fresh = self.close_batch(now);
        if self.redirected && from.is_none() {
            // What comes later goes with what goes again: a receiver takes numbers in order.
            return;
        }
        let from = from.or(fresh);
        let Some(from) = from else { return };
        self.redirected = false;
        for batch in self.sent.iter_mut().filter(|batch| batch.first >= from) {
            batch.sent_at = now;
            out.push(Forward {
                group: self.group,
                sender: self.key,
                first: batch.first,
                count: batch.count,
                low_water,
                records: batch.records.clone(),
            });
        }
    }

    /// Makes this turn's publishes a batch; answers its first number.
    fn close_batch(&mut self, now: Mono) -> Option<u64> {
        if self.open_count == 0 {
            return None;
        }
        let first = self.next;
        let records = self.open.split().freeze();
        self.room = records.len();
        self.sent_bytes += records.len();
        let routes = std::mem::take(&mut self.open_routes);
        self.sent.push_back(Batch {
            first,
            count: self.open_count,
            records,
            routes,
            sent_at: now,
        });
        self.next += u64::from(self.open_count);
        self.open_count = 0;
        Some(first)
    }

    /// Takes the routes of resolved publishes `first .. first + count`. Outcomes come in the order of numbers; what
    /// was resolved before is skipped. `each` gets a route, the offset in the run and how many it stands for.
    pub(crate) fn resolve(
        &mut self,
        first: u64,
        count: usize,
        mut each: impl FnMut(&AckRoute, usize, usize),
    ) {
        let end = first + count as u64;
        let mut at = first;
        while at < end {
            let Some(batch) = self.sent.front_mut() else {
                return;
            };
            if at < batch.first {
                at = batch.first;
                continue;
            }
            if at > batch.first {
                // A gap: an outcome before this one is missing. The sender keeps everything and sends it again.
                return;
            }
            let Some(route) = batch.routes.front_mut() else {
                return;
            };
            let n = u64::from(route.count).min(end - at);
            each(
                route,
                usize::try_from(at - first).unwrap_or(0),
                usize::try_from(n).unwrap_or(0),
            );
            let n32 = u32::try_from(n).unwrap_or(route.count);
            route.count -= n32;
            let used_up = route.count == 0;
            if used_up {
                batch.routes.pop_front();
            }
            batch.first += n;
            batch.count -= n32;
            at += n;
            if batch.count == 0 {
                self.sent_bytes -= batch.records.len();
                self.sent.pop_front();
            } else if n32 > 0 {
                skip_records(batch, n32, &mut self.sent_bytes);
            }
        }
    }
}

/// Cuts the records of resolved publishes off the front of a batch.
fn skip_records(batch: &mut Batch, count: u32, bytes: &mut usize) {
    let mut cut = 0;
    for record in tidelock_record::Records::new(&batch.records).take(count as usize) {
        match record {
            Ok(record) => cut += record.bytes().len(),
            Err(_) => return,
        }
    }
    batch.records = batch.records.slice(cut..);
    *bytes -= cut;
}
