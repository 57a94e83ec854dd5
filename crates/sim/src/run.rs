//! One run: a cluster comes up, is used and broken for a while, heals, and is judged.

use crate::actors::{
    Actor, Auditor, BUCKET, Core, EVENTS, Echo, Keys, Line, MEMORY, Nemesis, Operator, Publisher, Puller,
    Scene, Setup, WORK,
};
use crate::checkers::{self, CopyWatch, Replicas};
use crate::history::History;
use crate::rng::Rng;
use crate::trace::Trace;
use crate::world::{Happening, World};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;
use tidelock_base::Mono;
use tidelock_node::ReplicaView;

/// The streams must be there after so long.
const FORMING_MAX: Duration = Duration::from_secs(60);
/// Once everything is healed, everyone must have been served after so long.
const SERVED_MAX: Duration = Duration::from_secs(40);
/// Once everything is healed, the operator's last wishes must be met after so long.
const OPERATED_MAX: Duration = Duration::from_secs(60);
/// After that, all replicas of the streams must vote after so long.
const SPREAD_MAX: Duration = Duration::from_secs(30);
/// Once nothing new is begun, replicas must agree after so long.
const AGREED_MAX: Duration = Duration::from_secs(30);
/// Replicas are looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Reading everything back takes at most so long.
const AUDIT_MAX: Duration = Duration::from_secs(120);

/// What to run.
pub struct Plan {
    /// Decides everything that is not decided by the other fields.
    pub seed: u64,
    /// Virtual seconds during which things break.
    pub seconds: u64,
    /// Which part of the workload there is.
    pub workload: Workload,
    /// Where lines for people go.
    pub trace: Option<Box<dyn Write>>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan")
            .field("seed", &self.seed)
            .field("seconds", &self.seconds)
            .finish_non_exhaustive()
    }
}

/// What the cluster is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Core publish and subscribe only.
    Core,
    /// Streams and keys too.
    Streams,
    /// Consumers too.
    Full,
    /// Streams are copied, too, and streams are scaled, made and deleted meanwhile.
    All,
}

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash over everything that happened: the same seed gives the same.
    pub trace_hash: u64,
    /// Events that happened.
    pub events: u64,
    /// Virtual time that passed.
    pub virtual_time: Duration,
    /// What the workload did, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// Broken promises; empty if all is well.
    pub violations: Vec<String>,
}

/// A run on its way.
struct Run {
    rng: Rng,
    world: World,
    history: History,
    actors: Vec<Box<dyn Actor>>,
    replicas: Replicas,
    copy_watch: CopyWatch,
    /// The actors whose messages are copied.
    feeders: Vec<usize>,
    /// Streams that had replicas of two makings last time.
    mixed: BTreeSet<&'static str>,
    looked_at: Mono,
    /// The node whose disk rots.
    rotten: usize,
    violations: Vec<String>,
}

/// Runs a plan.
#[must_use]
pub fn run(plan: Plan) -> Report {
    let Plan {
        seed,
        seconds,
        workload,
        trace,
    } = plan;
    let mut rng = Rng::new(seed);
    let mut run = Run {
        rng: rng.fork(),
        world: World::new(3, &mut rng, Trace::new(trace)),
        history: History::default(),
        actors: Vec::new(),
        replicas: Replicas::default(),
        copy_watch: CopyWatch::default(),
        feeders: Vec::new(),
        mixed: BTreeSet::new(),
        looked_at: Mono(0),
        rotten: 0,
        violations: Vec::new(),
    };
    let began = run.world.now();
    run.phases(&mut rng, seconds, workload);
    let mut violations = std::mem::take(&mut run.violations);
    violations.append(&mut run.world.violations);
    Report {
        seed,
        trace_hash: run.world.trace.hash(),
        events: run.world.trace.events(),
        virtual_time: run.world.now().since(began),
        counts: run.history.counts,
        violations,
    }
}

impl Run {
    /// The phases, until one finds a violation.
    fn phases(&mut self, rng: &mut Rng, seconds: u64, workload: Workload) {
        for node in 0..self.world.node_count() {
            let workers = 1 + u16::try_from(rng.below(3)).unwrap_or(0);
            self.world.start(node, workers);
        }
        if workload != Workload::Core {
            let setup = self.add(Setup::new(rng.fork(), &[EVENTS, WORK, BUCKET]));
            if !self.go(FORMING_MAX, |run| run.actor_is_done(setup)) {
                self.fail("the streams cannot be made");
                return;
            }
        }
        self.workload(rng, workload);
        let faults = self.add(Nemesis::new(rng.fork()));
        let operators = match workload {
            Workload::All => vec![self.add(Operator::new(rng.fork())), self.copy_streams(rng)],
            Workload::Core | Workload::Streams | Workload::Full => Vec::new(),
        };
        self.say("faults begin");
        self.go(Duration::from_secs(seconds), |_| false);
        if let Some(nemesis) = self.actors.get_mut(faults) {
            nemesis.stop();
        }
        self.heal();
        for operator in &operators {
            if let Some(operator) = self.actors.get_mut(*operator) {
                operator.stop();
            }
        }
        if !self.go(OPERATED_MAX, |run| {
            operators.iter().all(|op| run.actor_is_done(*op))
        }) {
            self.fail("the operators' wishes are not met");
            return;
        }
        self.recover(workload);
    }

    fn workload(&mut self, rng: &mut Rng, workload: Workload) {
        for _ in 0..3 {
            self.add(Core::new(rng.fork()));
        }
        if workload == Workload::Core {
            return;
        }
        for name in 0..2 {
            self.add(Publisher::new(name, EVENTS, rng.fork(), Line::default()));
        }
        for name in 0..4 {
            self.add(Keys::new(name + 1, rng.fork()));
        }
        for _ in 0..2 {
            self.add(Echo::new(rng.fork()));
        }
        self.add(Publisher::new(2, WORK, rng.fork(), Line::default()));
        if workload >= Workload::Full {
            for _ in 0..2 {
                self.add(Puller::new(rng.fork()));
            }
        }
    }

    /// Ends all faults.
    fn heal(&mut self) {
        self.say("everything is healed");
        let now = self.world.now();
        self.world.net.heal(now);
        for node in 0..self.world.node_count() {
            if self
                .world
                .nodes
                .get(node)
                .is_some_and(|found| found.is_losing_power)
            {
                self.world.crash(node);
            }
            if let Some(found) = self.world.nodes.get_mut(node) {
                found.disk_is_well();
                found.paused_until = now;
            }
            self.world.start(node, 2);
        }
    }

    /// From here on nothing is broken: everyone is served, replicas agree, and all that counts is there.
    fn recover(&mut self, workload: Workload) {
        let healed = self.world.now();
        let expecting: Vec<usize> = self
            .actors
            .iter()
            .enumerate()
            .filter(|(_, actor)| actor.expects_answers())
            .map(|(n, _)| n)
            .collect();
        let served =
            |run: &Self| checkers::silent(&run.history, &expecting, healed).is_empty() && run.is_mesh();
        if !self.go(SERVED_MAX, served) {
            let silent = checkers::silent(&self.history, &expecting, healed);
            let peers: Vec<usize> = self.world.nodes.iter().map(crate::node::Node::peers_up).collect();
            self.fail(&format!(
                "not everyone is served after healing: actors {silent:?}, peers {peers:?}"
            ));
            return;
        }
        if workload != Workload::Core && !(self.add_memory() && self.lose_one(&expecting)) {
            return;
        }
        self.actors.iter_mut().for_each(|actor| actor.stop());
        self.say("the workload ends");
        self.go(Duration::from_secs(13), |_| false);
        let nodes = self.world.node_count();
        if !self.copies_are_whole() {
            return;
        }
        if !self.go(AGREED_MAX, |run| Replicas::agree(&run.views(), nodes).is_ok()) {
            let text = Replicas::agree(&self.views(), nodes).err().unwrap_or_default();
            self.fail(&format!("replicas do not come together: {text}"));
            return;
        }
        if workload != Workload::Core {
            self.rot();
            self.audit();
        }
        self.violations.extend(checkers::judge(&self.history));
        if workload != Workload::Core && self.violations.is_empty() {
            self.lose_two();
        }
        for node in 0..nodes {
            let files = self
                .world
                .nodes
                .get(node)
                .map(|found| found.disk.files())
                .unwrap_or_default();
            self.say(&format!("files of n{node}: {files:?}"));
        }
    }

    /// A stream in memory: as one node at most is lost from here on, it has to keep everything.
    fn add_memory(&mut self) -> bool {
        let mut rng = self.rng.fork();
        let setup = self.add(Setup::new(rng.fork(), &[MEMORY]));
        if !self.go(FORMING_MAX, |run| run.actor_is_done(setup)) {
            self.fail("the stream in memory cannot be made");
            return false;
        }
        self.add(Publisher::new(3, MEMORY, rng, Line::default()));
        self.go(Duration::from_secs(2), |_| false);
        self.violations.is_empty() && self.world.violations.is_empty()
    }

    /// One node dies and stays away: the others serve everyone without it. Then it comes back, perhaps without its files or with
    /// damaged ones.
    fn lose_one(&mut self, expecting: &[usize]) -> bool {
        if !self.go(SPREAD_MAX, |run| Replicas::are_spread(&run.views(), 3)) {
            self.fail("not every stream has three replicas that vote");
            return false;
        }
        let lost = self.rng.index(self.world.node_count());
        self.rotten = lost;
        self.rot();
        self.go(Duration::from_secs(2), |_| false);
        self.say(&format!("n{lost} stays away"));
        let since = self.world.now();
        self.world.crash(lost);
        if !self.go(SERVED_MAX, |run| {
            checkers::silent(&run.history, expecting, since).is_empty()
        }) {
            let silent = checkers::silent(&self.history, expecting, since);
            self.fail(&format!(
                "not everyone is served without n{lost}: actors {silent:?}"
            ));
            return false;
        }
        match self.rng.below(10) {
            0..3 => self.world.wipe(lost),
            3..6 => self.world.damage(lost),
            6..8 => {
                self.history.count("lost blocks");
                self.world.lose_blocks(lost);
            }
            _ => {}
        }
        self.world.start(lost, 2);
        true
    }

    /// Two nodes start anew at once, when nothing is on its way any more: what is in memory goes on from the third.
    fn lose_two(&mut self) {
        let left = self.rng.index(self.world.node_count());
        let lost: Vec<usize> = (0..self.world.node_count())
            .filter(|node| *node != left)
            .collect();
        let memory = |run: &Self| {
            let views = run.views().into_iter().filter(|view| *view.name == *MEMORY);
            views
                .map(|view| (view.messages, view.last_seq))
                .collect::<Vec<_>>()
        };
        let before = memory(self);
        self.say(&format!("n{lost:?} start anew"));
        self.history.count("lost majorities in memory");
        for node in &lost {
            self.world.crash(*node);
        }
        for node in &lost {
            self.world.start(*node, 1);
        }
        let nodes = self.world.node_count();
        let is_whole =
            |run: &Self| Replicas::agree(&run.views(), nodes).is_ok() && memory(run).len() == nodes;
        if !self.go(AGREED_MAX, is_whole) {
            let text = Replicas::agree(&self.views(), nodes).err().unwrap_or_default();
            self.fail(&format!(
                "a stream in memory does not go on from what is left: {text}"
            ));
        } else if memory(self) != before {
            self.fail(&format!(
                "a stream in memory had {before:?} and has {:?}",
                memory(self)
            ));
        }
    }

    /// Bits turn over on the disk of one node, the same one each time: what is lost there the others have.
    fn rot(&mut self) {
        self.history.count("rotten disks");
        self.world.rot(self.rotten);
    }

    /// Reads everything back through every node.
    fn audit(&mut self) {
        self.audit_of(&[EVENTS, WORK, MEMORY]);
    }

    fn audit_of(&mut self, streams: &[&'static str]) -> bool {
        let mut auditors = Vec::new();
        for stream in streams {
            for node in 0..self.world.node_count() {
                auditors.push(self.add(Auditor::new(stream, node)));
            }
        }
        let all = self.go(AUDIT_MAX, |run| {
            auditors.iter().all(|auditor| run.actor_is_done(*auditor))
        });
        if !all {
            self.fail("the streams cannot be read back");
        }
        all
    }

    // ---- the loop -------------------------------------------------------------------------------------------------

    fn add(&mut self, actor: impl Actor + 'static) -> usize {
        let me = self.actors.len();
        self.actors.push(Box::new(actor));
        self.with(me, |actor, scene| actor.start(scene));
        me
    }

    fn with(&mut self, me: usize, f: impl FnOnce(&mut dyn Actor, &mut Scene<'_>)) {
        let Some(actor) = self.actors.get_mut(me) else {
            return;
        };
        f(
            &mut **actor,
            &mut Scene {
                me,
                world: &mut self.world,
                history: &mut self.history,
            },
        );
    }

    /// Lets time pass until something is reached; `false` if it is not reached in time, or something is wrong.
    fn go(&mut self, time: Duration, reached: impl Fn(&Self) -> bool) -> bool {
        let end = self.world.now() + time;
        loop {
            let until = end.min(self.looked_at + LOOK_EVERY);
            match self.world.run_until(until) {
                Some(Happening::Heard(actor, client, heard)) => {
                    self.with(actor, |actor, scene| actor.heard(scene, client, heard));
                }
                Some(Happening::Timer(actor, tag)) => {
                    self.with(actor, |actor, scene| actor.timer(scene, tag))
                }
                None => {
                    self.look();
                    if !self.violations.is_empty() || !self.world.violations.is_empty() {
                        return false;
                    }
                    if reached(self) {
                        return true;
                    }
                    if self.world.now() >= end {
                        return false;
                    }
                }
            }
        }
    }

    fn look(&mut self) {
        self.looked_at = self.world.now();
        let views = self.views();
        let found = self.replicas.look(&views);
        self.violations.extend(found);
        let crashed = std::mem::take(&mut self.world.crashed);
        if let Some(plan) = self.history.copies.plan {
            self.look_for_mixed(&views);
            let found = self.copy_watch.look(&views, &crashed, plan.queue);
            self.violations.extend(found);
        }
    }

    fn views(&self) -> Vec<ReplicaView> {
        self.world.views()
    }

    fn actor_is_done(&self, actor: usize) -> bool {
        self.actors.get(actor).is_some_and(|actor| actor.is_done())
    }

    fn is_mesh(&self) -> bool {
        let others = self.world.node_count() - 1;
        self.world.nodes.iter().all(|node| node.peers_up() == others)
    }

    fn fail(&mut self, text: &str) {
        self.say(text);
        for view in self.views() {
            self.say(&format!("{view:?}"));
        }
        if self.violations.is_empty() && self.world.violations.is_empty() {
            self.violations.push(text.to_owned());
        }
    }

    fn say(&mut self, text: &str) {
        self.world.trace.say(|| format!("==== {text}"));
    }
}

mod copies;
#[cfg(test)]
mod tests;
