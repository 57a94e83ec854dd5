//! Makes block files, piece by piece, from messages in the order of their sequences.

use super::format::{
    BlockInfo, FILE_ALIGN, FRAME_HEAD_BYTES, FileHeader, Frame, HEADER_BYTES, TRAILER_BYTES, extent,
};
use super::gather::Gather;
use super::index::{BlockIndex, Names, Row, encode_rows, encode_summary};
use crate::codec::{Malformed, narrow};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use tidelock_record::RecordRef;

/// A part of the file: offset and bytes, in parts. Offset and length are multiples of 4096.
pub(crate) type Piece = (u64, Vec<Bytes>);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    info: BlockInfo,
    rows: Vec<Row>,
    /// Numbers of subjects by the hash of the name, or the next free one above it. Only looked up, never walked.
    numbers: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    names: BytesMut,
    bounds: Vec<(u32, u32)>,
    /// The subject of the message before: the same again needs no search.
    recent: u32,
    piece: Gather,
    piece_offset: u64,
}

/// A finished block.
#[derive(Debug)]
pub(crate) struct Built {
    /// The last part of the file.
    pub(crate) piece: Piece,
    pub(crate) info: BlockInfo,
    pub(crate) index: BlockIndex,
}

impl BlockBuilder {
    pub(crate) fn new(id: u64, piece_bytes: usize) -> Self {
        let mut piece = Gather::with_capacity(piece_bytes + FILE_ALIGN_BYTES);
        piece.copy(&FileHeader { id }.encode());
        Self {
            info: BlockInfo {
                id,
                ts_max: i64::MIN,
                ..BlockInfo::default()
            },
            rows: Vec::new(),
            numbers: HashMap::default(),
            names: BytesMut::new(),
            bounds: Vec::new(),
            recent: 0,
            piece,
            piece_offset: 0,
        }
    }

    pub(crate) const fn data_len(&self) -> u64 {
        self.info.data_len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.info.count == 0
    }

    /// Whether the message can still be part of this block: sequences and offsets are kept in 32 bits.
    pub(crate) fn fits(&self, seq: u64, record_len: usize) -> bool {
        let end = self.info.data_len + (HEADER_BYTES + FRAME_HEAD_BYTES + record_len) as u64;
        self.is_empty() || (seq - self.info.first_seq < u64::from(u32::MAX) && end < u64::from(u32::MAX))
    }

    /// Adds a message, whose sequence lies beyond all others, and which [fits](Self::fits).
    pub(crate) fn push(&mut self, seq: u64, ts: i64, bytes: &Bytes) -> Result<(), Malformed> {
        let (record, _) = RecordRef::parse(bytes).map_err(|_| Malformed("record is malformed"))?;
        let extent = extent(&record).ok_or(Malformed("record is malformed"))?;
        if self.is_empty() {
            self.info.first_seq = seq;
        }
        assert!(
            self.is_empty() || seq > self.info.last_seq,
            "sequences of a block ascend"
        );
        let subject = self.number_of(record.subject());
        self.rows.push(Row {
            rel: narrow(seq - self.info.first_seq),
            subject,
            offset: narrow(HEADER_BYTES as u64 + self.info.data_len),
            extent,
            ts,
        });
        self.piece.add(&Frame::head(seq, ts, bytes), &record, bytes);
        self.info.last_seq = seq;
        self.info.ts_max = self.info.ts_max.max(ts);
        self.info.count += 1;
        self.info.data_len += (FRAME_HEAD_BYTES + record.bytes().len()) as u64;
        Ok(())
    }

    fn number_of(&mut self, subject: &[u8]) -> u32 {
        if self.name(self.recent) == Some(subject) {
            return self.recent;
        }
        let mut hash = xxhash_rust::xxh3::xxh3_64(subject);
        while let Some(&number) = self.numbers.get(&hash) {
            if self.name(number) == Some(subject) {
                self.recent = number;
                return number;
            }
            hash = hash.wrapping_add(1);
        }
        let next = narrow(self.bounds.len() as u64);
        let start = narrow(self.names.len() as u64);
        self.names.extend_from_slice(subject);
        self.bounds.push((start, narrow(self.names.len() as u64)));
        self.numbers.insert(hash, next);
        self.recent = next;
        next
    }

    /// The subject of that number.
    fn name(&self, number: u32) -> Option<&[u8]> {
        let &(start, end) = self.bounds.get(number as usize)?;
        self.names.get(start as usize..end as usize)
    }

    /// The next part of the file, once it has at least `min` bytes.
    pub(crate) fn take_piece(&mut self, min: usize) -> Option<Piece> {
        let len = self.piece.len();
        if len < min.max(FILE_ALIGN_BYTES) {
            return None;
        }
        let piece = self.piece.take_pages(min + FILE_ALIGN_BYTES);
        let offset = self.piece_offset;
        self.piece_offset += (len - len % FILE_ALIGN_BYTES) as u64;
        Some((offset, piece))
    }

    /// Completes the file.
    pub(crate) fn finish(mut self) -> Built {
        assert!(!self.is_empty(), "an empty block is not written");
        let names = Names::new(self.names.freeze(), self.bounds);
        let summary = encode_summary(self.info.first_seq, &self.rows, &names);
        let index = encode_rows(&self.rows);
        self.info.summary_len = narrow(summary.len() as u64);
        self.info.summary_crc = crc32c::crc32c(&summary);
        self.info.index_len = narrow(index.len() as u64);
        self.info.index_crc = crc32c::crc32c(&index);
        self.piece.copy(&summary);
        self.piece.copy(&index);
        let len = (self.piece.len() + TRAILER_BYTES).next_multiple_of(FILE_ALIGN_BYTES);
        self.piece.pad_to(len - TRAILER_BYTES);
        self.info.body_crc = self.piece.crc();
        self.info.file_len = self.piece_offset + len as u64;
        self.piece.copy(&self.info.trailer());
        self.rows.shrink_to_fit();
        Built {
            piece: (self.piece_offset, self.piece.into_parts()),
            info: self.info,
            index: BlockIndex::new(self.rows, names),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "4096 fits every size")]
const FILE_ALIGN_BYTES: usize = FILE_ALIGN as usize;

/// Makes the index of a block again from its frames, if every one of them is sound.
///
/// There is no search for frames behind a damaged one: payloads may hold anything, frames of other blocks too, and
/// what is found in them must never pass for a message.
pub(crate) fn rebuild(info: &BlockInfo, file: &Bytes) -> Result<BlockIndex, Malformed> {
    const BAD: Malformed = Malformed("frames of a block are damaged");
    if FileHeader::decode(file)?.id != info.id {
        return Err(Malformed("block file is another block's"));
    }
    let end = crate::codec::index(info.summary_offset());
    let mut builder = BlockBuilder::new(info.id, 0);
    let mut at = HEADER_BYTES;
    while at < end {
        let rest = file.get(at..end).ok_or(BAD)?;
        let (frame, len) = Frame::parse(rest)?;
        frame.record.check().map_err(|_| BAD)?;
        if !builder.is_empty() && frame.seq <= builder.info.last_seq || !builder.fits(frame.seq, len) {
            return Err(BAD);
        }
        builder.push(frame.seq, frame.ts, &file.slice_ref(frame.record.bytes()))?;
        builder.piece.clear();
        at += len;
    }
    let same = |a: &BlockInfo| (a.first_seq, a.last_seq, a.count, a.data_len);
    if same(&builder.info) != same(info) {
        return Err(BAD);
    }
    let names = Names::new(builder.names.freeze(), builder.bounds);
    Ok(BlockIndex::new(builder.rows, names))
}

/// For keys that are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::read_summary;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tidelock_record::encode_into;

    fn build(messages: &[(u64, u8, Vec<u8>)]) -> (Bytes, Built) {
        let mut builder = BlockBuilder::new(7, 8192);
        let mut file = BytesMut::new();
        let mut seq = 100;
        for (gap, subject, payload) in messages {
            seq += gap;
            let mut record = BytesMut::new();
            let header: &[u8] = if subject % 2 == 0 {
                b""
            } else {
                b"NATS/1.0\r\nA: b\r\n\r\n"
            };
            encode_into(&mut record, format!("s.{subject}").as_bytes(), header, payload).unwrap();
            builder
                .push(seq, seq.cast_signed() * 3, &record.freeze())
                .unwrap();
            if let Some((offset, piece)) = builder.take_piece(8192) {
                let piece = piece.concat();
                assert_eq!((offset, piece.len() % 4096), (file.len() as u64, 0));
                file.extend_from_slice(&piece);
            }
        }
        let built = builder.finish();
        assert_eq!(built.piece.0, file.len() as u64);
        file.extend_from_slice(&built.piece.1.concat());
        (file.freeze(), built)
    }

    fn section(file: &Bytes, offset: u64, len: u32) -> Bytes {
        let start = usize::try_from(offset).unwrap();
        file.slice(start..start + len as usize)
    }

    fn messages() -> impl Strategy<Value = Vec<(u64, u8, Vec<u8>)>> {
        prop::collection::vec(
            (1_u64..5, 0_u8..6, prop::collection::vec(any::<u8>(), 0..300)),
            1..120,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_file_says_what_it_holds(messages in messages()) {
            let (file, built) = build(&messages);
            let info = BlockInfo::from_trailer(&file).unwrap();
            prop_assert_eq!(info, built.info);
            prop_assert_eq!(info.file_len, file.len() as u64);
            prop_assert_eq!(info.file_crc(), crc32c::crc32c(&file));
            let summary = section(&file, info.summary_offset(), info.summary_len);
            let index_offset = info.summary_offset() + u64::from(info.summary_len);
            let rows = section(&file, index_offset, info.index_len);
            prop_assert_eq!(crc32c::crc32c(&summary), info.summary_crc);
            prop_assert_eq!(crc32c::crc32c(&rows), info.index_crc);
            let index = BlockIndex::decode(&info, &summary, &rows).unwrap();
            prop_assert_eq!(index.rows(), built.index.rows());
            let again = rebuild(&info, &file).unwrap();
            prop_assert_eq!(again.rows(), index.rows());

            let mut by_subject: BTreeMap<Vec<u8>, Vec<u64>> = BTreeMap::new();
            for (row, again_row) in index.rows().iter().zip(again.rows()) {
                let start = row.offset as usize;
                let (frame, len) = Frame::parse(&file[start..]).unwrap();
                prop_assert_eq!(len as u64, row.frame_len());
                prop_assert!(frame.record.check().is_ok());
                prop_assert_eq!((frame.seq, frame.ts), (info.first_seq + u64::from(row.rel), row.ts));
                prop_assert_eq!(frame.extent(), Some(row.extent));
                prop_assert_eq!(frame.record.subject(), index.subject(row));
                prop_assert_eq!(again.subject(again_row), index.subject(row));
                by_subject.entry(index.subject(row).to_vec()).or_default().push(frame.seq);
            }
            let mut summarized = BTreeMap::new();
            read_summary(&info, &summary, &mut |subject| {
                let seqs = subject.runs.iter()
                    .flat_map(|run| (0..u64::from(run.count)).map(|n| run.first + n * run.stride)).collect();
                summarized.insert(subject.name.to_vec(), seqs);
            }).unwrap();
            prop_assert_eq!(summarized, by_subject);
        }

        #[test]
        fn a_damaged_frame_is_never_taken(messages in messages(), place: prop::sample::Index, bit in 0_u8..8) {
            let (file, built) = build(&messages);
            let mut file = file.to_vec();
            let end = usize::try_from(built.info.summary_offset()).unwrap();
            file[place.index(end)] ^= 1 << bit;
            prop_assert!(rebuild(&built.info, &Bytes::from(file)).is_err());
        }
    }
}
