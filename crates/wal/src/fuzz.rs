//! Entry for fuzzers: recovery from arbitrary bytes.

use crate::batch::{LaneId, OpenBatch, Repeated};
use crate::config::LaneConfig;
use crate::frame::{FRAME_HEAD_BYTES, Frame, WalRecord};
use crate::header::{Item, Position, Stamp};
use crate::lane::Lane;
use crate::recover::recover;
use bytes::Bytes;
use tidelock_base::GroupId;
use tidelock_record::{ALIGNMENT, AlignedBuf, Disk, FilePath, IoDone, IoOp, IoRequest, MemDisk};

const SEGMENT_BYTES: usize = 64 * 1024;

/// Opens a lane whose files hold `input`, and checks that it can be written to and opened again.
///
/// The first byte chooses how the input is taken: as the bytes of a segment as they are; as the body of a batch whose
/// header is sound, so that the fuzzer need not find checksums; as a control file beside a sound batch; as a list
/// of frames; or as a list of batches with any places and positions.
///
/// # Panics
/// If recovery panics, or loses what was synced after it. That is what the fuzzer looks for.
pub fn fuzz(input: &[u8]) {
    let disk = MemDisk::new();
    let config = LaneConfig {
        dir: FilePath::root(),
        segment_bytes: SEGMENT_BYTES as u64,
        batch_bytes_max: 16 * 1024,
        seed: 1,
    };
    let (mode, input) = input.split_first().unwrap_or((&0, &[]));
    match mode % 5 {
        0 => write(&disk, "lane-0000/slot-00000000", Bytes::copy_from_slice(input)),
        1 => write(&disk, "lane-0000/slot-00000000", sound_batch(input)),
        2 => {
            write(&disk, "lane-0000/slot-00000000", sound_batch(&[]));
            write(&disk, "lane-0000/control-0", Bytes::copy_from_slice(input));
        }
        3 => write(&disk, "lane-0000/slot-00000000", sound_batch(&frames(input))),
        _ => batches(&disk, input),
    }
    // An unknown frame in a sound batch is the work of a newer version, and refused.
    let Ok((mut lane, _)) = recover(&disk, 0, config.clone()) else {
        return;
    };
    let group = GroupId(u64::MAX);
    lane.append(&WalRecord::Members {
        group,
        blob: b"after",
    });
    finish(&mut lane, &disk);
    let requests = lane.relocate(1024);
    run(&mut lane, &disk, requests);
    finish(&mut lane, &disk);
    drop(lane);
    let (_, again) = recover(&disk, 0, config).expect("what this version wrote");
    let members = again
        .groups
        .get(&group)
        .and_then(|group| group.members.as_deref());
    assert_eq!(members, Some(&b"after"[..]));
}

fn run(lane: &mut Lane, disk: &MemDisk, requests: Vec<IoRequest>) {
    for IoRequest { token, op } in requests {
        let result = disk.run(&op);
        lane.done(&IoDone { token, result });
    }
}

/// Frames with small numbers, six bytes of the input each.
fn frames(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in input.chunks_exact(6) {
        let [kind, group, a, b, len, detail] = *chunk.first_chunk().unwrap_or(&[0; 6]);
        let total = FRAME_HEAD_BYTES + usize::from(len);
        out.extend_from_slice(&[
            u8::try_from(total & 255).unwrap_or(0),
            u8::from(total > 255),
            0,
            0,
        ]);
        out.extend_from_slice(&[1 + kind % 11, detail & 1, detail >> 1, 0]);
        for number in [group % 4, a % 16, b, 1] {
            out.extend_from_slice(&u64::from(number).to_le_bytes());
        }
        out.resize(out.len() + usize::from(len), b);
    }
    out
}

/// Sound batches in up to three segments, twelve bytes of the input each: where, and what they say of the log.
fn batches(disk: &MemDisk, input: &[u8]) {
    let mut segments = vec![vec![0; SEGMENT_BYTES]; 3];
    for (chunk, frame) in input.chunks_exact(12).zip(input.chunks(6).cycle()) {
        let [
            slot,
            block,
            number,
            own,
            synced,
            synced_at,
            sealed,
            sealed_at,
            first,
            prev,
            group,
            index,
        ] = *chunk.first_chunk().unwrap_or(&[0; 12]);
        // Mostly small numbers; very large ones among them.
        let number_of = |byte: u8| {
            if byte == 255 {
                u64::MAX >> 9
            } else {
                u64::from(byte % 16)
            }
        };
        let position = |generation, block: u8| Position {
            generation: number_of(generation),
            offset: u64::from(block % 16) * ALIGNMENT as u64,
        };
        let mut before = Repeated {
            total_len: u32::from(prev % 4) * 4096,
            items: vec![Item {
                group: u64::from(group % 4),
                first: u64::from(index),
                last: u64::from(index),
                flags: u32::from(prev),
            }],
        };
        let open = OpenBatch::new(number_of(number), AlignedBuf::with_capacity(ALIGNMENT), 1);
        let mut batch = open
            .with_body(&frames(frame))
            .close(LaneId { lane: 0, id: 7 }, &mut before);
        // A header that contradicts itself is refused early; these do not.
        let at = position(own, block);
        let synced = position(synced, synced_at).min(at);
        let sealed = position(sealed, sealed_at).min(synced);
        let parts = batch.stamped(&Stamp {
            at,
            synced,
            sealed,
            first_generation: number_of(first).min(at.generation),
        });
        let bytes = parts.concat();
        let start = usize::try_from(at.offset).unwrap_or(0);
        let segment = segments.get_mut(usize::from(slot % 3));
        if let Some(place) = segment.and_then(|segment| segment.get_mut(start..start + bytes.len())) {
            place.copy_from_slice(&bytes);
        }
    }
    for (slot, segment) in segments.into_iter().enumerate() {
        write(disk, &format!("lane-0000/slot-{slot:08}"), Bytes::from(segment));
    }
}

fn finish(lane: &mut Lane, disk: &MemDisk) {
    lane.finish(disk).expect("the disk works");
}

fn write(disk: &MemDisk, path: &str, data: Bytes) {
    let file = FilePath::new(path).expect("a valid path");
    disk.run(&IoOp::Replace { file, data }).expect("the disk works");
}

/// A segment with one batch of that body.
fn sound_batch(body: &[u8]) -> Bytes {
    let id = LaneId { lane: 0, id: 7 };
    let open = OpenBatch::new(1, AlignedBuf::with_capacity(ALIGNMENT), 0);
    let mut batch = open.with_body(body).close(id, &mut Repeated::default());
    let at = Position {
        generation: 1,
        offset: 0,
    };
    let parts = batch.stamped(&Stamp {
        at,
        ..Stamp::default()
    });
    Bytes::from(parts.concat())
}

impl OpenBatch {
    fn with_body(mut self, body: &[u8]) -> Self {
        let frame = Frame::Damaged { group: GroupId(3) };
        self.push(&frame, None, None);
        self.push_raw(body);
        self
    }
}
