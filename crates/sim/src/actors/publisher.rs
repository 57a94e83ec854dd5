//! Publishes into a stream. Each payload is published once; what is not answered stays unknown.

use super::{Actor, EVENTS, Line, MEMORY, Scene};
use crate::client::{ClientId, Heard, Reply};
use crate::history::{Look, Outcome, Publish};
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::Mono;

/// Publishes that may wait for their answer.
const OUTSTANDING_MAX: usize = 64;
/// A connection on which an answer takes longer than this is given up.
const PATIENCE: Duration = Duration::from_secs(12);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Publisher {
    name: usize,
    stream: &'static str,
    rng: Rng,
    line: Line,
    /// Payload and time by request.
    outstanding: BTreeMap<u64, (String, Mono)>,
    /// Reads behind a publish, by request: the payload.
    looks: BTreeMap<u64, String>,
    published: u64,
    stopped: bool,
}

impl Publisher {
    pub(crate) const fn new(name: usize, stream: &'static str, rng: Rng, line: Line) -> Self {
        Self {
            name,
            stream,
            rng,
            line,
            outstanding: BTreeMap::new(),
            looks: BTreeMap::new(),
            published: 0,
            stopped: false,
        }
    }

    fn connect(&mut self, scene: &mut Scene<'_>) {
        self.outstanding.clear();
        self.looks.clear();
        let node = self.rng.index(scene.world.node_count());
        self.line.open(scene, node);
    }

    fn publish(&mut self, scene: &mut Scene<'_>) {
        self.published += 1;
        let number = self.published;
        let size = if self.rng.per_mille(30) {
            self.rng.index(60_000)
        } else {
            self.rng.index(100)
        };
        let payload = format!("p{}-{number}-{}", self.name, "x".repeat(size));
        let stem = match self.stream {
            EVENTS => "ev",
            MEMORY => "mem",
            _ => "work",
        };
        let subject = format!("{stem}.{}.{}", self.name, self.rng.below(5));
        let Some((client, token)) = self.line.request(scene, &subject, &[], payload.as_bytes()) else {
            return;
        };
        let key = short(&payload);
        let outcome = Outcome::Unknown;
        scene.history.publishes.insert(
            key.clone(),
            Publish {
                stream: self.stream,
                client,
                number,
                outcome,
            },
        );
        scene.history.count("publishes");
        self.outstanding.insert(token, (key.clone(), scene.world.now()));
        if self.stream == EVENTS && self.rng.per_mille(150) {
            let subject = format!("$JS.API.DIRECT.GET.{EVENTS}.{subject}");
            if let Some((_, token)) = self.line.request(scene, &subject, &[], b"") {
                self.looks.insert(token, key);
            }
        }
    }

    /// What was read behind a publish; an error says nothing.
    fn looked(scene: &mut Scene<'_>, behind: String, reply: &Reply) {
        let seq = reply.header("Nats-Sequence").and_then(|seq| seq.parse().ok());
        let found = match (reply.status(), seq) {
            (0, Some(seq)) => seq,
            (404, _) => 0,
            _ => return,
        };
        scene.history.count("reads behind publishes");
        scene.history.looks.push(Look { behind, found });
    }

    fn answer(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        if let Some(behind) = self.looks.remove(&reply.token) {
            return Self::looked(scene, behind, reply);
        }
        let Some((payload, _)) = self.outstanding.remove(&reply.token) else {
            return;
        };
        let body = reply.json();
        let outcome = match (
            body.get("seq").and_then(serde_json::Value::as_u64),
            body.get("error"),
        ) {
            (Some(seq), None) => Outcome::Acked(seq),
            (_, Some(error)) => Outcome::Refused(error.to_string()),
            (None, None) => Outcome::Refused(format!("status {}", reply.status())),
        };
        if body.get("duplicate").is_some() {
            scene
                .history
                .problems
                .push(format!("{payload} was called a duplicate"));
        }
        match &outcome {
            Outcome::Acked(_) => {
                scene.history.count("acks");
                scene.answered();
            }
            Outcome::Refused(why) => {
                scene.history.count("refused publishes");
                scene.world.trace.say(|| format!("{payload} refused: {why}"));
            }
            Outcome::Unknown => {}
        }
        if let Some(publish) = scene.history.publishes.get_mut(&payload) {
            publish.outcome = outcome;
        }
    }
}

/// What identifies a payload.
pub(crate) fn short(payload: &str) -> String {
    payload.trim_end_matches('x').to_owned()
}

impl Actor for Publisher {
    fn start(&mut self, scene: &mut Scene<'_>) {
        self.connect(scene);
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
        if self.stopped {
            return;
        }
        let now = scene.world.now();
        let stuck = self
            .outstanding
            .values()
            .next()
            .is_some_and(|(_, at)| now.since(*at) > PATIENCE);
        if !self.line.is_open() || stuck || self.rng.per_mille(2) {
            self.connect(scene);
        } else if self.line.ready().is_some() {
            for _ in 0..=self.rng.below(6) {
                if self.outstanding.len() < OUTSTANDING_MAX {
                    self.publish(scene);
                }
            }
        }
        let pause = self
            .rng
            .between(Duration::from_millis(5), Duration::from_millis(120));
        scene.after(pause, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn expects_answers(&self) -> bool {
        true
    }
}
