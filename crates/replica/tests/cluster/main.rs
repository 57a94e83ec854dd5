//! Whole groups in one thread: named traps of the library, and seeded runs under faults.

mod chaos;
mod sim;
mod traps;
