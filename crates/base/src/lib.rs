//! What every other crate of Tidelock may name: identifiers, points in time, limits and the table of JetStream
//! API errors. Nothing here does anything; it gives things one name, one unit and one valid range.

mod api_error;
mod api_error_table;
mod id;
pub mod limits;
mod time;

pub use api_error::ApiError;
pub use api_error_table::{ApiErrorCode, api_error_by_code};
pub use id::{
    AccountId, BootId, ClusterId, ConnId, ConsumerId, DeliverSeq, GroupId, LogIndex, NodeId, Place,
    ReplicaId, StreamSeq, Term, WorkerId,
};
pub use time::{Mono, Now, Wall};

/// The nats-server version whose behaviour is met; reported wherever clients gate features on a version.
pub const COMPATIBLE_VERSION: &str = "2.15.1";
/// The JetStream API level that goes with [`COMPATIBLE_VERSION`] (ADR-44).
pub const API_LEVEL: u32 = 5;
/// Tidelock's own version.
pub const TIDELOCK_VERSION: &str = env!("CARGO_PKG_VERSION");
