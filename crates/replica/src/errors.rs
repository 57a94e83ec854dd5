//! Why a group refuses something, and why it stops.

use crate::frame::FrameError;
use tidelock_base::{LogIndex, ReplicaId};

/// Why a group has stopped for good. It answers nothing any more; its replica is replaced under a new id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A peer knows something durable of this replica that is gone.
    #[error(
        "others know of entries that were durable here and are gone, as in a store that was put back from a copy"
    )]
    Lost,
    /// An invariant of the library did not hold.
    #[error("an invariant of the consensus does not hold")]
    Broken,
    /// The node has ended it: its state is not what it should be.
    #[error("it was ended")]
    Stopped,
}

/// Why a proposal was not taken. None of these has touched the log: the same proposal may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Only a leader proposes.
    #[error("not the leader")]
    NotLeader {
        /// The leader as far as this replica knows.
        hint: Option<ReplicaId>,
    },
    /// Leadership is being handed over.
    #[error("leadership is being transferred")]
    Transferring,
    /// Too much is uncommitted or unapplied.
    #[error("too much is in flight")]
    Overloaded,
    /// An entry without data would look like the start of a term.
    #[error("an entry must have data")]
    Empty,
    /// Larger than an entry may be.
    #[error("an entry may have at most {max} bytes")]
    TooLarge {
        /// The limit in bytes.
        max: usize,
    },
    /// An earlier change of members is not applied yet, or a joint configuration not left.
    #[error("another change of members is under way")]
    ChangePending,
    /// The change makes no sense for the present members.
    #[error("{0}")]
    InvalidChange(&'static str),
    /// A leader does not remove itself: leadership is transferred first.
    #[error("leadership must be transferred before the leader is removed")]
    TransferFirst,
    /// The group has stopped.
    #[error("the replica has stopped")]
    Failed,
}

/// Why leadership cannot be handed to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// This replica does not lead.
    #[error("not the leader")]
    NotLeader,
    /// The target is not a voter other than this replica.
    #[error("the target is not another voter")]
    NotVoter,
    /// The target has not been heard of for an election timeout.
    #[error("the target is not reachable")]
    Unreachable,
    /// The group has stopped.
    #[error("the replica has stopped")]
    Failed,
}

/// Why a frame was not taken. Only [`StepError::ProofOfLoss`] and [`StepError::Failed`] say something about this
/// replica; all others are the sender's fault or a matter of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Not a frame of this protocol.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// For another group or replica, or not from where it came from.
    #[error("frame is addressed to another replica or comes from another one than it says")]
    Address,
    /// Its numbers contradict what this replica knows for certain.
    #[error("{0}")]
    Invalid(&'static str),
    /// The leader knows that this replica had stored more than it has: it lost state and has stopped.
    #[error("the leader knows of commit {commit}, the log ends at {last}")]
    ProofOfLoss {
        /// Commit index that the leader saw acknowledged.
        commit: LogIndex,
        /// Where the log ends.
        last: LogIndex,
    },
    /// Dropped: too much is waiting to be applied. The leader will send it again.
    #[error("too much is waiting to be applied")]
    Overloaded,
    /// The group has stopped.
    #[error("the replica has stopped")]
    Failed,
}
