//! Requests under way: where they go, what comes back, and when to try elsewhere.

use super::control::Control;
use super::subjects::{Call, Endpoint, INNER_PREFIX};
use super::{Asker, Job, Queued};
use crate::cell::{Cell, LaneKind, Reply, Request, RequestId};
use crate::worker::Core;
use bytes::Bytes;
use std::time::Duration;
use tidelock_base::{AccountId, ApiError, ApiErrorCode, GroupId, LogIndex, Mono, NodeId};
use tidelock_jetstream::command::WindowKey;

/// For so long a request is sent elsewhere when a node does not lead.
const RETRY_FOR: Duration = Duration::from_secs(2);
/// Pause before the next node is asked, where nobody could say which one leads.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Nodes that are asked one after the other on hints, without a pause.
const HINTS_MAX: u32 = 8;
/// For so long an answer to a client is awaited. Clients have given up long before; this frees what is left.
const CLIENT_WAITS: Duration = Duration::from_secs(30);
/// For so long a node that answers for others waits for them (reference: gathering of lists).
const GATHER_WAITS: Duration = Duration::from_secs(4);
/// How often it is looked whether a node that has been asked is still there.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often replies are looked at that wait for the metadata, should another worker own it.
const HELD_POLL: Duration = Duration::from_millis(2);

/// Who gets the answer.
#[derive(Debug)]
pub(super) enum Origin {
    /// A client, at the reply subject of the request.
    Client(Asker),
    /// A job of this node.
    Job(Box<Job>),
    /// One part of a gathering.
    Gather(u64, usize),
}

impl Origin {
    /// The connection of the client that asks, if one does.
    const fn asker(&self) -> Asker {
        match self {
            Self::Client(asker) => *asker,
            Self::Job(_) | Self::Gather(..) => None,
        }
    }

    /// For so long an answer is awaited.
    const fn waits(&self) -> Duration {
        match self {
            Self::Client(_) => CLIENT_WAITS,
            Self::Job(_) | Self::Gather(..) => GATHER_WAITS,
        }
    }
}

/// A request sent.
#[derive(Debug)]
pub(super) struct Pending {
    request: Request,
    origin: Origin,
    /// The node it went to last.
    asked: Option<NodeId>,
    /// It is for this node alone.
    fixed: bool,
    tries: u32,
    since: Mono,
    /// When it is looked at next, and what for.
    wake: Mono,
    why: Why,
}

/// Why a request is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// To be sent again.
    Again,
    /// Whether the node that was asked is still there, and whether it has had its time.
    Look,
}

/// A reply that waits until the metadata is applied here as far as it needs.
#[derive(Debug)]
pub(super) struct Held {
    after: LogIndex,
    reply: Reply,
}

/// A job that waits for several answers.
#[derive(Debug)]
pub(super) struct Gather {
    pub(super) job: Box<Job>,
    /// The answers, in the order of the questions; `None` where none has come.
    pub(super) parts: Vec<Option<Bytes>>,
    waiting: usize,
}

impl Core {
    /// Sends this turn's requests. To be called when the turn's publishes have been handed to their streams.
    pub(crate) fn run_requests(&mut self) {
        self.release_held();
        while let Some(Queued { origin, request }) = self.api.queue.pop_front() {
            self.dispatch(origin, request, None);
        }
        self.report_dropped();
    }

    /// When [`Core::api_tick`] wants to be called.
    pub(crate) fn api_deadline(&self) -> Option<Mono> {
        let timer = self.api.timers.first().map(|(at, _)| *at);
        [timer, self.api.wake].into_iter().flatten().min()
    }

    /// Does what is due.
    pub(crate) fn api_tick(&mut self) {
        let now = self.now.mono;
        if self.api.wake.is_some_and(|at| at <= now) {
            self.api.wake = None;
            self.run_requests();
        }
        while let Some((_, number)) = self.api.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.api.timers.pop_first();
            match self.api.pending.get(&number).map(|pending| pending.why) {
                Some(Why::Again) => self.send_pending(number, None),
                Some(Why::Look) => self.look_after(number),
                None => {}
            }
        }
        self.forming_tick(now);
    }

    /// Wants a call of [`Core::api_tick`] at `at`.
    pub(super) fn arm_api(&mut self, at: Mono) {
        self.api.wake = Some(self.api.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Asks the leader of a stream, or one node, in the name of a job.
    pub(super) fn ask(&mut self, origin: Origin, account: AccountId, verb: &str, name: &str, payload: Bytes) {
        let request = self.inner_request(account, verb, name, payload);
        self.api.queue.push_back(Queued { origin, request });
        self.arm_api(self.now.mono);
    }

    /// Asks one node, whatever it leads.
    pub(super) fn ask_node(
        &mut self,
        origin: Origin,
        node: NodeId,
        account: AccountId,
        verb: &str,
        name: &str,
    ) {
        let request = self.inner_request(account, verb, name, Bytes::new());
        self.dispatch(origin, request, Some(node));
    }

    fn inner_request(&self, account: AccountId, verb: &str, name: &str, payload: Bytes) -> Request {
        self.new_request(
            account,
            format!("{INNER_PREFIX}{verb}.{name}").into(),
            Bytes::new(),
            Bytes::new(),
            payload,
        )
    }

    /// A request of this worker, without a number yet.
    pub(super) fn new_request(
        &self,
        account: AccountId,
        subject: Bytes,
        reply: Bytes,
        header: Bytes,
        payload: Bytes,
    ) -> Request {
        let sender = WindowKey {
            boot: self.shared.identity.boot,
            worker: self.id,
        };
        Request {
            id: RequestId { sender, number: 0 },
            node: self.shared.identity.node,
            group: None,
            account,
            subject,
            reply,
            header,
            payload,
            client: Bytes::new(),
            after: 0,
        }
    }

    /// Starts a gathering of `parts` answers for a job; its number.
    pub(super) fn gather(&mut self, job: Box<Job>, parts: usize) -> u64 {
        self.api.next_number += 1;
        let id = self.api.next_number;
        self.api.gathers.insert(
            id,
            Gather {
                job,
                parts: vec![None; parts],
                waiting: parts,
            },
        );
        id
    }

    fn dispatch(&mut self, origin: Origin, mut request: Request, node: Option<NodeId>) {
        let now = self.now.mono;
        if let Origin::Client(asker) = origin
            && self.is_pull(&mut request)
        {
            return self.pull_entry(asker, request);
        }
        self.api.next_number += 1;
        let number = self.api.next_number;
        request.id.number = number;
        let wake = now + origin.waits();
        let pending = Pending {
            request,
            origin,
            asked: None,
            fixed: node.is_some(),
            tries: 0,
            since: now,
            wake,
            why: Why::Look,
        };
        self.api.timers.insert((wake, number));
        self.api.pending.insert(number, pending);
        self.send_pending(number, node);
    }

    /// Whether a request asks for messages of a stream that this node knows; then it names the stream's group.
    fn is_pull(&self, request: &mut Request) -> bool {
        if !Call::parse(&request.subject).is_some_and(|call| call.endpoint == Endpoint::MsgNext) {
            return false;
        }
        request.group = Some(self.group_for(request)).filter(|group| *group != GroupId::META);
        request.group.is_some()
    }

    /// Sends a request to `to`, or at first to the replica of this node, if that can serve it, or to whoever is most
    /// likely to lead its group.
    fn send_pending(&mut self, number: u64, to: Option<NodeId>) {
        let Some(pending) = self.api.pending.get(&number) else {
            return;
        };
        let group = if pending.fixed {
            None
        } else {
            Some(self.group_for(&pending.request))
        };
        let (asked, tries, asker) = (pending.asked, pending.tries, pending.origin.asker());
        let (mut after, end) = (pending.request.after, pending.since + pending.origin.waits());
        let read = is_read(&pending.request);
        if let Some(group) = group.filter(|_| tries == 0) {
            after = self.published_before(asker, group);
        }
        let me = self.shared.identity.node;
        let local = group.filter(|group| read && tries == 0 && after == 0 && self.has_replica(*group));
        let node = to
            .or_else(|| local.map(|_| me))
            .or_else(|| group.and_then(|group| self.next_target(group, asked)))
            .unwrap_or(me);
        let away = node != me;
        if away && !self.is_online(node) {
            if let Some(pending) = self.api.pending.get_mut(&number) {
                pending.asked = Some(node);
            }
            return self.went_astray(number, None);
        }
        let look = if away {
            end.min(self.now.mono + LOOK_EVERY)
        } else {
            end
        };
        self.set_timer(number, look, Why::Look);
        let Some(pending) = self.api.pending.get_mut(&number) else {
            return;
        };
        pending.request.after = after;
        pending.asked = Some(node);
        pending.tries += 1;
        pending.request.group = group;
        let request = pending.request.clone();
        let here = group.is_none_or(|group| self.shared.worker_of(group) == self.id);
        if node == me && here {
            self.api_request(request);
        } else {
            self.send_cell(node, LaneKind::Client, Cell::Request(Box::new(request)));
        }
    }

    /// The forward number behind which a request is to be served: that of the last publish of its connection into the
    /// group, if its outcome is not known yet.
    pub(crate) fn published_before(&mut self, asker: Asker, group: GroupId) -> u64 {
        let published = asker
            .and_then(|conn| self.client(conn))
            .map(|client| client.published);
        let Some(sender) = self.senders.get(&group) else {
            return 0;
        };
        published.map_or_else(
            || sender.last_unresolved(),
            |published| published.unresolved_at(sender),
        )
    }

    /// Whether a replica of a group belongs on this node.
    fn has_replica(&self, group: GroupId) -> bool {
        let directory = self.shared.directory.load();
        let route = directory.by_group(group);
        route.is_some_and(|route| route.nodes.contains(&self.shared.identity.node))
    }

    fn set_timer(&mut self, number: u64, wake: Mono, why: Why) {
        let Some(pending) = self.api.pending.get_mut(&number) else {
            return;
        };
        self.api.timers.remove(&(pending.wake, number));
        pending.wake = wake;
        pending.why = why;
        self.api.timers.insert((wake, number));
    }

    /// Looks whether an answer can still come: a node that is gone gives none. What it may have carried out is asked
    /// of another only if twice comes to the same.
    fn look_after(&mut self, number: u64) {
        let now = self.now.mono;
        let Some(pending) = self.api.pending.get(&number) else {
            return;
        };
        let end = pending.since + pending.origin.waits();
        if now >= end {
            return self.expired(number);
        }
        let gone = pending.asked.is_some_and(|node| !self.is_online(node));
        let again = Call::parse(&pending.request.subject).is_some_and(|call| call.endpoint.is_repeatable());
        if gone && again {
            self.went_astray(number, None);
        } else {
            self.set_timer(number, end.min(now + LOOK_EVERY), Why::Look);
        }
    }

    /// The group that has the answer: the stream's, or the metadata's where this node knows no such stream.
    fn group_for(&self, request: &Request) -> GroupId {
        let Some(call) = Call::parse(&request.subject).filter(|call| call.endpoint.is_of_stream()) else {
            return GroupId::META;
        };
        let directory = self.shared.directory.load();
        directory
            .stream(request.account, call.stream)
            .map_or(GroupId::META, |route| route.group)
    }

    /// The node to ask: the leader as far as it is known, else this node, else the one after the last that was asked.
    fn next_target(&self, group: GroupId, asked: Option<NodeId>) -> Option<NodeId> {
        let known = self.leader_of(group);
        if let Some(leader) = known.filter(|leader| Some(*leader) != asked && self.is_online(*leader)) {
            return Some(leader);
        }
        let me = self.shared.identity.node;
        let mut nodes: Vec<NodeId> = match group {
            GroupId::META => {
                let peers = self.shared.peers.load();
                let up = peers.peers.iter().filter(|peer| peer.up && peer.facts.jetstream);
                std::iter::once(me)
                    .chain(up.map(|peer| peer.facts.node))
                    .collect()
            }
            _ => self
                .shared
                .directory
                .load()
                .by_group(group)
                .map(|route| route.nodes.clone())
                .unwrap_or_default(),
        };
        nodes.retain(|node| self.is_online(*node));
        match asked {
            None if nodes.contains(&me) => Some(me),
            None => nodes.first().copied(),
            Some(asked) => {
                let after = nodes
                    .iter()
                    .position(|node| *node == asked)
                    .map_or(0, |at| at + 1);
                nodes.get(after).or_else(|| nodes.first()).copied()
            }
        }
    }

    /// A reply to a request of this worker.
    pub(crate) fn api_reply(&mut self, reply: Reply) {
        let number = reply.id.number;
        if reply.id.sender.worker != self.id || !self.api.pending.contains_key(&number) {
            return;
        }
        let control = Control::decode(&reply.header, &reply.payload);
        if let Some(Control::NotLeader(hint)) = control {
            self.went_astray(number, hint);
        } else if reply.after_meta > self.shared.directory.load().applied {
            self.api.held.push(Held {
                after: reply.after_meta,
                reply,
            });
            self.arm_api(self.now.mono + HELD_POLL);
        } else {
            self.take_reply(reply, control);
        }
    }

    fn release_held(&mut self) {
        if self.api.held.is_empty() {
            return;
        }
        let applied = self.shared.directory.load().applied;
        let (ready, held): (Vec<_>, Vec<_>) = std::mem::take(&mut self.api.held)
            .into_iter()
            .partition(|held| held.after <= applied);
        self.api.held = held;
        if !self.api.held.is_empty() {
            self.arm_api(self.now.mono + HELD_POLL);
        }
        for Held { reply, .. } in ready {
            let control = Control::decode(&reply.header, &reply.payload);
            self.take_reply(reply, control);
        }
    }

    fn take_reply(&mut self, reply: Reply, control: Option<Control>) {
        let number = reply.id.number;
        if control == Some(Control::Again) {
            return self.known_now(number);
        }
        if !reply.last {
            if let Some(Pending {
                origin: Origin::Client(_),
                request,
                ..
            }) = self.api.pending.get(&number)
            {
                let request = request.clone();
                self.tell_client(&request, &reply.header, &reply.payload);
            }
            return;
        }
        let Some(pending) = self.forget(number) else {
            return;
        };
        match pending.origin {
            Origin::Client(asker) => self.answer_client(asker, &pending.request, &reply, control),
            Origin::Job(job) => self.job_answered(job, answer_of(&reply, control)),
            Origin::Gather(id, part) => self.gathered(id, part, answer_of(&reply, control).ok()),
        }
    }

    fn forget(&mut self, number: u64) -> Option<Pending> {
        let pending = self.api.pending.remove(&number)?;
        self.api.timers.remove(&(pending.wake, number));
        Some(pending)
    }

    /// The stream of a request, which this node did not know, is in its directory by now.
    fn known_now(&mut self, number: u64) {
        let Some(pending) = self.api.pending.get_mut(&number) else {
            return;
        };
        pending.asked = None;
        let asker = pending.origin.asker();
        let mut request = pending.request.clone();
        if pending.tries >= HINTS_MAX {
            self.went_astray(number, None);
        } else if self.is_pull(&mut request) {
            self.forget(number);
            self.pull_entry(asker, request);
        } else {
            self.send_pending(number, None);
        }
    }

    /// A request came to a node that can not answer it.
    fn went_astray(&mut self, number: u64, hint: Option<NodeId>) {
        let now = self.now.mono;
        let Some(pending) = self.api.pending.get(&number) else {
            return;
        };
        if now >= pending.since + RETRY_FOR || pending.fixed {
            return self.give_up(number);
        }
        let (asked, tries) = (pending.asked, pending.tries);
        if let (Some(node), Some(group)) = (hint, pending.request.group) {
            self.groups.hints.insert(group, node);
        }
        match hint.filter(|node| Some(*node) != asked && tries < HINTS_MAX) {
            Some(node) => self.send_pending(number, Some(node)),
            None => self.set_timer(number, now + RETRY_AFTER, Why::Again),
        }
    }

    /// No node could answer a request within its bound.
    fn give_up(&mut self, number: u64) {
        let Some(pending) = self.forget(number) else {
            return;
        };
        match pending.origin {
            Origin::Client(asker) => self.leaderless(asker, &pending.request),
            Origin::Job(job) => self.job_answered(job, Err(ApiErrorCode::ClusterNotAvail.into())),
            Origin::Gather(id, part) => self.gathered(id, part, None),
        }
    }

    /// No answer has come. A client is not told: the request may have been carried out.
    fn expired(&mut self, number: u64) {
        let Some(pending) = self.forget(number) else {
            return;
        };
        match pending.origin {
            Origin::Client(_) => {}
            Origin::Job(job) => self.job_answered(job, Err(ApiErrorCode::ClusterNotAvail.into())),
            Origin::Gather(id, part) => self.gathered(id, part, None),
        }
    }

    fn gathered(&mut self, id: u64, part: usize, answer: Option<Bytes>) {
        let Some(gather) = self.api.gathers.get_mut(&id) else {
            return;
        };
        if let Some(place) = gather.parts.get_mut(part) {
            *place = answer;
        }
        gather.waiting = gather.waiting.saturating_sub(1);
        if gather.waiting == 0
            && let Some(Gather { job, parts, .. }) = self.api.gathers.remove(&id)
        {
            self.job_gathered(job, parts);
        }
    }

    /// How many requests of clients are under way.
    pub(super) fn requests_waiting(&self) -> usize {
        self.api.pending.len() + self.api.queue.len()
    }
}

/// Whether any replica can serve a request.
fn is_read(request: &Request) -> bool {
    Call::parse(&request.subject).is_some_and(|call| call.endpoint.is_of_any_replica())
}

/// The answer between nodes.
fn answer_of(reply: &Reply, control: Option<Control>) -> Result<Bytes, ApiError> {
    match control {
        None => Ok(reply.payload.clone()),
        Some(Control::Refused(error)) => Err(error),
        Some(Control::NoResponders) => Err(ApiErrorCode::StreamNotFound.into()),
        Some(Control::NotLeader(_) | Control::Again | Control::Nothing) => {
            Err(ApiErrorCode::ClusterNotAvail.into())
        }
    }
}
