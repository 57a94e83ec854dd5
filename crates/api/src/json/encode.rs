//! Rendering of JSON as Go's `encoding/json` does it.

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// Renders a value on one line: `<`, `>`, `&`, U+2028 and U+2029 are escaped, and floats have Go's form.
#[must_use]
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    render(value, CompactFormatter)
}

/// Renders a value indented by two spaces, as the monitoring endpoints do.
#[must_use]
pub fn to_json_pretty<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    render(value, PrettyFormatter::with_indent(b"  "))
}

fn render<T: Serialize + ?Sized, F: Formatter>(value: &T, layout: F) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let mut serializer = Serializer::with_formatter(&mut out, GoFormatter(layout));
    // Writing to a vector can not fail, and the types of this crate have string keys and no failing serializer.
    match value.serialize(&mut serializer) {
        Ok(()) => out,
        Err(error) => {
            debug_assert!(false, "a value that has no JSON form: {error}");
            b"{}".to_vec()
        }
    }
}

/// Go's form of strings and floats over the layout of another formatter.
struct GoFormatter<F>(F);

impl<F: Formatter> Formatter for GoFormatter<F> {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (plain, special) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let mut chars = special.chars();
            if let Some(c) = chars.next() {
                write!(writer, "\\u{:04x}", u32::from(c))?;
            }
            rest = chars.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_f64<W: Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let size = value.abs();
        if size != 0.0 && !(1e-6..1e21).contains(&size) {
            let text = format!("{value:e}");
            return match text.split_once('e') {
                Some((digits, power)) if !power.starts_with('-') => write!(writer, "{digits}e+{power}"),
                _ => writer.write_all(text.as_bytes()),
            };
        }
        write!(writer, "{value}")
    }

    fn write_char_escape<W: Write + ?Sized>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        self.0.write_char_escape(writer, escape)
    }

    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
