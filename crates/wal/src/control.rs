//! The control file of a lane, in two slots that are written in turn: which lane this is, and how far it was synced
//! when that was last written down. Headers of batches say the latter too; the control file says it of the very last
//! batch, which no later header does.
//!
//! Shape, little-endian:
//! ```text
//! 0   magic "TLWALC" | version u16 = 1
//! 8   crc32c            u32  over bytes 0..8 and 12..
//! 12  lane              u16
//! 14  drained           u8   1: all groups have moved elsewhere, the rest of the lane is rubbish
//! 15  zero              u8
//! 16  sequence          u64  of this write; the slot is sequence % 2
//! 24  lane_id           u64
//! 32  synced            u64 generation, u64 offset
//! 48  first_generation  u64
//! 56  number            u64  of the last batch before `synced`; 0 for none
//! 64  total_len         u32  of that batch
//! 68  zero              u32
//! 72  items of that batch, see `header`
//! ```
//! Each slot is a file of its own that is replaced as a whole, so that a file whose sync failed is never synced
//! again.

use crate::batch::Repeated;
use crate::header::{Position, decode_items, encode_items};
use bytes::Bytes;

const MAGIC: [u8; 8] = *b"TLWALC\x01\x00";
const HEAD_BYTES: usize = 72;

#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    pub(crate) lane: u16,
    pub(crate) drained: bool,
    pub(crate) sequence: u64,
    pub(crate) lane_id: u64,
    pub(crate) synced: Position,
    pub(crate) first_generation: u64,
    pub(crate) number: u64,
    pub(crate) last: Repeated,
}

impl Control {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEAD_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.lane.to_le_bytes());
        out.extend_from_slice(&[u8::from(self.drained), 0]);
        for number in [
            self.sequence,
            self.lane_id,
            self.synced.generation,
            self.synced.offset,
            self.first_generation,
            self.number,
            u64::from(self.last.total_len),
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        encode_items(&self.last.items, &mut out);
        let crc = checksum(&out);
        if let Some(place) = out.get_mut(8..12) {
            place.copy_from_slice(&crc.to_le_bytes());
        }
        Bytes::from(out)
    }

    /// Reads a slot; `None` if it is damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, items) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let (magic, rest) = head.split_first_chunk::<8>()?;
        let (crc, rest) = rest.split_first_chunk::<4>()?;
        if *magic != MAGIC || u32::from_le_bytes(*crc) != checksum(bytes) {
            return None;
        }
        let (lane, rest) = rest.split_first_chunk::<2>()?;
        let (flags, rest) = rest.split_first_chunk::<2>()?;
        let mut words = rest
            .chunks_exact(8)
            .map_while(|word| word.first_chunk().map(|word| u64::from_le_bytes(*word)));
        Some(Self {
            lane: u16::from_le_bytes(*lane),
            drained: flags.first() == Some(&1),
            sequence: words.next()?,
            lane_id: words.next()?,
            synced: Position {
                generation: words.next()?,
                offset: words.next()?,
            },
            first_generation: words.next()?,
            number: words.next()?,
            last: Repeated {
                total_len: u32::try_from(words.next()?).ok()?,
                items: decode_items(items),
            },
        })
    }

    /// Name of the slot in which this is written.
    pub(crate) fn slot(&self) -> &'static str {
        slot_name(self.sequence)
    }
}

/// Names of the slots.
pub(crate) const SLOTS: [&str; 2] = ["control-0", "control-1"];

fn slot_name(sequence: u64) -> &'static str {
    let [even, odd] = SLOTS;
    if sequence.is_multiple_of(2) { even } else { odd }
}

fn checksum(bytes: &[u8]) -> u32 {
    let (start, rest) = bytes.split_at_checked(8).unwrap_or((bytes, &[]));
    crc32c::crc32c_append(crc32c::crc32c(start), rest.get(4..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Item;

    #[test]
    fn round_trips_and_notices_each_flipped_bit() {
        let item = Item {
            group: 3,
            first: 1,
            last: 2,
            flags: Item::OTHER,
        };
        let control = Control {
            lane: 3,
            drained: true,
            sequence: 9,
            lane_id: 0xdead,
            synced: Position {
                generation: 4,
                offset: 8192,
            },
            first_generation: 2,
            number: 17,
            last: Repeated {
                total_len: 4096,
                items: vec![item],
            },
        };
        let bytes = control.encode();
        let read = Control::decode(&bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{control:?}"));
        assert_eq!(read.slot(), "control-1");
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Control::decode(&flipped).is_none(), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(Control::decode(&bytes[..cut]).is_none());
        }
    }
}
