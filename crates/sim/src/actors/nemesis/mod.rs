//! Breaks the cluster, fault by fault ([`faults`]), until it is stopped; each fault has an end.

mod faults;

use super::{Actor, BUCKET, EVENTS, Line, Scene, WORK};
use crate::client::{ClientId, Heard};
use crate::node::Node;
use crate::rng::Rng;
use std::time::Duration;

/// What its timers tell it: another fault is due.
const NEXT: u64 = 0;
/// The network is to be healed.
const HEAL: u64 = 1;
/// Disks are to be well again.
const DISKS: u64 = 2;
/// A node is to be started again; its number is added.
const RESTART: u64 = 1_000;
/// A node is to crash; its number is added.
const CRASH: u64 = 2_000;

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

    /// Any node.
    fn node(&mut self, scene: &Scene<'_>) -> usize {
        self.rng.index(scene.world.node_count())
    }

    /// Any node, and more often than others one that leads a stream: most is lost with that.
    fn leader(&mut self, scene: &Scene<'_>) -> usize {
        let name = [EVENTS, WORK, BUCKET].into_iter().nth(self.rng.index(3));
        let (any, wanted) = (self.node(scene), self.rng.per_mille(500));
        let leads = |node: &Node| {
            let mut replicas = node.replicas().into_iter();
            replicas.any(|view| view.is_leader && Some(&*view.name) == name)
        };
        let leader = scene.world.nodes.iter().position(leads);
        leader.filter(|_| wanted).unwrap_or(any)
    }

    /// A time of so many milliseconds.
    fn time(&mut self, from: u64, to: u64) -> Duration {
        self.rng
            .between(Duration::from_millis(from), Duration::from_millis(to))
    }
}

/// The node in a timer's tag.
fn node_in(tag: u64, kind: u64) -> usize {
    usize::try_from(tag.saturating_sub(kind)).unwrap_or(0)
}

impl Actor for Nemesis {
    fn start(&mut self, scene: &mut Scene<'_>) {
        let node = self.node(scene);
        self.line.open(scene, node);
        scene.after(Duration::from_millis(500), NEXT);
    }

    fn heard(&mut self, scene: &mut Scene<'_>, client: ClientId, heard: Heard) {
        if self.line.hears(client, &heard)
            && let Heard::Reply(reply) = heard
        {
            scene
                .world
                .trace
                .say(|| format!("nemesis: {} {}", reply.status(), reply.json()));
        }
    }

    fn timer(&mut self, scene: &mut Scene<'_>, tag: u64) {
        let now = scene.world.now();
        match tag {
            NEXT if self.stopped => {}
            NEXT => {
                self.strike(scene);
                let time = self.time(300, 5_000);
                scene.after(time, NEXT);
            }
            HEAL => scene.world.net.heal(now),
            DISKS => scene.world.nodes.iter_mut().for_each(Node::disk_is_well),
            crash if crash >= CRASH => {
                if !self.stopped {
                    self.crash_one(scene, node_in(crash, CRASH));
                }
            }
            restart => self.restart(scene, node_in(restart, RESTART)),
        }
    }

    fn stop(&mut self) {
        self.stopped = true;
    }
}
