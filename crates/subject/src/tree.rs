//! Who is interested in what: a persistent tree of patterns.
//!
//! Each level is one token. A node has the pattern that ends at it, the pattern that goes on with `>`, the child for
//! `*`, and its children by name in a persistent ordered map. A clone is a snapshot: it shares all nodes with the
//! tree it came from, and later changes copy only what lies on their path.
//!
//! ```text
//! orders ── *  ── {pattern orders.*}
//!        ├─ eu ── {pattern orders.eu}
//!        └─ >     {pattern orders.>}
//! ```

use crate::matching::{has_empty_token, is_valid_filter, split_first};
use crate::ordmap::OrdMap;
use crate::{SubjectFilter, Targets};
use smallvec::SmallVec;
use std::sync::Arc;

/// Names of up to 24 bytes, such as the unique part of an inbox, are stored in the map's node.
type Token = SmallVec<[u8; 24]>;

/// Patterns with their targets, as a persistent tree.
///
/// `clone` is O(1) and gives a snapshot. A change costs O(depth × log children). Finding the patterns that match a
/// subject allocates nothing. Iteration is in a fixed order: per level the pattern that ends there, then `>`, then
/// `*`, then the named tokens by their bytes.
#[derive(Clone, Debug)]
pub struct InterestTree<T> {
    root: Arc<Node<T>>,
    len: usize,
    patterns: usize,
}

#[derive(Clone, Debug)]
struct Node<T> {
    /// The pattern that ends at this node.
    exact: Option<Arc<Entry<T>>>,
    /// The pattern that ends with `>` after this node.
    rest: Option<Arc<Entry<T>>>,
    star: Option<Arc<Self>>,
    children: OrdMap<Token, Arc<Self>>,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    pattern: SubjectFilter,
    targets: Targets<T>,
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self {
            exact: None,
            rest: None,
            star: None,
            children: OrdMap::default(),
        }
    }
}

impl<T> Default for InterestTree<T> {
    fn default() -> Self {
        Self {
            root: Arc::default(),
            len: 0,
            patterns: 0,
        }
    }
}

impl<T: Clone + Ord> InterestTree<T> {
    /// A tree without patterns.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many targets there are, counted once for each of their patterns.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// How many different patterns have a target.
    #[must_use]
    pub const fn pattern_count(&self) -> usize {
        self.patterns
    }

    /// Whether nobody is interested in anything.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a target to a pattern; true if it was not there. A pattern that is no valid filter is not added.
    pub fn insert(&mut self, filter: &[u8], target: T) -> bool {
        if !is_valid_filter(filter) || self.targets(filter).is_some_and(|t| t.contains(&target)) {
            return false;
        }
        let slot = Arc::make_mut(&mut self.root).slot_mut(Some(filter));
        match slot {
            Some(entry) => {
                Arc::make_mut(entry).targets.insert(target);
            }
            None => {
                let pattern = SubjectFilter::from_valid(filter);
                *slot = Some(Arc::new(Entry {
                    pattern,
                    targets: Targets::one(target),
                }));
                self.patterns += 1;
            }
        }
        self.len += 1;
        true
    }

    /// Takes a target from a pattern; true if it was there.
    pub fn remove(&mut self, filter: &[u8], target: &T) -> bool {
        if !self.targets(filter).is_some_and(|t| t.contains(target)) {
            return false;
        }
        let emptied = Arc::make_mut(&mut self.root).remove(Some(filter), target);
        self.patterns -= usize::from(emptied);
        self.len -= 1;
        true
    }

    /// The targets of exactly this pattern.
    #[must_use]
    pub fn targets(&self, filter: &[u8]) -> Option<&Targets<T>> {
        let mut node = &self.root;
        let mut left = Some(filter);
        while let Some(filter) = left {
            let (token, rest) = split_first(filter);
            match token {
                b">" if rest.is_none() => return node.rest.as_ref().map(|e| &e.targets),
                b"*" => node = node.star.as_ref()?,
                name => node = node.children.get(name)?,
            }
            left = rest;
        }
        node.exact.as_ref().map(|e| &e.targets)
    }

    /// Calls `f` once for each pattern that matches the subject, with the pattern and its targets. Wildcards in the
    /// subject are taken as plain tokens, as in [`crate::matches`].
    pub fn for_each_match(&self, subject: &[u8], f: &mut impl FnMut(&SubjectFilter, &Targets<T>)) {
        if !self.is_empty() && !has_empty_token(subject) {
            self.root.visit_matches(Some(subject), &mut |entry| {
                f(&entry.pattern, &entry.targets);
                false
            });
        }
    }

    /// Whether any pattern matches the subject.
    #[must_use]
    pub fn has_match(&self, subject: &[u8]) -> bool {
        !self.is_empty() && !has_empty_token(subject) && self.root.visit_matches(Some(subject), &mut |_| true)
    }

    /// Calls `f` once for each pattern that overlaps the filter: some subject matches both. The filter must be valid,
    /// or nothing is visited.
    pub fn for_each_overlap(&self, filter: &[u8], f: &mut impl FnMut(&SubjectFilter, &Targets<T>)) {
        if is_valid_filter(filter) {
            self.root.visit_overlaps(Some(filter), &mut |entry| {
                f(&entry.pattern, &entry.targets);
                false
            });
        }
    }

    /// Whether any pattern overlaps the filter.
    #[must_use]
    pub fn has_overlap(&self, filter: &[u8]) -> bool {
        is_valid_filter(filter) && self.root.visit_overlaps(Some(filter), &mut |_| true)
    }

    /// Calls `f` once for each pattern, in the tree's order.
    pub fn for_each(&self, f: &mut impl FnMut(&SubjectFilter, &Targets<T>)) {
        self.root.visit_all(&mut |entry| {
            f(&entry.pattern, &entry.targets);
            false
        });
    }
}

// The visitors return true as soon as `f` does, and visit nothing more then. Their recursion is as deep as the
// deepest pattern, which `FILTER_TOKENS_MAX` bounds.
impl<T: Clone + Ord> Node<T> {
    fn is_empty(&self) -> bool {
        self.exact.is_none() && self.rest.is_none() && self.star.is_none() && self.children.is_empty()
    }

    /// The place of the entry of a valid pattern; makes the nodes on the way.
    fn slot_mut(&mut self, filter: Option<&[u8]>) -> &mut Option<Arc<Entry<T>>> {
        let Some(filter) = filter else {
            return &mut self.exact;
        };
        let (token, rest) = split_first(filter);
        match token {
            b">" => &mut self.rest,
            b"*" => Arc::make_mut(self.star.get_or_insert_default()).slot_mut(rest),
            name => {
                if self.children.get(name).is_none() {
                    self.children.insert(Token::from_slice(name), Arc::default());
                }
                match self.children.get_mut(name) {
                    Some(child) => Arc::make_mut(child).slot_mut(rest),
                    None => unreachable!("the child was inserted just before"),
                }
            }
        }
    }

    /// Takes a target, known to be there, from a pattern; true if it was the pattern's last.
    fn remove(&mut self, filter: Option<&[u8]>, target: &T) -> bool {
        let Some(filter) = filter else {
            return remove_target(&mut self.exact, target);
        };
        let (token, rest) = split_first(filter);
        match token {
            b">" => remove_target(&mut self.rest, target),
            b"*" => {
                let Some(child) = &mut self.star else {
                    return false;
                };
                let child = Arc::make_mut(child);
                let emptied = child.remove(rest, target);
                if emptied && child.is_empty() {
                    self.star = None;
                }
                emptied
            }
            name => {
                let Some(child) = self.children.get_mut(name) else {
                    return false;
                };
                let child = Arc::make_mut(child);
                let emptied = child.remove(rest, target);
                if emptied && child.is_empty() {
                    self.children.remove(name);
                }
                emptied
            }
        }
    }

    fn visit_matches(&self, subject: Option<&[u8]>, f: &mut impl FnMut(&Entry<T>) -> bool) -> bool {
        let Some(subject) = subject else {
            return visit(self.exact.as_ref(), f);
        };
        if visit(self.rest.as_ref(), f) {
            return true;
        }
        let (name, rest) = split_first(subject);
        if let Some(star) = &self.star
            && star.visit_matches(rest, f)
        {
            return true;
        }
        // Most nodes have no named children, or only those.
        !self.children.is_empty()
            && self
                .children
                .get(name)
                .is_some_and(|child| child.visit_matches(rest, f))
    }

    fn visit_overlaps(&self, filter: Option<&[u8]>, f: &mut impl FnMut(&Entry<T>) -> bool) -> bool {
        let Some(filter) = filter else {
            return visit(self.exact.as_ref(), f);
        };
        if visit(self.rest.as_ref(), f) {
            return true;
        }
        let (token, rest) = split_first(filter);
        let mut below = |node: &Self| match token {
            b">" => node.visit_all(f),
            _ => node.visit_overlaps(rest, f),
        };
        if self.star.as_ref().is_some_and(|star| below(star)) {
            return true;
        }
        match token {
            b"*" | b">" => self.children.iter().any(|(_, child)| below(child)),
            name => self.children.get(name).is_some_and(|child| below(child)),
        }
    }

    fn visit_all(&self, f: &mut impl FnMut(&Entry<T>) -> bool) -> bool {
        visit(self.exact.as_ref(), f)
            || visit(self.rest.as_ref(), f)
            || self.star.as_ref().is_some_and(|star| star.visit_all(f))
            || self.children.iter().any(|(_, child)| child.visit_all(f))
    }
}

fn visit<T>(entry: Option<&Arc<Entry<T>>>, f: &mut impl FnMut(&Entry<T>) -> bool) -> bool {
    entry.is_some_and(|entry| f(entry))
}

fn remove_target<T: Clone + Ord>(slot: &mut Option<Arc<Entry<T>>>, target: &T) -> bool {
    let Some(entry) = slot else {
        return false;
    };
    let targets = &mut Arc::make_mut(entry).targets;
    targets.remove(target);
    let emptied = targets.is_empty();
    if emptied {
        *slot = None;
    }
    emptied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FILTER_TOKENS_MAX;
    use crate::matching::overlaps;
    use crate::matching::tests::{filter, literal, naive};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    type Model = BTreeMap<String, BTreeSet<u8>>;

    fn all(tree: &InterestTree<u8>) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        tree.for_each(&mut |p, t| found.push((p.to_string(), t.iter().copied().collect())));
        found
    }

    /// What the tree must hold, sorted by pattern.
    fn expected(model: &Model, keep: impl Fn(&str) -> bool) -> Vec<(String, Vec<u8>)> {
        model
            .iter()
            .filter(|(p, _)| keep(p))
            .map(|(p, t)| (p.clone(), t.iter().copied().collect()))
            .collect()
    }

    fn sorted(mut found: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
        found.sort();
        found
    }

    fn check(tree: &InterestTree<u8>, model: &Model, subject: &str, filter: &str) {
        assert_eq!(tree.len(), model.values().map(BTreeSet::len).sum::<usize>());
        assert_eq!(tree.pattern_count(), model.len());
        assert_eq!(sorted(all(tree)), expected(model, |_| true));
        let mut found = Vec::new();
        tree.for_each_match(subject.as_bytes(), &mut |p, t| {
            found.push((p.to_string(), t.iter().copied().collect()))
        });
        assert_eq!(tree.has_match(subject.as_bytes()), !found.is_empty());
        assert_eq!(
            sorted(found),
            expected(model, |p| naive(p, subject)),
            "matches of {subject}"
        );
        let mut found = Vec::new();
        tree.for_each_overlap(filter.as_bytes(), &mut |p, t| {
            found.push((p.to_string(), t.iter().copied().collect()))
        });
        assert_eq!(tree.has_overlap(filter.as_bytes()), !found.is_empty());
        let overlapping = |p: &str| overlaps(p.as_bytes(), filter.as_bytes());
        assert_eq!(
            sorted(found),
            expected(model, overlapping),
            "overlaps of {filter}"
        );
        let targets = tree
            .targets(filter.as_bytes())
            .map(|t| t.iter().copied().collect());
        assert_eq!(targets, model.get(filter).cloned());
    }

    proptest! {
        #[test]
        fn behaves_like_a_list_of_patterns(
            ops in prop::collection::vec((any::<bool>(), filter(), 0u8..3, literal()), 1..60),
        ) {
            let mut tree = InterestTree::new();
            let mut model = Model::new();
            let mut kept = Vec::new();
            for (insert, filter, target, subject) in ops {
                if insert {
                    let new = model.entry(filter.clone()).or_default().insert(target);
                    prop_assert_eq!(tree.insert(filter.as_bytes(), target), new);
                } else {
                    let was = model.get_mut(&filter).is_some_and(|t| t.remove(&target));
                    model.retain(|_, t| !t.is_empty());
                    prop_assert_eq!(tree.remove(filter.as_bytes(), &target), was);
                }
                check(&tree, &model, &subject, &filter);
                kept.push((tree.clone(), model.clone(), subject, filter));
            }
            for (tree, model, subject, filter) in kept {
                check(&tree, &model, &subject, &filter);
            }
            for (pattern, targets) in &model {
                for target in targets {
                    prop_assert!(tree.remove(pattern.as_bytes(), target));
                }
            }
            prop_assert!(tree.root.is_empty() && tree.is_empty());
        }
    }

    #[test]
    fn order_is_fixed() {
        let mut tree = InterestTree::new();
        for p in ["b", "a.b", "a", "a.>", ">", "*.x", "a.*", "a-b", "a.a"] {
            assert!(tree.insert(p.as_bytes(), 1));
        }
        let order: Vec<String> = all(&tree).into_iter().map(|(p, _)| p).collect();
        assert_eq!(order, [">", "*.x", "a", "a.>", "a.*", "a.a", "a.b", "a-b", "b"]);
    }

    #[test]
    fn what_is_not_valid_is_not_added_and_matches_nothing() {
        let mut tree = InterestTree::new();
        assert!(!tree.insert(b"a..b", 1) && !tree.insert(b"", 1) && !tree.insert(b">.a", 1));
        assert!(tree.insert(b">", 1) && tree.insert(b"a.>", 1) && tree.insert(b"a.*", 1));
        for bad in ["", "a.", "a..b", ".a"] {
            assert!(!tree.has_match(bad.as_bytes()), "{bad:?}");
        }
        // A wildcard published as it is reaches those whose wildcards cover it.
        let mut found = 0;
        tree.for_each_match(b"a.*", &mut |_, _| found += 1);
        assert_eq!(found, 3);
    }

    #[test]
    fn the_deepest_pattern_fits_the_stack() {
        let deep = vec!["*"; FILTER_TOKENS_MAX].join(".");
        let mut tree = InterestTree::new();
        assert!(tree.insert(deep.as_bytes(), 1));
        let subject = vec!["x"; FILTER_TOKENS_MAX].join(".");
        assert!(tree.has_match(subject.as_bytes()) && tree.has_overlap(b">"));
        assert!(!tree.insert(format!("{deep}.a").as_bytes(), 1));
        let snapshot = tree.clone();
        assert!(tree.remove(deep.as_bytes(), &1));
        assert!(snapshot.has_match(subject.as_bytes()));
    }
}
