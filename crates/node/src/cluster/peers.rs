//! Other nodes, as this one sees them.

use super::interest::PeerInterest;
use super::sending::HIGH_BYTES;
use crate::cell::{LaneKind, NodeFacts};
use crate::interest::ConnKey;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidelock_base::{AccountId, NodeId, Now};

/// Another node came, changed or went. A node is up while client messages can go both ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// It is up. The same node with another boot id has restarted.
    Up(Arc<NodeFacts>),
    /// It is still up and has said something new of itself.
    Changed(Arc<NodeFacts>),
    /// It is not up any more.
    Down(NodeId),
}

/// All nodes that this one has links with, in the order of their ids.
#[derive(Clone, Debug, Default)]
pub struct PeerTable {
    /// The nodes.
    pub peers: Vec<PeerView>,
    /// Addresses of the configuration's routes.
    pub routes_configured: usize,
    /// Those of them behind which a node was found, this one included.
    pub routes_found: usize,
}

/// One other node.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// What it says of itself.
    pub facts: Arc<NodeFacts>,
    /// Whether client messages can go both ways.
    pub up: bool,
    /// The links, dialled ones first.
    pub links: Vec<LinkView>,
}

/// One link.
#[derive(Clone, Debug)]
pub struct LinkView {
    /// Its number, as in log lines.
    pub rid: u64,
    /// What it is for.
    pub lane: LaneKind,
    /// Whether this node opened it; then it sends on it, else it receives.
    pub dialled: bool,
    /// Whether the configuration names the other side.
    pub configured: bool,
    /// The other side.
    pub remote: Option<SocketAddr>,
    /// When it was opened.
    pub start: Now,
    /// Its counters.
    pub stats: Arc<LinkStats>,
}

/// Counters of a link. One worker writes them, a frame at a time; anyone may read.
#[derive(Debug, Default)]
pub struct LinkStats {
    /// Client messages received or sent.
    pub messages: AtomicU64,
    /// Bytes received or sent.
    pub bytes: AtomicU64,
    /// Bytes that wait to be sent.
    pub pending: AtomicU64,
    /// Last round trip, in nanoseconds; 0 before the first.
    pub rtt_ns: AtomicU64,
    /// When something was last sent or received, on the monotonic clock, in nanoseconds.
    pub last_activity_ns: AtomicU64,
    /// Entries of the peer's interest (links that bring it).
    pub subscriptions: AtomicU64,
}

impl LinkStats {
    /// Adds to a counter that only the calling thread writes.
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.store(
            counter.load(Ordering::Relaxed).wrapping_add(n as u64),
            Ordering::Relaxed,
        );
    }
}

impl PeerTable {
    /// The node with this id.
    #[must_use]
    pub fn get(&self, node: NodeId) -> Option<&PeerView> {
        self.peers.iter().find(|peer| peer.facts.node == node)
    }
}

/// Another node, in the worker that owns the links.
#[derive(Debug)]
pub(crate) struct Peer {
    /// What it says of itself.
    pub(crate) facts: Arc<NodeFacts>,
    /// Where it takes routes, as it can be reached from here.
    pub(crate) route_url: Arc<str>,
    /// Its accounts by its numbers, as this node numbers them.
    pub(crate) accounts: Arc<[Option<AccountId>]>,
    /// Links that this node opened, by lane.
    pub(crate) into: [Option<ConnKey>; 4],
    /// Links that it opened, by lane.
    pub(crate) from: [Option<ConnKey>; 4],
    /// Whether both client lanes are there.
    pub(crate) up: bool,
    /// What it has told of its interest.
    pub(crate) interest: PeerInterest,
    /// Whether it has been told all of this node's interest.
    pub(crate) told: bool,
    /// Whether so much waits for it that publishers are paused.
    pub(crate) high: bool,
    /// How much that is, in bytes.
    pub(crate) high_at: usize,
}

const CLIENT: usize = LaneKind::Client.index() as usize;

impl Peer {
    /// A peer without links.
    pub(crate) fn new(
        facts: Arc<NodeFacts>,
        route_url: Arc<str>,
        accounts: Arc<[Option<AccountId>]>,
    ) -> Self {
        Self {
            facts,
            route_url,
            accounts,
            into: [None; 4],
            from: [None; 4],
            up: false,
            interest: PeerInterest::default(),
            told: false,
            high: false,
            high_at: HIGH_BYTES,
        }
    }

    /// Whether client messages can go both ways.
    pub(crate) const fn can_talk(&self) -> bool {
        self.into[CLIENT].is_some() && self.from[CLIENT].is_some()
    }

    /// Whether there is no link at all.
    pub(crate) fn is_gone(&self) -> bool {
        self.into.iter().chain(&self.from).all(Option::is_none)
    }

    /// The link to send on.
    pub(crate) fn lane(&self, lane: LaneKind) -> Option<ConnKey> {
        self.into.get(usize::from(lane.index())).copied().flatten()
    }
}
