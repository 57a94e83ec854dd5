//! Large entries that are written from where they are.

use super::{config, create, entry, indexes, pump, sync};
use crate::{BatchNo, Lane, LaneConfig, LaneEvent, Recovered, WalEntry, recover};
use bytes::Bytes;
use proptest::prelude::*;
use tidelock_base::{GroupId, LogIndex, Term};
use tidelock_record::{ALIGNMENT, AlignedBuf, Fault, IoOp, IoRequest, MemDisk};

fn open(disk: &MemDisk) -> (Lane, Recovered) {
    let config = LaneConfig {
        segment_bytes: 1 << 20,
        batch_bytes_max: 1 << 18,
        ..config()
    };
    recover(disk, 0, config).unwrap()
}

/// Data of that length at an aligned address.
fn aligned(len: usize, fill: u8) -> Bytes {
    let mut buf = AlignedBuf::with_capacity(len);
    let pattern: Vec<u8> = (0..=250u8)
        .cycle()
        .map(|at| fill.wrapping_add(at))
        .take(len)
        .collect();
    buf.extend_from_slice(&pattern);
    buf.freeze()
}

fn share(lane: &mut Lane, group: u64, index: u64, data: &Bytes) -> BatchNo {
    lane.append_entry(&WalEntry {
        group: GroupId(group),
        index: LogIndex(index),
        term: Term(1),
        kind: 0,
        data,
    })
}

/// The parts of the batch that these operations write.
fn parts(requests: &[IoRequest]) -> Vec<Bytes> {
    let parts = requests.iter().find_map(|request| match &request.op {
        IoOp::Write { parts, .. } => Some(parts.clone()),
        _ => None,
    });
    parts.expect("a write")
}

fn is_from(part: &Bytes, data: &Bytes) -> bool {
    part.as_ptr() == data.as_ptr()
}

fn data_of(recovered: &Recovered, group: u64) -> Vec<Bytes> {
    let entries = &recovered.groups[&GroupId(group)].entries;
    entries.iter().map(|entry| entry.data.clone()).collect()
}

#[test]
fn an_entry_that_opens_a_batch_is_not_copied() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    sync(&mut lane, &disk);
    let data = aligned(70_000, 1);
    let batch = share(&mut lane, 1, 1, &data);
    assert_eq!(
        super::truncate(&mut lane, 9, 1),
        batch,
        "what is small goes along"
    );
    let (_, requests) = lane.cut().unwrap();
    let written = parts(&requests);
    assert!(written.len() == 3 && is_from(&written[1], &data));
    for part in &written {
        assert_eq!(
            (part.len() % ALIGNMENT, part.as_ptr().align_offset(ALIGNMENT)),
            (0, 0)
        );
    }
    assert_eq!(pump(&mut lane, &disk, requests), [LaneEvent::Synced(batch)]);
    disk.crash(1);
    let (_, recovered) = open(&disk);
    assert_eq!(data_of(&recovered, 1), [data]);
}

#[test]
fn what_is_small_unaligned_or_not_the_first_is_copied() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    sync(&mut lane, &disk);
    let whole = aligned(100_000, 3);
    let all = [aligned(60_000, 2), whole.slice(1..80_001), whole.slice(4096..)];
    for (index, data) in (1..).zip(&all) {
        if index == 3 {
            create(&mut lane, 2);
        }
        share(&mut lane, 1, index, data);
        let (_, requests) = lane.cut().unwrap();
        assert_eq!(parts(&requests).len(), 1);
        pump(&mut lane, &disk, requests);
    }
    let (_, recovered) = open(&disk);
    assert_eq!(data_of(&recovered, 1), all);
}

#[test]
fn a_batch_that_moves_to_another_segment_keeps_its_parts() {
    for fault in [Fault::Sync, Fault::Write] {
        let disk = MemDisk::new();
        let (mut lane, _) = open(&disk);
        create(&mut lane, 1);
        sync(&mut lane, &disk);
        let data = aligned(90_000, 5);
        share(&mut lane, 1, 1, &data);
        let (number, requests) = lane.cut().unwrap();
        let first = parts(&requests);
        disk.fail(fault, 0);
        let events = pump(&mut lane, &disk, requests);
        assert!(
            matches!(events[..], [LaneEvent::Retrying(_), LaneEvent::Synced(synced)] if synced == number),
            "{fault:?}: {events:?}"
        );
        assert!(is_from(&first[1], &data));
        disk.crash(2);
        let (_, recovered) = open(&disk);
        assert_eq!(data_of(&recovered, 1), [data]);
    }
}

proptest! {
    /// Entries of any size, shared or not, in any order, among so many groups that a list outgrows its room.
    #[test]
    fn shared_and_copied_entries_are_found_again(
        sizes in proptest::collection::vec((0usize..150_000, any::<bool>(), any::<bool>(), 0u64..300), 1..12)
    ) {
        let disk = MemDisk::new();
        let (mut lane, _) = open(&disk);
        create(&mut lane, 1);
        sync(&mut lane, &disk);
        let mut expected = Vec::new();
        for (index, (len, shared, cut, groups)) in (1u8..).zip(sizes) {
            let data = aligned(len, index);
            let index = u64::from(index);
            if shared {
                share(&mut lane, 1, index, &data);
            } else {
                entry(&mut lane, 1, index, &data);
            }
            for group in 0..groups {
                create(&mut lane, 1000 + group);
            }
            expected.push(data);
            if cut {
                sync(&mut lane, &disk);
            }
        }
        sync(&mut lane, &disk);
        disk.crash(3);
        let (_, recovered) = open(&disk);
        prop_assert_eq!(indexes(&recovered, 1).len(), expected.len());
        prop_assert_eq!(data_of(&recovered, 1), expected);
        prop_assert!(recovered.damage.is_empty());
    }
}
