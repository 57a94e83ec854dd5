//! Header blocks: `NATS/1.0[ status[ description]]\r\n`, lines `Name: Value\r\n`, and an empty line (ADR-4).
//!
//! Names are compared case-sensitively, as the server does everywhere. A value starts behind the colon; spaces at its
//! ends do not belong to it. Blocks that come from clients may have any form: readers skip lines that are none, and
//! [`is_well_formed`] is there for who must know.

use memchr::memmem;

/// How each block begins.
pub const VERSION: &[u8] = b"NATS/1.0";
/// The shortest block.
pub const EMPTY: &[u8] = b"NATS/1.0\r\n\r\n";

/// The value of the first line of this name.
#[must_use]
pub fn find<'a>(block: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (at, line_len) = position(block, name)?;
    let line = block.get(at..at + line_len)?;
    Some(line.get(name.len() + 1..)?.trim_ascii())
}

/// Start and length (without CRLF) of the first line of this name. The status line does not count.
fn position(block: &[u8], name: &[u8]) -> Option<(usize, usize)> {
    if name.is_empty() {
        return None;
    }
    for found in memmem::find_iter(block, name) {
        let starts_line = found.checked_sub(2).and_then(|at| block.get(at..found)) == Some(b"\r\n");
        if starts_line && block.get(found + name.len()) == Some(&b':') {
            let rest = block.get(found..)?;
            return Some((found, memmem::find(rest, b"\r\n").unwrap_or(rest.len())));
        }
    }
    None
}

/// All lines with a colon, as name and value, in order.
pub fn iter(block: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines(block).skip(1).filter_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        let (name, value) = line.split_at_checked(colon)?;
        Some((name, value.get(1..)?.trim_ascii()))
    })
}

/// Lines up to the empty one, the status line first.
fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = block;
    std::iter::from_fn(move || {
        let end = memmem::find(rest, b"\r\n").unwrap_or(rest.len());
        let line = rest.get(..end)?;
        rest = rest.get(end + 2..).unwrap_or_default();
        (!line.is_empty()).then_some(line)
    })
}

/// Status and description of the status line: `503` and an empty description, or `409` and `Consumer Deleted`.
#[must_use]
pub fn status(block: &[u8]) -> Option<(u16, &[u8])> {
    let line = lines(block).next()?.strip_prefix(VERSION)?.strip_prefix(b" ")?;
    let line = line.trim_ascii();
    let digits = line.get(..3)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let status = digits.iter().fold(0, |n, d| n * 10 + u16::from(d - b'0'));
    let description = line.get(3..)?;
    if description.first().is_some_and(|b| *b != b' ') {
        return None;
    }
    Some((status, description.trim_ascii()))
}

/// Whether a block has the form that is described above: version, lines with a colon behind a name, an empty line at
/// the end and nowhere else. No block at all counts as well-formed.
#[must_use]
pub fn is_well_formed(block: &[u8]) -> bool {
    if block.is_empty() {
        return true;
    }
    let Some(body) = block.strip_suffix(b"\r\n\r\n") else {
        return false;
    };
    let mut all = LineSplit(Some(body));
    let first = all.next().and_then(|line| line.strip_prefix(VERSION));
    let Some(status) = first else { return false };
    (status.is_empty() || status.starts_with(b" "))
        && all.all(|line| memchr::memchr(b':', line).is_some_and(|colon| colon > 0))
}

/// Splits at CRLF, empty pieces included.
struct LineSplit<'a>(Option<&'a [u8]>);

impl<'a> Iterator for LineSplit<'a> {
    type Item = &'a [u8];
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.0?;
        let Some(end) = memmem::find(rest, b"\r\n") else {
            self.0 = None;
            return Some(rest);
        };
        self.0 = rest.get(end + 2..);
        rest.get(..end)
    }
}

/// Appends a line to a block, before its empty line. An empty block becomes one, and one that does not end as it
/// should does so afterwards.
pub fn append(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if block.is_empty() {
        block.extend_from_slice(EMPTY);
    }
    if block.ends_with(b"\r\n\r\n") {
        block.truncate(block.len() - 2);
    } else if !block.ends_with(b"\r\n") {
        block.extend_from_slice(b"\r\n");
    }
    for part in [name, b": ", value, b"\r\n\r\n"] {
        block.extend_from_slice(part);
    }
}

/// Removes all lines of this name. A block that has no line and no status left becomes empty.
pub fn remove(block: &mut Vec<u8>, name: &[u8]) {
    let mut changed = false;
    while let Some((at, len)) = position(block, name) {
        let end = (at + len + 2).min(block.len());
        block.drain(at..end);
        changed = true;
    }
    if changed && block.as_slice() == EMPTY {
        block.clear();
    }
}

/// Removes all lines whose name starts with `prefix`.
pub fn remove_prefixed(block: &mut Vec<u8>, prefix: &[u8]) {
    let names: Vec<Vec<u8>> = iter(block)
        .filter(|(name, _)| name.starts_with(prefix))
        .map(|(name, _)| name.to_vec())
        .collect();
    for name in names {
        remove(block, &name);
    }
}

/// Makes `value` the only value of this name; the line goes to the end.
pub fn set(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    remove(block, name);
    append(block, name, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: &[u8] = b"NATS/1.0\r\nA: 1\r\nBA: 2\r\nA:3 \r\na: 4\r\n\r\n";

    #[test]
    fn finds_whole_names_at_line_starts_only() {
        assert_eq!(find(BLOCK, b"A"), Some(&b"1"[..]));
        assert_eq!(find(BLOCK, b"BA"), Some(&b"2"[..]));
        assert_eq!(find(BLOCK, b"a"), Some(&b"4"[..]));
        assert_eq!(find(BLOCK, b"B"), None);
        assert_eq!(find(BLOCK, b""), None);
        assert_eq!(find(b"NATS/1.0 A: 1\r\n\r\n", b"A"), None);
        assert_eq!(find(b"A: 1\r\n\r\n", b"A"), None);
        assert_eq!(find(b"", b"A"), None);
    }

    #[test]
    fn iterates_in_order() {
        let all: Vec<_> = iter(BLOCK).map(|(n, v)| [n, b"=", v].concat()).collect();
        assert_eq!(all, [&b"A=1"[..], b"BA=2", b"A=3", b"a=4"]);
        assert_eq!(iter(b"").count(), 0);
        assert_eq!(
            iter(b"NATS/1.0\r\nnocolon\r\nA:1").collect::<Vec<_>>(),
            [(&b"A"[..], &b"1"[..])]
        );
    }

    #[test]
    fn status_lines() {
        assert_eq!(status(b"NATS/1.0 503\r\n\r\n"), Some((503, &b""[..])));
        assert_eq!(
            status(b"NATS/1.0 409 Consumer Deleted\r\nA: 1\r\n\r\n"),
            Some((409, &b"Consumer Deleted"[..]))
        );
        for none in [
            &b"NATS/1.0\r\n\r\n"[..],
            b"NATS/1.0 50\r\n\r\n",
            b"NATS/1.0 5033\r\n\r\n",
            b"",
            b"NATS/1.0 abc",
        ] {
            assert_eq!(status(none), None);
        }
    }

    #[test]
    fn well_formed() {
        for good in [
            &b""[..],
            EMPTY,
            BLOCK,
            b"NATS/1.0 503\r\n\r\n",
            b"NATS/1.0\r\nA:\r\n\r\n",
        ] {
            assert!(is_well_formed(good));
        }
        let bad: [&[u8]; 7] = [
            b"NATS/1.0",
            b"NATS/1.0\r\n",
            b"NATS/2.0\r\n\r\n",
            b"NATS/1.0x\r\n\r\n",
            b"NATS/1.0\r\nA\r\n\r\n",
            b"NATS/1.0\r\n: x\r\n\r\n",
            b"NATS/1.0\r\nA: 1\r\n\r\nB: 1\r\n\r\n",
        ];
        for bad in bad {
            assert!(!is_well_formed(bad), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn changes() {
        let mut block = Vec::new();
        append(&mut block, b"A", b"1");
        assert_eq!(block, b"NATS/1.0\r\nA: 1\r\n\r\n");
        set(&mut block, b"A", b"2");
        append(&mut block, b"Nats-X", b"3");
        append(&mut block, b"Nats-Y", b"4");
        assert_eq!(block, b"NATS/1.0\r\nA: 2\r\nNats-X: 3\r\nNats-Y: 4\r\n\r\n");
        remove_prefixed(&mut block, b"Nats-");
        assert_eq!(block, b"NATS/1.0\r\nA: 2\r\n\r\n");
        remove(&mut block, b"B");
        remove(&mut block, b"A");
        assert!(block.is_empty());
        let mut unfinished = b"NATS/1.0\r".to_vec();
        append(&mut unfinished, b"A", b"1");
        assert_eq!(unfinished, b"NATS/1.0\r\r\nA: 1\r\n\r\n");
        let mut status = b"NATS/1.0 503\r\nA: 1\r\n\r\n".to_vec();
        remove(&mut status, b"A");
        assert_eq!(status, b"NATS/1.0 503\r\n\r\n");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(block in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b':'), Just(b'A'), Just(b' '), any::<u8>()], 0..80)) {
            let mut changed = block.clone();
            set(&mut changed, b"A", b"v");
            prop_assert_eq!(find(&changed, b"A"), Some(&b"v"[..]));
            remove_prefixed(&mut changed, b"A");
            let _ = (status(&block), iter(&block).count(), is_well_formed(&block), find(&block, b"A"));
        }

        #[test]
        fn what_is_set_is_found(pairs in prop::collection::vec(("[A-Ca-c]{1,2}", "[a-z0-9:]{0,4}"), 0..8)) {
            let mut block = Vec::new();
            let mut model: Vec<(String, String)> = Vec::new();
            for (name, value) in &pairs {
                set(&mut block, name.as_bytes(), value.as_bytes());
                model.retain(|(n, _)| n != name);
                model.push((name.clone(), value.clone()));
                prop_assert!(is_well_formed(&block));
            }
            let seen: Vec<_> = iter(&block)
                .map(|(n, v)| (String::from_utf8_lossy(n).into_owned(), String::from_utf8_lossy(v).into_owned()))
                .collect();
            prop_assert_eq!(seen, model);
        }
    }
}
