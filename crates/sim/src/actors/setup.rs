//! Makes the streams, asking again until each is there.

use super::{Actor, BUCKET, Line, MEMORY, Scene, WORK};
use crate::client::{ClientId, Heard};
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::time::Duration;

/// Asks again after this long.
const RETRY: Duration = Duration::from_secs(1);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Setup {
    rng: Rng,
    line: Line,
    waiting: BTreeMap<u64, &'static str>,
    missing: Vec<&'static str>,
    stopped: bool,
}

impl Setup {
    pub(crate) fn new(rng: Rng, streams: &[&'static str]) -> Self {
        let missing = streams.to_vec();
        Self {
            rng,
            line: Line::default(),
            waiting: BTreeMap::new(),
            missing,
            stopped: false,
        }
    }

    fn ask(&mut self, scene: &mut Scene<'_>) {
        self.waiting.clear();
        for name in self.missing.clone() {
            let subject = format!("$JS.API.STREAM.CREATE.{name}");
            if let Some((_, token)) =
                self.line
                    .request(scene, &subject, &[], configuration(name, 3).as_bytes())
            {
                self.waiting.insert(token, name);
            }
        }
    }
}

/// Configuration of one of the streams.
pub(super) fn configuration(name: &str, replicas: u8) -> String {
    let own = match name {
        WORK => r#""subjects":["work.>"],"retention":"workqueue""#,
        BUCKET => {
            r#""subjects":["$KV.b.>"],"max_msgs_per_subject":1,"discard":"new","allow_rollup_hdrs":true,"deny_delete":true"#
        }
        MEMORY => r#""subjects":["mem.>"]"#,
        _ => r#""subjects":["ev.>"]"#,
    };
    let storage = if name == MEMORY { "memory" } else { "file" };
    format!(
        r#"{{"name":"{name}",{own},"storage":"{storage}","num_replicas":{replicas},"allow_direct":true}}"#
    )
}

impl Actor for Setup {
    fn start(&mut self, scene: &mut Scene<'_>) {
        self.timer(scene, 0);
    }

    fn heard(&mut self, scene: &mut Scene<'_>, client: ClientId, heard: Heard) {
        if !self.line.hears(client, &heard) {
            return;
        }
        match heard {
            Heard::Ready => self.ask(scene),
            Heard::Reply(reply) => {
                let Some(name) = self.waiting.remove(&reply.token) else {
                    return;
                };
                let body = reply.json();
                scene
                    .world
                    .trace
                    .say(|| format!("create {name}: {} {body}", reply.status()));
                if body.get("config").is_some() {
                    self.missing.retain(|missing| *missing != name);
                }
            }
            Heard::Message(_) | Heard::Closed => {}
        }
    }

    fn timer(&mut self, scene: &mut Scene<'_>, _: u64) {
        if self.is_done() || self.stopped {
            return;
        }
        if self.line.ready().is_some() && self.rng.per_mille(700) {
            self.ask(scene);
        } else {
            let node = self.rng.index(scene.world.node_count());
            self.line.open(scene, node);
        }
        scene.after(RETRY, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_done(&self) -> bool {
        self.missing.is_empty()
    }
}
