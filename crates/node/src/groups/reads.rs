//! Reads that see everything that was acknowledged before they began (promise P2), and where they are served.
//!
//! ```text
//!  waiting ──one ask a turn──> asked ──index──> known ──applied that far──> served
//!   ^  └─ too long no leader ──┐ │                 └─ too long behind ─┐
//!   └──── leader has changed ──│─┘                                     │
//!                              └───────────────────────────────────────┴──> lost: back to where it entered
//! ```
//!
//! **Which replica.** A request for stored messages (MSG.GET, DIRECT.GET) is served by the replica of the node where it
//! entered, if there is one; all others, and those of nodes without a replica, go to the leader. A follower asks its
//! leader for the index that its state must have reached (`tidelock_replica`: one small frame each way, no ticks), and
//! the value itself does not travel. INFO of streams and consumers stays with the leader, which alone knows part of it.
//!
//! **Order of a connection.** A read must see what its connection published before it. An index that a leader gives
//! covers what is committed, and a publish on its way may not be. There are three ways to make a follower wait:
//!
//! - Until the outcomes of those publishes are known at the node, and ask then. Right, but a round trip longer than need
//!   be: the outcome comes from the leader, and could bring the read's answer along.
//! - The request for the index names the last forward number, and the leader grants when that is committed. Consensus
//!   would have to know of publishes, and keep grants that a change of the leader makes void.
//! - The read goes to the leader, which waits for the forward number as it does for every request ([`super::early`]), and
//!   then for what it has proposed. That takes as long as the second and needs nothing new: where the publish is judged,
//!   the read is answered. If the leader changes, the request goes to the next one with the same number, and so do the
//!   publishes, first.
//!
//! The third it is: **a follower serves only what comes with the forward number 0** ([`crate::forward::Published`]: no
//! outcome is outstanding for that connection). An outcome is told after the publish was applied by a leader; so it is
//! committed, and every index that is asked for later covers it, whoever leads then. Clients that wait for their
//! acknowledgements, as those of key-value stores do, always read here. Acknowledgements of consumers carry no number
//! (DESIGN section 4); who wants to see one in a read asks for its confirmation.
//!
//! **A change of the leader** ends what a leader itself was asked to read, since the publishes before it may be lost with
//! the leadership. The reads of a follower depend on no leader: they wait for the next one, for [`LEADERLESS_MAX`].
//!
//! **A follower that lags** has [`BEHIND_MAX`] to get to the index; then the read goes to the leader, and so do all that
//! come until the follower has got there. Mirrors are streams of their own and answer for themselves only.

use super::{Done, Slot, Waiter};
use crate::cell::Request;
use crate::worker::Core;
use std::time::Duration;
use tidelock_base::{GroupId, LogIndex, Mono};
use tidelock_replica::{ReadOutcome, ReadResult, ReadToken};

/// Ordinal of a read that rides on an entry.
pub(super) const READ_ORDINAL: u32 = u32::MAX;
/// For so long a follower may be behind the index of a read. A replica whose disk is well is there within a sync; a
/// leader asked instead costs a round trip, and its own disk.
const BEHIND_MAX: Duration = Duration::from_millis(20);
/// For so long reads wait for a leader to be elected; as long as requests that look for one elsewhere.
const LEADERLESS_MAX: Duration = Duration::from_secs(2);

/// Who waits for reads of a replica.
#[derive(Default)]
pub(super) struct Reads {
    /// Since this turn, or for a leader.
    waiting: Vec<Waiter>,
    /// Since when they have waited for a leader.
    leaderless: Option<Mono>,
    asked: Vec<(ReadToken, Vec<Waiter>)>,
    known: Vec<Read>,
    /// As a follower, it serves none before it has applied this: it was too far behind.
    behind: LogIndex,
}

/// A read that may be served once its replica has applied so much.
struct Read {
    index: LogIndex,
    /// When its index became known.
    since: Mono,
    waiter: Waiter,
}

impl Core {
    /// A linearizable read of the local replica: the waiter hears of it when the local state contains everything that
    /// was proposed before.
    pub(crate) fn read(&mut self, group: GroupId, waiter: Waiter) {
        let mut waiter = waiter;
        if self.is_held_up(group) && self.leads(group) {
            match self.may_read_committed(group, waiter) {
                Some(still) => waiter = still,
                None => return,
            }
        }
        match self.slot_mut(group) {
            Some(slot) => slot.reads.waiting.push(waiter),
            None => self.end(waiter, Done::Lost),
        }
    }

    /// Whether the replica here may serve a read of a client of this node though it does not lead.
    pub(crate) fn can_follow(&self, group: GroupId, request: &Request) -> bool {
        let able = |slot: &Slot| slot.failed.is_none() && slot.applied() >= slot.reads.behind;
        // One that comes from elsewhere takes this node for the leader, and is to learn better.
        request.node == self.shared.identity.node && request.after == 0 && self.slot(group).is_some_and(able)
    }

    /// Asks for the reads that came in this turn, all in one.
    pub(super) fn start_reads(&mut self, group: GroupId) {
        let now = self.now.mono;
        let token = ReadToken(self.groups.next_token + 1);
        let held_up = self.is_held_up(group);
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if slot.reads.waiting.is_empty() {
            return;
        }
        if slot.failed.is_some() {
            return self.end_reads(group);
        }
        if slot.leader.is_none() && !slot.leads {
            slot.reads.leaderless.get_or_insert(now);
            return;
        }
        slot.reads.leaderless = None;
        let waiters = std::mem::take(&mut slot.reads.waiting);
        if slot.leads
            && !held_up
            && let Some(later) = slot.unproposed()
        {
            // Proposed after the read arrived: once it is applied, this replica has led since then.
            later.extend(waiters.into_iter().map(|waiter| (READ_ORDINAL, waiter)));
            return;
        }
        self.groups.next_token = token.0;
        slot.raft.read(now, token);
        slot.reads.asked.push((token, waiters));
    }

    /// A read may be served once so much is applied, or cannot be had here.
    pub(super) fn read_ended(&mut self, group: GroupId, read: ReadResult) {
        let since = self.now.mono;
        let held_up = self.is_held_up(group);
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let asked = &mut slot.reads.asked;
        let Some(place) = asked.iter().position(|(token, _)| *token == read.token) else {
            return;
        };
        let (_, waiters) = asked.remove(place);
        if held_up && slot.leads {
            return self.read_ended_held_up(group, read.outcome, waiters);
        }
        match read.outcome {
            ReadOutcome::At(index) => {
                // What this leader has proposed before the read is seen by it, too.
                let proposed = slot.proposed.back().map_or(LogIndex(0), |entry| entry.index);
                let index = if slot.leads { index.max(proposed) } else { index };
                slot.reads.confirmed(waiters, index, since);
            }
            // One that was refused is asked for again with the next tick at the latest: who was asked does not lead, and
            // who does will be known soon.
            ReadOutcome::Dropped if !slot.leads => slot.reads.waiting.extend(waiters),
            ReadOutcome::Dropped => {
                for waiter in waiters {
                    self.end(waiter, Done::Lost);
                }
            }
        }
    }

    /// Serves the reads that the applied state has caught up with.
    pub(super) fn serve_reads(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if slot.applying.is_some() || slot.reads.known.is_empty() {
            return;
        }
        let applied = slot.raft.applied_index();
        let ready: Vec<Read> = slot
            .reads
            .known
            .extract_if(.., |read| read.index <= applied)
            .collect();
        for read in ready {
            self.end(read.waiter, Done::Read);
        }
    }

    /// Sends the reads away for which a follower has been behind, or without a leader, for too long.
    pub(super) fn give_up_reads(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if slot.reads.deadline(slot.leads).is_none_or(|at| at > now) {
            return;
        }
        let overdue = |read: &mut Read| read.index > LogIndex(0) && read.since + BEHIND_MAX <= now;
        let late: Vec<Read> = slot.reads.known.extract_if(.., overdue).collect();
        for read in &late {
            slot.reads.behind = slot.reads.behind.max(read.index);
        }
        let leaderless = |since: &mut Mono| *since + LEADERLESS_MAX <= now;
        let waiting = match slot.reads.leaderless.take_if(leaderless) {
            Some(_) => std::mem::take(&mut slot.reads.waiting),
            None => Vec::new(),
        };
        for waiter in late.into_iter().map(|read| read.waiter).chain(waiting) {
            self.end(waiter, Done::Lost);
        }
    }

    /// The replica has stopped: what waits here is read elsewhere.
    pub(super) fn end_reads(&mut self, group: GroupId) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        for waiter in slot.take_all_reads() {
            self.end(waiter, Done::Lost);
        }
    }
}

impl Slot {
    /// Takes out everyone who waits for a read.
    pub(super) fn take_all_reads(&mut self) -> Vec<Waiter> {
        let mut waiters = self.reads.take_unconfirmed();
        waiters.extend(self.reads.known.drain(..).map(|read| read.waiter));
        waiters.extend(self.fetches.drain(..).map(|fetch| fetch.waiter));
        waiters
    }
}

impl Reads {
    /// Adds some that may be served once so much is applied.
    pub(super) fn confirmed(&mut self, waiters: Vec<Waiter>, index: LogIndex, since: Mono) {
        self.known
            .extend(waiters.into_iter().map(|waiter| Read { index, since, waiter }));
    }

    /// Adds one that was confirmed before, and has waited for the disk since.
    pub(super) fn fetched(&mut self, waiter: Waiter) {
        self.known.push(Read {
            index: LogIndex(0),
            since: Mono(0),
            waiter,
        });
    }

    /// Takes out who waits for a read to be confirmed. What was proposed here before the read may be lost with the
    /// leadership, and a follower's state would not show it to the connection that published it. Those who have waited
    /// for the disk stay.
    pub(super) fn take_unconfirmed(&mut self) -> Vec<Waiter> {
        self.leaderless = None;
        let mut waiters = std::mem::take(&mut self.waiting);
        waiters.extend(self.asked.drain(..).flat_map(|(_, waiters)| waiters));
        let unconfirmed = self.known.extract_if(.., |read| read.index > LogIndex(0));
        waiters.extend(unconfirmed.map(|read| read.waiter));
        waiters
    }

    /// Takes out the reads that wait for more than `durable`.
    pub(super) fn take_beyond(&mut self, durable: LogIndex) -> Vec<Waiter> {
        let beyond = self.known.extract_if(.., |read| read.index > durable);
        beyond.map(|read| read.waiter).collect()
    }

    /// When a follower has been behind for too long for the read that has waited longest, or without a leader. A leader
    /// is never behind: it waits for what it has proposed itself.
    pub(super) fn deadline(&self, leads: bool) -> Option<Mono> {
        let waits = |read: &&Read| read.index > LogIndex(0);
        let oldest = self.known.iter().find(waits).filter(|_| !leads);
        let behind = oldest.map(|read| read.since + BEHIND_MAX);
        let leaderless = self.leaderless.map(|since| since + LEADERLESS_MAX);
        [behind, leaderless].into_iter().flatten().min()
    }

    /// Whether nobody waits for anything.
    pub(super) const fn are_none(&self) -> bool {
        self.waiting.is_empty() && self.leaderless.is_none() && self.asked.is_empty() && self.known.is_empty()
    }

    /// Whether reads wait to be asked for.
    pub(super) const fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
