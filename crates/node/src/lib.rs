//! The node: it composes the cores of connections, interest, replicated groups and storage into workers, one turn at a
//! time. It knows no socket, thread, clock or file: those are the shell's (`tidelock-server`) or the simulator's.

mod api;
pub mod cell;
pub mod cell_codec;
mod clock;
mod cluster;
mod consumers;
mod deliver_batch;
mod directory;
mod forward;
mod groups;
mod interest;
mod note;
mod room;
mod route;
mod shared;
mod sources;
mod system;
mod worker;

pub use cell::{Cell, LaneKind};
pub use cluster::{LinkStats, LinkView, PeerEvent, PeerTable, PeerView};
pub use deliver_batch::DeliverBatch;
pub use directory::{Directory, StreamRoute};
pub use groups::{Listing, MetaNotice, ReplicaView};
pub use interest::{
    Change, ClientTarget, ConnKey, Interest, NodeTarget, Root, Service, StreamTarget, Target,
};
pub use note::{NOTE_BYTES_MAX, decode_note, encode_note};
pub use room::Room;
pub use shared::{Account, Addresses, Budgets, NodeShared, ServerIdentity, Totals};
pub use system::{
    NeedsCell, PartCell, PastTraffic, ProcessProbe, ProcessStats, Resources, SystemCell, SystemShared,
};
pub use tidelock_replica::SURVIVOR_TERMS;
pub use worker::{Answer, HangUp, IoJob, IoOwner, Listener, Output, Query, QueryId, Worker};
