//! Real files on a disk that gives only so much.

use crate::disk::FileDisk;
use bytes::Bytes;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tidelock_base::{GroupId, LogIndex, ReplicaId, Term};
use tidelock_record::{Disk, FilePath, IoDone, IoError, IoOp, IoOutput, IoRequest};
use tidelock_wal::{Lane, LaneConfig, LaneEvent, Recovered, WalError, WalRecord, recover};

/// Files in a folder of their own, and how many bytes more may be asked for.
struct Capped {
    disk: Mutex<FileDisk>,
    left: AtomicU64,
    folder: tempfile::TempDir,
}

impl Capped {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            disk: Mutex::new(FileDisk::open(folder.path()).unwrap()),
            left: AtomicU64::new(u64::MAX),
            folder,
        }
    }

    /// As after a restart.
    fn reopen(&self) {
        *self.disk.lock().unwrap() = FileDisk::open(self.folder.path()).unwrap();
    }

    fn leave(&self, bytes: u64) {
        self.left.store(bytes, Ordering::Relaxed);
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let folder = self.folder.path().join(dir);
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Disk for Capped {
    fn run(&self, op: &IoOp) -> Result<IoOutput, IoError> {
        let asked = match op {
            IoOp::Create { len, .. } => *len,
            IoOp::Replace { data, .. } => data.len() as u64,
            _ => 0,
        };
        let left = self.left.load(Ordering::Relaxed);
        if asked > left {
            return Err(IoError::NoSpace);
        }
        self.leave(left - asked);
        self.disk.lock().unwrap().run(op)
    }
}

fn path(text: &str) -> FilePath {
    FilePath::new(text).unwrap()
}

fn open(disk: &Capped) -> Result<(Lane, Recovered), WalError> {
    let config = LaneConfig {
        segment_bytes: 256 << 10,
        ..LaneConfig::new(7)
    };
    recover(disk, 0, config)
}

/// Writes what was appended; whether it is durable.
fn sync(lane: &mut Lane, disk: &Capped) -> bool {
    let mut requests: Vec<IoRequest> = lane
        .cut()
        .into_iter()
        .flat_map(|(_, requests)| requests)
        .collect();
    let mut synced = false;
    loop {
        for request in std::mem::take(&mut requests) {
            let result = disk.run(&request.op);
            let event = lane.done(&IoDone {
                token: request.token,
                result,
            });
            synced |= matches!(event, LaneEvent::Synced(_));
        }
        requests = lane.take_requests();
        if requests.is_empty() {
            return synced;
        }
    }
}

fn entry(lane: &mut Lane, index: u64) {
    lane.append(&WalRecord::Entry {
        group: GroupId(1),
        index: LogIndex(index),
        term: Term(1),
        kind: 0,
        data: &[7; 20_000],
    });
}

#[test]
fn a_log_on_a_full_disk_goes_on_in_its_reserve_and_opens_again() {
    let disk = Capped::new();
    let (mut lane, _) = open(&disk).unwrap();
    lane.append(&WalRecord::Created {
        group: GroupId(1),
        replica: ReplicaId(1),
        blob: b"x",
    });
    assert!(sync(&mut lane, &disk));
    disk.leave(0);
    let mut last = 0;
    while !lane.is_short() {
        last += 1;
        entry(&mut lane, last);
        assert!(sync(&mut lane, &disk), "entry {last}");
    }
    for _ in 0..5 {
        last += 1;
        entry(&mut lane, last);
        assert!(sync(&mut lane, &disk), "entry {last}, from the reserve");
    }
    drop(lane);
    disk.reopen();
    let recovered = |disk: &Capped| {
        let (lane, recovered) = open(disk)?;
        let entries = recovered
            .groups
            .get(&GroupId(1))
            .map_or(0, |group| group.entries.len() as u64);
        Ok((lane, entries))
    };
    // Nothing is to be had, not even for the control file.
    let result: Result<_, WalError> = recovered(&disk);
    let (mut lane, entries) = result.unwrap();
    assert_eq!(entries, last);
    while sync(&mut lane, &disk) || !lane.is_broken() {
        last += 1;
        entry(&mut lane, last);
    }
    drop(lane);
    disk.reopen();
    let refused = open(&disk).map(drop).unwrap_err().to_string();
    // The last batch has to be written again, and finds no place: the start says how much it takes.
    let told = "write-ahead log: wal/lane-0000: no space left on device; at least 20480 bytes must be free there to start";
    assert_eq!(refused, told);
    disk.leave(u64::MAX);
    let result: Result<_, WalError> = recovered(&disk);
    let (_, entries) = result.unwrap();
    assert_eq!(entries, last - 1);
}

#[test]
fn what_is_not_whole_takes_no_space() {
    let disk = Capped::new();
    let file = path("groups/1");
    let data = Bytes::from_static(b"one");
    disk.run(&IoOp::Replace { file, data }).unwrap();
    std::fs::write(disk.folder.path().join("groups/2.tmp"), b"half").unwrap();
    std::fs::create_dir_all(disk.folder.path().join("wal/lane-0000")).unwrap();
    std::fs::write(
        disk.folder.path().join("wal/lane-0000/slot-00000009.tmp"),
        b"half",
    )
    .unwrap();
    disk.reopen();
    assert_eq!(disk.names("groups"), ["1"]);
    assert!(disk.names("wal/lane-0000").is_empty());
}

#[test]
fn a_reserve_is_written_over() {
    let disk = Capped::new();
    for (file, len) in [("reserve/0000", 65_536), ("groups/1", 10)] {
        let file = path(file);
        disk.run(&IoOp::Create { file, len }).unwrap();
    }
    disk.leave(0);
    let (file, reserve, data) = (
        path("groups/1"),
        path("reserve/0000"),
        Bytes::from(vec![5; 5_000]),
    );
    disk.run(&IoOp::ReplaceFrom {
        file: file.clone(),
        data: data.clone(),
        reserve: reserve.clone(),
    })
    .unwrap();
    assert_eq!(disk.read(&file, 0, 1 << 20), Ok(data.clone()));
    assert!(disk.names("reserve").is_empty());
    // A file can be its own reserve.
    let again = IoOp::ReplaceFrom {
        file: file.clone(),
        data: data.slice(..100),
        reserve: file.clone(),
    };
    disk.run(&again).unwrap();
    assert_eq!(disk.read(&file, 0, 1 << 20), Ok(data.slice(..100)));
    let (data, missing) = (data.clone(), path("reserve/0000"));
    let result = disk.run(&IoOp::ReplaceFrom {
        file: file.clone(),
        data,
        reserve: missing,
    });
    assert_eq!(result, Err(IoError::NotFound));
    assert_eq!(disk.size(&file), Ok(100), "as it was");
}

#[test]
fn parts_that_are_put_together_leave_nothing_of_those_before() {
    let disk = Capped::new();
    let file = path("streams/1/1.blk");
    disk.run(&IoOp::Create {
        file: file.clone(),
        len: 0,
    })
    .unwrap();
    let mut all = Vec::new();
    // Longer, shorter, and longer than the buffer that is kept from the first.
    for (fill, len) in [(1_u8, 3 * 4096), (2, 4096), (3, 64 * 4096)] {
        let whole = vec![fill; len];
        let (head, rest) = whole.split_at(1000);
        let (offset, parts) = (
            all.len() as u64,
            vec![Bytes::copy_from_slice(head), Bytes::copy_from_slice(rest)],
        );
        disk.run(&IoOp::Write {
            file: file.clone(),
            offset,
            parts,
            sync: fill == 3,
        })
        .unwrap();
        all.extend_from_slice(&whole);
    }
    assert_eq!(
        std::fs::read(disk.folder.path().join(file.as_str())).unwrap(),
        all
    );
}
