//! Where streams are: what every worker of a node needs to know to send a publish or a request the right way.
//!
//! Kept by the metadata's apply on each node and shared as a snapshot; a new snapshot shares all that did not change.

use rpds::{HashTrieMapSync, RedBlackTreeSetSync};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidelock_base::{AccountId, GroupId, LogIndex, NodeId};

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRoute {
    /// Its group.
    pub group: GroupId,
    /// Its account.
    pub account: AccountId,
    /// Its name.
    pub name: Arc<str>,
    /// The nodes that hold its replicas.
    pub nodes: Vec<NodeId>,
    /// Whether it has a log yet.
    pub formed: bool,
    /// Publishes into it are never acknowledged.
    pub no_ack: bool,
    /// It is kept in memory, and needs no log.
    pub in_memory: bool,
    /// The stream of its own account that it mirrors.
    pub mirror_of: Option<Arc<str>>,
}

/// All streams of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    by_name: HashTrieMapSync<(AccountId, Arc<str>), GroupId>,
    by_group: HashTrieMapSync<GroupId, Arc<StreamRoute>>,
    /// Account, origin and name of each mirror.
    mirrors: RedBlackTreeSetSync<(AccountId, Arc<str>, Arc<str>)>,
    /// The entry of the metadata that this has come to.
    pub applied: LogIndex,
}

impl Directory {
    /// A stream by its name.
    #[must_use]
    pub fn stream(&self, account: AccountId, name: &str) -> Option<&StreamRoute> {
        let group = self.by_name.get(&(account, Arc::from(name)))?;
        self.by_group(*group)
    }

    /// A stream by its group.
    #[must_use]
    pub fn by_group(&self, group: GroupId) -> Option<&StreamRoute> {
        self.by_group.get(&group).map(|route| &**route)
    }

    /// All groups, sorted.
    pub(crate) fn groups(&self) -> BTreeSet<GroupId> {
        self.by_group.keys().copied().collect()
    }

    /// Names of the mirrors of a stream, in their order.
    pub fn mirrors_of(&self, account: AccountId, origin: &str) -> impl Iterator<Item = &Arc<str>> {
        let from = (account, Arc::from(origin), Arc::from(""));
        self.mirrors
            .range(from..)
            .take_while(move |(of, stream, _)| *of == account && **stream == *origin)
            .map(|(_, _, mirror)| mirror)
    }

    /// Adds a stream, or what has changed about it.
    pub(crate) fn insert(&mut self, route: StreamRoute) {
        if let Some(key) = self.by_group.get(&route.group).and_then(|old| mirror_key(old)) {
            self.mirrors.remove_mut(&key);
        }
        if let Some(key) = mirror_key(&route) {
            self.mirrors.insert_mut(key);
        }
        self.by_name
            .insert_mut((route.account, Arc::clone(&route.name)), route.group);
        self.by_group.insert_mut(route.group, Arc::new(route));
    }

    /// Takes a stream out.
    pub(crate) fn remove(&mut self, group: GroupId) {
        if let Some(route) = self.by_group.get(&group).cloned() {
            let key = (route.account, Arc::clone(&route.name));
            if self.by_name.get(&key) == Some(&group) {
                self.by_name.remove_mut(&key);
            }
            self.by_group.remove_mut(&group);
            if let Some(key) = mirror_key(&route) {
                self.mirrors.remove_mut(&key);
            }
        }
    }
}

fn mirror_key(route: &StreamRoute) -> Option<(AccountId, Arc<str>, Arc<str>)> {
    let origin = route.mirror_of.as_ref()?;
    Some((route.account, Arc::clone(origin), Arc::clone(&route.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(group: u64, account: u32, name: &str, mirror_of: Option<&str>) -> StreamRoute {
        StreamRoute {
            group: GroupId(group),
            account: AccountId(account),
            name: name.into(),
            nodes: Vec::new(),
            formed: true,
            no_ack: false,
            in_memory: false,
            mirror_of: mirror_of.map(Arc::from),
        }
    }

    #[test]
    fn mirrors_are_known_by_their_origin() {
        let mut directory = Directory::default();
        directory.insert(route(1, 1, "orders", None));
        directory.insert(route(2, 1, "near", Some("orders")));
        directory.insert(route(3, 1, "far", Some("orders")));
        directory.insert(route(4, 1, "copy", Some("orders2")));
        directory.insert(route(5, 2, "other", Some("orders")));
        let of = |directory: &Directory, origin: &str| -> Vec<String> {
            let mirrors = directory.mirrors_of(AccountId(1), origin);
            mirrors.map(ToString::to_string).collect()
        };
        assert_eq!(of(&directory, "orders"), ["far", "near"]);
        assert_eq!(of(&directory, "order"), [""; 0]);
        // A mirror that was promoted to a stream of its own, and one that was deleted.
        directory.insert(route(2, 1, "near", None));
        directory.remove(GroupId(3));
        assert_eq!(of(&directory, "orders"), [""; 0]);
        assert_eq!(of(&directory, "orders2"), ["copy"]);
    }
}
