//! Entries that are read back while the log goes on.

use super::*;
use crate::StoredEntry;

const ONE: GroupId = GroupId(1);

/// Two groups whose entries lie between each other, in many segments; those of group 1 have their index as data.
fn two_groups(disk: &MemDisk, last: u64) -> Lane {
    let (mut lane, _) = open(disk);
    create(&mut lane, 1);
    create(&mut lane, 2);
    for index in 1..=last {
        entry(&mut lane, 1, index, &data(index));
        entry(&mut lane, 2, index, &[9; 700]);
        if index % 3 == 0 {
            sync(&mut lane, disk);
        }
    }
    sync(&mut lane, disk);
    lane
}

fn data(index: u64) -> Vec<u8> {
    index.to_string().repeat(100).into_bytes()
}

/// What the one read that was begun gives.
fn ended(lane: &mut Lane, disk: &MemDisk, first: u64, requests: Vec<IoRequest>) -> Vec<StoredEntry> {
    let mut events = pump(lane, disk, requests);
    assert_eq!(events.len(), 1, "{events:?}");
    match events.pop() {
        Some(LaneEvent::ReadBack {
            group: ONE,
            first: from,
            entries,
        }) => {
            assert_eq!(from, LogIndex(first));
            entries
        }
        other => panic!("{other:?}"),
    }
}

fn read(lane: &mut Lane, disk: &MemDisk, first: u64, bytes_max: u64) -> Option<Vec<StoredEntry>> {
    if !lane.read_back(ONE, LogIndex(first), bytes_max) {
        assert_eq!(lane.take_requests(), []);
        return None;
    }
    let requests = lane.take_requests();
    assert_eq!(requests.len(), 1);
    Some(ended(lane, disk, first, requests))
}

#[test]
fn all_that_is_durable_comes_back_piece_by_piece() {
    let disk = MemDisk::new();
    let mut lane = two_groups(&disk, 100);
    assert!(slots(&disk).len() > 5);
    entry(&mut lane, 1, 101, b"not written yet");
    for bytes_max in [0, 10_000, 1 << 20] {
        let mut next = 40;
        while let Some(entries) = read(&mut lane, &disk, next, bytes_max) {
            assert!(!entries.is_empty());
            for entry in entries {
                assert_eq!(
                    (entry.index, entry.term, &entry.data[..]),
                    (LogIndex(next), Term(1), &data(next)[..])
                );
                next += 1;
            }
        }
        assert_eq!(next, 101);
    }
    let first = read(&mut lane, &disk, 40, 0).unwrap();
    let more = read(&mut lane, &disk, 40, 10_000).unwrap();
    assert!(
        (1..=3).contains(&first.len()) && more.len() > first.len(),
        "as much as was asked for"
    );
    truncate(&mut lane, 1, 50);
    assert_eq!(
        read(&mut lane, &disk, 50, 10_000),
        None,
        "it is no longer part of the log"
    );
    assert!(read(&mut lane, &disk, 51, 10_000).is_some());
    assert_eq!(read(&mut lane, &disk, 102, 10_000), None);
    assert!(!lane.read_back(GroupId(3), LogIndex(1), 10_000));
}

#[test]
fn what_was_superseded_does_not_come() {
    let disk = MemDisk::new();
    let mut lane = two_groups(&disk, 10);
    entry(&mut lane, 1, 8, b"another");
    sync(&mut lane, &disk);
    let mut seen = Vec::new();
    while let Some(entries) = read(&mut lane, &disk, 1 + seen.len() as u64, 1 << 20) {
        seen.extend(entries.into_iter().map(|entry| entry.data));
    }
    assert_eq!((seen.len(), &seen[7][..]), (8, &b"another"[..]));
}

#[test]
fn damage_is_not_handed_on() {
    let disk = MemDisk::new();
    let mut lane = two_groups(&disk, 10);
    for (file, len) in slots(&disk) {
        for at in (0..len).step_by(512) {
            disk.flip_bit(&file, at * 8);
        }
    }
    assert_eq!(read(&mut lane, &disk, 1, 1 << 20), Some(Vec::new()));
}

#[test]
fn a_segment_that_is_written_anew_meanwhile_gives_nothing_false() {
    let disk = MemDisk::new();
    let mut lane = two_groups(&disk, 30);
    assert!(lane.read_back(ONE, LogIndex(1), 1 << 20));
    let requests = lane.take_requests();
    for group in [1, 2] {
        truncate(&mut lane, group, 30);
    }
    for index in 31..100 {
        entry(&mut lane, 1, index, &data(index));
        sync(&mut lane, &disk);
        truncate(&mut lane, 1, index);
    }
    assert_eq!(ended(&mut lane, &disk, 1, requests), []);
}

#[test]
fn what_is_copied_forward_meanwhile_is_read_from_there() {
    let disk = MemDisk::new();
    let mut lane = two_groups(&disk, 30);
    assert!(lane.read_back(ONE, LogIndex(1), 1 << 20));
    let requests = lane.take_requests();
    truncate(&mut lane, 2, 30);
    for _ in 0..20 {
        let moves = lane.relocate(u64::MAX);
        pump(&mut lane, &disk, moves);
        sync(&mut lane, &disk);
    }
    let entries = ended(&mut lane, &disk, 1, requests);
    assert_eq!(entries.first().map(|entry| &entry.data[..]), Some(&data(1)[..]));
}
