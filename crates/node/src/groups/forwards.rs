//! Publishes into streams: from this worker's clients to the leader, at the leader into its log, and their outcomes
//! back.

use super::{Machine, effects::Fx};
use crate::cell::{Cell, Forward, LaneKind, Outcomes};
use crate::deliver_batch::Message;
use crate::forward::{Full, Sender};
use crate::interest::ConnKey;
use crate::worker::Core;
use std::sync::Arc;
use tidelock_base::{AccountId, ApiError, ApiErrorCode, GroupId, Mono, NodeId, WorkerId};
use tidelock_jetstream::command::WindowKey;

/// A connection that publishes into a full stream is paused for at most this long at a time.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

impl Core {
    /// Takes a publish into a stream: it leaves for the leader at the end of the turn.
    pub(crate) fn publish_into(
        &mut self,
        group: GroupId,
        from: Option<ConnKey>,
        account: AccountId,
        message: &Message<'_>,
    ) {
        if let Some(code) = self.turns_away(group, message) {
            self.refuse_publish(group, account, message.reply, code);
            return;
        }
        let conn = from.unwrap_or(ConnKey {
            index: u32::MAX,
            generation: 0,
        });
        let sender = self.sender(group);
        let parts = (message.subject, message.header, message.payload);
        match sender.push(conn, account, parts, message.reply) {
            Ok(()) => {
                let (number, nearly_full) = (sender.last_unresolved(), sender.is_nearly_full());
                let Some(conn) = from else { return };
                if let Some(client) = self.client(conn) {
                    client.published.note(group, number);
                }
                if nearly_full {
                    self.pause_for_stream(group, conn);
                }
            }
            Err(Full) => {
                self.refuse_publish(group, account, message.reply, ApiErrorCode::StreamTooManyRequests)
            }
        }
    }

    /// The sending side of a stream on this worker.
    fn sender(&mut self, group: GroupId) -> &mut Sender {
        let key = WindowKey {
            boot: self.shared.identity.boot,
            worker: self.id,
        };
        let leader = if self.senders.contains_key(&group) {
            None
        } else {
            self.other_than(group, None)
        };
        let sender = self.senders.entry(group).or_insert_with(|| {
            let mut sender = Sender::new(group, key);
            sender.leader = leader;
            sender
        });
        if sender.is_fresh() {
            self.busy_senders.insert(group);
        }
        sender
    }

    fn pause_for_stream(&mut self, group: GroupId, conn: ConnKey) {
        let until = self.now.mono + PAUSE;
        let Some(client) = self.client(conn) else { return };
        if client.paused_until.is_some() {
            return;
        }
        client.paused_until = Some(until);
        self.arm(until, conn);
        if let Some(sender) = self.senders.get_mut(&group) {
            sender.paused.push(conn);
        }
    }

    fn refuse_publish(&mut self, group: GroupId, account: AccountId, reply: &[u8], code: ApiErrorCode) {
        if reply.is_empty() {
            return;
        }
        let directory = self.shared.directory.load_full();
        let Some(route) = directory.by_group(group) else {
            return;
        };
        let mut body = Vec::new();
        tidelock_api::write_pub_ack_error(&mut body, &route.name, &ApiError::new(code));
        let message = Message {
            subject: reply,
            target: reply,
            reply: b"",
            header: b"",
            payload: &body,
            shared: None,
        };
        self.publish_made(account, &message);
    }

    /// Sends this turn's publishes, and what has to be sent again.
    pub(crate) fn flush_senders(&mut self) {
        let now = self.now.mono;
        let mut forwards = std::mem::take(&mut self.forwards);
        for group in std::mem::take(&mut self.busy_senders) {
            let Some(sender) = self.senders.get_mut(&group) else {
                continue;
            };
            sender.take(now, &mut forwards);
            let leader = sender.leader;
            for forward in forwards.drain(..) {
                self.send_forward(leader, forward);
            }
        }
        self.forwards = forwards;
    }

    fn send_forward(&mut self, leader: Option<NodeId>, forward: Forward) {
        let group = forward.group;
        if leader == Some(self.shared.identity.node) && self.shared.worker_of(group) == self.id {
            self.receive_forward(forward);
        } else if let Some(node) = leader {
            self.send_cell(node, LaneKind::Client, Cell::Forward(forward));
        }
    }

    /// Publishes have come in for a stream that this node should lead.
    pub(crate) fn receive_forward(&mut self, forward: Forward) {
        let now = self.log_time();
        let (group, sender) = (forward.group, forward.sender);
        if self.leads(group) {
            if self.is_held_up(group) {
                // Nothing more is kept for a log that cannot be written. The sender sends it again.
                return;
            }
            if self.may_be_deleted(group) {
                let hint = Some(self.shared.identity.node);
                return self.tell_sender(sender, Cell::NotLeader { group, sender, hint });
            }
            self.let_in(&forward);
            if let Some(slot) = self.slot_mut(group) {
                slot.early
                    .took(sender, forward.first, forward.count, forward.low_water);
                slot.seal_if_full(now);
            }
            self.begin_early(group);
            return;
        }
        // Its own name means: it is about to lead.
        let hint = self.leader_of(group);
        self.tell_sender(sender, Cell::NotLeader { group, sender, hint });
    }

    /// Sends a cell back to the worker that numbered publishes.
    fn tell_sender(&mut self, key: WindowKey, cell: Cell) {
        if key.boot != self.shared.identity.boot {
            if let Some(node) = self.node_of_boot(key.boot) {
                self.send_cell(node, LaneKind::Client, cell);
            }
        } else if key.worker == self.id {
            self.receive_here(cell);
        } else {
            self.out.cells.push_back((key.worker, cell));
        }
    }

    /// A cell about this worker's own publishes.
    pub(crate) fn receive_here(&mut self, cell: Cell) {
        match cell {
            Cell::Outcomes(outcomes) => self.receive_outcomes(&outcomes),
            Cell::NotLeader { group, hint, .. } => self.not_leader(group, hint),
            _ => {}
        }
    }

    /// Hands out what applied entries say about publishes.
    pub(super) fn outcomes_out(&mut self, group: GroupId, fx: &mut Fx) {
        for run in std::mem::take(&mut fx.outcomes) {
            let outcomes = Outcomes {
                group,
                sender: run.key,
                first: run.first,
                list: run.list,
            };
            self.tell_sender(run.key, Cell::Outcomes(outcomes));
        }
    }

    /// Tells clients what became of their publishes.
    pub(crate) fn receive_outcomes(&mut self, outcomes: &Outcomes) {
        let group = outcomes.group;
        let directory = self.shared.directory.load_full();
        let name: Arc<str> = match directory.by_group(group) {
            Some(route) => Arc::clone(&route.name),
            None => match self.slot(group) {
                Some(slot) => Arc::clone(&slot.name),
                None => return,
            },
        };
        let Some(mut sender) = self.senders.remove(&group) else {
            return;
        };
        let domain = self
            .shared
            .options
            .jetstream
            .as_ref()
            .and_then(|js| js.domain.clone());
        let no_ack = directory.by_group(group).is_some_and(|route| route.no_ack);
        sender.resolve(outcomes.first, outcomes.list.len(), |route, reply, at, count| {
            if reply.is_empty() || no_ack {
                return;
            }
            for outcome in outcomes.list.iter().skip(at).take(count) {
                self.pub_ack(route.account, reply, &name, domain.as_deref(), outcome);
            }
        });
        if sender.has_room() {
            for conn in std::mem::take(&mut sender.paused) {
                self.resume(conn);
            }
        }
        if sender.unresolved() > 0 {
            self.busy_senders.insert(group);
        }
        self.senders.insert(group, sender);
    }

    /// The node that got this worker's publishes does not lead.
    pub(crate) fn not_leader(&mut self, group: GroupId, hint: Option<NodeId>) {
        if let Some(hint) = hint {
            self.groups.hints.insert(group, hint);
        }
        let Some(current) = self.senders.get(&group).map(|sender| sender.leader) else {
            return;
        };
        let next = hint
            .filter(|node| self.is_online(*node))
            .or_else(|| self.other_than(group, current));
        if let Some(sender) = self.senders.get_mut(&group) {
            // Sent again by the clock, not at once: two nodes that name each other must not spin.
            sender.redirect(next);
        }
        let due = self.now.mono + crate::forward::REDIRECT_AFTER;
        self.senders_at = Some(self.senders_at.map_or(due, |at| at.min(due)));
    }

    /// Where to go with what the node that got it last does not take, or does not answer. The local replica knows who
    /// leads, or will hear of it, and a leader that is not ready yet soon is; without one, the nodes of the group are
    /// asked one after the other, those that cannot be reached left out.
    fn other_than(&self, group: GroupId, current: Option<NodeId>) -> Option<NodeId> {
        if self.slot(group).is_some() {
            return self.leader_of(group).or(current);
        }
        let directory = self.shared.directory.load();
        let nodes = &directory.by_group(group)?.nodes;
        let after = nodes
            .iter()
            .position(|node| Some(*node) == current)
            .map_or(0, |at| at + 1);
        let (before, behind) = nodes.split_at(after);
        let mut others = behind.iter().chain(before).copied();
        others.find(|node| self.is_online(*node)).or(current)
    }

    /// The leader of a group of this worker is another, has become known, or is ready now.
    pub(super) fn leader_changed(&mut self, group: GroupId) {
        let Some(node) = self.leader_of(group) else { return };
        self.follow_leader(group, node);
        for worker in (0..self.shared.workers)
            .map(WorkerId)
            .filter(|worker| *worker != self.id)
        {
            self.out.cells.push_back((worker, Cell::Leads { group, node }));
        }
    }

    /// The worker that has this node's replica of a group says who leads it.
    pub(crate) fn leads_there(&mut self, group: GroupId, node: NodeId) {
        self.groups.hints.insert(group, node);
        self.follow_leader(group, node);
    }

    fn follow_leader(&mut self, group: GroupId, leader: NodeId) {
        self.pulls_leader_changed(group);
        if let Some(sender) = self.senders.get_mut(&group) {
            sender.restart(Some(leader));
            self.busy_senders.insert(group);
        }
    }

    /// The link to a node was lost or is there again: what was on its way is sent again.
    pub(crate) fn resend_to(&mut self, node: NodeId) {
        for (group, sender) in &mut self.senders {
            if sender.leader == Some(node) {
                sender.restart(Some(node));
                self.busy_senders.insert(*group);
            }
        }
    }

    /// Sends again what has waited too long for an answer.
    pub(crate) fn tick_senders(&mut self) {
        let now = self.now.mono;
        if self.senders_at.is_none_or(|at| at > now) {
            return;
        }
        self.senders_at = None;
        let mut due = Vec::new();
        let mut next: Option<Mono> = None;
        for (group, sender) in &mut self.senders {
            if let Some(at) = sender.tick(now) {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
            if sender.has_work() {
                due.push(*group);
            }
        }
        for group in due {
            if let Some(sender) = self.senders.get(&group).filter(|sender| sender.is_unheard()) {
                let next = self.other_than(group, sender.leader);
                if let Some(sender) = self.senders.get_mut(&group) {
                    sender.leader = next;
                }
            }
            self.busy_senders.insert(group);
        }
        self.senders_at = next;
    }

    /// Wants [`Core::tick_senders`] while something is unresolved.
    pub(crate) fn arm_senders(&mut self) {
        if self.senders_at.is_none() && self.senders.values().any(|sender| sender.unresolved() > 0) {
            self.senders_at = Some(self.now.mono + crate::forward::RESEND_AFTER);
        }
    }

    /// A stream is gone: what was on its way to it gets no answer, as nobody can tell whether it was stored.
    pub(super) fn drop_sender(&mut self, group: GroupId) {
        self.busy_senders.remove(&group);
        if let Some(mut sender) = self.senders.remove(&group) {
            for conn in std::mem::take(&mut sender.paused) {
                self.resume(conn);
            }
        }
    }
}

impl super::Slot {
    /// The builder of the open entry of a stream.
    pub(super) fn open_stream(&mut self) -> &mut tidelock_jetstream::command::EntryBuilder {
        debug_assert!(
            matches!(self.machine, Machine::Stream(_)),
            "publishes go to streams"
        );
        &mut self.open.stream
    }
}
