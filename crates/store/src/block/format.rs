//! The bytes of a block file. Little-endian; varints as in `codec`.
//!
//! ```text
//! header    64 bytes:
//!   0 magic "TLBLOCK\n" | 8 version u16 | 10 compression u8 | 11 cipher u8 | 12 reserved u32 | 16 key id u64
//!   24 nonce [24] | 48 block number u64 | 56 reserved u32 | 60 crc32c u32 of bytes 0..60
//! frames    one after the other: seq u64 | ts i64 | head crc32c u32 | record
//!           (the crc covers seq, ts and the first 16 bytes of the record, so that a scan can find frames again)
//! summary   varint number of subjects, then for each, numbered from 0:
//!           name (varint length, bytes) | list of its sequences (`postings`) | length and flag, crc of its last record
//! index     for each frame: varint distance of seq from the one before (from the block's first for the first)
//!           | varint record length * 2 + has headers | varint subject | signed varint distance of ts | record crc u32
//! zeros     up to the next multiple of 4096, less the trailer
//! trailer   128 bytes: `BlockInfo` | zeros | crc32c u32 of the trailer's bytes before
//! ```
//! Only version 1, without compression or cipher, exists; anything else is refused.

use crate::codec::{Malformed, Reader};
use crate::tree::Extent;
use tidelock_record::{RECORD_HEAD_BYTES, RecordRef};

const MAGIC: [u8; 8] = *b"TLBLOCK\n";
const VERSION: u16 = 1;
/// Length of the file header.
pub(crate) const HEADER_BYTES: usize = 64;
/// Bytes of a frame in front of its record.
pub(crate) const FRAME_HEAD_BYTES: usize = 20;
/// Length of the trailer.
pub(crate) const TRAILER_BYTES: usize = 128;
/// Files are whole multiples of this.
pub(crate) const FILE_ALIGN: u64 = 4096;

/// The first bytes of a block file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    /// Number of the block, as in the file's name.
    pub(crate) id: u64,
}

impl FileHeader {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.resize(48, 0);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.resize(HEADER_BYTES - 4, 0);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let head = bytes
            .get(..HEADER_BYTES)
            .ok_or(Malformed("block header is short"))?;
        let (covered, crc) = head.split_at(HEADER_BYTES - 4);
        if crc != crc32c::crc32c(covered).to_le_bytes() {
            return Err(Malformed("block header fails its checksum"));
        }
        let mut reader = Reader::new(covered);
        if reader.take(8)? != MAGIC || reader.u16()? != VERSION {
            return Err(Malformed("not a block file of a known version"));
        }
        if reader.u16()? != 0 {
            return Err(Malformed("block file is compressed or encrypted"));
        }
        reader.take(36)?;
        Ok(Self { id: reader.u64()? })
    }
}

/// What a checkpoint and the trailer say of a block file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockInfo {
    /// Number of the block, as in the file's name.
    pub(crate) id: u64,
    /// Sequence of the first message written.
    pub(crate) first_seq: u64,
    /// Sequence of the last message written.
    pub(crate) last_seq: u64,
    /// At least the greatest time of a message.
    pub(crate) ts_max: i64,
    /// Messages written.
    pub(crate) count: u32,
    /// Length of the frames, which follow the header.
    pub(crate) data_len: u64,
    /// Length of the summary, which follows the frames.
    pub(crate) summary_len: u32,
    /// crc32c of the summary.
    pub(crate) summary_crc: u32,
    /// Length of the index, which follows the summary.
    pub(crate) index_len: u32,
    /// crc32c of the index.
    pub(crate) index_crc: u32,
    /// Length of the file.
    pub(crate) file_len: u64,
    /// crc32c of the file up to the trailer.
    pub(crate) body_crc: u32,
}

impl BlockInfo {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for n in [
            self.id,
            self.first_seq,
            self.last_seq,
            self.ts_max.cast_unsigned(),
            self.data_len,
            self.file_len,
        ] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for n in [
            self.count,
            self.summary_len,
            self.summary_crc,
            self.index_len,
            self.index_crc,
            self.body_crc,
        ] {
            out.extend_from_slice(&n.to_le_bytes());
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let info = Self {
            id: reader.u64()?,
            first_seq: reader.u64()?,
            last_seq: reader.u64()?,
            ts_max: reader.i64()?,
            data_len: reader.u64()?,
            file_len: reader.u64()?,
            count: reader.u32()?,
            summary_len: reader.u32()?,
            summary_crc: reader.u32()?,
            index_len: reader.u32()?,
            index_crc: reader.u32()?,
            body_crc: reader.u32()?,
        };
        let parts = (HEADER_BYTES as u64 + TRAILER_BYTES as u64)
            .checked_add(info.data_len)
            .and_then(|n| n.checked_add(u64::from(info.summary_len) + u64::from(info.index_len)));
        let sound = info.first_seq > 0
            && info.first_seq <= info.last_seq
            && info.last_seq - info.first_seq < u64::from(u32::MAX)
            && info.data_len < u64::from(u32::MAX)
            && info.count > 0
            && parts.is_some_and(|parts| parts <= info.file_len);
        if sound {
            Ok(info)
        } else {
            Err(Malformed("description of a block contradicts itself"))
        }
    }

    /// The trailer of the file.
    pub(crate) fn trailer(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TRAILER_BYTES);
        self.encode(&mut out);
        out.resize(TRAILER_BYTES - 4, 0);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// crc32c of the whole file.
    pub(crate) fn file_crc(&self) -> u32 {
        crc32c::crc32c_append(self.body_crc, &self.trailer())
    }

    /// Finds the description at the end of a block file.
    pub(crate) fn from_trailer(file: &[u8]) -> Result<Self, Malformed> {
        let trailer = file
            .last_chunk::<TRAILER_BYTES>()
            .ok_or(Malformed("block file is short"))?;
        let (covered, crc) = trailer.split_at(TRAILER_BYTES - 4);
        if crc != crc32c::crc32c(covered).to_le_bytes() {
            return Err(Malformed("block trailer fails its checksum"));
        }
        Self::decode(&mut Reader::new(covered))
    }

    pub(crate) const fn summary_offset(&self) -> u64 {
        HEADER_BYTES as u64 + self.data_len
    }

    /// Greatest distance of a sequence from the first.
    pub(crate) const fn span(&self) -> u64 {
        self.last_seq - self.first_seq
    }
}

/// One message in a block file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) seq: u64,
    pub(crate) ts: i64,
    pub(crate) record: RecordRef<'a>,
}

impl<'a> Frame<'a> {
    /// The bytes in front of a record.
    pub(crate) fn head(seq: u64, ts: i64, record: &[u8]) -> [u8; FRAME_HEAD_BYTES] {
        let mut out = [0; FRAME_HEAD_BYTES];
        let (covered, crc) = out.split_at_mut(FRAME_HEAD_BYTES - 4);
        let (seq_place, ts_place) = covered.split_at_mut(8);
        seq_place.copy_from_slice(&seq.to_le_bytes());
        ts_place.copy_from_slice(&ts.to_le_bytes());
        let sum = crc32c::crc32c(covered);
        let sum = crc32c::crc32c_append(sum, record.get(..RECORD_HEAD_BYTES).unwrap_or(record));
        crc.copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads the frame at the start of `bytes`; the number is its length. The record's own checksum is not looked at.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<(Self, usize), Malformed> {
        let mut reader = Reader::new(bytes);
        let (seq, ts, crc) = (reader.u64()?, reader.i64()?, reader.u32()?);
        let rest = bytes.get(FRAME_HEAD_BYTES..).unwrap_or_default();
        let covered = bytes.get(..FRAME_HEAD_BYTES - 4).unwrap_or_default();
        let head = rest.get(..RECORD_HEAD_BYTES).ok_or(Malformed("frame is short"))?;
        if crc32c::crc32c_append(crc32c::crc32c(covered), head) != crc {
            return Err(Malformed("frame head fails its checksum"));
        }
        let (record, len) = RecordRef::parse(rest).map_err(|_| Malformed("record is malformed"))?;
        if seq == 0 {
            return Err(Malformed("frame has no sequence"));
        }
        Ok((Self { seq, ts, record }, FRAME_HEAD_BYTES + len))
    }

    pub(crate) fn extent(&self) -> Option<Extent> {
        extent(&self.record)
    }
}

/// Size and checksum of a record.
pub(crate) fn extent(record: &RecordRef<'_>) -> Option<Extent> {
    let len = u32::try_from(record.bytes().len()).ok()?;
    Extent::new(len, !record.header().is_empty(), record.crc())
}
