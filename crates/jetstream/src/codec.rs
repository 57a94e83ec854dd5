//! Little-endian reading and writing for log entries and checkpoints.
//!
//! Lengths that come from outside are checked against what is left before anything is made of them.

use bytes::BytesMut;

/// The bytes end early or contradict themselves; the text says at what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed: {0}")]
pub struct Malformed(pub &'static str);

/// A cursor over bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

macro_rules! take {
    ($($name:ident: $type:ty),*) => {
        $(pub(crate) fn $name(&mut self, what: &'static str) -> Result<$type, Malformed> {
            let (bytes, rest) = self.rest.split_first_chunk().ok_or(Malformed(what))?;
            self.rest = rest;
            Ok(<$type>::from_le_bytes(*bytes))
        })*
    };
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    take!(u8: u8, u16: u16, u32: u32, u64: u64, i64: i64, u128: u128);

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Malformed(what))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Bytes that follow their length as `u32`.
    pub(crate) fn sized(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let len = self.u32(what)?;
        self.bytes(usize::try_from(len).map_err(|_| Malformed(what))?, what)
    }

    /// Text that follows its length as `u32`.
    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.sized(what)?).map_err(|_| Malformed(what))
    }

    /// A count of items of which each takes at least `item_bytes`, so that room may be made for them.
    pub(crate) fn count(&mut self, item_bytes: usize, what: &'static str) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u32(what)?).map_err(|_| Malformed(what))?;
        if count
            .checked_mul(item_bytes)
            .is_none_or(|bytes| bytes > self.rest.len())
        {
            return Err(Malformed(what));
        }
        Ok(count)
    }

    /// Everything that is left.
    pub(crate) fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Everything must have been read.
    pub(crate) const fn end(&self, what: &'static str) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed(what))
        }
    }
}

/// Appending in the form that [`Reader`] reads.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
    fn put_i64(&mut self, value: i64) {
        self.put(&value.to_le_bytes());
    }
    fn put_u128(&mut self, value: u128) {
        self.put(&value.to_le_bytes());
    }

    /// A length as `u32`. Nothing that a state machine holds reaches 4 GiB in one piece.
    fn put_len(&mut self, len: usize) {
        self.put_u32(u32::try_from(len).expect("pieces are far below 4 GiB"));
    }

    fn put_sized(&mut self, bytes: &[u8]) {
        self.put_len(bytes.len());
        self.put(bytes);
    }
}

/// Sections of what is put together in one piece.
pub(crate) trait PutSection: Put {
    /// Appends what `write` appends, after its length.
    fn put_section(&mut self, write: impl FnOnce(&mut Self));
}

impl Put for BytesMut {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl PutSection for Vec<u8> {
    fn put_section(&mut self, write: impl FnOnce(&mut Self)) {
        let at = self.len();
        self.put_len(0);
        let start = self.len();
        write(self);
        let len = u32::try_from(self.len() - start).expect("pieces are far below 4 GiB");
        if let Some(place) = self.get_mut(at..start) {
            place.copy_from_slice(&len.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_was_put_and_refuses_what_is_not_there() {
        let mut out = Vec::new();
        out.put_u8(1);
        out.put_u64(2);
        out.put_sized(b"abc");
        out.put_section(|inner| inner.put_i64(-3));
        let mut reader = Reader::new(&out);
        assert_eq!(reader.u8("a"), Ok(1));
        assert_eq!(reader.u64("b"), Ok(2));
        assert_eq!(reader.sized("c"), Ok(&b"abc"[..]));
        assert_eq!(
            reader.sized("d").and_then(|inner| Reader::new(inner).i64("e")),
            Ok(-3)
        );
        assert_eq!(reader.end("end"), Ok(()));
        assert_eq!(reader.u8("more"), Err(Malformed("more")));

        // A count that the rest cannot hold is refused before room is made for it.
        assert_eq!(
            Reader::new(&[255, 255, 255, 255, 0]).count(1, "count"),
            Err(Malformed("count"))
        );
        assert_eq!(
            Reader::new(&[255, 0, 0, 0, 0]).sized("sized"),
            Err(Malformed("sized"))
        );
    }
}
