//! Bytes of a file that is being made: small ones are copied together, large records stay where they are.

use bytes::Bytes;
use tidelock_record::{ALIGNMENT, AlignedBuf};

/// Records of this length on are not copied. Whoever writes them puts the parts together; that is not the worker.
const SHARE_BYTES_MIN: usize = 8 * 1024;

/// A growing row of parts.
#[derive(Debug)]
pub(super) struct Gather {
    /// Those that are complete.
    parts: Vec<Bytes>,
    parts_len: usize,
    last: AlignedBuf,
}

impl Gather {
    /// An empty one, with room for so many copied bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self {
            parts: Vec::new(),
            parts_len: 0,
            last: AlignedBuf::with_capacity(bytes),
        }
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.parts_len + self.last.len()
    }

    /// Appends a copy.
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        self.last.extend_from_slice(bytes);
    }

    /// Appends `head`, which is short, and `record`.
    pub(super) fn add(&mut self, head: &[u8], record: &Bytes) {
        if record.len() < SHARE_BYTES_MIN {
            self.copy(head);
            self.copy(record);
            return;
        }
        self.end_copied();
        for part in [Bytes::copy_from_slice(head), record.clone()] {
            self.parts_len += part.len();
            self.parts.push(part);
        }
    }

    /// Appends zeros up to the length `len`.
    pub(super) fn pad_to(&mut self, len: usize) {
        let more = len.saturating_sub(self.len());
        self.last.pad_to(self.last.len() + more);
    }

    /// Takes as many whole pages as there are; what is left stays. `room` is for what is copied next.
    pub(super) fn take_pages(&mut self, room: usize) -> Vec<Bytes> {
        let (len, shared) = (self.len(), !self.parts.is_empty());
        let rest = len % ALIGNMENT;
        self.end_copied();
        let mut parts = std::mem::take(&mut self.parts);
        self.parts_len = 0;
        self.last = AlignedBuf::with_capacity(if shared { ALIGNMENT } else { room });
        let mut cut = Vec::new();
        let mut left = rest;
        while left > 0 {
            let Some(part) = parts.pop() else { break };
            let keep = part.len().saturating_sub(left);
            left -= part.len() - keep;
            cut.push(part.slice(keep..));
            if keep > 0 {
                parts.push(part.slice(..keep));
            }
        }
        for part in cut.iter().rev() {
            self.copy(part);
        }
        parts
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.parts_len = 0;
        self.last.clear();
    }

    /// All parts.
    pub(super) fn into_parts(mut self) -> Vec<Bytes> {
        self.end_copied();
        self.parts
    }

    /// The checksum of all bytes, behind those that have the checksum `crc`.
    pub(super) fn crc_after(&self, crc: u32) -> u32 {
        crc32c::crc32c_append(crc_of(crc, &self.parts), self.last.as_slice())
    }

    fn end_copied(&mut self) {
        if !self.last.is_empty() {
            let copied = std::mem::take(&mut self.last).freeze();
            self.parts_len += copied.len();
            self.parts.push(copied);
        }
    }
}

/// The checksum of the parts, behind bytes that have the checksum `crc`.
pub(super) fn crc_of(crc: u32, parts: &[Bytes]) -> u32 {
    parts
        .iter()
        .fold(crc, |crc, part| crc32c::crc32c_append(crc, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// However it is put together and taken out, the bytes come in their order, and pages are whole.
        #[test]
        fn gives_back_what_was_put_in(steps in proptest::collection::vec((0..20_000_usize, any::<bool>()), 1..40)) {
            let mut gather = Gather::with_capacity(4096);
            let (mut all, mut out, mut crc) = (Vec::new(), Vec::new(), 0);
            for (number, (len, take)) in steps.into_iter().enumerate() {
                let fill = u8::try_from(number).unwrap();
                let record = Bytes::from(vec![fill; len]);
                gather.add(&[fill; 24], &record);
                all.extend_from_slice(&[fill; 24]);
                all.extend_from_slice(&record);
                prop_assert_eq!(gather.len(), all.len() - out.len());
                prop_assert_eq!(gather.crc_after(crc), crc32c::crc32c(&all));
                if take {
                    let parts = gather.take_pages(4096);
                    crc = crc_of(crc, &parts);
                    out.extend(parts.concat());
                    prop_assert_eq!(out.len() % ALIGNMENT, 0);
                    prop_assert!(gather.len() < ALIGNMENT);
                }
            }
            gather.pad_to(gather.len() + 5);
            all.extend_from_slice(&[0; 5]);
            out.extend(gather.into_parts().concat());
            prop_assert_eq!(out, all);
        }
    }
}
