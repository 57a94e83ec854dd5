//! Numbers in bytes: the small vocabulary that block files and checkpoints are written in. Little-endian; a varint
//! is LEB128 of at most ten bytes; a signed varint is zigzag coded first.

use thiserror::Error;

/// Bytes that are not what they should be. The text names the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

pub(crate) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(low_byte(n) | 0x80);
        n >>= 7;
    }
    out.push(low_byte(n));
}

pub(crate) fn put_signed(out: &mut Vec<u8>, n: i64) {
    put_varint(out, ((n << 1) ^ (n >> 63)).cast_unsigned());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The low seven bits of `n`.
const fn low_byte(n: u64) -> u8 {
    n.to_le_bytes()[0] & 0x7f
}

/// Reads one varint from the front of `bytes`: `(value, length)`.
pub(crate) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if at == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * at);
        if byte < 0x80 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Reads from the front of a slice; each read fails instead of going beyond the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(Malformed("the bytes end early"))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Malformed("the bytes end early"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[b]| b)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let (value, len) = varint(self.rest).ok_or(Malformed("a number is malformed"))?;
        self.take(len)?;
        Ok(value)
    }

    pub(crate) fn varint32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.varint()?).map_err(|_| Malformed("a number is too large"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let n = self.varint()?;
        Ok((n >> 1).cast_signed() ^ -((n & 1).cast_signed()))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.varint()?).map_err(|_| Malformed("a number is too large"))?;
        self.take(len)
    }
}

/// A count or length as 32 bits. Blocks are cut so that this holds; were it ever wrong, checksums would tell.
pub(crate) fn narrow(n: u64) -> u32 {
    debug_assert!(u32::try_from(n).is_ok(), "{n} in 32 bits");
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A 64-bit number as an index; one that does not fit is beyond the end of everything.
pub(crate) fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(n: u64, s: i64, bytes: Vec<u8>) {
            let mut out = Vec::new();
            put_varint(&mut out, n);
            put_signed(&mut out, s);
            put_bytes(&mut out, &bytes);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint(), Ok(n));
            prop_assert_eq!(reader.signed(), Ok(s));
            prop_assert_eq!(reader.bytes(), Ok(bytes.as_slice()));
            prop_assert_eq!(reader.left(), 0);
        }

        #[test]
        fn any_bytes_can_be_read(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.varint().is_ok() && reader.bytes().is_ok() && reader.signed().is_ok() {}
        }
    }
}
