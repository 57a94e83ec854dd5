//! The faults: crashes, pauses, partitions, slow, full and failing disks, clocks that jump, leaders that are told to go.

use super::{CRASH, DISKS, HEAL, Nemesis, RESTART};
use crate::actors::{BUCKET, EVENTS, Scene, WORK};
use crate::checkers::Replicas;
use crate::network::{Host, Way};
use crate::node::Node;
use crate::world::World;
use tidelock_record::Fault;

impl Nemesis {
    pub(super) fn strike(&mut self, scene: &mut Scene<'_>) {
        scene.history.count("faults");
        match self.rng.below(20) {
            0..3 => self.crash(scene),
            3 => self.crash_in_operation(scene),
            4 => self.pause(scene),
            5..8 => self.part(scene),
            8 => self.reset(scene),
            9 => self.lag(scene),
            10 => self.slow_disk(scene),
            11 => self.fail_disk(scene),
            12 => self.fill_disk(scene),
            13 => self.shift_clock(scene),
            14 | 15 => self.lose(scene, "lost disks", World::wipe),
            16 => self.lose(scene, "damaged disks", World::damage),
            _ => self.step_down(scene),
        }
    }

    // ---- processes ------------------------------------------------------------------------------------------------

    /// Mostly one node at a time; sometimes all at once, as when the power of a hall fails.
    fn crash(&mut self, scene: &mut Scene<'_>) {
        if self.rng.per_mille(100) {
            (0..scene.world.node_count()).for_each(|node| self.crash_one(scene, node));
        } else {
            let node = self.leader(scene);
            self.crash_one(scene, node);
        }
    }

    pub(super) fn crash_one(&mut self, scene: &mut Scene<'_>, node: usize) {
        if scene.world.nodes.get(node).is_some_and(Node::is_running) {
            scene.world.crash(node);
            let time = self.time(100, 6_000);
            scene.after(time, RESTART + node as u64);
        }
    }

    /// A node loses all its files or has some of them damaged, if nothing is lost with them: every stream has three
    /// replicas that vote, and the operators are not about to take one of them away.
    fn lose(&mut self, scene: &mut Scene<'_>, count: &'static str, lose: impl FnOnce(&mut World, usize)) {
        let node = self.node(scene);
        let is_scaling = scene.history.is_scaling || scene.history.copies.is_scaling;
        if is_scaling || !Replicas::are_spread(&scene.world.views(), scene.world.node_count()) {
            return;
        }
        scene.history.count(count);
        scene.history.is_disk_lost = true;
        lose(scene.world, node);
        let time = self.time(100, 6_000);
        scene.after(time, RESTART + node as u64);
    }

    /// Power fails in the middle of one of the next operations of a disk.
    fn crash_in_operation(&mut self, scene: &mut Scene<'_>) {
        let node = self.node(scene);
        let ops = 1 + self.rng.below(40);
        let Some(found) = scene.world.nodes.get_mut(node).filter(|found| found.is_running()) else {
            return;
        };
        found.lose_power_after(ops);
        scene
            .world
            .trace
            .say(|| format!("n{node} loses power after {ops} operations"));
        let until = self.time(1, 200);
        scene.after(until, CRASH + node as u64);
    }

    /// Starts a node on some number of workers.
    pub(super) fn restart(&mut self, scene: &mut Scene<'_>, node: usize) {
        let workers = 1 + u16::try_from(self.rng.below(3)).unwrap_or(0);
        let now = scene.world.now();
        if self.rng.per_mille(100)
            && let Some(found) = scene.world.nodes.get_mut(node)
        {
            // The power goes again while the store is opened.
            found.crash_at_start(now, workers, 1 + self.rng.below(30));
        }
        if !scene.world.start(node, workers) {
            let later = self.time(500, 2_000);
            scene.after(later, RESTART + node as u64);
        }
    }

    fn pause(&mut self, scene: &mut Scene<'_>) {
        let node = self.leader(scene);
        let time = self.time(50, 5_000);
        scene.world.pause(node, time);
    }

    /// A node's wall clock jumps.
    fn shift_clock(&mut self, scene: &mut Scene<'_>) {
        let node = self.node(scene);
        let offset = i64::try_from(self.rng.below(6_000)).unwrap_or(0) - 3_000;
        scene
            .world
            .trace
            .say(|| format!("the clock of n{node} is {offset} ms off"));
        if let Some(found) = scene.world.nodes.get_mut(node) {
            found.wall_offset = offset * 1_000_000;
        }
    }

    /// The leader of something is asked to hand over.
    fn step_down(&mut self, scene: &mut Scene<'_>) {
        let subject = match self.rng.below(4) {
            0 => "$JS.API.META.LEADER.STEPDOWN".to_owned(),
            1 => format!("$JS.API.STREAM.LEADER.STEPDOWN.{EVENTS}"),
            2 => format!("$JS.API.STREAM.LEADER.STEPDOWN.{WORK}"),
            _ => format!("$JS.API.STREAM.LEADER.STEPDOWN.{BUCKET}"),
        };
        scene.world.trace.say(|| subject.clone());
        if self.line.request(scene, &subject, &[], b"").is_none() {
            let node = self.node(scene);
            self.line.open(scene, node);
        }
    }

    // ---- network --------------------------------------------------------------------------------------------------

    /// A node is cut off from one other or from all, in one direction or in both.
    fn part(&mut self, scene: &mut Scene<'_>) {
        let state = if self.rng.per_mille(300) {
            Way::Held
        } else {
            Way::Cut
        };
        let alone = self.leader(scene);
        let only = self.rng.per_mille(400).then(|| self.node(scene));
        let (out, back) = match self.rng.below(4) {
            0 => (true, false),
            1 => (false, true),
            _ => (true, true),
        };
        scene
            .world
            .trace
            .say(|| format!("{state:?}: n{alone} from {only:?} (out {out}, in {back})"));
        let now = scene.world.now();
        let others = (0..scene.world.node_count()).filter(|other| *other != alone);
        for other in others.filter(|other| only.is_none_or(|only| only == *other)) {
            let (one, two) = (Host::Node(alone), Host::Node(other));
            if out {
                scene.world.net.set_way(now, one, two, state);
            }
            if back {
                scene.world.net.set_way(now, two, one, state);
            }
        }
        let time = self.time(200, 8_000);
        scene.after(time, HEAL);
    }

    /// Connections between two nodes are reset.
    fn reset(&mut self, scene: &mut Scene<'_>) {
        let (one, two) = (self.node(scene), self.node(scene));
        let share = 200 + self.rng.below(801);
        scene
            .world
            .trace
            .say(|| format!("connections of n{one} and n{two} are reset ({share}/1000)"));
        let now = scene.world.now();
        scene
            .world
            .net
            .reset_between(now, Host::Node(one), Host::Node(two), share);
    }

    /// Everything from one node to another takes longer, for a while.
    fn lag(&mut self, scene: &mut Scene<'_>) {
        let (one, two) = (self.node(scene), self.node(scene));
        let by = self.time(1, 300);
        scene
            .world
            .trace
            .say(|| format!("from n{one} to n{two} it takes {by:?} longer"));
        scene.world.net.set_slow(Host::Node(one), Host::Node(two), by);
        let until = self.time(200, 6_000);
        scene.after(until, HEAL);
    }

    // ---- disks ----------------------------------------------------------------------------------------------------

    fn slow_disk(&mut self, scene: &mut Scene<'_>) {
        let node = self.node(scene);
        let time = self.time(5, 1_500);
        scene
            .world
            .trace
            .say(|| format!("n{node} has a slow disk: {time:?}"));
        if let Some(found) = scene.world.nodes.get_mut(node) {
            found.disk_time = time;
        }
        let until = self.time(200, 4_000);
        scene.after(until, DISKS);
    }

    fn fail_disk(&mut self, scene: &mut Scene<'_>) {
        let node = self.node(scene);
        let (fault, skip) = match self.rng.below(5) {
            0 => (Fault::Write, self.rng.below(20)),
            1 => (Fault::Create, self.rng.below(3)),
            2 => (Fault::Read, self.rng.below(4)),
            _ => (Fault::Sync, self.rng.below(20)),
        };
        scene
            .world
            .trace
            .say(|| format!("n{node} fails: {fault:?} after {skip}"));
        if let Some(found) = scene.world.nodes.get_mut(node) {
            found.disk.fail(fault, skip);
            found.disk_is_ill = true;
        }
    }

    /// Disks take only a little more, for a while: mostly that of one node, sometimes all, as they hold the same.
    fn fill_disk(&mut self, scene: &mut Scene<'_>) {
        if self.rng.per_mille(300) {
            (0..scene.world.node_count()).for_each(|node| self.fill_disk_of(scene, node));
        } else {
            let node = self.node(scene);
            self.fill_disk_of(scene, node);
        }
        let until = self.time(200, 6_000);
        scene.after(until, DISKS);
    }

    fn fill_disk_of(&mut self, scene: &mut Scene<'_>, node: usize) {
        let room = 1 << self.rng.below(20);
        scene
            .world
            .trace
            .say(|| format!("n{node} has room for {room} bytes"));
        if let Some(found) = scene.world.nodes.get_mut(node) {
            found.disk_is_ill = true;
            let used: u64 = found.disk.files().iter().map(|(_, len)| len).sum();
            found.disk.set_capacity(Some(used + room));
        }
    }
}
