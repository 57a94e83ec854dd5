//! A persistent ordered map: a B+ tree of shared nodes.
//!
//! Cloning is O(1). A change copies only the nodes on its path that another clone still holds, each of at most
//! [`WIDTH`] entries, so its cost is O(log n) whatever the width of the map; nodes held by this map alone are changed
//! in place. Removal does not rebalance: a node goes away when it is empty. Depth is therefore bounded by the largest
//! size the map has had, and leaves by its present size, which suits subscriptions that come and go.

use smallvec::SmallVec;
use std::borrow::Borrow;
use std::sync::Arc;

/// Most entries of a node.
const WIDTH: usize = 32;

#[derive(Clone, Debug)]
pub(crate) struct OrdMap<K, V> {
    root: Option<Arc<Node<K, V>>>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Node<K, V> {
    Leaf(Vec<(K, V)>),
    /// Children with a lower bound of their keys. The bound of the first child counts as minus infinity.
    Branch(Vec<(K, Arc<Self>)>),
}

/// A right-hand node split off, with the lower bound of its keys.
type Split<K, V> = Option<(K, Arc<Node<K, V>>)>;

impl<K, V> Default for OrdMap<K, V> {
    fn default() -> Self {
        Self { root: None, len: 0 }
    }
}

impl<K, V> OrdMap<K, V> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries in the order of their keys.
    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter {
            branches: SmallVec::new(),
            leaf: [].iter(),
        };
        if let Some(root) = &self.root {
            iter.descend(root);
        }
        iter
    }
}

impl<K: Ord + Clone, V: Clone> OrdMap<K, V> {
    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let at = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).ok()?;
                    return entries.get(at).map(|(_, v)| v);
                }
                Node::Branch(children) => node = &*children.get(child_of(children, key))?.1,
            }
        }
    }

    /// The value of a key for changing it in place. Copies shared nodes on the way whether or not the key is there.
    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let mut node = Arc::make_mut(self.root.as_mut()?);
        loop {
            match node {
                Node::Leaf(entries) => {
                    let at = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).ok()?;
                    return entries.get_mut(at).map(|(_, v)| v);
                }
                Node::Branch(children) => {
                    let at = child_of(children, key);
                    node = Arc::make_mut(&mut children.get_mut(at)?.1);
                }
            }
        }
    }

    /// Sets the value of a key; true if the key is new.
    pub(crate) fn insert(&mut self, key: K, value: V) -> bool {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(Node::Leaf(vec![(key, value)])));
            self.len = 1;
            return true;
        };
        let (new, split) = Arc::make_mut(root).insert(key, value);
        if let Some((bound, right)) = split {
            let left = Arc::clone(root);
            *root = Arc::new(Node::Branch(vec![(bound.clone(), left), (bound, right)]));
        }
        self.len += usize::from(new);
        new
    }

    /// Takes a key out; true if it was there. Copies shared nodes on the way only if it is.
    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        if self.get(key).is_none() {
            return false;
        }
        let Some(root) = &mut self.root else {
            return false;
        };
        Arc::make_mut(root).remove(key);
        self.len -= 1;
        // A root of one child is a level for nothing.
        while let Node::Branch(children) = &**root
            && let [(_, only)] = children.as_slice()
        {
            *root = Arc::clone(only);
        }
        if self.len == 0 {
            self.root = None;
        }
        true
    }
}

/// The place of the child that holds the key, if any does.
fn child_of<K: Borrow<Q>, Q: Ord + ?Sized, C>(children: &[(K, C)], key: &Q) -> usize {
    children
        .partition_point(|(bound, _)| bound.borrow() <= key)
        .saturating_sub(1)
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    fn insert(&mut self, key: K, value: V) -> (bool, Split<K, V>) {
        match self {
            Self::Leaf(entries) => match entries.binary_search_by(|(k, _)| k.cmp(&key)) {
                Ok(at) => {
                    if let Some((_, old)) = entries.get_mut(at) {
                        *old = value;
                    }
                    (false, None)
                }
                Err(at) => {
                    entries.insert(at, (key, value));
                    (true, split(entries, Self::Leaf))
                }
            },
            Self::Branch(children) => {
                let at = child_of(children, &key);
                let Some((_, child)) = children.get_mut(at) else {
                    return (false, None);
                };
                let (new, right) = Arc::make_mut(child).insert(key, value);
                if let Some(right) = right {
                    children.insert(at + 1, right);
                }
                (new, split(children, Self::Branch))
            }
        }
    }

    /// Takes out a key that is known to be there.
    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        match self {
            Self::Leaf(entries) => {
                if let Ok(at) = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)) {
                    entries.remove(at);
                }
            }
            Self::Branch(children) => {
                let at = child_of(children, key);
                let Some((_, child)) = children.get_mut(at) else {
                    return;
                };
                let child = Arc::make_mut(child);
                child.remove(key);
                if child.is_empty() {
                    children.remove(at);
                }
            }
        }
    }

    const fn is_empty(&self) -> bool {
        match self {
            Self::Leaf(entries) => entries.is_empty(),
            Self::Branch(children) => children.is_empty(),
        }
    }
}

/// Splits an overfull list of entries in the middle.
fn split<K: Clone, C, V>(
    entries: &mut Vec<(K, C)>,
    node: impl FnOnce(Vec<(K, C)>) -> Node<K, V>,
) -> Split<K, V> {
    if entries.len() <= WIDTH {
        return None;
    }
    let right = entries.split_off(entries.len() / 2);
    let bound = right.first()?.0.clone();
    Some((bound, Arc::new(node(right))))
}

/// What is left of a branch.
type Children<'a, K, V> = std::slice::Iter<'a, (K, Arc<Node<K, V>>)>;

/// Iterator over the entries of an [`OrdMap`].
#[derive(Clone, Debug)]
pub(crate) struct Iter<'a, K, V> {
    /// Children still to visit, one list a level. Eight levels of half-full nodes are 4 billion entries.
    branches: SmallVec<[Children<'a, K, V>; 8]>,
    leaf: std::slice::Iter<'a, (K, V)>,
}

impl<'a, K, V> Iter<'a, K, V> {
    /// Goes down to the first leaf under the node.
    fn descend(&mut self, mut node: &'a Node<K, V>) {
        loop {
            match node {
                Node::Leaf(entries) => {
                    self.leaf = entries.iter();
                    return;
                }
                Node::Branch(children) => {
                    let mut children = children.iter();
                    let Some((_, first)) = children.next() else {
                        return;
                    };
                    self.branches.push(children);
                    node = first;
                }
            }
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.leaf.next() {
                return Some((key, value));
            }
            match self.branches.last_mut()?.next() {
                Some((_, node)) => self.descend(node),
                None => {
                    self.branches.pop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Checks bounds, order and the absence of empty nodes; returns the number of entries.
    fn check(node: &Node<u16, u16>, low: Option<u16>, high: Option<u16>) -> usize {
        assert!(!node.is_empty());
        match node {
            Node::Leaf(entries) => {
                assert!(entries.len() <= WIDTH && entries.is_sorted_by(|a, b| a.0 < b.0));
                assert!(
                    entries
                        .iter()
                        .all(|e| low.is_none_or(|l| l <= e.0) && high.is_none_or(|h| e.0 < h))
                );
                entries.len()
            }
            Node::Branch(children) => {
                assert!(children.len() <= WIDTH);
                (0..children.len())
                    .map(|i| {
                        let low = if i == 0 { low } else { Some(children[i].0) };
                        let high = children.get(i + 1).map(|c| c.0).or(high);
                        check(&children[i].1, low, high)
                    })
                    .sum()
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn behaves_like_a_btree_map(ops in prop::collection::vec((0u8..10, 0u16..3000), 1..4000), dense in any::<bool>()) {
            let mut map = OrdMap::default();
            let mut model = BTreeMap::new();
            let mut kept: Vec<(OrdMap<u16, u16>, BTreeMap<u16, u16>)> = Vec::new();
            for (i, (op, key)) in ops.into_iter().enumerate() {
                let value = u16::try_from(i).unwrap();
                if op < if dense { 9 } else { 6 } {
                    prop_assert_eq!(map.insert(key, value), model.insert(key, value).is_none());
                } else {
                    prop_assert_eq!(map.remove(&key), model.remove(&key).is_some());
                }
                if i % 500 == 0 {
                    kept.push((map.clone(), model.clone()));
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
            }
            if let Some((&key, _)) = model.iter().next() {
                *map.get_mut(&key).unwrap() += 1;
                *model.get_mut(&key).unwrap() += 1;
            }
            kept.push((map, model));
            // Older clones have not been touched by what came after them.
            for (map, model) in kept {
                prop_assert_eq!(map.len(), model.len());
                prop_assert!(map.iter().eq(model.iter()));
                prop_assert_eq!(map.root.as_ref().map_or(0, |r| check(r, None, None)), model.len());
            }
        }
    }
}
