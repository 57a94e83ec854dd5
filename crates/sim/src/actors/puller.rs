//! Works off the work queue: pulls from a durable consumer, acknowledges, and waits for the acknowledgement to count.

use super::publisher::short;
use super::{Actor, Line, Scene, WORK};
use crate::client::{ClientId, Heard, Message, Reply, ReplyTo, status};
use crate::history::Delivery;
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::Mono;

const CONSUMER: &str = "c";
/// Messages that may be delivered and not acknowledged.
pub(crate) const MAX_ACK_PENDING: usize = 24;
/// The subscription of deliveries.
const SID: u64 = 9;
/// What is not answered within this long is asked for again.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Puller {
    rng: Rng,
    line: Line,
    /// The creation of the consumer is asked for.
    creating: Option<Mono>,
    created: bool,
    /// Messages that are asked for and have not come, and since when.
    pull: Option<(u64, Mono)>,
    /// Deliveries that are worked on: their reply subjects and places in the history.
    in_work: Vec<(String, usize)>,
    /// Acknowledgements, by request: of which delivery of the history.
    acks: BTreeMap<u64, usize>,
    stopped: bool,
}

impl Puller {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            line: Line::default(),
            creating: None,
            created: false,
            pull: None,
            in_work: Vec::new(),
            acks: BTreeMap::new(),
            stopped: false,
        }
    }

    fn connect(&mut self, scene: &mut Scene<'_>) {
        (self.creating, self.pull) = (None, None);
        self.acks.clear();
        self.in_work.clear();
        let node = self.rng.index(scene.world.node_count());
        self.line.open(scene, node);
    }

    fn create(&mut self, scene: &mut Scene<'_>) {
        let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{WORK}.{CONSUMER}");
        let body = format!(
            r#"{{"stream_name":"{WORK}","config":{{"durable_name":"{CONSUMER}","ack_policy":"explicit","ack_wait":3000000000,"max_deliver":-1,"max_ack_pending":{MAX_ACK_PENDING}}}}}"#
        );
        if self.line.request(scene, &subject, &[], body.as_bytes()).is_some() {
            self.creating = Some(scene.world.now());
        }
    }

    fn pull(&mut self, scene: &mut Scene<'_>, client: ClientId) {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{WORK}.{CONSUMER}");
        let batch = 1 + self.rng.below(20);
        let body = format!(r#"{{"batch":{batch},"expires":2000000000}}"#);
        scene.world.publish(
            client,
            &subject,
            &ReplyTo::Subject(inbox(client)),
            &[],
            body.as_bytes(),
        );
        self.pull = Some((batch, scene.world.now()));
    }

    fn delivered(&mut self, scene: &mut Scene<'_>, client: ClientId, message: &Message) {
        if message.reply.is_empty() {
            scene
                .world
                .trace
                .say(|| format!("pull ended: {}", status(&message.header)));
            self.pull = None;
            return;
        }
        let now = scene.world.now();
        self.pull = self
            .pull
            .and_then(|(left, _)| (left > 1).then_some((left - 1, now)));
        let payload = short(&String::from_utf8_lossy(&message.payload));
        scene.history.count("deliveries");
        let at = scene.history.tick();
        let number = scene.history.deliveries.len();
        let [stream_seq, deliver_seq, count] = numbers(&message.reply);
        scene.history.deliveries.push(Delivery {
            payload,
            stream_seq,
            deliver_seq,
            count,
            at,
            ..Delivery::default()
        });
        // Some are left alone, to be delivered again; some get an answer that nobody waits for; some take a while.
        let answer: &[u8] = match self.rng.below(20) {
            0 => return,
            1 => b"+ACK",
            2 => b"-NAK",
            3..12 => return self.in_work.push((message.reply.clone(), number)),
            _ => return self.acknowledge(scene, &message.reply, number),
        };
        scene
            .world
            .publish(client, &message.reply, &ReplyTo::Nobody, &[], answer);
        if answer == b"+ACK" {
            acked(scene, number);
        }
    }

    /// Acknowledges a delivery and waits for the confirmation.
    fn acknowledge(&mut self, scene: &mut Scene<'_>, reply: &str, number: usize) {
        if let Some((_, token)) = self.line.request(scene, reply, &[], b"+ACK") {
            self.acks.insert(token, number);
            acked(scene, number);
        }
    }

    fn answer(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        let Some(number) = self.acks.remove(&reply.token) else {
            let body = reply.json();
            scene
                .world
                .trace
                .say(|| format!("create consumer: {} {body}", reply.status()));
            self.created |= body.get("config").is_some();
            self.creating = None;
            return;
        };
        if reply.status() != 0 {
            scene
                .world
                .trace
                .say(|| format!("acknowledgement: {}", reply.status()));
            return;
        }
        let at = scene.history.tick();
        if let Some(delivery) = scene.history.deliveries.get_mut(number) {
            delivery.confirmed = Some(at);
        }
        scene.history.count("confirmed acknowledgements");
        scene.answered();
    }
}

/// Notes that a delivery of the history is acknowledged, as far as its client is concerned.
fn acked(scene: &mut Scene<'_>, number: usize) {
    let at = scene.history.tick();
    if let Some(delivery) = scene.history.deliveries.get_mut(number) {
        delivery.acked = Some(at);
    }
}

/// Stream sequence, delivery sequence and count of deliveries in an ack subject, which ends with
/// `<count>.<stream sequence>.<delivery sequence>.<time>.<pending>`.
fn numbers(reply: &str) -> [u64; 3] {
    let mut tokens = reply.rsplit('.').skip(2).map(|token| token.parse().unwrap_or(0));
    let mut next = || tokens.next().unwrap_or(0);
    let (deliver_seq, stream_seq, count) = (next(), next(), next());
    [stream_seq, deliver_seq, count]
}

fn inbox(client: ClientId) -> String {
    format!("_PULL.{}", client.0)
}

impl Actor for Puller {
    fn start(&mut self, scene: &mut Scene<'_>) {
        self.connect(scene);
        self.timer(scene, 0);
    }

    fn heard(&mut self, scene: &mut Scene<'_>, client: ClientId, heard: Heard) {
        if !self.line.hears(client, &heard) {
            return;
        }
        match heard {
            Heard::Ready => scene.world.subscribe(client, &inbox(client), SID),
            Heard::Reply(reply) => self.answer(scene, &reply),
            Heard::Message(message) => self.delivered(scene, client, &message),
            Heard::Closed => {}
        }
    }

    fn timer(&mut self, scene: &mut Scene<'_>, _: u64) {
        if self.stopped {
            return;
        }
        let now = scene.world.now();
        let late = |since: &Mono| now.since(*since) > PATIENCE;
        if self.line.ready().is_some() {
            for (reply, number) in std::mem::take(&mut self.in_work) {
                self.acknowledge(scene, &reply, number);
            }
        }
        self.creating = self.creating.filter(|since| !late(since));
        self.pull = self.pull.filter(|(_, since)| !late(since));
        if !self.line.is_open() || self.rng.per_mille(5) {
            self.connect(scene);
        } else if let Some(client) = self.line.ready() {
            if !self.created && self.creating.is_none() {
                self.create(scene);
            } else if self.created && self.pull.is_none() {
                self.pull(scene, client);
            }
        }
        let pause = self
            .rng
            .between(Duration::from_millis(5), Duration::from_millis(100));
        scene.after(pause, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn expects_answers(&self) -> bool {
        true
    }
}
