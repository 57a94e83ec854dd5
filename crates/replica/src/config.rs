//! What a group is told at its creation: who it is, how often it ticks and how much it may hold.

use std::time::Duration;
use tidelock_base::{GroupId, ReplicaId};

/// Identity, timers and limits of one replica of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// The group; checked on every frame.
    pub group: GroupId,
    /// This replica; never 0.
    pub me: ReplicaId,
    /// Seed of election timeouts and of the phase of ticks. May be the same for all groups of a server.
    pub seed: u64,
    /// Names this life of the replica in read requests: a value that no earlier `Group` of the same replica had, across
    /// restarts and within one process (the boot id combined with a counter). An answer to an earlier life would
    /// otherwise pass as an answer to this one, and the read would be stale.
    pub life: u128,
    /// How often things happen.
    pub timers: Timers,
    /// How much may be held.
    pub limits: Limits,
}

/// Durations of the protocol, counted in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Time between two ticks; all other durations are rounded up to a multiple of it.
    pub tick: Duration,
    /// A leader sends a heartbeat this often.
    pub heartbeat: Duration,
    /// A follower that hears nothing campaigns after at least this long; a leader without a quorum steps down after it.
    pub election_min: Duration,
    /// Upper end of the election timeout, inclusive.
    pub election_max: Duration,
    /// A disk whose oldest sync is out for this long does not campaign, and hands its leaderships over.
    pub disk_stall: Duration,
    /// Followers are told at once that something is committed, instead of with the next append or heartbeat: for
    /// groups whose followers' state is used all the time, at the cost of a frame a follower and commit.
    pub announce_commits: bool,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(100),
            heartbeat: Duration::from_millis(200),
            election_min: Duration::from_millis(800),
            election_max: Duration::from_millis(1600),
            disk_stall: Duration::from_secs(1),
            announce_commits: false,
        }
    }
}

impl Timers {
    /// `duration` in ticks, rounded up, at least one.
    pub(crate) fn ticks(&self, duration: Duration) -> usize {
        let tick = self.tick.as_nanos().max(1);
        usize::try_from(duration.as_nanos().div_ceil(tick).max(1)).unwrap_or(usize::MAX)
    }
}

/// Bounds in bytes and counts. Each says what happens when it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A frame of entries is cut at this many bytes; a larger entry goes alone.
    pub append_bytes_max: usize,
    /// Frames of entries on their way to one follower; then the leader waits for its answers.
    pub inflight_max: usize,
    /// Proposed and not yet committed; further proposals are refused as overloaded.
    pub uncommitted_bytes_max: usize,
    /// Committed entries handed out by one `Ready`; the rest follows in the next.
    pub committed_bytes_per_ready: usize,
    /// Logged and not yet applied; then a follower drops appends and a leader refuses proposals.
    pub unapplied_bytes_max: usize,
    /// Applied entries kept for slow followers; the oldest are let go, and who needs them gets a snapshot.
    pub cache_bytes: usize,
    /// One entry; larger proposals are refused.
    pub entry_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            append_bytes_max: 512 << 10,
            inflight_max: 32,
            uncommitted_bytes_max: 32 << 20,
            committed_bytes_per_ready: 4 << 20,
            unapplied_bytes_max: 64 << 20,
            cache_bytes: 1 << 20,
            entry_bytes_max: 16 << 20,
        }
    }
}
