//! Bytes as Go's `%q` shows them, which is how subjects and arguments stand in error texts and log lines.

use std::fmt::{self, Write as _};

/// Displays bytes between double quotes, escaped as Go's `%q` does: `"a\"b\x01\xffé"`.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                escape(f, c)?;
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        f.write_char('"')
    }
}

fn escape(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    match c {
        '"' | '\\' => {
            f.write_char('\\')?;
            f.write_char(c)
        }
        '\u{7}' => f.write_str("\\a"),
        '\u{8}' => f.write_str("\\b"),
        '\u{c}' => f.write_str("\\f"),
        '\n' => f.write_str("\\n"),
        '\r' => f.write_str("\\r"),
        '\t' => f.write_str("\\t"),
        '\u{b}' => f.write_str("\\v"),
        c if c.is_ascii_control() => write!(f, "\\x{:02x}", u32::from(c)),
        c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c)),
        c => f.write_char(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_go_does() {
        // Observed on nats-server 2.15.1 as the subject of a publish violation.
        assert_eq!(
            Quoted(b"_GR_.a\"b\\c\x01\xff\xc3\xa9").to_string(),
            "\"_GR_.a\\\"b\\\\c\\x01\\xff\u{e9}\""
        );
        assert_eq!(Quoted(b"\r").to_string(), "\"\\r\"");
        assert_eq!(Quoted(b"").to_string(), "\"\"");
    }
}
