//! Who wants which subjects: one persistent tree an account, behind an atomic root.
//!
//! A worker collects the changes of its turn in [`Changes`] and swaps them in at once ([`Interest::commit`]);
//! readers take the current root ([`Interest::load`]) once a read and work on that immutable snapshot. A root also
//! holds generations by first token, so that a worker's cache of matches ([`crate::route`]) knows what is still true.
//!
//! Invariant: a generation of a root never goes back, and changes with every change of a filter of its bucket.

use arc_swap::ArcSwap;
use std::sync::Arc;
use tidelock_base::{GroupId, NodeId, WorkerId};
use tidelock_session::SubSlot;
use tidelock_subject::InterestTree;

/// Number of first-token buckets that have a generation of their own.
const BUCKETS: usize = 64;

/// A connection of one worker: slab index and the generation of that index, so that a stale target is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnKey {
    /// Index in the worker's slab.
    pub index: u32,
    /// How often the index was used before.
    pub generation: u32,
}

/// What an entry of the interest tree leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A subscription of a client of this node.
    Client(ClientTarget),
    /// Interest of another node of the cluster; it delivers to its own clients.
    Node(NodeTarget),
    /// A stream that stores what matches.
    Stream(StreamTarget),
    /// A service that the node itself offers.
    Service(Service),
}

/// A subscription of a client of this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientTarget {
    /// Worker that owns the connection.
    pub worker: WorkerId,
    /// The connection.
    pub conn: ConnKey,
    /// The subscription within the connection.
    pub slot: SubSlot,
    /// Queue group, if any.
    pub queue: Option<Arc<[u8]>>,
}

/// Interest of another node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTarget {
    /// The node.
    pub node: NodeId,
    /// Queue group, if any.
    pub queue: Option<Arc<[u8]>>,
    /// Members of the queue group there; 1 without a group.
    pub weight: u32,
}

/// A stream of this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamTarget {
    /// The stream's group.
    pub group: GroupId,
}

/// What the node itself answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// `$JS.API.>`
    JetStreamApi,
    /// `$JS.ACK.>`
    Ack,
    /// `$JS.FC.>`
    FlowControl,
    /// `$SYS.REQ.>`
    System,
    /// Inbox of requests that the node itself made.
    Inbox,
}

/// An immutable snapshot of one account's interest.
#[derive(Clone)]
pub struct Root {
    /// Patterns and their targets.
    pub tree: InterestTree<Target>,
    generations: [u32; BUCKETS],
    wildcard_generation: u32,
}

impl Default for Root {
    fn default() -> Self {
        Self {
            tree: InterestTree::default(),
            generations: [0; BUCKETS],
            wildcard_generation: 0,
        }
    }
}

impl Root {
    /// A number that changes whenever a pattern that could match `subject` comes or goes.
    #[must_use]
    pub fn generation(&self, subject: &[u8]) -> u64 {
        let own = self.generations.get(bucket(subject)).copied().unwrap_or(0);
        (u64::from(self.wildcard_generation) << 32) | u64::from(own)
    }

    fn touch(&mut self, filter: &[u8]) {
        match filter.first() {
            Some(b'*' | b'>') if matches!(filter.get(1), None | Some(b'.')) => {
                self.wildcard_generation = self.wildcard_generation.wrapping_add(1);
            }
            _ => {
                if let Some(own) = self.generations.get_mut(bucket(filter)) {
                    *own = own.wrapping_add(1);
                }
            }
        }
    }
}

/// One account's interest, shared by all workers of the node.
#[derive(Default)]
pub struct Interest {
    root: ArcSwap<Root>,
}

/// A change of interest, collected during a turn.
#[derive(Clone, Debug)]
pub enum Change {
    /// A pattern got a target.
    Insert(Box<[u8]>, Target),
    /// A pattern lost a target.
    Remove(Box<[u8]>, Target),
}

impl Interest {
    /// The current snapshot.
    #[must_use]
    pub fn load(&self) -> Arc<Root> {
        self.root.load_full()
    }

    /// Makes the changes visible to every worker, all at once, and returns the snapshot that holds them.
    pub fn commit(&self, changes: &[Change]) -> Arc<Root> {
        self.root.rcu(|old| {
            let mut new = Root::clone(old);
            for change in changes {
                match change {
                    Change::Insert(filter, target) => {
                        new.tree.insert(filter, target.clone());
                        new.touch(filter);
                    }
                    Change::Remove(filter, target) => {
                        new.tree.remove(filter, target);
                        new.touch(filter);
                    }
                }
            }
            new
        });
        self.load()
    }
}

/// Bucket of a subject's first token (FNV-1a).
fn bucket(subject: &[u8]) -> usize {
    let hash = subject
        .iter()
        .take_while(|&&b| b != b'.')
        .fold(0x811c_9dc5_u32, |h, &b| {
            (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
        });
    (hash % 64) as usize
}
