//! Headers of a publish that the stream acts on, read from the raw block without allocation.
//!
//! A block is `NATS/1.0\r\n` followed by `name: value\r\n` lines and an empty line (ADR-4). Names are compared
//! exactly, case included; of several lines with one name the first counts; an empty value counts as absent. This is
//! what nats-server does, whatever other meanings a client might give to a header.

use bytes::BytesMut;

/// What a publish's headers ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PubHeaders<'a> {
    pub(super) msg_id: Option<&'a [u8]>,
    pub(super) expected_stream: Option<&'a [u8]>,
    pub(super) expected_last_seq: Option<&'a [u8]>,
    pub(super) expected_last_subject_seq: Option<&'a [u8]>,
    pub(super) expected_last_subject: Option<&'a [u8]>,
    pub(super) expected_last_msg_id: Option<&'a [u8]>,
    pub(super) rollup: Option<&'a [u8]>,
    pub(super) ttl: Option<&'a [u8]>,
    pub(super) marker_reason: Option<&'a [u8]>,
    pub(super) kv_operation: Option<&'a [u8]>,
    pub(super) incr: Option<&'a [u8]>,
    pub(super) batch_id: Option<&'a [u8]>,
    pub(super) schedule: Option<&'a [u8]>,
    pub(super) scheduler: Option<&'a [u8]>,
    pub(super) schedule_next: Option<&'a [u8]>,
    pub(super) stream_source: Option<&'a [u8]>,
}

impl<'a> PubHeaders<'a> {
    /// Reads a block, or nothing.
    pub(super) fn scan(block: &'a [u8]) -> Self {
        let mut found = Self::default();
        for (name, value) in lines(block) {
            // One comparison sorts out nearly all headers of applications.
            if !name.starts_with(b"Nats-") && name != b"KV-Operation" {
                continue;
            }
            if let Some(slot) = found.slot(name)
                && slot.is_none()
                && !value.is_empty()
            {
                *slot = Some(value);
            }
        }
        found
    }

    fn slot(&mut self, name: &[u8]) -> Option<&mut Option<&'a [u8]>> {
        Some(match name {
            b"Nats-Msg-Id" => &mut self.msg_id,
            b"Nats-Expected-Stream" => &mut self.expected_stream,
            b"Nats-Expected-Last-Sequence" => &mut self.expected_last_seq,
            b"Nats-Expected-Last-Subject-Sequence" => &mut self.expected_last_subject_seq,
            b"Nats-Expected-Last-Subject-Sequence-Subject" => &mut self.expected_last_subject,
            b"Nats-Expected-Last-Msg-Id" => &mut self.expected_last_msg_id,
            b"Nats-Rollup" => &mut self.rollup,
            b"Nats-TTL" => &mut self.ttl,
            b"Nats-Marker-Reason" => &mut self.marker_reason,
            b"KV-Operation" => &mut self.kv_operation,
            b"Nats-Incr" => &mut self.incr,
            b"Nats-Batch-Id" => &mut self.batch_id,
            b"Nats-Schedule" => &mut self.schedule,
            b"Nats-Scheduler" => &mut self.scheduler,
            b"Nats-Schedule-Next" => &mut self.schedule_next,
            b"Nats-Stream-Source" => &mut self.stream_source,
            _ => return None,
        })
    }

    /// Whether the message ends its subject: no delete marker follows when it expires.
    pub(super) fn ends_subject(&self) -> bool {
        self.marker_reason.is_some() || self.kv_operation == Some(b"PURGE")
    }
}

/// The lines of a block after the first, as name and value; blanks before a value do not belong to it.
fn lines(block: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = after_line(block);
    std::iter::from_fn(move || {
        loop {
            if rest.is_empty() {
                return None;
            }
            let line = line_of(rest);
            rest = after_line(rest);
            let Some(colon) = memchr::memchr(b':', line) else {
                continue;
            };
            let (name, value) = line.split_at(colon);
            let value = value.get(1..).unwrap_or_default();
            let blanks = value.iter().take_while(|byte| **byte == b' ').count();
            return Some((name, value.get(blanks..).unwrap_or_default()));
        }
    })
}

fn line_of(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
    let line = bytes.get(..end).unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn after_line(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
    bytes.get(end..).unwrap_or_default()
}

/// The number of a `Nats-Expected-...` header. What is no number equals no sequence, so that it fails the check.
pub(super) fn sequence(value: &[u8]) -> u64 {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    std::str::from_utf8(value)
        .ok()
        .filter(|text| digits(text))
        .and_then(|text| text.parse().ok())
        .unwrap_or(u64::MAX)
}

/// The block with the value of the first header of this name replaced.
pub(super) fn with_value(block: &[u8], name: &[u8], value: &[u8]) -> BytesMut {
    let mut out = BytesMut::with_capacity(block.len() + value.len());
    let mut rest = block;
    let mut replaced = false;
    while !rest.is_empty() {
        let line = line_of(rest);
        let after = after_line(rest);
        let is_it = line.strip_prefix(name).is_some_and(|tail| tail.starts_with(b":"));
        if is_it && !replaced {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
            replaced = true;
        } else {
            out.extend_from_slice(rest.get(..rest.len() - after.len()).unwrap_or_default());
        }
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_exact_names_first_come_first_served() {
        let block = b"NATS/1.0\r\nnats-msg-id: no\r\nNats-Msg-Id:   a b \r\nNats-Msg-Id: second\r\nNats-TTL:\r\nX: y\r\n\
            KV-Operation: PURGE\r\nnoise\r\nNats-Expected-Last-Sequence:7\r\n\r\n";
        let found = PubHeaders::scan(block);
        assert_eq!(found.msg_id, Some(&b"a b "[..]));
        assert_eq!(found.ttl, None);
        assert_eq!(found.expected_last_seq, Some(&b"7"[..]));
        assert!(found.ends_subject());
        assert_eq!(PubHeaders::scan(b""), PubHeaders::default());
    }

    #[test]
    fn garbage_is_no_sequence() {
        assert_eq!(sequence(b"12"), 12);
        for garbage in ["", "-1", "+1", "x", "99999999999999999999", " 1"] {
            assert_eq!(sequence(garbage.as_bytes()), u64::MAX, "{garbage:?}");
        }
    }

    #[test]
    fn a_value_is_replaced_in_place() {
        let block = b"NATS/1.0\r\nA: 1\r\nNats-TTL: 1s\r\nNats-TTL: 2s\r\n\r\n";
        let out = with_value(block, b"Nats-TTL", b"60");
        assert_eq!(
            &out[..],
            b"NATS/1.0\r\nA: 1\r\nNats-TTL: 60\r\nNats-TTL: 2s\r\n\r\n"
        );
    }
}
