//! What the workers of a node share for monitoring and for stopping together.

use super::process::{Process, ProcessProbe};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// Messages and bytes of connections, both ways; bytes count headers and payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Messages from clients.
    pub(crate) in_msgs: u64,
    /// Their bytes.
    pub(crate) in_bytes: u64,
    /// Messages to clients.
    pub(crate) out_msgs: u64,
    /// Their bytes.
    pub(crate) out_bytes: u64,
}

impl Traffic {
    pub(crate) const fn add(&mut self, other: &Self) {
        self.in_msgs += other.in_msgs;
        self.in_bytes += other.in_bytes;
        self.out_msgs += other.out_msgs;
        self.out_bytes += other.out_bytes;
    }
}

/// Traffic of an account's connections that are gone; that of open ones is with them.
#[derive(Debug, Default)]
pub struct PastTraffic {
    in_msgs: AtomicU64,
    in_bytes: AtomicU64,
    out_msgs: AtomicU64,
    out_bytes: AtomicU64,
    /// Connections that were cut because they were too slow.
    pub(crate) slow_consumers: AtomicU64,
}

impl PastTraffic {
    pub(crate) fn add(&self, traffic: &Traffic) {
        self.in_msgs.fetch_add(traffic.in_msgs, Ordering::Relaxed);
        self.in_bytes.fetch_add(traffic.in_bytes, Ordering::Relaxed);
        self.out_msgs.fetch_add(traffic.out_msgs, Ordering::Relaxed);
        self.out_bytes.fetch_add(traffic.out_bytes, Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> Traffic {
        Traffic {
            in_msgs: self.in_msgs.load(Ordering::Relaxed),
            in_bytes: self.in_bytes.load(Ordering::Relaxed),
            out_msgs: self.out_msgs.load(Ordering::Relaxed),
            out_bytes: self.out_bytes.load(Ordering::Relaxed),
        }
    }
}

/// What the machine has for JetStream where the configuration does not say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The folder of JetStream's files, as monitoring shows it.
    pub store_dir: String,
}

/// State of monitoring and of stopping that all workers see.
#[derive(Debug, Default)]
pub struct SystemShared {
    /// Memory and processor time.
    pub(crate) process: Process,
    /// Number of the last message that the server made.
    pub(crate) messages: AtomicU64,
    ready: AtomicBool,
    resources: OnceLock<Resources>,
    /// Somebody has told the log, and those who listen, that lame duck mode begins.
    pub(crate) lame_duck_told: AtomicBool,
    /// The same of the closing of clients.
    pub(crate) closing_told: AtomicBool,
    /// The same of the stop.
    pub(crate) stop_told: AtomicBool,
    /// Workers that lead nothing any more, while the node stops.
    pub(crate) handed_over: AtomicU16,
}

impl SystemShared {
    /// The listeners are open: `/healthz` may say so.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::set_ready`] was called.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Tells what the machine has for JetStream; what is told first stays.
    pub fn set_resources(&self, resources: Resources) {
        let _ = self.resources.set(resources);
    }

    pub(crate) fn resources(&self) -> Resources {
        self.resources.get().cloned().unwrap_or_default()
    }

    /// Gives the node its view of the process; the first one given stays.
    pub fn set_process_probe(&self, probe: Box<dyn ProcessProbe>) {
        self.process.set_probe(probe);
    }
}
