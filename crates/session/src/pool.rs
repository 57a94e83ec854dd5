//! Buffers that are used again: output chunks and the buffers of large payloads.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Size of the first chunk of an output queue: enough for a few messages, so that a message to many idle
/// connections does not take a large chunk for each.
pub(crate) const SMALL_CHUNK_BYTES: usize = 4 * 1024;
/// Size of the chunks behind the first.
pub(crate) const LARGE_CHUNK_BYTES: usize = 64 * 1024;
/// Chunks kept for later use; more are freed.
const SMALL_CHUNKS_MAX: usize = 1024;
const LARGE_CHUNKS_MAX: usize = 256;
/// Payload buffers kept for later use, in number and bytes; older ones are freed.
const PAYLOADS_MAX: usize = 64;
const PAYLOAD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Payload buffers looked at before a new one is made: the oldest are the first to be free again.
const PAYLOADS_TRIED: usize = 4;

/// Buffers of one worker that are free to be used again. Freed memory would be given back to the system and
/// faulted in again for each large message; kept here it stays mapped.
#[derive(Debug, Default)]
pub struct ChunkPool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    /// Payload buffers that were handed out, oldest first. One whose other holders are gone is free again.
    payloads: VecDeque<Bytes>,
    payload_bytes: usize,
}

impl ChunkPool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty chunk with room for at least `need` bytes; a small one if `small` and that is enough.
    pub(crate) fn take(&mut self, need: usize, small: bool) -> Vec<u8> {
        if small && need <= SMALL_CHUNK_BYTES {
            self.small
                .pop()
                .unwrap_or_else(|| Vec::with_capacity(SMALL_CHUNK_BYTES))
        } else if need <= LARGE_CHUNK_BYTES {
            self.large
                .pop()
                .unwrap_or_else(|| Vec::with_capacity(LARGE_CHUNK_BYTES))
        } else {
            Vec::with_capacity(need)
        }
    }

    /// Takes a chunk back. One of unusual size is freed.
    pub(crate) fn give(&mut self, mut chunk: Vec<u8>) {
        chunk.clear();
        match chunk.capacity() {
            SMALL_CHUNK_BYTES if self.small.len() < SMALL_CHUNKS_MAX => self.small.push(chunk),
            LARGE_CHUNK_BYTES if self.large.len() < LARGE_CHUNKS_MAX => self.large.push(chunk),
            _ => {}
        }
    }

    /// A buffer of exactly `len` bytes, whose content is arbitrary. The caller has checked `len` against a limit.
    pub(crate) fn payload(&mut self, len: usize) -> BytesMut {
        for _ in 0..PAYLOADS_TRIED.min(self.payloads.len()) {
            let Some(old) = self.payloads.pop_front() else {
                break;
            };
            match old.try_into_mut() {
                Ok(mut buffer) => {
                    self.payload_bytes -= buffer.len();
                    // One that is much too large would hold memory that is not accounted for.
                    if (len..=len * 2).contains(&buffer.len()) {
                        buffer.truncate(len);
                        return buffer;
                    }
                }
                Err(held) => self.payloads.push_back(held),
            }
        }
        BytesMut::zeroed(len)
    }

    /// Remembers a payload buffer that is handed out, to use it again when all others have let go of it.
    pub(crate) fn lend(&mut self, payload: &Bytes) {
        self.payloads.push_back(payload.clone());
        self.payload_bytes += payload.len();
        while self.payloads.len() > PAYLOADS_MAX || self.payload_bytes > PAYLOAD_BYTES_MAX {
            let Some(old) = self.payloads.pop_front() else {
                break;
            };
            self.payload_bytes -= old.len();
        }
    }
}
