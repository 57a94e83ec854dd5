//! Space: what is not needed is given back, small remains do not hold segments, and files are used again.

use super::{create, entry, indexes, open, pump, slots, sync, truncate};
use crate::{RetainedGroup, WalRecord};
use tidelock_base::{GroupId, LogIndex};
use tidelock_record::MemDisk;

#[test]
fn truncated_segments_are_used_again() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    for index in 1..200 {
        entry(&mut lane, 1, index, &[0; 3000]);
        truncate(&mut lane, 1, index.saturating_sub(3));
        sync(&mut lane, &disk);
        let requests = lane.relocate(0);
        pump(&mut lane, &disk, requests);
    }
    assert!(slots(&disk).len() <= 6, "{:?}", slots(&disk));
    assert!(
        lane.retained_bytes() <= 4 * 16 * 1024,
        "{}",
        lane.retained_bytes()
    );
    assert_eq!(indexes(&open(&disk).1, 1), [197, 198, 199]);
}

#[test]
fn what_a_checkpoint_frees_at_once_is_used_again() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    let mut index = 0;
    let mut cycle = || {
        // Some segments full, then all of it is freed.
        for _ in 0..16 {
            index += 1;
            entry(&mut lane, 1, index, &[0; 3000]);
            sync(&mut lane, &disk);
        }
        truncate(&mut lane, 1, index);
        for _ in 0..3 {
            index += 1;
            entry(&mut lane, 1, index, &[0; 10]);
            sync(&mut lane, &disk);
            let requests = lane.relocate(0);
            pump(&mut lane, &disk, requests);
        }
        slots(&disk)
    };
    for _ in 0..3 {
        cycle();
    }
    let made = cycle();
    for _ in 0..3 {
        assert_eq!(cycle(), made, "no file is made or removed any more");
    }
}

#[test]
fn the_more_may_be_kept_the_fewer_segments_are_beyond() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    for index in 1..=30 {
        entry(&mut lane, 1, index, &[0; 3000]);
        sync(&mut lane, &disk);
    }
    let beyond = |keep| {
        let retained = lane.retained(keep);
        let group = retained.groups.first().unwrap();
        assert_eq!(group.bytes_beyond, group.last_beyond.0 * 3040);
        (group.last_in_oldest.0, group.last_beyond.0)
    };
    let bytes = lane.retained_bytes();
    let (oldest, last) = beyond(u64::MAX);
    assert!(oldest == last && oldest < 6, "the oldest one in any case");
    assert_eq!(beyond(bytes - 1), (oldest, oldest));
    let (same, half) = beyond(bytes / 2);
    assert!(same == oldest && (12..20).contains(&half), "{half}");
    let (same, all_closed) = beyond(0);
    assert!(same == oldest && (25..30).contains(&all_closed), "{all_closed}");
}

#[test]
fn many_small_groups_are_copied_forward_and_large_ones_are_named() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    for group in 1..=20 {
        create(&mut lane, group);
        entry(&mut lane, group, 1, &[7; 50]);
    }
    // One group has much in the oldest segment.
    entry(&mut lane, 30, 1, &[1; 7000]);
    lane.append(&WalRecord::Meta {
        key: 1,
        blob: b"kept",
    });
    sync(&mut lane, &disk);
    create(&mut lane, 40);
    for index in 1..=12 {
        entry(&mut lane, 40, index, &[0; 3000]);
        sync(&mut lane, &disk);
    }
    let retained = lane.retained(u64::MAX);
    assert!(retained.segments >= 3);
    assert_eq!(retained.bytes, lane.retained_bytes());
    // Group 40 has the rest of the segment; then come the others.
    let large = retained
        .groups
        .iter()
        .find(|group| group.group == GroupId(30))
        .unwrap();
    let expected = RetainedGroup {
        group: GroupId(30),
        bytes_beyond: 7040,
        bytes: 7040,
        first: LogIndex(1),
        last_beyond: LogIndex(1),
        last_in_oldest: LogIndex(1),
    };
    assert_eq!(*large, expected);
    assert_eq!(retained.groups[0].group, GroupId(30));

    let requests = lane.relocate(1000);
    pump(&mut lane, &disk, requests);
    sync(&mut lane, &disk);
    let groups: Vec<u64> = lane
        .retained(u64::MAX)
        .groups
        .iter()
        .map(|group| group.group.0)
        .collect();
    assert!(
        groups.starts_with(&[30]) && groups.iter().all(|group| *group >= 30),
        "{groups:?}"
    );
    truncate(&mut lane, 30, 1);
    truncate(&mut lane, 40, 4);
    sync(&mut lane, &disk);
    assert!(lane.retained(u64::MAX).segments < retained.segments + 1);

    let (_, recovered) = open(&disk);
    for group in 1..=20 {
        assert_eq!(indexes(&recovered, group), [1], "group {group}");
        assert!(!recovered.groups[&GroupId(group)].damaged);
    }
    assert_eq!(&recovered.meta[&1][..], b"kept");
    assert_eq!(indexes(&recovered, 40), (5..=12).collect::<Vec<_>>());
}

#[test]
fn an_entry_that_was_superseded_while_it_was_read_back_stays_superseded() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    create(&mut lane, 2);
    (1..=4).for_each(|index| {
        entry(&mut lane, 1, index, b"old");
    });
    sync(&mut lane, &disk);
    (1..=6).for_each(|index| {
        entry(&mut lane, 2, index, &[0; 3000]);
    });
    sync(&mut lane, &disk);
    let requests = lane.relocate(1000);
    assert!(!requests.is_empty());
    entry(&mut lane, 1, 3, b"new");
    pump(&mut lane, &disk, requests);
    sync(&mut lane, &disk);
    let (_, recovered) = open(&disk);
    assert_eq!(indexes(&recovered, 1), [1, 2, 3]);
    let texts: Vec<&[u8]> = recovered.groups[&GroupId(1)]
        .entries
        .iter()
        .map(|entry| &entry.data[..])
        .collect();
    assert_eq!(texts, [b"old", b"old", b"new"]);
}
