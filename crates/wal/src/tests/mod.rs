//! Tests of the whole log on a disk in memory.

mod damage;
mod disk_trouble;
mod model;
mod moves;
mod random;
mod read_back;
mod shared;
mod space;

use crate::{BatchNo, Lane, LaneConfig, LaneEvent, Recovered, WalRecord, recover};
use bytes::Bytes;
use tidelock_base::{GroupId, LogIndex, ReplicaId, Term};
use tidelock_record::{Disk, FilePath, IoDone, IoOp, IoRequest, MemDisk};

/// Small segments and batches, so that a few records fill many.
fn config() -> LaneConfig {
    LaneConfig {
        dir: FilePath::new("wal").unwrap(),
        segment_bytes: 16 * 1024,
        batch_bytes_max: 8 * 1024,
        seed: 42,
    }
}

fn open(disk: &MemDisk) -> (Lane, Recovered) {
    recover(disk, 0, config()).unwrap()
}

fn run(lane: &mut Lane, disk: &MemDisk, request: IoRequest) -> LaneEvent {
    let result = disk.run(&request.op);
    lane.done(&IoDone {
        token: request.token,
        result,
    })
}

/// Runs these operations and all that follow from them; the answer is all that happened but `Pending`.
fn pump(lane: &mut Lane, disk: &MemDisk, requests: Vec<IoRequest>) -> Vec<LaneEvent> {
    let mut events = Vec::new();
    let mut requests = requests;
    while !requests.is_empty() {
        for request in requests {
            let event = run(lane, disk, request);
            assert_ne!(event, LaneEvent::Foreign);
            if event != LaneEvent::Pending {
                events.push(event);
            }
        }
        requests = lane.take_requests();
    }
    events
}

/// Cuts and writes until nothing is left.
fn sync(lane: &mut Lane, disk: &MemDisk) -> Vec<LaneEvent> {
    let mut events = Vec::new();
    while let Some((_, requests)) = lane.cut() {
        events.extend(pump(lane, disk, requests));
    }
    events
}

fn create(lane: &mut Lane, group: u64) -> BatchNo {
    lane.append(&WalRecord::Created {
        group: GroupId(group),
        replica: ReplicaId(group * 10),
        blob: b"created",
    })
}

fn entry(lane: &mut Lane, group: u64, index: u64, data: &[u8]) -> BatchNo {
    lane.append(&WalRecord::Entry {
        group: GroupId(group),
        index: LogIndex(index),
        term: Term(1),
        kind: 0,
        data,
    })
}

fn truncate(lane: &mut Lane, group: u64, index: u64) -> BatchNo {
    lane.append(&WalRecord::Truncated {
        group: GroupId(group),
        index: LogIndex(index),
        term: Term(1),
    })
}

/// Indexes of the entries recovered for a group.
fn indexes(recovered: &Recovered, group: u64) -> Vec<u64> {
    let group = recovered.groups.get(&GroupId(group));
    group.map_or_else(Vec::new, |group| {
        group.entries.iter().map(|entry| entry.index.0).collect()
    })
}

fn damaged(recovered: &Recovered) -> Vec<u64> {
    recovered
        .groups
        .iter()
        .filter(|(_, group)| group.damaged)
        .map(|(id, _)| id.0)
        .collect()
}

/// Files of segments, with their lengths.
fn slots(disk: &MemDisk) -> Vec<(FilePath, u64)> {
    disk.files()
        .into_iter()
        .filter(|(path, _)| path.name().starts_with("slot-"))
        .collect()
}

/// Where a batch went, and its bytes.
type Written = (FilePath, u64, Bytes);

/// The write among these operations.
fn write_of(requests: &[IoRequest]) -> Option<Written> {
    requests.iter().find_map(|request| match &request.op {
        IoOp::Write {
            file, offset, parts, ..
        } => Some((file.clone(), *offset, parts[0].clone())),
        _ => None,
    })
}

/// Cuts and writes one batch.
fn sync_one(lane: &mut Lane, disk: &MemDisk) -> Written {
    let (number, mut requests) = lane.cut().unwrap();
    let mut written = None;
    let mut events = Vec::new();
    while !requests.is_empty() {
        written = written.or_else(|| write_of(&requests));
        let more = requests.into_iter().map(|request| run(lane, disk, request));
        events.extend(more.filter(|event| *event != LaneEvent::Pending));
        requests = lane.take_requests();
    }
    assert_eq!(events, [LaneEvent::Synced(number)]);
    written.unwrap()
}

#[test]
fn what_a_group_wants_with_a_large_entry_costs_no_sync_of_its_own() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    sync(&mut lane, &disk);
    let large = vec![7; 2 * config().batch_bytes_max];
    let batch = entry(&mut lane, 1, 1, &large);
    let hard = WalRecord::HardState {
        group: GroupId(1),
        term: Term(1),
        vote: ReplicaId(10),
        commit: LogIndex(0),
    };
    assert_eq!(lane.append(&hard), batch, "it goes along");
    assert_eq!(
        entry(&mut lane, 1, 2, &large),
        BatchNo(batch.0 + 1),
        "the next is cut off"
    );
    for _ in 0..50 {
        lane.append(&hard);
    }
    assert!(
        lane.append(&hard) > BatchNo(batch.0 + 1),
        "what goes along is bounded"
    );
}

#[test]
fn what_was_synced_is_found_again() {
    let disk = MemDisk::new();
    let (mut lane, recovered) = open(&disk);
    assert!(recovered.is_new && recovered.groups.is_empty());
    assert_eq!(lane.cut(), None);
    let batch = create(&mut lane, 1);
    entry(&mut lane, 1, 1, b"one");
    lane.append(&WalRecord::Meta {
        key: 3,
        blob: b"boot",
    });
    assert!(lane.open_bytes() > 0 && !lane.in_flight());

    let (number, requests) = lane.cut().unwrap();
    assert_eq!((number, lane.open_bytes(), lane.in_flight()), (batch, 0, true));
    let (_, offset, bytes) = write_of(&requests).unwrap();
    assert_eq!((offset, bytes.len()), (0, 4096));
    assert_eq!(bytes.as_ptr().align_offset(4096), 0, "fit for unbuffered writes");
    let later = entry(&mut lane, 1, 2, b"two");
    assert!(later > batch);
    assert_eq!(lane.cut(), None, "one at a time");
    assert_eq!(pump(&mut lane, &disk, requests), [LaneEvent::Synced(batch)]);
    disk.crash(1);

    let (lane, recovered) = open(&disk);
    assert!(!recovered.is_new);
    assert_eq!(indexes(&recovered, 1), [1]);
    let group = &recovered.groups[&GroupId(1)];
    assert_eq!(
        (group.replica, &group.created[..]),
        (ReplicaId(10), &b"created"[..])
    );
    assert_eq!(&group.entries[0].data[..], b"one");
    assert_eq!(&recovered.meta[&3][..], b"boot");
    assert_eq!(
        (recovered.cut_bytes, recovered.damage.len(), group.damaged),
        (0, 0, false)
    );
    assert!(lane.synced() >= batch);
}

#[test]
fn batches_are_cut_at_the_cap_and_large_records_go_alone() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    create(&mut lane, 1);
    let large = vec![7; 50_000];
    let batches: Vec<BatchNo> = (1..=20)
        .map(|index| {
            entry(
                &mut lane,
                1,
                index,
                if index == 10 { &large } else { &large[..1000] },
            )
        })
        .collect();
    assert_eq!(batches.iter().filter(|batch| **batch == batches[9]).count(), 1);
    assert!(batches[19] > batches[10]);
    let mut longest = 0;
    while let Some((_, requests)) = lane.cut() {
        let events = pump(&mut lane, &disk, requests);
        assert!(matches!(events[..], [LaneEvent::Synced(_)]));
        longest += 1;
    }
    assert_eq!(longest as u64, batches[19].0 - batches[0].0 + 1);
    let (_, recovered) = open(&disk);
    assert_eq!(indexes(&recovered, 1), (1..=20).collect::<Vec<_>>());
}

#[test]
fn buffers_are_used_again() {
    let disk = MemDisk::new();
    let (mut lane, _) = open(&disk);
    let mut addresses = Vec::new();
    for index in 1..6 {
        create(&mut lane, index);
        addresses.push(sync_one(&mut lane, &disk).2.as_ptr());
    }
    assert!(addresses.iter().all(|address| *address == addresses[0]));
}
