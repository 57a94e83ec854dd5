//! Streams that are copied: made and fed while things break, and whole at the end.

use super::{AGREED_MAX, Run};
use crate::actors::{Feeder, Keeper, Line};
use crate::checkers;
use crate::copies::{CopyPlan, QUEUE, STREAMS};
use crate::rng::Rng;
use std::collections::BTreeSet;
use std::time::Duration;
use tidelock_base::GroupId;
use tidelock_node::ReplicaView;

/// Pause before a work queue that should be empty is read once more.
const PAUSE: Duration = Duration::from_secs(2);

impl Run {
    /// Has streams copied from now on; answers the actor that makes them.
    pub(super) fn copy_streams(&mut self, rng: &mut Rng) -> usize {
        let plan = CopyPlan::choose(&mut rng.fork());
        self.say(&format!("{plan:?}"));
        self.history.copies.plan = Some(plan);
        let keeper = self.add(Keeper::new(plan, rng.fork()));
        for pair in plan.pairs() {
            let feeder = self.add(Feeder::new(pair, rng.fork(), Line::default()));
            self.feeders.push(feeder);
        }
        keeper
    }

    /// Notes which streams have replicas of two makings.
    pub(super) fn look_for_mixed(&mut self, views: &[ReplicaView]) {
        for name in STREAMS {
            let groups: BTreeSet<GroupId> = views
                .iter()
                .filter(|view| &*view.name == name)
                .map(|view| view.group)
                .collect();
            // Once more when it is over: it may have ended just before.
            if groups.len() > 1 || self.mixed.contains(name) {
                let at = self.history.tick();
                self.history.copies.mixed.insert(name, at);
            }
            if groups.len() > 1 {
                self.mixed.insert(name);
            } else {
                self.mixed.remove(name);
            }
        }
    }

    /// Now that nothing new is begun: everything is copied, and the work queue is empty, on all nodes.
    pub(super) fn copies_are_whole(&mut self) -> bool {
        if self.history.copies.plan.is_none() {
            return true;
        }
        if !self.go(AGREED_MAX, |run| {
            run.feeders.iter().all(|feeder| run.actor_is_done(*feeder))
        }) {
            self.fail("what is to be copied is not acknowledged");
            return false;
        }
        if !self.go(AGREED_MAX, |run| {
            checkers::copied(&run.history.copies, &run.views())
        }) {
            self.fail("the copies are not complete");
            return false;
        }
        let begun = self.world.now();
        loop {
            self.history.copies.audits.clear();
            if !self.audit_of(&[QUEUE]) {
                return false;
            }
            if checkers::is_emptied(&self.history.copies) || self.world.now().since(begun) > AGREED_MAX {
                break;
            }
            self.go(PAUSE, |_| false);
        }
        let others: Vec<&'static str> = STREAMS.into_iter().filter(|name| *name != QUEUE).collect();
        self.audit_of(&others)
    }
}
