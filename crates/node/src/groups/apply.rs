//! Applying committed entries, and acting on what they bring about.

use super::effects::{Fx, Republish};
use super::reads::READ_ORDINAL;
use super::{Applying, Done, Machine, Slot, Waiter};
use crate::deliver_batch::Message;
use crate::worker::Core;
use tidelock_base::{GroupId, LogIndex, Term};
use tidelock_jetstream::stream::{CommandOutcome, Step};
use tidelock_record::RecordView;
use tidelock_replica::{Committed, CommittedKind};

/// Units of apply that one group may spend before the worker looks at others.
const APPLY_BUDGET: u32 = 65_536;

/// How applying one entry ended.
enum Progress {
    /// It is applied.
    Done,
    /// It goes on later: the budget is used up.
    More,
    /// It goes on when something has been read from disk.
    Waits,
    /// The replica cannot go on.
    Stops(String),
}

impl Core {
    /// Applies what is committed, within a budget.
    pub(super) fn apply(&mut self, group: GroupId) {
        loop {
            let Some(slot) = self.groups.slots.get_mut(&group) else {
                return;
            };
            if slot.failed.is_some() {
                return;
            }
            if slot.applying.is_none() {
                let Some(next) = slot.queue.pop_front() else {
                    return;
                };
                if group == GroupId::META {
                    self.apply_meta(next);
                    continue;
                }
                if !self.begin_entry(group, next) {
                    continue;
                }
            }
            match self.step_entry(group) {
                Progress::Done => {}
                Progress::More => {
                    self.groups.later.insert(group);
                    return;
                }
                Progress::Waits => {
                    self.store_io(group);
                    return;
                }
                Progress::Stops(text) => {
                    self.stop_replica(group, text);
                    return;
                }
            }
        }
    }

    /// Starts applying an entry of a stream; `false` if it is done already, or cannot be applied.
    fn begin_entry(&mut self, group: GroupId, entry: Committed) -> bool {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return false;
        };
        let Machine::Stream(stream) = &mut slot.machine else {
            return false;
        };
        let Committed {
            index,
            term,
            kind,
            data,
        } = entry;
        let begun = match kind {
            CommittedKind::Normal => {
                let checked = if slot.leads {
                    Ok(())
                } else {
                    tidelock_jetstream::command::check_records(&data).map_err(|e| e.to_string())
                };
                checked.and_then(|()| stream.begin(index, term, data).map_err(|e| e.to_string()))
            }
            CommittedKind::TermStart | CommittedKind::Members { .. } => {
                let applied = stream.term_start(index, term).map_err(|e| e.to_string());
                if let Err(text) = applied {
                    self.stop_replica(group, text);
                    return false;
                }
                slot.raft.applied(index);
                let members = match kind {
                    CommittedKind::Members { change, context } => Some((change, context)),
                    CommittedKind::Normal | CommittedKind::TermStart => None,
                };
                self.entry_applied(group, index, term);
                if let Some((change, context)) = members {
                    self.members_changed(group, &change, &context);
                }
                return false;
            }
        };
        if let Err(text) = begun {
            self.stop_replica(group, text);
            return false;
        }
        slot.applying = Some(Applying { index, term });
        true
    }

    fn step_entry(&mut self, group: GroupId) -> Progress {
        let mut fx = std::mem::take(&mut self.fx);
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return Progress::Done;
        };
        let Machine::Stream(stream) = &mut slot.machine else {
            return Progress::Done;
        };
        fx.leads = slot.leads;
        fx.republishes = stream.config().republish.is_some();
        fx.has_consumers = stream.consumers().next().is_some();
        std::mem::swap(&mut fx.events, &mut slot.events);
        let step = stream.step(APPLY_BUDGET, &mut fx);
        std::mem::swap(&mut fx.events, &mut slot.events);
        let progress = match step {
            Ok(Step::Done) => Progress::Done,
            Ok(Step::More) => Progress::More,
            Ok(Step::Need(need)) => {
                if slot.unread.pauses(need.seq) || stream.fetch(need) {
                    Progress::Waits
                } else {
                    Progress::More
                }
            }
            Ok(Step::Damaged(seq)) if slot.awaits_copy(seq) => Progress::Waits,
            Ok(Step::Damaged(seq)) => {
                slot.spoil();
                Progress::Stops(format!("message {seq} is damaged on disk"))
            }
            Err(error) => Progress::Stops(error.to_string()),
        };
        self.outcomes_out(group, &mut fx);
        let finished = matches!(progress, Progress::Done);
        if finished {
            self.finish_entry(group, &mut fx);
        } else if let Some(slot) = self.groups.slots.get_mut(&group) {
            slot.pending_replies.append(&mut fx.replies);
            slot.pending_acked.append(&mut fx.acked);
        }
        for message in fx.republish.drain(..) {
            self.republish(group, &message);
        }
        self.fx = fx;
        progress
    }

    /// An entry of a stream is applied whole.
    fn finish_entry(&mut self, group: GroupId, fx: &mut Fx) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let Some(Applying { index, term }) = slot.applying.take() else {
            return;
        };
        slot.raft.applied(index);
        slot.applied_term = term;
        slot.expiring = false;
        slot.stamps.seen(slot.applied_stamp(), self.now.mono);
        self.charge(group);
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        let mut replies = std::mem::take(&mut slot.pending_replies);
        replies.append(&mut fx.replies);
        let mut acked = std::mem::take(&mut slot.pending_acked);
        acked.append(&mut fx.acked);
        let leads = slot.leads;
        let mut events = std::mem::take(&mut slot.events);
        if leads && !events.is_empty() {
            self.consumers_applied(group, &mut events);
        }
        events.clear();
        if let Some(slot) = self.groups.slots.get_mut(&group) {
            slot.events = events;
        }
        let waiters = self.take_waiters(group, index, term);
        for (ordinal, waiter) in waiters {
            self.end_command(waiter, ordinal, &replies, &acked);
        }
        if let Some((at, digest)) = fx.digest.take() {
            self.digest_applied(group, at, digest);
        }
        self.serve_reads(group);
    }

    fn end_command(
        &mut self,
        waiter: Waiter,
        ordinal: u32,
        replies: &[(u32, CommandOutcome)],
        acked: &[u32],
    ) {
        if ordinal == READ_ORDINAL {
            self.end(waiter, Done::Read);
        } else if let Some((_, outcome)) = replies.iter().find(|(n, _)| *n == ordinal) {
            self.end(waiter, Done::Stream(outcome));
        } else if acked.contains(&ordinal) {
            self.end(waiter, Done::Acked);
        } else {
            self.end(waiter, Done::Stream(&CommandOutcome::Done));
        }
    }

    /// Those that wait for the entry at `index`; those of entries that another leader's has replaced are told so.
    pub(super) fn take_waiters(&mut self, group: GroupId, index: LogIndex, term: Term) -> Vec<(u32, Waiter)> {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return Vec::new();
        };
        let mut lost = Vec::new();
        let mut found = Vec::new();
        while slot.proposed.front().is_some_and(|entry| entry.index <= index) {
            let Some(entry) = slot.proposed.pop_front() else {
                break;
            };
            if entry.index == index && entry.term == term {
                found = entry.waiters;
            } else {
                lost.extend(entry.waiters);
            }
        }
        for (_, waiter) in lost {
            self.end(waiter, Done::Lost);
        }
        found
    }

    /// An entry without commands is applied; the first of this replica's own term makes it a leader that is current.
    pub(super) fn entry_applied(&mut self, group: GroupId, index: LogIndex, term: Term) {
        let now = self.now;
        drop(self.take_waiters(group, index, term));
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        if slot.leads || !slot.raft.is_leader() || slot.raft.term() != term {
            return;
        }
        slot.leads = true;
        slot.leads_since = now.wall;
        slot.stamps.seen(slot.applied_stamp(), now.mono);
        slot.digests.elected(now.mono);
        slot.expiring = false;
        self.groups.touched.insert(group);
        // What it proposed in an earlier term and is not in the log by now never will be; left there, it would count
        // as in flight and stand before what is proposed from now on.
        let lost = std::mem::take(&mut slot.proposed);
        for (_, waiter) in lost.into_iter().flat_map(|entry| entry.waiters) {
            self.end(waiter, Done::Lost);
        }
        self.now_leads(group);
    }

    /// A replica cannot go on; the others, if there are any, can.
    pub(super) fn stop_replica(&mut self, group: GroupId, text: String) {
        let Some(slot) = self.groups.slots.get_mut(&group) else {
            return;
        };
        tracing::error!("Replica of stream {:?} has stopped: {text}", slot.name);
        slot.failed = Some(text);
        slot.raft.stop();
        slot.leads = false;
        self.send_early_away(group);
        self.end_reads(group);
        self.consumers_follow(group);
        self.sources_follow(group);
    }

    /// Publishes a stored message again, as the stream's configuration says.
    fn republish(&mut self, group: GroupId, message: &Republish) {
        let Some(slot) = self.slot(group) else { return };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let Some(republish) = stream.config().republish.clone() else {
            return;
        };
        let (account, name) = (slot.account, slot.name.clone());
        let Ok(record) = RecordView::parse(&message.record) else {
            return;
        };
        let Ok(transform) = republish.transform() else {
            return;
        };
        let Some(subject) = transform.apply(record.subject(), message.seq.0) else {
            return;
        };
        let mut header = record.header().to_vec();
        let time = tidelock_api::Time(message.ts).to_string();
        for (key, value) in [
            ("Nats-Stream", name.to_string()),
            (
                "Nats-Subject",
                String::from_utf8_lossy(record.subject()).into_owned(),
            ),
            ("Nats-Sequence", message.seq.to_string()),
            ("Nats-Time-Stamp", time),
            ("Nats-Last-Sequence", message.previous.to_string()),
        ] {
            tidelock_wire::header::append(&mut header, key.as_bytes(), value.as_bytes());
        }
        let payload = if republish.headers_only {
            let size = record.payload().len().to_string();
            tidelock_wire::header::append(&mut header, b"Nats-Msg-Size", size.as_bytes());
            bytes::Bytes::new()
        } else {
            record.payload_bytes()
        };
        let message = Message {
            subject: &subject,
            target: &subject,
            reply: b"",
            header: &header,
            payload: &payload,
            shared: Some(&payload),
        };
        self.publish_made(account, &message);
    }
}

impl Slot {
    /// Index of the last entry applied whole.
    pub(crate) fn applied(&self) -> LogIndex {
        self.raft.applied_index()
    }
}
