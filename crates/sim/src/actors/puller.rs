//! Works off the work queue: pulls from a durable consumer, acknowledges, and waits for the acknowledgement to count.

use super::{Actor, Line, Scene, WORK};
use super::publisher::short;
use crate::client::{ClientId, Heard, Reply};
use crate::history::Delivery;
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::Mono;

const CONSUMER: &str = "c";
/// What is not answered within this long is asked for again.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Puller {
    rng: Rng,
    line: Line,
    /// What is waited for, by request.
    asked: BTreeMap<u64, (Asked, Mono)>,
    created: bool,
    stopped: bool,
}

#[derive(Debug)]
enum Asked {
    Create,
    Next,
    /// The acknowledgement of this delivery of the history.
    Ack(usize),
}

impl Puller {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, line: Line::default(), asked: BTreeMap::new(), created: false, stopped: false }
    }

    fn connect(&mut self, scene: &mut Scene<'_>) {
        self.asked.clear();
        let node = self.rng.index(scene.world.node_count());
        self.line.open(scene, node);
    }

    fn ask(&mut self, scene: &mut Scene<'_>, what: Asked, subject: &str, body: &[u8]) {
        if let Some((_, token)) = self.line.request(scene, subject, &[], body) {
            self.asked.insert(token, (what, scene.world.now()));
        }
    }

    fn create(&mut self, scene: &mut Scene<'_>) {
        let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{WORK}.{CONSUMER}");
        let body = format!(
            r#"{{"stream_name":"{WORK}","config":{{"durable_name":"{CONSUMER}","ack_policy":"explicit","ack_wait":3000000000,"max_deliver":-1}}}}"#
        );
        self.ask(scene, Asked::Create, &subject, body.as_bytes());
    }

    fn pull(&mut self, scene: &mut Scene<'_>) {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{WORK}.{CONSUMER}");
        let body = format!(r#"{{"batch":{},"expires":2000000000}}"#, 1 + self.rng.below(10));
        self.ask(scene, Asked::Next, &subject, body.as_bytes());
    }

    fn delivered(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        let payload = short(&String::from_utf8_lossy(&reply.payload));
        scene.history.count("deliveries");
        let at = scene.history.tick();
        let number = scene.history.deliveries.len();
        scene.history.deliveries.push(Delivery { payload, at, confirmed: None });
        // Some are left alone, to be delivered again; some get an acknowledgement that nobody waits for.
        match self.rng.below(20) {
            0 => {}
            1 => {
                if let Some(client) = self.line.ready() {
                    scene.world.publish(client, &reply.reply, None, &[], b"+ACK");
                }
            }
            2 => {
                if let Some(client) = self.line.ready() {
                    scene.world.publish(client, &reply.reply, None, &[], b"-NAK");
                }
            }
            _ => self.ask(scene, Asked::Ack(number), &reply.reply, b"+ACK"),
        }
    }

    fn answer(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        let Some((asked, since)) = self.asked.remove(&reply.token) else { return };
        match asked {
            Asked::Create => {
                let body = reply.json();
                scene.world.trace.say(|| format!("create consumer: {} {body}", reply.status()));
                self.created |= body.get("config").is_some();
            }
            Asked::Next if reply.reply.is_empty() => {}
            Asked::Next => {
                self.asked.insert(reply.token, (Asked::Next, since));
                self.delivered(scene, reply);
            }
            Asked::Ack(number) => {
                if reply.status() == 0
                    && let Some(delivery) = scene.history.deliveries.get(number)
                {
                    let mut delivery = delivery.clone();
                    delivery.confirmed = Some(scene.history.tick());
                    if let Some(place) = scene.history.deliveries.get_mut(number) {
                        *place = delivery;
                    }
                    scene.history.count("confirmed acknowledgements");
                    scene.answered();
                }
            }
        }
    }
}

impl Actor for Puller {
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
        self.asked.retain(|_, (_, since)| now.since(*since) < PATIENCE);
        if !self.line.is_open() || self.rng.per_mille(5) {
            self.connect(scene);
        } else if self.line.ready().is_some() {
            let waits = |asked: &dyn Fn(&Asked) -> bool| self.asked.values().any(|(one, _)| asked(one));
            if !self.created {
                if !waits(&|asked| matches!(asked, Asked::Create)) {
                    self.create(scene);
                }
            } else if !waits(&|asked| matches!(asked, Asked::Next)) {
                self.pull(scene);
            }
        }
        let pause = self.rng.between(Duration::from_millis(5), Duration::from_millis(100));
        scene.after(pause, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn expects_answers(&self) -> bool {
        true
    }
}
