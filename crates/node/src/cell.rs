//! What workers say to each other, on one node or across nodes.
//!
//! Within a node a [`Cell`] travels as a value in a batch that the end of a turn hands over; between nodes the same
//! cells travel as frames ([`crate::cell_codec`]). A place is a worker of a node; within a node the worker that owns
//! the cluster links passes on what is for others.
//!
//! Order: cells from one worker to one place arrive in the order in which they were sent, per [`LaneKind`], or not at
//! all. Nothing is sent twice by the link itself: what must survive a lost link is resent by who needs it, under the
//! same number (publishes), or given up (requests).

use crate::cluster::PeerEvent;
use crate::deliver_batch::DeliverBatch;
use bytes::Bytes;
use std::sync::Arc;
use tidelock_base::{AccountId, BootId, GroupId, LogIndex, NodeId, ReplicaId};
use tidelock_jetstream::command::WindowKey;
use tidelock_jetstream::window::PubOutcome;

/// Which connection between two nodes a cell takes, so that bulk never delays a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneKind {
    /// Heartbeats, votes, read confirmations.
    Pulse,
    /// Log traffic: appends and their answers.
    Log,
    /// Client messages, interest, forwarded publishes and their results, API requests and replies.
    Client,
    /// Snapshots and catch-up.
    Bulk,
}

impl LaneKind {
    /// All lanes, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Pulse, Self::Log, Self::Client, Self::Bulk];

    /// Its number: its place in [`Self::ALL`], and what frames carry.
    #[must_use]
    pub const fn index(self) -> u8 {
        match self {
            Self::Pulse => 0,
            Self::Log => 1,
            Self::Client => 2,
            Self::Bulk => 3,
        }
    }

    /// The lane with this number.
    #[must_use]
    pub fn from_index(index: u8) -> Option<Self> {
        Self::ALL.get(usize::from(index)).copied()
    }
}

/// One thing said.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Client messages.
    Deliver(DeliverBatch),
    /// Publishes into a stream, for the group's leader.
    Forward(Forward),
    /// What became of forwarded publishes.
    Outcomes(Outcomes),
    /// A forward or request reached a node that does not lead the group.
    NotLeader {
        /// The group.
        group: GroupId,
        /// Who was asking.
        sender: WindowKey,
        /// Who may lead it.
        hint: Option<NodeId>,
    },
    /// A frame of the group's Raft traffic.
    Raft(RaftFrame),
    /// What a replica has at a comparison of all, or what the majority has.
    Digest(Digest),
    /// A request for the leader of a group, or for the node itself.
    Request(Box<Request>),
    /// An answer to a request.
    Reply(Box<Reply>),
    /// A pull request, for the leader of the stream's group.
    Pull(Box<Request>),
    /// Pull requests have ended, or were not taken.
    PullsEnded(PullsEnded),
    /// Acknowledgements of clients, for the leader of the stream's group.
    Acks(Acks),
    /// A node's interest changed (links only), or all of it, after a link came up.
    Interest(InterestUpdate),
    /// Facts about a node that its peers show and use.
    NodeFacts(Box<NodeFacts>),
    /// Where other nodes take routes, `host:port` (links only).
    Gossip(Vec<Arc<str>>),
    /// For another node, on its way to the worker that owns the links (within a node only).
    Pass {
        /// The node.
        node: NodeId,
        /// The lane it takes.
        lane: LaneKind,
        /// What is said.
        cell: Box<Self>,
    },
    /// From another node, on its way from the worker that owns the links (within a node only).
    Arrived {
        /// The node that said it.
        node: NodeId,
        /// What it said.
        cell: Box<Self>,
    },
    /// A worker's clients subscribed and unsubscribed; for the worker that owns the links (within a node only).
    OwnInterest(Vec<InterestDelta>),
    /// Another node came, changed or went (within a node only).
    Peer(PeerEvent),
    /// The queue towards another node has become long, or short again (within a node only).
    Pressure {
        /// The node.
        node: NodeId,
        /// Whether it is long: those who publish to the node are paused.
        high: bool,
    },
    /// Who leads a group, from the worker that has this node's replica to the others (within a node only).
    Leads {
        /// The group.
        group: GroupId,
        /// The node that leads it.
        node: NodeId,
    },
    /// What the metadata says to the worker that owns a group (within a node only).
    Meta(crate::groups::MetaNotice),
    /// Something has come to an inbox of sources (within a node only).
    Sourced(Box<Sourced>),
    /// Clients are to be told the addresses of the cluster anew (within a node only).
    ClientUrls,
    /// A question of monitoring, or an answer (within a node only).
    System(crate::system::SystemCell),
}

/// A message for an inbox of sources, which another worker owns.
#[derive(Clone, Debug)]
pub struct Sourced {
    /// Account of the message.
    pub account: AccountId,
    /// Subject of the message.
    pub subject: Bytes,
    /// The inbox.
    pub target: Bytes,
    /// Reply subject; empty for none.
    pub reply: Bytes,
    /// Header block; empty for none.
    pub header: Bytes,
    /// Body.
    pub payload: Bytes,
}

/// A digest of a stream's state behind an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The stream's group.
    pub group: GroupId,
    /// Who has it; of a verdict, whom the leader means.
    pub replica: ReplicaId,
    /// The entry.
    pub index: LogIndex,
    /// The digest; of a verdict, that of the majority.
    pub digest: u64,
    /// It is the leader's word to a replica that has another one.
    pub is_verdict: bool,
}

/// One client subscribed to a pattern, or gave it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterestDelta {
    /// The client's account.
    pub account: AccountId,
    /// The pattern.
    pub filter: Box<[u8]>,
    /// Queue group, if any.
    pub queue: Option<Arc<[u8]>>,
    /// Subscribed, or gave it up.
    pub added: bool,
}

/// Publishes into a stream.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The stream's group.
    pub group: GroupId,
    /// Who numbered them.
    pub sender: WindowKey,
    /// Number of the first; they are dense.
    pub first: u64,
    /// How many.
    pub count: u32,
    /// Results at or below this number are known to the sender and may be forgotten.
    pub low_water: u64,
    /// The records, back to back (`tidelock-record`).
    pub records: Bytes,
}

/// What became of a run of forwarded publishes.
#[derive(Clone, Debug)]
pub struct Outcomes {
    /// The stream's group.
    pub group: GroupId,
    /// Whose numbers these are.
    pub sender: WindowKey,
    /// Number of the first.
    pub first: u64,
    /// One for each number.
    pub list: Vec<PubOutcome>,
}

/// A frame of Raft traffic between two replicas.
#[derive(Clone, Debug)]
pub struct RaftFrame {
    /// The group.
    pub group: GroupId,
    /// Sending replica.
    pub from: ReplicaId,
    /// Receiving replica.
    pub to: ReplicaId,
    /// Which lane it takes.
    pub lane: LaneKind,
    /// The frame, in parts that are sent back to back.
    pub parts: Vec<Bytes>,
}

/// Identifies a request until its last reply; unique within the asking worker's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Who asks.
    pub sender: WindowKey,
    /// Its number.
    pub number: u64,
}

/// A request that another place answers.
#[derive(Clone, Debug)]
pub struct Request {
    /// Comes back with each reply.
    pub id: RequestId,
    /// Where the answer goes.
    pub node: NodeId,
    /// The group that has the answer; `None`: the node itself.
    pub group: Option<GroupId>,
    /// Account of the client, in the sender's numbering.
    pub account: AccountId,
    /// The subject that was published.
    pub subject: Bytes,
    /// Where the client waits; deliveries go there too.
    pub reply: Bytes,
    /// Header block.
    pub header: Bytes,
    /// Body.
    pub payload: Bytes,
    /// Client information for advisories (JSON object), empty if none is needed.
    pub client: Bytes,
    /// The forward number of the asking worker's last publish into the group when the request was made: it is served
    /// after that one. 0 if none is unresolved.
    pub after: u64,
}

/// One reply to a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Of which request.
    pub id: RequestId,
    /// Header block; empty for none.
    pub header: Bytes,
    /// Body.
    pub payload: Bytes,
    /// Whether it is the last.
    pub last: bool,
    /// The meta index that must have been applied before this is passed on, so that what was created is routable.
    pub after_meta: LogIndex,
}

/// Pull requests that the place where they entered need not remember any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullsEnded {
    /// The group.
    pub group: GroupId,
    /// Who numbered them.
    pub sender: WindowKey,
    /// How they ended.
    pub end: PullEnd,
    /// Which ones.
    pub numbers: Vec<u64>,
}

/// How a pull request ended at its consumer's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PullEnd {
    /// Its client has been told all there is to tell.
    Served,
    /// The node leads no more: its client is to be told.
    LeaderLeft,
    /// The node does not lead and has not taken it; the other one may.
    NotTaken(Option<NodeId>),
}

/// Acknowledgements of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acks {
    /// The stream's group.
    pub group: GroupId,
    /// How often nodes that do not lead have passed them on.
    pub hops: u8,
    /// Back to back, as `consumers` encodes them.
    pub items: Bytes,
}

/// A change of a node's interest, as its peers see it.
#[derive(Clone, Debug, Default)]
pub struct InterestUpdate {
    /// Everything known of the node before is void.
    pub reset: bool,
    /// Entries, each replacing what the pattern and group had before; weight 0 removes it.
    pub entries: Vec<InterestEntry>,
}

/// One pattern of a node's interest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterestEntry {
    /// Account by name.
    pub account: Arc<str>,
    /// The pattern.
    pub filter: Box<[u8]>,
    /// Queue group, if any.
    pub queue: Option<Arc<[u8]>>,
    /// Subscriptions that stand behind it.
    pub weight: u32,
}

/// What a node tells its peers of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node.
    pub node: NodeId,
    /// Its current start.
    pub boot: BootId,
    /// Its server name.
    pub name: Arc<str>,
    /// Its server id (`N…`).
    pub server_id: Arc<str>,
    /// Number of workers.
    pub workers: u16,
    /// Addresses for clients, `host:port`.
    pub client_urls: Vec<Arc<str>>,
    /// Address for routes, `host:port`.
    pub route_url: Arc<str>,
    /// Whether JetStream is on.
    pub jetstream: bool,
    /// Bytes that streams may still use, file and memory.
    pub file_free: u64,
    /// See `file_free`.
    pub memory_free: u64,
    /// Tags for placement.
    pub tags: Vec<Arc<str>>,
    /// Whether it is in lame duck mode or stopping.
    pub leaving: bool,
    /// Names of its accounts in the order of its numbering.
    pub accounts: Vec<Arc<str>>,
}
