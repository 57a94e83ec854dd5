//! A replica of whose files of messages some are missing at a start, or destroyed as a whole, is held until their messages
//! have come from the other replicas (promise P4).
//!
//! ```text
//!   start: a block cannot be listed ──> held: no votes, no entries, no requests of clients
//!                                         │ asks the others for its messages (`mending.rs`), and
//!                                         │ gives them those that it has itself
//!            the block is written again ──┤
//!                                         v
//!                     all is listed anew ──> it goes on where it was stopped
//! ```
//! Its log is whole; what is lost is part of the state that its checkpoint names. Nothing may be applied to a state of
//! which a part is missing: limits and expected sequences of subjects would be judged wrongly. To fill it anew from a
//! snapshot would take a majority of the other replicas, and they may lack other blocks. So replicas that are held
//! serve each other.
//!
//! If a majority of the replicas has removed messages that are lost here, the block cannot be had any more, and there
//! are enough to replace this replica: it is given up.

use super::trouble::What;
use super::{Machine, Slot};
use crate::worker::Core;
use std::time::Duration;
use tidelock_base::GroupId;

/// All others that are reached were asked in vain: they are asked again after this. At a start they come one by one.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Slot {
    /// Whether it waits for files of messages that were missing at its start.
    pub(crate) fn is_held(&self) -> bool {
        let Machine::Stream(stream) = &self.machine else {
            return false;
        };
        !stream.store().is_listed() && self.raft.failure().is_none()
    }

    /// Whether what is missing cannot come from the others, ever.
    pub(super) fn is_beyond_hope(&self) -> bool {
        let Machine::Stream(stream) = &self.machine else {
            return false;
        };
        let majority = self.raft.members().0.voters.len() / 2 + 1;
        self.is_held() && (stream.store().is_beyond_mending() || self.mending.removed_by() >= majority)
    }
}

impl Core {
    /// Holds a replica that lacks files.
    pub(super) fn hold_if_unlisted(&mut self, group: GroupId) {
        let Some(slot) = self.slot_mut(group).filter(|slot| slot.is_held()) else {
            return;
        };
        slot.failed = Some("files of its messages are missing or destroyed".to_owned());
        let (account, name) = (slot.account, std::sync::Arc::clone(&slot.name));
        let Machine::Stream(stream) = &slot.machine else {
            return;
        };
        let mut lost = stream.store().damaged();
        let first = lost.next().unwrap_or_default();
        let count = 1 + lost.count();
        tracing::error!(
            "JetStream stream '{} > {name}': files of {count} messages are missing or destroyed, the first is {first}; this \
             replica takes no part until they have come from the others",
            self.account_name(account)
        );
    }

    /// Nobody who is reached has what is missing.
    pub(super) fn held_asks_again(&mut self, group: GroupId) {
        let now = self.now.mono;
        let Some(slot) = self.slot_mut(group) else { return };
        slot.mending.again_at.get_or_insert(now + ASK_AGAIN);
        if !slot.mending.has_heard_no() {
            return;
        }
        let (account, name) = (slot.account, std::sync::Arc::clone(&slot.name));
        let text = format!(
            "JetStream stream '{} > {name}': no other replica that is reached has all of the messages that are missing here",
            self.account_name(account)
        );
        self.trouble(What::Damage(group), &text);
    }

    /// Nothing is missing any more: the replica goes on.
    pub(super) fn go_on_if_listed(&mut self, group: GroupId) {
        let Some(disk) = self.disk.clone() else { return };
        let Some(slot) = self.slot_mut(group).filter(|slot| slot.is_held()) else {
            return;
        };
        let Machine::Stream(stream) = &mut slot.machine else {
            return;
        };
        match stream.relist(&*disk) {
            Ok(true) => {}
            // More has been lost meanwhile; the group was touched, so that it is mended next.
            Ok(false) => return,
            Err(error) => return self.stop_held(group, error.to_string()),
        }
        slot.failed = None;
        let (account, name) = (slot.account, std::sync::Arc::clone(&slot.name));
        tracing::info!(
            "JetStream stream '{} > {name}': all messages are here; this replica takes part again",
            self.account_name(account)
        );
        // The last one names the lost files.
        self.want_checkpoint(group);
    }

    /// What is missing cannot be had: the replica is to be replaced.
    pub(super) fn give_up_held(&mut self, group: GroupId) {
        let text = "files of its messages are missing or destroyed, and the others have not all of these messages any more";
        self.stop_held(group, text.to_owned());
    }

    fn stop_held(&mut self, group: GroupId, text: String) {
        let Some(slot) = self.slot_mut(group) else { return };
        slot.spoil();
        self.stop_replica(group, text);
    }
}
