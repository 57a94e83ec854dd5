//! The end of a turn for groups: propose, take what is ready, persist, send, apply.

use super::{Machine, Open, Proposed, Sealed, Slot};
use crate::cell::{Cell, LaneKind, RaftFrame};
use crate::clock::LogTime;
use crate::worker::{Core, IoJob, IoOwner};
use std::collections::BTreeSet;
use std::time::Duration;
use tidelock_base::limits::{ENTRIES_IN_FLIGHT_MAX, ENTRY_BYTES_MAX};
use tidelock_base::{GroupId, Mono};
use tidelock_jetstream::meta::MetaEntry;
use tidelock_replica::{Lane, Outgoing, Ready, Role};

/// Rounds of the loop below in one turn; what is left goes on in the next.
const ROUNDS_MAX: usize = 64;
/// A follower whose disk takes no blocks keeps so many times the usual backlog: what removes messages has to come
/// through to it.
const REFUSED_TIMES: u64 = 4;

impl Core {
    /// Fires what is due for groups.
    pub(crate) fn tick_groups(&mut self) {
        let now = self.now.mono;
        while let Some((at, group)) = self.groups.timers.first().copied() {
            if at > now {
                break;
            }
            self.groups.timers.pop_first();
            let Some(slot) = self.groups.slots.get_mut(&group) else {
                continue;
            };
            slot.armed = None;
            if !slot.is_held() {
                slot.raft.tick(now);
            }
            if slot.quiet && slot.rest_due.is_none_or(|at| at > now) {
                self.groups.ticked.insert(group);
                continue;
            }
            if let Some(slot) = self.slot_mut(group) {
                slot.write_again(now);
                slot.read_again(now);
            }
            self.look_at_hand_over(group);
            self.expire(group);
            self.give_up_reads(group);
            self.consumers_tick(group);
            self.sources_tick(group);
        }
        self.tick_lane();
        self.tick_space();
        self.tick_scrub();
        self.tick_formation();
        self.tick_membership();
    }

    /// Proposes the expiry of what is due, on the leader.
    fn expire(&mut self, group: GroupId) {
        let now = self.log_time();
        let Some(slot) = self.slot_mut(group).filter(|slot| slot.leads && !slot.expiring) else {
            return;
        };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        if stream.next_due().is_some_and(|due| due <= slot.stamps.time(now)) {
            slot.expiring = true;
            slot.open.stream.expire_through();
        }
    }

    /// Runs all groups that were touched until nothing moves.
    pub(crate) fn run_groups(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.run_ticked();
            let touched = std::mem::take(&mut self.groups.touched);
            if touched.is_empty() {
                break;
            }
            for group in touched {
                self.consumers_turn(group);
                self.sources_turn(group);
                self.propose(group);
                self.start_reads(group);
                self.drain_ready(group);
                self.apply(group);
                self.serve_reads(group);
                self.tick_snapshots(group);
                self.mend(group);
                self.store_io(group);
                self.arm_group(group);
                if group == GroupId::META {
                    self.tell_current();
                }
            }
        }
        let mut later = std::mem::take(&mut self.groups.later);
        self.groups.touched.append(&mut later);
        self.cut_lane();
        self.checkpoints();
        self.flush_meta_events();
    }

    /// Carries on the consensus of groups that are idle otherwise: most groups of a node at most times, so that what
    /// they cost is what is done here.
    fn run_ticked(&mut self) {
        while let Some(group) = self.groups.ticked.pop_first() {
            if self.groups.touched.contains(&group) {
                continue;
            }
            self.drain_ready(group);
            if !self.groups.touched.contains(&group)
                && let Some(slot) = self.groups.slots.get_mut(&group)
            {
                let next = [slot.raft.next_deadline(), slot.rest_due];
                arm(&mut self.groups.timers, slot, next.into_iter().flatten().min());
            }
        }
    }

    /// Whether groups have work that this turn did not get to.
    pub(crate) fn groups_have_work(&self) -> bool {
        !self.groups.touched.is_empty() || !self.groups.ticked.is_empty()
    }

    /// Proposes what is open, unless enough is in flight: then it grows, up to the size of an entry.
    pub(super) fn propose(&mut self, group: GroupId) {
        let now = self.log_time();
        let backlog = self.shared.budgets.backlog;
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        // A disk that takes no blocks does so until something is removed, which has to come through.
        if !slot.leads || (slot.backlog() > backlog && slot.write_again_at.is_none()) {
            return;
        }
        slot.seal_if_full(now);
        while slot.in_flight() < ENTRIES_IN_FLIGHT_MAX {
            if slot.sealed.is_empty() {
                slot.seal(now);
            }
            let Some(sealed) = slot.sealed.front() else { return };
            let Ok(index) = slot.raft.propose(now.mono, sealed.data.clone()) else {
                return;
            };
            let term = slot.raft.term();
            if let Some(sealed) = slot.sealed.pop_front() {
                slot.proposed.push_back(Proposed {
                    index,
                    term,
                    bytes: sealed.data.len(),
                    waiters: sealed.waiters,
                });
            }
        }
    }

    /// Carries out what a group's consensus wants done.
    fn drain_ready(&mut self, group: GroupId) {
        while let Some(slot) = self.groups.slots.get_mut(&group) {
            if let Some(failure) = slot.raft.failure()
                && slot.failed.is_none()
            {
                let text = failure.to_string();
                tracing::error!("Replica of stream {:?} has stopped: {text}", slot.name);
                slot.failed = Some(text);
                self.groups.touched.insert(group);
                self.end_reads(group);
                continue;
            }
            let Some(ready) = slot.raft.take_ready() else {
                return;
            };
            let durable = slot.durable;
            if !ready.persist.is_empty() && durable {
                let batch = self.groups.persist(group, &ready.persist);
                if ready.sync
                    && let Some(slot) = self.groups.slots.get_mut(&group)
                {
                    slot.unsynced.push_back((ready.number, batch));
                }
            } else if ready.sync
                && let Some(slot) = self.groups.slots.get_mut(&group)
            {
                slot.raft.persisted(ready.number);
            }
            self.take_ready(group, ready);
        }
    }

    fn take_ready(&mut self, group: GroupId, ready: Ready) {
        if !ready.is_only_frames() {
            self.groups.touched.insert(group);
        }
        for outgoing in ready.send {
            self.send_raft(group, outgoing);
        }
        if let Some(role) = ready.role {
            self.role_changed(group, role.role, role.leader);
        }
        self.snapshot_events(group, ready.snapshot);
        for first in ready.read_back {
            self.read_back(group, first);
        }
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        slot.queue.extend(ready.committed);
        for read in ready.reads {
            self.read_ended(group, read);
        }
    }

    fn send_raft(&mut self, group: GroupId, outgoing: Outgoing) {
        let Some(slot) = self.groups.slots.get(&group) else {
            return;
        };
        let unlisted = || self.member_unlisted(group, outgoing.to);
        let Some(node) = slot.node_of(outgoing.to).or_else(unlisted) else {
            return;
        };
        let lane = match outgoing.lane {
            Lane::Heartbeat => LaneKind::Pulse,
            Lane::Log => LaneKind::Log,
            Lane::Bulk => LaneKind::Bulk,
        };
        let frame = RaftFrame {
            group,
            from: slot.me,
            to: outgoing.to,
            lane,
            parts: outgoing.frame,
        };
        self.send_cell(node, lane, Cell::Raft(frame));
    }

    /// A frame of a peer has arrived.
    pub(crate) fn receive_raft(&mut self, frame: RaftFrame) {
        let now = self.now.mono;
        let backlog = self.shared.budgets.backlog;
        let Some(slot) = self.groups.slots.get_mut(&frame.group) else {
            return;
        };
        if slot.me != frame.to || slot.failed.is_some() {
            return;
        }
        if slot.quiet && frame.lane == LaneKind::Pulse {
            self.groups.ticked.insert(frame.group);
        } else {
            slot.quiet = false;
            self.groups.touched.insert(frame.group);
        }
        slot.heard_of(frame.from, now);
        let refused = slot.write_again_at.is_some();
        let most = if refused { REFUSED_TIMES * backlog } else { backlog };
        if frame.lane == LaneKind::Log && slot.backlog() > most {
            // Its leader sends the entries again once a heartbeat has told it how far this replica has come.
            return;
        }
        let whole = match frame.parts.as_slice() {
            [one] => one.clone(),
            many => many.concat().into(),
        };
        if let Err(error) = slot.raft.step(now, frame.from, &whole) {
            tracing::debug!(
                "Frame of replica {} of group {} ignored: {error}",
                frame.from,
                frame.group
            );
        }
    }

    pub(super) fn role_changed(
        &mut self,
        group: GroupId,
        role: Role,
        leader: Option<tidelock_base::ReplicaId>,
    ) {
        let now = self.log_time();
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        slot.leader = leader;
        let led = slot.leads;
        if role != Role::Leader && led {
            slot.leads = false;
            slot.expiring = false;
            slot.handing_over = false;
            slot.seal(now);
            let mut lost = std::mem::take(&mut slot.open).waiters;
            let sealed: Vec<Sealed> = slot.sealed.drain(..).collect();
            let reads = slot.reads.take_unconfirmed();
            for mut entry in sealed {
                self.acks_go_on(group, &entry.data, &mut entry.waiters);
                lost.append(&mut entry.waiters);
            }
            for waiter in lost.into_iter().map(|(_, waiter)| waiter).chain(reads) {
                self.end(waiter, super::Done::Lost);
            }
            self.send_early_away(group);
            self.consumers_follow(group);
            self.sources_follow(group);
        }
        if let Some(slot) = self.groups.slots.get(&group)
            && leader.is_some()
            && slot.reads.are_waiting()
        {
            self.groups.touched.insert(group);
        }
        // Its own leadership counts from the moment when it is ready.
        if role != Role::Leader || led {
            self.leader_changed(group);
        }
    }

    /// Hands the store's operations to the shell.
    pub(super) fn store_io(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let Machine::Stream(stream) = &mut slot.machine else {
            return;
        };
        let requests = stream.take_io();
        if !requests.is_empty() {
            self.out.io.push(IoJob {
                owner: IoOwner::Store(group),
                requests,
                inline: false,
            });
        }
    }

    /// Sets the group's timer to what is due next.
    fn arm_group(&mut self, group: GroupId) {
        let now = self.log_time();
        let consumers = self.consumers_deadline(group);
        let sources = self.sources_deadline(group);
        let has_sources = self.sources.has(group);
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let rest = [
            slot.due(now),
            slot.write_again_at,
            slot.unread.deadline(),
            slot.mending.deadline(),
            slot.transfers.deadline(),
            slot.reads.deadline(slot.leads),
            consumers,
            sources,
        ];
        slot.rest_due = rest.into_iter().flatten().min();
        slot.quiet = slot.is_quiet() && !has_sources;
        let consensus = slot.raft.next_deadline().filter(|_| !slot.is_held());
        let next = [consensus, slot.rest_due];
        arm(&mut self.groups.timers, slot, next.into_iter().flatten().min());
    }
}

/// Sets the timer of a group, or takes it away.
fn arm(timers: &mut BTreeSet<(Mono, GroupId)>, slot: &mut Slot, next: Option<Mono>) {
    if next == slot.armed {
        return;
    }
    if let Some(old) = slot.armed {
        timers.remove(&(old, slot.group));
    }
    slot.armed = next;
    if let Some(next) = next {
        timers.insert((next, slot.group));
    }
}

impl Open {
    fn is_empty(&self) -> bool {
        self.stream.is_empty() && self.meta.is_empty()
    }
}

impl Slot {
    /// Who waits for the last entry that is not proposed yet, if there is one.
    pub(super) fn unproposed(&mut self) -> Option<&mut Vec<(u32, super::Waiter)>> {
        if !self.open.is_empty() {
            return Some(&mut self.open.waiters);
        }
        self.sealed.back_mut().map(|sealed| &mut sealed.waiters)
    }

    /// Whether nothing waits here for what only a look at the whole replica brings on. The metadata's is never quiet.
    fn is_quiet(&self) -> bool {
        self.group != GroupId::META
            && self.failed.is_none()
            && !self.handing_over
            && self.open.is_empty()
            && self.sealed.is_empty()
            && self.proposed.is_empty()
            && self.queue.is_empty()
            && self.applying.is_none()
            && self.unsynced.is_empty()
            && self.fetches.is_empty()
            && self.reads.are_none()
            && self.early.is_empty()
            && self.transfers.are_none()
    }

    /// Bytes of messages that the disk has not taken into blocks yet.
    pub(super) fn backlog(&self) -> u64 {
        match &self.machine {
            Machine::Stream(stream) => stream.store().backlog_bytes(),
            Machine::Meta(_) => 0,
        }
    }

    /// Entries proposed and not yet durable here.
    fn in_flight(&self) -> usize {
        let durable = self.raft.persisted_index();
        self.proposed.iter().filter(|entry| entry.index > durable).count()
    }

    /// When the leader's log next wants an expiry, in monotonic time.
    fn due(&self, now: LogTime) -> Option<Mono> {
        let Machine::Stream(stream) = &self.machine else {
            return None;
        };
        if !self.leads || self.expiring {
            return None;
        }
        let due = stream.next_due()?;
        let wait = u64::try_from(due.0.saturating_sub(self.stamps.time(now).0)).unwrap_or(0);
        Some(now.mono + Duration::from_nanos(wait.max(1_000_000)))
    }

    /// Ends the open entry, if there is anything in it.
    fn seal(&mut self, now: LogTime) {
        if self.open.is_empty() {
            return;
        }
        self.stamps.seen(self.applied_stamp(), now.mono);
        let stamp = self.stamps.next(now);
        let open = &mut self.open;
        let data = match &self.machine {
            Machine::Stream(_) => open.stream.finish(stamp),
            Machine::Meta(_) => Some(
                MetaEntry {
                    stamp,
                    commands: std::mem::take(&mut open.meta),
                }
                .encode(),
            ),
        };
        let waiters = std::mem::take(&mut open.waiters);
        if let Some(data) = data {
            self.sealed.push_back(Sealed { data, waiters });
        }
    }

    /// Ends the open entry if it has grown to the cap of an entry.
    pub(super) fn seal_if_full(&mut self, now: LogTime) {
        if self.open.stream.len() >= ENTRY_BYTES_MAX {
            self.seal(now);
        }
    }
}
