//! The syntax of one JSON value, checked without keeping anything but the nesting.
//!
//! A request is scanned before it is decoded, as Go's decoder does: a syntax error anywhere is reported before an
//! unknown field in front of it. The texts are those of Go 1.27.

/// Deepest nesting of arrays and objects. Go allows as much; nothing here recurses, so it costs one bit a level.
const DEPTH_MAX: usize = 10_000;

/// Why a text is not JSON. `offset` counts the bytes up to and including the one that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SyntaxError {
    /// The text ends inside a value.
    #[error("unexpected EOF")]
    Eof,
    /// Something does not fit.
    #[error("{text} at offset {offset}")]
    At {
        /// What.
        text: String,
        /// Where.
        offset: usize,
    },
}

impl SyntaxError {
    /// The text where nats-server gives no offset: outside of the API's request bodies.
    pub(super) fn without_offset(self) -> String {
        match self {
            Self::Eof => "unexpected end of JSON input".to_owned(),
            Self::At { text, .. } => text,
        }
    }
}

/// Scans the value that starts at `start` (white space before it is allowed) and returns where it ends; `None` if
/// there is nothing but white space.
pub(super) fn scan_value(bytes: &[u8], start: usize) -> Result<Option<usize>, SyntaxError> {
    let mut scan = Scan { bytes, pos: start };
    scan.white_space();
    if scan.peek().is_none() {
        return Ok(None);
    }
    scan.value()?;
    Ok(Some(scan.pos))
}

/// Where the value that starts at `start` ends, in a text that was scanned before. Stops at the end of the text if
/// it was not.
pub(super) fn skip_value(bytes: &[u8], start: usize) -> usize {
    let mut scan = Scan { bytes, pos: start };
    match scan.value() {
        Ok(()) => scan.pos,
        Err(_) => bytes.len(),
    }
}

struct Scan<'a> {
    bytes: &'a [u8],
    pos: usize,
}

/// What an open bracket expects next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Object,
    Array,
}

impl Scan<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.pos).copied()
    }

    fn white_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.pos += 1;
        }
    }

    /// One value with everything in it. The stack of open brackets takes the place of recursion.
    fn value(&mut self) -> Result<(), SyntaxError> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            self.white_space();
            match self.peek() {
                Some(b'{') => {
                    self.enter(&mut open, Open::Object)?;
                    if !self.closes(b'}') {
                        self.key()?;
                        continue;
                    }
                    open.pop();
                }
                Some(b'[') => {
                    self.enter(&mut open, Open::Array)?;
                    if !self.closes(b']') {
                        continue;
                    }
                    open.pop();
                }
                _ => self.scalar()?,
            }
            // A value is complete: close what ends here, or go on to the next one of what is open.
            loop {
                let Some(innermost) = open.last().copied() else {
                    return Ok(());
                };
                if self.after_value(innermost)? {
                    open.pop();
                } else {
                    break;
                }
            }
        }
    }

    fn enter(&mut self, open: &mut Vec<Open>, kind: Open) -> Result<(), SyntaxError> {
        self.pos += 1;
        if open.len() >= DEPTH_MAX {
            return Err(error(self.pos, "exceeded max depth".to_owned()));
        }
        open.push(kind);
        Ok(())
    }

    fn closes(&mut self, bracket: u8) -> bool {
        self.white_space();
        let closes = self.peek() == Some(bracket);
        if closes {
            self.pos += 1;
        }
        closes
    }

    /// After a value inside `kind`: true if the bracket closes, false if another value follows.
    fn after_value(&mut self, kind: Open) -> Result<bool, SyntaxError> {
        self.white_space();
        match (kind, self.peek()) {
            (Open::Object, Some(b'}')) | (Open::Array, Some(b']')) => {
                self.pos += 1;
                Ok(true)
            }
            (Open::Object, Some(b',')) => {
                self.pos += 1;
                self.key()?;
                Ok(false)
            }
            (Open::Array, Some(b',')) => {
                self.pos += 1;
                Ok(false)
            }
            (Open::Object, _) => Err(self.unexpected("after object key:value pair")),
            (Open::Array, _) => Err(self.unexpected("after array element")),
        }
    }

    /// `"key" :`
    fn key(&mut self) -> Result<(), SyntaxError> {
        self.white_space();
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("looking for beginning of object key string"));
        }
        self.string()?;
        self.white_space();
        if self.peek() != Some(b':') {
            return Err(self.unexpected("after object key"));
        }
        self.pos += 1;
        Ok(())
    }

    fn scalar(&mut self) -> Result<(), SyntaxError> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            _ => Err(self.unexpected("looking for beginning of value")),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), SyntaxError> {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                let context = format!(
                    "in literal {word} (expecting {})",
                    char_text(char::from(expected))
                );
                return Err(self.unexpected(&context));
            }
            self.pos += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        if self.peek() == Some(b'-') {
            self.pos += 1;
        }
        if self.peek() == Some(b'0') {
            self.pos += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.pos += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.pos += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.pos += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), SyntaxError> {
        if !self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return Err(self.unexpected("in numeric literal"));
        }
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.pos += 1;
        }
        Ok(())
    }

    /// A string with its quotes. Bytes that are no UTF-8 are let through; the reader replaces them.
    fn string(&mut self) -> Result<(), SyntaxError> {
        self.pos += 1;
        loop {
            match self.peek() {
                None => return Err(SyntaxError::Eof),
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(0..0x20) => return Err(self.unexpected("in string")),
                Some(_) => self.pos += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<(), SyntaxError> {
        let rest = self.bytes.get(self.pos..).unwrap_or_default();
        let length = match rest.get(1) {
            None => return Err(SyntaxError::Eof),
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.pos += 2;
                return Ok(());
            }
            Some(b'u') => 6,
            Some(_) => 2,
        };
        let Some(escape) = rest.get(..length) else {
            return Err(SyntaxError::Eof);
        };
        if length == 6 && escape.iter().skip(2).all(u8::is_ascii_hexdigit) {
            self.pos += 6;
            return Ok(());
        }
        let text = format!(
            "invalid escape sequence `{}` in string",
            String::from_utf8_lossy(escape)
        );
        Err(error(self.pos + length, text))
    }

    /// `invalid character 'c' <context>` for what stands at the position.
    fn unexpected(&self, context: &str) -> SyntaxError {
        let rest = self.bytes.get(self.pos..).unwrap_or_default();
        let Some(first) = rest.first() else {
            return SyntaxError::Eof;
        };
        let (character, length) = match first_char(rest) {
            Some(c) => (char_text(c), c.len_utf8()),
            None => (format!("'\\x{first:02x}'"), 1),
        };
        error(
            self.pos + length,
            format!("invalid character {character} {context}"),
        )
    }
}

const fn error(offset: usize, text: String) -> SyntaxError {
    SyntaxError::At { text, offset }
}

/// The character at the start of `bytes`, if it is valid UTF-8.
fn first_char(bytes: &[u8]) -> Option<char> {
    (1..=4usize)
        .filter_map(|length| bytes.get(..length))
        .find_map(|prefix| std::str::from_utf8(prefix).ok())
        .and_then(|text| text.chars().next())
}

/// A character in single quotes, escaped as Go's `%q` does.
fn char_text(c: char) -> String {
    let mut text = String::from("'");
    match c {
        '\'' => text.push_str("\\'"),
        '"' => text.push('"'),
        other => push_escaped(&mut text, other),
    }
    text.push('\'');
    text
}

/// A text in double quotes, escaped as Go's `%q` does.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            other => push_escaped(&mut out, other),
        }
    }
    out.push('"');
    out
}

fn push_escaped(out: &mut String, c: char) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\x07' => out.push_str("\\a"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x0b' => out.push_str("\\v"),
        c if c < ' ' || c == '\x7f' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
        c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}
