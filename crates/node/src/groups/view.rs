//! What an observer outside the node may see of its replicas: for the simulator's checkers.

use super::{Machine, Slot};
use crate::worker::Worker;
use std::sync::Arc;
use tidelock_api::Time;
use tidelock_base::{GroupId, LogIndex, ReplicaId, StreamSeq, Term};
use tidelock_jetstream::stream::Stream;

/// One replica, between two turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// Its group.
    pub group: GroupId,
    /// The replica.
    pub replica: ReplicaId,
    /// Name of the stream; `_meta_` for the metadata.
    pub name: Arc<str>,
    /// The term it is in.
    pub term: Term,
    /// Whether it is its group's leader in that term.
    pub is_leader: bool,
    /// Highest index that it knows to be committed.
    pub commit: LogIndex,
    /// Index of the last entry that it has applied.
    pub applied: LogIndex,
    /// The last entry that it could not send any more, as a leader, to a member that lacks it.
    pub floor: LogIndex,
    /// Hash of the state at that index; `None` while another entry is being applied. Replicas of a group must have the
    /// same one at the same index.
    pub digest: Option<u64>,
    /// Messages in the stream; 0 for the metadata.
    pub messages: u64,
    /// Last sequence that the stream has used; 0 for the metadata.
    pub last_seq: StreamSeq,
    /// What stands for the stream as an origin of others: a hash of the moment at which it was created; empty for the
    /// metadata.
    pub identity: String,
    /// How far each of its sources, or its mirror, has come: identity of the origin, and its last sequence that is dealt with.
    pub copied: Vec<(Box<[u8]>, StreamSeq)>,
    /// Who votes in its group, as of the last entry applied.
    pub voters: Vec<ReplicaId>,
    /// Who follows without a vote.
    pub learners: Vec<ReplicaId>,
    /// Which replicas the metadata lists, as far as this one was told.
    pub listed: Vec<ReplicaId>,
    /// Why it has stopped for good, if it has.
    pub failed: Option<String>,
    /// Files of its messages are missing, and it takes no part until they have come from others.
    pub is_held: bool,
}

impl Worker {
    /// The replicas of this worker, by group. Computes digests, which is not free: for tests and simulations.
    #[must_use]
    pub fn replicas(&self) -> Vec<ReplicaView> {
        self.core.groups.slots.values().map(|slot| slot.view()).collect()
    }
}

impl Slot {
    fn view(&self) -> ReplicaView {
        // A replica that waits for its first snapshot has no state of its own.
        let whole = self.applying.is_none() && self.applied() > LogIndex(0);
        let (digest, stream) = match &self.machine {
            Machine::Stream(stream) => (
                (whole && stream.is_at_boundary()).then(|| stream.digest()),
                Some(&**stream),
            ),
            Machine::Meta(meta) => (whole.then(|| meta.digest()), None),
        };
        let members = self.raft.members().0;
        ReplicaView {
            group: self.group,
            replica: self.me,
            name: Arc::clone(&self.name),
            term: self.raft.term(),
            is_leader: self.raft.is_leader(),
            commit: self.raft.commit(),
            applied: self.applied(),
            floor: self.raft.floor_index(),
            digest,
            messages: stream.map_or(0, |stream| stream.state().msgs),
            last_seq: stream.map_or(StreamSeq(0), Stream::last_seq),
            identity: stream.map_or_else(String::new, |stream| {
                tidelock_auth::hash8(Time(stream.created()).to_string().as_bytes())
            }),
            copied: stream.map_or_else(Vec::new, |stream| {
                let sources = stream.sources();
                sources.map(|(_, at)| (at.identity.clone(), at.seq)).collect()
            }),
            voters: members.voters.clone(),
            learners: members.learners.clone(),
            listed: self.replicas.iter().map(|replica| replica.id).collect(),
            failed: self.failed.clone().filter(|_| !self.is_held()),
            is_held: self.is_held(),
        }
    }
}
