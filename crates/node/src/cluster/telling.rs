//! What nodes tell each other of themselves: interest, facts; and the table of peers that others see.

use super::link::Side;
use super::links::{Event, Links};
use super::peers::{LinkView, Peer, PeerEvent, PeerTable, PeerView};
use crate::cell::{Cell, InterestDelta, InterestUpdate, LaneKind, NodeFacts};
use crate::shared::NodeShared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidelock_base::{AccountId, NodeId};

/// Entries of one frame of interest.
const INTEREST_ENTRIES: usize = 8_192;
const CLIENT: usize = LaneKind::Client.index() as usize;

impl Links {
    /// Subscriptions of this node's clients came and went.
    pub(crate) fn own_interest(&mut self, deltas: impl IntoIterator<Item = InterestDelta>) {
        for delta in deltas {
            self.own.apply(delta);
        }
    }

    /// Tells peers what they do not know of this node's interest: the changes, or all of it after a link came up.
    pub(crate) fn tell_interest(&mut self) {
        let shared = Arc::clone(&self.shared);
        let names = || -> Vec<Arc<str>> {
            shared
                .accounts
                .iter()
                .map(|account| Arc::clone(&account.name))
                .collect()
        };
        let changes = if self.own.has_changes() {
            self.own.take_changes(&names())
        } else {
            Vec::new()
        };
        let is_new = |peer: &Peer| !peer.told && peer.into[CLIENT].is_some();
        if changes.is_empty() && !self.peers.values().any(is_new) {
            return;
        }
        let nodes: Vec<(NodeId, bool)> = self
            .peers
            .iter()
            .map(|(node, peer)| (*node, is_new(peer)))
            .collect();
        for (node, new) in nodes {
            let all = if new { self.own.all(&names()) } else { Vec::new() };
            let entries = if new { &all } else { &changes };
            if let Some(peer) = self.peers.get_mut(&node).filter(|_| new) {
                peer.told = true;
            }
            let empty = (new && entries.is_empty()).then_some(&[][..]);
            for (n, chunk) in entries.chunks(INTEREST_ENTRIES).chain(empty).enumerate() {
                let update = InterestUpdate {
                    reset: new && n == 0,
                    entries: chunk.to_vec(),
                };
                self.send(node, LaneKind::Client, Cell::Interest(update));
            }
        }
    }

    /// A peer has told its interest.
    pub(crate) fn peer_interest(&mut self, node: NodeId, update: InterestUpdate) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let mut changes = Vec::new();
        if update.reset {
            changes.extend(peer.interest.removes(node));
            peer.interest.clear();
        }
        for entry in update.entries {
            if let Some(account) = self.shared.account_id(&entry.account) {
                peer.interest.update(node, account, entry, &mut changes);
            }
        }
        if peer.up {
            self.events.extend(
                changes
                    .into_iter()
                    .map(|(account, change)| Event::Interest(account, change)),
            );
        }
        let (from, count) = (peer.from[CLIENT], peer.interest.len());
        if let Some(link) = from.and_then(|key| self.get(key)) {
            link.stats.subscriptions.store(count as u64, Ordering::Relaxed);
        }
    }

    /// A peer has said something new of itself.
    pub(crate) fn peer_facts(&mut self, node: NodeId, facts: NodeFacts) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if facts.node != node || facts.boot != peer.facts.boot || facts == *peer.facts {
            return;
        }
        peer.accounts = accounts_of(&self.shared, &facts);
        peer.facts = Arc::new(facts);
        if peer.up {
            self.events
                .push(Event::Peer(PeerEvent::Changed(Arc::clone(&peer.facts))));
        }
        self.review_urls();
    }

    /// Changes what this node says of itself, and tells its peers if that is something new.
    pub(crate) fn set_facts(&mut self, change: impl FnOnce(&mut NodeFacts)) {
        let before = self.me.clone();
        change(&mut self.me);
        if self.me != before {
            self.send_all(&Cell::NodeFacts(Box::new(self.me.clone())));
        }
    }

    /// The table of peers for other workers and for monitoring, if it has changed since the last call.
    pub(crate) fn take_view(&mut self) -> Option<PeerTable> {
        if !std::mem::take(&mut self.view_changed) {
            return None;
        }
        let (routes_configured, routes_found) = self.dials.configured();
        let peers = self.peers.values().map(|peer| self.view(peer)).collect();
        Some(PeerTable {
            peers,
            routes_configured,
            routes_found,
        })
    }

    fn view(&self, peer: &Peer) -> PeerView {
        let configured = self.dials.is_configured(peer.facts.node);
        let links = peer.into.iter().chain(&peer.from).flatten().filter_map(|key| {
            let link = self.table.get(key.index as usize)?.as_deref()?;
            Some(LinkView {
                rid: link.rid,
                lane: link.lane,
                dialled: matches!(link.side, Side::Dialled(_)),
                configured,
                remote: link.remote,
                start: link.start,
                stats: Arc::clone(&link.stats),
            })
        });
        PeerView {
            facts: Arc::clone(&peer.facts),
            up: peer.up,
            links: links.collect(),
        }
    }
}

/// A peer's accounts by its numbers, as this node numbers them.
pub(super) fn accounts_of(shared: &NodeShared, facts: &NodeFacts) -> Arc<[Option<AccountId>]> {
    facts
        .accounts
        .iter()
        .map(|name| shared.account_id(name))
        .collect()
}
