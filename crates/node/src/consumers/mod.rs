//! Consumers at their stream's leader: pull requests, deliveries, acknowledgements; and what each node keeps of them
//! for its own clients.
//!
//! ```text
//!   pull, interest ──> ConsumerLeader ──pick──> Deliver command ──applied──> outbox ──> client
//!                                         └─ ack policy none ───────────────────┘
//!   acknowledgement ──> batch of the turn ──> Acks command ──applied──> answer, room for more
//! ```
//! [`Leading`] is what a leader keeps of a stream's consumers; it starts anew with each leadership. [`Front`] is what a
//! worker keeps for clients of this node, whoever leads: pull requests that wait elsewhere ([`pulls`]) and
//! acknowledgements on their way to a leader.
//!
//! Invariants:
//! - messages and statuses of one consumer leave in the order in which its [`ConsumerLeader`] gave them out, also when
//!   one of them has to be read from disk first ([`One::outbox`]);
//! - with acknowledgements, a message leaves after its Deliver command was applied, never before;
//! - a pull request that was taken ends: with the consumer's status, or with `409 Leadership Change`.

mod acks;
mod advisories;
mod again;
mod entry;
mod events;
mod interest;
mod items;
mod leading;
mod lookup;
mod outbox;
mod pulls;
pub(crate) mod subjects;
mod turn;
mod verbs;
mod waiters;

pub(crate) use events::Event;
pub(crate) use leading::{Entered, Leading};
pub(crate) use waiters::AckWaiter;

use crate::cell::PullEnd;
use interest::Watch;
use outbox::Scratch;
use pulls::Pulls;
use std::collections::BTreeMap;
use tidelock_base::{AccountId, GroupId, Mono, NodeId};
use tidelock_jetstream::command::WindowKey;

/// What a worker keeps of consumers for clients of this node.
#[derive(Default)]
pub(crate) struct Front {
    /// Pull requests that wait at leaders elsewhere.
    pulls: Pulls,
    /// Acknowledgements for leaders elsewhere, and those that do not know yet where to go.
    acks: BTreeMap<GroupId, entry::Parcel>,
    /// Pull requests of other places that have ended in this turn.
    ended: BTreeMap<(NodeId, WindowKey, GroupId, PullEnd), Vec<u64>>,
    /// Accounts whose interest matters to push consumers that are led here.
    watches: BTreeMap<AccountId, Watch>,
    /// Memory that is used again.
    scratch: Scratch,
}

impl Front {
    /// When [`crate::worker::Core::tick_consumer_front`] must run at the latest.
    pub(crate) fn deadline(&self, now: Mono) -> Option<Mono> {
        let acks = self.acks.values().next().map(|_| now + entry::RETRY);
        let watch = self.watches.values().filter_map(|watch| watch.again_at).min();
        [self.pulls.deadline(), acks, watch].into_iter().flatten().min()
    }
}
