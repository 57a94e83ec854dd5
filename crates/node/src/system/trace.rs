//! The protocol of a connection for the log (`-V`): `<<- [SUB foo 1]`, `<<- MSG_PAYLOAD: ["hi"]`, `->> [PONG]`.
//!
//! A [`Tracer`] sees the bytes of one direction as they are read or written, in whatever pieces, and finds the lines
//! and payloads in them. Connections have one only while the log asks for it, so that nothing is paid otherwise.

use crate::interest::ConnKey;
use crate::worker::{Client, Core};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::IoSlice;
use std::sync::Arc;
use tidelock_conf::LogOptions;

/// Longest line that is kept; the rest of a longer one is not shown.
const LINE_MAX: usize = 64 * 1024;
/// Fields of CONNECT whose values are not shown.
const SECRETS: [&str; 5] = ["auth_token", "pass", "sig", "nkey", "proxy_sig"];

/// Both directions of a connection.
#[derive(Debug)]
pub(crate) struct Traces {
    /// What the client sends.
    pub(crate) input: Tracer,
    /// What it is sent.
    pub(crate) output: Tracer,
}

impl Traces {
    /// Tracers, if the log asks for them.
    pub(crate) fn of(log: &LogOptions) -> Option<Box<Self>> {
        let max = match usize::try_from(log.max_traced_msg_len).unwrap_or(0) {
            0 => usize::MAX,
            max => max,
        };
        let tracer = |arrow, payloads| Tracer {
            arrow,
            payloads,
            headers: log.trace_headers,
            max,
            line: Vec::new(),
            payload: Vec::new(),
            left: 0,
            header: 0,
        };
        log.trace.then(|| {
            Box::new(Self {
                input: tracer("<<-", true),
                output: tracer("->>", false),
            })
        })
    }
}

impl Client {
    /// Whether the log shows its protocol: that of the system account's clients only if it is asked for more.
    fn is_traced(&self, log: &LogOptions) -> bool {
        log.trace_verbose || !self.identity.as_ref().is_some_and(|identity| identity.is_system)
    }

    /// Shows the first `n` bytes of what waits, which have been written.
    #[inline]
    pub(crate) fn trace_output(&mut self, n: usize, log: &LogOptions) {
        if self.trace.is_some() {
            self.trace_written(n, log);
        }
    }

    #[cold]
    fn trace_written(&mut self, n: usize, log: &LogOptions) {
        let shown = self.is_traced(log);
        let Some(traces) = &mut self.trace else { return };
        let mut slices: SmallVec<[IoSlice<'_>; 64]> = SmallVec::new();
        self.outbound.chunks(&mut slices);
        let mut left = n;
        for slice in &slices {
            let (front, _) = slice.split_at(left.min(slice.len()));
            left -= front.len();
            traces.output.feed(front, &mut |line| {
                if shown {
                    tracing::trace!("{} - {line}", self.label);
                }
            });
        }
    }
}

impl Core {
    /// Shows bytes that a client sent.
    #[cold]
    pub(crate) fn trace_input(&mut self, key: ConnKey, bytes: &[u8]) {
        let shared = Arc::clone(&self.shared);
        let Some(client) = self.client(key) else { return };
        let shown = client.is_traced(&shared.options.log);
        let Client { trace, label, .. } = client;
        let Some(traces) = trace else { return };
        traces.input.feed(bytes, &mut |line| {
            if shown {
                tracing::trace!("{label} - {line}");
            }
        });
    }
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Tracer {
    arrow: &'static str,
    payloads: bool,
    /// Headers are shown in place of payloads.
    headers: bool,
    /// Bytes of a payload that are shown.
    max: usize,
    line: Vec<u8>,
    payload: Vec<u8>,
    /// Bytes of the message that are still to come, its CRLF included.
    left: usize,
    /// Bytes of its header.
    header: usize,
}

impl Tracer {
    /// Shows what is complete with these bytes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], show: &mut impl FnMut(&str)) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let (front, rest) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= front.len();
                self.take_payload(front);
                bytes = rest;
                if self.left == 0 {
                    self.show_payload(show);
                }
                continue;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (front, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            let room = LINE_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(front.get(..room).unwrap_or(front));
            bytes = rest;
            if end.is_some() {
                self.end_line(show);
            }
        }
    }

    fn take_payload(&mut self, bytes: &[u8]) {
        if self.payloads {
            let wanted = self.max.saturating_add(self.header).saturating_add(2);
            let room = wanted.saturating_sub(self.payload.len());
            self.payload.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    fn end_line(&mut self, show: &mut impl FnMut(&str)) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        let verb = text
            .split([' ', '\t'])
            .next()
            .unwrap_or_default()
            .to_ascii_uppercase();
        let number = |from_end: usize| -> usize {
            text.split_ascii_whitespace()
                .rev()
                .nth(from_end)
                .and_then(|n| n.parse().ok())
                .unwrap_or(0)
        };
        if matches!(verb.as_str(), "PUB" | "HPUB" | "MSG" | "HMSG") {
            self.left = number(0).saturating_add(2);
            self.header = if verb.starts_with('H') { number(1) } else { 0 };
        }
        if !text.is_empty() {
            let shown = match verb.as_str() {
                "CONNECT" => redacted(text),
                "+OK" => Cow::Borrowed("OK"),
                _ => Cow::Borrowed(text),
            };
            show(&format!("{} [{shown}]", self.arrow));
        }
        self.line = line;
        self.line.clear();
    }

    fn show_payload(&mut self, show: &mut impl FnMut(&str)) {
        let whole = std::mem::take(&mut self.payload);
        let whole_len = whole.len();
        let body = whole.strip_suffix(b"\r\n").unwrap_or(&whole);
        let (header, payload) = body.split_at_checked(self.header).unwrap_or((body, &[]));
        let bytes = if self.headers { header } else { payload };
        if self.payloads && !bytes.is_empty() {
            let cut = bytes.len() > self.max;
            let shown = bytes.get(..self.max).unwrap_or(bytes);
            let dots = if cut { "..." } else { "" };
            let text = String::from_utf8_lossy(shown);
            show(&format!("{} MSG_PAYLOAD: [{text:?}{dots}]", self.arrow));
        }
        self.payload = whole;
        self.payload.clear();
        if whole_len > LINE_MAX {
            self.payload = Vec::new();
        }
    }
}

/// CONNECT without what nobody should read in a log.
fn redacted(line: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, value)) = next_secret(rest) {
        let Some(end) = string_end(value) else { break };
        out.push_str(before);
        let _ = write!(out, "\"[REDACTED]\"");
        rest = value.get(end..).unwrap_or_default();
    }
    if out.is_empty() {
        return Cow::Borrowed(line);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// What comes before the value of the next secret, and what begins with it.
fn next_secret(text: &str) -> Option<(&str, &str)> {
    let found = SECRETS.iter().filter_map(|name| {
        let key = text.find(&format!("\"{name}\""))?;
        let after = key + name.len() + 2;
        let colon = text.get(after..)?.trim_start().strip_prefix(':')?.trim_start();
        Some(text.len() - colon.len())
    });
    let at = found.min()?;
    text.split_at_checked(at)
}

/// Where the JSON string that the text begins with ends.
fn string_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    let mut chars = text.char_indices();
    let (_, '"') = chars.next()? else { return None };
    for (at, c) in chars {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INPUT: &[u8] = b"CONNECT {\"user\":\"a\",\"pass\": \"s\\\"x\",\"lang\":\"go\"}\r\nSUB foo 1\r\n\
        PUB foo 5\r\nhello\r\nHPUB foo 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPUB x 0\r\n\r\nping\r\n";

    fn shown(log: &LogOptions, pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(mut traces) = Traces::of(log) {
            for piece in pieces {
                traces.input.feed(piece, &mut |line| lines.push(line.to_owned()));
            }
        }
        lines
    }

    fn tracing() -> LogOptions {
        LogOptions {
            trace: true,
            ..LogOptions::default()
        }
    }

    #[test]
    fn lines_are_those_of_nats_server() {
        assert_eq!(
            shown(&tracing(), &[INPUT]),
            [
                r#"<<- [CONNECT {"user":"a","pass": "[REDACTED]","lang":"go"}]"#,
                "<<- [SUB foo 1]",
                "<<- [PUB foo 5]",
                r#"<<- MSG_PAYLOAD: ["hello"]"#,
                "<<- [HPUB foo 12 14]",
                r#"<<- MSG_PAYLOAD: ["hi"]"#,
                "<<- [PUB x 0]",
                "<<- [ping]",
            ]
        );
        assert!(shown(&LogOptions::default(), &[INPUT]).is_empty());
    }

    #[test]
    fn payloads_are_cut_and_headers_shown_where_asked_for() {
        let log = LogOptions {
            max_traced_msg_len: 3,
            ..tracing()
        };
        assert!(
            shown(&log, &[b"PUB a 5\r\nhello\r\n"]).contains(&r#"<<- MSG_PAYLOAD: ["hel"...]"#.to_owned())
        );
        let log = LogOptions {
            trace_headers: true,
            ..tracing()
        };
        let lines = shown(&log, &[b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"]);
        assert_eq!(
            lines.last().map(String::as_str),
            Some(r#"<<- MSG_PAYLOAD: ["NATS/1.0\r\n\r\n"]"#)
        );
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(cuts in proptest::collection::vec(0..INPUT.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut rest = INPUT;
            let mut from = 0;
            for cut in cuts {
                let (front, back) = rest.split_at(cut - from);
                pieces.push(front);
                rest = back;
                from = cut;
            }
            pieces.push(rest);
            prop_assert_eq!(shown(&tracing(), &pieces), shown(&tracing(), &[INPUT]));
        }

        #[test]
        fn arbitrary_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            shown(&tracing(), &[&bytes]);
        }
    }
}
