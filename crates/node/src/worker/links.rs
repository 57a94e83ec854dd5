//! What a worker sends to other nodes and what its links bring about: batches and cells on their way out, peers that
//! come and go, publishers that wait for a node.

use super::route_message::PAUSE_MAX;
use super::{Core, Output};
use crate::cell::{Cell, InterestDelta, LaneKind};
use crate::cluster::{Event, LINKS_WORKER, PeerEvent};
use crate::deliver_batch::DeliverBatch;
use crate::interest::{Change, ConnKey, Service, Target};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidelock_base::{AccountId, ClusterId, NodeId, WorkerId};

/// A batch of client messages leaves before the end of the turn when it has grown to this many bytes.
const BATCH_BYTES_MAX: usize = 512 << 10;
/// Batches that left early and together hold more than this pause those who publish to the node.
const EARLY_BYTES_MAX: usize = 2 << 20;

impl Core {
    /// A peer came, changed or went. Called on every worker.
    pub(crate) fn on_peer(&mut self, event: &PeerEvent) {
        if let PeerEvent::Down(node) = event {
            self.release_node(*node);
            self.pulls_node_lost(*node);
            self.transfers_node_lost(*node);
            self.formation_peer(Some(*node));
        } else {
            self.formation_peer(None);
        }
        if let PeerEvent::Up(facts) = event {
            self.resend_to(facts.node);
        }
    }

    /// Sends a cell to a node, on this lane: at the end of the turn, behind client messages. What is for this node
    /// itself goes to the worker that it is for. Dropped if the node is not reached.
    pub(crate) fn send_cell(&mut self, node: NodeId, lane: LaneKind, cell: Cell) {
        if node != self.shared.identity.node {
            self.cluster.outbox.push_back((node, lane, cell));
            return;
        }
        let to = self.place_of(&cell);
        if to == self.id {
            self.cluster.inbox.push_back(cell);
        } else {
            self.out.cells.push_back((
                to,
                Cell::Arrived {
                    node,
                    cell: Box::new(cell),
                },
            ));
        }
    }

    /// The worker of this node that a cell is for.
    pub(crate) fn place_of(&self, cell: &Cell) -> WorkerId {
        let asker = |worker: WorkerId| {
            if worker.0 < self.shared.workers {
                worker
            } else {
                LINKS_WORKER
            }
        };
        match cell {
            Cell::Forward(forward) => self.shared.worker_of(forward.group),
            Cell::Raft(frame) => self.shared.worker_of(frame.group),
            Cell::Digest(digest) => self.shared.worker_of(digest.group),
            Cell::Request(request) => request
                .group
                .map_or(LINKS_WORKER, |group| self.shared.worker_of(group)),
            Cell::Pull(request) => request
                .group
                .map_or(LINKS_WORKER, |group| self.shared.worker_of(group)),
            Cell::Acks(acks) => self.shared.worker_of(acks.group),
            Cell::PullsEnded(ended) => asker(ended.sender.worker),
            Cell::Outcomes(outcomes) => asker(outcomes.sender.worker),
            Cell::NotLeader { sender, .. } => asker(sender.worker),
            Cell::Reply(reply) => asker(reply.id.sender.worker),
            Cell::Deliver(_)
            | Cell::Interest(_)
            | Cell::NodeFacts(_)
            | Cell::Gossip(_)
            | Cell::Pass { .. }
            | Cell::Arrived { .. }
            | Cell::OwnInterest(_)
            | Cell::Peer(_)
            | Cell::Pressure { .. }
            | Cell::Leads { .. }
            | Cell::Meta(_)
            | Cell::Sourced(_)
            | Cell::ClientUrls
            | Cell::System(_) => LINKS_WORKER,
        }
    }

    /// Changes what this node tells its peers of itself. Only on the worker that owns the links.
    pub(crate) fn set_facts(&mut self, change: impl FnOnce(&mut crate::cell::NodeFacts)) {
        if let Some(links) = self.cluster.links.as_deref_mut() {
            links.set_facts(change);
        }
    }

    /// The cluster has this id; servers of another are refused from now on. Only on the worker that owns the links.
    pub(crate) fn set_cluster_id(&mut self, id: ClusterId) {
        if let Some(links) = self.cluster.links.as_deref_mut() {
            links.cluster_id = Some(id);
        }
    }

    /// This turn's batch of client messages for another node.
    pub(crate) fn batch_for_node(&mut self, node: NodeId) -> &mut DeliverBatch {
        if self
            .to_nodes
            .get(&node)
            .is_some_and(|batch| batch.bytes.len() >= BATCH_BYTES_MAX)
        {
            self.send_early(node);
        }
        self.to_nodes.entry(node).or_default()
    }

    /// Takes a batch out that has grown large, so that frames stay short.
    #[cold]
    fn send_early(&mut self, node: NodeId) {
        if let Some(batch) = self.to_nodes.get_mut(&node) {
            let batch = std::mem::take(batch);
            self.cluster.early.push((node, batch));
        }
        let early = self.cluster.early.iter().filter(|(to, _)| *to == node);
        let waiting: usize = early.map(|(_, batch)| batch.bytes.len()).sum();
        if waiting >= EARLY_BYTES_MAX && !self.cluster.high.contains(&node) {
            self.cluster.high.push(node);
        }
    }

    /// Pauses a publisher whose messages go to a node that is behind.
    #[cold]
    pub(super) fn pause_for_node(&mut self, publisher: Option<ConnKey>, node: NodeId) {
        let Some(publisher) = publisher.filter(|_| self.cluster.high.contains(&node)) else {
            return;
        };
        let until = self.now.mono + PAUSE_MAX;
        let Some(client) = self.client(publisher) else {
            return;
        };
        if client.paused_until.is_some() {
            return;
        }
        client.paused_until = Some(until);
        self.cluster.waiters.push((node, publisher));
        self.arm(until, publisher);
        self.shared.totals.stalled_clients.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets those go on that wait for a node.
    fn release_node(&mut self, node: NodeId) {
        self.cluster.high.retain(|high| *high != node);
        let (released, waiters) = std::mem::take(&mut self.cluster.waiters)
            .into_iter()
            .partition(|(to, _)| *to == node);
        self.cluster.waiters = waiters;
        let released: Vec<(NodeId, ConnKey)> = released;
        for (_, publisher) in released {
            self.resume(publisher);
        }
    }

    /// The queue towards a node has become long, or short again.
    pub(super) fn pressure(&mut self, node: NodeId, high: bool) {
        if !high {
            self.release_node(node);
        } else if !self.cluster.high.contains(&node) {
            self.cluster.high.push(node);
        }
    }

    /// Notes which of the changes of interest concern this node's own clients, or sources that it leads.
    pub(super) fn note_own_interest(&mut self, account: AccountId, changes: &[Change]) {
        if !self.cluster.clustered {
            return;
        }
        for change in changes {
            let (filter, target, added) = match change {
                Change::Insert(filter, target) => (filter, target, true),
                Change::Remove(filter, target) => (filter, target, false),
            };
            let queue = match target {
                Target::Client(client) => client.queue.clone(),
                // Origins on other nodes deliver to it.
                Target::Service(Service::Inbox) => None,
                Target::Node(_) | Target::Stream(_) | Target::Service(_) => continue,
            };
            let filter = filter.clone();
            self.cluster.deltas.push(InterestDelta {
                account,
                filter,
                queue,
                added,
            });
        }
    }

    /// Carries out what happened on the links.
    pub(super) fn link_events(&mut self) {
        loop {
            let Some(links) = self.cluster.links.as_deref_mut() else {
                return;
            };
            if links.events.is_empty() {
                return;
            }
            for event in std::mem::take(&mut links.events) {
                match event {
                    Event::Interest(account, change) => self.change_interest(account, change),
                    Event::Peer(event) => {
                        self.tell_workers(|| Cell::Peer(event.clone()));
                        self.on_peer(&event);
                    }
                    Event::Pressure(node, high) => {
                        self.tell_workers(|| Cell::Pressure { node, high });
                        self.pressure(node, high);
                    }
                    Event::ClientUrls => {
                        self.tell_workers(|| Cell::ClientUrls);
                        self.cluster.inbox.push_back(Cell::ClientUrls);
                    }
                }
            }
        }
    }

    /// Tells the other workers of this node.
    fn tell_workers(&mut self, cell: impl Fn() -> Cell) {
        for worker in (0..self.shared.workers)
            .map(WorkerId)
            .filter(|worker| *worker != self.id)
        {
            self.out.cells.push_back((worker, cell()));
        }
    }

    /// Sends the turn's interest, client messages and cells to other nodes, in this order.
    pub(super) fn flush_nodes(&mut self) {
        if self.cluster.links.is_none() {
            self.pass_to_links();
            return;
        }
        self.link_events();
        let early = std::mem::take(&mut self.cluster.early);
        let deltas = std::mem::take(&mut self.cluster.deltas);
        let Some(links) = self.cluster.links.as_deref_mut() else {
            return;
        };
        links.own_interest(deltas);
        links.tell_interest();
        for (node, batch) in early {
            links.send_batch(node, batch);
        }
        for (node, batch) in &mut self.to_nodes {
            if !batch.is_empty() {
                let fresh = links.spare_batch();
                links.send_batch(*node, std::mem::replace(batch, fresh));
            }
        }
        for (node, lane, cell) in self.cluster.outbox.drain(..) {
            links.send(node, lane, cell);
        }
        if let Some(view) = links.take_view() {
            self.shared.peers.store(Arc::new(view));
        }
        let high: Vec<NodeId> = links
            .peers
            .iter()
            .filter(|(_, peer)| peer.high)
            .map(|(node, _)| *node)
            .collect();
        self.link_events();
        self.settle_pressure(&high);
    }

    /// Nodes that were taken to be behind because of one large turn, and are not.
    fn settle_pressure(&mut self, high: &[NodeId]) {
        while let Some(node) = self
            .cluster
            .high
            .iter()
            .find(|node| !high.contains(node))
            .copied()
        {
            self.release_node(node);
        }
    }

    /// Hands the turn's interest, client messages and cells for other nodes to the worker that owns the links.
    fn pass_to_links(&mut self) {
        if !self.cluster.clustered {
            self.cluster.outbox.clear();
            return;
        }
        let out = &mut self.out.cells;
        if !self.cluster.deltas.is_empty() {
            out.push_back((
                LINKS_WORKER,
                Cell::OwnInterest(std::mem::take(&mut self.cluster.deltas)),
            ));
        }
        let lane = LaneKind::Client;
        let mut pass = |node, lane, cell| {
            out.push_back((
                LINKS_WORKER,
                Cell::Pass {
                    node,
                    lane,
                    cell: Box::new(cell),
                },
            ))
        };
        for (node, batch) in self.cluster.early.drain(..) {
            pass(node, lane, Cell::Deliver(batch));
        }
        for (node, batch) in &mut self.to_nodes {
            if !batch.is_empty() {
                pass(*node, lane, Cell::Deliver(std::mem::take(batch)));
            }
        }
        for (node, lane, cell) in self.cluster.outbox.drain(..) {
            pass(node, lane, cell);
        }
    }

    /// Lists the links that have something to write, or are to be closed.
    pub(super) fn list_links(&mut self, out: &mut Output) {
        let Some(links) = self.cluster.links.as_deref_mut() else {
            return;
        };
        for key in std::mem::take(&mut links.dirty) {
            if let Some(link) = links.get(key) {
                link.dirty = false;
                out.writes.push(key);
            }
        }
        out.closes.append(&mut links.closing);
        links.rearm();
    }
}
