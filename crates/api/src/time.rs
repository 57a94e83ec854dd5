//! Durations and points in time as the API writes them.

use crate::json::{Decode, DecodeError, Reader, quoted};
use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;
use tidelock_base::Wall;

/// A duration in nanoseconds, an integer in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Nanos(pub i64);

impl Nanos {
    /// So many seconds.
    #[must_use]
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// So many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The duration; a negative one is zero.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Nanos {
    /// As Go prints a duration: `2m0s`, `1h30m0s`, `100ms`, `1.5s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let nanos = self.0.unsigned_abs();
        match nanos {
            0 => return f.write_str("0s"),
            1..1_000 => return write!(f, "{nanos}ns"),
            1_000..1_000_000 => return write_unit(f, nanos, 1_000, "µs"),
            1_000_000..1_000_000_000 => return write_unit(f, nanos, 1_000_000, "ms"),
            _ => {}
        }
        let minutes = nanos / 60_000_000_000;
        if minutes >= 60 {
            write!(f, "{}h", minutes / 60)?;
        }
        if minutes > 0 {
            write!(f, "{}m", minutes % 60)?;
        }
        write_unit(f, nanos % 60_000_000_000, 1_000_000_000, "s")
    }
}

/// `nanos` in units of `unit`, without trailing zeros.
fn write_unit(f: &mut fmt::Formatter<'_>, nanos: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", nanos / unit)?;
    let fraction = nanos % unit;
    if fraction > 0 {
        let width = unit.ilog10() as usize;
        let digits = format!("{fraction:0width$}");
        write!(f, ".{}", digits.trim_end_matches('0'))?;
    }
    f.write_str(name)
}

/// A point in time: RFC 3339 with as many digits of nanoseconds as it needs, in UTC. [`Wall::ZERO`] is Go's zero
/// time, `0001-01-01T00:00:00Z`. Times outside of what 64 bits of nanoseconds hold (years 1678 to 2262) are read as
/// the nearest that fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub Wall);

impl Time {
    /// Go's zero time.
    pub const ZERO: Self = Self(Wall::ZERO);

    /// Reads RFC 3339.
    ///
    /// # Errors
    /// The text is something else; the error says so in Go's words.
    pub fn parse(text: &str) -> Result<Self, DecodeError> {
        parse(text).map_err(|fault| {
            let detail = match fault {
                Fault::Layout { rest, expected } => format!(
                    " as \"2006-01-02T15:04:05Z07:00\": cannot parse {} as {}",
                    quoted(rest),
                    quoted(expected)
                ),
                Fault::Range(what) => format!(": {what} out of range"),
            };
            DecodeError::new(format!("parsing time {}{detail}", quoted(text)))
        })
    }
}

impl From<Wall> for Time {
    fn from(wall: Wall) -> Self {
        Self(wall)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ZERO {
            return f.write_str("0001-01-01T00:00:00Z");
        }
        match Timestamp::from_nanosecond(i128::from(self.0.0)) {
            Ok(timestamp) => timestamp.fmt(f),
            Err(_) => f.write_str("0001-01-01T00:00:00Z"),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Decode for Nanos {
    fn go_type() -> Cow<'static, str> {
        Cow::Borrowed("time.Duration")
    }

    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        if !reader.null() {
            self.0 = reader.integer("time.Duration")?;
        }
        Ok(())
    }
}

impl Decode for Time {
    fn go_type() -> Cow<'static, str> {
        Cow::Borrowed("time.Time")
    }

    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        if !reader.null() {
            *self = Self::parse(&reader.string("time.Time")?)?;
        }
        Ok(())
    }
}

enum Fault<'t> {
    /// What is left of the text does not start with what the layout expects.
    Layout { rest: &'t str, expected: &'static str },
    /// A field is too large.
    Range(&'static str),
}

fn parse(text: &str) -> Result<Time, Fault<'_>> {
    let mut rest = text;
    let year = digits(&mut rest, 4, "2006")?;
    literal(&mut rest, "-")?;
    let month = digits(&mut rest, 2, "01")?;
    if !(1..=12).contains(&month) {
        return Err(Fault::Range("month"));
    }
    literal(&mut rest, "-")?;
    let day = digits(&mut rest, 2, "02")?;
    literal(&mut rest, "T")?;
    let hour = bounded(digits(&mut rest, 2, "15")?, 24, "hour")?;
    literal(&mut rest, ":")?;
    let minute = bounded(digits(&mut rest, 2, "04")?, 60, "minute")?;
    literal(&mut rest, ":")?;
    let second = bounded(digits(&mut rest, 2, "05")?, 60, "second")?;
    let nanos = fraction(&mut rest);
    let offset = zone(&mut rest)?;
    if !rest.is_empty() {
        return Err(Fault::Layout { rest, expected: "" });
    }
    let days = days_since_epoch(year, month, day).ok_or(Fault::Range("day"))?;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    if year == 1 && (month, day, hour, minute, second, nanos, offset) == (1, 1, 0, 0, 0, 0, 0) {
        return Ok(Time::ZERO);
    }
    let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let limit = if total < 0 { i64::MIN } else { i64::MAX };
    Ok(Time(Wall(i64::try_from(total).unwrap_or(limit))))
}

fn days_since_epoch(year: i64, month: i64, day: i64) -> Option<i64> {
    let date = Date::new(
        i16::try_from(year).ok()?,
        i8::try_from(month).ok()?,
        i8::try_from(day).ok()?,
    )
    .ok()?;
    let epoch = Date::constant(1970, 1, 1);
    Some(i64::from((date - epoch).get_days()))
}

fn digits<'t>(rest: &mut &'t str, count: usize, expected: &'static str) -> Result<i64, Fault<'t>> {
    let fault = Fault::Layout { rest, expected };
    let Some((head, tail)) = rest.split_at_checked(count) else {
        return Err(fault);
    };
    if !head.bytes().all(|b| b.is_ascii_digit()) {
        return Err(fault);
    }
    *rest = tail;
    head.parse().map_err(|_| fault)
}

fn literal<'t>(rest: &mut &'t str, expected: &'static str) -> Result<(), Fault<'t>> {
    *rest = rest
        .strip_prefix(expected)
        .ok_or(Fault::Layout { rest, expected })?;
    Ok(())
}

const fn bounded(value: i64, limit: i64, what: &'static str) -> Result<i64, Fault<'static>> {
    if value < limit {
        Ok(value)
    } else {
        Err(Fault::Range(what))
    }
}

/// `.123` in nanoseconds; digits after the ninth are dropped.
fn fraction(rest: &mut &str) -> i64 {
    let Some(tail) = rest.strip_prefix(['.', ',']) else {
        return 0;
    };
    let length = tail.bytes().take_while(u8::is_ascii_digit).count();
    if length == 0 {
        return 0;
    }
    let (digits, after) = tail.split_at(length);
    *rest = after;
    let mut nanos = 0;
    let mut unit = 100_000_000;
    for digit in digits.bytes().take(9) {
        nanos += i64::from(digit - b'0') * unit;
        unit /= 10;
    }
    nanos
}

/// `Z` or `+07:00`, in seconds east of UTC.
fn zone<'t>(rest: &mut &'t str) -> Result<i64, Fault<'t>> {
    const EXPECTED: &str = "Z07:00";
    let whole = *rest;
    if let Some(tail) = rest.strip_prefix('Z') {
        *rest = tail;
        return Ok(0);
    }
    let sign = match rest.chars().next() {
        Some('+') => 1,
        Some('-') => -1,
        _ => {
            return Err(Fault::Layout {
                rest: whole,
                expected: EXPECTED,
            });
        }
    };
    let mut tail = whole.get(1..).unwrap_or_default();
    let mut field = |limit, what| -> Result<i64, Fault<'t>> {
        let value = digits(&mut tail, 2, EXPECTED).map_err(|_| Fault::Layout {
            rest: whole,
            expected: EXPECTED,
        })?;
        if what == "time zone offset hour" {
            literal(&mut tail, ":").map_err(|_| Fault::Layout {
                rest: whole,
                expected: EXPECTED,
            })?;
        }
        bounded(value, limit, what)
    };
    let hours = field(25, "time zone offset hour")?;
    let minutes = field(60, "time zone offset minute")?;
    *rest = tail;
    Ok(sign * (hours * 3_600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_without_trailing_zeros() {
        assert_eq!(Time(Wall(1)).to_string(), "1970-01-01T00:00:00.000000001Z");
        assert_eq!(Time(Wall(1_500_000_000)).to_string(), "1970-01-01T00:00:01.5Z");
        assert_eq!(Time(Wall(2_000_000_000)).to_string(), "1970-01-01T00:00:02Z");
        assert_eq!(Time::ZERO.to_string(), "0001-01-01T00:00:00Z");
    }

    #[test]
    fn times_are_read_with_zones() {
        let read = |text| {
            Time::parse(text)
                .map(|t| t.to_string())
                .unwrap_or_else(|e| e.to_string())
        };
        assert_eq!(read("2020-01-01T00:00:00.5+02:00"), "2019-12-31T22:00:00.5Z");
        assert_eq!(
            read("2024-02-29T23:59:59.123456789Z"),
            "2024-02-29T23:59:59.123456789Z"
        );
        assert_eq!(read("0001-01-01T00:00:00Z"), "0001-01-01T00:00:00Z");
        assert_eq!(read("9999-01-01T00:00:00Z"), "2262-04-11T23:47:16.854775807Z");
    }

    #[test]
    fn refusals_are_in_the_words_of_go() {
        let refusal = |text| Time::parse(text).map_or_else(|e| e.to_string(), |t| t.to_string());
        let layout = "as \"2006-01-02T15:04:05Z07:00\": cannot parse";
        assert_eq!(
            refusal("abc"),
            format!("parsing time \"abc\" {layout} \"abc\" as \"2006\"")
        );
        assert_eq!(
            refusal("2020-01-01"),
            format!("parsing time \"2020-01-01\" {layout} \"\" as \"T\"")
        );
        assert_eq!(
            refusal(""),
            format!("parsing time \"\" {layout} \"\" as \"2006\"")
        );
        assert_eq!(
            refusal("2020-01-01T00:00:00"),
            format!("parsing time \"2020-01-01T00:00:00\" {layout} \"\" as \"Z07:00\"")
        );
        assert_eq!(
            refusal("2020-01-01 00:00:00Z"),
            format!("parsing time \"2020-01-01 00:00:00Z\" {layout} \" 00:00:00Z\" as \"T\"")
        );
        assert_eq!(
            refusal("2020-13-01T00:00:00Z"),
            "parsing time \"2020-13-01T00:00:00Z\": month out of range"
        );
        assert_eq!(
            refusal("2021-02-29T00:00:00Z"),
            "parsing time \"2021-02-29T00:00:00Z\": day out of range"
        );
    }

    #[test]
    fn durations_print_as_in_go() {
        let text = |n| Nanos(n).to_string();
        assert_eq!(text(0), "0s");
        assert_eq!(text(120_000_000_000), "2m0s");
        assert_eq!(text(5_400_000_000_000), "1h30m0s");
        assert_eq!(text(100_000_000), "100ms");
        assert_eq!(text(1_500), "1.5µs");
        assert_eq!(text(1_500_000_000), "1.5s");
        assert_eq!(text(-1), "-1ns");
    }
}
