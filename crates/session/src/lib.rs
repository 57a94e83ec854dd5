//! One client connection as a value, in two halves: [`Inbound`] reads what the client sends, [`Outbound`] holds its
//! subscriptions and what is to be sent to it. A worker can so deliver to one connection while it reads another, or
//! the same one.
//!
//! The worker drives it: bytes go to [`Inbound::receive`], which calls the worker back through [`Host`] in the order
//! of the input; messages for the client go to [`Outbound::deliver`] and leave through [`Outbound::chunks`] and
//! [`Outbound::advance`]; [`Inbound::tick`] is due at [`Inbound::next_deadline`]. Nothing here knows a socket, a
//! clock or another connection.
//!
//! Invariants: a publish, its permission check and its delivery allocate nothing once buffers are warm; what is
//! held for a client is bounded (`max_pending`, one control line, one payload within its limit).
//!
//! Left to others: who receives a message and interest (`node`), passwords (`auth`), sockets and TLS (`server`).

mod close;
mod host;
mod inbound;
mod outbound;
mod pool;
mod publish;
mod queue;
mod replies;
mod settings;
mod subscription;

pub use close::CloseReason;
pub use host::{AuthFailure, Authentication, Host, Identity, LogLevel};
pub use inbound::{Inbound, Received, Want};
pub use outbound::{Delivered, Outbound, Parts};
pub use pool::ChunkPool;
pub use publish::Publish;
pub use settings::{Counters, Settings};
pub use subscription::{SubSlot, Subscription};
