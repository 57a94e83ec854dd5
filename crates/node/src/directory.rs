//! Where streams are: what every worker of a node needs to know to send a publish or a request the right way.
//!
//! Kept by the metadata's apply on each node and shared as a snapshot; a new snapshot shares all that did not change.

use rpds::HashTrieMapSync;
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
}

/// All streams of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    by_name: HashTrieMapSync<(AccountId, Arc<str>), GroupId>,
    by_group: HashTrieMapSync<GroupId, Arc<StreamRoute>>,
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

    /// Adds a stream, or what has changed about it.
    pub(crate) fn insert(&mut self, route: StreamRoute) {
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
        }
    }
}
