//! The write-ahead log of a worker's groups: one [`Lane`] a worker, in which the records of all its groups lie in
//! the order of their append, so that one write and one sync make a whole turn durable (DESIGN section 9).
//!
//! - [`Lane`] batches appends, writes one batch at a time, and copes with a failing disk.
//! - [`recover`] and [`recover_all`] open lanes: what was synced is found again or reported as damage, a torn tail
//!   is cut, and nothing that was superseded comes back.
//! - [`Lane::read_back`] reads entries that are still part of the log, for replicas that are behind.
//! - [`Lane::relocate`] and truncations by the node keep the log short; segments that nothing needs are used again.
//!
//! Files of a lane, in `wal/lane-0003/`: `slot-00000007` (segments; which generation a file holds is said by the
//! batches in it) and `control-0`, `control-1`. The formats are in `header`, `frame` and `control`.
//!
//! Invariants, each with a test:
//! - A record whose batch was reported as synced is recovered, or damage of its group is.
//! - The recovered state is the one after some whole number of batches, never a mix.
//! - Damage of one batch concerns the groups of that batch and no other.
//! - A file to which a write failed is never written or synced again.

mod batch;
mod config;
mod control;
mod frame;
mod fuzz;
mod header;
mod index;
mod lane;
mod moves;
mod read_back;
mod recover;
mod scan;
mod segments;
mod space;
#[cfg(test)]
mod tests;

pub use config::{LaneConfig, WalError};
pub use frame::{DATA_BYTES_MAX, WalEntry, WalRecord};
pub use fuzz::fuzz;
pub use index::{HardState, InstalledSnapshot};
pub use lane::{BatchNo, Lane, LaneEvent};
pub use moves::{Moved, RecoveredAll, recover_all};
pub use read_back::StoredEntry;
pub use recover::{Damage, DamagedGroups, Recovered, RecoveredEntry, RecoveredGroup, recover};
pub use space::{Retained, RetainedGroup};
