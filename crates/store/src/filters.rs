//! Sets of filters, as consumers, gets and purges use them.

use crate::tree::{Leaf, Matches, SubjectTree};
use tidelock_subject::{SubjectFilter, has_wildcard, is_subset, overlaps};

/// What a question is restricted to: all messages, or those that match at least one of some filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filters {
    /// None: everything. No filter of the list is a subset of another one.
    list: Option<Box<[SubjectFilter]>>,
    /// Some subject may match two of them.
    overlapping: bool,
}

impl Filters {
    /// All messages.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            list: None,
            overlapping: false,
        }
    }

    /// Messages that match at least one of the filters; all messages if there is none.
    #[must_use]
    pub fn new(filters: impl IntoIterator<Item = SubjectFilter>) -> Self {
        let mut list: Vec<SubjectFilter> = Vec::new();
        for filter in filters {
            if list.iter().any(|other| is_subset(other, &filter)) {
                continue;
            }
            list.retain(|other| !is_subset(&filter, other));
            list.push(filter);
        }
        if list.is_empty() || list.iter().any(|filter| filter.as_bytes() == b">") {
            return Self::all();
        }
        let overlapping = list
            .iter()
            .enumerate()
            .any(|(at, a)| list.iter().skip(at + 1).any(|b| overlaps(a, b)));
        Self {
            list: Some(list.into()),
            overlapping,
        }
    }

    /// Messages that match one filter.
    #[must_use]
    pub fn one(filter: SubjectFilter) -> Self {
        Self::new([filter])
    }

    /// Whether nothing is left out.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.list.is_none()
    }

    /// Whether messages of this subject are meant.
    #[must_use]
    pub fn matches(&self, subject: &[u8]) -> bool {
        self.list
            .as_ref()
            .is_none_or(|list| list.iter().any(|filter| filter.matches(subject)))
    }

    /// Each subject once, filter by filter.
    pub(crate) fn subjects<'a>(&'a self, tree: &'a SubjectTree) -> Union<'a> {
        Union {
            tree,
            filters: self,
            next: 0,
            walk: None,
        }
    }

    /// Whether a filter before the one at `at` matches this subject, and so has given it already.
    fn given_before(&self, at: usize, subject: &[u8]) -> bool {
        let list = self.list.as_deref().unwrap_or_default();
        list.iter().take(at).any(|filter| filter.matches(subject))
    }

    fn pattern(&self, at: usize) -> Option<Option<&[u8]>> {
        match &self.list {
            None => (at == 0).then_some(None),
            Some(list) => list.get(at).map(|filter| Some(filter.as_bytes())),
        }
    }
}

/// A walk over the subjects that match any of some filters.
#[derive(Debug)]
pub(crate) struct Union<'a> {
    tree: &'a SubjectTree,
    filters: &'a Filters,
    next: usize,
    walk: Option<Matches<'a>>,
}

impl<'a> Union<'a> {
    /// What is known of the next subject.
    pub(crate) fn next(&mut self) -> Option<&'a Leaf> {
        loop {
            if let Some(walk) = &mut self.walk {
                let Some((subject, leaf)) = walk.next() else {
                    self.walk = None;
                    continue;
                };
                if self.filters.overlapping && self.filters.given_before(self.next - 1, subject) {
                    continue;
                }
                return Some(leaf);
            }
            let pattern = self.filters.pattern(self.next)?;
            self.next += 1;
            match pattern {
                // A literal needs no walk.
                Some(literal) if !has_wildcard(literal) => {
                    if let Some(leaf) = self.tree.get(literal)
                        && !(self.filters.overlapping && self.filters.given_before(self.next - 1, literal))
                    {
                        return Some(leaf);
                    }
                }
                pattern => self.walk = Some(self.tree.matches(pattern)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(list: &[&str]) -> Filters {
        Filters::new(list.iter().map(|f| f.parse::<SubjectFilter>().unwrap()))
    }

    #[test]
    fn each_subject_comes_once() {
        let mut tree = SubjectTree::default();
        for (seq, subject) in (1..).zip(["a.a", "a.b", "b.a", "b.b", "c"]) {
            tree.entry(subject.as_bytes()).seqs.push(seq);
        }
        for (list, expected) in [
            (&["a.*", "*.a"][..], &[1, 2, 3][..]),
            (&["*.a", "a.a", "c"], &[1, 3, 5]),
            (&["c", "a.>", "a.b"], &[1, 2, 5]),
            (&[], &[1, 2, 3, 4, 5]),
            (&["x"], &[]),
        ] {
            let set = filters(list);
            let mut walk = set.subjects(&tree);
            let mut found: Vec<u64> = std::iter::from_fn(|| walk.next())
                .map(|leaf| leaf.seqs.first())
                .collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{list:?}");
        }
        assert!(filters(&["a", ">"]).is_all());
        assert_eq!(filters(&["a.b", "a.*"]), filters(&["a.*"]));
    }
}
