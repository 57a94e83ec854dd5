//! The output of a connection: contiguous chunks that small messages are copied into, and shared payloads between.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

use crate::pool::ChunkPool;

/// Most slices of one vectored write (`IOV_MAX` of Linux and macOS).
const SLICES_MAX: usize = 1024;

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
pub(crate) struct OutQueue {
    segments: VecDeque<Segment>,
    /// The chunk that is being filled. Has no capacity while nothing is queued.
    current: Vec<u8>,
    /// Bytes at the front (of the first segment, or of `current` if there is none) that are sent already.
    sent: usize,
    pending: usize,
}

impl OutQueue {
    /// Bytes that wait to be sent.
    #[inline]
    pub(crate) const fn pending(&self) -> usize {
        self.pending
    }

    /// Appends all parts as one piece.
    #[inline]
    pub(crate) fn append<const N: usize>(&mut self, parts: [&[u8]; N], pool: &mut ChunkPool) {
        let need = parts.iter().map(|p| p.len()).sum();
        if self.current.capacity() - self.current.len() < need {
            self.next_chunk(need, pool);
        }
        for part in parts {
            self.current.extend_from_slice(part);
        }
        self.pending += need;
    }

    /// Appends bytes without copying them.
    pub(crate) fn append_shared(&mut self, bytes: Bytes, pool: &mut ChunkPool) {
        if bytes.is_empty() {
            return;
        }
        self.seal(pool);
        self.pending += bytes.len();
        self.segments.push_back(Segment::Shared(bytes));
    }

    #[cold]
    fn next_chunk(&mut self, need: usize, pool: &mut ChunkPool) {
        self.seal(pool);
        // The first chunk is small, and so is one between two large payloads, which holds a few lines only.
        let small = self
            .segments
            .back()
            .is_none_or(|s| matches!(s, Segment::Shared(_)));
        self.current = pool.take(need, small);
    }

    /// Moves `current` behind the other segments.
    fn seal(&mut self, pool: &mut ChunkPool) {
        let chunk = std::mem::take(&mut self.current);
        if !chunk.is_empty() {
            self.segments.push_back(Segment::Chunk(chunk));
        } else if chunk.capacity() > 0 {
            pool.give(chunk);
        }
    }

    /// What is to be written next, at most as many slices as one vectored write takes.
    pub(crate) fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        let all = self
            .segments
            .iter()
            .map(Segment::as_slice)
            .chain(std::iter::once(self.current.as_slice()));
        let mut skip = self.sent;
        all.map(move |bytes| bytes.get(std::mem::take(&mut skip)..).unwrap_or_default())
            .filter(|bytes| !bytes.is_empty())
            .take(SLICES_MAX)
            .map(IoSlice::new)
    }

    /// Forgets the first `n` bytes, which were written, and gives chunks back.
    pub(crate) fn advance(&mut self, n: usize, pool: &mut ChunkPool) {
        let n = n.min(self.pending);
        self.pending -= n;
        self.sent += n;
        while let Some(front) = self.segments.front() {
            let len = front.as_slice().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            if let Some(Segment::Chunk(chunk)) = self.segments.pop_front() {
                pool.give(chunk);
            }
        }
        if self.sent == self.current.len() {
            self.sent = 0;
            let chunk = std::mem::take(&mut self.current);
            if chunk.capacity() > 0 {
                pool.give(chunk);
            }
        }
    }

    /// Drops everything, as a connection that is cut does.
    pub(crate) fn clear(&mut self, pool: &mut ChunkPool) {
        self.advance(self.pending, pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Copy(usize),
        Share(usize),
        Advance(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0_usize..9000).prop_map(Op::Copy),
            (0_usize..9000).prop_map(Op::Share),
            (0_usize..20_000).prop_map(Op::Advance),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_goes_in_comes_out(ops in prop::collection::vec(op(), 1..60)) {
            let mut pool = ChunkPool::new();
            let mut queue = OutQueue::default();
            let mut model: VecDeque<u8> = VecDeque::new();
            let mut next = 0_u8;
            let mut fill = |n: usize| -> Vec<u8> {
                (0..n).map(|_| { next = next.wrapping_add(1); next }).collect()
            };
            for op in ops {
                match op {
                    Op::Copy(n) => {
                        let bytes = fill(n);
                        let (a, b) = bytes.split_at(n / 3);
                        queue.append([a, b], &mut pool);
                        model.extend(&bytes);
                    }
                    Op::Share(n) => {
                        let bytes = fill(n);
                        model.extend(&bytes);
                        queue.append_shared(Bytes::from(bytes), &mut pool);
                    }
                    Op::Advance(n) => {
                        let n = n.min(model.len());
                        queue.advance(n, &mut pool);
                        model.drain(..n);
                    }
                }
                let out: Vec<u8> = queue.slices().flat_map(|s| s.to_vec()).collect();
                prop_assert_eq!(queue.pending(), model.len());
                prop_assert!(out.iter().eq(model.iter()));
            }
            queue.clear(&mut pool);
            prop_assert_eq!((queue.pending(), queue.current.capacity()), (0, 0));
        }
    }

    #[test]
    fn an_idle_queue_holds_no_chunk() {
        let mut pool = ChunkPool::new();
        let mut queue = OutQueue::default();
        queue.append([b"PONG\r\n"], &mut pool);
        assert_eq!(queue.current.capacity(), crate::pool::SMALL_CHUNK_BYTES);
        queue.advance(6, &mut pool);
        assert_eq!(queue.current.capacity(), 0);
    }
}
