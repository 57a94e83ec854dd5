//! A store opens on any number of workers, and a crash at any operation of a move loses and doubles nothing.

use super::model::Model;
use super::{config, create, entry, indexes, sync};
use crate::{Lane, Moved, RecoveredAll, WalRecord, recover_all};
use std::collections::BTreeMap;
use tidelock_base::{GroupId, LogIndex, ReplicaId, Term};
use tidelock_record::MemDisk;

fn open_all(disk: &MemDisk, active: u16) -> RecoveredAll {
    recover_all(disk, active, &config()).unwrap()
}

/// All groups of all lanes; panics if one is in two of them.
fn groups(all: &RecoveredAll) -> BTreeMap<u64, (u16, Model)> {
    let mut groups = BTreeMap::new();
    for (lane, recovered) in &all.lanes {
        let model = Model::of(recovered);
        for (id, group) in model.groups {
            let one = Model {
                groups: BTreeMap::from([(id, group)]),
                ..Model::default()
            };
            assert!(
                groups.insert(id, (lane.number(), one)).is_none(),
                "group {id} is there twice"
            );
        }
    }
    groups
}

fn fill(lane: &mut Lane, group: u64, disk: &MemDisk) {
    create(lane, group);
    (1..=6).for_each(|index| {
        entry(lane, group, index, &[u8::try_from(group).unwrap(); 1500]);
    });
    let group = GroupId(group);
    lane.append(&WalRecord::Truncated {
        group,
        index: LogIndex(2),
        term: Term(1),
    });
    lane.append(&WalRecord::Members {
        group,
        blob: b"members",
    });
    lane.append(&WalRecord::HardState {
        group,
        term: Term(4),
        vote: ReplicaId(2),
        commit: LogIndex(5),
    });
    sync(lane, disk);
}

fn three_lanes() -> MemDisk {
    let disk = MemDisk::new();
    let mut all = open_all(&disk, 3);
    for (lane, _) in &mut all.lanes {
        let number = u64::from(lane.number());
        fill(lane, number + 1, &disk);
        fill(lane, number + 11, &disk);
        let blob = &[u8::try_from(number).unwrap()];
        lane.append(&WalRecord::Meta { key: blob[0], blob });
        lane.append(&WalRecord::Meta { key: 9, blob });
        sync(lane, &disk);
    }
    disk
}

#[test]
fn groups_move_to_the_lanes_that_are_left() {
    let disk = three_lanes();
    let before: Vec<Model> = groups(&open_all(&disk, 3))
        .into_values()
        .map(|(_, group)| group)
        .collect();
    let all = open_all(&disk, 1);
    let moved = |group, from| Moved {
        group: GroupId(group),
        from,
        to: 0,
    };
    assert_eq!(all.moved, [moved(2, 1), moved(12, 1), moved(3, 2), moved(13, 2)]);
    let after: Vec<Model> = groups(&all).into_values().map(|(_, group)| group).collect();
    assert_eq!(after, before);
    let meta = &all.lanes[0].1.meta;
    assert_eq!(
        meta.iter().map(|(key, blob)| (*key, blob[0])).collect::<Vec<_>>(),
        [(0, 0), (1, 1), (2, 2), (9, 0)]
    );
    assert!(
        disk.files()
            .iter()
            .all(|(path, _)| path.as_str().starts_with("wal/lane-0000/"))
    );

    // Growing again leaves groups where they are, and the new lanes work.
    let mut all = open_all(&disk, 2);
    assert_eq!((all.moved.len(), all.lanes[1].1.is_new), (0, true));
    fill(&mut all.lanes[1].0, 21, &disk);
    let all = open_all(&disk, 2);
    assert_eq!(indexes(&all.lanes[1].1, 21), [3, 4, 5, 6]);
    assert_eq!(groups(&all).len(), 7);
}

#[test]
fn a_crash_at_any_operation_of_a_move_loses_and_doubles_nothing() {
    let reference = three_lanes();
    let start = reference.ops();
    let expected: Vec<Model> = groups(&open_all(&reference, 1))
        .into_values()
        .map(|(_, group)| group)
        .collect();
    let ops = reference.ops() - start;
    assert!(ops > 20);
    for ops in 0..=ops {
        let disk = three_lanes();
        disk.power_off_after(ops);
        let _ = recover_all(&disk, 1, &config());
        disk.crash(ops);
        // The next start has another number of workers, and is interrupted too.
        disk.power_off_after(ops / 2);
        let _ = recover_all(&disk, 2, &config());
        disk.crash(ops + 1);
        let active = u16::try_from(ops % 3).unwrap() + 1;
        let found: Vec<Model> = groups(&open_all(&disk, active))
            .into_values()
            .map(|(_, group)| group)
            .collect();
        assert_eq!(found, expected, "power off after {ops}");
    }
}

#[test]
fn files_of_a_lane_that_is_gone_may_come_back() {
    for seed in 0..200 {
        let disk = three_lanes();
        let before = groups(&open_all(&disk, 1)).len();
        disk.crash(seed);
        let all = open_all(&disk, 2);
        let damage: usize = all
            .lanes
            .iter()
            .map(|(_, recovered)| recovered.damage.len())
            .sum();
        assert_eq!((groups(&all).len(), damage), (before, 0), "seed {seed}");
    }
}

#[test]
fn of_two_replicas_the_younger_stays() {
    let disk = MemDisk::new();
    let mut all = open_all(&disk, 2);
    let created = |replica| WalRecord::Created {
        group: GroupId(4),
        replica: ReplicaId(replica),
        blob: b"",
    };
    // The destruction in lane 1 was not durable when the power went.
    all.lanes[1].0.append(&created(7));
    all.lanes[0].0.append(&created(8));
    for (lane, _) in &mut all.lanes {
        sync(lane, &disk);
    }
    for active in [2, 1] {
        let groups = groups(&open_all(&disk, active));
        assert_eq!(groups[&4].1.groups[&4].replica, 8);
    }
}
