//! What connections share: subscriptions by exact subject, and what was created through the API.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sending side of a connection.
pub type Out = Arc<Mutex<TcpStream>>;

/// A subscription of some connection.
#[derive(Clone)]
pub struct Receiver {
    pub connection: u64,
    pub sid: Vec<u8>,
    pub out: Out,
}

#[derive(Default)]
pub struct Hub {
    receivers: Mutex<HashMap<Vec<u8>, Vec<Receiver>>>,
    /// Rises with each change of `receivers`, so that connections may keep what they looked up.
    changes: AtomicU64,
    connections: AtomicU64,
    /// Configurations of streams and consumers by name, as they were sent.
    pub created: Mutex<HashMap<String, String>>,
}

/// No thread leaves anything half done behind.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub fn subscribe(&self, subject: &[u8], receiver: Receiver) {
        lock(&self.receivers)
            .entry(subject.to_vec())
            .or_default()
            .push(receiver);
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub fn leave(&self, connection: u64) {
        lock(&self.receivers).retain(|_, list| {
            list.retain(|receiver| receiver.connection != connection);
            !list.is_empty()
        });
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub fn receivers(&self, subject: &[u8]) -> Vec<Receiver> {
        lock(&self.receivers).get(subject).cloned().unwrap_or_default()
    }
}

/// Sends all of it, waiting for the receiver if need be.
pub fn send(out: &Out, bytes: &[u8]) -> std::io::Result<()> {
    lock(out).write_all(bytes)
}
