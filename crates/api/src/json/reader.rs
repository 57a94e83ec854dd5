//! A reader over JSON whose syntax was checked before. It hands out one value at a time and keeps the path to it, so
//! that a value of the wrong type is refused with the text that Go's decoder would give.

use super::scan::{quoted, skip_value};
use std::borrow::Cow;
use std::fmt;

/// Why a request can not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DecodeError {
    text: String,
    /// A value of the wrong type: the text without the type, and the length of the path to the value. Lets the field
    /// that holds the value name the Go type that the Rust type does not tell.
    mismatch: Option<(String, usize)>,
}

impl DecodeError {
    /// An error with a text of its own.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self { text, mismatch: None }
    }

    fn mismatch(stem: String, depth: usize, go_type: &str) -> Self {
        Self {
            text: format!("{stem}{go_type}"),
            mismatch: Some((stem, depth)),
        }
    }
}

/// The kind of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Number => "number",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Key(String),
    Index(usize),
}

/// A reader that stands before a value.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
    strict: bool,
    root: Cow<'static, str>,
    path: Vec<Step>,
}

impl<'a> Reader<'a> {
    /// A reader at `pos` of a text whose syntax is known to be good from there to the end of one value. `root` is the
    /// Go type of that value.
    pub(super) fn new(bytes: &'a [u8], pos: usize, strict: bool, root: Cow<'static, str>) -> Self {
        Self {
            bytes,
            pos,
            strict,
            root,
            path: Vec::new(),
        }
    }

    /// The kind of the value.
    pub fn kind(&mut self) -> Kind {
        match self.next_byte() {
            b't' | b'f' => Kind::Bool,
            b'"' => Kind::String,
            b'[' => Kind::Array,
            b'{' => Kind::Object,
            b'-' | b'0'..=b'9' => Kind::Number,
            _ => Kind::Null,
        }
    }

    /// Takes the value as it is written.
    pub fn raw(&mut self) -> &'a [u8] {
        self.next_byte();
        let start = self.pos;
        self.pos = skip_value(self.bytes, start);
        self.bytes.get(start..self.pos).unwrap_or_default()
    }

    /// Takes the value as it is written, as text.
    pub fn raw_text(&mut self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.raw())
    }

    /// Takes a `null`, if the value is one.
    pub fn null(&mut self) -> bool {
        let null = self.kind() == Kind::Null;
        if null {
            self.raw();
        }
        null
    }

    /// Takes a string.
    ///
    /// # Errors
    /// The value is something else; `go_type` is what the field is called in the text.
    pub fn string(&mut self, go_type: &str) -> Result<Cow<'a, str>, DecodeError> {
        if self.kind() != Kind::String {
            return Err(self.mismatch("", go_type));
        }
        Ok(unescape(self.raw()))
    }

    /// Takes a `true` or `false`.
    ///
    /// # Errors
    /// The value is something else.
    pub fn boolean(&mut self) -> Result<bool, DecodeError> {
        if self.kind() != Kind::Bool {
            return Err(self.mismatch("", "bool"));
        }
        Ok(self.raw() == b"true")
    }

    /// Takes a whole number.
    ///
    /// # Errors
    /// The value is something else, has a fraction or exponent, or does not fit.
    pub fn integer<T: std::str::FromStr>(&mut self, go_type: &str) -> Result<T, DecodeError> {
        if self.kind() != Kind::Number {
            return Err(self.mismatch("", go_type));
        }
        let text = self.raw_text();
        text.parse()
            .map_err(|_| self.mismatch_of(&format!("number {text}"), go_type))
    }

    /// Takes an object: `member` is called before each value, with its key, and must take the value.
    ///
    /// # Errors
    /// The value is something else, or an error of `member`.
    pub fn object(
        &mut self,
        go_type: &str,
        mut member: impl FnMut(&mut Self, &str) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        if self.kind() != Kind::Object {
            return Err(self.mismatch("", go_type));
        }
        self.pos += 1;
        while self.next_byte() == b'"' {
            let key = unescape(self.raw());
            self.next_byte();
            self.pos += 1;
            self.path.push(Step::Key(key.clone().into_owned()));
            let result = member(self, &key);
            self.path.pop();
            result?;
            if self.next_byte() == b',' {
                self.pos += 1;
            }
        }
        self.pos += 1;
        Ok(())
    }

    /// Takes an array: `element` is called before each value and must take it.
    ///
    /// # Errors
    /// The value is something else, or an error of `element`.
    pub fn array(
        &mut self,
        go_type: &str,
        mut element: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        if self.kind() != Kind::Array {
            return Err(self.mismatch("", go_type));
        }
        self.pos += 1;
        let mut index = 0;
        while !matches!(self.next_byte(), b']' | 0) {
            self.path.push(Step::Index(index));
            let result = element(self);
            self.path.pop();
            result?;
            index += 1;
            if self.next_byte() == b',' {
                self.pos += 1;
            }
        }
        self.pos += 1;
        Ok(())
    }

    /// Answers a key that no field has: the value is skipped, unless unknown fields are refused.
    ///
    /// # Errors
    /// Unknown fields are refused.
    pub fn unknown(&mut self, key: &str) -> Result<(), DecodeError> {
        if self.strict {
            return Err(DecodeError::new(format!("json: unknown field {}", quoted(key))));
        }
        self.raw();
        Ok(())
    }

    /// Gives the error of a field's own value the Go type of the field.
    #[must_use]
    pub fn retyped(&self, error: DecodeError, go_type: &str) -> DecodeError {
        match error.mismatch {
            Some((stem, depth)) if depth == self.path.len() => DecodeError::mismatch(stem, depth, go_type),
            other => DecodeError {
                text: error.text,
                mismatch: other,
            },
        }
    }

    fn mismatch(&mut self, detail: &str, go_type: &str) -> DecodeError {
        let found = self.kind().as_str().to_owned() + detail;
        self.mismatch_of(&found, go_type)
    }

    /// `json: cannot unmarshal <found> into Go struct field <root>.<path> of type <go type>`. An element of an array
    /// that is no object itself is named without `Go struct field`, as Go 1.27 does.
    fn mismatch_of(&self, found: &str, go_type: &str) -> DecodeError {
        let mut stem = format!("json: cannot unmarshal {found} into ");
        let root = self.root.strip_prefix("server.").unwrap_or(&self.root);
        match self.path.last() {
            None => stem.push_str("Go value"),
            Some(Step::Key(_)) => stem.push_str(&format!("Go struct field {root}")),
            Some(Step::Index(_)) => stem.push_str(root),
        }
        for step in &self.path {
            match step {
                Step::Key(key) => stem.push_str(&format!(".{key}")),
                Step::Index(index) => stem.push_str(&format!(".{index}")),
            }
        }
        stem.push_str(" of type ");
        DecodeError::mismatch(stem, self.path.len(), go_type)
    }

    /// Skips white space and returns the byte after it, 0 at the end of the text.
    fn next_byte(&mut self) -> u8 {
        loop {
            match self.bytes.get(self.pos).copied() {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.pos += 1,
                Some(byte) => return byte,
                None => return 0,
            }
        }
    }

    /// Where the reader stands.
    pub(super) const fn pos(&self) -> usize {
        self.pos
    }
}

/// The text of a string with its quotes. What is no valid UTF-8 or UTF-16 becomes U+FFFD, as in Go.
fn unescape(raw: &[u8]) -> Cow<'_, str> {
    let inner = raw.strip_prefix(b"\"").unwrap_or(raw);
    let inner = inner.strip_suffix(b"\"").unwrap_or(inner);
    if !inner.contains(&b'\\') {
        return String::from_utf8_lossy(inner);
    }
    let text = String::from_utf8_lossy(inner);
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.push_str(plain);
        let mut chars = escape.chars();
        rest = match chars.next() {
            Some('u') => push_unicode(&mut out, chars.as_str()),
            Some(c) => {
                out.push(simple_escape(c));
                chars.as_str()
            }
            None => "",
        };
    }
    out.push_str(rest);
    Cow::Owned(out)
}

const fn simple_escape(c: char) -> char {
    match c {
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        other => other,
    }
}

/// Writes the character of `XXXX` (and of a `\uXXXX` after it, if both are a surrogate pair); returns what follows.
fn push_unicode<'t>(out: &mut String, text: &'t str) -> &'t str {
    let (unit, rest) = hex4(text);
    if let Some(c) = char::from_u32(unit) {
        out.push(c);
        return rest;
    }
    if let Some(second) = rest.strip_prefix("\\u") {
        let (low, after) = hex4(second);
        if (0xD800..0xDC00).contains(&unit) && (0xDC00..0xE000).contains(&low) {
            let code = 0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
            out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            return after;
        }
    }
    out.push(char::REPLACEMENT_CHARACTER);
    rest
}

fn hex4(text: &str) -> (u32, &str) {
    match text.split_at_checked(4) {
        Some((digits, rest)) => (u32::from_str_radix(digits, 16).unwrap_or(0xD800), rest),
        None => (0xD800, ""),
    }
}
