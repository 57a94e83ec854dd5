//! Reads and conditionally writes a few keys of a bucket, one operation at a time, through any node.

use super::{Actor, BUCKET, Line, Scene};
use crate::client::{ClientId, Heard, Reply};
use crate::history::{KvAction, KvOp, NEVER, WriteResult};
use crate::rng::Rng;
use base64::Engine as _;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelock_base::Mono;

/// Keys that all clients share.
pub(crate) const KEYS: usize = 4;
/// An operation that takes longer has an unknown end.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Keys {
    name: u64,
    rng: Rng,
    line: Line,
    /// Revisions last seen.
    revisions: BTreeMap<usize, u64>,
    written: u64,
    pending: Option<Pending>,
    stopped: bool,
}

#[derive(Debug)]
struct Pending {
    token: u64,
    since: Mono,
    op: KvOp,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Get,
    DirectGet,
    Write,
}

impl Keys {
    pub(crate) fn new(name: u64, rng: Rng) -> Self {
        Self {
            name,
            rng,
            line: Line::default(),
            revisions: BTreeMap::new(),
            written: 0,
            pending: None,
            stopped: false,
        }
    }

    fn connect(&mut self, scene: &mut Scene<'_>) {
        self.give_up(scene);
        let node = self.rng.index(scene.world.node_count());
        self.line.open(scene, node);
    }

    /// The end of the operation will never be known.
    fn give_up(&mut self, scene: &mut Scene<'_>) {
        if let Some(pending) = self.pending.take() {
            // A read without an answer says nothing.
            if matches!(pending.kind, Kind::Write) {
                scene.history.count("unknown writes");
                scene.history.kv.push(pending.op);
            }
        }
    }

    fn begin(&mut self, scene: &mut Scene<'_>) {
        let key = self.rng.index(KEYS);
        let subject = format!("$KV.b.k{key}");
        let kind = match self.rng.below(10) {
            0..3 => Kind::Get,
            3..6 => Kind::DirectGet,
            _ => Kind::Write,
        };
        let expected = match self.rng.below(20) {
            0 => 0,
            _ => self.revisions.get(&key).copied().unwrap_or(0),
        };
        self.written += 1;
        let value = self.name * 1_000_000 + self.written;
        let sent = match kind {
            Kind::Get => {
                let body = format!(r#"{{"last_by_subj":"{subject}"}}"#);
                self.line.request(
                    scene,
                    &format!("$JS.API.STREAM.MSG.GET.{BUCKET}"),
                    &[],
                    body.as_bytes(),
                )
            }
            Kind::DirectGet => {
                self.line
                    .request(scene, &format!("$JS.API.DIRECT.GET.{BUCKET}.{subject}"), &[], b"")
            }
            Kind::Write => {
                let headers = [("Nats-Expected-Last-Subject-Sequence", expected.to_string())];
                self.line
                    .request(scene, &subject, &headers, value.to_string().as_bytes())
            }
        };
        let Some((by, token)) = sent else { return };
        let action = match kind {
            Kind::Get | Kind::DirectGet => KvAction::Read(None),
            Kind::Write => KvAction::Write {
                expected,
                value,
                result: WriteResult::Unknown,
            },
        };
        let op = KvOp {
            key,
            begin: scene.history.tick(),
            end: NEVER,
            action,
            by,
        };
        self.pending = Some(Pending {
            token,
            since: scene.world.now(),
            op,
            kind,
        });
    }

    fn answer(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        let Some(mut pending) = self.pending.take_if(|pending| pending.token == reply.token) else {
            return;
        };
        let Pending { op, kind, .. } = &mut pending;
        let known = match (&mut op.action, *kind) {
            (KvAction::Read(found), kind) => read(reply, kind).map(|value| {
                *found = value;
                self.revisions
                    .insert(op.key, value.map_or(0, |(revision, _)| revision));
            }),
            (KvAction::Write { result, .. }, _) => wrote(reply).map(|outcome| {
                *result = outcome;
                let (WriteResult::Stored(revision) | WriteResult::Conflict(revision)) = outcome else {
                    return;
                };
                self.revisions.insert(op.key, revision);
            }),
        };
        match known {
            Ok(()) => {
                op.end = scene.history.tick();
                let what = match (kind, &op.action) {
                    (
                        _,
                        KvAction::Write {
                            result: WriteResult::Stored(_),
                            ..
                        },
                    ) => "writes",
                    (_, KvAction::Write { .. }) => "conflicts",
                    (_, KvAction::Read(_)) => "reads",
                };
                scene.history.count(what);
                scene.answered();
                scene.history.kv.push(pending.op);
            }
            Err(Refusal::NotDone(why)) => {
                scene.history.count("refused key operations");
                scene.world.trace.say(|| format!("key operation refused: {why}"));
            }
            Err(Refusal::Unknown(why)) => {
                scene.world.trace.say(|| format!("key operation failed: {why}"));
                self.pending = Some(pending);
                self.give_up(scene);
            }
        }
    }
}

/// Why an operation has no result.
enum Refusal {
    /// It was not carried out.
    NotDone(String),
    /// It may have been, or may still be.
    Unknown(String),
}

fn error_of(reply: &Reply) -> Refusal {
    let body = reply.json();
    let error = body.get("error");
    let code = error.and_then(|error| error.get("err_code")?.as_u64());
    match (reply.status(), error) {
        (503, _) => Refusal::NotDone("no responders".to_owned()),
        // A server without room says so instead of doing anything.
        _ if code == Some(10_023) => Refusal::NotDone("insufficient resources".to_owned()),
        (status, error) => Refusal::Unknown(format!("{status} {error:?}")),
    }
}

/// What a read found: revision and value.
fn read(reply: &Reply, kind: Kind) -> Result<Option<(u64, u64)>, Refusal> {
    let number = |text: &[u8]| {
        std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    match kind {
        Kind::DirectGet => {
            if reply.status() == 404 {
                return Ok(None);
            }
            let revision = reply.header("Nats-Sequence").and_then(|seq| seq.parse().ok());
            revision
                .zip(number(&reply.payload))
                .map(Some)
                .ok_or_else(|| error_of(reply))
        }
        Kind::Get | Kind::Write => {
            let body = reply.json();
            let code = |name| {
                body.get("error")
                    .and_then(|error| error.get(name))
                    .and_then(serde_json::Value::as_u64)
            };
            if code("err_code") == Some(10_037) {
                return Ok(None);
            }
            let message = body.get("message");
            let revision = message
                .and_then(|m| m.get("seq"))
                .and_then(serde_json::Value::as_u64);
            let data = message
                .and_then(|m| m.get("data"))
                .and_then(serde_json::Value::as_str)
                .unwrap_or_default();
            let value = base64::engine::general_purpose::STANDARD
                .decode(data)
                .ok()
                .and_then(|data| number(&data));
            revision.zip(value).map(Some).ok_or_else(|| error_of(reply))
        }
    }
}

fn wrote(reply: &Reply) -> Result<WriteResult, Refusal> {
    let body = reply.json();
    let Some(error) = body.get("error") else {
        let seq = body.get("seq").and_then(serde_json::Value::as_u64);
        return seq.map(WriteResult::Stored).ok_or_else(|| error_of(reply));
    };
    let text = error
        .get("description")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    let last = text
        .strip_prefix("wrong last sequence: ")
        .and_then(|last| last.parse().ok());
    match (error.get("err_code").and_then(serde_json::Value::as_u64), last) {
        (Some(10_071), Some(last)) => Ok(WriteResult::Conflict(last)),
        _ => Err(error_of(reply)),
    }
}

impl Actor for Keys {
    fn start(&mut self, scene: &mut Scene<'_>) {
        self.connect(scene);
        self.timer(scene, 0);
    }

    fn heard(&mut self, scene: &mut Scene<'_>, client: ClientId, heard: Heard) {
        if !self.line.hears(client, &heard) {
            return;
        }
        match heard {
            Heard::Reply(reply) => self.answer(scene, &reply),
            Heard::Closed => self.give_up(scene),
            Heard::Ready | Heard::Message(_) => {}
        }
    }

    fn timer(&mut self, scene: &mut Scene<'_>, _: u64) {
        let now = scene.world.now();
        let stuck = self
            .pending
            .as_ref()
            .is_some_and(|pending| now.since(pending.since) > PATIENCE);
        if self.stopped && (self.pending.is_none() || stuck) {
            self.give_up(scene);
            return;
        }
        if !self.line.is_open() || stuck {
            self.connect(scene);
        } else if self.pending.is_none() {
            if self.rng.per_mille(20) {
                self.connect(scene);
            } else {
                self.begin(scene);
            }
        }
        let pause = self
            .rng
            .between(Duration::from_millis(1), Duration::from_millis(60));
        scene.after(pause, 0);
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn expects_answers(&self) -> bool {
        true
    }
}
