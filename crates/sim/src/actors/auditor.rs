//! Reads a whole stream through one node, message by message, at the end of a run.

use super::publisher::short;
use super::{Actor, Line, Scene};
use crate::client::{ClientId, Heard, Reply};
use crate::copies::{CopyAudit, From, STREAMS};
use crate::history::{Audit, Times};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Requests that may be out at once.
const OUTSTANDING_MAX: usize = 128;
const RETRY: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Auditor {
    audit: Audit,
    /// The same of a stream that copies or is copied.
    copy: CopyAudit,
    times: Times,
    line: Line,
    asked: BTreeMap<u64, u64>,
    /// First and last sequence, once known.
    to_read: Option<BTreeSet<u64>>,
    info: Option<u64>,
    done: bool,
}

impl Auditor {
    pub(crate) fn new(stream: &'static str, node: usize) -> Self {
        let audit = Audit {
            stream,
            node,
            messages: BTreeMap::new(),
        };
        let copy = CopyAudit {
            stream,
            node,
            ..CopyAudit::default()
        };
        let times = Times {
            stream,
            node,
            ..Times::default()
        };
        Self {
            audit,
            copy,
            times,
            line: Line::default(),
            asked: BTreeMap::new(),
            to_read: None,
            info: None,
            done: false,
        }
    }

    fn ask(&mut self, scene: &mut Scene<'_>) {
        let stream = self.audit.stream;
        let Some(to_read) = &mut self.to_read else {
            if self.info.is_none() {
                let asked = self
                    .line
                    .request(scene, &format!("$JS.API.STREAM.INFO.{stream}"), &[], b"");
                self.info = asked.map(|(_, token)| token);
            }
            return;
        };
        while self.asked.len() < OUTSTANDING_MAX
            && let Some(seq) = to_read.pop_first()
        {
            let body = format!(r#"{{"seq":{seq}}}"#);
            let subject = format!("$JS.API.DIRECT.GET.{stream}");
            match self.line.request(scene, &subject, &[], body.as_bytes()) {
                Some((_, token)) => {
                    self.asked.insert(token, seq);
                }
                None => {
                    to_read.insert(seq);
                    return;
                }
            }
        }
        if self.asked.is_empty() && !self.done {
            self.done = true;
            if STREAMS.contains(&stream) {
                scene.history.copies.audits.push(self.copy.clone());
            } else {
                scene.history.audits.push(self.audit.clone());
                scene.history.times.push(self.times.clone());
            }
        }
    }

    fn answer(&mut self, scene: &mut Scene<'_>, reply: &Reply) {
        if self.info == Some(reply.token) {
            self.info = None;
            let body = reply.json();
            let state = |name| {
                body.get("state")
                    .and_then(|state| state.get(name))
                    .and_then(serde_json::Value::as_u64)
            };
            let created = body.get("created").and_then(serde_json::Value::as_str);
            self.copy.created = created.unwrap_or_default().to_owned();
            if let Some((first, last)) = state("first_seq").zip(state("last_seq")) {
                self.to_read = Some((first.max(1)..=last).collect());
            }
        } else if let Some(seq) = self.asked.remove(&reply.token) {
            let found = reply
                .header("Nats-Sequence")
                .and_then(|seq| seq.parse::<u64>().ok());
            if found == Some(seq) {
                let payload = short(&String::from_utf8_lossy(&reply.payload));
                let from = reply.header("Nats-Stream-Source");
                let from = from.and_then(|text| From::parse(&text));
                self.copy.messages.insert(seq, (payload.clone(), from));
                self.audit.messages.insert(seq, payload);
                let time = reply.header("Nats-Time-Stamp").unwrap_or_default();
                self.times.times.insert(seq, sortable(&time));
            } else if reply.status() == 500 {
                let Audit { stream, node, .. } = &self.audit;
                let text = format!("n{node} does not give message {seq} of {stream}, which others have");
                scene.world.violations.push(text);
            } else if reply.status() != 404
                && let Some(to_read) = &mut self.to_read
            {
                to_read.insert(seq);
                return;
            }
        }
        self.ask(scene);
    }
}

/// A time in RFC 3339 whose fraction of a second has all of its digits.
fn sortable(time: &str) -> String {
    let (seconds, fraction) = time.trim_end_matches('Z').split_once('.').unwrap_or((time, ""));
    format!("{}.{fraction:0<9}", seconds.trim_end_matches('Z'))
}

impl Actor for Auditor {
    fn start(&mut self, scene: &mut Scene<'_>) {
        self.timer(scene, 0);
    }

    fn heard(&mut self, scene: &mut Scene<'_>, client: ClientId, heard: Heard) {
        if !self.line.hears(client, &heard) {
            return;
        }
        match heard {
            Heard::Ready => self.ask(scene),
            Heard::Reply(reply) => self.answer(scene, &reply),
            Heard::Message(_) | Heard::Closed => {}
        }
    }

    fn timer(&mut self, scene: &mut Scene<'_>, _: u64) {
        if self.done {
            return;
        }
        self.info = None;
        if let Some(to_read) = &mut self.to_read {
            to_read.extend(std::mem::take(&mut self.asked).into_values());
        }
        self.line.open(scene, self.audit.node);
        scene.after(RETRY, 0);
    }

    fn is_done(&self) -> bool {
        self.done
    }
}
