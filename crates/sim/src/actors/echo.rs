//! Publishes and asks at once, on the same connection, for what it has published: the answer must have it (promise P2;
//! order per connection), whichever way the publish took.

use super::{Actor, BUCKET, Line, Scene};
use crate::client::{ClientId, Heard, Reply};
use crate::rng::Rng;
use std::time::Duration;
use tidelock_base::Mono;

/// What is not answered within this long is given up, with its connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Echo {
    rng: Rng,
    line: Line,
    /// Each connection has a key of its own: what an earlier one has published may still come.
    connections: u64,
    written: u64,
    pending: Option<Pending>,
    stopped: bool,
}

/// A publish and the read behind it.
#[derive(Debug)]
struct Pending {
    since: Mono,
    publish: u64,
    stored: Option<bool>,
    read: u64,
    found: Option<u64>,
}

impl Echo {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            line: Line::default(),
            connections: 0,
            written: 0,
            pending: None,
            stopped: false,
        }
    }

    fn connect(&mut self, scene: &mut Scene<'_>) {
        self.pending = None;
        self.connections += 1;
        let node = self.rng.index(scene.world.node_count());
        self.line.open(scene, node);
    }

    fn begin(&mut self, scene: &mut Scene<'_>) {
        let subject = format!("$KV.b.echo{}-{}", scene.me, self.connections);
        self.written += 1;
        let payload = self.written.to_string();
        let Some((_, publish)) = self.line.request(scene, &subject, &[], payload.as_bytes()) else {
            return;
        };
        let (api, body) = if self.rng.per_mille(500) {
            (format!("$JS.API.DIRECT.GET.{BUCKET}.{subject}"), String::new())
        } else {
            let body = format!(r#"{{"last_by_subj":"{subject}"}}"#);
            (format!("$JS.API.DIRECT.GET.{BUCKET}"), body)
        };
        let Some((_, read)) = self.line.request(scene, &api, &[], body.as_bytes()) else {
            return;
        };
        self.pending = Some(Pending {
            since: scene.world.now(),
            publish,
            stored: None,
            read,
            found: None,
        });
    }

    fn answer(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        let Some(pending) = &mut self.pending else { return };
        if reply.token == pending.publish {
            let body = reply.json();
            pending.stored = Some(body.get("seq").is_some() && body.get("error").is_none());
        } else if reply.token == pending.read && matches!(reply.status(), 0 | 404) {
            let text = String::from_utf8_lossy(&reply.payload);
            pending.found = Some(text.parse().unwrap_or(0));
        }
        let (Some(stored), Some(found)) = (pending.stored, pending.found) else {
            return;
        };
        if stored && found != self.written {
            scene.world.violations.push(format!(
                "{} was published and acknowledged, and the read behind it found {found}",
                self.written
            ));
        }
        self.pending = None;
        scene.history.count("reads of own publishes");
        scene.answered();
    }
}

impl Actor for Echo {
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
            .pending
            .as_ref()
            .is_some_and(|pending| now.since(pending.since) > PATIENCE);
        if !self.line.is_open() || stuck || self.rng.per_mille(5) {
            self.connect(scene);
        } else if self.pending.is_none() && self.line.ready().is_some() {
            self.begin(scene);
        }
        let pause = self
            .rng
            .between(Duration::from_millis(1), Duration::from_millis(40));
        scene.after(pause, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn expects_answers(&self) -> bool {
        true
    }
}
