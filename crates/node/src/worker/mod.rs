//! One worker: connections, groups and timers of one thread, one turn at a time.
//!
//! The shell feeds a turn ([`Worker::begin`], then any number of [`Worker::receive`], [`Worker::receive_cells`],
//! [`Worker::io_done`] ...) and ends it with [`Worker::finish`], which carries out everything that was decided: interest
//! is made visible, publishes leave for their streams, groups propose, what is to be written is listed. The worker
//! never waits and knows no socket; connections are keys, bytes go in and out through slices.

mod clients;
mod clock;
mod input;
mod links;
mod output;
mod peers;
mod route_message;
mod routes;
mod streams;

pub use output::{Answer, IoJob, IoOwner, Output, Query, QueryId};
pub(crate) use route_message::MadeRoute;

use crate::cluster::Cluster;
use crate::deliver_batch::DeliverBatch;
use crate::groups::{Fx, Groups};
use crate::interest::{Change, ConnKey, Root};
use crate::route::{Route, Routes};
use crate::shared::NodeShared;
pub(crate) use clients::Client;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidelock_auth::PasswordCheck;
use tidelock_base::{AccountId, GroupId, Mono, NodeId, Now, WorkerId};
use tidelock_record::Disk;
use tidelock_session::{ChunkPool, CloseReason, Inbound, Outbound, Settings};

/// Which listener a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Clients.
    Client,
    /// Routes of the cluster.
    Route,
}

/// How a socket ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HangUp {
    /// The other side closed it.
    Closed,
    /// Reading failed, with the system's text.
    Read(String),
    /// Writing failed, with the system's text.
    Write(String),
    /// It could not be opened, with the system's text.
    Refused(String),
}

/// One worker of a node.
pub struct Worker {
    pub(crate) core: Core,
    /// The reading halves, by connection index; apart from the rest, so that one can read while all can be written.
    pub(crate) inbound: Vec<Option<Inbound>>,
    /// Stands in for the output of a connection that is gone.
    nobody: Outbound,
}

/// Everything of a worker but the reading halves of its connections.
pub(crate) struct Core {
    pub(crate) id: WorkerId,
    pub(crate) shared: Arc<NodeShared>,
    pub(crate) now: Now,
    pub(crate) clock: clock::Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) pool: ChunkPool,
    pub(crate) clients: Vec<ClientPlace>,
    free: Vec<u32>,
    pub(crate) routes: Routes,
    /// Routes taken out while they are read; their memory is used again.
    #[expect(
        clippy::vec_box,
        reason = "each message takes one out and gives it back; what moves is a pointer"
    )]
    spare_routes: Vec<Box<Route>>,
    /// The interest that this turn reads, by account, with a number that changes when it does.
    roots: Vec<(Arc<Root>, u64)>,
    /// Changes of interest that no one sees yet, by account.
    changes: Vec<Vec<Change>>,
    pub(crate) random: Random,
    pub(crate) out: Pending,
    timers: Timers,
    /// Links to other nodes, and what goes over them.
    pub(crate) cluster: Cluster,
    /// Client messages of this turn for other workers of the node.
    to_workers: BTreeMap<WorkerId, DeliverBatch>,
    /// Client messages of this turn for other nodes.
    to_nodes: BTreeMap<NodeId, DeliverBatch>,
    /// Monitoring, the system account, and how the worker ends.
    pub(crate) system: crate::system::System,
    /// Requests of the JetStream API.
    pub(crate) api: crate::api::Api,
    /// Replicated groups of this worker.
    pub(crate) groups: Groups,
    /// Effects of the entry that is being applied; its memory is used again.
    pub(crate) fx: Fx,
    /// The sending side of publishes into streams.
    pub(crate) senders: BTreeMap<GroupId, crate::forward::Sender>,
    /// Senders with something to send.
    pub(crate) busy_senders: BTreeSet<GroupId>,
    /// When unanswered publishes are looked at.
    pub(crate) senders_at: Option<Mono>,
    pub(crate) forwards: Vec<crate::cell::Forward>,
    /// What it keeps of consumers for clients of this node.
    pub(crate) consumers: crate::consumers::Front,
    /// The mirrors and sources of the streams that it leads.
    pub(crate) sources: crate::sources::Sources,
    /// The disk, for what is read while the worker waits.
    pub(crate) disk: Option<Arc<dyn Disk + Send + Sync>>,
    /// The connection that was read last, and since when no other was.
    last_reader: Option<ConnKey>,
    pub(crate) readers_quiet_since: Mono,
}

/// A place for a connection, with the generation that its key must have.
pub(crate) struct ClientPlace {
    generation: u32,
    pub(crate) client: Option<Client>,
}

/// What the turn has to do at its end.
#[derive(Default)]
pub(crate) struct Pending {
    /// Connections with something to write; a connection is listed once.
    pub(crate) dirty: Vec<ConnKey>,
    /// Connections to be closed.
    pub(crate) closing: Vec<(ConnKey, CloseReason)>,
    /// Connections that may be read again.
    pub(crate) resumed: Vec<ConnKey>,
    /// Sockets to open.
    pub(crate) dials: Vec<(ConnKey, String)>,
    /// Cells for other workers of this node.
    pub(crate) cells: VecDeque<(WorkerId, crate::cell::Cell)>,
    /// Answers to monitoring requests.
    pub(crate) answers: Vec<(QueryId, Answer)>,
    /// Disk operations.
    pub(crate) io: Vec<IoJob>,
    /// Password checks that take time.
    pub(crate) checks: Vec<(ConnKey, PasswordCheck)>,
    /// The client listener is to be closed.
    pub(crate) stop_listening: bool,
}

/// A small generator for choices that need no secrecy (xorshift64*): queue members, jitter.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        u32::try_from(((self.next() >> 32) * u64::from(n)) >> 32).unwrap_or(0)
    }
}

/// Deadlines of connections, in no order but the heap's: an entry says that the connection wants a tick then, or
/// earlier than it does by now.
#[derive(Default)]
struct Timers {
    heap: std::collections::BinaryHeap<std::cmp::Reverse<(Mono, ConnKey)>>,
}

impl Timers {
    fn arm(&mut self, at: Mono, key: ConnKey) {
        self.heap.push(std::cmp::Reverse((at, key)));
    }

    fn pop_due(&mut self, now: Mono) -> Option<ConnKey> {
        let std::cmp::Reverse((at, key)) = *self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop();
        Some(key)
    }

    fn next(&self) -> Option<Mono> {
        self.heap.peek().map(|std::cmp::Reverse((at, _))| *at)
    }
}

impl Worker {
    /// A worker of the node; `seed` feeds its choices.
    #[must_use]
    pub fn new(shared: Arc<NodeShared>, id: WorkerId, seed: u64) -> Self {
        let accounts = shared.accounts.len();
        let settings = Arc::new(settings_of(&shared));
        let nobody = input::nobody(&settings);
        let core = Core {
            id,
            now: shared.identity.start,
            clock: clock::Clock::new(&shared),
            settings,
            pool: ChunkPool::new(),
            clients: Vec::new(),
            free: Vec::new(),
            routes: Routes::new(id),
            spare_routes: Vec::new(),
            roots: shared.accounts.iter().map(|a| (a.interest.load(), 1)).collect(),
            changes: (0..accounts).map(|_| Vec::new()).collect(),
            random: Random::new(seed),
            out: Pending::default(),
            timers: Timers::default(),
            cluster: Cluster::new(&shared, id, seed),
            to_workers: BTreeMap::new(),
            to_nodes: BTreeMap::new(),
            system: crate::system::System::default(),
            api: crate::api::Api::default(),
            groups: Groups::default(),
            fx: Fx::default(),
            senders: BTreeMap::new(),
            busy_senders: BTreeSet::new(),
            senders_at: None,
            forwards: Vec::new(),
            consumers: crate::consumers::Front::default(),
            sources: crate::sources::Sources::default(),
            disk: None,
            last_reader: None,
            readers_quiet_since: Mono(0),
            shared,
        };
        let mut worker = Self {
            core,
            inbound: Vec::new(),
            nobody,
        };
        worker.core.announce_services();
        worker
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> WorkerId {
        self.core.id
    }

    /// When the next turn must begin, even if nothing comes in.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        if self.core.has_leftovers() || self.core.groups_have_work() {
            return Some(self.core.now.mono);
        }
        let links = self.core.cluster.links.as_ref().map(|links| links.due());
        let consumers = self.core.consumers.deadline(self.core.now.mono);
        let system = self.core.system.next_deadline(self.core.now.mono);
        [
            self.core.timers.next(),
            links,
            self.core.groups_deadline(),
            self.core.clock.next_deadline(),
            self.core.senders_at,
            consumers,
            system,
            self.core.api_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

impl Core {
    /// Keys of all client connections.
    pub(crate) fn client_keys(&self) -> impl Iterator<Item = ConnKey> + '_ {
        self.clients.iter().zip(0_u32..).filter_map(|(place, index)| {
            place.client.as_ref()?;
            Some(ConnKey {
                index,
                generation: place.generation,
            })
        })
    }

    /// The client behind a key; `None` once it is gone.
    pub(crate) fn client(&mut self, key: ConnKey) -> Option<&mut Client> {
        let place = self.clients.get_mut(key.index as usize)?;
        if place.generation == key.generation {
            place.client.as_mut()
        } else {
            None
        }
    }

    /// The version of an account's interest that [`Core::root`] would answer.
    pub(crate) fn interest_version(&mut self, account: AccountId) -> u64 {
        let index = account.0 as usize;
        if self.changes.get(index).is_some_and(|changes| !changes.is_empty()) {
            self.commit_interest(account);
        }
        self.roots.get(index).map_or(0, |(_, version)| *version)
    }

    /// The interest of an account as this turn sees it, with its version. Changes that this worker has made and not
    /// published yet are published first, so that a connection's own SUB is visible to its next command.
    pub(crate) fn root(&mut self, account: AccountId) -> (Arc<Root>, u64) {
        let index = account.0 as usize;
        if self.changes.get(index).is_some_and(|changes| !changes.is_empty()) {
            self.commit_interest(account);
        }
        match self.roots.get(index) {
            Some((root, version)) => (Arc::clone(root), *version),
            None => (Arc::default(), 0),
        }
    }

    /// Makes this worker's changes of one account visible to all.
    pub(crate) fn commit_interest(&mut self, account: AccountId) {
        let index = account.0 as usize;
        let Some(mut changes) = self.changes.get_mut(index).map(std::mem::take) else {
            return;
        };
        let Some(shared) = self.shared.account(account) else {
            return;
        };
        let root = shared.interest.commit(&changes);
        self.note_own_interest(account, &changes);
        changes.clear();
        if let Some(place) = self.changes.get_mut(index) {
            *place = changes;
        }
        if let Some(place) = self.roots.get_mut(index) {
            *place = (root, place.1 + 1);
        }
    }

    /// Looks whether other workers have changed the interest of an account.
    fn reload_root(&mut self, account: AccountId) {
        let index = account.0 as usize;
        let (Some(shared), Some(place)) = (self.shared.account(account), self.roots.get_mut(index)) else {
            return;
        };
        let root = shared.interest.load();
        if !Arc::ptr_eq(&root, &place.0) {
            *place = (root, place.1 + 1);
        }
    }

    /// Makes this worker's changes of all accounts visible to all.
    fn commit_all_interest(&mut self) {
        for n in 0..self.changes.len() {
            if self.changes.get(n).is_some_and(|changes| !changes.is_empty()) {
                self.commit_interest(AccountId(u32::try_from(n).unwrap_or(u32::MAX)));
            }
        }
    }

    /// Whether something came up after the end of the turn, while its output was written, that the next turn's end has
    /// to carry out.
    fn has_leftovers(&self) -> bool {
        !(self.out.resumed.is_empty()
            && self.out.cells.is_empty()
            && self.out.closing.is_empty()
            && self.cluster.inbox.is_empty()
            && self
                .cluster
                .links
                .as_ref()
                .is_none_or(|links| links.dirty.is_empty() && links.closing.is_empty())
            && self.changes.iter().all(Vec::is_empty))
    }

    /// Notes a change of interest; it is seen by others at the end of the turn.
    pub(crate) fn change_interest(&mut self, account: AccountId, change: Change) {
        if let Some(changes) = self.changes.get_mut(account.0 as usize) {
            changes.push(change);
        }
    }

    /// Lists a connection as one with something to write.
    pub(crate) fn mark_dirty(&mut self, key: ConnKey) {
        if let Some(client) = self.client(key)
            && !client.dirty
        {
            client.dirty = true;
            self.out.dirty.push(key);
        }
    }
}

/// What the options say about every client connection.
fn settings_of(shared: &NodeShared) -> Settings {
    let options = &shared.options;
    let limit = |n: Option<u64>| n.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
    Settings {
        max_control_line: options.limits.max_control_line as usize,
        max_payload: options.limits.max_payload as usize,
        max_pending: usize::try_from(options.limits.max_pending).unwrap_or(usize::MAX),
        max_subscriptions: limit(options.limits.max_subscriptions),
        max_subscription_tokens: options.limits.max_subscription_tokens.map_or(0, usize::from),
        ping_interval: options.ping_interval,
        ping_max: options.ping_max,
        auth_timeout: options.auth_timeout,
        write_deadline: options.write_deadline,
        auth_required: options.users.required(),
        connect_optional: shared.anonymous_allowed,
        headers: true,
    }
}
