//! The time of the cluster as the workers of a node have it. One of them looks at the clocks, see [`crate::clock`]; all go
//! by what it finds.

use super::Core;
use crate::clock::{Clocks, LOOK_EVERY, LOOK_FIRST, LogTime, Timeline};
use crate::cluster::LINKS_WORKER;
use crate::shared::NodeShared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelock_base::Mono;

/// How often a wrong clock is complained of.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// A time that has moved by more nanoseconds was set.
const SET_MIN: u64 = 500_000_000;

/// What a worker knows of the time.
#[derive(Debug)]
pub(crate) struct Clock {
    timeline: Timeline,
    /// The own wall clock is wrong, as this worker has acted on it.
    is_off: bool,
    clocks: Clocks,
    look_at: Option<Mono>,
    said: Option<Mono>,
}

impl Clock {
    pub(crate) fn new(shared: &NodeShared) -> Self {
        let start = shared.identity.start;
        Self {
            timeline: Timeline::new(start),
            is_off: false,
            clocks: Clocks::new(start),
            look_at: None,
            said: None,
        }
    }

    /// When the clocks are to be looked at next.
    pub(crate) const fn next_deadline(&self) -> Option<Mono> {
        self.look_at
    }
}

impl Core {
    /// The time by which entries are stamped and what is logged falls due.
    pub(crate) fn log_time(&self) -> LogTime {
        self.clock.timeline.log_time(self.now.mono)
    }

    /// Takes the time over, or looks at the clocks if that is this worker's affair. When the clock of this server turns out
    /// to be wrong, each hands over what it leads.
    pub(crate) fn tick_clock(&mut self) {
        let now = self.now.mono;
        let looks = self.id == LINKS_WORKER && self.shared.options.jetstream.is_some();
        if looks && self.clock.look_at.is_none_or(|at| at <= now) {
            self.look_at_clocks();
        }
        let before = self.log_time();
        self.clock.timeline = **self.shared.time.load();
        let after = self.log_time();
        if after.wall.0.abs_diff(before.wall.0) > SET_MIN || after.is_sure != before.is_sure {
            // What is due by this time is due at another moment now.
            self.groups.look_at_all();
        }
        let is_off = self.shared.clock_is_off.load(Ordering::Relaxed);
        let was_off = std::mem::replace(&mut self.clock.is_off, is_off);
        if is_off && !was_off {
            self.hand_over_all();
        }
    }

    fn look_at_clocks(&mut self) {
        let now = self.now;
        // Those that are away count: without them there may be no majority. A server without metadata does not know of them.
        let listed = self.shared.servers_listed.load(Ordering::Relaxed);
        let mut servers = (listed > 0).then_some(listed);
        if let Some(links) = self.cluster.links.as_deref_mut() {
            for time in links.times.drain(..) {
                self.clock.clocks.heard(&time);
            }
            servers = servers.map(|servers| servers.max(1 + links.peers.len()));
        } else {
            servers = Some(1);
        }
        let look = self.clock.clocks.look(now, servers);
        self.shared.time.store(Arc::new(look.timeline));
        let every = if look.timeline.log_time(now.mono).is_sure {
            LOOK_EVERY
        } else {
            LOOK_FIRST
        };
        self.clock.look_at = Some(now.mono + every);
        if let Some(links) = self.cluster.links.as_deref_mut() {
            links.ask_clocks_every(every);
        }
        if let Some(by) = look.set_by {
            tracing::warn!(
                "The time that entries are stamped with is set by {} to that of the cluster",
                seconds(by)
            );
        }
        if let Some(off) = look.off {
            self.shared.clock_is_off.store(off.is_some(), Ordering::Relaxed);
            self.say_clock(off);
        }
    }

    /// Says of a wrong clock when it begins, once a minute, and when it is over.
    fn say_clock(&mut self, off: Option<i64>) {
        let now = self.now.mono;
        match (off, self.clock.said) {
            (Some(_), Some(said)) if now.since(said) < SAY_EVERY => {}
            (Some(off), _) => {
                self.clock.said = Some(now);
                tracing::warn!(
                    "The clock of this server is {} off those of its cluster, which it goes by; it hands over what it leads",
                    seconds(off)
                );
            }
            (None, Some(_)) => {
                self.clock.said = None;
                tracing::info!("The clock of this server agrees with those of its cluster again");
            }
            (None, None) => {}
        }
    }
}

/// A difference of clocks, for people.
fn seconds(nanos: i64) -> String {
    let sign = if nanos < 0 { '-' } else { '+' };
    let amount = Duration::from_nanos(nanos.unsigned_abs());
    format!("{sign}{}.{:03} s", amount.as_secs(), amount.subsec_millis())
}
