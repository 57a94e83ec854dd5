//! The node: it composes the cores of connections, interest, replicated groups and storage into workers, one turn at a
//! time. It knows no socket, thread, clock or file: those are the shell's (`tidelock-server`) or the simulator's.

pub mod cell;
pub mod cell_codec;
mod cluster;
mod deliver_batch;
mod forward;
mod interest;
mod route;
mod shared;
mod worker;

pub use cell::{Cell, LaneKind};
pub use cluster::{LinkStats, LinkView, PeerEvent, PeerTable, PeerView};
pub use deliver_batch::DeliverBatch;
pub use interest::ConnKey;
pub use shared::{Account, Addresses, NodeShared, ServerIdentity, Totals};
pub use worker::{Answer, HangUp, IoJob, IoOwner, Listener, Output, Query, QueryId, Worker};
