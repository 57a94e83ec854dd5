//! Per-message TTL (ADR-43): what the header says, and which messages expire when.

use crate::codec::{Malformed, Put, PutSection, Reader};
use roaring::RoaringTreemap;
use std::collections::BTreeMap;
use tidelock_base::{StreamSeq, Wall};

const SECOND_NS: i64 = 1_000_000_000;
/// Messages that expire within one span of this length are kept together and expire at its end.
const SPAN_NS: i64 = SECOND_NS / 4;

/// A valid `Nats-TTL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ttl {
    /// `never`: not even by the stream's `max_age`.
    Never,
    /// Whole seconds, at least 1.
    Seconds(i64),
}

impl Ttl {
    /// Reads `never`, a Go duration of a second or more (what is below a second is cut off), or whole seconds.
    /// `None`: invalid, 10165; `0` is, too.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        if text.eq_ignore_ascii_case("never") {
            return Some(Self::Never);
        }
        let seconds = match go_duration_ns(text) {
            Some(ns) => ns / SECOND_NS,
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok()?,
            None => return None,
        };
        (seconds > 0).then_some(Self::Seconds(seconds))
    }
}

/// Nanoseconds of a duration in the form of Go's `time.ParseDuration`: `1h15m30.5s`, `300ms`, `0`.
fn go_duration_ns(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0i128;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let number_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .filter(|end| *end > 0)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_ns: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        total = total.checked_add(scaled(number, unit_ns)?)?;
        rest = tail;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// A decimal number with an optional fraction, times `unit`.
fn scaled(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() {
        0
    } else {
        i128::from(whole.parse::<u64>().ok()?)
    };
    let mut value = whole.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        place /= 10;
        value += i128::from(digit.wrapping_sub(b'0')) * place;
    }
    Some(value)
}

/// A whole number of seconds as Go prints a duration: `1h0m0s`, `2m0s`, `5s`.
pub(super) fn go_seconds(seconds: i64) -> String {
    let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// Which messages expire when, and which never do.
///
/// A message that leaves in another way stays listed until its time, and is then not found: the sets are compressed,
/// and looking each removed message up would cost every stream for the few that use TTLs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TtlIndex {
    /// By the end of their span, in spans since 1970.
    due: BTreeMap<i64, RoaringTreemap>,
    /// Messages that `max_age` does not touch.
    never: RoaringTreemap,
    /// Messages whose expiry leaves no marker behind.
    final_ones: RoaringTreemap,
}

impl TtlIndex {
    /// A message stored at `ts`.
    pub(super) fn insert(&mut self, seq: StreamSeq, ts: Wall, ttl: Ttl) {
        match ttl {
            Ttl::Never => {
                self.never.insert(seq.0);
            }
            Ttl::Seconds(seconds) => {
                let at = ts.0.saturating_add(seconds.saturating_mul(SECOND_NS));
                let span = at.div_euclid(SPAN_NS) + i64::from(at.rem_euclid(SPAN_NS) != 0);
                self.due.entry(span).or_default().insert(seq.0);
            }
        }
    }

    pub(super) fn insert_final(&mut self, seq: StreamSeq) {
        self.final_ones.insert(seq.0);
    }

    pub(super) fn is_never(&self, seq: StreamSeq) -> bool {
        self.never.contains(seq.0)
    }

    pub(super) fn any_never(&self) -> bool {
        !self.never.is_empty()
    }

    pub(super) fn is_final(&self, seq: StreamSeq) -> bool {
        self.final_ones.contains(seq.0)
    }

    /// The message is gone.
    pub(super) fn forget(&mut self, seq: StreamSeq) {
        if !self.never.is_empty() {
            self.never.remove(seq.0);
        }
        if !self.final_ones.is_empty() {
            self.final_ones.remove(seq.0);
        }
    }

    /// Everything below this sequence is gone.
    pub(super) fn forget_below(&mut self, first: StreamSeq) {
        self.never.remove_range(..first.0);
        self.final_ones.remove_range(..first.0);
        if first.0 > 0 {
            self.due.retain(|_, seqs| {
                seqs.remove_range(..first.0);
                !seqs.is_empty()
            });
        }
    }

    /// When the next ones expire.
    pub(super) fn next_due(&self) -> Option<Wall> {
        self.due
            .keys()
            .next()
            .map(|span| Wall(span.saturating_mul(SPAN_NS)))
    }

    /// One message that has expired by `now`; it stays listed until [`TtlIndex::done`].
    pub(super) fn expired(&self, now: Wall) -> Option<StreamSeq> {
        let (span, seqs) = self.due.first_key_value()?;
        if span.saturating_mul(SPAN_NS) > now.0 {
            return None;
        }
        seqs.min().map(StreamSeq)
    }

    /// The message that [`TtlIndex::expired`] gave is dealt with.
    pub(super) fn done(&mut self, seq: StreamSeq) {
        if let Some(mut first) = self.due.first_entry() {
            first.get_mut().remove(seq.0);
            if first.get().is_empty() {
                first.remove();
            }
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let put = |out: &mut Vec<u8>, seqs: &RoaringTreemap| {
            out.put_section(|section| seqs.serialize_into(section).expect("a Vec takes all of it"));
        };
        put(out, &self.never);
        put(out, &self.final_ones);
        out.put_len(self.due.len());
        for (span, seqs) in &self.due {
            out.put_i64(*span);
            put(out, seqs);
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut index = Self {
            never: decode_seqs(reader)?,
            final_ones: decode_seqs(reader)?,
            ..Self::default()
        };
        for _ in 0..reader.count(12, "ttl: spans")? {
            let span = reader.i64("ttl: span")?;
            let seqs = decode_seqs(reader)?;
            // An empty span would stand in the way of those behind it.
            if !seqs.is_empty() {
                index.due.insert(span, seqs);
            }
        }
        Ok(index)
    }
}

pub(super) fn decode_seqs(reader: &mut Reader<'_>) -> Result<RoaringTreemap, Malformed> {
    let bytes = reader.sized("set of sequences")?;
    RoaringTreemap::deserialize_from(bytes).map_err(|_| Malformed("set of sequences"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_forms() {
        for (text, expected) in [
            ("never", Some(Ttl::Never)),
            ("NEVER", Some(Ttl::Never)),
            ("1", Some(Ttl::Seconds(1))),
            ("60", Some(Ttl::Seconds(60))),
            ("1s", Some(Ttl::Seconds(1))),
            ("1.9s", Some(Ttl::Seconds(1))),
            ("1h1m1s", Some(Ttl::Seconds(3_661))),
            ("1500ms", Some(Ttl::Seconds(1))),
            (".5h", Some(Ttl::Seconds(1_800))),
            ("0", None),
            ("0s", None),
            ("900ms", None),
            ("-1", None),
            ("-5s", None),
            ("", None),
            ("s", None),
            ("1x", None),
            ("1.2.3s", None),
            ("9999999999999h", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(Ttl::parse(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(
            [0, 59, 60, 3_600, 3_661].map(go_seconds),
            ["0s", "59s", "1m0s", "1h0m0s", "1h1m1s"]
        );
    }

    #[test]
    fn messages_expire_at_the_end_of_their_span() {
        let mut index = TtlIndex::default();
        index.insert(StreamSeq(1), Wall(1), Ttl::Seconds(1));
        index.insert(StreamSeq(2), Wall(0), Ttl::Seconds(1));
        index.insert(StreamSeq(3), Wall(0), Ttl::Never);
        assert_eq!(index.next_due(), Some(Wall(SECOND_NS)));
        assert_eq!(index.expired(Wall(SECOND_NS - 1)), None);
        assert_eq!(index.expired(Wall(SECOND_NS)), Some(StreamSeq(2)));
        index.done(StreamSeq(2));
        assert_eq!(index.expired(Wall(SECOND_NS)), None);
        assert_eq!(index.expired(Wall(SECOND_NS + SPAN_NS)), Some(StreamSeq(1)));
        assert!(index.is_never(StreamSeq(3)) && !index.is_never(StreamSeq(1)));

        let mut bytes = Vec::new();
        index.encode(&mut bytes);
        assert_eq!(TtlIndex::decode(&mut Reader::new(&bytes)), Ok(index.clone()));
        index.forget_below(StreamSeq(9));
        assert_eq!(index, TtlIndex::default());
    }
}
