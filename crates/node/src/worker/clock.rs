//! The time of the cluster as the workers of a node have it. One of them looks at the clocks, see [`crate::clock`]; all go
//! by what it finds.

use super::Core;
use crate::clock::{Clocks, LOOK_EVERY, Timeline};
use crate::cluster::LINKS_WORKER;
use crate::shared::NodeShared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelock_base::{Mono, Now};

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
    pub(crate) fn log_time(&self) -> Now {
        let mono = self.now.mono;
        let wall = self.clock.timeline.at(mono);
        Now { mono, wall }
    }

    /// Takes the time over, or looks at the clocks if that is this worker's affair. When the clock of this server turns out
    /// to be wrong, each hands over what it leads.
    pub(crate) fn tick_clock(&mut self) {
        let now = self.now.mono;
        let looks = self.id == LINKS_WORKER && self.shared.options.jetstream.is_some();
        if looks && self.clock.look_at.is_none_or(|at| at <= now) {
            self.clock.look_at = Some(now + LOOK_EVERY);
            self.look_at_clocks();
        }
        let before = self.clock.timeline.at(now);
        self.clock.timeline = **self.shared.time.load();
        if self.clock.timeline.at(now).0.abs_diff(before.0) > SET_MIN {
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
        // Those that are away count: without them there may be no majority.
        let listed = self.shared.servers_listed.load(Ordering::Relaxed);
        let mut servers = 1;
        if let Some(links) = self.cluster.links.as_deref_mut() {
            for time in links.times.drain(..) {
                self.clock.clocks.heard(&time);
            }
            servers += links.peers.len();
        }
        let look = self.clock.clocks.look(now, servers.max(listed));
        self.shared.time.store(Arc::new(look.timeline));
        self.shared
            .clock_is_off
            .store(look.off.is_some(), Ordering::Relaxed);
        if let Some(by) = look.set_by {
            tracing::warn!(
                "The time that entries are stamped with is set by {} to that of the cluster",
                seconds(by)
            );
        }
        self.say_clock(look.off);
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
