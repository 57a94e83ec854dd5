//! Bytes of a file that is being made: small ones are copied together, large records stay where they are.

use super::checksum::Checksum;
use bytes::Bytes;
use tidelock_record::{ALIGNMENT, AlignedBuf, RecordRef};

/// Records of this length on are not copied. Whoever writes them puts the parts together; that is not the worker.
const SHARE_BYTES_MIN: usize = 8 * 1024;

/// A growing row of parts.
#[derive(Debug)]
pub(super) struct Gather {
    /// Those that are complete.
    parts: Vec<Bytes>,
    parts_len: usize,
    last: AlignedBuf,
    /// Of all bytes so far, those that were taken included, but for those of `last` behind `counted`.
    checksum: Checksum,
    counted: usize,
}

impl Gather {
    /// An empty one, with room for so many copied bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self {
            parts: Vec::new(),
            parts_len: 0,
            last: AlignedBuf::with_capacity(bytes),
            checksum: Checksum::new(),
            counted: 0,
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

    /// Appends `head`, which is short, and `record`, which is what `bytes` holds.
    pub(super) fn add(&mut self, head: &[u8], record: &RecordRef<'_>, bytes: &Bytes) {
        if record.bytes().len() < SHARE_BYTES_MIN {
            self.copy(head);
            self.copy(record.bytes());
            return;
        }
        self.end_copied();
        self.checksum.add(head);
        self.checksum.add_record(record);
        for part in [Bytes::copy_from_slice(head), bytes.slice_ref(record.bytes())] {
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
        self.counted = self.last.len();
        parts
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.parts_len = 0;
        self.last.clear();
        (self.checksum, self.counted) = (Checksum::new(), 0);
    }

    /// All parts.
    pub(super) fn into_parts(mut self) -> Vec<Bytes> {
        self.end_copied();
        self.parts
    }

    /// The checksum of all bytes so far, those that were taken included.
    pub(super) fn crc(&mut self) -> u32 {
        self.count_copied();
        self.checksum.get()
    }

    fn count_copied(&mut self) {
        let more = self.last.as_slice().get(self.counted..).unwrap_or_default();
        self.checksum.add(more);
        self.counted = self.last.len();
    }

    fn end_copied(&mut self) {
        self.count_copied();
        self.counted = 0;
        if !self.last.is_empty() {
            let copied = std::mem::take(&mut self.last).freeze();
            self.parts_len += copied.len();
            self.parts.push(copied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use proptest::prelude::*;
    use tidelock_record::encode_into;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// However it is put together and taken out, the bytes come in their order, and pages are whole.
        #[test]
        fn gives_back_what_was_put_in(steps in proptest::collection::vec((0..20_000_usize, any::<bool>()), 1..40)) {
            let mut gather = Gather::with_capacity(4096);
            let (mut all, mut out) = (Vec::new(), Vec::new());
            for (number, (len, take)) in steps.into_iter().enumerate() {
                let fill = u8::try_from(number).unwrap();
                let mut record = BytesMut::new();
                encode_into(&mut record, b"a", b"", &vec![fill; len]).unwrap();
                let record = record.freeze();
                gather.add(&[fill; 24], &RecordRef::parse(&record).unwrap().0, &record);
                all.extend_from_slice(&[fill; 24]);
                all.extend_from_slice(&record);
                prop_assert_eq!(gather.len(), all.len() - out.len());
                prop_assert_eq!(gather.crc(), crc32c::crc32c(&all));
                if take {
                    let parts = gather.take_pages(4096);
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
