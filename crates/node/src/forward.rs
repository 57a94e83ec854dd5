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
/// Batches from this size on get their memory together, so many bytes at a time.
const SHARED_ROOM_MIN: usize = 16 << 10;
const SHARED_ROOM: usize = 256 << 10;
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
    /// Where the reply subject ends in its batch; it begins where the one before ends. Empty if nobody waits.
    reply_end: usize,
    /// How many publishes in a row this stands for.
    pub count: u32,
}

/// Who waits for the publishes of a batch, in order, and their reply subjects one after the other.
#[derive(Debug, Default)]
struct Routes {
    list: VecDeque<AckRoute>,
    replies: Vec<u8>,
    /// Where the reply subject of the first route begins.
    begin: usize,
}

impl Routes {
    fn add(&mut self, conn: ConnKey, account: AccountId, reply: &[u8]) {
        let last = self.list.len().checked_sub(2).and_then(|at| self.list.get(at));
        let begin = last.map_or(self.begin, |route| route.reply_end);
        match self.list.back_mut() {
            Some(last)
                if last.conn == conn
                    && last.account == account
                    && self.replies.get(begin..) == Some(reply) =>
            {
                last.count += 1;
            }
            _ => {
                self.replies.extend_from_slice(reply);
                self.list.push_back(AckRoute {
                    conn,
                    account,
                    reply_end: self.replies.len(),
                    count: 1,
                });
            }
        }
    }

    /// The first route, and its reply subject.
    fn first(&mut self) -> Option<(&mut AckRoute, &[u8])> {
        let first = self.list.front_mut()?;
        let reply = self.replies.get(self.begin..first.reply_end).unwrap_or_default();
        Some((first, reply))
    }

    fn remove_first(&mut self) {
        if let Some(first) = self.list.pop_front() {
            self.begin = first.reply_end;
        }
    }

    fn clear(&mut self) {
        self.list.clear();
        self.replies.clear();
        self.begin = 0;
    }
}

/// What a connection has published into streams, as far as its later requests must know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Published {
    /// The stream that it last published into, and the number that this got.
    last: Option<(GroupId, u64)>,
    /// It has published into others before.
    others: bool,
}

impl Published {
    /// It has published into a stream, under this number.
    pub(crate) fn note(&mut self, group: GroupId, number: u64) {
        self.others |= self.last.is_some_and(|(last, _)| last != group);
        self.last = Some((group, number));
    }

    /// The number of its last publish into the stream of `sender`, if the outcome is not known; else 0. Of a connection
    /// that has published elsewhere since, the last of the whole worker stands for its own.
    #[must_use]
    pub(crate) fn unresolved_at(self, sender: &Sender) -> u64 {
        match self.last {
            Some((group, number)) if group == sender.group => {
                if sender.waits_for(number) {
                    number
                } else {
                    0
                }
            }
            Some(_) if self.others => sender.last_unresolved(),
            Some(_) | None => 0,
        }
    }
}

/// Publishes that left together.
#[derive(Debug)]
struct Batch {
    first: u64,
    count: u32,
    records: Bytes,
    routes: Routes,
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
    /// Bytes of the last batches, of which an older one counts less and less.
    room: usize,
    open_routes: Routes,
    /// Those of a batch that is done with, for the next.
    spare_routes: Option<Routes>,
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
            open_routes: Routes::default(),
            spare_routes: None,
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
            self.make_room();
        }
        encode_into(&mut self.open, subject, header, payload).map_err(|_| Full)?;
        self.open_count += 1;
        self.open_routes.add(conn, account, reply);
        Ok(())
    }

    /// Makes room for as much as the last times: growing would copy all of it again and again. Batches of a busy turn
    /// share their memory with those of the next ones.
    fn make_room(&mut self) {
        if self.open.capacity() < self.room {
            let shared = if self.room < SHARED_ROOM_MIN {
                0
            } else {
                SHARED_ROOM
            };
            self.open = BytesMut::with_capacity(self.room.max(shared));
        }
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

    /// Whether nothing was published in this turn yet.
    #[must_use]
    pub(crate) const fn is_fresh(&self) -> bool {
        self.open_count == 0
    }

    /// Whether the outcome of a number is not known yet.
    fn waits_for(&self, number: u64) -> bool {
        let first = self.sent.front().map_or(self.next, |batch| batch.first);
        self.unresolved() > 0 && number >= first
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
        self.room = records.len().max(self.room - self.room / 8);
        self.sent_bytes += records.len();
        let spare = self.spare_routes.take().unwrap_or_default();
        let routes = std::mem::replace(&mut self.open_routes, spare);
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
    /// was resolved before is skipped. `each` gets a route, its reply subject, the offset in the run and how many it
    /// stands for.
    pub(crate) fn resolve(
        &mut self,
        first: u64,
        count: usize,
        mut each: impl FnMut(&AckRoute, &[u8], usize, usize),
    ) {
        let end = first + count as u64;
        let mut at = first;
        // Of the batch in front.
        let mut resolved = 0;
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
                break;
            }
            let Some((route, reply)) = batch.routes.first() else {
                break;
            };
            let n = u64::from(route.count).min(end - at);
            each(
                route,
                reply,
                usize::try_from(at - first).unwrap_or(0),
                usize::try_from(n).unwrap_or(0),
            );
            let n32 = u32::try_from(n).unwrap_or(route.count);
            route.count -= n32;
            let used_up = route.count == 0;
            if used_up {
                batch.routes.remove_first();
            }
            batch.first += n;
            batch.count -= n32;
            at += n;
            resolved += n32;
            if batch.count == 0 {
                resolved = 0;
                self.sent_bytes -= batch.records.len();
                if let Some(mut done) = self.sent.pop_front() {
                    done.routes.clear();
                    self.spare_routes = Some(done.routes);
                }
            }
        }
        if resolved > 0
            && let Some(batch) = self.sent.front_mut()
        {
            skip_records(batch, resolved, &mut self.sent_bytes);
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

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_base::{BootId, WorkerId};

    /// Some time.
    const T: u64 = 10_000_000_000;
    const CONN: ConnKey = ConnKey {
        index: 1,
        generation: 1,
    };

    fn sender() -> Sender {
        let key = WindowKey {
            boot: BootId(1),
            worker: WorkerId(0),
        };
        let mut sender = Sender::new(GroupId(2), key);
        sender.leader = Some(NodeId(1));
        sender
    }

    fn push(sender: &mut Sender, payload: &str, reply: &str) {
        let message = (b"s".as_slice(), b"".as_slice(), payload.as_bytes());
        sender
            .push(CONN, AccountId(0), message, reply.as_bytes())
            .unwrap();
    }

    /// First number and payloads of what leaves.
    fn taken(sender: &mut Sender, at: u64) -> Vec<(u64, Vec<String>)> {
        let mut out = Vec::new();
        sender.take(Mono(at), &mut out);
        let payloads = |forward: &Forward| {
            let records = tidelock_record::Records::new(&forward.records);
            let payload = |record: tidelock_record::RecordRef<'_>| {
                String::from_utf8_lossy(record.payload()).into_owned()
            };
            records.map(|record| payload(record.unwrap())).collect()
        };
        out.iter()
            .map(|forward| (forward.first, payloads(forward)))
            .collect()
    }

    fn resolved(sender: &mut Sender, first: u64, count: usize) -> Vec<(String, usize, usize)> {
        let mut all = Vec::new();
        sender.resolve(first, count, |_, reply, at, n| {
            all.push((String::from_utf8_lossy(reply).into_owned(), at, n));
        });
        all
    }

    #[test]
    fn outcomes_go_to_the_replies_of_their_publishes() {
        let mut sender = sender();
        for (payload, reply) in [
            ("a", "in.1"),
            ("b", "in.1"),
            ("c", ""),
            ("d", "in.22"),
            ("e", "in.3"),
        ] {
            push(&mut sender, payload, reply);
        }
        assert_eq!(taken(&mut sender, 0).len(), 1);
        assert_eq!(
            resolved(&mut sender, 1, 3),
            [("in.1".to_owned(), 0, 2), (String::new(), 2, 1)]
        );
        // What is left goes out again from the fourth on.
        sender.restart(Some(NodeId(2)));
        assert_eq!(taken(&mut sender, 1), [(4, vec!["d".to_owned(), "e".to_owned()])]);
        assert_eq!(
            resolved(&mut sender, 3, 3),
            [("in.22".to_owned(), 1, 1), ("in.3".to_owned(), 2, 1)]
        );
        assert_eq!(sender.unresolved(), 0);
        // Memory of an earlier batch serves a later one.
        push(&mut sender, "f", "in.4");
        taken(&mut sender, 2);
        assert_eq!(resolved(&mut sender, 6, 1), [("in.4".to_owned(), 0, 1)]);
    }

    #[test]
    fn what_a_node_did_not_take_goes_elsewhere_soon_and_in_order() {
        let mut sender = sender();
        push(&mut sender, "a", "in");
        assert_eq!(taken(&mut sender, T).len(), 1);
        sender.redirect(Some(NodeId(2)));
        sender.redirect(Some(NodeId(3)));
        assert_eq!(sender.leader, Some(NodeId(3)));
        push(&mut sender, "b", "in");
        assert_eq!(taken(&mut sender, T + 1), [], "the second waits for the first");
        let due = sender.tick(Mono(T + 1)).unwrap();
        assert_eq!(due, Mono(T) + REDIRECT_AFTER);
        sender.tick(due);
        let again = taken(&mut sender, due.0);
        assert_eq!(again, [(1, vec!["a".to_owned()]), (2, vec!["b".to_owned()])]);
        assert!(sender.is_unheard(), "the node that has it now has said nothing");
    }

    #[test]
    fn a_connection_waits_for_its_own_publishes() {
        let (mut one, mut other) = (Published::default(), Published::default());
        let mut sender = sender();
        assert_eq!(one.unresolved_at(&sender), 0);
        push(&mut sender, "a", "in");
        one.note(GroupId(2), sender.last_unresolved());
        push(&mut sender, "b", "in");
        other.note(GroupId(2), sender.last_unresolved());
        assert_eq!((one.unresolved_at(&sender), other.unresolved_at(&sender)), (1, 2));
        taken(&mut sender, 1);
        resolved(&mut sender, 1, 1);
        assert_eq!((one.unresolved_at(&sender), other.unresolved_at(&sender)), (0, 2));
        // Which of the two it was is not known any more.
        other.note(GroupId(3), 9);
        assert_eq!(other.unresolved_at(&sender), 2);
        // One that has published nothing here.
        let mut third = Published::default();
        third.note(GroupId(3), 9);
        assert_eq!(third.unresolved_at(&sender), 0);
        resolved(&mut sender, 2, 1);
        assert_eq!(other.unresolved_at(&sender), 0);
    }

    #[test]
    fn silence_is_noticed() {
        let mut sender = sender();
        push(&mut sender, "a", "in");
        taken(&mut sender, 0);
        assert_eq!(sender.tick(Mono(5)), Some(Mono(0) + RESEND_AFTER));
        assert!(!sender.has_work());
        sender.tick(Mono(0) + RESEND_AFTER);
        assert!(sender.has_work() && sender.is_unheard());
        assert_eq!(sender.last_unresolved(), 1);
    }
}
