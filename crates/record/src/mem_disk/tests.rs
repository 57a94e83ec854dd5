use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn path(text: &str) -> FilePath {
    FilePath::new(text).unwrap()
}

fn create(disk: &MemDisk, file: &str, len: u64) {
    disk.run(&IoOp::Create {
        file: path(file),
        len,
    })
    .unwrap();
}

fn write(disk: &MemDisk, file: &str, offset: u64, data: &[u8], sync: bool) -> Result<IoOutput, IoError> {
    let parts = vec![Bytes::copy_from_slice(data)];
    disk.run(&IoOp::Write {
        file: path(file),
        offset,
        parts,
        sync,
    })
}

fn sync(disk: &MemDisk, file: &str) -> Result<IoOutput, IoError> {
    disk.run(&IoOp::Sync { file: path(file) })
}

fn content(disk: &MemDisk, file: &str) -> Vec<u8> {
    disk.read(&path(file), 0, u64::MAX).unwrap().to_vec()
}

/// Whether `check` is true for some seeds and false for others.
fn varies(mut check: impl FnMut(u64) -> bool) -> bool {
    let outcomes: BTreeSet<bool> = (0..64).map(&mut check).collect();
    outcomes.len() == 2
}

#[test]
fn a_crash_keeps_loses_or_tears_what_was_not_synced() {
    let after = |seed| {
        let disk = MemDisk::new();
        create(&disk, "f", 1024);
        write(&disk, "f", 0, &[1; 1024], false).unwrap();
        disk.crash(seed);
        content(&disk, "f")
    };
    assert!(varies(|seed| after(seed) == [1; 1024]), "kept");
    assert!(varies(|seed| after(seed) == [0; 1024]), "lost");
    assert!(
        varies(|seed| after(seed)[..512] != after(seed)[512..]),
        "torn between sectors"
    );
    assert!(
        varies(|seed| after(seed)[0] != after(seed)[511]),
        "torn within a sector"
    );
    assert_eq!(after(7), after(7));
}

#[test]
fn no_sync_helps_what_a_failed_sync_left() {
    let lost = |seed| {
        let disk = MemDisk::new();
        create(&disk, "f", 512);
        write(&disk, "f", 0, &[1; 512], false).unwrap();
        disk.fail(Fault::Sync, 0);
        assert!(sync(&disk, "f").is_err());
        assert_eq!(content(&disk, "f"), [1; 512], "the page cache still has it");
        sync(&disk, "f").unwrap();
        disk.crash(seed);
        content(&disk, "f") != [1; 512]
    };
    assert!(varies(lost));
}

#[test]
fn an_empty_file_is_there_for_good_once_it_is_synced() {
    let there = |seed, synced, neighbour| {
        let disk = MemDisk::new();
        create(&disk, "d/a", 0);
        write(&disk, "d/a", 0, b"one", false).unwrap();
        if synced {
            sync(&disk, "d/a").unwrap();
        }
        if neighbour {
            create(&disk, "d/b", 1);
        }
        disk.crash(seed);
        disk.size(&path("d/a")).is_ok()
    };
    assert!(varies(|seed| there(seed, false, false)));
    assert!((0..64).all(|seed| there(seed, true, false)), "its own sync");
    assert!(
        (0..64).all(|seed| there(seed, false, true)),
        "one of the directory"
    );
}

#[test]
fn removals_are_durable_once_the_directory_changes() {
    let back = |seed| {
        let disk = MemDisk::new();
        create(&disk, "d/a", 1);
        disk.run(&IoOp::Remove { file: path("d/a") }).unwrap();
        disk.crash(seed);
        disk.size(&path("d/a")).is_ok()
    };
    assert!(varies(back));
    let back_after_create = |seed| {
        let disk = MemDisk::new();
        create(&disk, "d/a", 1);
        disk.run(&IoOp::Remove { file: path("d/a") }).unwrap();
        create(&disk, "d/b", 1);
        disk.crash(seed);
        disk.size(&path("d/a")).is_ok()
    };
    assert!((0..64).all(|seed| !back_after_create(seed)));
}

#[test]
fn faults_capacity_and_power_strike_when_told() {
    let disk = MemDisk::new();
    create(&disk, "d/f", 0);
    disk.fail(Fault::Write, 1);
    write(&disk, "d/f", 0, b"one", true).unwrap();
    assert!(write(&disk, "d/f", 3, b"two", true).is_err());
    write(&disk, "d/f", 3, b"two", true).unwrap();

    disk.set_capacity(Some(8));
    assert_eq!(write(&disk, "d/f", 6, b"three", true), Err(IoError::NoSpace));
    write(&disk, "d/f", 0, b"ONE", true).unwrap();

    disk.power_off_after(1);
    write(&disk, "d/f", 6, b"!!", true).unwrap();
    assert!(write(&disk, "d/f", 0, b"zzzzzz", true).is_err());
    assert!(disk.size(&path("d/f")).is_err());
    disk.crash(3);
    let text = content(&disk, "d/f");
    assert_eq!(text.len(), 8);
    assert_eq!(&text[6..], b"!!");

    assert!(disk.flip_bit(&path("d/f"), 6 * 8));
    assert_eq!(content(&disk, "d/f")[6], b'!' ^ 1);
    assert!(!disk.flip_bit(&path("d/f"), 8 * 8));
    assert_eq!(disk.list(&FilePath::root()), Ok(vec!["d".to_owned()]));
    assert_eq!(disk.list(&path("d")), Ok(vec!["f".to_owned()]));
    assert_eq!(disk.list(&path("nowhere")), Ok(vec![]));
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>, bool),
    Truncate(u64),
    Sync,
    Crash(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2000_u64, vec(any::<u8>(), 1..1200), any::<bool>()).prop_map(|(at, data, sync)| Step::Write(at, data, sync)),
        1 => (0..2500_u64).prop_map(Step::Truncate),
        1 => Just(Step::Sync),
        1 => any::<u64>().prop_map(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Against a plain vector: reads see every write, and what was synced last survives a crash byte by byte,
    /// unless it was written again since.
    #[test]
    fn behaves_as_a_vector_and_keeps_what_was_synced(steps in vec(step(), 1..30)) {
        let disk = MemDisk::new();
        create(&disk, "f", 0);
        sync(&disk, "f").unwrap();
        let (mut now, mut durable) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Write(at, data, durably) => {
                    write(&disk, "f", at, &data, durably).unwrap();
                    let at = usize::try_from(at).unwrap();
                    if now.len() < at + data.len() {
                        now.resize(at + data.len(), 0);
                    }
                    now[at..at + data.len()].copy_from_slice(&data);
                    if durably {
                        durable.clone_from(&now);
                    }
                }
                Step::Truncate(len) => {
                    disk.run(&IoOp::Truncate { file: path("f"), len }).unwrap();
                    now.resize(usize::try_from(len).unwrap(), 0);
                }
                Step::Sync => {
                    sync(&disk, "f").unwrap();
                    durable.clone_from(&now);
                }
                Step::Crash(seed) => {
                    disk.crash(seed);
                    let found = content(&disk, "f");
                    prop_assert!(found.len() == now.len() || found.len() == durable.len());
                    for (at, byte) in found.iter().enumerate() {
                        let old = durable.get(at).copied().unwrap_or(0);
                        let same = now.get(at).is_none_or(|new| *new == old);
                        prop_assert!(!same || *byte == old || now.get(at).is_none(), "byte {at}");
                    }
                    (now, durable) = (found.clone(), found);
                }
            }
            prop_assert_eq!(&content(&disk, "f"), &now);
        }
    }
}

#[test]
fn what_takes_the_place_of_a_reserve_needs_no_room() {
    let disk = MemDisk::new();
    create(&disk, "reserve", 1000);
    create(&disk, "f", 10);
    assert_eq!(
        disk.run(&IoOp::Space),
        Ok(IoOutput::Space {
            free: u64::MAX - 1010,
            total: u64::MAX
        })
    );
    disk.set_capacity(Some(1010));
    assert_eq!(
        disk.run(&IoOp::Space),
        Ok(IoOutput::Space { free: 0, total: 1010 })
    );
    let (file, data) = (path("f"), Bytes::from_static(&[7; 500]));
    let replace = IoOp::Replace {
        file: file.clone(),
        data: data.clone(),
    };
    assert_eq!(disk.run(&replace), Err(IoError::NoSpace));
    let reserve = path("reserve");
    disk.run(&IoOp::ReplaceFrom { file, data, reserve }).unwrap();
    assert_eq!(content(&disk, "f"), [7; 500]);
    assert_eq!(disk.files().len(), 1);
}
