//! Sources and mirrors: the leader of the destination copies from the origin.

use crate::deliver_batch::Message;
use crate::groups::Done;
use crate::worker::Core;
use tidelock_base::{AccountId, GroupId, Mono};

/// A source that waits for its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceWaiter;

impl Core {
    pub(crate) fn source_done(&mut self, _waiter: SourceWaiter, _done: Done<'_>) {}
    pub(crate) fn source_entry(&mut self, _account: AccountId, _message: &Message<'_>) -> bool {
        false
    }
    pub(crate) fn sources_tick(&mut self, _group: GroupId) {}
    pub(crate) fn sources_turn(&mut self, _group: GroupId) {}
    pub(crate) fn sources_lead(&mut self, _group: GroupId) {}
    pub(crate) fn sources_follow(&mut self, _group: GroupId) {}
    pub(crate) fn sources_deadline(&self, _group: GroupId) -> Option<Mono> {
        None
    }
}
