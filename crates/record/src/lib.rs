//! The two things that log, store and cluster links share: the bytes of one stored message, and the port through
//! which every file of the product is reached.
//!
//! - [`RecordRef`] and [`encode_into`]: a message is encoded once, where it enters, and keeps those bytes in the
//!   log entry, the write-ahead log, the peer frame and the block file (DESIGN section 9, "Encoded once").
//! - [`Disk`], [`IoOp`]: cores ask for file operations as values and learn of their end as values.
//! - [`MemDisk`]: a deterministic disk in memory that can crash, tear writes, fail and rot.
//! - [`AlignedBuf`]: buffers whose address suits unbuffered (direct) writes.
//!
//! Invariant: nothing here waits, reads a clock, or draws randomness that was not passed in as a seed.

mod aligned;
mod codec;
mod disk;
mod mem_disk;

pub use aligned::{ALIGNMENT, AlignedBuf};
pub use codec::{
    RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RecordError, RecordRef, RecordView, Records, Views, encode_head,
    encode_into, encoded_len,
};
pub use disk::{Disk, FilePath, IoDone, IoError, IoOp, IoOutput, IoRequest, IoToken};
pub use mem_disk::{Fault, MemDisk, SECTOR_BYTES};
