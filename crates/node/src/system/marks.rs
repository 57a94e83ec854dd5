//! Whether a replica follows: it has applied what its leader had committed [`BEHIND_MAX`] ago.
//!
//! To know that, a mark is set at what the leader tells that it has committed. Once the replica has reached it, it has what
//! was committed at the time at which the mark was set, and the next mark is set. One that is reached late says that the
//! replica is behind, though it comes nearer.

use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::{GroupId, LogIndex, Mono, ReplicaId, Term};

/// A replica may be this far behind what its leader had committed, and this long without a word of it.
pub(super) const BEHIND_MAX: Duration = Duration::from_secs(2);
/// How often marks are looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What a replica had to reach.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// What the leader that it followed had committed; `None` as long as that one has not told.
    index: Option<LogIndex>,
    set: Mono,
    /// Whom it followed then. What is to be reached under another leader may be more than it has heard of.
    led: Option<(Term, ReplicaId)>,
    /// The latest time of which it has all that its leader had committed.
    current_at: Option<Mono>,
    /// What was committed at the look before: every replica that follows has that by now.
    before: LogIndex,
    /// What was committed at the last look.
    newest: LogIndex,
}

/// A replica at the time of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// What its leader has told lately to have committed.
    pub(super) told: Option<LogIndex>,
    pub(super) applied: LogIndex,
    /// Whom it follows.
    pub(super) led: Option<(Term, ReplicaId)>,
    /// The highest index that is known to be committed.
    pub(super) committed: LogIndex,
}

/// How the replicas of a worker follow.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) marks: BTreeMap<GroupId, Mark>,
    pub(super) look_at: Option<Mono>,
}

impl Marks {
    pub(super) const fn next_deadline(&self) -> Option<Mono> {
        self.look_at
    }
}

impl Mark {
    /// Takes note of how far the replica is.
    pub(super) fn look(&mut self, now: Mono, seen: &Seen) {
        self.before = std::mem::replace(&mut self.newest, seen.committed);
        let reached = self.index.is_some_and(|index| seen.applied >= index);
        if reached && self.led == seen.led {
            self.current_at = Some(self.set);
        }
        if reached || self.index.is_none() || self.led != seen.led {
            (self.index, self.set, self.led) = (seen.told, now, seen.led);
        }
        if seen.told.is_some_and(|told| seen.applied >= told) {
            self.current_at = Some(now);
        }
    }

    /// Whether the replica has all that was committed [`BEHIND_MAX`] ago.
    pub(super) fn is_current(&self, now: Mono) -> bool {
        self.current_at.is_some_and(|at| now.since(at) <= BEHIND_MAX)
    }

    /// What was committed a while ago.
    pub(super) const fn before(&self) -> LogIndex {
        self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks twice a second at a replica that is this far at each look (what was told, what is applied, whose), and says
    /// whether it was current then.
    fn looks(seen: &[(Option<u64>, u64, u64)]) -> String {
        let mut mark = Mark::default();
        let look = |(at, (told, applied, leader)): (u64, &(Option<u64>, u64, u64))| {
            let now = Mono(at * 500_000_000);
            let seen = Seen {
                told: told.map(LogIndex),
                applied: LogIndex(*applied),
                led: Some((Term(*leader), ReplicaId(*leader))),
                committed: LogIndex(told.unwrap_or(0)),
            };
            mark.look(now, &seen);
            if mark.is_current(now) { '+' } else { '-' }
        };
        (1..).zip(seen).map(look).collect()
    }

    #[test]
    fn who_keeps_up_is_current_and_who_stops_is_for_two_seconds() {
        let keeps_up = (1..6).map(|at| (Some(at * 10), at * 10 - 5, 1));
        let stops = (6..14).map(|at| (Some(at * 10), 45, 1));
        let seen: Vec<_> = keeps_up.chain(stops).collect();
        assert_eq!(looks(&seen), "-+++++++-----");
    }

    #[test]
    fn a_mark_that_is_reached_late_says_that_the_replica_is_behind() {
        // It comes nearer, and is three seconds behind all the time.
        let seen: Vec<_> = (1..40)
            .map(|at: u64| (Some(at * 10), at.saturating_sub(6) * 10, 1))
            .collect();
        assert_eq!(looks(&seen), "-".repeat(39));
        // And one second.
        let seen: Vec<_> = (1..40)
            .map(|at: u64| (Some(at * 10), at.saturating_sub(2) * 10, 1))
            .collect();
        assert_eq!(looks(&seen), format!("--{}", "+".repeat(37)));
    }

    #[test]
    fn who_has_all_at_a_look_is_current_from_then_on() {
        let late = (1..8).map(|at: u64| (Some(at * 10), 0, 1));
        let there = [(Some(80), 80, 1), (Some(90), 80, 1), (Some(100), 85, 1)];
        let seen: Vec<_> = late.chain(there).collect();
        assert_eq!(looks(&seen), "-------+++");
    }

    #[test]
    fn under_another_leader_it_has_to_reach_what_that_one_tells() {
        let before = [(Some(10), 10, 1), (Some(10), 10, 1)];
        let silent = [(None, 10, 2); 5];
        let told = [
            (Some(90), 10, 2),
            (Some(90), 80, 2),
            (Some(95), 90, 2),
            (Some(95), 95, 2),
        ];
        let seen = [&before[..], &silent, &told].concat();
        assert_eq!(looks(&seen), "++++++---++");
    }
}
