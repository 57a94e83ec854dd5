//! A disk that fails: writes go elsewhere once, then wait; no failed file is written or synced again.

use super::config;
use super::{create, entry, indexes, open, pump, run, slots, sync, truncate, write_of};
use crate::{Lane, LaneEvent, recover};
use std::collections::BTreeSet;
use tidelock_record::{Fault, FilePath, IoError, IoOp, IoRequest, MemDisk};

/// Runs operations and keeps the files to which a write failed; panics if one is written again.
fn watch(
    lane: &mut Lane,
    disk: &MemDisk,
    mut requests: Vec<IoRequest>,
    failed: &mut BTreeSet<FilePath>,
) -> Vec<LaneEvent> {
    let mut events = Vec::new();
    while !requests.is_empty() {
        for request in requests {
            let written = match &request.op {
                IoOp::Write { file, .. } | IoOp::Sync { file } => Some(file.clone()),
                _ => None,
            };
            assert!(
                written.as_ref().is_none_or(|file| !failed.contains(file)),
                "{written:?} is used again"
            );
            let event = run(lane, disk, request);
            if matches!(event, LaneEvent::Retrying(_) | LaneEvent::Broken(_)) {
                failed.extend(written);
            }
            if event != LaneEvent::Pending {
                events.push(event);
            }
        }
        requests = lane.take_requests();
    }
    events
}

fn cut(lane: &mut Lane) -> Vec<IoRequest> {
    lane.cut().unwrap().1
}

#[test]
fn a_failed_sync_moves_the_batch_to_another_segment() {
    for fault in [Fault::Sync, Fault::Write] {
        for seed in 0..20 {
            let disk = MemDisk::new();
            let (mut lane, _) = open(&disk);
            let mut failed = BTreeSet::new();
            create(&mut lane, 1);
            entry(&mut lane, 1, 1, b"before");
            sync(&mut lane, &disk);
            entry(&mut lane, 1, 2, b"during");
            disk.fail(fault, 0);
            let requests = cut(&mut lane);
            let first = write_of(&requests).unwrap();
            let events = watch(&mut lane, &disk, requests, &mut failed);
            assert!(
                matches!(events[..], [LaneEvent::Retrying(_), LaneEvent::Synced(_)]),
                "{events:?}"
            );
            assert!(failed.contains(&first.0));
            for index in 3..20 {
                entry(&mut lane, 1, index, &[0; 2000]);
                let requests = cut(&mut lane);
                watch(&mut lane, &disk, requests, &mut failed);
            }
            disk.crash(seed);
            let (_, recovered) = open(&disk);
            assert_eq!(indexes(&recovered, 1), (1..20).collect::<Vec<_>>());
            assert_eq!(recovered.damage, []);
        }
    }
}

#[test]
fn a_second_failure_holds_the_batch_until_a_retry_succeeds() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    let mut failed = BTreeSet::new();
    create(&mut lane, 1);
    sync(&mut lane, &disk);
    entry(&mut lane, 1, 1, b"one");
    disk.fail(Fault::Sync, 0);
    disk.fail(Fault::Sync, 0);
    let requests = cut(&mut lane);
    let events = watch(&mut lane, &disk, requests, &mut failed);
    assert!(
        matches!(events[..], [LaneEvent::Retrying(_), LaneEvent::Broken(_)]),
        "{events:?}"
    );
    assert!(lane.is_broken() && lane.in_flight());
    entry(&mut lane, 1, 2, b"two");
    assert_eq!(lane.cut(), None);

    disk.fail(Fault::Write, 0);
    let requests = lane.retry();
    let events = watch(&mut lane, &disk, requests, &mut failed);
    assert!(matches!(events[..], [LaneEvent::Broken(_)]), "{events:?}");
    let requests = lane.retry();
    let events = watch(&mut lane, &disk, requests, &mut failed);
    assert!(matches!(events[..], [LaneEvent::Synced(_)]), "{events:?}");
    assert!(!lane.is_broken());
    assert_eq!(lane.retry(), []);
    let requests = cut(&mut lane);
    watch(&mut lane, &disk, requests, &mut failed);
    // Segments that never held a durable batch are removed, not piled up.
    assert!(slots(&disk).len() <= 4, "{:?}", slots(&disk));
    for seed in 0..10 {
        disk.crash(seed);
        assert_eq!(indexes(&open(&disk).1, 1), [1, 2]);
    }
}

#[test]
fn a_full_disk_breaks_the_lane_only_when_no_segment_is_left() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    sync(&mut lane, &disk);
    let used: u64 = disk.files().iter().map(|(_, len)| len).sum();
    disk.set_capacity(Some(used));
    let mut events = Vec::new();
    let mut index = 0;
    while !lane.is_broken() {
        index += 1;
        entry(&mut lane, 1, index, &[0; 3000]);
        let requests = cut(&mut lane);
        events.extend(pump(&mut lane, &disk, requests));
    }
    assert!(index > 2, "the segment at hand is used to its end");
    assert!(events.contains(&LaneEvent::SpareFailed(IoError::NoSpace)));
    assert_eq!(events.last(), Some(&LaneEvent::Broken(IoError::NoSpace)));
    disk.set_capacity(None);
    let requests = lane.retry();
    let events = pump(&mut lane, &disk, requests);
    assert!(
        events.iter().any(|event| matches!(event, LaneEvent::Synced(_))),
        "{events:?}"
    );
    assert_eq!(indexes(&open(&disk).1, 1), (1..=index).collect::<Vec<_>>());
}

fn used(disk: &MemDisk) -> u64 {
    disk.files().iter().map(|(_, len)| len).sum()
}

/// A lane on a disk that has filled up under it: publishes are to be refused from now on. Its last entry.
fn short() -> (MemDisk, Lane, u64) {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    sync(&mut lane, &disk);
    assert!(!lane.is_short());
    disk.set_capacity(Some(used(&disk)));
    let mut index = 0;
    while !lane.is_short() {
        index += 1;
        entry(&mut lane, 1, index, &[0; 3000]);
        let events = sync(&mut lane, &disk);
        assert!(matches!(events.first(), Some(LaneEvent::Synced(_))), "{events:?}");
    }
    (disk, lane, index)
}

#[test]
fn a_full_disk_leaves_a_reserve_for_what_frees_it() {
    let (disk, mut lane, last) = short();
    for index in last + 1..=last + 4 {
        entry(&mut lane, 1, index, &[0; 3000]);
        let events = sync(&mut lane, &disk);
        assert!(
            matches!(events[..], [LaneEvent::Synced(_), ..]),
            "a segment of 16 KiB: {events:?}"
        );
    }
    let requests = lane.retry();
    pump(&mut lane, &disk, requests);
    assert!(lane.is_short(), "the disk is still full");
    // What the log needs no more is the reserve again.
    truncate(&mut lane, 1, last + 4);
    sync(&mut lane, &disk);
    truncate(&mut lane, 1, last + 4);
    sync(&mut lane, &disk);
    disk.set_capacity(None);
    for _ in 0..2 {
        let requests = lane.retry();
        pump(&mut lane, &disk, requests);
    }
    assert!(!lane.is_short());
}

#[test]
fn a_start_on_a_full_disk_lives_on_the_reserve() {
    let (disk, _, last) = short();
    disk.set_capacity(Some(used(&disk)));
    disk.crash(1);
    let (mut lane, recovered) = open(&disk);
    assert_eq!(indexes(&recovered, 1), (1..=last).collect::<Vec<_>>());
    entry(&mut lane, 1, last + 1, &[0; 3000]);
    let events = sync(&mut lane, &disk);
    assert!(matches!(events.first(), Some(LaneEvent::Synced(_))), "{events:?}");
    assert!(lane.is_short());
    disk.crash(2);
    // The reserve is used up. Who starts once more is told what it takes, and loses nothing.
    let refused = recover(&disk, 0, config()).map(drop).unwrap_err().to_string();
    assert!(
        refused.ends_with("at least 4096 bytes must be free there to start"),
        "{refused}"
    );
    disk.set_capacity(Some(used(&disk) + 4096));
    assert_eq!(indexes(&open(&disk).1, 1), (1..=last + 1).collect::<Vec<_>>());
}

#[test]
fn a_batch_that_waits_on_a_full_disk_is_content_with_a_small_segment() {
    let (disk, mut lane, last) = short();
    let mut index = last;
    while !lane.is_broken() {
        index += 1;
        entry(&mut lane, 1, index, &[0; 3000]);
        sync(&mut lane, &disk);
    }
    disk.set_capacity(Some(used(&disk) + 4096));
    let requests = lane.retry();
    let events = pump(&mut lane, &disk, requests);
    assert!(
        events.iter().any(|event| matches!(event, LaneEvent::Synced(_))),
        "{events:?}"
    );
    disk.set_capacity(None);
    assert_eq!(indexes(&open(&disk).1, 1), (1..=index).collect::<Vec<_>>());
}
