//! Messages that a mirror or source takes over from another stream (DESIGN section 6; jetstream protocol, "Mirrors
//! and sources").
//!
//! The leader reads the origin and proposes batches; apply takes one only if it continues where the stream stands.
//! So whatever a former leader still has under way, and however often a batch is logged: no message is taken twice,
//! none is left out, and messages and position move together.

use super::header::PubHeaders;
use super::publish::{Form, rollup};
use super::ttl::Ttl;
use super::{Budget, CommandOutcome, Effects, Entry, Halt, SourceOutcome, Stream};
use crate::command::{SourceBatch, SourceMessage};
use crate::window::Refusal;
use std::collections::VecDeque;
use tidelock_base::StreamSeq;

/// Where a source stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourcePosition {
    /// Identity of the origin as it was when this position was reached.
    pub identity: Box<[u8]>,
    /// Last sequence of the origin that is dealt with; 0 for a source that has not begun.
    pub seq: StreamSeq,
}

/// The positions of sources that were removed, by their keys, the one removed first in front. A source that is added
/// again goes on there, so that nothing is taken twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FormerSources(VecDeque<(Box<[u8]>, SourcePosition)>);

impl FormerSources {
    /// So many are kept.
    pub(super) const MAX: usize = 128;

    /// Keeps a position, in place of that which was removed first if there are too many.
    pub(super) fn put(&mut self, key: Box<[u8]>, position: SourcePosition) {
        self.0.retain(|(former, _)| *former != key);
        self.0.push_back((key, position));
        while self.0.len() > Self::MAX {
            self.0.pop_front();
        }
    }

    /// Takes a position out.
    pub(super) fn take(&mut self, key: &[u8]) -> Option<SourcePosition> {
        let at = self.0.iter().position(|(former, _)| **former == *key)?;
        self.0.remove(at).map(|(_, position)| position)
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &SourcePosition)> {
        self.0.iter().map(|(key, position)| (&**key, position))
    }
}

/// What one message of a batch led to.
enum Taken {
    Stored,
    Duplicate,
    TooLarge,
    Refused(Refusal),
}

impl Stream {
    /// Takes a batch, from where `entry` says.
    pub(super) fn source_batch(
        &mut self,
        batch: &SourceBatch<'_>,
        entry: &mut Entry,
        budget: &mut Budget,
        fx: &mut impl Effects,
    ) -> Result<CommandOutcome, Halt> {
        if !entry.progress.started {
            if !self.continues(batch) {
                return Ok(CommandOutcome::Stale);
            }
            let position = SourcePosition {
                identity: batch.identity.into(),
                seq: batch.prev_seq,
            };
            self.sources.insert(batch.source.into(), position);
            entry.progress.started = true;
        }
        while entry.progress.done < batch.count {
            budget.ready()?;
            let (message, next) = batch.messages.message_at(entry.progress.offset)?;
            let taken = self.take_message(&message, entry, fx)?;
            let tally = &mut entry.progress.source;
            match taken {
                Taken::Stored => tally.stored += 1,
                Taken::Duplicate => tally.duplicates += 1,
                Taken::TooLarge => tally.too_large += 1,
                Taken::Refused(refusal) => {
                    tally.refused = Some(refusal);
                    break;
                }
            }
            self.move_source(batch.source, message.seq);
            entry.progress.offset = next;
            entry.progress.done += 1;
            budget.spend();
            self.run_tasks(budget, fx)?;
        }
        if entry.progress.source.refused.is_none() {
            self.move_source(batch.source, batch.last_seq);
            if self.config.mirror.is_some() {
                // What the origin no longer has is missing here, too.
                self.store.skip(batch.last_seq, self.clock);
            }
        }
        let position = self
            .sources
            .get(batch.source)
            .map_or(StreamSeq(0), |position| position.seq);
        self.running.mix(position.0);
        Ok(CommandOutcome::Source(SourceOutcome {
            position,
            ..std::mem::take(&mut entry.progress.source)
        }))
    }

    /// Whether the batch starts where the source stands. An origin of another identity was made anew: nothing of it
    /// has been taken.
    fn continues(&self, batch: &SourceBatch<'_>) -> bool {
        match self.sources.get(batch.source) {
            Some(position) if *position.identity == *batch.identity => position.seq == batch.prev_seq,
            Some(_) | None => batch.prev_seq == StreamSeq(0),
        }
    }

    fn move_source(&mut self, source: &[u8], seq: StreamSeq) {
        if let Some(position) = self.sources.get_mut(source) {
            position.seq = position.seq.max(seq);
        }
    }

    fn take_message(
        &mut self,
        message: &SourceMessage<'_>,
        entry: &Entry,
        fx: &mut impl Effects,
    ) -> Result<Taken, Halt> {
        let record = &message.record;
        let headers = PubHeaders::scan(record.header());
        let is_mirror = self.config.mirror.is_some();
        let (seq, ts) = match is_mirror {
            true => (message.seq, message.ts),
            false => (self.store.last_seq().next(), self.clock),
        };
        if seq <= self.store.last_seq() {
            // A mirror that was promoted and became one again has gone its own way: the origin's sequence is taken.
            return Ok(Taken::Duplicate);
        }
        if self.is_too_large(record) {
            return Ok(Taken::TooLarge);
        }
        if !is_mirror
            && headers
                .msg_id
                .is_some_and(|id| self.dedupe.lookup(id, self.clock).is_some())
        {
            return Ok(Taken::Duplicate);
        }
        if self.nobody_wants(record.subject()) {
            self.skip_message(seq, ts, &headers);
            return Ok(Taken::Stored);
        }
        let form = self.sourced_form(&headers);
        if let Some(refusal) = self.check_discard_new(record, form.rollup.is_some())? {
            return Ok(Taken::Refused(refusal));
        }
        let bytes = entry.bytes.slice_ref(record.bytes());
        self.store_message(seq, ts, &headers, form, bytes, fx)?;
        Ok(Taken::Stored)
    }

    /// Headers of other streams are kept as they are; they act only where this stream is configured for them.
    fn sourced_form(&self, headers: &PubHeaders<'_>) -> Form {
        let rolls_up = self.config.allow_rollup_hdrs && !self.config.deny_purge;
        Form {
            ttl: headers
                .ttl
                .filter(|_| self.config.allow_msg_ttl)
                .and_then(Ttl::parse),
            rollup: headers.rollup.filter(|_| rolls_up).and_then(rollup),
        }
    }
}

/// Key of a source within its stream: origin and filter.
#[must_use]
pub fn source_key(origin: &crate::config::Origin) -> Vec<u8> {
    origin.key().into_bytes()
}

/// The header block of a sourced message: that of the origin without `Nats-Expected-*`, `Nats-Batch-*` and
/// `Nats-Stream-Source`, and with a `Nats-Stream-Source` of its own:
/// `<origin> <seq> <filter> <dest> <original subject> [<identity>]`.
#[must_use]
pub fn source_header(
    block: &[u8],
    origin: &crate::config::Origin,
    seq: StreamSeq,
    subject: &[u8],
    identity: &[u8],
) -> Vec<u8> {
    let mut out = stripped(block, &[b"Nats-Expected-", b"Nats-Batch-", b"Nats-Stream-Source"]);
    let filter = origin
        .filter
        .as_ref()
        .map_or(&b">"[..], |filter| filter.as_bytes());
    let seq = seq.to_string();
    let parts = [
        origin.name.as_bytes(),
        seq.as_bytes(),
        filter,
        b">",
        subject,
        identity,
    ];
    out.extend_from_slice(b"Nats-Stream-Source:");
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        out.push(b' ');
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n\r\n");
    out
}

/// The header block of a mirrored message: that of the origin without `Nats-Expected-*` and `Nats-Batch-*`; empty if
/// nothing is left.
#[must_use]
pub fn mirror_header(block: &[u8]) -> Vec<u8> {
    if block.is_empty() {
        return Vec::new();
    }
    let mut out = stripped(block, &[b"Nats-Expected-", b"Nats-Batch-"]);
    if memchr::memchr(b':', &out).is_none() {
        return Vec::new();
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// The first line and the headers whose names do not start so; without the empty line at the end.
fn stripped(block: &[u8], prefixes: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.len() + 64);
    for (at, line) in block.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let is_end = line == b"\r\n" || line == b"\n";
        if at == 0 || !(is_end || prefixes.iter().any(|prefix| line.starts_with(prefix))) {
            out.extend_from_slice(line);
        }
    }
    if out.is_empty() {
        out.extend_from_slice(b"NATS/1.0\r\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Origin;

    #[test]
    fn headers_of_sourced_messages() {
        let origin = Origin {
            name: "ORD".to_owned(),
            start_seq: None,
            start_time: None,
            filter: None,
        };
        let header = source_header(b"", &origin, StreamSeq(1), b"ord.1", b"ZNeoo0Y8");
        assert_eq!(
            header,
            b"NATS/1.0\r\nNats-Stream-Source: ORD 1 > > ord.1 ZNeoo0Y8\r\n\r\n"
        );

        let block = b"NATS/1.0\r\nA: 1\r\nNats-Expected-Stream: X\r\nNats-Stream-Source: Y 1\r\nNats-Msg-Id: i\r\n\r\n";
        let header = source_header(block, &origin, StreamSeq(2), b"s", b"");
        let text = String::from_utf8(header).unwrap();
        assert_eq!(
            text,
            "NATS/1.0\r\nA: 1\r\nNats-Msg-Id: i\r\nNats-Stream-Source: ORD 2 > > s\r\n\r\n"
        );

        let mirrored = String::from_utf8(mirror_header(block)).unwrap();
        assert_eq!(
            mirrored,
            "NATS/1.0\r\nA: 1\r\nNats-Stream-Source: Y 1\r\nNats-Msg-Id: i\r\n\r\n"
        );
        assert_eq!(mirror_header(b"NATS/1.0\r\nNats-Batch-Id: 1\r\n\r\n"), b"");
    }
}
