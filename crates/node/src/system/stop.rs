//! The end of a node: lame duck mode, and the stop in good order.
//!
//! ```text
//!  running ──lame duck──> grace ──(over)──> closing ──(no client left)──┐
//!     └───────────────────────stop──────────────────────────────────────┴─> handing over ──> flushing ──> stopped
//! ```
//!
//! Lame duck mode closes the listener, tells clients and peers, hands leaderships over, and after a grace period
//! closes clients one by one, so that they come to the other servers one by one. A stop hands leaderships over
//! ([`HAND_OVER_MAX`]), then writes to each client what it still has for it ([`FLUSH_MAX`]) and closes it. Every
//! worker goes this way by itself; the last step waits until all workers lead nothing any more.

use crate::interest::ConnKey;
use crate::worker::Worker;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelock_base::Mono;
use tidelock_session::CloseReason;

/// Longest wait for others to take over leaderships.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);
/// Longest wait for clients to take what is there for them.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// How often a stopping worker looks again.
const STEP: Duration = Duration::from_millis(10);
/// How often a worker in lame duck mode looks whether the node has no clients any more.
const LOOK: Duration = Duration::from_millis(100);
/// Longest time between two clients that are closed.
const SLOT_MAX: Duration = Duration::from_secs(1);

/// How far a worker is with its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is not ending.
    #[default]
    Running,
    /// Lame duck mode: clients have been told.
    Grace {
        /// When the first client is closed.
        until: Mono,
    },
    /// Lame duck mode: clients are being closed.
    Closing {
        /// When the next one is closed.
        next: Mono,
        /// Time between two.
        slot: Duration,
    },
    /// Leaderships are being handed over.
    HandingOver {
        /// When it goes on without.
        until: Mono,
        /// This worker leads nothing any more.
        done: bool,
    },
    /// Clients get what is there for them.
    Flushing {
        /// When it goes on without.
        until: Mono,
    },
    /// Nothing is left to do.
    Stopped,
}

/// The end of a worker.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    phase: Phase,
    /// When to look again.
    look_at: Option<Mono>,
}

impl Stop {
    pub(super) const fn next_deadline(&self) -> Option<Mono> {
        self.look_at
    }

    /// Whether nothing is read from clients any more.
    pub(crate) const fn is_deaf(&self) -> bool {
        matches!(self.phase, Phase::Flushing { .. } | Phase::Stopped)
    }

    /// Whether this worker has nothing left to do.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Stopped)
    }

    const fn is_stopping(&self) -> bool {
        matches!(
            self.phase,
            Phase::HandingOver { .. } | Phase::Flushing { .. } | Phase::Stopped
        )
    }
}

impl Worker {
    /// The operator wants the node to stop in good order. Called on every worker.
    pub fn stop(&mut self) {
        if self.core.system.stop.is_stopping() {
            return;
        }
        if !self.core.shared.system.stop_told.swap(true, Ordering::Relaxed) {
            tracing::info!("Initiating Shutdown...");
            self.core.publish_state("SHUTDOWN");
        }
        self.core.out.stop_listening = true;
        let until = self.core.now.mono + HAND_OVER_MAX;
        self.enter(Phase::HandingOver { until, done: false });
        self.step_stop();
    }

    /// The operator wants lame duck mode. Called on every worker.
    pub fn lame_duck(&mut self) {
        if self.core.system.stop.phase != Phase::Running {
            return;
        }
        let shared = std::sync::Arc::clone(&self.core.shared);
        shared.lame_duck.store(true, Ordering::Relaxed);
        if !shared.system.lame_duck_told.swap(true, Ordering::Relaxed) {
            tracing::info!("Entering lame duck mode, stop accepting new clients");
            self.core.publish_state("LAMEDUCK");
        }
        self.core.out.stop_listening = true;
        self.core.set_facts(|facts| facts.leaving = true);
        self.core.hand_over_all();
        let keys: Vec<ConnKey> = self.core.client_keys().collect();
        for key in keys {
            self.tell_lame_duck(key);
        }
        let until = self.core.now.mono + shared.options.lame_duck_grace_period;
        self.enter(Phase::Grace { until });
        self.step_stop();
    }

    /// Tells a client that the server goes; `false` if it takes no INFO now.
    pub(super) fn tell_lame_duck(&mut self, key: ConnKey) -> bool {
        let inbound = self.inbound.get(key.index as usize).and_then(Option::as_ref);
        if !inbound.is_some_and(tidelock_session::Inbound::takes_async_info) {
            return false;
        }
        let mut info = self.core.client_info(key, false);
        info.lame_duck_mode = true;
        let core = &mut self.core;
        let place = core.clients.get_mut(key.index as usize);
        if let Some(client) = place.and_then(|place| place.client.as_mut()) {
            client.outbound.info(&info, &mut core.pool);
            core.mark_dirty(key);
        }
        true
    }

    fn enter(&mut self, phase: Phase) {
        self.core.system.stop.phase = phase;
        self.core.system.stop.look_at = Some(self.core.now.mono);
    }

    /// Goes on with the end, if it is time to.
    pub(super) fn step_stop(&mut self) {
        let now = self.core.now.mono;
        if self.core.system.stop.look_at.is_none_or(|at| now < at) {
            return;
        }
        let next = match self.core.system.stop.phase {
            Phase::Running | Phase::Stopped => None,
            Phase::Grace { until } => self.step_grace(until),
            Phase::Closing { next, slot } => self.step_closing(next, slot),
            Phase::HandingOver { until, done } => self.step_handing_over(until, done),
            Phase::Flushing { until } => self.step_flushing(until),
        };
        self.core.system.stop.look_at = next;
    }

    /// Whether the whole node has no clients any more.
    fn is_empty(&self) -> bool {
        self.core.shared.totals.connections.load(Ordering::Relaxed) == 0
    }

    fn step_grace(&mut self, until: Mono) -> Option<Mono> {
        let now = self.core.now.mono;
        if self.is_empty() {
            self.stop();
            return Some(now);
        }
        if now < until {
            return Some(until.min(now + LOOK));
        }
        let shared = std::sync::Arc::clone(&self.core.shared);
        if !shared.system.closing_told.swap(true, Ordering::Relaxed) {
            tracing::info!("Closing existing clients");
        }
        let time = shared
            .options
            .lame_duck_duration
            .saturating_sub(shared.options.lame_duck_grace_period);
        let clients = u32::try_from(self.core.client_keys().count())
            .unwrap_or(u32::MAX)
            .max(1);
        let slot = (time / clients).min(SLOT_MAX);
        self.enter(Phase::Closing { next: now, slot });
        Some(now)
    }

    fn step_closing(&mut self, next: Mono, slot: Duration) -> Option<Mono> {
        let now = self.core.now.mono;
        if self.is_empty() {
            self.stop();
            return Some(now);
        }
        if now < next {
            return Some(next.min(now + LOOK));
        }
        let first = self
            .core
            .client_keys()
            .find(|key| self.core.client_at(*key).is_some_and(|c| c.closing.is_none()));
        if let Some(key) = first {
            self.core.close(key, CloseReason::ServerShutdown);
        }
        // Half of the time at least, the rest by chance, so that servers that go together do not act in step.
        let half = slot / 2;
        let chance = half.mul_f64(f64::from(self.core.random.below(1 << 16)) / f64::from(1_u32 << 16));
        let next = now + half + chance;
        self.core.system.stop.phase = Phase::Closing { next, slot };
        Some(next.min(now + LOOK))
    }

    fn step_handing_over(&mut self, until: Mono, done: bool) -> Option<Mono> {
        let now = self.core.now.mono;
        let shared = std::sync::Arc::clone(&self.core.shared);
        let mut done = done;
        if !done && (self.core.hand_over_all() || now >= until) {
            done = true;
            // What is still led here has nowhere to go; those who wait for messages are told.
            self.core.consumers_stop();
            shared.system.handed_over.fetch_add(1, Ordering::Relaxed);
        }
        self.core.system.stop.phase = Phase::HandingOver { until, done };
        let all = shared.system.handed_over.load(Ordering::Relaxed) >= shared.workers;
        if done && (all || now >= until) {
            if let Some(links) = self.core.cluster.links.as_deref_mut() {
                links.end_all();
            }
            self.enter(Phase::Flushing {
                until: now + FLUSH_MAX,
            });
            return Some(now);
        }
        Some(now + STEP)
    }

    fn step_flushing(&mut self, until: Mono) -> Option<Mono> {
        let now = self.core.now.mono;
        let keys: Vec<ConnKey> = self.core.client_keys().collect();
        if keys.is_empty() || now >= until + FLUSH_MAX {
            self.enter(Phase::Stopped);
            return None;
        }
        for key in keys {
            let waits = self
                .core
                .client_at(key)
                .is_some_and(|client| client.outbound.pending() > 0);
            if waits && now < until {
                self.core.mark_dirty(key);
            } else {
                self.core.close(key, CloseReason::ServerShutdown);
            }
        }
        Some(now + STEP)
    }
}
