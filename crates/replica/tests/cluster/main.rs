//! Whole groups in one thread: named traps of the library, and seeded runs under faults.

#![expect(
    clippy::indexing_slicing,
    reason = "a test that indexes out of range fails, as it should"
)]

mod chaos;
mod reads;
mod sim;
mod traps;
