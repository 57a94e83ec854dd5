//! What the fuzzers run: one function for each parser and each way in which bytes come back from a disk.
//!
//! Where a crate has an entry of its own beside the parser, it is used; the rest is here. Each function takes any bytes
//! and returns; it panics where a promise is broken. The fuzzers are built from this with a nightly toolchain, and the
//! corpora are fed to the same functions by an ordinary test (`xtask/tests/fuzz_replay.rs`).

mod client;
mod link;
mod replica;
mod request;
mod stream;
mod subject;

pub use client::{client, headers};
pub use link::link;
pub use replica::replica;
pub use request::api;
pub use stream::stream;
pub use subject::subject;
pub use tidelock_conf::fuzz as conf;
pub use tidelock_jetstream::fuzz as jetstream;
pub use tidelock_store::fuzz as store;
pub use tidelock_wal::fuzz as wal;

/// A name, which is also the folder of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All of them, by name.
pub const TARGETS: &[Target] = &[
    ("api", api),
    ("client", client),
    ("conf", conf),
    ("headers", headers),
    ("jetstream", jetstream),
    ("link", link),
    ("replica", replica),
    ("store", store),
    ("stream", stream),
    ("subject", subject),
    ("wal", wal),
];
