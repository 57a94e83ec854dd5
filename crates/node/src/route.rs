//! Where a subject's messages go: matches against the interest tree, kept in a cache a worker.
//!
//! A [`Route`] is what one subject of one account leads to from this worker's point of view. Routes live in a slab of
//! the worker; the hot path compares the subject with the connection's last one, then looks into the cache, and only
//! then walks the tree. Unique reply subjects (`_INBOX.`, `$JS.ACK.`) are matched each time and never cached, so that
//! they cannot push out what is hot.

use crate::interest::{ClientTarget, ConnKey, Root, Service, Target};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use tidelock_base::{AccountId, GroupId, NodeId, WorkerId};
use tidelock_session::SubSlot;

/// Most routes a worker keeps; when the cache is full it starts again from nothing.
const ROUTES_MAX: usize = 32 * 1024;

/// A subscription on this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    /// The connection.
    pub conn: ConnKey,
    /// The subscription.
    pub slot: SubSlot,
}

/// A member of a queue group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    /// On this worker.
    Local(Local),
    /// On another worker of this node.
    Worker(WorkerId, Local),
    /// Some members on another node, which picks one.
    Node(NodeId, u32),
}

impl Member {
    /// How many subscriptions it stands for.
    #[must_use]
    pub(crate) const fn weight(self) -> u32 {
        match self {
            Self::Local(_) | Self::Worker(..) => 1,
            Self::Node(_, weight) => weight,
        }
    }
}

/// One queue group of one pattern.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueRoute {
    /// Name of the group.
    pub name: Arc<[u8]>,
    /// All members, in the order of the tree.
    pub members: Vec<Member>,
    /// Sum of the members' weights.
    pub weight: u32,
    /// The same without members on other nodes. These come last.
    pub own_weight: u32,
}

/// What one subject leads to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Route {
    /// 1 + the root's generation when it was filled; 0 before.
    generation: u64,
    /// Plain subscriptions on this worker.
    pub local: Vec<Local>,
    /// Other workers of this node with plain subscriptions.
    pub workers: Vec<WorkerId>,
    /// Other nodes with plain subscriptions.
    pub nodes: Vec<NodeId>,
    /// Queue groups, one entry a pattern and name.
    pub queues: Vec<QueueRoute>,
    /// Streams that store it.
    pub streams: Vec<GroupId>,
    /// Services that answer it.
    pub services: Vec<Service>,
}

impl Route {
    fn clear(&mut self) {
        self.local.clear();
        self.workers.clear();
        self.nodes.clear();
        self.queues.clear();
        self.streams.clear();
        self.services.clear();
    }

    /// Matches `subject` anew.
    pub(crate) fn fill(&mut self, root: &Root, subject: &[u8], me: WorkerId) {
        self.clear();
        self.generation = root.generation(subject) + 1;
        root.tree.for_each_match(subject, &mut |_, targets| {
            let first_queue = self.queues.len();
            for target in targets.iter() {
                self.add(target, me, first_queue);
            }
        });
    }

    fn add(&mut self, target: &Target, me: WorkerId, first_queue: usize) {
        match target {
            Target::Client(client) => self.add_client(client, me, first_queue),
            Target::Node(node) => match &node.queue {
                None => push_once(&mut self.nodes, node.node),
                Some(name) => self.member(
                    name,
                    first_queue,
                    Member::Node(node.node, node.weight),
                    node.weight,
                ),
            },
            Target::Stream(stream) => push_once(&mut self.streams, stream.group),
            Target::Service(service) => push_once(&mut self.services, *service),
        }
    }

    fn add_client(&mut self, client: &ClientTarget, me: WorkerId, first_queue: usize) {
        let local = Local {
            conn: client.conn,
            slot: client.slot,
        };
        match &client.queue {
            None if client.worker == me => self.local.push(local),
            None => push_once(&mut self.workers, client.worker),
            Some(name) if client.worker == me => self.member(name, first_queue, Member::Local(local), 1),
            Some(name) => self.member(name, first_queue, Member::Worker(client.worker, local), 1),
        }
    }

    fn member(&mut self, name: &Arc<[u8]>, first_queue: usize, member: Member, weight: u32) {
        let own_weight = if matches!(member, Member::Node(..)) {
            0
        } else {
            weight
        };
        let group = self
            .queues
            .iter_mut()
            .skip(first_queue)
            .find(|group| group.name == *name);
        if let Some(group) = group {
            group.members.push(member);
            group.weight += weight;
            group.own_weight += own_weight;
        } else {
            self.queues.push(QueueRoute {
                name: Arc::clone(name),
                members: vec![member],
                weight,
                own_weight,
            });
        }
    }
}

fn push_once<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Index of a route in its worker's [`Routes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteId(u32);

/// The routes that a worker knows.
pub(crate) struct Routes {
    me: WorkerId,
    /// A route that is taken out is missing. Boxed, since each message takes its route out and gives it back.
    slab: Vec<Option<Box<Route>>>,
    by_subject: HashMap<Key, RouteId, BuildHasherDefault<Fnv>>,
    /// Raised when the slab was emptied: ids handed out before are void.
    epoch: u64,
}

#[derive(PartialEq, Eq, Hash)]
struct Key(AccountId, Box<[u8]>);

/// The key of a look-up, borrowed; hashes and compares as [`Key`] does.
trait KeyParts {
    fn parts(&self) -> (AccountId, &[u8]);
}

impl KeyParts for Key {
    fn parts(&self) -> (AccountId, &[u8]) {
        (self.0, &self.1)
    }
}

impl KeyParts for (AccountId, &[u8]) {
    fn parts(&self) -> (AccountId, &[u8]) {
        *self
    }
}

impl std::hash::Hash for dyn KeyParts + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (account, subject) = self.parts();
        account.hash(state);
        subject.hash(state);
    }
}

impl PartialEq for dyn KeyParts + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn KeyParts + '_ {}

impl<'a> std::borrow::Borrow<dyn KeyParts + 'a> for Key {
    fn borrow(&self) -> &(dyn KeyParts + 'a) {
        self
    }
}

/// Word-wise multiply-and-fold hash: subjects come from clients of the account that pays for collisions.
#[derive(Default)]
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let word = u64::from_le_bytes(chunk.try_into().unwrap_or([0; 8]));
            self.0 = (self.0 ^ word).wrapping_mul(K).rotate_left(23);
        }
        for &b in chunks.remainder() {
            self.0 = (self.0 ^ u64::from(b)).wrapping_mul(K).rotate_left(23);
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.write(&n.to_le_bytes());
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

impl Routes {
    /// No routes yet.
    #[must_use]
    pub(crate) fn new(me: WorkerId) -> Self {
        Self {
            me,
            slab: Vec::new(),
            by_subject: HashMap::default(),
            epoch: 0,
        }
    }

    /// Number of routes that are kept.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// A number that changes when all ids handed out before became void.
    #[must_use]
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The id of a cached route, matched again if interest changed since.
    pub(crate) fn cached(&mut self, root: &Root, account: AccountId, subject: &[u8]) -> RouteId {
        let found = self.by_subject.get(&(account, subject) as &dyn KeyParts).copied();
        if let Some(id) = found {
            self.refresh(id, root, subject);
            return id;
        }
        if self.slab.len() >= ROUTES_MAX {
            self.slab.clear();
            self.by_subject.clear();
            self.epoch += 1;
        }
        let id = RouteId(u32::try_from(self.slab.len()).unwrap_or(u32::MAX));
        let mut route = Box::<Route>::default();
        route.fill(root, subject, self.me);
        self.slab.push(Some(route));
        self.by_subject.insert(Key(account, subject.into()), id);
        id
    }

    /// Matches a route again if interest changed since it was filled.
    pub(crate) fn refresh(&mut self, id: RouteId, root: &Root, subject: &[u8]) {
        let me = self.me;
        let Some(place) = self.slab.get_mut(id.0 as usize) else {
            return;
        };
        // One that is taken out serves a message that has led to this one.
        let route = place.get_or_insert_default();
        if route.generation != root.generation(subject) + 1 {
            route.fill(root, subject, me);
        }
    }

    /// Takes a route out, so that it can be read while other state changes; [`Routes::put`] gives it back.
    #[must_use]
    pub(crate) fn take(&mut self, id: RouteId) -> Box<Route> {
        self.slab
            .get_mut(id.0 as usize)
            .and_then(Option::take)
            .unwrap_or_default()
    }

    /// Gives back what [`Routes::take`] handed out. Routes that were emptied meanwhile are dropped.
    pub(crate) fn put(&mut self, id: RouteId, route: Box<Route>) {
        if let Some(place @ None) = self.slab.get_mut(id.0 as usize) {
            *place = Some(route);
        }
    }

    /// Whether a subject is one of a kind, so that caching it would be waste.
    #[must_use]
    pub(crate) fn is_unique(subject: &[u8]) -> bool {
        subject.starts_with(b"_INBOX.") || subject.starts_with(b"$JS.ACK.") || subject.starts_with(b"$JS.FC.")
    }
}
