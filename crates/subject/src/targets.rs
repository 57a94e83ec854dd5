//! The receivers of one pattern.

use crate::ordmap::{self, OrdMap};

/// An ordered, persistent set of the targets of one pattern. Cloning is O(1); one target, the usual case, is stored
/// in place.
#[derive(Clone, Debug)]
pub struct Targets<T>(Set<T>);

#[derive(Clone, Debug)]
enum Set<T> {
    One(T),
    /// Any other number.
    Many(OrdMap<T, ()>),
}

impl<T> Default for Targets<T> {
    fn default() -> Self {
        Self(Set::Many(OrdMap::default()))
    }
}

impl<T> Targets<T> {
    /// A set of one target.
    pub const fn one(target: T) -> Self {
        Self(Set::One(target))
    }

    /// How many targets there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        match &self.0 {
            Set::One(_) => 1,
            Set::Many(all) => all.len(),
        }
    }

    /// Whether there is no target. A set handed out by an interest tree is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The targets in their order. Allocates nothing.
    #[must_use]
    pub fn iter(&self) -> TargetsIter<'_, T> {
        match &self.0 {
            Set::One(target) => TargetsIter {
                one: Some(target),
                many: None,
            },
            Set::Many(all) => TargetsIter {
                one: None,
                many: Some(all.iter()),
            },
        }
    }
}

impl<T: Clone + Ord> Targets<T> {
    /// Whether the target is one of them.
    #[must_use]
    pub fn contains(&self, target: &T) -> bool {
        match &self.0 {
            Set::One(one) => one == target,
            Set::Many(all) => all.get(target).is_some(),
        }
    }

    /// Adds a target; true if it is new.
    pub fn insert(&mut self, target: T) -> bool {
        match &mut self.0 {
            Set::One(one) if *one == target => false,
            Set::One(one) => {
                let mut all = OrdMap::default();
                all.insert(one.clone(), ());
                all.insert(target, ());
                self.0 = Set::Many(all);
                true
            }
            Set::Many(all) if all.is_empty() => {
                self.0 = Set::One(target);
                true
            }
            Set::Many(all) => all.insert(target, ()),
        }
    }

    /// Takes a target out; true if it was there.
    pub fn remove(&mut self, target: &T) -> bool {
        match &mut self.0 {
            Set::One(one) if one == target => {
                *self = Self::default();
                true
            }
            Set::One(_) => false,
            Set::Many(all) => {
                let removed = all.remove(target);
                if removed && all.len() == 1 {
                    let last = all.iter().next().map(|(target, ())| target.clone());
                    if let Some(last) = last {
                        self.0 = Set::One(last);
                    }
                }
                removed
            }
        }
    }
}

impl<'a, T> IntoIterator for &'a Targets<T> {
    type Item = &'a T;
    type IntoIter = TargetsIter<'a, T>;
    fn into_iter(self) -> TargetsIter<'a, T> {
        self.iter()
    }
}

/// Iterator over [`Targets`], in order.
#[derive(Clone, Debug)]
pub struct TargetsIter<'a, T> {
    one: Option<&'a T>,
    many: Option<ordmap::Iter<'a, T, ()>>,
}

impl<'a, T> Iterator for TargetsIter<'a, T> {
    type Item = &'a T;
    fn next(&mut self) -> Option<&'a T> {
        match &mut self.many {
            Some(many) => many.next().map(|(target, ())| target),
            None => self.one.take(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(ops in prop::collection::vec((any::<bool>(), 0u8..6), 0..60)) {
            let mut targets = Targets::default();
            let mut model = BTreeSet::new();
            for (insert, t) in ops {
                if insert {
                    prop_assert_eq!(targets.insert(t), model.insert(t));
                } else {
                    prop_assert_eq!(targets.remove(&t), model.remove(&t));
                }
                prop_assert_eq!(targets.len(), model.len());
                prop_assert_eq!(targets.is_empty(), model.is_empty());
                prop_assert!(targets.iter().eq(model.iter()));
                prop_assert_eq!(targets.contains(&t), model.contains(&t));
            }
        }
    }
}
