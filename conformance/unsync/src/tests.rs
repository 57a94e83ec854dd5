//! What survives a power loss, and what does not.

use crate::backing;
use crate::chance::Chance;
use crate::content::SECTOR;
use crate::loss::{Loss, Lost};
use crate::names::{Above, Ino, ROOT};
use crate::volume::Volume;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use tempfile::TempDir;

fn volume() -> (TempDir, Volume) {
    with(Above::Own)
}

fn with(above: Above) -> (TempDir, Volume) {
    let folder = tempfile::tempdir().expect("a folder");
    let volume = Volume::new(folder.path().to_owned(), above);
    (folder, volume)
}

fn create(volume: &mut Volume, folder: Ino, name: &str) -> Ino {
    volume
        .create(folder, OsStr::new(name), 0o640)
        .expect("a new name")
        .ino
}

fn folder(volume: &mut Volume, parent: Ino, name: &str) -> Ino {
    volume
        .create_folder(parent, OsStr::new(name), 0o755)
        .expect("a new name")
        .ino
}

fn write(volume: &mut Volume, ino: Ino, offset: u64, data: &[u8]) {
    volume
        .edit(ino, |content| content.write(offset, data))
        .expect("room");
}

fn set_len(volume: &mut Volume, ino: Ino, len: u64) {
    volume.edit(ino, |content| content.set_len(len)).expect("room");
}

fn rename(volume: &mut Volume, from: (Ino, &str), to: (Ino, &str)) {
    let (from, to) = ((from.0, OsStr::new(from.1)), (to.0, OsStr::new(to.1)));
    volume.rename(from, to, false).expect("a name");
}

fn read(volume: &Volume, ino: Ino) -> Vec<u8> {
    volume.read(ino, 0, 1 << 20).expect("a file")
}

fn names(volume: &Volume, folder: Ino) -> Vec<String> {
    let list = volume.list(folder).expect("a folder");
    list.into_iter()
        .map(|(name, _)| name.into_string().expect("text"))
        .collect()
}

/// A durable file with these bytes.
fn durable(volume: &mut Volume, name: &str, data: &[u8]) -> Ino {
    let ino = create(volume, ROOT, name);
    write(volume, ino, 0, data);
    volume.sync_all().expect("room");
    ino
}

fn lose_all(volume: &mut Volume) -> Lost {
    volume.lose(Loss::All).expect("objects")
}

#[test]
fn data_without_a_sync_is_gone_and_with_one_it_stays() {
    let (_dir, mut v) = volume();
    let ino = durable(&mut v, "a", b"old");
    write(&mut v, ino, 0, b"new, and longer");
    assert_eq!(read(&v, ino), b"new, and longer");
    let lost = lose_all(&mut v);
    assert_eq!(
        lost,
        Lost {
            files: 1,
            sectors: 1,
            torn: 0,
            names: 0
        }
    );
    assert_eq!(read(&v, ino), b"old");

    write(&mut v, ino, 0, b"new");
    v.sync(ino).expect("room");
    write(&mut v, ino, 3, b"er");
    lose_all(&mut v);
    assert_eq!(read(&v, ino), b"new");
}

#[test]
fn the_length_is_durable_with_the_data() {
    let (_dir, mut v) = volume();
    let ino = durable(&mut v, "a", b"");
    write(&mut v, ino, 5000, b"x");
    v.sync(ino).expect("room");
    lose_all(&mut v);
    assert_eq!(v.attributes(ino).expect("a file").len, 5001);
    assert_eq!(read(&v, ino)[..5000], [0; 5000]);
}

#[test]
fn a_cut_without_a_sync_comes_back() {
    let (_dir, mut v) = volume();
    let ino = durable(&mut v, "a", &[7; 10_000]);
    set_len(&mut v, ino, 5000);
    set_len(&mut v, ino, 8000);
    let seen = read(&v, ino);
    assert_eq!((seen.len(), &seen[4999..5001]), (8000, &[7, 0][..]));
    assert!(seen[5000..].iter().all(|b| *b == 0));
    lose_all(&mut v);
    assert_eq!(read(&v, ino), [7; 10_000]);
}

#[test]
fn what_was_cut_off_and_synced_does_not_show_again() {
    let (_dir, mut v) = volume();
    let ino = durable(&mut v, "a", &[7; 10_000]);
    set_len(&mut v, ino, 100);
    v.sync(ino).expect("room");
    set_len(&mut v, ino, 10_000);
    v.sync(ino).expect("room");
    lose_all(&mut v);
    let seen = read(&v, ino);
    assert_eq!((seen.len(), seen[99], seen[100]), (10_000, 7, 0));
    assert!(seen[100..].iter().all(|b| *b == 0));
}

#[test]
fn zeros_are_data() {
    let (_dir, mut v) = volume();
    let ino = durable(&mut v, "a", &[7; 10_000]);
    v.edit(ino, |content| content.zero(10, 20_000, false))
        .expect("room");
    assert_eq!(read(&v, ino).len(), 10_000);
    assert!(read(&v, ino)[10..].iter().all(|b| *b == 0));
    lose_all(&mut v);
    assert_eq!(read(&v, ino), [7; 10_000]);
}

#[test]
fn a_file_that_was_synced_is_gone_if_its_folder_was_not() {
    let (_dir, mut v) = volume();
    let ino = create(&mut v, ROOT, "a");
    write(&mut v, ino, 0, b"data");
    v.sync(ino).expect("room");
    assert_eq!(lose_all(&mut v).names, 1);
    assert!(names(&v, ROOT).is_empty());
    assert_eq!(v.attributes(ino), Err(Errno::STALE));
}

#[test]
fn a_name_that_was_synced_may_be_one_of_an_empty_file() {
    let (_dir, mut v) = volume();
    let ino = create(&mut v, ROOT, "a");
    write(&mut v, ino, 0, b"data");
    v.sync_folder(ROOT).expect("a folder");
    lose_all(&mut v);
    assert_eq!(
        (names(&v, ROOT), read(&v, ino)),
        (vec!["a".to_owned()], Vec::new())
    );
}

#[test]
fn a_replaced_file_comes_back_until_the_folder_is_synced() {
    let (_dir, mut v) = volume();
    let old = durable(&mut v, "a", b"old");
    let new = create(&mut v, ROOT, "a.tmp");
    write(&mut v, new, 0, b"new");
    v.sync(new).expect("room");
    rename(&mut v, (ROOT, "a.tmp"), (ROOT, "a"));
    assert_eq!(v.find(ROOT, OsStr::new("a")).expect("a name").ino, new);
    lose_all(&mut v);
    assert_eq!(names(&v, ROOT), ["a"]);
    assert_eq!(v.find(ROOT, OsStr::new("a")).expect("a name").ino, old);
    assert_eq!(read(&v, old), b"old");
}

#[test]
fn a_removed_file_comes_back_until_the_folder_is_synced() {
    let (_dir, mut v) = volume();
    let ino = durable(&mut v, "a", b"data");
    v.remove(ROOT, OsStr::new("a")).expect("a name");
    assert!(names(&v, ROOT).is_empty());
    lose_all(&mut v);
    assert_eq!(read(&v, ino), b"data");
    v.remove(ROOT, OsStr::new("a")).expect("a name");
    v.sync_folder(ROOT).expect("a folder");
    lose_all(&mut v);
    assert!(names(&v, ROOT).is_empty());
}

#[test]
fn of_a_move_each_folder_is_synced_by_itself() {
    let (_dir, mut v) = volume();
    let (from, to) = (folder(&mut v, ROOT, "from"), folder(&mut v, ROOT, "to"));
    let ino = create(&mut v, from, "a");
    v.sync_all().expect("room");
    rename(&mut v, (from, "a"), (to, "b"));
    v.sync_folder(to).expect("a folder");
    lose_all(&mut v);
    assert_eq!(
        (names(&v, from), names(&v, to)),
        (vec!["a".to_owned()], vec!["b".to_owned()])
    );
    assert_eq!(v.find(from, OsStr::new("a")).expect("a name").ino, ino);
}

#[test]
fn a_new_folder_needs_the_sync_of_the_one_above_unless_that_follows() {
    for (above, left) in [(Above::Own, 0), (Above::Follows, 1)] {
        let (_dir, mut v) = with(above);
        let outer = folder(&mut v, ROOT, "outer");
        let inner = folder(&mut v, outer, "inner");
        create(&mut v, inner, "a");
        create(&mut v, outer, "beside");
        v.sync_folder(inner).expect("a folder");
        lose_all(&mut v);
        assert_eq!(names(&v, ROOT).len(), left);
        if above == Above::Follows {
            assert_eq!(
                (names(&v, outer), names(&v, inner)),
                (vec!["inner".to_owned()], vec!["a".to_owned()])
            );
        }
    }
}

#[test]
fn a_file_that_is_open_can_be_read_without_a_name() {
    let (dir, mut v) = volume();
    let ino = durable(&mut v, "a", b"data");
    v.open(ino).expect("a file");
    v.remove(ROOT, OsStr::new("a")).expect("a name");
    v.sync_folder(ROOT).expect("a folder");
    assert_eq!(read(&v, ino), b"data");
    v.release(ino);
    assert_eq!(v.attributes(ino), Err(Errno::STALE));
    assert_eq!(
        dir.path().read_dir().expect("a folder").count(),
        0,
        "its bytes are still there"
    );
}

#[test]
fn folders_are_removed_and_replaced_as_they_should() {
    let (_dir, mut v) = volume();
    let full = folder(&mut v, ROOT, "full");
    create(&mut v, full, "a");
    create(&mut v, ROOT, "file");
    let os = OsStr::new;
    assert_eq!(v.remove_folder(ROOT, os("full")), Err(Errno::NOTEMPTY));
    assert_eq!(v.remove_folder(ROOT, os("file")), Err(Errno::NOTDIR));
    assert_eq!(v.remove(ROOT, os("full")), Err(Errno::ISDIR));
    assert_eq!(
        v.rename((ROOT, os("file")), (ROOT, os("full")), false),
        Err(Errno::ISDIR)
    );
    assert_eq!(
        v.rename((ROOT, os("file")), (full, os("a")), true),
        Err(Errno::EXIST)
    );
    assert_eq!(v.create(ROOT, os("file"), 0).map(|a| a.ino), Err(Errno::EXIST));
}

/// All that seeds do to a file of one durable sector that has become two, and to a rename: as (sectors that show old, new and torn
/// content, length).
#[test]
fn chance_keeps_loses_and_tears_sectors() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let (_dir, mut v) = volume();
        let ino = durable(&mut v, "a", &[1; SECTOR]);
        write(&mut v, ino, 0, &[2; 2 * SECTOR]);
        v.lose(Loss::Some(Chance::new(seed))).expect("objects");
        let data = read(&v, ino);
        let (first, second) = data.split_at(SECTOR);
        seen.insert((outcome(first, 1), outcome(second, 0)));
        assert_eq!(read(&v, ino), v.read(ino, 0, 1 << 20).expect("a file"));
    }
    let second = ["gone", "new", "old", "torn"];
    let all = ["new", "old", "torn"]
        .into_iter()
        .flat_map(|f| second.map(|s| (f, s)));
    assert_eq!(seen, all.collect());
}

fn outcome(sector: &[u8], old: u8) -> &'static str {
    let (olds, news) = (
        sector.iter().filter(|b| **b == old).count(),
        sector.iter().filter(|b| **b == 2).count(),
    );
    assert_eq!(olds + news, sector.len());
    match (olds, news) {
        (0, 0) => "gone",
        (0, _) => "new",
        (_, 0) => "old",
        _ => {
            assert_eq!(olds % 512, 0, "a torn sector keeps units of the disk whole");
            "torn"
        }
    }
}

#[test]
fn chance_keeps_the_earlier_names() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let (_dir, mut v) = volume();
        create(&mut v, ROOT, "1");
        create(&mut v, ROOT, "2");
        rename(&mut v, (ROOT, "2"), (ROOT, "1"));
        v.lose(Loss::Some(Chance::new(seed))).expect("objects");
        seen.insert(names(&v, ROOT).concat());
    }
    assert_eq!(seen, ["", "1", "12"].map(str::to_owned).into());
}

#[test]
fn what_was_synced_is_no_matter_of_chance() {
    for seed in 0..100 {
        let (_dir, mut v) = volume();
        let ino = durable(&mut v, "a", &[1; 3 * SECTOR]);
        set_len(&mut v, ino, 100);
        v.sync(ino).expect("room");
        write(&mut v, ino, SECTOR as u64, &[3; SECTOR]);
        v.sync(ino).expect("room");
        v.lose(Loss::Some(Chance::new(seed))).expect("objects");
        let data = read(&v, ino);
        assert_eq!(data.len(), 2 * SECTOR);
        assert!(data[..100].iter().all(|b| *b == 1) && data[100..SECTOR].iter().all(|b| *b == 0));
        assert!(data[SECTOR..].iter().all(|b| *b == 3));
    }
}

#[test]
fn a_seed_decides_everything() {
    let run = |seed| {
        let (_dir, mut v) = volume();
        let ino = durable(&mut v, "a", &[1; 20 * SECTOR]);
        write(&mut v, ino, 10, &[2; 30 * SECTOR]);
        set_len(&mut v, ino, 25 * SECTOR as u64);
        let lost = v.lose(Loss::Some(Chance::new(seed))).expect("objects");
        (lost, read(&v, ino))
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_volume_is_saved_as_plain_files_and_loaded_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut v = backing::load(dir.path(), Above::Own).expect("an empty one");
    let inner = folder(&mut v, ROOT, "inner");
    let ino = create(&mut v, inner, "a");
    write(&mut v, ino, 0, b"data");
    backing::save(dir.path(), &mut v).expect("room");
    let plain = dir.path().join("tree/inner/a");
    assert_eq!(std::fs::read(plain).expect("a file"), b"data");

    let mut v = backing::load(dir.path(), Above::Own).expect("what was saved");
    lose_all(&mut v);
    let inner = v.find(ROOT, OsStr::new("inner")).expect("a name");
    let a = v.find(inner.ino, OsStr::new("a")).expect("a name");
    assert_eq!(
        (inner.folder, a.mode, read(&v, a.ino)),
        (true, 0o640, b"data".to_vec())
    );
}
