//! One replicated group: the driver of the `raft` library, its frames, its reads, its membership and its catch-up.
//!
//! A [`Group`] is a value. It takes proposals, frames of peers, time and reports of the disk, and [`Group::take_ready`]
//! gives back what is to be done: persist, send, apply. It never waits, reads no clock and draws no random numbers;
//! the same inputs give the same outputs, so that a simulator can replay a run from its seed.
//!
//! ```text
//!  propose ─┐                         ┌─ persist: to the write-ahead log, in order, then `persisted(number)`
//!  step ────┤                         ├─ send: to peers, at once
//!  read ────┼─> Group ─ take_ready ───┼─ committed: to the state machine, in order, then `applied(index)`
//!  tick ────┤                         ├─ reads: serve once `applied >= index`, or ask again
//!  persisted┤                         ├─ snapshot: a peer needs one; one is to be staged; one is in force
//!  applied ─┘                         └─ role: follower, candidate, leader, learner, removed
//! ```
//!
//! Invariants that this crate owns:
//!
//! 1. No frame leaves before what it promises is durable. Frames of a leader's appends leave at once (Raft thesis,
//!    section 10.2.1); all others of a `Ready` that must be synced are held *inside* the group until
//!    [`Group::persisted`] reports that `Ready`. The node has nothing to hold back.
//! 2. Entries above the applied index are always resident, because the library cannot wait for them. Applied entries
//!    are kept in a bounded cache; older ones are read back from the write-ahead log for followers that need them, as long
//!    as that has them, and then a follower gets a snapshot (module `stored`).
//! 3. Identifiers of reads are never reused, and a read is answered only by confirmations that were sent after it
//!    arrived (module `reads`).
//! 4. Bytes of a peer never reach a parser of the library: frames and membership entries have a codec of their own.
//! 5. A frame or a stored state that proves lost data stops the group ([`Failure::Lost`]); a replica that lost its
//!    state must neither vote nor acknowledge.
//!
//! Nothing outside this crate names a type of the `raft` or `protobuf` crates.

mod config;
mod errors;
mod frame;
mod group;
mod log;
mod member;
mod reads;
mod ready;
mod snapshot;
mod status;
mod stored;
mod survive;
mod types;

pub use config::{GroupConfig, Limits, Timers};
pub use errors::{Failure, ProposeError, StepError, TransferError};
pub use frame::{FrameAddress, FrameError, Lane, Outgoing};
pub use group::Group;
pub use member::{MemberChange, Members, MembersError};
pub use reads::{ReadOutcome, ReadResult, ReadToken};
pub use ready::{Committed, CommittedKind, Persist, Ready, Role, RoleChange};
pub use snapshot::{Install, InstallError, OfferError, Restored, SnapshotEvents};
pub use status::{PeerProgress, PeerState};
pub use survive::SURVIVOR_TERMS;
pub use types::{EntryKind, HardState, LogEntry, LogPosition, Start, StartError};
