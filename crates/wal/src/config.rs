//! Settings of a lane and the errors of opening one.

use thiserror::Error;
use tidelock_base::limits::WAL_BATCH_BYTES_MAX;
use tidelock_record::{ALIGNMENT, FilePath, IoError};

/// Settings of a lane.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// Directory of all lanes; each has a directory of its own in it.
    pub dir: FilePath,
    /// Length of a segment in bytes, a multiple of 4096. A batch that is longer gets a segment of its own length.
    pub segment_bytes: u64,
    /// A batch is cut before it exceeds this many bytes, unless one record alone does.
    pub batch_bytes_max: usize,
    /// Random, another at each start: identifies a lane that is made new. Content of files that does not carry
    /// the lane's id is not the lane's.
    pub seed: u64,
}

impl LaneConfig {
    /// The settings of the product: segments of 16 MiB (DESIGN section 9), directory `wal`.
    ///
    /// # Panics
    /// Never: the path is valid.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            dir: FilePath::new("wal").expect("letters are valid in a path"),
            segment_bytes: 16 * 1024 * 1024,
            batch_bytes_max: WAL_BATCH_BYTES_MAX,
            seed,
        }
    }

    /// With what does not fit put right.
    pub(crate) fn checked(mut self) -> Self {
        let block = ALIGNMENT as u64;
        self.segment_bytes = self.segment_bytes.max(2 * block).next_multiple_of(block);
        self
    }
}

/// Why a lane cannot be opened. Damage is no such reason: it is reported beside what was recovered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WalError {
    /// The disk refused an operation on which everything depends.
    #[error("write-ahead log: {file}: {error}")]
    Io {
        /// The file or directory.
        file: FilePath,
        /// What the disk said.
        error: IoError,
    },
    /// The disk is full, to the last spare file.
    #[error(
        "write-ahead log: {file}: no space left on device; at least {bytes} bytes must be free there to start"
    )]
    Full {
        /// The directory.
        file: FilePath,
        /// What must be free, in bytes.
        bytes: u64,
    },
    /// Written by a newer version, or compressed or encrypted in a way that this one does not know.
    #[error("write-ahead log: {file}: the format is not supported by this version")]
    Unsupported {
        /// The file.
        file: FilePath,
    },
}
