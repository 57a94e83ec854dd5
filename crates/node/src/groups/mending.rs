//! Stored messages that are damaged on this disk come from another replica (promise P4).
//!
//! ```text
//!   this replica                            another one, and then the next
//!     messages of these sequences? ------------>  reads them from its disk, if need be
//!     <------------ those that it has; the rest it has not
//!     each is compared with what the block's index says of it, and shown from then on;
//!     when a block lacks nothing it is written again (`tidelock_store`, "Mending")
//! ```
//! A replica is not given up for damaged messages: the others may have damage elsewhere. Who needs a damaged message
//! waits for it: a request, a consumer, and the entry that is being applied. When all other replicas that are reached
//! were asked for one in vain, requests for it get an error, and the others are asked again after [`ASK_AGAIN`].
//!
//! A message is what the log has made of its sequence, on every replica that has it. So any replica can be asked, and
//! one that does not have it is behind, has it damaged itself, or is ahead and has removed it.

use super::chain::{put, take};
use super::trouble::What;
use super::{Machine, Slot, Waiter};
use crate::cell::{Cell, LaneKind, Reply, Request};
use crate::worker::Core;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidelock_base::{GroupId, LogIndex, Mono, ReplicaId, StreamSeq};
use tidelock_store::Lookup;

/// Subject of a request for messages; never a client's.
const MESSAGES_SUBJECT: &[u8] = b"$TL.MESSAGES";
/// Request numbers from here on are requests for messages.
pub(super) const MESSAGES_NUMBERS: u64 = 1 << 61;
/// Messages of one request.
const ASKED_MAX: usize = 512;
/// Bytes of one answer, its first message apart.
const ANSWER_BYTES: usize = 1 << 20;
/// A replica that has not answered by then is asked no more for now.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// All others were asked in vain: they are asked again after this.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Bytes of messages that wait in memory for their blocks to be written; no more are asked for beyond.
const WAITING_BYTES: u64 = 64 << 20;

/// In place of a time: the message was here, and the log has removed it.
const REMOVED: i64 = i64::MIN;

/// A message in an answer.
struct Given<'a> {
    seq: StreamSeq,
    ts: i64,
    /// Empty if it is not there.
    record: &'a [u8],
}

impl<'a> Given<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        put(out, &self.seq.value().to_le_bytes());
        put(out, &self.ts.to_le_bytes());
        put(out, self.record);
    }

    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        Some(Self {
            seq: StreamSeq(u64::from_le_bytes(take(rest)?.try_into().ok()?)),
            ts: i64::from_le_bytes(take(rest)?.try_into().ok()?),
            record: take(rest)?,
        })
    }
}

/// What a replica does about its damaged messages.
#[derive(Debug, Default)]
pub(super) struct Mending {
    asked: Option<Asked>,
    /// What the others have not, as they have said.
    lacking: BTreeMap<ReplicaId, BTreeSet<StreamSeq>>,
    /// Others that have not answered.
    silent: Vec<ReplicaId>,
    /// Those that have removed something that is damaged here.
    removed: BTreeSet<ReplicaId>,
    /// What nobody who is reached has.
    in_vain: BTreeSet<StreamSeq>,
    /// Then all others are asked for all again.
    pub(super) again_at: Option<Mono>,
    /// There is damage, or there was at the last look.
    is_on: bool,
    /// Messages that have come from other replicas since the start, and those of them before there was this damage.
    pub(super) mended: u64,
    mended_before: u64,
}

/// A request that is out.
#[derive(Debug)]
struct Asked {
    replica: ReplicaId,
    /// Comes back with the answer.
    what: Bytes,
    until: Mono,
}

impl Mending {
    /// When something is to be done.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.asked.as_ref().map(|asked| asked.until).or(self.again_at)
    }

    /// What others have said before counts no more.
    fn begin_anew(&mut self) {
        self.lacking.clear();
        self.removed.clear();
        self.silent.clear();
        self.in_vain.clear();
        self.again_at = None;
    }

    /// Whether another replica has said that it has not what is damaged here.
    pub(super) fn has_heard_no(&self) -> bool {
        !self.lacking.is_empty()
    }

    /// How many others have removed something that is damaged here.
    pub(super) fn removed_by(&self) -> usize {
        self.removed.len()
    }

    /// Whether a replica may have a message.
    fn may_have(&self, replica: ReplicaId, seq: StreamSeq) -> bool {
        let lacks = |lacking: &BTreeSet<StreamSeq>| lacking.contains(&seq);
        !self.silent.contains(&replica) && !self.lacking.get(&replica).is_some_and(lacks)
    }
}

impl Slot {
    /// Whether a damaged message may come from another replica soon.
    pub(crate) fn awaits_copy(&self, seq: StreamSeq) -> bool {
        let Machine::Stream(stream) = &self.machine else {
            return false;
        };
        let store = stream.store();
        let (from, upto) = store.shown_with(seq);
        let is_in_vain = self.mending.in_vain.range(from..=upto).next().is_some();
        self.has_others() && !is_in_vain && store.may_be_mended(seq)
    }

    /// Damaged messages that have not come from elsewhere, as far as is known.
    pub(crate) fn damaged_messages(&self) -> u64 {
        match &self.machine {
            Machine::Stream(stream) => stream.store().damaged().count() as u64,
            Machine::Meta(_) => 0,
        }
    }

    /// Messages that were damaged, and have come from other replicas, since the start.
    pub(crate) const fn mended_messages(&self) -> u64 {
        self.mending.mended
    }

    /// Whether it has damaged messages that others may have.
    pub(crate) fn is_being_mended(&self) -> bool {
        let Machine::Stream(stream) = &self.machine else {
            return false;
        };
        self.has_others() && stream.store().damaged().next().is_some()
    }

    /// Whether blocks are about to be written again.
    pub(super) fn is_mending(&self) -> bool {
        let Machine::Stream(stream) = &self.machine else {
            return false;
        };
        let hopes = self.mending.in_vain.is_empty() && self.write_again_at.is_none();
        hopes && self.has_others() && stream.store().is_mending()
    }

    pub(super) fn has_others(&self) -> bool {
        self.replicas.iter().any(|one| one.id != self.me)
    }

    /// Messages that somebody else may have, the first ones.
    fn wanted(&self) -> Vec<StreamSeq> {
        let Machine::Stream(stream) = &self.machine else {
            return Vec::new();
        };
        let store = stream.store();
        if store.copied_bytes() > WAITING_BYTES {
            return Vec::new();
        }
        let damaged = store.damaged().filter(|seq| store.may_be_mended(*seq));
        damaged
            .filter(|seq| !self.mending.in_vain.contains(seq))
            .take(ASKED_MAX)
            .collect()
    }
}

impl Core {
    /// A block was found damaged.
    pub(super) fn damage_found(&mut self, group: GroupId) {
        let Some(slot) = self.slot(group) else { return };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let mut damaged = stream.store().damaged();
        let Some(first) = damaged.next() else { return };
        let count = 1 + damaged.count();
        let remedy = if slot.has_others() {
            "they are fetched from other replicas"
        } else {
            "there is no other replica"
        };
        let text = format!(
            "JetStream stream '{} > {}': {count} messages are damaged on disk, the first is {first}; {remedy}",
            self.account_name(slot.account),
            slot.name,
        );
        self.trouble(What::Damage(group), &text);
    }

    /// Asks another replica for what is damaged, if anything is.
    pub(super) fn mend(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        if !stream.store().has_damage() {
            if std::mem::take(&mut slot.mending.is_on) {
                self.mending_over(group);
                self.go_on_if_listed(group);
            }
            return;
        }
        slot.mending.is_on = true;
        if slot.is_beyond_hope() {
            return self.give_up_held(group);
        }
        if !slot.has_others() {
            return;
        }
        let mending = &mut slot.mending;
        if let Some(late) = mending.asked.take_if(|asked| asked.until <= now) {
            mending.silent.push(late.replica);
        }
        if mending.again_at.is_some_and(|at| at <= now) {
            mending.begin_anew();
        }
        let rests = slot.is_held() && slot.mending.again_at.is_some();
        if slot.mending.asked.is_none() && !rests {
            self.ask_for_messages(group);
        }
    }

    /// Asks a replica for what is wanted and it may have.
    fn ask_for_messages(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.slot(group) else { return };
        let wanted = slot.wanted();
        if wanted.is_empty() {
            return;
        }
        let others = slot.replicas.iter().filter(|one| one.id != slot.me);
        let reached = others.filter(|one| self.is_online(one.node));
        let mut asked = None;
        for one in reached {
            let may_have = |seq: &&StreamSeq| slot.mending.may_have(one.id, **seq);
            let what: Vec<[u8; 8]> = wanted
                .iter()
                .filter(may_have)
                .map(|seq| seq.value().to_le_bytes())
                .collect();
            if !what.is_empty() {
                asked = Some((one.id, one.node, Bytes::from(what.concat())));
                break;
            }
        }
        let Some((replica, node, what)) = asked else {
            if slot.is_held() {
                return self.held_asks_again(group);
            }
            return self.asked_in_vain(group, &wanted);
        };
        if let Some(slot) = self.groups.slots.get_mut(&group) {
            slot.mending.asked = Some(Asked {
                replica,
                what: what.clone(),
                until: now + ANSWER_MAX,
            });
        }
        let number = MESSAGES_NUMBERS | group.0;
        self.ask_replica(group, node, number, MESSAGES_SUBJECT, what);
    }

    /// Nobody who is reached has these messages.
    fn asked_in_vain(&mut self, group: GroupId, wanted: &[StreamSeq]) {
        let now = self.now.mono;
        let Some(slot) = self.slot_mut(group) else { return };
        slot.mending.again_at.get_or_insert(now + ASK_AGAIN);
        slot.mending.in_vain.extend(wanted);
        slot.wake_fetches(StreamSeq(0), StreamSeq(u64::MAX));
        let Some((slot, first)) = self.slot(group).zip(wanted.first()) else {
            return;
        };
        let text = format!(
            "JetStream stream '{} > {}': message {first} is damaged on disk, and no other replica that is reached has it",
            self.account_name(slot.account),
            slot.name,
        );
        self.trouble(What::Damage(group), &text);
    }

    /// Nothing is damaged any more.
    fn mending_over(&mut self, group: GroupId) {
        let Some(slot) = self.slot_mut(group) else { return };
        let mended = slot.mending.mended;
        let came = mended - slot.mending.mended_before;
        slot.mending = Mending {
            mended,
            mended_before: mended,
            ..Mending::default()
        };
        // Some may have waited for a message that was removed meanwhile.
        slot.wake_fetches(StreamSeq(0), StreamSeq(u64::MAX));
        self.trouble_forgotten(What::Damage(group));
        let Some(slot) = self.slot(group) else { return };
        tracing::info!(
            "JetStream stream '{} > {}': nothing is known to be damaged on disk any more; {came} messages have come from other \
             replicas",
            self.account_name(slot.account),
            slot.name,
        );
    }

    /// A peer asks for messages; `false` if the request is something else.
    pub(super) fn messages_request(&mut self, request: &Request) -> bool {
        if request.subject != MESSAGES_SUBJECT {
            return false;
        }
        self.give_messages(Box::new(request.clone()));
        true
    }

    /// Gives a peer the messages that it asks for, as many as one answer holds; of those that are not here, that they
    /// are not.
    pub(super) fn give_messages(&mut self, request: Box<Request>) {
        let mut out = Vec::new();
        let mut cold = None;
        let slot = request.group.and_then(|group| Some((group, self.slot(group)?)));
        if let Some((group, slot)) = slot.filter(|(_, slot)| slot.failed.is_none() || slot.is_held())
            && let Machine::Stream(stream) = &slot.machine
        {
            let (asked, _) = request.payload.as_chunks::<8>();
            for seq in asked.iter().map(|bytes| StreamSeq(u64::from_le_bytes(*bytes))) {
                let store = stream.store();
                let mut without = 0;
                let found = match store.get(seq) {
                    Lookup::Found(stored) => Some(stored),
                    Lookup::Missing if !slot.is_held() && seq <= store.last_seq() => {
                        without = REMOVED;
                        None
                    }
                    Lookup::Cold(need) if !slot.unread.pauses(seq) => {
                        cold = Some((group, need));
                        break;
                    }
                    Lookup::Cold(_) | Lookup::Missing | Lookup::Damaged => None,
                };
                let given = Given {
                    seq,
                    ts: found.as_ref().map_or(without, |stored| stored.ts.0),
                    record: found.as_ref().map_or(&[], |stored| &stored.record),
                };
                given.put(&mut out);
                if out.len() >= ANSWER_BYTES {
                    break;
                }
            }
        }
        if let Some((group, need)) = cold.filter(|_| out.is_empty()) {
            return self.fetch(group, need, Waiter::Messages(request));
        }
        let reply = Reply {
            id: request.id,
            header: request.payload.clone(),
            payload: Bytes::from(out),
            last: true,
            after_meta: LogIndex(0),
        };
        self.send_cell(request.node, LaneKind::Bulk, Cell::Reply(Box::new(reply)));
    }

    /// Messages have come that were asked for.
    pub(super) fn messages_came(&mut self, group: GroupId, reply: &Reply) {
        let Some(slot) = self.slot_mut(group) else { return };
        let asked = slot.mending.asked.take_if(|asked| asked.what == reply.header);
        let (Some(asked), Machine::Stream(stream)) = (asked, &mut slot.machine) else {
            return;
        };
        let mut taken = Vec::new();
        let mut lacking = Vec::new();
        let mut rest = reply.payload.as_ref();
        while let Some(Given { seq, ts, record }) = Given::take(&mut rest) {
            if record.is_empty() && ts == REMOVED {
                slot.mending.removed.insert(asked.replica);
            }
            // A copy of its own, so that a small one does not hold on to the whole answer.
            if !record.is_empty() && stream.mend(seq, ts, Bytes::copy_from_slice(record)) {
                taken.push(seq);
            } else {
                lacking.push(seq);
            }
        }
        if taken.is_empty() && lacking.is_empty() {
            slot.mending.silent.push(asked.replica);
        }
        slot.mending
            .lacking
            .entry(asked.replica)
            .or_default()
            .extend(lacking);
        slot.mending.mended += taken.len() as u64;
        for seq in &taken {
            slot.wake_fetches(*seq, *seq);
        }
    }

    /// Whether a damaged message may come from another replica, however long it takes: consumers pass over nothing that
    /// somebody may have.
    pub(crate) fn may_get_copy(&self, group: GroupId, seq: StreamSeq) -> bool {
        let slot = self.slot(group).filter(|slot| slot.has_others());
        slot.is_some()
            && self
                .stream(group)
                .is_some_and(|stream| stream.store().may_be_mended(seq))
    }
}
