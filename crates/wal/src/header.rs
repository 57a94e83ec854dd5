//! Header of a batch: what lets recovery find batches, tell a torn tail from damage, and name the groups of a batch
//! whose bytes are lost.
//!
//! Shape, little-endian; a batch starts on a 4 KiB boundary of its segment:
//! ```text
//! 0    magic              "TLWALB"
//! 6    version            u16  1
//! 8    header_crc         u32  crc32c over bytes 0..8 and 12..header_len
//! 12   header_len         u32  = 152 + 28 * (own_count + prev_count)
//! 16   body_start         u32
//! 20   body_len           u32
//! 24   body_crc           u32  crc32c over the body
//! 28   total_len          u32  multiple of 4096
//! 32   lane               u16
//! 34   compression        u8   0 (none)
//! 35   cipher             u8   0 (none)
//! 36   key_id             u32  0
//! 40   nonce              24 bytes, 0
//! 64   lane_id            u64  random, of this incarnation of the lane
//! 72   number             u64  of the batch; rises by one
//! 80   generation         u64  of the segment
//! 88   offset             u64  of the batch in its segment
//! 96   synced             u64 generation, u64 offset: end of the last batch whose sync had returned
//! 112  sealed             u64 generation, u64 offset: end of the log before this segment
//! 128  first_generation   u64  segments of lower generations are free
//! 136  own_count          u32
//! 140  prev_count         u32
//! 144  prev_total         u32  total_len of the batch before; 0 if unknown
//! 148  zero               u32
//! 152  own items, then the items of the batch before
//! item: group u64 | first u64 | last u64 | flags u32
//! ```
//! A header names its own place. Together with the random lane id this keeps old content of a recycled segment, and
//! copies of log files that someone published as a message, from being taken for batches.

use crate::frame::Frame;
use crate::frame::WalRecord;
use tidelock_base::GroupId;
use tidelock_record::ALIGNMENT;

/// Bytes of a header without its items.
pub(crate) const HEADER_BYTES: usize = 152;
/// Bytes of an item.
pub(crate) const ITEM_BYTES: usize = 28;

const MAGIC: [u8; 6] = *b"TLWALB";
const VERSION: u16 = 1;
/// Numbers and generations above are not ours: counting from 1 does not get there.
const NUMBER_MAX: u64 = u64::MAX >> 8;

/// A place in a lane: a byte of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) generation: u64,
    pub(crate) offset: u64,
}

/// What happened to one group in one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// 0 for node-wide facts.
    pub(crate) group: u64,
    /// Lowest index of an appended entry, above which everything older is superseded; 0 for none.
    pub(crate) first: u64,
    /// Index of the last appended entry; 0 for none.
    pub(crate) last: u64,
    pub(crate) flags: u32,
}

impl Item {
    /// The last thing that happened is that the group was destroyed; more about it starts another item.
    pub(crate) const DESTROYED: u32 = 1;
    /// A snapshot replaced the log.
    pub(crate) const SNAPSHOT: u32 = 2;
    /// Facts that the next of their kind replaces: term, vote and commit, where the log begins, the members.
    pub(crate) const OTHER: u32 = 4;
    /// What nothing later makes up for: creation, healing, damage, the note of a move, and whatever was restated.
    pub(crate) const LASTING: u32 = 8;

    pub(crate) fn new(frame: &Frame<'_>) -> Self {
        let mut item = Self {
            group: frame.group().map_or(0, GroupId::value),
            first: 0,
            last: 0,
            flags: 0,
        };
        item.merge(frame);
        item
    }

    /// Adds one more frame about the same group.
    pub(crate) fn merge(&mut self, frame: &Frame<'_>) {
        match frame {
            Frame::Record {
                kept: false,
                record: WalRecord::Entry { index, .. },
            } => {
                self.first = if self.first == 0 {
                    index.0
                } else {
                    self.first.min(index.0)
                };
                self.last = index.0;
            }
            Frame::Record {
                record: WalRecord::Destroyed { .. },
                ..
            } => self.flags |= Self::DESTROYED,
            Frame::Record {
                kept: false,
                record: WalRecord::SnapshotInstalled { .. },
            } => {
                self.flags |= Self::SNAPSHOT;
                (self.first, self.last) = (0, 0);
            }
            Frame::Record {
                kept: false,
                record:
                    WalRecord::HardState { .. }
                    | WalRecord::Truncated { .. }
                    | WalRecord::Members { .. }
                    | WalRecord::Meta { .. },
            } => self.flags |= Self::OTHER,
            Frame::Record { .. } | Frame::Damaged { .. } | Frame::Arrival { .. } => {
                self.flags |= Self::LASTING;
            }
        }
    }
}

/// Fields that change when a batch is written again elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Where the batch is.
    pub(crate) at: Position,
    pub(crate) synced: Position,
    pub(crate) sealed: Position,
    pub(crate) first_generation: u64,
}

/// A header that was read and whose checksum is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) lane: u16,
    pub(crate) lane_id: u64,
    pub(crate) number: u64,
    pub(crate) stamp: Stamp,
    pub(crate) body_start: usize,
    pub(crate) body_len: usize,
    pub(crate) body_crc: u32,
    pub(crate) total_len: usize,
    pub(crate) items: Vec<Item>,
    pub(crate) prev_total: u32,
    pub(crate) prev_items: Vec<Item>,
}

/// Why there is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// Not a header, or a damaged one.
    Damaged,
    /// A sound header of a version, compression or cipher that this version does not know.
    Unsupported,
}

/// Length of a header with so many items.
pub(crate) const fn header_len(items: usize) -> usize {
    HEADER_BYTES + ITEM_BYTES * items
}

/// Writes little-endian fields one after the other into a slice that is long enough.
struct Fields<'a>(&'a mut [u8]);

impl Fields<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some((place, rest)) = std::mem::take(&mut self.0).split_at_mut_checked(bytes.len()) {
            place.copy_from_slice(bytes);
            self.0 = rest;
        }
    }
}

/// Reads little-endian fields; zeros past the end, which the caller has checked not to happen.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.0 = rest;
                *taken
            }
            None => [0; N],
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn usize(&mut self) -> usize {
        usize::try_from(self.u32()).unwrap_or(usize::MAX)
    }

    fn position(&mut self) -> Position {
        Position {
            generation: self.u64(),
            offset: self.u64(),
        }
    }
}

/// Encodes items after each other.
pub(crate) fn encode_items(items: &[Item], out: &mut Vec<u8>) {
    for item in items {
        for number in [item.group, item.first, item.last] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&item.flags.to_le_bytes());
    }
}

/// Decodes what [`encode_items`] wrote; a rest shorter than an item is left out.
pub(crate) fn decode_items(bytes: &[u8]) -> Vec<Item> {
    let item = |chunk| {
        let mut reader = Reader(chunk);
        Item {
            group: reader.u64(),
            first: reader.u64(),
            last: reader.u64(),
            flags: reader.u32(),
        }
    };
    bytes.chunks_exact(ITEM_BYTES).map(item).collect()
}

/// What is known of a batch when it is closed, before it has a place.
pub(crate) struct Unplaced<'a> {
    pub(crate) lane: u16,
    pub(crate) lane_id: u64,
    pub(crate) number: u64,
    pub(crate) body_start: usize,
    pub(crate) body_len: usize,
    /// Checksum of the body.
    pub(crate) body_crc: u32,
    /// Length of the whole batch.
    pub(crate) total_len: usize,
    pub(crate) items: &'a [Item],
    pub(crate) prev_total: u32,
    pub(crate) prev_items: &'a [Item],
}

fn length(n: usize) -> [u8; 4] {
    u32::try_from(n)
        .expect("batches are shorter than 4 GiB")
        .to_le_bytes()
}

impl Unplaced<'_> {
    /// Writes the header into the start of the batch, of which `front` has at least what lies before the body. The
    /// header is not valid before [`stamp`].
    pub(crate) fn write(&self, front: &mut [u8]) {
        let total = self.total_len;
        let items = self.items.len() + self.prev_items.len();
        assert!(header_len(items) <= self.body_start, "header overlaps the body");
        assert!(total.is_multiple_of(ALIGNMENT) && self.body_start + self.body_len <= total);
        assert!(self.body_start <= front.len() && front.len() <= total);

        let mut lists = Vec::with_capacity(items * ITEM_BYTES);
        encode_items(self.items, &mut lists);
        encode_items(self.prev_items, &mut lists);
        let mut out = Fields(front);
        out.put(&MAGIC);
        out.put(&VERSION.to_le_bytes());
        out.put(&[0; 4]);
        out.put(&length(header_len(items)));
        out.put(&length(self.body_start));
        out.put(&length(self.body_len));
        out.put(&self.body_crc.to_le_bytes());
        out.put(&length(total));
        out.put(&self.lane.to_le_bytes());
        out.put(&[0; 30]);
        out.put(&self.lane_id.to_le_bytes());
        out.put(&self.number.to_le_bytes());
        out.put(&[0; 56]);
        out.put(&length(self.items.len()));
        out.put(&length(self.prev_items.len()));
        out.put(&self.prev_total.to_le_bytes());
        out.put(&[0; 4]);
        out.put(&lists);
    }
}

/// Gives a batch its place: fills in the fields that depend on it and the checksum of the header.
pub(crate) fn stamp(batch: &mut [u8], stamp: &Stamp) {
    let header_len = Reader(batch.get(12..).unwrap_or_default()).usize();
    if let Some(place) = batch.get_mut(80..136) {
        let mut out = Fields(place);
        for position in [stamp.at, stamp.synced, stamp.sealed] {
            out.put(&position.generation.to_le_bytes());
            out.put(&position.offset.to_le_bytes());
        }
        out.put(&stamp.first_generation.to_le_bytes());
    }
    let crc = checksum(batch, header_len).unwrap_or(0);
    if let Some(place) = batch.get_mut(8..12) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Checksum of a header of that length; `None` if the bytes are fewer.
fn checksum(batch: &[u8], header_len: usize) -> Option<u32> {
    let start = crc32c::crc32c(batch.get(..8)?);
    Some(crc32c::crc32c_append(start, batch.get(12..header_len)?))
}

/// Stated length of what looks like a batch of this generation, but whose checksum does not hold; else 0.
pub(crate) fn torn_len(bytes: &[u8], generation: u64) -> u64 {
    let stated = Reader(bytes.get(80..).unwrap_or_default()).u64();
    if !bytes.starts_with(&MAGIC) || stated != generation {
        return 0;
    }
    u64::from(Reader(bytes.get(28..).unwrap_or_default()).u32())
}

impl Header {
    /// Reads the header at the start of `bytes`, which reach to the end of the segment. Looks at its checksum and
    /// structure, not at the body, and not at whether it belongs here.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, NoHeader> {
        let fixed = bytes.get(..HEADER_BYTES).ok_or(NoHeader::Damaged)?;
        let mut reader = Reader(fixed);
        if reader.take() != MAGIC {
            return Err(NoHeader::Damaged);
        }
        let version = reader.u16();
        let header_crc = reader.u32();
        let header_len = reader.usize();
        if checksum(bytes, header_len) != Some(header_crc) {
            return Err(NoHeader::Damaged);
        }
        if version != VERSION {
            return Err(NoHeader::Unsupported);
        }
        Self::fields(&mut reader, bytes, header_len)
    }

    /// The fields from `body_start` on.
    fn fields(reader: &mut Reader<'_>, bytes: &[u8], header_len: usize) -> Result<Self, NoHeader> {
        let (body_start, body_len, body_crc) = (reader.usize(), reader.usize(), reader.u32());
        let total_len = reader.usize();
        let lane = reader.u16();
        let reserved: [u8; 30] = reader.take();
        let (lane_id, number) = (reader.u64(), reader.u64());
        let stamp = Stamp {
            at: reader.position(),
            synced: reader.position(),
            sealed: reader.position(),
            first_generation: reader.u64(),
        };
        let (own_count, prev_count, prev_total) = (reader.usize(), reader.usize(), reader.u32());
        if reserved != [0; 30] {
            return Err(NoHeader::Unsupported);
        }
        let lists = bytes.get(HEADER_BYTES..header_len).unwrap_or_default();
        let counted = own_count.saturating_add(prev_count).saturating_mul(ITEM_BYTES);
        let own_len = own_count.saturating_mul(ITEM_BYTES);
        let body_end = body_start.saturating_add(body_len);
        let sound = lists.len() == counted
            && header_len <= body_start
            && body_end <= total_len
            && total_len <= bytes.len()
            && total_len.is_multiple_of(ALIGNMENT)
            && (1..NUMBER_MAX).contains(&number)
            && (1..NUMBER_MAX).contains(&stamp.at.generation)
            && stamp.sealed <= stamp.synced
            && stamp.synced <= stamp.at
            && stamp.first_generation <= stamp.at.generation;
        let (own, prev) = lists.split_at_checked(own_len).ok_or(NoHeader::Damaged)?;
        if !sound {
            return Err(NoHeader::Damaged);
        }
        Ok(Self {
            lane,
            lane_id,
            number,
            stamp,
            body_start,
            body_len,
            body_crc,
            total_len,
            items: decode_items(own),
            prev_total,
            prev_items: decode_items(prev),
        })
    }

    /// The body of the batch that starts with this header, if its checksum is right.
    pub(crate) fn body<'a>(&self, batch: &'a [u8]) -> Option<&'a [u8]> {
        let body = batch.get(self.body_start..self.body_start.checked_add(self.body_len)?)?;
        (crc32c::crc32c(body) == self.body_crc).then_some(body)
    }

    /// Where the batch ends.
    pub(crate) fn end(&self) -> Position {
        Position {
            generation: self.stamp.at.generation,
            offset: self.stamp.at.offset.saturating_add(self.total_len as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Vec<u8> {
        let item = |group| Item {
            group,
            first: 3,
            last: 4,
            flags: Item::OTHER,
        };
        let mut batch = vec![0; 8192];
        batch[4096..4100].copy_from_slice(b"body");
        Unplaced {
            lane: 2,
            lane_id: 99,
            number: 7,
            body_start: 4096,
            body_len: 4,
            body_crc: crc32c::crc32c(b"body"),
            total_len: 8192,
            items: &[item(1), item(2)],
            prev_total: 4096,
            prev_items: &[item(5)],
        }
        .write(&mut batch);
        let position = |generation, offset| Position { generation, offset };
        let place = Stamp {
            at: position(6, 4096),
            synced: position(6, 4096),
            sealed: position(5, 8192),
            first_generation: 2,
        };
        stamp(&mut batch, &place);
        batch
    }

    #[test]
    fn round_trips_and_checks_the_body() {
        let mut bytes = batch();
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((header.lane, header.lane_id, header.number), (2, 99, 7));
        assert_eq!(
            header.stamp.sealed,
            Position {
                generation: 5,
                offset: 8192
            }
        );
        assert_eq!(header.items.len() + header.prev_items.len(), 3);
        assert_eq!(header.body(&bytes), Some(&b"body"[..]));
        assert_eq!(header.end().offset, 4096 + 8192);
        bytes[4097] ^= 4;
        assert_eq!(header.body(&bytes), None);
    }

    #[test]
    fn each_bit_of_the_header_counts() {
        let whole = batch();
        let end = header_len(3);
        for bit in 0..end * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::parse(&bytes), Err(NoHeader::Damaged), "bit {bit}");
        }
    }

    #[test]
    fn what_a_newer_version_wrote_is_not_damage() {
        let place = Header::parse(&batch()).unwrap().stamp;
        // The version, the kind of compression, the nonce.
        for at in [6, 34, 50] {
            let mut bytes = batch();
            bytes[at] += 1;
            stamp(&mut bytes, &place);
            assert_eq!(Header::parse(&bytes), Err(NoHeader::Unsupported));
        }
    }
}
