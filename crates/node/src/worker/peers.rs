//! Batches for other workers of this node, and what comes from them and from other nodes.

use super::Core;
use super::Worker;
use super::route_message::Origin;
use crate::cell::Cell;
use crate::deliver_batch::DeliverBatch;
use tidelock_base::{NodeId, WorkerId};

/// Cells to itself that a worker handles in one turn; the others wait for the next.
const INBOX_MAX: usize = 4_096;

impl Core {
    /// This turn's batch of client messages for another worker of this node.
    pub(crate) fn batch_for_worker(&mut self, worker: WorkerId) -> &mut DeliverBatch {
        self.to_workers.entry(worker).or_default()
    }

    /// Turns the turn's batches for other workers into cells.
    pub(super) fn flush_batches(&mut self) {
        for (worker, batch) in &mut self.to_workers {
            if !batch.is_empty() {
                self.out
                    .cells
                    .push_back((*worker, Cell::Deliver(std::mem::take(batch))));
            }
        }
    }

    /// The same for one worker, so that what is sent next stays behind it.
    pub(super) fn flush_worker(&mut self, worker: WorkerId) {
        if let Some(batch) = self.to_workers.get_mut(&worker).filter(|batch| !batch.is_empty()) {
            self.out
                .cells
                .push_back((worker, Cell::Deliver(std::mem::take(batch))));
        }
    }
}

impl Worker {
    /// One cell from another worker of this node.
    pub(super) fn receive_cell(&mut self, from: WorkerId, cell: Cell) {
        match cell {
            Cell::System(cell) => self.system_cell(from, cell),
            Cell::Deliver(batch) => {
                self.core.deliver_batch(batch.borrowed(), Origin::Worker, Some);
            }
            Cell::Pass { node, lane, cell } => self.core.cluster.outbox.push_back((node, lane, *cell)),
            Cell::Arrived { node, cell } => self.handle_cell(node, *cell),
            cell => self.handle_cell(self.core.shared.identity.node, cell),
        }
    }

    /// What this worker has sent to itself.
    pub(super) fn drain_inbox(&mut self) {
        let node = self.core.shared.identity.node;
        for _ in 0..INBOX_MAX {
            let Some(cell) = self.core.cluster.inbox.pop_front() else {
                return;
            };
            self.handle_cell(node, cell);
        }
    }

    /// One cell for this worker, said by this node or by another.
    pub(super) fn handle_cell(&mut self, _node: NodeId, cell: Cell) {
        match cell {
            Cell::OwnInterest(deltas) => self.core.cluster.deltas.extend(deltas),
            Cell::Peer(event) => self.core.on_peer(&event),
            Cell::Leads { group, node } => self.core.leads_there(group, node),
            Cell::Pressure { node, high } => self.core.pressure(node, high),
            Cell::ClientUrls => self.tell_client_urls(),
            Cell::Forward(forward) => self.core.receive_forward(forward),
            Cell::Outcomes(outcomes) => self.core.receive_outcomes(&outcomes),
            Cell::NotLeader { group, hint, .. } => self.core.not_leader(group, hint),
            Cell::Raft(frame) => self.core.receive_raft(frame),
            Cell::Digest(digest) => self.core.digest_heard(&digest),
            Cell::Request(request) => {
                if !self.core.internal_request(&request) {
                    self.core.api_request(*request);
                }
            }
            Cell::Reply(reply) => {
                if !self.core.internal_reply(&reply) {
                    self.core.api_reply(*reply);
                }
            }
            Cell::Meta(notice) => self.core.meta_notice_here(notice),
            Cell::Pull(request) => self.core.pull_request(*request),
            Cell::PullsEnded(ended) => self.core.pulls_ended(&ended),
            Cell::Acks(acks) => self.core.receive_acks(&acks),
            Cell::Sourced(sourced) => self.core.receive_sourced(&sourced),
            // What is for links or on its way was taken out before.
            Cell::Deliver(_)
            | Cell::Interest(_)
            | Cell::NodeFacts(_)
            | Cell::Gossip(_)
            | Cell::Pass { .. }
            | Cell::System(_)
            | Cell::Arrived { .. } => {}
        }
    }
}
