//! What waits to be sent on a link, and the frames of what comes in.
//!
//! Small things are copied into one chunk, large ones are shared or moved in whole, so that a turn's frames leave by
//! one vectored write. Buffers that were sent are used again ([`Spares`]).

use bytes::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;
use tidelock_base::limits::COPY_BYTES_MAX;
use tidelock_wire::link::{FrameHead, HEAD_BYTES, encode_head};

/// A chunk is closed when it holds this many bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Buffers kept for use again, and the largest that is kept.
const SPARES_MAX: usize = 32;
const SPARE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a frame's head that its length counts.
const COUNTED: usize = 4;

/// Buffers that were sent and can be filled again.
#[derive(Debug, Default)]
pub(crate) struct Spares(Vec<Vec<u8>>);

impl Spares {
    /// An empty buffer.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub(crate) fn put(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < SPARES_MAX && (1..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

#[derive(Debug)]
enum Segment {
    Chunk(Vec<u8>),
    Shared(Bytes),
}

impl Segment {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Chunk(chunk) => chunk,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// Bytes to be sent, in order: `segments`, then `current`.
#[derive(Debug, Default)]
pub(crate) struct LinkQueue {
    segments: VecDeque<Segment>,
    current: Vec<u8>,
    /// Bytes of the first segment (or of `current`) that are sent already.
    sent: usize,
    pending: usize,
}

impl LinkQueue {
    /// Bytes that wait.
    pub(crate) const fn pending(&self) -> usize {
        self.pending
    }

    /// Appends a frame whose body is `fields`, copied, and then `parts`. `false` if it is too long to be a frame.
    pub(crate) fn frame(
        &mut self,
        head: FrameHead,
        fields: &[u8],
        parts: &[Bytes],
        spares: &mut Spares,
    ) -> bool {
        let body = fields.len() + parts.iter().map(Bytes::len).sum::<usize>();
        let Ok(head) = encode_head(head, body) else {
            return false;
        };
        self.copy(&head, spares);
        self.copy(fields, spares);
        for part in parts {
            self.share(part, spares);
        }
        true
    }

    /// Copies bytes behind what waits.
    pub(crate) fn copy(&mut self, bytes: &[u8], spares: &mut Spares) {
        if self.current.len() + bytes.len() > CHUNK_BYTES && !self.current.is_empty() {
            self.seal(spares);
        }
        self.current.extend_from_slice(bytes);
        self.pending += bytes.len();
    }

    /// Appends bytes, shared if they are large.
    pub(crate) fn share(&mut self, bytes: &Bytes, spares: &mut Spares) {
        if bytes.len() <= COPY_BYTES_MAX {
            self.copy(bytes, spares);
        } else {
            self.seal(spares);
            self.pending += bytes.len();
            self.segments.push_back(Segment::Shared(bytes.clone()));
        }
    }

    /// Appends a buffer, moved if it is large.
    pub(crate) fn chunk(&mut self, bytes: Vec<u8>, spares: &mut Spares) {
        if bytes.len() <= COPY_BYTES_MAX {
            self.copy(&bytes, spares);
            spares.put(bytes);
        } else {
            self.seal(spares);
            self.pending += bytes.len();
            self.segments.push_back(Segment::Chunk(bytes));
        }
    }

    fn seal(&mut self, spares: &mut Spares) {
        if !self.current.is_empty() {
            let chunk = std::mem::replace(&mut self.current, spares.take());
            self.segments.push_back(Segment::Chunk(chunk));
        }
    }

    /// What waits, front first, as many slices as `iov` takes.
    pub(crate) fn slices<'a>(&'a self, max: usize, iov: &mut impl Extend<IoSlice<'a>>) {
        let current = (!self.current.is_empty()).then_some(self.current.as_slice());
        let mut all = self
            .segments
            .iter()
            .map(Segment::as_slice)
            .chain(current)
            .take(max);
        let first = all
            .next()
            .and_then(|first| first.get(self.sent..))
            .map(IoSlice::new);
        iov.extend(first.into_iter().chain(all.map(IoSlice::new)));
    }

    /// `n` bytes of what waits were sent.
    pub(crate) fn advance(&mut self, n: usize, spares: &mut Spares) {
        self.pending = self.pending.saturating_sub(n);
        self.sent += n;
        while let Some(first) = self.segments.front() {
            let len = first.as_slice().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            if let Some(Segment::Chunk(chunk)) = self.segments.pop_front() {
                spares.put(chunk);
            }
        }
        if self.sent >= self.current.len() {
            self.current.clear();
            self.sent = 0;
        }
    }
}

/// A frame's body, where it was received.
pub(crate) enum Body<'a> {
    /// Within the input.
    Input(&'a [u8]),
    /// Put together from several pieces of input; only the first bytes, as many as said, belong to it.
    Whole(&'a mut Vec<u8>, usize),
}

impl Body<'_> {
    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Input(bytes) => bytes,
            Self::Whole(buffer, len) => buffer.get(..*len).unwrap_or_default(),
        }
    }

    /// The bytes as a buffer of their own; without a copy if they were put together from pieces.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Input(bytes) => Bytes::copy_from_slice(bytes),
            Self::Whole(buffer, len) => {
                let mut whole = std::mem::take(buffer);
                whole.truncate(len);
                Bytes::from(whole)
            }
        }
    }
}

/// A frame that cannot be; the link is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadFrame {
    /// The length does not even cover the head.
    #[error("frame of {0} bytes is too short")]
    TooShort(u32),
    /// The body is longer than the limit.
    #[error("frame of {0} bytes exceeds the limit of {1}")]
    TooLong(u32, usize),
}

/// Cuts input into frames. Frames that lie whole within the input are not copied; others are put together in one
/// buffer, which is used again and into which the end of a large frame can be read directly ([`Self::room`]).
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    head: [u8; HEAD_BYTES],
    head_len: usize,
    /// The frame that is being put together, with the length of its body.
    frame: Option<(FrameHead, usize)>,
    buffer: Vec<u8>,
    filled: usize,
}

impl Assembler {
    /// The next whole frame; `input` moves over what was used. `None` when all input is used.
    pub(crate) fn next<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        body_max: usize,
    ) -> Result<Option<(FrameHead, Body<'a>)>, BadFrame> {
        let (head, len) = match self.frame {
            Some(frame) => frame,
            None => match self.begin(input, body_max)? {
                Some(frame) => frame,
                None => return Ok(None),
            },
        };
        if self.filled == 0
            && let Some((body, rest)) = input.split_at_checked(len)
        {
            *input = rest;
            self.frame = None;
            return Ok(Some((head, Body::Input(body))));
        }
        self.fill(input, len);
        if self.filled < len {
            return Ok(None);
        }
        self.frame = None;
        self.filled = 0;
        Ok(Some((head, Body::Whole(&mut self.buffer, len))))
    }

    /// Reads the head of a frame, which may come in pieces too.
    fn begin(&mut self, input: &mut &[u8], body_max: usize) -> Result<Option<(FrameHead, usize)>, BadFrame> {
        let need = (HEAD_BYTES - self.head_len).min(input.len());
        let (front, rest) = input.split_at_checked(need).unwrap_or((input, &[]));
        if let Some(place) = self.head.get_mut(self.head_len..self.head_len + need) {
            place.copy_from_slice(front);
        }
        self.head_len += need;
        *input = rest;
        if self.head_len < HEAD_BYTES {
            return Ok(None);
        }
        self.head_len = 0;
        let [a, b, c, d, kind, lane, x, y] = self.head;
        let len = u32::from_le_bytes([a, b, c, d]);
        let body = (len as usize)
            .checked_sub(COUNTED)
            .ok_or(BadFrame::TooShort(len))?;
        if body > body_max {
            return Err(BadFrame::TooLong(len, body_max));
        }
        self.frame = Some((
            FrameHead {
                kind,
                lane,
                dest: u16::from_le_bytes([x, y]),
            },
            body,
        ));
        self.filled = 0;
        Ok(self.frame)
    }

    fn fill(&mut self, input: &mut &[u8], len: usize) {
        if self.buffer.len() < len {
            // The length was checked against the limit of the link.
            self.buffer.resize(len, 0);
        }
        let n = (len - self.filled).min(input.len());
        let (front, rest) = input.split_at_checked(n).unwrap_or((input, &[]));
        if let Some(place) = self.buffer.get_mut(self.filled..self.filled + n) {
            place.copy_from_slice(front);
        }
        self.filled += n;
        *input = rest;
    }

    /// Room for the rest of a large frame, to be read into directly; empty if none is being put together.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        match self.frame {
            Some((_, len)) if self.filled > 0 && len - self.filled >= COPY_BYTES_MAX => {
                self.buffer.get_mut(self.filled..len).unwrap_or_default()
            }
            _ => &mut [],
        }
    }

    /// The first `n` bytes of [`Self::room`] were filled.
    pub(crate) const fn filled(&mut self, n: usize) {
        if let Some((_, len)) = self.frame {
            let end = self.filled + n;
            self.filled = if end < len { end } else { len };
        }
    }

    /// The first bytes that came, while they do not make a head; for telling strangers.
    pub(crate) fn started_with(&self) -> &[u8] {
        &self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Takes everything out of a queue in pieces of at most `n` bytes.
    fn drain(queue: &mut LinkQueue, spares: &mut Spares, n: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while queue.pending() > 0 {
            let mut iov = Vec::new();
            queue.slices(3, &mut iov);
            let piece: Vec<u8> = iov
                .iter()
                .flat_map(|slice| slice.iter().copied())
                .take(n)
                .collect();
            assert!(!piece.is_empty());
            queue.advance(piece.len(), spares);
            all.extend(piece);
        }
        all
    }

    fn large(seed: u8, len: usize) -> Vec<u8> {
        (0..len)
            .map(|n| seed.wrapping_add(u8::try_from(n % 251).unwrap_or(0)))
            .collect()
    }

    #[test]
    fn large_parts_are_shared_and_moved_buffers_come_back() {
        let (mut queue, mut spares) = (LinkQueue::default(), Spares::default());
        let shared = Bytes::from(large(1, COPY_BYTES_MAX + 1));
        let head = FrameHead {
            kind: 1,
            lane: 2,
            dest: 0,
        };
        assert!(queue.frame(
            head,
            b"f",
            &[shared.clone(), Bytes::from_static(b"end")],
            &mut spares
        ));
        let moved = large(2, COPY_BYTES_MAX + 2);
        let place = moved.as_ptr();
        queue.chunk(moved, &mut spares);
        let mut iov = Vec::new();
        queue.slices(8, &mut iov);
        assert_eq!(
            iov.iter().map(|s| s.len()).collect::<Vec<_>>(),
            [9, shared.len(), 3, COPY_BYTES_MAX + 2]
        );
        assert_eq!((iov[1].as_ptr(), iov[3].as_ptr()), (shared.as_ptr(), place));
        drain(&mut queue, &mut spares, 10_000);
        assert!(
            spares
                .0
                .iter()
                .any(|buffer| buffer.as_ptr() == place && buffer.is_empty())
        );
    }

    #[test]
    fn lengths_are_checked_before_the_body_comes() {
        let mut input = &[3, 0, 0, 0, 0, 0, 0, 0][..];
        assert_eq!(
            Assembler::default().next(&mut input, 10).err(),
            Some(BadFrame::TooShort(3))
        );
        let mut input = &[15, 0, 0, 0, 0, 0, 0, 0][..];
        assert_eq!(
            Assembler::default().next(&mut input, 10).err(),
            Some(BadFrame::TooLong(15, 10))
        );
        let mut assembler = Assembler::default();
        let mut input = &[14, 0, 0, 0, 0, 0, 0, 0][..];
        assert!(assembler.next(&mut input, 10).is_ok_and(|frame| frame.is_none()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Frames come out as they went in, however the stream is cut and whether it is read into the room or not.
        #[test]
        fn frames_survive_queue_and_chunking(
            frames in prop::collection::vec((any::<u8>(), prop_oneof![0_usize..200, 16_000_usize..70_000], any::<bool>()), 1..8),
            write in 1_usize..100_000,
            read in 1_usize..70_000,
        ) {
            let (mut queue, mut spares) = (LinkQueue::default(), Spares::default());
            for (kind, len, split) in &frames {
                let body = large(*kind, *len);
                let head = FrameHead { kind: *kind, lane: 1, dest: 7 };
                let (fields, part) = body.split_at(if *split { len / 2 } else { *len });
                prop_assert!(queue.frame(head, fields, &[Bytes::copy_from_slice(part)], &mut spares));
            }
            let wire = drain(&mut queue, &mut spares, write);
            let mut assembler = Assembler::default();
            let mut seen = Vec::new();
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                let room = assembler.room();
                let n = room.len().min(read).min(rest.len());
                let mut input: &[u8] = &[];
                if n > 0 {
                    room.get_mut(..n).unwrap().copy_from_slice(&rest[..n]);
                    assembler.filled(n);
                    rest = &rest[n..];
                } else {
                    let n = read.min(rest.len());
                    (input, rest) = rest.split_at(n);
                }
                while let Some((head, body)) = assembler.next(&mut input, 100_000).unwrap() {
                    let own = body.as_slice().to_vec();
                    prop_assert_eq!(&body.into_bytes()[..], &own[..]);
                    seen.push((head.kind, own));
                }
            }
            let sent: Vec<_> = frames.iter().map(|(kind, len, _)| (*kind, large(*kind, *len))).collect();
            prop_assert!(seen == sent);
        }
    }
}
