//! Breaks the cluster: crashes, pauses, partitions, slow and failing disks, leaders that are told to go.

use super::{Actor, BUCKET, EVENTS, Line, Scene, WORK};
use crate::client::{ClientId, Heard};
use crate::network::{Host, Way};
use crate::rng::Rng;
use std::time::Duration;
use tidelock_record::Fault;

/// What it is told by its timers.
const NEXT: u64 = 0;
/// A node is to be started again; its number is added.
const RESTART: u64 = 1_000;
/// The network is to be healed.
const HEAL: u64 = 1;
/// Disks are to be fast again.
const FAST: u64 = 2;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Nemesis {
    rng: Rng,
    line: Line,
    stopped: bool,
}

impl Nemesis {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            line: Line::default(),
            stopped: false,
        }
    }

    fn node(&mut self, scene: &Scene<'_>) -> usize {
        self.rng.index(scene.world.node_count())
    }

    fn strike(&mut self, scene: &mut Scene<'_>) {
        scene.history.count("faults");
        match self.rng.below(12) {
            0..3 => self.crash(scene),
            3 => {
                let node = self.node(scene);
                let time = self
                    .rng
                    .between(Duration::from_millis(50), Duration::from_secs(5));
                scene.world.pause(node, time);
            }
            4..7 => self.part(scene),
            7 => self.reset(scene),
            8 => self.slow_disk(scene),
            9 => {
                let node = self.node(scene);
                scene.world.trace.say(|| format!("n{node} fails a sync"));
                if let Some(found) = scene.world.nodes.get(node) {
                    found.disk.fail(Fault::Sync, self.rng.below(20));
                }
            }
            _ => self.step_down(scene),
        }
    }

    fn crash(&mut self, scene: &mut Scene<'_>) {
        // Mostly one at a time; sometimes all at once, as when the power of a hall fails.
        let nodes: Vec<usize> = if self.rng.per_mille(100) {
            (0..scene.world.node_count()).collect()
        } else {
            vec![self.node(scene)]
        };
        for node in nodes {
            if scene
                .world
                .nodes
                .get(node)
                .is_some_and(crate::node::Node::is_running)
            {
                scene.world.crash(node);
                let time = self
                    .rng
                    .between(Duration::from_millis(100), Duration::from_secs(6));
                scene.after(time, RESTART + node as u64);
            }
        }
    }

    fn part(&mut self, scene: &mut Scene<'_>) {
        let state = if self.rng.per_mille(300) {
            Way::Held
        } else {
            Way::Cut
        };
        let alone = self.node(scene);
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
        for other in (0..scene.world.node_count()).filter(|other| *other != alone) {
            if only.is_some_and(|only| only != other) {
                continue;
            }
            let (one, two) = (Host::Node(alone), Host::Node(other));
            if out {
                scene.world.net.set_way(now, one, two, state);
            }
            if back {
                scene.world.net.set_way(now, two, one, state);
            }
        }
        let time = self
            .rng
            .between(Duration::from_millis(200), Duration::from_secs(8));
        scene.after(time, HEAL);
    }

    fn reset(&mut self, scene: &mut Scene<'_>) {
        let (one, two) = (self.node(scene), self.node(scene));
        let share = 200 + self.rng.below(801);
        scene
            .world
            .trace
            .say(|| format!("connections between n{one} and n{two} are reset ({share}/1000)"));
        let now = scene.world.now();
        scene
            .world
            .net
            .reset_between(now, Host::Node(one), Host::Node(two), share);
    }

    fn slow_disk(&mut self, scene: &mut Scene<'_>) {
        let node = self.node(scene);
        let time = self
            .rng
            .between(Duration::from_millis(5), Duration::from_millis(1_500));
        scene
            .world
            .trace
            .say(|| format!("n{node} has a slow disk: {time:?}"));
        if let Some(found) = scene.world.nodes.get_mut(node) {
            found.disk_time = time;
        }
        let until = self
            .rng
            .between(Duration::from_millis(200), Duration::from_secs(4));
        scene.after(until, FAST);
    }

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

    /// Starts a node on some number of workers.
    fn restart(&mut self, scene: &mut Scene<'_>, node: usize) {
        let workers = 1 + u16::try_from(self.rng.below(3)).unwrap_or(0);
        let now = scene.world.now();
        if self.rng.per_mille(100)
            && let Some(found) = scene.world.nodes.get_mut(node)
        {
            // The power goes again while the store is opened.
            found.crash_at_start(now, workers, 1 + self.rng.below(30));
        }
        scene.world.start(node, workers);
    }
}

impl Actor for Nemesis {
    fn start(&mut self, scene: &mut Scene<'_>) {
        let node = self.node(scene);
        self.line.open(scene, node);
        scene.after(Duration::from_millis(500), NEXT);
    }

    fn heard(&mut self, _: &mut Scene<'_>, client: ClientId, heard: Heard) {
        self.line.hears(client, &heard);
    }

    fn timer(&mut self, scene: &mut Scene<'_>, tag: u64) {
        let now = scene.world.now();
        match tag {
            NEXT if !self.stopped => {
                self.strike(scene);
                let time = self
                    .rng
                    .between(Duration::from_millis(300), Duration::from_secs(5));
                scene.after(time, NEXT);
            }
            NEXT => {}
            HEAL => scene.world.net.heal(now),
            FAST => scene
                .world
                .nodes
                .iter_mut()
                .for_each(crate::node::Node::disk_is_well),
            node => self.restart(scene, usize::try_from(node - RESTART).unwrap_or(0)),
        }
    }

    fn stop(&mut self) {
        self.stopped = true;
    }
}
