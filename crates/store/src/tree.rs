//! The subjects of a stream: a compact radix tree whose leaves hold what is known of one subject.
//!
//! Nodes live in two slabs and name each other by number, so that a subject costs one leaf (48 bytes and the rest of
//! its name that is not shared) and its part of the inner nodes above it. The tree gives subjects in the order of
//! their bytes. All walks are loops: a subject may have thousands of nested prefixes.
//!
//! Invariants: an inner node has at least two ways on (`here` counted), its ways are sorted by byte, and the leaf at
//! `here` has an empty rest. A leaf with an empty list exists only within one operation of the store.

use crate::postings::Postings;
use crate::slab::Slab;

/// No node.
const NONE: u32 = u32::MAX;
/// Set in the number of a leaf.
const LEAF: u32 = 1 << 31;

/// What is known of one subject.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaf {
    /// The part of the subject below the last inner node.
    rest: Box<[u8]>,
    /// Its sequences.
    pub(crate) seqs: Postings,
    /// Size and checksum of the message `seqs.first()`, where they are known: enough to account for its removal
    /// without reading the index of its block. That keeps overwriting a key free of reads.
    pub(crate) first: Option<Extent>,
}

/// Size and checksum of a record: what accounting and digest need of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Length of the record doubled, plus one if it has headers. Never zero, which saves the tag of the option.
    len_flag: std::num::NonZeroU32,
    /// Checksum that the record states.
    pub(crate) crc: u32,
}

impl Leaf {
    /// Adds a message, whose sequence is greater than all that are there.
    pub(crate) fn push(&mut self, seq: u64, extent: Extent) {
        if self.seqs.is_empty() {
            self.first = Some(extent);
        }
        self.seqs.push(seq);
    }
}

impl Extent {
    pub(crate) fn new(len: u32, has_headers: bool, crc: u32) -> Option<Self> {
        let len_flag = len.checked_mul(2)? | u32::from(has_headers);
        Some(Self {
            len_flag: std::num::NonZeroU32::new(len_flag)?,
            crc,
        })
    }

    pub(crate) fn from_len_flag(len_flag: u32, crc: u32) -> Option<Self> {
        // A record is at least its head.
        (len_flag >> 1 >= 16).then_some(())?;
        Some(Self {
            len_flag: std::num::NonZeroU32::new(len_flag)?,
            crc,
        })
    }

    /// Length of the record in bytes.
    pub(crate) const fn len(self) -> u32 {
        self.len_flag.get() >> 1
    }

    pub(crate) const fn has_headers(self) -> bool {
        self.len_flag.get() & 1 == 1
    }

    pub(crate) const fn len_flag(self) -> u32 {
        self.len_flag.get()
    }
}

#[derive(Clone, Debug)]
struct Inner {
    prefix: Box<[u8]>,
    /// The leaf of the subject that ends here, or [`NONE`].
    here: u32,
    ways: Vec<Way>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            prefix: Box::default(),
            here: NONE,
            ways: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Way {
    byte: u8,
    node: u32,
}

/// Where the number of a node is kept.
#[derive(Clone, Copy, Debug)]
enum Slot {
    Root,
    Here(u32),
    Way(u32, usize),
}

/// Where a step down leads.
enum Step<'a> {
    /// To this node, with so much of the subject left.
    Down(u32, &'a [u8]),
    /// To a leaf, or to nothing.
    End(Option<u32>),
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct SubjectTree {
    root: u32,
    inners: Slab<Inner>,
    leaves: Slab<Leaf>,
    len: u64,
}

impl Default for SubjectTree {
    fn default() -> Self {
        Self {
            root: NONE,
            inners: Slab::new(),
            leaves: Slab::new(),
            len: 0,
        }
    }
}

impl SubjectTree {
    /// How many subjects there are.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn get(&self, subject: &[u8]) -> Option<&Leaf> {
        self.leaves.get(self.find(subject)?)
    }

    pub(crate) fn get_mut(&mut self, subject: &[u8]) -> Option<&mut Leaf> {
        let number = self.find(subject)?;
        self.leaves.get_mut(number)
    }

    /// Number of the leaf of a subject.
    fn find(&self, subject: &[u8]) -> Option<u32> {
        let mut node = self.root;
        let mut rest = subject;
        loop {
            match self.step(node, rest) {
                Step::Down(below, left) => (node, rest) = (below, left),
                Step::End(leaf) => return leaf,
            }
        }
    }

    /// Numbers of the leaves of several subjects, if they are there. In a large tree nearly each step down waits for memory;
    /// here all of them take it at the same time, and wait together.
    pub(crate) fn find_abreast(&self, subjects: &[&[u8]], found: &mut Vec<Option<u32>>) {
        found.clear();
        found.resize(subjects.len(), None);
        let mut open: Vec<(usize, u32, &[u8])> = subjects
            .iter()
            .enumerate()
            .map(|(place, subject)| (place, self.root, *subject))
            .collect();
        while !open.is_empty() {
            let nodes = open.iter().map(|(_, node, _)| *node);
            std::hint::black_box(nodes.clone().fold(0, |sum, node| sum ^ self.touch(node)));
            std::hint::black_box(nodes.fold(0, |sum, node| sum ^ self.touch_below(node)));
            open.retain_mut(|(place, node, rest)| match self.step(*node, rest) {
                Step::Down(below, left) => {
                    (*node, *rest) = (below, left);
                    true
                }
                Step::End(leaf) => {
                    if let Some(slot) = found.get_mut(*place) {
                        *slot = leaf;
                    }
                    false
                }
            });
        }
    }

    /// A leaf by its number.
    pub(crate) fn leaf_mut(&mut self, number: u32) -> Option<&mut Leaf> {
        self.leaves.get_mut(number)
    }

    /// One step of [`SubjectTree::find`].
    fn step<'a>(&self, node: u32, rest: &'a [u8]) -> Step<'a> {
        if node == NONE {
            return Step::End(None);
        }
        if node & LEAF != 0 {
            let number = node ^ LEAF;
            let is_it = self.leaves.get(number).is_some_and(|leaf| *leaf.rest == *rest);
            return Step::End(is_it.then_some(number));
        }
        let inner = self.inners.get(node);
        let Some((inner, rest)) = inner.and_then(|one| Some((one, rest.strip_prefix(&*one.prefix)?))) else {
            return Step::End(None);
        };
        match rest.split_first() {
            None if inner.here == NONE => Step::End(None),
            None => Step::Down(inner.here, rest),
            Some((&byte, below)) => inner
                .way(byte)
                .map_or(Step::End(None), |node| Step::Down(node, below)),
        }
    }

    /// Has a node come into the cache.
    fn touch(&self, node: u32) -> usize {
        if node == NONE {
            0
        } else if node & LEAF != 0 {
            self.leaves.get(node ^ LEAF).map_or(0, |leaf| leaf.rest.len())
        } else {
            self.inners.get(node).map_or(0, |inner| inner.ways.len())
        }
    }

    /// Has what a node points to come into the cache.
    fn touch_below(&self, node: u32) -> usize {
        if node == NONE {
            0
        } else if node & LEAF != 0 {
            let leaf = self.leaves.get(node ^ LEAF);
            leaf.and_then(|leaf| leaf.rest.first())
                .map_or(0, |byte| usize::from(*byte))
        } else {
            let ways = self.inners.get(node).map(|inner| &inner.ways);
            let ends = ways.and_then(|ways| Some((ways.first()?, ways.last()?)));
            ends.map_or(0, |(first, last)| usize::from(first.byte ^ last.byte))
        }
    }

    /// The leaf of a subject, made if it is not there. The caller puts a sequence into it.
    pub(crate) fn entry(&mut self, subject: &[u8]) -> &mut Leaf {
        let number = self.find_or_insert(subject);
        self.leaves
            .get_mut(number)
            .expect("the number was found or made just now")
    }

    fn find_or_insert(&mut self, subject: &[u8]) -> u32 {
        let mut slot = Slot::Root;
        let mut rest = subject;
        loop {
            let node = self.node_at(slot);
            if node == NONE {
                let leaf = self.new_leaf(rest);
                self.set(slot, leaf);
                return leaf ^ LEAF;
            }
            let own: &[u8] = if node & LEAF != 0 {
                self.leaves.get(node ^ LEAF).map_or(&[], |leaf| &leaf.rest)
            } else {
                self.inners.get(node).map_or(&[], |inner| &inner.prefix)
            };
            let shared = own.iter().zip(rest).take_while(|(a, b)| a == b).count();
            let is_leaf = node & LEAF != 0;
            if shared < own.len() || (is_leaf && shared < rest.len()) {
                self.split(slot, node, shared);
                continue;
            }
            if is_leaf {
                return node ^ LEAF;
            }
            rest = rest.get(shared..).unwrap_or_default();
            let Some((&byte, below)) = rest.split_first() else {
                slot = Slot::Here(node);
                continue;
            };
            rest = below;
            let Some(inner) = self.inners.get_mut(node) else {
                return NONE;
            };
            let place = match inner.ways.binary_search_by_key(&byte, |way| way.byte) {
                Ok(place) => place,
                Err(place) => {
                    inner.ways.insert(place, Way { byte, node: NONE });
                    place
                }
            };
            slot = Slot::Way(node, place);
        }
    }

    /// Puts an inner node with the first `shared` bytes of the node at `slot` above it. Until the caller adds the
    /// other way, the new node has one way only.
    fn split(&mut self, slot: Slot, node: u32, shared: usize) {
        let own: &mut Box<[u8]> = if node & LEAF != 0 {
            match self.leaves.get_mut(node ^ LEAF) {
                Some(leaf) => &mut leaf.rest,
                None => return,
            }
        } else {
            match self.inners.get_mut(node) {
                Some(inner) => &mut inner.prefix,
                None => return,
            }
        };
        let (prefix, below) = own.split_at(shared.min(own.len()));
        let mut inner = Inner {
            prefix: prefix.into(),
            ..Inner::default()
        };
        match below.split_first() {
            Some((&byte, below)) => {
                inner.ways.push(Way { byte, node });
                *own = below.into();
            }
            None => {
                inner.here = node;
                *own = Box::default();
            }
        }
        let above = self.inners.insert(inner);
        self.set(slot, above);
    }

    fn new_leaf(&mut self, rest: &[u8]) -> u32 {
        self.len += 1;
        LEAF | self.leaves.insert(Leaf {
            rest: rest.into(),
            ..Leaf::default()
        })
    }

    fn node_at(&self, slot: Slot) -> u32 {
        match slot {
            Slot::Root => self.root,
            Slot::Here(inner) => self.inners.get(inner).map_or(NONE, |inner| inner.here),
            Slot::Way(inner, place) => self
                .inners
                .get(inner)
                .and_then(|inner| inner.ways.get(place))
                .map_or(NONE, |way| way.node),
        }
    }

    fn set(&mut self, slot: Slot, node: u32) {
        match slot {
            Slot::Root => self.root = node,
            Slot::Here(inner) => {
                if let Some(inner) = self.inners.get_mut(inner) {
                    inner.here = node;
                }
            }
            Slot::Way(inner, place) => {
                if let Some(way) = self
                    .inners
                    .get_mut(inner)
                    .and_then(|inner| inner.ways.get_mut(place))
                {
                    way.node = node;
                }
            }
        }
    }

    /// Removes a subject.
    pub(crate) fn remove(&mut self, subject: &[u8]) -> Option<Leaf> {
        let (mut parent, mut slot) = (None, Slot::Root);
        let mut rest = subject;
        loop {
            let node = self.node_at(slot);
            if node == NONE {
                return None;
            }
            if node & LEAF != 0 {
                if *self.leaves.get(node ^ LEAF)?.rest != *rest {
                    return None;
                }
                self.set(slot, NONE);
                self.len -= 1;
                let leaf = self.leaves.remove(node ^ LEAF);
                self.shrink(parent, slot);
                return Some(leaf);
            }
            let inner = self.inners.get(node)?;
            rest = rest.strip_prefix(&*inner.prefix)?;
            parent = Some(slot);
            let Some((&byte, below)) = rest.split_first() else {
                slot = Slot::Here(node);
                continue;
            };
            let place = inner.ways.binary_search_by_key(&byte, |way| way.byte).ok()?;
            rest = below;
            slot = Slot::Way(node, place);
        }
    }

    /// After `slot` was emptied: drops the way, and an inner node that has only one way left.
    fn shrink(&mut self, parent: Option<Slot>, slot: Slot) {
        let (Some(parent), Slot::Here(number) | Slot::Way(number, _)) = (parent, slot) else {
            return;
        };
        let Some(inner) = self.inners.get_mut(number) else {
            return;
        };
        if let Slot::Way(_, place) = slot {
            inner.ways.remove(place);
            if inner.ways.capacity() > 4 * inner.ways.len().max(1) {
                inner.ways.shrink_to(2 * inner.ways.len());
            }
        }
        let (below, byte) = match (inner.here, inner.ways.as_slice()) {
            (NONE, [way]) => (way.node, Some(way.byte)),
            (here, []) => (here, None),
            _ => return,
        };
        let inner = self.inners.remove(number);
        let joined = |own: &[u8]| -> Box<[u8]> {
            let mut bytes = Vec::with_capacity(inner.prefix.len() + 1 + own.len());
            bytes.extend_from_slice(&inner.prefix);
            bytes.extend(byte);
            bytes.extend_from_slice(own);
            bytes.into()
        };
        if below != NONE && below & LEAF != 0 {
            if let Some(leaf) = self.leaves.get_mut(below ^ LEAF) {
                leaf.rest = joined(&leaf.rest);
            }
        } else if let Some(child) = self.inners.get_mut(below) {
            child.prefix = joined(&child.prefix);
        }
        self.set(parent, below);
    }

    /// The subjects that match a filter, in the order of their bytes; all of them for `None`.
    pub(crate) fn matches<'a>(&'a self, filter: Option<&'a [u8]>) -> Matches<'a> {
        Matches {
            tree: self,
            pattern: Pattern {
                filter: filter.unwrap_or(b">"),
            },
            stack: vec![Frame {
                node: self.root,
                depth: 0,
                byte: None,
                place: Place::At(0),
            }],
            path: Vec::new(),
            after: None,
        }
    }

    /// All subjects that come after `after` in the order of their bytes.
    pub(crate) fn all_after(&self, after: Option<&[u8]>) -> Matches<'_> {
        Matches {
            after: after.map(Box::from),
            ..self.matches(None)
        }
    }

    /// Frees a part of the memory; whether anything is left. The tree is of no other use afterwards.
    pub(crate) fn dismantle(&mut self) -> bool {
        let leaves = self.leaves.dismantle();
        self.inners.dismantle() || leaves
    }
}

impl Inner {
    fn way(&self, byte: u8) -> Option<u32> {
        let place = self.ways.binary_search_by_key(&byte, |way| way.byte).ok()?;
        self.ways.get(place).map(|way| way.node)
    }
}

/// A filter as an automaton over bytes.
#[derive(Clone, Copy, Debug)]
struct Pattern<'a> {
    filter: &'a [u8],
}

/// Where a subject read so far stands in the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the byte at this offset.
    At(usize),
    /// Within the token that the `*` at this offset stands for.
    Star(usize),
    /// Within what `>` stands for: everything matches.
    Open,
}

impl Pattern<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.filter.get(at).copied()
    }

    /// Whether the byte at `at` is a whole token, and which one.
    fn wildcard(&self, at: usize) -> Option<u8> {
        let byte = self.byte(at).filter(|b| matches!(b, b'*' | b'>'))?;
        let starts = at == 0 || self.byte(at - 1) == Some(b'.');
        let ends = matches!(self.byte(at + 1), None | Some(b'.'));
        (starts && ends).then_some(byte)
    }

    fn step(&self, place: Place, byte: u8) -> Option<Place> {
        match place {
            Place::Open => Some(Place::Open),
            Place::Star(at) if byte != b'.' => Some(Place::Star(at)),
            Place::Star(at) => (self.byte(at + 1) == Some(b'.')).then_some(Place::At(at + 2)),
            Place::At(at) => match self.wildcard(at) {
                Some(b'>') if at + 1 == self.filter.len() => (byte != b'.').then_some(Place::Open),
                Some(b'*') => (byte != b'.').then_some(Place::Star(at)),
                _ => (self.byte(at) == Some(byte)).then_some(Place::At(at + 1)),
            },
        }
    }

    fn run(&self, place: Place, bytes: &[u8]) -> Option<Place> {
        if place == Place::Open {
            return Some(place);
        }
        bytes
            .iter()
            .try_fold(place, |place, &byte| self.step(place, byte))
    }

    const fn accepts(&self, place: Place) -> bool {
        match place {
            Place::Open => true,
            Place::Star(at) => at + 1 == self.filter.len(),
            Place::At(at) => at == self.filter.len(),
        }
    }

    /// The only byte that can follow, if there is only one.
    fn only(&self, place: Place) -> Option<u8> {
        match place {
            Place::At(at) if self.wildcard(at).is_none() => self.byte(at),
            Place::At(_) | Place::Star(_) | Place::Open => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    node: u32,
    /// Bytes of the path above.
    depth: usize,
    /// The byte that led here.
    byte: Option<u8>,
    place: Place,
}

/// A walk over the subjects that match a filter. It lends each subject from its own buffer.
#[derive(Clone, Debug)]
pub(crate) struct Matches<'a> {
    tree: &'a SubjectTree,
    pattern: Pattern<'a>,
    stack: Vec<Frame>,
    path: Vec<u8>,
    /// Subjects up to this one are left out, until the first beyond it is found.
    after: Option<Box<[u8]>>,
}

impl<'a> Matches<'a> {
    /// The next subject and what is known of it.
    pub(crate) fn next(&mut self) -> Option<(&[u8], &'a Leaf)> {
        while let Some(frame) = self.stack.pop() {
            self.path.truncate(frame.depth);
            self.path.extend(frame.byte);
            if frame.node == NONE {
                continue;
            }
            if frame.node & LEAF == 0 {
                if self.may_go_on() {
                    self.descend(frame);
                }
                continue;
            }
            let Some(leaf) = self.tree.leaves.get(frame.node ^ LEAF) else {
                continue;
            };
            let end = self.pattern.run(frame.place, &leaf.rest);
            if end.is_some_and(|place| self.pattern.accepts(place)) {
                self.path.extend_from_slice(&leaf.rest);
                if self.after.as_ref().is_none_or(|after| *self.path > **after) {
                    self.after = None;
                    return Some((&self.path, leaf));
                }
            }
        }
        None
    }

    /// Whether subjects that begin with the path may come after the place where the walk is to start.
    fn may_go_on(&self) -> bool {
        self.after
            .as_ref()
            .is_none_or(|after| *self.path > **after || after.starts_with(&self.path))
    }

    fn descend(&mut self, frame: Frame) {
        let Some(inner) = self.tree.inners.get(frame.node) else {
            return;
        };
        let Some(place) = self.pattern.run(frame.place, &inner.prefix) else {
            return;
        };
        self.path.extend_from_slice(&inner.prefix);
        let depth = self.path.len();
        let push = |way: &Way, stack: &mut Vec<Frame>| {
            if let Some(place) = self.pattern.step(place, way.byte) {
                stack.push(Frame {
                    node: way.node,
                    depth,
                    byte: Some(way.byte),
                    place,
                });
            }
        };
        match self.pattern.only(place) {
            Some(byte) => {
                if let Some(node) = inner.way(byte) {
                    push(&Way { byte, node }, &mut self.stack);
                }
            }
            None => {
                for way in inner.ways.iter().rev() {
                    push(way, &mut self.stack);
                }
            }
        }
        // The subject that ends here comes before all that go on, so it goes onto the stack last.
        self.stack.push(Frame {
            node: inner.here,
            depth,
            byte: None,
            place,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn subject() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "ab", "abc", "b", "*x", "c"]), 1..4)
            .prop_map(|tokens| tokens.join("."))
    }

    fn filter() -> impl Strategy<Value = String> {
        (
            prop::collection::vec(prop::sample::select(vec!["a", "ab", "*", "*x"]), 0..3),
            prop::sample::select(vec!["a", "abc", "*", ">", "b"]),
        )
            .prop_map(|(mut tokens, last)| {
                tokens.push(last);
                tokens.join(".")
            })
    }

    fn all(tree: &SubjectTree, filter: Option<&[u8]>) -> Vec<(Vec<u8>, u64)> {
        let mut walk = tree.matches(filter);
        let mut out = Vec::new();
        while let Some((subject, leaf)) = walk.next() {
            out.push((subject.to_vec(), leaf.seqs.last()));
        }
        out
    }

    fn check_shape(tree: &SubjectTree) {
        let mut stack = vec![tree.root];
        while let Some(node) = stack.pop() {
            if node == NONE || node & LEAF != 0 {
                continue;
            }
            let inner = tree.inners.get(node).unwrap();
            assert!(inner.ways.len() + usize::from(inner.here != NONE) >= 2);
            assert!(inner.ways.is_sorted_by(|a, b| a.byte < b.byte));
            stack.extend(inner.ways.iter().map(|way| way.node));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn behaves_like_a_sorted_map(
            ops in prop::collection::vec((subject(), any::<bool>()), 1..80),
            filters in prop::collection::vec(filter(), 4),
        ) {
            let (mut tree, mut model) = (SubjectTree::default(), BTreeMap::new());
            for (seq, (subject, add)) in (1..).zip(ops) {
                if add {
                    tree.entry(subject.as_bytes()).seqs.push(seq);
                    model.insert(subject.into_bytes(), seq);
                } else {
                    let removed = tree.remove(subject.as_bytes()).map(|leaf| leaf.seqs.last());
                    prop_assert_eq!(removed, model.remove(subject.as_bytes()));
                }
                check_shape(&tree);
                prop_assert_eq!(tree.len(), model.len() as u64);
            }
            for (subject, seq) in &model {
                prop_assert_eq!(tree.get(subject).map(|leaf| leaf.seqs.last()), Some(*seq));
            }
            prop_assert!(tree.get(b"zz").is_none() && tree.get(b"").is_none());
            let unknown: [&[u8]; 4] = [b"zz", b"", b"a.a.a.a.a", b"ab.x"];
            let mut names: Vec<&[u8]> = model.keys().map(Vec::as_slice).collect();
            names.extend(unknown);
            let mut found = Vec::new();
            tree.find_abreast(&names, &mut found);
            let singly: Vec<Option<u32>> = names.iter().map(|name| tree.find(name)).collect();
            prop_assert_eq!(&found, &singly);
            for (number, seq) in found.iter().zip(model.values()) {
                prop_assert_eq!(tree.leaf_mut(number.unwrap()).map(|leaf| leaf.seqs.last()), Some(*seq));
            }
            let everything: Vec<_> = model.clone().into_iter().collect();
            prop_assert_eq!(all(&tree, None), everything.clone());
            for (subject, _) in &everything {
                let mut walk = tree.all_after(Some(&subject[..subject.len() / 2 + 1]));
                let mut rest = Vec::new();
                while let Some((name, _)) = walk.next() {
                    rest.push(name.to_vec());
                }
                let expected: Vec<_> = model.range(subject[..subject.len() / 2 + 1].to_vec()..)
                    .map(|(s, _)| s.clone()).filter(|s| **s != subject[..subject.len() / 2 + 1]).collect();
                prop_assert_eq!(rest, expected);
            }
            for filter in filters {
                let expected: Vec<_> = everything.iter()
                    .filter(|(s, _)| tidelock_subject::matches(filter.as_bytes(), s)).cloned().collect();
                prop_assert_eq!(all(&tree, Some(filter.as_bytes())), expected, "{}", filter);
            }
        }
    }

    #[test]
    fn nested_prefixes_do_not_use_the_stack() {
        let mut tree = SubjectTree::default();
        let name = "x".repeat(2_000);
        for len in 1..=name.len() {
            tree.entry(&name.as_bytes()[..len]).seqs.push(len as u64);
        }
        assert_eq!(all(&tree, Some(b"*")).len(), name.len());
        for len in 1..=name.len() {
            assert!(tree.remove(&name.as_bytes()[..len]).is_some());
        }
        assert_eq!((tree.len(), tree.root), (0, NONE));
    }

    #[test]
    fn a_leaf_is_small() {
        assert!(size_of::<Leaf>() <= 56, "{}", size_of::<Leaf>());
    }
}
