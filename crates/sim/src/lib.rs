//! The simulator: whole clusters of `tidelock-node` on a virtual clock, network and disk, on one thread, everything
//! decided by one seed.
//!
//! The product's own workers run here, unchanged; what is simulated is what the shell (`tidelock-server`) gives them:
//! sockets, helper threads, files, time. Clients speak the NATS protocol over simulated connections. While they work, a
//! nemesis crashes nodes, parts them, slows and fails their disks; then all is healed, and checkers judge what clients
//! were told, what replicas hold, and whether everyone is served again.
//!
//! ```text
//!   actors (publishers, keys, pullers, nemesis) ── history ──> checkers
//!        │ clients
//!      world: queue of events, clock
//!        ├── network: connections, delays, cuts
//!        └── nodes: workers (product), disk in memory, helpers
//! ```
//!
//! A run is a function of its [`Plan`]: the same plan gives the same [`Report`], trace hash included.

mod actors;
mod checkers;
mod client;
mod copies;
mod history;
mod network;
mod node;
mod queue;
mod rng;
mod run;
mod trace;
mod world;

pub use run::{Plan, Report, Workload, run};
pub use trace::here;
