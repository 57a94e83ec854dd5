//! Consumers: what has been delivered of a stream, what of that is acknowledged, and who gets the next message.
//!
//! Two parts that never mix:
//!
//! - [`ConsumerState`] is replicated. It changes only by commands of the stream's log and is the same on every replica.
//!   A message of it goes through these states:
//!
//! ```text
//!            deliver              expire, nak                deliver
//!  (new) ─────────────▶ waiting ───────────────▶ queued ─────────────▶ waiting …
//!                          │ ack, term             │ ack, term
//!                          ├───────────────────────┴──▶ (done)
//!                          └ expire or nak of the last allowed delivery ──▶ exhausted ── ack, term ──▶ (done)
//! ```
//!
//! - [`ConsumerLeader`] is local to the leader and starts anew with each: pull requests, interest and flow control of
//!   a push consumer, heartbeats. It picks what to deliver next; a pick becomes a Deliver command, and the message
//!   leaves once that is committed.
//!
//! Left to others: the messages themselves (`store`), which of them an acknowledgement sets free (the stream), how
//! bytes reach a client (`node`).

mod leader;
mod pending;
mod push;
mod request;
mod state;
mod status;
mod waiting;

pub use leader::{ConsumerLeader, Lookup, Names, Next, Notice, Outgoing, Pick, Stop, Ticket};
pub use state::{AckKind, AckOutcome, ConsumerState, Delivered, Expired, Position};
pub use status::{Remaining, Status};
