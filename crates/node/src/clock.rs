//! The time of the cluster: what leaders stamp their entries with (DESIGN section 2, "Time").
//!
//! Messages expire and acknowledgements fall due by the stamps of entries, so that one server whose wall clock jumps, or was
//! wrong when it started, must not take a stream with it. A node's monotonic clock is believed from moment to moment; the
//! wall clocks of all servers together say where it stands:
//! ```text
//!   own wall clock ──┐
//!   answer of a peer ┼──> offsets to the monotonic clock ──> median ──> Timeline ──> stamps of all workers
//!   answer of a peer ┘
//! ```
//! Up to a second, the time is led towards the median by a tenth of what passes. It is set to the median at once only if a
//! majority of the servers is within a second of it, and has been at a few looks. Until a majority has agreed for the first
//! time, a server of a cluster has no time that it is sure of: groups go on from their last stamps. A server alone has nobody
//! to ask: it takes its wall clock at the start, and follows it slowly from then on. What a group does with this time, so
//! that its stamps never go back, stands in `groups::stamp`.

use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::{Mono, NodeId, Now, Wall};

/// How often the clocks are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_nanos(LOOK_NANOS);
const LOOK_NANOS: u64 = 1_000_000_000;
/// The same until a majority has agreed.
pub(crate) const LOOK_FIRST: Duration = Duration::from_millis(100);
/// Clocks that are further apart than this disagree.
const APART_MAX: u64 = 1_000_000_000;
/// A clock that has been found wrong is right again when it is as near as this.
const RIGHT_MAX: u64 = 750_000_000;
/// So many looks in a row must agree before a time that was sure is set, and before a clock is found wrong, or right again.
const LOOKS: u32 = 3;
/// The clock of a peer that has not answered for so long is not known.
const HEARD_MAX: Duration = Duration::from_secs(10);
/// An answer that took longer says little.
const TRIP_MAX: Duration = Duration::from_millis(250);
/// A time that is to be corrected gains or loses so many nanoseconds in [`LOOK_EVERY`], a tenth, at most.
const SLEW_MAX: i64 = 100_000_000;

/// What entries are stamped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogTime {
    pub(crate) mono: Mono,
    /// The time of the cluster, as far as it is known.
    pub(crate) wall: Wall,
    /// It is. Otherwise it is this server's own.
    pub(crate) is_sure: bool,
}

/// A wall clock as it is, or is made, to run on from one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    from: Mono,
    wall: Wall,
    /// Nanoseconds that are gained, or lost, within [`LOOK_EVERY`] from then on.
    slew: i64,
    /// Others agree with it, or there are none.
    is_sure: bool,
}

impl Timeline {
    /// One that begins as a wall clock shows.
    pub(crate) const fn new(now: Now) -> Self {
        Self {
            from: now.mono,
            wall: now.wall,
            slew: 0,
            is_sure: false,
        }
    }

    /// What entries are stamped by at a moment.
    pub(crate) fn log_time(&self, mono: Mono) -> LogTime {
        LogTime {
            mono,
            wall: self.at(mono),
            is_sure: self.is_sure,
        }
    }

    /// The time at a moment.
    pub(crate) fn at(&self, mono: Mono) -> Wall {
        let passed = mono.since(self.from);
        let slewed = mono.0.saturating_sub(self.from.0).min(LOOK_NANOS).cast_signed();
        (self.wall + passed).plus_nanos(self.slew * slewed / LOOK_NANOS.cast_signed())
    }
}

/// What the wall clock of a peer showed between two moments here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeardTime {
    pub(crate) node: NodeId,
    /// When it was asked.
    pub(crate) sent: Mono,
    /// When its answer came.
    pub(crate) heard: Mono,
    pub(crate) wall: Wall,
}

/// What a look at the clocks has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// The time from here on.
    pub(crate) timeline: Timeline,
    /// By how many nanoseconds the own wall clock is ahead of the others, if they agree that it is wrong; `None` if they do
    /// not, or cannot, say anything.
    pub(crate) off: Option<Option<i64>>,
    /// By how much a time that was sure has been set.
    pub(crate) set_by: Option<i64>,
}

/// What one node knows of the clocks of all.
#[derive(Debug)]
pub(crate) struct Clocks {
    timeline: Timeline,
    /// The wall clock of each peer less the monotonic one of this node, and when that was heard.
    peers: BTreeMap<NodeId, (i64, Mono)>,
    /// Looks in a row that found the time far from the median.
    far: u32,
    /// The own clock is wrong, and looks in a row that found otherwise.
    is_off: bool,
    otherwise: u32,
}

/// A wall clock less the monotonic one.
const fn offset(wall: Wall, mono: Mono) -> i64 {
    wall.0.saturating_sub_unsigned(mono.0)
}

impl Clocks {
    pub(crate) const fn new(now: Now) -> Self {
        Self {
            timeline: Timeline::new(now),
            peers: BTreeMap::new(),
            far: 0,
            is_off: false,
            otherwise: 0,
        }
    }

    /// A peer has said what its wall clock showed.
    pub(crate) fn heard(&mut self, time: &HeardTime) {
        if time.heard.since(time.sent) <= TRIP_MAX {
            let between = Mono(time.sent.0.midpoint(time.heard.0));
            self.peers
                .insert(time.node, (offset(time.wall, between), time.heard));
        }
    }

    /// Looks at all clocks. So many servers belong to the cluster, this one included; `None` if that is not known yet.
    pub(crate) fn look(&mut self, now: Now, servers: Option<usize>) -> Look {
        self.peers
            .retain(|_, (_, heard)| now.mono.since(*heard) <= HEARD_MAX);
        let own = offset(now.wall, now.mono);
        let mut all: Vec<i64> = self.peers.values().map(|(offset, _)| *offset).collect();
        all.push(own);
        all.sort_unstable();
        // Of two, the earlier: better late than early.
        let median = all.get((all.len() - 1) / 2).copied().unwrap_or(own);
        let near = all.iter().filter(|one| one.abs_diff(median) <= APART_MAX).count();
        let alone = servers == Some(1) && all.len() == 1;
        let agreed = all.len() > 1 && 2 * near > servers.unwrap_or(0).max(all.len());

        let set_by = self.lead(now.mono, median, alone, agreed);
        Look {
            timeline: self.timeline,
            off: agreed.then(|| self.judge(own.saturating_sub(median))),
            set_by,
        }
    }

    /// Leads the time to the median, or sets it. Answers by how much a time that was sure has been set.
    fn lead(&mut self, mono: Mono, median: i64, alone: bool, agreed: bool) -> Option<i64> {
        let (present, was_sure) = (self.timeline.at(mono), self.timeline.is_sure);
        let behind = median.saturating_sub(offset(present, mono));
        let is_far = behind.unsigned_abs() > APART_MAX;
        self.far = if is_far && agreed { self.far + 1 } else { 0 };
        let is_set = self.far >= LOOKS || (self.far > 0 && !was_sure);
        self.timeline = Timeline {
            from: mono,
            wall: if is_set {
                present.plus_nanos(behind)
            } else {
                present
            },
            slew: if alone || (!is_far && agreed) {
                behind.clamp(-SLEW_MAX, SLEW_MAX)
            } else {
                0
            },
            is_sure: was_sure || alone || agreed,
        };
        if is_set {
            self.far = 0;
        }
        Some(behind).filter(|_| is_set && was_sure)
    }

    /// Whether the own clock, which is ahead of an agreed median by so much, is wrong, and by how much.
    fn judge(&mut self, ahead: i64) -> Option<i64> {
        let most = if self.is_off { RIGHT_MAX } else { APART_MAX };
        let is_off = ahead.unsigned_abs() > most;
        self.otherwise = if is_off == self.is_off {
            0
        } else {
            self.otherwise + 1
        };
        if self.otherwise >= LOOKS {
            (self.is_off, self.otherwise) = (is_off, 0);
        }
        Some(ahead).filter(|_| self.is_off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const HOUR: i64 = 3_600 * SECOND;

    /// Servers with a clock each, seen by the first; time passes in looks.
    struct Scene {
        clocks: Clocks,
        mono: u64,
        /// True time at zero of the monotonic clock, and how far the clocks are off it.
        offs: Vec<i64>,
        last: Option<Look>,
    }

    const START: i64 = 1_700_000_000 * SECOND;

    impl Scene {
        fn new(offs: &[i64]) -> Self {
            let now = Now {
                mono: Mono(5),
                wall: Wall(START + 5 + offs[0]),
            };
            Self {
                clocks: Clocks::new(now),
                mono: 5,
                offs: offs.to_vec(),
                last: None,
            }
        }

        /// Looks once a second; `heard` says of which peers.
        fn look(&mut self, times: u32, heard: impl Fn(usize) -> bool) -> Look {
            for _ in 0..times {
                self.mono += SECOND.unsigned_abs();
                for (peer, off) in self
                    .offs
                    .iter()
                    .enumerate()
                    .skip(1)
                    .filter(|(peer, _)| heard(*peer))
                {
                    // On its way for 2 ms, and back as long.
                    let (sent, there) = (Mono(self.mono - 4_000_000), self.mono.cast_signed() - 2_000_000);
                    self.clocks.heard(&HeardTime {
                        node: NodeId(peer as u64),
                        sent,
                        heard: Mono(self.mono),
                        wall: Wall(START + there + off),
                    });
                }
                let now = Now {
                    mono: Mono(self.mono),
                    wall: Wall(START + self.mono.cast_signed() + self.offs[0]),
                };
                self.last = Some(self.clocks.look(now, Some(self.offs.len())));
            }
            self.last.unwrap()
        }

        /// How far the time is off the true one.
        fn off(&self) -> i64 {
            let time = self.clocks.timeline.at(Mono(self.mono));
            time.0 - START - self.mono.cast_signed()
        }
    }

    #[test]
    fn the_time_is_led_to_the_median_by_a_tenth() {
        let mut scene = Scene::new(&[0, 500_000_000, 600_000_000]);
        scene.look(1, |_| true);
        assert_eq!(scene.off(), 0);
        scene.look(1, |_| true);
        assert_eq!(scene.off(), 100_000_000);
        let look = scene.look(9, |_| true);
        assert_eq!(
            (scene.off(), look.off, look.set_by),
            (500_000_000, Some(None), None)
        );
        scene.offs[0] = -300_000_000;
        scene.look(5, |_| true);
        assert_eq!(scene.off(), 500_000_000);
    }

    #[test]
    fn a_clock_that_jumps_is_noticed_and_not_followed() {
        for jump in [HOUR, -HOUR, 2 * SECOND, -2 * SECOND] {
            let mut scene = Scene::new(&[0, 0, 0]);
            scene.look(3, |_| true);
            scene.offs[0] = jump;
            let look = scene.look(2, |_| true);
            assert_eq!(look.off, Some(None), "a moment is no proof");
            let look = scene.look(1, |_| true);
            assert_eq!((look.off, look.set_by, scene.off()), (Some(Some(jump)), None, 0));
            scene.look(100, |_| true);
            assert_eq!(scene.off(), 0);
            // It is right again when it is near.
            scene.offs[0] = 900_000_000;
            assert_eq!(scene.look(9, |_| true).off, Some(Some(900_000_000)));
            scene.offs[0] = 700_000_000;
            assert_eq!(scene.look(2, |_| true).off, Some(Some(700_000_000)));
            assert_eq!(scene.look(1, |_| true).off, Some(None));
            // Nor is that of a peer followed.
            let mut scene = Scene::new(&[0, 0, 0]);
            scene.offs[1] = jump;
            let look = scene.look(100, |_| true);
            assert_eq!((look.off, look.set_by, scene.off()), (Some(None), None, 0));
        }
    }

    #[test]
    fn a_server_that_starts_is_not_sure_until_a_majority_agrees() {
        for off in [HOUR, -HOUR] {
            let mut scene = Scene::new(&[off, 0, 0]);
            let look = scene.look(5, |_| false);
            assert!(!look.timeline.is_sure);
            let look = scene.look(5, |peer| peer == 1);
            assert_eq!(
                (look.timeline.is_sure, look.off),
                (false, None),
                "one says this, one that"
            );
            let look = scene.look(1, |_| true);
            assert_eq!((look.timeline.is_sure, look.set_by, scene.off()), (true, None, 0));
            // It stays sure, whoever goes.
            let look = scene.look(20, |_| false);
            assert_eq!((look.timeline.is_sure, scene.off()), (true, 0));
        }
    }

    #[test]
    fn without_a_majority_that_agrees_the_time_goes_on_by_itself() {
        let mut scene = Scene::new(&[0, 0, 0]);
        scene.look(3, |_| true);
        // One peer is away; the other's clock, or the own one, is wrong: nobody can tell which.
        for wrong in [0, 1] {
            for jump in [HOUR, -HOUR] {
                scene.offs[wrong] = jump;
                scene.look(15, |peer| peer == 1);
                let look = scene.look(60, |peer| peer == 1);
                assert_eq!((look.off, look.set_by, scene.off()), (None, None, 0));
                scene.offs[wrong] = 0;
            }
        }
        // All are away.
        scene.offs[0] = HOUR;
        scene.look(60, |_| false);
        assert_eq!(scene.off(), 0);
        // All clocks are set.
        scene.offs = vec![HOUR, HOUR, HOUR];
        let look = scene.look(2, |_| true);
        assert_eq!((look.set_by, scene.off()), (None, 0));
        let look = scene.look(1, |_| true);
        assert_eq!((look.set_by, scene.off()), (Some(HOUR), HOUR));
    }

    #[test]
    fn an_answer_that_took_long_says_nothing() {
        let mut scene = Scene::new(&[0, 0, 0]);
        scene.look(10, |_| true);
        for (peer, trip) in [(1, 251), (2, 3_000)] {
            let heard = Mono(scene.mono);
            scene.clocks.heard(&HeardTime {
                node: NodeId(peer),
                sent: Mono(heard.0 - trip * 1_000_000),
                heard,
                wall: Wall(START + scene.mono.cast_signed() + 2 * SECOND),
            });
        }
        let look = scene.look(5, |_| false);
        assert_eq!((look.off, look.set_by, scene.off()), (Some(None), None, 0));
    }

    #[test]
    fn a_server_alone_follows_its_clock_slowly() {
        for jump in [HOUR, -HOUR] {
            let mut scene = Scene::new(&[0]);
            scene.offs[0] = jump;
            let look = scene.look(11, |_| true);
            assert_eq!((look.off, look.set_by), (None, None));
            assert!(look.timeline.is_sure);
            assert_eq!(scene.off(), jump.signum() * SECOND);
        }
    }

    #[test]
    fn a_time_that_nobody_looks_at_is_not_led_further() {
        let mut scene = Scene::new(&[0]);
        scene.offs[0] = HOUR;
        let timeline = scene.look(1, |_| true).timeline;
        let later = Mono(scene.mono) + LOOK_EVERY * 1_000;
        assert_eq!(timeline.at(later).0 - START - later.0.cast_signed(), SECOND / 10);
    }
}
