//! The deterministic state machines of JetStream.
//!
//! A stream and all its consumers are one state machine behind one log ([`stream`]); the cluster's metadata is
//! another ([`meta`]). Each changes only by applying entries of its log, reads nothing but the entry and its own
//! state, and gives the same result on every replica (DESIGN section 2). What should leave the machine, such as
//! acknowledgements and deliveries, comes out as effects, which only the leader acts on.
//!
//! Invariants: no clock, no randomness, no file and no socket; time is the stamp of the entry. No iteration over a
//! hash map where the order can be seen. What cannot be decoded stops the replica and is never guessed at.

mod codec;
pub mod command;
pub mod config;
pub mod consumer;
pub mod dedupe;
pub mod digest;
pub mod meta;
pub mod stream;
pub mod window;

pub use codec::Malformed;

/// Entry of the fuzz target: nothing that is read from a log, a peer or a disk may panic, whatever its bytes are.
pub fn fuzz(data: &[u8]) {
    let _ = command::check_records(data);
    drop(meta::MetaEntry::decode(data));
    drop(meta::Meta::restore(data));
    stream::fuzz_restore(data);
}
