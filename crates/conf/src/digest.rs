//! The digest of a configuration: SHA-256 over its canonical JSON.
//!
//! The JSON is that of Go's encoder: keys sorted by their bytes, no spaces, `<`, `>`, `&`, U+2028 and U+2029 as
//! escapes, and a line feed at the end. Tools compare the digest with the one that nats-server prints.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::value::{Map, Value};

/// `sha256:` and the digest in hexadecimal.
pub(crate) fn digest(map: &Map) -> String {
    let mut json = String::new();
    write_map(&mut json, map);
    json.push('\n');
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(json.as_bytes()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn write_map(out: &mut String, map: &Map) {
    let mut entries: Vec<_> = map.entries().iter().collect();
    entries.sort_by(|a, b| a.key.as_bytes().cmp(b.key.as_bytes()));
    out.push('{');
    for (at, entry) in entries.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write_text(out, &entry.key);
        out.push(':');
        write_value(out, &entry.node.value);
    }
    out.push('}');
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Integer(value) => {
            let _ = write!(out, "{value}");
        }
        Value::Float(value) => write_float(out, *value),
        Value::Text(value) | Value::DateTime(value) => write_text(out, value),
        Value::Array(nodes) => {
            out.push('[');
            for (at, node) in nodes.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_value(out, &node.value);
            }
            out.push(']');
        }
        Value::Map(map) => write_map(out, map),
    }
}

/// The shortest form that reads back; with an exponent (of at least two digits only above the point) where Go has
/// one: below 1e-6 and from 1e21.
fn write_float(out: &mut String, value: f64) {
    let size = value.abs();
    let plain = size == 0.0 || (1e-6..1e21).contains(&size);
    let _ = if plain {
        write!(out, "{value}")
    } else {
        let text = format!("{value:e}");
        let signed = if text.contains("e-") {
            text
        } else {
            text.replace('e', "e+")
        };
        write!(out, "{signed}")
    };
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{0}'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}
