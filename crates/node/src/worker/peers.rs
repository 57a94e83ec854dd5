//! Batches for other workers and nodes, and what comes from them.

use super::Core;
use super::Worker;
use super::route_message::Origin;
use crate::cell::Cell;
use crate::deliver_batch::DeliverBatch;
use tidelock_base::{NodeId, WorkerId};

impl Core {
    /// This turn's batch of client messages for another worker of this node.
    pub(crate) fn batch_for_worker(&mut self, worker: WorkerId) -> &mut DeliverBatch {
        self.to_workers.entry(worker).or_default()
    }

    /// This turn's batch of client messages for another node.
    pub(crate) fn batch_for_node(&mut self, node: NodeId) -> &mut DeliverBatch {
        self.to_nodes.entry(node).or_default()
    }

    /// Turns the turn's batches into cells.
    pub(super) fn flush_batches(&mut self) {
        for (worker, batch) in &mut self.to_workers {
            if !batch.is_empty() {
                self.out.cells.push_back((*worker, Cell::Deliver(std::mem::take(batch))));
            }
        }
    }
}

impl Worker {
    /// One cell from another worker of this node.
    pub(super) fn receive_cell(&mut self, _from: WorkerId, cell: Cell) {
        match cell {
            Cell::Deliver(batch) => self.core.deliver_batch(&batch, Origin::Worker, Some),
            _ => {}
        }
    }
}
