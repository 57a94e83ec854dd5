//! Durations in the syntax of Go: `1h30m`, `1.5s`, `100ms`.

use std::time::Duration;

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration, in nanoseconds; it may be negative.
///
/// # Errors
/// The text of Go's error: `time: invalid duration "…"`, or `time: unknown unit …`, `time: missing unit …`.
pub(crate) fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or_default()),
        Some(b'+') => (false, text.get(1..).unwrap_or_default()),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let (whole, after) = split_digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => split_digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        let Some((_, size)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("time: unknown unit {unit:?} in duration {text:?}"));
        };
        let nanos = amount(whole, fraction, *size).ok_or_else(invalid)?;
        total = total.checked_add(nanos).ok_or_else(invalid)?;
        rest = after;
    }
    Ok(if negative { -total } else { total })
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// `whole.fraction` units of `size` nanoseconds, rounded down.
fn amount(whole: &str, fraction: &str, size: u64) -> Option<i64> {
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = whole.checked_mul(size)?;
    // Each digit counts a tenth of the one before it, in nanoseconds; those below one are lost.
    let mut place = size;
    for digit in fraction.bytes() {
        place /= 10;
        nanos = nanos.checked_add(u64::from(digit - b'0') * place)?;
    }
    i64::try_from(nanos).ok()
}

/// The form in which Go prints a duration: `2m0s`, `1.5s`, `100ms`.
pub(crate) fn show(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000 {
        return format!("{nanos}ns");
    }
    if nanos < 1_000_000 {
        return format!("{}µs", decimal(nanos, 1_000));
    }
    if nanos < 1_000_000_000 {
        return format!("{}ms", decimal(nanos, 1_000_000));
    }
    let minute = 60_000_000_000;
    let (minutes, seconds) = (nanos / minute, decimal(nanos % minute, 1_000_000_000));
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `nanos / unit` with as many decimals as needed.
fn decimal(nanos: u128, unit: u128) -> String {
    let fraction = nanos % unit;
    if fraction == 0 {
        return (nanos / unit).to_string();
    }
    // The unit is a power of ten, so the fraction has as many digits as the unit has zeros.
    let width = unit.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{}.{}", nanos / unit, digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_of_go() {
        for (text, nanos) in [
            ("0", 0),
            ("5s", 5_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("-10ms", -10_000_000),
            ("+2h", 7_200_000_000_000),
            ("3us2ns", 3_002),
            ("1.23456789123s", 1_234_567_891),
        ] {
            assert_eq!(parse(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_said_in_go_s_words() {
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("abc", "time: invalid duration \"abc\""),
            ("10", "time: missing unit in duration \"10\""),
            ("10x", "time: unknown unit \"x\" in duration \"10x\""),
            ("-", "time: invalid duration \"-\""),
            (".s", "time: invalid duration \".s\""),
            ("99999999999h", "time: invalid duration \"99999999999h\""),
        ] {
            assert_eq!(parse(text), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_as_go_does() {
        for (text, shown) in [
            ("0", "0s"),
            ("7ns", "7ns"),
            ("1500ns", "1.5µs"),
            ("100ms", "100ms"),
            ("2m", "2m0s"),
            ("90s", "1m30s"),
            ("1h", "1h0m0s"),
            ("1.05s", "1.05s"),
        ] {
            let nanos = u64::try_from(parse(text).unwrap()).unwrap();
            assert_eq!(show(Duration::from_nanos(nanos)), shown);
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(nanos in 0..i64::MAX) {
            let shown = show(Duration::from_nanos(u64::try_from(nanos).unwrap()));
            prop_assert_eq!(parse(&shown), Ok(nanos));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,12}") {
            let _ = parse(&text);
        }
    }
}
