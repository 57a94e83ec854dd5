//! Interest across nodes: what this node tells its peers, and what a peer has told.

use crate::cell::{InterestDelta, InterestEntry};
use crate::interest::{Change, NodeTarget, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidelock_base::{AccountId, NodeId};

/// A pattern of one account, with its queue group.
type Key = (AccountId, Box<[u8]>, Option<Arc<[u8]>>);

#[derive(Debug, Default)]
struct Count {
    /// Subscriptions of clients of this node.
    now: u32,
    /// The weight that peers have been told.
    told: u32,
    /// Listed in [`OwnInterest::touched`].
    touched: bool,
}

/// Subscriptions of this node's clients, counted by pattern and queue group.
#[derive(Debug, Default)]
pub(crate) struct OwnInterest {
    counts: BTreeMap<Key, Count>,
    /// What changed since the last [`OwnInterest::take_changes`], in that order.
    touched: Vec<Key>,
}

impl OwnInterest {
    /// A client subscribed, or gave it up.
    pub(crate) fn apply(&mut self, delta: InterestDelta) {
        let key = (delta.account, delta.filter, delta.queue);
        let count = self.counts.entry(key.clone()).or_default();
        count.now = if delta.added {
            count.now.saturating_add(1)
        } else {
            count.now.saturating_sub(1)
        };
        if !count.touched {
            count.touched = true;
            self.touched.push(key);
        }
    }

    /// Whether anything changed since [`Self::take_changes`].
    pub(crate) const fn has_changes(&self) -> bool {
        !self.touched.is_empty()
    }

    /// What peers do not know yet. Plain subscriptions count once, members of a queue group each.
    pub(crate) fn take_changes(&mut self, names: &[Arc<str>]) -> Vec<InterestEntry> {
        let mut changes = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            let Some(count) = self.counts.get_mut(&key) else {
                continue;
            };
            count.touched = false;
            let weight = if key.2.is_none() {
                count.now.min(1)
            } else {
                count.now
            };
            let changed = weight != count.told;
            count.told = weight;
            if count.now == 0 {
                self.counts.remove(&key);
            }
            if changed {
                changes.extend(entry(&key, weight, names));
            }
        }
        changes
    }

    /// All that peers have been told, in order.
    pub(crate) fn all(&self, names: &[Arc<str>]) -> Vec<InterestEntry> {
        let told = self.counts.iter().filter(|(_, count)| count.told > 0);
        told.filter_map(|(key, count)| entry(key, count.told, names))
            .collect()
    }
}

fn entry(key: &Key, weight: u32, names: &[Arc<str>]) -> Option<InterestEntry> {
    let account = names.get(key.0.0 as usize)?;
    Some(InterestEntry {
        account: Arc::clone(account),
        filter: key.1.clone(),
        queue: key.2.clone(),
        weight,
    })
}

/// What a peer has told of its interest. It stands in the interest trees only while the peer is up, which is for the
/// caller to see to by [`PeerInterest::inserts`] and [`PeerInterest::removes`].
#[derive(Debug, Default)]
pub(crate) struct PeerInterest(BTreeMap<Key, u32>);

impl PeerInterest {
    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes a change in; answers what it changes in the trees.
    pub(crate) fn update(
        &mut self,
        node: NodeId,
        account: AccountId,
        entry: InterestEntry,
        changes: &mut Vec<(AccountId, Change)>,
    ) {
        let InterestEntry {
            filter,
            queue,
            weight,
            ..
        } = entry;
        if !tidelock_subject::is_valid_filter(&filter) {
            return;
        }
        let key = (account, filter, queue);
        let before = if weight == 0 {
            self.0.remove(&key)
        } else {
            self.0.insert(key.clone(), weight)
        };
        if before == Some(weight) {
            return;
        }
        if let Some(before) = before {
            changes.push((account, Change::Remove(key.1.clone(), target(node, &key, before))));
        }
        if weight > 0 {
            let target = target(node, &key, weight);
            changes.push((account, Change::Insert(key.1, target)));
        }
    }

    /// What takes all of it into the trees.
    pub(crate) fn inserts(&self, node: NodeId) -> impl Iterator<Item = (AccountId, Change)> + '_ {
        self.0
            .iter()
            .map(move |(key, weight)| (key.0, Change::Insert(key.1.clone(), target(node, key, *weight))))
    }

    /// What takes all of it out of the trees.
    pub(crate) fn removes(&self, node: NodeId) -> impl Iterator<Item = (AccountId, Change)> + '_ {
        self.0
            .iter()
            .map(move |(key, weight)| (key.0, Change::Remove(key.1.clone(), target(node, key, *weight))))
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

fn target(node: NodeId, key: &Key, weight: u32) -> Target {
    let weight = if key.2.is_none() { 1 } else { weight };
    Target::Node(NodeTarget {
        node,
        queue: key.2.clone(),
        weight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn delta(filter: &str, queue: Option<&str>, added: bool) -> InterestDelta {
        let queue = queue.map(|q| Arc::from(q.as_bytes()));
        InterestDelta {
            account: AccountId(0),
            filter: filter.as_bytes().into(),
            queue,
            added,
        }
    }

    #[test]
    fn plain_subscriptions_count_once_and_queue_members_each() {
        let names: Vec<Arc<str>> = vec!["$G".into()];
        let mut own = OwnInterest::default();
        for queue in [None, None, Some("q"), Some("q")] {
            own.apply(delta("a", queue, true));
        }
        own.apply(delta("gone", None, true));
        own.apply(delta("gone", None, false));
        let weights = |list: Vec<InterestEntry>| {
            list.iter()
                .map(|e| (e.queue.is_some(), e.weight))
                .collect::<Vec<_>>()
        };
        assert_eq!(weights(own.take_changes(&names)), [(false, 1), (true, 2)]);
        own.apply(delta("a", None, false));
        own.apply(delta("a", Some("q"), false));
        assert_eq!(weights(own.take_changes(&names)), [(true, 1)]);
        assert_eq!(weights(own.all(&names)), [(false, 1), (true, 1)]);
        own.apply(delta("a", None, false));
        assert_eq!(weights(own.take_changes(&names)), [(false, 0)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A peer that takes the changes holds what one that was told everything at once holds.
        #[test]
        fn changes_add_up_to_everything(ops in prop::collection::vec((0_u8..4, any::<bool>(), any::<bool>(), any::<bool>()), 0..60)) {
            let names: Vec<Arc<str>> = vec!["$G".into()];
            let mut own = OwnInterest::default();
            let mut peer = PeerInterest::default();
            let mut held: BTreeMap<(u8, bool), u32> = BTreeMap::new();
            let mut tree = std::collections::BTreeSet::new();
            for (filter, queue, added, flush) in ops {
                let count = held.entry((filter, queue)).or_default();
                if added { *count += 1 } else if *count > 0 { *count -= 1 } else { continue }
                own.apply(delta(&format!("f{filter}"), queue.then_some("q"), added));
                if !flush { continue }
                let mut changes = Vec::new();
                for entry in own.take_changes(&names) {
                    peer.update(NodeId(1), AccountId(0), entry, &mut changes);
                }
                for (_, change) in changes {
                    match change {
                        Change::Insert(filter, target) => prop_assert!(tree.insert((filter, target))),
                        Change::Remove(filter, target) => prop_assert!(tree.remove(&(filter, target))),
                    }
                }
                let mut fresh = PeerInterest::default();
                for entry in own.all(&names) {
                    fresh.update(NodeId(1), AccountId(0), entry, &mut Vec::new());
                }
                prop_assert_eq!(&fresh.0, &peer.0);
                prop_assert_eq!(tree.len(), peer.len());
            }
        }
    }
}
