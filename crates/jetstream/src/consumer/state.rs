//! The replicated part of a consumer.

mod codec;

use super::pending::{Entry, NEVER, Pending};
use crate::config::ConsumerConfig;
use roaring::RoaringTreemap;
use std::collections::BTreeSet;
use std::time::Duration;
use tidelock_api::AckPolicy;
use tidelock_base::{ConsumerId, DeliverSeq, StreamSeq, Wall};

/// What a consumer has delivered and what of it is acknowledged. Pure data: it changes only by commands of the
/// stream's log, and `stamp` is always the stamp of the entry.
///
/// **Epochs.** Deliveries and acknowledgements name the epoch in which they were decided. Edits and resets raise it:
/// what was picked before under other settings is void. An acknowledgement outlives edits, since the delivery that it
/// answers took place all the same, and is void only after a reset.
#[derive(Clone, Debug)]
pub struct ConsumerState {
    id: ConsumerId,
    epoch: u32,
    /// Epoch of the last reset.
    reset_epoch: u32,
    config: ConsumerConfig,
    created: Wall,
    delivered: Position,
    last_delivered: Wall,
    last_ack: Wall,
    pending: Pending,
    /// Delivered as often as allowed and never acknowledged.
    exhausted: RoaringTreemap,
    /// Where the ack floor stays, since the message above it was given up and not acknowledged; `None` if nothing
    /// holds it.
    held_floor: Option<Position>,
    paused_until: Wall,
    activity: u64,
}

/// A place in the stream and in the deliveries of the consumer; zeros before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Sequence in the stream.
    pub stream_seq: StreamSeq,
    /// Sequence of the delivery.
    pub deliver_seq: DeliverSeq,
}

/// One delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Which message.
    pub stream_seq: StreamSeq,
    /// Sequence of this delivery; a redelivery has its own.
    pub deliver_seq: DeliverSeq,
    /// How often the message has been delivered, this one included.
    pub count: u32,
}

/// What a client says about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckKind {
    /// It is done.
    Ack,
    /// Deliver it again, after the delay if there is one.
    Nak {
        /// Delay in nanoseconds from the entry's stamp.
        delay_ns: Option<i64>,
    },
    /// Never deliver it again.
    Term,
    /// It is in work: the wait for its acknowledgement starts anew.
    Progress,
}

/// What became of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// The message was pending and is done, by [`AckKind::Ack`] or [`AckKind::Term`].
    Done {
        /// Sequence of its first delivery.
        deliver_seq: DeliverSeq,
        /// How often it was delivered.
        count: u32,
    },
    /// The message had been delivered as often as allowed; now it is done all the same.
    DoneLate,
    /// It will be delivered again; if `exhausted`, it never will, that having been its last delivery.
    Naked {
        /// Sequence of its first delivery.
        deliver_seq: DeliverSeq,
        /// How often it was delivered.
        count: u32,
        /// Whether it has been delivered as often as allowed.
        exhausted: bool,
    },
    /// Its wait starts anew.
    Extended,
    /// Nothing changed: the message is not pending, or the consumer takes no such acknowledgement.
    Ignored,
}

/// A message whose wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Which message.
    pub seq: StreamSeq,
    /// How often it was delivered.
    pub count: u32,
    /// It has been delivered as often as allowed and is no longer pending; else it will be delivered again.
    pub exhausted: bool,
}

impl ConsumerState {
    /// A consumer that has delivered nothing. `start` is the first sequence to deliver.
    #[must_use]
    pub fn new(id: ConsumerId, epoch: u32, config: ConsumerConfig, created: Wall, start: StreamSeq) -> Self {
        Self {
            id,
            epoch,
            reset_epoch: epoch,
            paused_until: config
                .pause_until
                .filter(|until| *until > created)
                .unwrap_or(Wall::ZERO),
            config,
            created,
            delivered: before(start),
            last_delivered: Wall::ZERO,
            last_ack: Wall::ZERO,
            pending: Pending::default(),
            exhausted: RoaringTreemap::new(),
            held_floor: None,
            activity: 0,
        }
    }

    /// Delivers messages, new ones and those queued for redelivery, and calls `out` for each. Ignored is a message
    /// that is neither: it was acknowledged, is out with a client, or lies at or below what has been delivered. The
    /// caller leaves out what the stream no longer has.
    pub fn deliver(
        &mut self,
        seqs: impl Iterator<Item = StreamSeq>,
        stamp: Wall,
        out: &mut impl FnMut(Delivered),
    ) {
        for seq in seqs {
            let count = if seq > self.delivered.stream_seq {
                self.deliver_new(seq, stamp);
                1
            } else if self.pending.get(seq).is_some_and(Entry::is_queued) {
                let count = self.pending.count_delivery(seq);
                self.pending.wait_until(seq, self.deadline(count, stamp));
                count
            } else {
                continue;
            };
            self.delivered.deliver_seq = self.delivered.deliver_seq.next();
            self.last_delivered = stamp;
            self.activity += 1;
            out(Delivered {
                stream_seq: seq,
                deliver_seq: self.delivered.deliver_seq,
                count,
            });
        }
    }

    fn deliver_new(&mut self, seq: StreamSeq, stamp: Wall) {
        self.delivered.stream_seq = seq;
        if self.config.ack_policy != AckPolicy::None {
            self.pending
                .push(seq, self.delivered.deliver_seq.next(), self.deadline(1, stamp));
        }
    }

    /// When the wait for the acknowledgement of the `count`-th delivery ends.
    fn deadline(&self, count: u32, stamp: Wall) -> Wall {
        match wait_of(&self.config, count) {
            Some(wait) => stamp + wait,
            None => NEVER,
        }
    }

    /// Moves on to what a consumer without acknowledgements has delivered. Returns where it was before: the messages
    /// in between are delivered. A position that is not beyond changes nothing.
    pub fn progress(&mut self, to: Position, stamp: Wall) -> Position {
        let before = self.delivered;
        if self.config.ack_policy == AckPolicy::None && to > before {
            self.delivered = Position {
                stream_seq: to.stream_seq.max(before.stream_seq),
                deliver_seq: to.deliver_seq.max(before.deliver_seq),
            };
            self.last_delivered = stamp;
            self.activity += 1;
        }
        before
    }

    /// Moves the delivered position over messages that are not for this consumer.
    pub fn skip_to(&mut self, seq: StreamSeq) {
        self.delivered.stream_seq = self.delivered.stream_seq.max(seq);
    }

    /// Takes an acknowledgement of one message; with policies all and flow control, of it and all before it. Calls
    /// `freed` for each message that the consumer has no more use for.
    pub fn ack(
        &mut self,
        seq: StreamSeq,
        kind: AckKind,
        stamp: Wall,
        freed: &mut impl FnMut(StreamSeq),
    ) -> AckOutcome {
        if self.config.ack_policy == AckPolicy::None || seq > self.delivered.stream_seq {
            return AckOutcome::Ignored;
        }
        self.activity += 1;
        match (kind, self.pending.get(seq).copied()) {
            (AckKind::Ack | AckKind::Term, entry) => self.done(seq, entry, stamp, freed),
            (AckKind::Nak { .. } | AckKind::Progress, None) => AckOutcome::Ignored,
            (AckKind::Nak { delay_ns }, Some(entry)) => self.nak(&entry, delay_ns, stamp),
            (AckKind::Progress, Some(entry)) => {
                // What is queued already is on its way to be delivered again.
                if entry.is_queued() {
                    return AckOutcome::Ignored;
                }
                self.pending.wait_until(seq, self.deadline(entry.count, stamp));
                AckOutcome::Extended
            }
        }
    }

    fn done(
        &mut self,
        seq: StreamSeq,
        entry: Option<Entry>,
        stamp: Wall,
        freed: &mut impl FnMut(StreamSeq),
    ) -> AckOutcome {
        let late = self.exhausted.contains(seq.0);
        let mut changed = entry.is_some() || late;
        let pending = self.pending.len();
        match self.config.ack_policy {
            AckPolicy::All | AckPolicy::FlowControl => {
                self.pending.take_through(seq, &mut |entry| {
                    changed = true;
                    freed(entry.seq);
                });
                changed |= free_exhausted(&mut self.exhausted, seq, freed);
                if self.pending.len() < pending {
                    self.held_floor = None;
                }
            }
            AckPolicy::Explicit | AckPolicy::None => {
                if self.pending.take(seq).is_some() || self.exhausted.remove(seq.0) {
                    freed(seq);
                }
                self.free_floor(pending);
            }
        }
        if changed {
            self.last_ack = stamp;
        }
        match entry {
            Some(entry) => AckOutcome::Done {
                deliver_seq: entry.deliver_seq,
                count: entry.count,
            },
            None if changed => AckOutcome::DoneLate,
            None => AckOutcome::Ignored,
        }
    }

    fn nak(&mut self, entry: &Entry, delay_ns: Option<i64>, stamp: Wall) -> AckOutcome {
        let exhausted = self.is_last(entry.count);
        match delay_ns.filter(|delay| *delay > 0) {
            // The last delivery, too, gets the time it asks for.
            Some(delay) => {
                // A delay is no reason to wait for ever.
                let deadline = stamp.plus_nanos(delay).min(Wall(NEVER.0 - 1));
                self.pending.wait_until(entry.seq, deadline);
            }
            None if exhausted => self.exhaust(entry.seq),
            None => {
                self.pending.enqueue(entry.seq);
            }
        }
        let exhausted = exhausted && self.pending.get(entry.seq).is_none();
        AckOutcome::Naked {
            deliver_seq: entry.deliver_seq,
            count: entry.count,
            exhausted,
        }
    }

    /// Whether a message delivered so often is not to be delivered again.
    fn is_last(&self, count: u32) -> bool {
        self.config.max_deliver.is_some_and(|most| count >= most)
    }

    fn exhaust(&mut self, seq: StreamSeq) {
        if self.pending.first().is_some_and(|first| first.seq == seq) {
            self.held_floor = Some(self.ack_floor());
        }
        self.pending.take(seq);
        self.exhausted.insert(seq.0);
    }

    /// Lets the ack floor go if the last pending message has been done with, there having been `before` of them.
    fn free_floor(&mut self, before: usize) {
        if before > 0 && self.pending.len() == 0 {
            self.held_floor = None;
        }
    }

    /// Ends every wait whose deadline is at or before `stamp`, in the order of the stream: the message is queued for
    /// redelivery, or was delivered as often as allowed. Ends a pause, too; returns whether it did.
    pub fn expire(&mut self, stamp: Wall, out: &mut impl FnMut(Expired)) -> bool {
        for seq in self.pending.due(stamp) {
            let Some(count) = self.pending.get(seq).map(|entry| entry.count) else {
                continue;
            };
            let exhausted = self.is_last(count);
            if exhausted {
                self.exhaust(seq);
            } else {
                self.pending.enqueue(seq);
            }
            out(Expired {
                seq,
                count,
                exhausted,
            });
        }
        let resumed = self.paused_until != Wall::ZERO && self.paused_until <= stamp;
        if resumed {
            self.paused_until = Wall::ZERO;
        }
        resumed
    }

    /// When [`Self::expire`] would next do something.
    #[must_use]
    pub fn next_due(&self) -> Option<Wall> {
        let pause = Some(self.paused_until).filter(|until| *until != Wall::ZERO);
        self.pending.next_due().into_iter().chain(pause).min()
    }

    /// The stream has let go of a message. Returns whether it was pending: a message that is gone is never delivered
    /// again, and counts as terminated.
    pub fn stream_removed(&mut self, seq: StreamSeq) -> bool {
        if seq > self.delivered.stream_seq {
            return false;
        }
        self.exhausted.remove(seq.0);
        let pending = self.pending.len();
        let was_pending = self.pending.take(seq).is_some();
        self.free_floor(pending);
        was_pending
    }

    /// The stream has let go of all messages below `first`.
    pub fn stream_purged(&mut self, first: StreamSeq) {
        let Some(last_gone) = first.0.checked_sub(1).map(StreamSeq) else {
            return;
        };
        self.pending.take_through(last_gone, &mut |_| {});
        self.exhausted.remove_range(..first.0);
        self.held_floor.take_if(|floor| floor.stream_seq < last_gone);
        self.skip_to(last_gone);
    }

    /// The stream has let go of many messages, such as by a purge of some subjects: keeps what still exists.
    pub fn stream_pruned(&mut self, exists: &mut impl FnMut(StreamSeq) -> bool) {
        let before = self.pending.len();
        let pending = self.pending.iter().map(|entry| entry.seq);
        let gone: Vec<StreamSeq> = pending.filter(|seq| !exists(*seq)).collect();
        for seq in gone {
            self.pending.take(seq);
        }
        self.free_floor(before);
        let gone: RoaringTreemap = self
            .exhausted
            .iter()
            .filter(|seq| !exists(StreamSeq(*seq)))
            .collect();
        self.exhausted -= gone;
    }

    /// Whether the consumer has not yet done with a message that matches its filter and does not lie before its
    /// start: not delivered, not acknowledged, or delivered in vain as often as allowed. For streams that keep
    /// messages as long as somebody wants them.
    #[must_use]
    pub fn still_wants(&self, seq: StreamSeq) -> bool {
        seq > self.delivered.stream_seq || self.pending.get(seq).is_some() || self.exhausted.contains(seq.0)
    }

    /// Takes another configuration and raises the epoch. Pending messages wait as long as if it had been in force when they
    /// were delivered, or are queued for redelivery at once if the deliver subject has changed. Calls `exhausted` for each
    /// queued message that the new `max_deliver` does not allow to be delivered again.
    pub fn update(&mut self, config: ConsumerConfig, exhausted: &mut impl FnMut(Expired)) {
        let subject = |config: &ConsumerConfig| config.push.as_ref().map(|push| push.subject.clone());
        let moved = subject(&self.config) != subject(&config);
        let before = std::mem::replace(&mut self.config, config);
        self.shift_deadlines(&before);
        self.epoch += 1;
        self.activity += 1;
        if moved {
            let all: Vec<StreamSeq> = self.pending.iter().map(|entry| entry.seq).collect();
            for seq in all {
                self.pending.enqueue(seq);
            }
        }
        let over = self
            .pending
            .iter()
            .filter(|entry| entry.is_queued() && self.is_last(entry.count));
        let over: Vec<Entry> = over.copied().collect();
        for entry in over {
            self.exhaust(entry.seq);
            exhausted(Expired {
                seq: entry.seq,
                count: entry.count,
                exhausted: true,
            });
        }
    }

    /// Waits that are longer or shorter now than in a configuration before.
    fn shift_deadlines(&mut self, before: &ConsumerConfig) {
        let waits = |entry: &&Entry| !entry.is_queued() && entry.deadline != NEVER;
        let shifted = |entry: &Entry| {
            let (old, new) = (wait_of(before, entry.count)?, wait_of(&self.config, entry.count)?);
            let delivered = entry.deadline.plus_nanos(-crate::stream::ns(Some(old)));
            (old != new).then(|| (entry.seq, delivered + new))
        };
        let all: Vec<(StreamSeq, Wall)> = self.pending.iter().filter(waits).filter_map(shifted).collect();
        for (seq, deadline) in all {
            self.pending.wait_until(seq, deadline);
        }
    }

    /// Stops delivery until a time; [`Wall::ZERO`] or a time that is not ahead of `stamp` lets it go on.
    pub fn pause(&mut self, until: Wall, stamp: Wall) {
        self.paused_until = if until > stamp { until } else { Wall::ZERO };
        self.activity += 1;
    }

    /// Forgets what was delivered and starts again with `seq` (ADR-60), in a new epoch.
    pub fn reset(&mut self, seq: StreamSeq) {
        self.epoch += 1;
        self.reset_epoch = self.epoch;
        self.activity += 1;
        self.delivered = before(seq);
        (self.last_delivered, self.last_ack) = (Wall::ZERO, Wall::ZERO);
        self.pending = Pending::default();
        self.exhausted.clear();
        self.held_floor = None;
    }

    /// Which incarnation this is.
    #[must_use]
    pub const fn id(&self) -> ConsumerId {
        self.id
    }

    /// The present epoch, which new deliveries and acknowledgements are to name.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether a delivery decided in this epoch holds.
    #[must_use]
    pub const fn accepts_deliver(&self, epoch: u32) -> bool {
        epoch == self.epoch
    }

    /// Whether an acknowledgement of a delivery of this epoch holds.
    #[must_use]
    pub const fn accepts_ack(&self, epoch: u32) -> bool {
        self.reset_epoch <= epoch && epoch <= self.epoch
    }

    /// A number that rises with every command that shows the consumer in use.
    #[must_use]
    pub const fn activity(&self) -> u64 {
        self.activity
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &ConsumerConfig {
        &self.config
    }

    /// When it was created.
    #[must_use]
    pub const fn created(&self) -> Wall {
        self.created
    }

    /// What was delivered last, skipped messages included.
    #[must_use]
    pub const fn delivered(&self) -> Position {
        self.delivered
    }

    /// When something was last delivered; [`Wall::ZERO`] means never.
    #[must_use]
    pub const fn last_delivered(&self) -> Wall {
        self.last_delivered
    }

    /// Everything up to here is acknowledged. As on nats-server, a message that was given up above the floor holds it
    /// until what came after that is acknowledged, so that nothing is pending any more.
    #[must_use]
    pub fn ack_floor(&self) -> Position {
        self.held_floor.unwrap_or_else(|| self.done_floor())
    }

    /// Everything up to here is acknowledged or was given up.
    #[must_use]
    pub fn done_floor(&self) -> Position {
        self.pending.first().map_or(self.delivered, |first| Position {
            stream_seq: StreamSeq(first.seq.0.saturating_sub(1)),
            deliver_seq: DeliverSeq(first.deliver_seq.0.saturating_sub(1)),
        })
    }

    /// When something was last acknowledged; [`Wall::ZERO`] means never.
    #[must_use]
    pub const fn last_ack(&self) -> Wall {
        self.last_ack
    }

    /// Messages delivered and not acknowledged.
    #[must_use]
    pub const fn num_ack_pending(&self) -> usize {
        self.pending.len()
    }

    /// Of those, the ones delivered more than once; and those that were given up, until they are acknowledged or gone.
    #[must_use]
    pub fn num_redelivered(&self) -> u64 {
        self.pending.redelivered() as u64 + self.exhausted.len()
    }

    /// Messages to be delivered again, in the order of the stream.
    #[must_use]
    pub const fn redelivery_queue(&self) -> &BTreeSet<StreamSeq> {
        self.pending.queue()
    }

    /// A number that rises whenever something enters the redelivery queue; known to this replica alone.
    pub(super) const fn queue_mark(&self) -> u64 {
        self.pending.queue_mark()
    }

    /// How often a pending message was delivered.
    #[must_use]
    pub fn delivery_count(&self, seq: StreamSeq) -> Option<u32> {
        self.pending.get(seq).map(|entry| entry.count)
    }

    /// Until when delivery is paused; [`Wall::ZERO`] means not at all.
    #[must_use]
    pub const fn paused_until(&self) -> Wall {
        self.paused_until
    }

    /// Whether delivery is paused.
    #[must_use]
    pub fn is_paused(&self, stamp: Wall) -> bool {
        self.paused_until > stamp
    }
}

/// The position of a consumer that is to deliver `start` next.
fn before(start: StreamSeq) -> Position {
    Position {
        stream_seq: StreamSeq(start.0.saturating_sub(1)),
        deliver_seq: DeliverSeq(0),
    }
}

/// How long the acknowledgement of the `count`-th delivery is awaited; `None` means for ever.
fn wait_of(config: &ConsumerConfig, count: u32) -> Option<Duration> {
    if matches!(config.ack_policy, AckPolicy::None | AckPolicy::FlowControl) {
        return None;
    }
    let step = usize::try_from(count.saturating_sub(1)).unwrap_or(usize::MAX);
    let backoff = config.backoff.get(step).or_else(|| config.backoff.last());
    backoff.copied().or(config.ack_wait)
}

/// Frees the exhausted messages up to `seq`; returns whether there were any.
fn free_exhausted(all: &mut RoaringTreemap, seq: StreamSeq, freed: &mut impl FnMut(StreamSeq)) -> bool {
    let mut any = false;
    while let Some(first) = all.min().filter(|first| *first <= seq.0) {
        all.remove(first);
        freed(StreamSeq(first));
        any = true;
    }
    any
}

#[cfg(test)]
mod tests;
