//! Core publish and subscribe through all nodes: at most once, and in the order of each publisher.

use super::{Actor, Line, Scene};
use crate::client::{ClientId, Heard, ReplyTo};
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::time::Duration;

const SUBJECT: &str = "core.news";
const SID: u64 = 5;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Core {
    rng: Rng,
    line: Line,
    sent: u64,
    /// Last number heard on this connection, by publishing connection.
    heard: BTreeMap<String, u64>,
    stopped: bool,
}

impl Core {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            line: Line::default(),
            sent: 0,
            heard: BTreeMap::new(),
            stopped: false,
        }
    }

    fn connect(&mut self, scene: &mut Scene<'_>) {
        self.heard.clear();
        let node = self.rng.index(scene.world.node_count());
        self.line.open(scene, node);
    }
}

impl Actor for Core {
    fn start(&mut self, scene: &mut Scene<'_>) {
        self.connect(scene);
        self.timer(scene, 0);
    }

    fn heard(&mut self, scene: &mut Scene<'_>, client: ClientId, heard: Heard) {
        if !self.line.hears(client, &heard) {
            return;
        }
        match heard {
            Heard::Ready => scene.world.subscribe(client, SUBJECT, SID),
            Heard::Message(message) if message.sid == SID => {
                let text = String::from_utf8_lossy(&message.payload).into_owned();
                let Some((from, number)) = text.split_once(' ') else {
                    return;
                };
                let number: u64 = number.parse().unwrap_or(0);
                let last = self.heard.insert(from.to_owned(), number).unwrap_or(0);
                if number <= last {
                    let text = format!("core message {number} of connection {from} came after {last}");
                    scene.history.problems.push(text);
                }
                scene.history.count("core messages");
            }
            Heard::Message(_) | Heard::Reply(_) | Heard::Closed => {}
        }
    }

    fn timer(&mut self, scene: &mut Scene<'_>, _: u64) {
        if self.stopped {
            return;
        }
        if !self.line.is_open() || self.rng.per_mille(5) {
            self.connect(scene);
        } else if let Some(client) = self.line.ready() {
            self.sent += 1;
            let payload = format!("{} {}", client.0, self.sent);
            scene
                .world
                .publish(client, SUBJECT, &ReplyTo::Nobody, &[], payload.as_bytes());
        }
        let pause = self
            .rng
            .between(Duration::from_millis(1), Duration::from_millis(100));
        scene.after(pause, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }
}
