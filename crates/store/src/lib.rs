//! The messages of one stream.
#![allow(dead_code, reason = "wip")]
mod block;
mod codec;
mod compact;
mod files;
mod filters;
mod postings;
mod purge;
mod query;
mod reader;
mod slab;
mod store;
mod tail;
mod tree;
mod types;
mod writer;

pub use filters::Filters;
pub use purge::{Purge, PurgeStep};
pub use query::{Subjects, TooMany};
pub use store::Store;
pub use types::{
    BlockFile, DamagedMessage, Lookup, Need, Outline, RemoveError, Removed, Stored, StoreConfig, StoreError, StoreEvent,
    StoreKind, StoreState, SubjectState, Trimmed, Unanswered,
};
