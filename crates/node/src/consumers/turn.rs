//! The leader's work: taking over, what applied entries say, and the end of each turn.

use super::acks::Run;
use super::events::Event;
use super::leading::{Leading, Live, One};
use super::lookup::View;
use super::outbox::{Out, Scratch};
use super::waiters::AckWaiter;
use crate::cell::PullEnd;
use crate::groups::{Machine, Slot, Waiter};
use crate::interest::Root;
use crate::worker::Core;
use std::time::Duration;
use tidelock_api::AckPolicy;
use tidelock_base::{AccountId, ConsumerId, GroupId, Mono, Now, StreamSeq, Wall};
use tidelock_jetstream::config::Retention;
use tidelock_jetstream::consumer::{Notice, Position, Status, Stop, Ticket};
use tidelock_jetstream::stream::{Consumer, ConsumerChange, Gone, Stream};
use tidelock_record::RecordRef;
use tidelock_store::Need;

/// Messages that one consumer may pick in one go; what is left goes on in the next turn, after others had theirs.
const PICKS_MAX: usize = 1024;
/// Bytes of messages after which it stops earlier.
const PICK_BYTES_MAX: u64 = 1 << 20;
/// Messages picked between two looks at those bytes.
const PICK_STEP: usize = 64;
/// Without acknowledgements, the position is logged at most this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// The same where messages that are delivered leave the stream.
const PROGRESS_EVERY_FREEING: Duration = Duration::from_millis(100);
/// The deletion of a consumer that is not in use is proposed again after this long.
const IDLE_AGAIN: Duration = Duration::from_secs(5);

/// What a look at one consumer has decided and the log is to hear.
struct Plan {
    epoch: u32,
    delivered: StreamSeq,
    /// The last pick among those to be proposed.
    ticket: Option<Ticket>,
    progress: Option<Position>,
    /// The activity mark of a consumer that is to be deleted as not in use.
    idle: Option<u64>,
    /// What has to be read before more can be picked.
    need: Option<Need>,
    more: bool,
}

impl Core {
    /// This node now leads a group, with a state that is current.
    pub(crate) fn consumers_lead(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.slot_mut(group) else { return };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let mut leading = Leading::default();
        for consumer in stream.consumers() {
            leading.insert(now, &slot.name, consumer);
        }
        slot.consumers = leading;
        self.watch(group);
    }

    /// This node leads a group no more: those who wait are told.
    pub(crate) fn consumers_follow(&mut self, group: GroupId) {
        let is_there = self.shared.directory.load().by_group(group).is_some();
        let status = if is_there {
            Status::LeadershipChange
        } else {
            Status::ConsumerDeleted
        };
        self.close_consumers(group, &status);
    }

    /// The server stops: tells the clients of all consumers that are led here.
    pub(crate) fn consumers_stop(&mut self) {
        let groups: Vec<GroupId> = self.groups.slots.keys().copied().collect();
        for group in groups {
            self.close_consumers(
                group,
                &Status::ServerShutdown(tidelock_jetstream::consumer::Remaining::default()),
            );
        }
    }

    fn close_consumers(&mut self, group: GroupId, status: &Status) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let (account, leading) = (slot.account, std::mem::take(&mut slot.consumers));
        for (_, mut one) in leading.consumers {
            self.close_one(group, account, &mut one, status);
        }
    }

    /// Ends all pull requests of a consumer, with a status each. Those for which messages are on their way are told,
    /// too: the messages will not come.
    fn close_one(&mut self, group: GroupId, account: AccountId, one: &mut One, status: &Status) {
        let mut notices = Vec::new();
        let with_rest = |remaining| match status {
            Status::ServerShutdown(_) => Status::ServerShutdown(remaining),
            other => other.clone(),
        };
        // What was still to be read from disk is not sent any more, but its requests end.
        for out in one.outbox.drain(..) {
            if let Out::Notice(ended @ Notice::Ended { .. }) = out {
                notices.push(ended);
            }
        }
        one.leader.close(with_rest, &mut notices);
        let mut rest = None;
        for notice in notices {
            match notice {
                Notice::Status { status, .. } => rest = Some(status),
                Notice::Ended { to } => {
                    let status = rest.take().unwrap_or_else(|| status.clone());
                    match one.leave(&to) {
                        Some(from) if status == Status::LeadershipChange => {
                            self.pull_ended(group, from, PullEnd::LeaderLeft);
                        }
                        Some(from) => {
                            self.send_status(account, &to, &status);
                            self.pull_ended(group, from, PullEnd::Served);
                        }
                        None => self.send_status(account, &to, &status),
                    }
                }
            }
        }
    }

    /// An entry is applied: acts on what it has brought about, in order.
    pub(crate) fn consumers_applied(&mut self, group: GroupId, events: &mut Vec<Event>) {
        let now = self.group_time(group);
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let mut leading = std::mem::take(&mut slot.consumers);
        let account = slot.account;
        for event in events.drain(..) {
            let Some(slot) = self.groups.slots.get(&group) else {
                return;
            };
            let Machine::Stream(stream) = &slot.machine else {
                return;
            };
            match event {
                Event::Stored { seq, record } => stored(&mut leading, seq, &record),
                Event::Removed(seq) => removed(&mut leading, seq),
                Event::RemovedBelow(first) => removed_below(&mut leading, first),
                Event::Delivered(id, delivered) => {
                    let Some(one) = leading.consumers.get_mut(&id) else {
                        continue;
                    };
                    let mut notices = std::mem::take(&mut self.consumers.scratch.notices);
                    let outgoing = one.leader.on_delivered(now.mono, &delivered, &mut notices);
                    one.outbox.extend(outgoing.map(Out::Message));
                    one.queue(&mut notices);
                    self.consumers.scratch.notices = notices;
                    leading.touch(id);
                }
                Event::Changed(id, change) => {
                    changed(
                        &mut leading,
                        now.mono,
                        slot,
                        stream.consumer_by_id(id),
                        (id, change),
                    );
                    if matches!(change, ConsumerChange::Created | ConsumerChange::Updated) {
                        self.watch(group);
                    }
                }
                Event::Gone(id, why) => {
                    if let Some(mut one) = leading.remove(id) {
                        self.flush_before_end(group, account, id, &mut one);
                        self.close_one(group, account, &mut one, &Status::ConsumerDeleted);
                        if why == Gone::Inactive {
                            self.deletion_advisory(group, account, &one.name);
                        }
                    }
                }
                Event::Advisory(advisory) => {
                    leading.touch(advisory.consumer);
                    let name = leading
                        .consumers
                        .get(&advisory.consumer)
                        .map(|one| one.name.clone());
                    if let Some(name) = name {
                        self.consumer_advisory(group, account, &name, &advisory);
                    }
                }
            }
        }
        if leading.is_empty() && !leading.has_work() {
            return;
        }
        if let Some(slot) = self.slot_mut(group) {
            slot.consumers = leading;
        }
    }

    /// Sends what a consumer that is gone has still queued and needs no reading.
    fn flush_before_end(&mut self, group: GroupId, account: AccountId, id: ConsumerId, one: &mut One) {
        let mut scratch = std::mem::take(&mut self.consumers.scratch);
        self.flush_outbox(group, account, id, one, &mut scratch);
        self.consumers.scratch = scratch;
    }

    /// The end of a turn, before the group proposes.
    pub(crate) fn consumers_turn(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group).filter(|slot| slot.leads) else {
            return;
        };
        if !slot.consumers.has_work() {
            return;
        }
        let account = slot.account;
        let mut leading = std::mem::take(&mut slot.consumers);
        let (root, _) = self.root(account);
        let mut scratch = std::mem::take(&mut self.consumers.scratch);
        let dirty = std::mem::take(&mut leading.dirty);
        for id in &dirty {
            self.consumer_turn(group, account, &root, &mut leading, *id, &mut scratch);
        }
        self.consumers.scratch = scratch;
        if let Some(slot) = self.groups.slots.get_mut(&group) {
            slot.consumers = leading;
        }
    }

    fn consumer_turn(
        &mut self,
        group: GroupId,
        account: AccountId,
        root: &Root,
        leading: &mut Leading,
        id: ConsumerId,
        scratch: &mut Scratch,
    ) {
        let now = self.group_time(group);
        let Some(one) = leading.consumers.get_mut(&id) else {
            return;
        };
        one.settle(now.mono, root, scratch);
        // What was delivered leaves first: while something waits to leave, nothing more is picked.
        self.flush_outbox(group, account, id, one, scratch);
        let Some(stream) = self.stream(group) else { return };
        let Some(consumer) = stream.consumer_by_id(id) else {
            leading.remove(id);
            return;
        };
        let may_pick = !self.is_handing_over(group);
        let plan = one.plan(now, stream, consumer, root, scratch, may_pick);
        self.propose_acks(group, id, one, &plan, scratch);
        if let Some(ticket) = plan.ticket {
            let waiter = Waiter::Ack(AckWaiter::Delivered {
                group,
                consumer: id,
                ticket,
            });
            self.command(group, waiter, |entry| {
                entry.deliver(id, plan.epoch, scratch.seqs.drain(..))
            });
        }
        if let Some(Position {
            stream_seq,
            deliver_seq,
        }) = plan.progress
        {
            self.command(group, Waiter::Nobody, |entry| {
                entry.progress(id, plan.epoch, stream_seq, deliver_seq)
            });
        }
        if let Some(activity) = plan.idle {
            self.command(group, Waiter::Nobody, |entry| entry.delete_if_idle(id, activity));
        }
        if let Some(need) = plan.need {
            one.fetching = true;
            self.fetch(
                group,
                need,
                Waiter::Ack(AckWaiter::Fetched { group, consumer: id }),
            );
        }
        self.flush_outbox(group, account, id, one, scratch);
        let at = self.deadline_of(group, id, one);
        leading.arm(id, at);
        if plan.more {
            leading.later.insert(id);
        }
    }

    /// Adds a turn's acknowledgements to the log.
    fn propose_acks(
        &mut self,
        group: GroupId,
        id: ConsumerId,
        one: &mut One,
        plan: &Plan,
        scratch: &mut Scratch,
    ) {
        let all = one.acks_all();
        while let Some(mut run) = one.acks.take() {
            run.ranges(all, plan.delivered, &mut scratch.ranges);
            let Run {
                kind,
                reason,
                seqs,
                replies,
            } = run;
            one.acks.give_back(seqs);
            let waiter = Waiter::Ack(AckWaiter::Acked {
                group,
                consumer: id,
                replies,
            });
            self.command(group, waiter, |entry| {
                entry.acks(id, plan.epoch, kind, &scratch.ranges, &reason)
            });
        }
    }

    /// When a consumer wants to be looked at next.
    fn deadline_of(&self, group: GroupId, id: ConsumerId, one: &One) -> Option<Mono> {
        let consumer = self.stream(group)?.consumer_by_id(id)?;
        let state = consumer.state();
        let idle = one.leader.idle_at(state).map(|at| at.max(one.idle_from));
        let progress = one.leader.progress(state).map(|_| one.progress_from);
        [one.leader.next_deadline(), idle, progress]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due.
    pub(crate) fn consumers_tick(&mut self, group: GroupId) {
        let now = self.now.mono;
        if let Some(slot) = self.groups.slots.get_mut(&group) {
            slot.consumers.tick(now);
        }
    }

    /// When [`Core::consumers_tick`] must run at the latest.
    pub(crate) fn consumers_deadline(&self, group: GroupId) -> Option<Mono> {
        self.slot(group)?.consumers.deadline()
    }

    /// What only the leader knows of a consumer; `None` if this node does not lead.
    pub(crate) fn consumer_live(&self, group: GroupId, id: ConsumerId) -> Option<Live> {
        let slot = self.slot(group).filter(|slot| slot.leads)?;
        let one = slot.consumers.consumers.get(&id)?;
        let stream = self.stream(group)?;
        let consumer = stream.consumer_by_id(id)?;
        let delivered = one.leader.sent();
        Some(Live {
            num_waiting: one.leader.num_waiting(),
            push_bound: one.leader.is_push_bound(),
            num_pending: stream.pending_for(consumer, delivered.stream_seq.next()),
            delivered,
            last_delivered: one.last_sent.max(consumer.state().last_delivered()),
            in_flight: one.leader.num_in_flight(),
        })
    }
}

impl One {
    /// Takes note of what has happened since the last look: commands that came back, time that passed, interest.
    fn settle(&mut self, now: Mono, root: &Root, scratch: &mut Scratch) {
        if let Some(ticket) = self.applied.take() {
            self.leader.applied(ticket, &mut scratch.notices);
        }
        self.look(now, root);
        if self.leader.next_deadline().is_some_and(|due| due <= now) {
            self.leader.tick(now, &mut scratch.notices);
        }
        self.queue(&mut scratch.notices);
    }

    /// Takes note of whether somebody listens.
    pub(super) fn look(&mut self, now: Mono, root: &Root) {
        if let Some(push) = &mut self.push
            && let Some(active) = push.look(root)
            && active != self.leader.is_push_bound()
        {
            self.leader.set_interest(now, active);
        }
    }

    /// Picks what can be delivered, and finds out what the log is to hear. Sequences to deliver are in `scratch.seqs`.
    fn plan(
        &mut self,
        now: Now,
        stream: &Stream,
        consumer: &Consumer,
        root: &Root,
        scratch: &mut Scratch,
        may_pick: bool,
    ) -> Plan {
        let state = consumer.state();
        let mut plan = Plan {
            epoch: state.epoch(),
            delivered: state.delivered().stream_seq,
            ticket: None,
            progress: None,
            idle: None,
            need: None,
            more: false,
        };
        scratch.seqs.clear();
        // What waits for the disk is not joined by more.
        if may_pick && self.outbox.is_empty() && !self.fetching {
            self.pick(now, stream, consumer, root, scratch, &mut plan);
        }
        if self.progress_from <= now.mono
            && let Some(position) = self.leader.progress(state)
        {
            let frees = stream.config().retention != Retention::Limits;
            self.progress_from = now.mono
                + if frees {
                    PROGRESS_EVERY_FREEING
                } else {
                    PROGRESS_EVERY
                };
            plan.progress = Some(position);
        }
        if self.idle_from <= now.mono && self.leader.idle_at(state).is_some_and(|at| at <= now.mono) {
            self.idle_from = now.mono + IDLE_AGAIN;
            plan.idle = Some(state.activity());
        }
        plan
    }

    fn pick(
        &mut self,
        now: Now,
        stream: &Stream,
        consumer: &Consumer,
        root: &Root,
        scratch: &mut Scratch,
        plan: &mut Plan,
    ) {
        let view = View::new(stream, consumer, root);
        let mut left = PICKS_MAX;
        loop {
            let step = left.min(PICK_STEP);
            let (picks, notices) = (&mut scratch.picks, &mut scratch.notices);
            self.stop = self
                .leader
                .pick(now, consumer.state(), &view, step, picks, notices);
            let picked = picks.len();
            left -= picked;
            for pick in picks.drain(..) {
                if let Some(outgoing) = pick.now {
                    self.last_sent = now.wall;
                    self.outbox.push_back(Out::Message(outgoing));
                } else if self.ack_policy != AckPolicy::None {
                    scratch.seqs.push(pick.seq);
                    plan.ticket = Some(pick.ticket);
                }
            }
            self.queue(notices);
            // Fewer than asked for although the budget is named: too many are on their way through the log. It goes on
            // when some have come back.
            if self.stop != Stop::Budget || picked < step {
                break;
            }
            if left == 0 || view.bytes() >= PICK_BYTES_MAX {
                plan.more = true;
                break;
            }
        }
        if self.stop == Stop::Cold {
            plan.need = view.need();
        }
    }
}

/// A message was stored: those who want it and have nothing else to deliver go on.
fn stored(leading: &mut Leading, seq: StreamSeq, record: &[u8]) {
    let Leading { consumers, dirty, .. } = leading;
    for (id, one) in consumers {
        let wanted = one.filters.is_all()
            || RecordRef::parse(record).is_ok_and(|(record, _)| one.filters.matches(record.subject()));
        if wanted {
            one.leader.stored(seq);
            if one.stop == Stop::End {
                dirty.insert(*id);
            }
        }
    }
}

/// A message is gone; whether it was one that a consumer with filters wants is no longer known.
fn removed(leading: &mut Leading, seq: StreamSeq) {
    let Leading { consumers, dirty, .. } = leading;
    for (id, one) in consumers {
        if seq <= one.leader.sent().stream_seq {
            if one.stop == Stop::MaxAckPending {
                dirty.insert(*id);
            }
        } else if one.filters.is_all() {
            one.leader.removed(seq);
        } else {
            one.leader.recount();
        }
    }
}

fn removed_below(leading: &mut Leading, first: StreamSeq) {
    let Leading { consumers, dirty, .. } = leading;
    for (id, one) in consumers {
        if first > one.leader.sent().stream_seq.next() {
            one.leader.recount();
        }
        dirty.insert(*id);
    }
}

/// Something about a consumer has changed.
fn changed(
    leading: &mut Leading,
    now: Mono,
    slot: &Slot,
    consumer: Option<&Consumer>,
    (id, change): (ConsumerId, ConsumerChange),
) {
    let Some(consumer) = consumer else { return };
    match change {
        ConsumerChange::Created => leading.insert(now, &slot.name, consumer),
        ConsumerChange::Updated | ConsumerChange::Reset => {
            if let Some(one) = leading.consumers.get_mut(&id) {
                let mut notices = Vec::new();
                one.leader.sync(now, consumer.state(), &mut notices);
                one.queue(&mut notices);
                if change == ConsumerChange::Reset {
                    one.last_sent = Wall::ZERO;
                }
                one.configure(consumer);
            }
        }
        ConsumerChange::Paused | ConsumerChange::Resumed | ConsumerChange::Redeliver => {}
    }
    leading.touch(id);
}
