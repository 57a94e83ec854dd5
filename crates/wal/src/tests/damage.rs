//! Damage of what was synced: told, local to the groups of the batch, remembered, and never mistaken for a torn tail.

use super::{create, damaged, entry, indexes, open, pump, sync, sync_one, truncate};
use crate::{Damage, DamagedGroups, Lane, LaneEvent, Recovered, WalRecord};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tidelock_base::{GroupId, LogIndex, ReplicaId, Term};
use tidelock_record::{Disk, Fault, FilePath, IoOp, MemDisk};

/// A lane in which batch `n` (from 0) was written for group `n + 1` only, after a first one that created all groups;
/// with where each batch lies.
fn one_group_a_batch(count: u64) -> (MemDisk, Vec<(FilePath, u64, u64)>) {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    (1..=count).for_each(|group| {
        create(&mut lane, group);
    });
    sync(&mut lane, &disk);
    let mut places = Vec::new();
    for group in 1..=count {
        entry(&mut lane, group, 1, &[9; 100]);
        let (file, offset, bytes) = sync_one(&mut lane, &disk);
        places.push((file, offset, bytes.len() as u64));
    }
    (disk, places)
}

/// Overwrites a range, durably.
fn wipe(disk: &MemDisk, file: &FilePath, offset: u64, len: u64) {
    let parts = vec![bytes::Bytes::from(vec![0xaa; usize::try_from(len).unwrap()])];
    let (file, sync) = (file.clone(), true);
    disk.run(&IoOp::Write {
        file,
        offset,
        parts,
        sync,
    })
    .unwrap();
}

fn known(groups: &[(u64, u64)]) -> DamagedGroups {
    let range = |(group, index): &(u64, u64)| (GroupId(*group), Some((LogIndex(*index), LogIndex(*index))));
    DamagedGroups::Known(groups.iter().map(range).collect())
}

#[test]
fn a_lost_body_concerns_the_groups_of_the_batch() {
    let (disk, places) = one_group_a_batch(5);
    let (file, offset, bytes) = places[1].clone();
    // The body lies behind the room for the header.
    assert!(disk.flip_bit(&file, (offset + 400) * 8));
    let (mut lane, recovered) = open(&disk);
    assert_eq!(damaged(&recovered), [2]);
    assert_eq!(indexes(&recovered, 2), []);
    assert_eq!(indexes(&recovered, 3), [1]);
    let damage = Damage {
        file,
        offset,
        bytes,
        groups: known(&[(2, 1)]),
    };
    assert_eq!(recovered.damage, [damage]);

    // It stays damaged until it is replaced, even when the segment that shows it is gone.
    for index in 2..30 {
        entry(&mut lane, 1, index, &[0; 3000]);
        truncate(&mut lane, 1, index - 1);
        sync(&mut lane, &disk);
        let requests = lane.relocate(1000);
        pump(&mut lane, &disk, requests);
    }
    drop(lane);
    let (mut lane, recovered) = open(&disk);
    assert_eq!((recovered.damage.len(), damaged(&recovered)), (0, vec![2]));
    lane.append(&WalRecord::Created {
        group: GroupId(2),
        replica: ReplicaId(77),
        blob: b"",
    });
    sync(&mut lane, &disk);
    assert_eq!(damaged(&open(&disk).1), []);
}

#[test]
fn a_lost_header_is_told_by_the_next_one() {
    let (disk, places) = one_group_a_batch(5);
    let (file, offset, bytes) = places[1].clone();
    wipe(&disk, &file, offset, bytes);
    let (_, recovered) = open(&disk);
    assert_eq!(damaged(&recovered), [2]);
    assert_eq!(recovered.damage[0].groups, known(&[(2, 1)]));
    assert_eq!(indexes(&recovered, 1), [1]);
    assert_eq!(indexes(&recovered, 4), [1]);
}

#[test]
fn two_lost_headers_make_all_groups_of_the_time_suspect() {
    let (disk, places) = one_group_a_batch(6);
    // Both in the second segment, with one more behind them: a segment holds 4 batches.
    let ((file, first, bytes), (other, ..)) = (places[3].clone(), places[4].clone());
    assert_eq!(file, other);
    let (mut lane, _) = open(&disk);
    create(&mut lane, 9);
    sync(&mut lane, &disk);
    drop(lane);
    wipe(&disk, &file, first, 2 * bytes);
    let (mut lane, recovered) = open(&disk);
    assert_eq!(damaged(&recovered), [1, 2, 3, 4, 5, 6]);
    assert_eq!(recovered.damage.len(), 1);
    assert_eq!(recovered.damage[0].groups, DamagedGroups::All);
    assert_eq!(recovered.damage[0].bytes, 2 * bytes);

    // Healing is remembered while the damage is still there to be seen.
    lane.append(&WalRecord::Healed { group: GroupId(1) });
    sync(&mut lane, &disk);
    let (_, recovered) = open(&disk);
    assert_eq!(recovered.damage.len(), 1);
    assert_eq!(damaged(&recovered), [2, 3, 4, 5, 6]);
}

#[test]
fn the_last_batch_is_damage_only_once_settled() {
    for settled in [false, true] {
        let disk = MemDisk::new();
        let (mut lane, _) = open(&disk);
        create(&mut lane, 1);
        create(&mut lane, 2);
        sync(&mut lane, &disk);
        entry(&mut lane, 1, 1, b"last");
        let (file, offset, bytes) = sync_one(&mut lane, &disk);
        if settled {
            let requests = lane.settle();
            assert_eq!(requests.len(), 1);
            assert_eq!(pump(&mut lane, &disk, requests), []);
            assert_eq!(lane.settle(), []);
        }
        drop(lane);
        wipe(&disk, &file, offset, bytes.len() as u64);
        let (_, recovered) = open(&disk);
        assert_eq!(indexes(&recovered, 1), []);
        let expected: &[u64] = if settled { &[1] } else { &[] };
        assert_eq!(damaged(&recovered), expected);
        if settled {
            assert_eq!(recovered.damage[0].groups, known(&[(1, 1)]));
            // The next start says the same.
            assert_eq!(damaged(&open(&disk).1), expected);
        }
    }
}

fn hard_state(lane: &mut Lane, group: u64, commit: u64) {
    lane.append(&WalRecord::HardState {
        group: GroupId(group),
        term: Term(1),
        vote: ReplicaId(3),
        commit: LogIndex(commit),
    });
}

/// Group 1 with a batch of its own that is lost: two entries and a commit; what `later` writes comes after it.
fn lost_batch(later: impl FnOnce(&mut Lane)) -> Recovered {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    create(&mut lane, 2);
    entry(&mut lane, 1, 1, b"one");
    sync(&mut lane, &disk);
    entry(&mut lane, 1, 2, b"two");
    entry(&mut lane, 1, 3, b"three");
    hard_state(&mut lane, 1, 1);
    let (file, offset, bytes) = sync_one(&mut lane, &disk);
    later(&mut lane);
    sync(&mut lane, &disk);
    let requests = lane.settle();
    pump(&mut lane, &disk, requests);
    drop(lane);
    wipe(&disk, &file, offset, bytes.len() as u64);
    let (mut lane, recovered) = open(&disk);
    assert_eq!(recovered.damage[0].groups, {
        let range = (LogIndex(2), LogIndex(3));
        DamagedGroups::Known(vec![(GroupId(1), Some(range))])
    });
    // The next start says the same.
    entry(&mut lane, 2, 1, b"goes on");
    sync(&mut lane, &disk);
    drop(lane);
    let (_, again) = open(&disk);
    assert_eq!(damaged(&again), damaged(&recovered));
    recovered
}

#[test]
fn what_a_checkpoint_covers_and_a_later_vote_replaces_is_not_missed() {
    let covered = lost_batch(|lane| {
        entry(lane, 1, 4, b"four");
        truncate(lane, 1, 3);
        hard_state(lane, 1, 3);
    });
    assert_eq!((damaged(&covered), indexes(&covered, 1)), (vec![], vec![4]));

    let entries_missing = lost_batch(|lane| {
        entry(lane, 1, 4, b"four");
        truncate(lane, 1, 2);
        hard_state(lane, 1, 3);
    });
    assert_eq!(damaged(&entries_missing), [1]);
    assert!(!entries_missing.groups[&GroupId(1)].log_is_whole);

    // It may have voted in the lost batch; alone it may go on.
    let vote_missing = lost_batch(|lane| {
        entry(lane, 1, 4, b"four");
        truncate(lane, 1, 3);
    });
    assert_eq!(damaged(&vote_missing), [1]);
    assert!(vote_missing.groups[&GroupId(1)].log_is_whole);
}

#[test]
fn a_lost_creation_is_missed_whatever_came_later() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    sync(&mut lane, &disk);
    lane.append(&WalRecord::Created {
        group: GroupId(1),
        replica: ReplicaId(77),
        blob: b"",
    });
    let (file, offset, bytes) = sync_one(&mut lane, &disk);
    truncate(&mut lane, 1, 5);
    hard_state(&mut lane, 1, 5);
    sync(&mut lane, &disk);
    drop(lane);
    wipe(&disk, &file, offset, bytes.len() as u64);
    let (_, recovered) = open(&disk);
    assert_eq!(damaged(&recovered), [1]);
    assert!(!recovered.groups[&GroupId(1)].log_is_whole);
}

#[test]
fn a_lost_append_still_supersedes() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    (1..=5).for_each(|index| {
        entry(&mut lane, 1, index, b"old");
    });
    sync(&mut lane, &disk);
    entry(&mut lane, 1, 3, b"new");
    let (file, offset, bytes) = sync_one(&mut lane, &disk);
    entry(&mut lane, 1, 4, b"new");
    sync(&mut lane, &disk);
    drop(lane);
    wipe(&disk, &file, offset, bytes.len() as u64);
    let (_, recovered) = open(&disk);
    assert_eq!(
        indexes(&recovered, 1),
        [1, 2, 4],
        "the old 3 to 5 do not come back"
    );
    assert_eq!(damaged(&recovered), [1]);
}

#[test]
fn lost_control_files_and_unreadable_blocks_are_survived() {
    let (disk, _) = one_group_a_batch(3);
    for name in ["control-0", "control-1"] {
        let file = FilePath::new("wal/lane-0000").unwrap().join(name).unwrap();
        disk.run(&IoOp::Remove { file }).unwrap();
    }
    let (lane, recovered) = open(&disk);
    assert!(!recovered.is_new);
    assert_eq!((damaged(&recovered), indexes(&recovered, 3)), (vec![], vec![1]));
    drop(lane);
    // Controls, then the whole of the first segment, then pieces of it.
    [2, 2].iter().for_each(|skip| disk.fail(Fault::Read, *skip));
    let (_, recovered) = open(&disk);
    assert_eq!((damaged(&recovered), indexes(&recovered, 3)), (vec![], vec![1]));
}

#[test]
fn copies_of_log_files_in_messages_are_not_taken_for_batches() {
    let (disk, places) = one_group_a_batch(2);
    let (file, offset, len) = places[0].clone();
    let published = disk.read(&file, offset, len).unwrap();
    let (mut lane, _) = open(&disk);
    entry(&mut lane, 1, 2, b"");
    let (_, _, bytes) = sync_one(&mut lane, &disk);
    // The next batch is laid out alike; the copy is to lie on a block boundary of it.
    let body_start = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
    let mut data = vec![0; 4096 - body_start - 40];
    data.extend_from_slice(&published);
    entry(&mut lane, 1, 3, &data);
    let (file, offset, bytes) = sync_one(&mut lane, &disk);
    assert!(bytes[4096..].starts_with(b"TLWALB"));
    entry(&mut lane, 1, 4, b"");
    sync(&mut lane, &disk);
    drop(lane);
    wipe(&disk, &file, offset, 512);
    let (_, recovered) = open(&disk);
    assert_eq!(
        (indexes(&recovered, 1), indexes(&recovered, 2)),
        (vec![1, 2, 4], vec![1])
    );
    assert_eq!((damaged(&recovered), recovered.damage.len()), (vec![1], 1));
}

#[test]
fn entries_that_cannot_be_read_back_are_told() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 2);
    sync(&mut lane, &disk);
    create(&mut lane, 1);
    entry(&mut lane, 1, 1, &[1; 100]);
    sync(&mut lane, &disk);
    (1..10).for_each(|index| {
        entry(&mut lane, 2, index, &[0; 3000]);
    });
    sync(&mut lane, &disk);
    let requests = lane.relocate(1000);
    let read = requests.iter().find_map(|request| match &request.op {
        IoOp::Read { file, offset, .. } => Some((file.clone(), *offset)),
        _ => None,
    });
    let (file, offset) = read.unwrap();
    disk.flip_bit(&file, (offset + 450) * 8);
    assert_eq!(
        pump(&mut lane, &disk, requests),
        [LaneEvent::Damaged(vec![GroupId(1)])]
    );
    sync(&mut lane, &disk);
    assert_eq!(damaged(&open(&disk).1), [1]);
}

/// Batches with random groups; one bit is flipped anywhere in the log.
fn random_lane(batches: &[Vec<u64>], disk: &MemDisk) -> (Lane, BTreeMap<(FilePath, u64), BTreeSet<u64>>) {
    let (mut lane, _) = open(disk);
    let mut last = BTreeMap::new();
    let mut places = BTreeMap::new();
    (1..8).for_each(|group| {
        create(&mut lane, group);
    });
    let all: BTreeSet<u64> = (1..8).collect();
    for groups in std::iter::once(&vec![]).chain(batches) {
        for group in groups {
            let index = last.entry(*group).or_insert(0);
            *index += 1;
            lane.append(&WalRecord::Entry {
                group: GroupId(*group),
                index: LogIndex(*index),
                term: Term(1),
                kind: 0,
                data: &[3; 700],
            });
        }
        while lane.open_bytes() > 0 {
            let (file, offset, bytes) = sync_one(&mut lane, disk);
            let touched = if groups.is_empty() {
                all.clone()
            } else {
                groups.iter().copied().collect()
            };
            for block in (0..bytes.len() as u64).step_by(4096) {
                places.insert((file.clone(), offset + block), touched.clone());
            }
        }
    }
    let requests = lane.settle();
    pump(&mut lane, disk, requests);
    (lane, places)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A flipped bit damages at most the groups of the batch in which it is, and damaged or not, no group has
    /// anything that was not written.
    #[test]
    fn a_flipped_bit_damages_one_batch(
        batches in prop::collection::vec(prop::collection::vec(1..8_u64, 1..6), 1..12),
        at in any::<prop::sample::Index>(),
        bit in 0..4096 * 8_u64,
    ) {
        let disk = MemDisk::new();
        let (lane, places) = random_lane(&batches, &disk);
        drop(lane);
        let places: Vec<_> = places.into_iter().collect();
        let ((file, block), groups) = &places[at.index(places.len())];
        prop_assert!(disk.flip_bit(file, block * 8 + bit));
        let (_, recovered) = open(&disk);
        let found: BTreeSet<u64> = damaged(&recovered).into_iter().collect();
        prop_assert!(found.is_empty() || found == *groups, "{found:?} of {groups:?}");
        for group in 1..8 {
            let written = batches.iter().flatten().filter(|g| **g == group).count() as u64;
            let indexes = indexes(&recovered, group);
            if found.contains(&group) {
                prop_assert!(indexes.iter().all(|index| *index <= written));
            } else {
                prop_assert_eq!(indexes, (1..=written).collect::<Vec<_>>());
            }
        }
        // What is damaged at one start is damaged at the next.
        let again: BTreeSet<u64> = damaged(&open(&disk).1).into_iter().collect();
        prop_assert_eq!(again, found);
    }

}

proptest! {
    #[test]
    fn any_files_are_survived(mode in 0..5_u8, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzz(&[&[mode], &bytes[..]].concat());
    }
}
