//! Codec of a stored message.
//!
//! Shape, little-endian, no padding:
//! ```text
//! 0   crc32c       u32   over bytes 4..total_len
//! 4   total_len    u32   of the whole record, this head included
//! 8   subject_len  u16
//! 10  flags        u16   bit 0: a header block is there
//! 12  header_len   u32   whole block `NATS/1.0\r\n...\r\n\r\n`
//! 16  subject | header | payload
//! ```
//! Parsing checks the structure only; [`RecordRef::check`] checks the checksum and is called once a node, where the
//! bytes come in from a peer or from disk.

use bytes::{BufMut, Bytes};
use thiserror::Error;

/// Bytes of the fixed head of a record.
pub const RECORD_HEAD_BYTES: usize = 16;
/// Longest record in bytes: `max_payload` may be configured up to 64 MiB (header block included), and a subject
/// has at most 65,535 bytes. Longer ones are refused by both encoder and parser.
pub const RECORD_BYTES_MAX: usize = RECORD_HEAD_BYTES + 65_535 + 64 * 1024 * 1024;

const FLAG_HEADERS: u16 = 1;

/// Why bytes are not a record, or a message cannot become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The bytes end before the record does; `needed` is the length of the whole record as far as it is known.
    #[error("record is cut short: {needed} bytes are needed")]
    Incomplete {
        /// Bytes from the start of the record.
        needed: usize,
    },
    /// The structure contradicts itself.
    #[error("record is malformed: {0}")]
    Malformed(&'static str),
    /// The checksum does not fit the bytes.
    #[error("record fails its checksum")]
    Checksum,
    /// Subject, header block or the whole is longer than the format can hold.
    #[error("record is too large")]
    TooLarge,
}

/// Length of the record that these parts make, in bytes.
#[must_use]
pub const fn encoded_len(subject: &[u8], header: &[u8], payload: &[u8]) -> usize {
    RECORD_HEAD_BYTES + subject.len() + header.len() + payload.len()
}

/// The head of the record that these parts make; head, subject, header and payload in this order are the record.
/// For callers that keep a large payload as a part of its own.
///
/// # Errors
/// [`RecordError::TooLarge`] if the subject exceeds 65,535 bytes or the record [`RECORD_BYTES_MAX`].
pub fn encode_head(
    subject: &[u8],
    header: &[u8],
    payload: &[u8],
) -> Result<[u8; RECORD_HEAD_BYTES], RecordError> {
    let total = encoded_len(subject, header, payload);
    if total > RECORD_BYTES_MAX {
        return Err(RecordError::TooLarge);
    }
    let too_large = |_| RecordError::TooLarge;
    let total = u32::try_from(total).map_err(too_large)?;
    let subject_len = u16::try_from(subject.len()).map_err(too_large)?;
    let header_len = u32::try_from(header.len()).map_err(too_large)?;
    let flags = if header.is_empty() { 0 } else { FLAG_HEADERS };

    let [t0, t1, t2, t3] = total.to_le_bytes();
    let [s0, s1] = subject_len.to_le_bytes();
    let [f0, f1] = flags.to_le_bytes();
    let [h0, h1, h2, h3] = header_len.to_le_bytes();
    let covered = [t0, t1, t2, t3, s0, s1, f0, f1, h0, h1, h2, h3];
    let mut crc = crc32c::crc32c(&covered);
    for part in [subject, header, payload] {
        crc = crc32c::crc32c_append(crc, part);
    }
    let [c0, c1, c2, c3] = crc.to_le_bytes();
    Ok([c0, c1, c2, c3, t0, t1, t2, t3, s0, s1, f0, f1, h0, h1, h2, h3])
}

/// Appends one record to `out` and returns its length in bytes. Nothing is written on an error.
///
/// `header` is the whole header block (`NATS/1.0\r\n...\r\n\r\n`), or empty for a message without headers.
///
/// # Errors
/// [`RecordError::TooLarge`], see [`encode_head`].
pub fn encode_into(
    out: &mut impl BufMut,
    subject: &[u8],
    header: &[u8],
    payload: &[u8],
) -> Result<usize, RecordError> {
    let head = encode_head(subject, header, payload)?;
    out.put_slice(&head);
    out.put_slice(subject);
    out.put_slice(header);
    out.put_slice(payload);
    Ok(encoded_len(subject, header, payload))
}

/// Lengths of a record, as its head states them and its structure bears out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    total: usize,
    subject: usize,
    header: usize,
}

impl Shape {
    fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let Some(head) = bytes.first_chunk::<RECORD_HEAD_BYTES>() else {
            return Err(RecordError::Incomplete {
                needed: RECORD_HEAD_BYTES,
            });
        };
        let [_, _, _, _, t0, t1, t2, t3, s0, s1, f0, f1, h0, h1, h2, h3] = *head;
        let length = |n: u32| usize::try_from(n).map_err(|_| RecordError::TooLarge);
        let shape = Self {
            total: length(u32::from_le_bytes([t0, t1, t2, t3]))?,
            subject: usize::from(u16::from_le_bytes([s0, s1])),
            header: length(u32::from_le_bytes([h0, h1, h2, h3]))?,
        };
        if shape.total > RECORD_BYTES_MAX {
            return Err(RecordError::TooLarge);
        }
        let parts = RECORD_HEAD_BYTES
            .saturating_add(shape.subject)
            .saturating_add(shape.header);
        if parts > shape.total {
            return Err(RecordError::Malformed("parts exceed the length"));
        }
        match u16::from_le_bytes([f0, f1]) {
            0 if shape.header == 0 => {}
            FLAG_HEADERS if shape.header > 0 => {}
            0 | FLAG_HEADERS => return Err(RecordError::Malformed("header flag and length disagree")),
            _ => return Err(RecordError::Malformed("unknown flags")),
        }
        if bytes.len() < shape.total {
            return Err(RecordError::Incomplete { needed: shape.total });
        }
        Ok(shape)
    }
}

/// A record as a view of bytes that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// The whole record.
    bytes: &'a [u8],
    /// Subject, header block and payload, split at the parse.
    subject: &'a [u8],
    header: &'a [u8],
    payload: &'a [u8],
}

impl<'a> RecordRef<'a> {
    /// Reads the record at the start of `bytes`; the number is its length in bytes. The checksum is not looked at.
    ///
    /// # Errors
    /// [`RecordError::Incomplete`] if more bytes are needed, [`RecordError::Malformed`] or
    /// [`RecordError::TooLarge`] if no continuation can make this a record.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, usize), RecordError> {
        let shape = Shape::parse(bytes)?;
        let record = Self::split(bytes, shape).ok_or(RecordError::Malformed("parts exceed the length"))?;
        Ok((record, shape.total))
    }

    fn split(bytes: &'a [u8], shape: Shape) -> Option<Self> {
        let bytes = bytes.get(..shape.total)?;
        let (subject, rest) = bytes.get(RECORD_HEAD_BYTES..)?.split_at_checked(shape.subject)?;
        let (header, payload) = rest.split_at_checked(shape.header)?;
        Some(Self {
            bytes,
            subject,
            header,
            payload,
        })
    }

    /// The subject, without checks of its form.
    #[must_use]
    pub const fn subject(&self) -> &'a [u8] {
        self.subject
    }

    /// The whole header block, or nothing.
    #[must_use]
    pub const fn header(&self) -> &'a [u8] {
        self.header
    }

    /// The payload.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The whole record, as it is stored and sent.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The checksum that the record states; equal for equal messages, so digests are made of it.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.bytes
            .first_chunk::<4>()
            .map_or(0, |c| u32::from_le_bytes(*c))
    }

    /// Checks the checksum.
    ///
    /// # Errors
    /// [`RecordError::Checksum`].
    pub fn check(&self) -> Result<(), RecordError> {
        let covered = self.bytes.get(4..).unwrap_or_default();
        if crc32c::crc32c(covered) == self.crc() {
            Ok(())
        } else {
            Err(RecordError::Checksum)
        }
    }
}

/// A record that shares ownership of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordView {
    bytes: Bytes,
    subject_end: usize,
    header_end: usize,
}

impl RecordView {
    /// Takes the record at the start of `bytes`, which is not copied; bytes after the record are left out. The
    /// checksum is not looked at.
    ///
    /// # Errors
    /// As [`RecordRef::parse`].
    pub fn parse(bytes: &Bytes) -> Result<Self, RecordError> {
        let shape = Shape::parse(bytes)?;
        let subject_end = RECORD_HEAD_BYTES + shape.subject;
        Ok(Self {
            bytes: bytes.slice(..shape.total),
            subject_end,
            header_end: subject_end + shape.header,
        })
    }

    /// The whole record, as it is stored and sent.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The subject, without checks of its form.
    #[must_use]
    pub fn subject(&self) -> &[u8] {
        self.bytes
            .get(RECORD_HEAD_BYTES..self.subject_end)
            .unwrap_or_default()
    }

    /// The whole header block, or nothing.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.bytes
            .get(self.subject_end..self.header_end)
            .unwrap_or_default()
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.header_end..).unwrap_or_default()
    }

    /// The payload as a share of the same bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> Bytes {
        self.bytes.slice(self.header_end..)
    }

    /// Header block and payload, which lie beside each other, as a share of the same bytes: the body of an HMSG.
    #[must_use]
    pub fn body_bytes(&self) -> Bytes {
        self.bytes.slice(self.subject_end..)
    }

    /// The checksum that the record states.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.bytes
            .first_chunk::<4>()
            .map_or(0, |c| u32::from_le_bytes(*c))
    }

    /// Checks the checksum.
    ///
    /// # Errors
    /// [`RecordError::Checksum`].
    pub fn check(&self) -> Result<(), RecordError> {
        RecordRef {
            bytes: &self.bytes,
            subject: &[],
            header: &[],
            payload: &[],
        }
        .check()
    }
}

/// Records that lie back to back. Ends after the last one, or after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// All records of `bytes`, which end where a record ends.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet; empty after an error.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RecordRef<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let parsed = RecordRef::parse(self.rest);
        let taken = parsed.as_ref().map_or(self.rest.len(), |(_, len)| *len);
        self.rest = self.rest.get(taken..).unwrap_or_default();
        Some(parsed.map(|(record, _)| record))
    }
}

/// Records that lie back to back in shared bytes; each is a share of them. Ends after the last one, or after the
/// first error.
#[derive(Clone, Debug)]
pub struct Views {
    rest: Bytes,
}

impl Views {
    /// All records of `bytes`, which end where a record ends.
    #[must_use]
    pub const fn new(bytes: Bytes) -> Self {
        Self { rest: bytes }
    }
}

impl Iterator for Views {
    type Item = Result<RecordView, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let parsed = RecordView::parse(&self.rest);
        let taken = parsed.as_ref().map_or(self.rest.len(), |view| view.bytes.len());
        self.rest = self.rest.slice(taken..);
        Some(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn encoded(subject: &[u8], header: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let len = encode_into(&mut out, subject, header, payload).unwrap();
        assert_eq!(len, out.len());
        out
    }

    /// The layout is a promise to files that exist: these bytes never change.
    #[test]
    fn layout_is_fixed() {
        let bytes = encoded(b"a.b", b"H", b"xyz");
        assert_eq!(bytes[4..16], [23, 0, 0, 0, 3, 0, 1, 0, 1, 0, 0, 0]);
        assert_eq!(&bytes[16..], b"a.bHxyz");
        assert_eq!(bytes[..4], crc32c::crc32c(&bytes[4..]).to_le_bytes());
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let mut out = Vec::new();
        let long = vec![b'a'; 65_536];
        assert_eq!(encode_into(&mut out, &long, b"", b""), Err(RecordError::TooLarge));
        assert!(out.is_empty());
        assert!(encode_into(&mut out, &long[1..], b"", b"").is_ok());

        let mut bytes = encoded(b"s", b"", b"p");
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(RecordRef::parse(&bytes), Err(RecordError::TooLarge));
        for (at, why) in [
            (10, "header flag and length disagree"),
            (11, "unknown flags"),
            (8, "parts exceed the length"),
        ] {
            let mut bytes = encoded(b"s", b"", b"p");
            bytes[at] += 9 * u8::from(at == 8) + u8::from(at != 8);
            assert_eq!(RecordRef::parse(&bytes), Err(RecordError::Malformed(why)));
        }
    }

    proptest! {
        #[test]
        fn round_trips_back_to_back(
            messages in vec((vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..100)), 0..10),
        ) {
            let all: Vec<u8> = messages.iter().flat_map(|(s, h, p)| encoded(s, h, p)).collect();
            let read: Vec<_> = Records::new(&all)
                .map(|record| {
                    let record = record.unwrap();
                    record.check().unwrap();
                    (record.subject().to_vec(), record.header().to_vec(), record.payload().to_vec())
                })
                .collect();
            prop_assert_eq!(&read, &messages);
            let views: Vec<_> = Views::new(Bytes::from(all))
                .map(|view| {
                    let view = view.unwrap();
                    view.check().unwrap();
                    prop_assert_eq!(view.body_bytes(), [view.header(), view.payload()].concat());
                    prop_assert_eq!(view.payload_bytes(), view.payload());
                    Ok((view.subject().to_vec(), view.header().to_vec(), view.payload().to_vec()))
                })
                .collect::<Result<_, TestCaseError>>()?;
            prop_assert_eq!(views, messages);
        }

        /// Any cut asks for more, and any flipped bit is noticed by the parse or by the check.
        #[test]
        fn cuts_and_flips_are_noticed(payload in vec(any::<u8>(), 0..60), at in any::<usize>(), bit in 0..8_u32) {
            let whole = encoded(b"subject", b"NATS/1.0\r\n\r\n", &payload);
            let cut = at % whole.len();
            let needed = if cut < RECORD_HEAD_BYTES { RECORD_HEAD_BYTES } else { whole.len() };
            prop_assert_eq!(RecordRef::parse(&whole[..cut]), Err(RecordError::Incomplete { needed }));

            let mut flipped = whole;
            flipped[cut] ^= 1_u8 << bit;
            let noticed = RecordRef::parse(&flipped).and_then(|(record, _)| record.check());
            prop_assert!(noticed.is_err());
        }

        #[test]
        fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..200)) {
            for record in Records::new(&bytes) {
                let _ = record.map(|record| record.check());
            }
        }
    }
}
