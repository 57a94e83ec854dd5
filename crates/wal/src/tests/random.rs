//! Random histories with crashes and disk faults against the model: what recovery finds is the state after some
//! whole number of batches, at least those that were reported as synced and at most those that were cut.

use super::model::{Model, Op};
use super::{config, pump};
use crate::{BatchNo, Lane, LaneEvent, recover};
use proptest::collection::vec;
use proptest::prelude::*;
use tidelock_base::{GroupId, LogIndex};
use tidelock_record::{Disk, Fault, IoOp, MemDisk};

#[derive(Clone, Debug)]
enum Step {
    /// Appends an entry of that many bytes, so far back from the end of the log.
    Entry(u64, u64, usize),
    HardState(u64),
    /// Truncates at so many entries before the end.
    Truncate(u64, u64),
    Create(u64),
    Destroy(u64),
    Snapshot(u64, u64),
    FinishSnapshot(u64),
    Meta(u8),
    Members(u64),
    Sync,
    Relocate,
    /// Reads back from so far before the end of the log.
    ReadBack(u64, u64),
    Settle,
    Fail(Fault, u64),
    /// The next batch is written and not synced, or not written; then the power fails.
    Crash(u64, bool),
    /// The power fails during one of the next operations.
    PowerOff(u64, u64),
    /// The process ends with a batch written and not synced: the next one reads it from the kernel's memory.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let group = 1..5_u64;
    let fault = prop_oneof![
        Just(Fault::Write),
        Just(Fault::Sync),
        Just(Fault::Create),
        Just(Fault::Read)
    ];
    let len = prop_oneof![10 => 0..300_usize, 10 => 1000..3000_usize, 1 => 8000..30_000_usize];
    prop_oneof![
        20 => (group.clone(), 0..3_u64, len).prop_map(|(group, back, len)| Step::Entry(group, back, len)),
        3 => group.clone().prop_map(Step::HardState),
        6 => (group.clone(), 0..4_u64).prop_map(|(group, keep)| Step::Truncate(group, keep)),
        2 => group.clone().prop_map(Step::Create),
        1 => group.clone().prop_map(Step::Destroy),
        1 => (group.clone(), 0..5_u64).prop_map(|(group, ahead)| Step::Snapshot(group, ahead)),
        1 => group.clone().prop_map(Step::FinishSnapshot),
        1 => (0..3_u8).prop_map(Step::Meta),
        1 => group.clone().prop_map(Step::Members),
        4 => (group, 0..12_u64).prop_map(|(group, back)| Step::ReadBack(group, back)),
        12 => Just(Step::Sync),
        5 => Just(Step::Relocate),
        1 => Just(Step::Settle),
        1 => (fault, 0..3_u64).prop_map(|(fault, skip)| Step::Fail(fault, skip)),
        2 => (any::<u64>(), any::<bool>()).prop_map(|(seed, written)| Step::Crash(seed, written)),
        2 => (0..4_u64, any::<u64>()).prop_map(|(ops, seed)| Step::PowerOff(ops, seed)),
        1 => Just(Step::Restart),
    ]
}

struct World {
    disk: MemDisk,
    lane: Lane,
    /// All that was appended and not yet found to be lost, with its batch.
    history: Vec<(BatchNo, Op)>,
    now: Model,
    synced: BatchNo,
    count: u64,
}

impl World {
    fn new() -> Self {
        let disk = MemDisk::new();
        let (lane, _) = recover(&disk, 0, config()).unwrap();
        Self {
            disk,
            lane,
            history: Vec::new(),
            now: Model::default(),
            synced: BatchNo(0),
            count: 0,
        }
    }

    fn append(&mut self, op: Op) {
        let batch = self.lane.append(&op.record());
        self.now.apply(&op);
        self.history.push((batch, op));
    }

    /// Appends what the step says, if the group is there.
    fn append_step(&mut self, step: &Step) {
        self.count += 1;
        let count = self.count;
        let (Step::Entry(id, ..)
        | Step::HardState(id)
        | Step::Truncate(id, _)
        | Step::Destroy(id)
        | Step::Snapshot(id, _)
        | Step::FinishSnapshot(id)
        | Step::Members(id)) = step
        else {
            return;
        };
        let Some(group) = self.now.groups.get(id).cloned() else {
            self.append(Op::Created(*id, count));
            return;
        };
        let (last, floor) = (group.last(), group.floor.unwrap_or(0));
        match step {
            Step::Entry(_, back, len) => {
                let index = (last + 1).saturating_sub(*back).max(floor + 1);
                let data: Vec<u8> = count.to_le_bytes().into_iter().cycle().take(*len).collect();
                self.append(Op::Entry(*id, index, count, data));
            }
            Step::HardState(_) => self.append(Op::HardState(*id, count, last)),
            Step::Truncate(_, keep) if last - floor > *keep => self.append(Op::Truncated(*id, last - keep)),
            Step::Destroy(_) => self.append(Op::Destroyed(*id)),
            Step::Snapshot(_, ahead) => self.append(Op::Snapshot(*id, last + ahead + 1)),
            Step::FinishSnapshot(_) if group.installing.is_some() => self.append(Op::Truncated(*id, floor)),
            Step::Members(_) => self.append(Op::Members(*id, count.to_le_bytes().to_vec())),
            _ => {}
        }
    }

    fn note(&mut self, events: Vec<LaneEvent>) {
        for event in events {
            match event {
                LaneEvent::Synced(batch) => {
                    assert!(batch > self.synced);
                    self.synced = batch;
                }
                LaneEvent::Damaged(groups) => assert!(groups.is_empty(), "nothing was damaged"),
                LaneEvent::Broken(_)
                | LaneEvent::Retrying(_)
                | LaneEvent::SpareFailed(_)
                | LaneEvent::RelocationFailed(_) => {}
                LaneEvent::Foreign | LaneEvent::Pending | LaneEvent::ReadBack { .. } => panic!("{event:?}"),
            }
        }
    }

    /// Writes all that is open; stops when the disk stays broken.
    fn sync(&mut self) {
        for _ in 0..100 {
            let requests = match self.lane.cut() {
                Some((_, requests)) => requests,
                None if self.lane.is_broken() => self.lane.retry(),
                None => return,
            };
            let events = pump(&mut self.lane, &self.disk, requests);
            self.note(events);
        }
    }

    fn relocate(&mut self) {
        let requests = self.lane.relocate(5000);
        let events = pump(&mut self.lane, &self.disk, requests);
        self.note(events);
    }

    /// What comes back is what was appended, from the first one on.
    fn read_back(&mut self, id: u64, back: u64) {
        let Some(group) = self.now.groups.get(&id).cloned() else {
            return;
        };
        let first = group.last().saturating_sub(back);
        if !self.lane.read_back(GroupId(id), LogIndex(first), 3000) {
            return;
        }
        let requests = self.lane.take_requests();
        let events = pump(&mut self.lane, &self.disk, requests);
        let [LaneEvent::ReadBack { entries, .. }] = &events[..] else {
            panic!("{events:?}");
        };
        for (entry, index) in entries.iter().zip(first..) {
            let (term, data) = &group.entries[&index];
            assert_eq!(
                (entry.index.0, entry.term.0, &entry.data[..]),
                (index, *term, &data[..])
            );
        }
    }

    /// The last thing before a crash: a batch is cut, and its operations run without any sync, or not at all.
    fn write_unsynced(&mut self, written: bool) {
        let Some((_, requests)) = self.lane.cut() else {
            return;
        };
        for request in requests {
            match request.op {
                IoOp::Write {
                    file, offset, parts, ..
                } if written => {
                    let sync = false;
                    let op = IoOp::Write {
                        file,
                        offset,
                        parts,
                        sync,
                    };
                    // A planned fault may strike here too.
                    let _ = self.disk.run(&op);
                }
                _ => {}
            }
        }
    }

    /// Opens the lane again and compares what is found with each state that it may be.
    fn recover(&mut self) {
        // A fault that is still planned may make a start fail, which leaves all as it was.
        let (lane, recovered) = (0..9)
            .find_map(|_| recover(&self.disk, 0, config()).ok())
            .unwrap();
        assert_eq!(recovered.damage, []);
        assert!(recovered.groups.values().all(|group| !group.damaged));
        let found = Model::of(&recovered);
        let mut model = Model::default();
        let (durable, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.history)
            .into_iter()
            .partition(|(batch, _)| *batch <= self.synced);
        durable.iter().for_each(|(_, op)| model.apply(op));
        self.history = durable;
        // Batches beyond those: one by one, each whole.
        let mut batches: Vec<Vec<(BatchNo, Op)>> = Vec::new();
        for (batch, op) in open {
            match batches.last_mut().filter(|last| last[0].0 == batch) {
                Some(last) => last.push((batch, op)),
                None => batches.push(vec![(batch, op)]),
            }
        }
        let mut batches = batches.into_iter();
        while model != found {
            let next = batches
                .next()
                .unwrap_or_else(|| panic!("{found:#?}\nis no state of the log; last {model:#?}"));
            next.iter().for_each(|(_, op)| model.apply(op));
            self.history.extend(next);
        }
        // From here on the lane gives out numbers anew; all that was found is durable.
        self.lane = lane;
        self.synced = self.lane.synced();
        for (batch, _) in &mut self.history {
            *batch = BatchNo(0);
        }
        self.now = found;
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Entry(..)
            | Step::HardState(_)
            | Step::Truncate(..)
            | Step::Destroy(_)
            | Step::Snapshot(..)
            | Step::FinishSnapshot(_)
            | Step::Members(_) => self.append_step(step),
            Step::Create(id) => {
                self.count += 1;
                self.append(Op::Created(*id, self.count));
            }
            Step::Meta(key) => {
                self.count += 1;
                self.append(Op::Meta(*key, self.count.to_le_bytes().to_vec()));
            }
            Step::Sync => self.sync(),
            Step::Relocate => self.relocate(),
            Step::ReadBack(id, back) => self.read_back(*id, *back),
            Step::Settle => {
                let requests = self.lane.settle();
                let events = pump(&mut self.lane, &self.disk, requests);
                self.note(events);
            }
            Step::Fail(fault, skip) => self.disk.fail(*fault, *skip),
            Step::Crash(seed, written) => {
                self.write_unsynced(*written);
                self.disk.crash(*seed);
                self.recover();
            }
            Step::PowerOff(ops, seed) => {
                self.disk.power_off_after(*ops);
                self.sync();
                self.disk.crash(*seed);
                // The power may fail once more during recovery.
                self.disk.power_off_after(seed % 40);
                let _ = recover(&self.disk, 0, config());
                self.disk.crash(seed.wrapping_add(1));
                self.recover();
            }
            Step::Restart => {
                self.write_unsynced(true);
                self.recover();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(28))]

    #[test]
    fn recovery_finds_a_state_of_the_log(steps in vec(step(), 1..150)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.recover();
        // Space is given back: a lane whose groups are gone keeps a few segments only.
        for group in 1..5 {
            world.append(Op::Destroyed(group));
        }
        for _ in 0..12 {
            world.append(Op::Meta(0, vec![0; 7000]));
            world.sync();
            world.relocate();
            world.sync();
        }
        prop_assert!(world.lane.retained_bytes() < 200_000, "{}", world.lane.retained_bytes());
    }
}
