//! Acknowledgements and answers to flow control: where they enter, and at the leader.

use super::items::{Item, Say};
use super::subjects::{AckSubject, FlowSubject};
use super::verbs::Verb;
use crate::cell::{Acks, Cell, LaneKind, Request, RequestId};
use crate::deliver_batch::Message;
use crate::groups::Machine;
use crate::interest::ConnKey;
use crate::worker::Core;
use bytes::Bytes;
use std::time::Duration;
use tidelock_api::AckPolicy;
use tidelock_base::{AccountId, GroupId, Mono, NodeId, StreamSeq};
use tidelock_jetstream::command::WindowKey;
use tidelock_jetstream::consumer::AckKind;

/// Acknowledgements whose leader is not known are tried again after this long.
pub(super) const RETRY: Duration = Duration::from_millis(50);
/// They are given up after this long: their messages are delivered again.
const KEEP: Duration = Duration::from_secs(5);
/// Bytes of them kept a stream; what comes then is given up.
const KEEP_BYTES_MAX: usize = 1 << 20;
/// Nodes that do not lead pass acknowledgements on this often at most.
const HOPS_MAX: u8 = 3;

/// Acknowledgements for one leader.
#[derive(Default)]
pub(super) struct Parcel {
    items: Vec<u8>,
    hops: u8,
    since: Option<Mono>,
}

impl Core {
    /// A client has acknowledged a message; answers whether there is such a stream.
    pub(crate) fn ack_entry(
        &mut self,
        conn: Option<ConnKey>,
        account: AccountId,
        message: &Message<'_>,
    ) -> bool {
        let Some(AckSubject {
            stream,
            consumer,
            seq,
        }) = AckSubject::parse(message.subject)
        else {
            return false;
        };
        let Some(group) = self.group_of(account, stream) else {
            return false;
        };
        let (say, text) = match Verb::parse(message.payload) {
            Verb::Ack | Verb::Next(_) => (Say::Ack, &[][..]),
            Verb::Nak(delay) => (Say::Nak(delay), &[][..]),
            Verb::Progress => (Say::Progress, &[][..]),
            Verb::Term(reason) => (Say::Term, reason),
            Verb::Unknown => (Say::Nothing, &[][..]),
        };
        let mut item = Item {
            consumer,
            seq,
            say,
            reply: message.reply,
            text,
            subject: self.told_of_nobody(conn, message),
        };
        if let Verb::Next(body) = Verb::parse(message.payload)
            && !message.reply.is_empty()
        {
            // It is answered by messages.
            item.reply = b"";
            item.subject = b"";
            self.take_or_send(group, &item);
            self.pull_next(conn, (group, account), message, body);
        } else {
            self.take_or_send(group, &item);
        }
        true
    }

    /// The subject of a message if its sender wants to hear that nobody listens to it; else empty.
    fn told_of_nobody<'a>(&mut self, conn: Option<ConnKey>, message: &Message<'a>) -> &'a [u8] {
        let told = !message.reply.is_empty()
            && conn
                .and_then(|key| self.client(key))
                .is_some_and(|client| client.outbound.no_responders());
        if told { message.subject } else { b"" }
    }

    /// The pull request that an acknowledgement of kind `+NXT` holds.
    fn pull_next(
        &mut self,
        conn: Option<ConnKey>,
        (group, account): (GroupId, AccountId),
        message: &Message<'_>,
        body: &[u8],
    ) {
        let request = Request {
            id: RequestId {
                sender: self.own_key(),
                number: 0,
            },
            node: self.shared.identity.node,
            group: Some(group),
            account,
            subject: Bytes::copy_from_slice(message.subject),
            reply: Bytes::copy_from_slice(message.reply),
            header: Bytes::new(),
            payload: Bytes::copy_from_slice(body),
            client: Bytes::new(),
            after: 0,
        };
        self.pull_entry(conn, request);
    }

    /// A client has answered a flow control request; answers whether there is such a stream. Whoever copies the stream
    /// says in the header what it has stored (`Nats-Last-Stream`), which acknowledges it.
    pub(crate) fn flow_entry(
        &mut self,
        conn: Option<ConnKey>,
        account: AccountId,
        message: &Message<'_>,
    ) -> bool {
        let Some(FlowSubject { stream, consumer, id }) = FlowSubject::parse(message.subject) else {
            return false;
        };
        let Some(group) = self.group_of(account, stream) else {
            return false;
        };
        let last = tidelock_wire::header::find(message.header, b"Nats-Last-Stream");
        let last = last
            .and_then(|value| std::str::from_utf8(value).ok()?.trim().parse().ok())
            .unwrap_or(0);
        let item = Item {
            consumer,
            seq: StreamSeq(last),
            say: Say::Flow,
            reply: message.reply,
            text: id,
            subject: self.told_of_nobody(conn, message),
        };
        self.take_or_send(group, &item);
        true
    }

    fn group_of(&self, account: AccountId, stream: &str) -> Option<GroupId> {
        self.shared
            .directory
            .load()
            .stream(account, stream)
            .map(|route| route.group)
    }

    pub(super) fn own_key(&self) -> WindowKey {
        WindowKey {
            boot: self.shared.identity.boot,
            worker: self.id,
        }
    }

    /// Takes an acknowledgement if this worker leads, or puts it to those that leave at the end of the turn.
    fn take_or_send(&mut self, group: GroupId, item: &Item<'_>) {
        if self.leads(group) {
            self.take_item(group, item);
        } else {
            let parcel = self.consumers.acks.entry(group).or_default();
            if parcel.items.len() < KEEP_BYTES_MAX {
                item.encode(&mut parcel.items);
            }
        }
    }

    /// Acknowledgements have come from where they entered.
    pub(crate) fn receive_acks(&mut self, acks: &Acks) {
        let mut rest = &acks.items[..];
        if self.leads(acks.group) {
            while let Some(item) = Item::take(&mut rest) {
                self.take_item(acks.group, &item);
            }
        } else if acks.hops < HOPS_MAX {
            let parcel = self.consumers.acks.entry(acks.group).or_default();
            parcel.hops = parcel.hops.max(acks.hops + 1);
            if parcel.items.len() < KEEP_BYTES_MAX {
                parcel.items.extend_from_slice(rest);
            }
        }
    }

    /// Keeps acknowledgements for the next leader of a group.
    pub(super) fn keep_acks(&mut self, group: GroupId, items: &[u8]) {
        if items.is_empty() {
            return;
        }
        let parcel = self.consumers.acks.entry(group).or_default();
        if parcel.items.len() < KEEP_BYTES_MAX {
            parcel.items.extend_from_slice(items);
        }
    }

    /// Sends acknowledgements to their leaders.
    pub(super) fn send_acks(&mut self) {
        let now = self.now.mono;
        for (group, mut parcel) in std::mem::take(&mut self.consumers.acks) {
            let since = *parcel.since.get_or_insert(now);
            if self.leads(group) {
                let mut rest = parcel.items.as_slice();
                while let Some(item) = Item::take(&mut rest) {
                    self.take_item(group, &item);
                }
            } else if let Some(node) = self.leader_elsewhere(group) {
                let acks = Acks {
                    group,
                    hops: parcel.hops,
                    items: parcel.items.into(),
                };
                self.send_cell(node, LaneKind::Client, Cell::Acks(acks));
            } else if now.since(since) < KEEP {
                self.consumers.acks.insert(group, parcel);
            }
        }
    }

    /// The node that leads a group, or may know who does, if it is not this worker.
    pub(super) fn leader_elsewhere(&self, group: GroupId) -> Option<NodeId> {
        let me = self.shared.identity.node;
        let here = self.shared.worker_of(group) == self.id;
        let guess = || {
            // A replica of its own knows the leader or knows that there is none.
            let directory = self.shared.directory.load();
            let nodes = directory
                .by_group(group)
                .filter(|_| self.slot(group).is_none())
                .map(|route| route.nodes.clone());
            let mut nodes = nodes?.into_iter();
            nodes.find(|node| !(here && *node == me) && self.is_online(*node))
        };
        self.leader_of(group)
            .filter(|node| !(here && *node == me) && self.is_online(*node))
            .or_else(guess)
    }

    /// Takes an acknowledgement at the leader. Nobody listens to one for a consumer that is not there, or wants none.
    fn take_item(&mut self, group: GroupId, item: &Item<'_>) {
        let now = self.now.mono;
        let Some(slot) = self.slot_mut(group) else { return };
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let account = slot.account;
        let found = slot.consumers.id_of(stream, item.consumer);
        let found = found.and_then(|id| Some((id, slot.consumers.consumers.get_mut(&id)?)));
        let Some((id, one)) = found.filter(|(_, one)| one.listens_to(item.say)) else {
            if !item.reply.is_empty() && !item.subject.is_empty() {
                self.answer_no_responders(account, item.reply, item.subject);
            }
            return;
        };
        if item.say == Say::Flow {
            let asked = one
                .leader
                .flow_answered(&[&one.flow_prefix[..], item.text].concat());
            if one.ack_policy == AckPolicy::FlowControl && item.seq > StreamSeq(0) {
                one.acks.add(AckKind::Ack, b"", item.seq, b"");
            }
            if asked || !one.acks.is_empty() {
                slot.consumers.touch(id);
            }
            return;
        }
        one.leader.touched(now);
        let kind = match item.say {
            Say::Ack => AckKind::Ack,
            Say::Nak(delay_ns) => AckKind::Nak { delay_ns },
            Say::Term => AckKind::Term,
            Say::Progress => AckKind::Progress,
            Say::Nothing | Say::Flow => {
                if !item.reply.is_empty() {
                    self.answer_ack(account, item.reply);
                }
                return;
            }
        };
        one.acks.add(kind, item.text, item.seq, item.reply);
        slot.consumers.touch(id);
    }
}
