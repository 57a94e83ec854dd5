//! Makes the streams that copy and those that are copied, and then moves their leaders, scales them, and deletes them and
//! makes them again. Told to stop, it wants each of them with three replicas.

use super::{Actor, Line, Scene};
use crate::checkers::Replicas;
use crate::client::{ClientId, Heard, Reply};
use crate::copies::{CopyPlan, LOG, LOG_COPY, QUEUE, QUEUE_COPY, STREAMS};
use crate::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidelock_base::Mono;

/// A request that is not answered within this long is made again, elsewhere.
const PATIENCE: Duration = Duration::from_secs(6);
/// A deletion whose answer was lost may still come into effect for so long.
const LATE_MAX: Duration = Duration::from_secs(31);
/// There is no such stream.
const NOT_FOUND: u64 = 10_059;
/// There is one of that name with another configuration.
const OTHER_CONFIG: u64 = 10_058;

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create(&'static str),
    Delete(&'static str),
    Scale(&'static str, u8),
    NewLeader(&'static str),
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Keeper {
    plan: CopyPlan,
    rng: Rng,
    line: Line,
    /// What is to be done, in this order.
    steps: VecDeque<Step>,
    asked: Option<(u64, Mono)>,
    /// How often each stream was made, and with how many replicas it was wanted last.
    streams: BTreeMap<&'static str, (u64, u8)>,
    /// A deletion was sent then, and its answer is not known.
    lost_deletion: Option<Mono>,
    deleting: Option<Mono>,
    stopped: bool,
    confirming: bool,
}

impl Keeper {
    pub(crate) fn new(plan: CopyPlan, mut rng: Rng) -> Self {
        let streams = STREAMS
            .into_iter()
            .map(|name| (name, (0, plan.replicas(name))))
            .collect();
        let mut steps: VecDeque<Step> = STREAMS.into_iter().map(Step::Create).collect();
        // A copy may be there before what it copies.
        if rng.per_mille(300) {
            steps.rotate_left(2);
        }
        Self {
            plan,
            rng,
            line: Line::default(),
            steps,
            asked: None,
            streams,
            lost_deletion: None,
            deleting: None,
            stopped: false,
            confirming: false,
        }
    }

    fn any(&mut self) -> &'static str {
        let at = self.rng.index(STREAMS.len());
        STREAMS.into_iter().nth(at).unwrap_or(QUEUE)
    }

    /// What to do next, if there is nothing left to do.
    fn plan(&mut self, spares: bool) {
        let name = self.any();
        let steps: &[Step] = match self.rng.below(24) {
            0 => &[Step::Delete(QUEUE_COPY), Step::Create(QUEUE_COPY)],
            1 => &[Step::Delete(QUEUE), Step::Create(QUEUE)],
            2 => &[Step::Delete(LOG_COPY), Step::Create(LOG_COPY)],
            // A mirror has its origin's sequences, so that it cannot go on with another one.
            3 => &[
                Step::Delete(LOG_COPY),
                Step::Delete(LOG),
                Step::Create(LOG),
                Step::Create(LOG_COPY),
            ],
            4..8 => {
                let replicas = if spares && self.rng.per_mille(500) { 1 } else { 3 };
                &[Step::Scale(name, replicas)]
            }
            8..13 => &[Step::NewLeader(QUEUE_COPY)],
            13..18 => &[Step::NewLeader(name)],
            _ => &[],
        };
        self.steps.extend(steps);
    }

    /// Everything that is left to do once it is stopped.
    fn confirm(&mut self, now: Mono) {
        let late = self.lost_deletion.is_some_and(|at| now.since(at) < LATE_MAX);
        if self.stopped && !self.confirming && !late {
            self.confirming = true;
            self.steps
                .extend(STREAMS.into_iter().map(|name| Step::Scale(name, 3)));
        }
    }

    fn ask(&mut self, scene: &mut Scene<'_>) {
        let Some(step) = self.steps.front().copied() else {
            return;
        };
        let mut configuration = |name: &'static str, replicas: Option<u8>| {
            let Some((round, wanted)) = self.streams.get_mut(name) else {
                return String::new();
            };
            *wanted = replicas.unwrap_or(*wanted);
            self.plan.configuration(name, *wanted, *round)
        };
        let (subject, body) = match step {
            Step::Create(name) => (format!("STREAM.CREATE.{name}"), configuration(name, None)),
            Step::Scale(name, replicas) => (
                format!("STREAM.UPDATE.{name}"),
                configuration(name, Some(replicas)),
            ),
            Step::Delete(name) => (format!("STREAM.DELETE.{name}"), String::new()),
            Step::NewLeader(name) => (format!("STREAM.LEADER.STEPDOWN.{name}"), String::new()),
        };
        let subject = format!("$JS.API.{subject}");
        let Some((_, token)) = self.line.request(scene, &subject, &[], body.as_bytes()) else {
            return;
        };
        scene.world.trace.say(|| format!("keeper: {step:?}"));
        let now = scene.world.now();
        self.deleting = matches!(step, Step::Delete(_)).then_some(now);
        self.asked = Some((token, now));
    }

    /// Does or repeats what is due.
    fn next(&mut self, scene: &mut Scene<'_>) {
        let now = scene.world.now();
        let late = self.asked.is_some_and(|(_, since)| now.since(since) > PATIENCE);
        if late || !self.line.is_open() {
            self.give_up();
            let node = self.rng.index(scene.world.node_count());
            self.line.open(scene, node);
        } else if self.asked.is_none() {
            if self.steps.is_empty() && !self.stopped {
                let whole = Replicas::are_spread(&scene.world.views(), scene.world.node_count());
                self.plan(whole || !scene.history.is_disk_lost);
            }
            if self.steps.is_empty() {
                self.confirm(now);
            }
            self.ask(scene);
        }
    }

    /// The answer to what was asked is not to be had.
    fn give_up(&mut self) {
        if self.asked.take().is_some() {
            self.lost_deletion = self.deleting.take().or(self.lost_deletion);
            self.steps.pop_front_if(|step| matches!(step, Step::NewLeader(_)));
        }
    }

    fn answer(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        if self.asked.take_if(|(token, _)| *token == reply.token).is_none() {
            return;
        }
        let Some(step) = self.steps.pop_front() else {
            return;
        };
        let body = reply.json();
        let error = body.get("error");
        let code = error.and_then(|error| error.get("err_code"));
        let code = code.and_then(serde_json::Value::as_u64);
        scene
            .world
            .trace
            .say(|| format!("keeper: {step:?}: {} {error:?}", reply.status()));
        let done = reply.status() == 0 && error.is_none() && !body.is_null();
        if done {
            scene.history.count("operations on copies");
        } else {
            self.lost_deletion = self.deleting.take().or(self.lost_deletion);
        }
        self.deleting = None;
        match step {
            Step::Create(name) | Step::Scale(name, _) if done => {
                let created = body.get("created").and_then(serde_json::Value::as_str);
                let at = scene.history.tick();
                let known = (name.to_owned(), created.unwrap_or_default().to_owned());
                scene.history.copies.known.entry(known).or_insert(at);
            }
            Step::Create(name) if code == Some(OTHER_CONFIG) => {
                self.steps.push_front(Step::Create(name));
                self.steps.push_front(Step::Delete(name));
            }
            Step::Scale(name, _) if code == Some(NOT_FOUND) => self.steps.push_front(Step::Create(name)),
            Step::Delete(name) if done || code == Some(NOT_FOUND) => {
                if let Some((round, replicas)) = self.streams.get_mut(name) {
                    *round += 1;
                    *replicas = if self.stopped { 3 } else { self.plan.replicas(name) };
                }
            }
            Step::NewLeader(_) => {}
            again => self.steps.push_front(again),
        }
    }
}

impl Actor for Keeper {
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
        self.next(scene);
        // From when fewer replicas are wanted until more are there.
        let few = self.streams.values().any(|(_, replicas)| *replicas < 3);
        scene.history.copies.is_scaling = few || !self.steps.is_empty();
        let most = if self.stopped || !self.steps.is_empty() {
            300
        } else {
            2_000
        };
        let pause = self
            .rng
            .between(Duration::from_millis(100), Duration::from_millis(most));
        scene.after(pause, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_done(&self) -> bool {
        self.confirming && self.steps.is_empty()
    }
}
