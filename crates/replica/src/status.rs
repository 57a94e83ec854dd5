//! What can be asked of a group at any time.

use crate::config::GroupConfig;
use crate::errors::Failure;
use crate::group::Group;
use crate::member::Members;
use raft::{ProgressState, StateRole};
use tidelock_base::{LogIndex, Mono, ReplicaId, Term};

/// How a member follows the log, as its leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// Which replica; the leader itself is included.
    pub replica: ReplicaId,
    /// It votes.
    pub voter: bool,
    /// Known to be stored durably there.
    pub matched: LogIndex,
    /// Entries of the leader's log that are not known to be there.
    pub lag: u64,
    /// Heard of within the last election timeout.
    pub recent_active: bool,
    /// How it is being served.
    pub state: PeerState,
}

/// How a leader serves a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Its position is being found out, one frame at a time.
    Probe,
    /// Entries are sent as they come.
    Replicate,
    /// A snapshot is on its way.
    Snapshot,
}

impl Group {
    /// The leader as far as this replica knows; itself if it leads.
    #[must_use]
    pub fn leader(&self) -> Option<ReplicaId> {
        Some(ReplicaId(self.node.raft.leader_id)).filter(|id| id.value() != 0)
    }

    /// True if this replica leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader && self.failure.is_none()
    }

    /// True once an entry of the present term is known to be committed. A leader's state is current only then.
    #[must_use]
    pub fn has_committed_in_term(&self) -> bool {
        self.node.raft.commit_to_current_term()
    }

    /// The latest term seen.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.node.raft.term)
    }

    /// Highest index known to be committed.
    #[must_use]
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.committed)
    }

    /// Highest index that the leader is known to have committed. A replica that lacks entries before it cannot know them
    /// to be committed itself, and a new leader may know less than the one before.
    #[must_use]
    pub fn leaders_commit(&self) -> LogIndex {
        let (term, commit) = self.told;
        let told = if term == self.node.raft.term { commit } else { 0 };
        self.commit().max(LogIndex(told))
    }

    /// The same, if the leader of the present term has told it since `since`.
    #[must_use]
    pub fn told_commit(&self, since: Mono) -> Option<LogIndex> {
        let is_told = self.told.0 == self.node.raft.term && self.told_at >= since;
        is_told.then(|| self.leaders_commit())
    }

    /// Index of the last entry, durable or not.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.last_index())
    }

    /// Index up to which the log is durable here.
    #[must_use]
    pub fn persisted_index(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.persisted)
    }

    /// Index up to which the node has reported entries as applied.
    #[must_use]
    pub fn applied_index(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.applied)
    }

    /// Index before the first entry that is still in memory.
    #[must_use]
    pub fn base_index(&self) -> LogIndex {
        LogIndex(self.node.store().base().0)
    }

    /// The members as of the applied index, and the index of the entry that made them so: what a checkpoint records.
    #[must_use]
    pub const fn members(&self) -> (&Members, LogIndex) {
        (&self.members, LogIndex(self.members_at))
    }

    /// What was told at creation.
    #[must_use]
    pub const fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// Why the group has stopped, if it has.
    #[must_use]
    pub const fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// True once this replica has applied its own removal. It still answers, since others may need its vote until the
    /// removal is known everywhere, but never leads again; it is destroyed when the meta log says so.
    #[must_use]
    pub const fn is_removed(&self) -> bool {
        self.removed
    }

    /// Bytes of entries in memory, applied ones included.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.node.store().resident_bytes()
    }

    /// Appends that were dropped because too much was waiting to be applied.
    #[must_use]
    pub const fn dropped_appends(&self) -> u64 {
        self.dropped_appends
    }

    /// How the members follow, by id; empty unless this replica leads.
    #[must_use]
    pub fn progress(&self) -> Vec<PeerProgress> {
        if !self.is_leader() {
            return Vec::new();
        }
        let last = self.last_index().value();
        let peer = |(id, progress): (&u64, &raft::Progress)| PeerProgress {
            replica: ReplicaId(*id),
            voter: self.members.is_voter(ReplicaId(*id)),
            matched: LogIndex(progress.matched),
            lag: last.saturating_sub(progress.matched),
            recent_active: progress.recent_active || *id == self.config.me.value(),
            state: match progress.state {
                ProgressState::Probe => PeerState::Probe,
                ProgressState::Replicate => PeerState::Replicate,
                ProgressState::Snapshot => PeerState::Snapshot,
            },
        };
        let mut peers: Vec<_> = self.node.raft.prs().iter().map(peer).collect();
        peers.sort_unstable_by_key(|peer| peer.replica);
        peers
    }
}
