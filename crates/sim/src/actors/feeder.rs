//! Sends messages to an origin of copies. Those with an id are sent again, with the same id, until they are acknowledged;
//! the others once, so that no id hides that they were copied twice.

use super::publisher::short;
use super::{Actor, Line, Scene};
use crate::client::{ClientId, Heard, Reply};
use crate::copies::{Copying, Sent};
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::Mono;

/// Messages that may wait for their acknowledgement.
const OPEN_MAX: usize = 48;
/// A connection on which an answer takes longer than this is given up.
const PATIENCE: Duration = Duration::from_secs(8);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Feeder {
    copying: Copying,
    rng: Rng,
    line: Line,
    /// What is not acknowledged, by number.
    open: BTreeMap<u64, Message>,
    /// Those whose answer is awaited on this connection: number and time, by request.
    asked: BTreeMap<u64, (u64, Mono)>,
    sent: u64,
    stopped: bool,
    /// The number of the last message, once it is sent.
    last: Option<u64>,
}

/// A message that is not acknowledged.
#[derive(Debug)]
struct Message {
    subject: String,
    payload: String,
    has_id: bool,
}

impl Feeder {
    pub(crate) const fn new(copying: Copying, rng: Rng, line: Line) -> Self {
        Self {
            copying,
            rng,
            line,
            open: BTreeMap::new(),
            asked: BTreeMap::new(),
            sent: 0,
            stopped: false,
            last: None,
        }
    }

    /// Begins another message.
    fn begin(&mut self, scene: &mut Scene<'_>, kind: u64, has_id: bool) -> u64 {
        self.sent += 1;
        let size = if self.rng.per_mille(20) {
            self.rng.index(60_000)
        } else {
            self.rng.index(100)
        };
        let origin = self.copying.origin;
        let payload = format!("{origin}-{}-{}", self.sent, "x".repeat(size));
        let subject = self.copying.subject(kind);
        let begin = scene.history.tick();
        let sent = Sent {
            origin,
            subject: subject.clone(),
            begin,
            acked: None,
        };
        scene.history.copies.sent.insert(short(&payload), sent);
        scene.history.count("messages to copy");
        let message = Message {
            subject,
            payload,
            has_id,
        };
        self.open.insert(self.sent, message);
        self.sent
    }

    fn send(&mut self, scene: &mut Scene<'_>, number: u64) {
        let Some(message) = self.open.get(&number) else {
            return;
        };
        let id = ("Nats-Msg-Id", format!("{}-{number}", self.copying.origin));
        let headers = message.has_id.then_some(id);
        let (subject, payload) = (&message.subject, message.payload.as_bytes());
        if let Some((_, token)) = self.line.request(scene, subject, headers.as_slice(), payload) {
            self.asked.insert(token, (number, scene.world.now()));
        }
    }

    /// What has no id and is not acknowledged is not sent again.
    fn connect(&mut self, scene: &mut Scene<'_>) {
        self.asked.clear();
        self.open.retain(|_, message| message.has_id);
        let node = self.rng.index(scene.world.node_count());
        self.line.open(scene, node);
    }

    fn answer(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        let Some((number, _)) = self.asked.remove(&reply.token) else {
            return;
        };
        let body = reply.json();
        let seq = body.get("seq").and_then(serde_json::Value::as_u64);
        let Some(seq) = seq.filter(|_| body.get("error").is_none()) else {
            if self.open.get(&number).is_some_and(|message| !message.has_id) {
                self.open.remove(&number);
            }
            return;
        };
        let Some(Message { payload, .. }) = self.open.remove(&number) else {
            return;
        };
        scene.answered();
        if let Some(sent) = scene.history.copies.sent.get_mut(&short(&payload)) {
            sent.acked = Some(seq);
        }
        if self.last == Some(number) {
            scene.history.copies.last.insert(self.copying.origin, seq);
        }
    }
}

impl Actor for Feeder {
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
        let now = scene.world.now();
        let stuck = self
            .asked
            .values()
            .next()
            .is_some_and(|(_, at)| now.since(*at) > PATIENCE);
        if !self.line.is_open() || stuck || self.rng.per_mille(3) {
            self.connect(scene);
        } else if self.line.ready().is_some() {
            let waiting: Vec<u64> = self.asked.values().map(|(number, _)| *number).collect();
            let unasked: Vec<u64> = self
                .open
                .keys()
                .copied()
                .filter(|n| !waiting.contains(n))
                .collect();
            if self.stopped && self.last.is_none() {
                let number = self.begin(scene, 0, true);
                self.last = Some(number);
                self.send(scene, number);
            }
            let most = if self.rng.per_mille(50) { 40 } else { 4 };
            for _ in 0..=self.rng.below(most) {
                if !self.stopped && self.open.len() < OPEN_MAX {
                    let kind = self.rng.below(2);
                    let has_id = self.rng.per_mille(500);
                    let number = self.begin(scene, kind, has_id);
                    self.send(scene, number);
                }
            }
            for number in unasked {
                self.send(scene, number);
            }
        }
        let pause = self
            .rng
            .between(Duration::from_millis(10), Duration::from_millis(150));
        scene.after(pause, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_done(&self) -> bool {
        self.last.is_some() && self.open.is_empty()
    }

    fn expects_answers(&self) -> bool {
        true
    }
}
