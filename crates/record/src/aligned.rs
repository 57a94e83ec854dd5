//! Buffers for unbuffered writes: the kernel wants the memory address, the file offset and the length of such a
//! write to be multiples of the device's block.

use bytes::{Buf, Bytes, BytesMut};

/// The multiple that addresses, offsets and lengths of unbuffered writes have, in bytes.
pub const ALIGNMENT: usize = 4096;

/// A growable buffer whose first byte lies at a multiple of [`ALIGNMENT`]. It becomes one contiguous [`Bytes`] at
/// the same address, and can be had back from there once no one else shares it.
///
/// Invariant: `bytes` starts at an aligned address and never reallocates by itself: growth goes through `grow`.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    bytes: BytesMut,
}

impl AlignedBuf {
    /// An empty buffer that holds `capacity` bytes without growing.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let mut bytes = BytesMut::with_capacity(capacity + ALIGNMENT - 1);
        // The address is that of the memory behind the (still empty) vector. Where `align_offset` cannot tell, which
        // it may do by contract, the buffer is unaligned, and the disk copies it or writes through the page cache.
        let skip = bytes.as_ptr().align_offset(ALIGNMENT);
        if skip < ALIGNMENT {
            bytes.resize(skip, 0);
            bytes.advance(skip);
        }
        Self { bytes }
    }

    /// Takes back the memory of a buffer that was frozen, emptied; `None` if it is still shared elsewhere.
    #[must_use]
    pub fn reclaim(frozen: Bytes) -> Option<Self> {
        let mut buf = Self::reclaim_content(frozen).ok()?;
        buf.clear();
        Some(buf)
    }

    /// Takes back a buffer that was frozen, with its content, to change it.
    ///
    /// # Errors
    /// The bytes, if they are still shared elsewhere or do not start at an aligned address.
    pub fn reclaim_content(frozen: Bytes) -> Result<Self, Bytes> {
        let bytes = frozen.try_into_mut()?;
        if bytes.as_ptr().align_offset(ALIGNMENT) == 0 {
            Ok(Self { bytes })
        } else {
            Err(bytes.freeze())
        }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that fit without growing.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Appends `data`.
    pub fn extend_from_slice(&mut self, data: &[u8]) {
        self.make_room(data.len());
        self.bytes.extend_from_slice(data);
    }

    /// Appends zeros up to the length `len`; nothing if it is that long.
    pub fn pad_to(&mut self, len: usize) {
        if len > self.bytes.len() {
            self.make_room(len - self.bytes.len());
            self.bytes.resize(len, 0);
        }
    }

    /// Appends zeros up to the next multiple of [`ALIGNMENT`].
    pub fn pad(&mut self) {
        self.pad_to(self.bytes.len().next_multiple_of(ALIGNMENT));
    }

    /// What was written.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// What was written, to be changed in place.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Forgets what was written and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// The content as shared bytes at the same address.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        self.bytes.freeze()
    }

    /// The content, and the room behind it, at the same address. It is not aligned any more once it outgrows its room.
    #[must_use]
    pub fn into_bytes(self) -> BytesMut {
        self.bytes
    }

    /// Makes room for `more` bytes, at least doubling, in memory that is aligned as well.
    fn make_room(&mut self, more: usize) {
        let wanted = self.bytes.len().saturating_add(more);
        if wanted > self.bytes.capacity() {
            let mut grown = Self::with_capacity(wanted.max(self.bytes.capacity().saturating_mul(2)));
            grown.bytes.extend_from_slice(&self.bytes);
            *self = grown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(bytes: &[u8]) -> bool {
        bytes.as_ptr().align_offset(ALIGNMENT) == 0
    }

    #[test]
    fn stays_aligned_when_it_grows_freezes_and_comes_back() {
        let mut buf = AlignedBuf::with_capacity(1);
        assert!(aligned(buf.as_slice()));
        for n in 0..20_000_u32 {
            buf.extend_from_slice(&n.to_le_bytes());
        }
        buf.pad();
        assert!(aligned(buf.as_slice()));
        assert_eq!(buf.len() % ALIGNMENT, 0);
        assert_eq!(buf.as_slice()[4 * 777..4 * 778], 777_u32.to_le_bytes());
        let capacity = buf.capacity();

        let frozen = buf.freeze();
        assert!(aligned(&frozen));
        let share = frozen.slice(10..20);
        let address = frozen.as_ptr();
        assert!(
            AlignedBuf::reclaim(frozen.clone()).is_none(),
            "shared memory was taken"
        );
        drop(share);
        let back = AlignedBuf::reclaim(frozen).expect("the last share");
        assert_eq!((back.as_slice().as_ptr(), back.len()), (address, 0));
        assert_eq!(back.capacity(), capacity);
    }
}
