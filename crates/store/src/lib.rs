//! The messages of one stream: kept, found, counted and removed.
//!
//! - New messages go to an in-memory *tail*; those of a file store move on to immutable *block files*, written behind.
//! - A *subject index* (a radix tree) knows the sequences of each subject. Blocks know which of their messages are
//!   live, and read their own index and records back on demand, within a budget of memory.
//! - A *checkpoint* names the blocks and holds the tail; a start reads it and the blocks' summaries, no messages.
//!
//! Nothing here waits (but [`Store::restore`] and [`Store::relist`]): a question whose answer is on disk is answered
//! with a [`Need`], for which [`Store::fetch`] and [`Store::take_io`] give the operations. Which answers need a read depends on memory;
//! the answers do not, and neither do totals, digest or what a removal does: replicas agree on all of these.
//!
//! Left to others: which messages to remove (limits, acknowledgements, expiry), and sequence numbers: `jetstream`.

mod block;
mod checkpoint;
mod codec;
mod compact;
mod files;
mod filters;
mod listing;
mod mend;
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

pub use checkpoint::{CheckpointKind, OnLoss, fuzz};
pub use filters::Filters;
pub use purge::{Purge, PurgeStep};
pub use query::{Subjects, TooMany};
pub use store::Store;
pub use types::{
    BlockFile, Lookup, Need, Outline, RemoveError, Removed, StoreConfig, StoreError, StoreEvent, StoreKind,
    StoreState, Stored, SubjectState, Trimmed, Unanswered,
};
