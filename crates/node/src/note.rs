//! Small files of a store that people may read: lines of a name and a value, and a last one with a checksum.
//!
//! ```text
//! node 0123456789abcdef
//! sum 89abcdef
//! ```
//! The sum is the CRC-32C of all bytes before its line, in eight lower-case hexadecimal digits. There is one way to write
//! the same values, so that any change of the file is noticed.

use bytes::Bytes;
use std::fmt::Write;

/// A longer file is none of these.
pub const NOTE_BYTES_MAX: u64 = 4096;

/// The bytes of a file with these lines. Names have no spaces; values have no line breaks.
#[must_use]
pub fn encode_note(lines: &[(&str, String)]) -> Bytes {
    let mut text = String::new();
    for (name, value) in lines {
        text.push_str(name);
        text.push(' ');
        text.push_str(value);
        text.push('\n');
    }
    let sum = crc32c::crc32c(text.as_bytes());
    // Writing to a string does not fail.
    let _ = writeln!(text, "sum {sum:08x}");
    Bytes::from(text)
}

/// The values of the lines with these names; `None` if the file is damaged or has other lines.
#[must_use]
pub fn decode_note<const N: usize>(bytes: &[u8], names: [&str; N]) -> Option<[String; N]> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.lines();
    let values = names.map(|name| {
        let value = lines.next()?.strip_prefix(name)?.strip_prefix(' ')?;
        Some((name, value.to_owned()))
    });
    let values: Vec<(&str, String)> = values.into_iter().collect::<Option<_>>()?;
    if encode_note(&values) != bytes {
        return None;
    }
    let values: Vec<String> = values.into_iter().map(|(_, value)| value).collect();
    values.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_of_a_note_is_noticed() {
        let bytes = encode_note(&[("node", "00ff".to_owned()), ("cluster", "ab cd".to_owned())]);
        let names = ["node", "cluster"];
        let values = decode_note(&bytes, names);
        assert_eq!(values, Some(["00ff".to_owned(), "ab cd".to_owned()]));
        assert_eq!(decode_note(&bytes, ["node"]), None);
        assert_eq!(decode_note(&bytes, ["cluster", "node"]), None);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_note(&changed, names), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(decode_note(&bytes[..len], names), None, "{len} bytes");
        }
        assert_eq!(decode_note(&[&bytes[..], b"\n"].concat(), names), None);
    }
}
