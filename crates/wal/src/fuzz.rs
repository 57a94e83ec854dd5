//! Entry for fuzzers: recovery from arbitrary bytes.

use crate::batch::{LaneId, OpenBatch, Repeated};
use crate::config::LaneConfig;
use crate::frame::{Frame, WalRecord};
use crate::header::{Position, Stamp};
use crate::lane::Lane;
use crate::recover::recover;
use bytes::Bytes;
use tidelock_base::GroupId;
use tidelock_record::{ALIGNMENT, AlignedBuf, Disk, FilePath, IoOp, MemDisk};

/// Opens a lane whose files hold `input`, and checks that it can be written to and opened again.
///
/// The first byte chooses how the input is taken: as the bytes of a segment as they are; as the body of a batch whose
/// header is sound, so that the fuzzer need not find checksums; or as a control file beside a sound batch.
///
/// # Panics
/// If recovery panics, or loses what was synced after it. That is what the fuzzer looks for.
pub fn fuzz(input: &[u8]) {
    let disk = MemDisk::new();
    let config = LaneConfig {
        dir: FilePath::root(),
        segment_bytes: 64 * 1024,
        batch_bytes_max: 16 * 1024,
        seed: 1,
    };
    let (mode, input) = input.split_first().unwrap_or((&0, &[]));
    let segment = match mode % 3 {
        0 => Bytes::copy_from_slice(input),
        1 => sound_batch(input),
        _ => sound_batch(&[]),
    };
    write(&disk, "lane-0000/slot-00000000", segment);
    if mode % 3 == 2 {
        write(&disk, "lane-0000/control-0", Bytes::copy_from_slice(input));
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
    drop(lane);
    let (_, again) = recover(&disk, 0, config).expect("what this version wrote");
    let members = again
        .groups
        .get(&group)
        .and_then(|group| group.members.as_deref());
    assert_eq!(members, Some(&b"after"[..]));
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
    batch.stamped(&Stamp {
        at,
        ..Stamp::default()
    })
}

impl OpenBatch {
    fn with_body(mut self, body: &[u8]) -> Self {
        let frame = Frame::Damaged { group: GroupId(3) };
        self.push(&frame, None);
        self.push_raw(body);
        self
    }
}
