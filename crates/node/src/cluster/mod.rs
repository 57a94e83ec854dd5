//! Links between the nodes of a cluster, and what goes over them.
//!
//! A node dials every node it knows of, once for each lane ([`crate::cell::LaneKind`]), and sends on the connections
//! that it dialled; on those that it accepted it only reads. So each direction stands on its own, no duplicate has to
//! be resolved, and a network that is cut one way is seen as such. All links are owned by one worker of the node, the
//! first; cells from and for the others pass through it. (The option `pool_size` is accepted for the sake of
//! configurations that have it: the number of connections between two nodes follows from the lanes. `write_deadline` cuts
//! no link, as with nats-server's policy for routes, `retry`: pings tell whether the other side is there, and the shell has the
//! system give up a connection on which nothing gets through.)
//!
//! ```text
//!   worker k ──Pass──► first worker ──frames──► first worker of another node ──Arrived──► its worker k
//! ```
//!
//! Within a turn a node sends what changed of its interest first, then client messages, then all other cells, in the
//! order in which each worker gave them out; so a reply finds the interest in it.
//!
//! Invariants:
//! - A peer's interest stands in the interest trees exactly while client lanes are open both ways.
//! - Whatever waits for a peer is bounded in bytes ([`sending`]); publishers to a node that is behind are paused.
//! - Nothing counts of a connection before its handshake is done; no length of a frame is believed beyond its limit.

mod dial;
mod greet;
mod handshake;
mod interest;
pub(crate) mod link;
mod links;
mod peers;
mod queue;
mod sending;
mod telling;

pub(crate) use links::{Event, Links};
pub use peers::{LinkStats, LinkView, PeerEvent, PeerTable, PeerView};
pub(crate) use queue::Body;

use crate::cell::{Cell, InterestDelta, LaneKind};
use crate::deliver_batch::DeliverBatch;
use crate::interest::ConnKey;
use crate::shared::NodeShared;
use std::collections::VecDeque;
use std::sync::Arc;
use tidelock_base::{NodeId, WorkerId};

/// The worker that owns a node's links.
pub(crate) const LINKS_WORKER: WorkerId = WorkerId(0);

/// A worker's side of the cluster.
pub(crate) struct Cluster {
    /// The links, in the worker that owns them, of a node that is part of a cluster.
    pub(crate) links: Option<Box<Links>>,
    /// Whether the node is part of a cluster, so that interest is to be told.
    pub(crate) clustered: bool,
    /// Subscriptions that came and went in this turn.
    pub(crate) deltas: Vec<InterestDelta>,
    /// Client messages that were too many to wait for the end of the turn.
    pub(crate) early: Vec<(NodeId, DeliverBatch)>,
    /// Other cells of this turn for other nodes, in order.
    pub(crate) outbox: VecDeque<(NodeId, LaneKind, Cell)>,
    /// Cells that this node has sent to this very worker.
    pub(crate) inbox: VecDeque<Cell>,
    /// Nodes for which so much waits that those who publish to them are paused.
    pub(crate) high: Vec<NodeId>,
    /// Publishers that are paused for a node.
    pub(crate) waiters: Vec<(NodeId, ConnKey)>,
}

impl Cluster {
    /// The side of worker `id`; `seed` feeds jitter.
    pub(crate) fn new(shared: &Arc<NodeShared>, id: WorkerId, seed: u64) -> Self {
        let options = shared.options.cluster.clone().filter(|_| id == LINKS_WORKER);
        let links = options.map(|options| Box::new(Links::new(Arc::clone(shared), options, seed)));
        Self {
            links,
            clustered: shared.options.cluster.is_some(),
            deltas: Vec::new(),
            early: Vec::new(),
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            high: Vec::new(),
            waiters: Vec::new(),
        }
    }

    /// Whether a connection is one to another node.
    pub(crate) fn is_link(&self, key: ConnKey) -> bool {
        self.links.as_ref().is_some_and(|links| links.has(key))
    }
}
