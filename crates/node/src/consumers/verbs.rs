//! What a client says about a message: the payload of an acknowledgement.

use serde::Deserialize;

/// An acknowledgement's payload, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb<'a> {
    /// It is done.
    Ack,
    /// Deliver it again, after the delay if there is one, in nanoseconds.
    Nak(Option<i64>),
    /// It is in work.
    Progress,
    /// Never deliver it again, for this reason.
    Term(&'a [u8]),
    /// It is done, and here is a pull request.
    Next(&'a [u8]),
    /// Something that means nothing; it is answered all the same.
    Unknown,
}

impl<'a> Verb<'a> {
    /// Reads a payload.
    pub(crate) fn parse(payload: &'a [u8]) -> Self {
        match payload {
            b"" | b"+ACK" | b"+OK" => Self::Ack,
            b"+WPI" => Self::Progress,
            _ => {
                if let Some(request) = payload.strip_prefix(b"+NXT") {
                    Self::Next(request.trim_ascii())
                } else if let Some(delay) = payload.strip_prefix(b"-NAK") {
                    Self::Nak(delay_ns(delay.trim_ascii()))
                } else if let Some(reason) = payload.strip_prefix(b"+TERM") {
                    Self::Term(reason.trim_ascii())
                } else {
                    Self::Unknown
                }
            }
        }
    }
}

/// The delay of a NAK: JSON, or a duration as Go writes it. What is neither is none.
fn delay_ns(text: &[u8]) -> Option<i64> {
    #[derive(Deserialize)]
    struct Options {
        delay: i64,
    }
    let delay = if text.starts_with(b"{") {
        serde_json::from_slice::<Options>(text).ok()?.delay
    } else {
        go_duration(std::str::from_utf8(text).ok()?)?
    };
    (delay > 0).then_some(delay)
}

/// A duration as Go's `time.ParseDuration` reads it (`1h2m3.5s`, `300ms`), in nanoseconds; `None` if it is malformed,
/// negative or out of range.
fn go_duration(text: &str) -> Option<i64> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0_i64;
    while !rest.is_empty() {
        let number_len = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .filter(|len| *len > 0)?;
        let (number, after) = rest.split_at(number_len);
        let unit_len = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        total = total.checked_add(span(number, unit_ns(unit)?)?)?;
        rest = after;
    }
    Some(total)
}

const fn unit_ns(unit: &str) -> Option<i64> {
    Some(match unit.as_bytes() {
        b"ns" => 1,
        // Both the micro sign and the Greek letter.
        b"us" | b"\xc2\xb5s" | b"\xce\xbcs" => 1_000,
        b"ms" => 1_000_000,
        b"s" => 1_000_000_000,
        b"m" => 60_000_000_000,
        b"h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// A decimal number of units, in nanoseconds; digits below one nanosecond are dropped.
fn span(number: &str, unit: i64) -> Option<i64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole = if whole.is_empty() {
        0
    } else {
        whole.parse::<i64>().ok()?
    };
    let mut total = whole.checked_mul(unit)?;
    let mut scale = unit;
    for digit in fraction.bytes() {
        scale /= 10;
        total = total.checked_add(i64::from(digit - b'0') * scale)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_told_apart() {
        assert_eq!(Verb::parse(b""), Verb::Ack);
        assert_eq!(Verb::parse(b"+ACK"), Verb::Ack);
        assert_eq!(Verb::parse(b"+OK"), Verb::Ack);
        assert_eq!(Verb::parse(b"+WPI"), Verb::Progress);
        assert_eq!(Verb::parse(b"+TERM"), Verb::Term(b""));
        assert_eq!(
            Verb::parse(b"+TERM  no such thing \r\n"),
            Verb::Term(b"no such thing")
        );
        assert_eq!(Verb::parse(b"+NXT"), Verb::Next(b""));
        assert_eq!(Verb::parse(b"+NXT {\"batch\":5}"), Verb::Next(b"{\"batch\":5}"));
        assert_eq!(Verb::parse(b"+ack"), Verb::Unknown);
        assert_eq!(Verb::parse(b"+ACKX"), Verb::Unknown);
        assert_eq!(Verb::parse(b"hello"), Verb::Unknown);
    }

    #[test]
    fn delays_are_read_in_both_forms() {
        assert_eq!(Verb::parse(b"-NAK"), Verb::Nak(None));
        assert_eq!(
            Verb::parse(b"-NAK {\"delay\": 5000000}"),
            Verb::Nak(Some(5_000_000))
        );
        assert_eq!(Verb::parse(b"-NAK {\"delay\": -1}"), Verb::Nak(None));
        assert_eq!(Verb::parse(b"-NAK {\"delay\": \"1s\"}"), Verb::Nak(None));
        assert_eq!(Verb::parse(b"-NAK 300ms"), Verb::Nak(Some(300_000_000)));
        assert_eq!(Verb::parse(b"-NAK nonsense"), Verb::Nak(None));
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, ns) in [
            ("1h2m3.5s", Some(3_723_500_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            ("2us", Some(2_000)),
            ("2µs", Some(2_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("0", Some(0)),
            ("+5ns", Some(5)),
            ("0.1ns", Some(0)),
            ("", None),
            ("5", None),
            (".s", None),
            ("1..5s", None),
            ("-1s", None),
            ("1d", None),
            ("s", None),
            ("99999999999999999999s", None),
            ("9223372036h", None),
        ] {
            assert_eq!(go_duration(text), ns, "{text}");
        }
    }
}
