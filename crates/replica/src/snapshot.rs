//! Catching up a follower whose entries are gone.
//!
//! ```text
//!  leader                                             follower
//!  a frame cannot be filled: `needed` ─> node
//!  node checkpoints, `offer_snapshot` ── manifest ──> `install` ─> node fetches and syncs the files
//!                                                     node: `installed`: SnapshotInstalled goes to the WAL
//!  goes on with entries <── acknowledgement ───────── `persisted`: `restored` ─> node swaps the state machine
//! ```
//!
//! While files are staged the follower's log stands still: entries are dropped, heartbeats and votes are answered. The
//! synced record in the write-ahead log is the commit point. Heartbeat answers of a follower that is staging say so;
//! when they stop saying it, the leader takes the transfer for failed and asks its node for another. So a lost
//! manifest, a restart and a failure are found out the same way.

use crate::errors::StepError;
use crate::frame::{FrameError, Head, to_snapshot};
use crate::group::Group;
use crate::member::Members;
use crate::types::LogPosition;
use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};
use raft::{ProgressState, SnapshotStatus, StateRole};
use std::collections::BTreeMap;
use tidelock_base::{LogIndex, ReplicaId, Term};

/// Heartbeat answers without sign of a transfer after which it has failed.
const SILENT_ANSWERS_MAX: u32 = 5;

/// What happened around snapshots since the last `Ready`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotEvents {
    /// Peers that need one: take a checkpoint and call [`Group::offer_snapshot`], or [`Group::snapshot_failed`].
    pub needed: Vec<ReplicaId>,
    /// One to be fetched and made durable: call [`Group::installed`] or [`Group::install_failed`].
    pub install: Option<Install>,
    /// One is in force: the state machine is swapped for it before any entry of the same `Ready` is applied.
    pub restored: Option<Restored>,
}

impl SnapshotEvents {
    pub(crate) const fn is_empty(&self) -> bool {
        self.needed.is_empty() && self.install.is_none() && self.restored.is_none()
    }
}

/// A snapshot offered by the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install {
    /// Whom to fetch from.
    pub from: ReplicaId,
    /// The last entry it contains.
    pub position: LogPosition,
    /// The members as of that entry.
    pub members: Members,
    /// What the leader's node wrote about its files.
    pub manifest: Bytes,
}

/// A snapshot that is durable and in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The last entry it contains; applied from now on.
    pub position: LogPosition,
    /// The members as of that entry.
    pub members: Members,
}

/// Why a snapshot cannot be offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// Only a leader sends snapshots.
    #[error("not the leader")]
    NotLeader,
    /// The receiver is not a member, or not yet as of this snapshot.
    #[error("the receiver is not a member as of the snapshot")]
    NotMember,
    /// Older than the log, so that the follower could not go on from it.
    #[error("the snapshot is older than the log")]
    TooOld,
    /// Newer than what is applied, or of another term than the log's entry.
    #[error("the snapshot is not of this log")]
    NotOfThisLog,
}

/// Why a staged snapshot is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// No snapshot of this position is being staged.
    #[error("no such snapshot is being staged")]
    NotStaging,
    /// The group has stopped.
    #[error("the replica has stopped")]
    Failed,
}

/// The state of transfers, of either side.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// Boxed, like the states below: nearly all groups have none of this, and there are many groups.
    pub(crate) events: Option<Box<SnapshotEvents>>,
    /// As follower: being fetched by the node.
    staging: Option<Box<Install>>,
    /// As follower: handed to the write-ahead log, not yet in force.
    pub(crate) restoring: Option<Box<Restored>>,
    /// As leader: index sent and heartbeat answers without a sign of it, by receiver.
    transfers: BTreeMap<u64, Transfer>,
    /// As leader: told to the node and not yet answered.
    asked: Vec<u64>,
}

struct Transfer {
    index: u64,
    silent: u32,
}

impl Snapshots {
    pub(crate) const fn is_staging(&self) -> bool {
        self.staging.is_some()
    }

    /// What heartbeat answers tell the leader.
    pub(crate) const fn is_under_way(&self) -> bool {
        self.staging.is_some() || self.restoring.is_some()
    }

    /// Up to which index a member has everything once it has received what is on its way to it.
    pub(crate) fn filled_with(&self, to: ReplicaId) -> Option<u64> {
        self.transfers.get(&to.value()).map(|transfer| transfer.index)
    }

    /// The lowest index from which a receiver will go on; entries above it are worth keeping.
    pub(crate) fn pin(&self) -> u64 {
        self.transfers
            .values()
            .map(|transfer| transfer.index)
            .min()
            .unwrap_or(u64::MAX)
    }
}

impl Group {
    /// Offers the checkpoint that `to` is to be filled from. Entries above its position are kept for a while.
    ///
    /// # Errors
    /// [`OfferError`]; ask for a newer checkpoint, or forget it if this replica does not lead any more.
    pub fn offer_snapshot(
        &mut self,
        to: ReplicaId,
        position: LogPosition,
        members: &Members,
        manifest: Bytes,
    ) -> Result<(), OfferError> {
        if !self.is_leader() {
            return Err(OfferError::NotLeader);
        }
        let known = self.node.raft.prs().get(to.value()).is_some();
        if !known || !members.contains(to) || to == self.config.me {
            return Err(OfferError::NotMember);
        }
        let index = position.index.value();
        if index < self.node.store().stored().floor().0 {
            return Err(OfferError::TooOld);
        }
        let log = &self.node.raft.raft_log;
        if index > log.applied || !log.match_term(index, position.term.value()) {
            return Err(OfferError::NotOfThisLog);
        }
        let snapshot = to_snapshot(index, position.term.value(), members, manifest);
        self.guarded(Err(OfferError::NotLeader), |group| {
            group.node.store().offer(to.value(), snapshot);
            group.snapshots.asked.retain(|id| *id != to.value());
            group
                .snapshots
                .transfers
                .insert(to.value(), Transfer { index, silent: 0 });
            group.node.raft.send_append(to.value());
            Ok(())
        })
    }

    /// While a member is filled with something large, so many bytes more of the entries that follow are kept in memory for
    /// it: where they cannot be read back, it would have to be filled anew otherwise. 0 ends that.
    pub fn pin_more(&mut self, bytes: usize) {
        self.node.mut_store().pin_more(bytes);
    }

    /// Tells that no snapshot reached `to`: none could be made, or its transfer has ended badly. It is asked for again
    /// if it is still needed.
    pub fn snapshot_failed(&mut self, to: ReplicaId) {
        self.guarded((), |group| group.end_transfer(to.value()));
    }

    /// As leader: whether a peer needs a snapshot, or fetches one.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        !self.snapshots.transfers.is_empty() || !self.snapshots.asked.is_empty()
    }

    fn end_transfer(&mut self, to: u64) {
        self.node.store().forget(Some(to));
        self.snapshots.asked.retain(|id| *id != to);
        self.snapshots.transfers.remove(&to);
        self.node.report_snapshot(to, SnapshotStatus::Failure);
    }

    /// Looks at an answer to a heartbeat for a sign that the snapshot on its way is being staged.
    pub(crate) fn watch_transfer(&mut self, head: &Head) {
        let Some(transfer) = self.snapshots.transfers.get_mut(&head.from) else {
            return;
        };
        let progress = self.node.raft.prs().get(head.from);
        let under_way = progress.is_some_and(|progress| progress.state == ProgressState::Snapshot);
        if head.flags & crate::frame::FLAG_STAGING != 0 {
            transfer.silent = 0;
        } else {
            transfer.silent += 1;
        }
        if transfer.silent < SILENT_ANSWERS_MAX {
            return;
        }
        if under_way {
            self.end_transfer(head.from);
        } else {
            self.snapshots.transfers.remove(&head.from);
            self.node.store().forget(Some(head.from));
        }
    }

    /// As leader: whoever newly needs a snapshot; as anything else: nobody, and what was begun is forgotten.
    pub(crate) fn collect_needed(&mut self) -> Vec<ReplicaId> {
        if self.node.raft.state != StateRole::Leader {
            let idle = self.snapshots.asked.is_empty() && self.snapshots.transfers.is_empty();
            if !idle {
                self.snapshots.asked.clear();
                self.snapshots.transfers.clear();
                self.node.store().forget(None);
            }
            return Vec::new();
        }
        let mut wanted = self.node.store().wanted();
        wanted.retain(|id| !self.snapshots.asked.contains(id));
        self.snapshots.asked.extend(&wanted);
        wanted.into_iter().map(ReplicaId).collect()
    }

    /// A snapshot's frame. One that is not needed goes to the library, which answers where this log stands.
    pub(crate) fn take_snapshot(&mut self, head: &Head, frame: &Bytes) -> Result<(), StepError> {
        let message = head.message(frame)?;
        let log = &self.node.raft.raft_log;
        let stale = head.term < self.node.raft.term;
        let held = head.index <= log.committed || log.match_term(head.index, head.log_term);
        if stale || (held && !self.snapshots.is_staging()) {
            let _ = self.node.step(message);
            return Ok(());
        }
        let members = Members::from_conf_state(message.get_snapshot().get_metadata().get_conf_state());
        if !members.contains(self.config.me) {
            return Err(FrameError::Range.into());
        }
        // The sender leads this term: acknowledged like a heartbeat, so that the election timer starts afresh.
        let mut heartbeat = Message::default();
        heartbeat.set_msg_type(MessageType::MsgHeartbeat);
        (heartbeat.from, heartbeat.to, heartbeat.term) = (head.from, head.to, head.term);
        let _ = self.node.step(heartbeat);
        if self.snapshots.is_staging() || self.snapshots.restoring.is_some() {
            return Ok(());
        }
        let install = Install {
            from: ReplicaId(head.from),
            position: LogPosition {
                index: LogIndex(head.index),
                term: Term(head.log_term),
            },
            members,
            manifest: message.get_snapshot().data.clone(),
        };
        self.snapshots.staging = Some(Box::new(install.clone()));
        self.snapshots.events.get_or_insert_default().install = Some(install);
        Ok(())
    }

    /// Tells that the files of a snapshot are staged and synced. The next `Ready` puts it into the write-ahead log;
    /// once that is synced, `restored` says that it is in force.
    ///
    /// # Errors
    /// [`InstallError`] if it is not the one being staged.
    pub fn installed(&mut self, position: LogPosition) -> Result<(), InstallError> {
        let install = self
            .snapshots
            .staging
            .take_if(|install| install.position == position);
        let install = install.ok_or(InstallError::NotStaging)?;
        self.guarded(Err(InstallError::Failed), |group| {
            group.put_in_log(*install);
            Ok(())
        })
    }

    fn put_in_log(&mut self, install: Install) {
        let (index, term) = (install.position.index.value(), install.position.term.value());
        let raft = &mut self.node.raft;
        // While files were staged the log stood still, so that the snapshot is still ahead of it.
        assert!(
            raft.state != StateRole::Leader && index > raft.raft_log.committed,
            "the log stood still"
        );
        let snapshot = to_snapshot(index, term, &install.members, install.manifest);
        if raft.leader_id == 0 {
            // Nobody to tell. Whoever leads next finds out.
            let term = raft.term;
            raft.become_follower(term, 0);
            raft.restore(snapshot);
        } else {
            let mut message = Message::default();
            message.set_msg_type(MessageType::MsgSnapshot);
            (message.from, message.to, message.term) = (raft.leader_id, raft.id, raft.term);
            message.set_snapshot(snapshot);
            let _ = self.node.step(message);
        }
    }

    /// Tells that a snapshot could not be staged. The log moves again, and the leader finds out from heartbeats.
    pub fn install_failed(&mut self, position: LogPosition) {
        self.snapshots
            .staging
            .take_if(|install| install.position == position);
    }
}
