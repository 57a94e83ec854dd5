//! Scales the streams up and down, and makes and deletes others, in any order and at any moment (promise P5: exactly
//! the operator's intent). Told to stop, it wants three replicas of each stream and nothing else left, and is done when
//! it has been told that it is so.

use super::setup::configuration;
use super::{Actor, BUCKET, EVENTS, Line, Scene, WORK};
use crate::checkers::Replicas;
use crate::client::{ClientId, Heard, Reply};
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidelock_base::Mono;

/// Streams that are made and deleted.
const OTHERS: usize = 3;
/// A request that is not answered within this long is made again, elsewhere.
const PATIENCE: Duration = Duration::from_secs(6);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Operator {
    rng: Rng,
    line: Line,
    /// What is waited for: token, and what it was.
    asked: Option<(u64, Wish, Mono)>,
    /// Streams whose number of replicas may be another than three.
    scaled: BTreeSet<&'static str>,
    /// Other streams that may be there, with the number of replicas wanted last.
    others: BTreeMap<usize, u8>,
    stopped: bool,
}

/// Something to ask for.
#[derive(Clone, Debug)]
enum Wish {
    Scale(&'static str, u8),
    Create(usize, u8, &'static str),
    Delete(usize),
}

impl Operator {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            line: Line::default(),
            asked: None,
            scaled: BTreeSet::new(),
            others: BTreeMap::new(),
            stopped: false,
        }
    }

    fn wish(&mut self, spares: bool) -> Option<Wish> {
        if self.stopped {
            let scaled = self.scaled.first().map(|name| Wish::Scale(name, 3));
            return scaled.or_else(|| self.others.keys().next().map(|other| Wish::Delete(*other)));
        }
        let replicas = if self.rng.per_mille(500) && spares { 1 } else { 3 };
        let other = self.rng.index(OTHERS);
        Some(match self.rng.below(4) {
            0 => {
                let memory = self.rng.per_mille(300);
                Wish::Create(other, replicas, if memory { "memory" } else { "file" })
            }
            1 => Wish::Delete(other),
            _ => {
                let name = [EVENTS, WORK, BUCKET]
                    .into_iter()
                    .nth(self.rng.index(3))
                    .unwrap_or(EVENTS);
                Wish::Scale(name, replicas)
            }
        })
    }

    fn ask(&mut self, scene: &mut Scene<'_>) {
        if Replicas::are_spread(&scene.world.views(), scene.world.node_count()) {
            scene.history.is_disk_lost = false;
        }
        let Some(wish) = self.wish(!scene.history.is_disk_lost) else {
            return;
        };
        let (subject, body) = match &wish {
            Wish::Scale(name, replicas) => (
                format!("$JS.API.STREAM.UPDATE.{name}"),
                configuration(name, *replicas),
            ),
            Wish::Create(other, replicas, storage) => {
                let name = other_name(*other);
                let body = format!(
                    r#"{{"name":"{name}","subjects":["{name}.>"],"storage":"{storage}","num_replicas":{replicas}}}"#
                );
                (format!("$JS.API.STREAM.CREATE.{name}"), body)
            }
            Wish::Delete(other) => (
                format!("$JS.API.STREAM.DELETE.{}", other_name(*other)),
                String::new(),
            ),
        };
        let Some((_, token)) = self.line.request(scene, &subject, &[], body.as_bytes()) else {
            return;
        };
        scene.world.trace.say(|| format!("operator: {wish:?}"));
        match &wish {
            Wish::Scale(name, _) => {
                scene.history.is_scaling = true;
                self.scaled.insert(name);
            }
            Wish::Create(other, replicas, _) => {
                self.others.insert(*other, *replicas);
            }
            Wish::Delete(_) => {}
        }
        self.asked = Some((token, wish, scene.world.now()));
    }

    fn answer(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        let Some((_, wish, _)) = self.asked.take_if(|(token, _, _)| *token == reply.token) else {
            return;
        };
        let body = reply.json();
        let error = body
            .get("error")
            .and_then(|error| error.get("err_code"))
            .and_then(serde_json::Value::as_u64);
        scene
            .world
            .trace
            .say(|| format!("operator: {wish:?}: {} {:?}", reply.status(), body.get("error")));
        let done = reply.status() == 0 && error.is_none() && !body.is_null();
        if done {
            scene.history.count("operations");
        }
        match wish {
            Wish::Scale(name, 3) if done => {
                self.scaled.remove(name);
            }
            // 10059: no such stream.
            Wish::Delete(other) if done || error == Some(10_059) => {
                self.others.remove(&other);
            }
            Wish::Scale(..) | Wish::Create(..) | Wish::Delete(_) => {}
        }
    }
}

fn other_name(other: usize) -> String {
    format!("OTHER{other}")
}

impl Actor for Operator {
    fn start(&mut self, scene: &mut Scene<'_>) {
        self.timer(scene, 0);
    }

    fn heard(&mut self, scene: &mut Scene<'_>, client: ClientId, heard: Heard) {
        if self.line.hears(client, &heard)
            && let Heard::Reply(reply) = heard
        {
            self.answer(scene, &reply);
        }
    }

    fn timer(&mut self, scene: &mut Scene<'_>, _: u64) {
        if self.is_done() {
            return;
        }
        scene.history.is_scaling = !self.scaled.is_empty();
        let now = scene.world.now();
        let late = self
            .asked
            .as_ref()
            .is_some_and(|(_, _, since)| now.since(*since) > PATIENCE);
        if late || !self.line.is_open() {
            self.asked = None;
            let node = self.rng.index(scene.world.node_count());
            self.line.open(scene, node);
        } else if self.asked.is_none() {
            self.ask(scene);
        }
        let most = if self.stopped { 300 } else { 3_000 };
        let pause = self
            .rng
            .between(Duration::from_millis(100), Duration::from_millis(most));
        scene.after(pause, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_done(&self) -> bool {
        self.stopped && self.scaled.is_empty() && self.others.is_empty()
    }
}
