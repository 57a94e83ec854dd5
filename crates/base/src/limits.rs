//! Limits that more than one crate must agree on. Each says what happens when it is reached.

/// Longest stream or consumer name, in bytes; longer ones are refused by the API.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest header block of a stored message, in bytes (API error 10097).
pub const STORED_HEADER_BYTES_MAX: usize = 65_535;
/// Commands of one turn and group are cut into entries of at most this many bytes; one larger message goes alone.
pub const ENTRY_BYTES_MAX: usize = 512 * 1024;
/// A WAL batch is cut at this many bytes. Twice an entry: while a batch is written, the next gathers, and a disk takes
/// one write of 512 KiB in the time of one and a half of 256 KiB.
pub const WAL_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Payloads up to this size are copied into the receiver's output; larger ones are shared.
pub const COPY_BYTES_MAX: usize = 16 * 1024;
/// Entries of one group that may be proposed and not yet persisted; more commands wait and make the next entry larger.
pub const ENTRIES_IN_FLIGHT_MAX: usize = 2;
