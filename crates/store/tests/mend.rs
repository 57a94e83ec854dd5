//! What is damaged on the disk of one replica comes from another one, and its file is written again.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests panic like the tests they serve"
)]

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidelock_base::{StreamSeq, Wall};
use tidelock_record::{Disk, FilePath, IoDone, IoError, IoOp, MemDisk, encode_into};
use tidelock_store::{
    BlockFile, CheckpointKind, Lookup, OnLoss, RemoveError, Store, StoreConfig, StoreEvent, StoreKind,
    Stored, SubjectState,
};

const HEADER_BYTES: u64 = 64;
const TRAILER_BYTES: u64 = 128;

/// A replica: blocks of its own size, as those of different replicas differ.
struct Replica {
    store: Store,
    disk: Arc<MemDisk>,
}

fn config(block_bytes: u64) -> StoreConfig {
    StoreConfig {
        block_bytes,
        tail_bytes: 4 << 10,
        index_cache_bytes: 0,
        data_cache_bytes: 0,
        ..StoreConfig::new(StoreKind::File, FilePath::new("s").unwrap())
    }
}

impl Replica {
    /// With these messages, all in blocks.
    fn filled(block_bytes: u64, messages: u64) -> Self {
        let mut replica = Self {
            store: Store::new(config(block_bytes)),
            disk: Arc::new(MemDisk::new()),
        };
        for seq in 1..=messages {
            let mut out = BytesMut::new();
            let subject = format!("subject.{}", seq % 7);
            encode_into(&mut out, subject.as_bytes(), b"", &[seq.to_le_bytes()[0]; 100]).unwrap();
            let at = Wall(1_000 + seq.cast_signed());
            replica.store.append(StreamSeq(seq), at, out.freeze()).unwrap();
        }
        replica.store.flush();
        replica.settle();
        replica
    }

    /// Runs operations until there are none; gives their events.
    fn settle(&mut self) -> Vec<StoreEvent> {
        let mut events = Vec::new();
        loop {
            let requests = self.store.take_io();
            if requests.is_empty() && !self.store.has_work() {
                return events;
            }
            for request in requests {
                let result = self.disk.run(&request.op);
                let token = request.token;
                events.push(self.store.io_done(&IoDone { token, result }));
            }
        }
    }

    fn get(&mut self, seq: u64) -> Lookup {
        loop {
            let lookup = self.store.get(StreamSeq(seq));
            let Lookup::Cold(need) = lookup else {
                return lookup;
            };
            self.store.fetch(need);
            self.settle();
        }
    }

    fn found(&mut self, seq: u64) -> Stored {
        match self.get(seq) {
            Lookup::Found(stored) => stored,
            other => panic!("{seq}: {other:?}"),
        }
    }

    fn remove(&mut self, seq: u64) {
        loop {
            match self.store.remove(StreamSeq(seq)) {
                Ok(_) => return,
                Err(RemoveError::Need(need)) => {
                    self.store.fetch(need);
                    self.settle();
                }
                Err(error) => panic!("{seq}: {error}"),
            }
        }
    }

    fn blocks(&self) -> Vec<BlockFile> {
        self.store.block_files().collect()
    }

    fn flip(&self, file: &BlockFile, byte: u64) {
        assert!(self.disk.flip_bit(&file.file, byte * 8 + 3), "{byte}");
    }

    /// Turns a bit of the payload of the message of this number in a block, from 0.
    fn flip_message(&self, file: &BlockFile, number: u64) {
        let frame = 20 + 16 + 9 + 100;
        self.flip(file, HEADER_BYTES + number * frame + 100);
    }

    /// Takes what is known to be damaged from another replica; gives how many.
    fn take_from(&mut self, other: &mut Self) -> usize {
        let damaged: Vec<StreamSeq> = self.store.damaged().collect();
        let taken = damaged.iter().filter(|seq| {
            let Stored { seq, ts, record } = other.found(seq.value());
            self.store.mend(seq, ts.0, record)
        });
        taken.count()
    }

    /// The messages of a block that lie in memory only as damaged.
    fn damaged(&self) -> Vec<u64> {
        self.store.damaged().map(StreamSeq::value).collect()
    }

    /// The store as a start would find it.
    fn start_again(&mut self) -> Self {
        self.store.flush();
        self.settle();
        self.start_damaged(|_| {})
    }

    /// The store as a start finds it when something has happened to its files before.
    fn start_damaged(&mut self, damage: impl FnOnce(&Self)) -> Self {
        let mut saved = Vec::new();
        let number = self.store.encode_checkpoint(CheckpointKind::Full, &mut saved);
        self.store.checkpoint_durable(number);
        self.settle();
        damage(self);
        let disk = Arc::clone(&self.disk);
        let store = Store::restore(self.store.config().clone(), &[&saved], &*disk, OnLoss::Await).unwrap();
        Self { store, disk }
    }

    fn delete(&self, file: &BlockFile) {
        let file = file.file.clone();
        self.disk.run(&IoOp::Remove { file }).unwrap();
    }

    /// Lists everything again, once nothing is damaged any more.
    fn relist(&mut self) -> bool {
        self.store.relist(&*self.disk).unwrap()
    }

    /// What is known of each subject.
    fn subjects(&self) -> Vec<(String, Option<SubjectState>)> {
        let names = (0..7).map(|n| format!("subject.{n}"));
        names
            .map(|name| {
                let state = self.store.subject_state(name.as_bytes());
                (name, state)
            })
            .collect()
    }
}

fn mended(events: &[StoreEvent]) -> usize {
    let is_one = |event: &&StoreEvent| matches!(event, StoreEvent::Mended { .. });
    events.iter().filter(is_one).count()
}

/// All of its messages are those of the other one, and all of its files are sound.
fn assert_whole(replica: &mut Replica, other: &mut Replica, messages: u64) {
    assert!(!replica.store.has_damage() && replica.damaged().is_empty());
    assert_eq!(
        (replica.store.digest(), replica.store.state()),
        (other.store.digest(), other.store.state())
    );
    for seq in 1..=messages {
        assert_eq!(replica.get(seq), other.get(seq));
    }
    for file in replica.blocks() {
        let bytes = replica.disk.read(&file.file, 0, file.len).unwrap();
        assert_eq!(crc32c::crc32c(&bytes), file.crc, "{}", file.file);
    }
}

#[test]
fn a_damaged_message_is_shown_as_soon_as_it_has_come_and_its_file_is_written_again() {
    let (mut store, mut other) = (Replica::filled(16 << 10, 300), Replica::filled(9 << 10, 300));
    let file = store.blocks()[0].clone();
    store.flip_message(&file, 2);
    assert_eq!(store.get(3), Lookup::Damaged);
    assert_eq!((store.damaged(), store.store.has_damage()), (vec![3], true));
    assert!(store.store.is_damaged(StreamSeq(3)) && store.store.may_be_mended(StreamSeq(3)));
    assert!(store.settle().is_empty(), "nothing is written before it is here");
    assert_eq!(store.take_from(&mut other), 1);
    // Before anything is written.
    assert_eq!(store.store.get(StreamSeq(3)), other.get(3));
    assert!(!store.store.is_damaged(StreamSeq(3)));
    assert_eq!(mended(&store.settle()), 1);
    assert!(store.blocks().iter().all(|block| block.file != file.file));
    assert_whole(&mut store, &mut other, 300);
    assert_whole(&mut store.start_again(), &mut other, 300);
    assert_eq!(
        store.disk.files().len(),
        store.blocks().len(),
        "the damaged file is gone"
    );
}

#[test]
fn what_is_not_that_message_is_not_taken() {
    let (mut store, mut other) = (Replica::filled(16 << 10, 300), Replica::filled(16 << 10, 300));
    let file = store.blocks()[0].clone();
    store.flip_message(&file, 2);
    assert_eq!(store.get(3), Lookup::Damaged);
    let right = other.found(3);
    let mut encoded = BytesMut::new();
    encode_into(&mut encoded, b"subject.4", b"", &[3; 100]).unwrap();
    let (foreign, changed) = (encoded.freeze(), right.record.slice(..right.record.len() - 1));
    let mut wrong = right.record.to_vec();
    wrong[60] ^= 1;
    for (seq, ts, record) in [
        (3, right.ts.0 + 1, right.record.clone()),
        (3, right.ts.0, other.found(10).record),
        (3, right.ts.0, foreign),
        (3, right.ts.0, changed),
        (3, right.ts.0, Bytes::from(wrong)),
        (3, right.ts.0, Bytes::new()),
        // Not damaged, not there, not in a block.
        (4, other.found(4).ts.0, other.found(4).record),
        (301, right.ts.0, right.record.clone()),
        (0, right.ts.0, right.record.clone()),
    ] {
        assert!(!store.store.mend(StreamSeq(seq), ts, record), "{seq} {ts}");
    }
    assert_eq!(store.get(3), Lookup::Damaged);
    assert!(store.store.mend(StreamSeq(3), right.ts.0, right.record.clone()));
    assert!(!store.store.mend(StreamSeq(3), right.ts.0, right.record), "once");
}

#[test]
fn damage_that_is_found_while_the_block_is_written_again_is_asked_for_too() {
    let (mut store, mut other) = (Replica::filled(16 << 10, 300), Replica::filled(16 << 10, 300));
    let file = store.blocks()[0].clone();
    // A read goes forward from where it begins.
    store.flip_message(&file, 2);
    store.flip_message(&file, 20);
    assert_eq!(store.get(21), Lookup::Damaged);
    assert_eq!(store.take_from(&mut other), 1);
    let events = store.settle();
    assert!(
        events
            .iter()
            .any(|event| matches!(event, StoreEvent::Damaged { .. })),
        "{events:?}"
    );
    assert_eq!(store.damaged(), [3]);
    assert_eq!(store.take_from(&mut other), 1);
    assert_eq!(mended(&store.settle()), 1);
    assert_whole(&mut store, &mut other, 300);
    assert_eq!(store.disk.files().len(), store.blocks().len());
}

#[test]
fn a_block_whose_index_is_lost_shows_nothing_before_the_sum_is_right() {
    let (mut store, mut other) = (Replica::filled(16 << 10, 300), Replica::filled(9 << 10, 300));
    let file = store.blocks()[1].clone();
    let (from, _) = spoil_index(&store, &file);
    assert_eq!(store.get(from), Lookup::Damaged);
    let damaged = store.damaged();
    assert!(damaged.len() > 50 && damaged[0] == from, "{damaged:?}");
    // One of them removed meanwhile cannot be counted, and has to wait.
    assert!(matches!(
        store.store.remove(StreamSeq(from)),
        Err(RemoveError::Damaged(seq)) if seq.value() == from
    ));
    let first = other.found(from);
    assert!(store.store.mend(first.seq, first.ts.0, first.record));
    assert_eq!(store.get(from), Lookup::Damaged);
    assert_eq!(store.take_from(&mut other), damaged.len() - 1);
    assert_eq!(mended(&store.settle()), 1);
    assert_whole(&mut store, &mut other, 300);
    assert_whole(&mut store.start_again(), &mut other, 300);
}

#[test]
fn a_block_that_does_not_come_to_its_sum_is_left_as_it_is() {
    let (mut store, mut other) = (Replica::filled(16 << 10, 300), Replica::filled(16 << 10, 300));
    let file = store.blocks()[1].clone();
    let (from, _) = spoil_index(&store, &file);
    assert_eq!(store.get(from), Lookup::Damaged);
    let Stored { ts, record, .. } = other.found(from + 1);
    assert!(
        store.store.mend(StreamSeq(from), ts.0, record),
        "sound by itself, and another one"
    );
    store.take_from(&mut other);
    let events = store.settle();
    assert_eq!(mended(&events), 0);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, StoreEvent::Damaged { .. })),
        "{events:?}"
    );
    assert!(!store.store.may_be_mended(StreamSeq(from)));
    assert_eq!(store.get(from), Lookup::Damaged);
    assert_eq!(store.take_from(&mut other), 0);
    assert!(store.settle().is_empty());
    assert_eq!(store.get(1), other.get(1));
}

#[test]
fn a_damaged_index_or_header_is_written_again_without_anybody() {
    let (mut store, mut other) = (Replica::filled(16 << 10, 300), Replica::filled(16 << 10, 300));
    let files = store.blocks();
    store.flip(&files[1], HEADER_BYTES + data_len(&store.disk, &files[1]) + 5);
    let (from, _) = seqs(&store, &files[1]);
    assert_eq!(store.get(from), other.get(from));
    assert_eq!(
        mended(&store.settle()),
        0,
        "it was written again when it was found"
    );
    assert!(store.blocks()[1].file != files[1].file);
    // What no read looks at is found by reading the file for that.
    store.flip(&files[0], 9);
    let mut next = Some(StreamSeq(1));
    let mut events = Vec::new();
    while let Some(seq) = next {
        next = store.store.scrub(seq);
        events.append(&mut store.settle());
    }
    assert_eq!(mended(&events), 1);
    assert_whole(&mut store, &mut other, 300);
    // The same at a start.
    let file = store.blocks()[0].clone();
    let mut again = store.start_again();
    assert!(!again.store.has_damage());
    again.flip(&file, HEADER_BYTES + data_len(&store.disk, &file) + 5);
    let mut again = again.start_again();
    assert_eq!(mended(&again.settle()), 1);
    assert_whole(&mut again, &mut other, 300);
}

#[test]
fn a_file_that_is_gone_comes_back_whole() {
    let (mut store, mut other) = (Replica::filled(16 << 10, 300), Replica::filled(16 << 10, 300));
    let file = store.blocks()[1].clone();
    let (from, upto) = seqs(&store, &file);
    store.disk.run(&IoOp::Remove { file: file.file }).unwrap();
    assert_eq!(store.store.scrub(StreamSeq(from)), Some(StreamSeq(upto + 1)));
    store.settle();
    assert_eq!(store.take_from(&mut other) as u64, upto + 1 - from);
    assert_eq!(mended(&store.settle()), 1);
    assert_whole(&mut store, &mut other, 300);
}

#[test]
fn files_that_are_missing_at_a_start_come_back_and_so_do_their_subjects() {
    let (mut store, mut other) = (Replica::filled(9 << 10, 500), Replica::filled(16 << 10, 400));
    for seq in 401..=500 {
        let record = store.found(seq);
        other.store.append(record.seq, record.ts, record.record).unwrap();
    }
    for seq in (3..450).step_by(4) {
        store.remove(seq);
        other.remove(seq);
    }
    let files = store.blocks();
    let mut store = store.start_damaged(|store| {
        store.delete(&files[0]);
        store.delete(&files[2]);
        // Neither summary nor messages can be read.
        (0..files[4].len)
            .step_by(16)
            .for_each(|at| store.flip(&files[4], at));
        // The summary alone.
        let summary = HEADER_BYTES + data_len(&store.disk, &files[3]);
        store.flip(&files[3], summary + 4);
    });
    assert!(!store.store.is_listed() && !store.store.is_beyond_mending());
    assert!(!store.relist(), "there is nothing to list yet");
    assert_eq!(
        (store.store.digest(), store.store.msgs()),
        (other.store.digest(), other.store.msgs())
    );
    let files_named = [0, 2, 4].map(|n: usize| files[n].file.as_str().rsplit('/').next().unwrap().to_owned());
    for name in files_named {
        let (from, upto) = store.store.block_named(&name).unwrap();
        assert!(
            store
                .damaged()
                .iter()
                .any(|seq| (from.value()..=upto.value()).contains(seq))
        );
    }
    assert_eq!(store.get(store.damaged()[0]), Lookup::Damaged);
    // What is there can be had by others.
    assert_eq!(store.get(500), other.get(500));
    while store.store.has_damage() {
        store.take_from(&mut other);
        store.settle();
    }
    assert!(store.relist() && store.store.is_listed());
    assert_eq!(store.subjects(), other.subjects());
    assert_whole(&mut store, &mut other, 500);
    for seq in 1..=500 {
        if matches!(other.get(seq), Lookup::Found(_)) {
            store.remove(seq);
            other.remove(seq);
            assert_eq!(store.subjects(), other.subjects());
        }
    }
    assert_whole(&mut store.start_again(), &mut other, 500);
}

#[test]
fn a_file_that_cannot_be_made_again_is_said_to_be_beyond_mending() {
    let (mut store, mut other) = (Replica::filled(9 << 10, 300), Replica::filled(9 << 10, 300));
    let files = store.blocks();
    let mut store = store.start_damaged(|store| store.delete(&files[1]));
    let damaged = store.damaged();
    for seq in &damaged {
        // What comes is sound and something else.
        let Stored { ts, record, .. } = other.found(seq.min(&(damaged[0] + 5)).to_owned());
        assert!(store.store.mend(StreamSeq(*seq), ts.0, record));
    }
    store.settle();
    assert!(store.store.is_beyond_mending() && !store.store.is_listed());
    assert!(!store.relist());
}

#[test]
fn a_file_that_goes_while_others_come_is_fetched_too() {
    let (mut store, mut other) = (Replica::filled(9 << 10, 300), Replica::filled(9 << 10, 300));
    let files = store.blocks();
    let mut store = store.start_damaged(|store| store.delete(&files[1]));
    store.take_from(&mut other);
    store.settle();
    store.delete(&files[0]);
    assert!(!store.relist(), "this one is missing now");
    assert_eq!(store.damaged()[0], 1);
    store.take_from(&mut other);
    store.settle();
    assert!(store.relist());
    assert_eq!(store.subjects(), other.subjects());
    assert_whole(&mut store, &mut other, 300);
}

#[test]
fn a_block_that_the_disk_does_not_give_back_is_given_up() {
    let (mut store, mut other) = (Replica::filled(16 << 10, 300), Replica::filled(16 << 10, 300));
    let file = store.blocks()[1].clone();
    let (from, upto) = seqs(&store, &file);
    store.store.give_up_block(StreamSeq(from + 3));
    assert_eq!(store.take_from(&mut other) as u64, upto + 1 - from);
    // It cannot be read for the copy either.
    let mut seen = Vec::new();
    loop {
        let requests = store.store.take_io();
        if requests.is_empty() {
            break;
        }
        for request in requests {
            let bad = matches!(&request.op, IoOp::Read { file: read, .. } if *read == file.file);
            let result = if bad {
                Err(IoError::Device("bad sector".into()))
            } else {
                store.disk.run(&request.op)
            };
            seen.push(store.store.io_done(&IoDone {
                token: request.token,
                result,
            }));
        }
    }
    assert_eq!(mended(&seen), 1);
    assert_whole(&mut store, &mut other, 300);
}

#[test]
fn removals_go_on_meanwhile() {
    let (mut store, mut other) = (Replica::filled(16 << 10, 300), Replica::filled(16 << 10, 300));
    let files = store.blocks();
    store.flip_message(&files[0], 2);
    store.flip_message(&files[0], 4);
    store.flip_message(&files[1], 4);
    let (from, upto) = seqs(&store, &files[1]);
    assert_eq!(store.get(3), Lookup::Damaged);
    assert_eq!(store.get(from + 4), Lookup::Damaged);
    assert_eq!(store.damaged(), [3, 5, from + 4]);
    for seq in [3].into_iter().chain(from..=upto) {
        store.remove(seq);
        other.remove(seq);
    }
    assert_eq!(store.damaged(), [5]);
    assert_eq!(store.take_from(&mut other), 1);
    // One that has come and is removed before the file is written.
    let requests = store.store.take_io();
    store.remove(5);
    other.remove(5);
    for request in requests {
        let result = store.disk.run(&request.op);
        store.store.io_done(&IoDone {
            token: request.token,
            result,
        });
    }
    store.settle();
    assert!(!store.store.has_damage());
    assert_eq!(store.store.digest(), other.store.digest());
    assert_eq!(store.get(4), other.get(4));
}

/// First and last sequence in a block, from its trailer.
fn seqs(replica: &Replica, file: &BlockFile) -> (u64, u64) {
    let trailer = replica
        .disk
        .read(&file.file, file.len - TRAILER_BYTES, TRAILER_BYTES)
        .unwrap();
    let word = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().unwrap());
    (word(8), word(16))
}

/// Length of the frames, from the trailer.
fn data_len(disk: &MemDisk, file: &BlockFile) -> u64 {
    let trailer = disk
        .read(&file.file, file.len - TRAILER_BYTES, TRAILER_BYTES)
        .unwrap();
    u64::from_le_bytes(trailer[32..40].try_into().unwrap())
}

/// Damages the index of a block and one of its messages, so that the index cannot be made again.
fn spoil_index(replica: &Replica, file: &BlockFile) -> (u64, u64) {
    let seqs = seqs(replica, file);
    replica.flip(file, HEADER_BYTES + data_len(&replica.disk, file) + 5);
    replica.flip_message(file, 10);
    seqs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever bits turn over, no wrong message is ever shown, and with another replica everything comes back.
    #[test]
    fn any_damage_is_made_good(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..12),
        removed in proptest::collection::btree_set(1_u64..200, 0..60),
    ) {
        let (mut store, mut other) = (Replica::filled(6 << 10, 200), Replica::filled(11 << 10, 200));
        for (block, byte) in &flips {
            let files = store.blocks();
            let file = &files[block.index(files.len())];
            store.flip(file, byte.index(usize::try_from(file.len).unwrap()) as u64);
        }
        let mut left: BTreeSet<u64> = removed;
        for _ in 0..20 {
            // Removals wait for a block that is broken.
            left.retain(|&seq| {
                let done = loop {
                    match store.store.remove(StreamSeq(seq)) {
                        Ok(_) => break true,
                        Err(RemoveError::Need(need)) => {
                            store.store.fetch(need);
                            store.settle();
                        }
                        Err(RemoveError::Damaged(_)) => break false,
                        Err(RemoveError::Missing) => panic!("{seq} is there"),
                    }
                };
                if done {
                    other.remove(seq);
                }
                !done
            });
            let mut next = Some(StreamSeq(1));
            while let Some(seq) = next {
                next = store.store.scrub(seq);
                store.settle();
            }
            for seq in 1..=200 {
                let lookup = store.get(seq);
                prop_assert!(lookup == Lookup::Damaged || lookup == other.get(seq), "{seq}: {lookup:?}");
            }
            store.take_from(&mut other);
            store.settle();
        }
        prop_assert!(left.is_empty(), "{left:?}");
        assert_whole(&mut store, &mut other, 200);
        assert_whole(&mut store.start_again(), &mut other, 200);
    }
}
