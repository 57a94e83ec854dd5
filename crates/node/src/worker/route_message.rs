//! From a message to its receivers: local subscriptions, queue groups, other workers, other nodes, streams, services.

use super::Core;
use crate::deliver_batch::{BatchRef, DeliverBatch, Item, Message, Receivers};
use crate::interest::{ConnKey, Service};
use crate::route::{Local, Member, QueueRoute, Route, RouteId, Routes};
use smallvec::SmallVec;
use std::time::Duration;
use tidelock_base::limits::COPY_BYTES_MAX;
use tidelock_base::{AccountId, NodeId};
use tidelock_session::{CloseReason, Delivered, Parts, Publish};

/// Bytes waiting at one receiver from which on its publishers are paused.
const PAUSE_AT: usize = 2 << 20;
/// The same while large payloads flow.
const PAUSE_AT_LARGE: usize = 8 << 20;
/// Payloads from this size on count as large.
const LARGE: usize = 32 << 10;
/// A publisher to a node that is behind is paused for at most this long at a time.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A receiver that has taken nothing for so long holds up nobody: its publishers go on, and it is cut once it has
/// `max_pending` waiting. One that reads, however slowly, makes them as slow as it is.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// A message in one of the forms in which it can be delivered.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a, 'p> {
    /// A client's publish, which can be copied as it came.
    Client(&'a Publish<'p>),
    /// Anything else.
    Made(&'a Message<'p>),
}

impl<'p> Source<'_, 'p> {
    fn message(&self) -> Message<'p> {
        match self {
            Self::Client(p) => Message {
                subject: p.subject,
                target: p.subject,
                reply: p.reply.unwrap_or_default(),
                header: p.header,
                payload: p.payload,
                shared: None,
            },
            Self::Made(m) => **m,
        }
    }

    /// Adds the message to a batch; a large payload that is shared already is not copied.
    fn push_to(&self, batch: &mut DeliverBatch, account: AccountId, to: &Receivers<'_>) {
        match self {
            Self::Client(p) if p.payload.len() > COPY_BYTES_MAX && p.is_shared() => {
                let shared = p.share_payload();
                batch.push(
                    account,
                    &Message {
                        shared: Some(&shared),
                        ..self.message()
                    },
                    to,
                );
            }
            Self::Client(_) | Self::Made(_) => batch.push(account, &self.message(), to),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Client(p) => p.len(),
            Self::Made(m) => m.header.len() + m.payload.len(),
        }
    }
}

/// Who sent a message, as far as delivery cares.
#[derive(Clone, Copy)]
pub(crate) struct From {
    /// The client connection it came from, if any.
    pub(crate) conn: Option<ConnKey>,
    /// Whether other nodes may get it; not if it came from one.
    pub(crate) to_nodes: bool,
    /// Whether streams store it and services answer it; not if another node has seen to that.
    pub(crate) to_streams: bool,
}

/// Where routed messages came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Another worker of this node, which serves the others itself.
    Worker,
    /// Another node: this worker serves the whole node.
    Node,
}

/// Queue groups of which another node is to choose a member.
type PickedQueues<'r> = SmallVec<[(NodeId, &'r [u8]); 4]>;

impl From {
    /// A message that the node itself made.
    pub(crate) const NODE: Self = Self {
        conn: None,
        to_nodes: true,
        to_streams: true,
    };
    /// A message that came over a route or from another worker.
    pub(crate) const ELSEWHERE: Self = Self {
        conn: None,
        to_nodes: false,
        to_streams: false,
    };
}

impl Core {
    /// Publishes a message that the node itself made; answers whether anybody got it.
    pub(crate) fn publish_made(&mut self, account: AccountId, message: &Message<'_>) -> bool {
        let (root, _) = self.root(account);
        if Routes::is_unique(message.target) {
            let mut route = self.spare_routes.pop().unwrap_or_default();
            route.fill(&root, message.target, self.id);
            let got = self.deliver(From::NODE, account, &route, &Source::Made(message));
            self.spare_routes.push(route);
            return got;
        }
        let id = self.routes.cached(&root, account, message.target);
        let route = self.routes.take(id);
        let got = self.deliver(From::NODE, account, &route, &Source::Made(message));
        self.routes.put(id, route);
        got
    }

    /// Delivers along a route; answers whether anybody got it.
    pub(crate) fn deliver(
        &mut self,
        from: From,
        account: AccountId,
        route: &Route,
        source: &Source<'_, '_>,
    ) -> bool {
        let mut got = false;
        for local in &route.local {
            got |= self.deliver_local(from, *local, source);
        }
        let mut picked = PickedQueues::new();
        for queue in &route.queues {
            got |= self.deliver_queue(from, account, queue, source, &mut picked);
        }
        for worker in &route.workers {
            let to = Receivers {
                plain: true,
                picks: &[],
                queues: &[],
            };
            source.push_to(self.batch_for_worker(*worker), account, &to);
            got = true;
        }
        if from.to_nodes && !(route.nodes.is_empty() && picked.is_empty()) {
            self.deliver_nodes(from, account, route, source, &picked);
            got = true;
        }
        if from.to_streams {
            for group in &route.streams {
                self.publish_into(*group, from.conn, account, &source.message());
                got = true;
            }
            for service in &route.services {
                got |= self.serve(*service, from.conn, account, &source.message());
            }
        }
        got
    }

    /// Sends a message to other nodes: once to each, whatever it is there for.
    fn deliver_nodes(
        &mut self,
        from: From,
        account: AccountId,
        route: &Route,
        source: &Source<'_, '_>,
        picked: &PickedQueues<'_>,
    ) {
        let first_picks = picked.iter().enumerate().filter(|(n, (node, _))| {
            !route.nodes.contains(node) && picked.iter().take(*n).all(|(earlier, _)| earlier != node)
        });
        let nodes = route.nodes.iter().map(|node| (*node, true));
        for (node, plain) in nodes.chain(first_picks.map(|(_, (node, _))| (*node, false))) {
            let queues: SmallVec<[&[u8]; 4]> = picked
                .iter()
                .filter(|(to, _)| *to == node)
                .map(|(_, name)| *name)
                .collect();
            source.push_to(
                self.batch_for_node(node),
                account,
                &Receivers {
                    plain,
                    picks: &[],
                    queues: &queues,
                },
            );
            if !self.cluster.high.is_empty() {
                self.pause_for_node(from.conn, node);
            }
        }
    }

    /// Delivers to one subscription of this worker; answers whether it was taken.
    #[inline]
    pub(super) fn deliver_local(&mut self, from: From, local: Local, source: &Source<'_, '_>) -> bool {
        let now = self.now.mono;
        let Some(place) = self.clients.get_mut(local.conn.index as usize) else {
            return false;
        };
        if place.generation != local.conn.generation {
            return false;
        }
        let Some(client) = place.client.as_mut() else {
            return false;
        };
        if from.conn == Some(local.conn) && !client.outbound.echo() {
            return false;
        }
        let delivered = match source {
            Source::Client(publish) => client.outbound.deliver(local.slot, publish, &mut self.pool),
            Source::Made(m) => {
                let reply = (!m.reply.is_empty()).then_some(m.reply);
                let parts = Parts {
                    subject: m.subject,
                    reply,
                    header: m.header,
                    payload: m.payload,
                    shared: m.shared,
                    now,
                };
                client.outbound.deliver_parts(local.slot, &parts, &mut self.pool)
            }
        };
        if !client.dirty {
            client.dirty = true;
            self.out.dirty.push(local.conn);
        }
        match delivered {
            Delivered::Ok => {
                let pending = client.outbound.pending();
                if pending > PAUSE_AT {
                    self.maybe_pause(from.conn, local.conn, pending, source.len());
                }
                true
            }
            Delivered::AutoUnsubscribed(slot) => {
                self.drop_subscription(local.conn, slot);
                true
            }
            Delivered::Denied | Delivered::Gone => false,
            Delivered::OverLimit(pending) => {
                self.slow_consumer(local.conn, pending);
                false
            }
        }
    }

    /// Pauses a publisher whose receiver has fallen behind.
    #[cold]
    fn maybe_pause(&mut self, publisher: Option<ConnKey>, receiver: ConnKey, pending: usize, len: usize) {
        let limit = if len >= LARGE { PAUSE_AT_LARGE } else { PAUSE_AT };
        let Some(publisher) = publisher.filter(|&p| p != receiver && pending > limit) else {
            return;
        };
        let now = self.now.mono;
        let since = self
            .client(receiver)
            .and_then(|receiver| receiver.outbound.stalled_since());
        let until = since.unwrap_or(now) + STUCK_AFTER;
        if until <= now {
            return;
        }
        let Some(client) = self.client(publisher) else {
            return;
        };
        if client.paused_until.is_some() {
            return;
        }
        client.paused_until = Some(until);
        client.stalls += 1;
        if let Some(receiver) = self.client(receiver) {
            receiver.waiters.push(publisher);
        }
        self.arm(until, publisher);
        self.shared
            .totals
            .stalled_clients
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Bytes below which those that wait for this receiver may go on.
    pub(super) const RESUME_BELOW: usize = PAUSE_AT / 2;

    fn slow_consumer(&mut self, key: ConnKey, pending: usize) {
        let limit = self.settings.max_pending;
        if let Some(client) = self.client(key) {
            tracing::info!(
                "{} - Slow Consumer Detected: MaxPending of {limit} Exceeded ({pending} bytes pending)",
                client.label
            );
        }
        self.close(key, CloseReason::SlowConsumerPendingBytes);
    }

    /// Says that a connection took nothing for as long as a write may take.
    pub(super) fn log_write_deadline(&mut self, key: ConnKey, pending: usize) {
        let deadline = self.settings.write_deadline;
        if let Some(client) = self.client(key) {
            tracing::info!(
                "{} - Slow Consumer Detected: WriteDeadline of {deadline:?} exceeded with {pending} bytes pending",
                client.label
            );
        }
    }

    /// Gives a message to one member of a queue group: all members in the cluster are equally likely; one that does
    /// not take it hands on to the next.
    fn deliver_queue<'r>(
        &mut self,
        from: From,
        account: AccountId,
        queue: &'r QueueRoute,
        source: &Source<'_, '_>,
        picked: &mut PickedQueues<'r>,
    ) -> bool {
        if queue.members.is_empty() {
            return false;
        }
        let weight = if from.to_nodes {
            queue.weight
        } else {
            queue.own_weight
        };
        let mut ticket = self.random.below(weight.max(1));
        let start = queue.members.iter().position(|member| {
            let weight = member.weight();
            let hit = ticket < weight;
            ticket = ticket.saturating_sub(weight);
            hit
        });
        let (before, after) = queue
            .members
            .split_at_checked(start.unwrap_or(0))
            .unwrap_or((&[], &queue.members));
        after.iter().chain(before).any(|member| match *member {
            Member::Local(local) => self.deliver_local(from, local, source),
            Member::Worker(worker, local) => {
                let to = Receivers {
                    plain: false,
                    picks: &[local],
                    queues: &[],
                };
                source.push_to(self.batch_for_worker(worker), account, &to);
                true
            }
            Member::Node(node, _) if from.to_nodes => {
                picked.push((node, &queue.name));
                true
            }
            Member::Node(..) => false,
        })
    }

    /// Delivers what another worker or node has routed here; answers how many messages that were. `accounts` translates
    /// the sender's account numbers.
    pub(crate) fn deliver_batch(
        &mut self,
        batch: BatchRef<'_>,
        origin: Origin,
        accounts: impl Fn(AccountId) -> Option<AccountId>,
    ) -> usize {
        let mut count = 0;
        for item in batch.items() {
            count += 1;
            let Some(account) = accounts(item.account) else {
                continue;
            };
            let source = Source::Made(&item.message);
            for pick in item.picks() {
                self.deliver_local(From::ELSEWHERE, pick, &source);
            }
            if !item.plain && item.queues().next().is_none() {
                continue;
            }
            let (root, _) = self.root(account);
            let target = item.message.target;
            if Routes::is_unique(target) {
                let mut route = self.spare_routes.pop().unwrap_or_default();
                route.fill(&root, target, self.id);
                self.deliver_item(origin, account, &route, &item);
                self.spare_routes.push(route);
            } else {
                let id = self.routes.cached(&root, account, target);
                let route = self.routes.take(id);
                self.deliver_item(origin, account, &route, &item);
                self.routes.put(id, route);
            }
        }
        count
    }

    fn deliver_item(&mut self, origin: Origin, account: AccountId, route: &Route, item: &Item<'_>) {
        let source = Source::Made(&item.message);
        if item.plain {
            self.deliver_plain(origin, account, route, &source);
        }
        for name in item.queues() {
            if let Some(queue) = route.queues.iter().find(|queue| *queue.name == *name) {
                self.deliver_queue(From::ELSEWHERE, account, queue, &source, &mut PickedQueues::new());
            }
        }
    }

    /// Delivers to the plain subscriptions of this worker, and, for what came over a link, of the node's others.
    fn deliver_plain(&mut self, origin: Origin, account: AccountId, route: &Route, source: &Source<'_, '_>) {
        for local in &route.local {
            self.deliver_local(From::ELSEWHERE, *local, source);
        }
        if origin == Origin::Node {
            for worker in &route.workers {
                let to = Receivers {
                    plain: true,
                    picks: &[],
                    queues: &[],
                };
                source.push_to(self.batch_for_worker(*worker), account, &to);
            }
            // Every node answers requests of the system account for itself; other services have been seen to.
            if route.services.contains(&Service::System) {
                self.system_entry(None, account, &source.message());
            }
            // What an origin elsewhere delivers to a source that is led here.
            if route.services.contains(&Service::Inbox) {
                self.source_entry(account, &source.message());
            }
        }
    }
}

/// A route for several messages that the node itself makes, taken out of the cache while it is in use.
pub(crate) struct MadeRoute {
    route: Box<Route>,
    /// Its place in the cache, if it has one.
    id: Option<RouteId>,
}

impl Core {
    /// Where messages for `target` go now; [`Core::release_route`] gives it back.
    pub(crate) fn made_route(&mut self, account: AccountId, target: &[u8]) -> MadeRoute {
        let (root, _) = self.root(account);
        if !Routes::is_unique(target) {
            let id = self.routes.cached(&root, account, target);
            return MadeRoute {
                route: self.routes.take(id),
                id: Some(id),
            };
        }
        let mut route = self.spare_routes.pop().unwrap_or_default();
        route.fill(&root, target, self.id);
        MadeRoute { route, id: None }
    }

    /// Publishes a message that the node itself made along a route; answers whether anybody got it.
    pub(crate) fn publish_along(
        &mut self,
        account: AccountId,
        made: &MadeRoute,
        message: &Message<'_>,
    ) -> bool {
        self.deliver(From::NODE, account, &made.route, &Source::Made(message))
    }

    /// Gives a route back.
    pub(crate) fn release_route(&mut self, made: MadeRoute) {
        match made.id {
            Some(id) => self.routes.put(id, made.route),
            None => self.spare_routes.push(made.route),
        }
    }
}
