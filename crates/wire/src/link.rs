//! Framing of cluster links: `len u32 | kind u8 | lane u8 | dest u16 | body`, little-endian.
//!
//! `len` counts what follows it: four bytes of head and the body. What kinds, lanes and bodies mean is for others to
//! say. A decoder takes input in any pieces; a frame is never buffered beyond the limit that the decoder was made
//! with.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes before the body.
pub const HEAD_BYTES: usize = 8;
/// Bytes of the head that `len` counts.
const COUNTED_HEAD_BYTES: usize = 4;

/// What stands before a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// What the body is.
    pub kind: u8,
    /// The class of traffic it belongs to.
    pub lane: u8,
    /// The worker of the receiving server that it is for.
    pub dest: u16,
}

/// A frame as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its head.
    pub head: FrameHead,
    /// Its body, a part of the buffer that it was received in.
    pub body: Bytes,
}

/// A frame that cannot be; the link is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length does not even cover the head.
    #[error("frame of {0} bytes is too short")]
    TooShort(u32),
    /// The body is longer than the limit.
    #[error("frame of {len} bytes exceeds the limit of {max}")]
    TooLong {
        /// The announced length.
        len: u32,
        /// The longest body that is taken, in bytes.
        max: usize,
    },
}

/// Appends a frame whose body is made of `parts`.
///
/// # Errors
/// [`FrameError::TooLong`] if the body does not fit into a `u32` length.
pub fn encode(head: FrameHead, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), FrameError> {
    let body: usize = parts.iter().map(|p| p.len()).sum();
    out.extend_from_slice(&encode_head(head, body)?);
    for part in parts {
        out.extend_from_slice(part);
    }
    Ok(())
}

/// The bytes before a body of `body_len` bytes, for who sends the body without copying it.
///
/// # Errors
/// [`FrameError::TooLong`] if the body does not fit into a `u32` length.
pub fn encode_head(head: FrameHead, body_len: usize) -> Result<[u8; HEAD_BYTES], FrameError> {
    let max = u32::MAX as usize - COUNTED_HEAD_BYTES;
    let len = u32::try_from(body_len + COUNTED_HEAD_BYTES)
        .map_err(|_| FrameError::TooLong { len: u32::MAX, max })?;
    let [a, b, c, d] = len.to_le_bytes();
    let [x, y] = head.dest.to_le_bytes();
    Ok([a, b, c, d, head.kind, head.lane, x, y])
}

/// Gathers frames for one vectored write: heads and small bodies are copied together, large bodies are shared.
#[derive(Debug, Default)]
pub struct FrameEncoder {
    segments: Vec<Bytes>,
    current: BytesMut,
    len: usize,
}

impl FrameEncoder {
    /// An encoder with nothing in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a frame whose body is made of `parts`, all copied.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] if the body does not fit into a `u32` length; nothing is appended then.
    pub fn push(&mut self, head: FrameHead, parts: &[&[u8]]) -> Result<(), FrameError> {
        let body = parts.iter().map(|p| p.len()).sum();
        let head = encode_head(head, body)?;
        self.len += HEAD_BYTES + body;
        self.current.reserve(HEAD_BYTES + body);
        self.current.extend_from_slice(&head);
        for part in parts {
            self.current.extend_from_slice(part);
        }
        Ok(())
    }

    /// Appends a frame whose body is made of `parts`; those over [`tidelock_base::limits::COPY_BYTES_MAX`] are shared.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] if the body does not fit into a `u32` length; nothing is appended then.
    pub fn push_shared(&mut self, head: FrameHead, parts: &[Bytes]) -> Result<(), FrameError> {
        let body: usize = parts.iter().map(Bytes::len).sum();
        self.len += HEAD_BYTES + body;
        let head = encode_head(head, body).inspect_err(|_| self.len -= HEAD_BYTES + body)?;
        self.current.extend_from_slice(&head);
        for part in parts {
            if part.len() <= tidelock_base::limits::COPY_BYTES_MAX {
                self.current.extend_from_slice(part);
            } else {
                self.seal();
                self.segments.push(part.clone());
            }
        }
        Ok(())
    }

    fn seal(&mut self) {
        if !self.current.is_empty() {
            self.segments.push(self.current.split().freeze());
        }
    }

    /// Bytes gathered so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is gathered.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Hands everything out, in order, and starts again.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.seal();
        self.len = 0;
        std::mem::take(&mut self.segments)
    }
}

/// Cuts input into frames.
#[derive(Debug)]
pub struct FrameDecoder {
    buffer: BytesMut,
    body_max: usize,
}

impl FrameDecoder {
    /// A decoder that takes bodies of up to `body_max` bytes.
    #[must_use]
    pub fn new(body_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            body_max,
        }
    }

    /// Adds input, which may be any piece of the stream. Call [`Self::next_frame`] until there is none, so that no
    /// more than a part of one frame is held.
    pub fn push(&mut self, input: &[u8]) {
        self.buffer.extend_from_slice(input);
    }

    /// Bytes that are held.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// [`FrameError`] if the length is not allowed; the same error again at each further call.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(([a, b, c, d, kind, lane, x, y], _)) = self.buffer.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes([*a, *b, *c, *d]);
        let head = FrameHead {
            kind: *kind,
            lane: *lane,
            dest: u16::from_le_bytes([*x, *y]),
        };
        let body = (len as usize)
            .checked_sub(COUNTED_HEAD_BYTES)
            .ok_or(FrameError::TooShort(len))?;
        if body > self.body_max {
            return Err(FrameError::TooLong {
                len,
                max: self.body_max,
            });
        }
        if self.buffer.len() < HEAD_BYTES + body {
            // The length is checked against the limit: room for the rest can be made at once.
            self.buffer.reserve(HEAD_BYTES + body - self.buffer.len());
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(HEAD_BYTES + body);
        frame.advance(HEAD_BYTES);
        Ok(Some(Frame {
            head,
            body: frame.freeze(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let frame = (
            any::<u8>(),
            any::<u8>(),
            any::<u16>(),
            prop::collection::vec(any::<u8>(), 0..300),
        );
        let frame = frame.prop_map(|(kind, lane, dest, body)| Frame {
            head: FrameHead { kind, lane, dest },
            body: Bytes::from(body),
        });
        prop::collection::vec(frame, 0..12)
    }

    proptest! {
        #[test]
        fn frames_survive_any_chunking(frames in frames(), chunk in 1_usize..400) {
            let mut wire = Vec::new();
            let mut gathered = FrameEncoder::new();
            for frame in &frames {
                let (front, back) = frame.body.split_at(frame.body.len() / 2);
                encode(frame.head, &[front, back], &mut wire).unwrap();
                gathered.push(frame.head, &[front, back]).unwrap();
            }
            prop_assert_eq!(gathered.len(), wire.len());
            prop_assert_eq!(gathered.take().concat(), wire.clone());
            let mut decoder = FrameDecoder::new(300);
            let mut seen = Vec::new();
            for piece in wire.chunks(chunk) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push(frame);
                }
            }
            prop_assert_eq!(seen, frames);
            prop_assert_eq!(decoder.buffered(), 0);
        }
    }

    #[test]
    fn large_parts_are_shared() {
        let head = FrameHead {
            kind: 1,
            lane: 2,
            dest: 3,
        };
        let large = Bytes::from(vec![5; 100_000]);
        let mut encoder = FrameEncoder::new();
        encoder
            .push_shared(head, &[Bytes::from_static(b"small"), large.clone()])
            .unwrap();
        encoder.push(head, &[b"x"]).unwrap();
        assert_eq!(encoder.len(), 8 + 5 + 100_000 + 8 + 1);
        let out = encoder.take();
        assert_eq!(out.iter().map(Bytes::len).collect::<Vec<_>>(), [13, 100_000, 9]);
        assert!(out.get(1).is_some_and(|b| b.as_ptr() == large.as_ptr()));
        assert!(encoder.is_empty());
    }

    #[test]
    fn lengths_are_checked_before_the_body_comes() {
        let mut short = FrameDecoder::new(10);
        short.push(&[3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(short.next_frame(), Err(FrameError::TooShort(3)));
        let mut long = FrameDecoder::new(10);
        long.push(&[15, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(long.next_frame(), Err(FrameError::TooLong { len: 15, max: 10 }));
        let mut fits = FrameDecoder::new(10);
        fits.push(&[14, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(fits.next_frame(), Ok(None));
    }
}
