//! The characters of a configuration file: a cursor that counts lines, and the scalars.

use std::sync::Arc;

use crate::error::Position;
use crate::value::Value;

/// A syntax error; the text is complete.
#[derive(Debug)]
pub(crate) struct SyntaxError(pub(crate) String);

/// A scalar as it is written.
pub(crate) enum Scalar {
    /// A value.
    Value(Value),
    /// `$name`: the value of a variable.
    Variable(String),
}

/// A cursor over the bytes of a file.
pub(crate) struct Scanner<'a> {
    source: &'a [u8],
    at: usize,
    line: u32,
    line_start: usize,
    file: Arc<str>,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(source: &'a [u8], file: Arc<str>) -> Self {
        Self {
            source,
            at: 0,
            line: 1,
            line_start: 0,
            file,
        }
    }

    pub(crate) fn file(&self) -> &Arc<str> {
        &self.file
    }

    pub(crate) const fn line(&self) -> u32 {
        self.line
    }

    pub(crate) fn position(&self) -> Position {
        let column = u32::try_from(self.at - self.line_start).unwrap_or(u32::MAX);
        Position {
            file: Arc::clone(&self.file),
            line: self.line,
            column,
        }
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.source.get(self.at).copied()
    }

    fn peek_second(&self) -> Option<u8> {
        self.source.get(self.at + 1).copied()
    }

    pub(crate) fn bump(&mut self) {
        if self.peek() == Some(b'\n') {
            self.line += 1;
            // The column of later lines counts from the line feed, so that it begins at 1.
            self.line_start = self.at;
        }
        self.at = (self.at + 1).min(self.source.len());
    }

    /// Steps over `byte` if it is next.
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.bump();
        }
        found
    }

    /// The next character as error texts show it.
    fn next_shown(&self) -> String {
        let rest = self.source.get(self.at..).unwrap_or_default();
        let head = rest.get(..rest.len().min(4)).unwrap_or_default();
        match String::from_utf8_lossy(head).chars().next() {
            Some(found) => format!("'{found}'"),
            None => "the end of the file".to_owned(),
        }
    }

    pub(crate) fn error(&self, reason: &str) -> SyntaxError {
        SyntaxError(format!("Parse error on line {}: '{reason}'", self.line))
    }

    /// `expected`, and what stands there instead.
    pub(crate) fn error_but_got(&self, expected: &str) -> SyntaxError {
        self.error(&format!("{expected}, but got {} instead.", self.next_shown()))
    }

    pub(crate) fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\x0b' | b'\x0c')) {
            self.bump();
        }
    }

    /// Skips white space of all kinds.
    pub(crate) fn skip_space(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.bump();
        }
    }

    /// Skips white space and comments.
    pub(crate) fn skip_space_and_comments(&mut self) {
        loop {
            self.skip_space();
            if !self.at_comment() {
                return;
            }
            self.skip_line();
        }
    }

    pub(crate) fn at_comment(&self) -> bool {
        match self.peek() {
            Some(b'#') => true,
            Some(b'/') => self.peek_second() == Some(b'/'),
            _ => false,
        }
    }

    fn skip_line(&mut self) {
        while self.peek().is_some_and(|byte| byte != b'\n') {
            self.bump();
        }
    }

    /// The bytes up to the first that `stop` accepts.
    fn take_until(&mut self, stop: impl Fn(u8) -> bool) -> &'a [u8] {
        let start = self.at;
        while self.peek().is_some_and(|byte| !stop(byte)) {
            self.bump();
        }
        self.source.get(start..self.at).unwrap_or_default()
    }

    /// A key, and whether it was quoted. The position is that of its first character, inside the quotes.
    pub(crate) fn key(&mut self) -> Result<(String, bool, Position), SyntaxError> {
        match self.peek() {
            Some(quote @ (b'"' | b'\'')) => {
                self.bump();
                let at = self.position();
                let key = self.take_until(|byte| byte == quote);
                if !self.eat(quote) {
                    return Err(self.error("Unexpected EOF."));
                }
                Ok((text(key), true, at))
            }
            Some(separator @ (b':' | b'=')) => {
                Err(self.error(&format!("Unexpected key separator '{}'", char::from(separator))))
            }
            _ => {
                let at = self.position();
                let key = self.take_until(|byte| is_space(byte) || matches!(byte, b':' | b'='));
                Ok((text(key), false, at))
            }
        }
    }

    /// The path of an `include`, quoted or not.
    pub(crate) fn include_path(&mut self) -> Result<String, SyntaxError> {
        match self.peek() {
            Some(quote @ (b'"' | b'\'')) => {
                self.bump();
                let path = self.take_until(|byte| byte == quote);
                if !self.eat(quote) {
                    return Err(self.error("Unexpected EOF in quoted include"));
                }
                Ok(text(path))
            }
            _ => Ok(text(self.take_until(ends_bare))),
        }
    }

    /// Any value but an array or a map.
    pub(crate) fn scalar(&mut self) -> Result<Scalar, SyntaxError> {
        match self.peek() {
            Some(b'"') => self.double_quoted(),
            Some(b'\'') => {
                self.bump();
                let value = self.take_until(|byte| byte == b'\'');
                if !self.eat(b'\'') {
                    return Err(self.error("Unexpected EOF."));
                }
                Ok(plain(value))
            }
            Some(b'(') => self.block(),
            Some(b'\n') => {
                self.bump();
                Err(self.error("Expected value but found new line"))
            }
            Some(b'.') => Err(self.error("Floats must start with a digit")),
            Some(b'-') => self.negative(),
            Some(b'0'..=b'9') => self.number(),
            _ => self.bare(),
        }
    }

    fn double_quoted(&mut self) -> Result<Scalar, SyntaxError> {
        self.bump();
        let mut value = Vec::new();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.bump();
                    return Ok(plain(&value));
                }
                Some(b'\\') => value.push(self.escape()?),
                Some(byte) => {
                    value.push(byte);
                    self.bump();
                }
                None => return Err(self.error("Unexpected EOF.")),
            }
        }
    }

    /// A backslash and what follows it.
    fn escape(&mut self) -> Result<u8, SyntaxError> {
        self.bump();
        let byte = match self.peek() {
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b'"') => b'"',
            Some(b'\\') => b'\\',
            Some(b'x') => {
                self.bump();
                let digits = self.source.get(self.at..self.at + 2).unwrap_or_default();
                let parsed = std::str::from_utf8(digits)
                    .ok()
                    .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok());
                let Some(byte) = parsed else {
                    let shown = String::from_utf8_lossy(digits).into_owned();
                    return Err(self.error(&format!(
                        "Expected two hexadecimal digits after '\\x', but got '{shown}'"
                    )));
                };
                self.bump();
                byte
            }
            _ => {
                let shown = self.next_shown();
                return Err(self.error(&format!(
                    "Invalid escape character {shown}. Only the following escape characters are allowed: \
                     \\xXX, \\t, \\n, \\r, \\\", \\\\."
                )));
            }
        };
        self.bump();
        Ok(byte)
    }

    /// `(`, text, and `)` alone on a line; everything between them belongs to the value.
    fn block(&mut self) -> Result<Scalar, SyntaxError> {
        self.bump();
        let start = self.at;
        loop {
            self.skip_line();
            if self.peek().is_none() {
                return Err(self.error("Unexpected EOF processing block."));
            }
            self.bump();
            let ends = self.peek() == Some(b')') && matches!(self.peek_second(), None | Some(b'\n' | b'\r'));
            if ends {
                let value = plain(self.source.get(start..self.at).unwrap_or_default());
                self.bump();
                return Ok(value);
            }
        }
    }

    /// A string without quotes, a boolean or a variable. It may be empty: `key:` at the end of a map.
    fn bare(&mut self) -> Result<Scalar, SyntaxError> {
        if self.peek() == Some(b'$')
            && !self
                .source
                .get(self.at..)
                .unwrap_or_default()
                .starts_with(b"$2a$")
        {
            self.bump();
            return Ok(Scalar::Variable(text(self.take_until(ends_bare))));
        }
        let mut value = Vec::new();
        while let Some(byte) = self.peek().filter(|byte| !ends_bare(*byte)) {
            if byte == b'\\' {
                value.push(self.escape()?);
            } else {
                value.push(byte);
                self.bump();
            }
        }
        Ok(match value.to_ascii_lowercase().as_slice() {
            b"true" | b"yes" | b"on" => Scalar::Value(Value::Bool(true)),
            b"false" | b"no" | b"off" => Scalar::Value(Value::Bool(false)),
            _ => plain(&value),
        })
    }

    /// What begins with a digit: an integer, a float, a time, or after all a string such as an address.
    fn number(&mut self) -> Result<Scalar, SyntaxError> {
        let digits = self.take_until(|byte| !byte.is_ascii_digit());
        let start = self.at - digits.len();
        match self.peek() {
            Some(b'-') => return self.date_time(start, digits.len()),
            Some(b'.') => {
                self.bump();
                if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                    return Err(self.error_but_got("Floats must have a digit after the '.'"));
                }
                self.take_until(|byte| !byte.is_ascii_digit());
                if matches!(self.peek(), Some(b'.' | b':' | b'/')) {
                    return Ok(self.token_from(start));
                }
                // Anything else that follows directly is for the caller to refuse.
                return self.float(start);
            }
            _ => {}
        }
        let suffix = self.take_until(|byte| !byte.is_ascii_alphabetic());
        match multiplier(suffix) {
            Some(factor) if self.peek().is_none_or(ends_bare) => self.integer(&text(digits), factor, start),
            _ => Ok(self.token_from(start)),
        }
    }

    fn negative(&mut self) -> Result<Scalar, SyntaxError> {
        let start = self.at;
        self.bump();
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            let shown = self.next_shown();
            return Err(self.error(&format!("Expected a digit but got {shown}.")));
        }
        self.take_until(|byte| !byte.is_ascii_digit());
        let digits = text(self.source.get(start..self.at).unwrap_or_default());
        if self.peek() == Some(b'.') {
            self.bump();
            if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                return Err(self.error_but_got("Floats must have a digit after the '.'"));
            }
            self.take_until(|byte| !byte.is_ascii_digit());
            return self.float(start);
        }
        let before = self.at;
        let suffix = self.take_until(|byte| !byte.is_ascii_alphabetic());
        let Some(factor) = multiplier(suffix) else {
            // Letters that are no suffix: the caller refuses the first of them.
            self.at = before;
            return self.integer(&digits, 1, start);
        };
        self.integer(&digits, factor, start)
    }

    fn integer(&self, digits: &str, factor: i64, start: usize) -> Result<Scalar, SyntaxError> {
        let value = digits
            .parse::<i64>()
            .ok()
            .and_then(|number| number.checked_mul(factor));
        match value {
            Some(value) => Ok(Scalar::Value(Value::Integer(value))),
            None => {
                let written = text(self.source.get(start..self.at).unwrap_or_default());
                Err(SyntaxError(format!("integer '{written}' is out of the range")))
            }
        }
    }

    fn float(&self, start: usize) -> Result<Scalar, SyntaxError> {
        let written = text(self.source.get(start..self.at).unwrap_or_default());
        match written.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Scalar::Value(Value::Float(value))),
            _ => Err(SyntaxError(format!("float '{written}' is out of the range"))),
        }
    }

    /// The string from `start` to the end of the token.
    fn token_from(&mut self, start: usize) -> Scalar {
        self.take_until(ends_bare);
        plain(self.source.get(start..self.at).unwrap_or_default())
    }

    /// `2026-01-01T00:00:00Z`, of which the year has been read.
    fn date_time(&mut self, start: usize, year_digits: usize) -> Result<Scalar, SyntaxError> {
        const FORM: &[u8] = b"-dd-ddTdd:dd:ddZ";
        if year_digits != 4 {
            return Err(self.error("All ISO8601 dates must be in full Zulu form."));
        }
        for expected in FORM {
            let fits = match (self.peek(), *expected) {
                (Some(found), b'd') => found.is_ascii_digit(),
                (found, wanted) => found == Some(wanted),
            };
            if !fits {
                let wanted = match *expected {
                    b'd' => "digit".to_owned(),
                    other => format!("'{}'", char::from(other)),
                };
                let shown = self.next_shown();
                return Err(self.error(&format!(
                    "Expected {wanted} in ISO8601 datetime, but found {shown} instead."
                )));
            }
            self.bump();
        }
        let written = text(self.source.get(start..self.at).unwrap_or_default());
        if is_calendar_time(written.as_bytes()) {
            Ok(Scalar::Value(Value::DateTime(written)))
        } else {
            Err(SyntaxError(format!(
                "expected Zulu formatted DateTime, but got '{written}'"
            )))
        }
    }
}

/// Whether the digits of `yyyy-mm-ddThh:mm:ssZ` are a time of the calendar.
fn is_calendar_time(written: &[u8]) -> bool {
    let two = |at: usize| {
        let digits = written.get(at..at + 2).unwrap_or_default();
        digits
            .iter()
            .fold(0u32, |sum, digit| sum * 10 + u32::from(digit.wrapping_sub(b'0')))
    };
    let year = two(0) * 100 + two(2);
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match two(5) {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => 0,
    };
    (1..=days).contains(&two(8)) && two(11) < 24 && two(14) < 60 && two(17) < 60
}

/// The factor of an integer's suffix, in any case; 1 for none.
fn multiplier(suffix: &[u8]) -> Option<i64> {
    let lower = suffix.to_ascii_lowercase();
    let Some((unit, rest)) = lower.split_first() else {
        return Some(1);
    };
    let power = match unit {
        b'k' => 1,
        b'm' => 2,
        b'g' => 3,
        b't' => 4,
        b'p' => 5,
        b'e' => 6,
        _ => return None,
    };
    match rest {
        b"" => Some(1000i64.pow(power)),
        b"b" | b"i" | b"ib" => Some(1024i64.pow(power)),
        _ => None,
    }
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0b' | b'\x0c')
}

/// Whether a string without quotes ends before this byte.
const fn ends_bare(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b';' | b']' | b'}' | b'\'')
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn plain(bytes: &[u8]) -> Scalar {
    Scalar::Value(Value::Text(text(bytes)))
}
