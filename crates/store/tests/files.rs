//! What the store does with its files: what it writes and what it does not, what it survives, and what it reports.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests panic like the tests they serve"
)]

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tidelock_base::{StreamSeq, Wall};
use tidelock_record::{Disk, Fault, FilePath, IoDone, IoError, IoOp, MemDisk, encode_into};
use tidelock_store::{
    CheckpointKind, Filters, Lookup, OnLoss, Purge, PurgeStep, RemoveError, Store, StoreConfig, StoreError,
    StoreEvent, StoreKind,
};

const HEADER_BYTES: u64 = 64;

fn config() -> StoreConfig {
    StoreConfig {
        block_bytes: 16 << 10,
        tail_bytes: 4 << 10,
        index_cache_bytes: 0,
        data_cache_bytes: 0,
        ..StoreConfig::new(StoreKind::File, FilePath::new("s").unwrap())
    }
}

fn record(subject: &str, len: usize) -> Bytes {
    let mut out = BytesMut::new();
    encode_into(&mut out, subject.as_bytes(), b"", &vec![7; len]).unwrap();
    out.freeze()
}

fn append(store: &mut Store, subject: &str, len: usize) -> u64 {
    let seq = store.last_seq().next();
    store
        .append(seq, Wall(seq.value().cast_signed()), record(subject, len))
        .unwrap();
    seq.value()
}

/// Runs operations until there are none; gives their events.
fn settle(store: &mut Store, disk: &MemDisk) -> Vec<StoreEvent> {
    let mut events = Vec::new();
    loop {
        let requests = store.take_io();
        if requests.is_empty() && !store.has_work() {
            return events;
        }
        for request in requests {
            let result = disk.run(&request.op);
            events.push(store.io_done(&IoDone {
                token: request.token,
                result,
            }));
        }
    }
}

#[test]
fn the_end_of_an_operation_of_the_store_before_is_nothing_to_a_store() {
    let filled = |first_io| {
        let mut store = Store::new(StoreConfig { first_io, ..config() });
        for _ in 0..60 {
            append(&mut store, "a", 1_000);
        }
        store.flush();
        store
    };
    let (mut before, mut store) = (filled(0), filled(1 << 40));
    let late = before.take_io();
    let asked = store.take_io();
    assert!(!late.is_empty() && !asked.is_empty());
    for request in late {
        let event = store.io_done(&IoDone {
            token: request.token,
            result: Err(IoError::NoSpace),
        });
        assert_eq!(event, StoreEvent::Nothing);
    }
    assert!(store.take_io().is_empty(), "it still waits for its own");
}

#[test]
fn the_next_block_is_filled_while_the_one_before_becomes_durable() {
    let disk = MemDisk::new();
    let mut store = Store::new(config());
    for _ in 0..60 {
        append(&mut store, "a", 1_000);
    }
    let mut held = Vec::new();
    let mut written = std::collections::BTreeSet::new();
    loop {
        let requests = store.take_io();
        if requests.is_empty() {
            break;
        }
        for request in requests {
            match &request.op {
                IoOp::Sync { .. } => held.push(request),
                op => {
                    if let IoOp::Write { file, .. } = op {
                        written.insert(file.clone());
                    }
                    let result = disk.run(op);
                    store.io_done(&IoDone {
                        token: request.token,
                        result,
                    });
                }
            }
        }
    }
    assert_eq!(held.len(), 1, "blocks become durable one after the other");
    assert_eq!(written.len(), 2, "and one more is on its way");
    // The older one fails: the messages of both are still there, and go to new files.
    for request in held {
        let done = IoDone {
            token: request.token,
            result: Err(IoError::NoSpace),
        };
        assert!(matches!(store.io_done(&done), StoreEvent::WriteFailed(_)));
    }
    store.resume_writes();
    settle(&mut store, &disk);
    let blocks: Vec<_> = store.block_files().map(|block| block.file).collect();
    assert!(blocks.len() >= 3 && blocks.iter().all(|file| !written.contains(file)));
    assert_eq!(store.msgs(), 60);
    let restored = {
        let bytes = save(&mut store, &disk);
        Store::restore(config(), &[&bytes], &disk, OnLoss::Refuse).unwrap()
    };
    assert_eq!(restored.msgs(), 60);
}

/// Flushes, and makes a checkpoint that is durable at once.
fn save(store: &mut Store, disk: &MemDisk) -> Vec<u8> {
    store.flush();
    settle(store, disk);
    assert!(store.is_flushed());
    let mut bytes = Vec::new();
    let number = store.encode_checkpoint(CheckpointKind::Full, &mut bytes);
    store.checkpoint_durable(number);
    settle(store, disk);
    bytes
}

fn get(store: &mut Store, disk: &MemDisk, seq: u64) -> Lookup {
    for _ in 0..4 {
        match store.get(StreamSeq(seq)) {
            Lookup::Cold(need) => {
                store.fetch(need);
                settle(store, disk);
            }
            answer => return answer,
        }
    }
    panic!("{seq} does not come");
}

fn is_found(lookup: &Lookup) -> bool {
    matches!(lookup, Lookup::Found(_))
}

/// A store of `count` messages of which all but the tail are in blocks.
fn filled(disk: &MemDisk, count: u64, subjects: u64) -> Store {
    let mut store = Store::new(config());
    for n in 0..count {
        append(&mut store, &format!("key.{}", n % subjects), 100);
        if n % 20 == 0 {
            settle(&mut store, disk);
        }
    }
    settle(&mut store, disk);
    store
}

#[test]
fn what_dies_young_is_never_written() {
    let disk = MemDisk::new();
    let mut store = Store::new(config());
    for _ in 0..1000 {
        let seq = append(&mut store, "work", 500);
        store.remove(StreamSeq(seq)).unwrap();
        settle(&mut store, &disk);
    }
    assert!(disk.files().is_empty(), "{:?}", disk.files());
    assert_eq!((store.state().first_seq, store.msgs()), (StreamSeq(1001), 0));
}

#[test]
fn a_stream_without_messages_has_no_file() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 600, 5);
    save(&mut store, &disk);
    assert!(!disk.files().is_empty());
    let mut purge = Purge::new(Filters::all(), None, 0);
    assert_eq!(store.purge(&mut purge, 1), Ok(PurgeStep::Done));
    assert_eq!(purge.purged(), 600);
    settle(&mut store, &disk);
    assert!(!disk.files().is_empty(), "the last checkpoint names the files");
    save(&mut store, &disk);
    assert!(disk.files().is_empty(), "{:?}", disk.files());
}

#[test]
fn overwriting_keys_reads_the_front_alone() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 400, 400);
    let saved = save(&mut store, &disk);
    let mut again = Store::restore(config(), &[&saved], &disk, OnLoss::Refuse).unwrap();
    for store in [&mut store, &mut again] {
        let (mut reads, blocks) = (0, store.block_files().count());
        // Not in the order in which they were stored, so that indexes in memory are of no help.
        for n in 0..400 {
            let key = format!("key.{}", (n * 7 + 201) % 400);
            append(store, &key, 50);
            let trimmed = loop {
                match store.remove_oldest_of(key.as_bytes()) {
                    Ok(trimmed) => break trimmed,
                    Err(RemoveError::Need(need)) => {
                        // The time of the message that will be the first is all that has to be read.
                        assert!(store.oldest().is_some_and(|(first, _)| first < need.seq));
                        reads += 1;
                        store.fetch(need);
                        settle(store, &disk);
                    }
                    Err(why) => panic!("{why}"),
                }
            };
            assert_eq!(trimmed.subject_left, 1);
        }
        assert!(reads <= blocks, "{reads} reads for {blocks} blocks");
        assert_eq!((store.msgs(), store.state().num_subjects), (400, 400));
    }
    assert_eq!(store.digest(), again.digest());
}

#[test]
fn trimming_the_front_reads_one_index_a_block() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 600, 3);
    let saved = save(&mut store, &disk);
    let mut store = Store::restore(config(), &[&saved], &disk, OnLoss::Refuse).unwrap();
    let (mut reads, blocks) = (0, store.block_files().count());
    assert!(blocks > 3);
    let newest = |store: &Store| store.block_files().last().map(|file| file.file);
    let last = newest(&store);
    while let Some((seq, ts)) = store.oldest() {
        assert_eq!(ts.0, seq.value().cast_signed());
        settle(&mut store, &disk);
        assert!(
            newest(&store).is_none_or(|file| Some(file) == last),
            "half a block was copied"
        );
        match store.remove(seq) {
            Ok(_) => {}
            Err(RemoveError::Need(need)) => {
                reads += 1;
                assert!(store.fetch(need));
                settle(&mut store, &disk);
            }
            Err(why) => panic!("{why}"),
        }
    }
    assert!(reads <= blocks, "{reads} reads for {blocks} blocks");
}

#[test]
fn sparse_blocks_are_joined() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 1000, 10);
    save(&mut store, &disk);
    let before: u64 = disk.files().iter().map(|(_, len)| len).sum();
    let digest = |store: &Store| (store.digest(), store.state());
    for seq in (1..=1000).filter(|seq| seq % 10 != 0) {
        while let Err(RemoveError::Need(need)) = store.remove(StreamSeq(seq)) {
            store.fetch(need);
            settle(&mut store, &disk);
        }
    }
    let expected = digest(&store);
    settle(&mut store, &disk);
    let saved = save(&mut store, &disk);
    let after: u64 = disk.files().iter().map(|(_, len)| len).sum();
    assert!(after * 4 < before, "{after} of {before} bytes are left");
    assert!(store.block_files().count() <= 2);
    let mut again = Store::restore(config(), &[&saved], &disk, OnLoss::Refuse).unwrap();
    for store in [&mut store, &mut again] {
        assert_eq!(digest(store), expected);
        for seq in 1..=1000 {
            let lookup = get(store, &disk, seq);
            assert_eq!(is_found(&lookup), seq % 10 == 0, "{seq}: {lookup:?}");
        }
    }
}

#[test]
fn small_blocks_are_joined() {
    let disk = MemDisk::new();
    let mut store = Store::new(StoreConfig {
        block_bytes: 4 << 20,
        ..config()
    });
    for _ in 0..40 {
        for _ in 0..70 {
            append(&mut store, "s", 1000);
        }
        store.flush();
        settle(&mut store, &disk);
    }
    assert_eq!(store.msgs(), 2800);
    assert!(
        store.block_files().count() < 16,
        "{} blocks",
        store.block_files().count()
    );
    save(&mut store, &disk);
    assert_eq!(disk.files().len(), store.block_files().count());
    assert!((1..=2800).all(|seq| is_found(&get(&mut store, &disk, seq))));
}

#[test]
fn a_damaged_record_is_reported_and_never_given() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 300, 3);
    let file = store.block_files().next().unwrap().file;
    // In the payload of the third message.
    let frame = 20 + 16 + 5 + 100;
    assert!(disk.flip_bit(&file, (HEADER_BYTES + 2 * frame + 100) * 8));
    assert!(is_found(&get(&mut store, &disk, 2)));
    assert_eq!(get(&mut store, &disk, 3), Lookup::Damaged);
    assert!(is_found(&get(&mut store, &disk, 4)));
    assert_eq!(store.damaged().collect::<Vec<_>>(), [StreamSeq(3)]);
    // Its accounting does not need its bytes.
    let mut purge = Purge::new(Filters::all(), Some(StreamSeq(5)), 0);
    while let Err(RemoveError::Need(need)) = store.purge(&mut purge, 100) {
        store.fetch(need);
        settle(&mut store, &disk);
    }
    assert_eq!((purge.purged(), store.damaged().count()), (4, 0));
}

#[test]
fn a_damaged_index_is_made_again() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 450, 3);
    let saved = save(&mut store, &disk);
    let files: Vec<_> = store.block_files().collect();
    let frames = data_len(&disk, &files[0].file);
    // Somewhere in summary and index, and in the second file in a frame as well.
    for file in &files[..2] {
        for byte in [5, 60, 200] {
            assert!(disk.flip_bit(
                &file.file,
                (HEADER_BYTES + data_len(&disk, &file.file) + byte) * 8
            ));
        }
    }
    let mut again = Store::restore(config(), &[&saved], &disk, OnLoss::Refuse).unwrap();
    assert_eq!((again.digest(), again.state()), (store.digest(), store.state()));
    assert!((1..=450).all(|seq| is_found(&get(&mut again, &disk, seq))));

    assert!(disk.flip_bit(&files[1].file, (HEADER_BYTES + frames / 2) * 8));
    let refused = Store::restore(config(), &[&saved], &disk, OnLoss::Refuse);
    assert!(
        matches!(&refused, Err(StoreError::Block { file, lost }) if *file == files[1].file && *lost > 50),
        "{refused:?}"
    );
    let mut again = Store::restore(config(), &[&saved], &disk, OnLoss::Report).unwrap();
    let [(from, upto)] = again.lost() else {
        panic!("{:?}", again.lost())
    };
    let (from, upto) = (from.value(), upto.value());
    assert_eq!(again.msgs(), 450 - (upto + 1 - from));
    for seq in 1..=450 {
        let lookup = get(&mut again, &disk, seq);
        assert_eq!(
            is_found(&lookup),
            !(from..=upto).contains(&seq),
            "{seq}: {lookup:?}"
        );
    }
    // The same damage, while it runs and once the index is no longer in memory: it says so.
    assert!(is_found(&get(&mut store, &disk, upto + 1)));
    let seq = StreamSeq(from);
    assert_eq!(get(&mut store, &disk, from), Lookup::Damaged);
    assert!(matches!(store.remove(seq), Err(RemoveError::Damaged(s)) if s == seq));
    assert_eq!(store.damaged().count() as u64, upto + 1 - from);
}

/// Length of the frames, from the trailer.
fn data_len(disk: &MemDisk, file: &FilePath) -> u64 {
    let len = disk.size(file).unwrap();
    let trailer = disk.read(file, len - 128, 128).unwrap();
    u64::from_le_bytes(trailer[32..40].try_into().unwrap())
}

#[test]
fn a_lost_file_is_a_lost_block() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 300, 3);
    let saved = save(&mut store, &disk);
    let first = store.block_files().next().unwrap().file;
    disk.run(&IoOp::Remove { file: first }).unwrap();
    assert!(matches!(
        Store::restore(config(), &[&saved], &disk, OnLoss::Refuse),
        Err(StoreError::Block { .. })
    ));
    let again = Store::restore(config(), &[&saved], &disk, OnLoss::Report).unwrap();
    let (first, ts) = again.oldest().unwrap();
    assert_eq!(
        (again.lost().first().unwrap().0, ts.0),
        (StreamSeq(1), first.value().cast_signed())
    );
}

#[test]
fn a_failing_disk_loses_nothing() {
    for fault in [Fault::Create, Fault::Write, Fault::Sync] {
        let disk = MemDisk::new();
        let mut store = Store::new(config());
        for _ in 0..300 {
            append(&mut store, "s", 100);
        }
        disk.fail(fault, 0);
        let events = settle(&mut store, &disk);
        assert!(
            events
                .iter()
                .any(|event| matches!(event, StoreEvent::WriteFailed(_))),
            "{fault:?}: {events:?}"
        );
        assert_eq!(store.block_files().count(), 0);
        assert!(store.take_io().is_empty(), "nothing is tried again by itself");
        store.resume_writes();
        let events = settle(&mut store, &disk);
        assert!(
            events
                .iter()
                .any(|event| matches!(event, StoreEvent::Sealed { .. })),
            "{fault:?}: {events:?}"
        );
        let failed = |(file, _): &(FilePath, u64)| file.name() == "0000000000000001.blk";
        assert!(!disk.files().iter().any(failed), "the failed file is gone");
        assert!((1..=300).all(|seq| is_found(&get(&mut store, &disk, seq))));
    }
}

#[test]
fn a_failed_read_can_be_tried_again() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 300, 3);
    for _ in 0..2 {
        let Lookup::Cold(need) = store.get(StreamSeq(1)) else {
            panic!("in memory")
        };
        disk.fail(Fault::Read, 0);
        assert!(store.fetch(need));
        let events = settle(&mut store, &disk);
        assert!(
            events
                .iter()
                .any(|event| matches!(event, StoreEvent::ReadFailed { .. })),
            "{events:?}"
        );
    }
    assert!(is_found(&get(&mut store, &disk, 1)));
}

#[test]
fn a_delta_costs_what_changed() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 3000, 3);
    let full = save(&mut store, &disk);
    for _ in 0..3 {
        let (oldest, _) = store.oldest().unwrap();
        while let Err(RemoveError::Need(need)) = store.remove(oldest) {
            store.fetch(need);
            settle(&mut store, &disk);
        }
    }
    let mut delta = Vec::new();
    store.encode_checkpoint(CheckpointKind::Delta, &mut delta);
    assert!(store.block_files().count() > 20);
    assert!(
        delta.len() + 20 * 100 < full.len(),
        "{} of {}",
        delta.len(),
        full.len()
    );
    let again = Store::restore(config(), &[&full, &delta], &disk, OnLoss::Refuse).unwrap();
    assert_eq!((again.digest(), again.state()), (store.digest(), store.state()));
    assert!(matches!(
        Store::restore(config(), &[&delta], &disk, OnLoss::Refuse),
        Err(StoreError::Checkpoint(_))
    ));
    let mut third = Vec::new();
    store.encode_checkpoint(CheckpointKind::Delta, &mut third);
    assert!(
        Store::restore(config(), &[&full, &third], &disk, OnLoss::Refuse).is_err(),
        "one is missing"
    );
}

#[test]
fn a_file_outlives_the_checkpoints_that_name_it() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 600, 5);
    save(&mut store, &disk);
    let mut second = Vec::new();
    let number = store.encode_checkpoint(CheckpointKind::Full, &mut second);
    let expected = (store.digest(), store.state());
    // Everything goes before the checkpoint is durable, and it names all of it.
    while store.purge(&mut Purge::new(Filters::all(), None, 0), 100) != Ok(PurgeStep::Done) {}
    store.checkpoint_durable(number);
    settle(&mut store, &disk);
    let again = Store::restore(config(), &[&second], &disk, OnLoss::Refuse).unwrap();
    assert_eq!((again.digest(), again.state()), expected);
    save(&mut store, &disk);
    assert!(disk.files().is_empty());
}

#[test]
fn pinned_files_stay() {
    let disk = MemDisk::new();
    let mut store = filled(&disk, 600, 5);
    save(&mut store, &disk);
    store.pin();
    let files: Vec<_> = store.block_files().collect();
    while store.purge(&mut Purge::new(Filters::all(), None, 0), 100) != Ok(PurgeStep::Done) {}
    save(&mut store, &disk);
    for file in &files {
        let data = disk.read(&file.file, 0, file.len).unwrap();
        assert_eq!((data.len() as u64, crc32c::crc32c(&data)), (file.len, file.crc));
    }
    store.unpin();
    settle(&mut store, &disk);
    assert!(disk.files().is_empty());
}

#[test]
fn a_large_filter_is_searched_both_ways() {
    // Many subjects match and few messages do, then the other way round.
    let disk = MemDisk::new();
    let mut store = Store::new(StoreConfig {
        tail_bytes: 1 << 20,
        ..config()
    });
    for n in 0..6000 {
        append(&mut store, &format!("many.{n}"), 1);
    }
    for _ in 0..6000 {
        append(&mut store, "one", 1);
    }
    let last = append(&mut store, "many.1", 1);
    settle(&mut store, &disk);
    let many = Filters::one("many.*".parse().unwrap());
    assert_eq!(
        store.next_matching(StreamSeq(5990), &many),
        Ok(Some(StreamSeq(5990)))
    );
    assert_eq!(
        store.next_matching(StreamSeq(6001), &many),
        Ok(Some(StreamSeq(last)))
    );
    assert_eq!(store.next_matching(StreamSeq(last + 1), &many), Ok(None));
    assert_eq!(store.count_matching(StreamSeq(5999), &many), 3);
    assert_eq!(store.last_matching(&many), Some(StreamSeq(last)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn any_bytes_may_come_from_disk(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        tidelock_store::fuzz(&bytes);
    }

    #[test]
    fn a_damaged_checkpoint_is_refused(place: prop::sample::Index, bit in 0_u8..8) {
        let (disk, mut bytes) = checkpoint_with_blocks();
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        let refused = Store::restore(config(), &[&bytes], &disk, OnLoss::Report);
        prop_assert!(matches!(refused, Err(StoreError::Checkpoint(_))));
        // Past the checksum, too, nothing may panic.
        let mut unsealed = vec![0];
        unsealed.extend_from_slice(&bytes[..bytes.len() - 4]);
        tidelock_store::fuzz(&unsealed);
    }
}

fn checkpoint_with_blocks() -> (MemDisk, Vec<u8>) {
    static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let make = || {
        let disk = MemDisk::new();
        let mut store = filled(&disk, 300, 3);
        for seq in [2, 3, 5, 290] {
            while store
                .remove(StreamSeq(seq))
                .is_err_and(|why| why != RemoveError::Missing)
            {
                get(&mut store, &disk, seq);
            }
        }
        save(&mut store, &disk)
    };
    (MemDisk::new(), BYTES.get_or_init(make).clone())
}
